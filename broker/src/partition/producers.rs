//! Idempotent producers of one partition: which sequence comes next, and what a retry was answered before (FR1, I3).
//!
//! Owns: the sequence rules of Kafka's idempotent producer (KIP-98, KIP-360) for one partition.
//! Not here: producer id allocation (`metadata`).

use std::collections::{BTreeMap, BTreeSet};
use tidelog_env::{Mutant, mutant};
use tidelog_model::{Offset, ProducerEpoch, ProducerId, Sequence, TimestampMs};
use tidelog_tiering::manifest::{ProducerBatch, ProducerEntry};

/// A producer that has been silent this long is forgotten (Kafka's `producer.id.expiration.ms`, one day).
pub const EXPIRY_MS: i64 = 24 * 60 * 60 * 1000;

/// Most producers remembered per partition: at about 240 bytes each, 24 MB. The longest silent one is forgotten first.
pub const PRODUCERS_MAX: usize = 100_000;

/// What the sequence check says about a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceCheck {
    /// Append it.
    Next,
    /// It is already in the log: answer as the first time.
    Duplicate(ProducerBatch),
    /// The producer was fenced by a newer epoch.
    StaleEpoch,
    /// Records before it are missing.
    OutOfOrder,
}

/// The producers of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Producers {
    by_id: BTreeMap<ProducerId, ProducerEntry>,
    /// The same producers by their last stamp: who is forgotten first. A scan of a full table for each new producer would
    /// hold up all appends of the group.
    by_stamp: BTreeSet<(TimestampMs, ProducerId)>,
    /// The lowest id of a producer that cannot have written here and be forgotten. It only rises.
    first_new: ProducerId,
}

impl Producers {
    /// Nobody has written; who has the id `first_new` or a higher one never wrote to a partition of this name before.
    #[must_use]
    pub fn new(first_new: ProducerId) -> Self {
        Self {
            by_id: BTreeMap::new(),
            by_stamp: BTreeSet::new(),
            first_new,
        }
    }

    /// Nobody has written, and anyone may have been forgotten.
    #[must_use]
    pub fn any_may_begin() -> Self {
        Self::new(ProducerId::new(i64::MAX))
    }

    /// Checks a batch of `id` whose records carry `first..=last` against what was appended before.
    ///
    /// As in Kafka (KIP-360), a producer that is unknown here may begin at any sequence when it may have been forgotten: its state may
    /// have expired while its records are safe in the log (field report A25), or the topic may have been deleted and created again. One
    /// that cannot have been here begins at 0: if its first batch was refused, because the partition was not led yet, the second
    /// must not overtake it (I3). Kafka takes that one.
    #[must_use]
    pub fn check(
        &self,
        id: ProducerId,
        epoch: ProducerEpoch,
        first: Sequence,
        last: Sequence,
    ) -> SequenceCheck {
        let Some(known) = self.by_id.get(&id) else {
            let new = id >= self.first_new && !mutant(Mutant::FirstBatchOvertaken);
            return if new && first.get() != 0 {
                SequenceCheck::OutOfOrder
            } else {
                SequenceCheck::Next
            };
        };
        if epoch < known.epoch {
            return SequenceCheck::StaleEpoch;
        }
        if epoch > known.epoch {
            return if first.get() == 0 {
                SequenceCheck::Next
            } else {
                SequenceCheck::OutOfOrder
            };
        }
        let forgotten = match known.batches.len() {
            count if mutant(Mutant::DuplicateOnlyNewest) => count.saturating_sub(1),
            _ => 0,
        };
        let newest = known.batches.last().map(|newest| newest.last_sequence);
        if mutant(Mutant::RetryAppended) && newest >= Some(first) {
            return SequenceCheck::Next;
        }
        if let Some(seen) = known
            .batches
            .iter()
            .skip(forgotten)
            .find(|b| b.base_sequence == first && b.last_sequence == last)
        {
            return SequenceCheck::Duplicate(*seen);
        }
        match known.batches.last() {
            Some(newest) if newest.last_sequence.plus(1) != first => SequenceCheck::OutOfOrder,
            _ => SequenceCheck::Next,
        }
    }

