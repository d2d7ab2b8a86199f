//! Spare files: zero-filled ahead of need (under load, or at once: reserved), recycled after a purge.
//!
//! Owns: `.spare` and `.tmp` names of a group's directory, and purged log files on their way to them.
//! Not here: what is written into a file (`writer.rs`), how fast zeros are (`pace.rs`).
//! Invariants: a file is written again only after its old name is durably gone and no reader has it open; a `.spare`
//! has its full length on disk.
//! Spec: docs/formats/group-log.md

use super::files::{LogFile, spare_name, sync_names, tmp_name};
use super::metrics::LogMetrics;
use super::pace::ZeroingPace;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidelog_env::disk::OpenMode;
use tidelog_env::{CrashPoint, Disk, DiskFile, crash_point};
use tokio::time::Instant;

/// Zeros per write.
const CHUNK_BYTES: usize = 1 << 20;
/// Zeros per sync: small, so that an append's sync never waits for a long write-back. 4 MiB take 8 ms at 500 MB/s.
const SYNC_EVERY_BYTES: u64 = 4 << 20;
/// How often a wait for the turn looks at how far the writer is.
const LOOK: Duration = Duration::from_millis(50);
/// With no spare ready and this much of the active file used, in thousandths, what is not zeroed yet is only reserved. The
/// rest of the file is the time for that.
const HURRY_PERMILLE: u64 = 500;
/// Pause after a failure (a full disk), or while a reader holds a purged file.
const RETRY: Duration = Duration::from_secs(1);
/// Recycled files kept beyond the target: a purge frees files in bunches, and a file that was written before costs a
/// sync no journal commit, which is a third of what the disk can do.
const EXTRA_RECYCLED: usize = 8;
/// They are kept for this long after the last change, then removed one after the other.
const EXTRA_KEPT: Duration = Duration::from_secs(60);

static ZEROS: [u8; CHUNK_BYTES] = [0; CHUNK_BYTES];

/// The spare files of one group.
pub(super) struct FilePool {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    file_bytes: u64,
    target: usize,
    metrics: Arc<LogMetrics>,
    zeroing: Arc<ZeroingPace>,
    inner: Mutex<Inner>,
    changed: Condvar,
    /// How much of the active file is used, in thousandths: the zeroing keeps ahead of it.
    active_permille: AtomicU64,
}

struct Inner {
    ready: VecDeque<PathBuf>,
    retired: VecDeque<Arc<LogFile>>,
    next_number: u64,
    /// The writer waits for a file.
    wanted: bool,
    /// The newest failure to prepare one since `wanted` was set.
    failure: Option<io::Error>,
    closing: bool,
}

/// How to make a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// Zeros at the broker's pace, as long as the active file has room.
    Background,
    /// Somebody waits for it: reserved, not zeroed.
    Now,
}

/// How the filling of a file goes on after a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Zeroing {
    /// With the next chunk.
    GoOn,
    /// Not at all: the log closes, or a purged file can be had instead.
    Stop,
    /// The writer is faster: reserve the rest. Such a file costs the journal of the file system a little at each sync,
    /// zeroing it would cost the disk as much as the log itself.
    Hurry,
}

impl FilePool {
    pub(super) fn new(
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        file_bytes: u64,
        target: usize,
        metrics: Arc<LogMetrics>,
        zeroing: Arc<ZeroingPace>,
    ) -> Self {
        let inner = Inner {
            ready: VecDeque::new(),
            retired: VecDeque::new(),
            next_number: 1,
            wanted: false,
            failure: None,
            closing: false,
        };
        Self {
            disk,
            dir,
            file_bytes,
            target,
            metrics,
            zeroing,
            inner: Mutex::new(inner),
            changed: Condvar::new(),
            active_permille: AtomicU64::new(0),
        }
    }

    /// Takes over a `.spare` found at start; one of another length, or too many, goes.
    pub(super) fn adopt(&self, number: u64, length: u64) -> io::Result<()> {
        let mut inner = self.inner.lock();
        inner.next_number = inner.next_number.max(number.saturating_add(1));
        let path = self.dir.join(spare_name(number));
        if length == self.file_bytes && inner.ready.len() < self.target + EXTRA_RECYCLED {
            inner.ready.push_back(path);
            return Ok(());
        }
        drop(inner);
        self.disk.remove(&path)
    }

    /// Spare files ready now.
    pub(super) fn ready(&self) -> usize {
        self.inner.lock().ready.len()
    }

    /// Hands over purged files; their names are still `.log`.
    pub(super) fn retire(&self, files: Vec<Arc<LogFile>>) {
        if !files.is_empty() {
            self.inner.lock().retired.extend(files);
            self.changed.notify_all();
        }
    }

    /// The writer's progress: a batch of `bytes`, up to `position` of the active file.
    pub(super) fn wrote(&self, bytes: usize, position: u64, file_bytes: u64) {
        self.zeroing.wrote(bytes as u64, Instant::now());
        let permille = position.saturating_mul(1000) / file_bytes.max(1);
        self.active_permille.store(permille, Ordering::Relaxed);
    }

