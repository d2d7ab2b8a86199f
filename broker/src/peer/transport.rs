//! The calling side: one broker's connections to all others.
//!
//! Owns: [`PeerTransport`], [`PeerTarget`], [`AddressBook`], [`CallError`].
//! Not here: one peer (`link.rs`), one connection (`drive.rs`).
//! Spec: docs/protocols/peer.md

use super::channel::{Bounds, Channel};
use super::config::{PeerConfig, PeerIdentity};
use super::dial::Dialer;
use super::drive::Driver;
use super::frame::{Kind, WireLane};
use super::limits::CALL_BYTES_MAX;
use super::link::{Link, Peer};
use super::messages::{self, ErrorCode};
use super::metrics::PeerMetrics;
use super::mistakes::Mistakes;
use super::tls::PeerTls;
use crate::placement::{Lane, Member, PeerError, PeerLink, PeerNetwork, PeerReply};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tidelog_env::{Network, Random, Tasks, TasksPart};
use tidelog_model::{NodeId, PlacementGroupId, RaftNodeId};
use tokio::time::Instant;

/// Peers that one transport knows: brokers of a cluster, and seeds; each takes four idle tasks.
const PEERS_MAX: usize = 256;
/// A peer that no group has a link to and that nobody has called for so long is let go when the next new one comes: a Raft node that was replaced, a broker
/// that has left. Who is called now and then is called more often than this.
const UNUSED_MAX: Duration = Duration::from_secs(300);

/// Where brokers are now. Asked before every try to connect, so that a broker that comes back elsewhere is found.
pub trait AddressBook: Send + Sync + 'static {
    /// Every `host:port` where the broker's peer listener may be, the likeliest first; empty if the book does not know it. Returns at once.
    fn addresses(&self, broker: NodeId) -> Vec<String>;
}

/// A book that knows nobody: the address that comes with a member or a target is used.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoAddressBook;

impl AddressBook for NoAddressBook {
    fn addresses(&self, _broker: NodeId) -> Vec<String> {
        Vec::new()
    }
}

/// Whom to call. What is `None` is not checked in the handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerTarget {
    /// The broker that must answer.
    pub broker: Option<NodeId>,
    /// The Raft node that must answer.
    pub node: Option<RaftNodeId>,
    /// `host:port`, for when the broker is at none of the addresses of the book. Empty: only the book is asked.
    pub address: String,
}

/// Why a call has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The peer was not reached, or says that it did nothing. Did not happen; try again later, or another broker.
    #[error("the call did not reach the service: {0}")]
    NotDone(String),
    /// No answer. May have happened, and may still happen.
    #[error("the call has no answer: {0}")]
    Unknown(String),
}

impl CallError {
    /// Whether the service may have acted on the call.
    #[must_use]
    pub const fn may_have_happened(&self) -> bool {
        matches!(self, Self::Unknown(_))
    }
}

/// Who a peer is to the transport. A Raft node is one broker's for ever; a call may know less.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Node(RaftNodeId),
    Broker(NodeId),
    Address(String),
}

/// Connections to the other brokers. Clones share them.
///
/// Connects when there is something to send; everything ends with the tasks it was given.
#[derive(Clone)]
pub struct PeerTransport {
    inner: Arc<Inner>,
}

struct Inner {
    config: PeerConfig,
    identity: Arc<PeerIdentity>,
    network: Arc<dyn Network>,
    random: Arc<dyn Random>,
    book: Arc<dyn AddressBook>,
    tls: PeerTls,
    metrics: PeerMetrics,
    tasks: Tasks,
    peers: Mutex<BTreeMap<Key, Arc<Peer>>>,
    mistakes: Mistakes,
}

/// The world and the parts that a [`PeerTransport`] is made of.
pub struct PeerTransportParts {
    /// Who this broker is.
    pub identity: Arc<PeerIdentity>,
    /// Sockets.
    pub network: Arc<dyn Network>,
    /// Jitter.
    pub random: Arc<dyn Random>,
    /// Where brokers are.
    pub book: Arc<dyn AddressBook>,
    /// TLS, shared with the listener.
    pub tls: PeerTls,
    /// Counters, shared with the listener.
    pub metrics: PeerMetrics,
    /// Runs the connections, and ends them.
    pub tasks: Tasks,
}

