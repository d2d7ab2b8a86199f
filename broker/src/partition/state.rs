//! One partition: what an append, a trim and an upload do to it.
//!
//! Owns: log start, tiered-until, the next offset, epochs, producers, segments, and the hot index of one partition.
//! Invariants: I2 (an offset is given once), I3 (idempotence), I5 (nothing goes back; log start <= tiered-until <= high
//! watermark), I6 (segments and hot index cover everything from log start on).
//! Not here: decoding commands (`command`), the group's stage of offload (`machine`).

use std::sync::Arc;

use super::command::BatchDescriptor;
use super::index::{HotIndex, IndexEntry, LogExtent};
use super::producers::{Producers, SequenceCheck};
use tidelog_env::{Mutant, mutant};
use tidelog_model::{LeaderEpoch, LogId, Offset, PartitionId, ProducerId, Sequence, TimestampMs};
use tidelog_tiering::manifest::{EpochStart, PartitionManifest, ProducerBatch, SegmentEntry};

/// Why a batch was refused; nothing of it was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendError {
    /// The partition is not (or no longer) in this group.
    UnknownPartition,
    /// Its producer was fenced by a newer epoch.
    StaleProducerEpoch,
    /// Records before it are missing.
    OutOfOrderSequence,
}

/// Where a batch is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Offset of its first record.
    pub base_offset: Offset,
    /// The time the broker gave it under LogAppendTime, -1 otherwise.
    pub append_time: TimestampMs,
    /// The partition's log start at that moment.
    pub log_start: Offset,
}

/// What became of one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendOutcome {
    /// It was appended now.
    Appended(Appended),
    /// It was appended before; this is the first answer again (FR1).
    Duplicate(Appended),
    /// It was refused.
    Refused(AppendError),
}

/// State of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionState {
    /// The partition.
    pub id: PartitionId,
    /// Name of its topic.
    pub topic_name: Arc<str>,
    /// First offset that can be read.
    pub log_start: Offset,
    /// First offset not in a committed segment.
    pub tiered_until: Offset,
    /// The offset the next record gets: the high watermark, since applied is committed.
    pub next_offset: Offset,
    /// Leader epochs, oldest first.
    pub epochs: Vec<EpochStart>,
    /// Idempotent producers.
    pub producers: Producers,
    /// Committed segments in offset order. Shared with the frozen state until one of them changes.
    pub segments: Arc<Vec<SegmentEntry>>,
    /// Batches in the local log.
    pub hot: HotIndex,
}

impl PartitionState {
    /// A new, empty partition.
    #[must_use]
    pub fn new(id: PartitionId, topic_name: Arc<str>, first_new_producer: ProducerId) -> Self {
        Self {
            id,
            topic_name,
            log_start: Offset::ZERO,
            tiered_until: Offset::ZERO,
            next_offset: Offset::ZERO,
            epochs: Vec::new(),
            producers: Producers::new(first_new_producer),
            segments: Arc::default(),
            hot: HotIndex::default(),
        }
    }

    /// The partition of a manifest. Its hot index is empty; the image's index section fills it.
    #[must_use]
    pub fn from_manifest(manifest: PartitionManifest) -> Self {
        Self {
            id: manifest.id,
            topic_name: manifest.topic_name.into(),
            log_start: manifest.log_start,
            tiered_until: manifest.tiered_until,
            next_offset: manifest.next_offset,
            epochs: manifest.epochs,
            producers: Producers::from_entries(manifest.producers, manifest.first_new_producer),
            segments: Arc::new(manifest.segments),
            hot: HotIndex::default(),
        }
    }

    /// The partition as a manifest says it.
    #[must_use]
    pub fn to_manifest(&self) -> PartitionManifest {
        PartitionManifest {
            id: self.id,
            topic_name: self.topic_name.to_string(),
            log_start: self.log_start,
            tiered_until: self.tiered_until,
            next_offset: self.next_offset,
            first_new_producer: match mutant(Mutant::ProducersNotInSnapshot) {
                true => ProducerId::new(i64::MAX),
                false => self.producers.first_new(),
            },
            epochs: self.epochs.clone(),
            segments: self.segments.as_ref().clone(),
            producers: if mutant(Mutant::ProducersNotInSnapshot) {
                Vec::new()
            } else {
                self.producers.to_entries()
            },
        }
    }

    /// A copy without the hot index: what a cut freezes.
    #[must_use]
    pub fn freeze(&self) -> Self {
        Self {
            id: self.id,
            topic_name: Arc::clone(&self.topic_name),
            log_start: self.log_start,
            tiered_until: self.tiered_until,
            next_offset: self.next_offset,
            epochs: self.epochs.clone(),
            producers: self.producers.clone(),
            segments: Arc::clone(&self.segments),
            hot: HotIndex::default(),
        }
    }

