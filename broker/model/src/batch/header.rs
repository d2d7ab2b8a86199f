//! The 61 bytes before a batch's records.
//!
//! Owns: the byte layout, checks of the header alone.
//! Not here: the CRC and the records (`super`).
//! Spec: docs/formats/record-batch.md

use super::BatchError;
use crate::codec::Codec;
use crate::limits::{BATCH_BYTES_MAX, DECOMPRESSED_BYTES_MAX, RECORD_BYTES_MIN};
use crate::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence, TimestampMs};

/// Bytes before the records.
pub const HEADER_BYTES: usize = 61;
/// Bytes before the part that `batch_length` counts: base offset and length.
pub const LENGTH_PREFIX_BYTES: usize = 12;
/// Bytes that a broker replaces: base offset, length, leader epoch.
pub const PREFIX_BYTES: usize = 16;
/// First byte of a batch that its CRC covers.
pub const CRC_START: usize = field::ATTRIBUTES;

const MAGIC_V2: i8 = 2;

/// Where each field starts.
pub(super) mod field {
    pub(in crate::batch) const BASE_OFFSET: usize = 0;
    pub(in crate::batch) const BATCH_LENGTH: usize = 8;
    pub(in crate::batch) const LEADER_EPOCH: usize = 12;
    pub(in crate::batch) const MAGIC: usize = 16;
    pub(in crate::batch) const CRC: usize = 17;
    pub(in crate::batch) const ATTRIBUTES: usize = 21;
    pub(in crate::batch) const LAST_OFFSET_DELTA: usize = 23;
    pub(in crate::batch) const BASE_TIMESTAMP: usize = 27;
    pub(in crate::batch) const MAX_TIMESTAMP: usize = 35;
    pub(in crate::batch) const PRODUCER_ID: usize = 43;
    pub(in crate::batch) const PRODUCER_EPOCH: usize = 51;
    pub(in crate::batch) const BASE_SEQUENCE: usize = 53;
    pub(in crate::batch) const RECORD_COUNT: usize = 57;
}

/// Whose clock a batch's timestamps are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimestampType {
    /// Each record has the time that its producer gave.
    Create,
    /// All records have the batch's `max_timestamp`, the broker's time of the append.
    LogAppend,
}

/// The attribute bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Attributes(i16);

impl Attributes {
    const CODEC: i16 = 0b111;
    const LOG_APPEND_TIME: i16 = 1 << 3;
    const TRANSACTIONAL: i16 = 1 << 4;
    const CONTROL: i16 = 1 << 5;

    /// Attributes of a plain batch with `codec`.
    #[must_use]
    pub fn with_codec(codec: Codec) -> Self {
        Self(i16::from(codec.id()))
    }

    /// From the wire.
    #[must_use]
    pub const fn new(bits: i16) -> Self {
        Self(bits)
    }

    /// As on the wire.
    #[must_use]
    pub const fn bits(self) -> i16 {
        self.0
    }

    /// The same with the transactional bit.
    #[must_use]
    pub const fn transactional(self) -> Self {
        Self(self.0 | Self::TRANSACTIONAL)
    }

    /// The same with the bit of the broker's time.
    #[must_use]
    pub const fn log_append_time(self) -> Self {
        Self(self.0 | Self::LOG_APPEND_TIME)
    }

    /// The codec's id, also one that does not exist.
    #[must_use]
    pub fn codec_id(self) -> u8 {
        u8::try_from(self.0 & Self::CODEC).unwrap_or(u8::MAX)
    }

    /// Whose clock the timestamps are.
    #[must_use]
    pub const fn timestamp_type(self) -> TimestampType {
        if self.0 & Self::LOG_APPEND_TIME == 0 {
            TimestampType::Create
        } else {
            TimestampType::LogAppend
        }
    }

    /// Whether the records belong to a transaction.
    #[must_use]
    pub const fn is_transactional(self) -> bool {
        self.0 & Self::TRANSACTIONAL != 0
    }

    /// Whether this is a marker that a broker wrote.
    #[must_use]
    pub const fn is_control(self) -> bool {
        self.0 & Self::CONTROL != 0
    }
}

