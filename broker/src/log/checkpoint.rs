//! Checkpoint files: an image of the group's state at a log id.
//!
//! Owns: `.snap` files. Two are kept.
//! Not here: what the image means (the state machines), when one is taken (placement).
//! Spec: docs/formats/group-log.md, "Checkpoint"

use super::error::LogError;
use super::files::{FileName, checkpoint_name, parse_name, sync_names};
use super::format::Identity;
use super::recovery::io_error;
use bytes::Bytes;
use std::io::{self, ErrorKind, IoSlice};
use std::path::Path;
use tidelog_env::disk::OpenMode;
use tidelog_env::{CrashPoint, Disk, Mutant, crash_point, mutant};
use tidelog_model::LogId;

const MAGIC: &[u8; 8] = b"TIDESNP1";
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 72;
const CRC_AT: usize = 64;
/// Checkpoints kept.
const KEPT: usize = 2;
/// An image at most: what a damaged length may make a reader allocate. 10 000 partitions of 20 KiB fit 5 times.
pub(super) const IMAGE_BYTES_MAX: usize = 1 << 30;

/// The 72 bytes before an image.
pub(super) fn encode_header(identity: Identity, id: LogId, image: &[u8]) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
    bytes[16..32].copy_from_slice(identity.cluster.get().as_bytes());
    bytes[32..36].copy_from_slice(&identity.group.get().to_le_bytes());
    bytes[36..40].copy_from_slice(&crc32c::crc32c(image).to_le_bytes());
    bytes[40..48].copy_from_slice(&id.term.get().to_le_bytes());
    bytes[48..56].copy_from_slice(&id.index.get().to_le_bytes());
    bytes[56..64].copy_from_slice(&(image.len() as u64).to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..CRC_AT]);
    bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Writes a checkpoint; when it returns it is durable and at most two are left.
pub(super) fn save(
    disk: &dyn Disk,
    dir: &Path,
    identity: Identity,
    id: LogId,
    image: &[u8],
) -> Result<(), LogError> {
    if image.len() > IMAGE_BYTES_MAX {
        return Err(LogError::Invalid(format!(
            "a checkpoint of {} bytes is too large",
            image.len()
        )));
    }
    let path = dir.join(checkpoint_name(id));
    let tmp = dir.join(format!("{}.tmp", checkpoint_name(id)));
    let written = write(
        disk,
        dir,
        &path,
        &tmp,
        &encode_header(identity, id, image),
        image,
    );
    if written.is_err() {
        // Best effort: what stays is removed at the next start.
        let _ = disk.remove(&tmp);
    }
    written.map_err(io_error("saving checkpoint", &path))?;
    crash_point(CrashPoint::CheckpointSaved);
    let saved = list(disk, dir)?;
    for old in saved.iter().rev().skip(KEPT) {
        let path = dir.join(checkpoint_name(*old));
        disk.remove(&path)
            .map_err(io_error("removing checkpoint", &path))?;
    }
    Ok(())
}

fn write(
    disk: &dyn Disk,
    dir: &Path,
    path: &Path,
    tmp: &Path,
    header: &[u8],
    image: &[u8],
) -> io::Result<()> {
    match disk.remove(tmp) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = disk.open(tmp, OpenMode::CreateNew)?;
    file.write_all_at(&[IoSlice::new(header), IoSlice::new(image)], 0)?;
    crash_point(CrashPoint::CheckpointWritten);
    if !mutant(Mutant::CheckpointNotSynced) {
        file.sync_data()?;
    }
    crash_point(CrashPoint::CheckpointSynced);
    disk.rename(tmp, path)?;
    crash_point(CrashPoint::CheckpointRenamed);
    sync_names(disk, dir)
}

/// All checkpoints, oldest first.
fn list(disk: &dyn Disk, dir: &Path) -> Result<Vec<LogId>, LogError> {
    let names = disk.list(dir).map_err(io_error("listing", dir))?;
    let mut ids: Vec<LogId> = names
        .iter()
        .filter_map(|entry| match parse_name(&entry.name) {
            FileName::Checkpoint(id) => Some(id),
            _ => None,
        })
        .collect();
    ids.sort_by_key(|id| (id.index, id.term));
    Ok(ids)
}

/// The newest one that is whole. When it is not the newest of all, that is logged, and damage if the log was `purged` past it.
pub(super) fn load_newest(
    disk: &dyn Disk,
    dir: &Path,
    identity: Identity,
    purged: Option<LogId>,
) -> Result<Option<(LogId, Bytes)>, LogError> {
    let mut damage = None;
    for id in list(disk, dir)?.into_iter().rev() {
        let path = dir.join(checkpoint_name(id));
        match load(disk, &path, identity, id) {
            Ok(_) if damage.is_some() && Some(id) < purged => break,
            Ok(image) => return Ok(Some((id, image))),
            Err(LogError::Damaged {
                path,
                position,
                what,
            }) => {
                tracing::error!(path = %path.display(), "damaged checkpoint: {what}; trying the one before");
                damage.get_or_insert(LogError::Damaged {
                    path,
                    position,
                    what,
                });
            }
            Err(other) => return Err(other),
        }
    }
    damage.map_or(Ok(None), Err)
}

fn load(disk: &dyn Disk, path: &Path, identity: Identity, id: LogId) -> Result<Bytes, LogError> {
    let read = || io_error("reading checkpoint", path);
    let damaged = |what: &str| LogError::Damaged {
        path: path.to_path_buf(),
        position: 0,
        what: what.to_owned(),
    };
    let file = disk.open(path, OpenMode::Read).map_err(read())?;
    let length = usize::try_from(file.length().map_err(read())?).unwrap_or(usize::MAX);
    if !(HEADER_BYTES..=HEADER_BYTES + IMAGE_BYTES_MAX).contains(&length) {
        return Err(damaged("its length is impossible"));
    }
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, 0).map_err(read())?;
    let bytes = Bytes::from(bytes);
    let image = bytes.slice(HEADER_BYTES..);
    if bytes.starts_with(MAGIC)
        && bytes.get(8..10) != Some(&VERSION.to_le_bytes()[..])
        && bytes.get(CRC_AT..CRC_AT + 4)
            == Some(&crc32c::crc32c(&bytes[..CRC_AT]).to_le_bytes()[..])
    {
        let version = u16::from_le_bytes([bytes[8], bytes[9]]);
        return Err(LogError::Version {
            path: path.to_path_buf(),
            version,
        });
    }
    // The header says nothing that is not known already, so it must be the one that would be written now.
    if bytes[..HEADER_BYTES] == encode_header(identity, id, &image)[..] {
        Ok(image)
    } else {
        Err(damaged(
            "it does not match its checksum, or belongs to another group",
        ))
    }
}
