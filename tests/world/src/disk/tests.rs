//! Each fault happens, is counted, and ends when its rate does.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use std::io::{ErrorKind, IoSlice};
use tidelog_env::disk::{DiskFile, OpenMode};

const DIR: &str = "/data";
const SECTOR: usize = 512;

fn path(name: &str) -> PathBuf {
    Path::new(DIR).join(name)
}

/// A disk with a file of eight synced sectors, each filled with its number.
struct Rig {
    counts: Faults,
    disk: SimDisk,
    life: Arc<dyn Disk>,
    file: Arc<dyn DiskFile>,
}

fn sectors() -> Vec<u8> {
    (1..=8).flat_map(|number| [number; SECTOR]).collect()
}

impl Rig {
    fn new(seed: u64) -> Self {
        let counts = Faults::default();
        let disk = SimDisk::new(seed, &counts);
        let life = disk.open_life();
        life.create_dir_all(Path::new(DIR)).unwrap();
        let file = life.open(&path("a"), OpenMode::CreateNew).unwrap();
        write(file.as_ref(), &sectors(), 0).unwrap();
        file.sync_data().unwrap();
        life.sync_dir(Path::new(DIR)).unwrap();
        Self {
            counts,
            disk,
            life,
            file,
        }
    }

    fn count(&self, kind: &str) -> u64 {
        self.counts.counts().get(kind).copied().unwrap_or(0)
    }

    fn rates(&self, change: impl FnOnce(&mut DiskFaults)) {
        let mut rates = DiskFaults::default();
        change(&mut rates);
        self.disk.set_faults(rates);
    }
}

fn write(file: &dyn DiskFile, bytes: &[u8], position: u64) -> io::Result<()> {
    file.write_all_at(&[IoSlice::new(bytes)], position)
}

/// Proves that each error hits only its own calls, is counted each time, and stops with its rate.
#[test]
fn errors_hit_their_calls_and_heal() {
    let rig = Rig::new(1);
    let mut bytes = [0; 4];
    rig.rates(|rates| rates.eio_read = 1.0);
    assert!(rig.file.read_exact_at(&mut bytes, 0).is_err());
    assert!(rig.life.list(Path::new(DIR)).is_err());
    write(rig.file.as_ref(), &[1; 4], 0).unwrap();
    rig.file.sync_data().unwrap();

    rig.rates(|rates| rates.eio_write = 1.0);
    assert!(write(rig.file.as_ref(), &[9; SECTOR], 0).is_err());
    assert!(rig.life.remove(&path("a")).is_err());
    assert!(rig.life.open(&path("c"), OpenMode::CreateNew).is_err());
    rig.file.sync_data().unwrap();

    rig.rates(|rates| rates.eio_sync = 1.0);
    assert!(rig.file.sync_data().is_err());
    assert!(rig.life.sync_dir(Path::new(DIR)).is_err());

    rig.rates(|rates| rates.enospc = 1.0);
    write(rig.file.as_ref(), &[1; 4], 0).unwrap();
    let full = rig.life.open(&path("d"), OpenMode::CreateNew);
    assert_eq!(full.err().unwrap().kind(), ErrorKind::StorageFull);

    rig.rates(|_| {});
    let file = rig.life.open(&path("d"), OpenMode::CreateNew).unwrap();
    rig.disk.set_capacity(file.length().unwrap() + 8192);
    let full = file.reserve(1 << 20).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    rig.disk.set_capacity(u64::MAX);
    file.reserve(1 << 20).unwrap();
    file.sync_data().unwrap();
    let counts: Vec<(&str, u64)> = rig.counts.counts().into_iter().collect();
    assert_eq!(
        counts,
        [
            ("disk.eio-read", 2),
            ("disk.eio-sync", 2),
            ("disk.eio-write", 3),
            ("disk.enospc", 2),
        ]
    );
}

/// Proves that a failed write leaves old bytes, new ones, or a mix, each at some seed.
#[test]
fn failed_writes_are_done_in_part() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let counts = Faults::default();
        let disk = SimDisk::new(seed, &counts);
        let life = disk.open_life();
        life.create_dir_all(Path::new(DIR)).unwrap();
        let file = life.open(&path("a"), OpenMode::CreateNew).unwrap();
        disk.set_faults(DiskFaults {
            eio_write: 1.0,
            ..DiskFaults::default()
        });
        assert!(write(file.as_ref(), &[7; 100_000], 0).is_err());
        let left = disk.contents(&path("a")).unwrap().len();
        seen.insert(match left {
            100_000 => "whole",
            0..32_768 => "a little",
            _ => "a part",
        });
    }
    assert_eq!(seen.len(), 3, "{seen:?}");
}

