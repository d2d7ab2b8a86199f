//! Why a broker did not start, and why it ends by itself: one clear line each that says what to do.

use std::io;
use std::path::PathBuf;

use super::identity::IdentityError;
use crate::log::LogError;
use crate::metadata::Standing;
use crate::net::NetError;
use crate::peer::{PeerListenError, PeerTlsError};
use crate::placement::PlacementError;
use tidelog_model::{ClusterId, NodeId, PlacementGroupId};
use tidelog_tiering::store::OpenError;

/// Why a broker did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory cannot be used.
    #[error("data directory {dir}: {error}; check that it exists and may be written, or set node.data-dir", dir = dir.display())]
    DataDirectory {
        /// The directory.
        dir: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Another process has it.
    #[error("data directory {dir} is in use by another tidelog process; stop it, or set node.data-dir", dir = dir.display())]
    DirectoryInUse {
        /// The directory.
        dir: PathBuf,
    },
    /// An address cannot be bound.
    #[error("cannot listen on {address} ({key}): {error}; set {key} to a free address")]
    Listen {
        /// The address.
        address: String,
        /// The key that sets it.
        key: &'static str,
        /// Why.
        error: io::Error,
    },
    /// The Kafka listener.
    #[error(transparent)]
    Net(#[from] NetError),
    /// An address is not one.
    #[error("{key} = {address:?} is not host:port")]
    Address {
        /// The address.
        address: String,
        /// The key that sets it.
        key: &'static str,
    },
    /// The directory belongs to somebody else.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The listener for other brokers.
    #[error(transparent)]
    Peer(#[from] PeerListenError),
    /// Certificates of the connections between brokers.
    #[error(transparent)]
    PeerTls(#[from] PeerTlsError),
    /// The cluster refuses this broker with this data directory.
    #[error("{0}")]
    Refused(String),
    /// The configuration and the data directory are of different clusters.
    #[error(
        "cluster.seeds does not name broker {node}, whose data directory belongs to cluster {cluster} of several brokers: add it, or use another \
         data directory"
    )]
    NotASeed {
        /// The cluster.
        cluster: ClusterId,
        /// This broker.
        node: NodeId,
    },
    /// The store's URL or credentials.
    #[error("object store: {0}")]
    Store(#[from] OpenError),
    /// A group's log.
    #[error("log of group {group}: {error}{}", what_to_do.as_ref().map_or_else(String::new, |text| format!(". {text}")))]
    Log {
        /// The group.
        group: PlacementGroupId,
        /// Why.
        error: LogError,
        /// What an operator can do about damage, if the broker does nothing about it by itself.
        what_to_do: Option<String>,
    },
    /// A group.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// The cluster could not be set up or read.
    #[error("metadata group: {0}")]
    Metadata(String),
    /// The archive could not be set up.
    #[error("archive: {0}")]
    Archive(String),
}

/// Why a running broker ends by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// A group can no longer promise anything (a disk that failed): the process must end without any further acknowledgement.
    Failed(String),
    /// Another data directory has taken this one's place. What was acknowledged is with the others; it may stop in order.
    Replaced(String),
    /// Its disk is damaged, it ran without the groups that are, and stops to be refilled by its next start. It may stop in order.
    Refills(String),
    /// It was decommissioned: it holds nothing any more, and ends as it should.
    Left(String),
}

impl Ended {
    /// What becomes of a broker that is `standing` to its cluster. `None`: it goes on.
    pub(super) fn of(standing: Standing, node: NodeId) -> Option<Self> {
        match standing {
            Standing::Member => None,
            Standing::Replaced => Some(Self::Replaced(format!(
                "broker {node} was replaced (`tidelog cluster add {node}`) by one with another data directory: this data \
                 directory is not used any more. If two brokers run with node.id {node}, give one of them another id"
            ))),
            Standing::Gone => Some(Self::Left(format!(
                "broker {node} was decommissioned and has left the cluster: its data directory is not used any more and may be deleted"
            ))),
        }
    }
}
