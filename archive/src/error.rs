//! What can go wrong while archiving, and what the caller may do about it.

use tidelog_model::{Offset, PartitionId};
use tidelog_tiering::ObjectKey;

/// An archive run failed, or a part of it. Nothing is ever half archived: a commit happened or it did not.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The store did not answer as it should. Nothing is lost; the next run goes on from the last commit.
    #[error("archive: cannot {doing}: {source}; the next run goes on from the last commit")]
    Store {
        /// What was tried.
        doing: String,
        /// Why it failed.
        #[source]
        source: tidelog_tiering::StoreError,
    },
    /// A segment in the store is damaged. The partition's archive stands still at `offset` until the object is healed.
    #[error(
        "archive: {partition} stops at offset {offset}: {object} is damaged: {reason}; restore the object, the archive then goes on"
    )]
    Damaged {
        /// The partition that stops.
        partition: PartitionId,
        /// First offset that is not archived.
        offset: Offset,
        /// Key of the object.
        object: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The table at this place is not ours, or was changed by something that does not keep our marks.
    #[error(
        "archive: the table at {location} cannot be continued: {reason}; move it away, a new one is built from the segments"
    )]
    ForeignTable {
        /// Where it is.
        location: String,
        /// Why it is refused.
        reason: String,
    },
    /// Other archivers committed first each time. Nothing is wrong; the next run goes on.
    #[error(
        "archive: other archivers won {attempts} commits in a row on {location}; the next run goes on from theirs"
    )]
    Contended {
        /// The table.
        location: String,
        /// How often.
        attempts: u32,
    },
    /// A commit's reply was lost and reading back failed. It may have happened; the next run finds out before it does anything.
    #[error(
        "archive: it is not known whether version {version} of {location} was committed: {reason}; the next run finds out"
    )]
    CommitUnknown {
        /// The table.
        location: String,
        /// The version that may exist.
        version: u64,
        /// What the store said.
        reason: String,
    },
    /// A topic name that no Kafka client could have created.
    #[error("archive: {0:?} is not a topic name")]
    TopicName(String),
    /// An object that is not readable as what its key says.
    #[error("archive: {key} is not readable: {reason}; restore it or move it away")]
    Unreadable {
        /// Its key.
        key: ObjectKey,
        /// Why.
        reason: String,
    },
    /// Arrow, Parquet or Iceberg refused what we made: a fault of this crate.
    #[error("archive: internal: cannot {doing}: {reason}")]
    Internal {
        /// What was tried.
        doing: &'static str,
        /// What the library said.
        reason: String,
    },
}

impl ArchiveError {
    /// For `map_err` on the columnar and table libraries.
    pub(crate) fn internal<E: std::fmt::Display>(doing: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::Internal {
            doing,
            reason: error.to_string(),
        }
    }
}
