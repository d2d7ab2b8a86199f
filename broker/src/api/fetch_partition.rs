//! One partition of a Fetch: which replica may serve it, and what was read.
//!
//! Owns: leader epochs (KIP-320), readers that are sent to a follower in their zone and served there (KIP-392), the errors of a partition.
//! Not here: limits over partitions and long polls (`fetch.rs`), reading (`datagroup::read`).
//! Spec: docs/protocols/follower-reads.md

use super::context::Broker;
use super::produce::route_code;
use crate::datagroup::{FetchError, Fetched};
use crate::error::ErrorCode;
use crate::router::{Readable, RouteError};
use crate::wire::FetchedPartition;
use crate::wire::messages::StrBytes;
use tidelog_model::{LeaderEpoch, Offset, PartitionId};

/// What a client wants of a partition.
pub(super) struct Wanted {
    pub(super) partition: Option<PartitionId>,
    pub(super) index: i32,
    pub(super) offset: Offset,
    pub(super) epoch: Option<LeaderEpoch>,
    pub(super) bytes_max: usize,
    pub(super) unknown: ErrorCode,
}

/// What of a partition a waiting fetch looks at: epoch, log start, high watermark; or why it cannot be read.
pub(super) type Bounds = Result<(LeaderEpoch, Offset, Offset), ErrorCode>;

/// What was read of a partition.
pub(super) struct Read {
    pub(super) partition: FetchedPartition,
    /// The client should know at once, whatever it is ready to wait.
    pub(super) urgent: bool,
}

/// Who reads: where it is decides which replica serves it.
pub(super) struct Reader {
    /// Its zone, if that is not this broker's: `client.rack` of Fetch 11 and later.
    elsewhere: Option<String>,
    /// It is in this broker's zone, and may read from a follower here.
    follows: bool,
}

impl Reader {
    pub(super) fn new(broker: &Broker, rack: &StrBytes) -> Self {
        let (rack, zone) = (rack.as_str(), broker.config.zone.as_str());
        Self {
            elsewhere: (!rack.is_empty() && rack != zone).then(|| rack.to_owned()),
            follows: !rack.is_empty() && rack == zone,
        }
    }

    fn readable(&self, broker: &Broker, partition: PartitionId) -> Result<Readable, RouteError> {
        broker.router.readable(partition, self.follows)
    }

    pub(super) fn bounds(&self, broker: &Broker, partition: PartitionId) -> Bounds {
        let replica = self.readable(broker, partition).map_err(route_code)?;
        let (log_start, high_watermark) = replica
            .group
            .bounds(partition)
            .map_err(|_| ErrorCode::UnknownTopicOrPartition)?;
        Ok((replica.epoch, log_start, high_watermark))
    }

    /// Whether the read would go to the object store.
    pub(super) fn is_cold(&self, broker: &Broker, wanted: &Wanted) -> bool {
        let Some(partition) = wanted.partition else {
            return false;
        };
        self.readable(broker, partition)
            .is_ok_and(|replica| replica.group.is_cold(partition, wanted.offset))
    }

    /// The follower that the reader should go to. It is sent there whatever it reads: history is the same from everywhere.
    fn nearer(
        &self,
        broker: &Broker,
        replica: &Readable,
        partition: PartitionId,
    ) -> Option<FetchedPartition> {
        let zone = self.elsewhere.as_deref().filter(|_| replica.leads)?;
        let follower = broker.router.follower_in(zone, partition)?;
        let (log_start, high_watermark) = replica.group.bounds(partition).ok()?;
        Some(FetchedPartition {
            partition_index: partition.index.get(),
            high_watermark: high_watermark.get(),
            last_stable_offset: high_watermark.get(),
            log_start_offset: log_start.get(),
            preferred_read_replica: follower.get(),
            ..FetchedPartition::default()
        })
    }

    pub(super) async fn read_at(
        &self,
        broker: &Broker,
        at: (usize, usize),
        wanted: &Wanted,
        limit: Option<usize>,
        first: bool,
    ) -> ((usize, usize), Read) {
        (at, self.read(broker, wanted, limit, first).await)
    }

