//! What each coordinator command does: checked and applied in one step, never failing on data (D8).
//!
//! Owns: the fencing of stale generations and members (R5): it is decided here, in log order, and nowhere later.
//! A refused command changes nothing but the stamp.

use super::command::{Committer, CoordinatorCommand, CoordinatorOutcome, NewOffset};
use super::format_command::decode_command;
use super::{CommittedOffset, ConsumerGroupsState, StoredConsumerGroup};
use crate::coordinator::limits::{GROUP_OFFSETS_MAX, GROUPS_MAX, OFFSET_METADATA_BYTES_MAX};
use crate::coordinator::{ConsumerGroupError, ConsumerGroupName, InstanceId, MemberId};
use std::collections::BTreeSet;
use tidelog_env::{Mutant, mutant};
use tidelog_model::{PartitionId, TimestampMs, TopicId};

impl ConsumerGroupsState {
    /// Applies the `dir` of a committed command whose kind is in [`super::COMMAND_KINDS`].
    pub fn apply_bytes(&mut self, dir: &[u8]) -> CoordinatorOutcome {
        match decode_command(dir) {
            Ok((command, stamp)) => self.apply(command, stamp),
            Err(error) => {
                tracing::error!(
                    "a coordinator command cannot be read and changes nothing: {error}"
                );
                CoordinatorOutcome::Refused(ConsumerGroupError::Unreadable)
            }
        }
    }

    /// Applies a command that was stamped by the leader with `stamp`.
    pub fn apply(&mut self, command: CoordinatorCommand, stamp: TimestampMs) -> CoordinatorOutcome {
        self.stamp = self.stamp.max(stamp);
        let outcome = match command {
            CoordinatorCommand::CommitOffsets {
                group,
                committer,
                offsets,
            } => self
                .commit(group, &committer, offsets)
                .map(|()| CoordinatorOutcome::Done),
            CoordinatorCommand::StoreGeneration {
                group,
                generation,
                protocol_type,
                protocol,
                leader,
                members,
            } => {
                let stored = StoredConsumerGroup {
                    generation,
                    protocol_type,
                    protocol,
                    leader,
                    members,
                    ..StoredConsumerGroup::default()
                };
                self.store(group, stored).map(|()| CoordinatorOutcome::Done)
            }
            CoordinatorCommand::ReplaceStaticMember {
                group,
                generation,
                instance,
                old,
                new,
            } => self
                .replace(&group, generation, &instance, &old, new)
                .map(|()| CoordinatorOutcome::Done),
            CoordinatorCommand::DeleteGroup { group } => self.delete_group(&group),
            CoordinatorCommand::DeleteOffsets { group, partitions } => {
                self.delete_offsets(&group, &partitions)
            }
            CoordinatorCommand::ExpireOffsets {
                retention_ms,
                groups,
            } => Ok(self.expire(retention_ms, groups)),
            CoordinatorCommand::ForgetTopics { topics } => {
                Ok(self.forget(&topics.into_iter().collect()))
            }
        };
        outcome.unwrap_or_else(CoordinatorOutcome::Refused)
    }

    fn commit(
        &mut self,
        name: ConsumerGroupName,
        committer: &Committer,
        offsets: Vec<NewOffset>,
    ) -> Result<(), ConsumerGroupError> {
        match self.groups.get(&name) {
            Some(group) => group.check_committer(committer)?,
            None if matches!(committer, Committer::Member { .. }) => {
                return Err(ConsumerGroupError::IllegalGeneration);
            }
            None if self.groups.len() >= GROUPS_MAX => return Err(ConsumerGroupError::Overloaded),
            None => {}
        }
        if offsets
            .iter()
            .any(|new| new.metadata.len() > OFFSET_METADATA_BYTES_MAX)
        {
            return Err(ConsumerGroupError::MetadataTooLarge);
        }
        if offsets
            .iter()
            .any(|new| new.offset.get() < 0 || new.partition.index.get() < 0)
        {
            return Err(ConsumerGroupError::OffsetOutOfRange);
        }
        let known = self.groups.get(&name).map(|group| &group.offsets);
        let present = known.map_or(0, std::collections::BTreeMap::len);
        if present + offsets.len() > GROUP_OFFSETS_MAX {
            let given = offsets.iter().map(|new| new.partition);
            let fresh: BTreeSet<PartitionId> = given
                .filter(|partition| known.is_none_or(|known| !known.contains_key(partition)))
                .collect();
            if present + fresh.len() > GROUP_OFFSETS_MAX {
                return Err(ConsumerGroupError::CommitTooLarge);
            }
        }
        let stamp = self.stamp;
        let fresh = || StoredConsumerGroup {
            empty_since: Some(stamp),
            ..StoredConsumerGroup::default()
        };
        let group = self.groups.entry(name).or_insert_with(fresh);
        for new in offsets {
            let NewOffset {
                partition,
                offset,
                leader_epoch,
                metadata,
            } = new;
            group.offsets.insert(
                partition,
                CommittedOffset {
                    offset,
                    leader_epoch,
                    metadata,
                    stamp,
                },
            );
        }
        Ok(())
    }

