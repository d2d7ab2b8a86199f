//! Deleting the files of a replica that this broker no longer holds.
//!
//! Owns: [`drop_replica`], [`finish_drop`], [`was_dropped`], the marks beside a group's directory.
//! Not here: when a replica may go (`node`).
//! Spec: docs/protocols/membership.md (replicas move), docs/formats/group-log.md (marks)
//!
//! Two marks: `<group>.dropping` while files are being deleted, so that a crash in between never leaves half a log that looks like a whole one;
//! `<group>.dropped` from then on, so that a replica that comes back never sets up a group that exists elsewhere.

use super::error::LogError;
use super::recovery::io_error;
use std::path::{Path, PathBuf};
use tidelog_env::disk::{Disk, OpenMode};
use tidelog_env::{CrashPoint, crash_point};

const DROPPING: &str = "dropping";
const DROPPED: &str = "dropped";

fn mark(dir: &Path, extension: &str) -> PathBuf {
    dir.with_extension(extension)
}

fn exists(disk: &dyn Disk, path: &Path) -> Result<bool, LogError> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(false);
    };
    disk.create_dir_all(parent)
        .map_err(io_error("creating", parent))?;
    let listed = disk.list(parent).map_err(io_error("listing", parent))?;
    Ok(listed.iter().any(|entry| name == entry.name.as_str()))
}

fn sync_parent(disk: &dyn Disk, path: &Path) -> Result<(), LogError> {
    match path.parent() {
        Some(parent) => disk.sync_dir(parent).map_err(io_error("syncing", parent)),
        None => Ok(()),
    }
}

/// Whether a replica of this group was dropped here before.
///
/// # Errors
/// The disk.
pub fn was_dropped(disk: &dyn Disk, dir: &Path) -> Result<bool, LogError> {
    exists(disk, &mark(dir, DROPPED))
}

/// Deletes the files in `dir`, the directory of a group whose log is closed. When it returns they are gone for good; after a crash
/// [`finish_drop`] goes on.
///
/// # Errors
/// The disk; some files may be gone, and the mark says so.
pub fn drop_replica(disk: &dyn Disk, dir: &Path) -> Result<(), LogError> {
    let dropping = mark(dir, DROPPING);
    if !exists(disk, &dropping)? {
        let made = disk.open(&dropping, OpenMode::CreateNew);
        made.map_err(io_error("creating", &dropping))?;
        crash_point(CrashPoint::DropMarked);
        sync_parent(disk, &dropping)?;
    }
    finish_drop(disk, dir)
}

/// Goes on where a crash interrupted [`drop_replica`]; else does nothing. Called before a group's log is opened.
///
/// # Errors
/// As [`drop_replica`].
pub fn finish_drop(disk: &dyn Disk, dir: &Path) -> Result<(), LogError> {
    let (dropping, dropped) = (mark(dir, DROPPING), mark(dir, DROPPED));
    if !exists(disk, &dropping)? {
        return Ok(());
    }
    if exists(disk, dir)? {
        for entry in disk.list(dir).map_err(io_error("listing", dir))? {
            let path = dir.join(&entry.name);
            disk.remove(&path).map_err(io_error("deleting", &path))?;
            crash_point(CrashPoint::DropFileGone);
        }
        disk.sync_dir(dir).map_err(io_error("syncing", dir))?;
        crash_point(CrashPoint::DropFilesGone);
    }
    if exists(disk, &dropped)? {
        disk.remove(&dropped)
            .map_err(io_error("deleting", &dropped))?;
    }
    disk.rename(&dropping, &dropped)
        .map_err(io_error("renaming", &dropping))?;
    crash_point(CrashPoint::DropRenamed);
    sync_parent(disk, &dropped)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use tidelog_env::disk::RealDisk;

    /// Proves that a dropped replica leaves its mark and no file, again and again, and that files of a replica that came back are not touched.
    #[test]
    fn dropped_and_back() {
        let (home, disk) = (tempfile::tempdir().unwrap(), RealDisk::shared());
        let dir = home.path().join("groups/7");
        let file = dir.join("00000000000000000001.log");
        finish_drop(disk.as_ref(), &dir).unwrap();
        assert!(!was_dropped(disk.as_ref(), &dir).unwrap());
        for _ in 0..2 {
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(&file, b"log").unwrap();
            drop_replica(disk.as_ref(), &dir).unwrap();
            assert!(was_dropped(disk.as_ref(), &dir).unwrap() && !file.exists());
        }
        std::fs::write(&file, b"new log").unwrap();
        finish_drop(disk.as_ref(), &dir).unwrap();
        assert!(file.exists());
        // Group 70 is another group than group 7.
        assert!(!was_dropped(disk.as_ref(), &home.path().join("groups/70")).unwrap());
    }

    /// Proves that deleting goes on after a crash in between, before anything is read.
    #[test]
    fn a_crash_in_between() {
        let (home, disk) = (tempfile::tempdir().unwrap(), RealDisk::shared());
        let dir = home.path().join("groups/7");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(home.path().join("groups/7.dropping"), b"").unwrap();
        std::fs::write(dir.join("00000000000000000002.log"), b"half").unwrap();
        finish_drop(disk.as_ref(), &dir).unwrap();
        assert!(was_dropped(disk.as_ref(), &dir).unwrap());
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    }
}
