//! What openraft is told of appends that are under way together, and when.

use super::*;
use crate::placement::acknowledged::Acknowledged;
use crate::placement::peer_client::PeerFactory;
use crate::placement::raft_types::{RaftEntry, RaftVote, Types, to_raft, vote_to_raft};
use futures::{FutureExt, StreamExt, stream};
use openraft::EntryPayload;
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{AppendEntriesRequest, StreamAppendError};
use std::collections::VecDeque;
use tokio::sync::oneshot;

type Answer = oneshot::Sender<Result<AppendReply, PeerError>>;

/// A peer whose answers the test gives.
#[derive(Default)]
struct Asked(Mutex<VecDeque<Answer>>);

impl Asked {
    fn answer(&self, reply: Result<AppendReply, PeerError>) {
        let first = self.0.lock().pop_front().expect("an append is under way");
        first.send(reply).expect("it is waited for");
    }
}

struct Peer(Arc<Asked>);

impl PeerNetwork for Peer {
    fn link(&self, _target: RaftNodeId, _member: &Member, _lane: Lane) -> Arc<dyn PeerLink> {
        Arc::new(Self(Arc::clone(&self.0)))
    }
}

impl PeerLink for Peer {
    fn append(&self, _request: AppendRequest, _deadline: Duration) -> PeerReply<AppendReply> {
        let (answer, answered) = oneshot::channel();
        self.0.0.lock().push_back(answer);
        async move { answered.await.expect("an answer") }.boxed()
    }

    fn vote(&self, _request: VoteRequest, _deadline: Duration) -> PeerReply<VoteReply> {
        unreachable!("appends only")
    }

    fn pre_vote(&self, _request: VoteRequest, _deadline: Duration) -> PeerReply<VoteReply> {
        unreachable!("appends only")
    }

    fn snapshot(
        &self,
        _request: SnapshotRequest,
        _deadline: Duration,
    ) -> PeerReply<crate::log::Vote> {
        unreachable!("appends only")
    }

    fn transfer(&self, _request: TransferRequest, _deadline: Duration) -> PeerReply<TransferReply> {
        unreachable!("appends only")
    }
}

fn id(index: u64) -> LogId {
    LogId {
        term: Term::new(1),
        index: LogIndex::new(index),
    }
}

/// An append of the entries behind `previous` up to `last`: of none if that is the same.
fn request(previous: u64, last: u64) -> AppendEntriesRequest<Types> {
    let vote: RaftVote = vote_to_raft(crate::log::Vote {
        term: Term::new(1),
        node: RaftNodeId::new(1),
        committed: true,
    });
    let entries = (previous + 1..=last).map(|index| RaftEntry {
        log_id: to_raft(id(index)),
        payload: EntryPayload::Blank,
    });
    AppendEntriesRequest {
        vote,
        prev_log_id: Some(to_raft(id(previous))),
        entries: entries.collect(),
        leader_commit: None,
    }
}

/// What openraft was told: up to where the follower has everything, or how it ended.
type Told = Result<u64, &'static str>;

/// Sends `requests` at once, and gives `answers` one by one. Returns what was told after each of them.
async fn told(
    requests: Vec<AppendEntriesRequest<Types>>,
    answers: Vec<Result<AppendReply, PeerError>>,
) -> Vec<Vec<Told>> {
    let asked = Arc::new(Asked::default());
    let acknowledged = Arc::new(Acknowledged::new(GROUP));
    let mut factory = PeerFactory::new(Arc::new(Peer(Arc::clone(&asked))), acknowledged);
    let mut client = factory.new_client(2, &member(2)).await;
    let sent = requests.len();
    let input = stream::iter(requests).chain(stream::pending());
    let mut results = client
        .stream_append(Box::pin(input), RPCOption::new(WAIT))
        .await
        .expect("a stream");
    assert!(
        results.next().now_or_never().is_none(),
        "nothing is answered"
    );
    assert_eq!(asked.0.lock().len(), sent, "all are under way at once");
    let mut after_each = Vec::new();
    for answer in answers {
        asked.answer(answer);
        let mut now = Vec::new();
        while let Some(Some(result)) = results.next().now_or_never() {
            now.push(match result {
                Ok(Ok(matched)) => Ok(matched.expect("a log id").index),
                Ok(Err(StreamAppendError::Conflict(_))) => Err("conflict"),
                Ok(Err(StreamAppendError::HigherVote(_))) => Err("newer vote"),
                Err(_) => Err("no answer"),
            });
        }
        after_each.push(now);
    }
    after_each
}

/// Proves that the answer to an append is kept back while an append without entries is under way behind it, which openraft would take for answered, too (I4: a
/// lease or a read index would be newer than what the follower stands for); and that each answer is told at once where the next append has entries.
#[tokio::test]
async fn an_answer_is_no_answer_to_the_empty_append_behind_it() {
    let matched = || Ok(AppendReply::Matched);
    let appends = vec![request(0, 2), request(2, 2), request(2, 2), request(2, 3)];
    let seen = told(appends, vec![matched(), matched(), matched(), matched()]).await;
    assert_eq!(seen, [vec![], vec![], vec![Ok(2)], vec![Ok(3)]]);
    let appends = vec![request(0, 2), request(2, 4)];
    let seen = told(appends, vec![matched(), matched()]).await;
    assert_eq!(seen, [vec![Ok(2)], vec![Ok(4)]]);
}

/// Proves that what ends a stream is told, whatever is under way behind it: a part that is matched, a refusal, no answer; and also where an answer is kept back.
#[tokio::test]
async fn what_ends_a_stream_is_told_at_once() {
    let appends = || vec![request(0, 2), request(2, 2)];
    let part = AppendReply::MatchedUpTo(Some(id(1)));
    assert_eq!(told(appends(), vec![Ok(part)]).await, [vec![Ok(1)]]);
    for (reply, told_then) in [
        (Ok(AppendReply::Conflict), "conflict"),
        (Err(PeerError::Failed("no answer".to_owned())), "no answer"),
    ] {
        let seen = told(appends(), vec![reply.clone()]).await;
        assert_eq!(seen, [vec![Err(told_then)]]);
        let seen = told(appends(), vec![Ok(AppendReply::Matched), reply]).await;
        assert_eq!(seen, [vec![], vec![Err(told_then)]]);
    }
}
