//! What a leader knows that each other replica has acknowledged to it, and which of them have lost that.
//!
//! Owns: [`Acknowledged`], [`Track`]: per replica and leadership the last acknowledged entry; telling a replica that lost some of it from one that never had it.
//! Invariant: a replica counts as *reverted* only for a message that left after the acknowledgement had come in, so neither order nor delay of messages can make it one.
//! Not here: what follows at the replica (`peer_inbox.rs`), what a quorum holds (`leadership.rs`).
//! Spec: docs/protocols/placement.md (replicas that go back)

use super::peers::{AppendReply, PeerError};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidelog_env::{Mutant, mutant};
use tidelog_model::{LogId, PlacementGroupId, RaftNodeId, Term};

/// All other replicas of one group. Small: an entry per replica that this one has ever sent something to.
pub(super) struct Acknowledged {
    group: PlacementGroupId,
    tracks: Mutex<BTreeMap<u64, Arc<Track>>>,
}

/// One replica. Shared by all that send to it.
pub(super) struct Track {
    group: PlacementGroupId,
    target: u64,
    known: Mutex<Known>,
}

/// What was known of a replica when a message to it left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Before {
    /// What it had acknowledged: goes along with the message.
    pub(super) acknowledged: Option<LogId>,
    /// It was known to have lost some of that.
    reverted: bool,
}

/// In the leadership of `term`: a leader's word counts only as long as it leads, since the next one may cut what no quorum has.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    term: Term,
    last: Option<LogId>,
    reverted: bool,
}

impl Known {
    /// Begins anew in a later term. False: `term` is over.
    fn enter(&mut self, term: Term) -> bool {
        if term > self.term {
            *self = Self {
                term,
                ..Self::default()
            };
        }
        term == self.term
    }
}

impl Acknowledged {
    pub(super) const fn new(group: PlacementGroupId) -> Self {
        Self {
            group,
            tracks: Mutex::new(BTreeMap::new()),
        }
    }

    /// What is known of `target`, to be kept by who sends to it.
    pub(super) fn of(&self, target: u64) -> Arc<Track> {
        let mut tracks = self.tracks.lock();
        let track = tracks.entry(target).or_insert_with(|| {
            Arc::new(Track {
                group: self.group,
                target,
                known: Mutex::default(),
            })
        });
        Arc::clone(track)
    }

    /// `target` is taken in (again), with whatever it has then: it may have been dropped in between. Whoever sends to it from now on asks anew; what old
    /// messages bring is lost with their track.
    pub(super) fn forget(&self, target: u64) {
        self.tracks.lock().remove(&target);
    }

    /// Whether `target` has lost what it had acknowledged, as far as the newest leadership here knows.
    pub(super) fn is_reverted(&self, target: u64) -> bool {
        let tracks = self.tracks.lock();
        tracks
            .get(&target)
            .is_some_and(|track| track.known.lock().reverted)
    }

    /// All that have lost what they had acknowledged in `term`.
    pub(super) fn reverted(&self, term: Term) -> BTreeSet<RaftNodeId> {
        let tracks = self.tracks.lock();
        let reverted = tracks.iter().filter(|(_, track)| {
            let known = track.known.lock();
            known.reverted && known.term == term
        });
        reverted
            .map(|(target, _)| RaftNodeId::new(*target))
            .collect()
    }
}

fn unreachable() -> PeerError {
    PeerError::Unreachable("it has lost entries that it had acknowledged".to_owned())
}

impl Track {
    /// What the replica has acknowledged in `term` until now. Asked before a message leaves.
    ///
    /// # Errors
    /// It is reverted: entries are not sent to it, since it takes none.
    pub(super) fn before_sending(&self, term: Term, entries: bool) -> Result<Before, PeerError> {
        let known = *self.known.lock();
        if known.term != term {
            return Ok(Before::default());
        }
        if known.reverted && entries {
            return Err(unreachable());
        }
        Ok(Before {
            acknowledged: known.last,
            reverted: known.reverted,
        })
    }

    /// What `reply` to an append means, which followed `previous`, ended at `last` and left when `before` was known.
    ///
    /// # Errors
    /// It refuses what it had acknowledged. It answers as one that is not there, so that it neither counts nor is asked again at once.
    pub(super) fn answered(
        &self,
        term: Term,
        before: Before,
        (previous, last): (Option<LogId>, Option<LogId>),
        reply: AppendReply,
    ) -> Result<AppendReply, PeerError> {
        match &reply {
            AppendReply::Matched => self.advance(term, last, before),
            AppendReply::MatchedUpTo(upto) => self.advance(term, *upto, before),
            AppendReply::Conflict if lost(previous, before.acknowledged) => {
                self.revert(term, previous, before.acknowledged);
                return Err(unreachable());
            }
            AppendReply::Conflict | AppendReply::Newer(_) => {}
        }
        Ok(reply)
    }

