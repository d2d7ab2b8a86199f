//! What a transport between the replicas of a group implements, in placement's own words.
//!
//! Owns: [`PeerNetwork`], [`PeerLink`], the messages, and [`NoPeers`], the network of a one-voter group.
//! Not here: bytes on the wire (the transport), openraft's types (`peer_client.rs` sends, `peer_inbox.rs` receives).
//! Spec: docs/protocols/placement.md (peers)

use super::raft_types::Member;
use crate::log::{LogEntry, Vote};
use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt};
use std::sync::Arc;
use std::time::Duration;
use tidelog_model::{LogId, RaftNodeId};

/// Purpose of a link. Each has its own connection, so that a large append or a snapshot does not delay a sign of life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Entries.
    Appends,
    /// Heartbeats, votes, leadership transfers.
    Signals,
    /// Snapshots.
    Snapshots,
}

/// Makes links to the other replicas of one group.
pub trait PeerNetwork: Send + Sync + 'static {
    /// A link to `target`; connecting may wait until the first message.
    fn link(&self, target: RaftNodeId, member: &Member, lane: Lane) -> Arc<dyn PeerLink>;
}

/// A reply that is on its way. Dropping it leaves open whether the peer acts on the message.
pub type PeerReply<T> = BoxFuture<'static, Result<T, PeerError>>;

/// One replica, as another one reaches it.
///
/// A reply arrives within `deadline` or is an error. What cannot be reached is an error, never an assumed answer.
pub trait PeerLink: Send + Sync + 'static {
    /// Sends entries or a heartbeat. Appends reach the peer in the order of the calls; the caller keeps a few in flight.
    fn append(&self, request: AppendRequest, deadline: Duration) -> PeerReply<AppendReply>;
    /// Asks for a vote.
    fn vote(&self, request: VoteRequest, deadline: Duration) -> PeerReply<VoteReply>;
    /// Asks whether a vote would be granted; changes nothing at the peer.
    fn pre_vote(&self, request: VoteRequest, deadline: Duration) -> PeerReply<VoteReply>;
    /// Sends a snapshot; the reply comes when it is installed. The peer's vote is returned.
    fn snapshot(&self, request: SnapshotRequest, deadline: Duration) -> PeerReply<Vote>;
    /// Tells the peer who shall lead next.
    fn transfer(&self, request: TransferRequest, deadline: Duration) -> PeerReply<TransferReply>;
}

/// Why a message has no reply. The peer may have acted on it, except after [`PeerError::Unreachable`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// The peer was not reached; waits grow between attempts.
    #[error("the peer is unreachable: {0}")]
    Unreachable(String),
    /// The connection broke or the peer stopped; tried again soon.
    #[error("the exchange with the peer failed: {0}")]
    Failed(String),
}

/// Entries from a leader, or none: a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppendRequest {
    /// The leader's vote.
    pub vote: Vote,
    /// The entry before the first of `entries`.
    pub previous: Option<LogId>,
    /// What the leader knows to be committed.
    pub committed: Option<LogId>,
    /// What the follower has acknowledged to this leader, as that knew when the message left.
    pub acknowledged: Option<LogId>,
    /// The entries, without a gap.
    pub entries: Vec<LogEntry>,
}

/// A follower's answer to an append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppendReply {
    /// Everything is on the follower's disk.
    Matched,
    /// Only entries up to here are.
    MatchedUpTo(Option<LogId>),
    /// `previous` is not in the follower's log.
    Conflict,
    /// The follower has seen a newer vote.
    Newer(Vote),
}

/// A candidate's question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VoteRequest {
    /// The vote it asks for.
    pub vote: Vote,
    /// Its last entry.
    pub last: Option<LogId>,
    /// The leader itself asked it to campaign: leases do not count.
    pub transfer: bool,
}

/// The answer to a candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VoteReply {
    /// The newest vote of who answers.
    pub vote: Vote,
    /// Whether the vote is (or would be) granted.
    pub granted: bool,
    /// The last entry of who answers.
    pub last: Option<LogId>,
}

/// A checkpoint for a replica whose missing entries are gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotRequest {
    /// The leader's vote.
    pub vote: Vote,
    /// A checkpoint image (docs/formats/group-entries.md).
    pub image: Bytes,
}

/// The leader hands over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferRequest {
    /// The leader's vote.
    pub from: Vote,
    /// Who shall lead.
    pub to: RaftNodeId,
    /// What it must have on disk first.
    pub last: Option<LogId>,
}

/// The answer to a hand-over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransferReply {
    /// Taken note of.
    Accepted,
    /// The peer has seen another vote.
    VoteChanged(Vote),
    /// The peer's log is not that far.
    Behind(Option<LogId>),
}

/// The network of a group whose only replica this is: nobody is reachable.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoPeers;

impl NoPeers {
    fn unreachable<T: Send + 'static>() -> PeerReply<T> {
        std::future::ready(Err(PeerError::Unreachable(
            "this broker runs without peers".to_owned(),
        )))
        .boxed()
    }
}

impl PeerNetwork for NoPeers {
    fn link(&self, _target: RaftNodeId, _member: &Member, _lane: Lane) -> Arc<dyn PeerLink> {
        Arc::new(Self)
    }
}

impl PeerLink for NoPeers {
    fn append(&self, _request: AppendRequest, _deadline: Duration) -> PeerReply<AppendReply> {
        Self::unreachable()
    }

    fn vote(&self, _request: VoteRequest, _deadline: Duration) -> PeerReply<VoteReply> {
        Self::unreachable()
    }

    fn pre_vote(&self, _request: VoteRequest, _deadline: Duration) -> PeerReply<VoteReply> {
        Self::unreachable()
    }

    fn snapshot(&self, _request: SnapshotRequest, _deadline: Duration) -> PeerReply<Vote> {
        Self::unreachable()
    }

    fn transfer(&self, _request: TransferRequest, _deadline: Duration) -> PeerReply<TransferReply> {
        Self::unreachable()
    }
}
