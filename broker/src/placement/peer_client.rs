//! openraft's network over [`PeerNetwork`]: the sending side.
//!
//! Owns: [`PeerFactory`], [`PeerClient`]: conversions, the window of appends in flight, what is told of them and when, the end of a stream at the first refusal.
//! Not here: the transport (`peers.rs`), the receiving side (`peer_inbox.rs`).
//! Spec: docs/protocols/placement.md (peers)

use super::acknowledged::{Acknowledged, Before, Track};
use super::format::{Image, encode_image};
use super::peers::{
    AppendReply, AppendRequest, Lane, PeerError, PeerLink, PeerNetwork, SnapshotRequest,
    TransferReply, TransferRequest, VoteReply, VoteRequest,
};
use super::raft_types::{
    Member, RaftLogId, RaftVote, Snapshot, Types, entry_from_raft, from_raft, to_raft,
    vote_from_raft, vote_to_raft,
};
use bytes::Bytes;
use futures::{FutureExt, Stream, StreamExt, stream};
use openraft::OptionalSend;
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult,
    TransferLeaderError, TransferLeaderRequest, TransferLeaderResponse,
    VoteRequest as RaftVoteRequest, VoteResponse,
};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tidelog_env::{Mutant, mutant};
use tidelog_model::{RaftNodeId, Term};

/// Appends in flight per follower. On a LAN with a sync per append, deep pipelines lose throughput; two to four keep both
/// the wire and the follower's disk busy (consensus.md 1.3).
const APPEND_WINDOW: usize = 4;

type RpcError = RPCError<Types>;

/// Makes openraft's clients out of links.
pub(super) struct PeerFactory {
    network: Arc<dyn PeerNetwork>,
    acknowledged: Arc<Acknowledged>,
}

impl PeerFactory {
    pub(super) fn new(network: Arc<dyn PeerNetwork>, acknowledged: Arc<Acknowledged>) -> Self {
        Self {
            network,
            acknowledged,
        }
    }

    fn client(&self, target: u64, member: &Member, lane: Lane) -> PeerClient {
        let link = |lane| self.network.link(RaftNodeId::new(target), member, lane);
        PeerClient {
            lane: link(lane),
            signals: link(Lane::Signals),
            track: self.acknowledged.of(target),
        }
    }
}

impl RaftNetworkFactory<Types> for PeerFactory {
    type Network = PeerClient;

    async fn new_client(&mut self, target: u64, node: &Member) -> PeerClient {
        self.client(target, node, Lane::Appends)
    }

    async fn new_heartbeat_client(&mut self, target: u64, node: &Member) -> PeerClient {
        self.client(target, node, Lane::Signals)
    }

    async fn new_snapshot_client(&mut self, target: u64, node: &Member) -> PeerClient {
        self.client(target, node, Lane::Snapshots)
    }
}

/// One peer for one purpose. Votes and hand-overs go by the lane of signals, whatever the purpose.
pub(super) struct PeerClient {
    lane: Arc<dyn PeerLink>,
    signals: Arc<dyn PeerLink>,
    track: Arc<Track>,
}

fn rpc(error: PeerError) -> RpcError {
    match error {
        PeerError::Unreachable(_) => Unreachable::new(&error).into(),
        PeerError::Failed(_) => NetworkError::new(&error).into(),
    }
}

fn streaming(error: PeerError) -> StreamingError<Types> {
    match error {
        PeerError::Unreachable(_) => Unreachable::new(&error).into(),
        PeerError::Failed(_) => NetworkError::new(&error).into(),
    }
}

/// A snapshot as it is sent.
pub(super) fn snapshot_request(
    vote: &RaftVote,
    snapshot: Snapshot,
) -> Result<SnapshotRequest, PeerError> {
    let last = snapshot
        .meta
        .last_log_id
        .ok_or_else(|| PeerError::Failed("a snapshot of nothing".to_owned()))?;
    let image = Image {
        last: from_raft(last),
        membership: snapshot.meta.last_membership,
        state: snapshot.snapshot,
    };
    let image = encode_image(&image).map_err(|error| PeerError::Failed(error.to_string()))?;
    Ok(SnapshotRequest {
        vote: vote_from_raft(vote),
        image,
    })
}

