//! The model: a log is a list of states, one after each frame. What a recovery finds must be one of them, and none before
//! the last that was acknowledged.

use super::*;
use futures::future::BoxFuture;
use std::task::Poll;

/// One thing a test does with a log.
#[derive(Debug, Clone)]
pub(super) enum Act {
    /// Appends entries of these body sizes with one call.
    Append(Vec<usize>),
    /// Drops the last entries (as many as there are after what was purged).
    Truncate(u64),
    /// Purges all but the last entries.
    Purge(u64),
    /// Purges past the end.
    PurgeBeyond(u64),
    Vote,
    Committed,
    /// Lets the writer run until nothing waits.
    Step,
}

/// What the log should hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Model {
    purged: Option<LogId>,
    entries: Vec<LogEntry>,
    vote: Option<Vote>,
}

impl Model {
    fn last(&self) -> Option<LogId> {
        self.entries.last().map(|entry| entry.id).or(self.purged)
    }
}

/// A log under test with its model.
pub(super) struct Driver {
    pub(super) rig: Rig,
    log: Option<GroupLog>,
    /// The states so far; the last is the one the log should be in.
    history: Vec<Model>,
    /// Commit indexes that were given.
    committed: Vec<Option<LogId>>,
    /// The state up to which everything was acknowledged.
    acked: Arc<AtomicU64>,
    votes: Vec<(u64, BoxFuture<'static, Result<(), LogError>>)>,
    term: u64,
}

impl Driver {
    pub(super) fn new() -> Self {
        Self {
            rig: Rig::new(),
            log: None,
            history: vec![Model::default()],
            committed: vec![None],
            acked: Arc::default(),
            votes: Vec::new(),
            term: 1,
        }
    }

    fn now(&self) -> Model {
        self.history.last().unwrap().clone()
    }

    fn position(&self) -> u64 {
        u64::try_from(self.history.len()).unwrap() - 1
    }

    /// Opens the log; `Ok(false)` when a planned fault stopped it.
    pub(super) fn open(&mut self) -> bool {
        match self.rig.open() {
            Ok(log) => {
                self.log = Some(log);
                self.settle_with_model()
            }
            Err(LogError::Io { .. }) => false,
            Err(other) => panic!("recovery refused: {other}"),
        }
    }

    /// Finds the state in the history that the log is in: it must be there, and not before what was acknowledged.
    /// `false` when a planned fault met the reads.
    fn settle_with_model(&mut self) -> bool {
        let log = self.log.clone().unwrap();
        let state = log.state();
        let entries = match all(&log) {
            Ok(entries) => entries,
            Err(LogError::Io { .. }) => {
                self.log = None;
                return false;
            }
            Err(other) => panic!("{other}"),
        };
        let found = Model {
            purged: state.purged,
            entries,
            vote: state.vote,
        };
        assert_eq!(state.last, found.last());
        let acked = usize::try_from(self.acked.load(Ordering::SeqCst)).unwrap();
        let at = (acked..self.history.len())
            .rev()
            .find(|at| self.history[*at] == found);
        let Some(at) = at else {
            panic!(
                "not a state at or after the acknowledged one ({acked} of {}): {:?}",
                self.history.len(),
                short(&found)
            );
        };
        assert!(
            state.committed.is_none()
                || self
                    .committed
                    .iter()
                    .flatten()
                    .any(|given| Some(given.index) >= state.committed.map(|id| id.index)),
            "a commit index that nobody gave: {:?}",
            state.committed
        );
        self.history.truncate(at + 1);
        self.acked.store(self.position(), Ordering::SeqCst);
        self.votes.clear();
        self.term += 1;
        true
    }

    /// `false` when the log died (a planned fault).
    pub(super) fn act(&mut self, act: &Act) -> bool {
        let Some(log) = self.log.clone() else {
            return false;
        };
        if log.poisoned().is_some() {
            return false;
        }
        match act {
            Act::Append(sizes) => self.append(&log, sizes),
            Act::Truncate(count) => self.truncate(&log, *count),
            Act::Purge(keep) => {
                let model = self.now();
                let keep = usize::try_from(*keep).unwrap();
                if let Some(last) = model.entries.len().checked_sub(keep + 1) {
                    self.purge(&log, model.entries[last].id);
                }
            }
            Act::PurgeBeyond(more) => {
                let index = self.now().last().map_or(0, |last| last.index.get()) + more + 1;
                self.purge(&log, id(self.term, index));
            }
            Act::Vote => {
                self.term += 1;
                let vote = vote(self.term);
                let mut model = self.now();
                model.vote = Some(vote);
                self.history.push(model);
                self.votes.push((self.position(), start_vote(&log, vote)));
            }
            Act::Committed => {
                let committed = self.now().last();
                self.committed.push(committed);
                log.save_committed(committed);
            }
            Act::Step => self.step(&log),
        }
        log.poisoned().is_none()
    }

