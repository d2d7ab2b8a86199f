//! What the store alone must be like when everything has healed: every chain of manifests moves forward, every range it names is there without a hole, and
//! what was acknowledged is in it.
//!
//! Owns: the rules over all objects together, and against what producers were told.
//! Not here: reading a manifest or a batch (`manifest`, `batch`).
//! Spec: docs/INVARIANTS.md (I1, I2, I4, I5, I6, I9, I11)

use std::collections::{BTreeMap, BTreeSet};

use super::batch::batches;
use super::{Manifest, PartitionState, Segment, manifest_key, root};
use crate::history::{Event, History};

/// Whose partition: the topic's id, and the number.
type PartitionId = ([u8; 16], i32);

/// What a store in order has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InOrder {
    /// Manifests of all groups.
    pub manifests: usize,
    /// Segments that the newest of them name.
    pub segments: usize,
    /// Acknowledged records that were found at their offsets.
    pub acknowledged: usize,
    /// Objects with data that no newest manifest names. This version does not collect them.
    pub unreferenced: usize,
}

/// What is asked of a store, besides its own rules.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// What producers were told of this topic.
    pub history: &'a History,
    /// Its name.
    pub topic: &'a str,
    /// Whether everything was flushed: all that was acknowledged must be here.
    pub flushed: bool,
}

/// Judges all objects of a store.
///
/// # Errors
/// Everything that is wrong, in words.
pub fn judge<B: AsRef<[u8]>>(
    objects: &BTreeMap<String, B>,
    asked: Asked<'_>,
) -> Result<InOrder, Vec<String>> {
    let mut judge = Judge {
        objects: objects
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_ref()))
            .collect(),
        asked,
        told: told(asked.history),
        read: BTreeSet::new(),
        in_order: InOrder::default(),
        wrong: Vec::new(),
    };
    judge.all();
    if judge.wrong.is_empty() {
        Ok(judge.in_order)
    } else {
        Err(judge.wrong)
    }
}

/// The acknowledged values, by partition and offset.
fn told(history: &History) -> BTreeMap<(i32, i64), &[u8]> {
    let mut sent = BTreeMap::new();
    let mut told = BTreeMap::new();
    for (_, event) in history.events() {
        match event {
            Event::Sent {
                producer,
                sequence,
                partition,
                value,
            } => {
                sent.insert((*producer, *sequence), (partition.0, value.as_slice()));
            }
            Event::Acknowledged {
                producer,
                sequence,
                offset: Some(offset),
            } => {
                if let Some((partition, value)) = sent.get(&(*producer, *sequence)) {
                    told.insert((*partition, offset.0), *value);
                }
            }
            _ => {}
        }
    }
    told
}

struct Judge<'a> {
    objects: BTreeMap<&'a str, &'a [u8]>,
    asked: Asked<'a>,
    told: BTreeMap<(i32, i64), &'a [u8]>,
    /// Segments whose batches were judged.
    read: BTreeSet<(PartitionId, Segment)>,
    in_order: InOrder,
    wrong: Vec<String>,
}