/// What an append was about: to say what its answer means.
#[derive(Clone, Copy)]
struct Sent {
    term: Term,
    previous: Option<RaftLogId>,
    last: Option<RaftLogId>,
    /// What was known of the peer when the request left.
    before: Before,
}

impl Sent {
    fn answered(
        &self,
        track: &Track,
        reply: Result<AppendReply, PeerError>,
    ) -> Result<AppendReply, PeerError> {
        if mutant(Mutant::LostReplyAcknowledges) && matches!(reply, Err(PeerError::Failed(_))) {
            return Ok(AppendReply::Matched);
        }
        let between = (self.previous.map(from_raft), self.last.map(from_raft));
        track.answered(self.term, self.before, between, reply?)
    }
}

/// Up to where the follower has everything once it has matched this.
fn last_of(rpc: &AppendEntriesRequest<Types>) -> Option<RaftLogId> {
    rpc.entries
        .last()
        .map_or(rpc.prev_log_id, |entry| Some(entry.log_id))
}

/// The request in our words. Called right before it is handed to the link.
fn append_request(
    rpc: AppendEntriesRequest<Types>,
    track: &Track,
) -> Result<(AppendRequest, Sent), PeerError> {
    let vote = vote_from_raft(&rpc.vote);
    let before = track.before_sending(vote.term, !rpc.entries.is_empty())?;
    let previous = rpc.prev_log_id;
    let sent = Sent {
        term: vote.term,
        previous,
        last: last_of(&rpc),
        before,
    };
    let entries: Result<Vec<_>, _> = rpc.entries.into_iter().map(entry_from_raft).collect();
    let request = AppendRequest {
        vote,
        previous: previous.map(from_raft),
        committed: rpc.leader_commit.map(from_raft),
        acknowledged: before.acknowledged,
        entries: entries.map_err(|error| PeerError::Failed(error.to_string()))?,
    };
    Ok((request, sent))
}

fn append_response(reply: AppendReply) -> AppendEntriesResponse<Types> {
    match reply {
        AppendReply::Matched => AppendEntriesResponse::Success,
        AppendReply::MatchedUpTo(last) => AppendEntriesResponse::PartialSuccess(last.map(to_raft)),
        AppendReply::Conflict => AppendEntriesResponse::Conflict,
        AppendReply::Newer(vote) => AppendEntriesResponse::HigherVote(vote_to_raft(vote)),
    }
}

fn vote_request(rpc: &RaftVoteRequest<Types>) -> VoteRequest {
    VoteRequest {
        vote: vote_from_raft(&rpc.vote),
        last: rpc.last_log_id.map(from_raft),
        transfer: rpc.leadership_transfer,
    }
}

fn vote_response(asked: &RaftVote, reply: &VoteReply) -> VoteResponse<Types> {
    if mutant(Mutant::RefusalCountsAsVote) {
        return VoteResponse::new(*asked, reply.last.map(to_raft), true);
    }
    VoteResponse::new(
        vote_to_raft(reply.vote),
        reply.last.map(to_raft),
        reply.granted,
    )
}

/// A result of one append of a stream, and whether the stream ends with it.
type Streamed = (Result<StreamAppendResult<Types>, RpcError>, bool);

fn streamed(reply: AppendReply, previous: Option<RaftLogId>, last: Option<RaftLogId>) -> Streamed {
    // openraft counts a conflict without a previous entry as a bug of the follower; a peer's bug must not stop this process.
    if reply == AppendReply::Conflict && previous.is_none() {
        let error = PeerError::Failed("the peer refuses the beginning of the log".to_owned());
        return (Err(rpc(error)), true);
    }
    let partial = matches!(&reply, AppendReply::MatchedUpTo(upto) if upto.map(to_raft) != last);
    let result = append_response(reply).into_stream_result(previous, last);
    let ends = partial || result.is_err();
    (Ok(result), ends)
}

/// The last entries of the appends of a stream that openraft has handed out and not been told about, in order.
///
/// openraft settles all of them up to the log id that an answer matches, and takes the sending time of the last one for leases and read indexes. An
/// append without entries (it tells a new commit index) matches the same log id as the one in front of it. So the answer to one is kept back
/// while one behind it would be settled too; the answer to that stands for both.
#[derive(Default)]
struct Untold(Mutex<VecDeque<Option<RaftLogId>>>);

