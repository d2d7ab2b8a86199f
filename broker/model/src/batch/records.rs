//! The records of a batch as values.
//!
//! Owns: decoding records into shared bytes, header order and repeats kept.
//! Not here: checks without values (`walk`).
//! Spec: docs/formats/record-batch.md

use super::walk::{check_header_count, to_length};
use super::{BatchError, BatchHeader, varint};
use crate::codec::{Codec, DecompressLimits, decompress_bounded};
use crate::{Offset, TimestampMs};
use bytes::Bytes;

/// One record. Key, value and headers share the bytes of their batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Offset minus the batch's base offset.
    pub offset_delta: i32,
    /// Timestamp minus the batch's base timestamp. Means nothing in batches with the broker's time.
    pub timestamp_delta: i64,
    /// The key.
    pub key: Option<Bytes>,
    /// The value; `None` is a tombstone.
    pub value: Option<Bytes>,
    /// Headers in the producer's order. Keys may repeat and need not be UTF-8 here; values may be null.
    pub headers: Vec<(Bytes, Option<Bytes>)>,
}

impl Record {
    /// The record's offset in a batch with `header`.
    #[must_use]
    pub fn offset(&self, header: &BatchHeader) -> Offset {
        header.base_offset.plus(i64::from(self.offset_delta))
    }

    /// The record's timestamp in a batch with `header`.
    #[must_use]
    pub fn timestamp(&self, header: &BatchHeader) -> TimestampMs {
        header.record_timestamp(self.timestamp_delta)
    }
}

/// What a control record says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ControlKind {
    /// The transaction was given up.
    Abort,
    /// The transaction was committed.
    Commit,
    /// A kind of a later protocol; readers pass over it.
    Other(i16),
}

impl ControlKind {
    /// From a control record's key: int16 version, int16 kind. `None` if the key is too short.
    #[must_use]
    pub fn from_key(key: &[u8]) -> Option<Self> {
        let [_, _, high, low, ..] = *key else {
            return None;
        };
        Some(match i16::from_be_bytes([high, low]) {
            0 => Self::Abort,
            1 => Self::Commit,
            other => Self::Other(other),
        })
    }
}

/// Iterator over the records of one batch. Ends after the first error.
#[derive(Clone, Debug)]
pub struct Records {
    data: Bytes,
    at: usize,
    left: i32,
}

impl Records {
    pub(super) fn new(header: &BatchHeader, payload: Bytes) -> Result<Self, BatchError> {
        let data = match header.codec {
            Codec::None => payload,
            codec => Bytes::from(decompress_bounded(
                codec,
                &payload,
                &DecompressLimits::STANDARD,
            )?),
        };
        Ok(Self {
            data,
            at: 0,
            left: header.record_count,
        })
    }

    fn byte(&mut self) -> Result<u8, BatchError> {
        let byte = *self.data.get(self.at).ok_or(varint::CUT)?;
        self.at += 1;
        Ok(byte)
    }

    fn varint(&mut self) -> Result<i64, BatchError> {
        varint::decode_i64(|| self.byte())
    }

    fn bytes(&mut self, length: usize) -> Result<Bytes, BatchError> {
        let end = self
            .at
            .checked_add(length)
            .filter(|end| *end <= self.data.len())
            .ok_or(varint::CUT)?;
        let bytes = self.data.slice(self.at..end);
        self.at = end;
        Ok(bytes)
    }

    fn nullable(&mut self) -> Result<Option<Bytes>, BatchError> {
        match self.varint()? {
            -1 => Ok(None),
            length => self.bytes(to_length(length)?).map(Some),
        }
    }

    fn record(&mut self) -> Result<Record, BatchError> {
        let length = to_length(self.varint()?)?;
        let end = self.at.checked_add(length).ok_or(varint::CUT)?;
        self.byte()?;
        let timestamp_delta = self.varint()?;
        let offset_delta = i32::try_from(self.varint()?).map_err(|_| varint::DAMAGED)?;
        let key = self.nullable()?;
        let value = self.nullable()?;
        let count = to_length(self.varint()?)?;
        check_header_count(count)?;
        // A header takes at least two bytes: a hostile count reserves nothing.
        let mut headers =
            Vec::with_capacity(count.min(self.data.len().saturating_sub(self.at) / 2));
        for _ in 0..count {
            let length = to_length(self.varint()?)?;
            headers.push((self.bytes(length)?, self.nullable()?));
        }
        if self.at != end {
            return Err(BatchError::InvalidRecord(
                "a record is not as long as it says",
            ));
        }
        Ok(Record {
            offset_delta,
            timestamp_delta,
            key,
            value,
            headers,
        })
    }
}

impl Iterator for Records {
    type Item = Result<Record, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        let record = self.record();
        if record.is_err() {
            self.left = 0;
        }
        Some(record)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, usize::try_from(self.left).ok())
    }
}