/// Proves that rot turns one durable bit of an allowed file for good, by command and by chance.
#[test]
fn bits_rot_for_good() {
    let rig = Rig::new(3);
    let other = rig.life.open(&path("b"), OpenMode::CreateNew).unwrap();
    write(other.as_ref(), &[5; 100], 0).unwrap();
    assert!(
        rig.disk.rot_one(1, &|file| file.ends_with("b")).is_none(),
        "nothing of b is synced"
    );
    let (file, byte, bit) = rig.disk.rot_one(1, &|_| true).unwrap();
    assert_eq!(file, path("a"));
    let mut expected = sectors();
    expected[usize::try_from(byte).unwrap()] ^= 1 << bit;
    rig.disk.power_cut(0);
    assert_eq!(rig.disk.contents(&path("a")).unwrap(), expected);
    assert_eq!(rig.count("disk.bit-rot"), 1);

    rig.rates(|rates| rates.bit_rot = 1.0);
    rig.disk.damage_only(|_| false);
    let life = rig.disk.open_life();
    life.list(Path::new(DIR)).unwrap();
    assert_eq!(rig.disk.contents(&path("a")).unwrap(), expected);
    rig.disk.damage_only(|file| file.ends_with("a"));
    life.list(Path::new(DIR)).unwrap();
    assert_ne!(rig.disk.contents(&path("a")).unwrap(), expected);
    assert_eq!(rig.count("disk.bit-rot"), 2);
}

/// Proves that a misdirected write says it was done, leaves its own place as it was, and lies at one other sector.
#[test]
fn misdirected_writes_land_elsewhere() {
    for seed in 0..50 {
        let rig = Rig::new(seed);
        rig.rates(|rates| rates.misdirected = 1.0);
        write(rig.file.as_ref(), &[99; SECTOR], 1024).unwrap();
        let bytes = rig.disk.contents(&path("a")).unwrap();
        let hit: Vec<usize> = (0..8)
            .filter(|sector| bytes[sector * SECTOR] == 99)
            .collect();
        assert_eq!(bytes.len(), 8 * SECTOR);
        assert!(hit.len() == 1 && hit[0] != 2, "{hit:?}");
        assert_eq!(rig.count("disk.misdirected"), 1);
        rig.rates(|_| {});
        write(rig.file.as_ref(), &[98; SECTOR], 1024).unwrap();
        assert_eq!(rig.disk.contents(&path("a")).unwrap()[1024], 98);
    }
}

/// Proves that a write that has no other place to go to is done and not counted.
#[test]
fn a_lone_sector_is_not_misdirected() {
    let rig = Rig::new(1);
    rig.disk.damage_only(|file| file.ends_with("b"));
    let file = rig.life.open(&path("b"), OpenMode::CreateNew).unwrap();
    write(file.as_ref(), &[1; SECTOR], 0).unwrap();
    rig.rates(|rates| rates.misdirected = 1.0);
    write(file.as_ref(), &[2; SECTOR], 0).unwrap();
    assert_eq!(rig.disk.contents(&path("b")).unwrap(), [2; SECTOR]);
    assert_eq!(rig.count("disk.misdirected"), 0);
}

/// Proves that a killed process changes nothing more, though all it wrote stays.
#[test]
fn handles_of_the_dead_are_dead() {
    let rig = Rig::new(4);
    write(rig.file.as_ref(), &[50; SECTOR], 0).unwrap();
    let lock = rig.life.lock_dir(Path::new(DIR)).unwrap();
    for end in [SimDisk::kill, |disk: &SimDisk| disk.power_cut(1)] {
        let life = rig.disk.open_life();
        let file = life.open(&path("a"), OpenMode::ReadWrite).unwrap();
        end(&rig.disk);
        let before = rig.disk.contents(&path("a")).unwrap();
        assert_eq!(
            before[0], 50,
            "a kill loses nothing, and this power cut keeps all"
        );
        let mut byte = [0];
        assert!(file.read_exact_at(&mut byte, 0).is_err() && file.length().is_err());
        assert!(write(file.as_ref(), &[1], 0).is_err() && file.sync_data().is_err());
        assert!(file.reserve(1 << 20).is_err());
        assert!(life.remove(&path("a")).is_err() && life.rename(&path("a"), &path("b")).is_err());
        assert!(life.open(&path("x"), OpenMode::CreateNew).is_err());
        assert!(
            life.create_dir_all(Path::new("/x")).is_err() && life.list(Path::new(DIR)).is_err()
        );
        assert!(life.lock_dir(Path::new(DIR)).is_err() && life.space(Path::new(DIR)).is_err());
        assert!(life.sync_dir(Path::new(DIR)).is_err());
        assert_eq!(rig.disk.contents(&path("a")).unwrap(), before);
        assert_eq!(rig.disk.paths(), [path("a")]);
    }
    let held = rig.disk.open_life().lock_dir(Path::new(DIR)).unwrap();
    drop(lock);
    assert!(
        rig.disk.open_life().lock_dir(Path::new(DIR)).is_err(),
        "the lock of the dead frees nothing"
    );
    drop(held);
}

