//! All partitions of one placement group, and how far its current cut has come.
//!
//! Owns: applying partition commands; the stage cut -> uploaded -> published (docs/protocols/offload.md).
//! Not here: encoding of the image (`image`), I/O of any kind (`offload`, `placement`).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::command::{BatchDescriptor, MalformedCommand, PartitionCommand, Stamped};
use super::state::{AppendError, AppendOutcome, PartitionState};
use bytes::Bytes;
use tidelog_env::{Mutant, mutant};
use tidelog_model::{LogId, LogIndex, Offset, PartitionId, TimestampMs, TopicId};
use tidelog_tiering::manifest::SegmentEntry;

/// The state of the group at a cut: what its snapshot and its manifest say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frozen {
    /// The Cut entry: everything up to and with it is inside.
    pub at: LogId,
    /// Broker stamp of the Cut entry.
    pub stamp: TimestampMs,
    /// As [`Partitions`] has it at that moment.
    pub dropped_at: LogIndex,
    /// Partitions at that moment, without their hot index.
    pub partitions: BTreeMap<PartitionId, PartitionState>,
    /// The coordinator's state at that moment.
    pub coordinator: Bytes,
}

impl Frozen {
    /// Whether every record below the cut is in a committed segment.
    #[must_use]
    pub fn is_tiered(&self) -> bool {
        self.partitions
            .values()
            .all(|state| state.tiered_until >= state.next_offset.plus(-records_left()))
    }
}

/// Records of a partition that an upload leaves out: none, but in a mutant.
#[must_use]
pub fn records_left() -> i64 {
    i64::from(mutant(Mutant::LastRecordNotUploaded))
}

/// How far the newest cut has come. Each step is a committed entry; a crash resumes at the next one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CutStage {
    /// No cut was made yet.
    None,
    /// Frozen; its data is still in the log only, or in parts: each partition's tiered-until says up to where. The next
    /// step is the upload of the rest.
    Cut(Arc<Frozen>),
    /// Its segments are committed. The next step is to publish the manifest.
    Uploaded(Arc<Frozen>),
    /// Its manifest is in the bucket. The local log up to it may be trimmed; the next step is a new cut.
    Published(Arc<Frozen>),
}

/// What a partition command did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartitionOutcome {
    /// One outcome per batch, in the command's order.
    Appended(Vec<AppendOutcome>),
    /// Done, or had been done before.
    Done,
    /// Log start after a trim.
    LogStart(Offset),
    /// Refused: it does not fit the state (a late step of a deposed leader, a partition that is gone).
    Refused(&'static str),
    /// The bytes were no command of a known version; nothing changed.
    Malformed(MalformedCommand),
}

/// The partitions of one placement group.
#[derive(Debug)]
pub struct Partitions {
    partitions: BTreeMap<PartitionId, PartitionState>,
    /// The newest entry of the metadata group by whose image a topic was dropped here. A partition that an older image names is not
    /// created: its topic may be the one that was dropped.
    dropped_at: LogIndex,
    stage: CutStage,
    candidate: Option<Arc<Frozen>>,
    published_sequence: u64,
    stamp: TimestampMs,
    bytes_since_cut: u64,
    malformed: u64,
}

impl Default for Partitions {
    fn default() -> Self {
        Self {
            partitions: BTreeMap::new(),
            dropped_at: LogIndex::new(0),
            stage: CutStage::None,
            candidate: None,
            published_sequence: 0,
            stamp: TimestampMs::new(0),
            bytes_since_cut: 0,
            malformed: 0,
        }
    }
}

impl Partitions {
    /// The state of an image: its partitions, and its cut as far as the image says.
    #[must_use]
    pub fn from_image(
        frozen: Frozen,
        live: BTreeMap<PartitionId, PartitionState>,
        published_sequence: u64,
    ) -> Self {
        let frozen = Arc::new(frozen);
        Self {
            partitions: live,
            dropped_at: frozen.dropped_at,
            stamp: frozen.stamp,
            candidate: Some(Arc::clone(&frozen)),
            stage: CutStage::Uploaded(frozen),
            published_sequence,
            bytes_since_cut: 0,
            malformed: 0,
        }
    }

