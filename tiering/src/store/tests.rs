//! Every store passes the contract; what is special about `file://`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::contract::{Subject, check_all};
use super::*;
use crate::key;
use bytes::Bytes;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode};
use tidelog_env::SystemRandom;
use tidelog_model::PlacementGroupId;

/// Proves that the store in memory keeps the contract.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_keeps_the_contract() {
    let open = open_store("memory:///", &StoreSettings::default()).unwrap();
    check_all(&open, &SystemRandom::seeded(1)).await.unwrap();
}

/// Proves that a directory keeps the contract, and that no upload leaves anything but objects in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_keep_the_contract() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("made/on/opening");
    let open = open_store(
        &format!("file://{}", root.display()),
        &StoreSettings::default(),
    )
    .unwrap();
    check_all(&open, &SystemRandom::seeded(2)).await.unwrap();
    // Aborts run in the background; wait for the last.
    let mut left = temporary_files(&root);
    for _ in 0..200 {
        if left.is_empty() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        left = temporary_files(&root);
    }
    assert_eq!(left, Vec::<String>::new());
}

fn temporary_files(root: &std::path::Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(temporary_files(&path));
        } else if path.to_string_lossy().contains('#') {
            found.push(path.display().to_string());
        }
    }
    found
}

/// Proves that an S3 server keeps the contract. `cargo xtask test` starts one and sets `TIDELOG_TEST_S3_URL`,
/// `TIDELOG_TEST_S3_ENDPOINT` and the `AWS_*` variables.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an S3 server in TIDELOG_TEST_S3_URL: `cargo xtask test`"]
async fn s3_keeps_the_contract() {
    let url = std::env::var("TIDELOG_TEST_S3_URL").expect("TIDELOG_TEST_S3_URL names a bucket");
    let settings = StoreSettings {
        endpoint: std::env::var("TIDELOG_TEST_S3_ENDPOINT").ok(),
        path_style: Some(true),
        region: std::env::var("AWS_REGION")
            .ok()
            .or(Some("us-east-1".to_owned())),
        ..StoreSettings::default()
    };
    let open = open_store(&url, &settings).unwrap();
    let random = SystemRandom::shared();
    check_all(&open, &random).await.unwrap();
    let report = crate::probe(
        &Subject::new(&open, random).store,
        &tidelog_env::SystemClock,
    )
    .await;
    assert!(report.fit_for_many_brokers(), "{report}");
}

/// Proves that a file a crashed upload left can be neither listed nor read, and does not stand in the way of its key.
#[tokio::test]
async fn a_half_written_file_is_no_object() {
    let directory = tempfile::tempdir().unwrap();
    let open = open_store(
        &format!("file://{}", directory.path().display()),
        &StoreSettings::default(),
    )
    .unwrap();
    let subject = Subject::new(&open, SystemRandom::seeded(3));
    let key = key::snapshot(PlacementGroupId::new(1), 1);
    let file = directory.path().join(subject.store.path(&key).as_ref());
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(format!("{}#1", file.display()), b"half").unwrap();
    assert_eq!(
        subject.store.list(&key::snapshots_root()).await.unwrap(),
        []
    );
    assert!(matches!(
        subject.store.head(&key).await,
        Err(StoreError::NotFound { .. })
    ));
    assert_eq!(
        subject
            .store
            .put_if_absent(&key, Bytes::from_static(b"whole"))
            .await
            .unwrap(),
        PutOutcome::Created
    );
    assert_eq!(subject.store.get(&key).await.unwrap(), "whole");
}

/// Proves that the durable wrapper answers a conditional put of an existing key with `AlreadyExists` after making
/// the file's name durable, and that it does so for a key written by another process.
#[tokio::test]
async fn an_existing_file_is_synced_before_it_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let store = DurableFiles::open(directory.path()).unwrap();
    std::fs::create_dir_all(directory.path().join("a/b")).unwrap();
    std::fs::write(directory.path().join("a/b/c"), b"theirs").unwrap();
    let put = store
        .put_opts(&Path::from("a/b/c"), "ours".into(), PutMode::Create.into())
        .await;
    assert!(
        matches!(put, Err(object_store::Error::AlreadyExists { .. })),
        "{put:?}"
    );
    assert_eq!(
        store
            .get(&Path::from("a/b/c"))
            .await
            .unwrap()
            .bytes()
            .await
            .unwrap(),
        "theirs"
    );
}

