//! Topics are created and deleted in the metadata group first, then in the data groups.
//!
//! Owns: the order of the two, so that a crash in between is finished by `reconcile` and never loses a topic's data.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Router;
use super::ends::{Asked, End};
use crate::coordinator::limits::COMMIT_OFFSETS_MAX;
use crate::datagroup::DataGroup;
use crate::metadata::{
    MetadataCommand, MetadataImage, MetadataOutcome, Refusal, choose_groups, choose_groups_on,
    choose_replicas, copies_default, groups_named,
};
use crate::partition::{PartitionCommand, PartitionOutcome};
use crate::placement::ProposeError;
use tidelog_env::{CrashPoint, Mutant, crash_point, mutant};
use tidelog_model::{NodeId, PartitionId, PartitionIndex, PlacementGroupId, TopicId};
use tokio::time::{Instant, timeout};

/// How long a topic that is created, or deleted, for good may take to be so in the data groups before the answer: some round trips. What is
/// missing then, because a group has no leader at the moment, is made up for by `reconcile`; clients wait for the partition.
pub(super) const EFFECT_WITHIN: Duration = Duration::from_secs(2);
/// Pause before a creation or deletion whose outcome is not known is proposed again.
const AGAIN_PAUSE: Duration = Duration::from_millis(200);

/// Pause before the leader of a group that is not held here is asked again whether it has new partitions.
pub(super) const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// How often groups for another number of copies are planned anew because another broker was faster. Each time that one has made some: there are
/// only so many numbers of copies. And how often a topic is placed anew because a group was lost meanwhile.
const GROUPS_TRIES: usize = 8;

/// How often a partition is proposed because the group has dropped topics by a newer image of metadata: by this broker's own, so the next try has it.
const IMAGES_TRIES: usize = 8;

/// A topic to create.
#[derive(Clone, Debug)]
pub struct NewTopic {
    /// Name.
    pub name: String,
    /// Number of partitions.
    pub partitions: usize,
    /// Where they go.
    pub placement: Placement,
    /// Values that differ from the defaults.
    pub configs: BTreeMap<String, String>,
}

/// Where the partitions of a new topic go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Spread over the groups with so many copies; `None`: the cluster's default.
    Copies(Option<usize>),
    /// Each on these brokers, in ascending order.
    On(Vec<Vec<NodeId>>),
}

/// Why a topic was not created or deleted.
#[derive(Debug, thiserror::Error)]
pub enum TopicError {
    /// The metadata group refused; nothing changed.
    #[error(transparent)]
    Refused(Refusal),
    /// No such topic.
    #[error("no such topic")]
    Unknown,
    /// Brokers may still take records or offsets for the topic that had the name; nothing changed.
    #[error(
        "a topic of this name was deleted, and placement {} may still take records or offsets for it: nobody leads there who has heard of the deletion and has nothing of it. Try again. Nothing was created",
        groups_named(groups)
    )]
    NameHeld {
        /// The groups.
        groups: Vec<PlacementGroupId>,
    },
    /// Fewer brokers take replicas now than copies were asked for.
    #[error(
        "{copies} copies need {copies} live brokers that are not drained, and there are fewer now"
    )]
    TooFewBrokers {
        /// Copies that were asked for.
        copies: usize,
    },
    /// No group has its replicas on exactly these brokers.
    #[error(
        "no placement group has its replicas on exactly the brokers {wanted:?}; there are {there:?}"
    )]
    NoSuchReplicas {
        /// What was asked for.
        wanted: Vec<i32>,
        /// The sets that groups have.
        there: Vec<Vec<i32>>,
    },
    /// Not committed, or not known to be.
    #[error(transparent)]
    Propose(#[from] ProposeError),
}

/// The same id for the same name, for a mutant.
fn id_from(name: &str) -> TopicId {
    let mut bytes = [1; 16];
    for (to, from) in bytes.iter_mut().zip(name.bytes()) {
        *to = from;
    }
    TopicId::new(uuid::Uuid::from_bytes(bytes))
}

