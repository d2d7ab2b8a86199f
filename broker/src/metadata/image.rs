//! The metadata image: what every broker knows of the cluster.
//!
//! Owns: the replicated state and reading it. Invariants: a name has one topic; a topic's partition `n` lies in the
//! placement group `partitions[n]`, which exists; ids of deleted topics never come back (proposers draw them at random).
//! Not here: how it changes (`apply.rs`), its bytes (`format_snapshot.rs`).

use super::deleted::DeletedTopics;
use super::membership::{ClusterMember, ReplicaMove};
use super::names::collision_key;
use std::collections::BTreeMap;
use tidelog_model::{
    ClusterId, LogId, NodeId, PartitionId, PartitionIndex, PlacementGroupId, ProducerId,
    RaftNodeId, StoreId, TimestampMs, TopicId,
};

/// Consumer groups hash into this many slots; each slot belongs to one placement group.
pub const SLOTS: usize = 64;

/// Host and port of a listener.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// Name or literal address.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// A registered broker.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Broker {
    /// Its zone.
    pub zone: String,
    /// What Kafka clients are told; `None`: the address they dialled.
    pub kafka: Option<Address>,
    /// Where other brokers reach it.
    pub peer: Option<Address>,
    /// Its admin HTTP address.
    pub admin: Option<Address>,
    /// Stamp of the registration that brought these values.
    pub registered: TimestampMs,
    /// Since when clients are kept away from it, because it was silent or said that it stops; `None`: it lives.
    pub fenced: Option<TimestampMs>,
}

/// A topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    /// Its name.
    pub name: String,
    /// Stamp of its creation.
    pub created: TimestampMs,
    /// The placement group of each partition, in order. Never empty.
    pub partitions: Vec<PlacementGroupId>,
    /// Values that differ from the defaults, by Kafka's names.
    pub configs: BTreeMap<String, String>,
    /// The lowest id of a producer that cannot have written to an earlier topic of this name.
    pub first_new_producer: ProducerId,
}

/// The state of the metadata group. Cheap to read, changed by `apply` only.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MetadataImage {
    pub(super) last: LogId,
    pub(super) stamp: TimestampMs,
    pub(super) cluster: Option<(ClusterId, String)>,
    pub(super) next_producer_id: i64,
    pub(super) groups: BTreeMap<PlacementGroupId, Vec<NodeId>>,
    pub(super) slots: Vec<PlacementGroupId>,
    pub(super) brokers: BTreeMap<NodeId, Broker>,
    pub(super) topics: BTreeMap<TopicId, Topic>,
    pub(super) members: BTreeMap<NodeId, ClusterMember>,
    pub(super) moves: BTreeMap<PlacementGroupId, ReplicaMove>,
    pub(super) preferred: BTreeMap<PlacementGroupId, NodeId>,
    pub(super) founders: BTreeMap<PlacementGroupId, BTreeMap<NodeId, RaftNodeId>>,
    pub(super) departed: Vec<(NodeId, RaftNodeId)>,
    pub(super) lost: BTreeMap<PlacementGroupId, Vec<NodeId>>,
    pub(super) store: Option<StoreId>,
    pub(super) deleted: DeletedTopics,
    // Rebuilt from `topics`, not in the snapshot.
    pub(super) names: BTreeMap<String, TopicId>,
    pub(super) collisions: BTreeMap<String, TopicId>,
    pub(super) partition_count: usize,
}

impl MetadataImage {
    /// The last entry whose effects are inside: the image's version.
    #[must_use]
    pub const fn last(&self) -> LogId {
        self.last
    }

    /// Largest broker stamp seen.
    #[must_use]
    pub const fn stamp(&self) -> TimestampMs {
        self.stamp
    }

    /// Identity and name, once bootstrapped.
    #[must_use]
    pub fn cluster(&self) -> Option<(ClusterId, &str)> {
        self.cluster.as_ref().map(|(id, name)| (*id, name.as_str()))
    }

    /// Data groups and the brokers that replicate each.
    #[must_use]
    pub const fn groups(&self) -> &BTreeMap<PlacementGroupId, Vec<NodeId>> {
        &self.groups
    }

