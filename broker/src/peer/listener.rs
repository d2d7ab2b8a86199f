//! The listening side: accepts connections of other brokers, bounds them, ends them.
//!
//! Owns: [`PeerListener`], the accept loop, the set of connections.
//! Not here: the handshake (`greeting.rs`), one connection (`session.rs`).
//! Spec: docs/protocols/peer.md

use super::config::{PeerIdentity, PeerListenerConfig};
use super::greeting;
use super::groups::{CallServices, PeerGroups};
use super::memory::FrameMemory;
use super::metrics::{OpenConnection, PeerMetrics};
use super::partial::Partials;
use super::presence::Presence;
use super::session::Shared;
use super::tls::PeerTls;
use super::waiting::Waiting;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::{Accepted, Listener, Network, Tasks};
use tidelog_model::NodeId;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Pause after a failed accept; doubles up to the second one while accepts fail (EMFILE, ENFILE, ENOBUFS).
const ACCEPT_PAUSE_MIN: Duration = Duration::from_millis(10);
const ACCEPT_PAUSE_MAX: Duration = Duration::from_secs(1);
/// One log line per this long and reason about peers that are not let in: they try again every second.
const SAY_PAUSE: Duration = Duration::from_secs(10);
/// Lines that are remembered: what callers make up must not grow it.
const SAID_MAX: usize = 256;

/// Why the listener cannot start.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen on {address} for other brokers: {source}. Is another process on this port? Choose another address (peer.listen)"
)]
pub struct PeerListenError {
    /// The address.
    pub address: SocketAddr,
    /// What the system said.
    pub source: io::Error,
}

/// The parts that a [`PeerListener`] is made of.
pub struct PeerListenerParts {
    /// Who this broker is.
    pub identity: Arc<PeerIdentity>,
    /// Sockets.
    pub network: Arc<dyn Network>,
    /// The groups that peers reach.
    pub groups: PeerGroups,
    /// The services that peers call.
    pub services: CallServices,
    /// Counters, shared with the transport.
    pub metrics: PeerMetrics,
    /// TLS, shared with the transport.
    pub tls: PeerTls,
}

/// The running listener.
pub struct PeerListener {
    local: SocketAddr,
    tasks: Tasks,
    #[cfg(test)]
    pub(super) shared: Arc<Shared>,
}

struct Acceptor {
    listener: tokio::sync::Mutex<Box<dyn Listener>>,
    shared: Arc<Shared>,
    places: Arc<Semaphore>,
    waiting: Arc<Waiting>,
    connections: Tasks,
}

impl PeerListener {
    /// Binds and starts to accept. Groups and services may register before and after.
    ///
    /// # Errors
    /// The address is taken, not ours, or not allowed.
    pub async fn start(
        config: PeerListenerConfig,
        parts: PeerListenerParts,
    ) -> Result<Self, PeerListenError> {
        let address = config.listen;
        let failed = |source| PeerListenError { address, source };
        let listener = parts.network.listen(address).await.map_err(failed)?;
        let local = listener.local_addr().map_err(failed)?;
        let places = Arc::new(Semaphore::new(config.connections_max));
        let waiting = Waiting::new(config.handshakes_max);
        let sweep_pause = config.snapshot_idle / 4;
        let shared = Arc::new(Shared {
            identity: parts.identity,
            groups: parts.groups,
            services: parts.services,
            memory: FrameMemory::new(config.frame_memory_bytes, &parts.metrics),
            metrics: parts.metrics,
            partials: Partials::new(config.snapshot_memory_bytes, config.snapshot_idle),
            presence: Presence::new(config.silence, config.twin_memory),
            strangers: Waiting::new(config.strangers_max),
            said: Said::default(),
            tls: parts.tls,
            config,
        });
        let tasks = Tasks::new();
        let acceptor = Arc::new(Acceptor {
            listener: tokio::sync::Mutex::new(listener),
            shared: Arc::clone(&shared),
            places,
            waiting,
            connections: tasks.clone(),
        });
        tasks.supervise("peer-accept", ACCEPT_PAUSE_MAX, move || {
            Arc::clone(&acceptor).run()
        });
        let sweeping = Arc::clone(&shared);
        tasks.supervise("peer-snapshot-sweep", ACCEPT_PAUSE_MAX, move || {
            sweep(Arc::clone(&sweeping), sweep_pause)
        });
        let passing = Arc::clone(&shared);
        tasks.supervise("peer-presence", ACCEPT_PAUSE_MAX, move || {
            Arc::clone(&passing.presence).run()
        });
        Ok(Self {
            local,
            tasks,
            #[cfg(test)]
            shared,
        })
    }

