//! A consumer group's member, by the classic protocol.
//!
//! Owns: join, sync, heartbeats, commits, leaving; which committed offset reading goes on from.
//! Not here: reading (`Consumer`), the coordinator's side.
//!
//! Progress is committed for what was handed out by earlier polls: the caller has worked on it when it polls again or
//! calls [`GroupConsumer::commit`]. After a crash the records since the last commit come again (at least once).

use super::assignor::{self, Assignment};
use super::{Consumer, ConsumerConfig, Event, Start, TopicPartition};
use crate::cluster::Cluster;
use crate::connection::{Connection, decode_limits};
use crate::error::{Error, ErrorCode};
use bytes::{Bytes, BytesMut};
use kafka_wire::consumer_protocol_assignment::TopicPartition as AssignedTopic;
use kafka_wire::join_group_request::JoinGroupRequestProtocol;
use kafka_wire::leave_group_request::MemberIdentity;
use kafka_wire::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use kafka_wire::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_wire::sync_group_request::SyncGroupRequestAssignment;
use kafka_wire::{
    ConsumerProtocolAssignment, ConsumerProtocolSubscription, FindCoordinatorRequest,
    HeartbeatRequest, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, OffsetCommitRequest,
    OffsetFetchRequest, SyncGroupRequest, decode_consumer_protocol_assignment,
    decode_consumer_protocol_subscription, encode_consumer_protocol_assignment,
    encode_consumer_protocol_subscription,
};
use kafka_wire_core::{ApiVersion, StrBytes};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::Tasks;
use tidelog_model::{NodeId, Offset, PartitionIndex};
use tokio::sync::watch;
use tokio::time::Instant;

const PROTOCOL_TYPE: &str = "consumer";
const PROTOCOL_NAME: &str = "range";
/// Version of the subscription and assignment inside join and sync: 0 is read by every client.
const CONSUMER_PROTOCOL: ApiVersion = ApiVersion::new(0);

/// How a member takes part.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// The group.
    pub group: String,
    /// What it reads.
    pub topics: Vec<String>,
    /// Where a partition without a committed offset begins.
    pub start: Start,
    /// A member that is silent for this long has left.
    pub session_timeout: Duration,
    /// How long members may take to join again when the group changes.
    pub rebalance_timeout: Duration,
    /// Between two signs of life.
    pub heartbeat_interval: Duration,
}

impl GroupConfig {
    /// The defaults for one topic.
    #[must_use]
    pub fn new(group: &str, topic: &str, start: Start) -> Self {
        Self {
            group: group.to_owned(),
            topics: vec![topic.to_owned()],
            start,
            session_timeout: Duration::from_secs(10),
            rebalance_timeout: Duration::from_secs(60),
            heartbeat_interval: Duration::from_secs(3),
        }
    }
}

/// What the heartbeats have heard.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Pulse {
    Good,
    /// The group changes: join again under the same name.
    Rejoin,
    /// The coordinator no longer knows us: join again under a new name.
    Forgotten,
}

struct Membership {
    coordinator: Connection,
    generation: i32,
    member: String,
    pulse: watch::Receiver<Pulse>,
    heartbeats: Tasks,
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.heartbeats.stopping().cancel();
    }
}

/// Reads its share of the group's partitions.
pub struct GroupConsumer {
    config: GroupConfig,
    consumer: Consumer,
    /// Its connections are used for nothing else: a join waits for the other members.
    coordination: Cluster,
    membership: Option<Membership>,
    member: String,
    committed: BTreeMap<TopicPartition, Offset>,
}

impl GroupConsumer {
    /// Joins the group; returns once this member knows its share.
    pub async fn join(
        cluster: &Cluster,
        config: GroupConfig,
        reading: ConsumerConfig,
    ) -> Result<Self, Error> {
        let mut this = Self {
            config,
            consumer: Consumer::new(cluster.separate(), reading),
            coordination: cluster.separate(),
            membership: None,
            member: String::new(),
            committed: BTreeMap::new(),
        };
        this.rejoin().await?;
        Ok(this)
    }

