//! The calling end of one connection: a bounded queue of messages, each with its reply on the way.
//!
//! Owns: [`Channel`], [`Outgoing`], the bound of what is queued and in flight, what a caller learns when its deadline passes.
//! Not here: the connection (`drive.rs`).
//! Spec: docs/protocols/peer.md (what a caller knows)

use super::frame::{Frame, Message, WireLane};
use crate::placement::PeerError;
use futures::future::{BoxFuture, FutureExt};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

pub(super) type Exchange = BoxFuture<'static, Result<Frame, PeerError>>;

/// How much may be queued and in flight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) count_max: usize,
    pub(super) bytes_max: usize,
}

/// Queues messages for one connection, in the order of the calls.
pub(super) struct Channel {
    lane: WireLane,
    bounds: Bounds,
    used: Arc<Mutex<Used>>,
    queue: mpsc::Sender<Outgoing>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Used {
    pub(super) count: usize,
    pub(super) bytes: usize,
}

/// One message and who waits for its reply.
pub(super) struct Outgoing {
    pub(super) message: Message,
    pub(super) deadline: Instant,
    pub(super) waiter: Waiter,
    sent: Arc<AtomicBool>,
}

/// Who waits for a reply. Holds the message's share of the bound until there is one.
pub(super) struct Waiter {
    reply: oneshot::Sender<Result<Frame, PeerError>>,
    share: Share,
}

/// A share of a channel's bound; given back when dropped.
struct Share {
    used: Arc<Mutex<Used>>,
    bytes: usize,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut used = self.used.lock();
        used.count -= 1;
        used.bytes -= self.bytes;
    }
}

impl Waiter {
    /// Nobody waits any more.
    pub(super) fn is_gone(&self) -> bool {
        self.reply.is_closed()
    }

    pub(super) fn answer(self, reply: Result<Frame, PeerError>) {
        // The share first: who waited for this reply finds room.
        drop(self.share);
        // A caller that gave up is no error.
        let _ = self.reply.send(reply);
    }
}

impl Outgoing {
    /// From here on the message counts as sent, unless its caller gave up before: then it must not be.
    pub(super) fn begin_sending(&self) -> bool {
        // The mark before the look: a caller closes its end before it looks at the mark, so one of the two sees the other.
        self.sent.store(true, Ordering::SeqCst);
        !self.waiter.is_gone()
    }
}

impl Channel {
    /// A channel, and the end that the connection takes messages from.
    pub(super) fn new(lane: WireLane, bounds: Bounds) -> (Self, mpsc::Receiver<Outgoing>) {
        // Shares bound what is queued; the queue itself never fills.
        let (queue, messages) = mpsc::channel(bounds.count_max.max(1));
        let channel = Self {
            lane,
            bounds,
            used: Arc::default(),
            queue,
        };
        (channel, messages)
    }

    /// Messages and bytes queued and in flight.
    pub(super) fn used(&self) -> Used {
        *self.used.lock()
    }

    /// Queues the message before it returns; the future only waits for the reply, at most until the deadline.
    pub(super) fn send(&self, message: Message, deadline: Duration) -> Exchange {
        match self.enqueue(message, deadline) {
            Ok(exchange) => exchange,
            Err(error) => std::future::ready(Err(error)).boxed(),
        }
    }

    fn enqueue(&self, message: Message, deadline: Duration) -> Result<Exchange, PeerError> {
        if !message.fits(self.lane) {
            return Err(PeerError::Failed(format!(
                "a message of {} bytes is larger than the lane of {} carries",
                message.frame_bytes(),
                self.lane.name()
            )));
        }
        let share = self.take(message.frame_bytes())?;
        let (reply, answer) = oneshot::channel();
        let sent = Arc::new(AtomicBool::new(false));
        let until = Instant::now() + deadline;
        let outgoing = Outgoing {
            message,
            deadline: until,
            waiter: Waiter { reply, share },
            sent: Arc::clone(&sent),
        };
        self.queue
            .try_send(outgoing)
            .map_err(|_| PeerError::Unreachable("the transport has stopped".to_owned()))?;
        Ok(wait(answer, sent, until, deadline).boxed())
    }

    fn take(&self, bytes: usize) -> Result<Share, PeerError> {
        let mut used = self.used.lock();
        let total = used.bytes.saturating_add(bytes);
        if used.count >= self.bounds.count_max || total > self.bounds.bytes_max {
            return Err(PeerError::Unreachable(format!(
                "{} messages of {} bytes wait for the peer already",
                used.count, used.bytes
            )));
        }
        used.count += 1;
        used.bytes = total;
        Ok(Share {
            used: Arc::clone(&self.used),
            bytes,
        })
    }
}

async fn wait(
    mut answer: oneshot::Receiver<Result<Frame, PeerError>>,
    sent: Arc<AtomicBool>,
    until: Instant,
    deadline: Duration,
) -> Result<Frame, PeerError> {
    let was_sent = || sent.load(Ordering::SeqCst);
    tokio::select! {
        biased;
        reply = &mut answer => match reply {
            Ok(reply) => reply,
            Err(_) if was_sent() => Err(PeerError::Failed("the transport has stopped".to_owned())),
            Err(_) => Err(PeerError::Unreachable("the transport has stopped".to_owned())),
        },
        () = tokio::time::sleep_until(until) => {
            answer.close();
            match answer.try_recv() {
                Ok(reply) => reply,
                Err(_) if was_sent() => Err(PeerError::Failed(format!("no reply within {deadline:?}"))),
                Err(_) => Err(PeerError::Unreachable(format!("not sent within {deadline:?}"))),
            }
        }
    }
}
