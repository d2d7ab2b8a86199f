//! Property tests of the partition machine against a tiny model: offsets, idempotence, the order of offload, images.

use std::collections::BTreeMap;

use super::command::{BatchDescriptor, PartitionCommand, Stamped};
use super::image;
use super::machine::{CutStage, PartitionOutcome, Partitions};
use super::state::{AppendError, AppendOutcome};
use bytes::Bytes;
use proptest::prelude::*;
use tidelog_model::{
    BytePosition, ClusterId, LogId, LogIndex, Offset, PartitionId, PartitionIndex,
    PlacementGroupId, ProducerEpoch, ProducerId, Sequence, Term, TimestampMs, TopicId,
};
use tidelog_tiering::manifest::{EpochStart, ObjectId, SegmentEntry};
use uuid::Uuid;

fn partition(n: u8) -> PartitionId {
    PartitionId {
        topic: TopicId::new(Uuid::from_u128(u128::from(n / 2) + 1)),
        index: PartitionIndex::new(i32::from(n % 2)),
    }
}

fn batch(n: u8, records: u32, position: u32, producer: Option<(i64, i16, i32)>) -> BatchDescriptor {
    let (id, epoch, sequence) = producer.unwrap_or((-1, -1, -1));
    BatchDescriptor {
        partition: partition(n),
        position,
        length: 100,
        records,
        producer_id: ProducerId::new(id),
        producer_epoch: ProducerEpoch::new(epoch),
        log_append_time: false,
        base_sequence: Sequence::new(sequence),
        first_timestamp: TimestampMs::new(5),
        max_timestamp: TimestampMs::new(9),
    }
}

/// A machine with the log it was fed, as a group would feed it.
#[derive(Default)]
struct World {
    machine: Partitions,
    log: Vec<(LogId, Bytes, usize)>,
    term: u64,
}

impl World {
    fn apply(&mut self, command: PartitionCommand) -> PartitionOutcome {
        let index = self.log.len() as u64 + 1;
        let id = LogId {
            term: Term::new(self.term),
            index: LogIndex::new(index),
        };
        let body = match &command {
            PartitionCommand::Append(batches) => batches.len() * 100,
            _ => 0,
        };
        let dir = Stamped {
            stamp: TimestampMs::new(1_000 + i64::try_from(index).unwrap()),
            command,
        }
        .encode();
        self.log.push((id, dir.clone(), body));
        let outcome = self.machine.apply(id, &dir, body, Bytes::new);
        assert_eq!(
            self.machine.unsound(),
            None,
            "I5 and I6 hold after every command"
        );
        outcome
    }

    /// What an upload of the cut under way would commit.
    fn segments(&self) -> Option<(LogIndex, Vec<(PartitionId, SegmentEntry)>)> {
        let CutStage::Cut(frozen) = self.machine.stage() else {
            return None;
        };
        let mut segments = Vec::new();
        for state in frozen
            .partitions
            .values()
            .filter(|state| state.tiered_until < state.next_offset)
        {
            let live = self.machine.get(state.id)?;
            let base = live
                .hot
                .read(state.tiered_until, state.next_offset, 1)
                .first()?
                .base_offset;
            // Real segments end with a batch; these may end inside one.
            let base = state
                .segments
                .last()
                .map_or(base, |last| last.last_offset.plus(1));
            let middle = Offset::new((base.get() + state.next_offset.get()) / 2);
            // Log start may lie inside a batch, and the first segment holds that batch whole.
            let middle = if middle <= state.tiered_until {
                state.next_offset
            } else {
                middle
            };
            let mut from = base;
            for until in [middle, state.next_offset] {
                if from < until {
                    segments.push((state.id, segment(from, until)));
                    from = until;
                }
            }
        }
        Some((frozen.at.index, segments))
    }
}