    /// The reading side: positions, high watermarks, the share.
    #[must_use]
    pub fn consumer(&self) -> &Consumer {
        &self.consumer
    }

    /// Goes on at `position` after a gap.
    pub fn seek(&mut self, partition: &TopicPartition, position: Offset) {
        self.consumer.seek(partition, position);
    }

    /// As [`Consumer::poll`]. When the group changes, commits, joins again and goes on with the new share.
    pub async fn poll(&mut self, wait: Duration) -> Result<Vec<Event>, Error> {
        let pulse = self
            .membership
            .as_ref()
            .map_or(Pulse::Rejoin, |membership| {
                membership.pulse.borrow().clone()
            });
        if pulse != Pulse::Good {
            if pulse == Pulse::Forgotten {
                self.member.clear();
                self.membership = None;
            } else if let Err(error) = self.commit().await {
                tracing::warn!(
                    "progress not committed before the group changes; some records come again: {error}"
                );
            }
            self.rejoin().await?;
        }
        self.consumer.poll(wait).await
    }

    /// Commits the position of every partition: the next offset it will read. Does nothing when nothing moved.
    pub async fn commit(&mut self) -> Result<(), Error> {
        let positions: BTreeMap<_, _> = self
            .consumer
            .positions()
            .into_iter()
            .filter(|(partition, position)| self.committed.get(partition) != Some(position))
            .collect();
        self.commit_at(positions).await
    }

    /// Commits these offsets: for a caller that has worked on part of what was handed out.
    pub async fn commit_at(
        &mut self,
        positions: BTreeMap<TopicPartition, Offset>,
    ) -> Result<(), Error> {
        let Some(membership) = self.membership.as_ref().filter(|_| !positions.is_empty()) else {
            return Ok(());
        };
        let deadline = self.coordination.request_deadline();
        let response = membership
            .coordinator
            .call::<OffsetCommitRequest>(2..=8, deadline, |_| {
                commit_request(&self.config.group, membership, &positions)
            })
            .await?;
        for topic in &response.topics {
            for partition in &topic.partitions {
                let what = format!(
                    "commit {}/{} for group '{}'",
                    topic.name, partition.partition_index, self.config.group
                );
                ErrorCode::new(partition.error_code).check(what, None)?;
            }
        }
        self.committed.extend(positions);
        Ok(())
    }

    /// Leaves the group, so that the others need not wait for the session timeout. Progress is not committed here.
    pub async fn leave(mut self) -> Result<(), Error> {
        let Some(membership) = self.membership.take() else {
            return Ok(());
        };
        membership.heartbeats.stop().await;
        let response = membership
            .coordinator
            .call::<LeaveGroupRequest>(0..=5, self.coordination.request_deadline(), |version| {
                let mut request = LeaveGroupRequest::default();
                request.group_id = StrBytes::from(self.config.group.as_str());
                if version >= 3 {
                    let mut member = MemberIdentity::default();
                    member.member_id = StrBytes::from(membership.member.as_str());
                    request.members = vec![member];
                } else {
                    request.member_id = StrBytes::from(membership.member.as_str());
                }
                request
            })
            .await?;
        ErrorCode::new(response.error_code)
            .check(format!("leave group '{}'", self.config.group), None)
    }

