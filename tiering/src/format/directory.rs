//! The directory of a segment object, and the segment fields it shares with the group manifest.
//!
//! Spec: docs/formats/segment-object.md, Directory

use super::codec::{Decoder, Encoder, FormatError};
use crate::manifest::{EpochStart, ObjectId, SegmentEntry};
use tidelog_model::{LeaderEpoch, PartitionId, PartitionIndex, TopicId};

const MAGIC: &[u8; 4] = b"TLSD";
const VERSION: u16 = 1;
const WHAT: &str = "segment directory";
/// Header of a record batch: no segment is shorter.
const BATCH_HEADER_LENGTH: u64 = 61;
const EPOCH_LENGTH: usize = 12;
/// Eight-byte fields (10), four-byte fields (3), and one epoch.
pub(crate) const SEGMENT_FIELDS_LENGTH_MIN: usize = 10 * 8 + 3 * 4 + EPOCH_LENGTH;
const ENTRY_LENGTH_MIN: usize = 20 + SEGMENT_FIELDS_LENGTH_MIN;

/// The directory's bytes, segments in the given order.
#[must_use]
pub fn encode_directory(segments: &[(PartitionId, SegmentEntry)]) -> Vec<u8> {
    let mut out = Encoder::with_capacity(12 + segments.len() * ENTRY_LENGTH_MIN);
    out.bytes(MAGIC).u16(VERSION).u16(0).count(segments.len());
    for (partition, segment) in segments {
        out.bytes(partition.topic.get().as_bytes())
            .i32(partition.index.get());
        write_segment_fields(&mut out, segment);
    }
    out.finish()
}

/// Reads a directory from exactly its bytes (their CRC is in the footer and checked there).
///
/// # Errors
/// Anything that breaks the format.
pub fn decode_directory(
    object: ObjectId,
    bytes: &[u8],
) -> Result<Vec<(PartitionId, SegmentEntry)>, FormatError> {
    let mut input = Decoder::new(WHAT, bytes);
    input.magic(MAGIC)?;
    input.version(VERSION)?;
    let reserved = input.u16()?;
    input.rule(reserved == 0, "reserved bytes are not zero")?;
    let count = input.count(ENTRY_LENGTH_MIN)?;
    input.rule(count > 0, "no segments")?;
    let mut segments = Vec::with_capacity(count);
    for _ in 0..count {
        let partition = PartitionId {
            topic: TopicId::new(input.uuid()?),
            index: PartitionIndex::new(input.i32()?),
        };
        segments.push((partition, read_segment_fields(&mut input, object)?));
    }
    input.end()?;
    Ok(segments)
}

pub(crate) fn write_segment_fields(out: &mut Encoder, segment: &SegmentEntry) {
    out.u64(segment.position.get())
        .u64(segment.length)
        .u64(segment.index_position.get())
        .u32(segment.index_length)
        .i64(segment.base_offset.get())
        .i64(segment.last_offset.get())
        .u64(segment.record_count)
        .i64(segment.first_timestamp.get())
        .i64(segment.max_timestamp.get())
        .i64(segment.first_stamp.get())
        .i64(segment.last_stamp.get())
        .u32(segment.crc);
    write_epochs(out, &segment.epochs);
}

pub(crate) fn read_segment_fields(
    input: &mut Decoder<'_>,
    object: ObjectId,
) -> Result<SegmentEntry, FormatError> {
    let segment = SegmentEntry {
        object,
        position: input.position()?,
        length: input.u64()?,
        index_position: input.position()?,
        index_length: input.u32()?,
        base_offset: input.offset()?,
        last_offset: input.offset()?,
        record_count: input.u64()?,
        first_timestamp: input.timestamp()?,
        max_timestamp: input.timestamp()?,
        first_stamp: input.timestamp()?,
        last_stamp: input.timestamp()?,
        crc: input.u32()?,
        epochs: read_epochs(input)?,
    };
    input.rule(
        segment.length >= BATCH_HEADER_LENGTH,
        "a segment is shorter than a batch",
    )?;
    input.rule(
        segment.position.get().checked_add(segment.length).is_some(),
        "a segment ends past 2^64",
    )?;
    input.rule(
        segment
            .index_position
            .get()
            .checked_add(u64::from(segment.index_length))
            .is_some(),
        "an index block ends past 2^64",
    )?;
    input.rule(
        segment.base_offset.get() >= 0,
        "a segment's base offset is negative",
    )?;
    input.rule(
        segment.base_offset <= segment.last_offset,
        "a segment's last offset is before its first",
    )?;
    input.rule(
        segment.last_offset.get() < i64::MAX,
        "a segment's last offset is the largest number",
    )?;
    input.rule(
        segment
            .epochs
            .first()
            .is_some_and(|first| first.start == segment.base_offset),
        "a segment's first epoch does not start with it",
    )?;
    Ok(segment)
}

pub(crate) fn write_epochs(out: &mut Encoder, epochs: &[EpochStart]) {
    out.count(epochs.len());
    for epoch in epochs {
        out.i32(epoch.epoch.get()).i64(epoch.start.get());
    }
}

pub(crate) fn read_epochs(input: &mut Decoder<'_>) -> Result<Vec<EpochStart>, FormatError> {
    let count = input.count(EPOCH_LENGTH)?;
    let mut epochs: Vec<EpochStart> = Vec::with_capacity(count);
    for _ in 0..count {
        let next = EpochStart {
            epoch: LeaderEpoch::new(input.i32()?),
            start: input.offset()?,
        };
        if let Some(last) = epochs.last() {
            let rises = last.epoch < next.epoch && last.start < next.start;
            input.rule(rises, "leader epochs do not rise")?;
        }
        epochs.push(next);
    }
    Ok(epochs)
}
