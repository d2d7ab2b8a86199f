//! The Tidelog broker.

pub mod error;
pub mod log;
pub mod net;
pub mod placement;
pub mod wire;
