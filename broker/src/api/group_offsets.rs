//! Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete.
//!
//! Owns: names and ids of topics in requests, and the answers' shapes over all versions. What was done by name is answered only when the name stands for the same topic
//! afterwards.
//! Not here: who may commit what (`coordinator`), the end of the log (`router::CommitBounds`), when the image's word for a name counts (`router::names`).
//! Spec: docs/protocols/topics.md (consumer groups), docs/protocols/consumer-groups.md

use std::collections::BTreeMap;
use std::future::Future;

use super::context::Broker;
use super::groups::{coordinator, instance_of, text};
use crate::coordinator::service::CommitRequest;
use crate::coordinator::state::{CommittedOffset, Committer, NewOffset};
use crate::coordinator::{ConsumerGroupError, ConsumerGroupName, MemberId, slot_of};
use crate::error::ErrorCode;
use crate::router::Router;
use crate::wire::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use crate::wire::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use crate::wire::messages::offset_delete_response::{
    OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use crate::wire::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use crate::wire::messages::{
    OffsetCommitRequest, OffsetCommitResponse, OffsetDeleteRequest, OffsetDeleteResponse,
    OffsetFetchRequest, OffsetFetchResponse, StrBytes, WireUuid, offset_fetch_request, topic_id,
    wire_topic_id,
};
use tidelog_model::{LeaderEpoch, Offset, PartitionId, PartitionIndex, TopicId};

fn topic_of(broker: &Broker, name: &StrBytes, id: WireUuid, by_id: bool) -> Option<TopicId> {
    broker.router.image(|image| {
        if by_id {
            topic_id(id).filter(|id| image.topic(*id).is_some())
        } else {
            image.topic_by_name(name.as_str()).map(|(id, _)| id)
        }
    })
}

/// Names of topics in a request, and what they stood for when it was worked on.
#[derive(Default)]
struct Named(Vec<(StrBytes, Option<TopicId>)>);

impl Named {
    /// What the name stands for here, remembered; by id nothing is.
    fn topic(
        &mut self,
        broker: &Broker,
        name: &StrBytes,
        id: WireUuid,
        by_id: bool,
    ) -> Option<TopicId> {
        let found = topic_of(broker, name, id, by_id);
        if !by_id {
            self.0.push((name.clone(), found));
        }
        found
    }

    /// Whether all names stand for the same topics now, as far as the coordinator of the group may say: it acknowledges nothing, and tells nothing, of a topic that had the
    /// name before.
    async fn still_stand(&self, router: &Router, group: &ConsumerGroupName) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let same = router.with_names(slot_of(group), |image| {
            let now = |name: &StrBytes| image.topic_by_name(name.as_str()).map(|(id, _)| id);
            self.0.iter().all(|(name, then)| now(name) == *then)
        });
        same.await.unwrap_or(false)
    }
}

/// What is answered when a name may stand for another topic than this broker took it for. Clients try again, here.
const NAME_UNSURE: ErrorCode = ErrorCode::CoordinatorLoadInProgress;

/// A member of the consumer group, or a client that only stores offsets.
fn committer_of(request: &OffsetCommitRequest) -> Committer {
    if request.generation_id_or_member_epoch < 0 && request.member_id.is_empty() {
        return Committer::Simple;
    }
    Committer::Member {
        generation: request.generation_id_or_member_epoch,
        member: MemberId::new(request.member_id.as_str()),
        instance: instance_of(request.group_instance_id.as_ref()),
    }
}

/// The offsets of a commit, where each has its place in the answer, and the answer so far.
#[derive(Default)]
struct Asked {
    offsets: Vec<NewOffset>,
    places: Vec<(usize, usize)>,
    named: Named,
    answer: OffsetCommitResponse,
}

