//! Listing, describing and deleting groups.

use super::requests::check_group;
use super::{Coordinator, Shared};
use crate::coordinator::membership::{Membership, Phase};
use crate::coordinator::state::{CoordinatorCommand, StoredConsumerGroup};
use crate::coordinator::{ConsumerGroupError, ConsumerGroupName, InstanceId, MemberId};
use bytes::Bytes;
use std::collections::BTreeMap;

/// One line of ListGroups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedConsumerGroup {
    /// The group.
    pub group: ConsumerGroupName,
    /// `consumer`, …; empty for simple consumers.
    pub protocol_type: String,
    /// Kafka's name of its phase.
    pub phase: &'static str,
}

/// A group as DescribeGroups shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescribedConsumerGroup {
    /// The group.
    pub group: ConsumerGroupName,
    /// Kafka's name of its phase.
    pub phase: &'static str,
    /// The current generation.
    pub generation: i32,
    /// `consumer`, …; empty for simple consumers.
    pub protocol_type: String,
    /// The protocol of a stable group; empty otherwise.
    pub protocol: String,
    /// Its members.
    pub members: Vec<DescribedMember>,
}

/// A member as DescribeGroups shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescribedMember {
    /// Its id.
    pub member: MemberId,
    /// Its static id.
    pub instance: Option<InstanceId>,
    /// What the client calls itself.
    pub client_id: String,
    /// Where it connects from.
    pub client_host: String,
    /// Its subscription; empty unless the group is stable.
    pub subscription: Bytes,
    /// Its assignment; empty unless the group is stable.
    pub assignment: Bytes,
}

impl Coordinator {
    /// All groups of this coordinator, by name.
    ///
    /// # Errors
    /// When this coordinator does not lead.
    pub fn list_groups(&self) -> Result<Vec<ListedConsumerGroup>, ConsumerGroupError> {
        let table = self.shared.table.lock();
        Shared::check_leading(&table)?;
        let mut listed = BTreeMap::new();
        self.shared.log.read(&mut |state| {
            for (name, stored) in state.groups() {
                listed.insert(
                    name.clone(),
                    (stored.protocol_type.clone(), Phase::Empty.name()),
                );
            }
        });
        for (name, membership) in table.iter() {
            let phase = membership.phase().name();
            match listed.get_mut(name) {
                Some(line) if membership.members().is_empty() => line.1 = phase,
                _ => {
                    listed.insert(name.clone(), (membership.protocol_type().to_owned(), phase));
                }
            }
        }
        let line = |(group, (protocol_type, phase))| ListedConsumerGroup {
            group,
            protocol_type,
            phase,
        };
        Ok(listed.into_iter().map(line).collect())
    }

    /// One group.
    ///
    /// # Errors
    /// [`ConsumerGroupError::GroupNotFound`], which Kafka shows as phase `Dead` in older versions.
    pub fn describe_group(
        &self,
        group: &ConsumerGroupName,
    ) -> Result<DescribedConsumerGroup, ConsumerGroupError> {
        check_group(group)?;
        let table = self.shared.table.lock();
        Shared::check_leading(&table)?;
        if let Some(membership) = table.get(group)
            && !membership.members().is_empty()
        {
            return Ok(describe_live(group, membership));
        }
        self.shared
            .stored(group, |stored| describe_stored(group, stored))
            .ok_or(ConsumerGroupError::GroupNotFound)
    }

    /// Deletes a group without members, and its offsets.
    ///
    /// # Errors
    /// Kafka's reason. [`ConsumerGroupError::Unavailable`]: it may have happened.
    pub async fn delete_group(&self, group: &ConsumerGroupName) -> Result<(), ConsumerGroupError> {
        check_group(group)?;
        self.shared.check_deletable(group)?;
        self.shared.wait_settled(group).await;
        self.shared
            .propose(&CoordinatorCommand::DeleteGroup {
                group: group.clone(),
            })
            .await
            .map(|_| ())
    }
}

fn describe_live(group: &ConsumerGroupName, membership: &Membership) -> DescribedConsumerGroup {
    let stable = membership.phase() == Phase::Stable;
    let protocol = if stable { membership.protocol() } else { "" };
    let subscription = |protocols: &[(String, Bytes)]| {
        protocols
            .iter()
            .find(|(name, _)| name == protocol)
            .map(|(_, bytes)| bytes.clone())
            .unwrap_or_default()
    };
    let members = membership
        .members()
        .iter()
        .map(|(id, member)| DescribedMember {
            member: id.clone(),
            instance: member.instance.clone(),
            client_id: member.client_id.clone(),
            client_host: member.client_host.clone(),
            subscription: subscription(&member.protocols),
            assignment: if stable {
                member.assignment.clone()
            } else {
                Bytes::new()
            },
        });
    DescribedConsumerGroup {
        group: group.clone(),
        phase: membership.phase().name(),
        generation: membership.generation(),
        protocol_type: membership.protocol_type().to_owned(),
        protocol: protocol.to_owned(),
        members: members.collect(),
    }
}

fn describe_stored(
    group: &ConsumerGroupName,
    stored: &StoredConsumerGroup,
) -> DescribedConsumerGroup {
    DescribedConsumerGroup {
        group: group.clone(),
        phase: Phase::Empty.name(),
        generation: stored.generation,
        protocol_type: stored.protocol_type.clone(),
        protocol: String::new(),
        members: Vec::new(),
    }
}
