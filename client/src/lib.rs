//! Rust client of Tidelog over the Kafka protocol, and the command line verbs built on it.
//!
//! Owns: everything a program outside the broker needs: producing, consuming, administering, and `cli`.
//! Not here: the record-batch format (`tidelog-model`), the broker's side of the protocol.
//! Spec: `docs/guides/cli.md` (verbs, JSON), the Kafka protocol (wire).

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests may touch the real world"))]

pub mod cli;
