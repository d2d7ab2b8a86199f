//! Bytes of coordinator commands.
//!
//! Spec: docs/formats/coordinator-commands.md

use super::StoredMember;
use super::command::{Committer, CoordinatorCommand, NewOffset};
use crate::coordinator::{ConsumerGroupName, InstanceId, MemberId};
use crate::format::{FormatError, Reader, Writer, insert_ascending};
use crate::placement::Command;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use tidelog_model::{LeaderEpoch, Offset, PartitionId, PartitionIndex, TimestampMs, TopicId};

/// First byte of a data group's command that belongs to the coordinator.
pub const COMMAND_KINDS: RangeInclusive<u8> = 0x40..=0x5f;

const VERSION: u8 = 1;

const COMMIT_OFFSETS: u8 = 0x40;
const STORE_GENERATION: u8 = 0x41;
const REPLACE_STATIC_MEMBER: u8 = 0x42;
const DELETE_GROUP: u8 = 0x43;
const DELETE_OFFSETS: u8 = 0x44;
const EXPIRE_OFFSETS: u8 = 0x45;
const FORGET_TOPICS: u8 = 0x46;

impl CoordinatorCommand {
    /// The command as a proposal, stamped by the leader.
    #[must_use]
    pub fn encode(&self, stamp: TimestampMs) -> Command {
        let mut to = Writer::new();
        to.u8(self.kind());
        to.u8(VERSION);
        to.i64(stamp.get());
        match self {
            Self::CommitOffsets {
                group,
                committer,
                offsets,
            } => put_commit(&mut to, group, committer, offsets),
            Self::StoreGeneration {
                group,
                generation,
                protocol_type,
                protocol,
                leader,
                members,
            } => {
                to.text(group.as_str());
                to.i32(*generation);
                to.text(protocol_type);
                to.text(protocol);
                to.text(leader.as_str());
                put_members(&mut to, members);
            }
            Self::ReplaceStaticMember {
                group,
                generation,
                instance,
                old,
                new,
            } => {
                to.text(group.as_str());
                to.i32(*generation);
                to.text(instance.as_str());
                to.text(old.as_str());
                to.text(new.as_str());
            }
            Self::DeleteGroup { group } => to.text(group.as_str()),
            Self::DeleteOffsets { group, partitions } => {
                to.text(group.as_str());
                to.count(partitions.len());
                partitions
                    .iter()
                    .for_each(|partition| put_partition(&mut to, *partition));
            }
            Self::ExpireOffsets {
                retention_ms,
                groups,
            } => {
                to.i64(*retention_ms);
                to.count(groups.len());
                groups.iter().for_each(|group| to.text(group.as_str()));
            }
            Self::ForgetTopics { topics } => {
                to.count(topics.len());
                topics.iter().for_each(|topic| to.uuid(topic.get()));
            }
        }
        Command::new(to.finish(), Bytes::new())
    }

    const fn kind(&self) -> u8 {
        match self {
            Self::CommitOffsets { .. } => COMMIT_OFFSETS,
            Self::StoreGeneration { .. } => STORE_GENERATION,
            Self::ReplaceStaticMember { .. } => REPLACE_STATIC_MEMBER,
            Self::DeleteGroup { .. } => DELETE_GROUP,
            Self::DeleteOffsets { .. } => DELETE_OFFSETS,
            Self::ExpireOffsets { .. } => EXPIRE_OFFSETS,
            Self::ForgetTopics { .. } => FORGET_TOPICS,
        }
    }
}

/// Reads a command and the leader's stamp.
///
/// # Errors
/// What is wrong with the bytes; the caller applies nothing.
pub fn decode_command(dir: &[u8]) -> Result<(CoordinatorCommand, TimestampMs), FormatError> {
    let mut from = Reader::new(dir);
    let kind = from.u8("the kind")?;
    let version = from.u8("the version")?;
    if version != VERSION {
        return Err(FormatError::Version(u16::from(version)));
    }
    let stamp = TimestampMs::new(from.i64("the stamp")?);
    let command = take_fields(kind, &mut from)?;
    from.finish()?;
    Ok((command, stamp))
}

fn take_fields(kind: u8, from: &mut Reader<'_>) -> Result<CoordinatorCommand, FormatError> {
    Ok(match kind {
        COMMIT_OFFSETS => take_commit(from)?,
        STORE_GENERATION => CoordinatorCommand::StoreGeneration {
            group: take_group(from)?,
            generation: from.i32("the generation")?,
            protocol_type: from.text("the protocol type")?,
            protocol: from.text("the protocol")?,
            leader: take_member_id(from)?,
            members: take_members(from)?,
        },
        REPLACE_STATIC_MEMBER => CoordinatorCommand::ReplaceStaticMember {
            group: take_group(from)?,
            generation: from.i32("the generation")?,
            instance: InstanceId::new(from.text("the instance")?),
            old: take_member_id(from)?,
            new: take_member_id(from)?,
        },
        DELETE_GROUP => CoordinatorCommand::DeleteGroup {
            group: take_group(from)?,
        },
        DELETE_OFFSETS => CoordinatorCommand::DeleteOffsets {
            group: take_group(from)?,
            partitions: take_list(from, 20, "the partitions", take_partition)?,
        },
        EXPIRE_OFFSETS => CoordinatorCommand::ExpireOffsets {
            retention_ms: from.i64("the retention")?,
            groups: take_list(from, 4, "the groups", take_group)?,
        },
        FORGET_TOPICS => CoordinatorCommand::ForgetTopics {
            topics: take_list(from, 16, "the topics", |from| {
                from.uuid("a topic").map(TopicId::new)
            })?,
        },
        _ => return Err(FormatError::Invalid("the kind")),
    })
}

