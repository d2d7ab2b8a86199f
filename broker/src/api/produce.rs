//! Produce.
//!
//! Owns: validation of batches, the order of appends of one connection, the answer.
//! Not here: sequence checks and offsets (`partition`), coalescing (`partition::proposer`).
//!
//! Two halves: [`accept`] runs in the order of the connection's requests and ends when every batch has its place in the
//! log's order; [`Accepted::answer`] waits for the commit, while later requests are accepted already.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::context::Broker;
use crate::error::ErrorCode;
use crate::metadata::{EffectiveConfig, TimestampType};
use crate::partition::{AppendBatch, AppendError, AppendOutcome, BatchDescriptor, PendingAppend};
use crate::placement::ProposeError;
use crate::router::RouteError;
use crate::wire::Response;
use crate::wire::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use crate::wire::messages::{ProduceRequest, ProduceResponse, StrBytes, WireUuid, topic_id};
use bytes::Bytes;
use tidelog_model::batch::{BatchError, RecordBatch};
use tidelog_model::codec::Codec;
use tidelog_model::{PartitionId, PartitionIndex, PlacementGroupId, TimestampMs, TopicId};
use tokio::time::{Instant, timeout_at};

/// Longest wait for a commit, whatever the client asks: past it the outcome is unknown to the client anyway.
const TIMEOUT_MAX: Duration = Duration::from_secs(120);

/// How long a request waits for its place at least, whatever its timeout: some log writes, when many producers are at work.
const ACCEPT_WITHIN_MIN: Duration = Duration::from_secs(1);

/// From here on topics are named by their ids (KIP-516).
const TOPIC_IDS_VERSION: i16 = 13;
/// From here on batches may be compressed with zstd (KIP-110).
const ZSTD_VERSION: i16 = 7;

struct Slot {
    index: i32,
    state: SlotState,
}

enum SlotState {
    Failed(ErrorCode, Option<String>),
    /// The n-th batch of the append to this group.
    Accepted(PlacementGroupId, usize),
}

struct TopicSlots {
    name: StrBytes,
    id: WireUuid,
    partitions: Vec<Slot>,
}

struct GroupAppend {
    batches: Vec<AppendBatch>,
}

/// A Produce request whose batches have their places in the log.
pub(super) struct Accepted {
    acks: i16,
    deadline: Instant,
    /// What a topic that is gone by now is called.
    unknown: ErrorCode,
    topics: Vec<TopicSlots>,
    pending: BTreeMap<PlacementGroupId, Result<PendingAppend, ProposeError>>,
    appended: (u64, u64),
}

/// Validates and hands the batches to the proposers, in order. Waits while a group has too much in flight.
pub(super) async fn accept(broker: &Broker, request: ProduceRequest, version: i16) -> Accepted {
    let timeout =
        Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0)).min(TIMEOUT_MAX);
    let deadline = Instant::now() + timeout;
    let mut groups: BTreeMap<PlacementGroupId, GroupAppend> = BTreeMap::new();
    let mut topics = Vec::with_capacity(request.topic_data.len());
    let mut appended = (0u64, 0u64);
    let refused = refuse_whole(broker, &request);
    for data in request.topic_data {
        let known = find_topic(broker, &data.name, data.topic_id, version);
        let mut partitions = Vec::with_capacity(data.partition_data.len());
        for partition in data.partition_data {
            let state = match (&refused, &known) {
                (Some((code, text)), _) => SlotState::Failed(*code, Some(text.clone())),
                (None, Err(code)) => SlotState::Failed(*code, None),
                (None, Ok((topic, config))) => {
                    let id = PartitionId {
                        topic: *topic,
                        index: PartitionIndex::new(partition.index),
                    };
                    match check(broker, id, config, partition.records, version) {
                        Ok((group, batch)) => {
                            appended.0 += batch.bytes.len() as u64;
                            appended.1 += u64::from(batch.descriptor.records);
                            let append = groups.entry(group).or_insert_with(|| GroupAppend {
                                batches: Vec::new(),
                            });
                            append.batches.push(batch);
                            SlotState::Accepted(group, append.batches.len() - 1)
                        }
                        Err((code, text)) => SlotState::Failed(code, text),
                    }
                }
            };
            partitions.push(Slot {
                index: partition.index,
                state,
            });
        }
        topics.push(TopicSlots {
            name: data.name,
            id: data.topic_id,
            partitions,
        });
    }
    let mut pending = BTreeMap::new();
    for (id, append) in groups {
        pending.insert(id, hand_in(broker, id, append, deadline).await);
    }
    Accepted {
        acks: request.acks,
        deadline,
        unknown: if version >= TOPIC_IDS_VERSION {
            ErrorCode::UnknownTopicId
        } else {
            ErrorCode::UnknownTopicOrPartition
        },
        topics,
        pending,
        appended,
    }
}