    fn store(
        &mut self,
        name: ConsumerGroupName,
        mut stored: StoredConsumerGroup,
    ) -> Result<(), ConsumerGroupError> {
        let full = self.groups.len() >= GROUPS_MAX;
        match self.groups.get_mut(&name) {
            Some(group) if stored.generation <= group.generation => {
                return Err(ConsumerGroupError::IllegalGeneration);
            }
            None if stored.generation <= 0 => return Err(ConsumerGroupError::IllegalGeneration),
            None if stored.members.is_empty() => return Ok(()),
            None if full => return Err(ConsumerGroupError::Overloaded),
            Some(_) if mutant(Mutant::OffsetsLostOnGeneration) => {}
            Some(group) => stored.offsets = std::mem::take(&mut group.offsets),
            None => {}
        }
        stored.empty_since = stored.members.is_empty().then_some(self.stamp);
        self.groups.insert(name, stored);
        Ok(())
    }

    fn replace(
        &mut self,
        name: &ConsumerGroupName,
        generation: i32,
        instance: &InstanceId,
        old: &MemberId,
        new: MemberId,
    ) -> Result<(), ConsumerGroupError> {
        let group = self
            .groups
            .get_mut(name)
            .ok_or(ConsumerGroupError::IllegalGeneration)?;
        if group.generation != generation {
            return Err(ConsumerGroupError::IllegalGeneration);
        }
        let owns = group
            .members
            .get(old)
            .is_some_and(|member| member.instance.as_ref() == Some(instance));
        if !owns || group.members.contains_key(&new) {
            return Err(ConsumerGroupError::FencedInstance);
        }
        if let Some(member) = group.members.remove(old) {
            if group.leader == *old {
                group.leader = new.clone();
            }
            group.members.insert(new, member);
        }
        Ok(())
    }

    fn delete_group(
        &mut self,
        name: &ConsumerGroupName,
    ) -> Result<CoordinatorOutcome, ConsumerGroupError> {
        let offsets = self.empty_group(name)?.offsets.len();
        self.groups.remove(name);
        Ok(CoordinatorOutcome::Removed { offsets, groups: 1 })
    }

    fn delete_offsets(
        &mut self,
        name: &ConsumerGroupName,
        partitions: &[PartitionId],
    ) -> Result<CoordinatorOutcome, ConsumerGroupError> {
        let group = self.empty_group(name)?;
        let offsets = partitions
            .iter()
            .filter(|partition| group.offsets.remove(partition).is_some())
            .count();
        Ok(CoordinatorOutcome::Removed { offsets, groups: 0 })
    }

    fn empty_group(
        &mut self,
        name: &ConsumerGroupName,
    ) -> Result<&mut StoredConsumerGroup, ConsumerGroupError> {
        let group = self
            .groups
            .get_mut(name)
            .ok_or(ConsumerGroupError::GroupNotFound)?;
        if group.members.is_empty() {
            Ok(group)
        } else {
            Err(ConsumerGroupError::NonEmptyGroup)
        }
    }

    fn expire(&mut self, retention_ms: i64, names: Vec<ConsumerGroupName>) -> CoordinatorOutcome {
        let horizon = self.stamp.get().saturating_sub(retention_ms.max(0));
        let (mut offsets, mut groups) = (0, 0);
        for name in names {
            let Some(group) = self.groups.get_mut(&name) else {
                continue;
            };
            let Some(since) = group.empty_since else {
                continue;
            };
            let before = group.offsets.len();
            group
                .offsets
                .retain(|_, committed| committed.stamp.max(since).get() > horizon);
            offsets += before - group.offsets.len();
            if group.offsets.is_empty() && since.get() <= horizon {
                self.groups.remove(&name);
                groups += 1;
            }
        }
        CoordinatorOutcome::Removed { offsets, groups }
    }

    fn forget(&mut self, topics: &BTreeSet<TopicId>) -> CoordinatorOutcome {
        let (mut offsets, before) = (0, self.groups.len());
        self.groups.retain(|_, group| {
            let present = group.offsets.len();
            group
                .offsets
                .retain(|partition, _| !topics.contains(&partition.topic));
            let gone = present - group.offsets.len();
            offsets += gone;
            // A group of which nothing was taken stays: its members may just have left.
            gone == 0 || !group.offsets.is_empty() || !group.members.is_empty()
        });
        CoordinatorOutcome::Removed {
            offsets,
            groups: before - self.groups.len(),
        }
    }
}

impl StoredConsumerGroup {
    /// Whether `committer` may commit to this group (R5).
    ///
    /// # Errors
    /// Kafka's reason; the consumer then joins again.
    pub fn check_committer(&self, committer: &Committer) -> Result<(), ConsumerGroupError> {
        if mutant(Mutant::GenerationNotChecked) {
            return Ok(());
        }
        let Committer::Member {
            generation,
            member,
            instance,
        } = committer
        else {
            return if self.members.is_empty() {
                Ok(())
            } else {
                Err(ConsumerGroupError::UnknownMember)
            };
        };
        if let Some(instance) = instance {
            let owner = self
                .members
                .iter()
                .find(|(_, stored)| stored.instance.as_ref() == Some(instance));
            if owner.is_some_and(|(owner, _)| owner != member) {
                return Err(ConsumerGroupError::FencedInstance);
            }
        }
        if !self.members.contains_key(member) {
            return Err(ConsumerGroupError::UnknownMember);
        }
        if *generation == self.generation {
            Ok(())
        } else {
            Err(ConsumerGroupError::IllegalGeneration)
        }
    }
}