fn no_such(image: &MetadataImage, wanted: &[NodeId]) -> TopicError {
    let ids = |nodes: &[NodeId]| nodes.iter().map(|node| node.get()).collect::<Vec<i32>>();
    let groups = image.groups().iter();
    let groups = groups.filter(|(group, _)| !image.is_lost(**group));
    let there: BTreeSet<Vec<i32>> = groups.map(|(_, nodes)| ids(nodes)).collect();
    TopicError::NoSuchReplicas {
        wanted: ids(wanted),
        there: there.into_iter().collect(),
    }
}

/// The groups that a cluster gets for another number of copies: one per broker for single copies, which only spread; else two, as the
/// first ones.
fn new_groups(
    image: &MetadataImage,
    copies: usize,
) -> Option<BTreeMap<PlacementGroupId, Vec<NodeId>>> {
    let open = image.members().iter();
    let brokers = open
        .filter(|(node, member)| !member.draining && image.is_live(**node))
        .count();
    let count = if copies == 1 { brokers } else { 2 * brokers };
    let replicas = choose_replicas(image, count, copies).filter(|all| !all.is_empty())?;
    let last = image.groups().keys().next_back().map_or(0, |id| id.get());
    let ids = (last.saturating_add(1)..).map(PlacementGroupId::new);
    Some(ids.zip(replicas).collect())
}

