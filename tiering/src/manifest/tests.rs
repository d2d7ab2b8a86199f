//! Identity, golden file, and refusal of every damage of the group manifest.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::format::FormatError;
use crate::testing::{golden, object_id, partition};
use proptest::prelude::*;
use tidelog_model::PartitionIndex;

fn segment(base: i64, last: i64, object: u128) -> SegmentEntry {
    SegmentEntry {
        object: object_id(object),
        position: BytePosition::new(17),
        length: 1000,
        index_position: BytePosition::new(5000),
        index_length: 80,
        base_offset: Offset::new(base),
        last_offset: Offset::new(last),
        record_count: 9,
        first_timestamp: TimestampMs::new(-1),
        max_timestamp: TimestampMs::new(99),
        first_stamp: TimestampMs::new(5),
        last_stamp: TimestampMs::new(6),
        epochs: vec![EpochStart {
            epoch: LeaderEpoch::new(1),
            start: Offset::new(base),
        }],
        crc: 0xdead_beef,
    }
}

fn producer(id: i64, batches: usize) -> ProducerEntry {
    let batch = ProducerBatch {
        base_sequence: Sequence::new(1),
        last_sequence: Sequence::new(i32::MAX),
        base_offset: Offset::new(44),
        append_time: TimestampMs::new(-1),
    };
    ProducerEntry {
        id: ProducerId::new(id),
        epoch: ProducerEpoch::new(3),
        last_stamp: TimestampMs::new(77),
        batches: vec![batch; batches],
    }
}

fn sample() -> GroupManifest {
    let epoch = |epoch, start| EpochStart {
        epoch: LeaderEpoch::new(epoch),
        start: Offset::new(start),
    };
    let full = PartitionManifest {
        id: partition(0),
        topic_name: "orders-é".to_owned(),
        log_start: Offset::new(12),
        tiered_until: Offset::new(30),
        next_offset: Offset::new(31),
        first_new_producer: ProducerId::new(6),
        epochs: vec![epoch(1, 10), epoch(4, 25)],
        segments: vec![segment(10, 19, 1), segment(20, 29, 2)],
        producers: vec![producer(7, 0), producer(9, 5)],
    };
    let empty = PartitionManifest {
        id: partition(1),
        topic_name: "empty".to_owned(),
        log_start: Offset::ZERO,
        tiered_until: Offset::ZERO,
        next_offset: Offset::ZERO,
        first_new_producer: ProducerId::new(0),
        epochs: vec![],
        segments: vec![],
        producers: vec![],
    };
    GroupManifest {
        cluster: ClusterId::new(Uuid::from_u128(0xc1)),
        group: PlacementGroupId::new(3),
        last: LogId {
            term: Term::new(7),
            index: LogIndex::new(1234),
        },
        stamp: TimestampMs::new(1_700_000_000_000),
        dropped_at: LogIndex::new(55),
        partitions: vec![full, empty],
        coordinator: Bytes::from_static(b"opaque"),
    }
}

/// Proves that a manifest reads back as written, also an empty one.
#[test]
fn a_manifest_reads_back() {
    let manifest = sample();
    assert_eq!(decode(&encode(&manifest)).unwrap(), manifest);
    let empty = GroupManifest {
        partitions: vec![],
        coordinator: Bytes::new(),
        ..manifest
    };
    assert_eq!(decode(&encode(&empty)).unwrap(), empty);
}

/// Proves that no number that is never negative is read as a negative one.
#[test]
fn negative_numbers_are_refused() {
    let changes: [fn(&mut PartitionManifest); 9] = [
        |of| of.id.index = PartitionIndex::new(-1),
        |of| of.log_start = Offset::new(-1),
        |of| of.tiered_until = Offset::new(-1),
        |of| of.next_offset = Offset::new(-1),
        |of| of.first_new_producer = ProducerId::new(-1),
        |of| of.epochs[0].start = Offset::new(-1),
        |of| of.producers[0].id = ProducerId::new(-1),
        |of| of.producers[0].epoch = ProducerEpoch::new(-1),
        |of| of.producers[1].batches[0].base_sequence = Sequence::new(-1),
    ];
    for (at, change) in changes.iter().enumerate() {
        let mut manifest = sample();
        change(&mut manifest.partitions[0]);
        let read = decode(&encode(&manifest));
        assert!(matches!(read, Err(FormatError::Rule { .. })), "{at}");
    }
}

/// Proves that version 2 is written as it always was.
#[test]
fn golden_manifest() {
    golden("group-manifest-v2.snap", &encode(&sample()));
}

