//! One connection that was let in: requests in, replies out.
//!
//! Owns: what of one connection is in work, where each request goes, when the connection ends.
//! Not here: accepting (`listener.rs`), the handshake (`greeting.rs`).
//! Spec: docs/protocols/peer.md

use super::config::{PeerIdentity, PeerListenerConfig};
use super::frame::{Direction, Frame, Kind, Message, WireLane};
use super::groups::{CallServices, Caller, PeerGroups, PeerReceiver};
use super::hello::Hello;
use super::io::{FrameReader, ReadError, write_parts};
use super::limits::{
    APPENDS_IN_WORK_MAX, CALL_BYTES_MAX, REQUESTS_IN_WORK_MAX, STRANGER_FRAME_BYTES_MAX,
    WRITE_GATHER_BYTES,
};
use super::listener::Said;
use super::memory::FrameMemory;
use super::messages::{self, ErrorCode, ErrorReply};
use super::metrics::{LaneMetrics, PeerMetrics};
use super::ordered::Ordered;
use super::partial::Partials;
use super::presence::{Listened, Presence, Present};
use super::tls::PeerTls;
use super::waiting::Waiting;
use crate::intake::Hold;
use crate::placement::PeerError;
use futures::future::{BoxFuture, FutureExt};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::BoxStream;
use tidelog_model::PlacementGroupId;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// What all connections share.
pub(super) struct Shared {
    pub(super) config: PeerListenerConfig,
    pub(super) identity: Arc<PeerIdentity>,
    pub(super) groups: PeerGroups,
    pub(super) services: CallServices,
    pub(super) metrics: PeerMetrics,
    pub(super) memory: FrameMemory,
    pub(super) partials: Partials,
    pub(super) presence: Arc<Presence>,
    /// The connections of callers without a cluster.
    pub(super) strangers: Arc<Waiting>,
    pub(super) said: Said,
    pub(super) tls: PeerTls,
}

/// A reply on its way to the socket.
struct Reply {
    message: Message,
    correlation: u64,
}

/// What a request holds while it is in work.
type Held = (Hold, OwnedSemaphorePermit);

/// How a request is worked on: its reply, or why there is none.
type Working = BoxFuture<'static, Result<Message, ErrorReply>>;

impl Shared {
    /// There is no place for one more connection.
    pub(super) fn over_bound(&self, peer: SocketAddr) {
        self.metrics.connections_over_bound.inc();
        if self.said.may_say("connections") {
            tracing::warn!(
                %peer,
                connections_max = self.config.connections_max,
                "too many connections of brokers: new ones are closed at once"
            );
        }
    }
}

/// Serves a connection that was let in, until it ends.
pub(super) async fn run(
    shared: Arc<Shared>,
    peer: SocketAddr,
    stream: BoxStream,
    hello: Hello,
    present: Option<&Present>,
) {
    let Some(lane) = hello.lane else { return };
    let (read, write) = tokio::io::split(stream);
    let read = Listened::new(read, present);
    let in_work = match lane {
        WireLane::Appends => APPENDS_IN_WORK_MAX,
        _ => REQUESTS_IN_WORK_MAX,
    };
    let (replies, outgoing) = mpsc::channel(in_work);
    let counters = shared.metrics.lane(lane);
    let mut session = Session {
        frames: FrameReader::new(read, lane, Direction::Requests, shared.config.stall),
        places: Arc::new(Semaphore::new(in_work)),
        tasks: JoinSet::new(),
        ordered: BTreeMap::new(),
        counters: counters.clone(),
        replies,
        hello,
        lane,
        shared: Arc::clone(&shared),
    };
    let ended = tokio::select! {
        ended = session.receive() => ended,
        error = send(write, outgoing, shared.config.stall, &counters) => ReadError::Io(error),
    };
    report(&shared, peer, &session.hello, lane, &ended);
}

