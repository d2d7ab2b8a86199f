//! What tiering needs to know of a record batch: where it ends, what offsets and timestamps it spans, that it is whole.
//!
//! Owns: the check every batch passes on its way into an object and out of one (I8).
//! Not here: records (`tidelog_model::batch`).

use tidelog_model::{LeaderEpoch, Offset, TimestampMs};

/// Length of a version 2 batch header.
pub(crate) const HEADER_LENGTH: usize = 61;
/// Bytes before the part that the length field counts.
const PREFIX_LENGTH: usize = 12;
/// Where the bytes that the CRC covers begin.
const CRC_FROM: usize = 21;
const LOG_APPEND_TIME: u16 = 1 << 3;

/// Why bytes are not one whole record batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// Shorter than a header, or than its own length field says, or longer.
    #[error("its length does not fit its bytes")]
    Length,
    /// Not version 2.
    #[error("its magic is {0}, not 2")]
    Magic(u8),
    /// The CRC does not match.
    #[error("its checksum does not match")]
    Crc,
    /// Offsets or counts that no batch can have.
    #[error("its offsets or counts are impossible")]
    Offsets,
}

/// The header fields tiering uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchView {
    pub(crate) base_offset: Offset,
    pub(crate) last_offset: Offset,
    pub(crate) leader_epoch: LeaderEpoch,
    pub(crate) record_count: u32,
    pub(crate) first_timestamp: TimestampMs,
    pub(crate) max_timestamp: TimestampMs,
    /// Length of the whole batch.
    pub(crate) length: usize,
    crc: u32,
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], BatchError> {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk::<N>())
        .copied()
        .ok_or(BatchError::Length)
}

impl BatchView {
    /// Reads the header of the batch at the front of `bytes`, which may go on behind it. Does not check the CRC.
    pub(crate) fn peek(bytes: &[u8]) -> Result<Self, BatchError> {
        let [magic] = field::<1>(bytes, 16)?;
        if magic != 2 {
            return Err(BatchError::Magic(magic));
        }
        let length = i32::from_be_bytes(field(bytes, 8)?);
        let length = usize::try_from(length)
            .map_err(|_| BatchError::Length)?
            .saturating_add(PREFIX_LENGTH);
        if length < HEADER_LENGTH || length > bytes.len() {
            return Err(BatchError::Length);
        }
        let base_offset = Offset::new(i64::from_be_bytes(field(bytes, 0)?));
        let last_delta = i32::from_be_bytes(field(bytes, 23)?);
        let record_count = i32::from_be_bytes(field(bytes, 57)?);
        let last_offset = base_offset.plus(i64::from(last_delta));
        let record_count = u32::try_from(record_count).map_err(|_| BatchError::Offsets)?;
        if base_offset.get() < 0 || last_delta < 0 || last_offset.get() == i64::MAX {
            return Err(BatchError::Offsets);
        }
        let attributes = u16::from_be_bytes(field(bytes, 21)?);
        let max_timestamp = TimestampMs::new(i64::from_be_bytes(field(bytes, 35)?));
        let first_timestamp = if attributes & LOG_APPEND_TIME == 0 {
            TimestampMs::new(i64::from_be_bytes(field(bytes, 27)?))
        } else {
            max_timestamp
        };
        Ok(Self {
            base_offset,
            last_offset,
            leader_epoch: LeaderEpoch::new(i32::from_be_bytes(field(bytes, 12)?)),
            record_count,
            first_timestamp,
            max_timestamp,
            length,
            crc: u32::from_be_bytes(field(bytes, 17)?),
        })
    }

    /// Checks that the batch at the front of `bytes` is whole: header and CRC.
    pub(crate) fn check_front(bytes: &[u8]) -> Result<Self, BatchError> {
        let view = Self::peek(bytes)?;
        let covered = bytes.get(CRC_FROM..view.length).ok_or(BatchError::Length)?;
        if crc32c::crc32c(covered) == view.crc {
            Ok(view)
        } else {
            Err(BatchError::Crc)
        }
    }

    /// Checks that `bytes` are exactly one whole batch.
    pub(crate) fn check(bytes: &[u8]) -> Result<Self, BatchError> {
        let view = Self::check_front(bytes)?;
        if view.length == bytes.len() {
            Ok(view)
        } else {
            Err(BatchError::Length)
        }
    }
}
