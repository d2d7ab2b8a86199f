//! A consumer group's member, by the classic protocol.
//!
//! Owns: join, sync, heartbeats, commits, leaving; which committed offset reading goes on from.
//! Not here: reading (`Consumer`), the coordinator's side.
//!
//! Progress is committed for what was handed out by earlier polls: the caller has worked on it when it polls again or
//! calls [`GroupConsumer::commit`]. After a crash the records since the last commit come again (at least once).

mod wire;

use super::assignor::{self, Assignment};
use super::{Consumer, ConsumerConfig, Event, Start, TopicPartition};
use crate::cluster::Cluster;
use crate::connection::{Connection, decode_limits};
use crate::error::{Error, ErrorCode};
use crate::retry::Attempts;
use bytes::{Bytes, BytesMut};
use kafka_wire::join_group_request::JoinGroupRequestProtocol;
use kafka_wire::leave_group_request::MemberIdentity;
use kafka_wire::sync_group_request::SyncGroupRequestAssignment;
use kafka_wire::{
    ConsumerProtocolSubscription, FindCoordinatorRequest, JoinGroupRequest, JoinGroupResponse,
    LeaveGroupRequest, OffsetCommitRequest, SyncGroupRequest,
    decode_consumer_protocol_subscription, encode_consumer_protocol_subscription,
};
use kafka_wire_core::{ApiVersion, StrBytes};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::Tasks;
use tidelog_model::{NodeId, Offset};
use tokio::sync::watch;
use tokio::time::Instant;
use wire::{Heart, commit_request, decode_assignment, encode_assignment, fetch_committed, millis};

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

    /// Commits these offsets: for a caller that has worked on part of what was handed out. A coordinator that has not heard of a topic yet, or cannot check an
    /// offset now, is asked again within the time of one request.
    pub async fn commit_at(
        &mut self,
        positions: BTreeMap<TopicPartition, Offset>,
    ) -> Result<(), Error> {
        let deadline = self.coordination.request_deadline();
        let mut attempts = Attempts::until(deadline, self.coordination.random());
        loop {
            let Some(membership) = self.membership.as_ref().filter(|_| !positions.is_empty())
            else {
                return Ok(());
            };
            match self.commit_once(membership, &positions, deadline).await {
                Ok(()) => {
                    self.committed.extend(positions);
                    return Ok(());
                }
                Err(error) if may_pass_here(&error) => attempts.again(error).await?,
                Err(error) => return Err(error),
            }
        }
    }

    async fn commit_once(
        &self,
        membership: &Membership,
        positions: &BTreeMap<TopicPartition, Offset>,
        deadline: Instant,
    ) -> Result<(), Error> {
        let response = membership
            .coordinator
            .call::<OffsetCommitRequest>(2..=8, deadline, |_| {
                commit_request(&self.config.group, membership, positions)
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
                |response, _| {
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
                    Err(Error::Broker { code, .. })
                        if code == ErrorCode::UNKNOWN_TOPIC_OR_PARTITION =>
                    {
                        0
                    }
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

/// Whether the same coordinator may take a commit that it refused, by the same member of the same generation.
fn may_pass_here(error: &Error) -> bool {
    let later = [
        ErrorCode::COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
    ];
    error.code().is_some_and(|code| later.contains(&code))
}
