//! Which process speaks for a Raft node: one at a time, so that a copied data directory takes no part beside the real one.
//!
//! Owns: [`Presence`], [`Present`], when a process counts as gone.
//! Not here: what a second process is told (`welcome.rs`), connections (`session.rs`).
//! Spec: docs/protocols/peer.md (handshake, one process per Raft node)

use super::hello::Who;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tidelog_model::RaftNodeId;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::watch;
use tokio::time::Instant;

/// How often a second process looks again whether the first is gone, and how long between: a process that was killed and started again
/// may be here before the ends of its old connections were read.
const TRIES: u32 = 15;
const TRY_PAUSE: Duration = Duration::from_millis(20);

/// The processes whose connections are open; as many as there are connections at most.
pub(super) struct Presence {
    silence: Duration,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    nodes: BTreeMap<RaftNodeId, Process>,
    next: u64,
}

struct Process {
    turn: u64,
    instance: u64,
    /// Where its oldest connection of this turn came from.
    address: SocketAddr,
    open: usize,
    heard: Heard,
    /// Dropped, its connections end.
    keep: watch::Sender<()>,
}

/// Held by a connection that was let in.
pub(super) struct Present {
    presence: Arc<Presence>,
    node: RaftNodeId,
    turn: u64,
    heard: Heard,
    replaced: watch::Receiver<()>,
}

impl Presence {
    /// Who sent nothing for `silence` is gone.
    pub(super) fn new(silence: Duration) -> Arc<Self> {
        Arc::new(Self {
            silence,
            known: Mutex::default(),
        })
    }

    /// Lets a connection of `who` in. An error: from where another process speaks for its Raft node.
    pub(super) async fn enter(
        self: &Arc<Self>,
        who: Who,
        address: SocketAddr,
    ) -> Result<Present, SocketAddr> {
        let mut entered = self.try_enter(who, address);
        for _ in 0..TRIES {
            if entered.is_ok() {
                break;
            }
            tokio::time::sleep(TRY_PAUSE).await;
            entered = self.try_enter(who, address);
        }
        entered
    }

    fn try_enter(self: &Arc<Self>, who: Who, address: SocketAddr) -> Result<Present, SocketAddr> {
        let mut known = self.known.lock();
        let there = known.nodes.get_mut(&who.node);
        if let Some(process) = there {
            if process.instance == who.instance {
                process.open += 1;
                process.heard.note();
                return Ok(self.present(who.node, process));
            }
            if process.heard.ago() < self.silence {
                return Err(process.address);
            }
        }
        let turn = known.next;
        known.next += 1;
        let process = Process {
            turn,
            instance: who.instance,
            address,
            open: 1,
            heard: Heard::now(),
            keep: watch::Sender::new(()),
        };
        let present = self.present(who.node, &process);
        known.nodes.insert(who.node, process);
        Ok(present)
    }

    fn present(self: &Arc<Self>, node: RaftNodeId, process: &Process) -> Present {
        Present {
            presence: Arc::clone(self),
            node,
            turn: process.turn,
            heard: process.heard.clone(),
            replaced: process.keep.subscribe(),
        }
    }
}

impl Present {
    /// `stream`, whose bytes are signs of life.
    pub(super) fn listen<R>(&self, stream: R) -> Listened<R> {
        Listened {
            stream,
            heard: self.heard.clone(),
        }
    }

    /// Returns when another process has taken the place of this one, which was silent for too long.
    pub(super) async fn replaced(&self) {
        // Nothing is ever sent: the other end is dropped.
        let _ = self.replaced.clone().changed().await;
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        let mut known = self.presence.known.lock();
        let Some(process) = known.nodes.get_mut(&self.node) else {
            return;
        };
        if process.turn != self.turn {
            return;
        }
        process.open -= 1;
        if process.open == 0 {
            known.nodes.remove(&self.node);
        }
    }
}

/// When a process last sent a byte, on any of its connections.
#[derive(Clone)]
struct Heard {
    began: Instant,
    /// Milliseconds since.
    last: Arc<AtomicU64>,
}

impl Heard {
    fn now() -> Self {
        Self {
            began: Instant::now(),
            last: Arc::default(),
        }
    }

    fn note(&self) {
        let since = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(since, Ordering::Relaxed);
    }

    fn ago(&self) -> Duration {
        let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
        self.began.elapsed().saturating_sub(last)
    }
}

/// A stream that is listened to.
pub(super) struct Listened<R> {
    stream: R,
    heard: Heard,
}

impl<R: AsyncRead + Unpin> AsyncRead for Listened<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.heard.note();
        }
        read
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use tidelog_model::NodeId;

    fn who(instance: u64) -> Who {
        Who {
            cluster: None,
            broker: NodeId::new(2),
            node: RaftNodeId::new(7),
            instance,
        }
    }

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    /// Proves that one process at a time is in, that its last connection's end or its silence makes room, that silence ends its connections, and
    /// that the late end of such a connection takes nothing from who came after, be it the first process again.
    #[tokio::test(start_paused = true)]
    async fn one_process_at_a_time() {
        let presence = Presence::new(Duration::from_secs(4));
        let first = presence.enter(who(1), at(1)).await.unwrap();
        let more = presence.enter(who(1), at(2)).await.unwrap();
        assert_eq!(presence.enter(who(2), at(3)).await.err(), Some(at(1)));
        drop(first);
        assert_eq!(presence.enter(who(2), at(3)).await.err(), Some(at(1)));
        drop(more);
        let second = presence.enter(who(2), at(3)).await.unwrap();

        tokio::time::advance(Duration::from_secs(3)).await;
        second.heard.note();
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(presence.enter(who(1), at(4)).await.err(), Some(at(3)));
        assert_eq!(second.replaced().now_or_never(), None);
        tokio::time::advance(Duration::from_secs(1)).await;
        let third = presence.enter(who(1), at(4)).await.unwrap();
        assert_eq!(second.replaced().now_or_never(), Some(()));

        tokio::time::advance(Duration::from_secs(4)).await;
        let fourth = presence.enter(who(2), at(5)).await.unwrap();
        drop(second);
        drop(third);
        assert_eq!(presence.enter(who(1), at(6)).await.err(), Some(at(5)));
        drop(fourth);
        assert!(presence.known.lock().nodes.is_empty());
    }

    /// Proves that a process whose connections end while another knocks lets it in: a restart is not taken for a copy.
    #[tokio::test(start_paused = true)]
    async fn ends_on_their_way_are_waited_for() {
        let presence = Presence::new(Duration::from_secs(4));
        let first = presence.enter(who(1), at(1)).await.unwrap();
        let knocking = presence.enter(who(2), at(2));
        let ending = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            drop(first);
        };
        let (entered, ()) = tokio::join!(knocking, ending);
        assert!(entered.is_ok());
    }
}
