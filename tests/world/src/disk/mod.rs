//! Disks that fail, slow down, rot, and forget.
//!
//! Owns: [`SimDisk`], one machine's disk: which fault hits which call, how long a write takes.
//! Not here: what a fault leaves behind (`tidelog_env::MemoryDisk`, docs/formats/disk.md); when rates change and power goes
//! (`tests/sim`).
//! Spec: docs/simulation.md

use crate::faults::Faults;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::disk::{Disk, Fault, FaultSource, MemoryDisk, OperationKind};

/// How often which fault hits. Rates are probabilities, 0 to 1, each for the calls it can hit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskFaults {
    /// An I/O error at a read, a listing, an opening.
    pub eio_read: f64,
    /// An I/O error at a write, which may have been done in part, or at a change of a name, which was done.
    pub eio_write: f64,
    /// An I/O error at a sync: what it was to write is lost, later syncs do not make up for it.
    pub eio_sync: f64,
    /// No room for what makes a file longer or creates one, whatever the capacity.
    pub enospc: f64,
    /// A write that takes up to [`DiskFaults::slow_max`].
    pub slow: f64,
    /// One bit of a synced sector turns for good, at any call.
    pub bit_rot: f64,
    /// A write inside a file lands at another sector.
    pub misdirected: f64,
    /// What a write with its sync takes at least.
    pub delay_min: Duration,
    /// What it takes at most, usually.
    pub delay_max: Duration,
    /// The longest a slow write takes.
    pub slow_max: Duration,
}

impl Default for DiskFaults {
    /// No faults, the delays of a local SSD.
    fn default() -> Self {
        Self {
            eio_read: 0.0,
            eio_write: 0.0,
            eio_sync: 0.0,
            enospc: 0.0,
            slow: 0.0,
            bit_rot: 0.0,
            misdirected: 0.0,
            delay_min: Duration::from_micros(100),
            delay_max: Duration::from_millis(2),
            slow_max: Duration::from_secs(5),
        }
    }
}

/// One machine's disk. It outlives the processes that use it. Clones are the same disk.
#[derive(Clone)]
pub struct SimDisk {
    disk: MemoryDisk,
    source: Arc<Source>,
}

type MayDamage = Box<dyn Fn(&Path) -> bool + Send>;

struct Source {
    counts: Faults,
    drawing: Mutex<Drawing>,
    may_damage: Mutex<MayDamage>,
}

struct Drawing {
    random: StdRng,
    rates: DiskFaults,
}

impl SimDisk {
    /// An empty disk without faults and limits; what hits is drawn from `seed` and counted in `counts`.
    #[must_use]
    pub fn new(seed: u64, counts: &Faults) -> Self {
        let source = Arc::new(Source {
            counts: counts.clone(),
            drawing: Mutex::new(Drawing {
                random: StdRng::seed_from_u64(seed),
                rates: DiskFaults::default(),
            }),
            may_damage: Mutex::new(Box::new(|_| true)),
        });
        let disk = MemoryDisk::new();
        disk.set_fault_source(Arc::<Source>::clone(&source));
        Self { disk, source }
    }

    /// The disk for one process of the machine. After [`SimDisk::kill`], [`SimDisk::power_cut`] or [`SimDisk::replace`] every call
    /// through it, its files and its locks fails and changes nothing, for ever.
    #[must_use]
    pub fn open_life(&self) -> Arc<dyn Disk> {
        self.disk.open_life()
    }

    /// From now on faults hit this often.
    pub fn set_faults(&self, rates: DiskFaults) {
        self.source.drawing.lock().rates = rates;
    }

    /// How often faults hit now.
    #[must_use]
    pub fn faults(&self) -> DiskFaults {
        self.source.drawing.lock().rates
    }

    /// Only files that `may` allows rot by chance, or are written to by misdirected writes. All, if never called.
    pub fn damage_only(&self, may: impl Fn(&Path) -> bool + Send + 'static) {
        *self.source.may_damage.lock() = Box::new(may);
    }

    /// Bounds the sum of all file lengths; `u64::MAX` is no bound.
    pub fn set_capacity(&self, bytes: u64) {
        self.disk.set_capacity(bytes);
    }

