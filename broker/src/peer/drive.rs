//! The connection behind a channel: connects when there is something to send, multiplexes, notices a dead peer, tries again.
//!
//! Owns: [`Driver`]: the loop of one connection, correlation ids, what is in flight.
//! Not here: the queue (`channel.rs`), the handshake (`dial.rs`).
//! Spec: docs/protocols/peer.md (what a caller knows)

use super::channel::{Outgoing, Waiter};
use super::dial::Dialer;
use super::frame::{Direction, Frame, Kind, WireLane};
use super::io::{FrameReader, write_parts};
use super::limits::WRITE_GATHER_BYTES;
use super::messages;
use super::metrics::{LaneMetrics, OpenConnection, PeerMetrics};
use crate::placement::PeerError;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidelog_env::{BoxStream, Random};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};

/// Correlation id of pings, which wait for any byte rather than for their reply.
const PING_ID: u64 = 0;

/// Drives one connection to one peer, again and again.
pub(super) struct Driver {
    pub(super) lane: WireLane,
    pub(super) dialer: Arc<Dialer>,
    pub(super) random: Arc<dyn Random>,
    pub(super) metrics: PeerMetrics,
    /// Held by the loop while it runs; free again if it panicked.
    pub(super) queue: tokio::sync::Mutex<mpsc::Receiver<Outgoing>>,
    /// Connections made so far.
    pub(super) connects: AtomicU64,
}

/// One connection's life.
struct Conversation {
    in_flight: Mutex<BTreeMap<u64, InFlight>>,
    heard: Mutex<Option<Instant>>,
    /// Since when the peer owes an answer: what was sent first after it was last heard. Also while those who waited give up: a peer that
    /// answers none of many short deadlines is as dead as one that misses a long one.
    owes_since: Mutex<Option<Instant>>,
    ping: Notify,
    lane: LaneMetrics,
}

struct InFlight {
    waiter: Waiter,
    kind: Kind,
}

impl Driver {
    /// Runs until every channel end is gone.
    pub(super) async fn run(self: Arc<Self>) {
        let mut queue = self.queue.lock().await;
        let config = &self.dialer.config;
        let mut pause = config.retry_min;
        while let Some(first) = next_wanted(&mut queue).await {
            // Asked before the hello is made: it may say a cluster that this does not know, never the other way round.
            let stranger = self.dialer.identity.cluster().is_none();
            let why = match self.dialer.dial(self.lane).await {
                Ok(stream) => {
                    if self.connects.fetch_add(1, Ordering::Relaxed) > 0 {
                        self.metrics.reconnects.inc();
                    }
                    let (heard, why) = self.converse(stream, first, &mut queue, stranger).await;
                    if heard {
                        pause = config.retry_min;
                        continue;
                    }
                    why
                }
                Err(why) => {
                    self.metrics.connect_failures.inc();
                    refuse(first, &why);
                    why
                }
            };
            let until = Instant::now() + self.random.jitter(pause);
            refuse_until(&mut queue, until, &why).await;
            pause = pause.saturating_mul(2).min(config.retry_max);
        }
    }

    /// Talks until the connection ends; one that a `stranger` to all clusters made, until it is in one. Whether the peer said anything, and why it ended.
    async fn converse(
        &self,
        stream: BoxStream,
        first: Outgoing,
        queue: &mut mpsc::Receiver<Outgoing>,
        stranger: bool,
    ) -> (bool, String) {
        let _open = OpenConnection::new(&self.metrics.connections_made_open);
        let (read, write) = tokio::io::split(stream);
        let conversation = Conversation {
            in_flight: Mutex::default(),
            heard: Mutex::default(),
            owes_since: Mutex::default(),
            ping: Notify::new(),
            lane: self.metrics.lane(self.lane),
        };
        let config = &self.dialer.config;
        let joined = self.dialer.identity.joined();
        let why = tokio::select! {
            () = joined, if stranger => "this broker is in a cluster now: what it says is said anew".to_owned(),
            why = conversation.write(write, first, queue, config.silence_max) => why,
            why = conversation.read(read, self.lane, config.silence_max) => why,
            why = conversation.watch(config.ping_after, config.silence_max) => why,
        };
        let in_flight = std::mem::take(&mut *conversation.in_flight.lock());
        if !in_flight.is_empty() {
            self.metrics.closed("broken");
        }
        tracing::debug!(
            lane = self.lane.name(),
            messages = in_flight.len(),
            "a connection to a peer ended: {why}"
        );
        for (_, message) in in_flight {
            message.waiter.answer(Err(PeerError::Failed(why.clone())));
        }
        let heard = conversation.heard.lock().is_some();
        (heard, why)
    }
}

/// The next message that somebody still waits for.
async fn next_wanted(queue: &mut mpsc::Receiver<Outgoing>) -> Option<Outgoing> {
    loop {
        let outgoing = queue.recv().await?;
        if !outgoing.waiter.is_gone() {
            return Some(outgoing);
        }
    }
}

fn refuse(outgoing: Outgoing, why: &str) {
    outgoing
        .waiter
        .answer(Err(PeerError::Unreachable(why.to_owned())));
}