fn report(shared: &Shared, peer: SocketAddr, hello: &Hello, lane: WireLane, ended: &ReadError) {
    let (broker, lane) = (hello.from.broker, lane.name());
    match ended {
        ReadError::Closed => {}
        ReadError::Frame(error) => {
            shared.metrics.closed("garbage");
            if shared.said.may_say("frame") {
                tracing::warn!(%peer, %broker, lane, "what the peer sends cannot be read ({error}); its connection is closed");
            }
        }
        ReadError::Stalled => {
            shared.metrics.closed("stalled");
            if shared.said.may_say("stalled") {
                tracing::warn!(%peer, %broker, lane, "{ended}; the connection is closed");
            }
        }
        ReadError::Slow(_) => {
            shared.metrics.closed("slow");
            if shared.said.may_say("slow") {
                tracing::warn!(%peer, %broker, lane, "{ended}; the connection is closed");
            }
        }
        ReadError::Idle => {
            shared.metrics.closed("idle");
            tracing::debug!(%peer, %broker, lane, "{ended}; the connection is closed");
        }
        ReadError::Cut | ReadError::Io(_) => {
            shared.metrics.closed("broken");
            tracing::debug!(%peer, %broker, lane, "{ended}");
        }
    }
}

/// Writes replies as they come, until writing fails.
async fn send<W: AsyncWrite + Unpin>(
    mut stream: W,
    mut outgoing: mpsc::Receiver<Reply>,
    stall: Duration,
    counters: &LaneMetrics,
) -> std::io::Error {
    loop {
        let Some(first) = outgoing.recv().await else {
            return std::io::ErrorKind::BrokenPipe.into();
        };
        let mut next = Some(first);
        let mut parts = VecDeque::new();
        let (mut bytes, mut messages) = (0, 0);
        while let Some(reply) = next.take() {
            bytes += reply.message.frame_bytes();
            messages += 1;
            parts.extend(reply.message.into_parts(reply.correlation, 0));
            if bytes < WRITE_GATHER_BYTES {
                next = outgoing.try_recv().ok();
            }
        }
        if let Err(error) = write_parts(&mut stream, parts, stall).await {
            return error;
        }
        counters.sent(messages, bytes);
    }
}

struct Session<R> {
    frames: FrameReader<R>,
    places: Arc<Semaphore>,
    /// Aborted when the connection ends: nobody can be answered any more.
    tasks: JoinSet<()>,
    ordered: BTreeMap<PlacementGroupId, Ordered>,
    replies: mpsc::Sender<Reply>,
    counters: LaneMetrics,
    hello: Hello,
    lane: WireLane,
    shared: Arc<Shared>,
}

impl<R: AsyncRead + Unpin> Session<R> {
    /// Takes requests until the connection ends.
    async fn receive(&mut self) -> ReadError {
        loop {
            if let Err(ended) = self.receive_one().await {
                return ended;
            }
            self.reap();
        }
    }

    async fn receive_one(&mut self) -> Result<(), ReadError> {
        let prefix = self.frames.prefix(Some(self.shared.config.idle)).await?;
        // What has no room is not read.
        let (memory, frame) = if self.hello.from.cluster.is_none() {
            prefix
                .check_size(STRANGER_FRAME_BYTES_MAX)
                .map_err(ReadError::Frame)?;
            let mut memory = self.shared.memory.begin_for_stranger();
            let within = self.shared.config.handshake;
            let rest = timeout(within, self.frames.rest_within(prefix, &mut memory)).await;
            let frame = rest.map_err(|_| ReadError::Stalled)??;
            (memory, frame)
        } else {
            let bytes = prefix.rest_bytes();
            let mut memory = self.shared.memory.begin(self.lane, bytes);
            let frame = self.frames.rest_within(prefix, &mut memory).await?;
            (memory, frame)
        };
        self.counters.received(frame.bytes());
        let (correlation, group) = (frame.correlation, frame.group);
        let reply = match self.start(frame, memory) {
            Ok(None) => return Ok(()),
            Ok(Some(message)) => message,
            Err(error) => {
                if error.code == ErrorCode::Overloaded {
                    self.shared.metrics.overloaded.inc();
                }
                messages::error(group, &error)
            }
        };
        let reply = Reply {
            message: reply,
            correlation,
        };
        self.replies
            .send(reply)
            .await
            .map_err(|_| ReadError::Closed)
    }