fn put_commit(
    to: &mut Writer,
    group: &ConsumerGroupName,
    committer: &Committer,
    offsets: &[NewOffset],
) {
    to.text(group.as_str());
    match committer {
        Committer::Simple => to.u8(0),
        Committer::Member {
            generation,
            member,
            instance,
        } => {
            to.u8(1);
            to.i32(*generation);
            to.text(member.as_str());
            to.optional_text(instance.as_ref().map(InstanceId::as_str));
        }
    }
    to.count(offsets.len());
    for new in offsets {
        put_partition(to, new.partition);
        to.i64(new.offset.get());
        to.i32(new.leader_epoch.get());
        to.text(&new.metadata);
    }
}

fn take_commit(from: &mut Reader<'_>) -> Result<CoordinatorCommand, FormatError> {
    let group = take_group(from)?;
    let committer = if from.flag("the committer")? {
        Committer::Member {
            generation: from.i32("the generation")?,
            member: take_member_id(from)?,
            instance: from.optional_text("the instance")?.map(InstanceId::new),
        }
    } else {
        Committer::Simple
    };
    let offsets = take_list(from, 20 + 8 + 4 + 4, "the offsets", |from| {
        Ok(NewOffset {
            partition: take_partition(from)?,
            offset: Offset::new(from.i64("an offset")?),
            leader_epoch: LeaderEpoch::new(from.i32("a leader epoch")?),
            metadata: from.text("an offset's metadata")?,
        })
    })?;
    Ok(CoordinatorCommand::CommitOffsets {
        group,
        committer,
        offsets,
    })
}

fn take_list<T>(
    from: &mut Reader<'_>,
    item_bytes_min: usize,
    what: &'static str,
    take: impl Fn(&mut Reader<'_>) -> Result<T, FormatError>,
) -> Result<Vec<T>, FormatError> {
    let count = from.count(item_bytes_min, what)?;
    (0..count).map(|_| take(from)).collect()
}

fn take_group(from: &mut Reader<'_>) -> Result<ConsumerGroupName, FormatError> {
    from.text("the group").map(ConsumerGroupName::new)
}

fn take_member_id(from: &mut Reader<'_>) -> Result<MemberId, FormatError> {
    from.text("a member id").map(MemberId::new)
}

/// Writes a partition's identity.
pub(super) fn put_partition(to: &mut Writer, partition: PartitionId) {
    to.uuid(partition.topic.get());
    to.i32(partition.index.get());
}

/// Reads what [`put_partition`] wrote.
pub(super) fn take_partition(from: &mut Reader<'_>) -> Result<PartitionId, FormatError> {
    Ok(PartitionId {
        topic: TopicId::new(from.uuid("a topic")?),
        index: PartitionIndex::new(from.i32("a partition")?),
    })
}

/// Writes the members of a generation.
pub(super) fn put_members(to: &mut Writer, members: &BTreeMap<MemberId, StoredMember>) {
    to.count(members.len());
    for (id, member) in members {
        to.text(id.as_str());
        to.optional_text(member.instance.as_ref().map(InstanceId::as_str));
        to.text(&member.client_id);
        to.text(&member.client_host);
        to.u32(member.session_timeout_ms);
        to.u32(member.rebalance_timeout_ms);
        to.blob(&member.subscription);
        to.blob(&member.assignment);
    }
}

/// Reads what [`put_members`] wrote.
pub(super) fn take_members(
    from: &mut Reader<'_>,
) -> Result<BTreeMap<MemberId, StoredMember>, FormatError> {
    let mut members = BTreeMap::new();
    for _ in 0..from.count(4 + 1 + 4 + 4 + 4 + 4 + 4 + 4, "the members")? {
        let id = take_member_id(from)?;
        let member = StoredMember {
            instance: from
                .optional_text("a member's instance")?
                .map(InstanceId::new),
            client_id: from.text("a member's client id")?,
            client_host: from.text("a member's host")?,
            session_timeout_ms: from.u32("a session timeout")?,
            rebalance_timeout_ms: from.u32("a rebalance timeout")?,
            subscription: from.bytes("a subscription")?,
            assignment: from.bytes("an assignment")?,
        };
        insert_ascending(&mut members, id, member, "the members")?;
    }
    Ok(members)
}
