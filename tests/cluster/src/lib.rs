//! A rig of real `tidelog broker` processes, a load on them, and the history of what clients saw.
//!
//! Owns: processes and their faults, the network between them, waiting by condition, the load, what is kept of a failure.
//! Not here: judging the history (`tests/check`), the scenarios (`tests/cluster/tests/scenarios`).
//! Spec: tests/README.md

mod admin;
mod config;
mod doors;
mod frames;
mod guard;
mod links;
mod load;
mod process;
mod record;
mod rig;
mod scenario;
mod tls;
mod wait;

pub use admin::{ClusterView, GroupView};
pub use frames::{Flip, FramePlace, frames};
pub use load::{Load, LoadConfig, LoadWorld};
pub use process::Broker;
pub use record::Recorder;
pub use rig::Rig;
pub use scenario::{Dice, Failure, rounds, run};
pub use tls::Authority;
pub use wait::{Waiting, until};
