//! The state of the memory disk: files, names, what of the names is durable, and the next operation's verdict.
//!
//! Owns: name changes and their loss, the life of handles, room, where misdirected writes and rotten bits land.
//! Not here: bytes (`content.rs`), the calls (`handle.rs`).
//! Spec: docs/formats/disk.md

use super::content::{Inode, Sparse};
use super::faults::{Fault, FaultSource, OperationKind};
use super::{CHUNK, Loss, SECTOR};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) struct World {
    pub(super) inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    pub(super) dirs: BTreeSet<PathBuf>,
    pub(super) names: BTreeMap<PathBuf, u64>,
    durable_names: BTreeMap<PathBuf, u64>,
    pending_names: Vec<NameChange>,
    pub(super) locks: BTreeSet<PathBuf>,
    /// Grows at a crash: handles and locks from before are dead.
    pub(super) life: u64,
    pub(super) operations: u64,
    pub(super) faults: BTreeMap<u64, Fault>,
    pub(super) source: Option<Arc<dyn FaultSource>>,
    pub(super) power: bool,
    pub(super) capacity_bytes: u64,
    pub(super) held: usize,
    pub(super) waiting: usize,
}

/// One change of a directory that is not durable yet.
pub(super) enum NameChange {
    Link(PathBuf, u64),
    Unlink(PathBuf),
    Rename(PathBuf, PathBuf, u64),
    /// A directory with all that is in it.
    RenameDir(PathBuf, PathBuf),
}

impl NameChange {
    fn is_in(&self, dir: &Path) -> bool {
        let (Self::Link(path, _)
        | Self::Unlink(path)
        | Self::Rename(_, path, _)
        | Self::RenameDir(_, path)) = self;
        path.parent() == Some(dir)
    }

    fn links(&self, number: u64) -> bool {
        matches!(self, Self::Link(_, inode) | Self::Rename(_, _, inode) if *inode == number)
    }

    /// Applies it; the inode whose name it took, if it took one.
    fn apply(&self, names: &mut BTreeMap<PathBuf, u64>) -> Option<u64> {
        match self {
            Self::Link(path, inode) => names.insert(path.clone(), *inode),
            Self::Unlink(path) => names.remove(path),
            Self::Rename(from, to, inode) => {
                if names.get(from) == Some(inode) {
                    names.remove(from);
                }
                names.insert(to.clone(), *inode)
            }
            Self::RenameDir(from, to) => {
                let moved: Vec<PathBuf> = below(names.keys(), from);
                for path in moved {
                    if let (Some(inode), Some(new)) =
                        (names.remove(&path), moved_path(&path, from, to))
                    {
                        names.insert(new, inode);
                    }
                }
                None
            }
        }
    }
}

/// Those of the paths that are `dir` or lie in it.
fn below<'a>(paths: impl Iterator<Item = &'a PathBuf>, dir: &Path) -> Vec<PathBuf> {
    paths
        .filter(|path| path.starts_with(dir))
        .cloned()
        .collect()
}

/// Where `path`, which is `from` or lies in it, is once that is called `to`.
fn moved_path(path: &Path, from: &Path, to: &Path) -> Option<PathBuf> {
    let rest = path.strip_prefix(from).ok()?;
    Some(if rest.as_os_str().is_empty() {
        to.to_path_buf()
    } else {
        to.join(rest)
    })
}

/// What an operation has to do.
pub(super) enum Verdict {
    Go,
    /// Do a part of it, then fail.
    Partly(io::Error),
    /// Of a write: so many bytes, then fail.
    Prefix(usize),
    /// Of a write: somewhere else.
    Elsewhere(u64),
}

impl Verdict {
    pub(super) fn end(self) -> io::Result<()> {
        match self {
            Self::Go | Self::Elsewhere(_) => Ok(()),
            Self::Partly(error) => Err(error),
            Self::Prefix(_) => Err(eio()),
        }
    }
}

fn power_lost() -> io::Error {
    io::Error::other("the simulated power is off")
}

pub(super) fn eio() -> io::Error {
    io::Error::other("simulated I/O error")
}

impl World {
    pub(super) fn new() -> Self {
        Self {
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
            source: None,
            power: true,
            capacity_bytes: u64::MAX,
            held: 0,
            waiting: 0,
        }
    }

    pub(super) fn alive(&self, life: u64) -> io::Result<()> {
        if self.life == life {
            Ok(())
        } else {
            Err(io::Error::other("the handle is from before the crash"))
        }
    }

