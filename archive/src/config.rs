//! Settings of the archive and their arithmetic.

use std::time::Duration;

/// How an archiver works. [`ArchiveConfig::new`] gives the defaults.
#[derive(Clone, Debug)]
pub struct ArchiveConfig {
    /// Absolute URI of the place that the object store's paths are relative to: `s3://bucket` or `file:///directory`.
    /// Written into the tables: it is how readers find the files.
    pub store_uri: String,
    /// Pause between two runs of the loop: how old an archived record's absence may be.
    pub interval: Duration,
    /// A data file is closed when it has this many bytes.
    pub file_bytes: usize,
    /// A row group ends at this many encoded bytes …
    pub row_group_bytes: usize,
    /// … or rows.
    pub row_group_rows: usize,
    /// Days with files of their own in one commit. 64 open files at a few hundred KiB each stay within `memory_bytes`.
    pub days_max: usize,
    /// Bytes of all unfinished files of a table together. Above it the largest is closed early. It should exceed
    /// `file_bytes`, else files of full size never come about.
    pub memory_bytes: usize,
    /// Bytes of segments that one commit covers. Bounds what a crash has to do again.
    pub commit_bytes: u64,
    /// Bytes read from a segment at once.
    pub read_bytes: u64,
    /// Commits lost in a row before a run gives up.
    pub attempts_max: u32,
    /// An attempt older than this is given up before its commit.
    pub attempt_age_max: Duration,
    /// Snapshots kept in the metadata file.
    pub snapshots_max: usize,
}

impl ArchiveConfig {
    /// Defaults for a store at `store_uri`.
    #[must_use]
    pub fn new(store_uri: impl Into<String>) -> Self {
        const MIB: usize = 1024 * 1024;
        Self {
            store_uri: store_uri.into(),
            interval: Duration::from_secs(300),
            file_bytes: 128 * MIB,
            row_group_bytes: 16 * MIB,
            row_group_rows: 128 * 1024,
            days_max: 64,
            memory_bytes: 192 * MIB,
            commit_bytes: 1024 * 1024 * 1024,
            read_bytes: 4 * 1024 * 1024,
            attempts_max: 8,
            attempt_age_max: Duration::from_secs(15 * 60),
            snapshots_max: 100,
        }
    }
}
