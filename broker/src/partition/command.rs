//! Partition commands as bytes.
//!
//! Owns: encoding and decoding of kinds 0x01 to 0x3f.
//! Not here: what they do (`machine`, `state`).
//! Spec: docs/formats/partition-commands.md

use bytes::{Buf, BufMut, Bytes, BytesMut, TryGetError};
use tidelog_model::{
    LogIndex, Offset, PartitionId, PartitionIndex, ProducerEpoch, ProducerId, Sequence,
    TimestampMs, TopicId,
};
use tidelog_tiering::manifest::{self, SegmentEntry};
use uuid::Uuid;

const VERSION: u8 = 1;
/// The version of [`CREATE_PARTITION`] and [`DELETE_TOPIC`] that names the image of metadata on which they were decided.
const VERSION_2: u8 = 2;
const APPEND: u8 = 0x01;
const CREATE_PARTITION: u8 = 0x02;
const DELETE_TOPIC: u8 = 0x03;
const CUT: u8 = 0x04;
const UPLOADED: u8 = 0x05;
const PUBLISHED: u8 = 0x06;
const TRIM_PREFIX: u8 = 0x07;

/// First kind byte that is not a partition command.
pub const KINDS_END: u8 = 0x40;
const HEAD_BYTES: usize = 12;
const PARTITION_BYTES: usize = 20;
const BATCH_BYTES: usize = 64;
const FLAG_LOG_APPEND_TIME: u16 = 1;
/// Smallest encoding of one segment of an Uploaded command; bounds the count before anything is allocated.
const SEGMENT_BYTES_MIN: usize = PARTITION_BYTES + 64;

/// Bytes of an `Append` command with that many batches, besides the batches' own.
#[must_use]
pub const fn append_overhead(batches: usize) -> usize {
    HEAD_BYTES + 4 + batches * BATCH_BYTES
}

/// Bytes of an `Uploaded` command besides its segments: head, cut, count.
pub const UPLOADED_BYTES: usize = HEAD_BYTES + 8 + 4;

/// Bytes that one segment takes in an `Uploaded` command.
#[must_use]
pub fn uploaded_segment_bytes(segment: &SegmentEntry) -> usize {
    let mut out = BytesMut::new();
    manifest::encode_segment(segment, &mut out);
    PARTITION_BYTES + out.len()
}

/// Bytes that are not a command of a known version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed partition command: {0}")]
pub struct MalformedCommand(pub &'static str);

impl From<TryGetError> for MalformedCommand {
    fn from(_: TryGetError) -> Self {
        Self("truncated")
    }
}

/// What apply, index and recovery know of a batch without reading its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchDescriptor {
    /// The partition it goes to.
    pub partition: PartitionId,
    /// Where it begins in the command's body.
    pub position: u32,
    /// Its bytes, header included.
    pub length: u32,
    /// Its records.
    pub records: u32,
    /// Its producer, or [`ProducerId::NONE`].
    pub producer_id: ProducerId,
    /// The producer's epoch.
    pub producer_epoch: ProducerEpoch,
    /// Whether its timestamps are the broker's.
    pub log_append_time: bool,
    /// Sequence of its first record.
    pub base_sequence: Sequence,
    /// Timestamp of its first record.
    pub first_timestamp: TimestampMs,
    /// Its largest timestamp.
    pub max_timestamp: TimestampMs,
}

/// A command with the leader's stamp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamped {
    /// Broker time of the leader (D7).
    pub stamp: TimestampMs,
    /// What to do.
    pub command: PartitionCommand,
}

/// A partition command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartitionCommand {
    /// Append batches; their bytes are the command's body.
    Append(Vec<BatchDescriptor>),
    /// Create a partition.
    CreatePartition {
        /// The partition.
        partition: PartitionId,
        /// Name of its topic.
        topic_name: String,
        /// The newest entry of the metadata group in the image that names it; 0: not known (version 1).
        by: LogIndex,
        /// The lowest id of a producer that has never written to it or to one of its name before.
        first_new_producer: ProducerId,
    },
    /// Drop all partitions of a topic.
    DeleteTopic {
        /// The topic.
        topic: TopicId,
        /// The newest entry of the metadata group in the image that no longer names it; 0: not known (version 1).
        by: LogIndex,
    },
    /// Freeze the state as snapshot candidate.
    Cut,
    /// Data of the cut is in the object store: all of it, or a part where one entry cannot name it all.
    Uploaded {
        /// Log index of the cut.
        cut: LogIndex,
        /// Segments: those of one partition in offset order, from its tiered-until on.
        segments: Vec<(PartitionId, SegmentEntry)>,
    },
    /// The snapshot of the cut is in the object store.
    Published {
        /// Log index of the cut.
        cut: LogIndex,
        /// Its sequence number.
        sequence: u64,
    },
    /// Move log start up.
    TrimPrefix {
        /// The partition.
        partition: PartitionId,
        /// The first offset to keep.
        log_start: Offset,
    },
}

