//! The local disk, as the group log needs it.
//!
//! Owns: the traits, and what each call promises about durability.
//! Not here: formats; they belong to who writes the bytes (`docs/formats/`).
//! Spec: docs/formats/disk.md
//!
//! Calls block. A caller on an async thread moves them to a thread of its own or to the blocking pool.

mod memory;
mod real;

pub use memory::{Fault, FaultSource, Loss, MemoryDisk, OperationKind, SyncHold};
pub use real::RealDisk;

use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// The name inside the directory.
    pub name: String,
    /// Length in bytes; 0 for a directory.
    pub length: u64,
    /// Whether the name is a directory.
    pub is_dir: bool,
}

/// How [`Disk::open`] treats the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// It must exist; reads only.
    Read,
    /// It must exist; reads and writes.
    ReadWrite,
    /// It must not exist; reads and writes.
    CreateNew,
}

/// Room on the file system that holds a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// Size of the file system.
    pub total_bytes: u64,
    /// What an ordinary process may still write.
    pub available_bytes: u64,
}

/// Holds a directory for one owner until it is dropped (or the process ends).
pub trait DirLock: Send + Sync {}

/// A disk. Names are not durable until [`Disk::sync_dir`] on their directory, bytes not until
/// [`DiskFile::sync_data`]; a crash may keep any part of what was not synced.
pub trait Disk: Send + Sync + 'static {
    /// Creates a directory and its parents; every level it created is durable when it returns. An existing directory is no error.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;
    /// The names in a directory, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>>;
    /// Opens a file.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>>;
    /// Renames a file inside one directory, replacing what has the name. Atomic; durable after `sync_dir`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file's name; durable after `sync_dir`.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes every creation, rename and removal in the directory so far durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Takes the directory for this owner (a file `LOCK` in it). `WouldBlock` when somebody else has it.
    fn lock_dir(&self, dir: &Path) -> io::Result<Box<dyn DirLock>>;
    /// Whether others than the file's owner may read it. Disks without owners say no.
    fn others_may_read(&self, _path: &Path) -> io::Result<bool> {
        Ok(false)
    }
    /// Room on the file system of `dir`.
    fn space(&self, dir: &Path) -> io::Result<DiskSpace>;
    /// How long the next sync is to take. A real disk takes its time by itself and says zero; on a simulated one
    /// calls return at once, and who writes from an async task waits this long between what it wrote and its sync. Asking draws anew.
    fn delay(&self) -> Duration {
        Duration::ZERO
    }
    /// Whether calls return at once, however long a disk would take: a simulation's. Who would use a thread for them does not then.
    fn is_instant(&self) -> bool {
        false
    }
}

/// An open file. Calls may run at the same time from several threads.
pub trait DiskFile: Send + Sync + 'static {
    /// Current length in bytes.
    fn length(&self) -> io::Result<u64>;
    /// Fills `buffer` from `position`; `UnexpectedEof` when the file ends before.
    fn read_exact_at(&self, buffer: &mut [u8], position: u64) -> io::Result<()>;
    /// The `length` bytes from `position`; `UnexpectedEof` when the file ends before. For large reads: the buffer is not
    /// cleared first. The caller has checked `length`: that much is allocated.
    fn read_vec_at(&self, position: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.read_exact_at(&mut bytes, position)?;
        Ok(bytes)
    }
    /// Writes all slices back to back at `position`, in one system call where the count allows it. After an error the
    /// range holds old bytes, new bytes, or a mix.
    fn write_all_at(&self, slices: &[IoSlice<'_>], position: u64) -> io::Result<()>;
    /// Makes the file at least `length` long and takes the room for it, so that a later write inside it does not fail for
    /// lack of room; what was not written reads as zeros. Durable after `sync_data`. Writes zeros where the disk has no
    /// better way.
    fn reserve(&self, length: u64) -> io::Result<()> {
        static CHUNK: [u8; 64 * 1024] = [0; 64 * 1024];
        let mut position = self.length()?;
        while position < length {
            let take = usize::try_from(length - position)
                .unwrap_or(CHUNK.len())
                .min(CHUNK.len());
            self.write_all_at(&[IoSlice::new(&CHUNK[..take])], position)?;
            position += take as u64;
        }
        Ok(())
    }
    /// Makes the bytes (and the length) durable. After an error nobody knows which bytes are: they must not be
    /// acknowledged, and calling it again proves nothing.
    fn sync_data(&self) -> io::Result<()>;
}
