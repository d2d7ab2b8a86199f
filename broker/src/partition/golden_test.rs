//! Golden files: what older versions wrote stays readable, and the newest is what is written.
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

/// The file, written before from `bytes` where that is asked for: an older version is never written.
fn golden(name: &str, bytes: Option<&[u8]>) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("src/partition/testdata")
        .join(name);
    if let Some(bytes) = bytes
        && std::env::var_os("TIDELOG_WRITE_GOLDEN").is_some()
    {
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
            by: LogIndex::new(11),
            first_new_producer: ProducerId::new(12),
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
        PartitionCommand::DeleteTopic {
            topic: TopicId::new(Uuid::from_u128(77)),
            by: LogIndex::new(13),
        },
    ]
}

/// The commands as version 1 had them: it said neither who is new nor by which image.
fn commands_as_version_1_said() -> Vec<PartitionCommand> {
    let mut commands = commands();
    for command in &mut commands {
        match command {
            PartitionCommand::CreatePartition {
                by,
                first_new_producer,
                ..
            } => {
                *by = LogIndex::new(0);
                *first_new_producer = ProducerId::new(i64::MAX);
            }
            PartitionCommand::DeleteTopic { by, .. } => *by = LogIndex::new(0),
            _ => {}
        }
    }
    commands
}

fn assert_read(file: Vec<u8>, commands: Vec<PartitionCommand>) {
    let mut rest = Bytes::from(file);
    for command in commands {
        let length = u32::from_le_bytes(rest.split_to(4).as_ref().try_into().unwrap());
        let read = Stamped::decode(&rest.split_to(length as usize), 150).unwrap();
        assert_eq!(read.command, command);
    }
    assert!(rest.is_empty());
}

/// Proves that every command is written as the golden file of the newest versions has it, and reads back.
#[test]
fn commands_of_version_2() {
    let mut all = Vec::new();
    for (at, command) in commands().into_iter().enumerate() {
        let stamp = TimestampMs::new(2_000 + i64::try_from(at).unwrap());
        let bytes = Stamped { stamp, command }.encode();
        all.extend(u32::try_from(bytes.len()).unwrap().to_le_bytes());
        all.extend(&bytes);
    }
    let file = golden("partition-commands-v2.bin", Some(&all));
    assert_eq!(file, all, "the format changed");
    assert_read(file, commands());
}

/// Proves that every command of version 1 is still read.
#[test]
fn commands_of_version_1() {
    let file = golden("partition-commands-v1.bin", None);
    assert_read(file, commands_as_version_1_said());
}

/// Proves that a creation with a negative number is not read.
#[test]
fn a_creation_with_negative_numbers_is_refused() {
    let read = |index, first_new| {
        let command = PartitionCommand::CreatePartition {
            partition: PartitionId {
                index: PartitionIndex::new(index),
                ..partition()
            },
            topic_name: "t".into(),
            by: LogIndex::new(11),
            first_new_producer: ProducerId::new(first_new),
        };
        let stamp = TimestampMs::new(1);
        Stamped::decode(&Stamped { stamp, command }.encode(), 0)
    };
    assert!(read(0, 0).is_ok());
    assert!(read(-1, 0).is_err());
    assert!(read(0, -1).is_err());
}

fn machine(commands: Vec<PartitionCommand>) -> Partitions {
    let mut machine = Partitions::default();
    for (at, command) in commands.into_iter().take(5).enumerate() {
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
    machine
}

fn assert_image(file: &[u8], expected: &Partitions) {
    let (read, coordinator) = image::decode(&Bytes::copy_from_slice(file)).unwrap();
    assert_eq!(coordinator, Bytes::from_static(b"coordinator"));
    let (before, after) = (
        expected.get(partition()).unwrap(),
        read.get(partition()).unwrap(),
    );
    assert_eq!(after, before);
}

/// Proves that the image is written as the golden file has it, with a manifest of version 2, and gives the same state back.
#[test]
fn image_with_manifest_of_version_2() {
    let machine = machine(commands());
    let cluster = ClusterId::new(Uuid::from_u128(8));
    let (at, bytes) = image::encode(cluster, PlacementGroupId::new(1), &machine).unwrap();
    let file = golden("partition-image-v1-manifest-v2.bin", Some(&bytes));
    assert_eq!(file, bytes.to_vec(), "the format changed");
    assert_eq!(at.index, LogIndex::new(3));
    assert_image(&file, &machine);
    for cut in 0..bytes.len() {
        assert!(
            image::decode(&bytes.slice(..cut)).is_err(),
            "a truncation at {cut} was read"
        );
    }
}

/// Proves that an image with a manifest of version 1 is still read.
#[test]
fn image_with_manifest_of_version_1() {
    let file = golden("partition-image-v1.bin", None);
    assert_image(&file, &machine(commands_as_version_1_said()));
}
