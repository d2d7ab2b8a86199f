//! The Tidelog broker.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests may touch the real world"))]

pub mod coordinator;
pub mod error;
pub mod format;
pub mod log;
pub mod metadata;
pub mod net;
pub mod placement;
pub mod wire;