impl Router {
    /// Creates a topic. When this returns, it is there for good, and its partitions take appends or will soon.
    ///
    /// # Errors
    /// [`TopicError`], at `deadline` at the latest; after `may_have_happened` the topic may exist, and creating it again says so.
    pub async fn create_topic(
        &self,
        topic: NewTopic,
        deadline: Instant,
    ) -> Result<TopicId, TopicError> {
        let mut id = TopicId::new(self.inner.metadata.random.uuid());
        if mutant(Mutant::TopicIdFromName) {
            id = id_from(&topic.name);
        }
        let mut tries = 0;
        let (partitions, outcome) = loop {
            let before = self.wait_dropped(&topic.name, deadline).await?;
            let partitions = self.place(&topic, deadline).await?;
            let command = MetadataCommand::CreateTopic {
                id,
                name: topic.name.clone(),
                partitions: partitions.clone(),
                configs: topic.configs.clone(),
                before,
            };
            let (outcome, _) = self.propose_again(&command, deadline).await?;
            // One of the groups was lost meanwhile, or the name had a topic that was deleted.
            let again = matches!(outcome, MetadataOutcome::Refused(Refusal::Outdated));
            if !again || tries >= GROUPS_TRIES {
                break (partitions, outcome);
            }
            tries += 1;
        };
        match outcome {
            MetadataOutcome::TopicCreated(_) => {}
            // By an earlier try, whose answer was lost.
            MetadataOutcome::Refused(Refusal::TopicExists(_))
                if self.image(|image| image.topic(id).is_some()) => {}
            MetadataOutcome::Refused(refusal) => return Err(TopicError::Refused(refusal)),
            other => {
                return Err(ProposeError::Fatal(format!(
                    "creating a topic was answered with {other:?}"
                ))
                .into());
            }
        }
        crash_point(CrashPoint::TopicCreated);
        let effect = async {
            self.create_partitions(id, &partitions).await?;
            self.wait_created(id, &partitions).await
        };
        match timeout(EFFECT_WITHIN, effect).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(topic = %id, "partitions are created later: {error}"),
            Err(_) => tracing::debug!(topic = %id, "partitions are created later"),
        }
        Ok(id)
    }

    /// Proposes what may be repeated, since it names a topic by its id, until its outcome is known; and whether an earlier try may have done it already.
    async fn propose_again(
        &self,
        command: &MetadataCommand,
        deadline: Instant,
    ) -> Result<(MetadataOutcome, bool), ProposeError> {
        let mut again = false;
        loop {
            let error = match self.inner.metadata.propose_by(command, deadline).await {
                Ok(outcome) => return Ok((outcome, again)),
                Err(error) => error,
            };
            if error != ProposeError::Unknown || Instant::now() + AGAIN_PAUSE >= deadline {
                return Err(error);
            }
            again = true;
            tokio::time::sleep(AGAIN_PAUSE).await;
        }
    }

    /// The placement group of each partition. Groups with another number of copies than the first ones are made when they are first asked for.
    async fn place(
        &self,
        topic: &NewTopic,
        deadline: Instant,
    ) -> Result<Vec<PlacementGroupId>, TopicError> {
        let copies = match &topic.placement {
            Placement::On(wanted) => {
                let chosen = self.image(|image| {
                    choose_groups_on(image, wanted).map_err(|missing| no_such(image, &missing))
                });
                return chosen;
            }
            Placement::Copies(copies) => *copies,
        };
        let copies = copies.unwrap_or_else(|| self.image(copies_default));
        let mut tries = 0;
        loop {
            let chosen = self.image(|image| choose_groups(image, topic.partitions, copies));
            if !chosen.is_empty() || topic.partitions == 0 {
                return Ok(chosen);
            }
            let groups = self.image(|image| new_groups(image, copies));
            let groups = groups.ok_or(TopicError::TooFewBrokers { copies })?;
            let count = groups.len();
            tracing::info!("{count} placement groups with {copies} copies are made");
            let command = MetadataCommand::CreateGroups { groups };
            match self.inner.metadata.propose_by(&command, deadline).await? {
                MetadataOutcome::MembersChanged => {}
                // Another broker made groups meanwhile, perhaps with another number of copies: this one's image has them now.
                MetadataOutcome::Refused(Refusal::Outdated) if tries < GROUPS_TRIES => tries += 1,
                MetadataOutcome::Refused(refusal) => return Err(TopicError::Refused(refusal)),
                other => {
                    return Err(ProposeError::Fatal(format!(
                        "creating groups was answered with {other:?}"
                    ))
                    .into());
                }
            }
        }
    }

    /// Deletes a topic. When this returns it is gone for good; its objects are collected later.
    ///
    /// # Errors
    /// [`TopicError`], at `deadline` at the latest.
    pub async fn delete_topic(&self, id: TopicId, deadline: Instant) -> Result<(), TopicError> {
        let command = MetadataCommand::DeleteTopic { id };
        match self.propose_again(&command, deadline).await? {
            (MetadataOutcome::TopicDeleted(topic), _) => {
                crash_point(CrashPoint::TopicDeleted);
                let groups: std::collections::BTreeSet<PlacementGroupId> =
                    topic.partitions.into_iter().collect();
                // Groups that others lead drop it when those brokers see the change.
                let led = groups.into_iter().filter_map(|group| self.led(group));
                let drops = led.map(|group| async move { self.drop_topic(&group, id).await });
                let dropped = timeout(EFFECT_WITHIN, futures::future::join_all(drops)).await;
                if !dropped.is_ok_and(|all| all.iter().all(Result::is_ok)) {
                    tracing::debug!(topic = %id, "partitions are dropped later");
                }
                Ok(())
            }
            // By the earlier try, whose answer was lost; partitions are dropped as for one that others lead.
            (MetadataOutcome::Refused(Refusal::UnknownTopic), true) => Ok(()),
            (MetadataOutcome::Refused(Refusal::UnknownTopic), false) => Err(TopicError::Unknown),
            (MetadataOutcome::Refused(refusal), _) => Err(TopicError::Refused(refusal)),
            (other, _) => Err(ProposeError::Fatal(format!(
                "deleting a topic was answered with {other:?}"
            ))
            .into()),
        }
    }

    pub(super) async fn create_partitions(
        &self,
        topic: TopicId,
        partitions: &[PlacementGroupId],
    ) -> Result<(), ProposeError> {
        let created = (0i32..).zip(partitions).filter_map(|(index, group)| {
            let group = self.led(*group)?;
            let partition = PartitionId {
                topic,
                index: PartitionIndex::new(index),
            };
            Some(async move { self.create_partition(&group, partition).await })
        });
        // Bounded: a topic of ten thousand partitions must not have ten thousand proposals in flight.
        let created = futures::stream::StreamExt::buffered(
            futures::stream::iter(created.collect::<Vec<_>>()),
            64,
        );
        futures::TryStreamExt::try_for_each(created, |_| futures::future::ready(Ok(()))).await
    }

    /// Makes a group that is led here have a partition, unless its topic is gone.
    pub(super) async fn create_partition(
        &self,
        group: &DataGroup,
        partition: PartitionId,
    ) -> Result<(), ProposeError> {
        for _ in 0..IMAGES_TRIES {
            let command = self.image(|image| {
                let topic = image.topic(partition.topic)?;
                Some(PartitionCommand::CreatePartition {
                    partition,
                    topic_name: topic.name.clone(),
                    by: image.last().index,
                    first_new_producer: topic.first_new_producer,
                })
            });
            let Some(command) = command else {
                return Ok(());
            };
            let (_, outcome) = group.propose(command).await?;
            if !matches!(outcome, PartitionOutcome::Refused(_)) {
                return Ok(());
            }
        }
        Err(ProposeError::NotLeader { leader: None })
    }

    /// Makes a group that is led here drop a topic that metadata no longer names.
    pub(super) async fn drop_topic(
        &self,
        group: &DataGroup,
        topic: TopicId,
    ) -> Result<(), ProposeError> {
        let by = self.image(|image| image.last().index);
        let command = PartitionCommand::DeleteTopic { topic, by };
        group.propose(command).await.map(|_| ())
    }

    fn led(&self, group: PlacementGroupId) -> Option<DataGroup> {
        self.data_group(group)
            .filter(|group| group.group().is_leader())
    }

    /// Waits until this broker's replicas have the partitions, or the leader of a group that is not held here: those in groups that others lead are created
    /// there by `reconcile`.
    async fn wait_created(
        &self,
        topic: TopicId,
        partitions: &[PlacementGroupId],
    ) -> Result<(), ProposeError> {
        let mut wanted: BTreeMap<PlacementGroupId, Vec<PartitionId>> = BTreeMap::new();
        for (index, group) in (0i32..).zip(partitions) {
            let index = PartitionIndex::new(index);
            let partition = PartitionId { topic, index };
            wanted.entry(*group).or_default().push(partition);
        }
        for (group, partitions) in wanted {
            let Some(group) = self.data_group(group) else {
                self.wait_created_elsewhere(group, &partitions).await;
                continue;
            };
            let mut applied = group.group().applied();
            let has_all = |group: &DataGroup| {
                group.group().read(|machine| {
                    let held = machine.partitions();
                    partitions.iter().all(|id| held.get(*id).is_some())
                })
            };
            loop {
                applied.borrow_and_update();
                if has_all(&group) {
                    break;
                }
                if applied.changed().await.is_err() {
                    return Err(ProposeError::Fatal("the broker is stopping".to_owned()));
                }
            }
        }
        Ok(())
    }

    /// Asks the leader of a group until it has the partitions.
    async fn wait_created_elsewhere(&self, group: PlacementGroupId, partitions: &[PartitionId]) {
        if self.inner.metadata.link.is_none() {
            return;
        }
        let asked: Vec<Asked> = partitions.iter().map(|id| (group, *id)).collect();
        for asked in asked.chunks(COMMIT_OFFSETS_MAX) {
            loop {
                let said = match self.leader(group) {
                    Some((leader, _)) => self.ask_ends(leader, asked, EFFECT_WITHIN).await,
                    None => None,
                };
                let there = |end: &End| matches!(end, End::At(_));
                if said.is_some_and(|ends| ends.iter().all(there)) {
                    break;
                }
                tokio::time::sleep(LOOK_PAUSE).await;
            }
        }
    }
}
