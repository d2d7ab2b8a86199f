//! Where tables are, how the newest version is found, and what is refused as not ours.

use crate::bucket::{Bucket, Spec};
use crate::table::assert_exact;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use tidelog_archive::{ArchiveError, TableStatus};

fn path(bucket: &Bucket, status: &TableStatus, name: &str) -> Path {
    Path::from(format!(
        "{}/{name}",
        status.location.strip_prefix(&bucket.uri).unwrap()
    ))
}

/// Proves that a topic created again under its name gets a table of its own (I15).
#[tokio::test]
async fn a_recreated_topic_has_another_table() {
    let mut bucket = Bucket::in_memory();
    let (old, new) = (bucket.topic("orders"), bucket.topic("orders"));
    bucket.append(&old, 0, vec![Spec::values(0, 0..3)]).await;
    bucket.append(&new, 0, vec![Spec::values(0, 5..7)]).await;
    let report = bucket.archiver().run_once(Some("orders")).await.unwrap();
    assert_eq!(report.tables.len(), 2);
    for topic in [&old, &new] {
        let status = report
            .tables
            .iter()
            .find(|table| table.topic_id == topic.id)
            .unwrap();
        assert!(
            status
                .location
                .ends_with(&format!("/archive/orders-{}", topic.id))
        );
        assert_exact(&bucket, topic, status).await;
    }
}

/// Proves that the filter takes one topic and that status tells what is archived and what is not yet.
#[tokio::test]
async fn filter_and_status() {
    let mut bucket = Bucket::in_memory();
    let (one, two) = (bucket.topic("one"), bucket.topic("two"));
    bucket.append(&one, 0, vec![Spec::values(0, 0..3)]).await;
    bucket.append(&two, 4, vec![Spec::values(0, 0..2)]).await;
    let archiver = bucket.archiver();
    archiver.run_once(Some("one")).await.unwrap();
    let status = archiver.status(None).await.unwrap();
    let of = |name: &str| status.iter().find(|table| table.topic == name).unwrap();
    assert_eq!(of("one").rows, 3);
    assert_eq!(of("one").partitions[0].archived_until, 3);
    assert_eq!(
        (
            of("two").rows,
            of("two").snapshot_id,
            of("two").metadata_location.clone()
        ),
        (0, None, None)
    );
    assert_eq!(
        (
            of("two").partitions[0].archived_until,
            of("two").partitions[0].tiered_until
        ),
        (0, 2)
    );
    assert_eq!(archiver.status(Some("none")).await.unwrap(), []);
}

/// Proves that the hint decides nothing: stale, gone, absurd or not a number, the newest version is found.
#[tokio::test]
async fn a_wrong_hint_does_no_harm() {
    let mut bucket = Bucket::in_memory();
    let topic = bucket.topic("t");
    for (run, hint) in (0i32..).zip([
        "1",
        "",
        "99",
        "18446744073709551615",
        "-1",
        "x\u{e4}",
        "gone",
    ]) {
        bucket
            .append(&topic, 0, vec![Spec::values(0, run..run + 1)])
            .await;
        let report = bucket.archiver().run_once(None).await.unwrap();
        assert!(report.errors.is_empty(), "{:?}", report.errors);
        assert_exact(&bucket, &topic, &report.tables[0]).await;
        let place = path(&bucket, &report.tables[0], "metadata/version-hint.text");
        let right = bucket.raw.get(&place).await.unwrap().bytes().await.unwrap();
        assert_eq!(right, (run + 1).to_string());
        if hint == "gone" {
            bucket.raw.delete(&place).await.unwrap();
        } else {
            bucket
                .raw
                .put(&place, PutPayload::from(hint.to_owned()))
                .await
                .unwrap();
        }
    }
    let status = bucket.archiver().status(None).await.unwrap();
    assert!(
        status[0]
            .metadata_location
            .as_ref()
            .unwrap()
            .ends_with("/v7.metadata.json")
    );
}

/// Proves that a table which is another topic's, or was moved, or is not readable, is refused and left alone.
#[tokio::test]
async fn a_foreign_table_is_refused() {
    let mut bucket = Bucket::in_memory();
    let (one, two) = (bucket.topic("one"), bucket.topic("two"));
    bucket.append(&one, 0, vec![Spec::values(0, 0..3)]).await;
    bucket.append(&two, 0, vec![Spec::values(0, 0..3)]).await;
    let report = bucket.archiver().run_once(Some("one")).await.unwrap();
    let metadata = bucket
        .raw
        .get(&path(
            &bucket,
            &report.tables[0],
            "metadata/v1.metadata.json",
        ))
        .await
        .unwrap();
    let metadata = String::from_utf8(metadata.bytes().await.unwrap().to_vec()).unwrap();
    let target = bucket
        .archiver()
        .status(Some("two"))
        .await
        .unwrap()
        .remove(0);
    let place = path(&bucket, &target, "metadata/v1.metadata.json");

    let moved = metadata.clone();
    let not_ours = metadata.replace(&report.tables[0].location, &target.location);
    let no_mark = not_ours.replace("tidelog.archived-until", "other.archived-until");
    let newer = not_ours.replace("\"tidelog.format\":\"1\"", "\"tidelog.format\":\"9\"");
    for (content, reason) in [
        (moved, "it says that it is at"),
        (not_ours, "it belongs to topic"),
        (no_mark, "no snapshot carries"),
        (newer, "tidelog.format is 9"),
        ("{".to_owned(), "is not readable"),
    ] {
        bucket
            .raw
            .put(&place, PutPayload::from(content.clone()))
            .await
            .unwrap();
        let report = bucket.archiver().run_once(Some("two")).await.unwrap();
        let text = report.errors[0].to_string();
        assert!(text.contains(reason), "{text}");
        let kept = bucket.raw.get(&place).await.unwrap().bytes().await.unwrap();
        assert_eq!(kept, content);
    }
}

/// Proves that a topic name that could leave its folder is refused before anything is written.
#[tokio::test]
async fn a_hostile_topic_name_is_refused() {
    let mut bucket = Bucket::in_memory();
    let topic = bucket.topic("../up");
    bucket.append(&topic, 0, vec![Spec::values(0, 0..3)]).await;
    let report = bucket.archiver().run_once(None).await.unwrap();
    assert!(matches!(report.errors[0], ArchiveError::TopicName(_)));
}
