//! The group log: one ordered log per placement group on the local disk.
//!
//! Owns: everything under `groups/<group>/`. No other module touches those files.
//! Not here: Raft (placement), what entries mean (the state machines).
//! Spec: docs/formats/group-log.md

mod error;
mod metrics;
mod types;

pub use error::{LogError, LogFailure};
pub use metrics::{BatchObservation, Counter, LogMetrics, LogObserver, NoObserver};
pub use types::{
    AppendDone, EntryKind, FatalSignal, GroupLogConfig, LogEntry, LogEnv, LogState, Vote, WriterMode,
};

use bytes::Bytes;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use tidelog_model::{LogId, LogIndex};

/// A handle to one group's log. Clones are the same log.
#[derive(Clone)]
pub struct GroupLog {
    interim: Arc<Mutex<Interim>>,
    metrics: Arc<LogMetrics>,
}

/// First version: memory only. The files follow.
#[derive(Default)]
struct Interim {
    state: LogState,
    entries: Vec<LogEntry>,
    checkpoint: Option<(LogId, Bytes)>,
}

impl GroupLog {
    /// Opens (or creates) the log and recovers it. What it returns is durable.
    ///
    /// # Errors
    /// See [`LogError`]; nothing that may have been acknowledged is ever cut.
    pub async fn open(config: GroupLogConfig, env: LogEnv) -> Result<Self, LogError> {
        let _ = (config, env);
        Ok(Self { interim: Arc::default(), metrics: Arc::default() })
    }

    /// Appends entries: indexes must follow the last one (any first index when the log is empty and nothing was purged).
    /// They are readable when it returns; `done` is called, in the order of the calls, when they are durable. When an
    /// entry breaks the rules, none is taken and `done` gets `InvalidInput`.
    ///
    /// The queue of unwritten entries is bounded by the caller (`metrics().queued_bytes`): the proposer owns that budget.
    /// Bodies are kept in memory up to `cache_bytes`, counted by their length: a body that is a slice of a much larger
    /// buffer pins all of that buffer, so the proposer hands in bodies of their own.
    pub fn append(&self, entries: Vec<LogEntry>, done: AppendDone) {
        let mut log = self.interim.lock();
        log.state.last = entries.last().map(|entry| entry.id).or(log.state.last);
        log.entries.extend(entries);
        drop(log);
        done(Ok(()));
    }

    /// Saves a vote: returns when the vote and everything given to the log before it are durable.
    ///
    /// # Errors
    /// [`LogError::Poisoned`], [`LogError::Closed`]. When the future is dropped the vote may be durable or not.
    pub async fn save_vote(&self, vote: Vote) -> Result<(), LogError> {
        self.interim.lock().state.vote = Some(vote);
        Ok(())
    }

    /// Remembers the commit index. Written along with the next batch or after `lazy_delay`, never with a sync of its own.
    pub fn save_committed(&self, committed: Option<LogId>) {
        self.interim.lock().state.committed = committed;
    }

    /// Drops every entry after `last` (`None`: all). In effect when it returns; durable before anything appended later.
    ///
    /// # Errors
    /// [`LogError::Invalid`] when `last` is below what was purged or is not in the log with that term.
    pub async fn truncate_after(&self, last: Option<LogId>) -> Result<(), LogError> {
        let mut log = self.interim.lock();
        log.entries.retain(|entry| last.is_some_and(|last| entry.id.index <= last.index));
        log.state.last = last;
        Ok(())
    }

    /// Forgets every entry up to `upto`, also past the last one (after a snapshot was installed). In effect when it
    /// returns; durable and the whole files below it free a little later.
    ///
    /// # Errors
    /// [`LogError::Poisoned`], [`LogError::Closed`].
    pub async fn purge(&self, upto: LogId) -> Result<(), LogError> {
        let mut log = self.interim.lock();
        log.entries.retain(|entry| entry.id.index > upto.index);
        log.state.purged = log.state.purged.max(Some(upto));
        if log.entries.is_empty() {
            log.state.last = log.state.purged;
        }
        Ok(())
    }

    /// What the log holds now.
    #[must_use]
    pub fn state(&self) -> LogState {
        self.interim.lock().state
    }

    /// The entries of `range` in order: at least one, then as many as fit `bytes_max` (dir + body). The range is cut at
    /// the end of the log; an empty range gives nothing. From memory without a copy, else from disk with both CRCs checked.
    ///
    /// # Errors
    /// [`LogError::Purged`] when the range starts too low, [`LogError::Damaged`], [`LogError::Io`].
    pub async fn entries(&self, range: Range<LogIndex>, bytes_max: usize) -> Result<Vec<LogEntry>, LogError> {
        let mut left = bytes_max;
        let mut found: Vec<LogEntry> = Vec::new();
        for entry in self.interim.lock().entries.iter().filter(|entry| range.contains(&entry.id.index)) {
            let size = entry.dir.len() + entry.body.len();
            if size > left && !found.is_empty() {
                break;
            }
            left = left.saturating_sub(size);
            found.push(entry.clone());
        }
        Ok(found)
    }

    /// Part of one entry's body. From memory without a copy; from disk the frame's CRC is NOT checked (it covers the
    /// whole body), so the caller must check the CRC of the record batch it reads.
    ///
    /// # Errors
    /// [`LogError::Purged`], [`LogError::NotFound`], [`LogError::Invalid`] when the range leaves the body, [`LogError::Io`].
    pub async fn read_body(&self, index: LogIndex, range: Range<u32>) -> Result<Bytes, LogError> {
        let log = self.interim.lock();
        let entry = log.entries.iter().find(|entry| entry.id.index == index).ok_or(LogError::NotFound { index })?;
        let (from, to) = (range.start as usize, range.end as usize);
        if from > to || to > entry.body.len() {
            return Err(LogError::Invalid(format!("bytes {from}..{to} of a body of {}", entry.body.len())));
        }
        Ok(entry.body.slice(from..to))
    }

    /// Bytes in log files that purging everything would free.
    #[must_use]
    pub fn local_bytes(&self) -> u64 {
        0
    }

    /// Saves a checkpoint image under its log id, durably, and keeps the two newest.
    ///
    /// # Errors
    /// [`LogError::Io`]: the older checkpoints are still there; try again.
    pub async fn save_checkpoint(&self, id: LogId, image: Bytes) -> Result<(), LogError> {
        self.interim.lock().checkpoint = Some((id, image));
        Ok(())
    }

    /// The newest checkpoint whose checksum holds.
    ///
    /// # Errors
    /// [`LogError::Damaged`] when there are checkpoints but none is whole, [`LogError::Io`].
    pub async fn load_newest_checkpoint(&self) -> Result<Option<(LogId, Bytes)>, LogError> {
        Ok(self.interim.lock().checkpoint.clone())
    }

    /// Counters.
    #[must_use]
    pub fn metrics(&self) -> &LogMetrics {
        &self.metrics
    }

    /// The failure that poisoned the log, if one did.
    #[must_use]
    pub fn poisoned(&self) -> Option<LogFailure> {
        None
    }

    /// Runs the writer once in [`WriterMode::Manual`]; says whether it did something.
    pub fn step(&self) -> bool {
        false
    }

    /// Writes what waits, syncs, stops the writer, and frees the directory. Later calls get [`LogError::Closed`].
    ///
    /// # Errors
    /// [`LogError::Poisoned`].
    pub async fn close(&self) -> Result<(), LogError> {
        Ok(())
    }
}
