//! The fixed footer of a segment object.
//!
//! Spec: docs/formats/segment-object.md, Footer

use super::codec::{Decoder, Encoder, FormatError, check_crc};
use crate::manifest::ObjectId;
use tidelog_model::{BytePosition, PlacementGroupId, Term};

/// Length of the footer: the last bytes of every segment object.
pub const FOOTER_LENGTH: usize = 72;
const CRC_AT: usize = 60;
const MAGIC: &[u8; 8] = b"TIDELSEG";
const VERSION: u16 = 1;
const WHAT: &str = "segment object footer";

/// Where the directory is, and which object this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footer {
    /// The object's own name.
    pub object: ObjectId,
    /// Where the directory begins.
    pub directory_position: BytePosition,
    /// Its length in bytes.
    pub directory_length: u32,
    /// CRC-32C of the directory.
    pub directory_crc: u32,
    /// Segments in the object.
    pub segment_count: u32,
    /// Length of the whole object, footer included.
    pub object_length: u64,
}

impl Footer {
    /// The footer's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::with_capacity(FOOTER_LENGTH);
        out.u64(self.directory_position.get())
            .u32(self.directory_length)
            .u32(self.directory_crc)
            .u32(self.segment_count)
            .u32(self.object.group.get())
            .u64(self.object.term.get())
            .bytes(self.object.id.as_bytes())
            .u64(self.object_length)
            .u16(VERSION)
            .u16(0);
        let crc = crc32c::crc32c(out.written());
        out.u32(crc).bytes(MAGIC);
        out.finish()
    }

    /// Reads a footer from exactly its bytes.
    ///
    /// # Errors
    /// Anything that is not a whole, undamaged footer of a known version.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut tail = Decoder::new(WHAT, bytes);
        let checked = tail.take(CRC_AT)?;
        let crc = tail.u32()?;
        tail.magic(MAGIC)?;
        tail.end()?;
        check_crc(WHAT, crc, checked)?;
        let mut input = Decoder::new(WHAT, checked);
        let footer = Self {
            directory_position: input.position()?,
            directory_length: input.u32()?,
            directory_crc: input.u32()?,
            segment_count: input.u32()?,
            object: ObjectId {
                group: PlacementGroupId::new(input.u32()?),
                term: Term::new(input.u64()?),
                id: input.uuid()?,
            },
            object_length: input.u64()?,
        };
        input.version(VERSION)?;
        let reserved = input.u16()?;
        input.rule(reserved == 0, "reserved bytes are not zero")?;
        let end = footer
            .directory_position
            .get()
            .checked_add(u64::from(footer.directory_length) + 72);
        input.rule(
            end == Some(footer.object_length),
            "the lengths do not add up",
        )?;
        Ok(footer)
    }
}