    /// A spare for the writer, from the worker thread: waits for the one being prepared. `StorageFull` (and its like) when
    /// there is no room now.
    pub(super) fn take_waiting(&self) -> io::Result<PathBuf> {
        let mut inner = self.inner.lock();
        inner.failure = None;
        loop {
            if let Some(path) = inner.ready.pop_front() {
                inner.wanted = false;
                self.active_permille.store(0, Ordering::Relaxed);
                self.changed.notify_all();
                return Ok(path);
            }
            if let Some(error) = inner.failure.take() {
                return Err(error);
            }
            if inner.closing {
                return Err(io::Error::new(ErrorKind::BrokenPipe, "the log is closing"));
            }
            inner.wanted = true;
            self.changed.notify_all();
            self.changed.wait(&mut inner);
        }
    }

    /// A spare for the writer where no worker thread runs: prepares it here if need be.
    pub(super) fn take_now(&self) -> io::Result<PathBuf> {
        if let Some(path) = self.inner.lock().ready.pop_front() {
            return Ok(path);
        }
        self.prepare(Pace::Now)?;
        self.inner
            .lock()
            .ready
            .pop_front()
            .ok_or_else(|| io::Error::other("the prepared file is gone"))
    }

    /// Recycles what was purged and prepares what is missing, once. Failures are counted and tried again at the next call.
    pub(super) fn maintain(&self) {
        if self.recycle().and_then(|()| self.fill(Pace::Now)).is_err() {
            self.metrics.prepare_failures.add(1);
        }
    }

    /// The worker thread's loop; ends after [`FilePool::stop`].
    pub(super) fn run(&self) {
        loop {
            let result = self.recycle().and_then(|()| self.fill(Pace::Background));
            let mut inner = self.inner.lock();
            if inner.closing {
                return;
            }
            let failed = result.is_err();
            if let Err(error) = result {
                self.metrics.prepare_failures.add(1);
                tracing::warn!(dir = %self.dir.display(), "cannot prepare a log file: {error}; it is tried again");
                inner.failure = Some(error);
                self.changed.notify_all();
            }
            let enough = inner.ready.len() >= self.target;
            let recyclable = inner.has_recyclable();
            if enough && inner.retired.is_empty() {
                if inner.ready.len() <= self.target {
                    self.changed.wait(&mut inner);
                } else if self.changed.wait_for(&mut inner, EXTRA_KEPT).timed_out() {
                    drop(inner);
                    self.remove_extra();
                }
            } else if failed || (enough && !recyclable) {
                self.changed.wait_for(&mut inner, RETRY);
            }
        }
    }

    /// Removes one file more than the target, if there is one.
    fn remove_extra(&self) {
        let extra = {
            let mut inner = self.inner.lock();
            let many = inner.ready.len() > self.target;
            many.then(|| inner.ready.pop_back()).flatten()
        };
        if let Some(path) = extra
            && let Err(error) = self.disk.remove(&path)
        {
            // It is taken over, or removed, at the next start.
            tracing::warn!(path = %path.display(), "cannot remove a spare log file: {error}");
        }
    }

    /// Ends the worker thread and whoever waits in [`FilePool::take_waiting`].
    pub(super) fn stop(&self) {
        self.inner.lock().closing = true;
        self.changed.notify_all();
    }

    /// Renames purged files to spares, or removes them. A file that a reader has open waits. All names are durable before
    /// any of the files can be taken.
    fn recycle(&self) -> io::Result<()> {
        let retired: Vec<_> = self.inner.lock().retired.drain(..).collect();
        let mut held = VecDeque::new();
        let mut recycled = Vec::new();
        let mut changed = false;
        let mut result = Ok(());
        for file in retired {
            if result.is_err() || Arc::strong_count(&file) > 1 {
                held.push_back(file);
                continue;
            }
            match self.recycle_one(&file, recycled.len()) {
                Ok(path) => recycled.extend(path),
                Err(error) => {
                    result = Err(error);
                    held.push_back(file);
                    continue;
                }
            }
            changed = true;
            crash_point(CrashPoint::PurgeFileGone);
        }
        if changed && let Err(error) = sync_names(self.disk.as_ref(), &self.dir) {
            // The names may come back in a crash: such files are never written again by this process.
            recycled.clear();
            result = Err(error);
        }
        if changed {
            crash_point(CrashPoint::PurgeNamesSynced);
        }
        let mut inner = self.inner.lock();
        self.metrics.files_recycled.add(recycled.len() as u64);
        inner.ready.extend(recycled);
        held.append(&mut inner.retired);
        inner.retired = held;
        self.changed.notify_all();
        result
    }

    fn recycle_one(&self, file: &LogFile, recycled: usize) -> io::Result<Option<PathBuf>> {
        let number = {
            let mut inner = self.inner.lock();
            let wanted = file.file_bytes == self.file_bytes
                && inner.ready.len() + recycled < self.target + EXTRA_RECYCLED;
            wanted.then(|| {
                inner.next_number += 1;
                inner.next_number - 1
            })
        };
        let gone = |result: io::Result<()>| match result {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            other => other.map(|()| true),
        };
        match number {
            Some(number) => {
                let path = self.dir.join(spare_name(number));
                Ok(gone(self.disk.rename(&file.path, &path))?.then_some(path))
            }
            None => gone(self.disk.remove(&file.path)).map(|_| None),
        }
    }

