//! The image of a data group as bytes: manifest, plus the hot index that a restart needs.
//!
//! Owns: encoding and decoding.
//! Not here: the manifest's own format (`tidelog-tiering`), the checkpoint file around it (`log`).
//! Spec: docs/formats/partition-image.md

use std::collections::BTreeMap;

use super::index::{HotIndex, IndexEntry, LogExtent};
use super::machine::{Frozen, Partitions};
use super::state::PartitionState;
use bytes::{Buf, BufMut, Bytes, BytesMut, TryGetError};
use tidelog_model::{
    ClusterId, LeaderEpoch, LogId, LogIndex, Offset, PartitionId, PartitionIndex, PlacementGroupId,
    TimestampMs, TopicId,
};
use tidelog_tiering::manifest::{self, GroupManifest};
use uuid::Uuid;

const MAGIC: &[u8; 4] = b"TLGI";
const VERSION: u16 = 1;
const LIST_BYTES_MIN: usize = 24;
const ENTRY_BYTES: usize = 52;

/// Why an image could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// It is shorter than it says.
    #[error("the group image is truncated")]
    Truncated,
    /// Not an image, or of an unknown version.
    #[error("not a group image of a known version")]
    Unknown,
    /// The manifest inside is damaged.
    #[error("the manifest in the group image is damaged: {0}")]
    Manifest(String),
}

impl From<TryGetError> for ImageError {
    fn from(_: TryGetError) -> Self {
        Self::Truncated
    }
}

/// The manifest that `frozen` says: what is published, and what the image carries.
#[must_use]
pub fn manifest_of(cluster: ClusterId, group: PlacementGroupId, frozen: &Frozen) -> GroupManifest {
    GroupManifest {
        cluster,
        group,
        last: frozen.at,
        stamp: frozen.stamp,
        dropped_at: frozen.dropped_at,
        partitions: frozen
            .partitions
            .values()
            .map(PartitionState::to_manifest)
            .collect(),
        coordinator: frozen.coordinator.clone(),
    }
}

/// The image of the newest uploaded cut with its log id, or `None` before the first.
#[must_use]
pub fn encode(
    cluster: ClusterId,
    group: PlacementGroupId,
    machine: &Partitions,
) -> Option<(LogId, Bytes)> {
    let frozen = machine.snapshot_candidate()?;
    let manifest = manifest::encode(&manifest_of(cluster, group, frozen));
    let mut out = BytesMut::with_capacity(manifest.len() + 4096);
    out.put_slice(MAGIC);
    out.put_u16_le(VERSION);
    out.put_u16_le(0);
    out.put_u64_le(machine.published_sequence());
    out.put_u32_le(u32::try_from(manifest.len()).ok()?);
    out.put_slice(&manifest);
    let lists: Vec<(PartitionId, Vec<&IndexEntry>)> = frozen
        .partitions
        .keys()
        .filter_map(|partition| machine.get(*partition))
        .map(|state| {
            (
                state.id,
                state
                    .hot
                    .iter()
                    .filter(|e| e.extent.index <= frozen.at.index)
                    .collect::<Vec<_>>(),
            )
        })
        .filter(|(_, entries)| !entries.is_empty())
        .collect();
    out.put_u32_le(u32::try_from(lists.len()).ok()?);
    for (partition, entries) in lists {
        out.put_slice(partition.topic.get().as_bytes());
        out.put_i32_le(partition.index.get());
        out.put_u32_le(u32::try_from(entries.len()).ok()?);
        for entry in entries {
            put_entry(&mut out, entry);
        }
    }
    Some((frozen.at, out.freeze()))
}

/// Reads an image: the partitions, and the coordinator's bytes.
///
/// # Errors
/// [`ImageError`] if the bytes are not exactly one image of a known version.
pub fn decode(image: &Bytes) -> Result<(Partitions, Bytes), ImageError> {
    let mut input = image.clone();
    let mut magic = [0u8; 4];
    input.try_copy_to_slice(&mut magic)?;
    if &magic != MAGIC || input.try_get_u16_le()? != VERSION {
        return Err(ImageError::Unknown);
    }
    input.try_get_u16_le()?;
    let published_sequence = input.try_get_u64_le()?;
    let manifest_len =
        usize::try_from(input.try_get_u32_le()?).map_err(|_| ImageError::Truncated)?;
    if input.remaining() < manifest_len {
        return Err(ImageError::Truncated);
    }
    let manifest = manifest::decode(&input.split_to(manifest_len))
        .map_err(|e| ImageError::Manifest(e.to_string()))?;
    let partitions: BTreeMap<PartitionId, PartitionState> = manifest
        .partitions
        .into_iter()
        .map(|p| (p.id, PartitionState::from_manifest(p)))
        .collect();
    let mut live = partitions.clone();
    let lists = input.try_get_u32_le()? as usize;
    if lists > input.remaining() / LIST_BYTES_MIN {
        return Err(ImageError::Truncated);
    }
    for _ in 0..lists {
        let partition = get_partition(&mut input)?;
        let count = input.try_get_u32_le()? as usize;
        if count > input.remaining() / ENTRY_BYTES {
            return Err(ImageError::Truncated);
        }
        let mut hot = HotIndex::default();
        for _ in 0..count {
            hot.push(get_entry(&mut input)?);
        }
        if let Some(state) = live.get_mut(&partition) {
            state.hot = hot;
        }
    }
    if input.has_remaining() {
        return Err(ImageError::Unknown);
    }
    let coordinator = manifest.coordinator;
    let frozen = Frozen {
        at: manifest.last,
        stamp: manifest.stamp,
        dropped_at: manifest.dropped_at,
        partitions,
        coordinator: coordinator.clone(),
    };
    Ok((
        Partitions::from_image(frozen, live, published_sequence),
        coordinator,
    ))
}

fn put_entry(out: &mut BytesMut, entry: &IndexEntry) {
    out.put_i64_le(entry.base_offset.get());
    out.put_u32_le(entry.records);
    out.put_i32_le(entry.epoch.get());
    out.put_i64_le(entry.max_timestamp.get());
    out.put_i64_le(entry.stamp.get());
    out.put_u64_le(entry.extent.index.get());
    out.put_u32_le(entry.extent.position);
    out.put_u32_le(entry.extent.length);
    out.put_u32_le(0);
}

fn get_entry(input: &mut Bytes) -> Result<IndexEntry, ImageError> {
    let base_offset = Offset::new(input.try_get_i64_le()?);
    let records = input.try_get_u32_le()?;
    let epoch = LeaderEpoch::new(input.try_get_i32_le()?);
    let max_timestamp = TimestampMs::new(input.try_get_i64_le()?);
    let stamp = TimestampMs::new(input.try_get_i64_le()?);
    let index = LogIndex::new(input.try_get_u64_le()?);
    let extent = LogExtent {
        index,
        position: input.try_get_u32_le()?,
        length: input.try_get_u32_le()?,
    };
    input.try_get_u32_le()?;
    Ok(IndexEntry {
        base_offset,
        records,
        epoch,
        max_timestamp,
        stamp,
        extent,
    })
}

fn get_partition(input: &mut Bytes) -> Result<PartitionId, ImageError> {
    let mut bytes = [0u8; 16];
    input.try_copy_to_slice(&mut bytes)?;
    let index = PartitionIndex::new(input.try_get_i32_le()?);
    Ok(PartitionId {
        topic: TopicId::new(Uuid::from_bytes(bytes)),
        index,
    })
}
