//! The memory disk keeps its promises and no others.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod model;

use super::*;
use std::collections::BTreeSet;
use std::io::IoSlice;

const DIR: &str = "/d";

fn disk() -> MemoryDisk {
    let disk = MemoryDisk::new();
    disk.create_dir_all(Path::new(DIR)).unwrap();
    disk
}

fn path(name: &str) -> PathBuf {
    Path::new(DIR).join(name)
}

fn write(file: &dyn DiskFile, bytes: &[u8], position: u64) -> io::Result<()> {
    file.write_all_at(&[IoSlice::new(bytes)], position)
}

/// Proves that synced bytes under a synced name survive every crash, and that a name which was not synced may go.
#[test]
fn what_is_synced_survives() {
    for seed in 0..40 {
        let disk = disk();
        let file = disk.open(&path("a"), OpenMode::CreateNew).unwrap();
        write(file.as_ref(), b"hello", 0).unwrap();
        file.sync_data().unwrap();
        disk.sync_dir(Path::new(DIR)).unwrap();
        disk.open(&path("b"), OpenMode::CreateNew).unwrap();
        disk.crash(seed);
        assert_eq!(disk.contents(&path("a")).unwrap(), b"hello");
        assert!(file.length().is_err(), "handles from before are dead");
        match seed % 4 {
            0 => assert!(disk.contents(&path("b")).is_err()),
            1 => assert!(disk.contents(&path("b")).is_ok()),
            _ => {}
        }
    }
}

/// Proves that unsynced sectors survive in any mix, each whole.
#[test]
fn unsynced_sectors_survive_in_any_mix() {
    let mut mixes = BTreeSet::new();
    for seed in 0..200 {
        let disk = disk();
        let file = disk.open(&path("a"), OpenMode::CreateNew).unwrap();
        write(file.as_ref(), &[1; 4 * SECTOR], 0).unwrap();
        file.sync_data().unwrap();
        disk.sync_dir(Path::new(DIR)).unwrap();
        write(file.as_ref(), &[2; 4 * SECTOR], 0).unwrap();
        disk.crash(seed);
        let bytes = disk.contents(&path("a")).unwrap();
        let mix: Vec<u8> = bytes.chunks(SECTOR).map(|sector| sector[0]).collect();
        assert!(
            bytes
                .chunks(SECTOR)
                .all(|sector| sector.iter().all(|byte| *byte == sector[0]))
        );
        mixes.insert(mix);
    }
    assert_eq!(mixes.len(), 16, "every subset of four sectors");
}

/// Proves the model of a failed sync: readable, not on disk, and not written by the next sync.
#[test]
fn a_failed_sync_is_not_made_up_for() {
    let disk = disk();
    let file = disk.open(&path("a"), OpenMode::CreateNew).unwrap();
    write(file.as_ref(), &[1; 10], 0).unwrap();
    file.sync_data().unwrap();
    disk.sync_dir(Path::new(DIR)).unwrap();
    write(file.as_ref(), &[2; 10], 0).unwrap();
    disk.fail_at(disk.operations(), Fault::Eio);
    assert!(file.sync_data().is_err());
    file.sync_data().unwrap();
    assert_eq!(disk.contents(&path("a")).unwrap(), [2; 10]);
    disk.crash(1);
    assert_eq!(disk.contents(&path("a")).unwrap(), [1; 10]);
}

/// Proves that a full disk refuses growth only, that power off refuses everything, and that a directory has one owner.
#[test]
fn limits_power_and_locks() {
    let disk = disk();
    disk.set_capacity(600);
    let file = disk.open(&path("a"), OpenMode::CreateNew).unwrap();
    write(file.as_ref(), &[1; 600], 0).unwrap();
    write(file.as_ref(), &[2; 600], 0).unwrap();
    assert_eq!(
        write(file.as_ref(), &[2; 1], 600).unwrap_err().kind(),
        ErrorKind::StorageFull
    );
    assert_eq!(disk.space(Path::new(DIR)).unwrap().available_bytes, 0);
    let lock = disk.lock_dir(Path::new(DIR)).unwrap();
    assert_eq!(
        disk.lock_dir(Path::new(DIR)).err().unwrap().kind(),
        ErrorKind::WouldBlock
    );
    drop(lock);
    let _held = disk.lock_dir(Path::new(DIR)).unwrap();
    disk.fail_at(disk.operations(), Fault::PowerCut);
    assert!(file.sync_data().is_err() && disk.list(Path::new(DIR)).is_err());
    disk.crash(0);
    assert!(disk.list(Path::new(DIR)).unwrap().is_empty());
    assert!(
        disk.lock_dir(Path::new(DIR)).is_ok(),
        "locks die with the power"
    );
}

