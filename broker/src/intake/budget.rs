//! Memory that frames of many connections share.
//!
//! Owns: who gets memory next, how it is given back, who goes ahead when nobody else can go on.
//! Not here: how much a frame asks for at a time (`frame`), who is too slow (`pace`).
//! Spec: docs/protocols/kafka-wire.md (memory of requests)
//!
//! Rules, in the order in which they are tried:
//! 1. Frames have numbers in the order in which they begin. Of those that wait, the lowest number is next: a frame that has begun does not
//!    wait behind newer ones.
//! 2. The next one gets its step when it fits.
//! 3. When it does not fit, no other frame goes ahead, and no more than the budget is used, it goes ahead: from then on it waits for nothing
//!    until it is whole or dropped.
//!
//! Why nothing stands still: somebody waits. Either a frame goes ahead; it does not wait for memory, so it becomes whole, or is closed for its
//! pace. Or none does, and more than the budget is used: by a frame that went ahead, is whole, and ends as requests do; without it no more than the
//! budget is used, by rule 2. Or neither, and rule 3 lets the next one go ahead. So at most the budget and one frame are used.

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// What a budget tells of itself. Clones share it.
#[derive(Clone, Debug)]
pub struct BudgetMetrics {
    /// Bytes that frames hold.
    pub used: Gauge,
    /// Frames that wait for memory.
    pub waiting: Gauge,
    /// How long those waited that had to.
    pub wait_seconds: Histogram,
}

impl Default for BudgetMetrics {
    fn default() -> Self {
        Self {
            used: Gauge::default(),
            waiting: Gauge::default(),
            wait_seconds: Self::wait_histogram(),
        }
    }
}

impl BudgetMetrics {
    /// From 1 ms to 32 s, doubling.
    #[must_use]
    pub fn wait_histogram() -> Histogram {
        Histogram::new(exponential_buckets(0.001, 2.0, 16))
    }
}

/// How much memory lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Frames that wait.
    pub waiting: usize,
    /// How long the one waits that waits longest.
    pub longest: Duration,
    /// Bytes that frames hold.
    pub used: usize,
}

/// A bound on the bytes of frames. Clones share it.
#[derive(Clone)]
pub struct Budget(Arc<Inner>);

struct Inner {
    bytes: usize,
    state: Mutex<State>,
    metrics: BudgetMetrics,
}

#[derive(Default)]
struct State {
    used: usize,
    /// The number of the frame that begins next.
    next: u64,
    waiting: BTreeMap<u64, Waiter>,
    /// The frame that goes ahead.
    ahead: Option<u64>,
    /// Since when frames have had to wait.
    short_since: Option<Instant>,
}

struct Waiter {
    bytes: usize,
    since: Instant,
    granted: oneshot::Sender<()>,
}

impl Budget {
    /// A budget of `bytes`.
    #[must_use]
    pub fn new(bytes: usize, metrics: BudgetMetrics) -> Self {
        Self(Arc::new(Inner {
            bytes,
            state: Mutex::default(),
            metrics,
        }))
    }

    /// A budget in which nobody waits: the frames are bounded otherwise.
    #[must_use]
    pub fn unbounded() -> Self {
        Self::new(usize::MAX, BudgetMetrics::default())
    }

    /// A frame begins. It holds nothing yet.
    #[must_use]
    pub fn begin(&self) -> Hold {
        let mut state = self.0.state.lock();
        let number = state.next;
        state.next += 1;
        Hold {
            budget: self.clone(),
            number,
            bytes: 0,
        }
    }

    /// Bytes that frames hold now.
    #[must_use]
    pub fn used(&self) -> usize {
        self.0.state.lock().used
    }

    /// Whether frames have had to wait for memory for as long as `time`, or again and again: a shortage is over when nobody waits and a quarter is free.
    #[must_use]
    pub fn is_short_for(&self, time: Duration) -> bool {
        let since = self.0.state.lock().short_since;
        since.is_some_and(|since| since.elapsed() >= time)
    }

    /// What lacks now. `None`: there is no shortage.
    #[must_use]
    pub fn shortage(&self) -> Option<Shortage> {
        let state = self.0.state.lock();
        state.short_since?;
        let since = state.waiting.values().map(|waiter| waiter.since).min();
        Some(Shortage {
            waiting: state.waiting.len(),
            longest: since.map_or(Duration::ZERO, |since| since.elapsed()),
            used: state.used,
        })
    }
}

