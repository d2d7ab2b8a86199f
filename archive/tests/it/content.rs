//! Rows out are records in: every field, every codec, whatever the timestamps, keys and headers.

use crate::bucket::{Bucket, Headers, Rec, Spec};
use crate::table::assert_exact;
use proptest::prelude::*;
use tidelog_model::codec::Codec;

fn bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..max)
}

fn headers() -> impl Strategy<Value = Headers> {
    let key = prop_oneof!["[a-zä]{0,6}".prop_map(String::into_bytes), bytes(5)];
    prop::collection::vec((key, prop::option::of(bytes(9))), 0..4)
}

fn timestamp() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => 1_700_000_000_000..1_700_400_000_000i64,
        1 => -100_000_000_000_000..400_000_000_000_000i64,
        1 => prop::sample::select(vec![0, -1, -62_135_596_800_001, 253_402_300_800_000, i64::MAX / 4, i64::MIN / 4]),
    ]
}

fn record() -> impl Strategy<Value = Rec> {
    (
        timestamp(),
        prop::option::of(bytes(12)),
        prop::option::of(bytes(300)),
        headers(),
    )
        .prop_map(|(timestamp, key, value, headers)| Rec {
            timestamp,
            key,
            value,
            headers,
        })
}

fn spec() -> impl Strategy<Value = Spec> {
    let producer = prop::option::of((
        0..i64::MAX,
        0..i16::MAX,
        prop_oneof![0..1000, i32::MAX - 3..i32::MAX],
    ));
    let append_time = prop::option::weighted(0.2, 0..2_000_000_000_000i64);
    let codec = prop::sample::select(Codec::ALL.to_vec());
    (
        codec,
        prop::collection::vec(record(), 1..12),
        producer,
        append_time,
        prop::bool::weighted(0.1),
    )
        .prop_map(|(codec, records, producer, append_time, control)| Spec {
            codec,
            records,
            producer,
            append_time,
            control,
        })
}

/// Per upload, per partition, the batches; then how small the archiver's steps are.
type Script = Vec<Vec<(i32, Vec<Spec>)>>;

fn script() -> impl Strategy<Value = Script> {
    let batches = prop::collection::vec(spec(), 1..5);
    let upload = prop::collection::btree_map(0..3i32, batches, 1..4)
        .prop_map(|map| map.into_iter().collect());
    prop::collection::vec(upload, 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    /// Proves that every record is one row with all its fields, whatever way the log is cut into segments, runs,
    /// commits, windows and files.
    #[test]
    fn rows_are_the_records(
        script in script(), runs in any::<u8>(), commit_bytes in 1..4000u64, read_bytes in 1..2000u64, days_max in 1..5usize,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut bucket = Bucket::in_memory();
            let topic = bucket.topic("t");
            let mut config = bucket.config();
            (config.commit_bytes, config.read_bytes, config.days_max) = (commit_bytes, read_bytes, days_max);
            config.file_bytes = 20_000;
            let archiver = bucket.archiver_on(&bucket.raw, config, 5);
            for (number, upload) in script.into_iter().enumerate() {
                bucket.epoch += i32::try_from(number % 2).unwrap();
                bucket.upload(&topic, upload).await;
                bucket.publish().await;
                if runs >> (number % 8) & 1 == 1 {
                    let report = archiver.run_once(None).await.unwrap();
                    assert!(report.errors.is_empty(), "{:?}", report.errors);
                }
            }
            let report = archiver.run_once(Some("t")).await.unwrap();
            assert!(report.errors.is_empty(), "{:?}", report.errors);
            assert_exact(&bucket, &topic, &report.tables[0]).await;
        });
    }
}

/// Proves that control batches make no rows, that their offsets are recorded as skipped, and that the mark passes them.
#[tokio::test]
async fn control_batches_leave_recorded_gaps() {
    let mut bucket = Bucket::in_memory();
    let topic = bucket.topic("t");
    let control = Spec {
        control: true,
        ..Spec::values(0, 0..1)
    };
    let specs = vec![
        Spec::values(0, 0..3),
        control.clone(),
        Spec::values(0, 3..5),
        control,
    ];
    bucket.append(&topic, 0, specs).await;
    let report = bucket.archiver().run_once(None).await.unwrap();
    let table = assert_exact(&bucket, &topic, &report.tables[0]).await;
    assert_eq!(
        table.rows.iter().map(|row| row.offset).collect::<Vec<_>>(),
        [0, 1, 2, 4, 5]
    );
    assert_eq!(report.tables[0].partitions[0].archived_until, 7);
    let added = tidelog_archive::Mark::history(&table.metadata).unwrap()[0][0];
    assert_eq!((added.rows, added.skipped, added.lost), (5, 2, 0));
}