    /// Reads at most `limit` bytes; without one only the bounds. `first`: at least one batch, however large.
    pub(super) async fn read(
        &self,
        broker: &Broker,
        wanted: &Wanted,
        limit: Option<usize>,
        first: bool,
    ) -> Read {
        let failed = |code: ErrorCode| Read {
            partition: failure(wanted, code),
            urgent: true,
        };
        let Some(partition) = wanted.partition else {
            return failed(wanted.unknown);
        };
        let replica = match self.readable(broker, partition) {
            Ok(replica) => replica,
            Err(RouteError::Unknown) => return failed(unknown_code(broker, wanted, partition)),
            Err(error @ RouteError::NotLeader) => return failed(route_code(error)),
        };
        if let Some(code) = check_epoch(replica.epoch, wanted.epoch) {
            return failed(code);
        }
        if let Some(partition) = self.nearer(broker, &replica, partition) {
            return Read {
                partition,
                urgent: true,
            };
        }
        let read = match limit {
            Some(limit) => replica.group.fetch(partition, wanted.offset, limit).await,
            None => replica
                .group
                .bounds(partition)
                .map(|(log_start, high_watermark)| Fetched {
                    high_watermark,
                    log_start,
                    batches: Vec::new(),
                }),
        };
        // Whatever was read before: a leader that was deposed meanwhile says nothing (I4).
        if replica.leads && !broker.router.leads_still(partition, replica.epoch) {
            return failed(ErrorCode::NotLeaderOrFollower);
        }
        match read {
            Ok(fetched) => {
                let partition = found(wanted.index, fetched, limit.unwrap_or(0), first);
                if !replica.leads {
                    let bytes = partition.records_bytes();
                    broker.metrics.follower_fetched_bytes.inc_by(bytes as u64);
                }
                Read {
                    partition,
                    urgent: false,
                }
            }
            Err(error) => refused(broker, wanted, partition, replica.leads, &error),
        }
    }
}

fn failure(wanted: &Wanted, code: ErrorCode) -> FetchedPartition {
    FetchedPartition {
        partition_index: wanted.index,
        error_code: code.code(),
        ..FetchedPartition::default()
    }
}

/// What a failed read means to the client.
fn refused(
    broker: &Broker,
    wanted: &Wanted,
    partition: PartitionId,
    leads: bool,
    error: &FetchError,
) -> Read {
    let failed = |code: ErrorCode| failure(wanted, code);
    let told = match error {
        // A follower may lack what the reader has seen at the leader. If it does not come while the reader waits, the leader knows
        // whether the offset exists.
        FetchError::OutOfRange { high_watermark, .. }
            if !leads && wanted.offset > *high_watermark =>
        {
            return Read {
                partition: failed(ErrorCode::NotLeaderOrFollower),
                urgent: false,
            };
        }
        FetchError::OutOfRange {
            log_start,
            high_watermark,
        } => FetchedPartition {
            high_watermark: high_watermark.get(),
            log_start_offset: log_start.get(),
            ..failed(ErrorCode::OffsetOutOfRange)
        },
        FetchError::UnknownPartition if !leads => failed(ErrorCode::NotLeaderOrFollower),
        FetchError::UnknownPartition => failed(unknown_code(broker, wanted, partition)),
        error => {
            tracing::warn!(%partition, offset = %wanted.offset, "fetch failed: {error}");
            failed(ErrorCode::KafkaStorageError)
        }
    };
    Read {
        partition: told,
        urgent: true,
    }
}

/// The answer of what was read: as many batches as fit the limit, and at least one if it is the first partition with data.
fn found(index: i32, fetched: Fetched, limit: usize, first: bool) -> FetchedPartition {
    let mut answer = FetchedPartition {
        partition_index: index,
        high_watermark: fetched.high_watermark.get(),
        last_stable_offset: fetched.high_watermark.get(),
        log_start_offset: fetched.log_start.get(),
        ..FetchedPartition::default()
    };
    let mut bytes = 0;
    for batch in fetched.batches {
        // A later partition's batch that does not fit waits for the next fetch.
        if bytes + batch.len() > limit && !(first && bytes == 0) {
            break;
        }
        bytes += batch.len();
        batch.chunks_into(&mut answer.records);
    }
    answer
}

/// What a partition that is not there is called: a topic that was named by its id and is gone has an error of its own, also when
/// it was deleted while the fetch waited. Clients forget the id then, and ask for the topic by name.
fn unknown_code(broker: &Broker, wanted: &Wanted, partition: PartitionId) -> ErrorCode {
    let known = broker
        .router
        .image(|image| image.topic(partition.topic).is_some());
    if known {
        ErrorCode::UnknownTopicOrPartition
    } else {
        wanted.unknown
    }
}

/// The leader epoch that a client believes in, against ours (KIP-320).
pub(super) fn check_epoch(ours: LeaderEpoch, epoch: Option<LeaderEpoch>) -> Option<ErrorCode> {
    match epoch {
        Some(theirs) if theirs < ours => Some(ErrorCode::FencedLeaderEpoch),
        Some(theirs) if theirs > ours => Some(ErrorCode::UnknownLeaderEpoch),
        _ => None,
    }
}
