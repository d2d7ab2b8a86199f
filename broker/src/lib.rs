//! The Tidelog broker: see docs/ARCHITECTURE.md for the map.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests may touch the real world")
)]

pub mod admin;
pub mod api;
pub mod config;
pub mod coordinator;
pub mod datagroup;
pub mod error;
pub mod format;
pub mod intake;
pub mod log;
pub mod metadata;
pub mod net;
pub mod node;
pub mod observe;
pub mod offload;
pub mod partition;
pub mod peer;
pub mod placement;
pub mod router;
pub mod wire;