    async fn rejoin(&mut self) -> Result<(), Error> {
        self.membership = None;
        for topic in &self.config.topics {
            self.coordination.topic(topic).await?;
        }
        let mut attempts = self.coordination.attempts();
        loop {
            match self.join_once().await {
                Ok((membership, assignment)) => {
                    self.member.clone_from(&membership.member);
                    self.membership = Some(membership);
                    match self.take_share(assignment).await {
                        Ok(()) => return Ok(()),
                        Err(error) => attempts.again(error).await?,
                    }
                }
                Err(error) => match error.code() {
                    Some(ErrorCode::UNKNOWN_MEMBER_ID) => self.member.clear(),
                    Some(ErrorCode::MEMBER_ID_REQUIRED | ErrorCode::ILLEGAL_GENERATION) => {}
                    _ => attempts.again(error).await?,
                },
            }
            if Instant::now() >= attempts.deadline() {
                let cause =
                    "the group keeps changing; the others join and leave all the time".to_owned();
                return Err(Error::NoAnswer {
                    address: format!("group '{}'", self.config.group),
                    cause,
                });
            }
        }
    }

    async fn join_once(&mut self) -> Result<(Membership, Assignment), Error> {
        let coordinator = self.find_coordinator().await?;
        let deadline = Instant::now()
            + self.config.rebalance_timeout
            + self.coordination.config().request_timeout;
        let subscription = self.subscription()?;
        let joined = coordinator
            .call::<JoinGroupRequest>(0..=7, deadline, |_| self.join_request(subscription))
            .await?;
        if joined.error_code == ErrorCode::MEMBER_ID_REQUIRED.get() {
            self.member = joined.member_id.to_string();
        }
        ErrorCode::new(joined.error_code)
            .check(format!("join group '{}'", self.config.group), None)?;
        let assignments = if joined.leader == joined.member_id {
            self.deal(&joined).await?
        } else {
            Vec::new()
        };
        let member = joined.member_id.to_string();
        let synced = coordinator
            .call::<SyncGroupRequest>(0..=5, deadline, |_| {
                let mut request = SyncGroupRequest::default();
                request.group_id = StrBytes::from(self.config.group.as_str());
                request.generation_id = joined.generation_id;
                request.member_id = joined.member_id.clone();
                request.protocol_type = Some(StrBytes::from(PROTOCOL_TYPE));
                request.protocol_name = Some(StrBytes::from(PROTOCOL_NAME));
                request.assignments = assignments;
                request
            })
            .await?;
        ErrorCode::new(synced.error_code)
            .check(format!("sync group '{}'", self.config.group), None)?;
        let assignment = decode_assignment(synced.assignment, coordinator.address())?;
        let (sender, pulse) = watch::channel(Pulse::Good);
        let heartbeats = Tasks::new();
        let beat = Heart {
            coordinator: coordinator.clone(),
            group: StrBytes::from(self.config.group.as_str()),
            member: joined.member_id.clone(),
            generation: joined.generation_id,
            interval: self.config.heartbeat_interval,
            session: self.config.session_timeout,
        };
        heartbeats.spawn("group heartbeats", beat.run(sender));
        Ok((
            Membership {
                coordinator,
                generation: joined.generation_id,
                member,
                pulse,
                heartbeats,
            },
            assignment,
        ))
    }

    async fn find_coordinator(&self) -> Result<Connection, Error> {
        let group = self.config.group.as_str();
        let response = self
            .coordination
            .ask_any::<FindCoordinatorRequest>(
                0..=3,
                true,
                |_| {
                    let mut request = FindCoordinatorRequest::default();
                    request.key = StrBytes::from(group);
                    request
                },
                |response| {
                    let what = format!("coordinator of group '{group}'");
                    ErrorCode::new(response.error_code)
                        .check(what, response.error_message.as_deref())
                },
            )
            .await?;
        let node = NodeId::new(response.node_id);
        if !self.coordination.metadata().brokers.contains_key(&node) {
            self.coordination.refresh(Some(&[])).await?;
        }
        self.coordination.node(node).await
    }

    fn subscription(&self) -> Result<Bytes, Error> {
        let mut subscription = ConsumerProtocolSubscription::default();
        subscription.topics = self
            .config
            .topics
            .iter()
            .map(|topic| StrBytes::from(topic.as_str()))
            .collect();
        let mut bytes = BytesMut::new();
        encode_consumer_protocol_subscription(&mut bytes, &subscription, CONSUMER_PROTOCOL)
            .map_err(|error| {
                Error::Invalid(format!("the subscription cannot be encoded: {error}"))
            })?;
        Ok(bytes.freeze())
    }

