//! Builds the next version of a table: manifests, manifest list, metadata. Pure apart from the id and time handed in.
//!
//! Owns: what is inside the objects of a commit.
//! Not here: storing them, and the order of that (`table.rs`).
//! Spec: docs/formats/archive-table.md, docs/protocols/archive-commit.md (steps 6 to 8)

use crate::error::ArchiveError;
use crate::location::{TableLocation, metadata_name};
use crate::mark::{Added, Mark};
use crate::schema;
use bytes::Bytes;
use iceberg::io::{MemoryStorage, OutputFile, Storage};
use iceberg::spec::{
    DataFile, FormatVersion, ManifestFile, ManifestList, ManifestListWriter, ManifestWriterBuilder,
    Operation, Snapshot, Summary, TableMetadata, TableMetadataBuilder,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use uuid::Uuid;

/// Branch that readers follow.
const MAIN: &str = "main";
/// Versions that the metadata log remembers.
const PREVIOUS_VERSIONS_MAX: &str = "100";

/// The newest version of a table, as read.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    /// Its number.
    pub(crate) version: u64,
    /// Its content.
    pub(crate) metadata: TableMetadata,
    /// Its mark.
    pub(crate) mark: Mark,
}

/// What a commit adds.
pub(crate) struct Addition {
    /// Data files, already stored, with their partition spec.
    pub(crate) files: Vec<(i32, DataFile)>,
    /// The mark after it.
    pub(crate) mark: Mark,
    /// What it covers.
    pub(crate) added: Vec<Added>,
}

/// The objects of a commit, in the order they must be stored: all of `objects`, then `metadata` if absent.
#[derive(Debug)]
pub(crate) struct NewVersion {
    /// The version.
    pub(crate) version: u64,
    /// Manifests and manifest list, by name.
    pub(crate) objects: Vec<(String, Bytes)>,
    /// The metadata file.
    pub(crate) metadata: Bytes,
}

/// Values from outside that make a commit unlike any other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    /// Wall clock.
    pub(crate) now_ms: i64,
    /// A random number the snapshot's id is made of.
    pub(crate) random: u64,
}

/// Builds version `head + 1`. `list` is the manifest list of the head's current snapshot.
///
/// # Errors
/// [`ArchiveError::Internal`] when the table library refuses it. Nothing was stored.
pub(crate) async fn build(
    location: &TableLocation,
    head: Option<&Head>,
    list: Option<ManifestList>,
    addition: Addition,
    stamp: Stamp,
    snapshots_max: usize,
) -> Result<NewVersion, ArchiveError> {
    let base = base(location, head)?;
    let snapshot = snapshot_id(&base, stamp.random);
    let parent = base.current_snapshot_id();
    let sequence = base.next_sequence_number();
    let commit = addition.mark.commit;
    let summary = summary(&base, &addition);

    let (mut objects, manifests) =
        manifests(location, &base, addition.files, snapshot, commit).await?;
    let before: Vec<_> = list
        .map(|list| list.consume_entries().into_iter().collect())
        .unwrap_or_default();
    let list_name = format!("metadata/snap-{snapshot}-{}.avro", commit.hyphenated());
    let (output, memory) = output(location.uri_of(&list_name));
    let writer = output
        .writer()
        .await
        .map_err(ArchiveError::internal("open a manifest list"))?;
    let mut writer = ManifestListWriter::v2(writer, snapshot, parent, sequence);
    writer
        .add_manifests(before.into_iter().chain(manifests))
        .map_err(ArchiveError::internal("fill a manifest list"))?;
    writer
        .close()
        .await
        .map_err(ArchiveError::internal("finish a manifest list"))?;
    objects.push((
        list_name.clone(),
        written(&memory, output.location()).await?,
    ));

    let next = Snapshot::builder()
        .with_snapshot_id(snapshot)
        .with_parent_snapshot_id(parent)
        .with_sequence_number(sequence)
        .with_timestamp_ms(stamp.now_ms.max(base.last_updated_ms()))
        .with_manifest_list(location.uri_of(&list_name))
        .with_summary(summary)
        .with_schema_id(base.current_schema_id())
        .build();
    let dropped = dropped_snapshots(&base, snapshots_max);
    let version = head.map_or(0, |head| head.version) + 1;
    let before = head.map(|head| location.uri_of(&metadata_name(head.version)));
    let metadata = TableMetadataBuilder::new_from_metadata(base, before)
        .set_branch_snapshot(next, MAIN)
        .map(|builder| builder.remove_snapshots(&dropped))
        .and_then(TableMetadataBuilder::build)
        .map_err(ArchiveError::internal("build table metadata"))?
        .metadata;
    let metadata =
        serde_json::to_vec(&metadata).map_err(ArchiveError::internal("write table metadata"))?;
    Ok(NewVersion {
        version,
        objects,
        metadata: metadata.into(),
    })
}

