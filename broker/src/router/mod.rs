//! Router: which placement group serves a partition or a consumer group, and changes that span groups.
//!
//! Owns: partition -> placement group -> handle; topics created and deleted in metadata and data groups together;
//! producer ids.
//! Not here: Kafka's request types (`api`), what groups do (`datagroup`, `metadata`), uploads (`offload`).

mod groups;
mod producer_ids;
mod reconcile;
mod topics;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::datagroup::DataGroup;
use crate::metadata::{MetadataImage, MetadataMachine, Topic};
use crate::placement::{Group, ProposeError};
use tidelog_env::{Clock, Random};
use tidelog_model::{NodeId, PartitionId, PartitionIndex, PlacementGroupId, TimestampMs, TopicId};

pub use groups::{CommitBounds, GroupLogOf};
pub use topics::{NewTopic, TopicError};

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

/// Where everything is. Clones share it.
#[derive(Clone)]
pub struct Router {
    inner: Arc<Inner>,
}

struct Inner {
    node: NodeId,
    metadata: Group<MetadataMachine>,
    data: BTreeMap<PlacementGroupId, DataGroup>,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    producer_ids: producer_ids::ProducerIds,
}

impl Router {
    /// A router over the groups of this broker.
    #[must_use]
    pub fn new(
        node: NodeId,
        metadata: Group<MetadataMachine>,
        data: BTreeMap<PlacementGroupId, DataGroup>,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> Self {
        let producer_ids = producer_ids::ProducerIds::default();
        Self {
            inner: Arc::new(Inner {
                node,
                metadata,
                data,
                clock,
                random,
                producer_ids,
            }),
        }
    }

    /// This broker.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.inner.node
    }

    /// The metadata group.
    #[must_use]
    pub fn metadata(&self) -> &Group<MetadataMachine> {
        &self.inner.metadata
    }

    /// Reads the metadata image. Short: the image is locked meanwhile.
    pub fn image<R>(&self, read: impl FnOnce(&MetadataImage) -> R) -> R {
        self.inner.metadata.read(|machine| read(machine.image()))
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

    /// All data groups of this broker, by id.
    pub fn data_groups(&self) -> impl Iterator<Item = &DataGroup> {
        self.inner.data.values()
    }

    /// The largest record batch that every data group of this broker takes: what a topic may ask for, since its partitions may
    /// be in any of them.
    #[must_use]
    pub fn batch_bytes_max(&self) -> usize {
        self.data_groups()
            .map(DataGroup::batch_bytes_max)
            .min()
            .unwrap_or(usize::MAX)
    }

    /// The data group with this id, if this broker holds a replica of it.
    #[must_use]
    pub fn data_group(&self, id: PlacementGroupId) -> Option<&DataGroup> {
        self.inner.data.get(&id)
    }

    /// The group that holds `partition`, whoever leads it.
    ///
    /// # Errors
    /// [`RouteError`].
    pub fn group_of(&self, partition: PartitionId) -> Result<&DataGroup, RouteError> {
        let group = self
            .image(|image| image.placement(partition))
            .ok_or(RouteError::Unknown)?;
        self.inner.data.get(&group).ok_or(RouteError::NotLeader)
    }

    /// The group that holds `partition`, if this broker leads it and its lease holds.
    ///
    /// # Errors
    /// [`RouteError`].
    pub fn leader_of(&self, partition: PartitionId) -> Result<&DataGroup, RouteError> {
        let group = self.group_of(partition)?;
        if group.group().can_serve_reads() {
            Ok(group)
        } else {
            Err(RouteError::NotLeader)
        }
    }

    /// The group that coordinates the consumer groups of `slot`, if this broker leads it.
    ///
    /// # Errors
    /// [`RouteError`].
    pub fn coordinator_of(&self, slot: usize) -> Result<&DataGroup, RouteError> {
        let group = self
            .image(|image| image.slot_group(slot))
            .ok_or(RouteError::Unknown)?;
        let group = self.inner.data.get(&group).ok_or(RouteError::NotLeader)?;
        if group.group().can_serve_reads() {
            Ok(group)
        } else {
            Err(RouteError::NotLeader)
        }
    }

    fn stamp(&self) -> TimestampMs {
        TimestampMs::new(self.inner.clock.now_ms())
    }

    /// Proposes a metadata command with this broker's stamp.
    ///
    /// # Errors
    /// [`ProposeError`].
    pub async fn propose_metadata(
        &self,
        command: &crate::metadata::MetadataCommand,
    ) -> Result<crate::metadata::MetadataOutcome, ProposeError> {
        self.inner
            .metadata
            .propose(command.encode(self.stamp()))
            .await
            .map(|(_, outcome)| outcome)
    }
}
