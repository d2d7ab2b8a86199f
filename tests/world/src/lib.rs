//! A world that breaks on purpose: hosts, network, disks, an object store, and clocks, all simulated, all from one seed.
//!
//! Owns: simulated time and the steps of hosts (`hosts`), the network (`net`), disks (`disk`), the object store (`store`), the process's
//! entropy (`entropy`), and the count of every fault that was made (`faults`).
//! Not here: what runs on the hosts, and when which fault is made (`tests/sim`).
//! Spec: docs/simulation.md
//!
//! One thread, one process, one seed: the same seed gives the same steps, byte for byte.

mod clocks;
pub mod disk;
pub mod entropy;
pub mod faults;
pub mod hosts;
pub mod net;
pub mod store;