    /// Starts a request; the reply, if there is one at once.
    fn start(&mut self, frame: Frame, memory: Hold) -> Result<Option<Message>, ErrorReply> {
        let group = frame.group;
        match frame.kind {
            Kind::Ping => {
                messages::read_ping(&frame)?;
                return Ok(Some(messages::ping(Kind::PingReply)));
            }
            Kind::SnapshotBegin | Kind::SnapshotChunk => {
                self.receiver(group)?;
                return self.snapshot_part(&frame).map(Some);
            }
            _ => {}
        }
        let place = Arc::clone(&self.places)
            .try_acquire_owned()
            .map_err(|_| overloaded())?;
        let held = (memory, place);
        match frame.kind {
            Kind::Append => self.append(&frame, held)?,
            Kind::Call => {
                let working = self.call(&frame)?;
                self.spawn(&frame, held, working);
            }
            _ => {
                let receiver = self.receiver(group)?;
                let working = self.working(&frame, receiver.as_ref())?;
                self.spawn(&frame, held, working);
            }
        }
        Ok(None)
    }

    fn receiver(&self, group: PlacementGroupId) -> Result<Arc<dyn PeerReceiver>, ErrorReply> {
        self.shared.groups.get(group).ok_or_else(|| {
            let broker = self.shared.identity.broker;
            let why = format!("placement group {group} is not on broker {broker}");
            ErrorReply::new(ErrorCode::UnknownGroup, why)
        })
    }

    fn append(&mut self, frame: &Frame, held: Held) -> Result<(), ErrorReply> {
        let receiver = self.receiver(frame.group)?;
        let request = messages::read_append(frame)?;
        let (group, correlation) = (frame.group, frame.correlation);
        let replies = self.replies.clone();
        let appending = receiver.append(request);
        let appending = guarded(self.shared.metrics.clone(), async move {
            Ok(messages::append_reply(
                group,
                &appending.await.map_err(stopped)?,
            ))
        });
        let work = async move {
            let message = appending
                .await
                .unwrap_or_else(|error| messages::error(group, &error));
            drop(held);
            let reply = Reply {
                message,
                correlation,
            };
            // The connection may be gone: then nobody waits for the reply.
            let _ = replies.send(reply).await;
        };
        let tasks = &mut self.tasks;
        let ordered = self
            .ordered
            .entry(group)
            .or_insert_with(|| Ordered::start(tasks));
        if ordered.push(work.boxed()) {
            Ok(())
        } else {
            Err(overloaded())
        }
    }

    fn snapshot_part(&self, frame: &Frame) -> Result<Message, ErrorReply> {
        let (group, sender) = (frame.group, self.hello.from.node);
        let partials = &self.shared.partials;
        if frame.kind == Kind::SnapshotBegin {
            let begin = messages::read_snapshot_begin(frame)?;
            let have = partials.begin(group, sender, &begin)?;
            return Ok(messages::have(Kind::SnapshotBeginReply, group, have));
        }
        let at = messages::read_snapshot_chunk(frame)?;
        let have = partials.chunk(group, sender, at, &frame.payload)?;
        Ok(messages::have(Kind::SnapshotChunkReply, group, have))
    }

    /// Votes, hand-overs, ends of snapshots.
    fn working(&self, frame: &Frame, receiver: &dyn PeerReceiver) -> Result<Working, ErrorReply> {
        let group = frame.group;
        Ok(match frame.kind {
            Kind::Vote => receiver
                .vote(messages::read_vote(frame)?)
                .map(move |reply| {
                    let reply = reply.map_err(stopped)?;
                    Ok(messages::vote_reply(Kind::VoteReply, group, &reply))
                })
                .boxed(),
            Kind::PreVote => receiver
                .pre_vote(messages::read_vote(frame)?)
                .map(move |reply| {
                    let reply = reply.map_err(stopped)?;
                    Ok(messages::vote_reply(Kind::PreVoteReply, group, &reply))
                })
                .boxed(),
            Kind::Transfer => receiver
                .transfer(messages::read_transfer(frame)?)
                .map(move |reply| Ok(messages::transfer_reply(group, &reply.map_err(stopped)?)))
                .boxed(),
            Kind::SnapshotEnd => self.install(frame, receiver)?,
            _ => {
                let why = "not a request";
                return Err(ErrorReply::new(ErrorCode::Malformed, why));
            }
        })
    }

