//! Why a step of offload did not end. Every step may be tried again: that is what the driver does.

use crate::log::LogError;
use crate::placement::{PlacementError, ProposeError, SnapshotError};
use std::time::Duration;
use tidelog_model::PartitionId;
use tidelog_tiering::store::StoreError;
use tokio::time::Instant;

/// A broker that leads and is told for so long that it does not is not between two leaders: it does not get on, and says so. An election takes 2 s, 10 s at worst.
const TOLD_WITHIN: Duration = Duration::from_secs(10);

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
    /// Nobody has marked the cluster's store yet, or this broker has not heard of it: no store is known to be the right one.
    #[error(
        "the cluster's store is not marked yet: the leader of metadata does that as soon as its store works. Nothing is uploaded, published or \
         trimmed before"
    )]
    Unmarked,
    /// The store is not the cluster's, or not any more.
    #[error(
        "the store is not the one of this cluster: {found}. Is store.url that of the other brokers, and a store that all of them share? Nothing \
         is uploaded, published or trimmed here until it is"
    )]
    WrongStore {
        /// What is in the marker's place.
        found: String,
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

impl OffloadError {
    /// Whether the step ended because this broker does not lead the group any more, which is nobody's fault: its successor goes on. `leads`: what
    /// is known of that now.
    #[must_use]
    pub const fn ended_with_leadership(&self, leads: bool) -> bool {
        match self {
            Self::Propose(ProposeError::NotLeader { .. } | ProposeError::Unknown) => true,
            // Refused: another leader was faster.
            Self::Propose(_) | Self::Refused(_) => !leads,
            Self::Store(_)
            | Self::Log(_)
            | Self::Purge(_)
            | Self::Snapshot(_)
            | Self::Hole { .. }
            | Self::ForeignManifest { .. }
            | Self::OtherStore { .. }
            | Self::Unmarked
            | Self::WrongStore { .. }
            | Self::Build(_) => false,
        }
    }
}

/// Since when a broker that leads is told, at every step, that it does not.
#[derive(Debug, Default)]
pub(super) struct ToldToStop(Option<Instant>);

impl ToldToStop {
    /// Whether `error` need not be told anybody: leadership has ended, or is about to.
    pub(super) fn is_nothing(&mut self, error: &OffloadError, leads: bool, now: Instant) -> bool {
        if !error.ended_with_leadership(leads) {
            return false;
        }
        let since = *self.0.get_or_insert(now);
        !leads || now.saturating_duration_since(since) < TOLD_WITHIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that only what leadership explains is taken for its end.
    #[test]
    fn the_end_of_leadership_is_no_failure() {
        let gone = OffloadError::Propose(ProposeError::NotLeader { leader: None });
        assert!(gone.ended_with_leadership(true) && gone.ended_with_leadership(false));
        let stopped = OffloadError::Propose(ProposeError::Fatal(String::new()));
        for error in [stopped, OffloadError::Refused("r")] {
            assert!(error.ended_with_leadership(false));
            assert!(!error.ended_with_leadership(true));
        }
        let built = OffloadError::Build(String::new());
        assert!(!built.ended_with_leadership(false));
    }

    /// Proves that a leader which is told again and again that it does not lead says so after a while, and nobody else does.
    #[test]
    fn a_leader_that_does_not_get_on_says_so() {
        let gone = OffloadError::Propose(ProposeError::NotLeader { leader: None });
        let (mut told, now) = (ToldToStop::default(), Instant::now());
        assert!(told.is_nothing(&gone, true, now));
        assert!(told.is_nothing(&gone, true, now + TOLD_WITHIN / 2));
        assert!(!told.is_nothing(&gone, true, now + TOLD_WITHIN));
        assert!(told.is_nothing(&gone, false, now + TOLD_WITHIN));
        let failed = OffloadError::Build("x".to_owned());
        assert!(!told.is_nothing(&failed, true, now));
    }
}
