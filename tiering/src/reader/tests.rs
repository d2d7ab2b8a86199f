//! The reader against a model of what was pushed, and against stores that fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::format::ObjectBuilder;
use crate::key;
use crate::store::contract::Subject;
use crate::store::faulty::{Call, Fault, FaultyStore};
use crate::store::{StoreError, StoreLimits, StoreSettings, open_store};
use crate::testing::{batch, object_id, one_segment, partition};
use bytes::Bytes;
use std::time::Duration;
use tidelog_env::SystemRandom;
use tidelog_model::TimestampMs;
use tidelog_model::codec::Codec;

struct World {
    subject: Subject,
    tasks: Tasks,
    segments: Vec<SegmentEntry>,
    batches: Vec<Bytes>,
}

impl World {
    /// One segment per entry of `batches`, in objects of their own, of that many batches of about `2 * bytes`.
    async fn new(batches: &[i64], bytes: usize) -> Self {
        let open = open_store("memory:///", &StoreSettings::default()).unwrap();
        let subject = Subject::new(&open, SystemRandom::seeded(1));
        let mut world = Self {
            subject,
            tasks: Tasks::new(),
            segments: vec![],
            batches: vec![],
        };
        let mut base = 0;
        for (number, count) in (1..).zip(batches) {
            let (object, pushed) = one_segment(object_id(number), base, *count, bytes);
            world
                .subject
                .store
                .put_object(&key::data(&object.id), object.chunks)
                .await
                .unwrap();
            world.segments.push(object.segments[0].1.clone());
            world.batches.extend(pushed);
            base += count * 2;
        }
        world
    }

    fn reader(&self, config: ReaderConfig) -> RemoteReader {
        let limits = StoreLimits {
            tries_max: 1,
            ..*self.subject.store.limits()
        };
        RemoteReader::new(
            self.subject.store.with_limits(limits),
            config,
            self.tasks.clone(),
        )
    }

    fn faulty(&self) -> &FaultyStore {
        &self.subject.faulty
    }

    fn gets(&self) -> u64 {
        self.faulty().calls(Call::Get)
    }
}

/// Chunks of 64 KiB: a run each, so that small segments have many.
fn small() -> ReaderConfig {
    ReaderConfig {
        chunk_bytes: 64 * 1024,
        ..ReaderConfig::default()
    }
}

fn bytes_of(batches: Vec<RecordBatch>) -> Vec<Bytes> {
    batches.into_iter().map(RecordBatch::into_bytes).collect()
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(
        tokio::time::timeout(Duration::from_secs(10), wait)
            .await
            .is_ok(),
        "{what}"
    );
}

/// Proves that from any offset, with any size, the reader gives whole batches in order from the right one on, within
/// the size, and that reading on from there visits every batch once (A34 for the first one).
#[tokio::test]
async fn reads_equal_the_model() {
    let world = World::new(&[40, 1, 25], 5_000).await;
    for config in [
        small(),
        ReaderConfig {
            chunk_doublings_max: 0,
            prefetches_max: 0,
            ..small()
        },
    ] {
        let reader = world.reader(config);
        for bytes_max in [1, 20_000, 100_000, 1 << 30] {
            let mut at = 0;
            let mut read = Vec::new();
            while at < 132 {
                let first = world
                    .segments
                    .iter()
                    .position(|one| one.last_offset.get() >= at)
                    .unwrap();
                let list = &world.segments[first..];
                let got = reader
                    .read_list(list, Offset::new(at), bytes_max, true)
                    .await
                    .unwrap();
                assert!(!got.is_empty() && got[0].header().base_offset.get() == at);
                let length: usize = got.iter().map(|one| one.bytes().len()).sum();
                assert!(got.len() == 1 || length <= bytes_max);
                at = got.last().unwrap().header().next_offset().get();
                read.extend(bytes_of(got));
            }
            assert!(read == world.batches, "bytes_max {bytes_max}");
        }
        let inside = reader
            .read(&world.segments[0], Offset::new(7), 1 << 30, false)
            .await
            .unwrap();
        assert_eq!(
            inside[0].header().base_offset,
            Offset::new(6),
            "the batch that holds the offset"
        );
        assert!(
            reader
                .read(&world.segments[0], Offset::new(0), 100, false)
                .await
                .unwrap()
                .is_empty()
        );
    }
}