impl Asked {
    fn read(broker: &Broker, topics: Vec<OffsetCommitRequestTopic>, by_id: bool) -> Self {
        let unknown = if by_id {
            ErrorCode::UnknownTopicId
        } else {
            ErrorCode::UnknownTopicOrPartition
        };
        let mut asked = Self::default();
        for (topic_at, topic) in topics.into_iter().enumerate() {
            let id = asked
                .named
                .topic(broker, &topic.name, topic.topic_id, by_id);
            let mut of_topic = OffsetCommitResponseTopic::default();
            of_topic.name = topic.name;
            of_topic.topic_id = topic.topic_id;
            for (at, partition) in topic.partitions.into_iter().enumerate() {
                let mut result = OffsetCommitResponsePartition::default();
                result.partition_index = partition.partition_index;
                match id {
                    Some(topic) => {
                        asked.places.push((topic_at, at));
                        asked.offsets.push(new_offset(topic, partition));
                    }
                    None => result.error_code = unknown.code(),
                }
                of_topic.partitions.push(result);
            }
            asked.answer.topics.push(of_topic);
        }
        asked
    }
}

fn new_offset(topic: TopicId, partition: OffsetCommitRequestPartition) -> NewOffset {
    let metadata = partition.committed_metadata;
    NewOffset {
        partition: PartitionId {
            topic,
            index: PartitionIndex::new(partition.partition_index),
        },
        offset: Offset::new(partition.committed_offset),
        leader_epoch: LeaderEpoch::new(partition.committed_leader_epoch),
        metadata: metadata.map(|m| m.as_str().to_owned()).unwrap_or_default(),
    }
}

/// Answers OffsetCommit. Topics go by name up to version 9, by id from 10 on. Commits of one group take effect in the order of the calls.
pub(super) fn commit(
    broker: &Broker,
    request: OffsetCommitRequest,
    version: i16,
) -> impl Future<Output = OffsetCommitResponse> + Send + use<> {
    let group = ConsumerGroupName::new(request.group_id.as_str());
    let committer = committer_of(&request);
    let Asked {
        offsets,
        places,
        named,
        mut answer,
    } = Asked::read(broker, request.topics, version >= 10);
    let request = CommitRequest {
        group: group.clone(),
        committer,
        offsets,
    };
    let committed = coordinator(broker, &group).map(|found| found.commit_offsets(request));
    let router = broker.router.clone();
    async move {
        let results = match committed {
            Ok(committed) => committed.await,
            Err(error) => Err(error),
        };
        let stands = named.still_stand(&router, &group).await;
        for (number, (topic_at, at)) in places.into_iter().enumerate() {
            let result = match &results {
                Ok(results) => results
                    .get(number)
                    .copied()
                    .unwrap_or(Err(ConsumerGroupError::Unavailable)),
                Err(error) => Err(*error),
            };
            let code = match result {
                Ok(()) if stands => ErrorCode::None,
                // In the log perhaps, for a topic that is gone.
                Ok(()) => NAME_UNSURE,
                Err(error) => error.code(),
            };
            answer.topics[topic_at].partitions[at].error_code = code.code();
        }
        answer
    }
}

type Found = Vec<(PartitionId, Option<CommittedOffset>)>;

async fn find(
    broker: &Broker,
    group: &ConsumerGroupName,
    partitions: Option<&[PartitionId]>,
) -> Result<Found, ConsumerGroupError> {
    coordinator(broker, group)?
        .fetch_offsets(group, partitions)
        .await
}

fn values(committed: Option<CommittedOffset>) -> (i64, i32, StrBytes) {
    match committed {
        Some(committed) => (
            committed.offset.get(),
            committed.leader_epoch.get(),
            text(&committed.metadata),
        ),
        // Nothing committed: -1 without an error, as clients expect.
        None => (-1, -1, StrBytes::default()),
    }
}

