//! Partitions: offsets, leader epochs, producers, the hot index, and the offload stage of one placement group.
//!
//! Owns: the deterministic state machine behind every partition of a data group (D4, D8), and the proposer that turns
//! waiting appends into log entries.
//! Not here: Raft (`placement`), bytes on disk (`log`), consumer groups (`coordinator`), driving uploads (`offload`).
//! Spec: docs/formats/partition-commands.md, docs/formats/partition-image.md, docs/protocols/offload.md

pub mod command;
pub mod hot_reader;
pub mod image;
pub mod index;
pub mod machine;
pub mod producers;
pub mod proposer;
pub mod state;

pub use command::{BatchDescriptor, PartitionCommand};
pub use hot_reader::{HotReader, ServedBatch};
pub use index::{IndexEntry, LogExtent};
pub use machine::{CutStage, Frozen, PartitionOutcome, Partitions, records_left};
pub use proposer::{AppendBatch, AppendFailure, PendingAppend, Proposer, ProposerConfig};
pub use state::{AppendError, AppendOutcome, Appended, PartitionState};

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod machine_test;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod golden_test;
