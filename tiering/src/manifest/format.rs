//! The bytes of a group manifest.
//!
//! Owns: [`encode`], [`decode`].
//! Not here: what the fields mean (`manifest/mod.rs`).
//! Spec: docs/formats/group-manifest.md

use super::{
    GroupManifest, ObjectId, PartitionManifest, ProducerBatch, ProducerEntry, SegmentEntry,
};
use crate::format::codec::{Decoder, Encoder, FormatError, check_crc, wide};
use crate::format::{
    SEGMENT_FIELDS_LENGTH_MIN, read_epochs, read_segment_fields, write_epochs, write_segment_fields,
};
use bytes::Bytes;
use tidelog_model::{
    ClusterId, LogId, LogIndex, PartitionId, PartitionIndex, PlacementGroupId, ProducerEpoch,
    ProducerId, Sequence, Term, TopicId,
};

const MAGIC: &[u8; 8] = b"TLGROUPM";
const VERSION: u16 = 2;
/// The last version that does not say which producers are new, nor by which image topics were dropped.
const VERSION_WITHOUT_NEW_PRODUCERS: u16 = 1;
const SECTIONS: u16 = 3;
const IDENTITY: u32 = 1;
const PARTITIONS: u32 = 2;
const COORDINATOR: u32 = 3;

const WHAT: &str = "group manifest";
const WHAT_IDENTITY: &str = "group manifest, identity section";
const WHAT_PARTITIONS: &str = "group manifest, partitions section";
const WHAT_COORDINATOR: &str = "group manifest, coordinator section";

const OBJECT_ID_LENGTH: usize = 4 + 8 + 16;
const SEGMENT_LENGTH_MIN: usize = OBJECT_ID_LENGTH + SEGMENT_FIELDS_LENGTH_MIN;
const BATCH_LENGTH: usize = 4 + 4 + 8 + 8;
const PRODUCER_LENGTH_MIN: usize = 8 + 2 + 8 + 1;
/// Id 20, name length 2, three offsets 24, three counts 12; version 2 has eight bytes more.
const PARTITION_LENGTH_MIN: usize = 20 + 2 + 24 + 12;

/// The manifest's bytes. The same manifest always gives the same bytes.
///
/// What is written is read back only if it keeps the rules that the types' documentation states (order of the lists,
/// segments without holes, topic names up to 64 KiB).
#[must_use]
pub fn encode(manifest: &GroupManifest) -> Bytes {
    let segments: usize = manifest
        .partitions
        .iter()
        .map(|partition| partition.segments.len())
        .sum();
    let estimate = manifest.partitions.len() * 128 + segments * SEGMENT_LENGTH_MIN;
    let mut partitions = Encoder::with_capacity(estimate);
    partitions.count(manifest.partitions.len());
    for partition in &manifest.partitions {
        write_partition(&mut partitions, partition);
    }
    let mut identity = Encoder::default();
    identity
        .bytes(manifest.cluster.get().as_bytes())
        .u32(manifest.group.get())
        .u64(manifest.last.term.get())
        .u64(manifest.last.index.get())
        .i64(manifest.stamp.get())
        .u64(manifest.dropped_at.get());
    let mut out =
        Encoder::with_capacity(128 + partitions.written().len() + manifest.coordinator.len());
    out.bytes(MAGIC).u16(VERSION).u16(SECTIONS);
    write_section(&mut out, IDENTITY, identity.written());
    write_section(&mut out, PARTITIONS, partitions.written());
    write_section(&mut out, COORDINATOR, &manifest.coordinator);
    Bytes::from(out.finish())
}