/// Answers OffsetFetch: one group up to version 7, several from 8 on; topics by id from version 10 on.
pub(super) async fn fetch_offsets(
    broker: &Broker,
    request: OffsetFetchRequest,
    version: i16,
) -> OffsetFetchResponse {
    let mut answer = OffsetFetchResponse::default();
    if version >= 8 {
        for group in request.groups {
            answer
                .groups
                .push(fetch_group(broker, group, version >= 10).await);
        }
        return answer;
    }
    let group = ConsumerGroupName::new(request.group_id.as_str());
    match request.topics {
        Some(topics) => {
            let mut named = Named::default();
            for topic in topics {
                let id = named.topic(broker, &topic.name, WireUuid::default(), false);
                let asked = asked(id, &topic.partition_indexes);
                let found = find(broker, &group, Some(&asked)).await;
                let mut of_topic = OffsetFetchResponseTopic::default();
                of_topic.name = topic.name;
                for index in topic.partition_indexes {
                    of_topic.partitions.push(old_partition(index, &found));
                }
                answer.topics.push(of_topic);
            }
            if let Err(error) = find(broker, &group, Some(&[])).await {
                answer.error_code = error.code().code();
            } else if !named.still_stand(&broker.router, &group).await {
                unsure(&mut answer);
            }
        }
        None => match find_all(broker, &group).await {
            Ok(found) => {
                for (_, name, partitions) in found {
                    let mut of_topic = OffsetFetchResponseTopic::default();
                    of_topic.name = text(&name);
                    let all = Ok(partitions);
                    let indexes = indexes(&all);
                    of_topic.partitions = indexes
                        .into_iter()
                        .map(|index| old_partition(index, &all))
                        .collect();
                    answer.topics.push(of_topic);
                }
            }
            Err(code) => answer.error_code = code.code(),
        },
    }
    answer
}

/// An answer of which nothing counts. Version 1 has room for the error at partitions only.
fn unsure(answer: &mut OffsetFetchResponse) {
    answer.error_code = NAME_UNSURE.code();
    let topics = answer.topics.iter_mut();
    for shown in topics.flat_map(|topic| &mut topic.partitions) {
        shown.error_code = NAME_UNSURE.code();
        shown.committed_offset = -1;
        shown.committed_leader_epoch = -1;
        shown.metadata = Some(StrBytes::default());
    }
}

fn asked(topic: Option<TopicId>, indexes: &[i32]) -> Vec<PartitionId> {
    let Some(topic) = topic else {
        return Vec::new();
    };
    indexes
        .iter()
        .map(|index| PartitionId {
            topic,
            index: PartitionIndex::new(*index),
        })
        .collect()
}

fn by_topic(found: Found) -> BTreeMap<TopicId, Found> {
    let mut topics: BTreeMap<TopicId, Found> = BTreeMap::new();
    for (partition, committed) in found {
        topics
            .entry(partition.topic)
            .or_default()
            .push((partition, committed));
    }
    topics
}

/// All offsets of a group, by topic, with the name that each topic has now.
async fn find_all(
    broker: &Broker,
    group: &ConsumerGroupName,
) -> Result<Vec<(TopicId, String, Found)>, ErrorCode> {
    let found = find(broker, group, None).await;
    let found = by_topic(found.map_err(ConsumerGroupError::code)?);
    let named = broker.router.with_names(slot_of(group), |image| {
        let topics = found.into_iter();
        let named = topics.filter_map(|(id, partitions)| {
            let name = image.topic(id)?.name.clone();
            Some((id, name, partitions))
        });
        named.collect()
    });
    named.await.ok_or(NAME_UNSURE)
}

fn indexes(found: &Result<Found, ConsumerGroupError>) -> Vec<i32> {
    found
        .iter()
        .flatten()
        .map(|(partition, _)| partition.index.get())
        .collect()
}

fn pick(
    index: i32,
    found: &Result<Found, ConsumerGroupError>,
) -> Result<Option<CommittedOffset>, ConsumerGroupError> {
    match found {
        Ok(found) => Ok(found
            .iter()
            .find(|(p, _)| p.index.get() == index)
            .and_then(|(_, c)| c.clone())),
        Err(error) => Err(*error),
    }
}

fn old_partition(
    index: i32,
    found: &Result<Found, ConsumerGroupError>,
) -> OffsetFetchResponsePartition {
    let mut shown = OffsetFetchResponsePartition::default();
    shown.partition_index = index;
    let picked = pick(index, found);
    shown.error_code = picked.as_ref().err().map_or(0, |error| error.code().code());
    let (offset, epoch, metadata) = values(picked.unwrap_or(None));
    shown.committed_offset = offset;
    shown.committed_leader_epoch = epoch;
    shown.metadata = Some(metadata);
    shown
}

