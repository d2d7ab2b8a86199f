//! The ends of partitions that another broker leads.
//!
//! Owns: the bytes of question and answer, [`EndsService`], one question, what leaders have said ([`Ends`]).
//! Not here: who asks, and what follows from an answer (`commit_bounds.rs`).
//! Spec: docs/protocols/partition-ends.md

use super::Router;
use crate::coordinator::limits::COMMIT_OFFSETS_MAX;
use crate::format::{FormatError, Reader, Writer};
use crate::peer::{CallService, Caller};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tidelog_model::{NodeId, Offset, PartitionId, PartitionIndex, PlacementGroupId, TopicId};
use tokio::sync::Semaphore;
use tokio::time::Instant;

const VERSION: u8 = 1;
/// Bytes of one partition in a question.
const ASKED_BYTES: usize = 4 + 16 + 4;
const _: () = assert!(COMMIT_OFFSETS_MAX * ASKED_BYTES < crate::peer::CALL_BYTES_MAX - 64);
const NOT_LED: i64 = -1;
const MISSING: i64 = -2;

/// Ends that are kept, in two halves: 65,536 take about 4 MiB.
const HALF: usize = 32_768;
/// A group without an answer for so long is not waited for any more, only asked: elections are over by then.
const SILENT_AFTER: Duration = Duration::from_secs(5);
/// But it is when nobody has asked for so long.
const SILENT_FOR: Duration = Duration::from_secs(30);
/// Calls under way to one broker: a quarter of what its listener takes from one caller, the rest is for other services.
const CALLS_MAX: usize = 16;

/// A partition whose end is asked, and its group.
pub(super) type Asked = (PlacementGroupId, PartitionId);

/// What a broker says of the end of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It leads the group, and this is the offset after the last committed record.
    At(Offset),
    /// It does not lead the group, or that has no such partition, and it does not know of its topic as a deleted one.
    NotLed,
    /// It leads the group, which has no partition of this topic, and gets none: the topic was deleted.
    Missing,
}

fn encode_question(asked: &[Asked]) -> Bytes {
    let mut to = Writer::new();
    to.u8(VERSION);
    to.count(asked.len());
    for (group, partition) in asked {
        to.u32(group.get());
        to.uuid(partition.topic.get());
        to.i32(partition.index.get());
    }
    to.finish()
}

fn version(from: &mut Reader<'_>) -> Result<(), FormatError> {
    match from.u8("the version")? {
        VERSION => Ok(()),
        other => Err(FormatError::Version(u16::from(other))),
    }
}

/// Reads a list whose items take `bytes` each, and nothing after it.
fn list<T>(
    bytes: &[u8],
    item_bytes: usize,
    item: impl Fn(&mut Reader<'_>) -> Result<T, FormatError>,
) -> Result<Vec<T>, FormatError> {
    let mut from = Reader::new(bytes);
    version(&mut from)?;
    let count = from.count(item_bytes, "the partitions")?;
    if count > COMMIT_OFFSETS_MAX {
        return Err(FormatError::Invalid("the partitions"));
    }
    let items = (0..count).map(|_| item(&mut from)).collect();
    from.finish()?;
    items
}

fn decode_question(bytes: &[u8]) -> Result<Vec<Asked>, FormatError> {
    list(bytes, ASKED_BYTES, |from| {
        let group = PlacementGroupId::new(from.u32("the group")?);
        let topic = TopicId::new(from.uuid("the topic")?);
        let index = PartitionIndex::new(from.natural_i32("the partition")?);
        Ok((group, PartitionId { topic, index }))
    })
}

fn encode_answer(ends: &[End]) -> Bytes {
    let mut to = Writer::new();
    to.u8(VERSION);
    to.count(ends.len());
    for end in ends {
        to.i64(match end {
            End::At(offset) => offset.get(),
            End::NotLed => NOT_LED,
            End::Missing => MISSING,
        });
    }
    to.finish()
}

/// The ends of so many partitions.
fn decode_answer(bytes: &[u8], asked: usize) -> Result<Vec<End>, FormatError> {
    let ends = list(bytes, 8, |from| match from.i64("an end")? {
        NOT_LED => Ok(End::NotLed),
        MISSING => Ok(End::Missing),
        end if end >= 0 => Ok(End::At(Offset::new(end))),
        _ => Err(FormatError::Invalid("an end")),
    })?;
    if ends.len() == asked {
        Ok(ends)
    } else {
        Err(FormatError::Invalid("the number of ends"))
    }
}

/// Answers other brokers for the groups that this one leads.
pub struct EndsService(pub Router);

impl EndsService {
    async fn end(&self, (group, partition): Asked) -> End {
        let held = self.0.data_group(group);
        // Before the bounds are read: they are current then.
        let Some(led) = held.filter(|held| held.group().can_serve_reads()) else {
            return End::NotLed;
        };
        match led.bounds(partition) {
            Ok((_, end)) => End::At(end),
            Err(_) if self.0.is_free_of(&led, partition.topic).await => End::Missing,
            Err(_) => End::NotLed,
        }
    }
}

impl CallService for EndsService {
    fn call(&self, from: Caller, question: Bytes) -> BoxFuture<'static, Bytes> {
        let asked = decode_question(&question).unwrap_or_else(|error| {
            tracing::debug!(
                "{from:?} asks for ends of partitions in words that cannot be read: {error}"
            );
            Vec::new()
        });
        let service = Self(self.0.clone());
        let answer = async move {
            let mut ends = Vec::with_capacity(asked.len());
            for asked in asked {
                ends.push(service.end(asked).await);
            }
            encode_answer(&ends)
        };
        answer.boxed()
    }
}

