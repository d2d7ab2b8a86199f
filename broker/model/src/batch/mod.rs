//! Record batches, format version 2: the only form in which records are moved and stored.
//!
//! Owns: the 61-byte header as a view, whole batches as shared bytes, their checks, their records, a builder.
//! Not here: offsets and sequences across batches (`partition`), requests that carry batches (`wire`).
//! Spec: docs/formats/record-batch.md
//!
//! A batch is never re-encoded. The base offset and the leader epoch lie outside the CRC; they are replaced in the
//! first 16 bytes ([`RecordBatch::prefix`]) when a batch is served or uploaded.

mod builder;
mod header;
mod records;
mod times;
mod varint;
mod walk;

use crate::codec::CodecError;
use crate::crc::{Summed, combine};
use crate::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence, TimestampMs};
use bytes::{Bytes, BytesMut};

pub use builder::{BatchBuilder, HeaderRef};
pub use header::{
    Attributes, BatchHeader, CRC_START, HEADER_BYTES, LENGTH_PREFIX_BYTES, PREFIX_BYTES,
    TimestampType,
};
pub use records::{ControlKind, Record, Records};
pub use walk::RecordsSummary;

use header::field;

/// From this length on, deriving a sum is quicker than a pass over the bytes.
const DERIVE_BYTES_MIN: usize = 4 << 10;

/// The CRC-32C of all of a batch's bytes. `header` is its header, whose CRC has been checked: where that is quicker the sum is
/// derived from it.
#[must_use]
pub fn crc_of_checked(header: &BatchHeader, bytes: &[u8]) -> u32 {
    if bytes.len() < DERIVE_BYTES_MIN {
        return crc32c::crc32c(bytes);
    }
    let (head, checked) = bytes.split_at(CRC_START);
    combine(crc32c::crc32c(head), header.crc, checked.len())
}