impl Untold {
    /// Called while the input gives out the append: before anything can be told of it.
    fn sent(&self, last: Option<RaftLogId>) {
        self.0.lock().push_back(last);
    }

    /// The first one is answered. Returns whether openraft may be told: whether the answer is not one to the next append, too.
    fn answered(&self, result: &Result<StreamAppendResult<Types>, RpcError>) -> bool {
        let mut untold = self.0.lock();
        untold.pop_front();
        match (result, untold.front()) {
            (Ok(Ok(matched)), Some(next)) => next > matched,
            _ => true,
        }
    }
}

impl RaftNetworkV2<Types> for PeerClient {
    type SnapshotData = Bytes;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RpcError> {
        let (request, sent) = append_request(request, &self.track).map_err(rpc)?;
        let reply = self.lane.append(request, option.soft_ttl()).await;
        sent.answered(&self.track, reply)
            .map(append_response)
            .map_err(rpc)
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, Result<StreamAppendResult<Types>, RpcError>>, RpcError>>
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
    {
        let deadline = option.soft_ttl();
        let untold = Arc::new(Untold::default());
        let handed_out = Arc::clone(&untold);
        let replies = input.map(move |request| {
            handed_out.sent(last_of(&request));
            match append_request(request, &self.track) {
                Err(error) => std::future::ready((Err(rpc(error)), true)).boxed(),
                Ok((request, sent)) => {
                    // Called here, in the order of the input; only the waiting overlaps.
                    let reply = self.lane.append(request, deadline);
                    let track = Arc::clone(&self.track);
                    let result = async move {
                        match sent.answered(&track, reply.await) {
                            Ok(reply) => streamed(reply, sent.previous, sent.last),
                            Err(error) => (Err(rpc(error)), true),
                        }
                    };
                    result.boxed()
                }
            }
        });
        let in_order = replies.buffered(APPEND_WINDOW);
        let told = in_order.filter_map(move |(result, ends)| {
            let tell = untold.answered(&result);
            std::future::ready(tell.then_some((result, ends)))
        });
        let until_refused = stream::unfold(Some(Box::pin(told)), |replies| async move {
            let mut replies = replies?;
            let (result, ends) = replies.next().await?;
            Some((result, (!ends).then_some(replies)))
        });
        let boxed: BoxStream<'s, _> = Box::pin(until_refused);
        Box::pin(std::future::ready(Ok(boxed)))
    }

    async fn vote(
        &mut self,
        request: RaftVoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RpcError> {
        let reply = self
            .signals
            .vote(vote_request(&request), option.soft_ttl())
            .await
            .map_err(rpc)?;
        Ok(vote_response(&request.vote, &reply))
    }

    async fn pre_vote(
        &mut self,
        request: RaftVoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RpcError> {
        let reply = self
            .signals
            .pre_vote(vote_request(&request), option.soft_ttl())
            .await
            .map_err(rpc)?;
        Ok(vote_response(&request.vote, &reply))
    }

    async fn full_snapshot(
        &mut self,
        vote: RaftVote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let last = snapshot.meta.last_log_id.map(from_raft);
        let request = snapshot_request(&vote, snapshot).map_err(streaming)?;
        let sent = request.vote;
        tokio::select! {
            closed = cancel => Err(closed.into()),
            reply = self.lane.snapshot(request, option.soft_ttl()) => {
                let answered = reply.map_err(streaming)?;
                if answered == sent {
                    self.track.installed(sent.term, last);
                }
                Ok(SnapshotResponse::new(vote_to_raft(answered)))
            }
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RpcError> {
        let ours = TransferRequest {
            from: vote_from_raft(request.from_leader()),
            to: RaftNodeId::new(*request.to_node_id()),
            last: request.last_log_id().copied().map(from_raft),
        };
        let reply = self
            .signals
            .transfer(ours, option.soft_ttl())
            .await
            .map_err(rpc)?;
        Ok(match reply {
            TransferReply::Accepted => Ok(()),
            TransferReply::VoteChanged(actual) => Err(TransferLeaderError::VoteChanged {
                expected: *request.from_leader(),
                actual: vote_to_raft(actual),
            }),
            TransferReply::Behind(actual) => Err(TransferLeaderError::LogNotFlushed {
                expected: request.last_log_id().copied(),
                actual: actual.map(to_raft),
            }),
        })
    }
}
