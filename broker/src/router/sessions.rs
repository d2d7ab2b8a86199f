//! Which brokers have been silent for too long, as the leader of the metadata group sees it.
//!
//! Owns: [`Sessions`]: when each broker was heard last, and the rule that fences. Kept in memory: only a change goes into the log.
//! Not here: sending and receiving signs of life, proposing the change (`heartbeats.rs`).
//! Spec: docs/protocols/broker-sessions.md
//!
//! Invariant: nobody is fenced by a leader that has not listened for a whole session itself.

use std::collections::BTreeMap;
use std::time::Duration;
use tidelog_model::{NodeId, Term};
use tokio::time::Instant;

/// A leader that looked away for this part of a session may have missed signs of life: it begins anew.
const LOOKED_AWAY_PARTS: u32 = 2;

/// When brokers were heard. Time is handed in.
#[derive(Debug)]
pub(super) struct Sessions {
    session: Duration,
    term: Option<Term>,
    looked: Option<Instant>,
    heard: BTreeMap<NodeId, Instant>,
}

impl Sessions {
    pub(super) const fn new(session: Duration) -> Self {
        Self {
            session,
            term: None,
            looked: None,
            heard: BTreeMap::new(),
        }
    }

    /// A registered broker gave a sign of life.
    pub(super) fn heard(&mut self, node: NodeId, now: Instant) {
        self.heard.insert(node, now);
    }

    /// Looks at the brokers that are not fenced; returns those to fence. `term`: the one this broker leads, `None` while it does not.
    /// To be called several times within a session.
    pub(super) fn look(
        &mut self,
        term: Option<Term>,
        live: &[NodeId],
        now: Instant,
    ) -> Vec<NodeId> {
        let looked_away = self
            .looked
            .is_none_or(|at| now.saturating_duration_since(at) > self.session / LOOKED_AWAY_PARTS);
        self.looked = Some(now);
        if term.is_none() || term != self.term || looked_away {
            self.heard.clear();
        }
        self.term = term;
        if term.is_none() {
            return Vec::new();
        }
        self.heard.retain(|node, _| live.contains(node));
        let silent = live.iter().filter(|node| {
            let heard = *self.heard.entry(**node).or_insert(now);
            now.saturating_duration_since(heard) >= self.session
        });
        silent.copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: Duration = Duration::from_secs(6);
    const ONE: NodeId = NodeId::new(1);
    const TWO: NodeId = NodeId::new(2);

    struct Rig {
        sessions: Sessions,
        now: Instant,
        term: Option<Term>,
    }

    impl Rig {
        fn new() -> Self {
            let mut rig = Self {
                sessions: Sessions::new(SESSION),
                now: Instant::now(),
                term: Some(Term::new(1)),
            };
            assert!(rig.look().is_empty());
            rig
        }

        fn look(&mut self) -> Vec<NodeId> {
            self.sessions.look(self.term, &[ONE, TWO], self.now)
        }

        /// Passes so many seconds in which broker 1 alone is heard, and returns who is silent at their end.
        fn pass(&mut self, seconds: u64) -> Vec<NodeId> {
            let mut silent = Vec::new();
            for _ in 0..seconds {
                self.now += Duration::from_secs(1);
                self.sessions.heard(ONE, self.now);
                silent = self.look();
            }
            silent
        }
    }

    /// Proves that who is silent for a session is fenced, not earlier, and nobody else; and that a sign of life begins a new one.
    #[test]
    fn silence_fences() {
        let mut rig = Rig::new();
        assert!(rig.pass(5).is_empty());
        rig.sessions.heard(TWO, rig.now);
        assert!(rig.pass(5).is_empty());
        assert_eq!(rig.pass(1), [TWO]);
        assert_eq!(rig.pass(1), [TWO], "until it is fenced");
    }

    /// Proves that a new leader, the same one in a new term, and one that slept give everybody a whole session.
    #[test]
    fn a_leader_that_did_not_listen_fences_nobody() {
        let mut rig = Rig::new();
        assert!(rig.pass(5).is_empty());
        rig.term = Some(Term::new(2));
        assert!(rig.pass(6).is_empty());
        assert_eq!(rig.pass(1), [TWO]);
        rig.term = None;
        assert!(rig.pass(9).is_empty());
        rig.term = Some(Term::new(2));
        assert!(rig.pass(6).is_empty());
        rig.now += Duration::from_secs(100);
        assert!(rig.pass(6).is_empty());
        assert_eq!(rig.pass(1), [TWO]);
    }

    /// Proves that a broker which is fenced, or gone, is forgotten, and begins a session when it lives again.
    #[test]
    fn who_does_not_live_is_forgotten() {
        let mut rig = Rig::new();
        rig.pass(6);
        let sessions = &mut rig.sessions;
        assert!(sessions.look(rig.term, &[ONE], rig.now).is_empty());
        assert_eq!(sessions.heard.len(), 1);
        assert!(rig.pass(5).is_empty());
    }
}
