//! Hand-made stores: a good one, and bad ones of each kind.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

use super::read::crc;
use super::*;
use crate::history::{Event, History, Offset, Partition, Producer, Sequence};
use std::collections::BTreeMap;

const ROOT: &str = "v1/c";
const TOPIC: [u8; 16] = [7; 16];

type Objects = BTreeMap<String, Vec<u8>>;

/// A batch of one record per value.
fn batch(base: i64, epoch: i32, values: &[&str]) -> Vec<u8> {
    let mut records = Vec::new();
    for (delta, value) in values.iter().enumerate() {
        let mut record = vec![0, 0, 2 * delta as u8, 1, 2 * value.len() as u8];
        record.extend(value.as_bytes());
        record.push(0);
        records.push(2 * record.len() as u8);
        records.extend(record);
    }
    let count = values.len() as i32;
    let mut tail = 0_i16.to_be_bytes().to_vec();
    tail.extend((count - 1).to_be_bytes());
    tail.extend([0; 8 + 8 + 8 + 2 + 4]);
    tail.extend(count.to_be_bytes());
    tail.extend(records);
    let mut bytes = base.to_be_bytes().to_vec();
    bytes.extend((tail.len() as i32 + 9).to_be_bytes());
    bytes.extend(epoch.to_be_bytes());
    bytes.push(2);
    bytes.extend(crc(&tail).to_be_bytes());
    bytes.extend(tail);
    bytes
}

/// A segment that is an object's first, with its object.
fn segment(id: u8, base: i64, epoch: i32, values: &[&str]) -> (Segment, Vec<u8>) {
    let data = batch(base, epoch, values);
    let segment = Segment {
        group: 1,
        term: u64::from(epoch.unsigned_abs()),
        object: [id; 16],
        length: data.len(),
        index_position: data.len(),
        index_length: 4,
        base,
        last: base + values.len() as i64 - 1,
        records: values.len() as u64,
        crc: crc(&data),
        epochs: vec![(epoch, base)],
        position: 0,
    };
    (segment, [data, b"TLIX".to_vec()].concat())
}

fn epochs(out: &mut Vec<u8>, epochs: &[(i32, i64)]) {
    out.extend((epochs.len() as u32).to_le_bytes());
    for (epoch, offset) in epochs {
        out.extend(epoch.to_le_bytes());
        out.extend(offset.to_le_bytes());
    }
}

/// The bytes of a manifest of group 1, with a producer in each partition.
fn manifest(index: u64, partitions: &[PartitionState]) -> Vec<u8> {
    let mut identity = vec![9; 16];
    identity.extend(1_u32.to_le_bytes());
    identity.extend(1_u64.to_le_bytes());
    identity.extend(index.to_le_bytes());
    identity.extend([0; 16]);
    let mut body = (partitions.len() as u32).to_le_bytes().to_vec();
    for one in partitions {
        body.extend(one.topic);
        body.extend(one.partition.to_le_bytes());
        body.extend((one.name.len() as u16).to_le_bytes());
        body.extend(one.name.as_bytes());
        for offset in [one.log_start, one.tiered_until, one.next_offset, 0] {
            body.extend(offset.to_le_bytes());
        }
        epochs(&mut body, &one.epochs);
        body.extend((one.segments.len() as u32).to_le_bytes());
        for segment in &one.segments {
            body.extend(segment.group.to_le_bytes());
            body.extend(segment.term.to_le_bytes());
            body.extend(segment.object);
            for number in [segment.position, segment.length, segment.index_position] {
                body.extend((number as u64).to_le_bytes());
            }
            body.extend((segment.index_length as u32).to_le_bytes());
            body.extend(segment.base.to_le_bytes());
            body.extend(segment.last.to_le_bytes());
            body.extend(segment.records.to_le_bytes());
            body.extend([0; 32]);
            body.extend(segment.crc.to_le_bytes());
            epochs(&mut body, &segment.epochs);
        }
        body.extend(1_u32.to_le_bytes());
        body.extend([0; 18]);
        body.push(1);
        body.extend([0; 24]);
    }
    let mut bytes = b"TLGROUPM".to_vec();
    bytes.extend(2_u16.to_le_bytes());
    bytes.extend(3_u16.to_le_bytes());
    for (kind, body) in [(1_u32, identity), (2, body), (3, b"groups".to_vec())] {
        bytes.extend(kind.to_le_bytes());
        bytes.extend((body.len() as u64).to_le_bytes());
        bytes.extend(crc(&body).to_le_bytes());
        bytes.extend(body);
    }
    bytes
}

fn key(sequence: u64) -> String {
    format!("{ROOT}/snap/1/{sequence:020}.snap")
}

