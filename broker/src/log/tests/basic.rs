//! What the calls do, without faults.

use super::*;

/// Proves that entries are readable at once, acknowledged only after a step, and that one step writes and syncs once.
#[test]
fn many_appends_share_one_write_and_one_sync() {
    let mut rig = Rig::new();
    let log = rig.open().unwrap();
    let order = Arc::new(PlMutex::new(Vec::new()));
    for index in 0..10 {
        let order = Arc::clone(&order);
        log.append(
            vec![entry(1, index, 100)],
            Box::new(move |done| order.lock().push((index, done.is_ok()))),
        );
    }
    assert_eq!(all(&log).unwrap().len(), 10);
    assert!(
        order.lock().is_empty(),
        "nothing is acknowledged before the sync"
    );
    assert!(log.metrics().queued_bytes.get() > 1000);
    let before = rig.disk.operations();
    assert!(log.step());
    assert_eq!(rig.disk.operations() - before, 2, "one write, one sync");
    assert_eq!(
        *order.lock(),
        (0..10).map(|index| (index, true)).collect::<Vec<_>>()
    );
    assert_eq!(log.metrics().batches.get(), 1);
    assert_eq!(log.metrics().syncs.get(), 1);
    assert_eq!(log.metrics().entries.get(), 10);
    assert_eq!(log.metrics().queued_bytes.get(), 0);
    assert!(!log.step());
}

/// Proves that a batch stops near `batch_bytes_max`.
#[test]
fn a_batch_is_bounded() {
    let mut rig = Rig::new();
    rig.config.batch_bytes_max = 1000;
    let log = rig.open().unwrap();
    for index in 0..10 {
        append(&log, vec![entry(1, index, 400)]);
    }
    settle(&log);
    assert_eq!(
        log.metrics().batches.get(),
        4,
        "three frames of about 480 bytes pass 1000"
    );
}

/// Proves that what breaks the rules is refused whole, and that the log goes on.
#[test]
fn entries_out_of_order_are_refused() {
    let mut rig = Rig::new();
    let log = rig.open().unwrap();
    let kind = |result: &Arc<PlMutex<Option<io::Result<()>>>>| match &*result.lock() {
        Some(Err(error)) => error.kind(),
        other => panic!("{other:?}"),
    };
    append(&log, vec![entry(2, 0, 10), entry(2, 1, 10)]);
    assert_eq!(
        kind(&append(&log, vec![entry(2, 3, 10)])),
        io::ErrorKind::InvalidInput,
        "a hole"
    );
    assert_eq!(
        kind(&append(&log, vec![entry(1, 2, 10)])),
        io::ErrorKind::InvalidInput,
        "a lower term"
    );
    assert_eq!(
        kind(&append(&log, vec![entry(2, 2, 10), entry(2, 4, 10)])),
        io::ErrorKind::InvalidInput
    );
    assert_eq!(
        kind(&append(&log, vec![entry(2, 2, 5000)])),
        io::ErrorKind::InvalidInput,
        "too large"
    );
    assert_eq!(
        log.state().last,
        Some(id(2, 1)),
        "nothing of a refused call is taken"
    );
    let done = append(&log, vec![entry(2, 2, 10)]);
    let empty = append(&log, Vec::new());
    settle(&log);
    assert!(is_ok(&done) && is_ok(&empty));
    assert!(
        block_on(log.truncate_after(Some(id(1, 1)))).is_err(),
        "that term was never there"
    );
    assert!(
        block_on(log.truncate_after(Some(id(2, 9)))).is_err(),
        "past the end"
    );
    assert_eq!(rig.fatal.load(Ordering::SeqCst), 0);
}

