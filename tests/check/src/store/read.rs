//! Bytes of the formats: little-endian numbers, lengths that are checked, CRC-32C.
//!
//! Owns: the cursor, the checksum.
//! Not here: what the fields mean (`manifest`).

/// Reads from the front; never past the end.
pub(super) struct Cursor<'a> {
    left: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { left: bytes }
    }

    pub(super) fn take(&mut self, length: usize) -> Result<&'a [u8], String> {
        let (head, rest) = self
            .left
            .split_at_checked(length)
            .ok_or_else(|| format!("{length} bytes where {} are left", self.left.len()))?;
        self.left = rest;
        Ok(head)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let bytes = self.take(N)?;
        bytes.try_into().map_err(|_| "a length".to_owned())
    }

    pub(super) fn u8(&mut self) -> Result<u8, String> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(super) fn u16(&mut self) -> Result<u16, String> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn i32(&mut self) -> Result<i32, String> {
        Ok(i32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(super) fn i64(&mut self) -> Result<i64, String> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    pub(super) fn i8(&mut self) -> Result<i8, String> {
        Ok(i8::from_le_bytes(self.array()?))
    }

    /// Numbers of Kafka's own formats are big-endian.
    pub(super) fn be_i16(&mut self) -> Result<i16, String> {
        Ok(i16::from_be_bytes(self.array()?))
    }

    pub(super) fn be_i32(&mut self) -> Result<i32, String> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    pub(super) fn be_u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub(super) fn be_i64(&mut self) -> Result<i64, String> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    /// A zigzag number of Kafka's, of seven bits a byte.
    pub(super) fn varint(&mut self) -> Result<i64, String> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                let magnitude = i64::try_from(value >> 1).map_err(|error| error.to_string())?;
                return Ok(if value & 1 == 0 {
                    magnitude
                } else {
                    !magnitude
                });
            }
        }
        Err("a number without an end".to_owned())
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.left
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// A length that has to fit.
    pub(super) fn length(&mut self) -> Result<usize, String> {
        usize::try_from(self.u64()?).map_err(|error| error.to_string())
    }

    pub(super) fn end(&self) -> Result<(), String> {
        if self.left.is_empty() {
            Ok(())
        } else {
            Err(format!("{} bytes too many", self.left.len()))
        }
    }
}

/// What each value of a byte does to the checksum.
const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 256 {
        let mut value = at as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 {
                (value >> 1) ^ 0x82f6_3b78
            } else {
                value >> 1
            };
            bit += 1;
        }
        table[at] = value;
        at += 1;
    }
    table
};

/// CRC-32C.
pub(super) fn crc(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        let [low, ..] = (crc ^ u32::from(*byte)).to_le_bytes();
        (crc >> 8) ^ TABLE[usize::from(low)]
    };
    !bytes.iter().fold(u32::MAX, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Proves: the checksum is the one of the standard (its check value), and a cursor never reads past the end.
    #[test]
    fn a_known_checksum_and_an_end() {
        assert_eq!(crc(b"123456789"), 0xe306_9283);
        let mut cursor = Cursor::new(&[1, 0, 2]);
        assert_eq!(cursor.u16(), Ok(1));
        assert!(cursor.end().is_err());
        assert!(cursor.u16().is_err());
        assert_eq!(cursor.u8(), Ok(2));
        let mut numbers = Cursor::new(&[0, 1, 2, 0xd8, 4, 0xff]);
        let read: Vec<_> = (0..4).map(|_| numbers.varint()).collect();
        assert_eq!(read, [Ok(0), Ok(-1), Ok(1), Ok(300)]);
        assert!(numbers.varint().is_err());
        assert_eq!(cursor.end(), Ok(()));
    }
}
