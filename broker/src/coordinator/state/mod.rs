//! The replicated state of consumer groups: stable generations and committed offsets.
//!
//! Owns: the state, its commands, apply, and both byte formats. Pure (D8).
//! Not here: who is about to join (`membership`), requests and timers (`service`).
//! Spec: docs/formats/coordinator-commands.md, docs/formats/coordinator-state.md

mod apply;
mod command;
mod format_command;
mod format_state;
#[cfg(test)]
mod tests;

pub use command::{Committer, CoordinatorCommand, CoordinatorOutcome, NewOffset};
pub use format_command::{COMMAND_KINDS, decode_command};

use super::{ConsumerGroupName, InstanceId, MemberId};
use bytes::Bytes;
use std::collections::BTreeMap;
use tidelog_model::{LeaderEpoch, Offset, PartitionId, TimestampMs};

/// All consumer groups of one placement group.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConsumerGroupsState {
    stamp: TimestampMs,
    groups: BTreeMap<ConsumerGroupName, StoredConsumerGroup>,
}

/// One consumer group as it is replicated. Invariant: `empty_since` is present exactly when there are no members.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoredConsumerGroup {
    /// The newest stored generation; 0: the group never had members.
    pub generation: i32,
    /// `consumer`, `connect`, …; empty for simple consumers.
    pub protocol_type: String,
    /// The protocol that the generation chose.
    pub protocol: String,
    /// The leader of the generation.
    pub leader: MemberId,
    /// Since when the group has no members.
    pub empty_since: Option<TimestampMs>,
    /// Members of the generation.
    pub members: BTreeMap<MemberId, StoredMember>,
    /// Committed offsets.
    pub offsets: BTreeMap<PartitionId, CommittedOffset>,
}

/// A member of a stable generation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoredMember {
    /// Its static id.
    pub instance: Option<InstanceId>,
    /// What the client calls itself.
    pub client_id: String,
    /// Where it connects from.
    pub client_host: String,
    /// Session timeout in milliseconds.
    pub session_timeout_ms: u32,
    /// Rebalance timeout in milliseconds.
    pub rebalance_timeout_ms: u32,
    /// What it subscribes to, in the chosen protocol's encoding.
    pub subscription: Bytes,
    /// What the leader assigned to it, in the chosen protocol's encoding.
    pub assignment: Bytes,
}

/// A committed offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommittedOffset {
    /// The next offset the group wants to read.
    pub offset: Offset,
    /// Leader epoch of the last record consumed; -1: not known.
    pub leader_epoch: LeaderEpoch,
    /// The consumer's note.
    pub metadata: String,
    /// Broker stamp of the commit.
    pub stamp: TimestampMs,
}

impl ConsumerGroupsState {
    /// No groups.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Largest broker stamp seen.
    #[must_use]
    pub const fn stamp(&self) -> TimestampMs {
        self.stamp
    }

    /// All groups, by name.
    #[must_use]
    pub const fn groups(&self) -> &BTreeMap<ConsumerGroupName, StoredConsumerGroup> {
        &self.groups
    }

    /// One group.
    #[must_use]
    pub fn group(&self, name: &ConsumerGroupName) -> Option<&StoredConsumerGroup> {
        self.groups.get(name)
    }
}
