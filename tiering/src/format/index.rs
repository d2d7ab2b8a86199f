//! The sparse index block of one segment.
//!
//! Spec: docs/formats/segment-object.md, Index block

use super::codec::{Decoder, Encoder, FormatError, check_crc, wide};
use tidelog_model::{BytePosition, Offset, PartitionId, PartitionIndex, TimestampMs, TopicId};

/// A new run starts at the first batch that begins this many bytes behind the start of the run before.
/// 64 KiB: 28 bytes of index per 64 KiB is 0.04 %, and a 64 MiB segment has an index of 28 KiB.
pub const RUN_BYTES: u64 = 64 * 1024;
const MAGIC: &[u8; 4] = b"TLIX";
const VERSION: u16 = 1;
const HEADER_LENGTH: usize = 48;
const ENTRY_LENGTH: usize = 28;
const WHAT: &str = "segment index block";

/// One run of whole batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// Base offset of the run's first batch.
    pub offset: Offset,
    /// Where the run begins, from the start of the segment.
    pub position: BytePosition,
    /// Largest of the batch headers' max timestamps in the run.
    pub max_timestamp: TimestampMs,
    /// CRC-32C of the run's bytes.
    pub crc: u32,
}

/// The runs of one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexBlock {
    /// The partition the segment belongs to.
    pub partition: PartitionId,
    /// First offset of the segment.
    pub base_offset: Offset,
    /// Length of the segment's batches in bytes.
    pub data_length: u64,
    /// The runs, in order; never empty.
    pub entries: Vec<IndexEntry>,
}

impl IndexBlock {
    /// The block's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::with_capacity(HEADER_LENGTH + self.entries.len() * ENTRY_LENGTH + 4);
        out.bytes(MAGIC)
            .u16(VERSION)
            .u16(0)
            .bytes(self.partition.topic.get().as_bytes())
            .i32(self.partition.index.get())
            .count(self.entries.len())
            .i64(self.base_offset.get())
            .u64(self.data_length);
        for entry in &self.entries {
            out.i64(entry.offset.get())
                .u64(entry.position.get())
                .i64(entry.max_timestamp.get())
                .u32(entry.crc);
        }
        let crc = crc32c::crc32c(out.written());
        out.u32(crc);
        out.finish()
    }

    /// Reads a block from exactly its bytes.
    ///
    /// # Errors
    /// Anything that breaks the format.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let short = FormatError::Truncated {
            what: WHAT,
            needed: wide(HEADER_LENGTH + 4),
            left: wide(bytes.len()),
        };
        let (checked, crc) = bytes.split_last_chunk::<4>().ok_or(short)?;
        let mut input = Decoder::new(WHAT, checked);
        input.magic(MAGIC)?;
        input.version(VERSION)?;
        check_crc(WHAT, u32::from_le_bytes(*crc), checked)?;
        let reserved = input.u16()?;
        input.rule(reserved == 0, "reserved bytes are not zero")?;
        let topic = TopicId::new(input.uuid()?);
        let partition = PartitionId {
            topic,
            index: PartitionIndex::new(input.i32()?),
        };
        // The count stands before two more fixed fields: they are part of what must be left.
        let count = input.count(ENTRY_LENGTH)?;
        let base_offset = input.offset()?;
        let data_length = input.u64()?;
        input.rule(count > 0, "no entries")?;
        input.rule(
            input.left() == count * ENTRY_LENGTH,
            "the entry count does not fit the length",
        )?;
        let mut entries: Vec<IndexEntry> = Vec::with_capacity(count);
        for _ in 0..count {
            let entry = IndexEntry {
                offset: input.offset()?,
                position: input.position()?,
                max_timestamp: input.timestamp()?,
                crc: input.u32()?,
            };
            let rises = match entries.last() {
                None => entry.offset == base_offset && entry.position == BytePosition::new(0),
                Some(last) => last.offset < entry.offset && last.position < entry.position,
            };
            input.rule(rises, "entries do not rise from the segment's start")?;
            input.rule(
                entry.position.get() < data_length,
                "an entry lies behind the segment's end",
            )?;
            entries.push(entry);
        }
        input.end()?;
        Ok(Self {
            partition,
            base_offset,
            data_length,
            entries,
        })
    }
}
