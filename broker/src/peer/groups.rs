//! What the listener hands requests to: groups by their id, services by their number.
//!
//! Owns: [`PeerGroups`], [`PeerReceiver`], [`CallServices`], [`CallService`].
//! Not here: connections (`session.rs`), what a request does.
//! Spec: docs/protocols/peer.md

use crate::log::Vote;
use crate::placement::{
    AppendReply, AppendRequest, PeerError, PeerInbox, SnapshotRequest, TransferReply,
    TransferRequest, VoteReply, VoteRequest,
};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidelog_model::{ClusterId, NodeId, PlacementGroupId, RaftNodeId};

/// What a receiver is doing with a message. It goes on when this is polled; an append takes its place in the group's order
/// at the first poll.
pub type Receiving<T> = BoxFuture<'static, Result<T, PeerError>>;

/// One group on this broker, as peers reach it.
pub trait PeerReceiver: Send + Sync + 'static {
    /// As [`PeerInbox::append`].
    fn append(&self, request: AppendRequest) -> Receiving<AppendReply>;
    /// As [`PeerInbox::vote`].
    fn vote(&self, request: VoteRequest) -> Receiving<VoteReply>;
    /// As [`PeerInbox::pre_vote`].
    fn pre_vote(&self, request: VoteRequest) -> Receiving<VoteReply>;
    /// As [`PeerInbox::snapshot`].
    fn snapshot(&self, request: SnapshotRequest) -> Receiving<Vote>;
    /// As [`PeerInbox::transfer`].
    fn transfer(&self, request: TransferRequest) -> Receiving<TransferReply>;
}

impl PeerReceiver for PeerInbox {
    fn append(&self, request: AppendRequest) -> Receiving<AppendReply> {
        let inbox = self.clone();
        async move { Self::append(&inbox, request).await }.boxed()
    }

    fn vote(&self, request: VoteRequest) -> Receiving<VoteReply> {
        let inbox = self.clone();
        async move { Self::vote(&inbox, request).await }.boxed()
    }

    fn pre_vote(&self, request: VoteRequest) -> Receiving<VoteReply> {
        let inbox = self.clone();
        async move { Self::pre_vote(&inbox, request).await }.boxed()
    }

    fn snapshot(&self, request: SnapshotRequest) -> Receiving<Vote> {
        let inbox = self.clone();
        async move { Self::snapshot(&inbox, request).await }.boxed()
    }

    fn transfer(&self, request: TransferRequest) -> Receiving<TransferReply> {
        let inbox = self.clone();
        async move { Self::transfer(&inbox, request).await }.boxed()
    }
}

#[derive(Default)]
struct Registry {
    groups: BTreeMap<PlacementGroupId, (u64, Arc<dyn PeerReceiver>)>,
    next: u64,
}

/// The groups that peers may reach. Clones share them.
#[derive(Clone, Default)]
pub struct PeerGroups {
    registry: Arc<RwLock<Registry>>,
}

impl PeerGroups {
    /// No group.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on, messages for `group` go to `receiver`, until the returned value is dropped: drop it before the group stops. A
    /// group that is registered again takes the place of the earlier one.
    pub fn register(&self, group: PlacementGroupId, receiver: impl PeerReceiver) -> Registered {
        let mut registry = self.registry.write();
        let turn = registry.next;
        registry.next += 1;
        registry.groups.insert(group, (turn, Arc::new(receiver)));
        Registered {
            registry: Arc::clone(&self.registry),
            group,
            turn,
        }
    }

    pub(super) fn get(&self, group: PlacementGroupId) -> Option<Arc<dyn PeerReceiver>> {
        let registry = self.registry.read();
        registry
            .groups
            .get(&group)
            .map(|(_, receiver)| Arc::clone(receiver))
    }
}

/// A group that peers reach; dropped, they get "unknown group".
#[must_use = "dropping it unregisters the group"]
pub struct Registered {
    registry: Arc<RwLock<Registry>>,
    group: PlacementGroupId,
    turn: u64,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut registry = self.registry.write();
        let is_ours = |(turn, _): &(u64, Arc<dyn PeerReceiver>)| *turn == self.turn;
        if registry.groups.get(&self.group).is_some_and(is_ours) {
            registry.groups.remove(&self.group);
        }
    }
}

/// Who calls, as its handshake said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// The broker.
    pub broker: NodeId,
    /// Its Raft node.
    pub node: RaftNodeId,
    /// Its cluster: ours, or `None` while it (or this broker) is in none.
    pub cluster: Option<ClusterId>,
    /// How long it still waits; the call is dropped after that.
    pub deadline: Duration,
}

/// Answers calls of other brokers.
pub trait CallService: Send + Sync + 'static {
    /// Answers one request; calls run side by side. What is wrong with a request is said in the answer, whose bytes are the service's own.
    /// An answer of more than 4 MiB is an error for the caller, which then does not know what happened.
    fn call(&self, from: Caller, request: Bytes) -> BoxFuture<'static, Bytes>;

    /// Whether brokers that are in no cluster may call, and be called: what forms clusters. To all other services come calls of this
    /// broker's own cluster only.
    fn serves_strangers(&self) -> bool {
        false
    }
}

/// The services by their number. Clones share them.
#[derive(Clone, Default)]
pub struct CallServices {
    services: Arc<RwLock<BTreeMap<u8, Arc<dyn CallService>>>>,
}

impl CallServices {
    /// No service.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on, `service` is answered by `by`, instead of by who answered it before.
    pub fn register(&self, service: u8, by: Arc<dyn CallService>) {
        self.services.write().insert(service, by);
    }

    pub(super) fn get(&self, service: u8) -> Option<Arc<dyn CallService>> {
        self.services.read().get(&service).map(Arc::clone)
    }
}