impl Stamped {
    /// The command's directory bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.encoded_len_hint());
        let mut head = |kind: u8| {
            out.put_u8(kind);
            out.put_u8(newest(kind));
            out.put_u16_le(0);
            out.put_i64_le(self.stamp.get());
        };
        match &self.command {
            PartitionCommand::Append(batches) => {
                head(APPEND);
                put_count(&mut out, batches.len());
                for batch in batches {
                    put_batch(&mut out, batch);
                }
            }
            PartitionCommand::CreatePartition {
                partition,
                topic_name,
                by,
                first_new_producer,
            } => {
                head(CREATE_PARTITION);
                put_partition(&mut out, *partition);
                out.put_u16_le(u16::try_from(topic_name.len()).unwrap_or(u16::MAX));
                out.put_slice(topic_name.as_bytes());
                out.put_u64_le(by.get());
                out.put_i64_le(first_new_producer.get());
            }
            PartitionCommand::DeleteTopic { topic, by } => {
                head(DELETE_TOPIC);
                out.put_slice(topic.get().as_bytes());
                out.put_u64_le(by.get());
            }
            PartitionCommand::Cut => head(CUT),
            PartitionCommand::Uploaded { cut, segments } => {
                head(UPLOADED);
                out.put_u64_le(cut.get());
                put_count(&mut out, segments.len());
                for (partition, segment) in segments {
                    put_partition(&mut out, *partition);
                    manifest::encode_segment(segment, &mut out);
                }
            }
            PartitionCommand::Published { cut, sequence } => {
                head(PUBLISHED);
                out.put_u64_le(cut.get());
                out.put_u64_le(*sequence);
            }
            PartitionCommand::TrimPrefix {
                partition,
                log_start,
            } => {
                head(TRIM_PREFIX);
                put_partition(&mut out, *partition);
                out.put_i64_le(log_start.get());
            }
        }
        out.freeze()
    }

    fn encoded_len_hint(&self) -> usize {
        match &self.command {
            PartitionCommand::Append(batches) => HEAD_BYTES + 4 + batches.len() * BATCH_BYTES,
            PartitionCommand::Uploaded { segments, .. } => 64 + segments.len() * 256,
            _ => 64,
        }
    }

    /// Reads a command. `body_len` is the length of the command's body: every batch must lie inside it.
    ///
    /// # Errors
    /// [`MalformedCommand`] if the bytes are not exactly one command of a known kind and version.
    pub fn decode(dir: &Bytes, body_len: usize) -> Result<Self, MalformedCommand> {
        let mut input = dir.clone();
        let kind = input.try_get_u8()?;
        let version = input.try_get_u8()?;
        if version < VERSION || version > newest(kind) {
            return Err(MalformedCommand("unknown version"));
        }
        input.try_get_u16_le()?;
        let stamp = TimestampMs::new(input.try_get_i64_le()?);
        let command = match kind {
            APPEND => PartitionCommand::Append(get_batches(&mut input, body_len)?),
            CREATE_PARTITION => get_creation(&mut input, version)?,
            DELETE_TOPIC => PartitionCommand::DeleteTopic {
                topic: get_topic(&mut input)?,
                by: get_image(&mut input, version)?,
            },
            CUT => PartitionCommand::Cut,
            UPLOADED => {
                let cut = LogIndex::new(input.try_get_u64_le()?);
                let count = get_count(&mut input, SEGMENT_BYTES_MIN)?;
                let mut segments = Vec::with_capacity(count);
                for _ in 0..count {
                    let partition = get_partition(&mut input)?;
                    let segment = manifest::decode_segment(&mut input)
                        .map_err(|_| MalformedCommand("bad segment entry"))?;
                    segments.push((partition, segment));
                }
                PartitionCommand::Uploaded { cut, segments }
            }
            PUBLISHED => PartitionCommand::Published {
                cut: LogIndex::new(input.try_get_u64_le()?),
                sequence: input.try_get_u64_le()?,
            },
            TRIM_PREFIX => PartitionCommand::TrimPrefix {
                partition: get_partition(&mut input)?,
                log_start: Offset::new(input.try_get_i64_le()?),
            },
            _ => return Err(MalformedCommand("unknown kind")),
        };
        if input.has_remaining() {
            return Err(MalformedCommand("bytes left over"));
        }
        Ok(Self { stamp, command })
    }
}