/// Proves that truncation, purge, votes and the commit index come back after a clean close, with many files between.
#[test]
fn everything_comes_back() {
    let mut rig = Rig::new();
    let log = rig.open().unwrap();
    for index in 0..30 {
        append(&log, vec![entry(1, index, 1500)]);
        settle(&log);
    }
    block_on(log.truncate_after(Some(id(1, 24)))).unwrap();
    append(&log, vec![entry(3, 25, 700)]);
    let mut saved = start_vote(&log, vote(4));
    log.save_committed(Some(id(1, 20)));
    block_on(log.purge(id(1, 15))).unwrap();
    settle(&log);
    assert!(poll(&mut saved).is_ready());
    assert!(log.metrics().rotations.get() >= 2);
    assert!(log.metrics().files_recycled.get() >= 1);
    let (state, entries) = (log.state(), all(&log).unwrap());
    assert_eq!(entries.first().unwrap().id, id(1, 16));
    assert_eq!(entries.last().unwrap(), &entry(3, 25, 700));
    assert!(matches!(
        block_on(log.entries(at(15)..at(17), 100)),
        Err(LogError::Purged { .. })
    ));
    assert!(matches!(
        block_on(log.read_bodies(&[(at(3), 0..1)])),
        Err(LogError::Purged { .. })
    ));
    assert!(matches!(
        block_on(log.read_bodies(&[(at(99), 0..1)])),
        Err(LogError::NotFound { .. })
    ));
    let local = log.local_bytes();
    assert!(local > 10_000 && local < log.disk_bytes());
    let mut closing = Box::pin(log.close());
    assert!(matches!(poll(&mut closing), std::task::Poll::Ready(Ok(()))));
    assert!(matches!(
        block_on(log.save_vote(vote(5))),
        Err(LogError::Closed)
    ));
    let reopened = rig.open().unwrap();
    assert_eq!(reopened.state(), state);
    assert_eq!(all(&reopened).unwrap(), entries);
}

/// Proves that purging past the end (after a snapshot was installed) moves the log's start, also across a restart.
#[test]
fn purge_past_the_end_moves_the_start() {
    let mut rig = Rig::new();
    let log = rig.open().unwrap();
    append(&log, vec![entry(1, 0, 10)]);
    block_on(log.purge(id(5, 100))).unwrap();
    block_on(log.purge(id(1, 50))).unwrap();
    assert_eq!(
        log.state().purged,
        Some(id(5, 100)),
        "purge never goes back"
    );
    assert_eq!(log.state().last, Some(id(5, 100)));
    assert!(!is_ok(&append(&log, vec![entry(5, 1, 10)])));
    append(&log, vec![entry(5, 101, 10)]);
    settle(&log);
    let state = log.state();
    drop(log);
    let log = rig.open().unwrap();
    assert_eq!(log.state(), state);
    assert_eq!(all(&log).unwrap(), vec![entry(5, 101, 10)]);
}

/// Proves that many parts of bodies come in the order they were asked for and from where they are, near or far from each
/// other, and that one bad range fails the whole call.
#[test]
fn parts_of_bodies_come_in_the_order_asked() {
    let mut rig = Rig::new();
    let log = rig.open().unwrap();
    let expected: Vec<_> = (0..25)
        .map(|index| entry(1, index, 2_000 + usize::try_from(index).unwrap()))
        .collect();
    append(&log, expected.clone());
    settle(&log);
    let mut wanted = Vec::new();
    for index in [24, 0, 1, 2, 9, 8, 8, 3, 23] {
        for range in [0..17, 17..600, 1_999..2_000, 3..3, 500..1_900] {
            wanted.push((at(index), range));
        }
    }
    let disk = log.metrics().reads_disk.get();
    let found = block_on(log.read_bodies(&wanted)).unwrap();
    assert_eq!(log.metrics().reads_disk.get(), disk + 1);
    assert_eq!(found.len(), wanted.len());
    for ((index, range), got) in wanted.iter().zip(&found) {
        let body = &expected[usize::try_from(index.get()).unwrap()].body;
        assert_eq!(
            got.as_ref(),
            &body[range.start as usize..range.end as usize]
        );
    }
    wanted.push((at(5), 0..9_999));
    assert!(matches!(
        block_on(log.read_bodies(&wanted)),
        Err(LogError::Invalid(_))
    ));
    assert!(block_on(log.read_bodies(&[])).unwrap().is_empty());
}

/// Proves that reads beyond the cache come from disk and are the same, in pieces of the asked size, at least one each.
#[test]
fn reads_from_memory_and_disk_agree() {
    let mut rig = Rig::new();
    let log = rig.open().unwrap();
    let expected: Vec<_> = (0..25)
        .map(|index| entry(1, index, 300 + usize::try_from(index).unwrap()))
        .collect();
    append(&log, expected.clone());
    settle(&log);
    assert!(log.metrics().reads_disk.get() == 0);
    assert_eq!(all(&log).unwrap(), expected);
    assert_eq!(
        log.metrics().reads_disk.get(),
        1,
        "most entries left the cache of 4 KiB"
    );
    for (index, want) in (0u64..).zip(&expected) {
        let got = block_on(log.entries(at(index)..at(index + 1), 0)).unwrap();
        assert_eq!(
            got.as_slice(),
            std::slice::from_ref(want),
            "one entry even when it does not fit"
        );
        assert_eq!(
            block_on(log.read_bodies(&[(at(index), 5..200)])).unwrap(),
            [want.body.slice(5..200)]
        );
        assert!(matches!(
            block_on(log.read_bodies(&[(at(index), 0..9999)])),
            Err(LogError::Invalid(_))
        ));
    }
    assert_eq!(block_on(log.entries(at(0)..at(25), 1000)).unwrap().len(), 3);
    assert!(
        block_on(log.entries(at(25)..at(30), 1000))
            .unwrap()
            .is_empty(),
        "past the end there is nothing yet"
    );
    let newest = block_on(log.entries(at(24)..at(25), 1000)).unwrap();
    assert_eq!(
        newest[0].body.as_ptr(),
        expected[24].body.as_ptr(),
        "from memory without a copy"
    );
}