/// The header of one batch, decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchHeader {
    /// Offset of the first record. 0 from producers; the broker's prefix patch sets it.
    pub base_offset: Offset,
    /// Bytes after this field: at least the rest of the header.
    pub batch_length: u32,
    /// Leader epoch under which it was appended. -1 from producers.
    pub leader_epoch: LeaderEpoch,
    /// CRC-32C of everything from the attributes on.
    pub crc: u32,
    /// Attribute bits.
    pub attributes: Attributes,
    /// The codec in the attributes.
    pub codec: Codec,
    /// Offset of the last record minus `base_offset`; never negative.
    pub last_offset_delta: i32,
    /// Timestamp that the records' deltas count from.
    pub base_timestamp: TimestampMs,
    /// The largest timestamp in the batch, or the append time ([`TimestampType::LogAppend`]).
    pub max_timestamp: TimestampMs,
    /// The producer, or [`ProducerId::NONE`].
    pub producer_id: ProducerId,
    /// The producer's epoch, or -1.
    pub producer_epoch: ProducerEpoch,
    /// Sequence of the first record, or -1.
    pub base_sequence: Sequence,
    /// Records inside; never negative. Compaction elsewhere may have left fewer than `last_offset_delta + 1`.
    pub record_count: i32,
}

impl BatchHeader {
    /// Reads the header at the start of `bytes`, which may go on after it. Checked: enough bytes for a header, magic
    /// 2, a length in bounds, a known codec, counts that are not negative and that fit the length.
    ///
    /// # Errors
    /// [`BatchError::Incomplete`] if `bytes` is shorter than a header, else what is wrong.
    pub fn parse(bytes: &[u8]) -> Result<Self, BatchError> {
        // The magic of every format version is at the same place, so that old messages get their own error.
        if let Some(magic) = bytes.get(field::MAGIC) {
            check_magic(i8::from_be_bytes([*magic]))?;
        }
        let header: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or(BatchError::Incomplete {
            needed: HEADER_BYTES,
            have: bytes.len(),
        })?;
        let batch_length = u32::try_from(read_i32(header, field::BATCH_LENGTH))
            .map_err(|_| BatchError::Corrupt("its length is negative"))?;
        let attributes = Attributes::new(read_i16(header, field::ATTRIBUTES));
        let codec_id = attributes.codec_id();
        let parsed = Self {
            base_offset: Offset::new(read_i64(header, field::BASE_OFFSET)),
            batch_length,
            leader_epoch: LeaderEpoch::new(read_i32(header, field::LEADER_EPOCH)),
            crc: u32::from_be_bytes(read(header, field::CRC)),
            attributes,
            codec: Codec::from_id(codec_id).ok_or(BatchError::UnknownCodec(codec_id))?,
            last_offset_delta: read_i32(header, field::LAST_OFFSET_DELTA),
            base_timestamp: TimestampMs::new(read_i64(header, field::BASE_TIMESTAMP)),
            max_timestamp: TimestampMs::new(read_i64(header, field::MAX_TIMESTAMP)),
            producer_id: ProducerId::new(read_i64(header, field::PRODUCER_ID)),
            producer_epoch: ProducerEpoch::new(read_i16(header, field::PRODUCER_EPOCH)),
            base_sequence: Sequence::new(read_i32(header, field::BASE_SEQUENCE)),
            record_count: read_i32(header, field::RECORD_COUNT),
        };
        parsed.check()?;
        Ok(parsed)
    }

    fn check(&self) -> Result<(), BatchError> {
        let total = self.total_bytes();
        if total < HEADER_BYTES {
            return Err(BatchError::Corrupt("its length is shorter than its header"));
        }
        if total > BATCH_BYTES_MAX {
            return Err(BatchError::TooLarge {
                bytes: total,
                bytes_max: BATCH_BYTES_MAX,
            });
        }
        if self.last_offset_delta < 0 {
            return Err(BatchError::InvalidRecord(
                "its last offset delta is negative",
            ));
        }
        let count = usize::try_from(self.record_count)
            .map_err(|_| BatchError::InvalidRecord("its record count is negative"))?;
        if i64::from(self.record_count) > i64::from(self.last_offset_delta) + 1 {
            return Err(BatchError::InvalidRecord(
                "it has more records than offsets",
            ));
        }
        let records_bytes = match self.codec {
            Codec::None => total - HEADER_BYTES,
            _ => DECOMPRESSED_BYTES_MAX,
        };
        if count > records_bytes / RECORD_BYTES_MIN {
            return Err(BatchError::InvalidRecord(
                "its record count cannot fit its length",
            ));
        }
        Ok(())
    }

    /// What the header of a producer's batch must be on top.
    pub(super) fn check_produced(&self) -> Result<(), BatchError> {
        if self.attributes.is_control() {
            return Err(BatchError::InvalidRecord(
                "producers may not write control records",
            ));
        }
        if self.attributes.timestamp_type() == TimestampType::LogAppend {
            return Err(BatchError::InvalidTimestamp(
                "producers may not set the log append time",
            ));
        }
        if self.record_count == 0 {
            return Err(BatchError::InvalidRecord("it has no records"));
        }
        if i64::from(self.record_count) != i64::from(self.last_offset_delta) + 1 {
            return Err(BatchError::InvalidRecord(
                "its record count is not its offset range",
            ));
        }
        if self.has_producer() {
            if self.base_sequence.get() < 0 || self.producer_epoch.get() < 0 {
                return Err(BatchError::InvalidRecord(
                    "it has a producer id but no sequence or epoch",
                ));
            }
        } else if self.attributes.is_transactional() {
            return Err(BatchError::InvalidRecord(
                "it is transactional but has no producer id",
            ));
        }
        Ok(())
    }