/// Proves that an offset of another segment is an error, not an empty answer.
#[tokio::test]
async fn offsets_outside_are_refused() {
    let world = World::new(&[3, 3], 100).await;
    let reader = world.reader(small());
    for wrong in [-1, 5, 12] {
        let got = reader
            .read(&world.segments[1], Offset::new(wrong), 1000, true)
            .await;
        assert_eq!(
            got,
            Err(ReadError::OutsideSegment {
                offset: Offset::new(wrong)
            })
        );
    }
}

/// Proves that what was read once is served from memory.
#[tokio::test]
async fn the_second_read_asks_nothing() {
    let world = World::new(&[20], 5_000).await;
    let reader = world.reader(ReaderConfig::default());
    for _ in 0..3 {
        let got = reader
            .read(&world.segments[0], Offset::ZERO, 1 << 30, true)
            .await
            .unwrap();
        assert!(bytes_of(got) == world.batches);
    }
    assert_eq!(world.gets(), 2, "the index block and one chunk");
}

/// Proves that a failed download is not remembered (A06): of the index block, and of the data.
#[tokio::test]
async fn failures_are_not_cached() {
    let world = World::new(&[20], 5_000).await;
    let reader = world.reader(ReaderConfig::default());
    let read = || reader.read(&world.segments[0], Offset::ZERO, 1 << 30, true);
    world.faulty().inject(
        Call::Get,
        [Fault::Unavailable, Fault::None, Fault::Unavailable],
    );
    assert!(matches!(
        read().await,
        Err(ReadError::Store(StoreError::Unavailable { .. }))
    ));
    assert!(matches!(
        read().await,
        Err(ReadError::Store(StoreError::Unavailable { .. }))
    ));
    assert!(bytes_of(read().await.unwrap()) == world.batches);
    assert_eq!(world.gets(), 4);
}

/// Proves that equal reads at the same time make one download, and that its failure reaches all of them.
#[tokio::test]
async fn equal_reads_are_merged() {
    let world = World::new(&[20], 5_000).await;
    let reader = world.reader(ReaderConfig::default());
    let slow = Fault::Slow(Duration::from_millis(30));
    let all = || {
        let reads = (0..20).map(|_| reader.read(&world.segments[0], Offset::ZERO, 1 << 30, true));
        futures::future::join_all(reads)
    };
    world.faulty().inject(Call::Get, [Fault::BlackHole]);
    assert!(all().await.iter().all(Result::is_err));
    assert_eq!(world.gets(), 1);
    let before = world.gets();
    world.faulty().inject(Call::Get, [slow]);
    assert!(
        all()
            .await
            .into_iter()
            .all(|read| bytes_of(read.unwrap()) == world.batches)
    );
    assert!(
        world.gets() - before <= 2,
        "{} downloads",
        world.gets() - before
    );
}

/// Proves that a download whose waiter has gone ends in the cache (A14), so that the next read finds it.
#[tokio::test]
async fn a_download_outlives_its_waiter() {
    let world = World::new(&[20], 5_000).await;
    let reader = world.reader(ReaderConfig::default());
    world.faulty().inject(
        Call::Get,
        [Fault::None, Fault::Slow(Duration::from_millis(100))],
    );
    let read = || reader.read(&world.segments[0], Offset::ZERO, 1 << 30, true);
    assert!(
        tokio::time::timeout(Duration::from_millis(30), read())
            .await
            .is_err()
    );
    until("the download ends", || {
        reader.stats().download_bytes > 100_000
    })
    .await;
    assert!(bytes_of(read().await.unwrap()) == world.batches);
    assert_eq!(world.gets(), 2, "nothing was loaded twice");
}

