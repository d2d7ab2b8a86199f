//! One segment entry as bytes, for entries that travel outside a manifest (the `Uploaded` command).
//!
//! Spec: docs/formats/group-manifest.md, "Segment entry"

use super::{ObjectId, SegmentEntry};

use crate::format::codec::{Decoder, Encoder, FormatError};
use crate::format::{read_segment_fields, write_segment_fields};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use tidelog_model::{PlacementGroupId, Term};

/// Appends one segment entry to `out`, as a manifest holds it.
pub fn encode_segment(segment: &SegmentEntry, out: &mut BytesMut) {
    let mut entry = Encoder::with_capacity(256);
    entry
        .u32(segment.object.group.get())
        .u64(segment.object.term.get())
        .bytes(segment.object.id.as_bytes());
    write_segment_fields(&mut entry, segment);
    out.put_slice(entry.written());
}

/// Reads one segment entry from the front of `input` and leaves what follows it.
///
/// # Errors
/// Anything that breaks the format; `input` is unchanged then.
pub fn decode_segment(input: &mut Bytes) -> Result<SegmentEntry, FormatError> {
    let mut decoder = Decoder::new("segment entry", input);
    let object = ObjectId {
        group: PlacementGroupId::new(decoder.u32()?),
        term: Term::new(decoder.u64()?),
        id: decoder.uuid()?,
    };
    let segment = read_segment_fields(&mut decoder, object)?;
    let taken = input.len() - decoder.left();
    input.advance(taken);
    Ok(segment)
}