/// Gives the batches their place in the order of the group. A group without a majority takes nothing more once its budget is used up.
async fn hand_in(
    broker: &Broker,
    group: PlacementGroupId,
    append: GroupAppend,
    deadline: Instant,
) -> Result<PendingAppend, ProposeError> {
    let Some(group) = broker.router.data_group(group) else {
        return Err(ProposeError::NotLeader { leader: None });
    };
    let accepted = group.proposer().accept(append.batches);
    let until = deadline.max(Instant::now() + ACCEPT_WITHIN_MIN);
    let accepted = timeout_at(until, accepted).await;
    accepted.unwrap_or(Err(ProposeError::Timeout))
}

/// Errors that concern every partition of the request.
fn refuse_whole(broker: &Broker, request: &ProduceRequest) -> Option<(ErrorCode, String)> {
    if broker.refusing.load(Ordering::Relaxed) {
        // Retriable: the producer keeps its records and tries again.
        return Some((
            ErrorCode::KafkaStorageError,
            "the broker's disk reserve is used up (log.reserve-bytes)".to_owned(),
        ));
    }
    if !matches!(request.acks, -1..=1) {
        return Some((
            ErrorCode::InvalidRequiredAcks,
            format!("acks = {} is not -1, 0 or 1", request.acks),
        ));
    }
    if request.transactional_id.is_some() {
        return Some((
            ErrorCode::InvalidTxnState,
            "transactions are not built yet".to_owned(),
        ));
    }
    None
}

fn find_topic(
    broker: &Broker,
    name: &StrBytes,
    id: WireUuid,
    version: i16,
) -> Result<(TopicId, EffectiveConfig), ErrorCode> {
    broker.router.image(|image| {
        if version >= TOPIC_IDS_VERSION {
            let id = topic_id(id).ok_or(ErrorCode::UnknownTopicId)?;
            let topic = image.topic(id).ok_or(ErrorCode::UnknownTopicId)?;
            return Ok((id, crate::metadata::effective(&topic.configs)));
        }
        let (id, topic) = image
            .topic_by_name(name.as_str())
            .ok_or(ErrorCode::UnknownTopicOrPartition)?;
        Ok((id, crate::metadata::effective(&topic.configs)))
    })
}

type Refused = (ErrorCode, Option<String>);

fn check(
    broker: &Broker,
    partition: PartitionId,
    config: &EffectiveConfig,
    records: Option<Bytes>,
    version: i16,
) -> Result<(PlacementGroupId, AppendBatch), Refused> {
    let group = broker
        .router
        .leader_of(partition)
        .map_err(|error| (route_code(error), None))?;
    let invalid = |error: BatchError| (ErrorCode::from(error), Some(error.to_string()));
    let Some(records) = records.filter(|records| !records.is_empty()) else {
        return Err((
            ErrorCode::InvalidRecord,
            Some("the partition's records are null or empty".to_owned()),
        ));
    };
    // A topic may have been given more before the log's files were made smaller.
    let bytes_max = config.max_message_bytes.min(group.batch_bytes_max());
    let batch = RecordBatch::validate_produced(records, bytes_max).map_err(invalid)?;
    if version < ZSTD_VERSION && batch.header().attributes.codec_id() == Codec::Zstd.id() {
        return Err((
            ErrorCode::UnsupportedCompressionType,
            Some(format!(
                "zstd needs Produce {ZSTD_VERSION} or later, not {version}"
            )),
        ));
    }
    if batch.header().attributes.is_transactional() {
        return Err((
            ErrorCode::InvalidTxnState,
            Some("transactions are not built yet".to_owned()),
        ));
    }
    let now = broker.clock.now_ms();
    let log_append_time = config.timestamp_type == TimestampType::LogAppendTime;
    let batch = if log_append_time {
        batch.with_log_append_time(TimestampMs::new(now))
    } else {
        batch
    };
    if !log_append_time {
        check_timestamps(&batch, config, now)?;
    }
    let header = batch.header();
    let descriptor = BatchDescriptor {
        partition,
        position: 0,
        length: u32::try_from(batch.bytes().len()).unwrap_or(u32::MAX),
        records: u32::try_from(header.last_offset_delta).unwrap_or(0) + 1,
        producer_id: header.producer_id,
        producer_epoch: header.producer_epoch,
        log_append_time,
        base_sequence: header.base_sequence,
        first_timestamp: header.record_timestamp(0),
        max_timestamp: header.max_timestamp,
    };
    Ok((
        group.id(),
        AppendBatch {
            descriptor,
            bytes: batch.summed(),
        },
    ))
}

