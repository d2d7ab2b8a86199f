//! The group log: one ordered log per placement group on the local disk.
//!
//! Owns: everything under `groups/<group>/`. No other module touches those files.
//! Not here: Raft (placement), what entries mean (the state machines).
//! Spec: docs/formats/group-log.md

mod checkpoint;
mod dropped;
mod error;
mod files;
mod format;
mod index;
mod ledger;
mod metrics;
mod order;
mod pace;
mod pool;
mod read;
mod recovery;
mod run;
mod scan;
mod shared;
mod types;
mod writer;

#[cfg(test)]
mod tests;

pub use dropped::{drop_replica, finish_drop, was_dropped};
pub use error::{LogError, LogFailure};
pub use format::DIR_BYTES_MAX;
pub use metrics::{BatchObservation, Counter, LogMetrics, LogObserver, NoObserver};
pub use pace::ZeroingPace;
pub use types::{
    AppendDone, EntryKind, FatalSignal, GroupLogConfig, LogEntry, LogEnv, LogState, Vote,
    WriterMode, entry_bytes_in,
};

use bytes::{Bytes, BytesMut};
use format::FRAMES_START;
use order::Order;
use parking_lot::{Condvar, Mutex};
use pool::FilePool;
use recovery::{Recovery, io_error};
use shared::{Shared, signal, tell};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use tidelog_env::{CrashPoint, Mutant, crash_point, mutant};
use tidelog_model::{LogId, LogIndex};
use tokio::sync::Notify;
use writer::WriterState;

/// A handle to one group's log. Clones are the same log; when the last one is dropped the queue is still written.
#[derive(Clone)]
pub struct GroupLog {
    shared: Arc<Shared>,
    _owner: Arc<Owner>,
}

/// Ends the writer with the last handle.
struct Owner(Arc<Shared>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.begin_close();
    }
}

impl GroupLog {
    /// Opens (or creates) the log and recovers it. What it returns is durable.
    ///
    /// # Errors
    /// See [`LogError`]; nothing that may have been acknowledged is ever cut.
    pub async fn open(config: GroupLogConfig, env: LogEnv) -> Result<Self, LogError> {
        if config.writer != WriterMode::Thread {
            return Self::open_blocking(config, env);
        }
        let dir = config.dir.clone();
        match tokio::task::spawn_blocking(move || Self::open_blocking(config, env)).await {
            Ok(result) => result,
            Err(error) => Err(io_error("opening", &dir)(io::Error::other(error))),
        }
    }

