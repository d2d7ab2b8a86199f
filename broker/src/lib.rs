//! The Tidelog broker.

pub mod error;
pub mod placement;
pub mod wire;
