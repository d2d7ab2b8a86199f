//! Walking the records of a batch to check them, without keeping any.
//!
//! Owns: the rules that records must obey, over a slice (fast) or a decompressor (bounded).
//! Not here: records as values (`records`).
//! Spec: docs/formats/record-batch.md

use super::{BatchError, BatchHeader, varint};
use crate::TimestampMs;
use crate::codec::{Codec, DecompressLimits, Decompressor};
use crate::limits::{DECOMPRESS_BUFFER_BYTES, RECORD_HEADERS_MAX};

/// What a walk found. That there is one says: as many records as the header says and not a byte more, each as long as
/// it says, numbered 0, 1, 2 … (for batches that hold an offset for each record; else rising, up to the last offset
/// delta), lengths and header counts in bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordsSummary {
    /// The largest timestamp of the records, or the header's for batches with the broker's time. The header's for an
    /// empty batch.
    pub timestamp_max: TimestampMs,
    /// The records' bytes without compression.
    pub bytes: usize,
}

pub(super) fn check_records(
    header: &BatchHeader,
    payload: &[u8],
) -> Result<RecordsSummary, BatchError> {
    if header.codec == Codec::None {
        return walk(
            header,
            SliceSource {
                rest: payload,
                taken: 0,
            },
        );
    }
    let inner = Decompressor::new(header.codec, payload, &DecompressLimits::STANDARD)?;
    walk(
        header,
        StreamSource {
            inner,
            buffer: vec![0; DECOMPRESS_BUFFER_BYTES],
            start: 0,
            end: 0,
            taken: 0,
        },
    )
}

/// Bytes in order.
trait Source {
    fn byte(&mut self) -> Result<u8, BatchError>;
    fn skip(&mut self, count: usize) -> Result<(), BatchError>;
    /// Bytes handed out or skipped so far.
    fn taken(&self) -> usize;
    fn at_end(&mut self) -> Result<bool, BatchError>;

    #[inline]
    fn varint(&mut self) -> Result<i64, BatchError> {
        varint::decode_i64(|| self.byte())
    }

    /// A length that may be -1 for null.
    #[inline]
    fn nullable_length(&mut self) -> Result<Option<usize>, BatchError> {
        match self.varint()? {
            -1 => Ok(None),
            length => to_length(length).map(Some),
        }
    }
}

#[inline]
pub(super) fn to_length(value: i64) -> Result<usize, BatchError> {
    match i32::try_from(value).map(usize::try_from) {
        Ok(Ok(length)) => Ok(length),
        _ => Err(BatchError::InvalidRecord(
            "a length inside a record is negative or too large",
        )),
    }
}

fn walk<S: Source>(header: &BatchHeader, mut source: S) -> Result<RecordsSummary, BatchError> {
    let dense = i64::from(header.record_count) == i64::from(header.last_offset_delta) + 1;
    let mut timestamp_delta_max = i64::MIN;
    let mut offset_delta_last = -1;
    for _ in 0..header.record_count {
        let (offset_delta, timestamp_delta) = walk_record(&mut source)?;
        let in_order = if dense {
            offset_delta == offset_delta_last + 1
        } else {
            offset_delta > offset_delta_last
        };
        if !in_order || offset_delta > i64::from(header.last_offset_delta) {
            return Err(BatchError::InvalidRecord(
                "its records are not numbered in order",
            ));
        }
        offset_delta_last = offset_delta;
        timestamp_delta_max = timestamp_delta_max.max(timestamp_delta);
    }
    if !source.at_end()? {
        return Err(BatchError::InvalidRecord("bytes follow its last record"));
    }
    let timestamp_max = match header.record_count {
        0 => header.max_timestamp,
        _ => header.record_timestamp(timestamp_delta_max),
    };
    Ok(RecordsSummary {
        timestamp_max,
        bytes: source.taken(),
    })
}

/// Passes one record; its offset and timestamp delta.
#[inline]
fn walk_record<S: Source>(source: &mut S) -> Result<(i64, i64), BatchError> {
    let length = to_length(source.varint()?)?;
    let end = source.taken().checked_add(length).ok_or(varint::CUT)?;
    source.byte()?;
    let timestamp_delta = source.varint()?;
    let offset_delta = source.varint()?;
    if let Some(key) = source.nullable_length()? {
        source.skip(key)?;
    }
    if let Some(value) = source.nullable_length()? {
        source.skip(value)?;
    }
    let headers = to_length(source.varint()?)?;
    check_header_count(headers)?;
    for _ in 0..headers {
        let key = to_length(source.varint()?)?;
        source.skip(key)?;
        if let Some(value) = source.nullable_length()? {
            source.skip(value)?;
        }
    }
    if source.taken() != end {
        return Err(BatchError::InvalidRecord(
            "a record is not as long as it says",
        ));
    }
    Ok((offset_delta, timestamp_delta))
}

pub(super) fn check_header_count(count: usize) -> Result<(), BatchError> {
    if count > RECORD_HEADERS_MAX {
        return Err(BatchError::InvalidRecord("a record has too many headers"));
    }
    Ok(())
}

struct SliceSource<'a> {
    rest: &'a [u8],
    taken: usize,
}

impl Source for SliceSource<'_> {
    #[inline]
    fn byte(&mut self) -> Result<u8, BatchError> {
        let (first, rest) = self.rest.split_first().ok_or(varint::CUT)?;
        self.rest = rest;
        self.taken += 1;
        Ok(*first)
    }

    #[inline]
    fn skip(&mut self, count: usize) -> Result<(), BatchError> {
        self.rest = self.rest.get(count..).ok_or(varint::CUT)?;
        self.taken += count;
        Ok(())
    }

    #[inline]
    fn taken(&self) -> usize {
        self.taken
    }

    fn at_end(&mut self) -> Result<bool, BatchError> {
        Ok(self.rest.is_empty())
    }
}

struct StreamSource<'a> {
    inner: Decompressor<'a>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    taken: usize,
}

impl StreamSource<'_> {
    /// Fills the empty buffer; false at the end of the data.
    fn fill(&mut self) -> Result<bool, BatchError> {
        self.start = 0;
        self.end = self.inner.read(&mut self.buffer)?;
        Ok(self.end > 0)
    }
}

impl Source for StreamSource<'_> {
    #[inline]
    fn byte(&mut self) -> Result<u8, BatchError> {
        if self.start == self.end && !self.fill()? {
            return Err(varint::CUT);
        }
        let byte = self.buffer[self.start];
        self.start += 1;
        self.taken += 1;
        Ok(byte)
    }

    #[inline]
    fn skip(&mut self, count: usize) -> Result<(), BatchError> {
        let mut left = count;
        loop {
            let step = left.min(self.end - self.start);
            self.start += step;
            self.taken += step;
            left -= step;
            if left == 0 {
                return Ok(());
            }
            if !self.fill()? {
                return Err(varint::CUT);
            }
        }
    }

    #[inline]
    fn taken(&self) -> usize {
        self.taken
    }

    fn at_end(&mut self) -> Result<bool, BatchError> {
        Ok(self.start == self.end && !self.fill()?)
    }
}