/// Proves that URLs that cannot be served say what to use instead, and that settings never print a secret (I16).
#[test]
fn urls_and_settings() {
    for wrong in [
        "",
        "relative/path",
        "ftp://x/y",
        "s3:///prefix",
        "gs://bucket",
    ] {
        let error = open_store(wrong, &StoreSettings::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains("s3://bucket/prefix"), "{error}");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = open_store(
        &format!("file://{}", file.path().display()),
        &StoreSettings::default(),
    )
    .unwrap_err();
    assert!(matches!(error, OpenError::Directory { .. }), "{error}");
    let settings = StoreSettings {
        endpoint: Some("http://127.0.0.1:1".to_owned()),
        access_key_id: Some("id".to_owned()),
        secret_access_key: Some("hush".to_owned()),
        ..StoreSettings::default()
    };
    assert!(!format!("{settings:?}").contains("hush"));
    let open = open_store("s3://bucket/some/prefix", &settings).unwrap();
    assert_eq!(open.prefix, Path::from("some/prefix"));
    assert!(!format!("{open:?}").contains("hush"));
}

/// Proves that a store that is not reachable is `Unavailable` within the limits, not a hang and not a panic (A15).
#[tokio::test]
async fn an_unreachable_store_is_unavailable() {
    let settings = StoreSettings {
        endpoint: Some("http://127.0.0.1:1".to_owned()),
        access_key_id: Some("id".to_owned()),
        secret_access_key: Some("key".to_owned()),
        ..StoreSettings::default()
    };
    let open = open_store("s3://bucket", &settings).unwrap();
    let subject = Subject::new(&open, SystemRandom::seeded(4));
    let limits = StoreLimits {
        tries_max: 2,
        ..*subject.store.limits()
    };
    let got = subject
        .store
        .with_limits(limits)
        .get(&key::metadata(1))
        .await;
    assert!(
        matches!(got, Err(StoreError::Unavailable { tries: 2, .. })),
        "{got:?}"
    );
}

/// Proves that objects and listings over their bounds are refused before they are taken into memory.
#[tokio::test]
async fn bounds_hold() {
    let open = open_store("memory:///", &StoreSettings::default()).unwrap();
    let subject = Subject::new(&open, SystemRandom::seeded(5));
    let limits = StoreLimits {
        get_bytes_max: 3,
        list_count_max: 2,
        ..*subject.store.limits()
    };
    let store = subject.store.with_limits(limits);
    store
        .put_if_absent(&key::metadata(1), Bytes::from_static(b"four"))
        .await
        .unwrap();
    assert!(matches!(
        store.get(&key::metadata(1)).await,
        Err(StoreError::Corrupt { .. })
    ));
    store
        .put_if_absent(&key::metadata(2), Bytes::from_static(b"two"))
        .await
        .unwrap();
    assert_eq!(store.list(&key::metadata_prefix()).await.unwrap().len(), 2);
    store
        .put_if_absent(&key::metadata(3), Bytes::from_static(b"3"))
        .await
        .unwrap();
    assert!(matches!(
        store.list(&key::metadata_prefix()).await,
        Err(StoreError::Corrupt { .. })
    ));
}

/// The files below a directory, by name.
fn files_below(directory: &std::path::Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            names.extend(files_below(&entry.path()));
        } else {
            names.push(entry.file_name().into_string().unwrap());
        }
    }
    names
}

/// Proves that a large file has its name when all of its bytes are there, in their places, whichever part came first; that
/// a longer one before is replaced; and that an upload given up leaves nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_files_appear_whole_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let store = DurableFiles::open(directory.path()).unwrap();
    let place = Path::from("a/b/object");
    let bytes = |length: usize, seed: usize| -> Vec<u8> {
        (0..length)
            .map(|at| (at * 7 + at / 251 + seed).to_le_bytes()[0])
            .collect()
    };
    let whole = bytes((5 << 20) + 3, 1);
    let payload: object_store::PutPayload =
        whole.chunks(700_001).map(Bytes::copy_from_slice).collect();
    store.put(&place, payload).await.unwrap();
    assert_eq!(
        store.get(&place).await.unwrap().bytes().await.unwrap(),
        whole
    );
    assert_eq!(files_below(directory.path()), ["object"]);

    let parts = [bytes(3 << 20, 2), bytes(100, 3), bytes(1 << 20, 4)];
    let mut upload = store.put_multipart(&place).await.unwrap();
    let mut waiting: Vec<_> = parts
        .iter()
        .map(|part| upload.put_part(part.clone().into()))
        .collect();
    while let Some(last) = waiting.pop() {
        last.await.unwrap();
    }
    assert_eq!(
        store.get(&place).await.unwrap().bytes().await.unwrap(),
        whole
    );
    upload.complete().await.unwrap();
    assert_eq!(
        store.get(&place).await.unwrap().bytes().await.unwrap(),
        parts.concat()
    );
    assert!(upload.complete().await.is_err());
    assert!(
        upload
            .put_part(Bytes::from_static(b"late").into())
            .await
            .is_err()
    );

    let mut aborted = store.put_multipart(&Path::from("a/aborted")).await.unwrap();
    aborted.put_part(bytes(10, 5).into()).await.unwrap();
    assert_eq!(files_below(directory.path()).len(), 2);
    aborted.abort().await.unwrap();
    let mut dropped = store.put_multipart(&Path::from("a/dropped")).await.unwrap();
    dropped.put_part(bytes(10, 6).into()).await.unwrap();
    drop(dropped);
    assert_eq!(files_below(directory.path()), ["object"]);
}
