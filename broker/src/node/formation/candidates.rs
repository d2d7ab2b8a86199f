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
/// Who has not asked for so long is gone. It asks several times a second, or every two seconds while others do not answer.
const REMEMBERED: Duration = Duration::from_secs(15);
/// Longest zone and address that are taken, so that all candidates fit an answer.
const TEXT_BYTES_MAX: usize = 255;

/// What a broker says when it asks. Who it is says its handshake.
#[derive(Serialize, Deserialize)]
struct Question {
    version: u32,
    #[serde(default)]
    zone: String,
    #[serde(default)]
    peer: String,
    /// The caller wants to know who waits to be taken in.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    waiting: bool,
}

/// The bytes of a question of who does not ask to be taken in, with or without the wish to know who does.
pub(super) fn question_of_member(waiting: bool) -> Bytes {
    bytes(&Question {
        version: VERSION,
        zone: String::new(),
        peer: String::new(),
        waiting,
    })
}

/// The bytes of a question.
pub(super) fn question(zone: &str, peer: &str) -> Bytes {
    bytes(&Question {
        version: VERSION,
        zone: zone.to_owned(),
        peer: peer.to_owned(),
        waiting: false,
    })
}

fn bytes(question: &Question) -> Bytes {
    Bytes::from(serde_json::to_vec(question).unwrap_or_default())
}

/// Whether the question is also who waits to be taken in.
pub(super) fn wants_waiting(request: &[u8]) -> bool {
    read(request).is_some_and(|question| question.waiting)
}

fn read(request: &[u8]) -> Option<Question> {
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
}

impl Candidate {
    pub(in crate::node) fn node(&self) -> NodeId {
        NodeId::new(self.broker_id)
    }

    pub(in crate::node) fn raft_node(&self) -> RaftNodeId {
        RaftNodeId::new(self.raft_node_id)
    }
}

type Known = BTreeMap<(NodeId, RaftNodeId), (Candidate, Instant)>;

/// Who has asked lately; two brokers with one id are two. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Candidates(Arc<Mutex<Known>>);

impl Candidates {
    /// Takes note of who asks and is no member.
    pub(super) fn note(&self, caller: &Caller, request: &[u8]) {
        let Some(question) = read(request) else {
            return;
        };
        // They reach the terminal of who asks for the cluster's status.
        let [zone, peer] = [question.zone, question.peer].map(|text| printable(&text).into_owned());
        if peer.is_empty() || peer.len() > TEXT_BYTES_MAX || zone.len() > TEXT_BYTES_MAX {
            return;
        }
        let candidate = Candidate {
            broker_id: caller.broker.get(),
            raft_node_id: caller.node.get(),
            zone,
            peer,
        };
        let who = (caller.broker, caller.node);
        let mut known = self.0.lock();
        known.retain(|_, (_, heard)| heard.elapsed() < REMEMBERED);
        if known.len() < CANDIDATES_MAX || known.contains_key(&who) {
            known.insert(who, (candidate, Instant::now()));
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
    use super::*;

    fn caller(broker: i32, node: u64) -> Caller {
        Caller {
            broker: NodeId::new(broker),
            node: RaftNodeId::new(node),
            cluster: None,
            deadline: Duration::from_secs(1),
        }
    }

    /// Proves that two brokers with one id are two candidates, that who asks again is the same, that a member's question makes no candidate,
    /// and that all of them together are bounded.
    #[test]
    fn candidates_are_told_apart_and_bounded() {
        let known = Candidates::default();
        known.note(&caller(4, 44), &question("a", "h:1"));
        known.note(&caller(4, 45), &question("a", "h:2"));
        known.note(&caller(4, 44), &question("b", "h:3"));
        known.note(&caller(5, 55), &question_of_member(true));
        known.note(&caller(6, 66), &question("a", &"h".repeat(256)));
        known.note(&caller(7, 77), b"{");
        let peers: Vec<String> = known.lately().into_iter().map(|at| at.peer).collect();
        assert_eq!(peers, ["h:3", "h:2"]);
        known.note(&caller(4, 44), &question("a\nb", "h:1\u{1b}[2J"));
        let first = known.lately().remove(0);
        assert_eq!(
            (first.zone.as_str(), first.peer.as_str()),
            ("a\\nb", "h:1\\u{1b}[2J")
        );
        for node in 1_000..1_100 {
            known.note(
                &caller(8, node),
                &question(&"z".repeat(255), &"h".repeat(255)),
            );
        }
        let all = known.lately();
        assert_eq!(all.len(), CANDIDATES_MAX);
        assert!(serde_json::to_vec(&all).unwrap().len() < 48 << 10);
    }
}