impl Judge<'_> {
    fn all(&mut self) {
        let newest = self.chains();
        let mut homes: BTreeMap<PartitionId, u32> = BTreeMap::new();
        let mut named = BTreeSet::new();
        let mut topics = BTreeSet::new();
        for (key, manifest) in &newest {
            for partition in &manifest.partitions {
                let id = (partition.topic, partition.partition);
                if let Some(other) = homes.insert(id, manifest.group) {
                    self.wrong.push(format!(
                        "{}: is in group {other} too",
                        words(key, partition)
                    ));
                }
                named.extend(partition.segments.iter().map(|one| one.key(root(key))));
                self.in_order.segments += partition.segments.len();
                if partition.name == self.asked.topic {
                    topics.insert(partition.topic);
                    self.reaches(key, partition);
                }
            }
        }
        if topics.len() > 1 {
            self.wrong
                .push(format!("{} has {} ids", self.asked.topic, topics.len()));
        }
        if self.asked.flushed {
            self.lacks(&newest);
        }
        let is_data = |key: &&&str| key.contains("/data/") && key.ends_with(".seg");
        let data = self.objects.keys().filter(is_data);
        self.in_order.unreferenced = data.filter(|key| !named.contains(**key)).count();
    }

    /// Judges every manifest, against the one before in its chain; the newest of each chain.
    fn chains(&mut self) -> Vec<(String, Manifest)> {
        let mut chains: BTreeMap<u32, (u64, String, Manifest)> = BTreeMap::new();
        let keys: Vec<&str> = self.objects.keys().copied().collect();
        // Keys of one group rise with the sequence numbers.
        for key in keys {
            let Some((group, sequence)) = manifest_key(key) else {
                continue;
            };
            let bytes = self.objects.get(key).copied().unwrap_or_default();
            let manifest = match Manifest::read(bytes) {
                Ok(manifest) => manifest,
                Err(why) => {
                    self.wrong.push(format!("{key}: {why}"));
                    continue;
                }
            };
            self.in_order.manifests += 1;
            if manifest.group != group {
                self.wrong
                    .push(format!("{key} is of group {}", manifest.group));
            }
            for partition in &manifest.partitions {
                self.partition(key, partition);
            }
            match chains.get(&group) {
                None if sequence != 1 => {
                    self.wrong.push(format!("{key} is the first of its chain"))
                }
                Some((before, ..)) if before + 1 != sequence => {
                    self.wrong
                        .push(format!("{key} comes after number {before}"));
                }
                Some((_, _, before)) => self.wrong.extend(steps(key, before, &manifest)),
                None => {}
            }
            chains.insert(group, (sequence, key.to_owned(), manifest));
        }
        let newest = chains.into_values();
        newest.map(|(_, key, manifest)| (key, manifest)).collect()
    }

    /// One partition of one manifest: its bounds, and that its segments cover it and are there.
    fn partition(&mut self, key: &str, partition: &PartitionState) {
        let name = words(key, partition);
        let (start, tiered) = (partition.log_start, partition.tiered_until);
        if start < 0 || start > tiered || tiered > partition.next_offset {
            self.wrong.push(format!(
                "{name}: log start {start}, tiered until {tiered}, next {}",
                partition.next_offset
            ));
        }
        let mut next = None;
        for segment in &partition.segments {
            if next.is_some_and(|next| next != segment.base) || segment.last < segment.base {
                self.wrong.push(format!(
                    "{name}: {} to {} where {next:?} is next (I6)",
                    segment.base, segment.last
                ));
            }
            next = Some(segment.last + 1);
            let id = (partition.topic, partition.partition);
            if self.read.insert((id, segment.clone()))
                && let Err(why) = self.segment(key, partition, segment)
            {
                self.wrong.push(format!("{name}: {why}"));
            }
        }
        let terms: Vec<u64> = partition.segments.iter().map(|one| one.term).collect();
        if !terms.is_sorted() {
            self.wrong
                .push(format!("{name}: terms of objects go back: {terms:?} (I4)"));
        }
        let first = partition.segments.first().map_or(tiered, |one| one.base);
        if start < tiered && (first > start || next != Some(tiered)) {
            self.wrong.push(format!(
                "{name}: segments of {first} to {next:?} for {start} to {tiered} (I6)"
            ));
        }
    }

    /// The bytes of a segment: there, undamaged, offsets without a hole, and what producers were told.
    fn segment(
        &mut self,
        key: &str,
        partition: &PartitionState,
        segment: &Segment,
    ) -> Result<(), String> {
        let object = segment.key(root(key));
        let missing = || format!("{object} is not there, or shorter than it is said to be (I9)");
        let bytes = self.objects.get(object.as_str()).copied();
        let bytes = bytes.ok_or_else(missing)?;
        let of = |from: usize, length: usize| bytes.get(from..from.checked_add(length)?);
        let data = of(segment.position, segment.length).ok_or_else(missing)?;
        of(segment.index_position, segment.index_length).ok_or_else(missing)?;
        if super::read::crc(data) != segment.crc {
            return Err(format!("{object} has other bytes than were named (I9)"));
        }
        let found = batches(data).map_err(|why| format!("{object}: {why}"))?;
        let mut next = segment.base;
        let mut epochs: Vec<(i32, i64)> = Vec::new();
        for batch in &found {
            if batch.base != next {
                return Err(format!(
                    "{object}: offset {} where {next} is next (I6)",
                    batch.base
                ));
            }
            next = batch.last + 1;
            if epochs.last().is_none_or(|(epoch, _)| *epoch != batch.epoch) {
                epochs.push((batch.epoch, batch.base));
            }
        }
        if next != segment.last + 1 || epochs != segment.epochs {
            return Err(format!(
                "{object} ends at {next} with epochs {epochs:?}, and not at {} with {:?}",
                segment.last + 1,
                segment.epochs
            ));
        }
        if partition.name == self.asked.topic {
            for (offset, value) in found.iter().flat_map(|batch| &batch.records) {
                let Some(told) = self.told.get(&(partition.partition, *offset)) else {
                    continue;
                };
                self.in_order.acknowledged += 1;
                if told != value {
                    let shown = value.get(..value.len().min(40)).unwrap_or_default();
                    return Err(format!(
                        "offset {offset} holds \"{}\" (I2)",
                        shown.escape_ascii()
                    ));
                }
            }
        }
        Ok(())
    }

    /// Everything acknowledged of the partition lies below its tiered-until, if everything was flushed.
    fn reaches(&mut self, key: &str, partition: &PartitionState) {
        let all = (partition.partition, i64::MIN)..=(partition.partition, i64::MAX);
        let last = self
            .told
            .range(all)
            .next_back()
            .map(|((_, offset), _)| *offset);
        let tiered = partition.tiered_until;
        if let Some(last) = last.filter(|last| self.asked.flushed && *last >= tiered) {
            self.wrong.push(format!(
                "{}: {last} was acknowledged, and only what is below {tiered} is in the store (I11)",
                words(key, partition)
            ));
        }
    }

    /// Partitions of which something was acknowledged, and that no manifest names.
    fn lacks(&mut self, newest: &[(String, Manifest)]) {
        let partitions: BTreeSet<i32> = self.told.keys().map(|(partition, _)| *partition).collect();
        for number in partitions {
            let mut all = newest.iter().flat_map(|(_, manifest)| &manifest.partitions);
            if !all.any(|one| one.name == self.asked.topic && one.partition == number) {
                self.wrong
                    .push(format!("no manifest names partition {number} (I11)"));
            }
        }
    }
}

