//! The budget of answers that carry records, over all connections.
//!
//! Owns: how large an answer may become now, and holding its share until its last byte is written.
//! Not here: limits a client asks for (`fetch`).
//!
//! Nobody waits for it: a client that reads its answer slowly would hold up the others. When the budget is used up, answers
//! become small instead, so that the sum stays below the budget plus [`ANSWER_BYTES_FLOOR`] (or a single larger batch) per
//! connection, of which each has one Fetch in work.

use crate::wire::FetchAnswer;
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of all answers together.
const ANSWERS_BYTES_MAX: usize = 64 << 20;
/// Bytes an answer may have whatever the others take.
const ANSWER_BYTES_FLOOR: usize = 256 << 10;

/// The budget. Clones share it.
#[derive(Clone, Debug)]
pub struct AnswerMemory(Arc<Semaphore>);

impl Default for AnswerMemory {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(ANSWERS_BYTES_MAX)))
    }
}

/// A share of the budget.
#[derive(Debug)]
pub(super) struct Share(Option<OwnedSemaphorePermit>);

/// Bytes that give a share back when they are dropped.
struct Held {
    bytes: Bytes,
    _share: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AnswerMemory {
    /// How many bytes an answer may have that would like `wanted`, and its share.
    pub(super) fn take(&self, wanted: usize) -> (usize, Share) {
        let bytes = wanted.min(self.0.available_permits());
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        // Somebody may have been faster: then this answer gets the floor.
        let taken = Arc::clone(&self.0).try_acquire_many_owned(permits).ok();
        let granted = taken.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        (granted.max(wanted.min(ANSWER_BYTES_FLOOR)), Share(taken))
    }

    #[cfg(test)]
    fn available(&self) -> usize {
        self.0.available_permits()
    }
}

impl Share {
    /// Keeps as much as the answer has, until the last of its bytes is gone; the rest is free at once.
    pub(super) fn hold(self, answer: &mut FetchAnswer) {
        let Some(mut share) = self.0 else { return };
        let unused = share.num_permits().saturating_sub(answer.records_bytes());
        drop(share.split(unused));
        let last = answer
            .topics
            .iter_mut()
            .flat_map(|topic| &mut topic.partitions)
            .flat_map(|partition| &mut partition.records)
            .last();
        if let Some(last) = last {
            *last = Bytes::from_owner(Held {
                bytes: std::mem::take(last),
                _share: share,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::wire::{FetchedPartition, FetchedTopic};

    fn answer(chunks: &[usize]) -> FetchAnswer {
        let records = chunks.iter().map(|bytes| Bytes::from(vec![7; *bytes]));
        FetchAnswer {
            topics: vec![FetchedTopic {
                partitions: vec![FetchedPartition {
                    records: records.collect(),
                    ..FetchedPartition::default()
                }],
                ..FetchedTopic::default()
            }],
            ..FetchAnswer::default()
        }
    }

    /// Proves that an answer holds as much of the budget as it has bytes, until they are gone, and that the bytes are
    /// the same.
    #[test]
    fn a_share_lives_as_long_as_the_answer() {
        let memory = AnswerMemory::default();
        let (limit, share) = memory.take(16 << 20);
        assert_eq!(limit, 16 << 20);
        assert_eq!(memory.available(), ANSWERS_BYTES_MAX - (16 << 20));
        let mut held = answer(&[1_000, 2_000]);
        share.hold(&mut held);
        assert_eq!(held, answer(&[1_000, 2_000]));
        assert_eq!(memory.available(), ANSWERS_BYTES_MAX - 3_000);
        let last = held.topics[0].partitions[0].records.pop();
        drop(held);
        assert_eq!(memory.available(), ANSWERS_BYTES_MAX - 3_000);
        drop(last);
        assert_eq!(memory.available(), ANSWERS_BYTES_MAX);
        let (_, share) = memory.take(5);
        share.hold(&mut answer(&[]));
        assert_eq!(memory.available(), ANSWERS_BYTES_MAX);
    }

    /// Proves that answers become small, and none waits or is refused, when the budget is used up.
    #[test]
    fn without_budget_answers_are_small() {
        let memory = AnswerMemory::default();
        let (first, _all) = memory.take(ANSWERS_BYTES_MAX - 1_000);
        assert_eq!(first, ANSWERS_BYTES_MAX - 1_000);
        let (second, _rest) = memory.take(16 << 20);
        assert_eq!(second, ANSWER_BYTES_FLOOR);
        let (third, _none) = memory.take(16 << 20);
        assert_eq!(third, ANSWER_BYTES_FLOOR);
        let (asks_little, _none) = memory.take(10);
        assert_eq!(asks_little, 10);
    }
}
