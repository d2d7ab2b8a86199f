//! What became of a record.
//!
//! Owns: the promise that a batch keeps for all its records; one allocation a batch, none a record.

use crate::error::{Error, Outcome};
use std::sync::{Arc, OnceLock};
use tidelog_model::Offset;
use tokio::sync::Notify;
use tokio::time::Instant;

/// An acknowledged batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchAck {
    /// The offset of the batch's first record. `None` with acks=0, and when a broker recognised a repeated batch but
    /// no longer knows where it is.
    pub base_offset: Option<Offset>,
    /// When the answer was read.
    pub at: Instant,
}

/// An acknowledged record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The record's offset (see [`BatchAck::base_offset`] for when it is unknown).
    pub offset: Option<Offset>,
    /// When the answer was read.
    pub at: Instant,
}

/// A record that was not acknowledged.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{error} ({})", match outcome { Outcome::DidNotHappen => "it was not appended", Outcome::MayHaveHappened => "it may have been appended" })]
pub struct Failed {
    /// Whether it can be in the log all the same, over all attempts.
    pub outcome: Outcome,
    /// The newest reason.
    pub error: Error,
}

/// The shared end of all records of one batch.
#[derive(Debug, Default)]
pub(super) struct BatchDone {
    result: OnceLock<Result<BatchAck, Failed>>,
    told: Notify,
}

impl BatchDone {
    /// The first result counts.
    pub(super) fn set(&self, result: Result<BatchAck, Failed>) {
        if self.result.set(result).is_ok() {
            self.told.notify_waiters();
        }
    }

    #[cfg(test)]
    #[allow(clippy::expect_used, reason = "a test looks only at what is settled")]
    pub(super) fn result_for_test(&self) -> Result<BatchAck, Failed> {
        self.result.get().expect("not settled").clone()
    }

    pub(super) async fn wait(&self) -> Result<BatchAck, Failed> {
        loop {
            let told = self.told.notified();
            if let Some(result) = self.result.get() {
                return result.clone();
            }
            told.await;
        }
    }
}

/// The promise for one record.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub(super) done: Arc<BatchDone>,
    pub(super) index: i32,
    pub(super) partition: i32,
}

impl Delivery {
    /// Waits until the record's batch is acknowledged or given up; at the latest the producer's delivery timeout and
    /// one request's deadline.
    pub async fn wait(&self) -> Result<Ack, Failed> {
        let ack = self.done.wait().await?;
        let offset = ack.base_offset.map(|base| base.plus(i64::from(self.index)));
        Ok(Ack { offset, at: ack.at })
    }

    /// Whether [`Delivery::wait`] would return at once.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.done.result.get().is_some()
    }

    /// Whether both records are in the same batch, and so share their fate.
    #[must_use]
    pub fn same_batch(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.done, &other.done)
    }

    /// The partition that was chosen.
    #[must_use]
    pub fn partition(&self) -> i32 {
        self.partition
    }
}