/// Proves that version 1 is still read: nobody is a new producer there, and nothing was dropped.
#[test]
fn a_manifest_of_version_1_is_read() {
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/group-manifest-v1.snap");
    let read = decode(&Bytes::from(std::fs::read(path).unwrap())).unwrap();
    let mut expected = sample();
    expected.dropped_at = LogIndex::new(0);
    for partition in &mut expected.partitions {
        partition.first_new_producer = ProducerId::new(i64::MAX);
    }
    assert_eq!(read, expected);
}

/// Proves that a version that is not known is refused.
#[test]
fn other_versions_are_refused() {
    for version in [0u16, 3] {
        let mut bytes = encode(&sample()).to_vec();
        bytes[8..10].copy_from_slice(&version.to_le_bytes());
        assert!(matches!(
            decode(&Bytes::from(bytes)),
            Err(FormatError::Version { .. })
        ));
    }
}

/// Proves that no manifest that was cut short, lengthened, or has one bit turned over is read.
#[test]
fn every_truncation_and_bit_flip_is_refused() {
    let bytes = encode(&sample());
    for length in 0..bytes.len() {
        assert!(decode(&bytes.slice(..length)).is_err(), "cut to {length}");
    }
    assert!(decode(&Bytes::from([&bytes[..], &[0]].concat())).is_err());
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 1 << bit;
            assert!(
                decode(&Bytes::from(damaged)).is_err(),
                "bit {bit} of byte {at}"
            );
        }
    }
}

/// Proves that states that break the documented order are refused by name, although their checksums are right.
#[test]
fn broken_rules_are_named() {
    let rule = |change: fn(&mut GroupManifest)| {
        let mut manifest = sample();
        change(&mut manifest);
        match decode(&encode(&manifest)) {
            Err(FormatError::Rule { rule, .. }) => rule,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        rule(|manifest| manifest.partitions.reverse()),
        "partitions are not in order"
    );
    assert_eq!(
        rule(|m| m.partitions[1].id = m.partitions[0].id),
        "partitions are not in order"
    );
    assert_eq!(
        rule(|m| m.partitions[0].segments.push(segment(31, 40, 3))),
        "there is a hole between two segments"
    );
    assert_eq!(
        rule(|m| m.partitions[0].producers.reverse()),
        "producers are not in order"
    );
    assert_eq!(
        rule(|m| m.partitions[0].epochs.reverse()),
        "leader epochs do not rise"
    );
    assert_eq!(
        rule(|m| m.partitions[0].producers[1] = producer(9, 6)),
        "a producer has more batches than are kept"
    );
    assert_eq!(
        rule(|m| m.partitions[0].segments[0].epochs.clear()),
        "a segment's first epoch does not start with it"
    );
}

/// Proves that a hostile count with a right checksum is refused before anything is allocated for it.
#[test]
fn hostile_counts_are_refused() {
    let mut bytes = encode(&sample()).to_vec();
    let identity = 12 + 16 + 52;
    let body = identity + 16;
    bytes[body..body + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    let length = u64::from_le_bytes(bytes[identity + 4..identity + 12].try_into().unwrap());
    let crc = crc32c::crc32c(&bytes[body..body + usize::try_from(length).unwrap()]);
    bytes[identity + 12..body].copy_from_slice(&crc.to_le_bytes());
    assert!(matches!(
        decode(&Bytes::from(bytes)),
        Err(FormatError::Truncated { .. })
    ));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Proves identity for manifests of any shape.
    #[test]
    fn any_manifest_reads_back(
        shapes in prop::collection::vec((0..=i32::MAX, 0usize..4, 0usize..4, 0usize..6, "\\PC{0,12}"), 0..6),
        coordinator in prop::collection::vec(any::<u8>(), 0..50),
    ) {
        let mut shapes = shapes;
        shapes.sort_by_key(|shape| shape.0);
        shapes.dedup_by_key(|shape| shape.0);
        let partitions = shapes.into_iter().map(|(index, segments, producers, batches, name)| PartitionManifest {
            id: partition(index),
            topic_name: name,
            log_start: Offset::ZERO,
            tiered_until: Offset::new(i64::try_from(segments).unwrap() * 10),
            next_offset: Offset::new(i64::MAX),
            first_new_producer: ProducerId::new(i64::MAX),
            epochs: vec![],
            segments: (0..segments).map(|n| i64::try_from(n).unwrap() * 10).map(|at| segment(at, at + 9, 1)).collect(),
            producers: (0..producers).map(|id| producer(i64::try_from(id).unwrap(), batches.min(5))).collect(),
        });
        let manifest = GroupManifest { partitions: partitions.collect(), coordinator: coordinator.into(), ..sample() };
        prop_assert_eq!(decode(&encode(&manifest)).unwrap(), manifest);
    }

    /// Proves that no bytes make the decoder panic.
    #[test]
    fn noise_is_refused(noise in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(decode(&Bytes::from(noise)).is_err());
    }
}
