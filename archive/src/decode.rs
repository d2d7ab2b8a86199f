//! Batches to rows, with every offset accounted for.
//!
//! Owns: the checks between a segment and its rows: CRC, contiguous offsets, leader epochs, records; what has no row.
//! Not here: reading (`source.rs`), columns (`rows.rs`). Pure and CPU-bound: run it off the event loop.
//! Spec: docs/protocols/archive-commit.md (step 5)

use crate::error::ArchiveError;
use crate::fileset::FileSet;
use crate::mark::Added;
use crate::rows::Row;
use tidelog_model::batch::{BatchError, RecordBatch};
use tidelog_model::{LeaderEpoch, Offset};
use tidelog_tiering::manifest::{EpochStart, SegmentEntry};

/// Why a partition cannot go on.
#[derive(Debug)]
pub(crate) enum DecodeStop {
    /// What is in the segment is not what was written.
    Damaged(String),
    /// A fault of this crate or its libraries; the file set is not usable any more.
    Internal(ArchiveError),
}

impl From<BatchError> for DecodeStop {
    fn from(error: BatchError) -> Self {
        Self::Damaged(error.to_string())
    }
}

/// How far one partition is read, and what was found. Always at a batch border.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    partition: i32,
    mark: i64,
    first: Offset,
    next: Offset,
    rows: i64,
    skipped: i64,
}

impl Cursor {
    /// A partition whose mark is `mark` and whose first readable offset is `log_start`.
    #[must_use]
    pub(crate) fn new(partition: i32, mark: Offset, log_start: Offset) -> Self {
        let first = mark.max(log_start);
        Self {
            partition,
            mark: mark.get(),
            first,
            next: first,
            rows: 0,
            skipped: 0,
        }
    }

    /// The first offset that is not covered yet.
    #[must_use]
    pub(crate) const fn next(&self) -> Offset {
        self.next
    }

    /// What was covered; `None` when nothing was.
    #[must_use]
    pub(crate) fn added(&self) -> Option<Added> {
        let added = Added {
            partition: self.partition,
            from: self.mark,
            until: self.next.get(),
            rows: self.rows,
            skipped: self.skipped,
            lost: self.first.get() - self.mark,
        };
        (added.until > added.from).then_some(added)
    }

    /// Whether the segment is the one that holds the next offset.
    #[must_use]
    pub(crate) fn is_in(&self, segment: &SegmentEntry) -> bool {
        (segment.base_offset..=segment.last_offset).contains(&self.next)
    }

    /// Turns batches of `segment` into rows. On an error the cursor stands at the first batch that has none of its
    /// rows in the file set; what came before it is in.
    ///
    /// # Errors
    /// See [`DecodeStop`].
    pub(crate) fn append(
        &mut self,
        segment: &SegmentEntry,
        batches: &[RecordBatch],
        files: &mut FileSet,
    ) -> Result<(), DecodeStop> {
        for batch in batches {
            self.append_batch(segment, batch, files)?;
        }
        Ok(())
    }

    fn append_batch(
        &mut self,
        segment: &SegmentEntry,
        batch: &RecordBatch,
        files: &mut FileSet,
    ) -> Result<(), DecodeStop> {
        self.check_header(segment, batch)?;
        batch.verify_crc()?;
        let header = batch.header();
        let until = header.next_offset();
        let covered = until.get() - self.next.get();
        let rows = if header.attributes.is_control() {
            0
        } else {
            self.append_records(batch, files)?
        };
        self.rows += rows;
        self.skipped += covered - rows;
        self.next = until;
        Ok(())
    }

    /// Checks what the CRC does not cover: base offset and leader epoch.
    fn check_header(&self, segment: &SegmentEntry, batch: &RecordBatch) -> Result<(), DecodeStop> {
        let header = batch.header();
        let (base, last) = (header.base_offset, header.last_offset());
        // Only the first batch may begin before the next offset: where the log start lies inside it.
        let begins = if self.next == self.first {
            base <= self.next
        } else {
            base == self.next
        };
        if !begins || last < self.next {
            return Err(DecodeStop::Damaged(format!(
                "a batch of offsets {base} to {last} comes where {} is next",
                self.next
            )));
        }
        if base < segment.base_offset || last > segment.last_offset {
            return Err(DecodeStop::Damaged(format!(
                "a batch of offsets {base} to {last} lies in a segment of {} to {}",
                segment.base_offset, segment.last_offset
            )));
        }
        match epoch_at(&segment.epochs, base) {
            Some(epoch) if epoch == header.leader_epoch => Ok(()),
            expected => Err(DecodeStop::Damaged(format!(
                "the batch at offset {base} has leader epoch {}, the manifest says {expected:?}",
                header.leader_epoch
            ))),
        }
    }

    /// Two passes: nothing of a batch goes in before all of it is known to be good.
    fn append_records(&self, batch: &RecordBatch, files: &mut FileSet) -> Result<i64, DecodeStop> {
        let header = batch.header();
        let records = batch.records()?;
        let mut above = -1;
        for record in records.clone() {
            let delta = record?.offset_delta;
            if delta <= above || delta > header.last_offset_delta {
                return Err(DecodeStop::Damaged(format!(
                    "record offsets are not in order at offset {}",
                    header.base_offset
                )));
            }
            above = delta;
        }
        let mut rows = 0;
        for record in records {
            let record = record?;
            let offset = record.offset(header);
            if offset < self.next {
                continue;
            }
            let sequence = if header.base_sequence.get() < 0 {
                -1
            } else {
                header.base_sequence.plus(record.offset_delta).get()
            };
            let row = Row {
                partition: self.partition,
                offset: offset.get(),
                timestamp_ms: record.timestamp(header).get(),
                timestamp_type: header.attributes.timestamp_type(),
                key: record.key.as_deref(),
                value: record.value.as_deref(),
                headers: &record.headers,
                leader_epoch: header.leader_epoch.get(),
                producer_id: header.producer_id.get(),
                producer_epoch: header.producer_epoch.get(),
                sequence,
            };
            files.push(&row).map_err(DecodeStop::Internal)?;
            rows += 1;
        }
        Ok(rows)
    }
}

fn epoch_at(epochs: &[EpochStart], offset: Offset) -> Option<LeaderEpoch> {
    epochs
        .iter()
        .rev()
        .find(|start| start.start <= offset)
        .map(|start| start.epoch)
}
