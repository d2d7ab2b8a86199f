//! Counters of one group log.

use super::error::LogError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A counter.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The current value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What one log did since it was opened.
#[derive(Debug, Default)]
pub struct LogMetrics {
    /// Entries that became durable.
    pub entries: Counter,
    /// Frames written, of every kind.
    pub frames: Counter,
    /// Bytes written into log files (frames and padding).
    pub bytes: Counter,
    /// Batches: vectored writes.
    pub batches: Counter,
    /// Syncs of the log.
    pub syncs: Counter,
    /// Changes to the next log file.
    pub rotations: Counter,
    /// Files written full of zeros.
    pub files_prepared: Counter,
    /// Files purged and kept for reuse.
    pub files_recycled: Counter,
    /// Times a spare could not be prepared (a full disk); it is tried again.
    pub prepare_failures: Counter,
    /// 1 while the writer waits for a file it cannot get because the disk is full.
    pub starved: Counter,
    /// Bytes that wait for the writer now.
    pub queued_bytes: Counter,
    /// Reads answered from memory.
    pub reads_cached: Counter,
    /// Reads that went to the disk.
    pub reads_disk: Counter,
}

/// One batch as the writer saw it.
#[derive(Debug, Clone, Copy)]
pub struct BatchObservation {
    /// Frames in it.
    pub frames: usize,
    /// Bytes written.
    pub bytes: usize,
    /// Time for CRCs and the vectored write.
    pub write: Duration,
    /// Time for the sync; `None` for a lazy batch.
    pub sync: Option<Duration>,
}

/// Takes what histograms want to know, and bad news.
pub trait LogObserver: Send + Sync + 'static {
    /// A batch is done. Called by the writer after every batch: must not block.
    fn batch(&self, batch: &BatchObservation);

    /// What may have been acknowledged is damaged, a [`LogError::Damaged`] that the caller of the log gets next; or is not there at all, a
    /// [`LogError::Lost`]: who holds the log must not go on with it. May touch the disk.
    fn damaged(&self, _error: &LogError) {}
}

/// Observes nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

impl LogObserver for NoObserver {
    fn batch(&self, _batch: &BatchObservation) {}
}