    /// It has everything up to `last`. If it was asked after its loss was known, and that is all it had acknowledged, it has it again: its disk came back, or it
    /// was never gone. An answer to an earlier message may have been given before the loss.
    fn advance(&self, term: Term, last: Option<LogId>, before: Before) {
        let is_whole = {
            let mut known = self.known.lock();
            if !known.enter(term) {
                return;
            }
            let is_whole = known.reverted && before.reverted && last >= known.last;
            known.reverted &= !is_whole;
            known.last = known.last.max(last);
            is_whole
        };
        if is_whole {
            tracing::warn!(
                group = %self.group,
                replica = self.target,
                "the replica has all again that it had acknowledged; it counts"
            );
        }
    }

    /// It has installed a snapshot up to `last`: it has all of that, whatever it had lost.
    pub(super) fn installed(&self, term: Term, last: Option<LogId>) {
        let mut known = self.known.lock();
        if known.enter(term) && last >= known.last {
            known.last = last;
            known.reverted = false;
        }
    }

    fn revert(&self, term: Term, previous: Option<LogId>, acknowledged: Option<LogId>) {
        let first = {
            let mut known = self.known.lock();
            known.enter(term) && !std::mem::replace(&mut known.reverted, true)
        };
        if first {
            let text = |id: Option<LogId>| id.unwrap_or_default().to_string();
            tracing::error!(
                group = %self.group,
                replica = self.target,
                "the replica has lost entries that it had acknowledged: it lacks {}, and had acknowledged everything up to {}. It counts as gone until its \
                 broker is refilled (docs/protocols/refill.md): losing one more copy of this group may lose acknowledged records",
                text(previous),
                text(acknowledged)
            );
        }
    }
}