    /// Bytes of the whole batch.
    #[must_use]
    pub fn total_bytes(&self) -> usize {
        usize::try_from(self.batch_length)
            .unwrap_or(usize::MAX)
            .saturating_add(LENGTH_PREFIX_BYTES)
    }

    /// Whether an idempotent producer wrote it.
    #[must_use]
    pub const fn has_producer(&self) -> bool {
        self.producer_id.get() >= 0
    }

    /// Offset of the last record.
    #[must_use]
    pub fn last_offset(&self) -> Offset {
        self.base_offset.plus(i64::from(self.last_offset_delta))
    }

    /// The offset after the last record.
    #[must_use]
    pub fn next_offset(&self) -> Offset {
        self.last_offset().plus(1)
    }

    /// The first 16 bytes of this batch with another base offset and leader epoch.
    #[must_use]
    pub fn prefix(&self, base: Offset, epoch: LeaderEpoch) -> [u8; PREFIX_BYTES] {
        let mut prefix = [0; PREFIX_BYTES];
        prefix[field::BASE_OFFSET..field::BATCH_LENGTH].copy_from_slice(&base.get().to_be_bytes());
        prefix[field::BATCH_LENGTH..field::LEADER_EPOCH]
            .copy_from_slice(&self.batch_length.to_be_bytes());
        prefix[field::LEADER_EPOCH..field::MAGIC].copy_from_slice(&epoch.get().to_be_bytes());
        prefix
    }

    /// The header as bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..PREFIX_BYTES].copy_from_slice(&self.prefix(self.base_offset, self.leader_epoch));
        out[field::MAGIC..field::CRC].copy_from_slice(&MAGIC_V2.to_be_bytes());
        out[field::CRC..field::ATTRIBUTES].copy_from_slice(&self.crc.to_be_bytes());
        out[field::ATTRIBUTES..field::LAST_OFFSET_DELTA]
            .copy_from_slice(&self.attributes.bits().to_be_bytes());
        out[field::LAST_OFFSET_DELTA..field::BASE_TIMESTAMP]
            .copy_from_slice(&self.last_offset_delta.to_be_bytes());
        out[field::BASE_TIMESTAMP..field::MAX_TIMESTAMP]
            .copy_from_slice(&self.base_timestamp.get().to_be_bytes());
        out[field::MAX_TIMESTAMP..field::PRODUCER_ID]
            .copy_from_slice(&self.max_timestamp.get().to_be_bytes());
        out[field::PRODUCER_ID..field::PRODUCER_EPOCH]
            .copy_from_slice(&self.producer_id.get().to_be_bytes());
        out[field::PRODUCER_EPOCH..field::BASE_SEQUENCE]
            .copy_from_slice(&self.producer_epoch.get().to_be_bytes());
        out[field::BASE_SEQUENCE..field::RECORD_COUNT]
            .copy_from_slice(&self.base_sequence.get().to_be_bytes());
        out[field::RECORD_COUNT..].copy_from_slice(&self.record_count.to_be_bytes());
        out
    }

    /// The timestamp of a record whose delta is `delta`.
    #[must_use]
    pub fn record_timestamp(&self, delta: i64) -> TimestampMs {
        match self.attributes.timestamp_type() {
            TimestampType::Create => {
                TimestampMs::new(self.base_timestamp.get().saturating_add(delta))
            }
            TimestampType::LogAppend => self.max_timestamp,
        }
    }
}

fn check_magic(magic: i8) -> Result<(), BatchError> {
    match magic {
        MAGIC_V2 => Ok(()),
        // Kafka answers old formats in Produce 3 and later so.
        0 | 1 => Err(BatchError::InvalidRecord(
            "its format version is 0 or 1, only 2 is accepted",
        )),
        _ => Err(BatchError::Corrupt("its format version is unknown")),
    }
}

fn read<const N: usize>(header: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&header[at..at + N]);
    out
}

fn read_i16(header: &[u8; HEADER_BYTES], at: usize) -> i16 {
    i16::from_be_bytes(read(header, at))
}

fn read_i32(header: &[u8; HEADER_BYTES], at: usize) -> i32 {
    i32::from_be_bytes(read(header, at))
}

fn read_i64(header: &[u8; HEADER_BYTES], at: usize) -> i64 {
    i64::from_be_bytes(read(header, at))
}