    fn fill(&self, pace: Pace) -> io::Result<()> {
        while self.ready() < self.target && !self.interrupted(pace) {
            self.prepare(pace)?;
        }
        Ok(())
    }

    /// Whether zeroing should stop: the log closes, or a purged file can be had instead.
    fn interrupted(&self, pace: Pace) -> bool {
        let inner = self.inner.lock();
        inner.closing || (pace == Pace::Background && inner.has_recyclable())
    }

    /// Makes one spare: zeros on disk under `.tmp`, then the name.
    fn prepare(&self, pace: Pace) -> io::Result<()> {
        let number = {
            let mut inner = self.inner.lock();
            inner.next_number += 1;
            inner.next_number - 1
        };
        let tmp = self.dir.join(tmp_name(number));
        let spare = self.dir.join(spare_name(number));
        let made = self.make(&tmp, &spare, pace);
        if made.is_err() {
            // Best effort: what cannot be removed now is removed at the next start.
            let _ = self.disk.remove(&tmp);
            let _ = self.disk.remove(&spare);
        }
        if made? {
            self.metrics.files_prepared.add(1);
            self.inner.lock().ready.push_back(spare);
            self.changed.notify_all();
        }
        Ok(())
    }

    /// `false` when it was interrupted.
    fn make(&self, tmp: &Path, spare: &Path, pace: Pace) -> io::Result<bool> {
        let file = self.disk.open(tmp, OpenMode::CreateNew)?;
        if !self.zero(file.as_ref(), pace)? {
            self.disk.remove(tmp)?;
            return Ok(false);
        }
        crash_point(CrashPoint::SpareZeroed);
        self.disk.rename(tmp, spare)?;
        crash_point(CrashPoint::SpareRenamed);
        sync_names(self.disk.as_ref(), &self.dir)?;
        Ok(true)
    }

    fn zero(&self, file: &dyn DiskFile, pace: Pace) -> io::Result<bool> {
        let mut position = 0;
        let mut synced = 0;
        while position < self.file_bytes {
            let length = (self.file_bytes - position).min(CHUNK_BYTES as u64);
            let zeroing = match pace {
                Pace::Background => self.wait_turn(length),
                Pace::Now => Zeroing::Hurry,
            };
            match zeroing {
                Zeroing::GoOn => {}
                Zeroing::Stop => return Ok(false),
                Zeroing::Hurry => {
                    file.reserve(self.file_bytes)?;
                    break;
                }
            }
            let chunk = &ZEROS[..usize::try_from(length).unwrap_or(CHUNK_BYTES)];
            file.write_all_at(&[IoSlice::new(chunk)], position)?;
            position += length;
            if position - synced >= SYNC_EVERY_BYTES {
                file.sync_data()?;
                synced = position;
            }
        }
        file.sync_data()?;
        Ok(true)
    }

    /// Waits for the turn to write `bytes` of zeros, unless the writer comes too near.
    fn wait_turn(&self, bytes: u64) -> Zeroing {
        let begins = self.zeroing.turn(bytes, Instant::now());
        let mut inner = self.inner.lock();
        loop {
            if inner.closing || inner.has_recyclable() {
                return Zeroing::Stop;
            }
            let used = self.active_permille.load(Ordering::Relaxed);
            if inner.wanted || (inner.ready.is_empty() && used >= HURRY_PERMILLE) {
                return Zeroing::Hurry;
            }
            let now = Instant::now();
            if now >= begins {
                return Zeroing::GoOn;
            }
            let wait = LOOK.min(begins - now);
            self.changed.wait_for(&mut inner, wait);
        }
    }
}

impl Inner {
    /// Whether a purged file can be had: no reader has it open.
    fn has_recyclable(&self) -> bool {
        self.retired.iter().any(|file| Arc::strong_count(file) == 1)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use tidelog_env::disk::MemoryDisk;

    /// Proves that recycled files beyond the target are kept up to a bound, and go one by one down to the target.
    #[test]
    fn extra_files_are_bounded_and_go_in_the_end() {
        let disk = MemoryDisk::new();
        let dir = PathBuf::from("/group");
        disk.create_dir_all(&dir).unwrap();
        let target = 2;
        let pool = FilePool::new(
            Arc::new(disk.clone()),
            dir.clone(),
            4096,
            target,
            Arc::default(),
            Arc::default(),
        );
        for number in 1..=20 {
            let path = dir.join(spare_name(number));
            let file = disk.open(&path, OpenMode::CreateNew).unwrap();
            file.reserve(4096).unwrap();
            pool.adopt(number, 4096).unwrap();
        }
        let names = || disk.list(&dir).unwrap().len();
        assert_eq!(
            (pool.ready(), names()),
            (target + EXTRA_RECYCLED, target + EXTRA_RECYCLED)
        );
        for _ in 0..EXTRA_RECYCLED + 3 {
            pool.remove_extra();
        }
        assert_eq!((pool.ready(), names()), (target, target));
    }
}
