//! The network between hosts.
//!
//! Owns: (in the making).
//! Not here: when a fault is made (`tests/sim`).
//! Spec: docs/simulation.md