/// Proves that both disks agree on what the calls do (one contract, two implementations).
#[test]
fn real_and_memory_disks_agree() {
    let temporary = tempfile::tempdir().unwrap();
    let real = crate::disk::RealDisk::shared();
    for (disk, root) in [
        (MemoryDisk::new().shared(), PathBuf::from("/x")),
        (real, temporary.path().to_path_buf()),
    ] {
        let dir = root.join("one/two");
        disk.create_dir_all(&dir).unwrap();
        disk.create_dir_all(&dir).unwrap();
        let file = disk.open(&dir.join("f"), OpenMode::CreateNew).unwrap();
        let many: Vec<[u8; 3]> = (0u8..=255)
            .cycle()
            .take(3000)
            .map(|byte| [byte; 3])
            .collect();
        let slices: Vec<IoSlice<'_>> = many.iter().map(|bytes| IoSlice::new(bytes)).collect();
        file.write_all_at(&slices, 5).unwrap();
        file.sync_data().unwrap();
        assert_eq!(
            file.length().unwrap(),
            9005,
            "more slices than one system call takes"
        );
        let mut bytes = vec![0; 9000];
        file.read_exact_at(&mut bytes, 5).unwrap();
        assert_eq!(bytes, many.concat());
        assert_eq!(
            file.read_exact_at(&mut bytes, 6).unwrap_err().kind(),
            ErrorKind::UnexpectedEof
        );
        let again = disk
            .open(&dir.join("f"), OpenMode::CreateNew)
            .err()
            .unwrap();
        assert_eq!(again.kind(), ErrorKind::AlreadyExists);
        assert_eq!(
            disk.open(&dir.join("g"), OpenMode::Read)
                .err()
                .unwrap()
                .kind(),
            ErrorKind::NotFound
        );
        disk.rename(&dir.join("f"), &dir.join("g")).unwrap();
        disk.sync_dir(&dir).unwrap();
        let listed = disk.list(&dir).unwrap();
        assert_eq!(
            listed,
            [DirEntry {
                name: "g".to_owned(),
                length: 9005,
                is_dir: false
            }]
        );
        assert!(disk.list(&root.join("one")).unwrap()[0].is_dir);
        let lock = disk.lock_dir(&dir).unwrap();
        assert_eq!(
            disk.lock_dir(&dir).err().unwrap().kind(),
            ErrorKind::WouldBlock
        );
        drop(lock);
        drop(disk.lock_dir(&dir).unwrap());
        disk.remove(&dir.join("g")).unwrap();
        assert_eq!(
            disk.remove(&dir.join("g")).unwrap_err().kind(),
            ErrorKind::NotFound
        );
        assert!(disk.space(&dir).unwrap().available_bytes > 0);
    }
}

/// Proves that reserved room costs nothing, reads as zeros, counts as taken, and that a crash leaves any length of it.
#[test]
fn reserved_room_is_zeros_of_any_length() {
    let mut lengths = BTreeSet::new();
    for seed in 0..200 {
        let disk = disk();
        disk.set_capacity(10_000);
        let file = disk.open(&path("a"), OpenMode::CreateNew).unwrap();
        disk.sync_dir(Path::new(DIR)).unwrap();
        let before = disk.operations();
        file.reserve(8192).unwrap();
        assert_eq!(disk.operations() - before, 1);
        file.reserve(100).unwrap();
        assert_eq!(disk.operations() - before, 1, "nothing to do");
        let full = file.reserve(10_001).unwrap_err();
        assert_eq!(full.kind(), ErrorKind::StorageFull);
        assert_eq!(disk.space(Path::new(DIR)).unwrap().available_bytes, 1808);
        assert_eq!(disk.contents(&path("a")).unwrap(), [0; 8192]);
        if seed % 5 == 0 {
            file.sync_data().unwrap();
        }
        disk.crash(seed);
        let left = disk.contents(&path("a")).unwrap();
        assert!(left.iter().all(|byte| *byte == 0));
        if seed % 5 == 0 {
            assert_eq!(left.len(), 8192);
        }
        lengths.insert(left.len());
    }
    assert!(lengths.len() > 10 && lengths.contains(&0) && lengths.contains(&8192));
}

