//! The files of one commit: routes rows to the file of their day, bounds the number of files and the memory.
//!
//! Owns: when a file is closed.
//! Not here: uploading (`job.rs`), one file's content (`datafile.rs`).
//! Spec: docs/formats/archive-table.md (Partition specs and sort order)

use crate::config::ArchiveConfig;
use crate::datafile::{DataFileWriter, FinishedFile, Slot};
use crate::error::ArchiveError;
use crate::rows::Row;
use std::collections::{BTreeMap, BTreeSet};

/// Files being written for one commit. Pure: it does no I/O; the caller takes finished files and stores them.
pub(crate) struct FileSet {
    config: ArchiveConfig,
    open: BTreeMap<Slot, DataFileWriter>,
    days: BTreeSet<i32>,
    ready: Vec<FinishedFile>,
    rows: u64,
}

impl FileSet {
    /// How many rows pass between two looks at the memory account, which costs a pass over the open files.
    const ACCOUNT_ROWS: u64 = 1024;

    /// An empty set.
    #[must_use]
    pub(crate) fn new(config: ArchiveConfig) -> Self {
        Self {
            config,
            open: BTreeMap::new(),
            days: BTreeSet::new(),
            ready: Vec::new(),
            rows: 0,
        }
    }

    /// Appends a row. Rows come in `(partition, offset)` order.
    ///
    /// # Errors
    /// [`ArchiveError::Internal`] only; the set is then not usable any more.
    pub(crate) fn push(&mut self, row: &Row<'_>) -> Result<(), ArchiveError> {
        let slot = self.slot(row);
        let file = match self.open.entry(slot) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(DataFileWriter::new(&self.config, slot)?)
            }
        };
        file.push(row)?;
        self.rows += 1;
        if file.file_bytes() >= self.config.file_bytes {
            self.close(slot)?;
        }
        if self.rows.is_multiple_of(Self::ACCOUNT_ROWS) {
            self.keep_within_memory()
        } else {
            Ok(())
        }
    }

    /// Files that are finished since the last call. To be called after every batch, so that they do not pile up.
    #[must_use]
    pub(crate) fn take_ready(&mut self) -> Vec<FinishedFile> {
        std::mem::take(&mut self.ready)
    }

    /// Closes what is open and returns the last files.
    ///
    /// # Errors
    /// [`ArchiveError::Internal`] only.
    pub(crate) fn finish(mut self) -> Result<Vec<FinishedFile>, ArchiveError> {
        for (_, file) in std::mem::take(&mut self.open) {
            self.ready.extend(file.finish()?);
        }
        Ok(self.ready)
    }

    fn slot(&mut self, row: &Row<'_>) -> Slot {
        match row.day() {
            Some(day) if self.days.contains(&day) => Slot::Day(day),
            Some(day) if self.days.len() < self.config.days_max => {
                self.days.insert(day);
                Slot::Day(day)
            }
            _ => Slot::Any,
        }
    }

    fn keep_within_memory(&mut self) -> Result<(), ArchiveError> {
        let mut total: usize = self.open.values().map(DataFileWriter::memory_bytes).sum();
        while total > self.config.memory_bytes {
            let Some((slot, bytes)) = self
                .open
                .iter()
                .map(|(slot, file)| (*slot, file.memory_bytes()))
                .max_by_key(|(_, bytes)| *bytes)
            else {
                return Ok(());
            };
            self.close(slot)?;
            total = total.saturating_sub(bytes);
        }
        Ok(())
    }

    fn close(&mut self, slot: Slot) -> Result<(), ArchiveError> {
        if let Some(file) = self.open.remove(&slot) {
            self.ready.extend(file.finish()?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::schema::{SPEC_ANY, SPEC_DAY};
    use tidelog_model::batch::TimestampType;

    const DAY_MS: i64 = 86_400_000;

    fn push(set: &mut FileSet, offset: i64, timestamp_ms: i64, value: &[u8]) {
        let row = Row {
            partition: 0,
            offset,
            timestamp_ms,
            timestamp_type: TimestampType::Create,
            key: None,
            value: Some(value),
            headers: &[],
            leader_epoch: 0,
            producer_id: -1,
            producer_epoch: -1,
            sequence: -1,
        };
        set.push(&row).unwrap();
    }

    fn noise(seed: i64, length: usize) -> Vec<u8> {
        let mut state = u64::try_from(seed).unwrap() ^ 0x9e37_79b9_7f4a_7c15;
        std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[0]
        })
        .take(length)
        .collect()
    }

    /// Proves that timestamps on ten thousand different days, and wilder ones, make days_max + 1 files, with every row in one of them.
    #[test]
    fn wild_timestamps_make_a_bounded_number_of_files() {
        let mut config = ArchiveConfig::new("file:///t");
        config.days_max = 8;
        let mut set = FileSet::new(config);
        for offset in 0..10_000 {
            push(&mut set, offset, (offset - 5000) * DAY_MS, b"v");
        }
        for (offset, wild) in [i64::MIN, i64::MAX, -1, 253_402_300_800_000]
            .into_iter()
            .enumerate()
        {
            push(
                &mut set,
                10_000 + i64::try_from(offset).unwrap(),
                wild,
                b"v",
            );
        }
        let files = set.finish().unwrap();
        assert_eq!(files.len(), 9);
        assert_eq!(
            files
                .iter()
                .filter(|file| file.spec_id() == SPEC_ANY)
                .count(),
            1
        );
        assert_eq!(files.iter().map(|file| file.rows).sum::<u64>(), 10_004);
    }

    /// Proves that a file ends at its size and the day's next rows get another one.
    #[test]
    fn a_full_file_is_closed() {
        let mut config = ArchiveConfig::new("file:///t");
        config.file_bytes = 256 * 1024;
        let mut set = FileSet::new(config);
        for offset in 0..100 {
            push(&mut set, offset, 0, &noise(offset, 10_000));
        }
        assert_eq!(set.take_ready().len(), 3);
        let last = set.finish().unwrap();
        assert_eq!(last.len(), 1);
        assert_eq!(last[0].spec_id(), SPEC_DAY);
    }

    /// Proves that open files together stay within the memory given to them, whatever the days.
    #[test]
    fn memory_is_bounded() {
        let mut config = ArchiveConfig::new("file:///t");
        config.memory_bytes = 8 * 1024 * 1024;
        let mut set = FileSet::new(config);
        let mut ready = Vec::new();
        for offset in 0..40_000 {
            push(
                &mut set,
                offset,
                (offset % 16) * DAY_MS,
                &noise(offset, 1000),
            );
            ready.extend(set.take_ready());
            if offset % 1024 == 1023 {
                let held: usize = set.open.values().map(DataFileWriter::memory_bytes).sum();
                assert!(held <= 10 * 1024 * 1024, "{held} bytes held");
            }
        }
        assert!(ready.len() >= 3);
        ready.extend(set.finish().unwrap());
        assert_eq!(ready.iter().map(|file| file.rows).sum::<u64>(), 40_000);
    }
}
