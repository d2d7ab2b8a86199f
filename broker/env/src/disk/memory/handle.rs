//! The calls: a handle of one life of the memory disk, and its open files.
//!
//! Owns: which call is which operation; that a handle of an earlier life fails and changes nothing.
//! Not here: what a crash keeps (`world.rs`, `content.rs`).

use super::super::{DirEntry, DirLock, Disk, DiskFile, DiskSpace, OpenMode};
use super::Shared;
use super::faults::{Fault, OperationKind};
use super::world::{NameChange, Verdict, World};
use parking_lot::MutexGuard;
use std::io::{self, ErrorKind, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The disk as one process has it.
#[derive(Clone)]
pub(super) struct Handle {
    pub(super) disk: Arc<Shared>,
    pub(super) life: u64,
}

impl Handle {
    /// Runs an operation whole or not at all.
    fn whole(&self, kind: OperationKind, path: &Path) -> io::Result<MutexGuard<'_, World>> {
        let (world, verdict) = self.begin(kind, path)?;
        verdict.end()?;
        Ok(world)
    }

    fn begin(
        &self,
        kind: OperationKind,
        path: &Path,
    ) -> io::Result<(MutexGuard<'_, World>, Verdict)> {
        let mut world = self.disk.world.lock();
        world.alive(self.life)?;
        let verdict = world.begin(kind, path)?;
        Ok((world, verdict))
    }
}

impl Disk for Handle {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        let mut world = self.whole(OperationKind::Create, dir)?;
        for level in dir.ancestors() {
            world.dirs.insert(level.to_path_buf());
        }
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let world = self.whole(OperationKind::Look, dir)?;
        if !world.dirs.contains(dir) {
            return Err(ErrorKind::NotFound.into());
        }
        let name = |path: &Path| {
            path.file_name()
                .map(|name| name.to_string_lossy().into_owned())
        };
        let mut entries = Vec::new();
        // What is below a directory comes right after it.
        let below = world.names.range(dir.to_path_buf()..);
        for (path, inode) in below.take_while(|(path, _)| path.starts_with(dir)) {
            if path.parent() == Some(dir) {
                let length = world.length_of(*inode);
                entries.extend(name(path).map(|name| DirEntry {
                    name,
                    length,
                    is_dir: false,
                }));
            }
        }
        let below = world.dirs.range(dir.to_path_buf()..);
        for path in below.take_while(|path| path.starts_with(dir)) {
            if path.parent() == Some(dir) {
                entries.extend(name(path).map(|name| DirEntry {
                    name,
                    length: 0,
                    is_dir: true,
                }));
            }
        }
        entries.sort();
        Ok(entries)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let kind = match mode {
            OpenMode::CreateNew => OperationKind::Create,
            OpenMode::Read | OpenMode::ReadWrite => OperationKind::Look,
        };
        let mut world = self.whole(kind, path)?;
        let inode = match (world.names.get(path).copied(), mode) {
            (Some(_), OpenMode::CreateNew) => return Err(ErrorKind::AlreadyExists.into()),
            (Some(inode), _) => inode,
            (None, OpenMode::CreateNew) => {
                if !path.parent().is_some_and(|dir| world.dirs.contains(dir)) {
                    return Err(ErrorKind::NotFound.into());
                }
                world.create(path)
            }
            (None, _) => return Err(ErrorKind::NotFound.into()),
        };
        Ok(Arc::new(MemoryFile {
            handle: self.clone(),
            inode,
            path: path.to_path_buf(),
        }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (mut world, verdict) = self.begin(OperationKind::ChangeNames, to)?;
        let Some(inode) = world.names.get(from).copied() else {
            world.rename_dir(from, to)?;
            return verdict.end();
        };
        world.change_name(NameChange::Rename(
            from.to_path_buf(),
            to.to_path_buf(),
            inode,
        ));
        verdict.end()
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let (mut world, verdict) = self.begin(OperationKind::ChangeNames, path)?;
        if !world.names.contains_key(path) {
            return Err(ErrorKind::NotFound.into());
        }
        world.change_name(NameChange::Unlink(path.to_path_buf()));
        verdict.end()
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.whole(OperationKind::SyncDir, dir)?.sync_dir(dir);
        Ok(())
    }

    fn lock_dir(&self, dir: &Path) -> io::Result<Box<dyn DirLock>> {
        let mut world = self.whole(OperationKind::Look, dir)?;
        if !world.dirs.contains(dir) {
            return Err(ErrorKind::NotFound.into());
        }
        if !world.locks.insert(dir.to_path_buf()) {
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(MemoryLock {
            handle: self.clone(),
            dir: dir.to_path_buf(),
        }))
    }

    fn space(&self, _dir: &Path) -> io::Result<DiskSpace> {
        let world = self.disk.world.lock();
        world.alive(self.life)?;
        let available_bytes = world.capacity_bytes.saturating_sub(world.used_bytes());
        Ok(DiskSpace {
            total_bytes: world.capacity_bytes,
            available_bytes,
        })
    }

    fn delay(&self) -> Duration {
        let source = self.disk.world.lock().source.clone();
        source.map_or(Duration::ZERO, |source| source.delay())
    }

    fn is_instant(&self) -> bool {
        true
    }
}

struct MemoryLock {
    handle: Handle,
    dir: PathBuf,
}

impl DirLock for MemoryLock {}

impl Drop for MemoryLock {
    fn drop(&mut self) {
        let mut world = self.handle.disk.world.lock();
        if world.life == self.handle.life {
            world.locks.remove(&self.dir);
        }
    }
}

/// An unlinked file that is still open has gone from the model; its bytes do not matter.
struct MemoryFile {
    handle: Handle,
    inode: u64,
    path: PathBuf,
}

impl MemoryFile {
    /// Puts the bytes of the slices somewhere, no more than `limit` of them.
    fn put(&self, world: &mut World, to: u64, at: usize, slices: &[IoSlice<'_>], limit: usize) {
        let Some(inode) = world.inodes.get_mut(&to) else {
            return;
        };
        let mut done = 0;
        for slice in slices {
            let take = slice.len().min(limit - done);
            inode.write(at + done, &slice[..take]);
            done += take;
            if done == limit {
                return;
            }
        }
    }
}

impl DiskFile for MemoryFile {
    fn length(&self) -> io::Result<u64> {
        let world = self.handle.disk.world.lock();
        world.alive(self.handle.life)?;
        Ok(world.length_of(self.inode))
    }

