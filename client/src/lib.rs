//! Rust client of Tidelog over the Kafka protocol, and the command line verbs built on it.
//!
//! Owns: everything a program outside the broker needs: producing, consuming, administering, and `cli`.
//! Not here: the record-batch format (`tidelog-model`), the broker's side of the protocol.
//! Spec: `docs/guides/cli.md` (verbs, JSON), the Kafka protocol (wire).

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests may touch the real world")
)]

pub mod admin;
pub mod admin_http;
pub mod cli;
pub mod cluster;
pub mod connection;
pub mod consumer;
pub mod error;
pub mod limits;
pub mod producer;
pub mod retry;

pub use cluster::{Cluster, ClusterConfig};
pub use error::{Error, ErrorCode, Outcome};
