//! A disk in memory that forgets and tears like a real one.
//!
//! Owns: the crash model of docs/formats/disk.md: what was not synced survives a crash in any part, sector by sector,
//! name by name; a failed sync leaves bytes that can be read but are never written again by a later sync.
//! Not here: latency (only [`SyncHold`] delays), and sectors torn inside themselves (use [`MemoryDisk::flip_bit`]).

use super::{DirEntry, DirLock, Disk, DiskFile, DiskSpace, OpenMode};
use parking_lot::{Condvar, Mutex};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a disk writes whole or not at all.
const SECTOR: usize = 512;

/// What happens at a chosen operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The operation fails with an I/O error. A write may have been done in part; a sync loses what it was to write.
    Eio,
    /// The operation fails for want of room, with nothing done.
    Enospc,
    /// The power goes: the operation may be done in part, every later one fails until [`MemoryDisk::crash`].
    PowerCut,
}

/// The disk. Clones are the same disk.
#[derive(Clone)]
pub struct MemoryDisk(Arc<Shared>);

struct Shared {
    world: Mutex<World>,
    released: Condvar,
}

struct World {
    inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    dirs: BTreeSet<PathBuf>,
    names: BTreeMap<PathBuf, u64>,
    durable_names: BTreeMap<PathBuf, u64>,
    pending_names: Vec<NameChange>,
    locks: BTreeSet<PathBuf>,
    /// Grows at a crash: handles and locks from before are dead.
    life: u64,
    operations: u64,
    faults: BTreeMap<u64, Fault>,
    power: bool,
    capacity_bytes: u64,
    held: usize,
    waiting: usize,
}

/// One file's bytes.
#[derive(Default)]
struct Inode {
    current: Vec<u8>,
    durable: Vec<u8>,
    /// Every content a sector had since the last sync, oldest first.
    dirty: BTreeMap<usize, Vec<[u8; SECTOR]>>,
}

/// One change of a directory that is not durable yet.
enum NameChange {
    Link(PathBuf, u64),
    Unlink(PathBuf),
    Rename(PathBuf, PathBuf, u64),
}

impl NameChange {
    fn is_in(&self, dir: &Path) -> bool {
        let (Self::Link(path, _) | Self::Unlink(path) | Self::Rename(_, path, _)) = self;
        path.parent() == Some(dir)
    }

