//! ListOffsets: by position and by time. And OffsetForLeaderEpoch, DeleteRecords: the other questions about offsets.
//!
//! Owns: Kafka's special timestamps (-1 latest, -2 earliest, -3 largest timestamp, -4 earliest local, -5 latest tiered).
//! Not here: the lookup itself (`datagroup::times`).

use super::context::Broker;
use super::fetch_partition::check_epoch;
use super::produce::{propose_code, route_code};
use crate::datagroup::{DataGroup, FetchError};
use crate::error::ErrorCode;
use crate::partition::{PartitionCommand, PartitionOutcome};
use crate::wire::messages::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsTopicResult,
};
use crate::wire::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use crate::wire::messages::offset_for_leader_epoch_response::{
    EpochEndOffset, OffsetForLeaderTopicResult,
};
use crate::wire::messages::{
    DeleteRecordsRequest, DeleteRecordsResponse, ListOffsetsRequest, ListOffsetsResponse,
    OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse,
};
use tidelog_model::{LeaderEpoch, Offset, PartitionId, TimestampMs};

const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const MAX_TIMESTAMP: i64 = -3;
const EARLIEST_LOCAL: i64 = -4;
const LATEST_TIERED: i64 = -5;

/// A partition that this broker leads.
struct Located {
    id: PartitionId,
    group: DataGroup,
    epoch: LeaderEpoch,
}

impl Located {
    /// What was read so far, if this broker leads still.
    fn checked<T>(&self, broker: &Broker, found: T) -> Result<T, ErrorCode> {
        if broker.router.leads_still(self.id, self.epoch) {
            Ok(found)
        } else {
            Err(ErrorCode::NotLeaderOrFollower)
        }
    }
}

/// The partition and its group, if this broker leads it and the client's epoch is current.
fn locate(broker: &Broker, topic: &str, index: i32, epoch: i32) -> Result<Located, ErrorCode> {
    let partition = broker
        .router
        .partition(topic, index)
        .ok_or(ErrorCode::UnknownTopicOrPartition)?;
    let (group, ours) = broker.router.leading(partition).map_err(route_code)?;
    match check_epoch(ours, (epoch >= 0).then(|| LeaderEpoch::new(epoch))) {
        Some(code) => Err(code),
        None => Ok(Located {
            id: partition,
            group,
            epoch: ours,
        }),
    }
}

fn fetch_code(error: &FetchError) -> ErrorCode {
    match error {
        FetchError::UnknownPartition => ErrorCode::UnknownTopicOrPartition,
        FetchError::OutOfRange { .. } => ErrorCode::OffsetOutOfRange,
        FetchError::Damaged { .. } => ErrorCode::CorruptMessage,
        FetchError::Log(_) | FetchError::Remote(_) | FetchError::Stopped | FetchError::Moved => {
            ErrorCode::KafkaStorageError
        }
    }
}

/// Answers ListOffsets.
pub(super) async fn list_offsets(
    broker: &Broker,
    request: ListOffsetsRequest,
    version: i16,
) -> ListOffsetsResponse {
    let mut answer = ListOffsetsResponse::default();
    for topic in request.topics {
        let mut of_topic = ListOffsetsTopicResponse::default();
        for wanted in topic.partitions {
            let mut partition = ListOffsetsPartitionResponse::default();
            partition.partition_index = wanted.partition_index;
            partition.offset = -1;
            partition.timestamp = -1;
            partition.leader_epoch = -1;
            let located = locate(
                broker,
                topic.name.as_str(),
                wanted.partition_index,
                wanted.current_leader_epoch,
            );
            let found = match located {
                Ok(at) => look_up(&at, wanted.timestamp)
                    .await
                    .map_err(|error| fetch_code(&error))
                    .and_then(|found| at.checked(broker, found)),
                Err(code) => Err(code),
            };
            match found {
                Ok(Some(found)) => {
                    partition.offset = found.offset.get();
                    partition.timestamp = found.timestamp;
                    if version >= 4 {
                        partition.leader_epoch = found.epoch;
                    }
                }
                Ok(None) => {}
                Err(code) => partition.error_code = code.code(),
            }
            of_topic.partitions.push(partition);
        }
        of_topic.name = topic.name;
        answer.topics.push(of_topic);
    }
    answer
}

struct Found {
    offset: Offset,
    timestamp: i64,
    epoch: i32,
}

