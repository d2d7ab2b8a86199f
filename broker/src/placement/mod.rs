//! Placement groups: replicated state machines over openraft and the group log. The only module that names openraft.
//!
//! Owns: the life of a proposal from a caller's command to its outcome, leadership, checkpoints, purging.
//! Not here: files of a group (`log`), what commands mean (`partition`, `metadata`, `coordinator`).
//! Spec: docs/protocols/placement.md, docs/formats/group-entries.md

mod contract;

pub use contract::{Command, Leadership, ProposeError, SnapshotError, StateMachine};
