//! Router: which placement group serves a partition or a consumer group, and changes that span groups.
//!
//! Owns: partition -> placement group -> handle; topics created and deleted in metadata and data groups together;
//! producer ids.
//! Not here: Kafka's request types (`api`), what groups do (`datagroup`, `metadata`), uploads (`offload`).

mod commit_bounds;
mod dropped;
mod elsewhere;
mod ends;
mod fitness;
mod groups;
mod heartbeats;
mod metadata_client;
mod metadata_service;
mod names;
mod producer_ids;
mod reconcile;
mod sessions;
mod topics;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use crate::datagroup::DataGroup;
use crate::metadata::{Broker, MetadataImage, MetadataMachine, Topic};
use crate::placement::{Group, GroupMap, ProposeError, StateMachine};
use futures::future::{join, join_all};
use tidelog_model::{
    LeaderEpoch, NodeId, PartitionId, PartitionIndex, PlacementGroupId, RaftNodeId, Term,
    TimestampMs, TopicId,
};
use tokio::sync::watch;

pub use commit_bounds::CommitBounds;
pub use elsewhere::{LeadersElsewhere, decode_leaders, encode_leaders};
pub use ends::EndsService;
pub use fitness::{Fitness, FitnessBook};
pub use groups::GroupLogOf;
pub use heartbeats::{BrokerSessions, Heartbeats};
pub use metadata_client::{BrokerBook, MetadataClient, MetadataLink};
pub use metadata_service::MetadataService;
pub use topics::{NewTopic, Placement, TopicError};

/// Why a partition cannot be served here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// No such topic or partition.
    #[error("no such topic or partition")]
    Unknown,
    /// Another broker leads its group, or nobody does at the moment.
    #[error("this broker does not lead the partition")]
    NotLeader,
}

/// A replica of a partition that serves a reader.
#[derive(Clone)]
pub struct Readable {
    /// Its group.
    pub group: DataGroup,
    /// The leader epoch in which it serves.
    pub epoch: LeaderEpoch,
    /// Whether it is the leader's.
    pub leads: bool,
}

/// Where everything is. Clones share it.
#[derive(Clone)]
pub struct Router {
    inner: Arc<Inner>,
}

struct Inner {
    metadata: MetadataClient,
    data: GroupMap<DataGroup>,
    held: watch::Sender<u64>,
    elsewhere: LeadersElsewhere,
    ends: ends::Ends,
    fitness: FitnessBook,
    names: names::Names,
    batch_bytes: usize,
    producer_ids: producer_ids::ProducerIds,
    withheld: OnceLock<BTreeSet<PlacementGroupId>>,
}

impl Router {
    /// A router over the groups that this broker comes to hold, and over those that `elsewhere` knows of. `batch_bytes`: the largest record batch that a data group would
    /// take here.
    #[must_use]
    pub fn new(metadata: MetadataClient, elsewhere: LeadersElsewhere, batch_bytes: usize) -> Self {
        let producer_ids = producer_ids::ProducerIds::default();
        Self {
            inner: Arc::new(Inner {
                metadata,
                data: GroupMap::default(),
                held: watch::Sender::new(0),
                elsewhere,
                ends: ends::Ends::default(),
                fitness: FitnessBook::default(),
                names: names::Names::default(),
                batch_bytes,
                producer_ids,
                withheld: OnceLock::new(),
            }),
        }
    }

    /// The replicas of these groups are damaged here, and do not run.
    pub fn withhold(&self, groups: BTreeSet<PlacementGroupId>) {
        // A broker says it once.
        let _ = self.inner.withheld.set(groups);
    }

    /// Whether the replica of `group` is damaged here, and does not run.
    #[must_use]
    pub fn is_withheld(&self, group: PlacementGroupId) -> bool {
        let withheld = self.inner.withheld.get();
        withheld.is_some_and(|groups| groups.contains(&group))
    }

