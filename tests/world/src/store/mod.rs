//! An object store that fails.
//!
//! Owns: (in the making).
//! Not here: when a fault is made (`tests/sim`).
//! Spec: docs/simulation.md
