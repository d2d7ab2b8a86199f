//! Byte formats of the replicated state machines: a bounded reader, a writer, and the sealed envelope of snapshots.
//!
//! Owns: widths, byte order, length prefixes, and the envelope (magic, version, length, CRC) that snapshots share.
//! Not here: what the fields mean (each format's own `format*.rs`).
//! Spec: docs/formats/conventions.md

use bytes::Bytes;
use std::collections::BTreeMap;
use uuid::Uuid;

/// Why bytes were refused. Nothing of a refused input is used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The input ends inside a field, or announces more items than it can hold.
    #[error("the input ends inside {0}")]
    Truncated(&'static str),
    /// Bytes follow the last field.
    #[error("{0} bytes follow the last field")]
    Trailing(usize),
    /// A field holds a value that the format does not allow.
    #[error("{0} holds a value that is not allowed")]
    Invalid(&'static str),
    /// The input is of another kind.
    #[error("not a {0}: the first bytes differ")]
    Magic(&'static str),
    /// The input was written by a newer version.
    #[error("version {0} is newer than what this program reads")]
    Version(u16),
    /// The checksum differs: the bytes are damaged.
    #[error("the checksum differs")]
    Checksum,
}

/// Writes fields in little-endian order, one after the other.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// An empty writer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One byte.
    pub fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    /// Two bytes.
    pub fn u16(&mut self, value: u16) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Four bytes.
    pub fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Eight bytes.
    pub fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Four bytes, two's complement.
    pub fn i32(&mut self, value: i32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Eight bytes, two's complement.
    pub fn i64(&mut self, value: i64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Sixteen bytes, in the order of the uuid's text form.
    pub fn uuid(&mut self, value: Uuid) {
        self.bytes.extend_from_slice(value.as_bytes());
    }

    /// A count of items or bytes as four bytes. Everything counted here is bounded far below 2^32 by its module.
    pub fn count(&mut self, count: usize) {
        self.u32(u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// Bytes as they are, without a length.
    pub fn raw(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
    }

    /// Length (four bytes), then the bytes.
    pub fn blob(&mut self, value: &[u8]) {
        self.count(value.len());
        self.bytes.extend_from_slice(value);
    }

    /// Like [`Writer::blob`], of UTF-8.
    pub fn text(&mut self, value: &str) {
        self.blob(value.as_bytes());
    }

    /// 0, or 1 and the text.
    pub fn optional_text(&mut self, value: Option<&str>) {
        match value {
            None => self.u8(0),
            Some(text) => {
                self.u8(1);
                self.text(text);
            }
        }
    }

    /// A count, then pairs of texts in key order.
    pub fn text_map(&mut self, map: &BTreeMap<String, String>) {
        self.count(map.len());
        for (key, value) in map {
            self.text(key);
            self.text(value);
        }
    }

    /// The bytes written.
    #[must_use]
    pub fn finish(self) -> Bytes {
        Bytes::from(self.bytes)
    }

    /// The bytes written, inside the envelope: magic (8), version (2), reserved (2, zero), body length (4), body,
    /// CRC-32C of everything before it (4).
    #[must_use]
    pub fn seal(self, magic: [u8; 8], version: u16) -> Bytes {
        let mut sealed = Self {
            bytes: Vec::with_capacity(self.bytes.len() + ENVELOPE_BYTES),
        };
        sealed.bytes.extend_from_slice(&magic);
        sealed.u16(version);
        sealed.u16(0);
        sealed.blob(&self.bytes);
        let crc = crc32c::crc32c(&sealed.bytes);
        sealed.u32(crc);
        sealed.finish()
    }
}

/// What the envelope adds to its body: 8 + 2 + 2 + 4 before, 4 after.
pub const ENVELOPE_BYTES: usize = 20;

/// Checks the envelope and returns version and body. `what` names the format in the error.
pub fn open<'a>(
    sealed: &'a [u8],
    magic: [u8; 8],
    version_max: u16,
    what: &'static str,
) -> Result<(u16, Reader<'a>), FormatError> {
    let mut reader = Reader::new(sealed);
    if reader.take(8, "the magic")? != magic {
        return Err(FormatError::Magic(what));
    }
    let version = reader.u16("the version")?;
    if version == 0 || version > version_max {
        return Err(FormatError::Version(version));
    }
    if reader.u16("the reserved field")? != 0 {
        return Err(FormatError::Invalid("the reserved field"));
    }
    let body = reader.blob("the body")?;
    let covered = sealed.len() - reader.rest.len();
    let crc = reader.u32("the checksum")?;
    reader.finish()?;
    if crc32c::crc32c(&sealed[..covered]) != crc {
        return Err(FormatError::Checksum);
    }
    Ok((version, Reader::new(body)))
}

/// Reads fields; never past the end, never allocating by a number it has read before that number was checked.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next `count` bytes.
    pub fn take(&mut self, count: usize, what: &'static str) -> Result<&'a [u8], FormatError> {
        let (head, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or(FormatError::Truncated(what))?;
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], FormatError> {
        let (head, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(FormatError::Truncated(what))?;
        self.rest = rest;
        Ok(*head)
    }

    /// One byte.
    pub fn u8(&mut self, what: &'static str) -> Result<u8, FormatError> {
        Ok(u8::from_le_bytes(self.array(what)?))
    }

    /// Two bytes.
    pub fn u16(&mut self, what: &'static str) -> Result<u16, FormatError> {
        Ok(u16::from_le_bytes(self.array(what)?))
    }

    /// Four bytes.
    pub fn u32(&mut self, what: &'static str) -> Result<u32, FormatError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    /// Eight bytes.
    pub fn u64(&mut self, what: &'static str) -> Result<u64, FormatError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// Four bytes, two's complement.
    pub fn i32(&mut self, what: &'static str) -> Result<i32, FormatError> {
        Ok(i32::from_le_bytes(self.array(what)?))
    }

    /// Eight bytes, two's complement.
    pub fn i64(&mut self, what: &'static str) -> Result<i64, FormatError> {
        Ok(i64::from_le_bytes(self.array(what)?))
    }

    /// Eight bytes of a number that is never negative.
    pub fn natural(&mut self, what: &'static str) -> Result<i64, FormatError> {
        match self.i64(what)? {
            negative if negative < 0 => Err(FormatError::Invalid(what)),
            number => Ok(number),
        }
    }

    /// Four bytes of a number that is never negative.
    pub fn natural_i32(&mut self, what: &'static str) -> Result<i32, FormatError> {
        match self.i32(what)? {
            negative if negative < 0 => Err(FormatError::Invalid(what)),
            number => Ok(number),
        }
    }

    /// Sixteen bytes.
    pub fn uuid(&mut self, what: &'static str) -> Result<Uuid, FormatError> {
        Ok(Uuid::from_bytes(self.array(what)?))
    }

    /// A flag: 0 or 1.
    pub fn flag(&mut self, what: &'static str) -> Result<bool, FormatError> {
        match self.u8(what)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(FormatError::Invalid(what)),
        }
    }

    /// A count of items, each at least `item_bytes_min` (> 0) bytes long: refused when the rest cannot hold them.
    pub fn count(
        &mut self,
        item_bytes_min: usize,
        what: &'static str,
    ) -> Result<usize, FormatError> {
        let count = usize::try_from(self.u32(what)?).map_err(|_| FormatError::Invalid(what))?;
        if count > self.rest.len() / item_bytes_min.max(1) {
            return Err(FormatError::Truncated(what));
        }
        Ok(count)
    }

    /// Length, then bytes, borrowed.
    pub fn blob(&mut self, what: &'static str) -> Result<&'a [u8], FormatError> {
        let length = self.count(1, what)?;
        self.take(length, what)
    }

    /// Length, then bytes, copied, so that the input is not kept alive by a small part of it.
    pub fn bytes(&mut self, what: &'static str) -> Result<Bytes, FormatError> {
        self.blob(what).map(Bytes::copy_from_slice)
    }

    /// Length, then UTF-8.
    pub fn text(&mut self, what: &'static str) -> Result<String, FormatError> {
        let bytes = self.blob(what)?;
        std::str::from_utf8(bytes)
            .map(str::to_owned)
            .map_err(|_| FormatError::Invalid(what))
    }

    /// 0, or 1 and a text.
    pub fn optional_text(&mut self, what: &'static str) -> Result<Option<String>, FormatError> {
        if self.flag(what)? {
            self.text(what).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Pairs of texts, strictly ascending by key.
    pub fn text_map(
        &mut self,
        what: &'static str,
    ) -> Result<BTreeMap<String, String>, FormatError> {
        let count = self.count(8, what)?;
        let mut map = BTreeMap::new();
        for _ in 0..count {
            let (key, value) = (self.text(what)?, self.text(what)?);
            insert_ascending(&mut map, key, value, what)?;
        }
        Ok(map)
    }

    /// Succeeds when nothing is left.
    pub fn finish(self) -> Result<(), FormatError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(FormatError::Trailing(self.rest.len()))
        }
    }
}

/// Adds a pair that must come after all present ones: equal states have equal bytes, so another order is damage.
pub fn insert_ascending<K: Ord, V>(
    map: &mut BTreeMap<K, V>,
    key: K,
    value: V,
    what: &'static str,
) -> Result<(), FormatError> {
    if map.last_key_value().is_some_and(|(last, _)| *last >= key) {
        return Err(FormatError::Invalid(what));
    }
    map.insert(key, value);
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    const MAGIC: [u8; 8] = *b"TLTEST\0\0";

    fn sealed() -> Bytes {
        let mut writer = Writer::new();
        writer.text("hello");
        writer.optional_text(None);
        writer.i64(-5);
        writer.seal(MAGIC, 1)
    }

    /// Proves that what was sealed opens with the same fields.
    #[test]
    fn sealed_bytes_open() {
        let bytes = sealed();
        let (version, mut reader) = open(&bytes, MAGIC, 1, "test").unwrap();
        assert_eq!(version, 1);
        assert_eq!(reader.text("text").unwrap(), "hello");
        assert_eq!(reader.optional_text("option").unwrap(), None);
        assert_eq!(reader.i64("number").unwrap(), -5);
        reader.finish().unwrap();
    }

    /// Proves that every truncation, every flipped bit and appended bytes are refused.
    #[test]
    fn damage_is_refused() {
        let bytes = sealed();
        for length in 0..bytes.len() {
            assert!(
                open(&bytes[..length], MAGIC, 1, "test").is_err(),
                "length {length}"
            );
        }
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(open(&damaged, MAGIC, 1, "test").is_err(), "bit {bit}");
        }
        let mut longer = bytes.to_vec();
        longer.push(0);
        assert_eq!(
            open(&longer, MAGIC, 1, "test").unwrap_err(),
            FormatError::Trailing(1)
        );
    }

    /// Proves that a hostile count is refused before anything is allocated for it.
    #[test]
    fn hostile_counts_are_refused() {
        let bytes = u32::MAX.to_le_bytes();
        assert_eq!(
            Reader::new(&bytes).count(1, "items").unwrap_err(),
            FormatError::Truncated("items")
        );
        assert!(Reader::new(&bytes).text("text").is_err());
        assert!(Reader::new(&bytes).text_map("map").is_err());
    }

    /// Proves that a map out of order, or with a key twice, is refused.
    #[test]
    fn maps_are_strictly_ascending() {
        for keys in [["b", "a"], ["a", "a"]] {
            let mut writer = Writer::new();
            writer.count(2);
            for key in keys {
                writer.text(key);
                writer.text("v");
            }
            let bytes = writer.finish();
            assert_eq!(
                Reader::new(&bytes).text_map("map").unwrap_err(),
                FormatError::Invalid("map")
            );
        }
    }
}