fn segment(from: Offset, until: Offset) -> SegmentEntry {
    SegmentEntry {
        object: ObjectId {
            group: PlacementGroupId::new(1),
            term: Term::new(1),
            id: Uuid::from_u128(9),
        },
        position: BytePosition::new(0),
        length: 100,
        index_position: BytePosition::new(100),
        index_length: 5,
        base_offset: from,
        last_offset: until.plus(-1),
        record_count: u64::try_from(until.get() - from.get()).unwrap(),
        first_timestamp: TimestampMs::new(5),
        max_timestamp: TimestampMs::new(9),
        first_stamp: TimestampMs::new(1),
        last_stamp: TimestampMs::new(2),
        epochs: vec![EpochStart {
            epoch: tidelog_model::LeaderEpoch::new(1),
            start: from,
        }],
        crc: 7,
    }
}

fn delete(topic: TopicId, by: u64) -> PartitionCommand {
    let by = LogIndex::new(by);
    PartitionCommand::DeleteTopic { topic, by }
}

#[derive(Clone, Debug)]
enum Act {
    Create(u8),
    DeleteTopic(u8),
    Append(Vec<(u8, u32)>),
    Produce {
        n: u8,
        producer: i64,
        records: u32,
        retry: bool,
        skip: bool,
    },
    Trim(u8, i64),
    Cut,
    Upload,
    UploadPart(usize),
    StaleUpload,
    Publish,
    NewTerm,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        2 => (0u8..4).prop_map(Act::Create),
        1 => (0u8..4).prop_map(Act::DeleteTopic),
        6 => proptest::collection::vec((0u8..4, 1u32..20), 1..5).prop_map(Act::Append),
        6 => (0u8..4, 1i64..3, 1u32..5, any::<bool>(), proptest::bool::weighted(0.1))
            .prop_map(|(n, producer, records, retry, skip)| Act::Produce { n, producer, records, retry, skip }),
        2 => (0u8..4, 0i64..100).prop_map(|(n, to)| Act::Trim(n, to)),
        2 => Just(Act::Cut),
        3 => Just(Act::Upload),
        3 => (1usize..4).prop_map(Act::UploadPart),
        1 => Just(Act::StaleUpload),
        3 => Just(Act::Publish),
        1 => Just(Act::NewTerm),
    ];
    proptest::collection::vec(act, 1..80)
}

/// The next sequence, and the last batch: its base sequence, records, base offset.
type Sequences = (i32, Option<(i32, u32, i64)>);

/// What the world must look like: next offset per partition, and per producer its next sequence and last batch.
#[derive(Default)]
struct Model {
    next: BTreeMap<PartitionId, i64>,
    producers: BTreeMap<(PartitionId, i64), Sequences>,
}

impl Model {
    fn expect_append(&mut self, id: PartitionId, records: u32, outcome: AppendOutcome) {
        match (self.next.get_mut(&id), outcome) {
            (Some(next), AppendOutcome::Appended(appended)) => {
                assert_eq!(appended.base_offset.get(), *next, "offsets are dense");
                *next += i64::from(records);
            }
            (None, AppendOutcome::Refused(AppendError::UnknownPartition)) => {}
            (model, outcome) => panic!("{model:?} and {outcome:?}"),
        }
    }
}

fn produce(
    world: &mut World,
    model: &mut Model,
    n: u8,
    producer: i64,
    records: u32,
    retry: bool,
    skip: bool,
) {
    let id = partition(n);
    let known = model
        .producers
        .get(&(id, producer))
        .copied()
        .unwrap_or((0, None));
    let (sequence, last) = known;
    let (first, records) = match last {
        Some((first, records, _)) if retry => (first, records),
        _ => (if skip { sequence + 7 } else { sequence }, records),
    };
    let command = PartitionCommand::Append(vec![batch(n, records, 0, Some((producer, 0, first)))]);
    let PartitionOutcome::Appended(outcomes) = world.apply(command) else {
        panic!("not an append's outcome")
    };
    let outcome = outcomes[0];
    if !model.next.contains_key(&id) {
        assert_eq!(
            outcome,
            AppendOutcome::Refused(AppendError::UnknownPartition)
        );
    } else if let (Some((_, _, offset)), true) = (last, retry) {
        let AppendOutcome::Duplicate(again) = outcome else {
            panic!("a retry was not recognised: {outcome:?}")
        };
        assert_eq!(
            again.base_offset.get(),
            offset,
            "a retry gets the first answer again"
        );
    } else if skip {
        assert_eq!(
            outcome,
            AppendOutcome::Refused(AppendError::OutOfOrderSequence)
        );
    } else {
        let offset = model.next[&id];
        model.expect_append(id, records, outcome);
        let next = first + i32::try_from(records).unwrap();
        model
            .producers
            .insert((id, producer), (next, Some((first, records, offset))));
    }
}