/// `message.timestamp.before.max.ms` and `message.timestamp.after.max.ms` (KIP-937).
fn check_timestamps(
    batch: &RecordBatch,
    config: &EffectiveConfig,
    now: i64,
) -> Result<(), Refused> {
    let header = batch.header();
    let before = i64::try_from(config.timestamp_before_max.as_millis()).unwrap_or(i64::MAX);
    let after = i64::try_from(config.timestamp_after_max.as_millis()).unwrap_or(i64::MAX);
    let (first, last) = (header.record_timestamp(0).get(), header.max_timestamp.get());
    if now.saturating_sub(first) > before || last.saturating_sub(now) > after {
        let text = format!(
            "a record's timestamp is too far from the broker's time ({now}): {first} to {last}"
        );
        return Err((ErrorCode::InvalidTimestamp, Some(text)));
    }
    Ok(())
}

pub(super) fn route_code(error: RouteError) -> ErrorCode {
    match error {
        RouteError::Unknown => ErrorCode::UnknownTopicOrPartition,
        RouteError::NotLeader => ErrorCode::NotLeaderOrFollower,
    }
}

/// What a proposal's error means to a producer. Idempotent producers retry all of these without a duplicate.
pub(super) fn propose_code(error: &ProposeError) -> ErrorCode {
    match error {
        ProposeError::NotLeader { .. } | ProposeError::Unknown => ErrorCode::NotLeaderOrFollower,
        ProposeError::TooLarge { .. } => ErrorCode::RecordListTooLarge,
        ProposeError::Overloaded | ProposeError::Timeout => ErrorCode::RequestTimedOut,
        ProposeError::Fatal(_) => ErrorCode::NotLeaderOrFollower,
    }
}

type GroupOutcomes = Result<Vec<Result<AppendOutcome, ProposeError>>, ProposeError>;

impl Accepted {
    /// Waits for the commits and makes the answer.
    pub(super) async fn answer(self, broker: &Broker) -> Response {
        let mut outcomes: BTreeMap<PlacementGroupId, GroupOutcomes> = BTreeMap::new();
        for (group, pending) in self.pending {
            let of_group = match pending {
                Ok(pending) => Ok(pending.outcomes(self.deadline).await),
                Err(error) => Err(error),
            };
            outcomes.insert(group, of_group);
        }
        let mut failed = false;
        let mut answer = ProduceResponse::default();
        for topic in self.topics {
            let mut of_topic = TopicProduceResponse::default();
            of_topic.name = topic.name;
            of_topic.topic_id = topic.id;
            for slot in topic.partitions {
                let partition = answer_slot(slot, &outcomes, self.unknown);
                failed |= partition.error_code != 0;
                of_topic.partition_responses.push(partition);
            }
            answer.responses.push(of_topic);
        }
        if !failed {
            broker.metrics.produced_bytes.inc_by(self.appended.0);
            broker.metrics.produced_records.inc_by(self.appended.1);
        }
        match (self.acks, failed) {
            (0, false) => Response::Nothing,
            (0, true) => Response::Close,
            _ => answer.into(),
        }
    }
}

fn answer_slot(
    slot: Slot,
    outcomes: &BTreeMap<PlacementGroupId, GroupOutcomes>,
    unknown: ErrorCode,
) -> PartitionProduceResponse {
    let mut answer = PartitionProduceResponse::default();
    answer.index = slot.index;
    answer.base_offset = -1;
    answer.log_append_time_ms = -1;
    answer.log_start_offset = -1;
    let mut fail = |code: ErrorCode, text: Option<String>| {
        answer.error_code = code.code();
        answer.error_message = text.map(StrBytes::from);
    };
    match slot.state {
        SlotState::Failed(code, text) => fail(code, text),
        SlotState::Accepted(group, at) => {
            let outcome = match outcomes.get(&group) {
                Some(Ok(of_group)) => of_group.get(at).map(Result::as_ref),
                Some(Err(error)) => Some(Err(error)),
                None => None,
            };
            match outcome {
                Some(Ok(AppendOutcome::Appended(at) | AppendOutcome::Duplicate(at))) => {
                    answer.base_offset = at.base_offset.get();
                    answer.log_append_time_ms = at.append_time.get();
                    answer.log_start_offset = at.log_start.get();
                }
                Some(Ok(AppendOutcome::Refused(error))) => fail(append_code(*error, unknown), None),
                Some(Err(error)) => fail(propose_code(error), Some(error.to_string())),
                None => fail(ErrorCode::UnknownServerError, None),
            }
        }
    }
    answer
}

fn append_code(error: AppendError, unknown: ErrorCode) -> ErrorCode {
    match error {
        AppendError::UnknownPartition => unknown,
        AppendError::StaleProducerEpoch => ErrorCode::InvalidProducerEpoch,
        AppendError::OutOfOrderSequence => ErrorCode::OutOfOrderSequenceNumber,
    }
}