    /// The placement group of a consumer-group slot (0 to [`SLOTS`] - 1); `None` before the cluster is bootstrapped.
    #[must_use]
    pub fn slot_group(&self, slot: usize) -> Option<PlacementGroupId> {
        self.slots.get(slot).copied()
    }

    /// Registered brokers.
    #[must_use]
    pub const fn brokers(&self) -> &BTreeMap<NodeId, Broker> {
        &self.brokers
    }

    /// Whether `node` is registered and was heard lately.
    #[must_use]
    pub fn is_live(&self, node: NodeId) -> bool {
        let broker = self.brokers.get(&node);
        broker.is_some_and(|broker| broker.fenced.is_none())
    }

    /// Whether `node` has come since it was taken in, and said where its listeners are.
    #[must_use]
    pub fn is_registered(&self, node: NodeId) -> bool {
        let broker = self.brokers.get(&node);
        broker.is_some_and(|broker| broker.kafka.is_some())
    }

    /// All topics, by id.
    #[must_use]
    pub const fn topics(&self) -> &BTreeMap<TopicId, Topic> {
        &self.topics
    }

    /// The topic with this id.
    #[must_use]
    pub fn topic(&self, id: TopicId) -> Option<&Topic> {
        self.topics.get(&id)
    }

    /// The topic with this name.
    #[must_use]
    pub fn topic_by_name(&self, name: &str) -> Option<(TopicId, &Topic)> {
        let id = *self.names.get(name)?;
        self.topics.get(&id).map(|topic| (id, topic))
    }

    /// Topic ids in the order of their names.
    pub fn by_name(&self) -> impl Iterator<Item = (&str, TopicId, &Topic)> {
        self.names
            .iter()
            .filter_map(|(name, id)| self.topics.get(id).map(|topic| (name.as_str(), *id, topic)))
    }

    /// The placement group of a partition; `None` when topic or partition do not exist.
    #[must_use]
    pub fn placement(&self, partition: PartitionId) -> Option<PlacementGroupId> {
        let index = usize::try_from(partition.index.get()).ok()?;
        self.topics
            .get(&partition.topic)?
            .partitions
            .get(index)
            .copied()
    }

    /// Every partition of one placement group, in id order, with its topic's name.
    pub fn partitions_of(
        &self,
        group: PlacementGroupId,
    ) -> impl Iterator<Item = (PartitionId, &Topic)> {
        self.topics.iter().flat_map(move |(id, topic)| {
            let indexes = (0i32..)
                .zip(&topic.partitions)
                .filter(move |(_, at)| **at == group);
            indexes.map(move |(index, _)| {
                (
                    PartitionId {
                        topic: *id,
                        index: PartitionIndex::new(index),
                    },
                    topic,
                )
            })
        })
    }

    /// Number of partitions in the cluster.
    #[must_use]
    pub const fn partition_count(&self) -> usize {
        self.partition_count
    }

    /// Partitions of each data group: the load that `choose_groups` evens out.
    #[must_use]
    pub fn group_loads(&self) -> BTreeMap<PlacementGroupId, usize> {
        let mut loads: BTreeMap<_, _> = self.groups.keys().map(|group| (*group, 0)).collect();
        for group in self.topics.values().flat_map(|topic| &topic.partitions) {
            *loads.entry(*group).or_default() += 1;
        }
        loads
    }

    /// Adds a topic and its index entries. The caller has checked it.
    pub(super) fn insert_topic(&mut self, id: TopicId, topic: Topic) {
        self.partition_count += topic.partitions.len();
        self.names.insert(topic.name.clone(), id);
        self.collisions.insert(collision_key(&topic.name), id);
        self.topics.insert(id, topic);
    }

    /// Takes a topic and its index entries out.
    pub(super) fn remove_topic(&mut self, id: TopicId) -> Option<Topic> {
        let topic = self.topics.remove(&id)?;
        self.partition_count = self.partition_count.saturating_sub(topic.partitions.len());
        self.names.remove(&topic.name);
        self.collisions.remove(&collision_key(&topic.name));
        Some(topic)
    }
}
