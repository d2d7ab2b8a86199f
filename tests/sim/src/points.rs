//! Crash points of the brokers' code: who dies at which, and which were passed.
//!
//! Owns: what is armed, what was passed, who has marked damage, the mutant that runs.
//! Not here: the points and mutants themselves (`tidelog_env::breaking`), when one is armed (`breaking`).
//! Spec: docs/simulation.md (crash points, mutants)

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::Result;
use tidelog_env::{CrashPoint, Mutant};
use tidelog_world::disk::SimDisk;
use tidelog_world::hosts::HostTime;

/// A broker's process, as a crash point needs it.
#[derive(Clone)]
struct Process {
    time: HostTime,
    disk: SimDisk,
}

/// The next time but `skip` that this process passes the point.
struct Armed {
    point: CrashPoint,
    skip: u32,
}

#[derive(Default)]
struct Inner {
    processes: BTreeMap<Arc<str>, Process>,
    armed: BTreeMap<Arc<str>, Armed>,
    died: Vec<Arc<str>>,
    /// Who has marked its disk as damaged.
    marked: Vec<Arc<str>>,
    passed: BTreeMap<CrashPoint, u64>,
}

/// All points of a run. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Points(Rc<RefCell<Inner>>);

impl Points {
    /// Listens to the code of this thread.
    pub(crate) fn listen() -> Self {
        let points = Self::default();
        let told = points.clone();
        listen(move |point| told.pass(point));
        points
    }

    /// The process that runs under this name dies at points.
    pub(crate) fn know(&self, name: &str, time: HostTime, disk: SimDisk) {
        let process = Process { time, disk };
        self.0.borrow_mut().processes.insert(name.into(), process);
    }

    /// The process dies the next time but `skip` that it passes the point.
    pub(crate) fn arm(&self, name: &str, point: CrashPoint, skip: u32) {
        let armed = Armed { point, skip };
        self.0.borrow_mut().armed.insert(name.into(), armed);
    }

    /// Not any more.
    pub(crate) fn disarm(&self, name: &str) {
        self.0.borrow_mut().armed.remove(name);
    }

    /// Who died at a point since this was asked last.
    pub(crate) fn died(&self) -> Vec<Arc<str>> {
        std::mem::take(&mut self.0.borrow_mut().died)
    }

    /// Who has marked its disk as damaged since this was asked last.
    pub(crate) fn marked(&self) -> Vec<Arc<str>> {
        std::mem::take(&mut self.0.borrow_mut().marked)
    }

    /// How often each point was passed by brokers.
    pub(crate) fn passed(&self) -> BTreeMap<CrashPoint, u64> {
        self.0.borrow().passed.clone()
    }

    fn pass(&self, point: CrashPoint) {
        let Some((name, _)) = tidelog_world::hosts::running() else {
            return;
        };
        let mut inner = self.0.borrow_mut();
        let Some(process) = inner.processes.get(&name).cloned() else {
            return;
        };
        if process.time.is_halted() {
            return;
        }
        *inner.passed.entry(point).or_default() += 1;
        if point == CrashPoint::RefillMarked {
            inner.marked.push(Arc::clone(&name));
        }
        let Some(armed) = inner
            .armed
            .get_mut(&name)
            .filter(|armed| armed.point == point)
        else {
            return;
        };
        if armed.skip > 0 {
            armed.skip -= 1;
            return;
        }
        inner.armed.remove(&name);
        // What the rest of the step's code does goes nowhere.
        process.time.halt();
        process.disk.kill();
        inner.died.push(name);
    }
}

#[cfg(feature = "breaking")]
fn listen(pass: impl FnMut(CrashPoint) + 'static) {
    tidelog_env::breaking::on_crash_point(pass);
}

#[cfg(not(feature = "breaking"))]
fn listen(_pass: impl FnMut(CrashPoint) + 'static) {}

/// From now on the brokers' code has this fault.
///
/// # Errors
/// This build has none.
#[cfg(feature = "breaking")]
pub(crate) fn switch_on(mutant: Mutant) -> Result<()> {
    tidelog_env::breaking::set_mutant(Some(mutant));
    Ok(())
}

#[cfg(not(feature = "breaking"))]
pub(crate) fn switch_on(mutant: Mutant) -> Result<()> {
    anyhow::bail!("{mutant}: this build has no mutants; build with --features breaking")
}