    fn open_blocking(config: GroupLogConfig, env: LogEnv) -> Result<Self, LogError> {
        config.check()?;
        let identity = config.identity();
        let dir = config.dir.clone();
        env.disk
            .create_dir_all(&dir)
            .map_err(io_error("creating", &dir))?;
        let dir_lock = match env.disk.lock_dir(&dir) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(LogError::Locked { dir });
            }
            other => other.map_err(io_error("locking", &dir))?,
        };
        let metrics = Arc::new(LogMetrics::default());
        let disk = Arc::clone(&env.disk);
        let pool = FilePool::new(
            disk,
            dir.clone(),
            config.file_bytes,
            config.spare_files,
            Arc::clone(&metrics),
            Arc::clone(&config.zeroing),
        );
        let recovered = Recovery {
            config: &config,
            identity,
            disk: env.disk.as_ref(),
            random: env.random.as_ref(),
            pool: &pool,
        }
        .run()
        .inspect_err(|error| tell(env.observer.as_ref(), error))?;
        pool.retire(recovered.retired);
        if config.writer != WriterMode::Thread {
            pool.maintain();
        }
        let order = Order::new(
            recovered.ledger,
            recovered.files,
            identity,
            config.file_bytes,
            env.random,
        );
        let shared = Arc::new(Shared {
            order: Mutex::new(order),
            writer: Mutex::new(WriterState::new(recovered.active, recovered.end)),
            config,
            disk: env.disk,
            pool,
            metrics,
            observer: env.observer,
            fatal: env.fatal,
            dir_lock: Mutex::new(Some(dir_lock)),
            threads: Mutex::default(),
            checkpoints: Mutex::default(),
            woken: Condvar::new(),
            notify: Notify::new(),
        });
        let log = Self {
            _owner: Arc::new(Owner(Arc::clone(&shared))),
            shared,
        };
        run::start(&log.shared, &env.tasks).map_err(io_error("starting the writer of", &dir))?;
        Ok(log)
    }

    /// Appends entries: indexes must follow the last one (any first index when the log is empty and nothing was purged).
    /// They are readable when it returns; `done` is called, in the order of the calls, when they are durable. When an
    /// entry breaks the rules, none is taken and `done` gets `InvalidInput`.
    ///
    /// The queue of unwritten entries is bounded by the caller (`metrics().queued_bytes`): the proposer owns that budget.
    /// Bodies are kept in memory up to `cache_bytes`, counted by their length: a body that is a slice of a much larger
    /// buffer pins all of that buffer, so the proposer hands in bodies of their own.
    pub fn append(&self, entries: Vec<LogEntry>, done: AppendDone) {
        let done = Box::new(move |result: Result<(), LogError>| {
            done(result.map_err(|error| error.to_io()));
        });
        let max = self.shared.config.entry_bytes_max;
        let refused = {
            let mut order = self.shared.order.lock();
            let refused = order.append(entries, max, done);
            self.shared
                .metrics
                .queued_bytes
                .set(order.queued_bytes as u64);
            refused
        };
        match refused {
            Ok(()) => self.shared.wake(),
            Err((error, done)) => done(Err(error)),
        }
    }

    /// Saves a vote: returns when the vote and everything given to the log before it are durable.
    ///
    /// # Errors
    /// [`LogError::Poisoned`], [`LogError::Closed`]. When the future is dropped the vote may be durable or not.
    pub async fn save_vote(&self, vote: Vote) -> Result<(), LogError> {
        let (done, saved) = signal();
        {
            let mut order = self.shared.order.lock();
            order.usable()?;
            order.vote(vote, done);
        }
        crash_point(CrashPoint::VoteQueued);
        self.shared.wake();
        if mutant(Mutant::VoteNotWaitedFor) {
            return Ok(());
        }
        saved.await.map_err(|_| LogError::Closed)?
    }

    /// Remembers the commit index. Written along with the next batch or after `lazy_delay`, never with a sync of its own.
    pub fn save_committed(&self, committed: Option<LogId>) {
        let mut order = self.shared.order.lock();
        if order.usable().is_ok() {
            order.committed(committed);
            drop(order);
            self.shared.wake();
        }
    }

    /// Drops every entry after `last` (`None`: all). In effect when it returns; durable before anything appended later.
    ///
    /// # Errors
    /// [`LogError::Invalid`] when `last` is below what was purged or is not in the log with that term.
    pub async fn truncate_after(&self, last: Option<LogId>) -> Result<(), LogError> {
        {
            let mut order = self.shared.order.lock();
            order.usable()?;
            order.truncate(last)?;
        }
        crash_point(CrashPoint::TruncateQueued);
        self.shared.wake();
        Ok(())
    }

    /// Forgets every entry up to `upto`, also past the last one (after a snapshot was installed). In effect when it
    /// returns; durable and the whole files below it free a little later.
    ///
    /// # Errors
    /// [`LogError::Poisoned`], [`LogError::Closed`].
    pub async fn purge(&self, upto: LogId) -> Result<(), LogError> {
        {
            let mut order = self.shared.order.lock();
            order.usable()?;
            order.purge(upto);
        }
        crash_point(CrashPoint::PurgeQueued);
        self.shared.wake();
        Ok(())
    }

    /// Whether the entry `id` is in the log, or everything up to it was purged; if so it is durable when this returns.
    ///
    /// # Errors
    /// [`LogError::Poisoned`], [`LogError::Closed`].
    pub async fn has_durably(&self, id: LogId) -> Result<bool, LogError> {
        let (done, written) = signal();
        {
            let mut order = self.shared.order.lock();
            order.usable()?;
            let purged = order.ledger.purged >= Some(id);
            if !purged && !order.ledger.index.holds(Some(id)) {
                return Ok(false);
            }
            order.barrier(done);
        }
        self.shared.wake();
        written.await.map_err(|_| LogError::Closed)?.map(|()| true)
    }

    /// What the log holds now.
    #[must_use]
    pub fn state(&self) -> LogState {
        self.shared.order.lock().ledger.state()
    }

    /// The entries of `range` in order: at least one, then as many as fit `bytes_max` (dir + body). The range is cut at
    /// the end of the log (and, in a log that nothing was purged from, at its first entry); an empty range gives nothing. From memory without a copy, else from disk with both CRCs checked.
    ///
    /// # Errors
    /// [`LogError::Purged`] when the range starts too low, [`LogError::Damaged`], [`LogError::Io`].
    pub async fn entries(
        &self,
        range: Range<LogIndex>,
        bytes_max: usize,
    ) -> Result<Vec<LogEntry>, LogError> {
        read::entries(&self.shared, range, bytes_max).await
    }

    /// Parts of entries' bodies, in the order of `parts`, each in bytes that are the caller's own to change. From disk
    /// the frame's CRC is NOT checked (it covers the whole body), so the caller must check the CRC of the record batch
    /// it reads. All of it is in memory at once: the caller bounds the sum.
    ///
    /// # Errors
    /// [`LogError::Purged`], [`LogError::NotFound`], [`LogError::Invalid`] when a range leaves its body, [`LogError::Io`].
    pub async fn read_bodies(
        &self,
        parts: &[(LogIndex, Range<u32>)],
    ) -> Result<Vec<BytesMut>, LogError> {
        read::bodies(&self.shared, parts).await
    }

    /// Bytes in log files that purging everything would free.
    #[must_use]
    pub fn local_bytes(&self) -> u64 {
        let order = self.shared.order.lock();
        order
            .files
            .iter()
            .map(|file| file.end.saturating_sub(FRAMES_START))
            .sum()
    }

    /// Bytes (dir and body) of one entry at most. Whoever proposes entries checks this first: one that is refused here
    /// has passed Raft already, and ends the group.
    #[must_use]
    pub fn entry_bytes_max(&self) -> usize {
        self.shared.config.entry_bytes_max
    }

    /// Entries from here on are in memory: reading them touches no disk.
    #[must_use]
    pub fn memory_start(&self) -> LogIndex {
        self.shared.order.lock().ledger.index.memory_start()
    }

    /// The last entry that may be purged if at least `keep_bytes` of the newest frames are to stay; whole files only.
    /// `None`: nothing.
    #[must_use]
    pub fn purgeable(&self, keep_bytes: u64) -> Option<LogIndex> {
        let order = self.shared.order.lock();
        let mut kept = 0;
        for file in order.files.iter().rev() {
            kept += file.end.saturating_sub(FRAMES_START);
            if kept >= keep_bytes {
                return order.ledger.index.last_below(file.sequence);
            }
        }
        None
    }

    /// Bytes that log files and spare files take on the disk.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        let files: u64 = self
            .shared
            .order
            .lock()
            .files
            .iter()
            .map(|file| file.file_bytes)
            .sum();
        files + self.shared.pool.ready() as u64 * self.shared.config.file_bytes
    }

    /// Saves a checkpoint image under its log id, durably, and keeps the two newest.
    ///
    /// # Errors
    /// [`LogError::Io`]: the older checkpoints are still there; try again.
    pub async fn save_checkpoint(&self, id: LogId, image: Bytes) -> Result<(), LogError> {
        let shared = Arc::clone(&self.shared);
        read::blocking(&self.shared, move || {
            let _one = shared.checkpoints.lock();
            checkpoint::save(
                shared.disk.as_ref(),
                &shared.config.dir,
                shared.config.identity(),
                id,
                &image,
            )
        })
        .await
    }

    /// The newest checkpoint whose checksum holds.
    ///
    /// # Errors
    /// [`LogError::Damaged`] when there are checkpoints but none is whole, or none that what was purged since is in; [`LogError::Io`].
    pub async fn load_newest_checkpoint(&self) -> Result<Option<(LogId, Bytes)>, LogError> {
        let shared = Arc::clone(&self.shared);
        read::blocking(&self.shared, move || {
            let _one = shared.checkpoints.lock();
            let purged = shared.order.lock().ledger.purged;
            let loaded = checkpoint::load_newest(
                shared.disk.as_ref(),
                &shared.config.dir,
                shared.config.identity(),
                purged,
            );
            loaded.inspect_err(|error| shared.told_of(error))
        })
        .await
    }

    /// This log ends before `acknowledged`, which it had held durably: tells the observer. Blocking.
    pub fn has_lost(&self, acknowledged: LogId) {
        let last = self.state().last.unwrap_or_default();
        let error = LogError::Lost {
            dir: self.shared.config.dir.clone(),
            what: format!(
                "it ends at {last}, but this replica had acknowledged everything up to {acknowledged}, as the leader of the group knows"
            ),
        };
        self.shared.told_of(&error);
    }

    /// Counters.
    #[must_use]
    pub fn metrics(&self) -> &LogMetrics {
        &self.shared.metrics
    }

    /// The failure that poisoned the log, if one did.
    #[must_use]
    pub fn poisoned(&self) -> Option<LogFailure> {
        self.shared.order.lock().failure.clone()
    }

    /// Runs the writer once in [`WriterMode::Manual`]; says whether it did something.
    pub fn step(&self) -> bool {
        self.shared.config.writer == WriterMode::Manual && run::manual_step(&self.shared)
    }

    /// Writes what waits, syncs, stops the writer, and frees the directory. Later calls get [`LogError::Closed`].
    ///
    /// # Errors
    /// [`LogError::Poisoned`].
    pub async fn close(&self) -> Result<(), LogError> {
        let (done, written) = signal();
        {
            let mut order = self.shared.order.lock();
            order.usable()?;
            order.place_last(done);
        }
        self.shared.begin_close();
        while self.step() {}
        let written = written.await.map_err(|_| LogError::Closed)?;
        let threads = std::mem::take(&mut *self.shared.threads.lock());
        let (has_threads, is_written) = (!threads.is_empty(), written.is_ok());
        let shared = Arc::clone(&self.shared);
        let rest = move || {
            let ended = threads
                .into_iter()
                .try_for_each(std::thread::JoinHandle::join);
            if ended.is_ok() && is_written {
                writer::seal(&shared)
            } else {
                Ok(())
            }
        };
        let sealed = if has_threads {
            // A thread that panicked has said so already.
            tokio::task::spawn_blocking(rest).await.unwrap_or(Ok(()))
        } else {
            rest()
        };
        if let Err(error) = sealed {
            let dir = self.shared.config.dir.display();
            tracing::warn!(
                "{dir}: closed, and all of it is there, but its end could not be sealed: {error}"
            );
        }
        self.shared.order.lock().stopped = true;
        *self.shared.dir_lock.lock() = None;
        written
    }
}