/// Proves that losses of a power cut are counted when there were some, and only then.
#[test]
fn power_cuts_count_what_they_took() {
    let rig = Rig::new(5);
    rig.disk.power_cut(0);
    assert!(rig.counts.counts().is_empty(), "all was synced");
    for seed in 0..40 {
        let life = rig.disk.open_life();
        let file = life.open(&path("a"), OpenMode::ReadWrite).unwrap();
        write(
            file.as_ref(),
            &[u8::try_from(seed + 100).unwrap(); 8 * SECTOR],
            0,
        )
        .unwrap();
        let name = path(&format!("new-{seed}"));
        life.open(&name, OpenMode::CreateNew).unwrap();
        let before = rig.counts.counts();
        rig.disk.power_cut(seed);
        let taken = |kind| rig.count(kind) - before.get(kind).copied().unwrap_or(0);
        let bytes = rig.disk.contents(&path("a")).unwrap();
        let kept = bytes
            .iter()
            .filter(|byte| u64::from(**byte) == seed + 100)
            .count()
            / SECTOR;
        assert_eq!(taken("disk.lost-write"), u64::from(kept < 8));
        assert_eq!(taken("disk.torn"), u64::from(kept > 0 && kept < 8));
        assert_eq!(
            taken("disk.lost-name"),
            u64::from(!rig.disk.paths().contains(&name))
        );
    }
    for kind in ["disk.lost-write", "disk.torn", "disk.lost-name"] {
        assert!(rig.count(kind) > 0, "{kind}");
    }
}

/// Proves that a replaced disk is empty and works.
#[test]
fn a_replaced_disk_is_empty() {
    let rig = Rig::new(6);
    rig.disk.replace();
    assert!(rig.disk.paths().is_empty());
    let life = rig.disk.open_life();
    assert_eq!(
        life.list(Path::new(DIR)).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    life.create_dir_all(Path::new(DIR)).unwrap();
    life.open(&path("a"), OpenMode::CreateNew).unwrap();
    assert!(rig.file.length().is_err());
    assert_eq!(rig.count("disk.lost"), 1);
}

/// Proves that delays lie in their bounds, and that slow ones are counted.
#[test]
fn writes_take_their_time() {
    let rig = Rig::new(7);
    let rates = DiskFaults::default();
    for _ in 0..1000 {
        let delay = rig.life.delay();
        assert!(delay >= rates.delay_min && delay <= rates.delay_max);
    }
    assert_eq!(rig.count("disk.slow"), 0);
    rig.rates(|rates| rates.slow = 1.0);
    let longest = (0..100).map(|_| rig.life.delay()).max().unwrap();
    assert!(longest > Duration::from_secs(3) && longest <= rates.slow_max);
    assert_eq!(rig.count("disk.slow"), 100);
}

/// Proves that the same seed and the same calls give the same faults and bytes.
#[test]
fn the_same_seed_gives_the_same_faults() {
    let run = |seed| {
        let counts = Faults::default();
        let disk = SimDisk::new(seed, &counts);
        let mut log = Vec::new();
        for round in 0..20u64 {
            let life = disk.open_life();
            let _ = life.create_dir_all(Path::new(DIR));
            disk.set_faults(DiskFaults {
                eio_read: 0.1,
                eio_write: 0.1,
                eio_sync: 0.1,
                enospc: 0.1,
                slow: 0.1,
                bit_rot: 0.1,
                misdirected: 0.2,
                ..DiskFaults::default()
            });
            for number in 0..20u8 {
                let name = path(&format!("{}", number % 3));
                let file = life
                    .open(&name, OpenMode::ReadWrite)
                    .or_else(|_| life.open(&name, OpenMode::CreateNew));
                let Ok(file) = file else { continue };
                let at = u64::from(number) * 300;
                log.push(write(file.as_ref(), &[number; 1000], at).is_ok());
                log.push(file.sync_data().is_ok());
                log.push(life.sync_dir(Path::new(DIR)).is_ok());
                log.push(life.delay() > Duration::from_millis(1));
            }
            disk.set_faults(DiskFaults::default());
            disk.power_cut(seed * 1000 + round);
        }
        let files: Vec<_> = disk
            .paths()
            .iter()
            .map(|path| disk.contents(path).unwrap())
            .collect();
        (log, files, counts.counts())
    };
    assert_eq!(run(11), run(11));
    assert_ne!(run(11).0, run(12).0);
}