    /// Counts the operation and says what is to be done.
    pub(super) fn begin(&mut self, kind: OperationKind, path: &Path) -> io::Result<Verdict> {
        if !self.power {
            return Err(power_lost());
        }
        let number = self.operations;
        self.operations += 1;
        if let Some(fault) = self.faults.remove(&number) {
            return self.meet(kind, fault, None);
        }
        let Some(source) = self.source.clone() else {
            return Ok(Verdict::Go);
        };
        match source.draw(kind, path) {
            None => Ok(Verdict::Go),
            Some(fault) => self.meet(kind, fault, Some(source.as_ref())),
        }
    }

    fn meet(
        &mut self,
        kind: OperationKind,
        fault: Fault,
        source: Option<&dyn FaultSource>,
    ) -> io::Result<Verdict> {
        let happened = || {
            if let Some(source) = source {
                source.happened(kind, fault);
            }
        };
        match fault {
            Fault::Enospc => {
                happened();
                Err(ErrorKind::StorageFull.into())
            }
            Fault::Eio => {
                happened();
                Ok(Verdict::Partly(eio()))
            }
            Fault::EioAfter(bytes) => {
                happened();
                Ok(Verdict::Prefix(bytes))
            }
            Fault::PowerCut => {
                happened();
                self.power = false;
                Ok(Verdict::Partly(power_lost()))
            }
            // Whether there is an elsewhere is seen by the write.
            Fault::Misdirect(seed) => Ok(Verdict::Elsewhere(seed)),
            Fault::Rot(seed) => {
                let may = |path: &Path| source.is_none_or(|source| source.may_damage(path));
                if self.rot(seed, &may).is_some() {
                    happened();
                }
                Ok(Verdict::Go)
            }
        }
    }

    pub(super) fn inode_of(&mut self, path: &Path) -> io::Result<&mut Inode> {
        let number = *self.names.get(path).ok_or(ErrorKind::NotFound)?;
        self.inodes
            .get_mut(&number)
            .ok_or_else(|| ErrorKind::NotFound.into())
    }

    pub(super) fn length_of(&self, number: u64) -> u64 {
        self.inodes
            .get(&number)
            .map_or(0, |inode| inode.current.length() as u64)
    }

    pub(super) fn create(&mut self, path: &Path) -> u64 {
        let inode = self.next_inode;
        self.next_inode += 1;
        self.inodes.insert(inode, Inode::default());
        self.change_name(NameChange::Link(path.to_path_buf(), inode));
        inode
    }

    pub(super) fn change_name(&mut self, change: NameChange) {
        let freed = change.apply(&mut self.names);
        self.pending_names.push(change);
        self.forget(freed);
    }

    /// Renames a directory. Names inside of it that are not durable yet become so by a sync under the old name only.
    ///
    /// # Errors
    /// `NotFound`, and `AlreadyExists` where something has the new name.
    pub(super) fn rename_dir(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        if !self.dirs.contains(from) {
            return Err(ErrorKind::NotFound.into());
        }
        if self.dirs.contains(to) || self.names.contains_key(to) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        self.move_dirs(from, to);
        self.change_name(NameChange::RenameDir(from.to_path_buf(), to.to_path_buf()));
        Ok(())
    }

    fn move_dirs(&mut self, from: &Path, to: &Path) {
        for dir in below(self.dirs.iter(), from) {
            self.dirs.remove(&dir);
            self.dirs.extend(moved_path(&dir, from, to));
        }
    }

    pub(super) fn sync_dir(&mut self, dir: &Path) {
        let mut freed = Vec::new();
        for change in std::mem::take(&mut self.pending_names) {
            if change.is_in(dir) {
                freed.extend(change.apply(&mut self.durable_names));
            } else {
                self.pending_names.push(change);
            }
        }
        self.forget(freed);
    }

    /// Drops those of the inodes that no name leads to, now or after any crash.
    fn forget(&mut self, inodes: impl IntoIterator<Item = u64>) {
        for number in inodes {
            let named =
                |names: &BTreeMap<PathBuf, u64>| names.values().any(|inode| *inode == number);
            let pending = self.pending_names.iter().any(|change| change.links(number));
            if !pending && !named(&self.names) && !named(&self.durable_names) {
                self.inodes.remove(&number);
            }
        }
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.inodes
            .values()
            .map(|inode| inode.current.length() as u64)
            .sum()
    }