    /// The sum of all file lengths.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        let space = self.disk.space(Path::new("/"));
        space.map_or(0, |space| {
            space.total_bytes.saturating_sub(space.available_bytes)
        })
    }

    /// The process dies, the machine does not: all it wrote can be read, synced or not.
    pub fn kill(&self) {
        self.disk.kill();
    }

    /// The machine loses power: `seed` chooses what of the unsynced bytes and names survives.
    pub fn power_cut(&self, seed: u64) {
        let loss = self.disk.crash(seed);
        for (happened, kind) in [
            (loss.bytes, "disk.lost-write"),
            (loss.torn, "disk.torn"),
            (loss.names, "disk.lost-name"),
        ] {
            if happened {
                self.source.counts.count(kind);
            }
        }
    }

    /// The disk is gone; an empty one of the same size takes its place.
    pub fn replace(&self) {
        self.disk.replace();
        self.source.counts.count("disk.lost");
    }

    /// One bit of a synced sector of a file that `may` allows turns for good: which file, byte and bit. `None` when no such file has
    /// synced bytes.
    pub fn rot_one(&self, seed: u64, may: &dyn Fn(&Path) -> bool) -> Option<(PathBuf, u64, u8)> {
        let turned = self.disk.rot(seed, may)?;
        self.source.counts.count("disk.bit-rot");
        Some(turned)
    }

    /// The bytes of a file as a reader sees them now, for checkers: never fails by chance.
    ///
    /// # Errors
    /// `NotFound` without such a file.
    pub fn contents(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.disk.contents(path)
    }

    /// The names of all files, sorted, for checkers.
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        self.disk.paths()
    }
}

impl FaultSource for Source {
    fn draw(&self, kind: OperationKind, path: &Path) -> Option<Fault> {
        let Drawing { random, rates } = &mut *self.drawing.lock();
        let mut hits = |rate: f64| rate > 0.0 && random.random_bool(rate.min(1.0));
        let (eio, room) = match kind {
            OperationKind::Read | OperationKind::Look => (rates.eio_read, 0.0),
            OperationKind::Write | OperationKind::ChangeNames => (rates.eio_write, 0.0),
            OperationKind::Grow | OperationKind::Create => (rates.eio_write, rates.enospc),
            OperationKind::Sync | OperationKind::SyncDir => (rates.eio_sync, 0.0),
        };
        if hits(room) {
            return Some(Fault::Enospc);
        }
        if hits(eio) {
            return Some(match kind {
                // Half of the failed writes are whole: the error came with the reply.
                OperationKind::Write | OperationKind::Grow if random.random_bool(0.5) => {
                    Fault::EioAfter(random.random_range(0..64 * 1024))
                }
                _ => Fault::Eio,
            });
        }
        if kind == OperationKind::Write && hits(rates.misdirected) {
            return self
                .may_damage(path)
                .then(|| Fault::Misdirect(random.random()));
        }
        hits(rates.bit_rot).then(|| Fault::Rot(random.random()))
    }

    fn happened(&self, kind: OperationKind, fault: Fault) {
        self.counts.count(match (fault, kind) {
            (Fault::Enospc, _) => "disk.enospc",
            (Fault::Rot(_), _) => "disk.bit-rot",
            (Fault::Misdirect(_), _) => "disk.misdirected",
            (_, OperationKind::Read | OperationKind::Look) => "disk.eio-read",
            (_, OperationKind::Sync | OperationKind::SyncDir) => "disk.eio-sync",
            _ => "disk.eio-write",
        });
    }

    fn may_damage(&self, path: &Path) -> bool {
        (self.may_damage.lock())(path)
    }

    fn delay(&self) -> Duration {
        let Drawing { random, rates } = &mut *self.drawing.lock();
        let usual = rates.delay_min..=rates.delay_max.max(rates.delay_min);
        if rates.slow > 0.0 && random.random_bool(rates.slow.min(1.0)) {
            self.counts.count("disk.slow");
            let from = rates.delay_max;
            return random.random_range(from..=rates.slow_max.max(from));
        }
        random.random_range(usual)
    }
}

#[cfg(test)]
mod tests;
