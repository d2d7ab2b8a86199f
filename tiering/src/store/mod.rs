//! The object store behind deadlines, bounded retries, and answers that say what happened.
//!
//! Owns: opening a store by URL, [`TierStore`], durability of `file://`.
//! Not here: which keys exist (`key`), what is in the objects (`format`, `manifest`).

#[cfg(any(test, feature = "test-support"))]
pub mod contract;
mod durable;
mod error;
#[cfg(any(test, feature = "test-support"))]
mod fault;
#[cfg(any(test, feature = "test-support"))]
pub mod faulty;
mod limits;
mod multipart;
mod open;
mod put;
mod staged;
mod tier;

pub use durable::DurableFiles;
pub use error::StoreError;
pub use limits::StoreLimits;
pub use open::{OpenError, OpenStore, StoreSettings, open_store};
pub use put::PutOutcome;
pub use tier::{ListedObject, ObjectInfo, TierStore};

#[cfg(test)]
mod tests;
