//! Budgets, errors and counters of the remote reader.

use crate::key::ObjectKey;
use crate::store::StoreError;
use std::ops::Range;
use tidelog_model::Offset;

/// Budgets of a node's remote reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderConfig {
    /// Memory for cached batches, their decoded headers included.
    pub memory_bytes: u64,
    /// Memory for index blocks: 28 bytes per 64 KiB of segments, so 16 MiB cover 37 GiB.
    pub index_bytes: u64,
    /// What a first read of a place loads, from an aligned position on: 1 MiB is a round trip worth its latency.
    pub chunk_bytes: u64,
    /// Sequential readers double what they load up to `chunk_bytes` times 2 to this power: 3 is 8 MiB.
    pub chunk_doublings_max: u8,
    /// Downloads in flight.
    pub requests_in_flight_max: usize,
    /// Bytes of downloads in flight.
    pub bytes_in_flight_max: u32,
    /// Reads that wait for a download (their own or somebody's); more are answered with [`ReadError::Overloaded`].
    pub waiting_max: usize,
    /// Downloads ahead of sequential readers in flight. 0: none.
    pub prefetches_max: usize,
}

impl Default for ReaderConfig {
    fn default() -> Self {
        Self {
            memory_bytes: 128 * 1024 * 1024,
            index_bytes: 16 * 1024 * 1024,
            chunk_bytes: 1024 * 1024,
            chunk_doublings_max: 3,
            requests_in_flight_max: 16,
            bytes_in_flight_max: 64 * 1024 * 1024,
            waiting_max: 1024,
            prefetches_max: 8,
        }
    }
}

/// Why a read failed. A failed download is never cached: the next read tries anew (field report A06).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The segment does not hold that offset: the caller chose the wrong one.
    #[error("offset {offset} is not in the segment")]
    OutsideSegment {
        /// The offset asked for.
        offset: Offset,
    },
    /// The store did not give the bytes. Whether waiting helps: [`StoreError::is_transient`].
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store gave bytes that are not what was written, twice. Nothing of the range was served.
    #[error("object {object}, bytes {}..{}, is damaged: {reason}", range.start, range.end)]
    Corrupt {
        /// The object.
        object: ObjectKey,
        /// The bytes of it that were read.
        range: Range<u64>,
        /// What is wrong.
        reason: String,
    },
    /// Too many reads wait already. Ask again later.
    #[error("too many remote reads wait")]
    Overloaded,
    /// The node stops.
    #[error("the remote reader has stopped")]
    Stopped,
}

/// Counters since the start, and what the caches hold now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderStats {
    /// Reads of a span that found it in memory.
    pub hits: u64,
    /// Reads of a span that waited for a download.
    pub misses: u64,
    /// Downloads that were asked for.
    pub downloads: u64,
    /// Bytes they brought.
    pub download_bytes: u64,
    /// Downloads that failed.
    pub failures: u64,
    /// Downloads whose bytes were damaged (each is tried once more).
    pub corrupt: u64,
    /// Bytes of batches in memory, roughly.
    pub memory_bytes: u64,
}
