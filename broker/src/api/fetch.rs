//! Fetch, with long polls.
//!
//! Owns: limits over partitions, waiting for data, the answer.
//! Not here: one partition (`fetch_partition.rs`), reading (`datagroup::read`). Fetch sessions are not kept: every answer says session 0, so that clients send
//! full requests (allowed by KIP-227).
//!
//! A first batch larger than the limits is still returned (KIP-74, field report A34). A long poll wakes on applied
//! entries of the groups it waits for, not on a timer (field report A22), and reads again only when one of its partitions moved.

use std::collections::BTreeMap;
use std::time::Duration;

use super::context::Broker;
use super::fetch_partition::{Bounds, Read, Reader, Wanted};
use crate::datagroup::DataGroup;
use crate::error::ErrorCode;
use crate::wire::messages::{
    FetchRequest, StrBytes, WireUuid, fetch_request, topic_id, wire_topic_id,
};
use crate::wire::{FetchAnswer, FetchedPartition, FetchedTopic};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tidelog_model::{LeaderEpoch, Offset, PartitionId, PartitionIndex, PlacementGroupId};
use tokio::sync::watch;
use tokio::time::Instant;

/// Longest long poll.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Most bytes of one answer, whatever the client asks. Larger ones bring no more throughput, and take memory for as long
/// as they are written.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// How long a fetch that has hot records waits for cold ones: long enough for what is cached.
const COLD_GRACE: Duration = Duration::from_millis(5);
/// How often a waiting fetch looks whether this broker still leads: a lease runs out without an event. The shortest election.
const LEASE_LOOK: Duration = Duration::from_secs(1);
/// Partitions read from the object store at once by one fetch.
const COLD_READS_MAX: usize = 8;
/// Bytes of one partition in one answer at most.
const PARTITION_BYTES_MAX: usize = 8 << 20;

struct WantedTopic {
    name: StrBytes,
    id: WireUuid,
    partitions: Vec<Wanted>,
}

/// Answers a Fetch.
pub(super) async fn fetch(broker: &Broker, request: FetchRequest, version: i16) -> FetchAnswer {
    if request.session_id != 0 {
        // No session was ever given out: the client begins again without one.
        return FetchAnswer {
            error_code: ErrorCode::FetchSessionIdNotFound.code(),
            ..FetchAnswer::default()
        };
    }
    let deadline = Instant::now()
        + Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0)).min(WAIT_MAX);
    let bytes_min = usize::try_from(request.min_bytes).unwrap_or(0);
    let bytes_max = usize::try_from(request.max_bytes)
        .unwrap_or(0)
        .min(ANSWER_BYTES_MAX);
    let reader = Reader::new(broker, &request.rack_id);
    let topics = wanted(broker, request.topics, version);
    loop {
        // Both before the read: what is applied after it counts as a change.
        let mut applied = applied_watches(broker, &topics);
        let before = bounds(broker, &reader, &topics);
        let (limit, memory) = broker.answers.take(bytes_max);
        let (mut answer, urgent) = read_all(broker, &reader, &topics, limit, deadline).await;
        let found = answer.records_bytes();
        if urgent
            || found >= bytes_min.max(1).min(limit.max(1))
            || bytes_min == 0
            || Instant::now() >= deadline
        {
            if found == 0 {
                broker.metrics.empty_fetches.inc();
            }
            broker.metrics.fetched_bytes.inc_by(found as u64);
            memory.hold(&mut answer);
            return answer;
        }
        drop((answer, memory));
        until_changed(
            &before,
            || bounds(broker, &reader, &topics),
            &mut applied,
            deadline,
        )
        .await;
    }
}

fn bounds(broker: &Broker, reader: &Reader, topics: &[WantedTopic]) -> Vec<Bounds> {
    let partitions = topics.iter().flat_map(|topic| &topic.partitions);
    let known = partitions.filter_map(|wanted| wanted.partition);
    known
        .map(|partition| reader.bounds(broker, partition))
        .collect()
}

