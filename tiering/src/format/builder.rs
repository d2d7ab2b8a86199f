//! Builds one segment object from batches.
//!
//! Owns: the layout while it grows, and the checks a batch passes before its bytes may become remote.
//! Not here: choosing which batches go into which object (`broker/src/offload`).
//! Spec: docs/formats/segment-object.md

use super::codec::wide;
use super::directory::encode_directory;
use super::footer::{FOOTER_LENGTH, Footer};
use super::index::{IndexBlock, IndexEntry, RUN_BYTES};
use crate::manifest::{EpochStart, ObjectId, SegmentEntry};
use bytes::Bytes;
use tidelog_model::batch::{BatchError, BatchHeader, RecordBatch, crc_of_checked};
use tidelog_model::crc::combine;
use tidelog_model::{BytePosition, Offset, PartitionId, TimestampMs};

/// Why a batch or an object is refused. The builder is unchanged by a refused call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// `push_batch` before `begin_segment`.
    #[error("a batch was pushed before a segment was begun")]
    NoSegment,
    /// A segment (or the object) without a batch.
    #[error("a segment has no batch")]
    Empty,
    /// The bytes are not one whole, undamaged batch: the caller's source is corrupt.
    #[error("the batch at offset {expected:?} is damaged: {error}")]
    Batch {
        /// The offset the batch should have begun at, if one is known.
        expected: Option<Offset>,
        /// What is wrong.
        error: BatchError,
    },
    /// The batch does not begin where the one before ended.
    #[error("a batch begins at offset {found}, not at {expected}")]
    Hole {
        /// Where it should begin.
        expected: Offset,
        /// Where it begins.
        found: Offset,
    },
    /// The batch's leader epoch is lower than the one before, or negative.
    #[error("the batch at offset {offset} has a lower leader epoch than the one before")]
    EpochFell {
        /// Its base offset.
        offset: Offset,
    },
    /// The partition already has a segment in this object.
    #[error("partition {0} already has a segment in this object")]
    SecondSegment(PartitionId),
    /// An index block or the directory would pass 4 GiB.
    #[error("the object is too large")]
    TooLarge,
}

/// A finished object.
#[derive(Clone, Debug)]
pub struct BuiltObject {
    /// Its name.
    pub id: ObjectId,
    /// Its bytes, in order; batches are the slices that were pushed, not copies.
    pub chunks: Vec<Bytes>,
    /// Sum of the chunks' lengths.
    pub length: u64,
    /// What Raft is asked to commit.
    pub segments: Vec<(PartitionId, SegmentEntry)>,
}

struct OpenSegment {
    partition: PartitionId,
    entry: Option<SegmentEntry>,
    runs: Vec<IndexEntry>,
    run_start: u64,
}

/// Collects batches into one object. Memory: the pushed slices, plus 28 bytes per 64 KiB.
pub struct ObjectBuilder {
    id: ObjectId,
    chunks: Vec<Bytes>,
    length: u64,
    open: Option<OpenSegment>,
    done: Vec<(SegmentEntry, IndexBlock)>,
}

impl ObjectBuilder {
    /// An empty object of the given name.
    #[must_use]
    pub fn new(id: ObjectId) -> Self {
        Self {
            id,
            chunks: Vec::new(),
            length: 0,
            open: None,
            done: Vec::new(),
        }
    }

    /// Bytes of batches so far.
    #[must_use]
    pub fn data_length(&self) -> u64 {
        self.length
    }

    /// Starts the segment of a partition; ends the one before.
    ///
    /// # Errors
    /// [`BuildError::Empty`] when the segment before has no batch, [`BuildError::SecondSegment`].
    pub fn begin_segment(&mut self, partition: PartitionId) -> Result<(), BuildError> {
        let open = self.open.as_ref().map(|open| open.partition);
        if open == Some(partition)
            || self
                .done
                .iter()
                .any(|(_, index)| index.partition == partition)
        {
            return Err(BuildError::SecondSegment(partition));
        }
        self.end_segment()?;
        self.open = Some(OpenSegment {
            partition,
            entry: None,
            runs: Vec::new(),
            run_start: 0,
        });
        Ok(())
    }

    /// Adds one batch, its base offset and leader epoch already patched, appended under the broker stamp `stamp`.
    /// The batch's CRC is checked here: damaged bytes never become remote (I8).
    ///
    /// # Errors
    /// See [`BuildError`]; the builder is as before.
    pub fn push_batch(&mut self, batch: Bytes, stamp: TimestampMs) -> Result<(), BuildError> {
        let open = self.open.as_mut().ok_or(BuildError::NoSegment)?;
        let expected = open.entry.as_ref().map(|entry| entry.last_offset.plus(1));
        let damaged = |error| BuildError::Batch { expected, error };
        let header = *RecordBatch::parse_checked(batch.clone())
            .map_err(damaged)?
            .header();
        if header.base_offset.get() < 0 || header.last_offset().get() == i64::MAX {
            return Err(damaged(BatchError::Corrupt("its offsets are out of range")));
        }
        if let Some(expected) = expected
            && expected != header.base_offset
        {
            return Err(BuildError::Hole {
                expected,
                found: header.base_offset,
            });
        }
        let last_epoch = open
            .entry
            .as_ref()
            .and_then(|entry| entry.epochs.last())
            .map(|last| last.epoch);
        if header.leader_epoch.get() < 0
            || last_epoch.is_some_and(|last| header.leader_epoch < last)
        {
            return Err(BuildError::EpochFell {
                offset: header.base_offset,
            });
        }
        open.push(
            self.id,
            BytePosition::new(self.length),
            &header,
            &batch,
            stamp,
        );
        self.length += wide(batch.len());
        self.chunks.push(batch);
        Ok(())
    }

