//! Who leads, whether reads may be served, and whether the group still runs.
//!
//! Owns: [`Observer`], a task that turns the core's metrics into [`Leadership`] and the fatal line.
//! Invariant: `is_leader` only after an entry of the leader's own term is applied (the barrier rule).
//! Not here: elections (openraft).
//! Spec: docs/protocols/placement.md (the barrier rule)

use super::acknowledged::Acknowledged;
use super::contract::Leadership;
use super::heard::Heard;
use super::machine_store::MachineStore;
use super::raft_types::Types;
use openraft::Instant as _;
use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::metrics::{RaftDataMetrics, RaftServerMetrics};
use openraft::type_config::alias::WatchReceiverOf;
use openraft::{Raft, RaftMetrics, ServerState};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tidelog_env::{Mutant, Tasks, mutant};
use tidelog_model::{LogId, LogIndex, NodeId, PlacementGroupId, RaftNodeId, Term};
use tokio::sync::watch;
use tokio::time::Instant;

/// Pause before a core is observed again.
const OBSERVE_PAUSE: Duration = Duration::from_millis(100);

/// What the rest of the group sees.
#[derive(Clone)]
pub(super) struct Observer {
    leadership: watch::Receiver<Leadership>,
    fatal: watch::Receiver<Option<String>>,
    shared: Arc<Shared>,
    data: WatchReceiverOf<Types, RaftDataMetrics<Types>>,
    server: WatchReceiverOf<Types, RaftServerMetrics<Types>>,
    heard: Arc<Heard>,
    acknowledged: Arc<Acknowledged>,
    times: ObserverTimes,
    own: RaftNodeId,
}

/// How long signs of life count.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObserverTimes {
    /// A quorum's, to a leader, and a leader's, to a follower that serves readers: no other leader can be elected within it.
    pub(super) lease: Duration,
    /// A leader's, to a follower: after it nobody is known to lead.
    pub(super) silence: Duration,
}

#[derive(Default)]
struct Shared {
    /// This replica is the only voter: it is its own quorum.
    only_voter: AtomicBool,
    /// The owner asked the group to stop: its end is no failure.
    stopping: AtomicBool,
    /// Leaders that this replica has seen after the first.
    changes: AtomicU64,
}

impl Observer {
    /// Starts observing.
    pub(super) fn start(
        raft: &Raft<Types, MachineStore>,
        group: PlacementGroupId,
        node: RaftNodeId,
        applied: watch::Receiver<Option<LogId>>,
        acknowledged: Arc<Acknowledged>,
        times: ObserverTimes,
        tasks: &Tasks,
    ) -> Self {
        let (leadership_to, leadership) = watch::channel(Leadership::default());
        let (fatal_to, fatal) = watch::channel(None);
        let shared = Arc::new(Shared::default());
        let watcher = Watcher {
            server: raft.server_metrics(),
            all: raft.metrics(),
            applied,
            leadership: leadership_to,
            fatal: fatal_to,
            shared: Arc::clone(&shared),
            group,
        };
        let watcher = Arc::new(tokio::sync::Mutex::new(Some(watcher)));
        tasks.supervise("placement-observer", OBSERVE_PAUSE, move || {
            let watcher = Arc::clone(&watcher);
            async move {
                let mut held = watcher.lock().await;
                if let Some(watcher) = held.as_mut() {
                    watcher.run().await;
                }
                // Who waits for news learns that there will be none.
                *held = None;
                std::future::pending().await
            }
        });
        Self {
            leadership,
            fatal,
            shared,
            data: raft.data_metrics(),
            server: raft.server_metrics(),
            heard: Arc::default(),
            acknowledged,
            times,
            own: node,
        }
    }

    pub(super) fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.clone()
    }

    pub(super) fn now(&self) -> Leadership {
        *self.leadership.borrow()
    }

    pub(super) fn fatal(&self) -> watch::Receiver<Option<String>> {
        self.fatal.clone()
    }

    /// Why the group stopped.
    pub(super) fn stop_reason(&self) -> String {
        let stopping = self.shared.stopping.load(Ordering::SeqCst);
        stop_reason(self.fatal.borrow().as_deref(), stopping)
    }

    /// How often this replica has seen another leader, or the same one in a newer term.
    pub(super) fn changes(&self) -> u64 {
        self.shared.changes.load(Ordering::Relaxed)
    }

    pub(super) fn expect_stop(&self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
    }

    /// The term this replica leads, if it may serve reads.
    pub(super) fn serving_term(&self) -> Option<Term> {
        let known = self.now();
        if !known.is_leader {
            return None;
        }
        if self.shared.only_voter.load(Ordering::Relaxed) || mutant(Mutant::LeaseIgnored) {
            return Some(known.term);
        }
        let acked = self.data.borrow_watched().last_quorum_acked;
        let holds = acked.is_some_and(|at| at.into_inner().elapsed() < self.times.lease);
        holds.then_some(known.term)
    }
}

