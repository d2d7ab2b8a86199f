//! Memory of frames that the listener has in work.
//!
//! Owns: [`FrameMemory`]: one budget for large frames, one for small ones, one for those of strangers, over all connections.
//! Not here: how a budget is shared out (`intake`), partial snapshots (`partial.rs`).
//! Spec: docs/protocols/peer.md (bounds)

use super::frame::WireLane;
use super::limits::{SMALL_FRAME_BYTES_MAX, SMALL_MEMORY_BYTES, STRANGER_MEMORY_BYTES};
use super::metrics::PeerMetrics;
use crate::intake::{Budget, Hold};

/// The budgets. Who finds one used up waits, and TCP slows its peer down.
pub(super) struct FrameMemory {
    large: Budget,
    small: Budget,
    strangers: Budget,
    signals: Budget,
}

impl FrameMemory {
    pub(super) fn new(bytes: usize, metrics: &PeerMetrics) -> Self {
        Self {
            large: Budget::new(bytes, metrics.memory("large")),
            small: Budget::new(SMALL_MEMORY_BYTES, metrics.memory("small")),
            strangers: Budget::new(STRANGER_MEMORY_BYTES, metrics.memory("strangers")),
            // They are bounded by their size and the number of connections, and wait for nothing.
            signals: Budget::unbounded(),
        }
    }

    /// A frame of `bytes` begins. It takes memory as it comes.
    pub(super) fn begin(&self, lane: WireLane, bytes: usize) -> Hold {
        let budget = match lane {
            WireLane::Signals => &self.signals,
            _ if bytes <= SMALL_FRAME_BYTES_MAX => &self.small,
            _ => &self.large,
        };
        budget.begin()
    }

    /// A stranger's frame begins, which is no larger than such frames may be.
    pub(super) fn begin_for_stranger(&self) -> Hold {
        self.strangers.begin()
    }

    /// Bytes that frames of members hold now.
    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.large.used() + self.small.used()
    }
}
