//! Damage of what was acknowledged is found and never cut; torn tails are cut and stay cut.

use super::model::{Act, Driver, script};
use super::*;
use std::path::Path;
use tidelog_env::disk::OpenMode;

/// Proves that a flipped bit below the last known sync is refused at the open, or at the read of that one entry, or
/// changes nothing (padding); the log is never silently shorter.
#[test]
fn bit_flips_in_the_durable_region_are_found() {
    let mut driver = Driver::new();
    assert!(driver.open());
    for act in script() {
        assert!(driver.act(&act));
    }
    assert!(driver.act(&Act::Append(vec![60, 2000, 3000, 3000, 3000, 500, 8])));
    assert!(driver.act(&Act::Step));
    let log = driver.log().unwrap().clone();
    let (state, entries) = (log.state(), all(&log).unwrap());
    let files: Vec<(PathBuf, u64)> = {
        let order = log.shared.order.lock();
        order
            .files
            .iter()
            .map(|file| (file.file.as_ref().unwrap().path.clone(), file.end))
            .collect()
    };
    assert!(files.len() >= 2, "a sealed file and the active one");
    let live: Vec<(PathBuf, std::ops::Range<u64>)> = {
        let order = log.shared.order.lock();
        let slots = entries
            .iter()
            .map(|entry| *order.ledger.index.slot(entry.id.index).unwrap());
        slots
            .map(|slot| {
                let length = 56 + u64::from(slot.dir_len) + u64::from(slot.body_len);
                (
                    order.file(slot.file).unwrap().path.clone(),
                    slot.position..slot.position + length,
                )
            })
            .collect()
    };
    block_on(log.close()).unwrap();
    drop(log);
    driver.lose(1, true);
    let (mut at_open, mut at_read, mut harmless) = (0, 0, 0);
    for (path, end) in files {
        for byte in (0..end).step_by(11) {
            let bit = u8::try_from(byte % 8).unwrap();
            driver.rig.disk.flip_bit(&path, byte, bit).unwrap();
            match driver.rig.open() {
                Err(LogError::Damaged { .. } | LogError::Version { .. }) => at_open += 1,
                Err(other) => panic!("byte {byte}: {other}"),
                Ok(log) => {
                    assert_eq!(log.state(), state, "byte {byte} of {}", path.display());
                    match all(&log) {
                        Err(LogError::Damaged { .. }) => at_read += 1,
                        Ok(found) => {
                            assert_eq!(found, entries, "byte {byte}");
                            let is_live = live
                                .iter()
                                .any(|(file, range)| *file == path && range.contains(&byte));
                            assert!(
                                !is_live,
                                "byte {byte}: a flip in an entry of the log went unseen"
                            );
                            harmless += 1;
                        }
                        Err(other) => panic!("byte {byte}: {other}"),
                    }
                }
            }
            driver.rig.disk.flip_bit(&path, byte, bit).unwrap();
        }
    }
    assert!(
        at_open > 500 && at_read > 100,
        "{at_open} at open, {at_read} at read, {harmless} harmless"
    );
    assert_eq!(driver.rig.open().unwrap().state(), state);
}

/// Three frames of one unfinished batch at the end of a log, and the position of the first.
fn unfinished(rig: &mut Rig) -> (PathBuf, u64) {
    let log = rig.open().unwrap();
    append(&log, vec![entry(1, 0, 64)]);
    settle(&log);
    let from = log.shared.writer.lock().written;
    append(
        &log,
        vec![entry(1, 1, 64), entry(1, 2, 64), entry(1, 3, 64)],
    );
    settle(&log);
    let path = log.shared.writer.lock().active.path.clone();
    drop(log);
    rig.disk.kill();
    (path, from)
}

/// Proves that a torn first frame of the last batch cuts the batch, and that the good frames behind it do not come back
/// when a frame of the same length takes the place of the torn one.
#[test]
fn frames_behind_a_torn_one_do_not_come_back() {
    let mut rig = Rig::new();
    let (path, from) = unfinished(&mut rig);
    rig.disk.flip_bit(&path, from + 70, 0).unwrap();
    let log = rig.open().unwrap();
    assert_eq!(log.state().last, Some(id(1, 0)));
    append(&log, vec![entry(1, 1, 64)]);
    settle(&log);
    drop(log);
    rig.disk.crash(1);
    let log = rig.open().unwrap();
    assert_eq!(
        log.state().last,
        Some(id(1, 1)),
        "entry 2 of the torn batch would follow by its index"
    );
}

