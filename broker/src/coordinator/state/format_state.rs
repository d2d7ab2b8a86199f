//! Bytes of the coordinator's state, as they lie in a group manifest.
//!
//! Spec: docs/formats/coordinator-state.md

use super::format_command::{put_members, put_partition, take_members, take_partition};
use super::{CommittedOffset, ConsumerGroupsState, StoredConsumerGroup};
use crate::coordinator::{ConsumerGroupName, MemberId};
use crate::format::{FormatError, Reader, Writer, insert_ascending, open};
use bytes::Bytes;
use tidelog_model::{LeaderEpoch, Offset, TimestampMs};

const MAGIC: [u8; 8] = *b"TLCOORD\0";
const VERSION: u16 = 1;

impl ConsumerGroupsState {
    /// The whole state. Equal states have equal bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut to = Writer::new();
        to.i64(self.stamp.get());
        to.count(self.groups.len());
        for (name, group) in &self.groups {
            to.text(name.as_str());
            put_group(&mut to, group);
        }
        to.seal(MAGIC, VERSION)
    }

    /// Reads what [`ConsumerGroupsState::encode`] wrote. No bytes are the state before the first command.
    ///
    /// # Errors
    /// What is wrong with the bytes; nothing of them is used.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        let (_, mut from) = open(bytes, MAGIC, VERSION, "coordinator state")?;
        let mut state = Self {
            stamp: TimestampMs::new(from.i64("the stamp")?),
            ..Self::default()
        };
        for _ in 0..from.count(4 + 4 + 4 + 4 + 4 + 1 + 4 + 4, "the groups")? {
            let name = ConsumerGroupName::new(from.text("a group's name")?);
            let group = take_group(&mut from)?;
            insert_ascending(&mut state.groups, name, group, "the groups")?;
        }
        from.finish()?;
        Ok(state)
    }
}

fn put_group(to: &mut Writer, group: &StoredConsumerGroup) {
    to.i32(group.generation);
    to.text(&group.protocol_type);
    to.text(&group.protocol);
    to.text(group.leader.as_str());
    match group.empty_since {
        None => to.u8(0),
        Some(since) => {
            to.u8(1);
            to.i64(since.get());
        }
    }
    put_members(to, &group.members);
    to.count(group.offsets.len());
    for (partition, committed) in &group.offsets {
        put_partition(to, *partition);
        to.i64(committed.offset.get());
        to.i32(committed.leader_epoch.get());
        to.text(&committed.metadata);
        to.i64(committed.stamp.get());
    }
}

fn take_group(from: &mut Reader<'_>) -> Result<StoredConsumerGroup, FormatError> {
    let mut group = StoredConsumerGroup {
        generation: from.natural_i32("a group's generation")?,
        protocol_type: from.text("a group's protocol type")?,
        protocol: from.text("a group's protocol")?,
        leader: MemberId::new(from.text("a group's leader")?),
        ..StoredConsumerGroup::default()
    };
    if from.flag("a group's emptiness")? {
        group.empty_since = Some(TimestampMs::new(from.i64("a group's emptiness")?));
    }
    group.members = take_members(from)?;
    if group.members.is_empty() != group.empty_since.is_some() {
        return Err(FormatError::Invalid("a group"));
    }
    for _ in 0..from.count(20 + 8 + 4 + 4 + 8, "the offsets")? {
        let partition = take_partition(from)?;
        let committed = CommittedOffset {
            offset: Offset::new(from.natural("an offset")?),
            leader_epoch: LeaderEpoch::new(from.i32("a leader epoch")?),
            metadata: from.text("an offset's metadata")?,
            stamp: TimestampMs::new(from.i64("a commit's stamp")?),
        };
        insert_ascending(&mut group.offsets, partition, committed, "the offsets")?;
    }
    Ok(group)
}