/// Proves that a reader that goes away while it waits for its turn asks the store for nothing (A14), and that one
/// that waits for the same bytes takes its place.
#[tokio::test]
async fn a_waiting_read_that_is_dropped_asks_nothing() {
    let world = World::new(&[200], 5_000).await;
    let reader = world.reader(ReaderConfig {
        requests_in_flight_max: 1,
        prefetches_max: 0,
        ..small()
    });
    let read = |at| reader.read(&world.segments[0], Offset::new(at), 1, true);
    read(0).await.unwrap();
    world
        .faulty()
        .inject(Call::Get, [Fault::Slow(Duration::from_millis(150))]);
    let before = world.gets();
    let (slow, gone, stays) = tokio::join!(
        read(100),
        tokio::time::timeout(Duration::from_millis(40), async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            read(200).await
        }),
        async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            read(300).await
        }
    );
    assert!(slow.is_ok() && gone.is_err() && stays.is_ok());
    assert_eq!(world.gets() - before, 2, "the dropped read was never sent");

    world
        .faulty()
        .inject(Call::Get, [Fault::Slow(Duration::from_millis(150))]);
    let (slow, gone, merged) = tokio::join!(
        read(50),
        tokio::time::timeout(Duration::from_millis(40), async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            read(360).await
        }),
        async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            read(360).await
        }
    );
    assert!(slow.is_ok() && gone.is_err());
    assert_eq!(merged.unwrap()[0].header().base_offset, Offset::new(360));
}

/// Proves that damage on the way is healed by reading once more, whatever kind it is, and is counted.
#[tokio::test]
async fn damage_on_the_way_is_read_again() {
    for damage in [
        Fault::FlipBit(0),
        Fault::FlipBit(3),
        Fault::FlipBit(70_001),
        Fault::WrongRange(1),
    ] {
        for index_first in [true, false] {
            let world = World::new(&[20], 5_000).await;
            let reader = world.reader(ReaderConfig::default());
            world.faulty().inject(
                Call::Get,
                if index_first {
                    vec![damage]
                } else {
                    vec![Fault::None, damage]
                },
            );
            let got = reader
                .read(&world.segments[0], Offset::ZERO, 1 << 30, true)
                .await
                .unwrap();
            assert!(bytes_of(got) == world.batches);
            assert_eq!((world.gets(), reader.stats().corrupt), (3, 1), "{damage:?}");
        }
    }
}

/// Proves that damage that stays is an error naming object and range, that nothing of it is served or kept (I8), and
/// that the read works once the store is whole again. Each byte of a batch counts, the offset and epoch too.
#[tokio::test]
async fn damage_that_stays_is_named_and_never_served() {
    let world = World::new(&[20], 5_000).await;
    let reader = world.reader(ReaderConfig::default());
    let segment = &world.segments[0];
    for at in [0, 7, 9, 13, 16, 18, 22, 60, 100, 150_000] {
        world.faulty().heal();
        reader.0.loader.index(segment).await.unwrap();
        world.faulty().inject_forever(Call::Get, Fault::FlipBit(at));
        match reader.read(segment, Offset::ZERO, 1 << 30, true).await {
            Err(ReadError::Corrupt { object, range, .. }) => {
                assert_eq!(
                    (object, range),
                    (key::data(&segment.object), 0..segment.length)
                );
            }
            other => panic!("byte {at}: {other:?}"),
        }
    }
    world.faulty().heal();
    assert!(
        bytes_of(
            reader
                .read(segment, Offset::ZERO, 1 << 30, true)
                .await
                .unwrap()
        ) == world.batches
    );
}

/// Proves that an entry that does not fit its object is an error: another segment's index, a length past the end, an
/// index too long to be one.
#[tokio::test]
async fn entries_that_lie_are_refused() {
    let world = World::new(&[20, 20], 5_000).await;
    let reader = world.reader(ReaderConfig::default());
    let honest = &world.segments[0];
    let other = SegmentEntry {
        object: world.segments[1].object,
        ..honest.clone()
    };
    let longer = SegmentEntry {
        length: honest.length + 1,
        ..honest.clone()
    };
    let past = SegmentEntry {
        index_position: tidelog_model::BytePosition::new(1 << 40),
        ..honest.clone()
    };
    let huge = SegmentEntry {
        index_length: u32::MAX,
        ..honest.clone()
    };
    for wrong in [other, longer, past, huge] {
        let got = reader.read(&wrong, wrong.base_offset, 1000, true).await;
        assert!(matches!(got, Err(ReadError::Corrupt { .. })), "{got:?}");
    }
    let missing = SegmentEntry {
        object: object_id(99),
        ..honest.clone()
    };
    let got = reader.read(&missing, Offset::ZERO, 1000, true).await;
    assert!(
        matches!(got, Err(ReadError::Store(StoreError::NotFound { .. }))),
        "{got:?}"
    );
}

