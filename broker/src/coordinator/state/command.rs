//! Commands of the coordinator and their outcomes. Bytes: `format_command.rs`. Meaning: `apply.rs`.

use super::StoredMember;
use crate::coordinator::{ConsumerGroupError, ConsumerGroupName, InstanceId, MemberId};
use std::collections::BTreeMap;
use tidelog_model::{LeaderEpoch, Offset, PartitionId, TopicId};

/// What the coordinator's leader may ask of its placement group. The stamp travels beside it (D7).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CoordinatorCommand {
    /// Stores offsets; all of them or none.
    CommitOffsets {
        /// The group.
        group: ConsumerGroupName,
        /// Who commits.
        committer: Committer,
        /// What.
        offsets: Vec<NewOffset>,
    },
    /// A generation became stable, or the last member left (then `members` is empty).
    StoreGeneration {
        /// The group.
        group: ConsumerGroupName,
        /// Its number.
        generation: i32,
        /// The protocol type.
        protocol_type: String,
        /// The protocol chosen.
        protocol: String,
        /// The leader.
        leader: MemberId,
        /// The members with their assignments.
        members: BTreeMap<MemberId, StoredMember>,
    },
    /// A static member came back under a new member id and takes its old assignment over.
    ReplaceStaticMember {
        /// The group.
        group: ConsumerGroupName,
        /// The generation, which stays.
        generation: i32,
        /// The static id.
        instance: InstanceId,
        /// The member id that is fenced from now on.
        old: MemberId,
        /// The member id that takes its place.
        new: MemberId,
    },
    /// Deletes a group without members, and its offsets.
    DeleteGroup {
        /// The group.
        group: ConsumerGroupName,
    },
    /// Deletes offsets of a group without members.
    DeleteOffsets {
        /// The group.
        group: ConsumerGroupName,
        /// Of which partitions.
        partitions: Vec<PartitionId>,
    },
    /// Drops old offsets of those of the named groups that have no members.
    ExpireOffsets {
        /// How long an offset outlives its commit and its group's last member.
        retention_ms: i64,
        /// The groups, none of which has a member now as the leader knows it (field report A27).
        groups: Vec<ConsumerGroupName>,
    },
    /// Drops the offsets of deleted topics in all groups.
    ForgetTopics {
        /// The topics.
        topics: Vec<TopicId>,
    },
}

/// Who commits offsets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Committer {
    /// A consumer that assigns its partitions itself, or an administrator: only while the group has no members.
    Simple,
    /// A member of a generation.
    Member {
        /// The generation.
        generation: i32,
        /// The member.
        member: MemberId,
        /// Its static id, when it has one.
        instance: Option<InstanceId>,
    },
}

/// One offset to commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewOffset {
    /// The partition.
    pub partition: PartitionId,
    /// The next offset the group wants to read.
    pub offset: Offset,
    /// Leader epoch of the last record consumed; -1: not known.
    pub leader_epoch: LeaderEpoch,
    /// The consumer's note.
    pub metadata: String,
}

/// What a proposer of a coordinator command learns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CoordinatorOutcome {
    /// The command took effect.
    Done,
    /// So many offsets and groups went away.
    Removed {
        /// Offsets.
        offsets: usize,
        /// Groups.
        groups: usize,
    },
    /// Nothing changed.
    Refused(ConsumerGroupError),
}
