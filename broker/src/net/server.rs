//! The listening side: accepts connections, bounds them, ends them.
//!
//! Owns: the accept loop, the set of connections, the graceful end.
//! Not here: one connection (`connection`).
//! Spec: docs/protocols/kafka-wire.md

use super::connection::{self, Shared};
use super::memory::Memory;
use super::metrics::NetMetrics;
use crate::intake::Shortage;
use crate::wire::{Connection, FrameLimits, Service};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidelog_env::{Accepted, Listener, Network, Tasks};
use tidelog_model::limits;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Pause after a failed accept; doubles up to the second one while accepts fail (EMFILE, ENFILE, ENOBUFS).
const ACCEPT_PAUSE_MIN: Duration = Duration::from_millis(10);
const ACCEPT_PAUSE_MAX: Duration = Duration::from_secs(1);
/// One log line per this long about accepts that fail and connections over the bound.
const LOG_PAUSE: Duration = Duration::from_secs(10);

/// Settings of the listener.
#[derive(Clone, Debug)]
pub struct NetConfig {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Largest frames.
    pub frames: FrameLimits,
    /// Open connections at most.
    pub connections_max: usize,
    /// Memory for frames in work.
    pub request_memory_bytes: usize,
    /// A connection without a request for so long is closed. Kafka's `connections.max.idle.ms`.
    pub idle: Duration,
    /// A frame that has begun, or an answer, must make progress within this.
    pub stall: Duration,
}

impl NetConfig {
    /// The defaults, listening on `listen`.
    #[must_use]
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            frames: FrameLimits::default(),
            connections_max: limits::CONNECTIONS_MAX_DEFAULT,
            request_memory_bytes: limits::REQUEST_MEMORY_BYTES_DEFAULT,
            idle: Duration::from_secs(600),
            stall: Duration::from_secs(30),
        }
    }
}

/// Why the listener cannot start.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The address is taken, not ours, or not allowed.
    #[error(
        "cannot listen on {address} for Kafka clients: {source}. Is another process on this port? Choose another address (kafka.listen)"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
}

/// The running listener.
pub struct NetServer {
    local: SocketAddr,
    shared: Arc<Shared>,
    accepting: Tasks,
    connections: TaskTracker,
    abort: CancellationToken,
}

/// A look at the memory of requests.
#[derive(Clone)]
pub struct MemoryWatch(Arc<Shared>);

impl MemoryWatch {
    /// What lacks, if requests have to wait for memory.
    #[must_use]
    pub fn shortage(&self) -> Option<Shortage> {
        self.0.memory.shortage()
    }
}

struct Acceptor {
    listener: Mutex<Box<dyn Listener>>,
    shared: Arc<Shared>,
    connections: TaskTracker,
    abort: CancellationToken,
    places: Arc<Semaphore>,
    next_id: AtomicU64,
}

impl NetServer {
    /// Binds and starts to accept.
    ///
    /// # Errors
    /// [`NetError::Listen`].
    pub async fn start(
        config: NetConfig,
        network: &dyn Network,
        service: Arc<dyn Service>,
        metrics: NetMetrics,
    ) -> Result<Self, NetError> {
        let failed = |source| NetError::Listen {
            address: config.listen,
            source,
        };
        let listener = network.listen(config.listen).await.map_err(failed)?;
        let local = listener.local_addr().map_err(failed)?;
        let places = Arc::new(Semaphore::new(config.connections_max));
        let shared = Arc::new(Shared {
            service,
            memory: Memory::new(config.request_memory_bytes, &metrics),
            metrics,
            slow: parking_lot::Mutex::default(),
            stop: CancellationToken::new(),
            config,
        });
        let accepting = Tasks::new();
        let connections = TaskTracker::new();
        let abort = CancellationToken::new();
        let acceptor = Arc::new(Acceptor {
            listener: Mutex::new(listener),
            shared: Arc::clone(&shared),
            connections: connections.clone(),
            abort: abort.clone(),
            places,
            next_id: AtomicU64::new(1),
        });
        accepting.supervise("kafka-accept", ACCEPT_PAUSE_MAX, move || {
            Arc::clone(&acceptor).run()
        });
        Ok(Self {
            local,
            shared,
            accepting,
            connections,
            abort,
        })
    }

