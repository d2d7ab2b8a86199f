//! Damage in the bucket: never skipped in silence, never more than the partition that has it.

use crate::bucket::{Bucket, Spec};
use crate::table::{assert_exact, read};
use object_store::{ObjectStoreExt, PutPayload};
use tidelog_archive::ArchiveError;
use tidelog_model::{LeaderEpoch, Offset};
use tidelog_tiering::key;

/// Proves that a flipped bit anywhere in a batch stops its partition at that batch with the object's name, that what
/// lies before and the other partitions are archived, and that the healed object is then archived in full.
#[tokio::test]
async fn a_flipped_bit_stops_its_partition_until_it_is_healed() {
    let mut bucket = Bucket::in_memory();
    let topic = bucket.topic("t");
    bucket.append(&topic, 0, vec![Spec::values(0, 0..3)]).await;
    let object = bucket
        .upload(
            &topic,
            vec![(0, vec![Spec::values(0, 3..5), Spec::values(0, 5..9)])],
        )
        .await;
    bucket.append(&topic, 1, vec![Spec::values(0, 0..4)]).await;
    let entry = bucket.partition(&topic, 0).segments[1].clone();
    let place = bucket.store.path(&key::data(&object));
    let good = bucket.raw.get(&place).await.unwrap().bytes().await.unwrap();
    let second = usize::try_from(entry.position.get()).unwrap() + first_length(&good);
    let end = usize::try_from(entry.position.get() + entry.length).unwrap();
    // Each byte of the second batch's header and every fifth of its records, one bit of it; the bit goes round.
    let records = (second + 61..end).step_by(5);
    for (number, at) in (second..second + 61).chain(records).enumerate() {
        let mut bad = good.to_vec();
        bad[at] ^= 1 << (number % 8);
        bucket.raw.put(&place, PutPayload::from(bad)).await.unwrap();
        let archiver = bucket.archiver();
        let report = archiver.run_once(None).await.unwrap();
        let [
            ArchiveError::Damaged {
                partition,
                offset,
                object: named,
                ..
            },
        ] = report.errors.as_slice()
        else {
            panic!("byte {at}: {:?}", report.errors)
        };
        assert_eq!(
            (partition.index.get(), *offset),
            (0, Offset::new(5)),
            "byte {at}"
        );
        assert_eq!(*named, key::data(&object).to_string());
        let table = read(&bucket, &report.tables[0]).await;
        assert_eq!(table.rows.len(), 5 + 4);
        assert_eq!(
            archiver.metrics().counters()[11],
            ("partitions_stopped_total", 1)
        );
    }
    bucket
        .raw
        .put(&place, PutPayload::from(good))
        .await
        .unwrap();
    let report = bucket.archiver().run_once(None).await.unwrap();
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    assert_exact(&bucket, &topic, &report.tables[0]).await;
}

fn first_length(object: &[u8]) -> usize {
    12 + usize::try_from(i32::from_be_bytes(object[8..12].try_into().unwrap())).unwrap()
}

/// Proves that a missing object, a cut one, and manifests that do not fit the object stop the partition alike.
#[tokio::test]
async fn missing_and_misdescribed_segments_stop_the_partition() {
    for case in 0..6 {
        let mut bucket = Bucket::in_memory();
        let topic = bucket.topic("t");
        let object = bucket
            .upload(
                &topic,
                vec![(0, vec![Spec::values(0, 0..5), Spec::values(0, 5..9)])],
            )
            .await;
        let place = bucket.store.path(&key::data(&object));
        let partition = bucket.partition(&topic, 0);
        let entry = &mut partition.segments[0];
        let reason = match case {
            0 => {
                bucket.raw.delete(&place).await.unwrap();
                "no object"
            }
            1 => {
                bucket
                    .raw
                    .put(&place, PutPayload::from_static(&[0; 70]))
                    .await
                    .unwrap();
                "is not what was written"
            }
            2 => {
                entry.epochs[0].epoch = LeaderEpoch::new(7);
                partition.epochs[0].epoch = LeaderEpoch::new(7);
                "leader epoch"
            }
            3 => {
                entry.length -= 10;
                "reaches past the end"
            }
            4 => {
                entry.base_offset = Offset::new(3);
                entry.epochs[0].start = Offset::new(3);
                partition.epochs[0].start = Offset::new(3);
                partition.log_start = Offset::new(3);
                "lies in a segment"
            }
            _ => {
                entry.last_offset = Offset::new(10);
                entry.record_count = 11;
                partition.tiered_until = Offset::new(11);
                partition.next_offset = Offset::new(11);
                "it ends before offset 10"
            }
        };
        bucket.publish().await;
        let report = bucket.archiver().run_once(None).await.unwrap();
        let text = report
            .errors
            .iter()
            .map(ToString::to_string)
            .collect::<String>();
        assert!(
            matches!(report.errors.as_slice(), [ArchiveError::Damaged { .. }]),
            "case {case}: {text}"
        );
        assert!(text.contains(reason), "case {case}: {text}");
    }
}

/// Proves that a damaged manifest hides its group's partitions and no others, and is reported.
#[tokio::test]
async fn a_damaged_manifest_is_reported_and_the_others_are_used() {
    let mut bucket = Bucket::in_memory();
    let topic = bucket.topic("t");
    bucket.append(&topic, 0, vec![Spec::values(0, 0..3)]).await;
    let other = key::snapshot(tidelog_model::PlacementGroupId::new(2), 5);
    bucket
        .raw
        .put(
            &bucket.store.path(&other),
            PutPayload::from_static(b"no manifest"),
        )
        .await
        .unwrap();
    let archiver = bucket.archiver();
    let report = archiver.run_once(None).await.unwrap();
    assert!(
        matches!(&report.errors[..], [ArchiveError::Unreadable { key, .. }] if *key == other),
        "{:?}",
        report.errors
    );
    assert_exact(&bucket, &topic, &report.tables[0]).await;
    assert!(archiver.status(None).await.is_err());
}