impl Observer {
    pub(super) fn heard(&self) -> Arc<Heard> {
        Arc::clone(&self.heard)
    }

    /// How long ago this replica was last in touch with a leader: heard one, or led itself and heard a majority. `None`: never since it started.
    pub(super) fn in_touch(&self) -> Option<Duration> {
        let acked = self.data.borrow_watched().last_quorum_acked;
        let led = acked.map(|at| at.into_inner().elapsed());
        [led, self.heard.age()].into_iter().flatten().min()
    }

    /// Whether the leader, another replica, was heard lately.
    pub(super) fn hears_leader(&self) -> bool {
        let known = self.now();
        known.leader.is_some() && self.heard.within(known.term, self.times.silence)
    }

    /// Whether the leader, another replica, was heard lately and this one lacks at most `lag_max` entries of what that had committed.
    pub(super) fn is_close(&self, lag_max: u64, applied: LogIndex) -> bool {
        let (known, silence) = (self.now(), self.times.silence);
        known.leader.is_some()
            && self
                .heard
                .lacks_at_most(lag_max, known.term, silence, applied)
    }

    /// Whether the leader, another replica, was heard after `since`, and this one has applied all that it had committed by then.
    pub(super) fn is_current(&self, since: Instant, applied: LogIndex) -> bool {
        let known = self.now();
        known.leader.is_some() && self.heard.is_current(known.term, since, applied)
    }

    /// The term of the leader that this replica follows closely.
    pub(super) fn following_term(&self, applied: LogIndex) -> Option<Term> {
        let known = self.now();
        let (term, lease) = (known.term, self.times.lease);
        let close =
            self.heard.keeps_up(term, lease, applied) || mutant(Mutant::FollowerServesUnheard);
        let follows = !known.is_leader && known.leader.is_some() && close;
        follows.then_some(term)
    }

    /// Brokers of the replicas that [`Observer::followers`] says are close.
    pub(super) fn close_brokers(&self, lag_max: u64) -> Vec<NodeId> {
        let followers = self.followers(lag_max);
        let server = self.server.borrow_watched();
        let membership = server.membership_config.membership();
        let close = followers.iter().filter(|(_, close)| **close);
        close
            .filter_map(|(node, _)| membership.get_node(&node.get()))
            .map(|member| member.broker)
            .collect()
    }

    /// The other replicas, while this one leads: whether each has answered within the lease and lacks at most `lag_max` entries.
    pub(super) fn followers(&self, lag_max: u64) -> BTreeMap<RaftNodeId, bool> {
        let data = self.data.borrow_watched();
        let last = data.last_log.map_or(0, |id| id.index);
        let (Some(replication), Some(heard)) = (&data.replication, &data.heartbeat) else {
            return BTreeMap::new();
        };
        let own = self.own.get();
        let others = replication.iter().filter(|(node, _)| **node != own);
        others
            .map(|(node, matched)| {
                let heard = heard.get(node).copied().flatten();
                let is_there = heard.is_some_and(|at| at.into_inner().elapsed() < self.times.lease);
                let close = is_close(matched.map(|id| id.index), last, lag_max)
                    && !self.acknowledged.is_reverted(*node);
                (RaftNodeId::new(*node), is_there && close)
            })
            .collect()
    }
}

/// Whether a replica whose log agrees with the leader's up to `matched` lacks at most `lag_max` of what ends at `last`. One that has nothing is never close, however short the
/// log: it grants no vote, so a group in which it counted could lose its leader for good with one more replica.
const fn is_close(matched: Option<u64>, last: u64, lag_max: u64) -> bool {
    match matched {
        Some(matched) => matched.saturating_add(lag_max) >= last,
        None => false,
    }
}

