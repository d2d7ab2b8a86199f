//! Zigzag varints as records use them.
//!
//! Owns: encoding, and decoding from a slice or any other source of bytes.
//! Not here: the unsigned varints of the request format (`wire`).

use super::BatchError;

pub(super) const DAMAGED: BatchError =
    BatchError::InvalidRecord("a number inside a record is damaged");
pub(super) const CUT: BatchError = BatchError::InvalidRecord("its records end inside a record");

/// Decodes from bytes that `next` hands out. At most 10 bytes; bits past the 64th are refused.
#[inline]
pub(super) fn decode_i64(
    mut next: impl FnMut() -> Result<u8, BatchError>,
) -> Result<i64, BatchError> {
    let first = next()?;
    if first < 0x80 {
        return Ok(unzigzag(u64::from(first)));
    }
    let mut value = u64::from(first & 0x7f);
    let mut shift = 7;
    loop {
        let byte = next()?;
        if shift == 63 && byte > 1 {
            return Err(DAMAGED);
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(unzigzag(value));
        }
        shift += 7;
    }
}

#[inline]
fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -((value & 1).cast_signed())
}

#[inline]
fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

/// Bytes that [`encode`] appends for `value`.
#[inline]
pub(super) fn bytes(value: i64) -> usize {
    let bits = 64 - (zigzag(value) | 1).leading_zeros();
    usize::try_from(bits.div_ceil(7)).unwrap_or(10)
}

/// Appends `value`.
pub(super) fn encode(out: &mut Vec<u8>, value: i64) {
    let mut rest = zigzag(value);
    while rest >= 0x80 {
        out.push(u8::try_from(rest & 0x7f).unwrap_or(0) | 0x80);
        rest >>= 7;
    }
    out.push(u8::try_from(rest).unwrap_or(0));
}