    /// Refuses what makes the sum of all lengths larger than the disk.
    pub(super) fn take_room(&self, growth: usize) -> io::Result<()> {
        if growth > 0 && self.used_bytes().saturating_add(growth as u64) > self.capacity_bytes {
            if let Some(source) = &self.source {
                source.happened(OperationKind::Grow, Fault::Enospc);
            }
            return Err(ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    /// See [`super::MemoryDisk::crash`].
    pub(super) fn crash(&mut self, seed: u64) -> Loss {
        let mut random = StdRng::seed_from_u64(seed);
        let keep_percent = match seed % 4 {
            0 => 0,
            1 => 100,
            _ => random.random_range(1..100),
        };
        let mut loss = Loss::default();
        let mut names = self.durable_names.clone();
        for change in std::mem::take(&mut self.pending_names) {
            if random.random_range(0..100) < keep_percent {
                change.apply(&mut names);
            } else if let NameChange::RenameDir(from, to) = &change {
                self.move_dirs(to, from);
            }
        }
        loss.names = names != self.names;
        let alive: BTreeSet<u64> = names.values().copied().collect();
        self.inodes.retain(|number, _| alive.contains(number));
        for inode in self.inodes.values_mut() {
            let taken = inode.crash(&mut random, keep_percent);
            loss.bytes |= taken.lost;
            loss.torn |= taken.lost && taken.kept;
        }
        self.durable_names.clone_from(&names);
        self.names = names;
        self.end_life();
        loss
    }

    /// Every handle and lock dies.
    pub(super) fn end_life(&mut self) {
        self.locks.clear();
        self.faults.clear();
        self.life += 1;
    }

    /// Everything is gone, as on a disk from the shop.
    pub(super) fn wipe(&mut self) {
        self.inodes.clear();
        self.dirs.clear();
        self.names.clear();
        self.durable_names.clear();
        self.pending_names.clear();
        self.power = true;
        self.end_life();
    }

    /// Turns one bit of a synced sector of a file that `may` allows: mostly where something was written, at times in the zeros
    /// of a file's reserve.
    pub(super) fn rot(
        &mut self,
        seed: u64,
        may: &dyn Fn(&Path) -> bool,
    ) -> Option<(PathBuf, u64, u8)> {
        let mut random = StdRng::seed_from_u64(seed);
        let files: Vec<(&PathBuf, u64)> = self
            .names
            .iter()
            .filter(|(path, inode)| {
                may(path)
                    && self
                        .inodes
                        .get(inode)
                        .is_some_and(|inode| inode.durable().length() > 0)
            })
            .map(|(path, inode)| (path, *inode))
            .collect();
        // A few tries: a sector that waits to be written is no place.
        for _ in 0..8 {
            let (path, number) = *files.get(random.random_range(0..files.len().max(1)))?;
            let (at, bit) = place(self.inodes.get(&number)?.durable(), &mut random)?;
            if self.inodes.get_mut(&number)?.rot(at, bit) {
                return Some((path.clone(), at as u64, bit));
            }
        }
        None
    }

    /// Where a misdirected write of `length` bytes lands: a sector of the same file or of one in the same directory.
    pub(super) fn elsewhere(
        &self,
        seed: u64,
        path: &Path,
        position: usize,
        length: usize,
    ) -> Option<(u64, usize)> {
        let mut random = StdRng::seed_from_u64(seed);
        let may = |path: &Path| self.source.as_ref().is_none_or(|s| s.may_damage(path));
        let beside: Vec<u64> = self
            .names
            .iter()
            .filter(|(other, _)| other.parent() == path.parent() && may(other))
            .map(|(_, inode)| *inode)
            .collect();
        let own = self.names.get(path).copied();
        for _ in 0..8 {
            let number = match own {
                Some(own) if random.random_bool(0.5) => own,
                _ => *beside.get(random.random_range(0..beside.len().max(1)))?,
            };
            let room = usize::try_from(self.length_of(number)).ok()?;
            let Some(free) = room.checked_sub(length) else {
                continue;
            };
            // The offset inside the sector stays: drives and drivers mix up sectors, not bytes.
            let at = random.random_range(0..=free / SECTOR) * SECTOR + position % SECTOR;
            if at + length <= room && (Some(number), at) != (own, position) {
                return Some((number, at));
            }
        }
        None
    }
}

fn place(bytes: &Sparse, random: &mut StdRng) -> Option<(usize, u8)> {
    let stored = bytes.stored().count();
    let chunk = if stored > 0 && random.random_ratio(7, 8) {
        bytes.stored().nth(random.random_range(0..stored))?
    } else {
        random.random_range(0..bytes.length().div_ceil(CHUNK).max(1))
    };
    let end = bytes.length().min((chunk + 1) * CHUNK);
    (chunk * CHUNK < end).then(|| {
        (
            random.random_range(chunk * CHUNK..end),
            random.random_range(0..8),
        )
    })
}