fn state(segments: &[Segment]) -> PartitionState {
    let end = segments.last().map_or(0, |one| one.last + 1);
    PartitionState {
        topic: TOPIC,
        name: "load".to_owned(),
        partition: 0,
        log_start: 0,
        tiered_until: end,
        next_offset: end,
        epochs: vec![(1, 0)],
        segments: segments.to_vec(),
    }
}

/// A world of two objects, and two manifests, of which the second names both.
struct World {
    segments: Vec<Segment>,
    objects: Objects,
}

fn world() -> World {
    let (one, first) = segment(1, 0, 1, &["a", "b"]);
    let (two, second) = segment(2, 2, 3, &["c"]);
    let objects = Objects::from([
        (one.key(ROOT), first),
        (two.key(ROOT), second),
        (key(1), manifest(5, &[state(std::slice::from_ref(&one))])),
        (key(2), manifest(9, &[state(&[one.clone(), two.clone()])])),
        (format!("{ROOT}/store.json"), b"{}".to_vec()),
    ]);
    World {
        segments: vec![one, two],
        objects,
    }
}

/// Acknowledged values from offset 0 on.
fn history(values: &[&str]) -> History {
    let mut history = Vec::new();
    for (at, value) in values.iter().enumerate() {
        let (producer, sequence) = (Producer(0), Sequence(at as u64));
        history.push(Event::Sent {
            producer,
            sequence,
            partition: Partition(0),
            value: value.as_bytes().to_vec(),
        });
        history.push(Event::Acknowledged {
            producer,
            sequence,
            offset: Some(Offset(at as i64)),
        });
    }
    history.into_iter().collect()
}

fn judged(objects: &Objects, history: &History, flushed: bool) -> Result<InOrder, String> {
    let asked = Asked {
        history,
        topic: "load",
        flushed,
    };
    judge(objects, asked).map_err(|wrong| wrong.join("\n"))
}

/// What is wrong with the world once its second manifest says this of the partition.
fn wrong(change: impl FnOnce(&mut PartitionState)) -> String {
    let mut world = world();
    let mut partition = state(&world.segments);
    change(&mut partition);
    world.objects.insert(key(2), manifest(9, &[partition]));
    judged(&world.objects, &history(&["a", "b", "c"]), true).unwrap_err()
}

// Proves: a store in order passes, and is counted; an object that nobody names is counted too.
#[test]
fn a_good_store_passes() {
    let mut world = world();
    let orphan = segment(4, 2, 2, &["c"]).0.key(ROOT);
    world.objects.insert(orphan, Vec::new());
    let in_order = InOrder {
        manifests: 2,
        segments: 2,
        acknowledged: 3,
        unreferenced: 1,
    };
    let told = history(&["a", "b", "c"]);
    assert_eq!(judged(&world.objects, &told, true), Ok(in_order));
}

// Proves: the reader reads what was released, and refuses each part of it.
#[test]
fn golden_files_are_read() {
    let golden = include_bytes!("../../../../tiering/testdata/group-manifest-v2.snap");
    let two = Manifest::read(golden).unwrap();
    let segments = two.partitions.iter().flat_map(|one| &one.segments);
    assert!(segments.count() > 0);
    let one = include_bytes!("../../../../tiering/testdata/group-manifest-v1.snap");
    let one = Manifest::read(one).unwrap();
    assert_eq!(one.partitions.len(), two.partitions.len());
    for cut in 0..golden.len() {
        assert!(Manifest::read(&golden[..cut]).is_err(), "{cut}");
    }
}

// Proves: an object that is missing, cut, changed, or put together from other bytes than were named, is found.
#[test]
fn objects_that_are_not_what_was_named() {
    let told = history(&["a", "b", "c"]);
    let name = world().segments[1].key(ROOT);
    let changed = |change: fn(&mut Objects, &str)| {
        let mut world = world();
        change(&mut world.objects, &name);
        judged(&world.objects, &told, true).unwrap_err()
    };
    let gone = changed(|objects, name| {
        objects.remove(name);
    });
    assert!(
        gone.contains("is not there") && gone.contains("I9"),
        "{gone}"
    );
    let cut = changed(|objects, name| {
        objects.get_mut(name).unwrap().pop();
    });
    assert!(cut.contains("shorter"), "{cut}");
    let turned = changed(|objects, name| objects.get_mut(name).unwrap()[62] ^= 1);
    assert!(turned.contains("other bytes than were named"), "{turned}");
}