/// Reads a manifest from exactly its bytes. The coordinator's section is a slice of `bytes`, not a copy.
///
/// # Errors
/// Anything that breaks the format: the bytes are damaged, not a manifest, or of a newer version.
pub fn decode(bytes: &Bytes) -> Result<GroupManifest, FormatError> {
    let mut input = Decoder::new(WHAT, bytes);
    input.magic(MAGIC)?;
    let version = input.version_until(VERSION)?;
    let sections = input.u16()?;
    input.rule(sections == SECTIONS, "the section count is not 3")?;
    let identity = read_section(&mut input, IDENTITY, WHAT_IDENTITY)?;
    let partitions = read_section(&mut input, PARTITIONS, WHAT_PARTITIONS)?;
    let coordinator = read_section(&mut input, COORDINATOR, WHAT_COORDINATOR)?;
    input.end()?;

    let mut input = Decoder::new(WHAT_IDENTITY, identity);
    let manifest = GroupManifest {
        cluster: ClusterId::new(input.uuid()?),
        group: PlacementGroupId::new(input.u32()?),
        last: LogId {
            term: Term::new(input.u64()?),
            index: LogIndex::new(input.u64()?),
        },
        stamp: input.timestamp()?,
        dropped_at: match version {
            VERSION_WITHOUT_NEW_PRODUCERS => LogIndex::new(0),
            _ => LogIndex::new(input.u64()?),
        },
        partitions: read_partitions(partitions, version)?,
        coordinator: bytes.slice_ref(coordinator),
    };
    input.end()?;
    Ok(manifest)
}

fn write_section(out: &mut Encoder, kind: u32, body: &[u8]) {
    out.u32(kind)
        .u64(wide(body.len()))
        .u32(crc32c::crc32c(body))
        .bytes(body);
}

fn read_section<'a>(
    input: &mut Decoder<'a>,
    kind: u32,
    what: &'static str,
) -> Result<&'a [u8], FormatError> {
    let found = input.u32()?;
    input.rule(found == kind, "a section is missing or out of order")?;
    let length = input.u64()?;
    let crc = input.u32()?;
    let length = usize::try_from(length).map_err(|_| FormatError::Truncated {
        what,
        needed: length,
        left: wide(input.left()),
    })?;
    let body = input.take(length)?;
    check_crc(what, crc, body)?;
    Ok(body)
}

fn write_partition(out: &mut Encoder, partition: &PartitionManifest) {
    let name = partition.topic_name.as_bytes();
    out.bytes(partition.id.topic.get().as_bytes())
        .i32(partition.id.index.get())
        .u16(u16::try_from(name.len()).unwrap_or(u16::MAX))
        .bytes(name)
        .i64(partition.log_start.get())
        .i64(partition.tiered_until.get())
        .i64(partition.next_offset.get())
        .i64(partition.first_new_producer.get());
    write_epochs(out, &partition.epochs);
    out.count(partition.segments.len());
    for segment in &partition.segments {
        out.u32(segment.object.group.get())
            .u64(segment.object.term.get())
            .bytes(segment.object.id.as_bytes());
        write_segment_fields(out, segment);
    }
    out.count(partition.producers.len());
    for producer in &partition.producers {
        write_producer(out, producer);
    }
}

fn write_producer(out: &mut Encoder, producer: &ProducerEntry) {
    out.i64(producer.id.get())
        .i16(producer.epoch.get())
        .i64(producer.last_stamp.get())
        .u8(u8::try_from(producer.batches.len()).unwrap_or(u8::MAX));
    for batch in &producer.batches {
        out.i32(batch.base_sequence.get())
            .i32(batch.last_sequence.get())
            .i64(batch.base_offset.get())
            .i64(batch.append_time.get());
    }
}

fn read_partitions(body: &[u8], version: u16) -> Result<Vec<PartitionManifest>, FormatError> {
    let mut input = Decoder::new(WHAT_PARTITIONS, body);
    let count = input.count(PARTITION_LENGTH_MIN)?;
    let mut partitions: Vec<PartitionManifest> = Vec::with_capacity(count);
    for _ in 0..count {
        let partition = read_partition(&mut input, version)?;
        let rises = partitions.last().is_none_or(|last| last.id < partition.id);
        input.rule(rises, "partitions are not in order")?;
        partitions.push(partition);
    }
    input.end()?;
    Ok(partitions)
}

