//! openraft's type configuration for placement groups, and the way between its types and ours.
//!
//! Owns: [`Types`], [`Member`], [`Outcome`], [`Reply`], conversions of log ids, votes and entries.
//! Not here: what openraft does with them.
//! Spec: docs/formats/group-entries.md (which entry becomes which frame)

use super::contract::Command;
use super::format::{FormatError, decode_membership, encode_membership};
use super::in_flight::Slot;
use crate::log::{EntryKind, LogEntry, Vote};
use bytes::Bytes;
use openraft::raft::responder::Responder;
use openraft::vote::leader_id_std::CommittedLeaderId;
use openraft::{EntryPayload, OptionalSend, RaftTypeConfig};
use parking_lot::Mutex;
use std::any::Any;
use std::fmt;
use std::io;
use tidelog_model::{LogId, LogIndex, NodeId, RaftNodeId, Summed, Term};
use tokio::sync::oneshot;

/// A replica of a group: the broker it runs on, and where its peers reach it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Member {
    /// The broker.
    pub broker: NodeId,
    /// `host:port` of the broker's peer listener.
    pub address: String,
}

/// openraft's types for every group. One leader per term (`leader_id_std`), because clients see the term as leader epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Types;

pub(super) type RaftLeaderId = openraft::impls::leader_id_std::LeaderId<u64, u64>;
pub(super) type RaftLogId = openraft::LogId<CommittedLeaderId<u64>>;
pub(super) type RaftVote = openraft::impls::Vote<RaftLeaderId>;
pub(super) type RaftPayload = EntryPayload<Command, u64, Member>;
pub(super) type RaftEntry = openraft::impls::Entry<CommittedLeaderId<u64>, RaftPayload>;
pub(super) type RaftMembership = openraft::Membership<u64, Member>;
pub(super) type StoredMembership = openraft::StoredMembership<CommittedLeaderId<u64>, u64, Member>;
pub(super) type SnapshotMeta = openraft::SnapshotMeta<CommittedLeaderId<u64>, u64, Member>;
pub(super) type Snapshot = openraft::Snapshot<CommittedLeaderId<u64>, u64, Member, Bytes>;

impl RaftTypeConfig for Types {
    type D = Command;
    type R = Outcome;
    type NodeId = u64;
    type Node = Member;
    type Term = u64;
    type LeaderId = RaftLeaderId;
    type Vote = RaftVote;
    type Payload = RaftPayload;
    type Entry = RaftEntry;
    type AsyncRuntime = openraft::impls::TokioRuntime;
    type Responder<T>
        = Reply<T>
    where
        T: OptionalSend + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: OptionalSend + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

/// A machine's outcome on its way through openraft, which must not know its type: one code of the core serves every machine.
pub(super) struct Outcome(Mutex<Option<Box<dyn Any + Send>>>);

impl Outcome {
    /// Of an entry without a command.
    pub(super) fn none() -> Self {
        Self(Mutex::new(None))
    }

    pub(super) fn new<T: Send + 'static>(value: T) -> Self {
        Self(Mutex::new(Some(Box::new(value))))
    }

    /// The value, if it is a `T`.
    pub(super) fn take<T: Send + 'static>(self) -> Option<T> {
        self.0.into_inner()?.downcast().ok().map(|value| *value)
    }
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Outcome")
    }
}

/// Where the core leaves a proposal's result. Holds the proposal's slot until then; dropped without a result, the
/// proposer learns that the group stopped.
pub(super) struct Reply<T> {
    to: oneshot::Sender<T>,
    slot: Slot,
}

impl<T> Reply<T> {
    pub(super) fn new(slot: Slot) -> (Self, oneshot::Receiver<T>) {
        let (to, from) = oneshot::channel();
        (Self { to, slot }, from)
    }
}

impl<T: OptionalSend + 'static> Responder<Types, T> for Reply<T> {
    fn on_complete(self, result: T) {
        // The slot first: a proposer that was waiting for this answer finds room.
        drop(self.slot);
        // A proposer that gave up waiting is no error.
        let _ = self.to.send(result);
    }
}

pub(super) fn to_raft(id: LogId) -> RaftLogId {
    RaftLogId {
        leader_id: CommittedLeaderId::new(id.term.get()),
        index: id.index.get(),
    }
}

pub(super) fn from_raft(id: RaftLogId) -> LogId {
    LogId {
        term: Term::new(id.leader_id.term),
        index: LogIndex::new(id.index),
    }
}

pub(super) fn vote_to_raft(vote: Vote) -> RaftVote {
    RaftVote {
        leader_id: RaftLeaderId {
            term: vote.term.get(),
            voted_for: vote.node.get(),
        },
        committed: vote.committed,
    }
}

pub(super) fn vote_from_raft(vote: &RaftVote) -> Vote {
    Vote {
        term: Term::new(vote.leader_id.term),
        node: RaftNodeId::new(vote.leader_id.voted_for),
        committed: vote.committed,
    }
}

/// The frame of an entry. Payload bytes are shared, not copied.
pub(super) fn entry_from_raft(entry: RaftEntry) -> Result<LogEntry, FormatError> {
    let id = from_raft(entry.log_id);
    Ok(match entry.payload {
        EntryPayload::Blank => LogEntry {
            id,
            kind: EntryKind::Blank,
            dir: Bytes::new(),
            body: Summed::default(),
        },
        EntryPayload::Normal(command) => LogEntry {
            id,
            kind: EntryKind::Command,
            dir: command.dir,
            body: command.body,
        },
        EntryPayload::Membership(membership) => LogEntry {
            id,
            kind: EntryKind::Membership,
            dir: encode_membership(&membership)?,
            body: Summed::default(),
        },
    })
}

/// The entry of a frame.
pub(super) fn entry_to_raft(entry: LogEntry) -> io::Result<RaftEntry> {
    let refused = |why: &str| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("entry {}: {why}", entry.id),
        )
    };
    let payload = match entry.kind {
        EntryKind::Blank if entry.dir.is_empty() && entry.body.is_empty() => EntryPayload::Blank,
        EntryKind::Blank => return Err(refused("a blank entry with bytes")),
        EntryKind::Command => EntryPayload::Normal(Command {
            dir: entry.dir,
            body: entry.body,
        }),
        EntryKind::Membership if entry.body.is_empty() => EntryPayload::Membership(
            decode_membership(&entry.dir).map_err(|error| refused(&error.to_string()))?,
        ),
        EntryKind::Membership => return Err(refused("a membership entry with a body")),
    };
    Ok(RaftEntry {
        log_id: to_raft(entry.id),
        payload,
    })
}
