//! Topics, offsets and settings of a cluster.
//!
//! Owns: create, delete, list and describe topics; list offsets; producer ids.
//! Not here: what Kafka has no words for (`admin_http`).

use crate::cluster::{Cluster, Metadata};
use crate::error::{Error, ErrorCode};
use kafka_wire::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_wire::delete_topics_request::DeleteTopicState;
use kafka_wire::describe_configs_request::DescribeConfigsResource;
use kafka_wire::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_wire::list_offsets_response::ListOffsetsPartitionResponse;
use kafka_wire::{
    CreateTopicsRequest, DeleteTopicsRequest, DescribeConfigsRequest, ListOffsetsRequest,
    ListOffsetsResponse,
};
use kafka_wire_core::{StrBytes, Uuid};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidelog_model::{NodeId, Offset, PartitionIndex, TimestampMs};
use tokio::time::Instant;

const RESOURCE_TOPIC: i8 = 2;

/// Which offset of a partition is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetSpec {
    /// The first record still there.
    Earliest,
    /// The high watermark: where the next record readers will see goes.
    Latest,
    /// The first record with this time or a later one; the high watermark when there is none.
    Timestamp(TimestampMs),
}

/// A setting of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigEntry {
    /// Kafka's name.
    pub name: String,
    /// Its value; `None` for a secret.
    pub value: Option<String>,
    /// Where it comes from, Kafka's name: `DYNAMIC_TOPIC_CONFIG`, `DEFAULT_CONFIG`, …
    pub source: &'static str,
}

impl Cluster {
    /// Creates a topic with the cluster's default number of copies; it is in the metadata when this returns. Tried again when the answer
    /// is lost: a topic that is there then, with these partitions and settings, is the created one.
    pub async fn create_topic(
        &self,
        name: &str,
        partitions: i32,
        configs: &[(String, String)],
    ) -> Result<(), Error> {
        self.create_topic_with(name, partitions, -1, configs).await
    }

    /// The same with so many copies of every partition; -1 is the default.
    pub async fn create_topic_with(
        &self,
        name: &str,
        partitions: i32,
        copies: i16,
        configs: &[(String, String)],
    ) -> Result<(), Error> {
        let what = format!("create topic '{name}'");
        let answer = self
            .ask_any::<CreateTopicsRequest>(
                2..=7,
                false,
                |_| {
                    let mut topic = CreatableTopic::default();
                    topic.name = StrBytes::from(name);
                    topic.num_partitions = partitions;
                    topic.replication_factor = copies;
                    topic.configs = configs
                        .iter()
                        .map(|(key, value)| config(key, value))
                        .collect();
                    let mut request = CreateTopicsRequest::default();
                    request.topics = vec![topic];
                    request.timeout_ms = self.timeout_ms();
                    request
                },
                |response, open| match response.topics.first() {
                    Some(topic) if open && exists(topic.error_code) => Ok(()),
                    Some(topic) => ErrorCode::new(topic.error_code)
                        .check(what.as_str(), topic.error_message.as_deref()),
                    None => Err(nothing_in_the_answer(&what)),
                },
            )
            .await?;
        self.topic_appears(name).await?;
        match answer.topics.first() {
            Some(topic) if exists(topic.error_code) => {
                self.is_as_asked(name, partitions, copies, configs).await
            }
            _ => Ok(()),
        }
    }

    /// Of a topic that was there when its creation, whose first answer was lost, was asked for again: whether it is what was asked for.
    async fn is_as_asked(
        &self,
        name: &str,
        partitions: i32,
        copies: i16,
        configs: &[(String, String)],
    ) -> Result<(), Error> {
        let metadata = self.topic(name).await?;
        let found = metadata.topics.get(name);
        let found = found.map_or(&[][..], |topic| &topic.partitions);
        let as_many = |wanted: i64, found: usize| wanted < 0 || i64::try_from(found) == Ok(wanted);
        let settings = self.describe_topic_configs(name).await?;
        let set = |(key, value): &(String, String)| {
            settings
                .iter()
                .any(|entry| entry.name == *key && entry.value.as_ref() == Some(value))
        };
        if as_many(partitions.into(), found.len())
            && found
                .iter()
                .all(|partition| as_many(copies.into(), partition.replicas.len()))
            && configs.iter().all(set)
        {
            return Ok(());
        }
        ErrorCode::TOPIC_ALREADY_EXISTS.check(
            format!("create topic '{name}'"),
            Some("there is one with other partitions, copies or settings"),
        )
    }

