//! What tests of several modules build: batches, objects, stores.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::format::{BuiltObject, ObjectBuilder};
use crate::manifest::ObjectId;
use bytes::Bytes;
use std::path::PathBuf;
use tidelog_model::batch::BatchBuilder;
use tidelog_model::codec::Codec;
use tidelog_model::{
    LeaderEpoch, Offset, PartitionId, PartitionIndex, PlacementGroupId, Term, TimestampMs, TopicId,
};
use uuid::Uuid;

pub(crate) fn partition(index: i32) -> PartitionId {
    PartitionId {
        topic: TopicId::new(Uuid::from_u128(0x70)),
        index: PartitionIndex::new(index),
    }
}

pub(crate) fn object_id(number: u128) -> ObjectId {
    ObjectId {
        group: PlacementGroupId::new(3),
        term: Term::new(7),
        id: Uuid::from_u128(number),
    }
}

pub(crate) fn batch(codec: Codec, base: i64, epoch: i32, records: &[(i64, &[u8])]) -> Bytes {
    let mut builder =
        BatchBuilder::new(codec).base_offset(Offset::new(base), LeaderEpoch::new(epoch));
    for (timestamp, value) in records {
        builder
            .append(TimestampMs::new(*timestamp), Some(b"key"), Some(value), &[])
            .unwrap();
    }
    builder.build().unwrap()
}

/// An object with one segment: `count` batches of two records, each record about `bytes` long, offsets from `base`.
pub(crate) fn one_segment(
    id: ObjectId,
    base: i64,
    count: i64,
    bytes: usize,
) -> (BuiltObject, Vec<Bytes>) {
    let mut builder = ObjectBuilder::new(id);
    builder.begin_segment(partition(0)).unwrap();
    let mut batches = Vec::new();
    for number in 0..count {
        let value = vec![u8::try_from(number % 251).unwrap(); bytes];
        let at = base + number * 2;
        let made = batch(
            Codec::None,
            at,
            1,
            &[(1000 + at, &value), (1001 + at, &value)],
        );
        builder
            .push_batch(made.clone(), TimestampMs::new(at))
            .unwrap();
        batches.push(made);
    }
    (builder.finish().unwrap(), batches)
}

pub(crate) fn joined(object: &BuiltObject) -> Bytes {
    Bytes::from(object.chunks.concat())
}

/// Compares with a golden file. A new format version gets a new file; an old one is never written again.
/// `TIDELOG_WRITE_GOLDEN=1` makes a file that is not there.
pub(crate) fn golden(name: &str, bytes: &[u8]) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("testdata")
        .join(name);
    if std::env::var_os("TIDELOG_WRITE_GOLDEN").is_some() && !path.exists() {
        std::fs::write(&path, bytes).unwrap();
    }
    assert!(
        std::fs::read(&path).unwrap() == bytes,
        "{name} is not what this program writes"
    );
}