async fn look_up(at: &Located, timestamp: i64) -> Result<Option<Found>, FetchError> {
    let (group, partition) = (&at.group, at.id);
    let special = group.group().read(|machine| {
        let state = machine
            .partitions()
            .get(partition)
            .ok_or(FetchError::UnknownPartition)?;
        Ok::<_, FetchError>(match timestamp {
            LATEST => Some(Some(state.next_offset)),
            EARLIEST => Some(Some(state.log_start)),
            EARLIEST_LOCAL => Some(Some(state.local_start())),
            LATEST_TIERED => {
                Some((state.tiered_until > state.log_start).then(|| state.tiered_until.plus(-1)))
            }
            _ => None,
        })
    })?;
    let (offset, found_at) = match special {
        Some(None) => return Ok(None),
        Some(Some(offset)) => (offset, -1),
        None => {
            let found = match timestamp {
                MAX_TIMESTAMP => group.find_max_timestamp(partition).await?,
                _ => {
                    group
                        .find_timestamp(partition, TimestampMs::new(timestamp))
                        .await?
                }
            };
            match found {
                Some(found) => (found.offset, found.timestamp.get()),
                None => return Ok(None),
            }
        }
    };
    let epoch = group.group().read(|machine| {
        let state = machine.partitions().get(partition)?;
        state
            .epochs
            .iter()
            .rev()
            .find(|start| start.start <= offset)
            .map(|start| start.epoch.get())
    });
    let epoch = epoch.unwrap_or_else(|| at.epoch.get());
    Ok(Some(Found {
        offset,
        timestamp: found_at,
        epoch,
    }))
}

/// Answers OffsetForLeaderEpoch (KIP-320): where a leader epoch ended.
pub(super) fn offset_for_leader_epoch(
    broker: &Broker,
    request: OffsetForLeaderEpochRequest,
) -> OffsetForLeaderEpochResponse {
    let mut answer = OffsetForLeaderEpochResponse::default();
    for topic in request.topics {
        let mut of_topic = OffsetForLeaderTopicResult::default();
        for wanted in topic.partitions {
            let mut partition = EpochEndOffset::default();
            partition.partition = wanted.partition;
            partition.leader_epoch = -1;
            partition.end_offset = -1;
            let located = locate(
                broker,
                topic.topic.as_str(),
                wanted.partition,
                wanted.current_leader_epoch,
            );
            let end = located.and_then(|at| {
                let end = epoch_end(&at, wanted.leader_epoch)?;
                at.checked(broker, end)
            });
            match end {
                Ok(Some((epoch, offset))) => {
                    partition.leader_epoch = epoch.get();
                    partition.end_offset = offset.get();
                }
                Ok(None) => {}
                Err(code) => partition.error_code = code.code(),
            }
            of_topic.partitions.push(partition);
        }
        of_topic.topic = topic.topic;
        answer.topics.push(of_topic);
    }
    answer
}

/// Where the epoch ended; `None` if this leader knows nothing of it, for it is newer, or none.
fn epoch_end(at: &Located, wanted: i32) -> Result<Option<(LeaderEpoch, Offset)>, ErrorCode> {
    let wanted = LeaderEpoch::new(wanted);
    at.group.group().read(|machine| {
        let state = machine.partitions().get(at.id);
        let state = state.ok_or(ErrorCode::UnknownTopicOrPartition)?;
        Ok(if wanted == at.epoch {
            Some((wanted, state.next_offset))
        } else if wanted < LeaderEpoch::new(0) || wanted > at.epoch {
            None
        } else {
            Some(state.epoch_end(wanted))
        })
    })
}

/// Answers DeleteRecords: moves log starts up. -1 means the high watermark; at or below log start nothing happens
/// (field report A24); beyond the high watermark is refused.
pub(super) async fn delete_records(
    broker: &Broker,
    request: DeleteRecordsRequest,
) -> DeleteRecordsResponse {
    let mut answer = DeleteRecordsResponse::default();
    for topic in request.topics {
        let mut of_topic = DeleteRecordsTopicResult::default();
        for wanted in topic.partitions {
            let mut partition = DeleteRecordsPartitionResult::default();
            partition.partition_index = wanted.partition_index;
            partition.low_watermark = -1;
            match delete_one(
                broker,
                topic.name.as_str(),
                wanted.partition_index,
                wanted.offset,
            )
            .await
            {
                Ok(log_start) => partition.low_watermark = log_start.get(),
                Err(code) => partition.error_code = code.code(),
            }
            of_topic.partitions.push(partition);
        }
        of_topic.name = topic.name;
        answer.topics.push(of_topic);
    }
    answer
}

async fn delete_one(
    broker: &Broker,
    topic: &str,
    index: i32,
    offset: i64,
) -> Result<Offset, ErrorCode> {
    let Located {
        id: partition,
        group,
        ..
    } = locate(broker, topic, index, -1)?;
    let (log_start, high_watermark) = group
        .bounds(partition)
        .map_err(|error| fetch_code(&error))?;
    let to = if offset == -1 {
        high_watermark
    } else {
        Offset::new(offset)
    };
    if to > high_watermark || to < Offset::ZERO {
        return Err(ErrorCode::OffsetOutOfRange);
    }
    if to <= log_start {
        return Ok(log_start);
    }
    match group
        .propose(PartitionCommand::TrimPrefix {
            partition,
            log_start: to,
        })
        .await
    {
        Ok((_, PartitionOutcome::LogStart(log_start))) => Ok(log_start),
        Ok(_) => Err(ErrorCode::UnknownTopicOrPartition),
        Err(error) => Err(propose_code(&error)),
    }
}
