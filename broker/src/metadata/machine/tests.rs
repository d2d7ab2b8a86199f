//! Tests of the metadata machine: transitions, bytes, golden files, determinism.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::metadata::{
    Address, ConfigChange, ConfigOperation, ConfigSetMode, MetadataCommand, ProducerIdBlock,
    Refusal, choose_groups,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use tidelog_model::{
    ClusterId, LogIndex, NodeId, PartitionId, PartitionIndex, PlacementGroupId, ProducerId, Term,
    TimestampMs, TopicId,
};
use uuid::Uuid;

fn id(index: u64) -> LogId {
    LogId {
        term: Term::new(3),
        index: LogIndex::new(index),
    }
}

fn topic_id(number: u128) -> TopicId {
    TopicId::new(Uuid::from_u128(number))
}

fn group(number: u32) -> PlacementGroupId {
    PlacementGroupId::new(number)
}

fn bootstrap() -> MetadataCommand {
    MetadataCommand::BootstrapCluster {
        cluster: ClusterId::new(Uuid::from_u128(7)),
        name: "dev".into(),
        groups: BTreeMap::from([
            (group(1), vec![NodeId::new(1)]),
            (group(2), vec![NodeId::new(1)]),
        ]),
    }
}

fn create(number: u128, name: &str, groups: &[u32]) -> MetadataCommand {
    MetadataCommand::CreateTopic {
        id: topic_id(number),
        name: name.into(),
        partitions: groups.iter().copied().map(group).collect(),
        configs: BTreeMap::new(),
        before: crate::metadata::NameBefore::Unknown,
    }
}

fn register(node: i32) -> MetadataCommand {
    MetadataCommand::RegisterBroker {
        node: NodeId::new(node),
        raft_node: None,
        zone: "a".into(),
        kafka: None,
        peer: Some(Address {
            host: "10.0.0.1".into(),
            port: 9192,
        }),
        admin: Some(Address {
            host: "127.0.0.1".into(),
            port: 9640,
        }),
    }
}

fn fence(node: i32, fenced: bool) -> MetadataCommand {
    MetadataCommand::SetBrokerFence {
        node: NodeId::new(node),
        fenced,
    }
}

fn set(number: u128, name: &str, value: &str) -> MetadataCommand {
    MetadataCommand::SetTopicConfigs {
        id: topic_id(number),
        mode: ConfigSetMode::Merge,
        changes: vec![ConfigChange {
            name: name.into(),
            operation: ConfigOperation::Set(value.into()),
        }],
    }
}

/// A machine and its next log index.
struct Rig {
    machine: MetadataMachine,
    next: u64,
}

impl Rig {
    fn new() -> Self {
        let mut rig = Self {
            machine: MetadataMachine::new(),
            next: 0,
        };
        assert_eq!(
            rig.run(&bootstrap()),
            MetadataOutcome::Bootstrapped(ClusterId::new(Uuid::from_u128(7)))
        );
        rig
    }

    fn run(&mut self, command: &MetadataCommand) -> MetadataOutcome {
        let stamp = TimestampMs::new(1_000 + i64::try_from(self.next).unwrap());
        let outcome = self.machine.apply(id(self.next), &command.encode(stamp));
        self.next += 1;
        outcome
    }

    fn refused(&mut self, command: &MetadataCommand) -> Refusal {
        let before = self.machine.image().clone();
        let MetadataOutcome::Refused(refusal) = self.run(command) else {
            panic!("{command:?} was not refused")
        };
        let after = self.machine.image();
        assert_eq!(
            (&before.topics, &before.brokers),
            (&after.topics, &after.brokers)
        );
        refusal
    }
}

/// Proves that nothing is accepted before the bootstrap and that a second bootstrap changes nothing.
#[test]
fn bootstrap_comes_first_and_once() {
    let mut machine = MetadataMachine::new();
    let early = machine.apply(id(0), &create(1, "a", &[1]).encode(TimestampMs::new(1)));
    assert_eq!(early, MetadataOutcome::Refused(Refusal::NotBootstrapped));
    let mut rig = Rig::new();
    let again = MetadataCommand::BootstrapCluster {
        cluster: ClusterId::new(Uuid::from_u128(8)),
        name: "other".into(),
        groups: BTreeMap::from([(group(9), vec![])]),
    };
    assert_eq!(
        rig.run(&again),
        MetadataOutcome::Bootstrapped(ClusterId::new(Uuid::from_u128(7)))
    );
    let image = rig.machine.image();
    assert_eq!(image.cluster().unwrap().1, "dev");
    assert_eq!(image.groups().len(), 2);
    assert_eq!(
        (
            image.slot_group(0),
            image.slot_group(63),
            image.slot_group(64)
        ),
        (Some(group(1)), Some(group(2)), None)
    );
}

