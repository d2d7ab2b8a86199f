//! Tests of the group log: a model, a disk that tears, and the real one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod basic;
mod checkpoints;
mod crash;
mod damage;
mod faults;
mod golden;
mod model;
mod real;
mod threads;

use super::*;
use futures::executor::block_on;
use parking_lot::Mutex as PlMutex;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tidelog_env::disk::{Disk, MemoryDisk};
use tidelog_env::{SystemRandom, Tasks};
use tidelog_model::{ClusterId, PlacementGroupId, RaftNodeId, Term};

pub(super) const FILE_BYTES: u64 = 16 * 1024;

pub(super) fn id(term: u64, index: u64) -> LogId {
    LogId {
        term: Term::new(term),
        index: LogIndex::new(index),
    }
}

pub(super) fn at(index: u64) -> LogIndex {
    LogIndex::new(index)
}

/// An entry whose bytes follow from its id, so that mixed-up ones are noticed.
pub(super) fn entry(term: u64, index: u64, size: usize) -> LogEntry {
    let fill = u8::try_from((term * 31 + index * 7) % 251).unwrap();
    LogEntry {
        id: id(term, index),
        kind: EntryKind::Command,
        dir: Bytes::from(vec![fill ^ 0x55; size % 40]),
        body: Bytes::from(vec![fill; size]).into(),
    }
}

pub(super) fn vote(term: u64) -> Vote {
    Vote {
        term: Term::new(term),
        node: RaftNodeId::new(7),
        committed: term.is_multiple_of(2),
    }
}

pub(super) fn config(dir: impl Into<PathBuf>) -> GroupLogConfig {
    let cluster = ClusterId::new(uuid::Uuid::from_u128(42));
    let mut config = GroupLogConfig::new(
        dir.into(),
        cluster,
        PlacementGroupId::new(1),
        RaftNodeId::new(7),
    )
    .with_file_bytes(FILE_BYTES);
    config.writer = WriterMode::Manual;
    config.cache_bytes = 4096;
    config
}

/// A log on a disk, and whether it died.
pub(super) struct Rig {
    pub(super) disk: MemoryDisk,
    pub(super) fatal: Arc<AtomicU64>,
    pub(super) config: GroupLogConfig,
    pub(super) seed: u64,
}

impl Rig {
    pub(super) fn new() -> Self {
        Self {
            disk: MemoryDisk::new(),
            fatal: Arc::default(),
            config: config("/groups/1"),
            seed: 1,
        }
    }

    pub(super) fn env(&mut self) -> LogEnv {
        env(self.disk.shared(), &self.fatal, &mut self.seed)
    }

    pub(super) fn open(&mut self) -> Result<GroupLog, LogError> {
        let env = self.env();
        block_on(GroupLog::open(self.config.clone(), env))
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.config.dir.join(name)
    }
}

pub(super) fn env(disk: Arc<dyn Disk>, fatal: &Arc<AtomicU64>, seed: &mut u64) -> LogEnv {
    *seed += 1;
    let fatal = Arc::clone(fatal);
    LogEnv {
        disk,
        random: SystemRandom::seeded(*seed),
        tasks: Tasks::new(),
        fatal: Arc::new(move |_| {
            fatal.fetch_add(1, Ordering::SeqCst);
        }),
        observer: Arc::new(NoObserver),
    }
}

/// Runs the writer until nothing waits.
pub(super) fn settle(log: &GroupLog) {
    while log.step() {}
}

/// Appends and returns what `done` was called with, once it was.
pub(super) fn append(
    log: &GroupLog,
    entries: Vec<LogEntry>,
) -> Arc<PlMutex<Option<io::Result<()>>>> {
    let result = Arc::new(PlMutex::new(None));
    let slot = Arc::clone(&result);
    log.append(entries, Box::new(move |done| *slot.lock() = Some(done)));
    result
}

pub(super) fn is_ok(result: &Arc<PlMutex<Option<io::Result<()>>>>) -> bool {
    matches!(*result.lock(), Some(Ok(())))
}

/// Everything in the log.
pub(super) fn all(log: &GroupLog) -> Result<Vec<LogEntry>, LogError> {
    let state = log.state();
    let from = state.purged.map_or(0, |purged| purged.index.get() + 1);
    let from = if state.purged.is_none() {
        log.shared.order.lock().ledger.index.first_index().get()
    } else {
        from
    };
    let to = state.last.map_or(0, |last| last.index.get() + 1);
    if from >= to {
        return Ok(Vec::new());
    }
    block_on(log.entries(at(from)..at(to), usize::MAX))
}

/// Starts a vote; the future that was polled once.
pub(super) fn start_vote(
    log: &GroupLog,
    vote: Vote,
) -> futures::future::BoxFuture<'static, Result<(), LogError>> {
    let log = log.clone();
    let mut future: futures::future::BoxFuture<'static, _> =
        Box::pin(async move { log.save_vote(vote).await });
    if let std::task::Poll::Ready(result) = poll(&mut future) {
        return Box::pin(std::future::ready(result));
    }
    future
}

pub(super) fn poll<F: Future + Unpin>(future: &mut F) -> std::task::Poll<F::Output> {
    let waker = futures::task::noop_waker();
    std::pin::Pin::new(future).poll(&mut std::task::Context::from_waker(&waker))
}

/// A flag that a callback raises.
pub(super) fn flag() -> (Arc<AtomicBool>, AppendDone) {
    let raised = Arc::new(AtomicBool::new(false));
    let inner = Arc::clone(&raised);
    (
        raised,
        Box::new(move |result| inner.store(result.is_ok(), Ordering::SeqCst)),
    )
}