    fn join_request(&self, subscription: Bytes) -> JoinGroupRequest {
        let mut protocol = JoinGroupRequestProtocol::default();
        protocol.name = StrBytes::from(PROTOCOL_NAME);
        protocol.metadata = subscription;
        let mut request = JoinGroupRequest::default();
        request.group_id = StrBytes::from(self.config.group.as_str());
        request.session_timeout_ms = millis(self.config.session_timeout);
        request.rebalance_timeout_ms = millis(self.config.rebalance_timeout);
        request.member_id = StrBytes::from(self.member.as_str());
        request.protocol_type = StrBytes::from(PROTOCOL_TYPE);
        request.protocols = vec![protocol];
        request
    }

    /// As the group's leader: deals the partitions of all topics that any member wants.
    async fn deal(
        &self,
        joined: &JoinGroupResponse,
    ) -> Result<Vec<SyncGroupRequestAssignment>, Error> {
        let mut members = BTreeMap::new();
        let mut partitions = BTreeMap::new();
        for member in &joined.members {
            let (_, subscription) =
                decode_consumer_protocol_subscription(member.metadata.clone(), decode_limits())
                    .map_err(|error| Error::Protocol {
                        address: format!("member {}", member.member_id),
                        cause: error.to_string(),
                    })?;
            let topics: Vec<String> = subscription
                .topics
                .iter()
                .map(ToString::to_string)
                .collect();
            for topic in &topics {
                // A topic that does not exist (any more) has no partitions to deal.
                let count = match self.coordination.topic(topic).await {
                    Ok(metadata) => metadata.partition_count(topic),
                    Err(error) if error.code() == Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION) => 0,
                    Err(error) => return Err(error),
                };
                partitions.insert(topic.clone(), count);
            }
            members.insert(member.member_id.to_string(), topics);
        }
        assignor::range(&members, &partitions)
            .into_iter()
            .map(|(member, assignment)| {
                let mut entry = SyncGroupRequestAssignment::default();
                entry.member_id = StrBytes::from(member);
                entry.assignment = encode_assignment(&assignment)?;
                Ok(entry)
            })
            .collect()
    }

    /// Begins reading the share: from the committed offsets, else where the configuration says.
    async fn take_share(&mut self, assignment: Assignment) -> Result<(), Error> {
        let Some(membership) = self.membership.as_ref() else {
            return Err(Error::Stopped);
        };
        let committed = if assignment.is_empty() {
            BTreeMap::new()
        } else {
            fetch_committed(
                &self.coordination,
                &membership.coordinator,
                &self.config.group,
                &assignment,
            )
            .await?
        };
        let mut starts = Vec::new();
        for (topic, partitions) in assignment {
            let topic: Arc<str> = Arc::from(topic);
            for partition in partitions {
                let partition = TopicPartition {
                    topic: Arc::clone(&topic),
                    partition,
                };
                let start = committed
                    .get(&partition)
                    .map_or(self.config.start, |offset| Start::At(*offset));
                starts.push((partition, start));
            }
        }
        self.committed = committed;
        self.consumer.assign(starts).await
    }
}

struct Heart {
    coordinator: Connection,
    group: StrBytes,
    member: StrBytes,
    generation: i32,
    interval: Duration,
    session: Duration,
}

impl Heart {
    /// Beats until the group changes or we are forgotten; a coordinator that cannot be reached means joining again.
    async fn run(self, pulse: watch::Sender<Pulse>) {
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

fn commit_request(
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

async fn fetch_committed(
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

fn encode_assignment(assignment: &Assignment) -> Result<Bytes, Error> {
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
fn decode_assignment(bytes: Bytes, address: &str) -> Result<Assignment, Error> {
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

fn millis(duration: Duration) -> i32 {
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