fn act(world: &mut World, model: &mut Model, act: &Act) {
    match act {
        Act::Create(n) => {
            world.apply(PartitionCommand::CreatePartition {
                partition: partition(*n),
                topic_name: format!("t{}", n / 2),
                by: LogIndex::new(0),
                first_new_producer: ProducerId::new(0),
            });
            model.next.entry(partition(*n)).or_insert(0);
        }
        Act::DeleteTopic(n) => {
            let topic = partition(*n).topic;
            world.apply(delete(topic, 0));
            model.next.retain(|id, _| id.topic != topic);
            model.producers.retain(|(id, _), _| id.topic != topic);
        }
        Act::Append(batches) => {
            let list = batches.iter().enumerate();
            let list = list
                .map(|(i, (n, records))| batch(*n, *records, u32::try_from(i).unwrap() * 100, None))
                .collect();
            let PartitionOutcome::Appended(outcomes) = world.apply(PartitionCommand::Append(list))
            else {
                panic!()
            };
            for ((n, records), outcome) in batches.iter().zip(outcomes) {
                model.expect_append(partition(*n), *records, outcome);
            }
        }
        Act::Produce {
            n,
            producer,
            records,
            retry,
            skip,
        } => produce(world, model, *n, *producer, *records, *retry, *skip),
        Act::Trim(n, to) => {
            let before = world
                .machine
                .get(partition(*n))
                .map(|state| (state.log_start, state.next_offset));
            let outcome = world.apply(PartitionCommand::TrimPrefix {
                partition: partition(*n),
                log_start: Offset::new(*to),
            });
            if let Some((start, next)) = before {
                assert_eq!(
                    outcome,
                    PartitionOutcome::LogStart(Offset::new(*to).min(next).max(start))
                );
            }
        }
        Act::Cut => {
            let free = matches!(
                world.machine.stage(),
                CutStage::None | CutStage::Published(_)
            );
            assert_eq!(
                world.apply(PartitionCommand::Cut) == PartitionOutcome::Done,
                free
            );
        }
        Act::Upload => {
            if let Some((cut, segments)) = world.segments() {
                assert_eq!(
                    world.apply(PartitionCommand::Uploaded { cut, segments }),
                    PartitionOutcome::Done
                );
            }
        }
        Act::UploadPart(count) => upload_part(world, *count),
        Act::StaleUpload => {
            let cut = LogIndex::new(u64::MAX);
            let outcome = world.apply(PartitionCommand::Uploaded {
                cut,
                segments: vec![],
            });
            assert!(
                matches!(outcome, PartitionOutcome::Refused(_)),
                "an upload of another cut changes nothing"
            );
        }
        Act::Publish => {
            if let CutStage::Uploaded(frozen) = world.machine.stage() {
                let cut = frozen.at.index;
                let sequence = world.machine.published_sequence() + 1;
                assert_eq!(
                    world.apply(PartitionCommand::Published { cut, sequence }),
                    PartitionOutcome::Done
                );
            }
        }
        Act::NewTerm => world.term += 1,
    }
}

