//! Hosts and their time: every host a runtime of its own, stepped one after the other on one thread.
//!
//! Owns: the steps, starts, crashes and pauses of hosts, their clocks.
//! Not here: the network between them (`net`), when which of it happens (`tests/sim`).
//! Spec: docs/simulation.md

mod panics;
mod process;
mod running;
mod time;

#[cfg(test)]
mod tests;

use crate::faults::Faults;
use process::Process;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::Clock;

pub use panics::{panic_texts, panics, watch_panics};
pub use running::running;
pub use time::{HostTime, WORLD_EPOCH_MS, WorldTime};

/// The shortest and the longest step. Timers count milliseconds; a message is late by up to one step.
pub const TICK: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Which host. The ids are counted from zero in the order of [`Hosts::add`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(usize);

impl HostId {
    /// Its place in the order of [`Hosts::add`].
    #[must_use]
    pub fn index(self) -> usize {
        self.0
    }
}

/// What a host's main gets.
#[derive(Clone)]
pub struct HostContext {
    /// Which host it runs on.
    pub id: HostId,
    /// The name it was added by.
    pub name: Arc<str>,
    /// How often the host was started before.
    pub incarnation: u32,
    /// The host's time.
    pub time: HostTime,
    /// The host's wall clock.
    pub clock: Arc<dyn Clock>,
}

/// How a host's process ended by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// Main returned this.
    Returned(Result<(), String>),
    /// Main panicked, with this text. Tasks that panic do not end a process: [`panics`] counts them.
    Panicked(String),
}

/// Why a host was not started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// It runs already.
    #[error("host {0} runs already")]
    Running(Arc<str>),
    /// No runtime could be made.
    #[error("no runtime: {0}")]
    Runtime(#[from] std::io::Error),
}

struct Host {
    name: Arc<str>,
    time: HostTime,
    clock: Arc<dyn Clock>,
    process: Option<Process>,
    starts: u32,
    paused: bool,
    /// It was paused, and its clock has not caught up yet.
    behind: bool,
    ended: Option<Ended>,
}

/// All hosts, and the world's time.
///
/// A method that takes a [`HostId`] panics for one of another `Hosts`.
pub struct Hosts {
    tick: Duration,
    time: WorldTime,
    random: StdRng,
    faults: Faults,
    hosts: Vec<Host>,
    /// Shuffled before each step.
    order: Vec<usize>,
}

impl Hosts {
    /// A world without hosts, at time zero. A step takes `tick`, cut to the bounds of [`TICK`] and to whole milliseconds.
    #[must_use]
    pub fn new(tick: Duration, seed: u64, faults: Faults) -> Self {
        watch_panics();
        let tick_ms = u64::try_from(tick.clamp(TICK.0, TICK.1).as_millis()).unwrap_or(1);
        Self {
            tick: Duration::from_millis(tick_ms),
            time: WorldTime::default(),
            random: StdRng::seed_from_u64(seed),
            faults,
            hosts: Vec::new(),
            order: Vec::new(),
        }
    }

    /// A host that runs nothing yet.
    pub fn add(&mut self, name: &str) -> HostId {
        let time = HostTime::new(self.time.clone());
        let id = HostId(self.hosts.len());
        self.order.push(id.0);
        self.hosts.push(Host {
            name: Arc::from(name),
            clock: Arc::new(time::WallClock(time.clone())),
            time,
            process: None,
            starts: 0,
            paused: false,
            behind: false,
            ended: None,
        });
        id
    }

    /// Starts a process on a host that runs none: for the first time, after its end, or after a crash. Its first code runs in the next step.
    ///
    /// # Errors
    /// When it runs, or no runtime can be made.
    pub fn start<F, Fut>(&mut self, id: HostId, main: F) -> Result<(), StartError>
    where
        F: FnOnce(HostContext) -> Fut + 'static,
        Fut: Future<Output = Result<(), String>> + 'static,
    {
        let host = &mut self.hosts[id.0];
        if host.process.is_some() {
            return Err(StartError::Running(Arc::clone(&host.name)));
        }
        let context = HostContext {
            id,
            name: Arc::clone(&host.name),
            incarnation: host.starts,
            time: host.time.clone(),
            clock: Arc::clone(&host.clock),
        };
        host.process = Some(Process::start(context, main)?);
        host.starts += 1;
        host.paused = false;
        host.behind = false;
        host.ended = None;
        Ok(())
    }

    /// Runs every live host that is not paused for one tick, in an order of its own for each step.
    pub fn step(&mut self) {
        self.step_of(self.tick);
    }

