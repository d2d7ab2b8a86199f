//! One replica as another reaches it: placement's messages over the channels to its broker.
//!
//! Owns: [`Peer`] (the channels of one broker), [`Link`] (one group's use of them), sending a snapshot in chunks.
//! Not here: connections (`drive.rs`), bytes (`messages.rs`).
//! Spec: docs/protocols/peer.md (messages, snapshots)

use super::channel::{Channel, Exchange};
use super::dial::Dialer;
use super::frame::{Frame, Kind, Message, WireLane};
use super::limits::{CHUNK_BYTES, CHUNK_WINDOW};
use super::messages::{self, SnapshotBegin};
use super::metrics::PeerMetrics;
use crate::format::FormatError;
use crate::log::Vote;
use crate::placement::{
    AppendReply, AppendRequest, PeerError, PeerLink, PeerReply, SnapshotRequest, TransferReply,
    TransferRequest, VoteReply, VoteRequest,
};
use bytes::Bytes;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use std::hash::Hasher;
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::TasksPart;
use tidelog_model::PlacementGroupId;
use tokio::time::Instant;

/// One broker and the channels to it, shared by all groups.
pub(super) struct Peer {
    /// When somebody last asked for it.
    pub(super) asked: Mutex<Instant>,
    /// Its connections; they end when it is dropped.
    pub(super) _tasks: TasksPart,
    pub(super) dialer: Arc<Dialer>,
    pub(super) appends: Channel,
    pub(super) signals: Channel,
    pub(super) snapshots: Channel,
    pub(super) calls: Channel,
}

impl Peer {
    pub(super) fn channels(&self) -> [&Channel; 4] {
        [&self.appends, &self.signals, &self.snapshots, &self.calls]
    }

    /// Whether nothing is queued or in flight.
    pub(super) fn is_idle(&self) -> bool {
        let mut channels = self.channels().into_iter();
        channels.all(|channel| channel.used().count == 0)
    }
}

/// One group's replica on a peer.
pub(super) struct Link {
    pub(super) peer: Arc<Peer>,
    pub(super) group: PlacementGroupId,
    /// Where appends go: signals carry those without entries.
    pub(super) appends: WireLane,
    pub(super) metrics: PeerMetrics,
}

/// The reply, if it is not an error of the peer's.
pub(super) fn accept(frame: Frame) -> Result<Frame, PeerError> {
    if frame.kind != Kind::Error {
        return Ok(frame);
    }
    let error = messages::read_error(&frame).map_err(unreadable)?;
    Err(if error.code.is_not_done() {
        PeerError::Unreachable(error.text)
    } else {
        PeerError::Failed(error.text)
    })
}

fn unreadable(error: FormatError) -> PeerError {
    PeerError::Failed(format!("the peer's reply cannot be read: {error}"))
}

fn reply<T: Send + 'static>(
    exchange: Exchange,
    read: fn(&Frame) -> Result<T, FormatError>,
) -> PeerReply<T> {
    exchange
        .map(move |frame| read(&accept(frame?)?).map_err(unreadable))
        .boxed()
}

impl PeerLink for Link {
    fn append(&self, request: AppendRequest, deadline: Duration) -> PeerReply<AppendReply> {
        let message = messages::append(self.group, request);
        let channel = match self.appends {
            WireLane::Signals => &self.peer.signals,
            _ => &self.peer.appends,
        };
        reply(channel.send(message, deadline), messages::read_append_reply)
    }

    fn vote(&self, request: VoteRequest, deadline: Duration) -> PeerReply<VoteReply> {
        let message = messages::vote(Kind::Vote, self.group, &request);
        self.signal(message, deadline, messages::read_vote_reply)
    }

    fn pre_vote(&self, request: VoteRequest, deadline: Duration) -> PeerReply<VoteReply> {
        let message = messages::vote(Kind::PreVote, self.group, &request);
        self.signal(message, deadline, messages::read_vote_reply)
    }

    fn snapshot(&self, request: SnapshotRequest, deadline: Duration) -> PeerReply<Vote> {
        let sending = SnapshotSending {
            peer: Arc::clone(&self.peer),
            group: self.group,
            metrics: self.metrics.clone(),
            request,
            until: Instant::now() + deadline,
        };
        async move { sending.run().await }.boxed()
    }

    fn transfer(&self, request: TransferRequest, deadline: Duration) -> PeerReply<TransferReply> {
        let message = messages::transfer(self.group, &request);
        self.signal(message, deadline, messages::read_transfer_reply)
    }
}

impl Link {
    fn signal<T: Send + 'static>(
        &self,
        message: Message,
        deadline: Duration,
        read: fn(&Frame) -> Result<T, FormatError>,
    ) -> PeerReply<T> {
        reply(self.peer.signals.send(message, deadline), read)
    }
}

/// One snapshot on its way: begin, the chunks that are missing, end.
struct SnapshotSending {
    peer: Arc<Peer>,
    group: PlacementGroupId,
    metrics: PeerMetrics,
    request: SnapshotRequest,
    until: Instant,
}

impl SnapshotSending {
    async fn run(self) -> Result<Vote, PeerError> {
        let begin = self.begin();
        let message = messages::snapshot_begin(self.group, &begin);
        let have = self.exchange(message, messages::read_have).await?;
        if have > begin.bytes {
            let why = format!("the peer has {have} bytes of a snapshot of {}", begin.bytes);
            return Err(PeerError::Failed(why));
        }
        self.metrics.snapshot_bytes_resumed.inc_by(have);
        let image = self.request.image.clone();
        let held = usize::try_from(have).unwrap_or(image.len());
        let chunks = (held..image.len()).step_by(CHUNK_BYTES).map(|at| {
            let end = at.saturating_add(CHUNK_BYTES).min(image.len());
            self.chunk(begin.id, at, image.slice(at..end))
        });
        stream::iter(chunks)
            .buffered(CHUNK_WINDOW)
            .try_for_each(|()| std::future::ready(Ok(())))
            .await?;
        let end = messages::snapshot_end(self.group, self.request.vote, begin.id);
        self.exchange(end, messages::read_snapshot_end_reply).await
    }

    /// The id is a hash of the bytes: the same image gets the same id, so that a second try goes on after the first.
    fn begin(&self) -> SnapshotBegin {
        let image = &self.request.image;
        let mut hasher = std::hash::DefaultHasher::new();
        hasher.write(image);
        SnapshotBegin {
            vote: self.request.vote,
            id: hasher.finish(),
            bytes: u64::try_from(image.len()).unwrap_or(u64::MAX),
            crc: crc32c::crc32c(image),
        }
    }

    /// Queued before it returns, so that chunks leave in order.
    fn chunk(&self, id: u64, at: usize, bytes: Bytes) -> PeerReply<()> {
        let begins = u64::try_from(at).unwrap_or(u64::MAX);
        let ends = begins.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        let message = messages::snapshot_chunk(self.group, id, begins, bytes);
        let held = self.exchange(message, messages::read_have);
        async move {
            match held.await? {
                have if have == ends => Ok(()),
                have => Err(PeerError::Failed(format!(
                    "the peer has {have} bytes instead of {ends}"
                ))),
            }
        }
        .boxed()
    }

    fn exchange<T: Send + 'static>(
        &self,
        message: Message,
        read: fn(&Frame) -> Result<T, FormatError>,
    ) -> PeerReply<T> {
        let left = self.until.saturating_duration_since(Instant::now());
        reply(self.peer.snapshots.send(message, left), read)
    }
}