/// Proves that a last frame of which only a first part was written, up to any byte, is cut off, and that the log goes on in its place.
#[test]
fn a_last_frame_torn_at_any_byte_is_cut() {
    let last_frame = |rig: &mut Rig| {
        let log = rig.open().unwrap();
        append(&log, vec![entry(1, 0, 64)]);
        settle(&log);
        let from = log.shared.writer.lock().written;
        append(&log, vec![entry(1, 1, 64)]);
        settle(&log);
        let place = *log
            .shared
            .order
            .lock()
            .ledger
            .index
            .slot(LogIndex::new(1))
            .unwrap();
        let length = 56 + u64::from(place.dir_len) + u64::from(place.body_len);
        let path = log.shared.writer.lock().active.path.clone();
        drop(log);
        rig.disk.kill();
        (path, from, length)
    };
    let length = last_frame(&mut Rig::new()).2;
    for written in 0..length {
        let mut rig = Rig::new();
        let (path, from, length) = last_frame(&mut rig);
        let bytes = rig.disk.contents(&path).unwrap();
        let mut whole = true;
        for at in from + written..from + length {
            let byte = bytes[usize::try_from(at).unwrap()];
            for bit in (0..8).filter(|bit| byte & (1 << bit) != 0) {
                rig.disk.flip_bit(&path, at, bit).unwrap();
                whole = false;
            }
        }
        let log = rig.open().unwrap();
        let last = if whole { id(1, 1) } else { id(1, 0) };
        assert_eq!(log.state().last, Some(last), "{written} of {length} bytes");
        let next = last.index.get() + 1;
        append(&log, vec![entry(2, next, 300)]);
        settle(&log);
        drop(log);
        rig.disk.crash(1);
        let log = rig.open().unwrap();
        assert_eq!(log.state().last, Some(id(2, next)), "{written} bytes");
        assert!(all(&log).is_ok(), "{written} bytes");
    }
}

/// Overwrites bytes of a file with zeros, as a sector that was lost reads.
fn lose(rig: &Rig, path: &Path, from: u64, length: usize) {
    let disk = rig.disk.shared();
    let file = disk.open(path, OpenMode::ReadWrite).unwrap();
    let zeros = vec![0; length];
    file.write_all_at(&[std::io::IoSlice::new(&zeros)], from)
        .unwrap();
}

/// A log of one entry that was closed, its file, and where its frames end.
fn closed(rig: &mut Rig) -> (PathBuf, u64) {
    let log = rig.open().unwrap();
    append(&log, vec![entry(1, 0, 64)]);
    settle(&log);
    block_on(log.close()).unwrap();
    let writer = log.shared.writer.lock();
    (writer.active.path.clone(), writer.written)
}

/// Proves that the loss of everything that was written last, with the frames behind it that tell of it, is damage after a clean close, however it
/// is spread over sectors and the page; and that without a loss a closed log goes on as any other, and has no word of its end left in it.
#[test]
fn the_end_of_a_closed_log_is_known_in_another_page() {
    let mut rig = Rig::new();
    let (path, end) = closed(&mut rig);
    assert!(end < 2 * 4096, "all frames are in one page");
    let sector = end.next_multiple_of(512) - 512;
    for (from, to) in [(4096, 4608), (sector, sector + 512), (4096, 8192)] {
        let mut rig = Rig::new();
        let (path, _) = closed(&mut rig);
        lose(&rig, &path, from, usize::try_from(to - from).unwrap());
        let refused = rig.open().err();
        assert!(
            matches!(refused, Some(LogError::Damaged { .. })),
            "{from}..{to}: {refused:?}"
        );
    }
    let log = rig.open().unwrap();
    assert_eq!(log.state().last, Some(id(1, 0)));
    let page = usize::try_from(end.next_multiple_of(4096)).unwrap();
    let bytes = rig.disk.contents(&path).unwrap();
    assert!(bytes[page..].iter().all(|byte| *byte == 0), "it is cleared");
    // Over the place where it was.
    for index in 1..4 {
        append(&log, vec![entry(1, index, 1500)]);
    }
    settle(&log);
    assert!(log.shared.writer.lock().written > end.next_multiple_of(4096) + 56);
    drop(log);
    rig.disk.crash(1);
    let log = rig.open().unwrap();
    assert_eq!(log.state().last, Some(id(1, 3)));
    assert_eq!(all(&log).unwrap().len(), 4);
}

