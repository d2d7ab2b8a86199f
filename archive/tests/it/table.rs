//! A table as a reader finds it: from the metadata file to the rows, by the table library and the Parquet reader, not by
//! the code under test; and the checks that hold for every table.

use crate::bucket::{Bucket, Expected, Topic};
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type, TimestampMicrosecondType};
use arrow_array::{Array, RecordBatch};
use bytes::Bytes;
use iceberg::spec::{
    FormatVersion, Literal, Manifest, ManifestList, PrimitiveLiteral, TableMetadata,
};
use object_store::ObjectStoreExt;
use object_store::path::Path;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use std::collections::BTreeMap;
use tidelog_archive::{Mark, TableStatus};

pub(crate) struct ReadTable {
    pub(crate) metadata: TableMetadata,
    pub(crate) rows: Vec<Expected>,
    /// Path of each data file that the table names, with its rows.
    pub(crate) files: Vec<(String, u64)>,
}

async fn get(bucket: &Bucket, uri: &str) -> Bytes {
    let path = uri
        .strip_prefix(&bucket.uri)
        .unwrap_or_else(|| panic!("{uri} is not in the bucket"));
    bucket
        .raw
        .get(&Path::from(path))
        .await
        .unwrap()
        .bytes()
        .await
        .unwrap()
}

/// Reads a table and checks what holds for every one.
pub(crate) async fn read(bucket: &Bucket, status: &TableStatus) -> ReadTable {
    let metadata = get(bucket, status.metadata_location.as_ref().unwrap()).await;
    let metadata: TableMetadata = serde_json::from_slice(&metadata).unwrap();
    let snapshot = metadata.current_snapshot().unwrap();
    let list = get(bucket, snapshot.manifest_list()).await;
    let list = ManifestList::parse_with_version(&list, FormatVersion::V2).unwrap();
    let (mut rows, mut files) = (Vec::new(), Vec::new());
    for manifest in list.entries() {
        let spec = manifest.partition_spec_id;
        let content = Manifest::parse_avro(&get(bucket, &manifest.manifest_path).await).unwrap();
        for entry in content.entries().iter().filter(|entry| entry.is_alive()) {
            let file = entry.data_file();
            let bytes = get(bucket, file.file_path()).await;
            assert_eq!(bytes.len() as u64, file.file_size_in_bytes());
            let found = file_rows(bytes);
            assert_eq!(found.len() as u64, file.record_count());
            let order: Vec<_> = found
                .iter()
                .map(|row| (row.partition, row.offset))
                .collect();
            assert!(order.is_sorted(), "{} is not sorted", file.file_path());
            match spec {
                0 => {
                    let Some(Literal::Primitive(PrimitiveLiteral::Int(day))) = file.partition()[0]
                    else {
                        panic!("a partition without a day")
                    };
                    assert!(
                        found
                            .iter()
                            .all(|row| row.timestamp.div_euclid(86_400_000) == i64::from(day))
                    );
                }
                _ => assert!(file.partition().fields().is_empty()),
            }
            files.push((file.file_path().to_owned(), file.record_count()));
            rows.extend(found);
        }
    }
    rows.sort();
    assert_eq!(status.rows, rows.len() as u64);
    check_history(&metadata);
    ReadTable {
        metadata,
        rows,
        files,
    }
}

/// I14 as the summaries tell it: ranges of commits touch, and account for each offset.
fn check_history(metadata: &TableMetadata) {
    let mut until: BTreeMap<i32, i64> = BTreeMap::new();
    for added in Mark::history(metadata).unwrap().into_iter().flatten() {
        assert!(added.is_complete(), "{added:?}");
        if let Some(before) = until.insert(added.partition, added.until) {
            assert_eq!(before, added.from, "partition {}", added.partition);
        }
    }
    let mark = Mark::read(metadata).unwrap();
    assert!(
        until
            .iter()
            .all(|(partition, offset)| mark.until[partition] == *offset)
    );
}

/// The table's rows are exactly those expected.
pub(crate) async fn assert_exact(
    bucket: &Bucket,
    topic: &Topic,
    status: &TableStatus,
) -> ReadTable {
    let table = read(bucket, status).await;
    let expected = bucket.expected(topic);
    let (have, want) = (table.rows.len(), expected.len());
    assert!(have == want, "{have} rows, {want} expected");
    for (have, want) in table.rows.iter().zip(&expected) {
        assert_eq!(have, want);
    }
    table
}

pub(crate) fn file_rows(bytes: Bytes) -> Vec<Expected> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(bytes)
        .unwrap()
        .build()
        .unwrap();
    reader
        .flat_map(|batch| batch_rows(&batch.unwrap()))
        .collect()
}

fn batch_rows(batch: &RecordBatch) -> Vec<Expected> {
    let column = |name: &str| batch.column_by_name(name).unwrap();
    let int = |name: &str| column(name).as_primitive::<Int32Type>();
    let long = |name: &str| column(name).as_primitive::<Int64Type>();
    let bytes = |name: &str, row: usize| {
        let array = column(name).as_binary::<i32>();
        array.is_valid(row).then(|| array.value(row).to_vec())
    };
    let timestamp = column("_timestamp").as_primitive::<TimestampMicrosecondType>();
    let kinds = column("_timestamp_type").as_string::<i32>();
    let valid = |array: &dyn Array, row: usize| array.is_valid(row);
    let row = |row: usize| Expected {
        partition: int("_partition").value(row),
        offset: long("_offset").value(row),
        timestamp: if timestamp.is_valid(row) {
            assert!(long("_timestamp_raw").is_null(row));
            timestamp.value(row) / 1000
        } else {
            long("_timestamp_raw").value(row)
        },
        timestamp_type: if kinds.value(row) == "CreateTime" {
            "CreateTime"
        } else {
            "LogAppendTime"
        },
        key: bytes("_key", row),
        value: bytes("_value", row),
        headers: headers(column("_headers").as_list::<i32>().value(row).as_struct()),
        leader_epoch: int("_leader_epoch").value(row),
        producer: valid(long("_producer_id"), row).then(|| {
            (
                long("_producer_id").value(row),
                int("_producer_epoch").value(row),
            )
        }),
        sequence: valid(int("_sequence"), row).then(|| int("_sequence").value(row)),
        size: int("_size").value(row),
    };
    (0..batch.num_rows()).map(row).collect()
}

fn headers(array: &arrow_array::StructArray) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let (keys, values, raw) = (
        array.column(0).as_string::<i32>(),
        array.column(1).as_binary::<i32>(),
        array.column(2).as_binary::<i32>(),
    );
    let header = |row: usize| {
        let key = if raw.is_valid(row) {
            raw.value(row)
        } else {
            keys.value(row).as_bytes()
        };
        (
            key.to_vec(),
            values.is_valid(row).then(|| values.value(row).to_vec()),
        )
    };
    (0..array.len()).map(header).collect()
}
