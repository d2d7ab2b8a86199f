//! The history while it is made.
//!
//! Owns: the order of events over all tasks, their times.
//! Not here: what the events mean (`tidelog-check`).

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidelog_check::{Event, History};
use tokio::time::Instant;

/// A handle to the history of one scenario. Clones share it.
#[derive(Clone)]
pub struct Recorder(Arc<Inner>);

struct Inner {
    elapsed: Box<dyn Fn() -> Duration + Send + Sync>,
    history: Mutex<History>,
}

impl Default for Recorder {
    fn default() -> Self {
        let started = Instant::now();
        Self::timed(move || started.elapsed())
    }
}

impl Recorder {
    /// With the time since the beginning from `elapsed`: a simulation's hosts have clocks of their own.
    pub fn timed(elapsed: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner {
            elapsed: Box::new(elapsed),
            history: Mutex::default(),
        }))
    }

    /// Adds an event. An event that follows from another, as seen from outside, is recorded after it.
    pub fn record(&self, event: Event) {
        let mut history = self.0.history.lock();
        history.push((self.0.elapsed)(), event);
    }

    /// Adds what is done to the brokers.
    pub fn note(&self, text: impl Into<String>) {
        self.record(Event::Note(text.into()));
    }

    /// Looks at the history so far.
    pub fn history<T>(&self, look: impl FnOnce(&History) -> T) -> T {
        look(&self.0.history.lock())
    }
}
