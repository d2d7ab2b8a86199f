//! Peers: the transport between brokers, for Raft messages, snapshots, and calls of the metadata layer.
//!
//! Owns: connections between brokers, their handshake and frames, what is in flight on them, order, and bounds.
//! Not here: what the messages mean (`placement`), what calls say (the services that register).
//! Spec: docs/protocols/peer.md
//!
//! [`PeerTransport`] calls, [`PeerListener`] answers out of [`PeerGroups`] and [`CallServices`]. Streams are those of
//! [`tidelog_env::Network`], any byte stream; with [`PeerTls`] they are TLS before the first byte of this protocol.

mod channel;
mod config;
mod dial;
mod drive;
mod frame;
mod greeting;
mod groups;
mod hello;
mod io;
mod limits;
mod link;
mod listener;
mod memory;
mod messages;
mod metrics;
mod mistakes;
mod ordered;
mod partial;
mod presence;
mod session;
mod tls;
mod transport;
mod waiting;
mod welcome;

pub use config::{PeerConfig, PeerIdentity, PeerListenerConfig};
pub use groups::{
    CallService, CallServices, Caller, PeerGroups, PeerReceiver, Receiving, Registered,
};
pub use limits::CALL_BYTES_MAX;
pub use listener::{PeerListenError, PeerListener, PeerListenerParts};
pub use metrics::PeerMetrics;
pub use tls::{PeerTls, PeerTlsCheck, PeerTlsError};
pub use transport::{
    AddressBook, CallError, NoAddressBook, PeerTarget, PeerTransport, PeerTransportParts,
};

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
pub(crate) mod certificates;
#[cfg(test)]
mod tests;
