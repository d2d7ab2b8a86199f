//! A disk in memory that forgets and tears like a real one.
//!
//! Owns: the crash model of docs/formats/disk.md: what was not synced survives a crash in any part, sector by sector,
//! name by name; a failed sync leaves bytes that can be read but are never written again by a later sync.
//! Not here: latency (only [`SyncHold`] delays), and sectors torn inside themselves (use [`MemoryDisk::flip_bit`]).

mod content;
mod faults;
mod handle;
mod world;

pub use faults::{Fault, FaultSource, OperationKind};

use super::{DirEntry, DirLock, Disk, DiskFile, DiskSpace, OpenMode};
use handle::Handle;
use parking_lot::{Condvar, Mutex};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use world::World;

/// What a disk writes whole or not at all.
const SECTOR: usize = 512;

/// What is stored or not of a sparse file, and shared between what is read and what is durable. A small append copies as much
/// the first time after a sync: 4 KiB are nothing, and a file of 8 MiB that is full has 2048 of them.
const CHUNK: usize = 4096;
const SECTORS_PER_CHUNK: usize = CHUNK / SECTOR;

/// The disk. Clones are the same disk.
#[derive(Clone)]
pub struct MemoryDisk(Arc<Shared>);

struct Shared {
    world: Mutex<World>,
    released: Condvar,
}

/// What a power cut took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Loss {
    /// Bytes that could be read before cannot be read after.
    pub bytes: bool,
    /// Of what one file had unsynced a part survived and a part did not.
    pub torn: bool,
    /// A creation, renaming or removal was undone.
    pub names: bool,
}

impl Default for MemoryDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryDisk {
    /// An empty disk with no limit.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Shared {
            world: Mutex::new(World::new()),
            released: Condvar::new(),
        }))
    }

    /// The disk as a handle that outlives crashes.
    #[must_use]
    pub fn shared(&self) -> Arc<dyn Disk> {
        Arc::new(self.clone())
    }

    /// The disk as a handle of one process: once the process was killed or the power cut, every call fails and changes nothing.
    #[must_use]
    pub fn open_life(&self) -> Arc<dyn Disk> {
        Arc::new(self.handle())
    }

    fn handle(&self) -> Handle {
        Handle {
            disk: Arc::clone(&self.0),
            life: self.0.world.lock().life,
        }
    }

    /// From now on `source` is asked what happens at each operation that no planned fault is for.
    pub fn set_fault_source(&self, source: Arc<dyn FaultSource>) {
        self.0.world.lock().source = Some(source);
    }

    /// How many operations (reads included) ran so far. The next one has this number.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.0.world.lock().operations
    }

    /// Lets `fault` happen at operation number `operation`.
    pub fn fail_at(&self, operation: u64, fault: Fault) {
        self.0.world.lock().faults.insert(operation, fault);
    }

    /// Bounds the sum of all file lengths: what would grow it further fails with `StorageFull`.
    pub fn set_capacity(&self, bytes: u64) {
        self.0.world.lock().capacity_bytes = bytes;
    }

    /// Power goes and comes back: keeps what was synced, and of the rest an arbitrary part that `seed` chooses (all,
    /// none, or any mix of sectors and of name changes). Open files and locks are dead; planned faults are forgotten.
    /// Says what was lost.
    pub fn crash(&self, seed: u64) -> Loss {
        let mut world = self.0.world.lock();
        let loss = world.crash(seed);
        world.power = true;
        loss
    }

    /// The process ends but the machine stays up: every byte stays as the last call left it, nothing became durable by
    /// it; open files and locks are dead.
    pub fn kill(&self) {
        self.0.world.lock().end_life();
    }

    /// The disk is replaced by an empty one of the same size; open files and locks are dead.
    pub fn replace(&self) {
        self.0.world.lock().wipe();
    }

    /// Forgets planned faults.
    pub fn heal(&self) {
        self.0.world.lock().faults.clear();
    }

    /// Undoes a [`Fault::PowerCut`] without the loss: only the process is gone (see [`MemoryDisk::kill`]).
    pub fn restore_power(&self) {
        self.0.world.lock().power = true;
    }

    /// Turns one bit of a file, on the disk and in the cache.
    ///
    /// # Errors
    /// `NotFound` without such a file, `InvalidInput` past its end.
    pub fn flip_bit(&self, path: &Path, byte: u64, bit: u8) -> io::Result<()> {
        let mut world = self.0.world.lock();
        let inode = world.inode_of(path)?;
        let at = usize::try_from(byte).map_err(io::Error::other)?;
        if at >= inode.current.length() {
            return Err(ErrorKind::InvalidInput.into());
        }
        inode.flip(at, bit);
        Ok(())
    }

    /// Turns one bit, chosen by `seed`, of a synced sector of one of the files that `may` allows, for good. Which: file, byte, bit.
    /// `None` when no such file has synced bytes.
    #[must_use]
    pub fn rot(&self, seed: u64, may: &dyn Fn(&Path) -> bool) -> Option<(PathBuf, u64, u8)> {
        self.0.world.lock().rot(seed, may)
    }

    /// The bytes of a file as a reader sees them now.
    ///
    /// # Errors
    /// `NotFound` without such a file.
    pub fn contents(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut world = self.0.world.lock();
        let inode = world.inode_of(path)?;
        let mut bytes = vec![0; inode.current.length()];
        inode.current.read(0, &mut bytes);
        Ok(bytes)
    }

    /// The names of all files, sorted.
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        self.0.world.lock().names.keys().cloned().collect()
    }

    /// From now on every `sync_data` waits until the returned hold is dropped.
    #[must_use]
    pub fn hold_syncs(&self) -> SyncHold {
        self.0.world.lock().held += 1;
        SyncHold(Arc::clone(&self.0))
    }
}

/// Each call is one of the present life.
impl Disk for MemoryDisk {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.handle().create_dir_all(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.handle().list(dir)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        self.handle().open(path, mode)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.handle().rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.handle().remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.handle().sync_dir(dir)
    }

    fn lock_dir(&self, dir: &Path) -> io::Result<Box<dyn DirLock>> {
        self.handle().lock_dir(dir)
    }

    fn space(&self, dir: &Path) -> io::Result<DiskSpace> {
        self.handle().space(dir)
    }

    fn delay(&self) -> Duration {
        self.handle().delay()
    }
}

/// Delays every `sync_data` while it lives.
pub struct SyncHold(Arc<Shared>);

impl SyncHold {
    /// How many syncs wait now.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.0.world.lock().waiting
    }
}

impl Drop for SyncHold {
    fn drop(&mut self) {
        self.0.world.lock().held -= 1;
        self.0.released.notify_all();
    }
}

#[cfg(test)]
mod tests;