impl Router {
    /// What `leader` says of the ends of partitions, in order, as far as one question goes; `None`: nothing that can be read in time.
    pub(super) async fn ask_ends(
        &self,
        leader: NodeId,
        asked: &[Asked],
        within: Duration,
    ) -> Option<Vec<End>> {
        let link = self.inner.metadata.link.as_ref()?;
        let target = link.brokers.target(leader)?;
        let asked = &asked[..asked.len().min(COMMIT_OFFSETS_MAX)];
        let question = encode_question(asked);
        let called = link.transport.call(&target, link.ends, question, within);
        let ends = match called.await {
            Ok(answer) => decode_answer(&answer, asked.len()).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        ends.inspect_err(|why| {
            tracing::debug!("broker {leader} does not say where partitions end: {why}");
        })
        .ok()
    }
}

/// What leaders have said, how many of them are asked at once, and which groups nobody speaks for.
#[derive(Default)]
pub(super) struct Ends {
    known: Mutex<Halves>,
    gates: Mutex<BTreeMap<NodeId, Arc<Semaphore>>>,
    /// Groups that were waited for in vain: when that was first and last. As many as there are groups.
    silent: Mutex<BTreeMap<PlacementGroupId, (Instant, Instant)>>,
}

/// What is used comes to be young, and when there is much of that, the old go.
#[derive(Default)]
struct Halves {
    young: HashMap<Asked, Offset>,
    old: HashMap<Asked, Offset>,
}

impl Halves {
    fn get(&mut self, partition: Asked) -> Option<Offset> {
        if let Some(end) = self.young.get(&partition) {
            return Some(*end);
        }
        let end = self.old.remove(&partition)?;
        self.put(partition, end);
        Some(end)
    }

    fn put(&mut self, partition: Asked, end: Offset) {
        if self.young.len() >= HALF {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(partition, end);
    }
}

impl Ends {
    /// The end that was heard last. It is at least so far: in the same group it never goes back.
    pub(super) fn known(&self, partition: Asked) -> Option<Offset> {
        self.known.lock().get(partition)
    }

    /// Takes note of an end. An earlier one, which was on its way for longer, changes nothing.
    pub(super) fn note(&self, partition: Asked, end: Offset) {
        let mut known = self.known.lock();
        if known.get(partition).is_none_or(|before| before < end) {
            known.put(partition, end);
        }
    }

    /// Whether the group has been waited for in vain for some time, and nobody has spoken for it since.
    pub(super) fn is_silent(&self, group: PlacementGroupId) -> bool {
        let silent = self.silent.lock().get(&group).copied();
        silent.is_some_and(|(first, last)| {
            first.elapsed() >= SILENT_AFTER && last.elapsed() < SILENT_FOR
        })
    }

    /// Somebody speaks for the group.
    pub(super) fn heard(&self, group: PlacementGroupId) {
        self.silent.lock().remove(&group);
    }

    /// The group was waited for, or asked, in vain.
    pub(super) fn missed(&self, group: PlacementGroupId) {
        let now = Instant::now();
        let mut silent = self.silent.lock();
        let (first, last) = silent.entry(group).or_insert((now, now));
        if last.elapsed() >= SILENT_FOR {
            *first = now;
        }
        *last = now;
    }