    /// Remembers an appended batch.
    pub fn record(
        &mut self,
        id: ProducerId,
        epoch: ProducerEpoch,
        batch: ProducerBatch,
        stamp: TimestampMs,
    ) {
        if !self.by_id.contains_key(&id) && self.by_id.len() >= PRODUCERS_MAX {
            self.forget_longest_silent();
        }
        let entry = self.by_id.entry(id).or_insert_with(|| ProducerEntry {
            id,
            epoch,
            last_stamp: stamp,
            batches: Vec::with_capacity(ProducerEntry::BATCHES_MAX),
        });
        if epoch > entry.epoch {
            entry.epoch = epoch;
            if !mutant(Mutant::EpochBumpKeepsBatches) {
                entry.batches.clear();
            }
        }
        if entry.batches.len() == ProducerEntry::BATCHES_MAX {
            entry.batches.remove(0);
        }
        entry.batches.push(batch);
        self.by_stamp.remove(&(entry.last_stamp, id));
        entry.last_stamp = stamp;
        self.by_stamp.insert((stamp, id));
    }

    /// Forgets the producers that were silent for [`EXPIRY_MS`] at `stamp`.
    pub fn expire(&mut self, stamp: TimestampMs) {
        while let Some((last, id)) = self.by_stamp.first().copied()
            && stamp.get().saturating_sub(last.get()) >= EXPIRY_MS
        {
            self.by_stamp.remove(&(last, id));
            self.forget(id);
        }
    }

    /// The lowest id of a producer that cannot have written here and be forgotten.
    #[must_use]
    pub fn first_new(&self) -> ProducerId {
        self.first_new
    }

    /// Number of producers remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether none is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// All entries, by id, for a manifest.
    #[must_use]
    pub fn to_entries(&self) -> Vec<ProducerEntry> {
        self.by_id.values().cloned().collect()
    }

    /// The producers of a manifest.
    #[must_use]
    pub fn from_entries(entries: Vec<ProducerEntry>, first_new: ProducerId) -> Self {
        let by_id: BTreeMap<_, _> = entries.into_iter().map(|entry| (entry.id, entry)).collect();
        Self {
            by_stamp: by_id
                .values()
                .map(|entry| (entry.last_stamp, entry.id))
                .collect(),
            by_id,
            first_new,
        }
    }

    /// The offset of the newest batch of `id` (for DescribeProducers and tests).
    #[must_use]
    pub fn newest_offset(&self, id: ProducerId) -> Option<Offset> {
        self.by_id
            .get(&id)
            .and_then(|entry| entry.batches.last())
            .map(|batch| batch.base_offset)
    }

    fn forget_longest_silent(&mut self) {
        if let Some((_, id)) = self.by_stamp.pop_first() {
            self.forget(id);
        }
    }

