//! The object store side of Tidelog: keys, objects, manifests, uploads, the cached remote reader, the probe.
//!
//! Owns: every byte in the bucket except the archive's tables.
//! Not here: deciding when something is uploaded or deleted (that is Raft's, in `broker/src/offload`).

pub mod manifest;
