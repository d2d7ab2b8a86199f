//! Which process speaks for a Raft node: one at a time, so that a copied data directory takes no part beside the real one.
//!
//! Owns: [`Presence`], [`Present`], when a process counts as gone, when one counts as a copy.
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
/// Time passes here in steps of this. A step that took more than twice as long counts as two: this process did not run, or not often enough to
/// hear anybody.
const STEP: Duration = Duration::from_millis(250);
/// A process that is heard so long after another one with its Raft node was refused lives beside it: what comes later than that was not on its way.
const BESIDE: Duration = Duration::from_secs(1);
/// Refused processes that are remembered per Raft node.
const REFUSED_MAX: usize = 8;
/// Processes that are remembered after their last connection has ended; then they are forgotten all at once.
const GONE_MAX: usize = 1024;

/// The processes whose connections are open, and for a while those beside which others were refused.
pub(super) struct Presence {
    silence: Duration,
    twin_memory: Duration,
    awake: Awake,
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
    /// Other processes with its Raft node, and when each was refused first.
    refused: Vec<(u64, Duration)>,
}

/// Held by a connection that was let in.
pub(super) struct Present {
    presence: Arc<Presence>,
    node: RaftNodeId,
    turn: u64,
    heard: Heard,
    replaced: watch::Receiver<()>,
}

/// Why a process is kept out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Twin {
    /// Another one speaks for its Raft node, from there.
    At(SocketAddr),
    /// Another one did, from there, not long ago, while this one was refused.
    Was(SocketAddr),
}

impl Process {
    /// Whether this process was heard while `instance` was there too.
    fn lived_beside(&self, instance: u64) -> bool {
        let mut refused = self.refused.iter();
        refused.any(|(other, first)| *other == instance && self.heard.last() > *first + BESIDE)
    }

    fn refuse(&mut self, instance: u64, now: Duration) {
        if self.refused.iter().any(|(other, _)| *other == instance) {
            return;
        }
        if self.refused.len() >= REFUSED_MAX {
            self.refused.remove(0);
        }
        self.refused.push((instance, now));
    }
}

impl Presence {
    /// Who sent nothing for `silence` is gone. Who was refused beside a living process is let in `twin_memory` after that one was last heard.
    pub(super) fn new(silence: Duration, twin_memory: Duration) -> Arc<Self> {
        Arc::new(Self {
            silence,
            twin_memory,
            awake: Awake::default(),
            known: Mutex::default(),
        })
    }

    /// Lets time pass, for ever.
    pub(super) async fn run(self: Arc<Self>) {
        let mut last = Instant::now();
        loop {
            tokio::time::sleep(STEP).await;
            let now = Instant::now();
            self.awake.pass(now.duration_since(last));
            last = now;
        }
    }

