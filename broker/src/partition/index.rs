//! The hot index of one partition: which batch begins where in the group log.
//!
//! Owns: offset to log extent, for the batches that are still in the local log. One entry per batch, 64 bytes: a 1 GiB
//! hot tail of 16 KiB batches takes 4 MiB.
//! Not here: the sparse index of segments in the object store (`tidelog-tiering`).

use std::collections::VecDeque;
use tidelog_model::{LeaderEpoch, LogIndex, Offset, TimestampMs};

/// Where a batch's bytes are: a range of one entry's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogExtent {
    /// The entry.
    pub index: LogIndex,
    /// First byte in the entry's body.
    pub position: u32,
    /// Bytes of the batch, header included.
    pub length: u32,
}

/// One batch of the hot tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// Offset of its first record.
    pub base_offset: Offset,
    /// Number of records; the last offset is `base_offset + records - 1`.
    pub records: u32,
    /// Leader epoch it was appended in.
    pub epoch: LeaderEpoch,
    /// Largest record timestamp inside.
    pub max_timestamp: TimestampMs,
    /// Broker stamp of its entry.
    pub stamp: TimestampMs,
    /// Where its bytes are.
    pub extent: LogExtent,
}

impl IndexEntry {
    /// The offset after its last record.
    #[must_use]
    pub fn end(&self) -> Offset {
        self.base_offset.plus(i64::from(self.records))
    }
}

/// The batches of one partition in the local log, in offset order without a hole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HotIndex {
    entries: VecDeque<IndexEntry>,
    bytes: u64,
}

impl HotIndex {
    /// Adds the next batch. Its base offset is the end of the one before.
    pub fn push(&mut self, entry: IndexEntry) {
        self.bytes += u64::from(entry.extent.length);
        self.entries.push_back(entry);
    }

    /// First offset that is in the local log, if any is.
    #[must_use]
    pub fn start(&self) -> Option<Offset> {
        self.entries.front().map(|entry| entry.base_offset)
    }

    /// Bytes of the batches in the local log.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of the batches that end after `from`.
    #[must_use]
    pub fn bytes_from(&self, from: Offset) -> u64 {
        self.entries
            .range(self.position(from)..)
            .map(|entry| u64::from(entry.extent.length))
            .sum()
    }

    /// All entries in offset order.
    pub fn iter(&self) -> impl Iterator<Item = &IndexEntry> {
        self.entries.iter()
    }

    /// Forgets batches of entries below `first`: the log no longer holds them.
    pub fn trim(&mut self, first: LogIndex) {
        while let Some(front) = self.entries.front()
            && front.extent.index < first
        {
            self.bytes -= u64::from(front.extent.length);
            self.entries.pop_front();
        }
    }

    /// Position of the batch that holds `offset`, or of the first one after it.
    fn position(&self, offset: Offset) -> usize {
        self.entries.partition_point(|entry| entry.end() <= offset)
    }

    /// Whether `offset` is in the local log.
    #[must_use]
    pub fn contains(&self, offset: Offset) -> bool {
        match (self.entries.front(), self.entries.back()) {
            (Some(first), Some(last)) => first.base_offset <= offset && offset < last.end(),
            _ => false,
        }
    }

    /// The batches from the one that holds `from`, in order, with at most `bytes_max` bytes together, but at least one
    /// (a first batch larger than the limit is still returned, field report A34).
    #[must_use]
    pub fn read(&self, from: Offset, end: Offset, bytes_max: u64) -> Vec<IndexEntry> {
        let mut found = Vec::new();
        let mut bytes = 0u64;
        for entry in self.entries.range(self.position(from)..) {
            let length = u64::from(entry.extent.length);
            if entry.base_offset >= end || (!found.is_empty() && bytes + length > bytes_max) {
                break;
            }
            bytes += length;
            found.push(*entry);
        }
        found
    }

    /// The first batch at or after `from` that may hold a record with a timestamp of at least `timestamp`.
    #[must_use]
    pub fn find_timestamp(&self, from: Offset, timestamp: TimestampMs) -> Option<IndexEntry> {
        self.entries
            .range(self.position(from)..)
            .find(|entry| entry.max_timestamp >= timestamp)
            .copied()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;

    fn entry(base: i64, records: u32, index: u64, length: u32, ts: i64) -> IndexEntry {
        IndexEntry {
            base_offset: Offset::new(base),
            records,
            epoch: LeaderEpoch::new(1),
            max_timestamp: TimestampMs::new(ts),
            stamp: TimestampMs::new(0),
            extent: LogExtent {
                index: LogIndex::new(index),
                position: 0,
                length,
            },
        }
    }

    fn sample() -> HotIndex {
        let mut index = HotIndex::default();
        index.push(entry(10, 5, 3, 100, 50));
        index.push(entry(15, 1, 4, 40, 20));
        index.push(entry(16, 4, 6, 60, 70));
        index
    }

    /// Proves that a read begins with the batch that holds the offset and respects the byte limit after the first.
    #[test]
    fn read_begins_inside_a_batch_and_is_bounded() {
        let index = sample();
        let end = Offset::new(20);
        let got = |from, max| {
            index
                .read(Offset::new(from), end, max)
                .iter()
                .map(|e| e.base_offset.get())
                .collect::<Vec<_>>()
        };
        assert_eq!(got(12, 1_000), vec![10, 15, 16]);
        assert_eq!(got(12, 1), vec![10]);
        assert_eq!(got(15, 100), vec![15, 16]);
        assert_eq!(got(15, 99), vec![15]);
        assert_eq!(got(20, 99), Vec::<i64>::new());
        assert_eq!(index.read(Offset::new(10), Offset::new(16), 1_000).len(), 2);
    }

    /// Proves that trimming keeps bytes and start true.
    #[test]
    fn trim_forgets_by_log_index() {
        let mut index = sample();
        index.trim(LogIndex::new(4));
        assert_eq!(index.start(), Some(Offset::new(15)));
        assert_eq!(index.bytes(), 100);
        assert!(!index.contains(Offset::new(14)));
        assert!(index.contains(Offset::new(19)));
        index.trim(LogIndex::new(7));
        assert_eq!(index.start(), None);
        assert_eq!(index.bytes(), 0);
    }

    /// Proves that time lookup takes the first batch that can hold the time, though times are not in order.
    #[test]
    fn find_timestamp_takes_first() {
        let index = sample();
        let find = |from, ts| {
            index
                .find_timestamp(Offset::new(from), TimestampMs::new(ts))
                .map(|e| e.base_offset.get())
        };
        assert_eq!(find(10, 20), Some(10));
        assert_eq!(find(10, 51), Some(16));
        assert_eq!(find(15, 20), Some(15));
        assert_eq!(find(10, 71), None);
    }
}