/// Proves that a bootstrap without data groups, or with the metadata group as one, is refused.
#[test]
fn bootstrap_needs_data_groups() {
    for groups in [
        BTreeMap::new(),
        BTreeMap::from([(PlacementGroupId::METADATA, vec![])]),
    ] {
        let command = MetadataCommand::BootstrapCluster {
            cluster: ClusterId::default(),
            name: "x".into(),
            groups,
        };
        let outcome = MetadataMachine::new().apply(id(0), &command.encode(TimestampMs::new(1)));
        assert!(matches!(
            outcome,
            MetadataOutcome::Refused(Refusal::InvalidField(_))
        ));
    }
}

/// Proves the life of a topic: created, found by name and partition, deleted, created again under another id (I15).
#[test]
fn a_topic_lives_and_ends() {
    let mut rig = Rig::new();
    assert_eq!(
        rig.run(&create(1, "a.b", &[1, 2, 1])),
        MetadataOutcome::TopicCreated(topic_id(1))
    );
    let image = rig.machine.image();
    assert_eq!(image.topic_by_name("a.b").unwrap().0, topic_id(1));
    let partition = |index| PartitionId {
        topic: topic_id(1),
        index: PartitionIndex::new(index),
    };
    assert_eq!(image.placement(partition(1)), Some(group(2)));
    assert_eq!(image.placement(partition(3)), None);
    assert_eq!(image.placement(partition(-1)), None);
    let of_first: Vec<_> = image
        .partitions_of(group(1))
        .map(|(partition, _)| partition.index.get())
        .collect();
    assert_eq!(of_first, [0, 2]);
    assert_eq!(choose_groups(image, 2, 1), [group(2), group(1)]);

    assert_eq!(
        rig.refused(&create(2, "a.b", &[1])),
        Refusal::TopicExists("a.b".into())
    );
    assert_eq!(
        rig.refused(&create(1, "c", &[1])),
        Refusal::TopicExists("c".into())
    );
    let collision = Refusal::NameCollision {
        name: "a_b".into(),
        existing: "a.b".into(),
    };
    assert_eq!(rig.refused(&create(2, "a_b", &[1])), collision);

    let MetadataOutcome::TopicDeleted(gone) =
        rig.run(&MetadataCommand::DeleteTopic { id: topic_id(1) })
    else {
        panic!("not deleted")
    };
    assert_eq!(gone.partitions.len(), 3);
    assert_eq!(
        rig.refused(&MetadataCommand::DeleteTopic { id: topic_id(1) }),
        Refusal::UnknownTopic
    );
    assert_eq!(
        rig.run(&create(2, "a_b", &[1])),
        MetadataOutcome::TopicCreated(topic_id(2))
    );
    assert_eq!(rig.machine.image().partition_count(), 1);
}

/// Proves that bad topics are refused, each with its reason.
#[test]
fn bad_topics_are_refused() {
    let mut rig = Rig::new();
    assert!(matches!(
        rig.refused(&create(1, "a b", &[1])),
        Refusal::InvalidName(_)
    ));
    assert_eq!(
        rig.refused(&create(1, "a", &[])),
        Refusal::InvalidPartitions(0)
    );
    assert_eq!(
        rig.refused(&create(1, "a", &[1; 10_001])),
        Refusal::InvalidPartitions(10_001)
    );
    assert_eq!(
        rig.refused(&create(1, "a", &[1, 3])),
        Refusal::UnknownGroup(group(3))
    );
    assert_eq!(
        rig.refused(&create(1, "a", &[0])),
        Refusal::UnknownGroup(group(0))
    );
    assert!(matches!(
        rig.refused(&create(0, "a", &[1])),
        Refusal::InvalidField(_)
    ));
    let compacted = MetadataCommand::CreateTopic {
        id: topic_id(1),
        name: "a".into(),
        partitions: vec![group(1)],
        configs: BTreeMap::from([("cleanup.policy".into(), "compact".into())]),
        before: crate::metadata::NameBefore::Unknown,
    };
    assert!(matches!(rig.refused(&compacted), Refusal::InvalidConfig(_)));
}