/// The version of a kind that is written.
const fn newest(kind: u8) -> u8 {
    match kind {
        CREATE_PARTITION | DELETE_TOPIC => VERSION_2,
        _ => VERSION,
    }
}

fn put_count(out: &mut BytesMut, count: usize) {
    out.put_u32_le(u32::try_from(count).unwrap_or(u32::MAX));
}

fn put_partition(out: &mut BytesMut, partition: PartitionId) {
    out.put_slice(partition.topic.get().as_bytes());
    out.put_i32_le(partition.index.get());
}

fn put_batch(out: &mut BytesMut, batch: &BatchDescriptor) {
    put_partition(out, batch.partition);
    out.put_u32_le(batch.position);
    out.put_u32_le(batch.length);
    out.put_u32_le(batch.records);
    out.put_i64_le(batch.producer_id.get());
    out.put_i16_le(batch.producer_epoch.get());
    out.put_u16_le(if batch.log_append_time {
        FLAG_LOG_APPEND_TIME
    } else {
        0
    });
    out.put_i32_le(batch.base_sequence.get());
    out.put_i64_le(batch.first_timestamp.get());
    out.put_i64_le(batch.max_timestamp.get());
}

fn get_topic(input: &mut Bytes) -> Result<TopicId, MalformedCommand> {
    let mut bytes = [0u8; 16];
    input.try_copy_to_slice(&mut bytes)?;
    Ok(TopicId::new(Uuid::from_bytes(bytes)))
}

fn get_partition(input: &mut Bytes) -> Result<PartitionId, MalformedCommand> {
    Ok(PartitionId {
        topic: get_topic(input)?,
        index: PartitionIndex::new(input.try_get_i32_le()?),
    })
}

/// The image of metadata on which a command was decided; 0 where its version does not say.
fn get_image(input: &mut Bytes, version: u8) -> Result<LogIndex, MalformedCommand> {
    Ok(LogIndex::new(match version {
        VERSION => 0,
        _ => input.try_get_u64_le()?,
    }))
}

fn get_creation(input: &mut Bytes, version: u8) -> Result<PartitionCommand, MalformedCommand> {
    let partition = get_partition(input)?;
    if partition.index.get() < 0 {
        return Err(MalformedCommand("a partition's index is negative"));
    }
    let length = usize::from(input.try_get_u16_le()?);
    if input.remaining() < length {
        return Err(MalformedCommand("truncated"));
    }
    let name = input.split_to(length);
    let topic_name = std::str::from_utf8(&name)
        .map_err(|_| MalformedCommand("topic name is not UTF-8"))?
        .to_owned();
    let by = get_image(input, version)?;
    let first_new_producer = match version {
        VERSION => i64::MAX,
        _ => input.try_get_i64_le()?,
    };
    if first_new_producer < 0 {
        return Err(MalformedCommand("the first new producer is negative"));
    }
    Ok(PartitionCommand::CreatePartition {
        partition,
        topic_name,
        by,
        first_new_producer: ProducerId::new(first_new_producer),
    })
}

fn get_count(input: &mut Bytes, each_min: usize) -> Result<usize, MalformedCommand> {
    let count = usize::try_from(input.try_get_u32_le()?)
        .map_err(|_| MalformedCommand("count too large"))?;
    if count > input.remaining() / each_min {
        return Err(MalformedCommand("count larger than the bytes that follow"));
    }
    Ok(count)
}

fn get_batches(
    input: &mut Bytes,
    body_len: usize,
) -> Result<Vec<BatchDescriptor>, MalformedCommand> {
    let count = get_count(input, BATCH_BYTES)?;
    let mut batches = Vec::with_capacity(count);
    for _ in 0..count {
        let partition = get_partition(input)?;
        let position = input.try_get_u32_le()?;
        let length = input.try_get_u32_le()?;
        let records = input.try_get_u32_le()?;
        let inside = u64::from(position) + u64::from(length) <= body_len as u64;
        if !inside || records == 0 || i32::try_from(records).is_err() {
            return Err(MalformedCommand(
                "batch outside the body, or without records",
            ));
        }
        batches.push(BatchDescriptor {
            partition,
            position,
            length,
            records,
            producer_id: ProducerId::new(input.try_get_i64_le()?),
            producer_epoch: ProducerEpoch::new(input.try_get_i16_le()?),
            log_append_time: input.try_get_u16_le()? & FLAG_LOG_APPEND_TIME != 0,
            base_sequence: Sequence::new(input.try_get_i32_le()?),
            first_timestamp: TimestampMs::new(input.try_get_i64_le()?),
            max_timestamp: TimestampMs::new(input.try_get_i64_le()?),
        });
    }
    Ok(batches)
}