fn read_partition(input: &mut Decoder<'_>, version: u16) -> Result<PartitionManifest, FormatError> {
    let topic = TopicId::new(input.uuid()?);
    let id = PartitionId {
        topic,
        index: PartitionIndex::new(input.i32()?),
    };
    input.rule(id.index.get() >= 0, "a partition's index is negative")?;
    let name_length = usize::from(input.u16()?);
    let name = std::str::from_utf8(input.take(name_length)?);
    let topic_name = name
        .map_err(|_| input.broken("a topic name is not UTF-8"))?
        .to_owned();
    Ok(PartitionManifest {
        id,
        topic_name,
        log_start: input.offset()?,
        tiered_until: input.offset()?,
        next_offset: input.offset()?,
        first_new_producer: match version {
            VERSION_WITHOUT_NEW_PRODUCERS => ProducerId::new(i64::MAX),
            _ => read_producer_id(input)?,
        },
        epochs: read_epochs(input)?,
        segments: read_segments(input)?,
        producers: read_producers(input)?,
    })
}

fn read_segments(input: &mut Decoder<'_>) -> Result<Vec<SegmentEntry>, FormatError> {
    let count = input.count(SEGMENT_LENGTH_MIN)?;
    let mut segments: Vec<SegmentEntry> = Vec::with_capacity(count);
    for _ in 0..count {
        let object = ObjectId {
            group: PlacementGroupId::new(input.u32()?),
            term: Term::new(input.u64()?),
            id: input.uuid()?,
        };
        let segment = read_segment_fields(input, object)?;
        let joins = segments
            .last()
            .is_none_or(|last| last.last_offset.plus(1) == segment.base_offset);
        input.rule(joins, "there is a hole between two segments")?;
        segments.push(segment);
    }
    Ok(segments)
}

fn read_producers(input: &mut Decoder<'_>) -> Result<Vec<ProducerEntry>, FormatError> {
    let count = input.count(PRODUCER_LENGTH_MIN)?;
    let mut producers: Vec<ProducerEntry> = Vec::with_capacity(count);
    for _ in 0..count {
        let producer = read_producer(input)?;
        let rises = producers.last().is_none_or(|last| last.id < producer.id);
        input.rule(rises, "producers are not in order")?;
        producers.push(producer);
    }
    Ok(producers)
}

fn read_producer_id(input: &mut Decoder<'_>) -> Result<ProducerId, FormatError> {
    let id = input.i64()?;
    input.rule(id >= 0, "a producer id is negative")?;
    Ok(ProducerId::new(id))
}

fn read_producer(input: &mut Decoder<'_>) -> Result<ProducerEntry, FormatError> {
    let id = read_producer_id(input)?;
    let epoch = ProducerEpoch::new(input.i16()?);
    input.rule(epoch.get() >= 0, "a producer's epoch is negative")?;
    let last_stamp = input.timestamp()?;
    let count = usize::from(input.u8()?);
    input.rule(
        count <= ProducerEntry::BATCHES_MAX,
        "a producer has more batches than are kept",
    )?;
    input.rule(
        count * BATCH_LENGTH <= input.left(),
        "a producer's batches are cut short",
    )?;
    let mut batches = Vec::with_capacity(count);
    for _ in 0..count {
        let batch = ProducerBatch {
            base_sequence: Sequence::new(input.i32()?),
            last_sequence: Sequence::new(input.i32()?),
            base_offset: input.offset()?,
            append_time: input.timestamp()?,
        };
        let sequences = [batch.base_sequence, batch.last_sequence];
        let known = sequences.iter().all(|sequence| sequence.get() >= 0);
        input.rule(known, "a sequence is negative")?;
        batches.push(batch);
    }
    Ok(ProducerEntry {
        id,
        epoch,
        last_stamp,
        batches,
    })
}