/// What is wrong between two manifests of a chain.
fn steps(key: &str, before: &Manifest, after: &Manifest) -> Vec<String> {
    let mut wrong = Vec::new();
    if (after.term, after.index) < (before.term, before.index) || before.cluster != after.cluster {
        wrong.push(format!(
            "{key}: term {} and index {} come after {} and {}",
            after.term, after.index, before.term, before.index
        ));
    }
    for new in &after.partitions {
        let same = |old: &&PartitionState| (old.topic, old.partition) == (new.topic, new.partition);
        let Some(old) = before.partitions.iter().find(same) else {
            continue;
        };
        let bounds = |one: &PartitionState| (one.log_start, one.tiered_until, one.next_offset);
        let ((a, b, c), (d, e, f)) = (bounds(old), bounds(new));
        if d < a || e < b || f < c {
            let name = words(key, new);
            wrong.push(format!(
                "{name}: {:?} after {:?} (I5)",
                bounds(new),
                bounds(old)
            ));
        }
        let kept = old.segments.iter().filter(|one| one.last >= new.log_start);
        for segment in kept.filter(|one| !new.segments.contains(one)) {
            wrong.push(format!(
                "{}: {} to {} is another object than before (I2)",
                words(key, new),
                segment.base,
                segment.last
            ));
        }
    }
    wrong
}

fn words(key: &str, partition: &PartitionState) -> String {
    format!("{key}: {}-{}", partition.name, partition.partition)
}