/// Answers what comes, at once, until it is time to try again.
async fn refuse_until(queue: &mut mpsc::Receiver<Outgoing>, until: Instant, why: &str) {
    while let Ok(outgoing) = queue.try_recv() {
        refuse(outgoing, why);
    }
    loop {
        tokio::select! {
            biased;
            () = sleep_until(until) => return,
            outgoing = queue.recv() => match outgoing {
                Some(outgoing) => refuse(outgoing, why),
                None => return,
            },
        }
    }
}

impl Conversation {
    async fn write<W: AsyncWrite + Unpin>(
        &self,
        mut stream: W,
        first: Outgoing,
        queue: &mut mpsc::Receiver<Outgoing>,
        stall: Duration,
    ) -> String {
        let mut next_id = PING_ID + 1;
        let mut next = Some(first);
        loop {
            let mut parts = VecDeque::new();
            let (mut bytes, mut messages) = (0_usize, 0);
            while let Some(outgoing) = next.take() {
                bytes = bytes.saturating_add(outgoing.message.frame_bytes());
                if self.add(outgoing, next_id, &mut parts) {
                    messages += 1;
                    next_id += 1;
                }
                if bytes < WRITE_GATHER_BYTES {
                    next = queue.try_recv().ok();
                }
            }
            if messages > 0 {
                if let Err(error) = write_parts(&mut stream, parts, stall).await {
                    return format!("sending failed: {error}");
                }
                self.lane.sent(messages, bytes);
            }
            tokio::select! {
                biased;
                () = self.ping.notified() => {
                    let ping = messages::ping(Kind::Ping).into_parts(PING_ID, 0);
                    if let Err(error) = write_parts(&mut stream, ping.into(), stall).await {
                        return format!("sending failed: {error}");
                    }
                }
                outgoing = queue.recv() => match outgoing {
                    Some(outgoing) => next = Some(outgoing),
                    None => return "the transport has stopped".to_owned(),
                },
            }
        }
    }

    /// Notes the message as in flight and adds its bytes, unless nobody waits for it any more.
    fn add(&self, outgoing: Outgoing, id: u64, parts: &mut VecDeque<Bytes>) -> bool {
        if !outgoing.begin_sending() {
            return false;
        }
        let now = Instant::now();
        let left = outgoing.deadline.saturating_duration_since(now);
        let left = u32::try_from(left.as_millis()).unwrap_or(u32::MAX).max(1);
        let in_flight = InFlight {
            waiter: outgoing.waiter,
            kind: outgoing.message.kind,
        };
        self.in_flight.lock().insert(id, in_flight);
        self.owes_since.lock().get_or_insert(now);
        parts.extend(outgoing.message.into_parts(id, left));
        true
    }

    async fn read<R: AsyncRead + Unpin>(
        &self,
        stream: R,
        lane: WireLane,
        stall: Duration,
    ) -> String {
        let mut frames = FrameReader::new(stream, lane, Direction::Replies, stall);
        loop {
            let frame = async {
                let prefix = frames.prefix(None).await?;
                self.hear();
                frames.rest(prefix).await
            };
            let frame = match frame.await {
                Ok(frame) => frame,
                Err(error) => return error.to_string(),
            };
            self.lane.received(frame.bytes());
            if let Err(why) = self.deliver(frame) {
                return why;
            }
            self.hear();
        }
    }

    fn hear(&self) {
        let now = Instant::now();
        *self.heard.lock() = Some(now);
        let owes = !self.in_flight.lock().is_empty();
        *self.owes_since.lock() = owes.then_some(now);
    }

    fn deliver(&self, frame: Frame) -> Result<(), String> {
        if frame.kind == Kind::PingReply {
            return Ok(());
        }
        // Not found: who waited has given up meanwhile.
        let Some(message) = self.in_flight.lock().remove(&frame.correlation) else {
            return Ok(());
        };
        if frame.kind == Kind::Error || frame.kind.number() == message.kind.number() + 128 {
            message.waiter.answer(Ok(frame));
            return Ok(());
        }
        let why = "the peer answered with another kind of message".to_owned();
        message.waiter.answer(Err(PeerError::Failed(why.clone())));
        Err(why)
    }

    /// Returns when the peer is silent for too long though it owes an answer; pings it before. A peer that owes nothing is pinged too: it
    /// keeps a copy of this process out for as long as it hears this one.
    async fn watch(&self, ping_after: Duration, silence_max: Duration) -> String {
        let mut pinged: Option<Instant> = None;
        let mut idle_pinged = Instant::now();
        loop {
            tokio::time::sleep(ping_after / 4).await;
            self.in_flight
                .lock()
                .retain(|_, message| !message.waiter.is_gone());
            let Some(since) = *self.owes_since.lock() else {
                if idle_pinged.elapsed() >= ping_after {
                    idle_pinged = Instant::now();
                    // An answer to the ping is owed too.
                    self.owes_since.lock().get_or_insert(idle_pinged);
                    self.ping.notify_one();
                }
                continue;
            };
            let quiet = since.elapsed();
            if quiet >= silence_max {
                return format!("the peer was silent for {silence_max:?}");
            }
            if quiet >= ping_after && pinged != Some(since) {
                pinged = Some(since);
                self.ping.notify_one();
            }
        }
    }
}
