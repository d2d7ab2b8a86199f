//! Golden files of format version 1: what version 1 wrote stays readable, and version 1 is still what is written.
//! TIDELOG_WRITE_GOLDEN=1 writes the files anew, which only a new format version may need.

use super::command::{PartitionCommand, Stamped};
use super::image;
use super::machine::Partitions;
use bytes::Bytes;
use std::path::PathBuf;
use tidelog_model::{
    BytePosition, ClusterId, LeaderEpoch, LogId, LogIndex, Offset, PartitionId, PartitionIndex,
    PlacementGroupId, ProducerEpoch, ProducerId, Sequence, Term, TimestampMs, TopicId,
};
use tidelog_tiering::manifest::{EpochStart, ObjectId, SegmentEntry};
use uuid::Uuid;

use super::command::BatchDescriptor;

fn golden(name: &str, bytes: &[u8]) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("src/partition/testdata")
        .join(name);
    if std::env::var_os("TIDELOG_WRITE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
    }
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn partition() -> PartitionId {
    PartitionId {
        topic: TopicId::new(Uuid::from_u128(0x0102_0304)),
        index: PartitionIndex::new(5),
    }
}

fn segment() -> SegmentEntry {
    SegmentEntry {
        object: ObjectId {
            group: PlacementGroupId::new(1),
            term: Term::new(2),
            id: Uuid::from_u128(3),
        },
        position: BytePosition::new(4),
        length: 150,
        index_position: BytePosition::new(154),
        index_length: 28,
        base_offset: Offset::new(0),
        last_offset: Offset::new(6),
        record_count: 7,
        first_timestamp: TimestampMs::new(1_000),
        max_timestamp: TimestampMs::new(1_009),
        first_stamp: TimestampMs::new(2_000),
        last_stamp: TimestampMs::new(2_001),
        epochs: vec![EpochStart {
            epoch: LeaderEpoch::new(2),
            start: Offset::new(0),
        }],
        crc: 0xdead_beef,
    }
}

fn batch(position: u32, records: u32, sequence: i32) -> BatchDescriptor {
    BatchDescriptor {
        partition: partition(),
        position,
        length: 75,
        records,
        producer_id: ProducerId::new(9),
        producer_epoch: ProducerEpoch::new(1),
        log_append_time: position > 0,
        base_sequence: Sequence::new(sequence),
        first_timestamp: TimestampMs::new(1_000),
        max_timestamp: TimestampMs::new(1_009),
    }
}

fn commands() -> Vec<PartitionCommand> {
    vec![
        PartitionCommand::CreatePartition {
            partition: partition(),
            topic_name: "golden".into(),
        },
        PartitionCommand::Append(vec![batch(0, 3, 0), batch(75, 4, 3)]),
        PartitionCommand::Cut,
        PartitionCommand::Uploaded {
            cut: LogIndex::new(3),
            segments: vec![(partition(), segment())],
        },
        PartitionCommand::Published {
            cut: LogIndex::new(3),
            sequence: 1,
        },
        PartitionCommand::TrimPrefix {
            partition: partition(),
            log_start: Offset::new(2),
        },
        PartitionCommand::DeleteTopic(TopicId::new(Uuid::from_u128(77))),
    ]
}

/// Proves that every command of version 1 is written as the golden file has it, and reads back.
#[test]
fn commands_of_version_1() {
    let mut all = Vec::new();
    for (at, command) in commands().into_iter().enumerate() {
        let stamp = TimestampMs::new(2_000 + i64::try_from(at).unwrap());
        let bytes = Stamped { stamp, command }.encode();
        all.extend(u32::try_from(bytes.len()).unwrap().to_le_bytes());
        all.extend(&bytes);
    }
    let file = golden("partition-commands-v1.bin", &all);
    assert_eq!(file, all, "format version 1 changed");
    let mut rest = Bytes::from(file);
    for command in commands() {
        let length = u32::from_le_bytes(rest.split_to(4).as_ref().try_into().unwrap());
        let read = Stamped::decode(&rest.split_to(length as usize), 150).unwrap();
        assert_eq!(read.command, command);
    }
}

/// Proves that the image of version 1 is written as the golden file has it, and gives the same state back.
#[test]
fn image_of_version_1() {
    let mut machine = Partitions::default();
    for (at, command) in commands().into_iter().take(5).enumerate() {
        let id = LogId {
            term: Term::new(2),
            index: LogIndex::new(at as u64 + 1),
        };
        let dir = Stamped {
            stamp: TimestampMs::new(2_000),
            command,
        }
        .encode();
        machine.apply(id, &dir, 150, || Bytes::from_static(b"coordinator"));
    }
    let cluster = ClusterId::new(Uuid::from_u128(8));
    let (at, bytes) = image::encode(cluster, PlacementGroupId::new(1), &machine).unwrap();
    let file = golden("partition-image-v1.bin", &bytes);
    assert_eq!(file, bytes.to_vec(), "format version 1 changed");
    let (read, coordinator) = image::decode(&Bytes::from(file)).unwrap();
    assert_eq!(at.index, LogIndex::new(3));
    assert_eq!(coordinator, Bytes::from_static(b"coordinator"));
    let (before, after) = (
        machine.get(partition()).unwrap(),
        read.get(partition()).unwrap(),
    );
    assert_eq!(after, before);
    for cut in 0..bytes.len() {
        assert!(
            image::decode(&bytes.slice(..cut)).is_err(),
            "a truncation at {cut} was read"
        );
    }
}
