//! What this replica hears of its leader.
//!
//! Owns: [`Heard`]: when the leader of which term was heard last, up to where it has committed, and whether it knows of entries that this replica has lost.
//! Not here: who leads (`leadership.rs`), what the leader sends (`peer_inbox.rs`).
//! Spec: docs/protocols/placement.md (reads on a follower)

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidelog_model::{LogIndex, Term};
use tokio::time::Instant;

/// Entries that a follower may have left to apply, of those that it knows to be committed, while it serves readers: some moments of
/// full load. The leader sends readers to followers that lack less.
const READ_LAG_MAX: u64 = 512;

#[derive(Clone, Copy, Debug)]
struct Sign {
    at: Instant,
    term: Term,
    committed: LogIndex,
}

/// The leader's last sign of life.
#[derive(Debug, Default)]
pub(super) struct Heard {
    sign: Mutex<Option<Sign>>,
    lost: AtomicBool,
}

impl Heard {
    /// A message of the leader of `term` was accepted. `at`: when it came in, before anything was done with it.
    pub(super) fn note(&self, at: Instant, term: Term, committed: Option<LogIndex>) {
        let mut heard = self.sign.lock();
        let committed = committed.unwrap_or_default();
        match heard.as_mut() {
            Some(sign) if sign.term > term => {}
            // Messages come in on two connections: the older one may be the later.
            Some(sign) if sign.term == term => {
                sign.at = sign.at.max(at);
                sign.committed = sign.committed.max(committed);
            }
            _ => {
                *heard = Some(Sign {
                    at,
                    term,
                    committed,
                });
            }
        }
    }

    /// This replica lacks what it had acknowledged to its leader. It stays so until its process ends; true the first time.
    pub(super) fn note_lost(&self) -> bool {
        !self.lost.swap(true, Ordering::SeqCst)
    }

    /// Whether this replica lacks what it had acknowledged: it is no copy of the group any more.
    pub(super) fn has_lost(&self) -> bool {
        self.lost.load(Ordering::SeqCst)
    }

    /// How long ago a leader, of whichever term, was heard last.
    pub(super) fn age(&self) -> Option<Duration> {
        self.sign.lock().map(|sign| sign.at.elapsed())
    }

    /// Whether the leader of `term` was heard within `silence`.
    pub(super) fn within(&self, term: Term, silence: Duration) -> bool {
        let heard = *self.sign.lock();
        heard.is_some_and(|sign| sign.term == term && sign.at.elapsed() < silence)
    }

    /// Whether the leader of `term` was heard after `since`, and this replica has applied all that it had committed by then.
    pub(super) fn is_current(&self, term: Term, since: Instant, applied: LogIndex) -> bool {
        let heard = *self.sign.lock();
        let current = heard
            .is_some_and(|sign| sign.term == term && sign.at > since && applied >= sign.committed);
        current && !self.has_lost()
    }

    /// The same, and this replica has applied nearly all that it knows to be committed.
    pub(super) fn keeps_up(&self, term: Term, silence: Duration, applied: LogIndex) -> bool {
        self.lacks_at_most(READ_LAG_MAX, term, silence, applied)
    }

    /// The same, and this replica has applied all but `lag_max` entries of what it knows to be committed.
    pub(super) fn lacks_at_most(
        &self,
        lag_max: u64,
        term: Term,
        silence: Duration,
        applied: LogIndex,
    ) -> bool {
        let committed = self
            .sign
            .lock()
            .map_or(LogIndex::default(), |sign| sign.committed);
        let close = applied.get().saturating_add(lag_max) >= committed.get();
        close && self.within(term, silence) && !self.has_lost()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: Duration = Duration::from_secs(1);

    /// Proves that only the leader of the asked term counts, only for a while, and that lag is measured against what it has committed.
    #[tokio::test(start_paused = true)]
    async fn signs_count_for_their_term_and_time() {
        let (heard, two) = (Heard::default(), Term::new(2));
        let applied = LogIndex::new(10);
        assert!(!heard.within(two, SILENCE) && heard.age().is_none());
        let committed = LogIndex::new(10 + READ_LAG_MAX);
        heard.note(Instant::now(), two, Some(committed));
        assert!(heard.within(two, SILENCE) && !heard.within(Term::new(3), SILENCE));
        assert!(heard.keeps_up(two, SILENCE, applied));
        assert!(!heard.lacks_at_most(READ_LAG_MAX - 1, two, SILENCE, applied));
        let (before, all) = (Instant::now(), LogIndex::new(10 + READ_LAG_MAX));
        assert!(!heard.is_current(two, before, all), "not heard since");
        tokio::time::advance(Duration::from_millis(1)).await;
        // The older message comes later, on the other connection.
        heard.note(Instant::now(), two, Some(LogIndex::new(3)));
        assert!(!heard.keeps_up(two, SILENCE, LogIndex::new(9)));
        assert!(heard.is_current(two, before, all));
        assert!(!heard.is_current(two, before, applied), "it lacks some");
        assert!(!heard.is_current(Term::new(3), before, all));
        tokio::time::advance(SILENCE).await;
        assert_eq!(heard.age(), Some(SILENCE));
        assert!(!heard.within(two, SILENCE) && !heard.keeps_up(two, SILENCE, applied));
        heard.note(Instant::now(), Term::new(3), None);
        heard.note(Instant::now(), two, Some(committed));
        assert!(heard.keeps_up(Term::new(3), SILENCE, LogIndex::default()));
    }

    /// Proves that a replica which lacks what it had acknowledged is close behind nobody, whatever it hears from then on.
    #[tokio::test(start_paused = true)]
    async fn who_has_lost_something_follows_nobody() {
        let (heard, two) = (Heard::default(), Term::new(2));
        let before = Instant::now();
        tokio::time::advance(Duration::from_millis(1)).await;
        heard.note(Instant::now(), two, None);
        let applied = LogIndex::new(10);
        assert!(heard.is_current(two, before, applied) && heard.keeps_up(two, SILENCE, applied));
        assert!(heard.note_lost() && !heard.note_lost() && heard.has_lost());
        heard.note(Instant::now(), two, None);
        assert!(!heard.is_current(two, before, applied));
        assert!(!heard.keeps_up(two, SILENCE, applied) && heard.within(two, SILENCE));
    }
}