    /// Applies the entry `id`. `coordinator` gives the coordinator's state when a cut freezes it.
    pub fn apply(
        &mut self,
        id: LogId,
        dir: &Bytes,
        body_len: usize,
        coordinator: impl FnOnce() -> Bytes,
    ) -> PartitionOutcome {
        let stamped = match Stamped::decode(dir, body_len) {
            Ok(stamped) => stamped,
            Err(error) => {
                self.malformed += 1;
                return PartitionOutcome::Malformed(error);
            }
        };
        self.stamp = self.stamp.max(stamped.stamp);
        let stamp = self.stamp;
        match stamped.command {
            PartitionCommand::Append(batches) => {
                PartitionOutcome::Appended(self.append(id, &batches, stamp))
            }
            PartitionCommand::CreatePartition {
                partition,
                topic_name,
                by,
                first_new_producer,
            } => {
                if by < self.dropped_at {
                    return PartitionOutcome::Refused("decided on an older image of metadata");
                }
                self.partitions.entry(partition).or_insert_with(|| {
                    let topic_name = Arc::from(topic_name.as_str());
                    PartitionState::new(partition, topic_name, first_new_producer)
                });
                PartitionOutcome::Done
            }
            PartitionCommand::DeleteTopic { topic, by } => {
                self.dropped_at = self.dropped_at.max(by);
                self.delete_topic(topic);
                PartitionOutcome::Done
            }
            PartitionCommand::Cut => self.cut(id, stamp, coordinator()),
            PartitionCommand::Uploaded { cut, segments } => self.uploaded(cut, &segments),
            PartitionCommand::Published { cut, sequence } => self.published(cut, sequence),
            PartitionCommand::TrimPrefix {
                partition,
                log_start,
            } => match self.partitions.get_mut(&partition) {
                Some(state) => PartitionOutcome::LogStart(state.trim_prefix(log_start)),
                None => PartitionOutcome::Refused("no such partition"),
            },
        }
    }

    fn append(
        &mut self,
        id: LogId,
        batches: &[BatchDescriptor],
        stamp: TimestampMs,
    ) -> Vec<AppendOutcome> {
        let mut outcomes = Vec::with_capacity(batches.len());
        for batch in batches {
            let outcome = match self.partitions.get_mut(&batch.partition) {
                Some(state) => state.append(id, batch, stamp),
                None => AppendOutcome::Refused(AppendError::UnknownPartition),
            };
            if matches!(outcome, AppendOutcome::Appended(_)) {
                self.bytes_since_cut += u64::from(batch.length);
            }
            outcomes.push(outcome);
        }
        outcomes
    }

    /// Also out of a cut that waits for its upload: its bytes can no longer be found through the hot index, and a
    /// manifest need not name what is gone.
    fn delete_topic(&mut self, topic: TopicId) {
        self.partitions
            .retain(|partition, _| partition.topic != topic);
        if let CutStage::Cut(frozen) = &self.stage
            && !mutant(Mutant::DeletedTopicStaysInCut)
            && frozen
                .partitions
                .keys()
                .any(|partition| partition.topic == topic)
        {
            let mut frozen = Frozen::clone(frozen);
            frozen
                .partitions
                .retain(|partition, _| partition.topic != topic);
            self.stage = CutStage::Cut(Arc::new(frozen));
        }
    }

    fn cut(&mut self, id: LogId, stamp: TimestampMs, coordinator: Bytes) -> PartitionOutcome {
        if matches!(self.stage, CutStage::Cut(_) | CutStage::Uploaded(_)) {
            return PartitionOutcome::Refused("a cut is under way");
        }
        for state in self.partitions.values_mut() {
            state.producers.expire(stamp);
            if mutant(Mutant::ApplyReadsLocal) && state.hot.start().is_none() {
                state.producers = super::producers::Producers::any_may_begin();
            }
        }
        let partitions = self
            .partitions
            .iter()
            .map(|(partition, state)| (*partition, state.freeze()))
            .collect();
        self.stage = CutStage::Cut(Arc::new(Frozen {
            at: id,
            stamp,
            dropped_at: self.dropped_at,
            partitions,
            coordinator,
        }));
        self.bytes_since_cut = 0;
        PartitionOutcome::Done
    }