/// Proves that offsets which retention took, also inside a batch, are recorded as lost and not taken for damage.
#[tokio::test]
async fn what_retention_took_is_recorded() {
    let mut bucket = Bucket::in_memory();
    let topic = bucket.topic("t");
    bucket.append(&topic, 0, vec![Spec::values(0, 0..4)]).await;
    bucket.append(&topic, 0, vec![Spec::values(0, 4..8)]).await;
    let partition = bucket.partition(&topic, 0);
    partition.segments.remove(0);
    partition.log_start = tidelog_model::Offset::new(6);
    bucket.publish().await;
    let archiver = bucket.archiver();
    let report = archiver.run_once(None).await.unwrap();
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    let table = crate::table::read(&bucket, &report.tables[0]).await;
    assert_eq!(
        table.rows.iter().map(|row| row.offset).collect::<Vec<_>>(),
        [6, 7]
    );
    let added = tidelog_archive::Mark::history(&table.metadata).unwrap()[0][0];
    assert_eq!(
        (added.from, added.until, added.rows, added.lost),
        (0, 8, 2, 6)
    );
}

/// Proves that many commits keep the metadata file small: old snapshots go, rows stay.
#[tokio::test]
async fn old_snapshots_are_dropped_and_no_row_with_them() {
    let mut bucket = Bucket::in_memory();
    let topic = bucket.topic("t");
    let mut config = bucket.config();
    config.snapshots_max = 3;
    let archiver = bucket.archiver_on(&bucket.raw, config, 4);
    for run in 0..7 {
        bucket
            .append(&topic, 0, vec![Spec::values(i64::from(run), run..run + 2)])
            .await;
        archiver.run_once(None).await.unwrap();
    }
    let report = archiver.run_once(None).await.unwrap();
    let table = assert_exact(&bucket, &topic, &report.tables[0]).await;
    assert_eq!(table.metadata.snapshots().len(), 3);
    assert_eq!(table.files.len(), 7);
    assert!(
        report.tables[0]
            .metadata_location
            .as_ref()
            .unwrap()
            .ends_with("/metadata/v7.metadata.json")
    );
}

/// Proves that small partitions share a file and that the days of one commit have one file each.
#[tokio::test]
async fn small_partitions_share_files() {
    let mut bucket = Bucket::in_memory();
    let topic = bucket.topic("t");
    let day = 86_400_000;
    for partition in 0..20 {
        bucket
            .upload(
                &topic,
                vec![(
                    partition,
                    vec![Spec::values(0, 0..5), Spec::values(day, 0..5)],
                )],
            )
            .await;
    }
    bucket.publish().await;
    let report = bucket.archiver().run_once(None).await.unwrap();
    let table = assert_exact(&bucket, &topic, &report.tables[0]).await;
    assert_eq!(
        table
            .files
            .iter()
            .map(|(_, rows)| *rows)
            .collect::<Vec<_>>(),
        [100, 100]
    );
}

/// Proves that a commit's budget is not spent on passing over what is archived already: with a budget smaller than the
/// batches before the mark, each commit still moves forward (found by `rows_are_the_records`).
#[tokio::test]
async fn small_commits_inside_one_segment_move_forward() {
    let mut bucket = Bucket::in_memory();
    let topic = bucket.topic("t");
    let mut config = bucket.config();
    (config.commit_bytes, config.read_bytes) = (1, 1);
    bucket
        .append(
            &topic,
            0,
            (0..9)
                .map(|batch| Spec::values(0, batch..batch + 2))
                .collect(),
        )
        .await;
    let report = bucket
        .archiver_on(&bucket.raw, config, 4)
        .run_once(None)
        .await
        .unwrap();
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    assert_exact(&bucket, &topic, &report.tables[0]).await;
    assert!(
        report.tables[0]
            .metadata_location
            .as_ref()
            .unwrap()
            .ends_with("/v9.metadata.json")
    );
}
