//! Making batches.
//!
//! Owns: encoding records, compressing them, the header with its CRC.
//! Not here: when a batch is full or due (the client's producer decides).
//! Spec: docs/formats/record-batch.md

use super::{Attributes, BatchError, BatchHeader, HEADER_BYTES, LENGTH_PREFIX_BYTES, varint};
use crate::codec::{Codec, compress};
use crate::limits::{BATCH_BYTES_MAX, RECORD_HEADERS_MAX};
use crate::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence, TimestampMs};
use bytes::Bytes;

/// One header of a record to append: key and nullable value.
pub type HeaderRef<'a> = (&'a [u8], Option<&'a [u8]>);

/// Collects records and makes one batch of them.
#[derive(Clone, Debug)]
pub struct BatchBuilder {
    codec: Codec,
    attributes: Attributes,
    producer: (ProducerId, ProducerEpoch, Sequence),
    base_offset: Offset,
    leader_epoch: LeaderEpoch,
    base_timestamp: Option<TimestampMs>,
    max_timestamp: TimestampMs,
    count: i32,
    /// Room for the header, then the records: an uncompressed batch is never copied.
    bytes: Vec<u8>,
}

impl BatchBuilder {
    /// An empty batch as a producer without idempotence sends it: base offset 0, leader epoch -1.
    #[must_use]
    pub fn new(codec: Codec) -> Self {
        Self::with_capacity(codec, 0)
    }

    /// The same, with room for about `bytes` of records from the start.
    #[must_use]
    pub fn with_capacity(codec: Codec, bytes: usize) -> Self {
        let mut room = Vec::with_capacity(HEADER_BYTES + bytes.min(BATCH_BYTES_MAX));
        room.resize(HEADER_BYTES, 0);
        Self {
            codec,
            attributes: Attributes::with_codec(codec),
            producer: (ProducerId::NONE, ProducerEpoch::new(-1), Sequence::new(-1)),
            base_offset: Offset::ZERO,
            leader_epoch: LeaderEpoch::new(-1),
            base_timestamp: None,
            max_timestamp: TimestampMs::new(-1),
            count: 0,
            bytes: room,
        }
    }

    /// Sets the identity of an idempotent producer and the sequence of the first record.
    #[must_use]
    pub fn producer(
        mut self,
        id: ProducerId,
        epoch: ProducerEpoch,
        base_sequence: Sequence,
    ) -> Self {
        self.producer = (id, epoch, base_sequence);
        self
    }

    /// Marks the records as part of a transaction.
    #[must_use]
    pub fn transactional(mut self) -> Self {
        self.attributes = self.attributes.transactional();
        self
    }

    /// Sets what a broker would patch in. For batches that do not come from a producer.
    #[must_use]
    pub fn base_offset(mut self, base: Offset, epoch: LeaderEpoch) -> Self {
        self.base_offset = base;
        self.leader_epoch = epoch;
        self
    }

    /// Records so far.
    #[must_use]
    pub const fn record_count(&self) -> i32 {
        self.count
    }