/// Proves that an error in a later segment ends the answer with what came before, and the next read meets it.
#[tokio::test]
async fn an_error_behind_the_first_segment_cuts_the_answer() {
    let world = World::new(&[5, 5], 1_000).await;
    let reader = world.reader(ReaderConfig {
        prefetches_max: 0,
        ..ReaderConfig::default()
    });
    world
        .faulty()
        .inject(Call::Get, [Fault::None, Fault::None, Fault::Unavailable]);
    let got = reader
        .read_list(&world.segments, Offset::ZERO, 1 << 30, true)
        .await
        .unwrap();
    assert!(bytes_of(got) == world.batches[..5]);
}

/// Proves that a sequential reader loads ever more at once and ahead of itself, so that it waits rarely, and that what
/// it reads ahead goes on into the next segment.
#[tokio::test]
async fn sequential_readers_load_more_and_ahead() {
    let world = World::new(&[400, 20], 5_000).await;
    let reader = world.reader(small());
    let mut at = 0;
    while at < 800 {
        let got = reader
            .read_list(&world.segments, Offset::new(at), 50_000, true)
            .await
            .unwrap();
        at = got.last().unwrap().header().next_offset().get();
        let ahead = reader.0.loader.clone();
        until("loading ahead ends", || ahead.is_idle()).await;
    }
    let stats = reader.stats();
    // 4 MB are 62 chunks of 64 KiB; doubling up to 8 of them it takes 1 + 1 + 1 + 7 or so, and two index blocks.
    assert!(stats.downloads <= 20, "{stats:?}");
    assert!(stats.misses <= 4, "{stats:?}");
    let before = world.gets();
    let got = reader
        .read(&world.segments[1], Offset::new(800), 50_000, true)
        .await
        .unwrap();
    assert_eq!(got[0].header().base_offset, Offset::new(800));
    assert_eq!(world.gets(), before, "the next segment was there already");
}

/// Proves that no more downloads are in flight than allowed, in number and in bytes, and that more waiting reads than
/// allowed are turned away.
#[tokio::test]
async fn budgets_hold() {
    let world = World::new(&[200], 5_000).await;
    let slow = Fault::Slow(Duration::from_millis(60));
    for config in [
        ReaderConfig {
            requests_in_flight_max: 2,
            prefetches_max: 0,
            ..small()
        },
        ReaderConfig {
            bytes_in_flight_max: 160 * 1024,
            prefetches_max: 0,
            ..small()
        },
    ] {
        let reader = world.reader(config);
        reader
            .read(&world.segments[0], Offset::ZERO, 1, true)
            .await
            .unwrap();
        world.faulty().inject_forever(Call::Get, slow);
        let before = world.gets();
        let reads = (1..10)
            .map(|number| reader.read(&world.segments[0], Offset::new(number * 40), 1, true));
        let all = futures::future::join_all(reads);
        let watch = async {
            tokio::time::sleep(Duration::from_millis(40)).await;
            world.gets() - before
        };
        let (all, started) = tokio::join!(all, watch);
        assert!(all.iter().all(Result::is_ok));
        assert_eq!(started, 2, "{config:?}");
        world.faulty().heal();
    }
    let reader = world.reader(ReaderConfig {
        waiting_max: 1,
        ..small()
    });
    world.faulty().inject_forever(Call::Get, slow);
    let read = |at| reader.read(&world.segments[0], Offset::new(at), 1, true);
    let (one, two) = tokio::join!(read(0), read(100));
    assert!(one.is_ok());
    assert_eq!(two, Err(ReadError::Overloaded));
}

/// Proves that the cache keeps its budget (I12) although more is read than fits.
#[tokio::test]
async fn memory_is_bounded() {
    let world = World::new(&[400], 5_000).await;
    let config = ReaderConfig {
        memory_bytes: 400_000,
        prefetches_max: 0,
        ..small()
    };
    let reader = world.reader(config);
    let got = reader
        .read(&world.segments[0], Offset::ZERO, 1 << 30, true)
        .await
        .unwrap();
    assert!(bytes_of(got) == world.batches);
    reader.0.loader.settle().await;
    let held = reader.stats().memory_bytes;
    assert!(held > 0 && held <= config.memory_bytes, "{held}");
}

