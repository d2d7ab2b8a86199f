//! The receiving side of a group's peers: what a transport hands in.
//!
//! Owns: [`PeerInbox`].
//! Not here: who may connect and with what bytes (the transport).
//! Spec: docs/protocols/placement.md (peers)

use super::acknowledged::lost;
use super::format::decode_image;
use super::heard::Heard;
use super::machine_store::MachineStore;
use super::peers::{
    AppendReply, AppendRequest, PeerError, SnapshotRequest, TransferReply, TransferRequest,
    VoteReply, VoteRequest,
};
use super::raft_types::{
    Snapshot, SnapshotMeta, Types, entry_to_raft, from_raft, to_raft, vote_from_raft, vote_to_raft,
};
use crate::log::{GroupLog, Vote};
use openraft::Raft;
use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, TransferLeaderError, TransferLeaderRequest,
    VoteRequest as RaftVoteRequest, VoteResponse,
};
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::{Mutant, mutant};
use tidelog_model::LogId;
use tokio::time::{Instant, timeout};

/// How long the disk may take to write a snapshot that the core has taken: as long as one may be on its way.
const ON_DISK_WITHIN: Duration = Duration::from_secs(120);

/// Hands messages of peers to one group. Clones share the group.
///
/// Appends of one leader are handed in one after the other, in the order they arrived.
#[derive(Clone)]
pub struct PeerInbox {
    raft: Raft<Types, MachineStore>,
    heard: Arc<Heard>,
    log: GroupLog,
    store: MachineStore,
}

fn stopped(error: impl std::fmt::Display) -> PeerError {
    PeerError::Failed(error.to_string())
}

fn vote_request(request: VoteRequest) -> RaftVoteRequest<Types> {
    let mut raft = RaftVoteRequest::new(vote_to_raft(request.vote), request.last.map(to_raft));
    raft.leadership_transfer = request.transfer;
    raft
}

fn vote_reply(response: &VoteResponse<Types>) -> VoteReply {
    VoteReply {
        vote: vote_from_raft(&response.vote),
        granted: response.vote_granted,
        last: response.last_log_id.map(from_raft),
    }
}

impl PeerInbox {
    pub(super) const fn new(
        raft: Raft<Types, MachineStore>,
        heard: Arc<Heard>,
        log: GroupLog,
        store: MachineStore,
    ) -> Self {
        Self {
            raft,
            heard,
            log,
            store,
        }
    }

    /// Appends; returns when the entries are on this replica's disk or refused.
    ///
    /// # Errors
    /// The group stopped, or an entry is not well formed.
    pub async fn append(&self, request: AppendRequest) -> Result<AppendReply, PeerError> {
        let (at, term) = (Instant::now(), request.vote.term);
        let committed = request.committed.map(|id| id.index);
        let (previous, acknowledged) = (request.previous, request.acknowledged);
        let entries: Result<Vec<_>, _> = request.entries.into_iter().map(entry_to_raft).collect();
        let raft = AppendEntriesRequest {
            vote: vote_to_raft(request.vote),
            prev_log_id: request.previous.map(to_raft),
            entries: entries.map_err(stopped)?,
            leader_commit: request.committed.map(to_raft),
        };
        let reply = match self.raft.append_entries(raft).await.map_err(stopped)? {
            AppendEntriesResponse::Success => AppendReply::Matched,
            AppendEntriesResponse::PartialSuccess(last) => {
                AppendReply::MatchedUpTo(last.map(from_raft))
            }
            AppendEntriesResponse::Conflict => {
                // The vote of who asks was taken: it leads now, and its word about what this replica acknowledged to it counts. Not so here, where
                // nothing is: one that was dropped on purpose and is made anew under its old id has no vote yet that a leader of then, which has not
                // heard of it, would be refused with.
                let told = acknowledged.filter(|_| lost(previous, acknowledged));
                if let Some(upto) = told.filter(|_| self.knows_members()) {
                    self.has_lost(upto).await;
                }
                AppendReply::Conflict
            }
            AppendEntriesResponse::HigherVote(vote) => {
                return Ok(AppendReply::Newer(vote_from_raft(&vote)));
            }
        };
        self.heard.note(at, term, committed);
        Ok(reply)
    }

    /// Damage: what is here is less than what others count on. Returns when it is noted durably, before the leader is answered.
    async fn has_lost(&self, acknowledged: LogId) {
        if self.heard.note_lost() {
            let log = self.log.clone();
            // Touches the disk. If it could not be noted, the next start is told again.
            let told = tidelog_env::blocking(move || log.has_lost(acknowledged)).await;
            if let Err(error) = told {
                tracing::error!("what this replica has lost could not be noted: {error}");
            }
        }
    }