/// Proves that the dry run of a creation says what apply says.
#[test]
fn check_create_agrees_with_apply() {
    let mut rig = Rig::new();
    rig.run(&create(1, "a.b", &[1]));
    let none = BTreeMap::new();
    let image = rig.machine.image();
    assert_eq!(image.check_create("c", 3, &none), Ok(()));
    assert_eq!(
        image.check_create("a.b", 3, &none),
        Err(Refusal::TopicExists("a.b".into()))
    );
    assert!(matches!(
        image.check_create("a_b", 3, &none),
        Err(Refusal::NameCollision { .. })
    ));
    assert_eq!(
        image.check_create("c", 0, &none),
        Err(Refusal::InvalidPartitions(0))
    );
    assert_eq!(
        image.check_create("c", usize::MAX, &none),
        Err(Refusal::InvalidPartitions(usize::MAX))
    );
    let bad = BTreeMap::from([("retention.ms".into(), "abc".into())]);
    assert!(matches!(
        image.check_create("c", 1, &bad),
        Err(Refusal::InvalidConfig(_))
    ));
    assert_eq!(
        MetadataImage::default().check_create("c", 1, &none),
        Err(Refusal::NotBootstrapped)
    );
}

/// Proves that configs change as a whole or not at all.
#[test]
fn configs_change() {
    let mut rig = Rig::new();
    rig.run(&create(1, "a", &[1]));
    let expected = BTreeMap::from([("retention.ms".to_owned(), "5".to_owned())]);
    assert_eq!(
        rig.run(&set(1, "retention.ms", "5")),
        MetadataOutcome::ConfigsSet(expected.clone())
    );
    assert!(matches!(
        rig.refused(&set(1, "retention.ms", "abc")),
        Refusal::InvalidConfig(_)
    ));
    assert_eq!(
        rig.refused(&set(2, "retention.ms", "5")),
        Refusal::UnknownTopic
    );
    assert_eq!(
        rig.machine.image().topic(topic_id(1)).unwrap().configs,
        expected
    );
}

/// Proves that brokers register, that the newest registration wins, and that bad addresses are refused.
#[test]
fn brokers_register() {
    let mut rig = Rig::new();
    assert_eq!(rig.run(&register(1)), MetadataOutcome::BrokerRegistered);
    assert_eq!(rig.run(&register(1)), MetadataOutcome::BrokerRegistered);
    assert_eq!(rig.machine.image().brokers().len(), 1);
    assert!(matches!(
        rig.refused(&register(-1)),
        Refusal::InvalidField(_)
    ));
    let bad = MetadataCommand::RegisterBroker {
        node: NodeId::new(2),
        raft_node: None,
        zone: "a".into(),
        kafka: Some(Address {
            host: "h\nx".into(),
            port: 1,
        }),
        peer: None,
        admin: None,
    };
    assert!(matches!(rig.refused(&bad), Refusal::InvalidField(_)));
}

/// Proves that a fence begins with its first command, ends with the opposite one, outlives a registration, and that nobody
/// unknown gets one.
#[test]
fn brokers_are_fenced_and_live_again() {
    let mut rig = Rig::new();
    let node = NodeId::new(1);
    assert_eq!(
        rig.refused(&fence(1, true)),
        Refusal::UnknownBroker(NodeId::new(1))
    );
    rig.run(&register(1));
    assert!(rig.machine.image().is_live(node));
    let since = TimestampMs::new(1_000 + i64::try_from(rig.next).unwrap());
    assert_eq!(rig.run(&fence(1, true)), MetadataOutcome::BrokerFenceSet);
    rig.run(&fence(1, true));
    rig.run(&register(1));
    let (last, image) = rig.machine.snapshot().unwrap();
    rig.machine.restore(last, &image).unwrap();
    assert_eq!(rig.machine.image().brokers()[&node].fenced, Some(since));
    assert!(!rig.machine.image().is_live(node) && !rig.machine.image().is_live(NodeId::new(2)));
    assert_eq!(rig.run(&fence(1, false)), MetadataOutcome::BrokerFenceSet);
    assert!(rig.machine.image().is_live(node));
}

