//! Memory of frames that the listener has in work.
//!
//! Owns: [`FrameMemory`]: one budget for large frames, one for small ones, one for those of strangers, over all connections.
//! Not here: partial snapshots (`partial.rs`).
//! Spec: docs/protocols/peer.md (bounds)

use super::frame::WireLane;
use super::limits::{SMALL_FRAME_BYTES_MAX, SMALL_MEMORY_BYTES, STRANGER_MEMORY_BYTES};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The budgets. Who finds one used up waits, and TCP slows its peer down.
pub(super) struct FrameMemory {
    large: Arc<Semaphore>,
    large_bytes: u32,
    small: Arc<Semaphore>,
    strangers: Arc<Semaphore>,
}

impl FrameMemory {
    pub(super) fn new(bytes: usize) -> Self {
        let large_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        Self {
            large: Arc::new(Semaphore::new(
                usize::try_from(large_bytes).unwrap_or(usize::MAX),
            )),
            large_bytes,
            small: Arc::new(Semaphore::new(SMALL_MEMORY_BYTES)),
            strangers: Arc::new(Semaphore::new(STRANGER_MEMORY_BYTES)),
        }
    }

    /// Waits for memory for a frame of `bytes`; more than all of it counts as all of it. `None` for signals, which are bounded by
    /// their size and the number of connections, and wait for nothing.
    pub(super) async fn reserve(
        &self,
        lane: WireLane,
        bytes: usize,
    ) -> Option<OwnedSemaphorePermit> {
        if lane == WireLane::Signals {
            return None;
        }
        let permits = u32::try_from(bytes)
            .unwrap_or(u32::MAX)
            .min(self.large_bytes);
        let budget = if bytes <= SMALL_FRAME_BYTES_MAX {
            &self.small
        } else {
            &self.large
        };
        // Never closed, so that this does not fail.
        Arc::clone(budget).acquire_many_owned(permits).await.ok()
    }

    /// Waits for memory for a stranger's frame of `bytes`, which is no larger than such frames may be.
    pub(super) async fn reserve_for_stranger(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let permits = u32::try_from(bytes).ok()?;
        let budget = Arc::clone(&self.strangers);
        budget.acquire_many_owned(permits).await.ok()
    }

    /// Bytes reserved now, by members.
    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        let large = usize::try_from(self.large_bytes).unwrap_or(usize::MAX);
        large - self.large.available_permits() + SMALL_MEMORY_BYTES - self.small.available_permits()
    }
}