    /// A replica that knows no members holds nothing: it was not set up, or starts anew in a group that it was in before. Its vote could make
    /// a leader of one that lacks what others acknowledged. So could that of one that has lost some of it.
    fn check_taken_in(&self) -> Result<(), PeerError> {
        if mutant(Mutant::EmptyReplicaVotes) {
            return Ok(());
        }
        if self.heard.has_lost() {
            let why = "this replica has lost what it had acknowledged";
            return Err(PeerError::Failed(why.to_owned()));
        }
        let why = || PeerError::Failed("this replica is not in the group yet".to_owned());
        self.knows_members().then_some(()).ok_or_else(why)
    }

    /// Whether this replica knows members of the group, from its log or a checkpoint.
    fn knows_members(&self) -> bool {
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let mut known = metrics.membership_config.membership().nodes();
        known.next().is_some()
    }

    /// Votes; a granted vote is on disk when it returns.
    ///
    /// # Errors
    /// The group stopped.
    pub async fn vote(&self, request: VoteRequest) -> Result<VoteReply, PeerError> {
        self.check_taken_in()?;
        let response = self
            .raft
            .vote(vote_request(request))
            .await
            .map_err(stopped)?;
        Ok(vote_reply(&response))
    }

    /// Says whether a vote would be granted.
    ///
    /// # Errors
    /// The group stopped.
    pub async fn pre_vote(&self, request: VoteRequest) -> Result<VoteReply, PeerError> {
        self.check_taken_in()?;
        let response = self
            .raft
            .pre_vote(vote_request(request))
            .await
            .map_err(stopped)?;
        Ok(vote_reply(&response))
    }

    /// Installs a snapshot; it, or the entries that it stands for, are on disk when this returns the vote of who sent it.
    ///
    /// # Errors
    /// The image is not well formed, it took too long, or the group stopped.
    pub async fn snapshot(&self, request: SnapshotRequest) -> Result<Vote, PeerError> {
        let image = decode_image(&request.image).map_err(stopped)?;
        let last = image.last;
        let meta = SnapshotMeta {
            last_log_id: Some(to_raft(image.last)),
            last_membership: image.membership,
        };
        let snapshot = Snapshot {
            meta,
            snapshot: image.state,
        };
        let response = self
            .raft
            .install_full_snapshot(vote_to_raft(request.vote), snapshot)
            .await
            .map_err(stopped)?;
        let answered = vote_from_raft(&response.vote);
        if answered == request.vote {
            self.has_on_disk(last).await?;
        }
        Ok(answered)
    }

    /// Waits until what a snapshot up to `last` brings is on disk. The core answers one of which it needs nothing at once, though the entries may be on their way to the
    /// disk yet; that it keeps the answer to one that is sent again behind the first is only the order of its queue. The answer is an acknowledgement: a crash after one that
    /// came too early would make this replica look as if it had lost what it never had.
    async fn has_on_disk(&self, last: LogId) -> Result<(), PeerError> {
        let mut checkpoint = self.store.watch_checkpoint();
        let is_there = async {
            if *checkpoint.borrow() >= Some(last)
                || self.log.has_durably(last).await.map_err(stopped)?
            {
                return Ok(());
            }
            let written = checkpoint.wait_for(|at| *at >= Some(last)).await;
            written.map(|_| ()).map_err(stopped)
        };
        let waited = timeout(ON_DISK_WITHIN, is_there).await;
        waited.map_err(|_| PeerError::Failed("the disk takes too long".to_owned()))?
    }

    /// Takes note of who shall lead next; if it is this replica, it campaigns.
    ///
    /// # Errors
    /// The group stopped.
    pub async fn transfer(&self, request: TransferRequest) -> Result<TransferReply, PeerError> {
        let raft = TransferLeaderRequest::new(
            vote_to_raft(request.from),
            request.to.get(),
            request.last.map(to_raft),
        );
        Ok(
            match self
                .raft
                .handle_transfer_leader(raft)
                .await
                .map_err(stopped)?
            {
                Ok(()) => TransferReply::Accepted,
                Err(TransferLeaderError::VoteChanged { actual, .. }) => {
                    TransferReply::VoteChanged(vote_from_raft(&actual))
                }
                Err(TransferLeaderError::LogNotFlushed { actual, .. }) => {
                    TransferReply::Behind(actual.map(from_raft))
                }
            },
        )
    }
}