    /// The outcome of a batch that is not to be appended: it is there already, or its sequence does not fit.
    fn without_append(
        &self,
        batch: &BatchDescriptor,
        last_sequence: Sequence,
    ) -> Option<AppendOutcome> {
        if batch.producer_id == ProducerId::NONE {
            return None;
        }
        let check = self.producers.check(
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            last_sequence,
        );
        match check {
            SequenceCheck::Next => None,
            SequenceCheck::Duplicate(seen) => Some(AppendOutcome::Duplicate(Appended {
                base_offset: seen.base_offset,
                append_time: seen.append_time,
                log_start: self.log_start,
            })),
            SequenceCheck::StaleEpoch => {
                Some(AppendOutcome::Refused(AppendError::StaleProducerEpoch))
            }
            SequenceCheck::OutOfOrder => {
                Some(AppendOutcome::Refused(AppendError::OutOfOrderSequence))
            }
        }
    }

    /// Applies one batch: checks its sequence, gives it the next offsets, remembers it.
    pub fn append(
        &mut self,
        id: LogId,
        batch: &BatchDescriptor,
        stamp: TimestampMs,
    ) -> AppendOutcome {
        let count = i32::try_from(batch.records).unwrap_or(i32::MAX);
        let last_sequence = batch.base_sequence.plus(count - 1);
        if let Some(outcome) = self.without_append(batch, last_sequence) {
            return outcome;
        }
        let base_offset = self.next_offset;
        let append_time = if batch.log_append_time {
            batch.max_timestamp
        } else {
            TimestampMs::new(-1)
        };
        let mut epoch = LeaderEpoch::of_term(id.term);
        if mutant(Mutant::LeaderEpochNotBumped) {
            epoch = self.epochs.last().map_or(epoch, |first| first.epoch);
        }
        if self.epochs.last().is_none_or(|last| last.epoch < epoch) {
            self.epochs.push(EpochStart {
                epoch,
                start: base_offset,
            });
        }
        self.hot.push(IndexEntry {
            base_offset,
            records: batch.records,
            epoch,
            max_timestamp: batch.max_timestamp,
            stamp,
            extent: LogExtent {
                index: id.index,
                position: batch.position,
                length: batch.length,
            },
        });
        self.next_offset = base_offset.plus(i64::from(batch.records));
        if batch.producer_id != ProducerId::NONE {
            let seen = ProducerBatch {
                base_sequence: batch.base_sequence,
                last_sequence,
                base_offset,
                append_time,
            };
            self.producers
                .record(batch.producer_id, batch.producer_epoch, seen, stamp);
        }
        AppendOutcome::Appended(Appended {
            base_offset,
            append_time,
            log_start: self.log_start,
        })
    }

    /// Moves log start up to `to`, at most to the high watermark, never back. Segments that end below it are dropped
    /// from the list. Returns the log start after.
    pub fn trim_prefix(&mut self, to: Offset) -> Offset {
        self.log_start.advance_to(to.min(self.next_offset));
        self.tiered_until.advance_to(self.log_start);
        self.drop_below_log_start();
        self.log_start
    }

    /// Adds the segments of one upload. `frozen_until` is tiered-until of the state that the cut froze: the upload began
    /// there, whatever was trimmed since (field report A09).
    ///
    /// Returns whether they fit ([`Self::segments_fit`]). If not, nothing changes.
    pub fn add_segments(&mut self, frozen_until: Offset, added: &[&SegmentEntry]) -> bool {
        if !self.segments_fit(frozen_until, added) {
            return false;
        }
        let list = Arc::make_mut(&mut self.segments);
        for segment in added {
            if segment.last_offset >= self.log_start {
                list.push((*segment).clone());
            }
            self.tiered_until
                .advance_to(segment.last_offset.plus(1).min(self.next_offset));
        }
        self.tiered_until.advance_to(self.log_start);
        true
    }

    /// Whether `added` may join the segments: in order, without a hole or an overlap, not past the high watermark. The first
    /// begins where the newest segment ends; without one, at or before `from`, for log start may lie inside a batch.
    #[must_use]
    pub fn segments_fit(&self, from: Offset, added: &[&SegmentEntry]) -> bool {
        let mut expected = self.segments.last().map(|last| last.last_offset.plus(1));
        for segment in added {
            let begins = match expected {
                None => segment.base_offset <= from && from <= segment.last_offset,
                Some(end) => segment.base_offset == end,
            };
            let whole = segment.base_offset <= segment.last_offset
                && segment.last_offset < self.next_offset;
            if !begins || !whole {
                return false;
            }
            expected = Some(segment.last_offset.plus(1));
        }
        true
    }