/// Proves that what no name leads to any more is gone from the disk, but not before the removal is durable.
#[test]
fn removed_files_free_their_room() {
    let disk = disk();
    let dir = Path::new(DIR);
    let used = || u64::MAX - disk.space(dir).unwrap().available_bytes;
    for name in ["a", "b"] {
        let file = disk.open(&path(name), OpenMode::CreateNew).unwrap();
        write(file.as_ref(), &[1; 100], 0).unwrap();
    }
    disk.sync_dir(dir).unwrap();
    disk.remove(&path("a")).unwrap();
    assert_eq!(used(), 200, "it may come back");
    disk.sync_dir(dir).unwrap();
    assert_eq!(used(), 100);
    let file = disk.open(&path("c"), OpenMode::CreateNew).unwrap();
    write(file.as_ref(), &[1; 50], 0).unwrap();
    disk.rename(&path("c"), &path("b")).unwrap();
    assert_eq!(used(), 150);
    disk.sync_dir(dir).unwrap();
    assert_eq!(used(), 50);
    disk.remove(&path("b")).unwrap();
    disk.crash(1);
    assert_eq!(used(), 0, "this crash kept the removal");
}

/// Proves that a planned fault may do a part of a write, misdirect one, or rot a bit, without any source of faults.
#[test]
fn planned_faults_of_writes() {
    let disk = disk();
    let file = disk.open(&path("a"), OpenMode::CreateNew).unwrap();
    write(file.as_ref(), &[1; 2 * SECTOR], 0).unwrap();
    file.sync_data().unwrap();
    disk.fail_at(disk.operations(), Fault::EioAfter(100));
    assert!(
        file.write_all_at(&[IoSlice::new(&[2; 60]), IoSlice::new(&[3; 60])], 0)
            .is_err()
    );
    let bytes = disk.contents(&path("a")).unwrap();
    assert_eq!((bytes[59], bytes[60], bytes[99], bytes[100]), (2, 3, 3, 1));
    disk.fail_at(disk.operations(), Fault::Misdirect(5));
    write(file.as_ref(), &[9; 10], 20).unwrap();
    let bytes = disk.contents(&path("a")).unwrap();
    assert_eq!(
        (bytes[20], bytes[SECTOR + 20], bytes[SECTOR + 30]),
        (2, 9, 1)
    );
    disk.fail_at(disk.operations(), Fault::Rot(1));
    file.sync_data().unwrap();
    let rotten = disk.contents(&path("a")).unwrap();
    let turned: u32 = bytes
        .iter()
        .zip(&rotten)
        .map(|(a, b)| (a ^ b).count_ones())
        .sum();
    assert_eq!(turned, 0, "both sectors waited to be written");
    disk.fail_at(disk.operations(), Fault::Rot(1));
    file.sync_data().unwrap();
    let rotten = disk.contents(&path("a")).unwrap();
    let turned: u32 = bytes
        .iter()
        .zip(&rotten)
        .map(|(a, b)| (a ^ b).count_ones())
        .sum();
    assert_eq!(turned, 1);
}

/// Proves that a directory is renamed with all that is in it, at once or not at all where that was not synced, and not onto what is there.
#[test]
fn a_directory_is_renamed_whole() {
    let mut renamed = BTreeSet::new();
    for seed in 0..40 {
        let disk = disk();
        let (old, new, inner) = (path("old"), path("new"), path("old").join("inner"));
        disk.create_dir_all(&inner).unwrap();
        for dir in [&old, &inner] {
            let file = disk.open(&dir.join("f"), OpenMode::CreateNew).unwrap();
            write(file.as_ref(), b"hello", 0).unwrap();
            file.sync_data().unwrap();
            disk.sync_dir(dir).unwrap();
        }
        disk.rename(&old, &new).unwrap();
        let there = |disk: &MemoryDisk, dir: &Path| {
            let files = [dir.join("f"), dir.join("inner").join("f")];
            let found = files.map(|file| disk.contents(&file).is_ok());
            assert_eq!(found[0], found[1], "all or nothing");
            assert_eq!(disk.list(dir).is_ok(), found[0], "{}", dir.display());
            found[0]
        };
        assert!(there(&disk, &new) && !there(&disk, &old));
        if seed % 2 == 0 {
            disk.sync_dir(Path::new(DIR)).unwrap();
        }
        disk.crash(seed / 2);
        assert_ne!(there(&disk, &new), there(&disk, &old));
        assert!(there(&disk, &new) || seed % 2 == 1, "it was synced");
        renamed.insert((seed % 2, there(&disk, &new)));
    }
    assert_eq!(renamed.len(), 3, "without a sync it goes either way");
    let disk = disk();
    for name in ["a", "b"] {
        disk.create_dir_all(&path(name)).unwrap();
    }
    let refused = disk.rename(&path("a"), &path("b")).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
    let missing = disk.rename(&path("c"), &path("d")).unwrap_err();
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
}
