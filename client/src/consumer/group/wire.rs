//! What a member says and hears: commits, committed offsets, assignments, heartbeats.
//!
//! Owns: the bytes of the consumer protocol inside join and sync, the heartbeat task.
//! Not here: when a member joins, commits or leaves (`group`).

use super::{CONSUMER_PROTOCOL, Membership, Pulse};
use crate::cluster::Cluster;
use crate::connection::{Connection, decode_limits};
use crate::consumer::TopicPartition;
use crate::consumer::assignor::Assignment;
use crate::error::{Error, ErrorCode};
use bytes::{Bytes, BytesMut};
use kafka_wire::consumer_protocol_assignment::TopicPartition as AssignedTopic;
use kafka_wire::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use kafka_wire::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_wire::{
    ConsumerProtocolAssignment, HeartbeatRequest, OffsetCommitRequest, OffsetFetchRequest,
    decode_consumer_protocol_assignment, encode_consumer_protocol_assignment,
};
use kafka_wire_core::StrBytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidelog_model::{Offset, PartitionIndex};
use tokio::sync::watch;
use tokio::time::Instant;

pub(super) struct Heart {
    pub(super) coordinator: Connection,
    pub(super) group: StrBytes,
    pub(super) member: StrBytes,
    pub(super) generation: i32,
    pub(super) interval: Duration,
    pub(super) session: Duration,
}

impl Heart {
    /// Beats until the group changes or we are forgotten; a coordinator that cannot be reached means joining again.
    pub(super) async fn run(self, pulse: watch::Sender<Pulse>) {
        loop {
            tokio::time::sleep(self.interval).await;
            let answer = self
                .coordinator
                .call::<HeartbeatRequest>(0..=4, Instant::now() + self.session, |_| {
                    let mut request = HeartbeatRequest::default();
                    request.group_id = self.group.clone();
                    request.generation_id = self.generation;
                    request.member_id = self.member.clone();
                    request
                })
                .await;
            let heard = match answer.map(|response| ErrorCode::new(response.error_code)) {
                Ok(ErrorCode::NONE) => continue,
                Ok(
                    ErrorCode::UNKNOWN_MEMBER_ID
                    | ErrorCode::ILLEGAL_GENERATION
                    | ErrorCode::FENCED_INSTANCE_ID,
                ) => Pulse::Forgotten,
                Ok(_) | Err(_) => Pulse::Rejoin,
            };
            let _ = pulse.send(heard);
            return;
        }
    }
}

pub(super) fn commit_request(
    group: &str,
    membership: &Membership,
    positions: &BTreeMap<TopicPartition, Offset>,
) -> OffsetCommitRequest {
    let mut request = OffsetCommitRequest::default();
    request.group_id = StrBytes::from(group);
    request.generation_id_or_member_epoch = membership.generation;
    request.member_id = StrBytes::from(membership.member.as_str());
    request.retention_time_ms = -1;
    for (at, position) in positions {
        let mut partition = OffsetCommitRequestPartition::default();
        partition.partition_index = at.partition.get();
        partition.committed_offset = position.get();
        partition.committed_leader_epoch = -1;
        partition.committed_metadata = Some(StrBytes::from(""));
        match request
            .topics
            .last_mut()
            .filter(|topic| topic.name.as_str() == &*at.topic)
        {
            Some(topic) => topic.partitions.push(partition),
            None => {
                let mut topic = OffsetCommitRequestTopic::default();
                topic.name = StrBytes::from(&*at.topic);
                topic.partitions.push(partition);
                request.topics.push(topic);
            }
        }
    }
    request
}

pub(super) async fn fetch_committed(
    cluster: &Cluster,
    coordinator: &Connection,
    group: &str,
    assignment: &Assignment,
) -> Result<BTreeMap<TopicPartition, Offset>, Error> {
    let mut attempts = cluster.attempts();
    loop {
        let response = coordinator
            .call::<OffsetFetchRequest>(1..=7, cluster.request_deadline(), |_| {
                let mut request = OffsetFetchRequest::default();
                request.group_id = StrBytes::from(group);
                let topic = |(name, partitions): (&String, &Vec<PartitionIndex>)| {
                    let mut topic = OffsetFetchRequestTopic::default();
                    topic.name = StrBytes::from(name.as_str());
                    topic.partition_indexes =
                        partitions.iter().map(|partition| partition.get()).collect();
                    topic
                };
                request.topics = Some(assignment.iter().map(topic).collect());
                request
            })
            .await?;
        let what = || format!("committed offsets of group '{group}'");
        let mut committed = BTreeMap::new();
        let mut failed = ErrorCode::new(response.error_code)
            .check(what(), None)
            .err();
        for topic in &response.topics {
            let name: Arc<str> = Arc::from(topic.name.as_str());
            for partition in &topic.partitions {
                if let Err(error) = ErrorCode::new(partition.error_code).check(what(), None) {
                    failed = Some(error);
                } else if partition.committed_offset >= 0 {
                    let at = TopicPartition {
                        topic: Arc::clone(&name),
                        partition: PartitionIndex::new(partition.partition_index),
                    };
                    committed.insert(at, Offset::new(partition.committed_offset));
                }
            }
        }
        match failed {
            None => return Ok(committed),
            // Another coordinator: join there.
            Some(error) if error.wants_metadata() => return Err(error),
            Some(error) => attempts.again(error).await?,
        }
    }
}

pub(super) fn encode_assignment(assignment: &Assignment) -> Result<Bytes, Error> {
    let mut message = ConsumerProtocolAssignment::default();
    for (topic, partitions) in assignment {
        let mut entry = AssignedTopic::default();
        entry.topic = StrBytes::from(topic.as_str());
        entry.partitions = partitions.iter().map(|partition| partition.get()).collect();
        message.assigned_partitions.push(entry);
    }
    let mut bytes = BytesMut::new();
    encode_consumer_protocol_assignment(&mut bytes, &message, CONSUMER_PROTOCOL)
        .map_err(|error| Error::Invalid(format!("the assignment cannot be encoded: {error}")))?;
    Ok(bytes.freeze())
}

/// An empty assignment (a member beyond the number of partitions) may come as no bytes at all.
pub(super) fn decode_assignment(bytes: Bytes, address: &str) -> Result<Assignment, Error> {
    if bytes.is_empty() {
        return Ok(Assignment::new());
    }
    let (_, message) =
        decode_consumer_protocol_assignment(bytes, decode_limits()).map_err(|error| {
            Error::Protocol {
                address: address.to_owned(),
                cause: format!("assignment: {error}"),
            }
        })?;
    Ok(message
        .assigned_partitions
        .into_iter()
        .map(|entry| {
            (
                entry.topic.to_string(),
                entry
                    .partitions
                    .into_iter()
                    .map(PartitionIndex::new)
                    .collect(),
            )
        })
        .collect())
}

pub(super) fn millis(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}
#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    /// Proves that an assignment survives its encoding, that no bytes mean no partitions, and that damage is refused at
    /// every length.
    #[test]
    fn assignment_round_trip() {
        let assignment = Assignment::from([(
            "a".to_owned(),
            vec![PartitionIndex::new(0), PartitionIndex::new(5)],
        )]);
        let bytes = encode_assignment(&assignment).unwrap();
        assert_eq!(decode_assignment(bytes.clone(), "x").unwrap(), assignment);
        assert_eq!(
            decode_assignment(Bytes::new(), "x").unwrap(),
            Assignment::new()
        );
        for cut in 1..bytes.len() {
            assert!(decode_assignment(bytes.slice(..cut), "x").is_err(), "{cut}");
        }
    }
}
