//! A group that records what reaches it, and answers when it is allowed to.

use super::*;
use ::futures::FutureExt;
use tokio::sync::watch;

/// Records appends in the order in which they begin.
#[derive(Clone)]
pub(super) struct Recorder {
    seen: Arc<Mutex<Vec<u64>>>,
    pub(super) snapshots: Arc<Mutex<Vec<Bytes>>>,
    open: Arc<watch::Sender<bool>>,
    /// A queue of one place that appends wait for, as they do for openraft's.
    narrow: Option<tokio::sync::mpsc::Sender<u64>>,
}

impl Recorder {
    pub(super) fn new() -> Self {
        Self {
            seen: Arc::default(),
            snapshots: Arc::default(),
            open: Arc::new(watch::channel(true).0),
            narrow: None,
        }
    }

    /// Appends go through a queue with one place that is emptied slowly; what leaves it counts as seen.
    pub(super) fn narrow() -> Self {
        let (queue, mut incoming) = tokio::sync::mpsc::channel(1);
        let recorder = Self {
            narrow: Some(queue),
            ..Self::new()
        };
        let seen = Arc::clone(&recorder.seen);
        tokio::spawn(async move {
            while let Some(index) = incoming.recv().await {
                seen.lock().push(index);
                for _ in 0..index % 7 {
                    tokio::task::yield_now().await;
                }
            }
        });
        recorder
    }

    /// Nothing is answered until [`Recorder::open`].
    pub(super) fn hold(&self) {
        self.open.send_replace(false);
    }

    pub(super) fn open(&self) {
        self.open.send_replace(true);
    }

    pub(super) fn seen(&self) -> Vec<u64> {
        self.seen.lock().clone()
    }

    fn later<T: Send + 'static>(&self, reply: T) -> Receiving<T> {
        let mut open = self.open.subscribe();
        async move {
            open.wait_for(|open| *open).await.expect("the test goes on");
            Ok(reply)
        }
        .boxed()
    }
}

/// The index that makes the recorder panic, and the one that it refuses.
pub(super) const PANICS: u64 = 666;
pub(super) const STOPPED: u64 = 777;

impl PeerReceiver for Recorder {
    fn append(&self, request: AppendRequest) -> Receiving<AppendReply> {
        let last = request.entries.last().map(|entry| entry.id);
        let index = last.map_or(0, |id| id.index.get());
        let (seen, narrow) = (Arc::clone(&self.seen), self.narrow.clone());
        let reply = self.later(AppendReply::MatchedUpTo(last));
        async move {
            assert_ne!(index, PANICS, "as asked");
            if index == STOPPED {
                return Err(PeerError::Failed("the group stopped".to_owned()));
            }
            match narrow {
                Some(queue) => queue.send(index).await.expect("it is emptied"),
                None => seen.lock().push(index),
            }
            reply.await
        }
        .boxed()
    }

    fn vote(&self, request: VoteRequest) -> Receiving<VoteReply> {
        self.later(VoteReply {
            vote: request.vote,
            granted: true,
            last: request.last,
        })
    }

    fn pre_vote(&self, request: VoteRequest) -> Receiving<VoteReply> {
        self.later(VoteReply {
            vote: request.vote,
            granted: false,
            last: None,
        })
    }

    fn snapshot(&self, request: SnapshotRequest) -> Receiving<Vote> {
        self.snapshots.lock().push(request.image);
        self.later(request.vote)
    }

    fn transfer(&self, request: TransferRequest) -> Receiving<TransferReply> {
        self.later(TransferReply::Behind(request.last))
    }
}
