//! How often which fault was made.
//!
//! Owns: the names of the kinds of faults, and their counters.
//! Not here: making them.
//! Spec: docs/simulation.md

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Counts faults by kind. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<BTreeMap<&'static str, u64>>>);

impl Faults {
    /// One more of a kind. Kinds are `part.fault`, such as `net.reset`: each is counted when it happens to somebody, not when it is planned.
    pub fn count(&self, kind: &'static str) {
        *self.0.lock().entry(kind).or_default() += 1;
    }

    /// Every kind that happened, with its count, sorted by name.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.0.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that clones count together.
    #[test]
    fn clones_share_counts() {
        let faults = Faults::default();
        let other = faults.clone();
        other.count("net.reset");
        faults.count("net.reset");
        faults.count("disk.eio");
        let counts: Vec<(&str, u64)> = faults.counts().into_iter().collect();
        assert_eq!(counts, [("disk.eio", 1), ("net.reset", 2)]);
    }
}