/// What is wrong with a batch. Each variant is one Kafka error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BatchError {
    /// The bytes end inside a batch: `CORRUPT_MESSAGE`. At the end of a Fetch answer of other brokers this is
    /// normal, and the reader asks again from there.
    #[error("a record batch of {needed} bytes was cut after {have}")]
    Incomplete {
        /// Bytes of the whole batch (or of its header, where not even that is there).
        needed: usize,
        /// Bytes that there are.
        have: usize,
    },
    /// Not what was sent or stored: `CORRUPT_MESSAGE`. Sending or reading again may help.
    #[error("the record batch is damaged: {0}")]
    Corrupt(&'static str),
    /// Larger than allowed, as it is or decompressed: `MESSAGE_TOO_LARGE`. Smaller batches may pass.
    #[error("the record batch has {bytes} bytes, {bytes_max} are allowed")]
    TooLarge {
        /// Size of the batch; where it expands too far, the first size past the bound.
        bytes: usize,
        /// The bound.
        bytes_max: usize,
    },
    /// A codec that Kafka does not define: `UNSUPPORTED_COMPRESSION_TYPE`.
    #[error("the compression type {0} is unknown")]
    UnknownCodec(u8),
    /// A timestamp that a producer may not set: `INVALID_TIMESTAMP`.
    #[error("the record batch has an invalid timestamp: {0}")]
    InvalidTimestamp(&'static str),
    /// Intact, but not allowed; sending it again will not help: `INVALID_RECORD`.
    #[error("the record batch is invalid: {0}")]
    InvalidRecord(&'static str),
}

impl From<CodecError> for BatchError {
    fn from(error: CodecError) -> Self {
        match error {
            CodecError::TooLarge { allowed, .. } => Self::TooLarge {
                bytes: allowed.saturating_add(1),
                bytes_max: allowed,
            },
            CodecError::Corrupt(_) => {
                Self::InvalidRecord("its compressed records cannot be decompressed")
            }
            CodecError::Compress(_) => Self::InvalidRecord("its records cannot be compressed"),
        }
    }
}

/// One whole batch. Clones share the bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordBatch {
    header: BatchHeader,
    bytes: Bytes,
}

impl RecordBatch {
    /// Takes `bytes` as exactly one batch: length, magic, codec and counts are checked, the CRC is not
    /// ([`RecordBatch::verify_crc`]) and the records are not ([`RecordBatch::check_records`]).
    ///
    /// # Errors
    /// [`BatchError`], also if bytes are left over.
    pub fn parse(bytes: Bytes) -> Result<Self, BatchError> {
        let header = BatchHeader::parse(&bytes)?;
        if bytes.len() > header.total_bytes() {
            return Err(BatchError::Corrupt("bytes follow its end"));
        }
        if bytes.len() < header.total_bytes() {
            return Err(BatchError::Incomplete {
                needed: header.total_bytes(),
                have: bytes.len(),
            });
        }
        Ok(Self { header, bytes })
    }

    /// [`RecordBatch::parse`] and [`RecordBatch::verify_crc`]: what bytes from a disk or a store have to pass.
    ///
    /// # Errors
    /// [`BatchError`].
    pub fn parse_checked(bytes: Bytes) -> Result<Self, BatchError> {
        let batch = Self::parse(bytes)?;
        batch.verify_crc()?;
        Ok(batch)
    }

    /// Everything that a producer's batch must be: one intact batch of at most `bytes_max` bytes, from a client (no
    /// control batch, no broker's timestamp type), with as many records as it says, numbered from 0 without a gap.
    /// Its records are walked, decompressed as a stream where needed.
    ///
    /// A wrong `max_timestamp` is put right, as Kafka does: the returned batch then is a copy with a new CRC. In all
    /// other cases its bytes are `bytes`.
    ///
    /// # Errors
    /// [`BatchError`]; nothing of the batch may be appended then.
    pub fn validate_produced(bytes: Bytes, bytes_max: usize) -> Result<Self, BatchError> {
        if bytes.len() > bytes_max {
            return Err(BatchError::TooLarge {
                bytes: bytes.len(),
                bytes_max,
            });
        }
        let batch = Self::parse(bytes)?;
        batch.header.check_produced()?;
        batch.verify_crc()?;
        let summary = batch.check_records()?;
        if summary.timestamp_max == batch.header.max_timestamp {
            return Ok(batch);
        }
        Ok(batch.with_max_timestamp(summary.timestamp_max))
    }

    /// The header.
    #[must_use]
    pub const fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// All bytes.
    #[must_use]
    pub const fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// All bytes.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// The records' bytes, as the codec left them.
    #[must_use]
    pub fn payload(&self) -> Bytes {
        self.bytes.slice(HEADER_BYTES..)
    }

    /// Checks the CRC-32C over everything from the attributes on.
    ///
    /// # Errors
    /// [`BatchError::Corrupt`].
    pub fn verify_crc(&self) -> Result<(), BatchError> {
        if crc32c::crc32c(self.bytes.get(field::ATTRIBUTES..).unwrap_or_default())
            == self.header.crc
        {
            Ok(())
        } else {
            Err(BatchError::Corrupt("its CRC does not match"))
        }
    }

    /// All bytes with their CRC, derived from the batch's own where that is quicker. Who calls it has checked that
    /// ([`RecordBatch::verify_crc`]).
    #[must_use]
    pub fn summed(&self) -> Summed {
        let crc = crc_of_checked(&self.header, &self.bytes);
        Summed::known(self.bytes.clone(), crc)
    }

    /// Walks the records without keeping them; see [`RecordsSummary`] for what is checked.
    ///
    /// # Errors
    /// [`BatchError::InvalidRecord`], [`BatchError::TooLarge`] if they expand past the standard bounds.
    pub fn check_records(&self) -> Result<RecordsSummary, BatchError> {
        walk::check_records(
            &self.header,
            self.bytes.get(HEADER_BYTES..).unwrap_or_default(),
        )
    }

    /// The first 16 bytes with another base offset and leader epoch. With [`RecordBatch::body`] this makes a served
    /// batch without copying the records.
    #[must_use]
    pub fn prefix(&self, base: Offset, epoch: LeaderEpoch) -> [u8; PREFIX_BYTES] {
        self.header.prefix(base, epoch)
    }

    /// Everything after the first 16 bytes.
    #[must_use]
    pub fn body(&self) -> Bytes {
        self.bytes.slice(PREFIX_BYTES..)
    }

    /// A copy with another base offset and leader epoch. The CRC stays right.
    #[must_use]
    pub fn with_offset_and_epoch(&self, base: Offset, epoch: LeaderEpoch) -> Self {
        let mut bytes = BytesMut::with_capacity(self.bytes.len());
        bytes.extend_from_slice(&self.prefix(base, epoch));
        bytes.extend_from_slice(self.bytes.get(PREFIX_BYTES..).unwrap_or_default());
        Self {
            header: BatchHeader {
                base_offset: base,
                leader_epoch: epoch,
                ..self.header
            },
            bytes: bytes.freeze(),
        }
    }

    /// A copy with another maximum timestamp and the CRC that belongs to it.
    #[must_use]
    pub fn with_max_timestamp(&self, timestamp: TimestampMs) -> Self {
        let mut bytes = BytesMut::from(self.bytes.as_ref());
        bytes[field::MAX_TIMESTAMP..field::MAX_TIMESTAMP + 8]
            .copy_from_slice(&timestamp.get().to_be_bytes());
        let crc = crc32c::crc32c(&bytes[field::ATTRIBUTES..]);
        bytes[field::CRC..field::CRC + 4].copy_from_slice(&crc.to_be_bytes());
        Self {
            header: BatchHeader {
                max_timestamp: timestamp,
                crc,
                ..self.header
            },
            bytes: bytes.freeze(),
        }
    }

    /// A copy under another producer identity and base sequence, with the CRC that belongs to it. For a producer that
    /// sends a batch under a new identity after it learned that the old one was certainly not appended.
    #[must_use]
    pub fn with_producer(
        &self,
        id: ProducerId,
        epoch: ProducerEpoch,
        base_sequence: Sequence,
    ) -> Self {
        let mut bytes = BytesMut::from(self.bytes.as_ref());
        bytes[field::PRODUCER_ID..field::PRODUCER_ID + 8].copy_from_slice(&id.get().to_be_bytes());
        bytes[field::PRODUCER_EPOCH..field::PRODUCER_EPOCH + 2]
            .copy_from_slice(&epoch.get().to_be_bytes());
        bytes[field::BASE_SEQUENCE..field::BASE_SEQUENCE + 4]
            .copy_from_slice(&base_sequence.get().to_be_bytes());
        let crc = crc32c::crc32c(&bytes[field::ATTRIBUTES..]);
        bytes[field::CRC..field::CRC + 4].copy_from_slice(&crc.to_be_bytes());
        let header = BatchHeader {
            producer_id: id,
            producer_epoch: epoch,
            base_sequence,
            crc,
            ..self.header
        };
        Self {
            header,
            bytes: bytes.freeze(),
        }
    }

    /// A copy that carries the broker's time (`message.timestamp.type=LogAppendTime`): every record has `timestamp` then,
    /// and the CRC is the one that belongs to it.
    #[must_use]
    pub fn with_log_append_time(&self, timestamp: TimestampMs) -> Self {
        let attributes = self.header.attributes.log_append_time();
        let mut bytes = BytesMut::from(self.bytes.as_ref());
        bytes[field::ATTRIBUTES..field::ATTRIBUTES + 2]
            .copy_from_slice(&attributes.bits().to_be_bytes());
        bytes[field::MAX_TIMESTAMP..field::MAX_TIMESTAMP + 8]
            .copy_from_slice(&timestamp.get().to_be_bytes());
        let crc = crc32c::crc32c(&bytes[field::ATTRIBUTES..]);
        bytes[field::CRC..field::CRC + 4].copy_from_slice(&crc.to_be_bytes());
        let header = BatchHeader {
            attributes,
            max_timestamp: timestamp,
            crc,
            ..self.header
        };
        Self {
            header,
            bytes: bytes.freeze(),
        }
    }

    /// The records, in order. Uncompressed records share the batch's bytes; compressed ones are decompressed once,
    /// within the standard bounds, and share the result.
    ///
    /// # Errors
    /// [`BatchError::InvalidRecord`], [`BatchError::TooLarge`]. Damage of a single record is an item of the iterator.
    pub fn records(&self) -> Result<Records, BatchError> {
        Records::new(&self.header, self.payload())
    }
}

/// The batches that lie back to back in `bytes`. Structure is checked as by [`RecordBatch::parse`]; after an error the
/// iterator ends. Batches share `bytes`.
#[must_use]
pub fn split_batches(bytes: Bytes) -> Batches {
    Batches { rest: bytes }
}

/// See [`split_batches`].
#[derive(Debug, Clone)]
pub struct Batches {
    rest: Bytes,
}

impl Iterator for Batches {
    type Item = Result<RecordBatch, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let taken = BatchHeader::parse(&self.rest).and_then(|header| {
            let total = header.total_bytes();
            if total > self.rest.len() {
                return Err(BatchError::Incomplete {
                    needed: total,
                    have: self.rest.len(),
                });
            }
            Ok(RecordBatch {
                header,
                bytes: self.rest.split_to(total),
            })
        });
        if taken.is_err() {
            self.rest.clear();
        }
        Some(taken)
    }
}

#[cfg(test)]
mod tests;
