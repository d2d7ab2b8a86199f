//! Why a step of offload did not end. Every step may be tried again: that is what the driver does.

use crate::log::LogError;
use crate::placement::{PlacementError, ProposeError, SnapshotError};
use tidelog_model::PartitionId;
use tidelog_tiering::store::StoreError;

/// Why a step did not end.
#[derive(Debug, thiserror::Error)]
pub enum OffloadError {
    /// The object store; the data stays in the local log.
    #[error("object store: {0}")]
    Store(#[from] StoreError),
    /// The local log could not be read.
    #[error("local log: {0}")]
    Log(#[from] LogError),
    /// Raft did not take the step, or its outcome is unknown: the state tells at the next try.
    #[error("the step was not committed: {0}")]
    Propose(#[from] ProposeError),
    /// The state machine refused the step: another leader was faster.
    #[error("the step was refused: {0}")]
    Refused(&'static str),
    /// The local log could not be purged.
    #[error("purging the local log: {0}")]
    Purge(#[from] PlacementError),
    /// The checkpoint could not be saved.
    #[error("checkpoint: {0}")]
    Snapshot(#[from] SnapshotError),
    /// The hot index does not reach from tiered-until to the cut (I6 is broken).
    #[error(
        "partition {partition}: the local log has no records from {from} on, though they are not in the store"
    )]
    Hole {
        /// The partition.
        partition: PartitionId,
        /// First offset that is missing.
        from: tidelog_model::Offset,
    },
    /// A manifest in the store belongs to another cluster or is damaged.
    #[error(
        "manifest {key} in the store is not this group's: {reason}. Is the bucket prefix shared with another cluster?"
    )]
    ForeignManifest {
        /// Its key.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The store lacks what this group has published: it is another one, or it was emptied or unmounted.
    #[error(
        "the store has no {key}, which this group has published: is it the store this cluster began with (store.url), and is \
         its directory there? Nothing is uploaded, published or trimmed until it is"
    )]
    OtherStore {
        /// The key that must be there.
        key: String,
    },
    /// A segment could not be built.
    #[error("segment: {0}")]
    Build(String),
}
