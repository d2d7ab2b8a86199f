//! The writer on a thread and in a task.

use super::*;
use std::time::Duration;
use tidelog_env::disk::{Fault, FaultSource, OperationKind};

fn threaded(rig: &mut Rig) {
    rig.config.writer = WriterMode::Thread;
    rig.config.lazy_delay = Duration::from_millis(1);
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..5000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("never: {what}");
}

/// Proves the barrier (consensus.md 1.4): with the sync of an append delayed, a vote given after it is not answered before
/// that append is on disk, and comes after its callback.
#[tokio::test]
async fn a_vote_waits_for_everything_before_it() {
    let mut rig = Rig::new();
    threaded(&mut rig);
    let env = rig.env();
    let log = GroupLog::open(rig.config.clone(), env).await.unwrap();
    until("the spare is ready", || log.shared.pool.ready() == 1).await;
    let hold = rig.disk.hold_syncs();
    let (appended, done) = flag();
    log.append(vec![entry(1, 0, 100)], done);
    until("the sync waits", || hold.waiting() == 1).await;
    let second = append(&log, vec![entry(1, 1, 100)]);
    let mut saved = start_vote(&log, vote(2));
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(
            poll(&mut saved).is_pending(),
            "the append before it is not on disk"
        );
        assert!(!appended.load(Ordering::SeqCst));
    }
    drop(hold);
    saved.await.unwrap();
    assert!(
        appended.load(Ordering::SeqCst) && is_ok(&second),
        "everything before the vote is acknowledged first"
    );
    log.close().await.unwrap();
    rig.disk.crash(0);
    let env = rig.env();
    let log = GroupLog::open(rig.config.clone(), env).await.unwrap();
    assert_eq!(log.state().vote, Some(vote(2)));
    assert_eq!(log.state().last, Some(id(1, 1)));
}

/// Proves that power lost while the sync of an append is delayed loses the vote behind it too, unanswered.
#[tokio::test]
async fn a_vote_is_not_kept_without_what_is_before_it() {
    let mut rig = Rig::new();
    threaded(&mut rig);
    let env = rig.env();
    let log = GroupLog::open(rig.config.clone(), env).await.unwrap();
    until("the spare is ready", || log.shared.pool.ready() == 1).await;
    let hold = rig.disk.hold_syncs();
    append(&log, vec![entry(1, 0, 100)]);
    until("the sync waits", || hold.waiting() == 1).await;
    let mut saved = start_vote(&log, vote(2));
    rig.disk.crash(0);
    drop(hold);
    until("the vote fails", || {
        matches!(poll(&mut saved), std::task::Poll::Ready(Err(_)))
    })
    .await;
    drop(log);
    let env = rig.env();
    let log = GroupLog::open(rig.config.clone(), env).await.unwrap();
    assert_eq!(log.state(), LogState::default());
}

/// Proves that appends which arrive while a sync runs share the next one.
#[tokio::test]
async fn group_commit_gathers_while_a_sync_runs() {
    let mut rig = Rig::new();
    threaded(&mut rig);
    let env = rig.env();
    let log = GroupLog::open(rig.config.clone(), env).await.unwrap();
    until("the spare is ready", || log.shared.pool.ready() == 1).await;
    let hold = rig.disk.hold_syncs();
    append(&log, vec![entry(1, 0, 10)]);
    until("the sync waits", || hold.waiting() == 1).await;
    let waiting: Vec<_> = (1..50)
        .map(|index| append(&log, vec![entry(1, index, 10)]))
        .collect();
    drop(hold);
    until("all done", || waiting.iter().all(is_ok)).await;
    assert_eq!(log.metrics().batches.get(), 2);
}

/// Proves that the lazy commit index reaches the disk without any other traffic, that closing writes what waits, and that a
/// dropped log does so too.
#[tokio::test]
async fn closing_and_dropping_write_what_waits() {
    let mut rig = Rig::new();
    threaded(&mut rig);
    let env = rig.env();
    let log = GroupLog::open(rig.config.clone(), env).await.unwrap();
    let first = append(&log, vec![entry(1, 0, 10)]);
    until("appended", || is_ok(&first)).await;
    log.save_committed(Some(id(1, 0)));
    until("the lazy frame is written", || {
        log.metrics().frames.get() == 2
    })
    .await;
    assert_eq!(log.metrics().syncs.get(), 1);
    let done = append(&log, vec![entry(1, 1, 10)]);
    log.close().await.unwrap();
    assert!(is_ok(&done));
    assert!(matches!(log.close().await, Err(LogError::Closed)));
    let env = rig.env();
    let log = GroupLog::open(rig.config.clone(), env).await.unwrap();
    let done = append(&log, vec![entry(1, 2, 10)]);
    drop(log);
    until("written after the drop", || is_ok(&done)).await;
}