impl PeerTransport {
    /// A transport without connections.
    #[must_use]
    pub fn new(config: PeerConfig, parts: PeerTransportParts) -> Self {
        Self {
            inner: Arc::new(Inner {
                config,
                identity: parts.identity,
                network: parts.network,
                random: parts.random,
                book: parts.book,
                tls: parts.tls,
                metrics: parts.metrics,
                tasks: parts.tasks,
                peers: Mutex::default(),
                mistakes: Mistakes::default(),
            }),
        }
    }

    /// The network of one group, for [`crate::placement::Group::start`].
    #[must_use]
    pub fn group(&self, group: PlacementGroupId) -> Arc<dyn PeerNetwork> {
        Arc::new(GroupPeers {
            transport: self.clone(),
            group,
        })
    }

    /// Asks a service of another broker (or of this one: that is refused). Request and answer are at most [`CALL_BYTES_MAX`] bytes long.
    ///
    /// # Errors
    /// [`CallError::may_have_happened`] says what a retry risks. Dropping the future leaves it open too.
    pub fn call(
        &self,
        target: &PeerTarget,
        service: u8,
        request: Bytes,
        deadline: Duration,
    ) -> BoxFuture<'static, Result<Bytes, CallError>> {
        let exchange = if request.len() > CALL_BYTES_MAX {
            let why = format!(
                "a request of {} bytes is larger than {CALL_BYTES_MAX}",
                request.len()
            );
            Err(CallError::NotDone(why))
        } else {
            match self.inner.peer(target) {
                Some(peer) => Ok(peer.calls.send(messages::call(service, request), deadline)),
                None => Err(CallError::NotDone(too_many())),
            }
        };
        async move {
            let frame = exchange?.await.map_err(|error| match error {
                PeerError::Unreachable(why) => CallError::NotDone(why),
                PeerError::Failed(why) => CallError::Unknown(why),
            })?;
            if frame.kind == Kind::Error {
                return Err(refused(messages::read_error(&frame)));
            }
            messages::read_call_reply(&frame).map_err(|error| CallError::Unknown(error.to_string()))
        }
        .boxed()
    }

    /// For what mistake of identity others refuse this broker, and what to do: as long as one does, or for some seconds after nobody was asked any more.
    #[must_use]
    pub fn mistake(&self) -> Option<String> {
        self.inner.mistakes.now()
    }

    /// Messages and bytes that are queued and in flight, over all peers.
    #[must_use]
    pub fn in_flight(&self) -> (usize, usize) {
        let peers = self.inner.peers.lock();
        let channels = peers.values().flat_map(|peer| peer.channels());
        channels.fold((0, 0), |(count, bytes), channel| {
            let used = channel.used();
            (count + used.count, bytes + used.bytes)
        })
    }

    /// Peers that are known.
    #[cfg(test)]
    pub(super) fn known(&self) -> usize {
        self.inner.peers.lock().len()
    }
}

fn too_many() -> String {
    format!("this broker has to do with {PEERS_MAX} peers already")
}

/// Lets go of peers that nobody uses: those that nobody has asked for in a while, and one more if there is no room.
fn let_go(peers: &mut BTreeMap<Key, Arc<Peer>>) {
    // Links and snapshots on their way hold a peer. Nobody gets a new hold of it meanwhile: the map is locked.
    let unused = |peer: &Arc<Peer>| Arc::strong_count(peer) == 1 && peer.is_idle();
    peers.retain(|_, peer| !unused(peer) || peer.asked.lock().elapsed() < UNUSED_MAX);
    if peers.len() < PEERS_MAX {
        return;
    }
    let candidates = peers.iter().filter(|(_, peer)| unused(peer));
    let longest = candidates.min_by_key(|(_, peer)| *peer.asked.lock());
    if let Some(key) = longest.map(|(key, _)| key.clone()) {
        peers.remove(&key);
    }
}

fn refused(error: Result<messages::ErrorReply, crate::format::FormatError>) -> CallError {
    match error {
        Ok(error) if error.code.is_not_done() || error.code == ErrorCode::Malformed => {
            CallError::NotDone(error.text)
        }
        Ok(error) => CallError::Unknown(error.text),
        Err(error) => CallError::Unknown(error.to_string()),
    }
}