    /// This broker.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.inner.metadata.node
    }

    /// What other brokers have said of themselves.
    #[must_use]
    pub fn fitness(&self) -> &FitnessBook {
        &self.inner.fitness
    }

    /// The time by this broker's clock, as stamps have it.
    #[must_use]
    pub fn now(&self) -> TimestampMs {
        TimestampMs::new(self.inner.metadata.clock.now_ms())
    }

    /// The metadata group.
    #[must_use]
    pub fn metadata(&self) -> &Group<MetadataMachine> {
        &self.inner.metadata.group
    }

    /// Reads the metadata image. Short: the image is locked meanwhile.
    pub fn image<R>(&self, read: impl FnOnce(&MetadataImage) -> R) -> R {
        self.inner
            .metadata
            .group
            .read(|machine| read(machine.image()))
    }

    /// The topic with this name.
    #[must_use]
    pub fn topic_by_name(&self, name: &str) -> Option<(TopicId, Topic)> {
        self.image(|image| {
            image
                .topic_by_name(name)
                .map(|(id, topic)| (id, topic.clone()))
        })
    }

    /// The name of a topic.
    #[must_use]
    pub fn topic_name(&self, id: TopicId) -> Option<String> {
        self.image(|image| image.topic(id).map(|topic| topic.name.clone()))
    }

    /// The id of the partition `index` of the topic called `name`.
    #[must_use]
    pub fn partition(&self, name: &str, index: i32) -> Option<PartitionId> {
        self.image(|image| {
            let (topic, _) = image.topic_by_name(name)?;
            let partition = PartitionId {
                topic,
                index: PartitionIndex::new(index),
            };
            image.placement(partition).map(|_| partition)
        })
    }

    /// This broker holds the group from now on.
    pub fn hold(&self, group: DataGroup) {
        self.inner.data.insert(group.id(), group);
        self.inner.held.send_modify(|version| *version += 1);
    }

    /// This broker no longer holds the group.
    pub fn let_go(&self, group: PlacementGroupId) {
        self.inner.data.remove(group);
        self.inner.held.send_modify(|version| *version += 1);
    }

    /// Changes with every group that comes or goes here.
    #[must_use]
    pub fn held(&self) -> watch::Receiver<u64> {
        self.inner.held.subscribe()
    }

    /// All data groups of this broker, by id.
    pub fn data_groups(&self) -> impl Iterator<Item = DataGroup> {
        let groups: Vec<DataGroup> = self.inner.data.all().values().cloned().collect();
        groups.into_iter()
    }

    /// The largest record batch that every data group of this broker takes, or would take where it holds none: what a topic may ask for, since its partitions may
    /// be in any of them.
    #[must_use]
    pub fn batch_bytes_max(&self) -> usize {
        self.data_groups()
            .map(|group| group.batch_bytes_max())
            .min()
            .unwrap_or(self.inner.batch_bytes)
    }

    /// The data group with this id, if this broker holds a replica of it.
    #[must_use]
    pub fn data_group(&self, id: PlacementGroupId) -> Option<DataGroup> {
        self.inner.data.get(id)
    }

    /// The group that holds `partition`, whoever leads it.
    ///
    /// # Errors
    /// [`RouteError`].
    pub fn group_of(&self, partition: PartitionId) -> Result<DataGroup, RouteError> {
        let group = self
            .image(|image| image.placement(partition))
            .ok_or(RouteError::Unknown)?;
        self.inner.data.get(group).ok_or(RouteError::NotLeader)
    }

    /// The group that holds `partition`, if this broker leads it and its lease holds.
    ///
    /// # Errors
    /// [`RouteError`].
    pub fn leader_of(&self, partition: PartitionId) -> Result<DataGroup, RouteError> {
        self.leading(partition).map(|(group, _)| group)
    }

    /// The same, with the leader epoch in which it leads.
    ///
    /// # Errors
    /// [`RouteError`].
    pub fn leading(&self, partition: PartitionId) -> Result<(DataGroup, LeaderEpoch), RouteError> {
        let group = self.group_of(partition)?;
        let term = group.group().serving_term().ok_or(RouteError::NotLeader)?;
        Ok((group, LeaderEpoch::of_term(term)))
    }

    /// The replica here that may serve a reader of `partition`: the leader's, or, for who wants to `follow`, one that is close behind.
    ///
    /// # Errors
    /// [`RouteError`].
    pub fn readable(&self, partition: PartitionId, follow: bool) -> Result<Readable, RouteError> {
        let group = self.group_of(partition)?;
        let serving = group.group().serving_term();
        let follows = || group.group().following_term().filter(|_| follow);
        let term = serving.or_else(follows).ok_or(RouteError::NotLeader)?;
        Ok(Readable {
            group,
            epoch: LeaderEpoch::of_term(term),
            leads: serving.is_some(),
        })
    }

    /// A broker in `zone` that lives and follows this one closely in the group of `partition`, to send readers to. Partitions are shared out.
    /// One whose store is not the cluster's could not read history.
    #[must_use]
    pub fn follower_in(&self, zone: &str, partition: PartitionId) -> Option<NodeId> {
        let close = self.group_of(partition).ok()?.group().close_brokers();
        let there: Vec<NodeId> = self.image(|image| {
            let zone_of = |node: &NodeId| image.brokers().get(node).map(|known| &known.zone);
            let fits = |node: &NodeId| {
                let is_there = image.is_live(*node) && zone_of(node).is_some_and(|at| at == zone);
                is_there && !self.inner.fitness.store_wrong(*node)
            };
            close.into_iter().filter(fits).collect()
        });
        let index = usize::try_from(partition.index.get()).ok()?;
        there.get(index.checked_rem(there.len())?).copied()
    }

    /// Who leads `group`, if that is known: this broker while its lease holds, or another one that it hears.
    #[must_use]
    pub fn known_leader<M: StateMachine>(&self, group: &Group<M>) -> Option<(NodeId, Term)> {
        let known = *group.leadership().borrow();
        let leader = known.leader?;
        let current = if leader == self.node() {
            group.can_serve_reads()
        } else {
            group.hears_leader()
        };
        current.then_some((leader, known.term))
    }

    /// Whether this broker leads the partition in `epoch` still: what was read before the call was current then (I4).
    #[must_use]
    pub fn leads_still(&self, partition: PartitionId, epoch: LeaderEpoch) -> bool {
        self.leading(partition).is_ok_and(|(_, now)| now == epoch)
    }

    /// The group that coordinates the consumer groups of `slot`, if this broker leads it.
    ///
    /// # Errors
    /// [`RouteError`].
    pub fn coordinator_of(&self, slot: usize) -> Result<DataGroup, RouteError> {
        let group = self
            .image(|image| image.slot_group(slot))
            .ok_or(RouteError::Unknown)?;
        let group = self.inner.data.get(group).ok_or(RouteError::NotLeader)?;
        if group.group().can_serve_reads() {
            Ok(group)
        } else {
            Err(RouteError::NotLeader)
        }
    }

    /// The broker that leads the group that coordinates the consumer groups of `slot`, as far as this one knows.
    #[must_use]
    pub fn coordinator_broker(&self, slot: usize) -> Option<NodeId> {
        let group = self.image(|image| image.slot_group(slot))?;
        self.leader(group).map(|(leader, _)| leader)
    }

    /// The broker that leads a data group, and its term, as far as this broker knows; not this one while it cannot serve.
    #[must_use]
    pub fn leader(&self, group: PlacementGroupId) -> Option<(NodeId, Term)> {
        match self.inner.data.get(group) {
            None => self.inner.elsewhere.leader(group),
            Some(held) => self.known_leader(held.group()),
        }
    }

    /// Groups that this broker leads, metadata's too, and whose acknowledged entries are all on the disks of a quorum without the replica `gone`, which has answered
    /// since this was called. Takes half a second at most.
    pub async fn groups_without(&self, gone: RaftNodeId) -> Vec<PlacementGroupId> {
        let data = self.data_groups().map(async |group| {
            let safe = group.group().holds_without(gone).await;
            safe.then(|| group.id())
        });
        let metadata = async {
            let safe = self.metadata().holds_without(gone).await;
            safe.then_some(PlacementGroupId::METADATA)
        };
        let (data, metadata) = join(join_all(data), metadata).await;
        data.into_iter().chain([metadata]).flatten().collect()
    }

    /// Brokers whose replica has lost entries that it had acknowledged to this broker, which leads the group.
    #[must_use]
    pub fn reverted(&self) -> BTreeMap<PlacementGroupId, Vec<NodeId>> {
        let brokers = |reverted: BTreeMap<RaftNodeId, NodeId>| reverted.into_values().collect();
        let data = self.data_groups();
        let data = data.map(|group| (group.id(), brokers(group.group().reverted())));
        let metadata = (
            PlacementGroupId::METADATA,
            brokers(self.metadata().reverted()),
        );
        let all = std::iter::once(metadata).chain(data);
        all.filter(|(_, brokers): &(_, Vec<_>)| !brokers.is_empty())
            .collect()
    }

    /// Groups that this broker leads, as it knows for certain now.
    #[must_use]
    pub fn led_groups(&self) -> Vec<PlacementGroupId> {
        let led = self
            .data_groups()
            .filter(|group| group.group().serving_term().is_some());
        led.map(|group| group.id()).collect()
    }

    /// Groups of which this broker's replica is empty: it waits to be taken in.
    #[must_use]
    pub fn empty_groups(&self) -> Vec<PlacementGroupId> {
        let empty = self.data_groups().filter(|group| group.group().is_empty());
        empty.map(|group| group.id()).collect()
    }

    /// Lost groups of which this broker holds a replica, with the names of their partitions.
    #[must_use]
    pub fn lost_groups(&self) -> BTreeMap<PlacementGroupId, Vec<String>> {
        self.image(|image| {
            let lost = image.lost().keys().copied();
            let held = lost.filter(|group| image.holds(*group, self.node()));
            held.map(|group| (group, image.partition_names(group)))
                .collect()
        })
    }

    /// The broker that leads the metadata group, as far as this one knows.
    #[must_use]
    pub fn controller(&self) -> Option<NodeId> {
        self.known_leader(self.metadata()).map(|(leader, _)| leader)
    }

    /// A registered broker.
    #[must_use]
    pub fn broker(&self, id: NodeId) -> Option<Broker> {
        self.image(|image| image.brokers().get(&id).cloned())
    }

    /// Copies of a partition when a topic does not ask for a number.
    #[must_use]
    pub fn copies_default(&self) -> usize {
        self.image(crate::metadata::copies_default)
    }

    /// Proposes a metadata command, wherever its group is led; this broker's image has the change when it returns.
    ///
    /// # Errors
    /// [`ProposeError`].
    pub async fn propose_metadata(
        &self,
        command: &crate::metadata::MetadataCommand,
    ) -> Result<crate::metadata::MetadataOutcome, ProposeError> {
        self.inner.metadata.propose(command).await
    }

    /// Waits until this broker's image has everything that was committed when this was called.
    ///
    /// # Errors
    /// [`ProposeError`]; nothing has changed.
    pub async fn metadata_barrier(&self) -> Result<(), ProposeError> {
        self.inner.metadata.barrier().await
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
