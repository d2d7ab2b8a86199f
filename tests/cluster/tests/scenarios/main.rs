//! Scenarios: faults under load on real brokers, and a checker over what clients saw.
//!
//! Owns: which faults, in which order.
//! Not here: the rig (`tests/cluster/src`), the rules (`tests/check`).
//! Spec: tests/README.md

mod one;
mod three;
mod three_disks;
mod tls;