    fn append(&mut self, log: &GroupLog, sizes: &[usize]) {
        let mut entries = Vec::new();
        for size in sizes {
            let mut model = self.now();
            let next = model.last().map_or(0, |last| last.index.get() + 1);
            let entry = entry(
                self.term
                    .max(model.last().map_or(0, |last| last.term.get())),
                next,
                *size,
            );
            model.entries.push(entry.clone());
            self.history.push(model);
            entries.push(entry);
        }
        let (acked, position) = (Arc::clone(&self.acked), self.position());
        log.append(
            entries,
            Box::new(move |result| {
                if result.is_ok() {
                    assert!(
                        acked.fetch_max(position, Ordering::SeqCst) <= position,
                        "callbacks come in order"
                    );
                }
            }),
        );
    }

    fn truncate(&mut self, log: &GroupLog, count: u64) {
        let mut model = self.now();
        let keep = model
            .entries
            .len()
            .saturating_sub(usize::try_from(count).unwrap());
        if keep == model.entries.len() {
            return;
        }
        model.entries.truncate(keep);
        block_on(log.truncate_after(model.last())).unwrap();
        self.history.push(model);
        self.term += 1;
    }

    fn purge(&mut self, log: &GroupLog, upto: LogId) {
        let mut model = self.now();
        model.entries.retain(|entry| entry.id.index > upto.index);
        model.purged = Some(upto);
        self.history.push(model);
        block_on(log.purge(upto)).unwrap();
    }

    fn step(&mut self, log: &GroupLog) {
        settle(log);
        for (position, future) in &mut self.votes {
            if let Poll::Ready(Ok(())) = poll(future) {
                self.acked.fetch_max(*position, Ordering::SeqCst);
                *position = 0;
            }
        }
        self.votes.retain(|(position, _)| *position > 0);
        if log.poisoned().is_none() {
            let state = log.state();
            match all(log) {
                Ok(entries) => {
                    let found = Model {
                        purged: state.purged,
                        entries,
                        vote: state.vote,
                    };
                    assert_eq!(found, self.now(), "a running log is what it was told");
                }
                Err(LogError::Io { .. }) => {} // The planned fault met the read.
                Err(other) => panic!("{other}"),
            }
        }
    }

    /// Loses the process (and the power, unless `kill`) and everything that was not acknowledged with it.
    pub(super) fn lose(&mut self, seed: u64, kill: bool) {
        self.log = None;
        self.votes.clear();
        if kill {
            self.rig.disk.kill();
        } else {
            self.rig.disk.crash(seed);
        }
    }

    /// Whether the last open log was told of a failure.
    pub(super) fn log(&self) -> Option<&GroupLog> {
        self.log.as_ref()
    }
}

fn short(model: &Model) -> String {
    let entries: Vec<_> = model
        .entries
        .iter()
        .map(|entry| entry.id.to_string())
        .collect();
    format!(
        "purged {:?}, vote {:?}, entries {}",
        model.purged,
        model.vote,
        entries.join(" ")
    )
}

/// A small history that meets everything: rotation, recycling, truncation over a file border, votes, lazy frames, purge
/// past the end.
pub(super) fn script() -> Vec<Act> {
    use Act::{Append, Committed, Purge, PurgeBeyond, Step, Truncate, Vote};
    vec![
        Append(vec![100, 20, 300]),
        Vote,
        Step,
        Append(vec![3000, 10]),
        Append(vec![2500]),
        Committed,
        Step,
        Committed,
        Step,
        Append(vec![3500, 3500, 1]),
        Truncate(2),
        Append(vec![700, 700, 700]),
        Step,
        Purge(2),
        Append(vec![3900, 3900]),
        Step,
        Vote,
        Append(vec![3900, 3900]),
        Step,
        Purge(1),
        Committed,
        Step,
        Append(vec![3000, 3000, 3000]),
        Truncate(4),
        Vote,
        Step,
        PurgeBeyond(3),
        Append(vec![50]),
        Step,
    ]
}