/// Waits until `now` differs from `before`, or the deadline. `now` is looked at whenever one of `applied` moves (a group carries
/// many partitions, and an entry of another one is no reason to read), and now and then besides.
async fn until_changed<T: PartialEq, W>(
    before: &T,
    now: impl Fn() -> T,
    applied: &mut [watch::Receiver<W>],
    deadline: Instant,
) {
    loop {
        let mut changes: FuturesUnordered<_> =
            applied.iter_mut().map(watch::Receiver::changed).collect();
        let look = deadline.min(Instant::now() + LEASE_LOOK);
        tokio::select! {
            () = tokio::time::sleep_until(look) => {
                if Instant::now() >= deadline || now() != *before {
                    return;
                }
            }
            Some(changed) = changes.next(), if !changes.is_empty() => {
                // Without a sender nothing would ever wake this again: the group has gone.
                if changed.is_err() || now() != *before {
                    return;
                }
            }
        }
    }
}

fn wanted(
    broker: &Broker,
    topics: Vec<fetch_request::FetchTopic>,
    version: i16,
) -> Vec<WantedTopic> {
    let by_id = version >= 13;
    topics
        .into_iter()
        .map(|topic| {
            let id = if by_id {
                topic_id(topic.topic_id)
                    .filter(|id| broker.router.image(|image| image.topic(*id).is_some()))
            } else {
                broker
                    .router
                    .image(|image| image.topic_by_name(topic.topic.as_str()).map(|(id, _)| id))
            };
            let unknown = if by_id {
                ErrorCode::UnknownTopicId
            } else {
                ErrorCode::UnknownTopicOrPartition
            };
            let partitions = topic
                .partitions
                .iter()
                .map(|partition| Wanted {
                    partition: id.map(|topic| PartitionId {
                        topic,
                        index: PartitionIndex::new(partition.partition),
                    }),
                    index: partition.partition,
                    offset: Offset::new(partition.fetch_offset),
                    epoch: (partition.current_leader_epoch >= 0)
                        .then(|| LeaderEpoch::new(partition.current_leader_epoch)),
                    bytes_max: usize::try_from(partition.partition_max_bytes)
                        .unwrap_or(0)
                        .min(PARTITION_BYTES_MAX),
                    unknown,
                })
                .collect();
            let id = if by_id {
                topic.topic_id
            } else {
                id.map_or_else(WireUuid::default, wire_topic_id)
            };
            WantedTopic {
                name: topic.topic,
                id,
                partitions,
            }
        })
        .collect()
}

/// Watches of the groups concerned, taken before the read: what is applied after it wakes the poll.
fn applied_watches(
    broker: &Broker,
    topics: &[WantedTopic],
) -> Vec<watch::Receiver<Option<tidelog_model::LogId>>> {
    let mut groups: BTreeMap<PlacementGroupId, DataGroup> = BTreeMap::new();
    for partition in topics
        .iter()
        .flat_map(|topic| &topic.partitions)
        .filter_map(|wanted| wanted.partition)
    {
        if let Ok(group) = broker.router.group_of(partition) {
            groups.insert(group.id(), group);
        }
    }
    groups
        .values()
        .map(|group| {
            let mut applied = group.group().applied();
            applied.borrow_and_update();
            applied
        })
        .collect()
}

/// What one pass over the partitions found, and how much of the limit is left.
struct Pass {
    answers: Vec<Vec<Option<FetchedPartition>>>,
    left: usize,
    found: bool,
    urgent: bool,
}

impl Pass {
    fn take(&mut self, at: (usize, usize), read: Read) {
        let partition = read.partition;
        let bytes = partition.records_bytes();
        self.urgent |= read.urgent;
        self.found |= bytes > 0;
        self.left = self.left.saturating_sub(bytes);
        if let Some(slot) = self
            .answers
            .get_mut(at.0)
            .and_then(|topic| topic.get_mut(at.1))
        {
            *slot = Some(partition);
        }
    }

    /// The limit of the next partition: `None` if the limit over all is spent. The first partition that has data gives
    /// at least one batch, whatever the limits are.
    fn limit(&self, wanted: &Wanted) -> Option<usize> {
        if self.left == 0 && self.found {
            None
        } else {
            Some(wanted.bytes_max.min(self.left))
        }
    }
}

