//! Stopping a node, in order.

use super::groups::NodeGroups;
use super::listeners::Listeners;
use super::peers::Peers;
use crate::router::Heartbeats;
use std::sync::Arc;
use tidelog_env::Tasks;

/// Everything that has to stop.
pub(super) struct Parts {
    pub(super) tasks: Tasks,
    pub(super) groups: NodeGroups,
    pub(super) listeners: Listeners,
    pub(super) peers: Option<Arc<Peers>>,
    pub(super) heartbeats: Option<Heartbeats>,
}

impl Parts {
    pub(super) async fn stop(self) {
        // Clients find another leader while this broker still answers; nobody waits for an election.
        if self.peers.is_some() {
            self.groups.hand_over().await;
        }
        if let Some(heartbeats) = self.heartbeats {
            heartbeats.leave().await;
        }
        // No new requests; those that run get their answers.
        self.listeners.stop().await;
        self.tasks.stop().await;
        // Before the groups: a message of a peer that is in work when its group stops is an error in the log.
        if let Some(peers) = &self.peers {
            peers.stop().await;
        }
        self.groups.stop().await;
    }

    /// As a crash looks to the others: it says nothing more, from one moment to the next.
    #[cfg(test)]
    pub(super) async fn stop_abruptly(self) {
        if let Some(peers) = &self.peers {
            peers.stop().await;
        }
        self.tasks.stop().await;
        self.groups.stop().await;
        self.listeners.stop().await;
    }
}