    fn read_exact_at(&self, buffer: &mut [u8], position: u64) -> io::Result<()> {
        let world = self.handle.whole(OperationKind::Read, &self.path)?;
        let from = usize::try_from(position).map_err(io::Error::other)?;
        let inode = world
            .inodes
            .get(&self.inode)
            .ok_or(ErrorKind::UnexpectedEof)?;
        if from.saturating_add(buffer.len()) > inode.current.length() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        inode.current.read(from, buffer);
        Ok(())
    }

    fn write_all_at(&self, slices: &[IoSlice<'_>], position: u64) -> io::Result<()> {
        let at = usize::try_from(position).map_err(io::Error::other)?;
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        let mut world = self.handle.disk.world.lock();
        world.alive(self.handle.life)?;
        let now = usize::try_from(world.length_of(self.inode)).map_err(io::Error::other)?;
        let growth = (at + total).saturating_sub(now);
        let kind = if growth > 0 {
            OperationKind::Grow
        } else {
            OperationKind::Write
        };
        let verdict = world.begin(kind, &self.path)?;
        if world.inodes.contains_key(&self.inode) {
            world.take_room(growth)?;
        }
        let (to, at, limit) = match verdict {
            Verdict::Prefix(bytes) => (self.inode, at, total.min(bytes)),
            Verdict::Elsewhere(seed) => match world.elsewhere(seed, &self.path, at, total) {
                Some((inode, place)) => {
                    if let Some(source) = &world.source {
                        source.happened(kind, Fault::Misdirect(seed));
                    }
                    (inode, place, total)
                }
                None => (self.inode, at, total),
            },
            Verdict::Go | Verdict::Partly(_) => (self.inode, at, total),
        };
        self.put(&mut world, to, at, slices, limit);
        verdict.end()
    }

    fn reserve(&self, length: u64) -> io::Result<()> {
        let length = usize::try_from(length).map_err(io::Error::other)?;
        let mut world = self.handle.disk.world.lock();
        world.alive(self.handle.life)?;
        let now = usize::try_from(world.length_of(self.inode)).map_err(io::Error::other)?;
        if length <= now {
            return Ok(());
        }
        let verdict = world.begin(OperationKind::Grow, &self.path)?;
        if let Some(inode) = world.inodes.get(&self.inode) {
            world.take_room(length - inode.current.length())?;
        }
        if let Some(inode) = world.inodes.get_mut(&self.inode) {
            inode.reserve(length);
        }
        verdict.end()
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut world = self.handle.disk.world.lock();
        world.waiting += 1;
        while world.held > 0 {
            self.handle.disk.released.wait(&mut world);
        }
        world.waiting -= 1;
        drop(world);
        let (mut world, verdict) = self.handle.begin(OperationKind::Sync, &self.path)?;
        let power = world.power;
        let Some(inode) = world.inodes.get_mut(&self.inode) else {
            return verdict.end();
        };
        match verdict {
            Verdict::Go | Verdict::Elsewhere(_) => inode.sync(),
            Verdict::Partly(_) | Verdict::Prefix(_) if power => inode.lose_sync(),
            Verdict::Partly(_) | Verdict::Prefix(_) => {}
        }
        verdict.end()
    }
}
