//! The operating system's files.
//!
//! Owns: system calls behind [`Disk`] and [`DiskFile`].
//! Spec: docs/formats/disk.md

#![allow(clippy::disallowed_methods, reason = "here the real thing lives")]

use super::{DirEntry, DirLock, Disk, DiskFile, DiskSpace, OpenMode};
use rustix::buffer::spare_capacity;
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

/// Slices per `pwritev`: the `IOV_MAX` of Linux, macOS and the BSDs.
const IOV_MAX: usize = 1024;

/// Files of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

impl RealDisk {
    /// A shared handle.
    #[must_use]
    pub fn shared() -> Arc<dyn Disk> {
        Arc::new(Self)
    }
}

impl Disk for RealDisk {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        if dir.is_dir() {
            return Ok(());
        }
        let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
        if let Some(parent) = parent {
            self.create_dir_all(parent)?;
        }
        match std::fs::create_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => {}
            other => other?,
        }
        self.sync_dir(parent.unwrap_or(Path::new(".")))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let metadata = match entry.metadata() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other?,
            };
            let is_dir = metadata.is_dir();
            let length = if is_dir { 0 } else { metadata.len() };
            entries.push(DirEntry {
                name,
                length,
                is_dir,
            });
        }
        entries.sort();
        Ok(entries)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(mode != OpenMode::Read)
            .create_new(mode == OpenMode::CreateNew);
        Ok(Arc::new(RealFile(options.open(path)?)))
    }

    fn others_may_read(&self, path: &Path) -> io::Result<bool> {
        const GROUP_AND_WORLD: u32 = 0o044;
        let mode = std::fs::metadata(path)?.permissions().mode();
        Ok(mode & GROUP_AND_WORLD != 0)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn lock_dir(&self, dir: &Path) -> io::Result<Box<dyn DirLock>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(dir.join("LOCK"))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Box::new(RealLock { _file: file }))
    }

    fn space(&self, dir: &Path) -> io::Result<DiskSpace> {
        let stat = rustix::fs::statvfs(dir)?;
        Ok(DiskSpace {
            total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
            available_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        })
    }
}

struct RealLock {
    _file: File,
}

impl DirLock for RealLock {}

struct RealFile(File);

impl DiskFile for RealFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_exact_at(&self, buffer: &mut [u8], position: u64) -> io::Result<()> {
        self.0.read_exact_at(buffer, position)
    }

    fn read_vec_at(&self, position: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(length);
        while bytes.len() < length {
            let at = position + u64::try_from(bytes.len()).map_err(io::Error::other)?;
            match rustix::io::pread(&self.0, spare_capacity(&mut bytes), at) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // An allocator may give more than was asked for, and the read then takes more.
        bytes.truncate(length);
        Ok(bytes)
    }

    fn write_all_at(&self, slices: &[IoSlice<'_>], position: u64) -> io::Result<()> {
        let mut position = position;
        for chunk in slices.chunks(IOV_MAX) {
            position += write_chunk(&self.0, chunk, position)?;
        }
        Ok(())
    }

    fn reserve(&self, length: u64) -> io::Result<()> {
        let flags = rustix::fs::FallocateFlags::empty();
        Ok(rustix::fs::fallocate(&self.0, flags, 0, length)?)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

/// Writes at most `IOV_MAX` slices; goes on after a short write. Returns the bytes written (all of them).
fn write_chunk(file: &File, slices: &[IoSlice<'_>], position: u64) -> io::Result<u64> {
    let total: usize = slices.iter().map(|slice| slice.len()).sum();
    if total == 0 {
        return Ok(0);
    }
    let written = loop {
        match rustix::io::pwritev(file, slices, position) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    if written < total {
        write_rest(file, slices, position, written)?;
    }
    u64::try_from(total).map_err(io::Error::other)
}

/// A short write is rare (a signal, a quota, a full disk): what is left goes out slice by slice, and the next error tells why.
fn write_rest(
    file: &File,
    slices: &[IoSlice<'_>],
    position: u64,
    written: usize,
) -> io::Result<()> {
    let mut skip = written;
    let mut at = position + u64::try_from(written).map_err(io::Error::other)?;
    for slice in slices {
        let rest = slice.get(skip.min(slice.len())..).unwrap_or_default();
        skip = skip.saturating_sub(slice.len());
        file.write_all_at(rest, at)?;
        at += u64::try_from(rest.len()).map_err(io::Error::other)?;
    }
    Ok(())
}
