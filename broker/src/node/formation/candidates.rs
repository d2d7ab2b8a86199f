//! Brokers that ask to be taken in, as those that are asked remember them.
//!
//! Owns: what a question says of who asks, [`Candidates`].
//! Not here: taking them in (`metadata`, an operator's command).
//! Spec: docs/protocols/cluster-formation.md (the question), docs/protocols/membership.md

use super::super::refill::Marked;
use super::decide::VERSION;
use crate::observe::printable;
use crate::peer::Caller;
use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tidelog_model::{NodeId, PlacementGroupId, RaftNodeId};
use tokio::time::Instant;

/// Largest question that is read.
const QUESTION_BYTES_MAX: usize = 4 << 10;
/// Brokers remembered at most; others are not, until these are forgotten.
const CANDIDATES_MAX: usize = 64;
/// Who has not asked for so long is gone: it asks several times a second, or every two seconds (`ANSWER_WITHIN`) while others do not answer. Not much longer: who is taken in
/// although it asks no more has taken a member's place for nothing.
const REMEMBERED: Duration = Duration::from_secs(4);
/// Longest zone and address that are taken, so that all candidates fit an answer.
const TEXT_BYTES_MAX: usize = 255;
/// Groups that are told at most, of those without which a broker runs.
const WITHHELD_MAX: usize = 32;
/// Longest reason against one that is told.
const REASON_BYTES_MAX: usize = 512;

/// What a broker says when it asks. Who it is says its handshake.
#[derive(Serialize, Deserialize)]
pub(super) struct Question {
    version: u32,
    #[serde(default)]
    zone: String,
    #[serde(default)]
    peer: String,
    /// Cluster name and seeds of the caller, as [`super::Told`] has them: who has the same may found a cluster with the one that is asked.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) seeds: String,
    /// The caller wants to know who waits to be taken in.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) waiting: bool,
    /// The caller wants to know which groups are led here, and which replicas here are empty.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) groups: bool,
    /// The caller's disk is damaged: it was this Raft node, and wants to be the one of its handshake. That it knows this one is its proof: members alone do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    damaged: Option<u64>,
    /// The caller is the Raft node that it says is damaged, and runs: it wants to be this one, and to hear when it may stop for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next: Option<u64>,
    /// With `next`: the groups without which it runs; the first of many.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    withheld: Vec<u32>,
    /// The caller wants to know which groups need this Raft node not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    without: Option<u64>,
}

impl Question {
    fn new(zone: &str, peer: &str) -> Self {
        Self {
            version: VERSION,
            zone: zone.to_owned(),
            peer: peer.to_owned(),
            seeds: String::new(),
            waiting: false,
            groups: false,
            damaged: None,
            next: None,
            withheld: Vec::new(),
            without: None,
        }
    }

    /// The Raft node that it wants to be, and runs as another one meanwhile.
    pub(super) fn next(&self) -> Option<RaftNodeId> {
        self.next.map(RaftNodeId::new)
    }

    /// Raft nodes that the caller says it was, or asks to be: who knows one of a member's is that member.
    pub(super) fn says(&self) -> [Option<RaftNodeId>; 2] {
        [self.damaged, self.next].map(|id| id.map(RaftNodeId::new))
    }

    pub(super) fn without(&self) -> Option<RaftNodeId> {
        self.without.map(RaftNodeId::new)
    }
}

/// The bytes of a question of who does not ask to be taken in, with or without the wish to know who does.
pub(super) fn question_of_member(waiting: bool) -> Bytes {
    bytes(&Question {
        waiting,
        ..Question::new("", "")
    })
}

/// The bytes of a question for the groups that are led there, and those whose replica there is empty.
pub(super) fn question_of_groups() -> Bytes {
    bytes(&Question {
        groups: true,
        ..Question::new("", "")
    })
}

/// The bytes of a question for the groups that need the Raft node `gone` not.
pub(super) fn question_without(gone: RaftNodeId) -> Bytes {
    bytes(&Question {
        without: Some(gone.get()),
        ..Question::new("", "")
    })
}