    /// Ends the object: index blocks, directory, footer.
    ///
    /// # Errors
    /// [`BuildError::Empty`], [`BuildError::TooLarge`].
    pub fn finish(mut self) -> Result<BuiltObject, BuildError> {
        self.end_segment()?;
        if self.done.is_empty() {
            return Err(BuildError::Empty);
        }
        let mut segments = Vec::with_capacity(self.done.len());
        for (mut entry, index) in std::mem::take(&mut self.done) {
            let block = index.encode();
            entry.index_position = BytePosition::new(self.length);
            entry.index_length = u32::try_from(block.len()).map_err(|_| BuildError::TooLarge)?;
            self.append(block);
            segments.push((index.partition, entry));
        }
        let directory = encode_directory(&segments);
        let footer = Footer {
            object: self.id,
            directory_position: BytePosition::new(self.length),
            directory_length: u32::try_from(directory.len()).map_err(|_| BuildError::TooLarge)?,
            directory_crc: crc32c::crc32c(&directory),
            segment_count: u32::try_from(segments.len()).map_err(|_| BuildError::TooLarge)?,
            object_length: self.length + wide(directory.len()) + wide(FOOTER_LENGTH),
        };
        self.append(directory);
        self.append(footer.encode());
        Ok(BuiltObject {
            id: self.id,
            chunks: self.chunks,
            length: self.length,
            segments,
        })
    }

    fn append(&mut self, bytes: Vec<u8>) {
        self.length += wide(bytes.len());
        self.chunks.push(Bytes::from(bytes));
    }

    fn end_segment(&mut self) -> Result<(), BuildError> {
        let Some(open) = self.open.take() else {
            return Ok(());
        };
        let Some(entry) = open.entry.clone() else {
            self.open = Some(open);
            return Err(BuildError::Empty);
        };
        let index = IndexBlock {
            partition: open.partition,
            base_offset: entry.base_offset,
            data_length: entry.length,
            entries: open.runs,
        };
        self.done.push((entry, index));
        Ok(())
    }
}

/// Batches of at least this many bytes are not read again for the CRCs of their run and segment: theirs, which has just
/// been checked, is combined with what came before. That takes less than a microsecond, the time of a pass over so many bytes.
const COMBINE_BYTES_MIN: usize = 4 << 10;

/// The CRC of a batch as a part of something longer.
enum PartCrc<'a> {
    Known { crc: u32, length: usize },
    Bytes(&'a [u8]),
}

impl<'a> PartCrc<'a> {
    /// `header` is the checked header of `batch`.
    fn of(header: &BatchHeader, batch: &'a [u8]) -> Self {
        if batch.len() < COMBINE_BYTES_MIN {
            return Self::Bytes(batch);
        }
        Self::Known {
            crc: crc_of_checked(header, batch),
            length: batch.len(),
        }
    }

    fn append_to(&self, crc: u32) -> u32 {
        match self {
            Self::Known { crc: own, length } => combine(crc, *own, *length),
            Self::Bytes(bytes) => crc32c::crc32c_append(crc, bytes),
        }
    }
}

impl OpenSegment {
    fn push(
        &mut self,
        object: ObjectId,
        at: BytePosition,
        header: &BatchHeader,
        batch: &Bytes,
        stamp: TimestampMs,
    ) {
        let part = PartCrc::of(header, batch);
        let entry = self.entry.get_or_insert_with(|| SegmentEntry {
            object,
            position: at,
            length: 0,
            index_position: BytePosition::new(0),
            index_length: 0,
            base_offset: header.base_offset,
            last_offset: header.last_offset(),
            record_count: 0,
            first_timestamp: header.record_timestamp(0),
            max_timestamp: header.max_timestamp,
            first_stamp: stamp,
            last_stamp: stamp,
            epochs: Vec::new(),
            crc: 0,
        });
        match self.runs.last_mut() {
            Some(run) if entry.length - self.run_start < RUN_BYTES => {
                run.max_timestamp = run.max_timestamp.max(header.max_timestamp);
                run.crc = part.append_to(run.crc);
            }
            _ => {
                self.run_start = entry.length;
                self.runs.push(IndexEntry {
                    offset: header.base_offset,
                    position: BytePosition::new(entry.length),
                    max_timestamp: header.max_timestamp,
                    crc: part.append_to(0),
                });
            }
        }
        if entry
            .epochs
            .last()
            .is_none_or(|last| last.epoch < header.leader_epoch)
        {
            entry.epochs.push(EpochStart {
                epoch: header.leader_epoch,
                start: header.base_offset,
            });
        }
        entry.length += wide(batch.len());
        entry.last_offset = header.last_offset();
        entry.record_count += u64::try_from(header.record_count).unwrap_or(0);
        entry.max_timestamp = entry.max_timestamp.max(header.max_timestamp);
        entry.last_stamp = entry.last_stamp.max(stamp);
        entry.crc = part.append_to(entry.crc);
    }
}