/// Whether a replica that refuses what follows `previous` lacks what it had `acknowledged` before it was asked.
pub(super) fn lost(previous: Option<LogId>, acknowledged: Option<LogId>) -> bool {
    match (previous, acknowledged) {
        _ if mutant(Mutant::RevertedNotDetected) => false,
        (Some(previous), Some(acknowledged)) => previous.index <= acknowledged.index,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use tidelog_model::LogIndex;

    const TWO: Term = Term::new(2);
    const THREE: Term = Term::new(3);

    fn id(term: u64, index: u64) -> Option<LogId> {
        Some(LogId {
            term: Term::new(term),
            index: LogIndex::new(index),
        })
    }

    /// What goes along with a sign of life.
    fn said(track: &Track, term: Term) -> Option<LogId> {
        track.before_sending(term, false).unwrap().acknowledged
    }

    /// Sends one append after `previous` up to `last`, which is answered so.
    fn exchange(
        track: &Track,
        term: Term,
        between: (Option<LogId>, Option<LogId>),
        reply: AppendReply,
    ) -> Result<AppendReply, PeerError> {
        let before = track.before_sending(term, false).unwrap();
        track.answered(term, before, between, reply)
    }

    /// Proves that a replica that refuses what it had acknowledged in this leadership is reverted, is answered as unreachable, and gets no entries any more, but
    /// signs of life.
    #[test]
    fn who_refuses_what_it_acknowledged_is_reverted() {
        let all = Acknowledged::new(PlacementGroupId::new(1));
        let track = all.of(7);
        exchange(&track, TWO, (None, id(2, 10)), AppendReply::Matched).unwrap();
        let upto = AppendReply::MatchedUpTo(id(2, 12));
        exchange(&track, TWO, (id(2, 10), id(2, 15)), upto).unwrap();
        assert_eq!(said(&track, TWO), id(2, 12));
        let probe = exchange(&track, TWO, (id(2, 13), None), AppendReply::Conflict);
        assert_eq!(probe, Ok(AppendReply::Conflict), "it never said so");
        assert!(!all.is_reverted(7));
        let lost = exchange(&track, TWO, (id(2, 12), None), AppendReply::Conflict);
        assert!(matches!(lost, Err(PeerError::Unreachable(_))), "{lost:?}");
        assert!(all.is_reverted(7) && !all.is_reverted(8));
        assert_eq!(all.reverted(TWO), BTreeSet::from([RaftNodeId::new(7)]));
        assert!(all.reverted(THREE).is_empty());
        assert!(track.before_sending(TWO, true).is_err());
        assert_eq!(said(&track, TWO), id(2, 12));
    }

    /// Proves that an answer to a message that left before the acknowledgement came in says nothing, in whatever order the answers come.
    #[test]
    fn earlier_requests_prove_nothing() {
        let all = Acknowledged::new(PlacementGroupId::new(1));
        let track = all.of(7);
        // A probe far ahead, and one below it, leave at the same time; the later answer comes first.
        let (ahead, below) = (
            track.before_sending(TWO, true),
            track.before_sending(TWO, true),
        );
        let matched = track.answered(
            TWO,
            below.unwrap(),
            (id(2, 5), id(2, 20)),
            AppendReply::Matched,
        );
        matched.unwrap();
        let late = track.answered(
            TWO,
            ahead.unwrap(),
            (id(2, 10), id(2, 20)),
            AppendReply::Conflict,
        );
        assert_eq!(late, Ok(AppendReply::Conflict));
        assert!(!all.is_reverted(7));
    }

    /// Proves that what was acknowledged to an earlier leadership counts no more, that a message of an earlier one changes nothing, and that a newer vote is no loss.
    #[test]
    fn only_this_leadership_counts() {
        let all = Acknowledged::new(PlacementGroupId::new(1));
        let track = all.of(7);
        exchange(&track, TWO, (None, id(2, 10)), AppendReply::Matched).unwrap();
        let old = track.before_sending(TWO, true).unwrap();
        // The next leader, this one again, may find less: what no quorum had was cut in between.
        assert_eq!(said(&track, THREE), None);
        let cut = exchange(&track, THREE, (id(2, 8), None), AppendReply::Conflict);
        assert_eq!(cut, Ok(AppendReply::Conflict));
        exchange(&track, THREE, (id(2, 5), id(3, 6)), AppendReply::Matched).unwrap();
        let late = track.answered(TWO, old, (id(2, 9), None), AppendReply::Conflict);
        assert!(late.is_err(), "it is not counted for that message");
        assert!(
            !all.is_reverted(7),
            "nor held against it in this leadership"
        );
        track
            .answered(TWO, old, (None, id(2, 30)), AppendReply::Matched)
            .unwrap();
        assert_eq!(said(&track, THREE), id(3, 6));
        let newer = AppendReply::Newer(crate::log::Vote {
            term: Term::new(4),
            node: RaftNodeId::new(7),
            committed: true,
        });
        exchange(&track, THREE, (id(3, 6), None), newer).unwrap();
        assert!(!all.is_reverted(7));
    }

    /// Proves that a replica that was taken out and comes back with nothing is not reverted, and that answers to its old messages are not its own.
    #[test]
    fn who_is_taken_in_again_begins_with_nothing() {
        let all = Acknowledged::new(PlacementGroupId::new(1));
        let old = all.of(7);
        exchange(&old, TWO, (None, id(2, 10)), AppendReply::Matched).unwrap();
        all.forget(7);
        let new = all.of(7);
        exchange(&old, TWO, (id(2, 10), id(2, 11)), AppendReply::Matched).unwrap();
        assert_eq!(said(&new, TWO), None);
        exchange(&new, TWO, (id(2, 9), None), AppendReply::Conflict).unwrap();
        assert!(!all.is_reverted(7));
    }

    /// Proves that a snapshot up to all that was acknowledged makes a reverted replica whole, and an older one does not.
    #[test]
    fn a_snapshot_makes_it_whole() {
        let all = Acknowledged::new(PlacementGroupId::new(1));
        let track = all.of(7);
        exchange(&track, TWO, (None, id(2, 10)), AppendReply::Matched).unwrap();
        exchange(&track, TWO, (id(2, 10), None), AppendReply::Conflict).unwrap_err();
        track.installed(TWO, id(1, 9));
        assert!(all.is_reverted(7));
        track.installed(TWO, id(2, 12));
        assert!(!all.is_reverted(7));
        assert_eq!(said(&track, TWO), id(2, 12));
    }

    /// Proves that a reverted replica which is found to have all that it had acknowledged counts again, and that neither less than that, nor an answer to what it was
    /// asked before its loss was known, makes it so.
    #[test]
    fn who_has_it_all_again_counts() {
        let all = Acknowledged::new(PlacementGroupId::new(1));
        let track = all.of(7);
        exchange(&track, TWO, (None, id(2, 10)), AppendReply::Matched).unwrap();
        let early = track.before_sending(TWO, true).unwrap();
        exchange(&track, TWO, (id(2, 10), None), AppendReply::Conflict).unwrap_err();
        let delayed = (id(2, 10), id(2, 11));
        track
            .answered(TWO, early, delayed, AppendReply::Matched)
            .unwrap();
        assert!(all.is_reverted(7), "it was asked before");
        assert_eq!(said(&track, TWO), id(2, 11), "but it had that too");
        exchange(&track, TWO, (id(2, 10), id(2, 10)), AppendReply::Matched).unwrap();
        assert!(all.is_reverted(7), "it lacks 11");
        exchange(&track, TWO, (id(2, 11), id(2, 11)), AppendReply::Matched).unwrap();
        assert!(!all.is_reverted(7) && all.reverted(TWO).is_empty());
        assert!(track.before_sending(TWO, true).is_ok(), "it gets entries");
        exchange(&track, TWO, (id(2, 11), None), AppendReply::Conflict).unwrap_err();
        assert!(all.is_reverted(7), "it may lose them again");
    }
}
