//! Offload: moves what was committed into the object store and lets the local log go, one group at a time.
//!
//! Owns: driving cut -> upload -> commit -> publish -> trim on the leader of each data group, and flush requests.
//! Not here: what a step does to the state (`partition::machine`), object formats and store calls (`tidelog-tiering`).
//! Spec: docs/protocols/offload.md

mod driver;
mod error;
mod guard;
mod metadata;
mod parts;
mod publish;
mod step;
mod upload;

pub use driver::{FlushOutcome, Offload, OffloadConfig, OffloadProgress};
pub use error::OffloadError;
pub use guard::StoreGuard;
pub use metadata::keep_metadata;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