    /// Lets a connection of `who` in. An error: another process speaks for its Raft node.
    pub(super) async fn enter(
        self: &Arc<Self>,
        who: Who,
        address: SocketAddr,
    ) -> Result<Present, Twin> {
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

    fn try_enter(self: &Arc<Self>, who: Who, address: SocketAddr) -> Result<Present, Twin> {
        let now = self.awake.now();
        let mut known = self.known.lock();
        let mut refused = Vec::new();
        if let Some(process) = known.nodes.get_mut(&who.node) {
            if process.instance == who.instance {
                process.open += 1;
                process.heard.note();
                return Ok(self.present(who.node, process));
            }
            let quiet = now.saturating_sub(process.heard.last());
            if process.open > 0 && quiet < self.silence {
                process.refuse(who.instance, now);
                return Err(Twin::At(process.address));
            }
            if process.lived_beside(who.instance) && quiet < self.twin_memory {
                return Err(Twin::Was(process.address));
            }
            refused = std::mem::take(&mut process.refused);
            refused.retain(|(other, _)| *other != who.instance);
        }
        known.forget(now.saturating_sub(self.twin_memory));
        let turn = known.next;
        known.next += 1;
        let process = Process {
            turn,
            instance: who.instance,
            address,
            open: 1,
            heard: Heard::now(&self.awake),
            keep: watch::Sender::new(()),
            refused,
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

impl Known {
    /// Forgets who has no connection and was last heard before `then`, or all of them when they are many.
    fn forget(&mut self, then: Duration) {
        let gone = self.nodes.values().filter(|process| process.open == 0);
        let many = gone.count() >= GONE_MAX;
        self.nodes
            .retain(|_, process| process.open > 0 || (!many && process.heard.last() >= then));
    }
}

impl Present {
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
        if process.open == 0 && process.refused.is_empty() {
            known.nodes.remove(&self.node);
        }
    }
}

/// Time in which this process ran: what happens to others while it does not is nothing it could hear.
#[derive(Clone, Default)]
struct Awake(Arc<AtomicU64>);

impl Awake {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }

    fn pass(&self, elapsed: Duration) {
        let counted = u64::try_from(elapsed.min(2 * STEP).as_millis()).unwrap_or(u64::MAX);
        self.0.fetch_add(counted, Ordering::Relaxed);
    }
}

/// When a process last sent a byte, on any of its connections.
#[derive(Clone)]
struct Heard {
    awake: Awake,
    /// Milliseconds of that time.
    last: Arc<AtomicU64>,
}

impl Heard {
    fn now(awake: &Awake) -> Self {
        let heard = Self {
            awake: awake.clone(),
            last: Arc::default(),
        };
        heard.note();
        heard
    }

    fn note(&self) {
        let now = self.awake.0.load(Ordering::Relaxed);
        self.last.store(now, Ordering::Relaxed);
    }

    fn last(&self) -> Duration {
        Duration::from_millis(self.last.load(Ordering::Relaxed))
    }
}

/// A stream that is listened to.
pub(super) struct Listened<R> {
    stream: R,
    heard: Option<Heard>,
}

impl<R> Listened<R> {
    /// `stream`, whose bytes are signs of life of who is `present`, if anybody is by it.
    pub(super) fn new(stream: R, present: Option<&Present>) -> Self {
        Self {
            stream,
            heard: present.map(|present| present.heard.clone()),
        }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Listened<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before
            && let Some(heard) = &self.heard
        {
            heard.note();
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

    const SILENCE: Duration = Duration::from_secs(4);
    const MEMORY: Duration = Duration::from_secs(120);

    fn pass(presence: &Presence, seconds: u32) {
        for _ in 0..4 * seconds {
            presence.awake.pass(STEP);
        }
    }

    /// Proves that one process at a time is in, that its last connection's end or its silence makes room, that silence ends its connections, and
    /// that the late end of such a connection takes nothing from who came after, be it the first process again.
    #[tokio::test(start_paused = true)]
    async fn one_process_at_a_time() {
        let presence = Presence::new(SILENCE, MEMORY);
        let first = presence.enter(who(1), at(1)).await.unwrap();
        let more = presence.enter(who(1), at(2)).await.unwrap();
        let refused = presence.enter(who(2), at(3)).await;
        assert_eq!(refused.err(), Some(Twin::At(at(1))));
        drop(first);
        let refused = presence.enter(who(2), at(3)).await;
        assert_eq!(refused.err(), Some(Twin::At(at(1))));
        drop(more);
        let second = presence.enter(who(2), at(3)).await.unwrap();

        pass(&presence, 3);
        second.heard.note();
        pass(&presence, 3);
        let refused = presence.enter(who(3), at(4)).await;
        assert_eq!(refused.err(), Some(Twin::At(at(3))));
        assert_eq!(second.replaced().now_or_never(), None);
        pass(&presence, 1);
        let third = presence.enter(who(3), at(4)).await.unwrap();
        assert_eq!(second.replaced().now_or_never(), Some(()));

        pass(&presence, 4);
        let fourth = presence.enter(who(2), at(5)).await.unwrap();
        drop(second);
        drop(third);
        let refused = presence.enter(who(3), at(6)).await;
        assert_eq!(refused.err(), Some(Twin::At(at(5))));
        drop(fourth);
        pass(&presence, 121);
        let elsewhere = Who {
            node: RaftNodeId::new(8),
            ..who(9)
        };
        drop(presence.enter(elsewhere, at(7)).await.unwrap());
        assert!(presence.known.lock().nodes.is_empty());
    }

    /// Proves that a process that was refused beside a living one is kept out when that one's connections end, and when it is silent for a while;
    /// that the other one, restarted or not, is let in at once; and that none of it lasts for ever.
    #[tokio::test(start_paused = true)]
    async fn a_copy_is_remembered() {
        let presence = Presence::new(SILENCE, MEMORY);
        let real = presence.enter(who(1), at(1)).await.unwrap();
        let copy = || presence.enter(who(2), at(2));
        assert_eq!(copy().await.err(), Some(Twin::At(at(1))));
        pass(&presence, 2);
        real.heard.note();
        assert_eq!(copy().await.err(), Some(Twin::At(at(1))));
        pass(&presence, 5);
        assert_eq!(copy().await.err(), Some(Twin::Was(at(1))), "silent");
        drop(real);
        assert_eq!(copy().await.err(), Some(Twin::Was(at(1))), "ended");
        let real = presence.enter(who(1), at(3)).await.unwrap();
        pass(&presence, 1);
        drop(real);
        let restarted = presence.enter(who(3), at(4)).await.unwrap();
        pass(&presence, 2);
        restarted.heard.note();
        drop(restarted);
        assert_eq!(copy().await.err(), Some(Twin::Was(at(4))), "a restart");
        pass(&presence, 119);
        assert_eq!(copy().await.err(), Some(Twin::Was(at(4))));
        pass(&presence, 1);
        assert!(copy().await.is_ok());
    }

    /// Proves that time in which this process did not run makes nobody silent.
    #[tokio::test(start_paused = true)]
    async fn a_pause_of_the_listener_is_no_silence() {
        let presence = Presence::new(SILENCE, MEMORY);
        let _real = presence.enter(who(1), at(1)).await.unwrap();
        presence.awake.pass(Duration::from_secs(3600));
        let refused = presence.enter(who(2), at(2)).await;
        assert_eq!(refused.err(), Some(Twin::At(at(1))));
    }

    /// Proves that a process whose connections end while another knocks lets it in: a restart is not taken for a copy.
    #[tokio::test(start_paused = true)]
    async fn ends_on_their_way_are_waited_for() {
        let presence = Presence::new(SILENCE, MEMORY);
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
