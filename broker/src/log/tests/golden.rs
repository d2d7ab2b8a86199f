//! Files of format version 1, as they were written once. They must always open, and be written the same way.

use super::*;
use std::path::Path;
use tidelog_env::disk::OpenMode;

const LOG: &str = "group-log-v1.log";
const SNAP: &str = "checkpoint-v1.snap";

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src/log/testdata")
        .join(name)
}

/// Writes one frame of every kind.
fn written() -> Rig {
    let mut rig = Rig::new();
    let log = rig.open().unwrap();
    append(
        &log,
        vec![LogEntry {
            kind: EntryKind::Membership,
            ..entry(1, 0, 3)
        }],
    );
    append(
        &log,
        vec![LogEntry {
            kind: EntryKind::Blank,
            dir: Bytes::new(),
            body: Bytes::new().into(),
            ..entry(1, 1, 0)
        }],
    );
    append(&log, vec![entry(1, 2, 45), entry(1, 3, 300)]);
    let saved = start_vote(&log, vote(2));
    settle(&log);
    block_on(saved).unwrap();
    log.save_committed(Some(id(1, 2)));
    block_on(log.truncate_after(Some(id(1, 2)))).unwrap();
    append(&log, vec![entry(2, 3, 1)]);
    block_on(log.purge(id(1, 0))).unwrap();
    block_on(log.save_checkpoint(id(1, 2), Bytes::from_static(b"the image"))).unwrap();
    settle(&log);
    rig
}

/// Proves that today's code writes the bytes of version 1, and reads those written then.
#[test]
fn version_1_is_stable() {
    let rig = written();
    for (name, file) in [
        (LOG, "00000000000000000001.log"),
        (SNAP, "00000000000000000002-1.snap"),
    ] {
        let bytes = rig.disk.contents(&rig.path(file)).unwrap();
        if std::env::var_os("TIDELOG_BLESS").is_some() {
            std::fs::write(golden(name), &bytes).unwrap();
        }
        assert!(
            std::fs::read(golden(name)).unwrap() == bytes,
            "{name} differs; a new format needs a new version"
        );
    }
    let mut rig = Rig::new();
    let disk = rig.disk.shared();
    disk.create_dir_all(&rig.config.dir).unwrap();
    for (name, file) in [
        (LOG, "00000000000000000001.log"),
        (SNAP, "00000000000000000002-1.snap"),
    ] {
        let bytes = std::fs::read(golden(name)).unwrap();
        let file = disk.open(&rig.path(file), OpenMode::CreateNew).unwrap();
        file.write_all_at(&[std::io::IoSlice::new(&bytes)], 0)
            .unwrap();
    }
    let log = rig.open().unwrap();
    let expected = LogState {
        purged: Some(id(1, 0)),
        last: Some(id(2, 3)),
        vote: Some(vote(2)),
        committed: Some(id(1, 2)),
    };
    assert_eq!(log.state(), expected);
    assert_eq!(all(&log).unwrap()[1..], [entry(1, 2, 45), entry(2, 3, 1)]);
    let checkpoint = block_on(log.load_newest_checkpoint()).unwrap();
    assert_eq!(
        checkpoint,
        Some((id(1, 2), Bytes::from_static(b"the image")))
    );
}