/// Proves that a commit index is written lazily, without a sync, and travels with the next batch.
#[test]
fn committed_never_syncs() {
    let mut rig = Rig::new();
    let log = rig.open().unwrap();
    append(&log, vec![entry(1, 0, 10)]);
    settle(&log);
    log.save_committed(Some(id(1, 0)));
    let (before, syncs) = (rig.disk.operations(), log.metrics().syncs.get());
    settle(&log);
    assert_eq!(
        rig.disk.operations() - before,
        1,
        "a write and nothing else"
    );
    assert_eq!(log.metrics().syncs.get(), syncs);
    rig.disk.kill();
    drop(log);
    assert_eq!(rig.open().unwrap().state().committed, Some(id(1, 0)));
}

/// Proves that two owners of one directory are refused, and that dropping the last handle frees it.
#[test]
fn a_directory_has_one_owner() {
    let mut rig = Rig::new();
    let log = rig.open().unwrap();
    assert!(matches!(rig.open(), Err(LogError::Locked { .. })));
    drop(log);
    assert!(rig.open().is_ok());
}

/// Proves that another cluster, group or node is refused with both identities in the message.
#[test]
fn a_foreign_directory_is_refused() {
    let mut rig = Rig::new();
    drop(rig.open().unwrap());
    let own = rig.config.clone();
    let others = [
        GroupLogConfig {
            cluster: ClusterId::new(uuid::Uuid::from_u128(43)),
            ..own.clone()
        },
        GroupLogConfig {
            group: PlacementGroupId::new(2),
            ..own.clone()
        },
        GroupLogConfig {
            node: RaftNodeId::new(8),
            ..own.clone()
        },
    ];
    for other in others {
        rig.config = other;
        let message = rig.open().err().unwrap().to_string();
        let found = format!("belongs to {}", own.identity());
        assert!(
            message.contains(&found) && message.contains(&rig.config.identity().to_string()),
            "{message}"
        );
    }
}

/// Proves that sizes that cannot work are refused.
#[test]
fn impossible_settings_are_refused() {
    let good = config("/groups/1");
    for bad in [
        GroupLogConfig {
            file_bytes: 100,
            ..good.clone()
        },
        GroupLogConfig {
            file_bytes: (1 << 20) + 1,
            ..good.clone()
        },
        GroupLogConfig {
            file_bytes: 2 << 30,
            ..good.clone()
        },
        GroupLogConfig {
            entry_bytes_max: 16 * 1024,
            ..good.clone()
        },
        GroupLogConfig {
            batch_bytes_max: 0,
            ..good.clone()
        },
        GroupLogConfig {
            spare_files: 0,
            ..good.clone()
        },
    ] {
        let mut rig = Rig::new();
        rig.config = bad;
        assert!(matches!(rig.open(), Err(LogError::Invalid(_))));
    }
}

/// Proves that a file of another size is still read after the setting changed, and that new files have the new size.
#[test]
fn file_size_may_change() {
    let mut rig = Rig::new();
    let log = rig.open().unwrap();
    append(&log, vec![entry(1, 0, 1000)]);
    settle(&log);
    drop(log);
    rig.config.file_bytes = 2 * FILE_BYTES;
    let log = rig.open().unwrap();
    for index in 1..20 {
        append(&log, vec![entry(1, index, 1000)]);
        settle(&log);
    }
    assert_eq!(all(&log).unwrap().len(), 20);
    let lengths: Vec<u64> = log
        .shared
        .order
        .lock()
        .files
        .iter()
        .map(|file| file.file_bytes)
        .collect();
    assert_eq!(lengths, vec![FILE_BYTES, 2 * FILE_BYTES]);
    drop(log);
    assert_eq!(all(&rig.open().unwrap()).unwrap().len(), 20);
}
