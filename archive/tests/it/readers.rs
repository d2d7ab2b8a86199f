//! The readers that users have, on a table in a directory: DuckDB and pyiceberg, in the client tests' Python environment.

use crate::bucket::{Bucket, Expected, Rec, Spec, Topic};
use crate::table::assert_exact;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use tidelog_archive::TableStatus;
use tidelog_model::codec::Codec;
use tidelog_tiering::{StoreSettings, open_store};

const DAY: i64 = 86_400_000;

/// Records of every shape: all codecs, days, empty and null and large fields, header keys that are not UTF-8, timestamps that
/// no calendar has.
fn specs(seed: i64) -> Vec<Spec> {
    let mut specs = Vec::new();
    for (number, codec) in (seed * 10..).zip(Codec::ALL.into_iter().cycle().take(30)) {
        let records = (0..40)
            .map(|record: i64| Rec {
                timestamp: 1_760_000_000_000 + (number % 4) * DAY + record,
                key: (record % 3 > 0).then(|| vec![b'k'; usize::try_from(record % 7).unwrap()]),
                value: (record % 5 > 0).then(|| {
                    format!("value {number} {record} \u{20ac}")
                        .repeat(20)
                        .into_bytes()
                }),
                headers: match record % 4 {
                    0 => vec![],
                    1 => vec![(b"trace".to_vec(), Some(vec![0, 255, 7]))],
                    2 => vec![(b"a".to_vec(), None), (b"a".to_vec(), Some(vec![]))],
                    _ => vec![(vec![0xff, 0xfe], Some(b"x".to_vec()))],
                },
            })
            .collect();
        let producer = (number % 2 == 0).then_some((number, 3, i32::MAX - 5));
        specs.push(Spec {
            codec,
            records,
            producer,
            append_time: None,
            control: false,
        });
    }
    let wild = [
        i64::MAX / 2,
        i64::MIN / 2,
        -1,
        0,
        4_102_444_800_000,
        253_402_300_800_000,
        -62_135_596_800_001,
    ];
    specs.extend(wild.map(|timestamp| Spec::values(timestamp, 0..2)));
    specs.push(Spec {
        append_time: Some(1_760_000_000_123),
        ..Spec::values(5, 0..3)
    });
    specs
}

fn json(row: &Expected) -> serde_json::Value {
    let text = |bytes: &Option<Vec<u8>>| bytes.as_ref().map(|bytes| STANDARD.encode(bytes));
    let headers: Vec<_> = row
        .headers
        .iter()
        .map(|(key, value)| serde_json::json!([STANDARD.encode(key), text(value)]))
        .collect();
    serde_json::json!({
        "partition": row.partition, "offset": row.offset, "timestamp": row.timestamp,
        "timestamp_type": row.timestamp_type, "key": text(&row.key), "value": text(&row.value), "headers": headers,
        "leader_epoch": row.leader_epoch, "producer_id": row.producer.map(|producer| producer.0),
        "producer_epoch": row.producer.map(|producer| producer.1), "sequence": row.sequence, "size": row.size,
    })
}

fn python() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache =
        cache.unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cache"));
    cache.join("tidelog/venv/bin/python")
}

/// A table of several commits, days and partition specs in a directory.
struct Built {
    folder: tempfile::TempDir,
    bucket: Bucket,
    topic: Topic,
    status: TableStatus,
}

async fn built() -> Built {
    let folder = tempfile::Builder::new().prefix("a b").tempdir().unwrap();
    let store = folder.path().join("store");
    let opened = open_store(
        url::Url::from_file_path(&store).unwrap().as_str(),
        &StoreSettings::default(),
    )
    .unwrap();
    let mut bucket = Bucket::new(opened.store, &format!("file://{}", store.display()));
    let topic = bucket.topic("orders.v1");
    let mut config = bucket.config();
    (config.row_group_rows, config.days_max) = (500, 6);
    let archiver = bucket.archiver_on(&bucket.raw, config, 5);
    for commit in 0..3 {
        bucket
            .upload(&topic, vec![(0, specs(commit)), (7, specs(commit + 1))])
            .await;
        bucket.publish().await;
        let report = archiver.run_once(None).await.unwrap();
        assert!(report.errors.is_empty(), "{:?}", report.errors);
    }
    let status = archiver.status(None).await.unwrap().remove(0);
    Built {
        folder,
        bucket,
        topic,
        status,
    }
}

/// Proves that the table library and the Parquet reader find every record once with all its fields.
#[tokio::test]
async fn the_library_finds_every_record() {
    let built = built().await;
    assert_exact(&built.bucket, &built.topic, &built.status).await;
}

/// Proves that DuckDB and pyiceberg find every record once with all its fields, with and without predicates.
#[tokio::test]
#[ignore = "needs the Python environment of the client tests: `cargo xtask test`"]
#[allow(clippy::disallowed_methods, reason = "the file is for another program")]
async fn duckdb_and_pyiceberg_find_every_record() {
    let Built {
        folder,
        bucket,
        topic,
        status,
    } = built().await;
    let expected = folder.path().join("expected.jsonl");
    let mut file = std::fs::File::create(&expected).unwrap();
    for row in bucket.expected(&topic) {
        writeln!(file, "{}", json(&row)).unwrap();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/clients/archive_check.py");
    let mut command = Command::new(python());
    command.arg(script).args([
        "--table",
        &status.location,
        "--metadata",
        status.metadata_location.as_ref().unwrap(),
    ]);
    let output = command.arg("--expected").arg(&expected).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(
        said.lines().filter(|line| line.starts_with("ok")).count(),
        11,
        "{said}"
    );
}
