//! Settings of the transport between brokers, and who this broker is to the others.
//!
//! Owns: [`PeerConfig`], [`PeerListenerConfig`], [`PeerIdentity`].
//! Not here: caps on sizes (`limits.rs`).
//! Spec: docs/protocols/peer.md

use super::limits;
use std::net::SocketAddr;
use std::time::Duration;
use tidelog_env::Random;
use tidelog_model::{ClusterId, NodeId, RaftNodeId};
use tokio::sync::watch;

/// Settings of the calling side.
#[derive(Debug, Clone)]
pub struct PeerConfig {
    /// Connecting and the handshake, TLS included, together.
    pub handshake: Duration,
    /// Pause after a failed try to connect; doubles up to `retry_max`. With jitter.
    pub retry_min: Duration,
    /// The longest pause. Below an election timeout, so that a peer that is back is heard before somebody campaigns.
    pub retry_max: Duration,
    /// Awaiting something, a connection is pinged after so long without a byte from the peer.
    pub ping_after: Duration,
    /// And dead after so long. Also how long a write may rest.
    pub silence_max: Duration,
    /// Messages queued and in flight per connection.
    pub in_flight_count_max: usize,
    /// Their bytes. At least one append of the largest size (24 MiB), or such an append is never sent.
    pub in_flight_bytes_max: usize,
}

impl Default for PeerConfig {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(3),
            retry_min: Duration::from_millis(50),
            retry_max: Duration::from_secs(1),
            // A peer that hears us and is not heard (a cut in one direction) keeps its followers until the connection ends.
            ping_after: Duration::from_millis(1500),
            silence_max: Duration::from_secs(4),
            in_flight_count_max: limits::IN_FLIGHT_COUNT_MAX,
            in_flight_bytes_max: limits::IN_FLIGHT_BYTES_MAX,
        }
    }
}

/// Settings of the listening side.
#[derive(Debug, Clone)]
pub struct PeerListenerConfig {
    /// Where to listen (`peer.listen`).
    pub listen: SocketAddr,
    /// Open connections at most, without those in their handshake.
    pub connections_max: usize,
    /// Connections in their handshake at most: the oldest gives way.
    pub handshakes_max: usize,
    /// Open connections of callers without a cluster at most: the oldest gives way.
    pub strangers_max: usize,
    /// From accepting to the end of the handshake, TLS included.
    pub handshake: Duration,
    /// A frame that has begun, or a reply, must make progress within this.
    pub stall: Duration,
    /// A connection without a frame for so long is closed.
    pub idle: Duration,
    /// A process that sent no byte for so long no longer keeps another one with its Raft node out.
    pub silence: Duration,
    /// A process that was refused beside a living one with its Raft node is let in no sooner than so long after that one was last heard.
    pub twin_memory: Duration,
    /// Bytes of frames in work, over all connections.
    pub frame_memory_bytes: usize,
    /// Bytes of partial snapshots, all together, as announced.
    pub snapshot_memory_bytes: usize,
    /// A partial snapshot that was not touched for so long is dropped.
    pub snapshot_idle: Duration,
}

impl PeerListenerConfig {
    /// The defaults, listening on `listen`.
    #[must_use]
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            connections_max: limits::CONNECTIONS_MAX,
            handshakes_max: limits::HANDSHAKES_MAX,
            strangers_max: limits::STRANGERS_MAX,
            handshake: Duration::from_secs(3),
            stall: Duration::from_secs(10),
            idle: Duration::from_secs(600),
            // Callers ping after 1.5 s: a living one is heard twice in this time.
            silence: Duration::from_secs(4),
            // Longer than a restart takes.
            twin_memory: Duration::from_secs(120),
            frame_memory_bytes: limits::FRAME_MEMORY_BYTES,
            snapshot_memory_bytes: limits::SNAPSHOT_MEMORY_BYTES,
            snapshot_idle: Duration::from_secs(60),
        }
    }
}

/// Who this broker is, as every handshake says it. One per process, shared by the listener and the transport.
#[derive(Debug)]
pub struct PeerIdentity {
    cluster: watch::Sender<Option<ClusterId>>,
    pub(super) name: String,
    pub(super) broker: NodeId,
    pub(super) node: RaftNodeId,
    pub(super) instance: u64,
}

impl PeerIdentity {
    /// `cluster` is `None` while this broker is in no cluster: then only calls are made and answered. A name of more than 255 bytes
    /// is cut at 255 on the wire, on every broker alike.
    #[must_use]
    pub fn new(
        cluster: Option<ClusterId>,
        name: &str,
        broker: NodeId,
        node: RaftNodeId,
        random: &dyn Random,
    ) -> Self {
        let mut name = name.to_owned();
        name.truncate(name.floor_char_boundary(limits::NAME_BYTES_MAX));
        Self {
            cluster: watch::Sender::new(cluster),
            name,
            broker,
            node,
            instance: random.next_u64(),
        }
    }

    /// The cluster, once this broker is in one.
    #[must_use]
    pub fn cluster(&self) -> Option<ClusterId> {
        *self.cluster.borrow()
    }

    /// This broker has become part of `cluster`. Connections that it made without one are made anew, and say so.
    pub fn join(&self, cluster: ClusterId) {
        self.cluster.send_replace(Some(cluster));
    }

    /// Returns when this broker is in a cluster.
    pub(super) async fn joined(&self) {
        // The sender is `self`: it does not go meanwhile.
        let _ = self.cluster.subscribe().wait_for(Option::is_some).await;
    }
}
