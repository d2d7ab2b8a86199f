//! The history while it is made.
//!
//! Owns: the order of events over all tasks, their times.
//! Not here: what the events mean (`tidelog-check`).

use std::sync::Arc;

use parking_lot::Mutex;
use tidelog_check::{Event, History};
use tokio::time::Instant;

/// A handle to the history of one scenario. Clones share it.
#[derive(Clone)]
pub struct Recorder(Arc<Inner>);

struct Inner {
    started: Instant,
    history: Mutex<History>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self(Arc::new(Inner {
            started: Instant::now(),
            history: Mutex::default(),
        }))
    }
}

impl Recorder {
    /// Adds an event. An event that follows from another, as seen from outside, is recorded after it.
    pub fn record(&self, event: Event) {
        let mut history = self.0.history.lock();
        history.push(self.0.started.elapsed(), event);
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