impl Inner {
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let done = change(&mut state);
        state.grant(self.bytes);
        let metrics = &self.metrics;
        metrics.used.set(signed(state.used));
        metrics.waiting.set(signed(state.waiting.len()));
        done
    }
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

impl State {
    /// Gives what can be given.
    fn grant(&mut self, budget: usize) {
        while let Some((&number, waiter)) = self.waiting.first_key_value() {
            if !self.fits(waiter.bytes, budget) {
                if self.ahead.is_some() || self.used > budget {
                    break;
                }
                self.ahead = Some(number);
            }
            let Some(waiter) = self.waiting.remove(&number) else {
                break;
            };
            // Who waits no more has taken itself out of the map, under this lock: somebody is there.
            if waiter.granted.send(()).is_ok() {
                self.used += waiter.bytes;
            }
        }
        if self.waiting.is_empty() && self.used <= budget - budget / 4 {
            self.short_since = None;
        }
    }

    const fn fits(&self, bytes: usize, budget: usize) -> bool {
        self.used.saturating_add(bytes) <= budget
    }

    /// Whether frame `number` need not wait for `bytes`.
    fn is_free(&self, number: u64, bytes: usize, budget: usize) -> bool {
        let is_next = self
            .waiting
            .first_key_value()
            .is_none_or(|(first, _)| number < *first);
        self.ahead == Some(number) || (is_next && self.fits(bytes, budget))
    }
}

/// What one frame holds, from its begin until its request is done. Dropped: all of it is free again.
pub struct Hold {
    budget: Budget,
    number: u64,
    bytes: usize,
}

impl Hold {
    /// Bytes that the frame may take now.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The budget that it is of.
    #[must_use]
    pub const fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Takes `bytes` more, if it need not wait.
    pub(super) fn try_take(&mut self, bytes: usize) -> bool {
        let inner = &self.budget.0;
        let number = self.number;
        let taken = inner.change(|state| {
            let free = state.is_free(number, bytes, inner.bytes);
            if free {
                state.used += bytes;
            }
            free
        });
        if taken {
            self.bytes += bytes;
        }
        taken
    }

    /// Takes `bytes` more, as soon as it is its turn. A future that is dropped has taken nothing.
    pub(super) async fn take(&mut self, bytes: usize) {
        let inner = Arc::clone(&self.budget.0);
        let (granted, receiver) = oneshot::channel();
        let since = Instant::now();
        let number = self.number;
        let mut wait = Wait {
            inner: &inner,
            number,
            bytes,
            granted: receiver,
            taken: false,
        };
        inner.change(|state| {
            state.short_since.get_or_insert(since);
            let waiter = Waiter {
                bytes,
                since,
                granted,
            };
            state.waiting.insert(number, waiter);
        });
        // An error never comes: the other end is in the map until it is used.
        wait.taken = (&mut wait.granted).await.is_ok();
        if wait.taken {
            self.bytes += bytes;
        }
        drop(wait);
        inner
            .metrics
            .wait_seconds
            .observe(since.elapsed().as_secs_f64());
    }

    /// The frame is whole: it keeps what it holds, and goes ahead of nobody any more.
    pub(super) fn whole(&mut self) {
        let number = self.number;
        self.budget.0.change(|state| state.fall_back(number));
    }
}

impl State {
    fn fall_back(&mut self, number: u64) {
        if self.ahead == Some(number) {
            self.ahead = None;
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let (number, bytes) = (self.number, self.bytes);
        self.budget.0.change(|state| {
            state.used -= bytes;
            state.fall_back(number);
        });
    }
}

/// A wait for memory; dropped, it is over.
struct Wait<'a> {
    inner: &'a Inner,
    number: u64,
    bytes: usize,
    granted: oneshot::Receiver<()>,
    taken: bool,
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        let (number, bytes) = (self.number, self.bytes);
        let granted = &mut self.granted;
        self.inner.change(|state| {
            // Given, and not taken any more.
            if state.waiting.remove(&number).is_none() && granted.try_recv().is_ok() {
                state.used -= bytes;
            }
        });
    }
}
