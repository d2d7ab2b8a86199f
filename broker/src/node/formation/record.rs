//! The founding record: which cluster this is, and who its first members are.
//!
//! Owns: [`Founding`], [`MemberRecord`], as JSON in `cluster.json` and in the answers of formation.
//! Spec: docs/protocols/cluster-formation.md, docs/formats/cluster-json.md

use crate::placement::Member;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tidelog_model::{ClusterId, NodeId, RaftNodeId};
use uuid::Uuid;

/// Which cluster this is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::node) struct Founding {
    /// Its id.
    pub(in crate::node) cluster_id: Uuid,
    /// Its name when it was founded.
    pub(in crate::node) name: String,
    /// The first members, by broker id. Empty: a cluster of one broker.
    pub(in crate::node) members: Vec<MemberRecord>,
}

/// One first member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::node) struct MemberRecord {
    /// The broker.
    pub(in crate::node) broker_id: i32,
    /// It as a Raft node.
    pub(in crate::node) raft_node_id: u64,
    /// `host:port` of its peer listener when the cluster was founded.
    pub(in crate::node) peer: String,
}

impl Founding {
    /// The cluster's id.
    pub(in crate::node) fn cluster(&self) -> ClusterId {
        ClusterId::new(self.cluster_id)
    }

    /// Whether this broker, as this Raft node, is a member.
    pub(in crate::node) fn has(&self, node: NodeId, raft_node: RaftNodeId) -> bool {
        self.members
            .iter()
            .any(|member| member.broker_id == node.get() && member.raft_node_id == raft_node.get())
    }

    /// Broker ids of the members.
    pub(in crate::node) fn brokers(&self) -> Vec<NodeId> {
        let ids = self.members.iter().map(|member| member.broker_id);
        ids.map(NodeId::new).collect()
    }

    /// The members as placement wants them.
    pub(in crate::node) fn first_members(&self) -> BTreeMap<RaftNodeId, Member> {
        let member = |member: &MemberRecord| {
            let at = Member {
                broker: NodeId::new(member.broker_id),
                address: member.peer.clone(),
            };
            (RaftNodeId::new(member.raft_node_id), at)
        };
        self.members.iter().map(member).collect()
    }
}