    /// Whether there are no records yet.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of the batch if it were closed now and did not compress.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Most bytes that a record with these parts adds.
    #[must_use]
    pub fn record_bytes_max(
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[HeaderRef<'_>],
    ) -> usize {
        // Length 5, attributes 1, timestamp delta 10, offset delta 5, three counts of 5; two lengths of 5 per header.
        let headers: usize = headers
            .iter()
            .map(|(key, value)| 10 + key.len() + value.map_or(0, <[u8]>::len))
            .sum();
        36 + key.map_or(0, <[u8]>::len) + value.map_or(0, <[u8]>::len) + headers
    }

    /// Adds a record.
    ///
    /// # Errors
    /// [`BatchError::TooLarge`] if the batch would pass the project's bound on batches, [`BatchError::InvalidRecord`]
    /// for too many headers; the builder is as before then.
    pub fn append(
        &mut self,
        timestamp: TimestampMs,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[HeaderRef<'_>],
    ) -> Result<(), BatchError> {
        let bytes = self
            .bytes()
            .saturating_add(Self::record_bytes_max(key, value, headers));
        if bytes > BATCH_BYTES_MAX {
            return Err(BatchError::TooLarge {
                bytes,
                bytes_max: BATCH_BYTES_MAX,
            });
        }
        if headers.len() > RECORD_HEADERS_MAX {
            return Err(BatchError::InvalidRecord("a record has too many headers"));
        }
        let base = self.base_timestamp.unwrap_or(timestamp);
        let delta = timestamp.get().wrapping_sub(base.get());
        let index = i64::from(self.count);
        let body = 1
            + varint::bytes(delta)
            + varint::bytes(index)
            + nullable_bytes(key)
            + nullable_bytes(value)
            + varint::bytes(length(headers.len()))
            + headers
                .iter()
                .map(|(key, value)| nullable_bytes(Some(key)) + nullable_bytes(*value))
                .sum::<usize>();
        let out = &mut self.bytes;
        varint::encode(out, length(body));
        out.push(0);
        varint::encode(out, delta);
        varint::encode(out, index);
        encode_nullable(out, key);
        encode_nullable(out, value);
        varint::encode(out, length(headers.len()));
        for (key, value) in headers {
            encode_nullable(out, Some(key));
            encode_nullable(out, *value);
        }
        self.base_timestamp = Some(base);
        self.max_timestamp = if self.count == 0 {
            timestamp
        } else {
            self.max_timestamp.max(timestamp)
        };
        self.count += 1;
        Ok(())
    }

    /// Closes the batch.
    ///
    /// # Errors
    /// [`BatchError::InvalidRecord`] if it is empty or cannot be compressed, [`BatchError::TooLarge`] if compression
    /// made it larger than any batch may be.
    pub fn build(self) -> Result<Bytes, BatchError> {
        if self.count == 0 {
            return Err(BatchError::InvalidRecord("it has no records"));
        }
        let mut out = self.bytes;
        if self.codec != Codec::None {
            let payload = compress(self.codec, &out[HEADER_BYTES..])?;
            out.truncate(HEADER_BYTES);
            out.extend_from_slice(&payload);
        }
        let bytes = out.len();
        if bytes > BATCH_BYTES_MAX {
            return Err(BatchError::TooLarge {
                bytes,
                bytes_max: BATCH_BYTES_MAX,
            });
        }
        let batch_length =
            u32::try_from(bytes - LENGTH_PREFIX_BYTES).map_err(|_| BatchError::TooLarge {
                bytes,
                bytes_max: BATCH_BYTES_MAX,
            })?;
        let (producer_id, producer_epoch, base_sequence) = self.producer;
        let mut header = BatchHeader {
            base_offset: self.base_offset,
            batch_length,
            leader_epoch: self.leader_epoch,
            crc: 0,
            attributes: self.attributes,
            codec: self.codec,
            last_offset_delta: self.count - 1,
            base_timestamp: self.base_timestamp.unwrap_or_default(),
            max_timestamp: self.max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            record_count: self.count,
        };
        out[..HEADER_BYTES].copy_from_slice(&header.encode());
        header.crc = crc32c::crc32c(&out[super::field::ATTRIBUTES..]);
        out[..HEADER_BYTES].copy_from_slice(&header.encode());
        Ok(Bytes::from(out))
    }
}

/// Bytes that [`encode_nullable`] appends.
fn nullable_bytes(bytes: Option<&[u8]>) -> usize {
    match bytes {
        None => varint::bytes(-1),
        Some(bytes) => varint::bytes(length(bytes.len())) + bytes.len(),
    }
}

fn encode_nullable(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    match bytes {
        None => varint::encode(out, -1),
        Some(bytes) => {
            varint::encode(out, length(bytes.len()));
            out.extend_from_slice(bytes);
        }
    }
}

/// A length as the format's signed number; the bound on batches keeps it far below the type's.
fn length(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