    /// The bound address, with the port that the system chose where 0 was asked for.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Open connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Bytes of frames that are in work now, as the budget counts them.
    #[must_use]
    pub fn request_memory_used(&self) -> usize {
        self.shared.memory.used()
    }

    /// Sees what memory frames lack, for as long as the process lives.
    #[must_use]
    pub fn memory_watch(&self) -> MemoryWatch {
        MemoryWatch(Arc::clone(&self.shared))
    }

    /// Ends the listener: no connection and no request is taken any more, requests in work get their answers if they
    /// have them within `drain`, then every connection is closed.
    pub async fn stop(&self, drain: Duration) {
        self.shared.stop.cancel();
        self.accepting.stop().await;
        self.connections.close();
        if tokio::time::timeout(drain, self.connections.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                connections = self.connections.len(),
                "closing connections whose requests have not ended"
            );
            self.abort.cancel();
            self.connections.wait().await;
        }
    }
}

impl Acceptor {
    async fn run(self: Arc<Self>) {
        let mut listener = self.listener.lock().await;
        let mut pause = ACCEPT_PAUSE_MIN;
        let mut log = LogGate::default();
        loop {
            match listener.accept().await {
                Ok(accepted) => {
                    pause = ACCEPT_PAUSE_MIN;
                    self.admit(accepted, &mut log);
                }
                Err(error) => {
                    self.shared.metrics.accept_errors.inc();
                    if log.open() {
                        tracing::error!(
                            "cannot accept Kafka connections for now: {error} (file descriptors: ulimit -n)"
                        );
                    }
                    tokio::time::sleep(pause).await;
                    pause = pause.saturating_mul(2).min(ACCEPT_PAUSE_MAX);
                }
            }
        }
    }

    fn admit(&self, accepted: Accepted, log: &mut LogGate) {
        let metrics = &self.shared.metrics;
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            metrics.connections_refused.inc();
            if log.open() {
                tracing::warn!(
                    peer = %accepted.peer,
                    connections_max = self.shared.config.connections_max,
                    "too many connections: new ones are closed at once"
                );
            }
            return;
        };
        metrics.connections_accepted.inc();
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let connection = Arc::new(Connection::new(id, accepted.peer, accepted.local));
        let open = OpenConnection::new(metrics.clone(), place);
        let run = tokio::spawn(connection::run(
            Arc::clone(&self.shared),
            connection,
            accepted.stream,
        ));
        let abort = self.abort.clone();
        self.connections.spawn(async move {
            let mut run = run;
            let ended = tokio::select! {
                ended = &mut run => ended,
                () = abort.cancelled() => { run.abort(); run.await }
            };
            if let Err(error) = ended
                && error.is_panic()
            {
                open.metrics.panics.inc();
                tracing::error!("the task of a connection panicked: {error}");
            }
            drop(open);
        });
    }
}

/// Counts a connection as open while it lives, and holds its place.
struct OpenConnection {
    metrics: NetMetrics,
    _place: OwnedSemaphorePermit,
}

impl OpenConnection {
    fn new(metrics: NetMetrics, place: OwnedSemaphorePermit) -> Self {
        metrics.connections.inc();
        Self {
            metrics,
            _place: place,
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.metrics.connections.dec();
    }
}

/// Lets one log line through per [`LOG_PAUSE`].
#[derive(Default)]
pub(super) struct LogGate(Option<Instant>);

impl LogGate {
    pub(super) fn open(&mut self) -> bool {
        let now = Instant::now();
        let open = self
            .0
            .is_none_or(|last| now.duration_since(last) >= LOG_PAUSE);
        if open {
            self.0 = Some(now);
        }
        open
    }
}