    /// Takes one part of the cut's upload. The part that brings the last records makes the cut uploaded.
    fn uploaded(
        &mut self,
        cut: LogIndex,
        segments: &[(PartitionId, SegmentEntry)],
    ) -> PartitionOutcome {
        let CutStage::Cut(frozen) = &mut self.stage else {
            return PartitionOutcome::Refused("no cut waits for an upload");
        };
        if frozen.at.index != cut {
            return PartitionOutcome::Refused("another cut is under way");
        }
        let mut by_partition: BTreeMap<PartitionId, Vec<&SegmentEntry>> = BTreeMap::new();
        for (partition, segment) in segments {
            by_partition.entry(*partition).or_default().push(segment);
        }
        // All is checked before anything changes: a part is taken whole or not at all.
        for (partition, added) in &by_partition {
            match frozen.partitions.get(partition) {
                None => {
                    return PartitionOutcome::Refused(
                        "a segment of a partition that the cut does not know",
                    );
                }
                Some(state) if !state.segments_fit(state.tiered_until, added) => {
                    return PartitionOutcome::Refused("the segments leave a hole, or overlap");
                }
                Some(_) => {}
            }
        }
        if segments.is_empty() && !frozen.is_tiered() {
            return PartitionOutcome::Refused("the segments do not cover the cut");
        }
        // Copied only while the driver holds it: with the first part.
        let state = Arc::make_mut(frozen);
        for (partition, added) in &by_partition {
            let Some(cut) = state.partitions.get_mut(partition) else {
                continue;
            };
            if let Some(live) = self.partitions.get_mut(partition) {
                live.add_segments(cut.tiered_until, added);
            }
            cut.add_segments(cut.tiered_until, added);
        }
        if frozen.is_tiered() {
            let frozen = Arc::clone(frozen);
            self.candidate = Some(Arc::clone(&frozen));
            self.stage = CutStage::Uploaded(frozen);
        }
        PartitionOutcome::Done
    }

    fn published(&mut self, cut: LogIndex, sequence: u64) -> PartitionOutcome {
        match &self.stage {
            CutStage::Uploaded(frozen) if frozen.at.index == cut => {
                self.stage = CutStage::Published(Arc::clone(frozen));
                self.published_sequence = self.published_sequence.max(sequence);
                PartitionOutcome::Done
            }
            CutStage::Published(frozen) if frozen.at.index == cut => PartitionOutcome::Done,
            _ => PartitionOutcome::Refused("no such cut waits to be published"),
        }
    }

    /// One partition.
    #[must_use]
    pub fn get(&self, partition: PartitionId) -> Option<&PartitionState> {
        self.partitions.get(&partition)
    }

    /// All partitions, by id.
    pub fn iter(&self) -> impl Iterator<Item = &PartitionState> {
        self.partitions.values()
    }

    /// The newest entry of metadata by whose image something was dropped: no partition is created by an older one.
    #[must_use]
    pub const fn dropped_at(&self) -> LogIndex {
        self.dropped_at
    }

    /// Whether the group holds a partition of `topic`.
    #[must_use]
    pub fn has_topic(&self, topic: TopicId) -> bool {
        self.partitions
            .keys()
            .any(|partition| partition.topic == topic)
    }

    /// How far the newest cut has come.
    #[must_use]
    pub fn stage(&self) -> &CutStage {
        &self.stage
    }

    /// The newest uploaded cut: what a snapshot says. Older than the newest cut while that one is being uploaded.
    #[must_use]
    pub fn snapshot_candidate(&self) -> Option<&Arc<Frozen>> {
        self.candidate.as_ref()
    }

    /// Sequence number of the newest published manifest, 0 before the first.
    #[must_use]
    pub fn published_sequence(&self) -> u64 {
        self.published_sequence
    }

    /// Largest broker stamp applied.
    #[must_use]
    pub fn stamp(&self) -> TimestampMs {
        self.stamp
    }

    /// Bytes appended since the newest cut.
    #[must_use]
    pub fn bytes_since_cut(&self) -> u64 {
        self.bytes_since_cut
    }

    /// Bytes of batches that are in no committed segment: the upload lag.
    #[must_use]
    pub fn untiered_bytes(&self) -> u64 {
        self.partitions
            .values()
            .map(|state| state.hot.bytes_from(state.tiered_until))
            .sum()
    }

    /// Whether any partition has records that are not in a committed segment.
    #[must_use]
    pub fn has_untiered(&self) -> bool {
        self.partitions
            .values()
            .any(|state| state.tiered_until < state.next_offset)
    }

    /// Commands that could not be read since the start.
    #[must_use]
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// Forgets hot batches of entries below `first`, which the local log no longer holds.
    pub fn trim_hot(&mut self, first: LogIndex) {
        for state in self.partitions.values_mut() {
            state.hot.trim(first);
        }
    }

    /// The first partition whose state breaks I5 or I6, if any.
    #[must_use]
    pub fn unsound(&self) -> Option<PartitionId> {
        self.partitions
            .values()
            .find(|state| !state.is_sound())
            .map(|state| state.id)
    }
}
