//! The object store side of Tidelog: keys, objects, manifests, uploads, the cached remote reader, the probe.
//!
//! Owns: every byte in the bucket except the archive's tables.
//! Not here: deciding when something is uploaded or deleted (that is Raft's, in `broker/src/offload`).

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests may touch the real world")
)]

pub mod alive;
pub mod format;
pub mod key;
pub mod manifest;
pub mod marker;
pub mod probe;
pub mod reader;
pub mod store;

pub use format::{BuildError, BuiltObject, FormatError, ObjectBuilder};
pub use key::ObjectKey;
pub use probe::{ProbeReport, probe};
pub use reader::{ReadError, ReaderConfig, ReaderStats, RemoteReader, read_directory};
pub use store::{
    OpenStore, PutOutcome, StoreError, StoreLimits, StoreSettings, TierStore, open_store,
};

#[cfg(test)]
mod testing;