impl Observer {
    /// Replicas that have lost what they had acknowledged to this one, while it leads, with their brokers.
    pub(super) fn reverted(&self) -> BTreeMap<RaftNodeId, NodeId> {
        let known = self.now();
        if !known.is_leader {
            return BTreeMap::new();
        }
        let server = self.server.borrow_watched();
        let membership = server.membership_config.membership();
        let reverted = self.acknowledged.reverted(known.term).into_iter();
        reverted
            .filter_map(|node| Some((node, membership.get_node(&node.get())?.broker)))
            .collect()
    }

    /// `target` is about to be taken in: what it acknowledged when it was in the group before is no promise any more.
    pub(super) fn forget(&self, target: RaftNodeId) {
        self.acknowledged.forget(target.get());
    }

    /// Whether, while this replica leads, all that was acknowledged or still may be on the word of `gone` is on the disks of a quorum of the voters without it, each of
    /// which has answered what was sent after `since`; of both sets while voters change.
    ///
    /// *Up to where.* What clients were told is applied here: the barrier of this term has passed, and nobody else answers them. But an entry that `gone` has on its disk,
    /// and this replica not yet, is committed by the two of them a moment later, and told: so what `gone` has acknowledged counts like what is applied. The committed
    /// index would not do instead of that, since such an entry is not committed yet either.
    ///
    /// *Of whom.* The voters that the newest membership in this log names, committed or not, since Raft elects by it. Voters change in two entries: from the old set to
    /// both, from both to the new one. While the first is not committed, both sets are asked here, and who is elected without it needs the old one. While the second is
    /// not, the new set is asked, of which whoever is elected under both needs a majority too. So the one before is covered whichever entry is lost. The committed
    /// membership would do as well, but only because the entry that follows it brings everything along; and it asks old voters that are gone already.
    pub(super) fn quorum_without(
        &self,
        gone: RaftNodeId,
        applied: LogIndex,
        since: Instant,
    ) -> bool {
        let data = self.data.borrow_watched();
        let (Some(replication), Some(heard)) = (&data.replication, &data.heartbeat) else {
            return false;
        };
        let matched: BTreeMap<u64, Option<u64>> = replication
            .iter()
            .map(|(node, at)| (*node, at.map(|id| id.index)))
            .collect();
        // Looked at before the others: what is taken for an answer since then is one.
        let asked_ago = since.elapsed();
        let is_there = |node: &u64| {
            let at = heard.get(node).copied().flatten();
            at.is_some_and(|at| at.into_inner().elapsed() <= asked_ago)
        };
        let counts = |node: &u64| {
            !self.acknowledged.is_reverted(*node) && (*node == self.own.get() || is_there(node))
        };
        let server = self.server.borrow_watched();
        let sets = server.membership_config.membership().get_joint_config();
        all_without(sets, gone.get(), applied.get(), &matched, counts)
    }
}

/// Whether so many of those that count hold all that is `applied`, or that `gone` has acknowledged, that each set has a quorum of them without `gone`.
fn all_without(
    sets: &[BTreeSet<u64>],
    gone: u64,
    applied: u64,
    matched: &BTreeMap<u64, Option<u64>>,
    counts: impl Fn(&u64) -> bool,
) -> bool {
    let of = |node: &u64| matched.get(node).copied().flatten();
    let upto = Some(applied).max(of(&gone));
    let has = |node: &u64| of(node) >= upto || mutant(Mutant::RefillCountsStale);
    quorum_without(sets, gone, |node| has(node) && counts(node))
}

/// Whether so many voters of each set have it that the set has a quorum of them without `gone`.
fn quorum_without(sets: &[BTreeSet<u64>], gone: u64, has: impl Fn(&u64) -> bool) -> bool {
    !sets.is_empty()
        && sets.iter().all(|voters| {
            let having = voters.iter().filter(|node| **node != gone && has(node));
            2 * having.count() > voters.len()
        })
}

struct Watcher {
    group: PlacementGroupId,
    server: WatchReceiverOf<Types, RaftServerMetrics<Types>>,
    all: WatchReceiverOf<Types, RaftMetrics<Types>>,
    applied: watch::Receiver<Option<LogId>>,
    leadership: watch::Sender<Leadership>,
    fatal: watch::Sender<Option<String>>,
    shared: Arc<Shared>,
}