/// Proves that no producer id is handed out twice, also across a snapshot, and that the end is an error, not a wrap.
#[test]
fn producer_ids_never_repeat() {
    let mut rig = Rig::new();
    let allocate = MetadataCommand::AllocateProducerIds {
        node: NodeId::new(1),
    };
    let block = |first| {
        MetadataOutcome::ProducerIds(ProducerIdBlock {
            first: ProducerId::new(first),
            count: 1000,
        })
    };
    assert_eq!(rig.run(&allocate), block(0));
    assert_eq!(rig.run(&allocate), block(1000));
    let (last, image) = rig.machine.snapshot().unwrap();
    rig.machine = MetadataMachine::new();
    rig.machine.restore(last, &image).unwrap();
    assert_eq!(rig.run(&allocate), block(2000));
    rig.machine.image.next_producer_id = i64::MAX - 5;
    assert_eq!(rig.refused(&allocate), Refusal::NoProducerIds);
}

/// Proves that time never goes back when a leader's clock does (D7).
#[test]
fn stamp_is_monotone() {
    let mut rig = Rig::new();
    rig.machine
        .apply(id(1), &create(1, "a", &[1]).encode(TimestampMs::new(9_000)));
    rig.machine
        .apply(id(2), &create(2, "b", &[1]).encode(TimestampMs::new(8_000)));
    assert_eq!(rig.machine.image().stamp(), TimestampMs::new(9_000));
    assert_eq!(
        rig.machine.image().topic(topic_id(2)).unwrap().created,
        TimestampMs::new(9_000)
    );
}

fn samples() -> Vec<MetadataCommand> {
    vec![
        bootstrap(),
        register(1),
        MetadataCommand::CreateTopic {
            id: topic_id(0x0102),
            name: "orders".into(),
            partitions: vec![group(1), group(2)],
            configs: BTreeMap::from([("retention.ms".into(), "60000".into())]),
            before: crate::metadata::NameBefore::Unknown,
        },
        create(0x0103, "gone", &[2]),
        MetadataCommand::DeleteTopic {
            id: topic_id(0x0103),
        },
        MetadataCommand::SetTopicConfigs {
            id: topic_id(0x0102),
            mode: ConfigSetMode::Merge,
            changes: vec![
                ConfigChange {
                    name: "segment.ms".into(),
                    operation: ConfigOperation::Set("5".into()),
                },
                ConfigChange {
                    name: "retention.bytes".into(),
                    operation: ConfigOperation::Delete,
                },
                ConfigChange {
                    name: "cleanup.policy".into(),
                    operation: ConfigOperation::Append("delete".into()),
                },
            ],
        },
        MetadataCommand::SetTopicConfigs {
            id: topic_id(0x0103),
            mode: ConfigSetMode::Replace,
            changes: vec![ConfigChange {
                name: "cleanup.policy".into(),
                operation: ConfigOperation::Subtract("delete".into()),
            }],
        },
        MetadataCommand::AllocateProducerIds {
            node: NodeId::new(1),
        },
        fence(1, true),
    ]
}

/// Proves that commands survive their bytes, and that every truncation, appended byte and newer version is refused
/// by decoding and changes nothing when applied.
#[test]
fn commands_survive_their_bytes() {
    for command in samples() {
        let encoded = command.encode(TimestampMs::new(5));
        assert!(encoded.body.is_empty());
        assert_eq!(
            decode_command(&encoded.dir).unwrap(),
            (command, TimestampMs::new(5))
        );
        for length in 0..encoded.dir.len() {
            assert!(decode_command(&encoded.dir[..length]).is_err());
        }
        let mut longer = encoded.dir.to_vec();
        longer.push(0);
        assert!(decode_command(&longer).is_err());
        let mut newer = encoded.dir.to_vec();
        newer[1] = 3;
        assert!(decode_command(&newer).is_err());
        let mut rig = Rig::new();
        let outcome = rig
            .machine
            .apply(id(1), &Command::new(newer.into(), Bytes::new()));
        assert!(matches!(
            outcome,
            MetadataOutcome::Refused(Refusal::Unreadable(_))
        ));
    }
}

fn sample_machine() -> MetadataMachine {
    let mut machine = MetadataMachine::new();
    for (index, command) in (0u64..).zip(samples()) {
        machine.apply(
            id(index),
            &command.encode(TimestampMs::new(1_700_000_000_000)),
        );
    }
    machine
}

fn golden(name: &str, bytes: &[u8]) {
    let path = format!(
        "{}/src/metadata/testdata/{name}",
        env!("CARGO_MANIFEST_DIR")
    );
    if std::env::var_os("TIDELOG_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, bytes).unwrap();
    }
    assert_eq!(
        std::fs::read(&path).unwrap(),
        bytes,
        "{name} differs: a released format may not change"
    );
}

