//! What has become of a broker's Raft node: a member, replaced, or gone.
//!
//! Owns: [`Standing`], reading it off the image.
//! Not here: how members change (`membership.rs`), who tells a broker (`router`, `node`).
//! Spec: docs/protocols/membership.md (a broker that is no member ends)

use super::image::MetadataImage;
use tidelog_model::{NodeId, RaftNodeId};

/// What a broker is to the cluster, under one Raft node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It belongs to the cluster.
    Member,
    /// A member has its id under another Raft node: it was replaced. Under which one is not told: nobody but members shall know.
    Replaced,
    /// No member has its id: it was decommissioned, or never taken in.
    Gone,
}

impl MetadataImage {
    /// What `node` is under `raft_node`. Images from before there were members take everybody for one.
    #[must_use]
    pub fn standing(&self, node: NodeId, raft_node: RaftNodeId) -> Standing {
        match self.members.get(&node) {
            Some(member) if member.raft_node != raft_node => Standing::Replaced,
            None if !self.members.is_empty() => Standing::Gone,
            Some(_) | None => Standing::Member,
        }
    }
}