/// Proves that a log whose file has no further page is closed without that word, and opens.
#[test]
fn a_full_file_is_closed_as_it_is() {
    let mut rig = Rig::new();
    let log = rig.open().unwrap();
    let file_bytes = rig.config.file_bytes;
    let mut last = 0;
    // Up to the file's last page: a frame of 56 + 200 bytes each, and room for the closing one.
    while log.shared.writer.lock().written + 600 < file_bytes {
        append(&log, vec![entry(1, last, 200)]);
        settle(&log);
        last += 1;
    }
    block_on(log.close()).unwrap();
    let (written, sequence) = {
        let writer = log.shared.writer.lock();
        (writer.written, writer.active.binding.sequence)
    };
    assert_eq!(sequence, 1);
    assert!(written + 4096 > file_bytes, "{written} of {file_bytes}");
    drop(log);
    let log = rig.open().unwrap();
    assert_eq!(log.state().last, Some(id(1, last - 1)));
}

/// Proves that the same flip is damage once any later frame, even a lazy one, knew of the sync.
#[test]
fn a_lazy_frame_makes_the_last_batch_known() {
    let mut rig = Rig::new();
    let log = rig.open().unwrap();
    append(&log, vec![entry(1, 0, 64)]);
    settle(&log);
    let from = log.shared.writer.lock().written;
    append(&log, vec![entry(1, 1, 64)]);
    settle(&log);
    log.save_committed(Some(id(1, 1)));
    settle(&log);
    let path = log.shared.writer.lock().active.path.clone();
    drop(log);
    rig.disk.kill();
    rig.disk.flip_bit(&path, from + 70, 0).unwrap();
    let before = rig.disk.contents(&path).unwrap();
    match rig.open() {
        Err(LogError::Damaged { position, .. }) => assert_eq!(position, from),
        other => panic!("{:?}", other.err()),
    }
    assert!(
        rig.disk.contents(&path).unwrap() == before,
        "nothing is changed"
    );
}

/// Proves that a lost file in the middle, or the loss of all, is neither a shorter log nor damage, which a broker would begin anew for.
#[test]
fn missing_files_are_told_from_damage() {
    let mut rig = Rig::new();
    let log = rig.open().unwrap();
    for index in 0..20 {
        append(&log, vec![entry(1, index, 2000)]);
        settle(&log);
    }
    block_on(log.save_checkpoint(id(1, 3), Bytes::from_static(b"image"))).unwrap();
    let names: Vec<_> = log
        .shared
        .order
        .lock()
        .files
        .iter()
        .map(|file| file.file.as_ref().unwrap().path.clone())
        .collect();
    assert!(names.len() >= 4);
    drop(log);
    let disk = rig.disk.shared();
    disk.rename(&names[1], &rig.path("kept")).unwrap();
    assert!(
        matches!(rig.open(), Err(LogError::Missing { .. })),
        "a hole"
    );
    disk.rename(&rig.path("kept"), &names[1]).unwrap();
    disk.rename(&names[0], &rig.path("kept")).unwrap();
    assert!(
        matches!(rig.open(), Err(LogError::Missing { .. })),
        "the first file"
    );
    disk.rename(&rig.path("kept"), &names[0]).unwrap();
    assert_eq!(all(&rig.open().unwrap()).unwrap().len(), 20);
    for name in names {
        disk.remove(&name).unwrap();
    }
    assert!(
        matches!(rig.open(), Err(LogError::Missing { .. })),
        "checkpoints without a log"
    );
}

/// Proves that a file under a wrong name, and a file cut short, are refused.
#[test]
fn misplaced_and_short_files_are_refused() {
    let mut rig = Rig::new();
    drop(rig.open().unwrap());
    let disk = rig.disk.shared();
    let (one, two) = (
        rig.path("00000000000000000001.log"),
        rig.path("00000000000000000002.log"),
    );
    disk.rename(&one, &two).unwrap();
    assert!(matches!(rig.open(), Err(LogError::Damaged { .. })));
    disk.rename(&two, &one).unwrap();
    drop(rig.open().unwrap());
    disk.remove(&one).unwrap();
    let file = disk
        .open(&one, tidelog_env::disk::OpenMode::CreateNew)
        .unwrap();
    file.write_all_at(&[std::io::IoSlice::new(&[0; 100])], 0)
        .unwrap();
    assert!(matches!(rig.open(), Err(LogError::Damaged { .. })));
}