// Proves: an offset with another value than was acknowledged, and a value that lies one offset late, are found.
#[test]
fn other_values_than_were_told() {
    let world = world();
    let other = judged(&world.objects, &history(&["a", "x", "c"]), true).unwrap_err();
    assert!(other.contains("offset 1 holds \"b\" (I2)"), "{other}");
    let mut world = self::world();
    let (mut late, bytes) = segment(2, 3, 3, &["c"]);
    world.objects.insert(late.key(ROOT), bytes);
    (late.base, late.last) = (2, 2);
    let partition = state(&[world.segments[0].clone(), late]);
    world.objects.insert(key(2), manifest(9, &[partition]));
    let late = judged(&world.objects, &history(&["a", "b", "c"]), true).unwrap_err();
    assert!(late.contains("offset 3 where 2 is next"), "{late}");
}

// Proves: what was acknowledged and is not in the store is found once everything was flushed, and not before; so is a partition that is nowhere.
#[test]
fn what_was_flushed_is_there() {
    let world = world();
    let told = history(&["a", "b", "c", "d"]);
    let lag = judged(&world.objects, &told, true).unwrap_err();
    assert!(
        lag.contains("3 was acknowledged") && lag.contains("I11"),
        "{lag}"
    );
    assert!(judged(&world.objects, &told, false).is_ok());
    let none = judged(&Objects::new(), &told, true).unwrap_err();
    assert!(none.contains("no manifest names partition 0"), "{none}");
}

// Proves: holes, ranges that do not reach, terms that go back, and bounds out of order are found in one manifest.
#[test]
fn a_manifest_with_a_hole() {
    let hole = wrong(|one| {
        one.segments[1].base = 3;
        one.segments[1].last = 3;
    });
    assert!(hole.contains("3 to 3 where Some(2) is next (I6)"), "{hole}");
    let short = wrong(|one| {
        one.tiered_until = 4;
        one.next_offset = 4;
    });
    assert!(short.contains("for 0 to 4 (I6)"), "{short}");
    let lost_first = wrong(|one| {
        one.segments.remove(0);
    });
    assert!(
        lost_first.contains("is another object than before (I2)"),
        "{lost_first}"
    );
    let back = wrong(|one| one.segments[0].term = 8);
    assert!(
        back.contains("terms of objects go back: [8, 3] (I4)"),
        "{back}"
    );
    let order = wrong(|one| one.next_offset = 2);
    assert!(order.contains("tiered until 3, next 2"), "{order}");
}

// Proves: a chain that goes back, lacks a number, or names another object for the same offsets is found.
#[test]
fn a_chain_that_goes_back() {
    let told = history(&["a", "b"]);
    let mut world = world();
    let first = world.objects[&key(1)].clone();
    world.objects.insert(key(3), first);
    let back = judged(&world.objects, &told, true).unwrap_err();
    assert!(back.contains("(0, 2, 2) after (0, 3, 3) (I5)"), "{back}");
    assert!(back.contains("index 5 come after 1 and 9"), "{back}");

    let mut world = self::world();
    let second = world.objects.remove(&key(2)).unwrap();
    world.objects.insert(key(3), second);
    let lacks = judged(&world.objects, &told, true).unwrap_err();
    assert!(lacks.contains("comes after number 1"), "{lacks}");
    world.objects.remove(&key(1));
    let lacks = judged(&world.objects, &told, true).unwrap_err();
    assert!(lacks.contains("is the first of its chain"), "{lacks}");

    let mut world = self::world();
    let (other, bytes) = segment(5, 0, 1, &["a", "b"]);
    world.objects.insert(other.key(ROOT), bytes);
    let partition = state(&[other, world.segments[1].clone()]);
    world.objects.insert(key(2), manifest(9, &[partition]));
    let other = judged(&world.objects, &told, true).unwrap_err();
    assert!(
        other.contains("0 to 1 is another object than before"),
        "{other}"
    );
}

// Proves: keys of manifests are known by their form, and the key of an object is built as the page says.
#[test]
fn keys_are_as_the_page_says() {
    let key = "p/v1/c/snap/3/00000000000000000012.snap";
    assert_eq!(manifest_key(key), Some((3, 12)));
    assert_eq!(root(key), "p/v1/c");
    for other in [
        "p/v1/c/meta/00000000000000000012.snap",
        "p/v1/c/snap/3/12.snap",
        "p/v1/c/snap/00000000000000000012.snap",
    ] {
        assert_eq!(manifest_key(other), None, "{other}");
    }
    let segment = Segment {
        group: 3,
        term: 0x1f,
        object: [0x12; 16],
        ..Segment::default()
    };
    assert_eq!(
        segment.key("p/v1/c"),
        "p/v1/c/data/3/000000000000001f/12121212-1212-1212-1212-121212121212.seg"
    );
}