    fn apply(&self, names: &mut BTreeMap<PathBuf, u64>) {
        match self {
            Self::Link(path, inode) => {
                names.insert(path.clone(), *inode);
            }
            Self::Unlink(path) => {
                names.remove(path);
            }
            Self::Rename(from, to, inode) => {
                names.retain(|path, held| !(path == from && held == inode));
                names.insert(to.clone(), *inode);
            }
        }
    }
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
        let world = World {
            inodes: BTreeMap::new(),
            next_inode: 1,
            dirs: BTreeSet::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            pending_names: Vec::new(),
            locks: BTreeSet::new(),
            life: 0,
            operations: 0,
            faults: BTreeMap::new(),
            power: true,
            capacity_bytes: u64::MAX,
            held: 0,
            waiting: 0,
        };
        Self(Arc::new(Shared {
            world: Mutex::new(world),
            released: Condvar::new(),
        }))
    }

    /// The disk as a handle.
    #[must_use]
    pub fn shared(&self) -> Arc<dyn Disk> {
        Arc::new(self.clone())
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
    pub fn crash(&self, seed: u64) {
        let mut world = self.0.world.lock();
        let mut random = StdRng::seed_from_u64(seed);
        let keep_percent = match seed % 4 {
            0 => 0,
            1 => 100,
            _ => random.random_range(1..100),
        };
        let pending = std::mem::take(&mut world.pending_names);
        let mut names = world.durable_names.clone();
        for change in pending {
            if random.random_range(0..100) < keep_percent {
                change.apply(&mut names);
            }
        }
        let alive: BTreeSet<u64> = names.values().copied().collect();
        world.inodes.retain(|number, _| alive.contains(number));
        for inode in world.inodes.values_mut() {
            inode.crash(&mut random, keep_percent);
        }
        world.durable_names.clone_from(&names);
        world.names = names;
        world.locks.clear();
        world.faults.clear();
        world.power = true;
        world.life += 1;
    }

    /// The process ends but the machine stays up: every byte stays as the last call left it, nothing became durable by
    /// it; open files and locks are dead.
    pub fn kill(&self) {
        let mut world = self.0.world.lock();
        world.locks.clear();
        world.faults.clear();
        world.life += 1;
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
        let target = inode.current.get_mut(at).ok_or(ErrorKind::InvalidInput)?;
        *target ^= 1 << (bit % 8);
        if let Some(target) = inode.durable.get_mut(at) {
            *target ^= 1 << (bit % 8);
        }
        Ok(())
    }

    /// The bytes of a file as a reader sees them now.
    ///
    /// # Errors
    /// `NotFound` without such a file.
    pub fn contents(&self, path: &Path) -> io::Result<Vec<u8>> {
        Ok(self.0.world.lock().inode_of(path)?.current.clone())
    }

    /// From now on every `sync_data` waits until the returned hold is dropped.
    #[must_use]
    pub fn hold_syncs(&self) -> SyncHold {
        self.0.world.lock().held += 1;
        SyncHold(Arc::clone(&self.0))
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

/// What an operation has to do.
enum Verdict {
    Go,
    /// Do a part of it (a write), then fail.
    Partly(io::Error),
}

fn power_lost() -> io::Error {
    io::Error::other("the simulated power is off")
}

fn eio() -> io::Error {
    io::Error::other("simulated I/O error")
}

impl World {
    fn begin(&mut self) -> io::Result<Verdict> {
        if !self.power {
            return Err(power_lost());
        }
        let number = self.operations;
        self.operations += 1;
        match self.faults.remove(&number) {
            None => Ok(Verdict::Go),
            Some(Fault::Enospc) => Err(ErrorKind::StorageFull.into()),
            Some(Fault::Eio) => Ok(Verdict::Partly(eio())),
            Some(Fault::PowerCut) => {
                self.power = false;
                Ok(Verdict::Partly(power_lost()))
            }
        }
    }

    fn alive(&self, life: u64) -> io::Result<()> {
        if self.life == life {
            Ok(())
        } else {
            Err(io::Error::other("the handle is from before the crash"))
        }
    }

    fn inode_of(&mut self, path: &Path) -> io::Result<&mut Inode> {
        let number = *self.names.get(path).ok_or(ErrorKind::NotFound)?;
        self.inodes
            .get_mut(&number)
            .ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn change_name(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.pending_names.push(change);
        let used: BTreeSet<u64> = self
            .names
            .values()
            .chain(self.durable_names.values())
            .copied()
            .collect();
        let pending = &self.pending_names;
        self.inodes.retain(|number, _| {
            used.contains(number)
                || pending.iter().any(|change| {
                    matches!(change, NameChange::Link(_, inode) | NameChange::Rename(_, _, inode) if inode == number)
                })
        });
    }

    fn used_bytes(&self) -> u64 {
        self.inodes
            .values()
            .map(|inode| inode.current.len() as u64)
            .sum()
    }
}

impl Inode {
    fn write(&mut self, position: usize, bytes: &[u8]) {
        let end = position + bytes.len();
        if self.current.len() < end {
            self.current.resize(end, 0);
        }
        self.current[position..end].copy_from_slice(bytes);
        if bytes.is_empty() {
            return;
        }
        for sector in position / SECTOR..=(end - 1) / SECTOR {
            let content = sector_of(&self.current, sector);
            self.dirty.entry(sector).or_default().push(content);
        }
    }

    fn sync(&mut self) {
        self.durable.resize(self.current.len(), 0);
        for sector in std::mem::take(&mut self.dirty).into_keys() {
            let content = sector_of(&self.current, sector);
            put_sector(&mut self.durable, sector, &content);
        }
    }

    fn crash(&mut self, random: &mut StdRng, keep_percent: u32) {
        let full = self.current.len();
        let mut length = self.durable.len();
        if random.random_range(0..100) < keep_percent {
            length = full;
        }
        let mut bytes = std::mem::take(&mut self.durable);
        bytes.resize(full.max(length), 0);
        for (sector, versions) in std::mem::take(&mut self.dirty) {
            if random.random_range(0..100) >= keep_percent {
                continue;
            }
            let pick = if keep_percent == 100 {
                versions.len() - 1
            } else {
                random.random_range(0..versions.len())
            };
            put_sector(&mut bytes, sector, &versions[pick]);
            length = length.max(full.min((sector + 1) * SECTOR));
        }
        bytes.truncate(length);
        self.durable.clone_from(&bytes);
        self.current = bytes;
    }
}

fn sector_of(bytes: &[u8], sector: usize) -> [u8; SECTOR] {
    let mut content = [0; SECTOR];
    let from = sector * SECTOR;
    let to = bytes.len().min(from + SECTOR);
    if from < to {
        content[..to - from].copy_from_slice(&bytes[from..to]);
    }
    content
}

fn put_sector(bytes: &mut [u8], sector: usize, content: &[u8; SECTOR]) {
    let from = sector * SECTOR;
    let to = bytes.len().min(from + SECTOR);
    if from < to {
        bytes[from..to].copy_from_slice(&content[..to - from]);
    }
}

impl Disk for MemoryDisk {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        let mut world = self.0.world.lock();
        if let Verdict::Partly(error) = world.begin()? {
            return Err(error);
        }
        for level in dir.ancestors() {
            world.dirs.insert(level.to_path_buf());
        }
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let mut world = self.0.world.lock();
        if let Verdict::Partly(error) = world.begin()? {
            return Err(error);
        }
        if !world.dirs.contains(dir) {
            return Err(ErrorKind::NotFound.into());
        }
        let name = |path: &Path| {
            path.file_name()
                .map(|name| name.to_string_lossy().into_owned())
        };
        let mut entries = Vec::new();
        for (path, inode) in world
            .names
            .iter()
            .filter(|(path, _)| path.parent() == Some(dir))
        {
            let length = world
                .inodes
                .get(inode)
                .map_or(0, |inode| inode.current.len() as u64);
            entries.extend(name(path).map(|name| DirEntry {
                name,
                length,
                is_dir: false,
            }));
        }
        for path in world.dirs.iter().filter(|path| path.parent() == Some(dir)) {
            entries.extend(name(path).map(|name| DirEntry {
                name,
                length: 0,
                is_dir: true,
            }));
        }
        entries.sort();
        Ok(entries)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let mut world = self.0.world.lock();
        if let Verdict::Partly(error) = world.begin()? {
            return Err(error);
        }
        let inode = match (world.names.get(path).copied(), mode) {
            (Some(_), OpenMode::CreateNew) => return Err(ErrorKind::AlreadyExists.into()),
            (Some(inode), _) => inode,
            (None, OpenMode::CreateNew) => {
                if !path.parent().is_some_and(|dir| world.dirs.contains(dir)) {
                    return Err(ErrorKind::NotFound.into());
                }
                let inode = world.next_inode;
                world.next_inode += 1;
                world.inodes.insert(inode, Inode::default());
                world.change_name(NameChange::Link(path.to_path_buf(), inode));
                inode
            }
            (None, _) => return Err(ErrorKind::NotFound.into()),
        };
        Ok(Arc::new(MemoryFile {
            disk: Arc::clone(&self.0),
            inode,
            life: world.life,
        }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut world = self.0.world.lock();
        let verdict = world.begin()?;
        let inode = *world.names.get(from).ok_or(ErrorKind::NotFound)?;
        world.change_name(NameChange::Rename(
            from.to_path_buf(),
            to.to_path_buf(),
            inode,
        ));
        verdict.end()
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut world = self.0.world.lock();
        let verdict = world.begin()?;
        if !world.names.contains_key(path) {
            return Err(ErrorKind::NotFound.into());
        }
        world.change_name(NameChange::Unlink(path.to_path_buf()));
        verdict.end()
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut world = self.0.world.lock();
        if let Verdict::Partly(error) = world.begin()? {
            return Err(error);
        }
        let pending = std::mem::take(&mut world.pending_names);
        for change in pending {
            if change.is_in(dir) {
                change.apply(&mut world.durable_names);
            } else {
                world.pending_names.push(change);
            }
        }
        Ok(())
    }

    fn lock_dir(&self, dir: &Path) -> io::Result<Box<dyn DirLock>> {
        let mut world = self.0.world.lock();
        if let Verdict::Partly(error) = world.begin()? {
            return Err(error);
        }
        if !world.dirs.contains(dir) {
            return Err(ErrorKind::NotFound.into());
        }
        if !world.locks.insert(dir.to_path_buf()) {
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(MemoryLock {
            disk: Arc::clone(&self.0),
            dir: dir.to_path_buf(),
            life: world.life,
        }))
    }

    fn space(&self, _dir: &Path) -> io::Result<DiskSpace> {
        let world = self.0.world.lock();
        let available_bytes = world.capacity_bytes.saturating_sub(world.used_bytes());
        Ok(DiskSpace {
            total_bytes: world.capacity_bytes,
            available_bytes,
        })
    }
}

impl Verdict {
    fn end(self) -> io::Result<()> {
        match self {
            Self::Go => Ok(()),
            Self::Partly(error) => Err(error),
        }
    }
}

struct MemoryLock {
    disk: Arc<Shared>,
    dir: PathBuf,
    life: u64,
}

impl DirLock for MemoryLock {}

impl Drop for MemoryLock {
    fn drop(&mut self) {
        let mut world = self.disk.world.lock();
        if world.life == self.life {
            world.locks.remove(&self.dir);
        }
    }
}

struct MemoryFile {
    disk: Arc<Shared>,
    inode: u64,
    life: u64,
}

impl MemoryFile {
    /// Runs one operation on the inode. An unlinked file that is still open has gone from the model; its bytes do not matter.
    fn with<R>(&self, act: impl FnOnce(&mut World, Verdict) -> io::Result<R>) -> io::Result<R> {
        let mut world = self.disk.world.lock();
        world.alive(self.life)?;
        let verdict = world.begin()?;
        act(&mut world, verdict)
    }
}

impl DiskFile for MemoryFile {
    fn length(&self) -> io::Result<u64> {
        let world = self.disk.world.lock();
        world.alive(self.life)?;
        Ok(world
            .inodes
            .get(&self.inode)
            .map_or(0, |inode| inode.current.len() as u64))
    }

    fn read_exact_at(&self, buffer: &mut [u8], position: u64) -> io::Result<()> {
        self.with(|world, verdict| {
            verdict.end()?;
            let from = usize::try_from(position).map_err(io::Error::other)?;
            let inode = world
                .inodes
                .get(&self.inode)
                .ok_or(ErrorKind::UnexpectedEof)?;
            let bytes = inode
                .current
                .get(from..from.saturating_add(buffer.len()))
                .ok_or(ErrorKind::UnexpectedEof)?;
            buffer.copy_from_slice(bytes);
            Ok(())
        })
    }

    fn write_all_at(&self, slices: &[IoSlice<'_>], position: u64) -> io::Result<()> {
        self.with(|world, verdict| {
            let mut at = usize::try_from(position).map_err(io::Error::other)?;
            let total: usize = slices.iter().map(|slice| slice.len()).sum();
            let (used, capacity) = (world.used_bytes(), world.capacity_bytes);
            let Some(inode) = world.inodes.get_mut(&self.inode) else {
                return verdict.end();
            };
            let growth = (at + total).saturating_sub(inode.current.len()) as u64;
            if growth > 0 && used.saturating_add(growth) > capacity {
                return Err(ErrorKind::StorageFull.into());
            }
            for slice in slices {
                inode.write(at, slice);
                at += slice.len();
            }
            verdict.end()
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut world = self.disk.world.lock();
        world.waiting += 1;
        while world.held > 0 {
            self.disk.released.wait(&mut world);
        }
        world.waiting -= 1;
        drop(world);
        self.with(|world, verdict| {
            let Some(inode) = world.inodes.get_mut(&self.inode) else {
                return verdict.end();
            };
            match verdict {
                Verdict::Go => inode.sync(),
                // As Linux does: the pages count as clean from now on, though they never reached the disk.
                Verdict::Partly(_) if world.power => inode.dirty.clear(),
                Verdict::Partly(_) => {}
            }
            verdict.end()
        })
    }
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