/// Commits the first `count` segments of the upload under way, then the same again, as a deposed leader would.
fn upload_part(world: &mut World, count: usize) {
    let Some((cut, mut segments)) = world.segments() else {
        return;
    };
    let complete = segments.len() <= count;
    segments.truncate(count);
    let again = segments.clone();
    let outcome = world.apply(PartitionCommand::Uploaded { cut, segments });
    assert_eq!(outcome, PartitionOutcome::Done);
    assert_eq!(
        matches!(world.machine.stage(), CutStage::Uploaded(_)),
        complete,
        "the last part makes the cut uploaded, no other"
    );
    let before = replicated(&world.machine);
    let segments = again;
    let outcome = world.apply(PartitionCommand::Uploaded { cut, segments });
    assert!(matches!(outcome, PartitionOutcome::Refused(_)));
    assert_eq!(
        replicated(&world.machine),
        before,
        "no segment is there twice"
    );
}

fn replicated(machine: &Partitions) -> Vec<tidelog_tiering::manifest::PartitionManifest> {
    machine
        .iter()
        .map(super::state::PartitionState::to_manifest)
        .collect()
}

fn encode(machine: &Partitions) -> Option<(LogId, Bytes)> {
    image::encode(
        ClusterId::new(Uuid::from_u128(1)),
        PlacementGroupId::new(1),
        machine,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Proves I2, I3, I5, I6 under any order of commands, and that a machine restored from an image and fed the rest
    /// of the log equals the one that saw everything.
    #[test]
    fn machine_follows_the_model(acts in acts()) {
        let mut world = World::default();
        let mut model = Model::default();
        let mut images = Vec::new();
        for next in &acts {
            act(&mut world, &mut model, next);
            for (id, offset) in &model.next {
                prop_assert_eq!(world.machine.get(*id).unwrap().next_offset.get(), *offset);
            }
            if matches!(next, Act::Upload | Act::UploadPart(_)) && let Some(image) = encode(&world.machine) {
                images.push(image);
            }
        }
        for (at, bytes) in images {
            let (mut restored, _) = image::decode(&bytes).unwrap();
            for (id, dir, body) in world.log.iter().filter(|(id, _, _)| id.index > at.index) {
                restored.apply(*id, dir, *body, Bytes::new);
            }
            prop_assert_eq!(replicated(&restored), replicated(&world.machine));
            prop_assert_eq!(restored.published_sequence(), world.machine.published_sequence());
            for state in world.machine.iter() {
                prop_assert_eq!(&restored.get(state.id).unwrap().hot, &state.hot);
            }
        }
    }

    /// Proves that a command reads back as it was written, and that no truncation of it is read as a command.
    #[test]
    fn commands_survive_and_truncations_do_not(acts in acts()) {
        let mut world = World::default();
        let mut model = Model::default();
        for next in &acts {
            act(&mut world, &mut model, next);
        }
        for (_, dir, body) in world.log.iter().take(10) {
            let command = Stamped::decode(dir, *body).unwrap();
            prop_assert_eq!(command.encode(), dir.clone());
            for cut in 0..dir.len() {
                prop_assert!(Stamped::decode(&dir.slice(..cut), *body).is_err());
            }
        }
    }
}

/// Proves field report A09: a trim into data that a cut froze neither blocks its upload nor leaves a hole.
#[test]
fn trim_during_upload_does_not_block() {
    let mut world = World::default();
    world.apply(PartitionCommand::CreatePartition {
        partition: partition(0),
        topic_name: "t".into(),
        by: LogIndex::new(0),
        first_new_producer: ProducerId::new(0),
    });
    world.apply(PartitionCommand::Append(vec![
        batch(0, 10, 0, None),
        batch(0, 10, 100, None),
    ]));
    world.apply(PartitionCommand::Cut);
    world.apply(PartitionCommand::TrimPrefix {
        partition: partition(0),
        log_start: Offset::new(15),
    });
    let (cut, segments) = world.segments().unwrap();
    assert_eq!(
        world.apply(PartitionCommand::Uploaded { cut, segments }),
        PartitionOutcome::Done
    );
    let state = world.machine.get(partition(0)).unwrap();
    assert_eq!(
        (state.log_start, state.tiered_until),
        (Offset::new(15), Offset::new(20))
    );
    assert!(state.segment_at(Offset::new(15)).is_some());
}

/// Proves that a topic deleted between cut and upload does not block the upload of the others.
#[test]
fn deleted_topic_does_not_block_the_cut() {
    let mut world = World::default();
    for n in [0, 2] {
        world.apply(PartitionCommand::CreatePartition {
            partition: partition(n),
            topic_name: "t".into(),
            by: LogIndex::new(0),
            first_new_producer: ProducerId::new(0),
        });
        world.apply(PartitionCommand::Append(vec![batch(n, 10, 0, None)]));
    }
    world.apply(PartitionCommand::Cut);
    world.apply(delete(partition(0).topic, 0));
    let (cut, segments) = world.segments().unwrap();
    assert_eq!(
        segments.len(),
        2,
        "two segments of the partition that is left"
    );
    assert_eq!(
        world.apply(PartitionCommand::Uploaded { cut, segments }),
        PartitionOutcome::Done
    );
}

/// Proves that an upload with a hole, one of nothing and one past the cut are refused and change nothing, and that a part
/// counts without making the cut uploaded.
#[test]
fn incomplete_upload_is_refused() {
    let mut world = World::default();
    world.apply(PartitionCommand::CreatePartition {
        partition: partition(0),
        topic_name: "t".into(),
        by: LogIndex::new(0),
        first_new_producer: ProducerId::new(0),
    });
    world.apply(PartitionCommand::Append(vec![batch(0, 10, 0, None)]));
    world.apply(PartitionCommand::Cut);
    let (cut, _) = world.segments().unwrap();
    let (a, b) = (Offset::new(0), Offset::new(10));
    let holes = [
        vec![],
        vec![(partition(0), segment(a, Offset::new(11)))],
        vec![(partition(0), segment(Offset::new(1), b))],
        vec![
            (partition(0), segment(a, Offset::new(4))),
            (partition(0), segment(Offset::new(5), b)),
        ],
        vec![(partition(0), segment(a, b)), (partition(3), segment(a, b))],
    ];
    for segments in holes {
        let outcome = world.apply(PartitionCommand::Uploaded { cut, segments });
        assert!(matches!(outcome, PartitionOutcome::Refused(_)));
        assert_eq!(world.machine.get(partition(0)).unwrap().tiered_until, a);
    }
    for (from, until) in [(a, Offset::new(4)), (Offset::new(4), b)] {
        assert!(matches!(world.machine.stage(), CutStage::Cut(_)));
        let segments = vec![(partition(0), segment(from, until))];
        assert_eq!(
            world.apply(PartitionCommand::Uploaded { cut, segments }),
            PartitionOutcome::Done
        );
        let tiered_until = world.machine.get(partition(0)).unwrap().tiered_until;
        assert_eq!(tiered_until, until);
    }
    assert!(matches!(world.machine.stage(), CutStage::Uploaded(_)));
}

/// Proves that a partition that an image of metadata names which is older than the one that dropped a topic is not created, whoever says so
/// after a change of leaders and of snapshots, and that the others are.
#[test]
fn older_images_create_nothing() {
    let create = |by: u64| PartitionCommand::CreatePartition {
        partition: partition(0),
        topic_name: "t".into(),
        by: LogIndex::new(by),
        first_new_producer: ProducerId::new(0),
    };
    let mut world = World::default();
    assert_eq!(world.apply(create(5)), PartitionOutcome::Done);
    assert_eq!(
        world.apply(delete(partition(0).topic, 7)),
        PartitionOutcome::Done
    );
    world.apply(delete(partition(2).topic, 6));
    world.apply(PartitionCommand::Cut);
    let (cut, segments) = world.segments().unwrap();
    world.apply(PartitionCommand::Uploaded { cut, segments });
    let (_, image) = image::encode(
        ClusterId::default(),
        PlacementGroupId::new(1),
        &world.machine,
    )
    .unwrap();
    world.machine = image::decode(&image).unwrap().0;
    assert!(matches!(
        world.apply(create(6)),
        PartitionOutcome::Refused(_)
    ));
    assert!(world.machine.get(partition(0)).is_none());
    assert_eq!(world.apply(create(7)), PartitionOutcome::Done);
    assert!(world.machine.get(partition(0)).is_some());
}