    fn drop_below_log_start(&mut self) {
        let log_start = self.log_start;
        if self
            .segments
            .first()
            .is_some_and(|first| first.last_offset < log_start)
        {
            Arc::make_mut(&mut self.segments).retain(|segment| segment.last_offset >= log_start);
        }
        while self.epochs.len() > 1
            && self
                .epochs
                .get(1)
                .is_some_and(|second| second.start <= log_start)
        {
            self.epochs.remove(0);
        }
    }

    /// First offset that is readable from the local log: the hot index's start, not below log start.
    #[must_use]
    pub fn local_start(&self) -> Offset {
        self.hot
            .start()
            .unwrap_or(self.next_offset)
            .max(self.log_start)
    }

    /// Bytes of all committed segments.
    #[must_use]
    pub fn remote_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.length).sum()
    }

    /// The segment that holds `offset`, with its position in the list.
    #[must_use]
    pub fn segment_at(&self, offset: Offset) -> Option<(usize, &SegmentEntry)> {
        let at = self
            .segments
            .partition_point(|segment| segment.last_offset < offset);
        self.segments
            .get(at)
            .filter(|segment| segment.base_offset <= offset)
            .map(|segment| (at, segment))
    }

    /// Where `epoch` ended, as OffsetForLeaderEpoch answers it (KIP-320): the largest epoch at or below it that has records, and the
    /// first offset of the next one or the high watermark. If all that is left is newer, the epoch itself and the first offset left:
    /// what a reader of that epoch has passed or lost, but never what another leader wrote over it.
    #[must_use]
    pub fn epoch_end(&self, epoch: LeaderEpoch) -> (LeaderEpoch, Offset) {
        let at = self.epochs.partition_point(|start| start.epoch <= epoch);
        let end = self
            .epochs
            .get(at)
            .map_or(self.next_offset, |next| next.start);
        let found = at.checked_sub(1).and_then(|at| self.epochs.get(at));
        (
            found.map_or(epoch, |found| found.epoch),
            end.max(self.log_start),
        )
    }

    /// Whether the order of I5 and the cover of I6 hold. Checked after every command that could break them.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let ordered = self.log_start <= self.tiered_until && self.tiered_until <= self.next_offset;
        let covered =
            self.hot.start().unwrap_or(self.next_offset) <= self.tiered_until.max(self.log_start);
        ordered && covered
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelog_model::{LogIndex, PartitionIndex, ProducerEpoch, Term, TopicId};

    /// Ten records in each of these epochs.
    fn written_in(epochs: &[u64]) -> PartitionState {
        let id = PartitionId {
            topic: TopicId::default(),
            index: PartitionIndex::new(0),
        };
        let mut state = PartitionState::new(id, "t".into(), ProducerId::new(0));
        for (at, term) in (0u64..).zip(epochs) {
            let batch = BatchDescriptor {
                partition: id,
                position: 0,
                length: 100,
                records: 10,
                producer_id: ProducerId::NONE,
                producer_epoch: ProducerEpoch::new(-1),
                log_append_time: false,
                base_sequence: Sequence::new(-1),
                first_timestamp: TimestampMs::new(0),
                max_timestamp: TimestampMs::new(0),
            };
            let id = LogId {
                term: Term::new(*term),
                index: LogIndex::new(at),
            };
            state.append(id, &batch, TimestampMs::new(0));
        }
        state
    }

    /// Proves where each epoch ends: inside, between two, before the first and after the last, and the same when history was trimmed,
    /// where nothing ends below log start.
    #[test]
    fn epochs_end_where_the_next_begins() {
        let ends = |state: &PartitionState| -> Vec<(i32, i64)> {
            (1..=7)
                .map(|epoch| state.epoch_end(LeaderEpoch::new(epoch)))
                .map(|(epoch, end)| (epoch.get(), end.get()))
                .collect()
        };
        let mut state = written_in(&[2, 4, 4, 6]);
        let all = [(1, 0), (2, 10), (2, 10), (4, 30), (4, 30), (6, 40), (6, 40)];
        assert_eq!(ends(&state), all);
        state.trim_prefix(Offset::new(15));
        let all = [
            (1, 15),
            (2, 15),
            (3, 15),
            (4, 30),
            (4, 30),
            (6, 40),
            (6, 40),
        ];
        assert_eq!(ends(&state), all);
        state.trim_prefix(Offset::new(40));
        let all = [
            (1, 40),
            (2, 40),
            (3, 40),
            (4, 40),
            (5, 40),
            (6, 40),
            (6, 40),
        ];
        assert_eq!(ends(&state), all);
        let empty = written_in(&[]);
        assert_eq!(
            empty.epoch_end(LeaderEpoch::new(3)),
            (LeaderEpoch::new(3), Offset::ZERO)
        );
    }
}
