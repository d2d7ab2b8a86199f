//! What the group log stores and tells.
//!
//! Owns: entries, votes, the log's state, its configuration.
//! Not here: bytes on disk (`format.rs`), Raft (the placement module).
//! Spec: docs/formats/group-log.md

use bytes::Bytes;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::{Disk, Random, Tasks};
use tidelog_model::{ClusterId, LogId, PlacementGroupId, RaftNodeId, Summed, Term};

use super::error::{LogError, LogFailure};
use super::format::Identity;
use super::metrics::LogObserver;
use super::pace::ZeroingPace;

/// A Raft vote: term, candidate, and whether a quorum granted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vote {
    /// The term voted in.
    pub term: Term,
    /// Who got the vote.
    pub node: RaftNodeId,
    /// Whether a quorum is known to have granted it.
    pub committed: bool,
}

/// What an entry is to Raft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// Nothing: a new leader's first entry.
    Blank,
    /// A command for the state machine.
    Command,
    /// A change of the group's members.
    Membership,
}

/// One Raft log entry. Clones share the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// Term and index.
    pub id: LogId,
    /// What it is.
    pub kind: EntryKind,
    /// The small part: command header, directory of batches, or the membership.
    pub dir: Bytes,
    /// The bulk part, stored as it is. Its sum goes with it: the log does not compute it again.
    pub body: Summed,
}

/// What the log holds, in the order of its calls (not only what is durable).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogState {
    /// Everything up to here was purged.
    pub purged: Option<LogId>,
    /// The last entry; equal to `purged` when no entry is left.
    pub last: Option<LogId>,
    /// The newest vote.
    pub vote: Option<Vote>,
    /// The newest commit index given to `save_committed`; after a restart it may be older, never newer, than what was given.
    pub committed: Option<LogId>,
}

/// Called once when a write or a sync failed. The process must end; see [`LogFailure`].
pub type FatalSignal = Arc<dyn Fn(&LogFailure) + Send + Sync>;

/// Called when the entries of one `append` are durable, or with the error that poisoned the log.
pub type AppendDone = Box<dyn FnOnce(io::Result<()>) + Send>;

/// Where the writer runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriterMode {
    /// A thread of its own per group, and one that prepares files; reads use tokio's blocking pool. For production.
    Thread,
    /// A tokio task that calls the disk directly; reads too. For a simulation, where the disk is memory.
    Task,
    /// Nothing runs until [`super::GroupLog::step`]. For tests that choose when a batch is written.
    Manual,
}

/// Settings of one group's log.
#[derive(Debug, Clone)]
pub struct GroupLogConfig {
    /// The group's own directory; created when missing.
    pub dir: PathBuf,
    /// The cluster; checked against every file.
    pub cluster: ClusterId,
    /// The group; checked against every file.
    pub group: PlacementGroupId,
    /// This replica; checked against every file.
    pub node: RaftNodeId,
    /// Size of a new log file (existing ones keep theirs). [`GroupLogConfig::FILE_BYTES_MIN`] to 1 GiB.
    pub file_bytes: u64,
    /// One entry (dir + body) at most; a file must hold four.
    pub entry_bytes_max: usize,
    /// Bytes written with one sync, at most (one entry more when it is larger).
    pub batch_bytes_max: usize,
    /// Dir and body bytes of recent entries kept in memory.
    pub cache_bytes: usize,
    /// Zero-filled or recycled files kept ready.
    pub spare_files: usize,
    /// The pace of zeroing, shared by the logs of a broker.
    pub zeroing: Arc<ZeroingPace>,
    /// How long a commit index may wait for a batch that takes it along.
    pub lazy_delay: Duration,
    /// Where the writer runs.
    pub writer: WriterMode,
}

/// Bytes of an entry that fit a log of files of so many bytes.
#[must_use]
pub fn entry_bytes_in(file_bytes: u64) -> usize {
    usize::try_from(file_bytes / 4).unwrap_or(usize::MAX)
}

impl GroupLogConfig {
    /// The smallest log file: header, and a few frames.
    pub const FILE_BYTES_MIN: u64 = 16 * 1024;
    /// The largest: positions inside a file fit 32 bits with room.
    pub const FILE_BYTES_MAX: u64 = 1 << 30;

    /// Sets the size of a log file, and what depends on it: an entry and a batch take a quarter of it at most.
    #[must_use]
    pub fn with_file_bytes(mut self, file_bytes: u64) -> Self {
        let quarter = entry_bytes_in(file_bytes);
        self.file_bytes = file_bytes;
        self.entry_bytes_max = self.entry_bytes_max.min(quarter);
        self.batch_bytes_max = self.batch_bytes_max.min(quarter);
        self
    }

    /// Whose files these are.
    pub(super) fn identity(&self) -> Identity {
        Identity {
            cluster: self.cluster,
            group: self.group,
            node: self.node,
        }
    }

    /// Refuses sizes that cannot work together.
    pub(super) fn check(&self) -> Result<(), LogError> {
        let sizes = Self::FILE_BYTES_MIN..=Self::FILE_BYTES_MAX;
        if !sizes.contains(&self.file_bytes) || !self.file_bytes.is_multiple_of(4096) {
            let bytes = self.file_bytes;
            return Err(LogError::Invalid(format!(
                "a log file of {bytes} bytes: it must be 16 KiB to 1 GiB, a multiple of 4096"
            )));
        }
        let entry = u64::try_from(self.entry_bytes_max).unwrap_or(u64::MAX);
        if entry == 0 || entry > self.file_bytes / 4 {
            let file = self.file_bytes;
            return Err(LogError::Invalid(format!(
                "entries of {entry} bytes need log files of four times that, not {file}"
            )));
        }
        if self.batch_bytes_max == 0 || self.spare_files == 0 {
            return Err(LogError::Invalid(
                "batch_bytes_max and spare_files must be at least 1".to_owned(),
            ));
        }
        Ok(())
    }

    /// The defaults of production for a group.
    #[must_use]
    pub fn new(
        dir: PathBuf,
        cluster: ClusterId,
        group: PlacementGroupId,
        node: RaftNodeId,
    ) -> Self {
        Self {
            dir,
            cluster,
            group,
            node,
            file_bytes: 128 << 20,
            entry_bytes_max: 32 << 20,
            batch_bytes_max: 8 << 20,
            cache_bytes: 64 << 20,
            spare_files: 1,
            zeroing: Arc::default(),
            lazy_delay: Duration::from_millis(200),
            writer: WriterMode::Thread,
        }
    }
}

/// The world a log lives in.
#[derive(Clone)]
pub struct LogEnv {
    /// Its disk.
    pub disk: Arc<dyn Disk>,
    /// Salts of files.
    pub random: Arc<dyn Random>,
    /// Runs the writer in [`WriterMode::Task`].
    pub tasks: Tasks,
    /// Told when the log can no longer promise anything.
    pub fatal: FatalSignal,
    /// Told about every batch.
    pub observer: Arc<dyn LogObserver>,
}
