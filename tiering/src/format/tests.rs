//! Identity, golden file, and refusal of every damage of the segment object.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::codec::wide;
use super::*;
use crate::manifest::{EpochStart, SegmentEntry};
use crate::testing::{batch, golden, joined, object_id, one_segment, partition};
use bytes::Bytes;
use proptest::prelude::*;
use tidelog_model::batch::split_batches;
use tidelog_model::codec::Codec;
use tidelog_model::{LeaderEpoch, Offset, PartitionId, TimestampMs};

/// Reads a whole object the way a reader without a manifest does, with every check; the batches of each segment.
fn open(bytes: &Bytes) -> Result<Vec<(PartitionId, SegmentEntry, Vec<Bytes>)>, String> {
    let text = |error: FormatError| error.to_string();
    let tail = bytes.len().checked_sub(FOOTER_LENGTH).ok_or("short")?;
    let footer = Footer::decode(&bytes[tail..]).map_err(text)?;
    if footer.object_length != wide(bytes.len()) || footer.object != object_id(1) {
        return Err("footer of another object".to_owned());
    }
    let directory = usize::try_from(footer.directory_position.get()).unwrap()..tail;
    codec::check_crc("directory", footer.directory_crc, &bytes[directory.clone()]).map_err(text)?;
    let segments = decode_directory(footer.object, &bytes[directory]).map_err(text)?;
    let mut read = Vec::new();
    for (partition, segment) in segments {
        let at = usize::try_from(segment.index_position.get()).unwrap();
        let index = bytes
            .get(at..at + usize::try_from(segment.index_length).unwrap())
            .ok_or("index")?;
        let index = IndexBlock::decode(index).map_err(text)?;
        let from = usize::try_from(segment.position.get()).unwrap();
        let data = bytes.slice(from..from + usize::try_from(segment.length).unwrap());
        let runs = 0..index.entries.len();
        let batches =
            crate::reader::check::check_runs(&data, &index, runs, segment.last_offset.plus(1))?;
        if index.partition != partition || crc32c::crc32c(&data) != segment.crc {
            return Err("segment".to_owned());
        }
        read.push((
            partition,
            segment,
            batches
                .into_iter()
                .map(|batch| batch.into_bytes())
                .collect(),
        ));
    }
    Ok(read)
}

fn sample() -> (BuiltObject, Vec<(PartitionId, Vec<Bytes>)>) {
    let mut builder = ObjectBuilder::new(object_id(1));
    let first = vec![
        batch(Codec::None, 100, 4, &[(5000, b"a"), (4000, b"b")]),
        batch(Codec::None, 102, 4, &[(4500, b"c")]),
        batch(
            Codec::None,
            103,
            6,
            &[(7000, b"d"), (7001, b"e"), (6999, b"f")],
        ),
    ];
    let second = vec![batch(Codec::None, 0, 1, &[(1, b"")])];
    builder.begin_segment(partition(0)).unwrap();
    for (stamp, one) in (10..).zip(&first) {
        builder
            .push_batch(one.clone(), TimestampMs::new(stamp))
            .unwrap();
    }
    builder.begin_segment(partition(1)).unwrap();
    builder
        .push_batch(second[0].clone(), TimestampMs::new(20))
        .unwrap();
    (
        builder.finish().unwrap(),
        vec![(partition(0), first), (partition(1), second)],
    )
}

/// Proves that an object says of its segments what was pushed, and gives the batches back.
#[test]
fn an_object_reads_back_as_built() {
    let (object, pushed) = sample();
    let bytes = joined(&object);
    assert_eq!(object.length, wide(bytes.len()));
    let read = open(&bytes).unwrap();
    let entries: Vec<_> = read
        .iter()
        .map(|(partition, segment, _)| (*partition, segment.clone()))
        .collect();
    assert_eq!(entries, object.segments);
    let batches: Vec<_> = read
        .into_iter()
        .map(|(partition, _, batches)| (partition, batches))
        .collect();
    assert_eq!(batches, pushed);
    let (_, first) = &object.segments[0];
    assert_eq!(
        (first.base_offset, first.last_offset, first.record_count),
        (Offset::new(100), Offset::new(105), 6)
    );
    assert_eq!(
        (first.first_timestamp, first.max_timestamp),
        (TimestampMs::new(5000), TimestampMs::new(7001))
    );
    assert_eq!(
        (first.first_stamp, first.last_stamp),
        (TimestampMs::new(10), TimestampMs::new(12))
    );
    let epoch = |epoch, start| EpochStart {
        epoch: LeaderEpoch::new(epoch),
        start: Offset::new(start),
    };
    assert_eq!(first.epochs, [epoch(4, 100), epoch(6, 103)]);
}

/// Proves that version 1 is written as it always was.
#[test]
fn golden_object() {
    golden("segment-object-v1.seg", &joined(&sample().0));
}

/// Proves that no object that was cut short or has one bit turned over is read.
#[test]
fn every_truncation_and_bit_flip_is_refused() {
    let bytes = joined(&sample().0);
    for length in 0..bytes.len() {
        assert!(open(&bytes.slice(..length)).is_err(), "cut to {length}");
    }
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 1 << bit;
            assert!(
                open(&Bytes::from(damaged)).is_err(),
                "bit {bit} of byte {at}"
            );
        }
    }
}