    /// Bounds the calls to one broker.
    pub(super) fn gate(&self, broker: NodeId) -> Arc<Semaphore> {
        let mut gates = self.gates.lock();
        let gate = gates.entry(broker);
        Arc::clone(gate.or_insert_with(|| Arc::new(Semaphore::new(CALLS_MAX))))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use uuid::Uuid;

    fn partition(topic: u128, index: i32) -> PartitionId {
        PartitionId {
            topic: TopicId::new(Uuid::from_u128(topic)),
            index: PartitionIndex::new(index),
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Proves that the bytes stay, and that cut, longer, newer, and too many are refused.
    #[test]
    fn bytes_of_version_1() {
        let asked = [
            (PlacementGroupId::new(258), partition(7, 3)),
            (PlacementGroupId::new(1), partition(8, 0)),
        ];
        let ends = [End::At(Offset::new(513)), End::NotLed, End::Missing];
        let (question, answer) = (encode_question(&asked), encode_answer(&ends));
        let golden = include_str!("testdata/partition-ends-v1.txt");
        let (question_hex, answer_hex) = (hex(&question), hex(&answer));
        assert_eq!(
            golden,
            format!("question {question_hex}\nanswer {answer_hex}\n")
        );
        assert_eq!(decode_question(&question).unwrap(), asked);
        assert_eq!(decode_answer(&answer, 3).unwrap(), ends);
        assert!(decode_answer(&answer, 2).is_err());
        for length in 0..question.len() {
            assert!(decode_question(&question[..length]).is_err());
        }
        for length in 0..answer.len() {
            assert!(decode_answer(&answer[..length], 3).is_err());
        }
        assert!(decode_question(&[&question[..], &[0]].concat()).is_err());
        assert!(decode_answer(&[&answer[..], &[0]].concat(), 3).is_err());
        let mut newer = question.to_vec();
        newer[0] = 2;
        assert_eq!(decode_question(&newer), Err(FormatError::Version(2)));
        let many = vec![asked[0]; COMMIT_OFFSETS_MAX + 1];
        assert!(decode_question(&encode_question(&many)).is_err());
        let most = &many[1..];
        assert_eq!(decode_question(&encode_question(most)).unwrap(), most);
        let negative = [&[VERSION, 1, 0, 0, 0][..], &(-3i64).to_le_bytes()].concat();
        assert!(decode_answer(&negative, 1).is_err());
    }

    /// Proves that an end never goes back, and that so many are kept: those that are used, however many others come.
    #[test]
    fn ends_are_kept() {
        let ends = Ends::default();
        let group = PlacementGroupId::new(1);
        let partition = |topic, index| (group, partition(topic, index));
        let used = partition(1, 0);
        ends.note(used, Offset::new(5));
        ends.note(used, Offset::new(4));
        assert_eq!(ends.known(used), Some(Offset::new(5)));
        assert_eq!(ends.known(partition(1, 1)), None);
        let anew = (PlacementGroupId::new(2), used.1);
        assert_eq!(ends.known(anew), None, "the group was lost and replaced");
        for index in 0..i32::try_from(4 * HALF).unwrap() {
            ends.note(partition(2, index), Offset::new(1));
            if index % 1_000 == 0 {
                assert_eq!(ends.known(used), Some(Offset::new(5)), "{index}");
            }
        }
        let known = ends.known.lock();
        assert!(known.young.len() <= HALF && known.old.len() <= HALF);
        drop(known);
        assert_eq!(ends.known(partition(2, 0)), None);
    }

    /// Proves that a group is silent when it was missed for some time, until somebody speaks for it or nobody has asked for long.
    #[tokio::test(start_paused = true)]
    async fn silence() {
        let ends = Ends::default();
        let (group, other) = (PlacementGroupId::new(1), PlacementGroupId::new(2));
        let misses = async || {
            ends.missed(group);
            assert!(!ends.is_silent(group), "an election may be on");
            tokio::time::advance(SILENT_AFTER).await;
            ends.missed(group);
            assert!(ends.is_silent(group) && !ends.is_silent(other));
        };
        misses().await;
        ends.heard(group);
        assert!(!ends.is_silent(group));
        misses().await;
        tokio::time::advance(SILENT_FOR).await;
        assert!(!ends.is_silent(group));
        misses().await;
    }
}