/// The metadata that the commit changes: the head's, or that of an empty table.
fn base(location: &TableLocation, head: Option<&Head>) -> Result<TableMetadata, ArchiveError> {
    if let Some(head) = head {
        return Ok(head.metadata.clone());
    }
    let create = || {
        let schema = schema::iceberg_schema()?;
        let order = schema::sort_order(&schema)?;
        let properties = HashMap::from(
            [
                ("tidelog.format", "1".to_owned()),
                (
                    "tidelog.cluster-id",
                    location.cluster().get().hyphenated().to_string(),
                ),
                (
                    "tidelog.topic-id",
                    location.topic().get().hyphenated().to_string(),
                ),
                ("tidelog.topic-name", location.topic_name().to_owned()),
                ("write.parquet.compression-codec", "zstd".to_owned()),
                (
                    "write.metadata.previous-versions-max",
                    PREVIOUS_VERSIONS_MAX.to_owned(),
                ),
            ]
            .map(|(key, value)| (key.to_owned(), value)),
        );
        let place = location.uri().to_owned();
        TableMetadataBuilder::new(
            schema,
            schema::day_spec()?,
            order,
            place,
            FormatVersion::V2,
            properties,
        )?
        .assign_uuid(location.topic().get())
        .add_partition_spec(schema::any_spec())?
        .build()
    };
    Ok(create()
        .map_err(ArchiveError::internal("create table metadata"))?
        .metadata)
}

/// Random, positive, not in use.
fn snapshot_id(base: &TableMetadata, random: u64) -> i64 {
    let mut id = i64::try_from(random >> 1).unwrap_or(1).max(1);
    while base.snapshot_by_id(id).is_some() {
        id = id.wrapping_add(1).max(1);
    }
    id
}

/// One manifest per partition spec: their objects, and their entries for the list.
async fn manifests(
    location: &TableLocation,
    base: &TableMetadata,
    files: Vec<(i32, DataFile)>,
    snapshot: i64,
    commit: Uuid,
) -> Result<(Vec<(String, Bytes)>, Vec<ManifestFile>), ArchiveError> {
    let mut by_spec: BTreeMap<i32, Vec<DataFile>> = BTreeMap::new();
    for (spec, file) in files {
        by_spec.entry(spec).or_default().push(file);
    }
    let (mut objects, mut entries) = (Vec::new(), Vec::new());
    for (id, files) in by_spec {
        let spec = base
            .partition_spec_by_id(id)
            .ok_or_else(|| ArchiveError::ForeignTable {
                location: location.uri().to_owned(),
                reason: format!("it has no partition spec {id}"),
            })?;
        let name = format!("metadata/{}-{id}.avro", commit.hyphenated());
        let (output, memory) = output(location.uri_of(&name));
        let uri = output.location().to_owned();
        let schema = Arc::clone(base.current_schema());
        let builder =
            ManifestWriterBuilder::new(output, Some(snapshot), schema, spec.as_ref().clone());
        let mut writer = builder.build_v2_data();
        for file in files {
            writer
                .add_file(file, -1)
                .map_err(ArchiveError::internal("fill a manifest"))?;
        }
        entries.push(
            writer
                .write_manifest_file()
                .await
                .map_err(ArchiveError::internal("finish a manifest"))?,
        );
        objects.push((name, written(&memory, &uri).await?));
    }
    Ok((objects, entries))
}

/// A file in memory that believes to be at `uri`. The library names it by that in what it writes.
fn output(uri: String) -> (OutputFile, Arc<dyn Storage>) {
    let memory: Arc<dyn Storage> = Arc::new(MemoryStorage::new());
    (OutputFile::new(Arc::clone(&memory), uri), memory)
}

async fn written(memory: &Arc<dyn Storage>, uri: &str) -> Result<Bytes, ArchiveError> {
    memory
        .read(uri)
        .await
        .map_err(ArchiveError::internal("take a manifest"))
}

fn summary(base: &TableMetadata, addition: &Addition) -> Summary {
    let files = u64::try_from(addition.files.len()).unwrap_or(u64::MAX);
    let rows: u64 = addition
        .files
        .iter()
        .map(|(_, file)| file.record_count())
        .sum();
    let bytes: u64 = addition
        .files
        .iter()
        .map(|(_, file)| file.file_size_in_bytes())
        .sum();
    let total = |key: &str| {
        let before = base
            .current_snapshot()
            .and_then(|last| last.summary().additional_properties.get(key)?.parse().ok());
        before.unwrap_or(0u64)
    };
    let mut keys = addition.mark.summary(&addition.added);
    for (key, value) in [
        ("added-data-files", files),
        ("added-records", rows),
        ("added-files-size", bytes),
        ("total-data-files", total("total-data-files") + files),
        ("total-records", total("total-records") + rows),
        ("total-files-size", total("total-files-size") + bytes),
        ("total-delete-files", total("total-delete-files")),
        ("total-position-deletes", total("total-position-deletes")),
        ("total-equality-deletes", total("total-equality-deletes")),
    ] {
        keys.insert(key.to_owned(), value.to_string());
    }
    Summary {
        operation: Operation::Append,
        additional_properties: keys,
    }
}

/// The oldest snapshots, so that with the new one `keep` remain. Those that a branch or tag needs stay.
fn dropped_snapshots(base: &TableMetadata, keep: usize) -> Vec<i64> {
    let mut ids: Vec<_> = base
        .snapshots()
        .map(|snapshot| (snapshot.sequence_number(), snapshot.snapshot_id()))
        .collect();
    ids.sort_unstable();
    let drop = ids.len().saturating_sub(keep.saturating_sub(1).max(1));
    let current = base.current_snapshot_id();
    ids.into_iter()
        .take(drop)
        .map(|(_, id)| id)
        .filter(|id| Some(*id) != current)
        .collect()
}
