//! Brokers that ask to be taken in, as those that are asked remember them.
//!
//! Owns: what a question says of who asks, [`Candidates`].
//! Not here: taking them in (`metadata`, an operator's command).
//! Spec: docs/protocols/cluster-formation.md (the question), docs/protocols/membership.md

use super::decide::VERSION;
use crate::observe::printable;
use crate::peer::Caller;
use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidelog_model::{NodeId, RaftNodeId};
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
            without: None,
        }
    }

    pub(super) fn damaged(&self) -> Option<RaftNodeId> {
        self.damaged.map(RaftNodeId::new)
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

/// The bytes of a question of who asks to be taken in: new, or since the disk of `damaged`, which it was, is.
pub(super) fn question(seeds: &str, zone: &str, peer: &str, damaged: Option<RaftNodeId>) -> Bytes {
    bytes(&Question {
        damaged: damaged.map(RaftNodeId::get),
        seeds: seeds.to_owned(),
        ..Question::new(zone, peer)
    })
}

fn bytes(question: &Question) -> Bytes {
    Bytes::from(serde_json::to_vec(question).unwrap_or_default())
}

/// The question, if it is one.
pub(super) fn read(request: &[u8]) -> Option<Question> {
    if request.len() > QUESTION_BYTES_MAX {
        return None;
    }
    serde_json::from_slice(request).ok()
}

/// A broker that is in no cluster and asked a member.
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
    /// Takes note of who asks and is no member. `proven`: it is a damaged member, and has said which.
    pub(super) fn note(&self, caller: &Caller, question: &Question, proven: bool) {
        // They reach the terminal of who asks for the cluster's status.
        let [zone, peer] =
            [&question.zone, &question.peer].map(|text| printable(text).into_owned());
        if peer.is_empty() || peer.len() > TEXT_BYTES_MAX || zone.len() > TEXT_BYTES_MAX {
            return;
        }
        let candidate = Candidate {
            broker_id: caller.broker.get(),
            raft_node_id: caller.node.get(),
            zone,
            peer,
            damaged: question.damaged.filter(|_| proven),
            refused: None,
        };
        let who = (caller.broker, caller.node);
        let mut known = self.0.lock();
        known.retain(|_, (_, heard)| heard.elapsed() < REMEMBERED);
        let before = known.get(&who).map(|(before, _)| before.refused.clone());
        if proven && known.len() >= CANDIDATES_MAX && before.is_none() {
            // Strangers keep no member out.
            let strangers = known.iter().filter(|(_, (one, _))| one.damaged.is_none());
            let oldest = strangers.min_by_key(|(_, (_, heard))| *heard);
            if let Some(oldest) = oldest.map(|(who, _)| *who) {
                known.remove(&oldest);
            }
        }
        if known.len() < CANDIDATES_MAX || before.is_some() {
            let candidate = Candidate {
                refused: before.flatten(),
                ..candidate
            };
            known.insert(who, (candidate, Instant::now()));
        }
    }

    /// Takes note of why a candidate is not taken in.
    pub(super) fn refuse(&self, who: (NodeId, RaftNodeId), why: Option<String>) {
        if let Some((candidate, _)) = self.0.lock().get_mut(&who) {
            candidate.refused = why.map(cut);
        }
    }

    /// Why the caller is not taken in, if this broker says so.
    pub(super) fn refused(&self, caller: &Caller) -> Option<String> {
        let known = self.0.lock();
        let (candidate, _) = known.get(&(caller.broker, caller.node))?;
        candidate.refused.clone()
    }

    /// Another broker decides.
    pub(super) fn forget_refusals(&self) {
        let mut known = self.0.lock();
        known
            .values_mut()
            .for_each(|(candidate, _)| candidate.refused = None);
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
            let proven = question.damaged().is_some();
            known.note(caller, &question, proven);
        }
    }

    fn asks(zone: &str, peer: &str, damaged: Option<u64>) -> Bytes {
        question("t: 1@a:1", zone, peer, damaged.map(RaftNodeId::new))
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
        assert_eq!(known.refused(&who), None);
        known.refuse((who.broker, who.node), Some("ä".repeat(300)));
        note(&known, &who, &asks);
        let one = known.lately().remove(0);
        assert_eq!(one.damaged(), Some(RaftNodeId::new(43)));
        assert_eq!(one.refused, Some("ä".repeat(256)));
        assert_eq!(known.refused(&who), one.refused);
        assert_eq!(known.refused(&caller(4, 45)), None);
        known.forget_refusals();
        assert_eq!(known.refused(&who), None);
        let old: Candidate =
            serde_json::from_str(r#"{"broker_id":4,"raft_node_id":44,"zone":"","peer":"h:1"}"#)
                .unwrap();
        assert_eq!(old.damaged(), None);
        let without = |request: &[u8]| read(request).unwrap().without();
        let nine = RaftNodeId::new(9);
        assert_eq!(without(&question_without(nine)), Some(nine));
        assert_eq!(without(&asks), None);
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
        let largest = question(&seeds, &text, &text, Some(RaftNodeId::new(u64::MAX)));
        assert_eq!(read(&largest).unwrap().seeds, seeds);
    }
}
