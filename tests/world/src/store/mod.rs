//! An object store that fails.
//!
//! Owns: [`SimStore`], one store for all hosts: its outages, and what checkers want to know of it.
//! Not here: what the store holds (`objects`), which fault hits which request (`faults`), what the store's client makes of it
//! (`client`, `upload`); when rates change (`tests/sim`).
//! Spec: docs/simulation.md

mod body;
mod client;
mod faults;
mod objects;
mod upload;

pub use faults::StoreFaults;
pub use objects::{Deletion, Overwrite};

use crate::faults::Faults;
use bytes::Bytes;
use client::SimClient;
use faults::Drawing;
use object_store::ObjectStore;
use objects::Objects;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Why nothing answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// Nobody accepts connections.
    Refused,
    /// Every request is answered with 503.
    Unavailable,
}

/// One store. It outlives the hosts. Clones are the same store.
#[derive(Clone)]
pub struct SimStore(Arc<Shared>);

struct Shared {
    counts: Faults,
    clock: Box<dyn Fn() -> i64 + Send + Sync>,
    drawing: Mutex<Drawing>,
    state: Mutex<State>,
}

/// A write that arrives after its sender has gone.
type Late = Box<dyn FnOnce(&mut Objects) + Send>;

#[derive(Default)]
struct State {
    objects: Objects,
    /// By when they arrive, then in the order they were sent.
    late: BTreeMap<(i64, u64), Late>,
    late_sent: u64,
    outage: Option<Outage>,
    outages: BTreeMap<String, Outage>,
}

impl SimStore {
    /// An empty store without faults; what hits is drawn from `seed` and counted in `counts`. `clock` is the store's own, in
    /// milliseconds since 1970: objects have their times from it.
    #[must_use]
    pub fn new(
        seed: u64,
        counts: &Faults,
        clock: impl Fn() -> i64 + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Shared {
            counts: counts.clone(),
            clock: Box::new(clock),
            drawing: Mutex::new(Drawing::new(seed)),
            state: Mutex::default(),
        }))
    }

    /// The store as a host's client has it. Its delays are timers of the runtime it is called in.
    #[must_use]
    pub fn client(&self, host: &str) -> Arc<dyn ObjectStore> {
        Arc::new(SimClient::new(self.clone(), host))
    }

    /// From now on faults hit this often.
    pub fn set_faults(&self, rates: StoreFaults) {
        self.0.drawing.lock().rates = rates;
    }

    /// How often faults hit now.
    #[must_use]
    pub fn faults(&self) -> StoreFaults {
        self.0.drawing.lock().rates
    }

    /// Begins or ends an outage for everybody.
    pub fn set_outage(&self, outage: Option<Outage>) {
        self.0.state.lock().outage = outage;
    }

    /// Begins or ends an outage for one host: its way to the store is cut.
    pub fn set_outage_of(&self, host: &str, outage: Option<Outage>) {
        let outages = &mut self.0.state.lock().outages;
        match outage {
            Some(outage) => outages.insert(host.to_owned(), outage),
            None => outages.remove(host),
        };
    }

    /// An object is gone, and nobody deleted it. False when there was none.
    pub fn vanish(&self, path: &str) -> bool {
        let gone = self.with(|objects| objects.vanish(path));
        if gone {
            self.0.counts.count("store.vanished");
        }
        gone
    }

    /// All objects.
    #[must_use]
    pub fn snapshot(&self) -> BTreeMap<String, Bytes> {
        self.with(|objects| objects.snapshot())
    }

    /// Every put of a key with another content than it had, in order. A key of Tidelog's has one content for ever.
    #[must_use]
    pub fn overwritten(&self) -> Vec<Overwrite> {
        self.with(|objects| objects.overwritten.clone())
    }

    /// Every deletion of an object that was there, in order.
    #[must_use]
    pub fn deleted(&self) -> Vec<Deletion> {
        self.with(|objects| objects.deleted.clone())
    }

    /// How many uploads in parts were begun and neither completed nor aborted.
    #[must_use]
    pub fn open_uploads(&self) -> usize {
        self.with(|objects| objects.open_uploads())
    }

    /// What is in the store now: writes that were under way and have arrived meanwhile are in it.
    fn with<T>(&self, act: impl FnOnce(&mut Objects) -> T) -> T {
        let now = (self.0.clock)();
        let state = &mut *self.0.state.lock();
        while let Some(entry) = state.late.first_entry()
            && entry.key().0 <= now
        {
            let ((due, _), write) = entry.remove_entry();
            state.objects.now_ms = due;
            write(&mut state.objects);
        }
        state.objects.now_ms = now;
        act(&mut state.objects)
    }

    /// Lets a write arrive later, whether its sender lives or not.
    fn arrive_later(&self, after_ms: i64, write: Late) {
        let due = (self.0.clock)().saturating_add(after_ms);
        let state = &mut *self.0.state.lock();
        state.late_sent += 1;
        state.late.insert((due, state.late_sent), write);
    }

    fn outage(&self, host: &str) -> Option<Outage> {
        let state = self.0.state.lock();
        state.outage.or_else(|| state.outages.get(host).copied())
    }
}

impl std::fmt::Debug for SimStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SimStore")
    }
}

#[cfg(test)]
mod tests;