/// Proves that each structure by itself refuses truncation and trailing bytes, and hostile counts without allocating.
#[test]
fn structures_are_read_to_their_end() {
    let (object, _) = sample();
    let directory = encode_directory(&object.segments);
    let index = IndexBlock::decode(&object.chunks[4]).unwrap();
    assert_eq!(index.encode(), object.chunks[4]);
    for length in 0..directory.len() {
        assert!(decode_directory(object.id, &directory[..length]).is_err());
    }
    for length in 0..object.chunks[4].len() {
        assert!(IndexBlock::decode(&object.chunks[4][..length]).is_err());
    }
    assert!(decode_directory(object.id, &[&directory[..], &[0]].concat()).is_err());
    let mut hostile = directory;
    hostile[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(
        decode_directory(object.id, &hostile),
        Err(FormatError::Truncated { .. })
    ));
    let mut newer = object.chunks[4].to_vec();
    newer[4] = 2;
    assert!(matches!(
        IndexBlock::decode(&newer),
        Err(FormatError::Version { version: 2, .. })
    ));
}

/// Proves that the builder refuses whatever would make a segment a reader cannot trust, and stays as it was.
#[test]
fn the_builder_refuses_holes_damage_and_disorder() {
    let good = batch(Codec::None, 10, 2, &[(1, b"x"), (2, b"y")]);
    let mut builder = ObjectBuilder::new(object_id(1));
    let stamp = TimestampMs::new(1);
    assert_eq!(
        builder.push_batch(good.clone(), stamp),
        Err(BuildError::NoSegment)
    );
    assert!(matches!(
        ObjectBuilder::new(object_id(1)).finish(),
        Err(BuildError::Empty)
    ));
    builder.begin_segment(partition(0)).unwrap();
    assert_eq!(builder.begin_segment(partition(1)), Err(BuildError::Empty));
    builder.push_batch(good.clone(), stamp).unwrap();
    for base in [10, 11, 13] {
        let hole = builder.push_batch(batch(Codec::None, base, 2, &[(1, b"x")]), stamp);
        assert!(matches!(hole, Err(BuildError::Hole { .. })), "{base}");
    }
    let fell = builder.push_batch(batch(Codec::None, 12, 1, &[(1, b"x")]), stamp);
    assert!(matches!(fell, Err(BuildError::EpochFell { .. })));
    let next = batch(Codec::None, 12, 2, &[(1, b"x")]);
    let mut damaged = next.to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    for wrong in [
        Bytes::from(damaged),
        next.slice(..next.len() - 1),
        Bytes::from([&next[..], &[0]].concat()),
    ] {
        assert!(matches!(
            builder.push_batch(wrong, stamp),
            Err(BuildError::Batch { .. })
        ));
    }
    assert_eq!(
        builder.begin_segment(partition(0)),
        Err(BuildError::SecondSegment(partition(0)))
    );
    builder.push_batch(next.clone(), stamp).unwrap();
    builder.begin_segment(partition(1)).unwrap();
    assert_eq!(
        builder.begin_segment(partition(0)),
        Err(BuildError::SecondSegment(partition(0)))
    );
    builder.push_batch(good.clone(), stamp).unwrap();
    let read = open(&joined(&builder.finish().unwrap())).unwrap();
    assert_eq!(read[0].2, [good.clone(), next]);
    assert_eq!(read[1].2, [good]);
}

/// Proves that index entries come every 64 KiB, at batch borders, and that a huge batch is a run of its own.
#[test]
fn runs_are_64_kib_of_whole_batches() {
    let (object, batches) = one_segment(object_id(1), 0, 100, 5_000);
    let index = IndexBlock::decode(&object.chunks[batches.len()]).unwrap();
    let bytes = joined(&object);
    let ends = index
        .entries
        .iter()
        .skip(1)
        .map(|run| run.position.get())
        .chain([index.data_length]);
    for (run, end) in index.entries.iter().zip(ends) {
        let last = end == index.data_length;
        let length = end - run.position.get();
        assert!(
            (last || length >= RUN_BYTES) && length < RUN_BYTES + 11_000,
            "{length}"
        );
        let range = usize::try_from(run.position.get()).unwrap()..usize::try_from(end).unwrap();
        let first = split_batches(bytes.slice(range)).next().unwrap().unwrap();
        assert_eq!(first.header().base_offset, run.offset);
    }
    assert!(index.entries.len() > 10);
    let (huge, _) = one_segment(object_id(1), 0, 3, 200_000);
    assert_eq!(
        IndexBlock::decode(&huge.chunks[3]).unwrap().entries.len(),
        3
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Proves that any mix of segments and batch sizes reads back as pushed.
    #[test]
    fn any_object_reads_back(
        segments in prop::collection::vec((0i64..1 << 40, prop::collection::vec((1usize..4, 0usize..30_000), 1..12)), 1..5)
    ) {
        let mut builder = ObjectBuilder::new(object_id(1));
        let mut pushed = Vec::new();
        for (number, (base, batches)) in (0..).zip(&segments) {
            builder.begin_segment(partition(number)).unwrap();
            let mut at = *base;
            let mut made = Vec::new();
            for (records, bytes) in batches {
                let value = vec![1u8; *bytes];
                let one = batch(Codec::None, at, number, &vec![(at, value.as_slice()); *records]);
                builder.push_batch(one.clone(), TimestampMs::new(0)).unwrap();
                made.push(one);
                at += i64::try_from(*records).unwrap();
            }
            pushed.push(made);
        }
        let object = builder.finish().unwrap();
        let read = open(&joined(&object)).unwrap();
        prop_assert_eq!(read.into_iter().map(|one| one.2).collect::<Vec<_>>(), pushed);
    }

    /// Proves that no bytes make a decoder panic.
    #[test]
    fn noise_is_refused(noise in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(Footer::decode(&noise).is_err());
        prop_assert!(IndexBlock::decode(&noise).is_err());
        prop_assert!(decode_directory(object_id(1), &noise).is_err());
    }
}