    fn forget(&mut self, id: ProducerId) {
        self.by_id.remove(&id);
        let next = ProducerId::new(id.get().saturating_add(1));
        self.first_new = self.first_new.max(next);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;

    const P: ProducerId = ProducerId::new(7);
    const E: ProducerEpoch = ProducerEpoch::new(0);

    fn batch(first: i32, last: i32, offset: i64) -> ProducerBatch {
        ProducerBatch {
            base_sequence: Sequence::new(first),
            last_sequence: Sequence::new(last),
            base_offset: Offset::new(offset),
            append_time: TimestampMs::new(-1),
        }
    }

    fn check(p: &Producers, epoch: i16, first: i32, last: i32) -> SequenceCheck {
        p.check(
            P,
            ProducerEpoch::new(epoch),
            Sequence::new(first),
            Sequence::new(last),
        )
    }

    /// Proves that each of the last five batches is recognised and answered with its first offset, an older one not.
    #[test]
    fn five_batches_answer_retries() {
        let mut producers = Producers::new(ProducerId::new(0));
        for i in 0..7 {
            assert_eq!(check(&producers, 0, i, i), SequenceCheck::Next);
            producers.record(P, E, batch(i, i, i64::from(i) * 10), TimestampMs::new(1));
        }
        for i in 2..7 {
            assert_eq!(
                check(&producers, 0, i, i),
                SequenceCheck::Duplicate(batch(i, i, i64::from(i) * 10))
            );
        }
        assert_eq!(check(&producers, 0, 1, 1), SequenceCheck::OutOfOrder);
        assert_eq!(check(&producers, 0, 8, 8), SequenceCheck::OutOfOrder);
        assert_eq!(check(&producers, 0, 7, 9), SequenceCheck::Next);
    }

    /// Proves that a full table forgets the longest silent producer, whatever order they came and spoke in, that nobody is kept
    /// twice, and that a table read back forgets the same ones.
    #[test]
    fn the_longest_silent_is_forgotten_first() {
        let max = i64::try_from(PRODUCERS_MAX).unwrap();
        let mut producers = Producers::new(ProducerId::new(0));
        let speak = |producers: &mut Producers, id: i64, stamp: i64| {
            producers.record(
                ProducerId::new(id),
                E,
                batch(0, 0, id),
                TimestampMs::new(stamp),
            );
        };
        for id in 0..max {
            speak(&mut producers, id, 1_000_000 - id);
        }
        // The one that was silent longest speaks again.
        speak(&mut producers, max - 1, 2_000_000);
        let mut restored = Producers::from_entries(producers.to_entries(), producers.first_new());
        assert_eq!(restored, producers);
        for (new, forgotten) in [(max, max - 2), (max + 1, max - 3)] {
            for producers in [&mut producers, &mut restored] {
                speak(producers, new, 3_000_000);
                assert_eq!(producers.len(), PRODUCERS_MAX);
                assert_eq!(producers.newest_offset(ProducerId::new(forgotten)), None);
                let kept = producers.newest_offset(ProducerId::new(max - 1));
                assert_eq!(kept, Some(Offset::new(max - 1)));
            }
        }
        assert_eq!(restored, producers);
        assert_eq!(producers.by_stamp.len(), producers.by_id.len());
        producers.expire(TimestampMs::new(3_000_000 + EXPIRY_MS - 1));
        assert_eq!(producers.len(), 2);
        assert_eq!(producers.by_stamp.len(), 2);
    }

    /// Proves that an older epoch is fenced and a newer one must begin at sequence 0.
    #[test]
    fn epochs_fence() {
        let mut producers = Producers::new(ProducerId::new(0));
        producers.record(
            P,
            ProducerEpoch::new(3),
            batch(0, 4, 0),
            TimestampMs::new(1),
        );
        assert_eq!(check(&producers, 2, 5, 5), SequenceCheck::StaleEpoch);
        assert_eq!(check(&producers, 4, 5, 5), SequenceCheck::OutOfOrder);
        assert_eq!(check(&producers, 4, 0, 5), SequenceCheck::Next);
        producers.record(
            P,
            ProducerEpoch::new(4),
            batch(0, 5, 5),
            TimestampMs::new(1),
        );
        assert_eq!(check(&producers, 3, 5, 5), SequenceCheck::StaleEpoch);
        assert_eq!(check(&producers, 4, 6, 6), SequenceCheck::Next);
    }

    /// Proves that the sequence wraps from the largest number to zero without a gap.
    #[test]
    fn sequence_wraps() {
        let mut producers = Producers::new(ProducerId::new(0));
        producers.record(P, E, batch(i32::MAX - 1, i32::MAX, 0), TimestampMs::new(1));
        assert_eq!(check(&producers, 0, 0, 3), SequenceCheck::Next);
        assert_eq!(check(&producers, 0, 1, 3), SequenceCheck::OutOfOrder);
    }

    /// Proves that expiry forgets by broker stamp and that an expired producer goes on without an error (A25).
    #[test]
    fn expired_producer_goes_on() {
        let mut producers = Producers::new(ProducerId::new(0));
        producers.record(P, E, batch(0, 9, 0), TimestampMs::new(1_000));
        producers.expire(TimestampMs::new(1_000 + EXPIRY_MS - 1));
        assert_eq!(producers.len(), 1);
        producers.expire(TimestampMs::new(1_000 + EXPIRY_MS));
        assert!(producers.is_empty());
        assert_eq!(check(&producers, 0, 10, 19), SequenceCheck::Next);
    }

    /// Proves that the second batch of a producer that was never here does not overtake the first, that those who may have been forgotten
    /// go on, whoever they are, and that this outlives a manifest.
    #[test]
    fn who_is_new_begins_at_0() {
        let mut producers = Producers::new(ProducerId::new(7));
        assert_eq!(check(&producers, 0, 1, 1), SequenceCheck::OutOfOrder);
        assert_eq!(check(&producers, 3, 1, 1), SequenceCheck::OutOfOrder);
        assert_eq!(check(&producers, 0, 0, 0), SequenceCheck::Next);
        let older = producers.check(ProducerId::new(6), E, Sequence::new(9), Sequence::new(9));
        assert_eq!(older, SequenceCheck::Next, "of a topic of this name before");
        assert_eq!(
            check(&Producers::any_may_begin(), 0, 9, 9),
            SequenceCheck::Next
        );
        producers.record(P, E, batch(0, 0, 0), TimestampMs::new(0));
        producers.expire(TimestampMs::new(EXPIRY_MS));
        let restored = Producers::from_entries(producers.to_entries(), producers.first_new());
        for producers in [producers, restored] {
            assert_eq!(check(&producers, 0, 1, 1), SequenceCheck::Next, "forgotten");
            let newer = producers.check(ProducerId::new(8), E, Sequence::new(1), Sequence::new(1));
            assert_eq!(newer, SequenceCheck::OutOfOrder);
        }
    }
}
