//! Bounded reading and writing of fixed-width little-endian fields.
//!
//! Owns: [`Decoder`], [`Encoder`], [`FormatError`].
//! Not here: any particular format.

use tidelog_model::{BytePosition, Offset, TimestampMs};
use uuid::Uuid;

/// Why bytes are not what they should be. None of these is worth a retry with the same bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The bytes end inside a field.
    #[error("{what} is cut short: {needed} bytes wanted, {left} left")]
    Truncated {
        /// The structure being read.
        what: &'static str,
        /// Bytes the next field needs.
        needed: u64,
        /// Bytes that are left.
        left: u64,
    },
    /// The bytes do not begin (or end) with the format's magic.
    #[error("{what} has the wrong magic")]
    Magic {
        /// The structure being read.
        what: &'static str,
    },
    /// A version this program does not know.
    #[error("{what} has version {version}, which this program does not know; a newer one may")]
    Version {
        /// The structure being read.
        what: &'static str,
        /// The version found.
        version: u16,
    },
    /// A checksum does not match.
    #[error("{what} has the wrong checksum: {found:08x} instead of {expected:08x}")]
    Checksum {
        /// The structure being read.
        what: &'static str,
        /// As written.
        expected: u32,
        /// As computed.
        found: u32,
    },
    /// A field breaks a rule of the format.
    #[error("{what}: {rule}")]
    Rule {
        /// The structure being read.
        what: &'static str,
        /// The rule it breaks.
        rule: &'static str,
    },
}

/// Takes fields off the front of a slice. Never reads past the end, never allocates by a count it has not checked.
pub(crate) struct Decoder<'a> {
    what: &'static str,
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    pub(crate) fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, rest: bytes }
    }

    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8], FormatError> {
        match self.rest.split_at_checked(length) {
            Some((head, rest)) => {
                self.rest = rest;
                Ok(head)
            }
            None => Err(FormatError::Truncated {
                what: self.what,
                needed: wide(length),
                left: wide(self.rest.len()),
            }),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let mut array = [0u8; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, FormatError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(crate) fn u16(&mut self) -> Result<u16, FormatError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn i16(&mut self) -> Result<i16, FormatError> {
        Ok(i16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, FormatError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn i32(&mut self) -> Result<i32, FormatError> {
        Ok(i32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, FormatError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn i64(&mut self) -> Result<i64, FormatError> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    pub(crate) fn uuid(&mut self) -> Result<Uuid, FormatError> {
        Ok(Uuid::from_bytes(self.array()?))
    }

    /// An offset of a record, or of the end: never negative.
    pub(crate) fn offset(&mut self) -> Result<Offset, FormatError> {
        let offset = self.i64()?;
        self.rule(offset >= 0, "an offset is negative")?;
        Ok(Offset::new(offset))
    }

    pub(crate) fn timestamp(&mut self) -> Result<TimestampMs, FormatError> {
        Ok(TimestampMs::new(self.i64()?))
    }

    pub(crate) fn position(&mut self) -> Result<BytePosition, FormatError> {
        Ok(BytePosition::new(self.u64()?))
    }

    /// A count of elements that take at least `element_length_min` bytes each: refused when they cannot all be there.
    pub(crate) fn count(&mut self, element_length_min: usize) -> Result<usize, FormatError> {
        let count = self.u32()?;
        let needed = u64::from(count).saturating_mul(wide(element_length_min));
        let left = wide(self.rest.len());
        if needed > left {
            return Err(FormatError::Truncated {
                what: self.what,
                needed,
                left,
            });
        }
        usize::try_from(count).map_err(|_| self.broken("a count does not fit this machine"))
    }

    pub(crate) fn rule(&self, holds: bool, rule: &'static str) -> Result<(), FormatError> {
        if holds {
            Ok(())
        } else {
            Err(self.broken(rule))
        }
    }

    pub(crate) fn broken(&self, rule: &'static str) -> FormatError {
        FormatError::Rule {
            what: self.what,
            rule,
        }
    }

    pub(crate) fn magic(&mut self, magic: &[u8]) -> Result<(), FormatError> {
        if self.take(magic.len())? == magic {
            Ok(())
        } else {
            Err(FormatError::Magic { what: self.what })
        }
    }

    pub(crate) fn version(&mut self, known: u16) -> Result<(), FormatError> {
        let version = self.u16()?;
        if version == known {
            Ok(())
        } else {
            Err(FormatError::Version {
                what: self.what,
                version,
            })
        }
    }

    /// Reads the version of a format of which all from 1 to `newest` can be read.
    pub(crate) fn version_until(&mut self, newest: u16) -> Result<u16, FormatError> {
        let version = self.u16()?;
        if (1..=newest).contains(&version) {
            Ok(version)
        } else {
            Err(FormatError::Version {
                what: self.what,
                version,
            })
        }
    }

    pub(crate) fn left(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn end(self) -> Result<(), FormatError> {
        self.rule(self.rest.is_empty(), "bytes are left behind its end")
    }
}

/// Appends fields to a buffer.
#[derive(Default)]
pub(crate) struct Encoder(Vec<u8>);

impl Encoder {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self(Vec::with_capacity(capacity))
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    pub(crate) fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(crate) fn i16(&mut self, value: i16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(crate) fn i32(&mut self, value: i32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(crate) fn i64(&mut self, value: i64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// A count. Lists in memory are far below 2^32 elements; one that were not would be refused when read.
    pub(crate) fn count(&mut self, count: usize) -> &mut Self {
        self.u32(u32::try_from(count).unwrap_or(u32::MAX))
    }

    pub(crate) fn written(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// A length in memory as a length in a format.
#[allow(
    clippy::cast_possible_truncation,
    reason = "usize is at most 64 bits wide on every target of Rust"
)]
pub(crate) const fn wide(length: usize) -> u64 {
    length as u64
}

/// Compares a checksum with what was written.
pub(crate) fn check_crc(
    what: &'static str,
    expected: u32,
    bytes: &[u8],
) -> Result<(), FormatError> {
    let found = crc32c::crc32c(bytes);
    if found == expected {
        Ok(())
    } else {
        Err(FormatError::Checksum {
            what,
            expected,
            found,
        })
    }
}
