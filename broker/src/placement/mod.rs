//! Placement groups: replicated state machines over openraft and the group log. The only module that names openraft.
//!
//! Owns: the life of a proposal from a caller's command to its outcome, leadership, checkpoints, purging.
//! Not here: files of a group (`log`), what commands mean (`partition`, `metadata`, `coordinator`).
//! Spec: docs/protocols/placement.md, docs/formats/group-entries.md

mod acknowledged;
mod config;
mod contract;
mod format;
mod group;
mod group_map;
mod heard;
mod in_flight;
mod leadership;
mod log_store;
mod machine;
mod machine_store;
mod membership;
mod peer_client;
mod peer_inbox;
mod peers;
mod propose;
mod raft_types;

pub use config::{GroupConfig, PlacementError, entry_bytes_max};
pub use contract::{Command, Leadership, ProposeError, SnapshotError, StateMachine};
pub use group::Group;
pub use group_map::GroupMap;
pub use membership::{MembershipStep, Replicas, ReplicasNow};
pub use peer_inbox::PeerInbox;
pub use peers::{
    AppendReply, AppendRequest, Lane, NoPeers, PeerError, PeerLink, PeerNetwork, PeerReply,
    SnapshotRequest, TransferReply, TransferRequest, VoteReply, VoteRequest,
};
pub use raft_types::Member;

#[cfg(test)]
mod tests;
