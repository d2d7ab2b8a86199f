//! The Tidelog broker.

pub mod placement;