/// A question of who asks to be taken in: new, or as it is `marked`.
pub(super) fn question(seeds: &str, zone: &str, peer: &str, marked: Marked<'_>) -> Question {
    let mut question = Question {
        damaged: marked.mark().map(|mark| mark.raft_node.get()),
        seeds: seeds.to_owned(),
        ..Question::new(zone, peer)
    };
    if let Marked::InPart(mark) = marked {
        question.next = Some(mark.next.get());
        let withheld = mark.withheld().into_iter().flatten();
        question.withheld = withheld.take(WITHHELD_MAX).map(|id| id.get()).collect();
    }
    question
}

pub(super) fn bytes(question: &Question) -> Bytes {
    Bytes::from(serde_json::to_vec(question).unwrap_or_default())
}

/// The question, if it is one.
pub(super) fn read(request: &[u8]) -> Option<Question> {
    if request.len() > QUESTION_BYTES_MAX {
        return None;
    }
    serde_json::from_slice(request).ok()
}

/// A broker that is in no cluster and asked a member, or a damaged member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::node) struct Candidate {
    pub(in crate::node) broker_id: i32,
    pub(in crate::node) raft_node_id: u64,
    pub(in crate::node) zone: String,
    /// `host:port` where it says that others reach it.
    pub(in crate::node) peer: String,
    /// The Raft node that it was, whose files are damaged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::node) damaged: Option<u64>,
    /// Why it is not taken in anew by itself; the leader of metadata says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::node) refused: Option<String>,
    /// With `refused`: that passes by itself, or says what to do.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    says_all: bool,
    /// The groups without which it runs, as the Raft node that is damaged. Absent: it runs nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    withheld: Option<BTreeSet<u32>>,
    /// It runs, and nothing needs it: it may stop to be taken in. The leader of metadata says so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(in crate::node) may_stop: bool,
}

impl Candidate {
    pub(in crate::node) fn node(&self) -> NodeId {
        NodeId::new(self.broker_id)
    }

    pub(in crate::node) fn raft_node(&self) -> RaftNodeId {
        RaftNodeId::new(self.raft_node_id)
    }

    pub(in crate::node) fn damaged(&self) -> Option<RaftNodeId> {
        self.damaged.map(RaftNodeId::new)
    }

    /// The groups without which it runs. `None`: it runs none.
    pub(in crate::node) fn withheld(&self) -> Option<BTreeSet<PlacementGroupId>> {
        let withheld = self.withheld.as_ref()?.iter();
        Some(withheld.copied().map(PlacementGroupId::new).collect())
    }

    pub(in crate::node) const fn runs(&self) -> bool {
        self.withheld.is_some()
    }
}

/// Why a damaged broker is not taken in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::node) struct Reason {
    pub(in crate::node) text: String,
    /// It passes by itself, or says what to do: no data is in the way, and none helps.
    pub(in crate::node) says_all: bool,
}

impl Reason {
    /// What another broker has told, for people. Older ones do not tell `says_all`.
    pub(super) fn told(text: Option<&str>, says_all: bool) -> Option<Self> {
        let text = printable(text?).into_owned();
        Some(Self { text, says_all })
    }
}

/// What a damaged broker hears of its wish.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::node) struct Heard {
    /// It runs, and nothing needs it: it may stop to be taken in.
    pub(in crate::node) may_stop: bool,
    /// Why it is not taken in.
    pub(in crate::node) refused: Option<Reason>,
}

/// A reason, short enough for an answer with all candidates.
fn cut(mut why: String) -> String {
    let end = (0..=REASON_BYTES_MAX.min(why.len())).rev();
    let end = { end }.find(|at| why.is_char_boundary(*at));
    why.truncate(end.unwrap_or(0));
    why
}

type Known = BTreeMap<(NodeId, RaftNodeId), (Candidate, Instant)>;

