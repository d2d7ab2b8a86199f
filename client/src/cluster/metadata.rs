//! What is known of a cluster: a value that is replaced as a whole.

use crate::error::{Error, ErrorCode};
use kafka_wire::MetadataResponse;
use std::collections::BTreeMap;
use tidelog_model::{NodeId, PartitionIndex};

/// A broker as it advertises itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broker {
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Zone.
    pub rack: Option<String>,
}

impl Broker {
    /// `host:port`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionMeta {
    /// Who leads it; `None` while nobody does.
    pub leader: Option<NodeId>,
    /// Its leader epoch (-1: unknown).
    pub leader_epoch: i32,
    /// Its replicas.
    pub replicas: Vec<NodeId>,
    /// Those in sync.
    pub in_sync: Vec<NodeId>,
}

/// A topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicMeta {
    /// What the broker said of it.
    pub error: ErrorCode,
    /// Its id, all zero when the broker gives none.
    pub id: [u8; 16],
    /// Whether it belongs to the cluster itself.
    pub is_internal: bool,
    /// Its partitions, by number, without a gap.
    pub partitions: Vec<PartitionMeta>,
}

impl TopicMeta {
    /// A broker that is cut off from the others tells old leaders, itself perhaps, for as long as it is: a leader of a lower epoch than a
    /// known one is not taken.
    fn keep_newer(&mut self, known: &Self) {
        for (told, known) in self.partitions.iter_mut().zip(&known.partitions) {
            if (0..known.leader_epoch).contains(&told.leader_epoch) {
                told.leader = known.leader;
                told.leader_epoch = known.leader_epoch;
            }
        }
    }

    /// Whether it exists and has partitions.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.error == ErrorCode::NONE && !self.partitions.is_empty()
    }
}

/// Brokers and topics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The cluster's id.
    pub cluster_id: Option<String>,
    /// The broker that takes changes.
    pub controller: Option<NodeId>,
    /// Brokers.
    pub brokers: BTreeMap<NodeId, Broker>,
    /// Topics that were asked for.
    pub topics: BTreeMap<String, TopicMeta>,
}

impl Metadata {
    /// Who leads a partition.
    #[must_use]
    pub fn leader(&self, topic: &str, partition: PartitionIndex) -> Option<NodeId> {
        self.partition(topic, partition)?.leader
    }

    /// A partition.
    #[must_use]
    pub fn partition(&self, topic: &str, partition: PartitionIndex) -> Option<&PartitionMeta> {
        self.topics
            .get(topic)?
            .partitions
            .get(usize::try_from(partition.get()).ok()?)
    }

    /// How many partitions a topic has.
    #[must_use]
    pub fn partition_count(&self, topic: &str) -> i32 {
        self.topics.get(topic).map_or(0, |topic| {
            i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX)
        })
    }

    /// `Ok` for a topic that can be used.
    pub fn check_topic(&self, name: &str) -> Result<(), Error> {
        let error = self
            .topics
            .get(name)
            .map_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, |topic| topic.error);
        error.check(format!("topic '{name}'"), None)?;
        if self.partition_count(name) == 0 {
            return ErrorCode::LEADER_NOT_AVAILABLE
                .check(format!("topic '{name}'"), Some("it has no partitions yet"));
        }
        Ok(())
    }

    /// This with a response laid over it. Topics of an answer to "all" replace the known ones.
    pub(super) fn merge(&self, response: &MetadataResponse, all: bool) -> Result<Self, Error> {
        ErrorCode::new(response.error_code).check("metadata", None)?;
        let mut brokers = BTreeMap::new();
        for broker in &response.brokers {
            let port = u16::try_from(broker.port).map_err(|_| Error::Protocol {
                address: broker.host.to_string(),
                cause: format!("broker {} advertises port {}", broker.node_id, broker.port),
            })?;
            let rack = broker.rack.as_ref().map(ToString::to_string);
            brokers.insert(
                NodeId::new(broker.node_id),
                Broker {
                    host: broker.host.to_string(),
                    port,
                    rack,
                },
            );
        }
        let mut topics = if all {
            BTreeMap::new()
        } else {
            self.topics.clone()
        };
        for topic in &response.topics {
            let Some(name) = topic.name.as_ref().map(ToString::to_string) else {
                continue;
            };
            let mut meta = TopicMeta {
                error: ErrorCode::new(topic.error_code),
                id: topic.topic_id.to_bytes(),
                is_internal: topic.is_internal,
                partitions: partitions(topic)?,
            };
            if let Some(known) = self.topics.get(&name).filter(|known| known.id == meta.id) {
                meta.keep_newer(known);
            }
            topics.insert(name, meta);
        }
        Ok(Self {
            cluster_id: response.cluster_id.as_ref().map(ToString::to_string),
            controller: (response.controller_id >= 0).then(|| NodeId::new(response.controller_id)),
            brokers,
            topics,
        })
    }
}

/// In order of their numbers; a gap would make the partitioner send to partitions that are not there.
fn partitions(
    topic: &kafka_wire::metadata_response::MetadataResponseTopic,
) -> Result<Vec<PartitionMeta>, Error> {
    let mut listed: Vec<_> = topic.partitions.iter().collect();
    listed.sort_by_key(|partition| partition.partition_index);
    let mut partitions = Vec::with_capacity(listed.len());
    for (at, partition) in listed.into_iter().enumerate() {
        if usize::try_from(partition.partition_index) != Ok(at) {
            return Err(Error::Protocol {
                address: "metadata".to_owned(),
                cause: format!("partition {at} is missing among {}", topic.partitions.len()),
            });
        }
        let nodes = |ids: &[i32]| ids.iter().copied().map(NodeId::new).collect();
        partitions.push(PartitionMeta {
            leader: (partition.leader_id >= 0).then(|| NodeId::new(partition.leader_id)),
            leader_epoch: partition.leader_epoch,
            replicas: nodes(&partition.replica_nodes),
            in_sync: nodes(&partition.isr_nodes),
        });
    }
    Ok(partitions)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use kafka_wire::metadata_response::{MetadataResponsePartition, MetadataResponseTopic};
    use kafka_wire_core::StrBytes;

    fn told(leaders: &[(i32, i32)]) -> MetadataResponse {
        let mut topic = MetadataResponseTopic::default();
        topic.name = Some(StrBytes::from("t"));
        topic.partitions = (0..)
            .zip(leaders)
            .map(|(index, (leader, epoch))| {
                let mut partition = MetadataResponsePartition::default();
                partition.partition_index = index;
                partition.leader_id = *leader;
                partition.leader_epoch = *epoch;
                partition
            })
            .collect();
        let mut response = MetadataResponse::default();
        response.topics = vec![topic];
        response
    }

    /// Proves that a leader of a lower epoch does not replace a known one, that one of the same or a higher does, as well as none, and
    /// that without epochs the newest answer counts.
    #[test]
    fn old_leaders_are_not_taken() {
        let known = Metadata::default()
            .merge(&told(&[(1, 5), (1, 5), (1, 5), (1, 5), (1, -1)]), true)
            .unwrap();
        for all in [true, false] {
            let merged = known
                .merge(&told(&[(2, 4), (2, 5), (2, 6), (-1, 5), (2, -1)]), all)
                .unwrap();
            let leaders: Vec<_> = merged.topics["t"]
                .partitions
                .iter()
                .map(|partition| (partition.leader.map(NodeId::get), partition.leader_epoch))
                .collect();
            let expected = [
                (Some(1), 5),
                (Some(2), 5),
                (Some(2), 6),
                (None, 5),
                (Some(2), -1),
            ];
            assert_eq!(leaders, expected);
        }
    }
}
