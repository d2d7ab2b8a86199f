//! The Tidelog broker.

pub mod error;
pub mod format;
pub mod log;
pub mod metadata;
pub mod net;
pub mod placement;
pub mod wire;
