//! Brokers that ask to be taken in, as those that are asked remember them.
//!
//! Owns: what a question says of who asks, [`Candidates`].
//! Not here: taking them in (`metadata`, an operator's command).
//! Spec: docs/protocols/cluster-formation.md (the question), docs/protocols/membership.md

use super::decide::VERSION;
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
/// Who has not asked for so long is gone. It asks several times a second.
const REMEMBERED: Duration = Duration::from_secs(60);

/// What a broker says when it asks. Who it is says its handshake.
#[derive(Serialize, Deserialize)]
struct Question {
    version: u32,
    #[serde(default)]
    zone: String,
    #[serde(default)]
    peer: String,
}

/// The bytes of a question of who does not ask to be taken in.
pub(super) fn question_of_member() -> Bytes {
    question("", "")
}

/// The bytes of a question.
pub(super) fn question(zone: &str, peer: &str) -> Bytes {
    let question = Question {
        version: VERSION,
        zone: zone.to_owned(),
        peer: peer.to_owned(),
    };
    Bytes::from(serde_json::to_vec(&question).unwrap_or_default())
}

/// A broker that is in no cluster and asked this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::node) struct Candidate {
    pub(in crate::node) node: NodeId,
    pub(in crate::node) raft_node: RaftNodeId,
    pub(in crate::node) zone: String,
    /// `host:port` where it says that others reach it.
    pub(in crate::node) peer: String,
}

/// Who has asked lately. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Candidates(Arc<Mutex<BTreeMap<NodeId, (Candidate, Instant)>>>);

impl Candidates {
    /// Takes note of who asks and is no member.
    pub(super) fn note(&self, caller: &Caller, request: &[u8]) {
        if request.len() > QUESTION_BYTES_MAX {
            return;
        }
        let Ok(question) = serde_json::from_slice::<Question>(request) else {
            return;
        };
        if question.peer.is_empty() {
            return;
        }
        let candidate = Candidate {
            node: caller.broker,
            raft_node: caller.node,
            zone: question.zone,
            peer: question.peer,
        };
        let mut known = self.0.lock();
        known.retain(|_, (_, heard)| heard.elapsed() < REMEMBERED);
        if known.len() < CANDIDATES_MAX || known.contains_key(&caller.broker) {
            known.insert(caller.broker, (candidate, Instant::now()));
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
