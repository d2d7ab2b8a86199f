//! CRC-32C of bytes that are put together, from the CRCs of the parts.
//!
//! Owns: [`combine`], and bytes that carry their CRC ([`Summed`]).
//! Not here: the CRC of bytes themselves (crate `crc32c`).
//!
//! A record batch is summed when it arrives. Log, peers and store put the same bytes behind other headers; they derive their own
//! checksums from that sum. So the bytes are read once, and a bit that flips in memory after that is found by whoever checks.

use bytes::Bytes;
use std::ops::Deref;

/// The polynomial, bits reversed as in all of CRC-32C: bit 31 is the coefficient of x^0.
const POLYNOMIAL: u32 = 0x82f6_3b78;
const ONE: u32 = 1 << 31;
/// x^(2^k) modulo the polynomial. They begin again after 31: the polynomial is x + 1 times a primitive one of degree 31.
const SQUARES: [u32; 31] = {
    let mut squares = [0; 31];
    let mut power = ONE >> 1;
    let mut at = 0;
    while at < squares.len() {
        squares[at] = power;
        power = product(power, power);
        at += 1;
    }
    squares
};

/// The product of two polynomials modulo the polynomial.
const fn product(a: u32, mut b: u32) -> u32 {
    let mut sum = 0;
    let mut bit = ONE;
    while bit != 0 {
        if a & bit != 0 {
            sum ^= b;
        }
        b = if b & 1 == 0 {
            b >> 1
        } else {
            (b >> 1) ^ POLYNOMIAL
        };
        bit >>= 1;
    }
    sum
}

/// The CRC of two parts behind each other: of the first, of the second, and the second's length in bytes. Some hundred
/// nanoseconds: summing a few kilobytes costs as much.
#[must_use]
pub const fn combine(first: u32, second: u32, second_bytes: usize) -> u32 {
    // The first part's CRC times x^(8 * second_bytes); 2^3 bits are a byte.
    let mut moved = first;
    let mut left = second_bytes;
    let mut square = 3;
    while left != 0 {
        if left & 1 != 0 {
            moved = product(SQUARES[square % SQUARES.len()], moved);
        }
        left >>= 1;
        square += 1;
    }
    moved ^ second
}

/// Bytes with their CRC-32C. Clones share the bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summed {
    bytes: Bytes,
    crc: u32,
}

impl Summed {
    /// Bytes whose CRC the caller has computed, or derived from CRCs of parts that were checked. A wrong one is found by
    /// whoever checks the bytes next, as damage.
    #[must_use]
    pub const fn known(bytes: Bytes, crc: u32) -> Self {
        Self { bytes, crc }
    }

    /// The end of `whole`, whose bytes before it have the CRC `before`: its sum is derived, not computed.
    #[must_use]
    pub fn end_of(whole: &Self, before: u32, at: usize) -> Self {
        let bytes = whole.bytes.slice(at..);
        let crc = whole.crc ^ combine(before, 0, bytes.len());
        Self { bytes, crc }
    }

    /// Their CRC.
    #[must_use]
    pub const fn crc(&self) -> u32 {
        self.crc
    }

    /// The CRC of something with CRC `before`, and these bytes behind it.
    #[must_use]
    pub fn crc_behind(&self, before: u32) -> u32 {
        combine(before, self.crc, self.bytes.len())
    }

    /// The bytes without their CRC.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }
}

/// Sums the bytes.
impl From<Bytes> for Summed {
    fn from(bytes: Bytes) -> Self {
        let crc = crc32c::crc32c(&bytes);
        Self { bytes, crc }
    }
}

impl Deref for Summed {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that a derived CRC is that of the whole, for parts of many lengths, empty ones, and a salt in front.
    #[test]
    fn derived_is_computed() {
        let bytes: Vec<u8> = (0..70_000_u32)
            .map(|at| at.to_le_bytes()[0] ^ 0x5a)
            .collect();
        for length in [0, 1, 7, 8, 61, 4096, 65_535, 70_000] {
            for border in [0, 1, 21, length / 2, length] {
                let border = border.min(length);
                let (first, second) = bytes[..length].split_at(border);
                let derived = combine(crc32c::crc32c(first), crc32c::crc32c(second), second.len());
                assert_eq!(
                    derived,
                    crc32c::crc32c(&bytes[..length]),
                    "{border} of {length}"
                );
                let summed = Summed::from(Bytes::copy_from_slice(second));
                assert_eq!(
                    summed.crc_behind(0x1234_5678),
                    crc32c::crc32c_append(0x1234_5678, second)
                );
                let whole = Summed::from(Bytes::copy_from_slice(&bytes[..length]));
                assert_eq!(
                    Summed::end_of(&whole, crc32c::crc32c(first), border),
                    summed
                );
            }
        }
        assert_eq!(
            combine(77, 88, 5_000_000_000),
            crc32c::crc32c_combine(77, 88, 5_000_000_000)
        );
    }
}