impl Inner {
    /// The peer of `target`, which may be new; `None` when there are too many.
    fn peer(&self, target: &PeerTarget) -> Option<Arc<Peer>> {
        let key = match (target.node, target.broker) {
            (Some(node), _) => Key::Node(node),
            (None, Some(broker)) => Key::Broker(broker),
            (None, None) => Key::Address(target.address.clone()),
        };
        let mut peers = self.peers.lock();
        if let Some(peer) = peers.get(&key) {
            *peer.asked.lock() = Instant::now();
            if !target.address.is_empty() {
                target.address.clone_into(&mut peer.dialer.address.lock());
            }
            return Some(Arc::clone(peer));
        }
        let_go(&mut peers);
        if peers.len() >= PEERS_MAX {
            return None;
        }
        let dialer = Arc::new(Dialer {
            config: self.config.clone(),
            identity: Arc::clone(&self.identity),
            network: Arc::clone(&self.network),
            book: Arc::clone(&self.book),
            tls: self.tls.clone(),
            broker: target.broker,
            node: target.node,
            address: Mutex::new(target.address.clone()),
            failed_at: Mutex::default(),
            said: Mutex::default(),
            mistakes: self.mistakes.clone(),
        });
        let tasks = self.tasks.part();
        let channel = |lane| self.channel(lane, &dialer, &tasks);
        let peer = Arc::new(Peer {
            asked: Mutex::new(Instant::now()),
            appends: channel(WireLane::Appends),
            signals: channel(WireLane::Signals),
            snapshots: channel(WireLane::Snapshots),
            calls: channel(WireLane::Calls),
            _tasks: tasks,
            dialer,
        });
        peers.insert(key, Arc::clone(&peer));
        Some(peer)
    }

    fn channel(&self, lane: WireLane, dialer: &Arc<Dialer>, tasks: &TasksPart) -> Channel {
        let bounds = Bounds {
            count_max: self.config.in_flight_count_max,
            bytes_max: self.config.in_flight_bytes_max,
        };
        let (channel, queue) = Channel::new(lane, bounds);
        let driver = Arc::new(Driver {
            lane,
            dialer: Arc::clone(dialer),
            random: Arc::clone(&self.random),
            metrics: self.metrics.clone(),
            queue: tokio::sync::Mutex::new(queue),
            connects: AtomicU64::new(0),
        });
        tasks.supervise("peer-connection", self.config.retry_max, move || {
            Arc::clone(&driver).run()
        });
        channel
    }
}

/// One group's network.
struct GroupPeers {
    transport: PeerTransport,
    group: PlacementGroupId,
}

impl PeerNetwork for GroupPeers {
    fn link(&self, target: RaftNodeId, member: &Member, lane: Lane) -> Arc<dyn PeerLink> {
        let target = PeerTarget {
            broker: Some(member.broker),
            node: Some(target),
            address: member.address.clone(),
        };
        match self.transport.inner.peer(&target) {
            Some(peer) => Arc::new(Link {
                peer,
                group: self.group,
                appends: match lane {
                    Lane::Signals => WireLane::Signals,
                    Lane::Appends | Lane::Snapshots => WireLane::Appends,
                },
                metrics: self.transport.inner.metrics.clone(),
            }),
            None => Arc::new(NoRoom),
        }
    }
}

/// The link to a peer that is one too many.
struct NoRoom;

impl NoRoom {
    fn refuse<T: Send + 'static>() -> PeerReply<T> {
        std::future::ready(Err(PeerError::Unreachable(too_many()))).boxed()
    }
}

impl PeerLink for NoRoom {
    fn append(
        &self,
        _: crate::placement::AppendRequest,
        _: Duration,
    ) -> PeerReply<crate::placement::AppendReply> {
        Self::refuse()
    }

    fn vote(
        &self,
        _: crate::placement::VoteRequest,
        _: Duration,
    ) -> PeerReply<crate::placement::VoteReply> {
        Self::refuse()
    }

    fn pre_vote(
        &self,
        _: crate::placement::VoteRequest,
        _: Duration,
    ) -> PeerReply<crate::placement::VoteReply> {
        Self::refuse()
    }

    fn snapshot(
        &self,
        _: crate::placement::SnapshotRequest,
        _: Duration,
    ) -> PeerReply<crate::log::Vote> {
        Self::refuse()
    }

    fn transfer(
        &self,
        _: crate::placement::TransferRequest,
        _: Duration,
    ) -> PeerReply<crate::placement::TransferReply> {
        Self::refuse()
    }
}
