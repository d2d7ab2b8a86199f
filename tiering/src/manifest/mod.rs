//! What a group snapshot says: the state of one placement group, which is also the manifest of its objects (D5).
//!
//! Owns: the types. The byte format is `manifest/format.rs`, written down in `docs/formats/group-manifest.md`.
//! Not here: how the state changes (`broker/src/partition`), where manifests are put (`broker/src/offload`).

mod format;
mod segment;

pub use format::{decode, encode};
pub use segment::{decode_segment, encode_segment};

use bytes::Bytes;
use tidelog_model::{
    BytePosition, ClusterId, LeaderEpoch, LogId, LogIndex, Offset, PartitionId, PlacementGroupId,
    ProducerEpoch, ProducerId, Sequence, Term, TimestampMs,
};
use uuid::Uuid;

/// Names one immutable object: its key is built from this by `key.rs` and by nothing else. Written once, never again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    /// The placement group whose leader wrote it.
    pub group: PlacementGroupId,
    /// The term of that leader.
    pub term: Term,
    /// A time-ordered unique id (uuid version 7).
    pub id: Uuid,
}

/// First offset of a leader epoch. Lists of these are strictly increasing in both fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochStart {
    /// The epoch.
    pub epoch: LeaderEpoch,
    /// The first offset written in it.
    pub start: Offset,
}

/// One immutable run of one partition's batches inside an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentEntry {
    /// The object that holds it.
    pub object: ObjectId,
    /// Where the batches begin in the object.
    pub position: BytePosition,
    /// Length of the batches in bytes.
    pub length: u64,
    /// Where the sparse index block begins in the object.
    pub index_position: BytePosition,
    /// Length of the index block in bytes.
    pub index_length: u32,
    /// First offset (that of the first batch).
    pub base_offset: Offset,
    /// Last offset, inclusive.
    pub last_offset: Offset,
    /// Number of records.
    pub record_count: u64,
    /// Timestamp of the first batch's first record, as the producer or the broker set it.
    pub first_timestamp: TimestampMs,
    /// Largest record timestamp.
    pub max_timestamp: TimestampMs,
    /// Broker stamp of the first entry (D7).
    pub first_stamp: TimestampMs,
    /// Broker stamp of the last entry.
    pub last_stamp: TimestampMs,
    /// Leader epochs inside, each with its first offset inside this segment.
    pub epochs: Vec<EpochStart>,
    /// CRC-32C of the batches' bytes.
    pub crc: u32,
}

/// One remembered batch of a producer: what answers a retry (FR1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerBatch {
    /// Sequence of the batch's first record.
    pub base_sequence: Sequence,
    /// Sequence of its last record.
    pub last_sequence: Sequence,
    /// Offset it was given.
    pub base_offset: Offset,
    /// The timestamp it was answered with (-1 under `CreateTime`).
    pub append_time: TimestampMs,
}

/// What a partition knows of one idempotent producer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerEntry {
    /// The producer.
    pub id: ProducerId,
    /// Its newest epoch seen here.
    pub epoch: ProducerEpoch,
    /// Broker stamp of its last append; expiry counts from here.
    pub last_stamp: TimestampMs,
    /// Its last batches, oldest first, at most [`ProducerEntry::BATCHES_MAX`].
    pub batches: Vec<ProducerBatch>,
}

impl ProducerEntry {
    /// Kafka's clients keep at most five requests in flight, so five batches answer every possible retry.
    pub const BATCHES_MAX: usize = 5;
}

/// State of one partition at the manifest's log id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionManifest {
    /// The partition.
    pub id: PartitionId,
    /// Name of its topic.
    pub topic_name: String,
    /// First offset that can be read.
    pub log_start: Offset,
    /// First offset not in a committed segment. Equal to `next_offset` in a published manifest.
    pub tiered_until: Offset,
    /// The offset the next record gets.
    pub next_offset: Offset,
    /// All leader epochs with data at or after log start (the first may begin before it).
    pub epochs: Vec<EpochStart>,
    /// The lowest id of a producer that cannot have written here and be forgotten: one that is not in `producers`, and has this id or a
    /// higher one, begins at sequence 0. The highest id there is where that is not known (manifests of version 1).
    pub first_new_producer: ProducerId,
    /// Segments in offset order, each starting where the one before ended.
    pub segments: Vec<SegmentEntry>,
    /// Idempotent producers, by id.
    pub producers: Vec<ProducerEntry>,
}

/// State of one placement group after applying the entry `last`: Raft snapshot, checkpoint and manifest in one (D5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupManifest {
    /// The cluster.
    pub cluster: ClusterId,
    /// The group.
    pub group: PlacementGroupId,
    /// The entry whose effects are the last ones inside.
    pub last: LogId,
    /// Broker stamp of that entry.
    pub stamp: TimestampMs,
    /// The newest entry of the metadata group by whose image a topic was dropped here; 0: none, or not known (manifests of version 1).
    pub dropped_at: LogIndex,
    /// Partitions, by id.
    pub partitions: Vec<PartitionManifest>,
    /// State of the consumer groups, opaque to readers of the bucket (`docs/formats/coordinator-state.md`).
    pub coordinator: Bytes,
}

#[cfg(test)]
mod tests;
