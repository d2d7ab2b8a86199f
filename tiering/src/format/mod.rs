//! The segment object: batches, sparse index blocks, directory, footer.
//!
//! Owns: its bytes, both ways.
//! Not here: where objects are put (`store`), how they are read through a cache (`reader`).
//! Spec: docs/formats/segment-object.md

mod builder;
pub(crate) mod codec;
mod directory;
mod footer;
mod index;

pub use builder::{BuildError, BuiltObject, ObjectBuilder};
pub use codec::FormatError;
pub(crate) use directory::{
    SEGMENT_FIELDS_LENGTH_MIN, read_epochs, read_segment_fields, write_epochs, write_segment_fields,
};
pub use directory::{decode_directory, encode_directory};
pub use footer::{FOOTER_LENGTH, Footer};
pub use index::{IndexBlock, IndexEntry, RUN_BYTES};

#[cfg(test)]
mod tests;