/// Proves that the task mode needs nothing but the runtime: appends, votes, lazy frames and rotation under paused time.
#[tokio::test(start_paused = true)]
async fn the_writer_runs_as_a_task() {
    let mut rig = Rig::new();
    rig.config.writer = WriterMode::Task;
    let env = rig.env();
    let log = GroupLog::open(rig.config.clone(), env).await.unwrap();
    for index in 0..30 {
        log.append(
            vec![entry(1, index, 2000)],
            Box::new(|done| assert!(done.is_ok())),
        );
        if index % 5 == 0 {
            log.save_vote(vote(index + 1)).await.unwrap();
            log.save_committed(Some(id(1, index)));
        }
    }
    log.purge(id(1, 20)).await.unwrap();
    log.save_vote(vote(100)).await.unwrap();
    assert!(log.metrics().rotations.get() > 2);
    assert_eq!(all(&log).unwrap().len(), 9);
    log.close().await.unwrap();
    let env = rig.env();
    assert_eq!(
        GroupLog::open(rig.config.clone(), env)
            .await
            .unwrap()
            .state()
            .vote,
        Some(vote(100))
    );
}

/// A disk whose syncs take their time.
struct SlowSyncs;

const SYNC: Duration = Duration::from_millis(100);

impl FaultSource for SlowSyncs {
    fn draw(&self, _kind: OperationKind, _path: &std::path::Path) -> Option<Fault> {
        None
    }

    fn happened(&self, _kind: OperationKind, _fault: Fault) {}

    fn delay(&self) -> Duration {
        SYNC
    }
}

/// Proves that a task waits for the disk between a write and its sync: power that goes meanwhile takes what was written, of which nobody was told
/// that it is durable; without that it is told after the sync, and what came meanwhile shares the next one.
#[tokio::test(start_paused = true)]
async fn power_goes_between_a_write_and_its_sync() {
    let mut rig = Rig::new();
    rig.config.writer = WriterMode::Task;
    rig.disk.set_fault_source(Arc::new(SlowSyncs));
    let env = rig.env();
    let log = GroupLog::open(rig.config.clone(), env).await.unwrap();
    let (told, done) = flag();
    log.append(vec![entry(1, 0, 100)], done);
    tokio::time::sleep(SYNC / 2).await;
    let later: Vec<_> = (1..9)
        .map(|index| append(&log, vec![entry(1, index, 100)]))
        .collect();
    assert_eq!(
        (log.metrics().syncs.get(), told.load(Ordering::SeqCst)),
        (0, false)
    );
    tokio::time::sleep(SYNC).await;
    assert_eq!(
        (log.metrics().syncs.get(), told.load(Ordering::SeqCst)),
        (1, true)
    );
    let path = log.shared.writer.lock().active.path.clone();
    let written = rig.disk.contents(&path).unwrap();
    rig.disk.crash(0);
    assert_ne!(rig.disk.contents(&path).unwrap(), written, "it was written");
    tokio::time::sleep(2 * SYNC).await;
    assert!(
        later
            .iter()
            .all(|done| matches!(*done.lock(), Some(Err(_))))
    );
    assert_eq!(rig.fatal.load(Ordering::SeqCst), 1);
    drop(log);
    let env = rig.env();
    let log = GroupLog::open(rig.config.clone(), env).await.unwrap();
    assert_eq!(log.state().last, Some(id(1, 0)));
}

/// Proves that a file which a reader has open is not recycled under it.
#[tokio::test]
async fn a_file_being_read_is_not_recycled() {
    let mut rig = Rig::new();
    let log = rig.open().unwrap();
    for index in 0..12 {
        append(&log, vec![entry(1, index, 3000)]);
        settle(&log);
    }
    let held = log
        .shared
        .order
        .lock()
        .files
        .front()
        .unwrap()
        .file
        .clone()
        .unwrap();
    block_on(log.purge(id(1, 11))).unwrap();
    settle(&log);
    assert!(
        rig.disk.contents(&held.path).is_ok(),
        "still under its name"
    );
    let path = held.path.clone();
    drop(held);
    append(&log, vec![entry(1, 12, 10)]);
    settle(&log);
    assert!(
        rig.disk.contents(&path).is_err(),
        "recycled once the reader is gone"
    );
}
