//! Memory of requests: what frames take while they come, are decoded, and are in work.
//!
//! Owns: [`Memory`] (the budgets of the listener), [`Share`] (what one connection may have in work), what a watcher sees of them.
//! Not here: how a budget is shared out (`intake`), reading (`read`).
//! Spec: docs/protocols/kafka-wire.md (memory of requests)

use super::metrics::NetMetrics;
use crate::intake::{Budget, Hold, STEP_BYTES_MIN, Shortage};
use std::sync::Arc;
use tidelog_model::limits;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

const _: () = assert!(
    limits::CONNECTIONS_MAX_DEFAULT * STEP_BYTES_MIN <= limits::REQUEST_MEMORY_SMALL_BYTES,
    "every connection may have begun a small frame"
);

/// The budgets of frames, over all connections. Small ones have their own: they do not wait behind large ones.
pub(super) struct Memory {
    large: Budget,
    small: Budget,
    decoding: Semaphore,
}

impl Memory {
    pub(super) fn new(bytes: usize, metrics: &NetMetrics) -> Self {
        Self {
            large: Budget::new(bytes, metrics.memory("large")),
            small: Budget::new(limits::REQUEST_MEMORY_SMALL_BYTES, metrics.memory("small")),
            decoding: Semaphore::new(limits::DECODE_MEMORY_BYTES),
        }
    }

    /// A frame of `bytes` begins. It takes memory as it comes.
    pub(super) fn begin(&self, bytes: usize) -> Hold {
        if bytes <= limits::REQUEST_SMALL_BYTES_MAX {
            self.small.begin()
        } else {
            self.large.begin()
        }
    }

    /// Waits for what decoding may take. `None` never happens while the listener lives.
    pub(super) async fn decode(&self, bytes: usize) -> Option<SemaphorePermit<'_>> {
        let bytes = bytes.min(limits::DECODE_MEMORY_BYTES);
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.decoding.acquire_many(permits).await.ok()
    }

    /// Bytes that frames hold now.
    pub(super) fn used(&self) -> usize {
        self.large.used() + self.small.used()
    }

    /// What lacks, if frames have to wait.
    pub(super) fn shortage(&self) -> Option<Shortage> {
        let both = self
            .large
            .shortage()
            .into_iter()
            .chain(self.small.shortage());
        both.reduce(|a, b| Shortage {
            waiting: a.waiting + b.waiting,
            longest: a.longest.max(b.longest),
            used: a.used + b.used,
        })
    }
}

/// What one connection may have in work of frames that are not small.
pub(super) struct Share(Arc<Semaphore>);

impl Default for Share {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(
            limits::CONNECTION_REQUEST_BYTES_MAX,
        )))
    }
}

impl Share {
    /// Waits until the connection may begin a frame of `bytes`: for its own requests, and nobody else's.
    pub(super) async fn begin(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        if bytes <= limits::REQUEST_SMALL_BYTES_MAX {
            return None;
        }
        let bytes = bytes.min(limits::CONNECTION_REQUEST_BYTES_MAX);
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        // Never closed, so that this does not fail.
        Arc::clone(&self.0).acquire_many_owned(permits).await.ok()
    }
}

/// What a request holds until it is done.
pub(super) struct Held {
    pub(super) _memory: Hold,
    pub(super) _share: Option<OwnedSemaphorePermit>,
}
