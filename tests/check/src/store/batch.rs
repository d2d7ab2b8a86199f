//! Kafka's record batches, version 2, as they lie in an object: not compressed.
//!
//! Owns: the reader of batches and records, their own rules (CRC, counts, offsets).
//! Not here: which batches have to follow each other (`judge`).
//! Spec: docs/formats/record-batch.md

use super::read::{Cursor, crc};

/// A batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Batch<'a> {
    pub(super) base: i64,
    pub(super) last: i64,
    pub(super) epoch: i32,
    /// Offsets and values. Empty for a batch that is compressed, which is not looked into.
    pub(super) records: Vec<(i64, &'a [u8])>,
}

/// Reads batches back to back.
///
/// # Errors
/// What is wrong with one, in words.
pub(super) fn batches(bytes: &[u8]) -> Result<Vec<Batch<'_>>, String> {
    let mut input = Cursor::new(bytes);
    let mut batches = Vec::new();
    while !input.is_empty() {
        batches.push(batch(&mut input)?);
    }
    Ok(batches)
}

fn batch<'a>(input: &mut Cursor<'a>) -> Result<Batch<'a>, String> {
    let base = input.be_i64()?;
    let length = usize::try_from(input.be_i32()?).map_err(|error| error.to_string())?;
    let mut body = Cursor::new(input.take(length)?);
    let epoch = body.be_i32()?;
    let magic = body.i8()?;
    if magic != 2 {
        return Err(format!("the batch at {base} has magic {magic}"));
    }
    let sum = body.be_u32()?;
    if crc(body.rest()) != sum {
        return Err(format!("the batch at {base} has another checksum"));
    }
    let attributes = body.be_i16()?;
    let last = base + i64::from(body.be_i32()?);
    // Two timestamps, producer id, epoch, sequence.
    body.take(8 + 8 + 8 + 2 + 4)?;
    let count = body.be_i32()?;
    let mut records = Vec::new();
    if attributes & 7 == 0 {
        for _ in 0..count {
            let (delta, value) = record(&mut body)?;
            records.push((base + delta, value));
        }
        body.end()?;
        if records.last().map(|(offset, _)| *offset) != Some(last) {
            return Err(format!("the batch at {base} does not end at {last}"));
        }
    }
    Ok(Batch {
        base,
        last,
        epoch,
        records,
    })
}

/// Offset delta and value; a null value is empty.
fn record<'a>(input: &mut Cursor<'a>) -> Result<(i64, &'a [u8]), String> {
    let length = usize::try_from(input.varint()?).map_err(|error| error.to_string())?;
    let mut body = Cursor::new(input.take(length)?);
    body.i8()?;
    body.varint()?;
    let delta = body.varint()?;
    bytes(&mut body)?;
    Ok((delta, bytes(&mut body)?))
}

fn bytes<'a>(input: &mut Cursor<'a>) -> Result<&'a [u8], String> {
    let length = input.varint()?.max(0);
    input.take(usize::try_from(length).map_err(|error| error.to_string())?)
}