/// Reads all partitions once; says whether the answer must not wait (an error is in it).
///
/// The hot tail is read first. What lies in the object store is read beside it and is in the answer if it is there in
/// time: at once if hot records were found, else within the client's wait. What comes later is in the cache for the next
/// fetch (field report A14), so a replay never holds up the tail (I13).
async fn read_all(
    broker: &Broker,
    reader: &Reader,
    topics: &[WantedTopic],
    bytes_max: usize,
    deadline: Instant,
) -> (FetchAnswer, bool) {
    let answers = topics
        .iter()
        .map(|topic| vec![None; topic.partitions.len()])
        .collect();
    let mut pass = Pass {
        answers,
        left: bytes_max,
        found: false,
        urgent: false,
    };
    let mut cold = Vec::new();
    for (topic_at, topic) in topics.iter().enumerate() {
        for (at, wanted) in topic.partitions.iter().enumerate() {
            if reader.is_cold(broker, wanted) {
                cold.push(((topic_at, at), wanted));
            } else {
                let read = reader
                    .read(broker, wanted, pass.limit(wanted), !pass.found)
                    .await;
                pass.take((topic_at, at), read);
            }
        }
    }
    if !cold.is_empty() && pass.limit(cold[0].1).is_some() {
        let until = if pass.found {
            Instant::now() + COLD_GRACE
        } else {
            deadline.max(Instant::now() + COLD_GRACE)
        };
        let first = !pass.found;
        let mut reads = FuturesUnordered::new();
        let mut waiting = cold.iter();
        for (at, wanted) in waiting.by_ref().take(COLD_READS_MAX) {
            reads.push(reader.read_at(broker, *at, wanted, pass.limit(wanted), first));
        }
        while pass.limit(cold[0].1).is_some()
            && let Ok(Some((at, read))) = tokio::time::timeout_at(until, reads.next()).await
        {
            pass.take(at, read);
            if let Some((at, wanted)) = waiting.next() {
                reads.push(reader.read_at(broker, *at, wanted, pass.limit(wanted), first));
            }
        }
    }
    finish(broker, reader, topics, pass).await
}

/// The answer: partitions that were not read say their bounds.
async fn finish(
    broker: &Broker,
    reader: &Reader,
    topics: &[WantedTopic],
    pass: Pass,
) -> (FetchAnswer, bool) {
    let mut answer = FetchAnswer::default();
    for (topic, read) in topics.iter().zip(pass.answers) {
        let mut fetched = FetchedTopic {
            topic: topic.name.clone(),
            topic_id: topic.id,
            partitions: Vec::new(),
        };
        for (wanted, partition) in topic.partitions.iter().zip(read) {
            let partition = match partition {
                Some(partition) => partition,
                None => reader.read(broker, wanted, None, false).await.partition,
            };
            fetched.partitions.push(partition);
        }
        answer.topics.push(fetched);
    }
    (answer, pass.urgent)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Proves that entries of other partitions do not end the wait, that one of its own does, and that the deadline does when
    /// nothing happens.
    #[tokio::test(start_paused = true)]
    async fn only_a_change_of_its_own_ends_the_wait() {
        let (first, second) = (watch::Sender::new(0u64), watch::Sender::new(0u64));
        let mut applied = [first.subscribe(), second.subscribe()];
        let mark = AtomicU64::new(7);
        let deadline = Instant::now() + Duration::from_secs(10);
        let writes = async {
            for entry in 1..=20 {
                tokio::time::sleep(Duration::from_millis(100)).await;
                first.send_replace(entry);
            }
            mark.store(8, Ordering::SeqCst);
            second.send_replace(1);
        };
        let now = || mark.load(Ordering::SeqCst);
        tokio::join!(until_changed(&7, now, &mut applied, deadline), writes);
        let woken = deadline - Instant::now();
        assert_eq!(woken, Duration::from_secs(8), "with its own entry, at 2 s");
        let others = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            first.send_replace(99);
        };
        tokio::join!(until_changed(&8, now, &mut applied, deadline), others);
        assert!(Instant::now() >= deadline);
    }

    /// Proves that a wait for nothing (no group of this broker holds the partitions) ends with the deadline, and that a group
    /// which goes away ends it at once.
    #[tokio::test(start_paused = true)]
    async fn a_wait_without_groups_ends() {
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut applied: [watch::Receiver<u64>; 0] = [];
        until_changed(&0, || 0, &mut applied, deadline).await;
        assert!(Instant::now() >= deadline);
        let sender = watch::Sender::new(0u64);
        let mut applied = [sender.subscribe()];
        drop(sender);
        let deadline = Instant::now() + Duration::from_secs(10);
        until_changed(&0, || 0, &mut applied, deadline).await;
        assert!(Instant::now() < deadline);
    }
}