impl Watcher {
    /// Returns when the core has ended.
    async fn run(&mut self) {
        let mut led = None;
        loop {
            let (now, leads) = self.evaluate();
            if is_another(&mut led, now) {
                self.shared.changes.fetch_add(1, Ordering::Relaxed);
            }
            let changed = self
                .leadership
                .send_if_modified(|known| std::mem::replace(known, now) != now);
            if changed {
                let (leader, here) = (now.leader.map(NodeId::get), now.is_leader);
                tracing::debug!(group = %self.group, term = %now.term, leader, here, "leadership");
            }
            let waits_for_barrier = leads && !now.is_leader;
            let ended = tokio::select! {
                changed = self.server.changed() => changed.is_err(),
                // Only while it matters: it changes with every entry.
                _ = self.applied.changed(), if waits_for_barrier => false,
            };
            if ended {
                return self.end();
            }
        }
    }

    /// Leadership now, and whether the core says that this replica leads, ready or not.
    fn evaluate(&mut self) -> (Leadership, bool) {
        let server = self.server.borrow_watched().clone();
        let membership = server.membership_config.membership();
        let only_voter = membership.voter_ids().eq([server.id]);
        self.shared.only_voter.store(only_voter, Ordering::Relaxed);
        let term = server.vote.leader_id.term;
        // The vote is the one on disk: when the core already leads in a newer term, this one is not granted yet.
        let granted = server.vote.committed && server.vote.leader_id.voted_for == server.id;
        let leads = server.state == ServerState::Leader;
        let passed_barrier = self
            .applied
            .borrow_and_update()
            .is_some_and(|id| id.term.get() == term);
        let leader = server
            .current_leader
            .and_then(|id| membership.get_node(&id))
            .map(|member| member.broker);
        let is_leader = leads && granted && (passed_barrier || mutant(Mutant::BarrierSkipped));
        (
            Leadership {
                leader,
                term: Term::new(term),
                is_leader,
            },
            leads,
        )
    }

    fn no_leader(&self) {
        self.leadership.send_modify(|known| {
            known.is_leader = false;
            known.leader = None;
        });
    }

    /// The core is gone.
    fn end(&self) {
        // Before the reason is told: who hears it finds that nobody leads here.
        self.no_leader();
        if self.shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        let why = match &self.all.borrow_watched().running_state {
            Ok(()) => "the Raft core ended without a reason".to_owned(),
            Err(fatal) => fatal.to_string(),
        };
        tracing::error!("placement group stopped: {why}");
        self.fatal.send_replace(Some(why));
    }
}

/// Whether `now` has another leader than was known last in the term `led`. A term has one at most.
fn is_another(led: &mut Option<Term>, now: Leadership) -> bool {
    let newer = now.leader.is_some() && *led < Some(now.term);
    newer && led.replace(now.term).is_some()
}

/// The core is gone before the watcher learns why: then nothing is known yet, unless its owner ended it.
fn stop_reason(fatal: Option<&str>, stopping: bool) -> String {
    match (fatal, stopping) {
        (Some(why), _) => why.to_owned(),
        (None, true) => "its owner stopped it".to_owned(),
        (None, false) => "the Raft core ended; the log says why".to_owned(),
    }
}