    /// A created topic is known to the broker that created it; others hear of it a little later.
    async fn topic_appears(&self, name: &str) -> Result<(), Error> {
        let mut attempts = self.attempts();
        loop {
            let error = match self
                .refresh(Some(&[name]))
                .await
                .map(|metadata| metadata.check_topic(name))
            {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) | Err(error) => error,
            };
            attempts.again(error).await?;
        }
    }

    /// Deletes a topic with its records. Tried again when the answer is lost, by the topic's id where the cluster tells it, so that another
    /// one that got its name meanwhile stays.
    pub async fn delete_topic(&self, name: &str) -> Result<(), Error> {
        let mut gone = None;
        loop {
            // A broker that lags tells an id that is gone, or none: who deletes by name finds out.
            let id = self.id_now(name).await?.filter(|id| gone != Some(*id));
            if self.delete(name, id).await? {
                return Ok(());
            }
            gone = id;
        }
    }

    /// The id of a topic, as far as a broker knows it now and tells ids.
    async fn id_now(&self, name: &str) -> Result<Option<[u8; 16]>, Error> {
        match self.topic_now(name).await {
            Ok(metadata) => {
                let id = metadata.topics.get(name).map(|topic| topic.id);
                Ok(id.filter(|id| *id != [0; 16]))
            }
            Err(error) if error.code() == Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Deletes a topic, by id if that is known. `false`: nothing has this id, and nothing was deleted.
    async fn delete(&self, name: &str, id: Option<[u8; 16]>) -> Result<bool, Error> {
        let what = format!("delete topic '{name}'");
        let unknown = || Error::Invalid(format!("{what}: there is no such topic"));
        let no_such_id = AtomicBool::new(false);
        self.ask_any::<DeleteTopicsRequest>(
            1..=6,
            false,
            |version| deletion(name, id, version, self.timeout_ms()),
            |response, open| match response.responses.first() {
                Some(topic) if is_unknown(topic.error_code) && open => Ok(()),
                Some(topic) if topic.error_code == ErrorCode::UNKNOWN_TOPIC_ID.get() => {
                    no_such_id.store(true, Ordering::Relaxed);
                    Ok(())
                }
                // An unknown topic is final here, though elsewhere it means "not known yet".
                Some(topic) if is_unknown(topic.error_code) => Err(unknown()),
                Some(topic) => ErrorCode::new(topic.error_code)
                    .check(what.as_str(), topic.error_message.as_deref()),
                None => Err(nothing_in_the_answer(&what)),
            },
        )
        .await?;
        Ok(!no_such_id.into_inner())
    }

    /// All topics.
    pub async fn list_topics(&self) -> Result<Arc<Metadata>, Error> {
        let mut attempts = self.attempts();
        loop {
            match self.refresh(None).await {
                Ok(metadata) => return Ok(metadata),
                Err(error) if self.never_reached(&error) => return Err(error),
                Err(error) => attempts.again(error).await?,
            }
        }
    }

    /// The settings of a topic, by name.
    pub async fn describe_topic_configs(&self, name: &str) -> Result<Vec<ConfigEntry>, Error> {
        let what = format!("settings of topic '{name}'");
        let response = self
            .ask_any::<DescribeConfigsRequest>(
                1..=4,
                true,
                |_| {
                    let mut resource = DescribeConfigsResource::default();
                    resource.resource_type = RESOURCE_TOPIC;
                    resource.resource_name = StrBytes::from(name);
                    resource.configuration_keys = None;
                    let mut request = DescribeConfigsRequest::default();
                    request.resources = vec![resource];
                    request
                },
                |response, _| match response.results.first() {
                    Some(result) => ErrorCode::new(result.error_code)
                        .check(what.as_str(), result.error_message.as_deref()),
                    None => Err(nothing_in_the_answer(&what)),
                },
            )
            .await?;
        let mut entries: Vec<ConfigEntry> = response
            .results
            .iter()
            .flat_map(|result| &result.configs)
            .map(|config| ConfigEntry {
                name: config.name.to_string(),
                value: config.value.as_ref().map(ToString::to_string),
                source: source_name(config.config_source),
            })
            .collect();
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(entries)
    }

    /// One offset per partition of `wanted`, from the leaders, tried again until the operation's deadline.
    pub async fn list_offsets(
        &self,
        topic: &str,
        wanted: &BTreeMap<PartitionIndex, OffsetSpec>,
    ) -> Result<BTreeMap<PartitionIndex, Offset>, Error> {
        let mut found = BTreeMap::new();
        let mut left = wanted.clone();
        let mut attempts = self.attempts();
        self.topic(topic).await?;
        while !left.is_empty() {
            let (offsets, failed) = self.offsets_by(topic, &left, self.request_deadline()).await;
            left.retain(|partition, _| !offsets.contains_key(partition));
            found.extend(offsets);
            if let Some(error) = failed {
                let stale = error.wants_metadata();
                attempts.again(error).await?;
                if stale && let Err(error) = self.refresh(Some(&[topic])).await {
                    attempts.again(error).await?;
                }
            }
        }
        Ok(found)
    }

    /// Asks every leader of `wanted` once, all at the same time. Returns what they told until `until`, and why the rest is missing: what trying again does not mend
    /// before anything else.
    pub async fn offsets_by(
        &self,
        topic: &str,
        wanted: &BTreeMap<PartitionIndex, OffsetSpec>,
        until: Instant,
    ) -> (BTreeMap<PartitionIndex, Offset>, Option<Error>) {
        let asked = self.by_leader(topic, wanted).into_iter();
        let answers = asked.map(async |(leader, group)| {
            let Some(node) = leader else {
                return Err(no_leader(topic));
            };
            let answer = self.offsets_from(node, topic, &group);
            let answer = tokio::time::timeout_at(until, answer).await;
            answer.unwrap_or_else(|_| {
                Err(Error::NoAnswer {
                    address: format!("broker {node}"),
                    cause: format!("it did not tell offsets of {topic} in time"),
                })
            })
        });
        let (mut found, mut failed) = (BTreeMap::new(), None);
        for answer in futures::future::join_all(answers).await {
            let why = match answer {
                Ok((offsets, why)) => {
                    found.extend(offsets);
                    why
                }
                Err(error) => Some(error),
            };
            failed = worse(failed, why);
        }
        (found, failed)
    }

    fn by_leader(
        &self,
        topic: &str,
        wanted: &BTreeMap<PartitionIndex, OffsetSpec>,
    ) -> BTreeMap<Option<NodeId>, BTreeMap<PartitionIndex, OffsetSpec>> {
        let metadata = self.metadata();
        let mut groups: BTreeMap<Option<NodeId>, BTreeMap<_, _>> = BTreeMap::new();
        for (partition, spec) in wanted {
            groups
                .entry(metadata.leader(topic, *partition))
                .or_default()
                .insert(*partition, *spec);
        }
        groups
    }

    /// What one broker tells of its partitions, and why the rest is missing.
    async fn offsets_from(
        &self,
        node: NodeId,
        topic: &str,
        wanted: &BTreeMap<PartitionIndex, OffsetSpec>,
    ) -> Result<(BTreeMap<PartitionIndex, Offset>, Option<Error>), Error> {
        let connection = self.node(node).await?;
        let (mut found, mut failed) = (BTreeMap::new(), None);
        let mut left = wanted.clone();
        // Who has no record of the time or later is asked for the end.
        for _ in 0..2 {
            let answer = connection
                .call::<ListOffsetsRequest>(1..=9, self.request_deadline(), |_| {
                    offsets_request(topic, &left)
                })
                .await?;
            let mut none_later = BTreeMap::new();
            for partition in partitions_of(&answer) {
                let index = PartitionIndex::new(partition.partition_index);
                let code = ErrorCode::new(partition.error_code);
                if let Err(error) = code.check(format!("offsets of {topic}/{index}"), None) {
                    failed = worse(failed, Some(error));
                } else if partition.offset >= 0 {
                    found.insert(index, Offset::new(partition.offset));
                } else {
                    none_later.insert(index, OffsetSpec::Latest);
                }
            }
            left = none_later;
            if left.is_empty() {
                break;
            }
        }
        let missing = wanted.keys().find(|index| !found.contains_key(index));
        if let (None, Some(missing)) = (&failed, missing) {
            return Err(Error::Protocol {
                address: connection.address().to_owned(),
                cause: format!("no offset of {topic}/{missing} in the answer"),
            });
        }
        Ok((found, failed))
    }

    /// What a broker is told to take at most: it answers a little before nobody waits any more, so that what did not happen is known.
    fn timeout_ms(&self) -> i32 {
        const ANSWER_BEFORE: Duration = Duration::from_millis(500);
        let left = self
            .request_deadline()
            .saturating_duration_since(Instant::now());
        let left = left.saturating_sub(ANSWER_BEFORE.min(left / 4));
        i32::try_from(left.as_millis()).unwrap_or(i32::MAX)
    }
}

/// The request that deletes a topic: by its id where both sides know how, so that asking twice does no harm.
fn deletion(
    name: &str,
    id: Option<[u8; 16]>,
    version: i16,
    timeout_ms: i32,
) -> DeleteTopicsRequest {
    let mut request = DeleteTopicsRequest::default();
    request.timeout_ms = timeout_ms;
    if version < 6 {
        request.topic_names = vec![StrBytes::from(name)];
        return request;
    }
    let mut state = DeleteTopicState::default();
    match id {
        Some(id) => state.topic_id = Uuid::from_bytes(id),
        None => state.name = Some(StrBytes::from(name)),
    }
    request.topics = vec![state];
    request
}

fn exists(code: i16) -> bool {
    code == ErrorCode::TOPIC_ALREADY_EXISTS.get()
}

fn is_unknown(code: i16) -> bool {
    [
        ErrorCode::UNKNOWN_TOPIC_OR_PARTITION.get(),
        ErrorCode::UNKNOWN_TOPIC_ID.get(),
    ]
    .contains(&code)
}

fn nothing_in_the_answer(what: &str) -> Error {
    Error::Protocol {
        address: what.to_owned(),
        cause: "the answer is empty".to_owned(),
    }
}

/// Of two failures the one that trying again does not mend.
fn worse(one: Option<Error>, other: Option<Error>) -> Option<Error> {
    match (one, other) {
        (Some(one), Some(other)) if one.is_retriable() => Some(other),
        (one, other) => one.or(other),
    }
}

fn no_leader(topic: &str) -> Error {
    Error::Broker {
        code: ErrorCode::LEADER_NOT_AVAILABLE,
        what: format!("topic '{topic}'"),
        message: Some("a partition has no leader now".to_owned()),
    }
}

fn partitions_of(
    answer: &ListOffsetsResponse,
) -> impl Iterator<Item = &ListOffsetsPartitionResponse> {
    answer.topics.iter().flat_map(|topic| &topic.partitions)
}

fn offsets_request(
    topic: &str,
    wanted: &BTreeMap<PartitionIndex, OffsetSpec>,
) -> ListOffsetsRequest {
    let mut entry = ListOffsetsTopic::default();
    entry.name = StrBytes::from(topic);
    for (index, spec) in wanted {
        let mut partition = ListOffsetsPartition::default();
        partition.partition_index = index.get();
        partition.current_leader_epoch = -1;
        partition.timestamp = match spec {
            OffsetSpec::Earliest => -2,
            OffsetSpec::Latest => -1,
            OffsetSpec::Timestamp(stamp) => stamp.get().max(0),
        };
        entry.partitions.push(partition);
    }
    let mut request = ListOffsetsRequest::default();
    request.replica_id = -1;
    request.topics = vec![entry];
    request
}

fn config(key: &str, value: &str) -> CreatableTopicConfig {
    let mut entry = CreatableTopicConfig::default();
    entry.name = StrBytes::from(key);
    entry.value = Some(StrBytes::from(value));
    entry
}

fn source_name(source: i8) -> &'static str {
    match source {
        1 => "DYNAMIC_TOPIC_CONFIG",
        2 => "DYNAMIC_BROKER_CONFIG",
        3 => "DYNAMIC_DEFAULT_BROKER_CONFIG",
        4 => "STATIC_BROKER_CONFIG",
        5 => "DEFAULT_CONFIG",
        6 => "DYNAMIC_BROKER_LOGGER_CONFIG",
        7 => "CLIENT_METRICS_CONFIG",
        8 => "GROUP_CONFIG",
        _ => "UNKNOWN",
    }
}