    fn install(&self, frame: &Frame, receiver: &dyn PeerReceiver) -> Result<Working, ErrorReply> {
        let (group, sender) = (frame.group, self.hello.from.node);
        let (vote, id) = messages::read_snapshot_end(frame)?;
        let image = self.shared.partials.whole(group, sender, id)?;
        let installing = receiver.snapshot(crate::placement::SnapshotRequest { vote, image });
        let shared = Arc::clone(&self.shared);
        let working = async move {
            let installed = installing.await;
            shared.partials.done(group, sender, id);
            Ok(messages::snapshot_end_reply(
                group,
                installed.map_err(stopped)?,
            ))
        };
        Ok(working.boxed())
    }

    fn call(&self, frame: &Frame) -> Result<Working, ErrorReply> {
        let number = messages::read_call(frame)?;
        let Some(service) = self.shared.services.get(number) else {
            let why = format!(
                "broker {} has no service {number}",
                self.shared.identity.broker
            );
            return Err(ErrorReply::new(ErrorCode::UnknownService, why));
        };
        let ours = self.shared.identity.cluster();
        if !service.serves_strangers() && (ours.is_none() || ours != self.hello.from.cluster) {
            let why = format!(
                "service {number} of broker {} answers brokers of its own cluster only; one of the two is in none yet",
                self.shared.identity.broker
            );
            return Err(ErrorReply::new(ErrorCode::UnknownService, why));
        }
        let from = Caller {
            broker: self.hello.from.broker,
            node: self.hello.from.node,
            cluster: self.hello.from.cluster,
            deadline: deadline(frame),
        };
        let answering = service.call(from, frame.payload.clone().into_bytes());
        let working = answering.map(|answer| {
            if answer.len() > CALL_BYTES_MAX {
                let why = format!("an answer of {} bytes is too large", answer.len());
                return Err(ErrorReply::new(ErrorCode::Stopped, why));
            }
            Ok(messages::call_reply(answer))
        });
        Ok(working.boxed())
    }

    fn spawn(&mut self, frame: &Frame, held: Held, working: Working) {
        let (group, correlation, deadline) = (frame.group, frame.correlation, deadline(frame));
        let replies = self.replies.clone();
        let working = guarded(self.shared.metrics.clone(), working);
        self.tasks.spawn(async move {
            let late = || Err(ErrorReply::new(ErrorCode::Late, "the deadline has passed"));
            let done = timeout(deadline, working).await.unwrap_or_else(|_| late());
            let message = done.unwrap_or_else(|error| messages::error(group, &error));
            drop(held);
            let reply = Reply {
                message,
                correlation,
            };
            // The connection may be gone: then nobody waits for the reply.
            let _ = replies.send(reply).await;
        });
    }

    /// Forgets tasks that have ended. None of them panics: what they work on is guarded.
    fn reap(&mut self) {
        while self.tasks.try_join_next().is_some() {}
    }
}

/// A panic while a request is worked on is an error for its caller; the connection and the group's other requests go on.
async fn guarded(
    metrics: PeerMetrics,
    working: impl Future<Output = Result<Message, ErrorReply>> + Send,
) -> Result<Message, ErrorReply> {
    let caught = AssertUnwindSafe(working).catch_unwind().await;
    caught.unwrap_or_else(|_| {
        metrics.panics.inc();
        tracing::error!("answering a peer panicked");
        Err(ErrorReply::new(ErrorCode::Stopped, "answering panicked"))
    })
}

fn deadline(frame: &Frame) -> Duration {
    Duration::from_millis(u64::from(frame.deadline_ms))
}

fn overloaded() -> ErrorReply {
    ErrorReply::new(
        ErrorCode::Overloaded,
        "too many requests of this connection are in work",
    )
}

fn stopped(error: PeerError) -> ErrorReply {
    let (PeerError::Failed(why) | PeerError::Unreachable(why)) = error;
    ErrorReply::new(ErrorCode::Stopped, why)
}