/// Who has asked lately; two brokers with one id are two. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Candidates(Arc<Mutex<Known>>);

impl Candidates {
    /// Takes note of who asks and is no member. `proven`: it is a damaged member, and has said which. One that runs is noted as who it wants to be.
    pub(super) fn note(&self, caller: &Caller, question: &Question, proven: bool) {
        // They reach the terminal of who asks for the cluster's status.
        let [zone, peer] =
            [&question.zone, &question.peer].map(|text| printable(text).into_owned());
        if peer.is_empty() || peer.len() > TEXT_BYTES_MAX || zone.len() > TEXT_BYTES_MAX {
            return;
        }
        let next = question.next().filter(|_| proven);
        let who = (caller.broker, next.unwrap_or(caller.node));
        let candidate = Candidate {
            broker_id: who.0.get(),
            raft_node_id: who.1.get(),
            zone,
            peer,
            damaged: question.damaged.filter(|_| proven),
            refused: None,
            says_all: false,
            withheld: next.map(|_| question.withheld.iter().copied().collect()),
            may_stop: false,
        };
        let mut known = self.0.lock();
        known.retain(|_, (_, heard)| heard.elapsed() < REMEMBERED);
        let before = known.get(&who).map(|(before, _)| before.clone());
        if proven && known.len() >= CANDIDATES_MAX && before.is_none() {
            // Strangers keep no member out.
            let strangers = known.iter().filter(|(_, (one, _))| one.damaged.is_none());
            let oldest = strangers.min_by_key(|(_, (_, heard))| *heard);
            if let Some(oldest) = oldest.map(|(who, _)| *who) {
                known.remove(&oldest);
            }
        }
        if known.len() < CANDIDATES_MAX || before.is_some() {
            // What was said of one that ran says nothing of one that has stopped.
            let before = before.filter(|before| before.runs() == candidate.runs());
            let candidate = Candidate {
                may_stop: before.as_ref().is_some_and(|before| before.may_stop),
                says_all: before.as_ref().is_some_and(|before| before.says_all),
                refused: before.and_then(|before| before.refused),
                ..candidate
            };
            known.insert(who, (candidate, Instant::now()));
        }
    }

    /// Takes note of why a candidate is not taken in; or, of one that runs, that it may stop.
    pub(super) fn answer(&self, who: (NodeId, RaftNodeId), refused: Option<Reason>) {
        if let Some((candidate, _)) = self.0.lock().get_mut(&who) {
            candidate.may_stop = candidate.runs() && refused.is_none();
            candidate.says_all = refused.as_ref().is_some_and(|why| why.says_all);
            candidate.refused = refused.map(|why| cut(why.text));
        }
    }

    /// What this broker says of the candidate `who`: why it is not taken in, and whether it may stop.
    pub(super) fn answered(&self, who: (NodeId, RaftNodeId)) -> Heard {
        let known = self.0.lock();
        let candidate = known.get(&who).map(|(candidate, _)| candidate);
        candidate.map_or_else(Heard::default, |one| Heard {
            may_stop: one.may_stop,
            refused: Reason::told(one.refused.as_deref(), one.says_all),
        })
    }

    /// Another broker decides.
    pub(super) fn forget_answers(&self) {
        for (candidate, _) in self.0.lock().values_mut() {
            candidate.refused = None;
            candidate.says_all = false;
            candidate.may_stop = false;
        }
    }

