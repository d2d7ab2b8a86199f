//! What can go wrong with a group log, by what the caller may do.
//!
//! Not here: what an operator does about damage, which depends on the broker's cluster (`node::refill`). What is found may be told within another sentence.

use super::types::EntryKind;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use thiserror::Error;
use tidelog_model::LogIndex;

/// A write or a sync failed: what is on disk is unknown, nothing more is written, the process must end.
/// (A later sync that succeeds would prove nothing about the bytes of the failed one.)
#[derive(Debug, Clone, Error)]
#[error("group log {}: {what}: {source}. The process ends, because bytes that may not be on disk must not be acknowledged; check the disk, then start again", dir.display())]
pub struct LogFailure {
    /// The log's directory.
    pub dir: PathBuf,
    /// What was being done.
    pub what: &'static str,
    /// The error of the disk.
    #[source]
    pub source: Arc<io::Error>,
}

/// Errors of [`super::GroupLog`].
#[derive(Debug, Clone, Error)]
pub enum LogError {
    /// Another process (or another handle) has the directory. Stop it first.
    #[error("group log {}: in use by another process", dir.display())]
    Locked {
        /// The log's directory.
        dir: PathBuf,
    },
    /// The files belong to somebody else. Use the right data directory.
    #[error("log file {} belongs to {found}, but this is {expected}: use the data directory of this node, with the files of its own groups alone. If that is gone: keep this one, start the broker with an empty one under the node.id it has, and run `tidelog cluster add`", path.display())]
    Identity {
        /// The file.
        path: PathBuf,
        /// Who we are: cluster, group, node.
        expected: String,
        /// What the file says.
        found: String,
    },
    /// A newer (or unknown) program wrote the file. Use that version.
    #[error("log file {} has format version {version}; this program knows version 1", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// What it says.
        version: u16,
    },
    /// Bytes that may have been acknowledged are damaged. They are not cut: the broker is refilled from the others.
    #[error("log file {} is damaged at byte {position}: {what}. It may have been acknowledged, so it is not cut", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the damage starts.
        position: u64,
        /// What does not fit.
        what: String,
    },
    /// Files that must be there are not. Unlike damage that is not what a disk does by itself: put them back.
    #[error("log files are missing at {}: {what}. They may have been acknowledged: use the right data directory, or put them back", path.display())]
    Missing {
        /// Where.
        path: PathBuf,
        /// What says so.
        what: String,
    },
    /// What was acknowledged is not there, and nothing on the disk says where it was. Refilled, as damage is.
    #[error("group log {} has lost what was acknowledged: {what}", dir.display())]
    Lost {
        /// The log's directory.
        dir: PathBuf,
        /// What is lost, and who says so.
        what: String,
    },
    /// A read, the recovery, or a checkpoint met a disk error. Nothing that was acknowledged is in doubt; try again.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// What was being done.
        what: &'static str,
        /// To which file.
        path: PathBuf,
        /// The error of the disk.
        #[source]
        source: Arc<io::Error>,
    },
    /// A write failed before: end the process.
    #[error(transparent)]
    Poisoned(#[from] LogFailure),
    /// The log was closed.
    #[error("the group log is closed")]
    Closed,
    /// The entry was purged; it is in a snapshot or in the object store.
    #[error("log index {index} was purged, the first is {first}")]
    Purged {
        /// What was asked for.
        index: LogIndex,
        /// The first index still there.
        first: LogIndex,
    },
    /// There is no such entry (yet).
    #[error("log index {index} is not in the log")]
    NotFound {
        /// What was asked for.
        index: LogIndex,
    },
    /// The call breaks the log's rules; nothing was done.
    #[error("{0}")]
    Invalid(String),
}

impl LogError {
    /// The error for a callback that wants an [`io::Error`].
    #[must_use]
    pub fn to_io(&self) -> io::Error {
        let kind = match self {
            Self::Invalid(_) => io::ErrorKind::InvalidInput,
            Self::Poisoned(failure) => failure.source.kind(),
            Self::Io { source, .. } => source.kind(),
            Self::Damaged { .. } | Self::Missing { .. } | Self::Lost { .. } => {
                io::ErrorKind::InvalidData
            }
            Self::Purged { .. } | Self::NotFound { .. } => io::ErrorKind::NotFound,
            Self::Closed => io::ErrorKind::BrokenPipe,
            Self::Locked { .. } | Self::Identity { .. } | Self::Version { .. } => {
                io::ErrorKind::Other
            }
        };
        io::Error::new(kind, self.to_string())
    }
}

impl EntryKind {
    /// A word for messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Blank => "blank",
            Self::Command => "command",
            Self::Membership => "membership",
        }
    }
}
