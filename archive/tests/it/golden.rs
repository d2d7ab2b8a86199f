//! Tables of released format versions: they are read, and continued, for ever.

use crate::bucket::{Bucket, Spec, Topic};
use crate::table::assert_exact;
use futures::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use std::sync::Arc;
use tidelog_model::codec::Codec;

const ARCHIVE: &str = "pre/v1/00000000-0000-0000-0000-0000000000c1/archive";

/// Copies every object below `from` in one store to below `to` in another.
async fn copy(source: &dyn ObjectStore, from: &str, target: &dyn ObjectStore, to: &str) -> usize {
    let prefix = Path::from(from);
    let found: Vec<_> = source.list(Some(&prefix)).try_collect().await.unwrap();
    for object in &found {
        let rest = object.location.as_ref().strip_prefix(from).unwrap();
        let bytes = source
            .get(&object.location)
            .await
            .unwrap()
            .bytes()
            .await
            .unwrap();
        let place = Path::from(format!("{to}/{}", rest.trim_start_matches('/')));
        target.put(&place, bytes.into()).await.unwrap();
    }
    found.len()
}

async fn first_part(bucket: &mut Bucket) -> Topic {
    let topic = bucket.topic("orders");
    let day = Spec {
        codec: Codec::Zstd,
        producer: Some((9, 1, 0)),
        ..Spec::values(1_760_000_000_000, 0..5)
    };
    let beyond = Spec::values(i64::MAX / 2, 5..7);
    bucket
        .upload(&topic, vec![(0, vec![day.clone(), beyond]), (1, vec![day])])
        .await;
    bucket.publish().await;
    topic
}

/// Proves that a table written by format version 1 as it was first released holds the rows it held, and that today's
/// archiver goes on from its mark. `TIDELOG_BLESS=1` writes a new one: only for a new format version, into a new folder.
#[tokio::test]
async fn a_table_of_version_1_is_continued() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata");
    let golden = LocalFileSystem::new_with_prefix(folder).unwrap();
    if std::env::var_os("TIDELOG_BLESS").is_some() {
        let mut bucket = Bucket::in_memory();
        first_part(&mut bucket).await;
        bucket.archiver().run_once(None).await.unwrap();
        copy(&bucket.raw, ARCHIVE, &golden, "table-v1").await;
    }
    let raw: Arc<dyn ObjectStore> = Arc::new(object_store::memory::InMemory::new());
    assert_eq!(copy(&golden, "table-v1", &raw, ARCHIVE).await, 7);
    let mut bucket = Bucket::new(raw, "s3://bucket");
    let topic = first_part(&mut bucket).await;
    let archiver = bucket.archiver();
    let status = archiver.status(None).await.unwrap().remove(0);
    assert_exact(&bucket, &topic, &status).await;
    bucket.append(&topic, 0, vec![Spec::values(5, 0..3)]).await;
    let report = archiver.run_once(None).await.unwrap();
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    let table = assert_exact(&bucket, &topic, &report.tables[0]).await;
    assert_eq!(table.metadata.snapshots().len(), 2);
    assert_eq!(table.files.len(), 3);
}