/// Proves that the formats stay as released, and that an image of version 1, which knew no fences, is read.
#[test]
fn formats_are_golden() {
    let mut commands = Vec::new();
    for command in samples() {
        let dir = command.encode(TimestampMs::new(1_700_000_000_000)).dir;
        commands.extend_from_slice(&u32::try_from(dir.len()).unwrap().to_le_bytes());
        commands.extend_from_slice(&dir);
    }
    golden("metadata-commands-v1.bin", &commands);
    // Older versions of the snapshot are read; version 3 adds the members.
    let (last, _) = sample_machine().snapshot().unwrap();
    let old = include_bytes!("../testdata/metadata-snapshot-v2.bin");
    let mut restored = MetadataMachine::new();
    restored.restore(last, &Bytes::from_static(old)).unwrap();
    let mut expected = sample_machine().image().clone();
    expected.founders.clear();
    expected.as_version_6_said();
    assert_eq!(restored.image(), &expected);
    let first = MetadataImage::decode(include_bytes!("../testdata/metadata-snapshot-v1.bin"));
    let mut expected = MetadataMachine::new();
    for (index, command) in (0..8u64).zip(samples()) {
        let stamp = TimestampMs::new(1_700_000_000_000);
        expected.apply(id(index), &command.encode(stamp));
    }
    let mut expected = expected.image().clone();
    expected.founders.clear();
    expected.as_version_6_said();
    assert_eq!(first.unwrap(), expected);
}

/// Proves that a damaged snapshot, or one of another log id, is refused and that an empty machine has none.
#[test]
fn damaged_snapshots_are_refused() {
    assert!(MetadataMachine::new().snapshot().is_none());
    let (last, image) = sample_machine().snapshot().unwrap();
    for length in 0..image.len() {
        assert!(
            MetadataImage::decode(&image[..length]).is_err(),
            "length {length}"
        );
    }
    for bit in 0..image.len() * 8 {
        let mut damaged = image.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(MetadataImage::decode(&damaged).is_err(), "bit {bit}");
    }
    let mut machine = MetadataMachine::new();
    assert!(machine.restore(id(last.index.get() + 1), &image).is_err());
    assert!(machine.restore(last, &image.slice(1..)).is_err());
}

fn any_command() -> impl Strategy<Value = MetadataCommand> {
    let name = prop_oneof![Just("a"), Just("b.c"), Just("b_c"), Just("bad name")];
    prop_oneof![
        Just(bootstrap()),
        (0i32..3).prop_map(register),
        (1u128..6, name, proptest::collection::vec(1u32..4, 0..4))
            .prop_map(|(id, name, at)| create(id, name, &at)),
        (1u128..6).prop_map(|number| MetadataCommand::DeleteTopic {
            id: topic_id(number)
        }),
        (1u128..6, prop_oneof![Just("5"), Just("x")]).prop_map(|(number, value)| set(
            number,
            "retention.ms",
            value
        )),
        Just(MetadataCommand::AllocateProducerIds {
            node: NodeId::new(1)
        }),
        (0i32..3, proptest::bool::ANY).prop_map(|(node, fenced)| fence(node, fenced)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Proves that the same commands give the same bytes, whether or not a replica was restored from a snapshot on
    /// the way, and that names, ids and counts stay consistent.
    #[test]
    fn replicas_agree(commands in proptest::collection::vec(any_command(), 1..60), cut in 0usize..60) {
        let mut one = MetadataMachine::new();
        let mut two = MetadataMachine::new();
        for (index, command) in commands.iter().enumerate() {
            let at = id(index as u64);
            let encoded = command.encode(TimestampMs::new(index as i64 % 7));
            prop_assert_eq!(one.apply(at, &encoded), two.apply(at, &encoded));
            if index == cut {
                let (last, image) = two.snapshot().unwrap();
                two = MetadataMachine::new();
                two.restore(last, &image).unwrap();
            }
        }
        prop_assert_eq!(one.snapshot(), two.snapshot());
        let image = one.image();
        prop_assert_eq!(image, two.image());
        prop_assert_eq!(image.by_name().count(), image.topics().len());
        prop_assert_eq!(image.collisions.len(), image.topics().len());
        prop_assert_eq!(image.partition_count(), image.topics().values().map(|t| t.partitions.len()).sum::<usize>());
    }
}
