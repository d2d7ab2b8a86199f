//! Stopping a node, in order.

use super::groups::NodeGroups;
use super::listeners::Listeners;
use tidelog_env::Tasks;

/// Everything that has to stop.
pub(super) struct Parts {
    pub(super) tasks: Tasks,
    pub(super) groups: NodeGroups,
    pub(super) listeners: Listeners,
}

impl Parts {
    pub(super) async fn stop(self) {
        // No new requests; those that run get their answers.
        self.listeners.stop().await;
        self.tasks.stop().await;
        self.groups.stop().await;
    }
}