    /// As [`Hosts::step`], of another length in whole milliseconds: a longer one where nothing is on its way between hosts costs less.
    pub fn step_of(&mut self, length: Duration) {
        for last in (1..self.order.len()).rev() {
            let with = self.random.random_range(0..=last);
            self.order.swap(last, with);
        }
        let start = self.time.now();
        let end = start + length.max(TICK.0);
        for &at in &self.order {
            self.hosts[at].step(start, end);
        }
        self.time.advance_to(end);
    }

    /// Steps until `done` says so, looked at before each step, or the world's time reaches `deadline`. Whether it was done.
    pub fn run_until(
        &mut self,
        deadline: Duration,
        mut done: impl FnMut(&mut Self) -> bool,
    ) -> bool {
        loop {
            if done(self) {
                return true;
            }
            if self.now() >= deadline {
                return false;
            }
            self.step();
        }
    }

    /// Steps for at least `time`.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.now() + time;
        while self.now() < end {
            self.step();
        }
    }

    /// Time since the start of the world.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.time.now()
    }

    /// A handle on the world's time.
    #[must_use]
    pub fn world_time(&self) -> WorldTime {
        self.time.clone()
    }

    /// How long a step is.
    #[must_use]
    pub fn tick(&self) -> Duration {
        self.tick
    }

    /// Ends the host's process at once: its tasks are dropped where they are, and nothing but destructors runs. Whether there was one.
    pub fn crash(&mut self, id: HostId) -> bool {
        let host = &mut self.hosts[id.0];
        let Some(process) = host.process.take() else {
            return false;
        };
        host.paused = false;
        self.faults.count("host.crash");
        drop(process);
        true
    }

    /// Stops the host's process (as SIGSTOP) until [`Hosts::resume`]. Whether it ran.
    pub fn pause(&mut self, id: HostId) -> bool {
        let host = &mut self.hosts[id.0];
        let runs = host.process.is_some() && !host.paused;
        if runs {
            host.paused = true;
            host.behind = true;
            self.faults.count("host.pause");
        }
        runs
    }

    /// Lets a paused process go on (as SIGCONT). In its next step its clock is at now before any of its code runs: all timers that
    /// passed meanwhile fire at once.
    pub fn resume(&mut self, id: HostId) {
        self.hosts[id.0].paused = false;
    }

    /// Whether a process runs on the host, paused or not.
    #[must_use]
    pub fn is_alive(&self, id: HostId) -> bool {
        self.hosts[id.0].process.is_some()
    }

    /// Whether its process is paused.
    #[must_use]
    pub fn is_paused(&self, id: HostId) -> bool {
        self.hosts[id.0].paused
    }

    /// Whether its process was halted at a point of its code ([`HostTime::halt`]), and waits to be taken away.
    #[must_use]
    pub fn is_halted(&self, id: HostId) -> bool {
        let host = &self.hosts[id.0];
        host.process.is_some() && host.time.is_halted()
    }

    /// How the last process ended, if it ended by itself and no other was started since.
    #[must_use]
    pub fn ended(&self, id: HostId) -> Option<&Ended> {
        self.hosts[id.0].ended.as_ref()
    }

    /// The name it was added by.
    #[must_use]
    pub fn name(&self, id: HostId) -> &str {
        &self.hosts[id.0].name
    }

    /// The host's time, over all its incarnations.
    #[must_use]
    pub fn time(&self, id: HostId) -> HostTime {
        self.hosts[id.0].time.clone()
    }

    /// The host's wall clock, over all its incarnations.
    #[must_use]
    pub fn clock(&self, id: HostId) -> Arc<dyn Clock> {
        Arc::clone(&self.hosts[id.0].clock)
    }

    /// Moves the host's wall clock by so many milliseconds, also backwards.
    pub fn jump(&mut self, id: HostId, by_ms: i64) {
        self.faults.count("clock.jump");
        self.hosts[id.0].time.jump(by_ms);
    }

    /// From now on the host's clocks, the wall clock and that of its timers, run faster by so many parts per million.
    pub fn skew(&mut self, id: HostId, ppm: i32) {
        self.faults.count("clock.skew");
        self.hosts[id.0].time.set_rate(ppm);
    }
}

impl Host {
    fn step(&mut self, start: Duration, end: Duration) {
        let Some(process) = self
            .process
            .as_mut()
            .filter(|_| !self.paused && !self.time.is_halted())
        else {
            return;
        };
        let jump = if std::mem::take(&mut self.behind) {
            self.time.step_end(start)
        } else {
            None
        };
        let Some(until) = self.time.step_end(end) else {
            return;
        };
        self.time.set_running(true);
        running::set_running(Some((Arc::clone(&self.name), self.time.clone())));
        self.ended = process.run(jump, until);
        running::set_running(None);
        self.time.set_running(false);
        if self.ended.is_some() {
            self.process = None;
        }
    }
}