fn new_partition(
    index: i32,
    found: &Result<Found, ConsumerGroupError>,
) -> OffsetFetchResponsePartitions {
    let old = old_partition(index, found);
    let mut shown = OffsetFetchResponsePartitions::default();
    shown.partition_index = old.partition_index;
    shown.error_code = old.error_code;
    shown.committed_offset = old.committed_offset;
    shown.committed_leader_epoch = old.committed_leader_epoch;
    shown.metadata = old.metadata;
    shown
}

async fn fetch_group(
    broker: &Broker,
    wanted: offset_fetch_request::OffsetFetchRequestGroup,
    by_id: bool,
) -> OffsetFetchResponseGroup {
    let mut answer = OffsetFetchResponseGroup::default();
    let group = ConsumerGroupName::new(wanted.group_id.as_str());
    answer.group_id = wanted.group_id;
    let Some(topics) = wanted.topics else {
        match find_all(broker, &group).await {
            Ok(found) => {
                for (id, name, partitions) in found {
                    let mut of_topic = OffsetFetchResponseTopics::default();
                    of_topic.name = text(&name);
                    of_topic.topic_id = wire_topic_id(id);
                    let all = Ok(partitions);
                    of_topic.partitions = indexes(&all)
                        .into_iter()
                        .map(|index| new_partition(index, &all))
                        .collect();
                    answer.topics.push(of_topic);
                }
            }
            Err(code) => answer.error_code = code.code(),
        }
        return answer;
    };
    if let Err(error) = find(broker, &group, Some(&[])).await {
        answer.error_code = error.code().code();
        return answer;
    }
    let mut named = Named::default();
    for topic in topics {
        let id = named.topic(broker, &topic.name, topic.topic_id, by_id);
        let found = find(broker, &group, Some(&asked(id, &topic.partition_indexes))).await;
        let mut of_topic = OffsetFetchResponseTopics::default();
        of_topic.name = topic.name;
        of_topic.topic_id = topic.topic_id;
        for index in topic.partition_indexes {
            let mut shown = new_partition(index, &found);
            if by_id && id.is_none() {
                shown.error_code = ErrorCode::UnknownTopicId.code();
            }
            of_topic.partitions.push(shown);
        }
        answer.topics.push(of_topic);
    }
    if !named.still_stand(&broker.router, &group).await {
        answer.topics.clear();
        answer.error_code = NAME_UNSURE.code();
    }
    answer
}

/// Answers OffsetDelete.
pub(super) async fn delete_offsets(
    broker: &Broker,
    request: OffsetDeleteRequest,
) -> OffsetDeleteResponse {
    let group = ConsumerGroupName::new(request.group_id.as_str());
    let mut answer = OffsetDeleteResponse::default();
    let mut partitions = Vec::new();
    let mut named = Named::default();
    for topic in request.topics {
        let id = named.topic(broker, &topic.name, WireUuid::default(), false);
        let mut of_topic = OffsetDeleteResponseTopic::default();
        for partition in &topic.partitions {
            let mut result = OffsetDeleteResponsePartition::default();
            result.partition_index = partition.partition_index;
            match id {
                Some(topic) => partitions.push(PartitionId {
                    topic,
                    index: PartitionIndex::new(partition.partition_index),
                }),
                None => result.error_code = ErrorCode::UnknownTopicOrPartition.code(),
            }
            of_topic.partitions.push(result);
        }
        of_topic.name = topic.name;
        answer.topics.push(of_topic);
    }
    let deleted = match coordinator(broker, &group) {
        Ok(coordinator) => coordinator.delete_offsets(&group, partitions).await,
        Err(error) => Err(error),
    };
    if let Err(error) = deleted {
        answer.error_code = error.code().code();
    } else if !named.still_stand(&broker.router, &group).await {
        answer.error_code = NAME_UNSURE.code();
    }
    answer
}