/// However the observing ends, this replica no longer leads.
impl Drop for Watcher {
    fn drop(&mut self) {
        self.no_leader();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that who has nothing is not close to the end of the shortest log, so that it does not come to vote; and that others are by what they lack.
    #[test]
    fn who_has_nothing_is_not_close() {
        assert!(!is_close(None, 0, 10) && !is_close(None, 9, 10));
        assert!(is_close(Some(0), 9, 10) && is_close(Some(0), 10, 10));
        assert!(!is_close(Some(0), 11, 10) && is_close(Some(u64::MAX), u64::MAX, 10));
    }

    /// Proves that the one that is gone counts as a voter that has nothing, in every set, and that without any voter nothing is safe.
    #[test]
    fn who_is_gone_has_nothing() {
        let set = |voters: &[u64]| voters.iter().copied().collect::<BTreeSet<u64>>();
        let safe = |sets: &[BTreeSet<u64>], having: &[u64]| {
            quorum_without(sets, 3, |node| having.contains(node))
        };
        assert!(safe(&[set(&[1, 2, 3])], &[1, 2]));
        assert!(!safe(&[set(&[1, 2, 3])], &[1, 3]), "only it has it too");
        assert!(!safe(&[set(&[1, 2, 3])], &[1]), "the other lacks it");
        assert!(!safe(&[set(&[3])], &[3]), "the only copy");
        assert!(!safe(&[set(&[1, 3])], &[1, 3]), "one of two");
        assert!(safe(&[set(&[1, 2, 3, 4, 5])], &[1, 2, 4]));
        assert!(!safe(&[set(&[1, 2, 3, 4, 5])], &[1, 2, 3]));
        assert!(safe(&[set(&[1, 2])], &[1, 2]), "it holds nothing");
        let joint = [set(&[1, 2, 3]), set(&[1, 3, 4])];
        assert!(!safe(&joint, &[1, 2]), "the new set has none");
        assert!(safe(&joint, &[1, 2, 4]));
        assert!(!safe(&[], &[1, 2]));
    }

    /// Proves that what is safe by the newest membership stays so under the one before it, should that entry be lost: for each step of a change of voters, and all
    /// sets of replicas that hold something, nobody of the others can be elected by either.
    #[test]
    fn the_newest_membership_covers_the_one_before() {
        let set = |voters: &[u64]| voters.iter().copied().collect::<BTreeSet<u64>>();
        let (old, new) = (set(&[1, 2, 3]), set(&[3, 4, 5]));
        let both = vec![old.clone(), new.clone()];
        let gone = 3;
        let steps = [(vec![old], both.clone()), (both, vec![new])];
        let elects = |sets: &[BTreeSet<u64>], votes: &BTreeSet<u64>| {
            sets.iter()
                .all(|voters| 2 * voters.intersection(votes).count() > voters.len())
        };
        for (before, newest) in &steps {
            for bits in 0..32_u32 {
                let having: BTreeSet<u64> =
                    (1..=5).filter(|id| bits >> (id - 1) & 1 == 1).collect();
                if !quorum_without(newest, gone, |node| having.contains(node)) {
                    continue;
                }
                // Who is gone has lost it.
                let others = (1..=5)
                    .filter(|id| *id == gone || !having.contains(id))
                    .collect();
                assert!(!elects(newest, &others), "{newest:?} {having:?}");
                assert!(!elects(before, &others), "{before:?} {having:?}");
            }
        }
    }

    /// Proves that what the one that is gone has acknowledged counts like what is applied, whoever else has it: it may be told to clients yet.
    #[test]
    fn what_it_has_acknowledged_may_still_be_told() {
        let voters = [BTreeSet::from([1, 2, 3])];
        let safe = |own: u64, other: u64, gone: u64| {
            let matched = BTreeMap::from([(1, Some(own)), (2, Some(other)), (3, Some(gone))]);
            all_without(&voters, 3, 10, &matched, |_| true)
        };
        assert!(safe(10, 10, 9) && safe(12, 10, 10));
        assert!(!safe(12, 9, 8), "2 lacks what is applied");
        assert!(!safe(12, 11, 12), "12 is committed by 1 and 3 alone");
        assert!(!safe(11, 12, 12), "and here by 3 and 2, once 1 has it");
        assert!(safe(12, 12, 12));
        let unknown = BTreeMap::from([(1, Some(10)), (2, Some(10)), (3, None)]);
        assert!(all_without(&voters, 3, 10, &unknown, |_| true));
        assert!(!all_without(&voters, 3, 10, &unknown, |node| *node != 2));
    }

    /// Proves that a change of leader is counted once, in whichever term it is heard, and that neither the first one nor a while without any is one.
    #[test]
    fn changes_of_leader() {
        let mut led = None;
        let mut seen = |leader: Option<i32>, term| {
            let now = Leadership {
                leader: leader.map(NodeId::new),
                term: Term::new(term),
                is_leader: false,
            };
            is_another(&mut led, now)
        };
        assert!(!seen(None, 3) && !seen(Some(1), 4) && !seen(Some(1), 4));
        assert!(!seen(None, 5) && seen(Some(2), 5) && !seen(Some(2), 5));
        assert!(!seen(None, 5) && !seen(Some(2), 5) && seen(Some(2), 9));
    }

    /// Proves that a group is only said to have been stopped by its owner when it was.
    #[test]
    fn a_stop_nobody_asked_for_is_not_called_one() {
        assert_eq!(stop_reason(Some("disk"), false), "disk");
        assert_eq!(stop_reason(Some("disk"), true), "disk");
        assert_eq!(stop_reason(None, true), "its owner stopped it");
        assert!(!stop_reason(None, false).contains("owner"));
    }
}