    /// The bound address, with the port that the system chose where 0 was asked for.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Ends the listener and every connection at once. Peers see a break: what was in work may have happened.
    pub async fn stop(&self) {
        self.tasks.stop().await;
    }
}

async fn sweep(shared: Arc<Shared>, pause: Duration) {
    loop {
        tokio::time::sleep(pause).await;
        shared
            .partials
            .sweep(|group| shared.groups.get(group).is_some());
    }
}

impl Acceptor {
    async fn run(self: Arc<Self>) {
        let mut listener = self.listener.lock().await;
        let mut pause = ACCEPT_PAUSE_MIN;
        loop {
            match listener.accept().await {
                Ok(accepted) => {
                    pause = ACCEPT_PAUSE_MIN;
                    self.admit(accepted);
                }
                Err(error) => {
                    self.shared.metrics.accept_errors.inc();
                    if self.shared.said.may_say("accept") {
                        tracing::error!(
                            "cannot accept connections of brokers for now: {error} (file descriptors: ulimit -n)"
                        );
                    }
                    tokio::time::sleep(pause).await;
                    pause = pause.saturating_mul(2).min(ACCEPT_PAUSE_MAX);
                }
            }
        }
    }

    fn admit(&self, accepted: Accepted) {
        let shared = &self.shared;
        if self.places.available_permits() == 0 {
            return shared.over_bound(accepted.peer);
        }
        let (waiting, full) = self.waiting.begin();
        if full && shared.said.may_say("handshakes") {
            tracing::warn!(
                handshakes_max = shared.config.handshakes_max,
                "too many connections that do not finish their handshake: the oldest is closed for each new one"
            );
        }
        let open = OpenConnection::new(&shared.metrics.connections_accepted_open);
        let greeting = greeting::run(
            Arc::clone(shared),
            accepted.peer,
            accepted.stream,
            waiting,
            Arc::clone(&self.places),
        );
        self.connections.spawn("peer-session", async move {
            greeting.await;
            drop(open);
        });
    }
}

/// Lets one log line through per reason, broker that it is about, and [`SAY_PAUSE`]. Reasons are few and ours; of brokers, [`SAID_MAX`] are told apart.
#[derive(Default)]
pub(super) struct Said(Mutex<BTreeMap<(&'static str, Option<NodeId>), Instant>>);

impl Said {
    /// Every reason may be said at once again.
    #[cfg(test)]
    pub(super) fn forget(&self) {
        self.0.lock().clear();
    }

    pub(super) fn may_say(&self, reason: &'static str) -> bool {
        self.may(reason, None)
    }

    /// As [`Said::may_say`]; what is said of others does not keep this one from being named.
    pub(super) fn may_say_of(&self, reason: &'static str, broker: NodeId) -> bool {
        self.may(reason, Some(broker))
    }

    fn may(&self, reason: &'static str, broker: Option<NodeId>) -> bool {
        let now = Instant::now();
        let mut said = self.0.lock();
        let old = |at: &Instant| now.duration_since(*at) >= SAY_PAUSE;
        let may = said.get(&(reason, broker)).is_none_or(old);
        if may {
            if said.len() >= SAID_MAX {
                said.retain(|_, at| !old(at));
            }
            if broker.is_some() && said.len() >= SAID_MAX {
                return false;
            }
            said.insert((reason, broker), now);
        }
        may
    }
}
