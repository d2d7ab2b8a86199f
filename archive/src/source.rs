//! What the archive reads: published group manifests and the segments they name, from the bucket alone.
//!
//! Owns: finding the newest manifests; reading a segment window by window.
//! Not here: what the batches mean (`decode.rs`).
//! Spec: docs/protocols/archive-commit.md (steps 1 and 5)

use crate::error::ArchiveError;
use bytes::Bytes;
use std::collections::BTreeMap;
use tidelog_model::batch::{BatchHeader, HEADER_BYTES, RecordBatch};
use tidelog_model::{Offset, PlacementGroupId, TopicId};
use tidelog_tiering::key::{self, ParsedKey};
use tidelog_tiering::manifest::{self, PartitionManifest, SegmentEntry};
use tidelog_tiering::{ObjectKey, StoreError, TierStore};

/// One topic as the published manifests show it.
#[derive(Clone, Debug)]
pub(crate) struct PublishedTopic {
    /// Its id.
    pub(crate) id: TopicId,
    /// Its name.
    pub(crate) name: String,
    /// Its partitions, by number.
    pub(crate) partitions: BTreeMap<i32, PartitionManifest>,
}

/// What the bucket says is tiered.
#[derive(Debug, Default)]
pub(crate) struct Published {
    /// Topics, by id.
    pub(crate) topics: BTreeMap<TopicId, PublishedTopic>,
    /// Manifests that could not be read; their partitions are missing above.
    pub(crate) errors: Vec<ArchiveError>,
}

/// Reads the newest published manifest of every placement group.
///
/// # Errors
/// When the store cannot be listed or read. A single damaged manifest is not an error of the whole.
pub(crate) async fn read_published(store: &TierStore) -> Result<Published, ArchiveError> {
    let failed = |doing: &str| {
        let doing = doing.to_owned();
        move |source| ArchiveError::Store { doing, source }
    };
    let listed = store
        .list(&key::snapshots_root())
        .await
        .map_err(failed("list the published manifests"))?;
    let mut newest: BTreeMap<PlacementGroupId, u64> = BTreeMap::new();
    for object in listed {
        if let Some(ParsedKey::Snapshot { group, sequence }) = key::parse(&object.key) {
            let known = newest.entry(group).or_insert(sequence);
            *known = sequence.max(*known);
        }
    }
    let mut published = Published::default();
    for (group, sequence) in newest {
        let key = key::snapshot(group, sequence);
        let bytes = store
            .get(&key)
            .await
            .map_err(failed(&format!("read {key}")))?;
        match manifest::decode(&bytes) {
            Ok(manifest) if manifest.cluster == store.cluster() && manifest.group == group => {
                manifest
                    .partitions
                    .into_iter()
                    .for_each(|partition| published.add(partition));
            }
            Ok(_) => published
                .errors
                .push(unreadable(key, "it belongs to another cluster or group")),
            Err(error) => published.errors.push(unreadable(key, error)),
        }
    }
    Ok(published)
}

fn unreadable(key: ObjectKey, reason: impl ToString) -> ArchiveError {
    ArchiveError::Unreadable {
        key,
        reason: reason.to_string(),
    }
}

impl Published {
    fn add(&mut self, partition: PartitionManifest) {
        let topic = self
            .topics
            .entry(partition.id.topic)
            .or_insert_with(|| PublishedTopic {
                id: partition.id.topic,
                name: partition.topic_name.clone(),
                partitions: BTreeMap::new(),
            });
        let index = partition.id.index.get();
        let known = topic.partitions.get(&index).map(|known| known.tiered_until);
        if known.is_none_or(|known| known < partition.tiered_until) {
            topic.partitions.insert(index, partition);
        }
    }
}

/// Why a segment cannot be read on.
#[derive(Debug)]
pub(crate) enum ReadStop {
    /// It is damaged, missing or refused: this partition stands still.
    Damaged(String),
    /// The store does not answer: nothing can go on.
    Store(StoreError),
}

impl From<StoreError> for ReadStop {
    fn from(error: StoreError) -> Self {
        if error.is_transient() {
            Self::Store(error)
        } else {
            Self::Damaged(error.to_string())
        }
    }
}

/// Reads a segment's batches from its start, some MiB at a time.
pub(crate) struct SegmentReader<'a> {
    store: &'a TierStore,
    segment: &'a SegmentEntry,
    key: ObjectKey,
    position: u64,
    read_bytes: u64,
}

impl<'a> SegmentReader<'a> {
    /// A reader at the start of `segment`.
    #[must_use]
    pub(crate) fn new(store: &'a TierStore, segment: &'a SegmentEntry, read_bytes: u64) -> Self {
        let read_bytes = read_bytes.max(HEADER_BYTES as u64);
        Self {
            store,
            segment,
            key: key::data(&segment.object),
            position: 0,
            read_bytes,
        }
    }

    /// Key of the object, for messages.
    #[must_use]
    pub(crate) const fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// The next batches, at least one; `None` at the end. Structure is checked, CRCs are not. Batches that end before
    /// `from` are left out (the answer may be empty then).
    ///
    /// # Errors
    /// See [`ReadStop`].
    pub(crate) async fn next(
        &mut self,
        from: Offset,
    ) -> Result<Option<Vec<RecordBatch>>, ReadStop> {
        if self.position >= self.segment.length {
            return Ok(None);
        }
        let mut window = self.read(self.read_bytes).await?;
        let first =
            BatchHeader::parse(&window).map_err(|error| ReadStop::Damaged(error.to_string()))?;
        let needed = first.total_bytes() as u64;
        if needed > self.segment.length - self.position {
            return Err(ReadStop::Damaged(format!(
                "a batch reaches past the end of the segment at byte {}",
                self.position
            )));
        }
        if needed > window.len() as u64 {
            window = self.read(needed).await?;
        }
        let mut batches = Vec::new();
        while let Some(batch) = split_first(&mut window).map_err(ReadStop::Damaged)? {
            self.position += batch.bytes().len() as u64;
            if batch.header().next_offset() > from {
                batches.push(batch);
            }
        }
        Ok(Some(batches))
    }

    async fn read(&self, bytes: u64) -> Result<Bytes, ReadStop> {
        let start = self.segment.position.get().saturating_add(self.position);
        let length = bytes.min(self.segment.length - self.position);
        Ok(self
            .store
            .get_range(&self.key, start..start.saturating_add(length))
            .await?)
    }
}

/// Takes the first batch off `window`; `None` when no whole batch is left in it.
fn split_first(window: &mut Bytes) -> Result<Option<RecordBatch>, String> {
    if window.len() < HEADER_BYTES {
        return Ok(None);
    }
    let total = BatchHeader::parse(window)
        .map_err(|error| error.to_string())?
        .total_bytes();
    if total > window.len() {
        return Ok(None);
    }
    RecordBatch::parse(window.split_to(total))
        .map(Some)
        .map_err(|error| error.to_string())
}