    pub(super) fn lately(&self) -> Vec<Candidate> {
        let mut known = self.0.lock();
        known.retain(|_, (_, heard)| heard.elapsed() < REMEMBERED);
        known
            .values()
            .map(|(candidate, _)| candidate.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::super::super::refill::Mark;
    use super::*;

    fn caller(broker: i32, node: u64) -> Caller {
        Caller {
            broker: NodeId::new(broker),
            node: RaftNodeId::new(node),
            cluster: None,
            deadline: Duration::from_secs(1),
        }
    }

    /// A damaged member's question counts as one's.
    fn note(known: &Candidates, caller: &Caller, request: &[u8]) {
        if let Some(question) = read(request) {
            let proven = question.damaged.is_some();
            known.note(caller, &question, proven);
        }
    }

    /// The mark of a broker that was `damaged` and wants to be 44.
    fn mark(damaged: u64) -> Mark {
        let [damaged, next] = [damaged, 44].map(RaftNodeId::new);
        Mark::new(damaged, next, PlacementGroupId::new(5), "a bit")
    }

    fn asks(zone: &str, peer: &str, damaged: Option<u64>) -> Bytes {
        let mark = damaged.map(mark);
        let marked = mark.as_ref().map_or(Marked::Not, Marked::Anew);
        bytes(&question("t: 1@a:1", zone, peer, marked))
    }

    /// Proves that two brokers with one id are two candidates, that who asks again is the same, that a member's question makes no candidate,
    /// and that all of them together are bounded.
    #[test]
    fn candidates_are_told_apart_and_bounded() {
        let known = Candidates::default();
        note(&known, &caller(4, 44), &asks("a", "h:1", None));
        note(&known, &caller(4, 45), &asks("a", "h:2", None));
        note(&known, &caller(4, 44), &asks("b", "h:3", None));
        note(&known, &caller(5, 55), &question_of_member(true));
        note(&known, &caller(6, 66), &asks("a", &"h".repeat(256), None));
        note(&known, &caller(7, 77), b"{");
        let peers: Vec<String> = known.lately().into_iter().map(|at| at.peer).collect();
        assert_eq!(peers, ["h:3", "h:2"]);
        note(&known, &caller(4, 44), &asks("a\nb", "h:1\u{1b}[2J", None));
        let first = known.lately().remove(0);
        assert_eq!(
            (first.zone.as_str(), first.peer.as_str()),
            ("a\\nb", "h:1\\u{1b}[2J")
        );
        for node in 1_000..1_100 {
            note(
                &known,
                &caller(8, node),
                &asks(&"z".repeat(255), &"h".repeat(255), None),
            );
        }
        let all = known.lately();
        assert_eq!(all.len(), CANDIDATES_MAX);
        assert!(serde_json::to_vec(&all).unwrap().len() < 48 << 10);
    }

    /// Proves that a damaged broker says which Raft node it was, that the reason against it is kept while it goes on asking and told to it alone, that reasons are
    /// bounded, and that another leader's are forgotten.
    #[test]
    fn damaged_ones_hear_why() {
        let known = Candidates::default();
        let who = caller(4, 44);
        let asks = asks("a", "h:1", Some(43));
        note(&known, &who, &asks);
        let key = (who.broker, who.node);
        assert_eq!(known.answered(key), Heard::default());
        for says_all in [true, false] {
            let reason = |times| Reason {
                text: "ä".repeat(times),
                says_all,
            };
            known.answer(key, Some(reason(300)));
            note(&known, &who, &asks);
            let one = known.lately().remove(0);
            assert_eq!(one.damaged(), Some(RaftNodeId::new(43)));
            assert_eq!(one.refused, Some("ä".repeat(256)));
            let heard = known.answered(key);
            assert_eq!((heard.refused, heard.may_stop), (Some(reason(256)), false));
        }
        let other = (who.broker, RaftNodeId::new(45));
        assert_eq!(known.answered(other), Heard::default());
        known.forget_answers();
        assert_eq!(known.answered(key), Heard::default());
        known.answer(key, None);
        assert!(!known.answered(key).may_stop, "it does not run");
        let old: Candidate =
            serde_json::from_str(r#"{"broker_id":4,"raft_node_id":44,"zone":"","peer":"h:1"}"#)
                .unwrap();
        assert_eq!(old.damaged(), None);
        let without = |request: &[u8]| read(request).unwrap().without();
        let nine = RaftNodeId::new(9);
        assert_eq!(without(&question_without(nine)), Some(nine));
        assert_eq!(without(&asks), None);
    }

    /// Proves that a damaged member that runs is noted as who it wants to be, with the groups that it lacks; that what is said of it is kept while it asks so, and forgotten
    /// when it has stopped and asks as that one, or another broker decides.
    #[test]
    fn who_runs_in_part_is_told_when_to_stop() {
        let known = Candidates::default();
        let mark = mark(43);
        let runs = question("t: 1@a:1", "a", "h:1", Marked::InPart(&mark));
        let (member, key) = (caller(4, 43), (NodeId::new(4), RaftNodeId::new(44)));
        known.note(&member, &runs, true);
        let one = known.lately().remove(0);
        assert_eq!((one.node(), one.raft_node()), key);
        assert_eq!(one.damaged(), Some(RaftNodeId::new(43)));
        assert_eq!(one.withheld(), mark.withheld().cloned());
        let not_now = Reason {
            text: "not now".to_owned(),
            says_all: true,
        };
        known.answer(key, Some(not_now.clone()));
        let heard = |may_stop, refused| Heard { may_stop, refused };
        assert_eq!(known.answered(key), heard(false, Some(not_now)));
        known.answer(key, None);
        known.note(&member, &runs, true);
        assert_eq!(known.answered(key), heard(true, None));
        known.forget_answers();
        assert_eq!(known.answered(key), Heard::default());
        known.answer(key, None);
        note(&known, &caller(4, 44), &asks("a", "h:1", Some(43)));
        assert_eq!(known.lately().len(), 1);
        assert!(!known.lately()[0].runs());
        assert_eq!(known.answered(key), Heard::default(), "it has stopped");
        known.note(&caller(4, 45), &runs, false);
        assert!(known.lately().iter().all(|one| !one.runs()), "not proven");
    }

    /// Proves that who has not proven that it was a member is noted as a stranger, and that strangers, however many, keep no damaged member out.
    #[test]
    fn strangers_are_no_damaged_members() {
        let known = Candidates::default();
        let claims = read(&asks("a", "h:1", Some(43))).unwrap();
        for node in 0..200 {
            known.note(&caller(8, node), &claims, false);
        }
        let damaged = |known: &Candidates| {
            let all = known.lately();
            let (count, mut all) = (all.len(), all.into_iter());
            (count, all.find_map(|one| one.damaged()))
        };
        assert_eq!(damaged(&known), (CANDIDATES_MAX, None));
        known.note(&caller(3, 44), &claims, true);
        let proven = Some(RaftNodeId::new(43));
        assert_eq!(damaged(&known), (CANDIDATES_MAX, proven));
    }

    /// Proves that who has stopped to ask can be taken in for some seconds at most, and that one who asks as slowly as may be is there all the time.
    #[tokio::test(start_paused = true)]
    async fn who_does_not_ask_any_more_is_forgotten() {
        let known = Candidates::default();
        let slow = super::super::ANSWER_WITHIN + super::super::ROUND_PAUSE * 2;
        for _ in 0..5 {
            note(&known, &caller(3, 44), &asks("a", "h:1", Some(43)));
            tokio::time::sleep(slow).await;
            assert_eq!(known.lately().len(), 1);
        }
        tokio::time::sleep(Duration::from_secs(5) - slow).await;
        assert!(known.lately().is_empty());
    }

    /// Proves that a question with the largest texts that a configuration has is read.
    #[test]
    fn the_largest_question_is_read() {
        let seeds = format!("{}: {}", "n".repeat(249), "1@".repeat(700));
        let text = "z".repeat(TEXT_BYTES_MAX);
        let mut mark = mark(u64::MAX);
        for group in 0..100 {
            mark = mark.with(PlacementGroupId::new(u32::MAX - group), "x");
        }
        let largest = question(&seeds, &text, &text, Marked::InPart(&mark));
        let largest = read(&bytes(&largest)).unwrap();
        assert_eq!(largest.seeds, seeds);
        assert_eq!(largest.withheld.len(), WITHHELD_MAX);
    }
}