/// Proves that reads end when the node stops.
#[tokio::test]
async fn reads_end_with_the_node() {
    let world = World::new(&[20], 5_000).await;
    let reader = world.reader(ReaderConfig::default());
    world.faulty().inject(Call::Get, [Fault::BlackHole]);
    let stop = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        world.tasks.stop().await;
    };
    let (read, ()) = tokio::join!(
        reader.read(&world.segments[0], Offset::ZERO, 1000, true),
        stop
    );
    assert_eq!(read, Err(ReadError::Stopped));
}

/// Proves that for every timestamp, and from every log start, the first record at or after it is found, and the largest
/// timestamp: inside batches, compressed or not, with timestamps out of order (trap 8, A10, A12).
#[tokio::test]
async fn timestamps_equal_the_model() {
    let world = World::new(&[], 0).await;
    let mut builder = ObjectBuilder::new(object_id(1));
    builder.begin_segment(partition(0)).unwrap();
    let filler = vec![7u8; 9_000];
    let mut records = Vec::new();
    for number in 0..30i64 {
        // The largest of all is the first record of a batch in the middle: from there on, another is the largest.
        let first = if number == 13 { 300 } else { number * 10 };
        let stamps = [first, number * 10 - 25, number * 10 + 3, number * 10 + 3];
        let base = number * 4;
        let made: Vec<_> = stamps
            .iter()
            .map(|stamp| (*stamp, filler.as_slice()))
            .collect();
        let codec = [
            Codec::None,
            Codec::Zstd,
            Codec::Lz4,
            Codec::Gzip,
            Codec::Snappy,
        ][usize::try_from(number % 5).unwrap()];
        builder
            .push_batch(batch(codec, base, 1, &made), TimestampMs::new(0))
            .unwrap();
        records.extend((base..).zip(stamps));
    }
    let object = builder.finish().unwrap();
    let segment = object.segments[0].1.clone();
    world
        .subject
        .store
        .put_object(&key::data(&object.id), object.chunks)
        .await
        .unwrap();
    let reader = world.reader(small());
    for from in 0..=120 {
        let expected = records
            .iter()
            .filter(|(offset, _)| *offset >= from)
            .map(|(_, stamp)| TimestampMs::new(*stamp))
            .max();
        let found = reader
            .max_timestamp_from(&segment, Offset::new(from))
            .await
            .unwrap();
        assert_eq!(found, expected, "from {from}");
    }
    for from in [0, 1, 2, 3, 50, 119, 120] {
        for at in -30..310 {
            let expected = records
                .iter()
                .find(|(offset, stamp)| *offset >= from && *stamp >= at);
            let expected =
                expected.map(|(offset, stamp)| (Offset::new(*offset), TimestampMs::new(*stamp)));
            let found = reader
                .find_timestamp_from(&segment, TimestampMs::new(at), Offset::new(from))
                .await
                .unwrap();
            assert_eq!(found, expected, "at {at} from {from}");
        }
    }
}

/// Proves that a timestamp beyond the segment's newest asks the store for nothing (A11).
#[tokio::test]
async fn timestamps_beyond_the_end_cost_nothing() {
    let world = World::new(&[20], 5_000).await;
    let reader = world.reader(ReaderConfig::default());
    let at = TimestampMs::new(world.segments[0].max_timestamp.get() + 1);
    assert_eq!(
        reader.find_timestamp(&world.segments[0], at).await.unwrap(),
        None
    );
    assert_eq!(world.gets(), 0);
}

/// Proves that an object tells its segments without a manifest, and that damage of footer or directory is named.
#[tokio::test]
async fn directories_are_read_without_a_manifest() {
    let world = World::new(&[20], 5_000).await;
    let limits = StoreLimits {
        tries_max: 1,
        ..*world.subject.store.limits()
    };
    let store = world.subject.store.with_limits(limits);
    let read = || read_directory(&store, object_id(1));
    assert_eq!(
        read().await.unwrap(),
        [(partition(0), world.segments[0].clone())]
    );
    for faults in [
        vec![Fault::FlipBit(5)],
        vec![Fault::None, Fault::FlipBit(5)],
    ] {
        world.faulty().inject(Call::Get, faults);
        assert!(matches!(read().await, Err(ReadError::Corrupt { .. })));
    }
    let missing = read_directory(&store, object_id(2)).await;
    assert!(matches!(
        missing,
        Err(ReadError::Store(StoreError::NotFound { .. }))
    ));
}
