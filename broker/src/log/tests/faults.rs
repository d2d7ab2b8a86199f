//! Disk errors while the machine stays up.

use super::model::{Act, Driver, script};
use super::*;
use tidelog_env::disk::Fault;

/// Proves for EIO and ENOSPC at every operation: nothing acknowledged is lost; the log either dies with its signal or
/// goes on as if nothing had been.
#[test]
fn an_error_at_every_operation() {
    for fault in [Fault::Eio, Fault::Enospc] {
        let (mut number, mut died, mut went_on) = (0, 0, 0);
        loop {
            let mut driver = Driver::new();
            driver.rig.disk.fail_at(number, fault);
            let opened = driver.open() || driver.open();
            assert!(opened, "{fault:?} at {number}: a second open works");
            let mut alive = true;
            for act in script() {
                alive = driver.act(&act);
                if !alive {
                    break;
                }
            }
            let signals = driver.rig.fatal.load(Ordering::SeqCst);
            assert_eq!(
                signals,
                u64::from(!alive),
                "{fault:?} at {number}: one signal if it died"
            );
            if alive {
                went_on += 1
            } else {
                died += 1
            }
            let reached = driver.rig.disk.operations() > number;
            driver.lose(number * 3, number % 2 == 0);
            assert!(driver.open(), "{fault:?} at {number}");
            if !reached {
                break;
            }
            number += 1;
        }
        assert!(
            died > 20 && went_on > 20,
            "{fault:?}: {died} died, {went_on} went on"
        );
    }
}

/// Proves that after a failed sync every waiting and later call fails, nothing is written any more, and that a new process
/// that finds the bytes in the page cache makes them durable before it shows them.
#[test]
fn a_failed_sync_is_never_acknowledged() {
    let mut rig = Rig::new();
    let log = rig.open().unwrap();
    append(&log, vec![entry(1, 0, 50)]);
    settle(&log);
    rig.disk.fail_at(rig.disk.operations() + 1, Fault::Eio);
    let failed = append(&log, vec![entry(1, 1, 50)]);
    assert!(!log.step());
    let later = append(&log, vec![entry(1, 2, 50)]);
    let mut voted = start_vote(&log, vote(9));
    assert!(matches!(*failed.lock(), Some(Err(_))));
    assert!(matches!(*later.lock(), Some(Err(_))));
    assert!(matches!(
        poll(&mut voted),
        std::task::Poll::Ready(Err(LogError::Poisoned(_)))
    ));
    assert!(matches!(
        block_on(log.truncate_after(None)),
        Err(LogError::Poisoned(_))
    ));
    assert!(matches!(
        block_on(log.entries(at(0)..at(1), 1)),
        Err(LogError::Poisoned(_))
    ));
    assert!(matches!(block_on(log.close()), Err(LogError::Poisoned(_))));
    assert_eq!(rig.fatal.load(Ordering::SeqCst), 1);
    let message = log.poisoned().unwrap().to_string();
    assert!(
        message.contains("syncing failed") && message.contains("check the disk"),
        "{message}"
    );
    let before = rig.disk.operations();
    settle(&log);
    assert_eq!(rig.disk.operations(), before);
    drop(log);
    rig.disk.kill();
    let log = rig.open().unwrap();
    assert_eq!(
        log.state().last,
        Some(id(1, 1)),
        "the page cache still shows it"
    );
    drop(log);
    rig.disk.crash(0);
    assert_eq!(
        rig.open().unwrap().state().last,
        Some(id(1, 1)),
        "so it must be on disk by now"
    );
}

/// Proves that on a full disk the log goes on in its spare file, then waits, and goes on by itself when there is room; and
/// that it opens on a full disk.
#[test]
fn a_full_disk_is_waited_out() {
    let mut rig = Rig::new();
    let log = rig.open().unwrap();
    rig.disk.set_capacity(2 * FILE_BYTES);
    let mut results = Vec::new();
    for index in 0..14 {
        results.push(append(&log, vec![entry(1, index, 2000)]));
        settle(&log);
    }
    let done = results.iter().filter(|result| is_ok(result)).count();
    assert!(done >= 10, "the spare file was used: {done}");
    assert_eq!(log.metrics().starved.get(), 1);
    assert!(log.metrics().prepare_failures.get() > 0);
    assert!(log.poisoned().is_none());
    rig.disk.set_capacity(u64::MAX);
    settle(&log);
    assert!(results.iter().all(is_ok));
    assert_eq!(log.metrics().starved.get(), 0);
    drop(log);
    rig.disk.set_capacity(0);
    let log = rig.open().unwrap();
    assert_eq!(all(&log).unwrap().len(), 14);
    let done = append(&log, vec![entry(1, 14, 100)]);
    let mut voted = start_vote(&log, vote(3));
    settle(&log);
    assert!(
        is_ok(&done) && poll(&mut voted).is_ready(),
        "the room of a log file is there already"
    );
}

/// Proves that a purge on a full disk frees a file that the waiting writer then uses.
#[test]
fn a_purge_feeds_a_starved_writer() {
    let mut driver = Driver::new();
    assert!(driver.open());
    driver.rig.disk.set_capacity(2 * FILE_BYTES);
    for _ in 0..9 {
        assert!(driver.act(&Act::Append(vec![2000])));
        assert!(driver.act(&Act::Step));
    }
    for _ in 0..20 {
        assert!(driver.act(&Act::Purge(1)));
        assert!(driver.act(&Act::Step));
        assert!(driver.act(&Act::Append(vec![2000])));
        assert!(driver.act(&Act::Step));
    }
    assert!(driver.log().unwrap().metrics().rotations.get() > 3);
    driver.lose(0, false);
    driver.rig.disk.set_capacity(u64::MAX);
    assert!(driver.open());
}
