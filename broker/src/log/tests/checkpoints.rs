//! Checkpoint files.

use super::*;
use tidelog_env::disk::Fault;

fn image(byte: u8) -> Bytes {
    Bytes::from(vec![byte; 1500])
}

fn names(rig: &Rig) -> Vec<String> {
    let entries = rig.disk.shared().list(&rig.config.dir).unwrap();
    entries
        .into_iter()
        .map(|entry| entry.name)
        .filter(|name| name.contains(".snap"))
        .collect()
}

/// Proves that the two newest by index are kept, and the newest is loaded.
#[test]
fn two_are_kept() {
    let mut rig = Rig::new();
    let log = rig.open().unwrap();
    assert_eq!(block_on(log.load_newest_checkpoint()).unwrap(), None);
    for index in [5, 90, 100] {
        block_on(log.save_checkpoint(id(2, index), image(1))).unwrap();
    }
    assert_eq!(
        names(&rig),
        ["00000000000000000090-2.snap", "00000000000000000100-2.snap"]
    );
    assert_eq!(
        block_on(log.load_newest_checkpoint()).unwrap(),
        Some((id(2, 100), image(1)))
    );
    block_on(log.save_checkpoint(id(2, 100), image(2))).unwrap();
    assert_eq!(
        block_on(log.load_newest_checkpoint()).unwrap(),
        Some((id(2, 100), image(2))),
        "written again"
    );
}

/// Proves that every flipped bit of the newest makes the older one count, and that damage of both is an error.
#[test]
fn damage_falls_back_to_the_older() {
    let mut rig = Rig::new();
    let log = rig.open().unwrap();
    block_on(log.save_checkpoint(id(1, 1), image(1))).unwrap();
    block_on(log.save_checkpoint(id(1, 2), image(2))).unwrap();
    let newest = rig.path("00000000000000000002-1.snap");
    for byte in (0..72).chain((72..1572).step_by(97)) {
        for bit in 0..8 {
            rig.disk.flip_bit(&newest, byte, bit).unwrap();
            let loaded = block_on(log.load_newest_checkpoint()).unwrap();
            assert_eq!(loaded, Some((id(1, 1), image(1))), "byte {byte} bit {bit}");
            rig.disk.flip_bit(&newest, byte, bit).unwrap();
        }
    }
    rig.disk.flip_bit(&newest, 80, 0).unwrap();
    rig.disk
        .flip_bit(&rig.path("00000000000000000001-1.snap"), 80, 0)
        .unwrap();
    assert!(matches!(
        block_on(log.load_newest_checkpoint()),
        Err(LogError::Damaged { .. })
    ));
}

/// Proves that the older checkpoint does not count when what came after it was purged, and that the damage of the newest is the reason.
#[test]
fn the_older_must_reach_the_log() {
    let mut rig = Rig::new();
    let log = rig.open().unwrap();
    for index in 1..=5 {
        append(&log, vec![entry(1, index, 20)]);
    }
    settle(&log);
    block_on(log.save_checkpoint(id(1, 2), image(1))).unwrap();
    block_on(log.save_checkpoint(id(1, 4), image(2))).unwrap();
    rig.disk
        .flip_bit(&rig.path("00000000000000000004-1.snap"), 80, 0)
        .unwrap();
    let loaded = || block_on(log.load_newest_checkpoint());
    assert_eq!(loaded().unwrap(), Some((id(1, 2), image(1))));
    block_on(log.purge(id(1, 2))).unwrap();
    assert_eq!(loaded().unwrap(), Some((id(1, 2), image(1))));
    block_on(log.purge(id(1, 3))).unwrap();
    assert!(matches!(loaded(), Err(LogError::Damaged { .. })));
}

/// Proves that a power cut at any operation of a save leaves the old or the new one, whole, and no rest after the next start.
#[test]
fn power_cut_at_every_operation_of_a_save() {
    for cut in 0..12 {
        for seed in 0..4 {
            let mut rig = Rig::new();
            let log = rig.open().unwrap();
            block_on(log.save_checkpoint(id(1, 1), image(1))).unwrap();
            block_on(log.save_checkpoint(id(1, 2), image(2))).unwrap();
            rig.disk
                .fail_at(rig.disk.operations() + cut, Fault::PowerCut);
            let saved = block_on(log.save_checkpoint(id(1, 3), image(3)));
            drop(log);
            rig.disk.crash(cut * 16 + seed);
            let log = rig.open().unwrap();
            let (loaded, bytes) = block_on(log.load_newest_checkpoint()).unwrap().unwrap();
            assert!(
                loaded == id(1, 3) && bytes == image(3) || loaded == id(1, 2) && bytes == image(2)
            );
            assert!(saved.is_err() || loaded == id(1, 3), "a saved one is there");
            assert!(names(&rig).iter().all(|name| !name.ends_with(".tmp")));
        }
    }
}

/// Proves that an error leaves the old ones and the log unharmed, and that the next save works.
#[test]
fn an_error_at_every_operation_of_a_save() {
    for fault in [Fault::Eio, Fault::Enospc] {
        for number in 0..12 {
            let mut rig = Rig::new();
            let log = rig.open().unwrap();
            block_on(log.save_checkpoint(id(1, 1), image(1))).unwrap();
            rig.disk.fail_at(rig.disk.operations() + number, fault);
            let saved = block_on(log.save_checkpoint(id(1, 2), image(2)));
            assert!(matches!(saved, Ok(()) | Err(LogError::Io { .. })));
            rig.disk.heal();
            assert!(block_on(log.load_newest_checkpoint()).unwrap().is_some());
            assert!(log.poisoned().is_none());
            block_on(log.save_checkpoint(id(1, 2), image(2))).unwrap();
            assert_eq!(
                block_on(log.load_newest_checkpoint()).unwrap(),
                Some((id(1, 2), image(2)))
            );
        }
    }
}
