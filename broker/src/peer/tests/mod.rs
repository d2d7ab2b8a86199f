//! Tests of the transport: bytes, then two ends over loopback, then whole groups over it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bounds;
mod bytes;
mod cluster;
mod exchange;
mod handshake;
mod receiver;
mod snapshots;
mod tls;
mod tls_files;

use super::*;
use crate::log::{EntryKind, LogEntry, Vote};
use crate::placement::{
    AppendReply, AppendRequest, Member, PeerError, PeerLink, SnapshotRequest, TransferReply,
    TransferRequest, VoteReply, VoteRequest,
};
use ::bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::{SystemRandom, Tasks, TcpNetwork};
use tidelog_model::{ClusterId, LogId, LogIndex, NodeId, PlacementGroupId, RaftNodeId, Term};

const GROUP: PlacementGroupId = PlacementGroupId::new(1);
/// Bounds every wait for a condition.
const WAIT: Duration = Duration::from_secs(20);
const DEADLINE: Duration = Duration::from_secs(10);

fn cluster() -> ClusterId {
    ClusterId::new(uuid::Uuid::from_u128(7))
}

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// Raft node ids differ from broker ids, so that a mix-up shows.
fn node_of(broker: i32) -> RaftNodeId {
    RaftNodeId::new(1000 + u64::try_from(broker).unwrap())
}

fn identity(cluster: Option<ClusterId>, broker: i32) -> PeerIdentity {
    let random = SystemRandom::shared();
    PeerIdentity::new(
        cluster,
        "test",
        NodeId::new(broker),
        node_of(broker),
        random.as_ref(),
    )
}

/// Where the brokers of a test are.
#[derive(Default)]
struct Book(Mutex<BTreeMap<NodeId, String>>);

impl AddressBook for Book {
    fn addresses(&self, broker: NodeId) -> Vec<String> {
        self.0.lock().get(&broker).cloned().into_iter().collect()
    }
}

/// One broker's end of the transport.
struct Broker {
    id: i32,
    identity: Arc<PeerIdentity>,
    groups: PeerGroups,
    services: CallServices,
    metrics: PeerMetrics,
    tls: PeerTls,
    book: Arc<Book>,
    tasks: Tasks,
    transport: PeerTransport,
}

impl Broker {
    fn new(id: i32, book: &Arc<Book>) -> Self {
        Self::with(identity(Some(cluster()), id), PeerConfig::default(), book)
    }

    fn with(identity: PeerIdentity, config: PeerConfig, book: &Arc<Book>) -> Self {
        Self::secured(identity, config, book, PeerTls::off())
    }

    fn secured(identity: PeerIdentity, config: PeerConfig, book: &Arc<Book>, tls: PeerTls) -> Self {
        let (identity, metrics, tasks) = (Arc::new(identity), PeerMetrics::default(), Tasks::new());
        let parts = PeerTransportParts {
            identity: Arc::clone(&identity),
            network: TcpNetwork::shared(),
            random: SystemRandom::seeded(5),
            book: Arc::clone(book) as Arc<dyn AddressBook>,
            tls: tls.clone(),
            metrics: metrics.clone(),
            tasks: tasks.clone(),
        };
        Self {
            id: identity.broker.get(),
            transport: PeerTransport::new(config, parts),
            identity,
            groups: PeerGroups::new(),
            services: CallServices::new(),
            metrics,
            tls,
            book: Arc::clone(book),
            tasks,
        }
    }

    /// Listens, and is in the book from then on.
    async fn listen(&self) -> PeerListener {
        self.listen_with(PeerListenerConfig::new(loopback())).await
    }

    async fn listen_with(&self, config: PeerListenerConfig) -> PeerListener {
        let parts = PeerListenerParts {
            identity: Arc::clone(&self.identity),
            network: TcpNetwork::shared(),
            groups: self.groups.clone(),
            services: self.services.clone(),
            metrics: self.metrics.clone(),
            tls: self.tls.clone(),
        };
        let listener = PeerListener::start(config, parts)
            .await
            .expect("it listens");
        let address = listener.local_addr().to_string();
        self.book.0.lock().insert(NodeId::new(self.id), address);
        listener
    }

    /// This broker as others are told of it; the address is wrong, the book knows better.
    fn member(&self) -> Member {
        Member {
            broker: NodeId::new(self.id),
            address: "127.0.0.1:1".to_owned(),
        }
    }

    fn link(&self, to: &Self, lane: crate::placement::Lane) -> Arc<dyn PeerLink> {
        let network = self.transport.group(GROUP);
        network.link(to.identity.node, &to.member(), lane)
    }

    fn target(&self) -> PeerTarget {
        PeerTarget {
            broker: Some(NodeId::new(self.id)),
            node: Some(self.identity.node),
            address: String::new(),
        }
    }
}

fn id(term: u64, index: u64) -> LogId {
    LogId {
        term: Term::new(term),
        index: LogIndex::new(index),
    }
}

fn vote(term: u64) -> Vote {
    Vote {
        term: Term::new(term),
        node: RaftNodeId::new(9),
        committed: true,
    }
}

fn entry(term: u64, index: u64, body: &[u8]) -> LogEntry {
    LogEntry {
        id: id(term, index),
        kind: EntryKind::Command,
        dir: Bytes::copy_from_slice(&index.to_le_bytes()),
        body: Bytes::copy_from_slice(body).into(),
    }
}

/// An append of one entry at `index`.
fn append_at(index: u64, body: &[u8]) -> AppendRequest {
    AppendRequest {
        vote: vote(3),
        previous: Some(id(3, index - 1)),
        committed: None,
        acknowledged: None,
        entries: vec![entry(3, index, body)],
    }
}

fn heartbeat() -> AppendRequest {
    AppendRequest {
        vote: vote(3),
        previous: None,
        committed: None,
        acknowledged: None,
        entries: Vec::new(),
    }
}

/// Waits until `is` holds.
async fn until(what: &str, is: impl Fn() -> bool) {
    let waited = tokio::time::timeout(WAIT, async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    assert!(waited.await.is_ok(), "{what}");
}

/// What is logged on this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Begins to keep warnings and errors, until the guard is dropped.
    fn start() -> (Self, tracing::subscriber::DefaultGuard) {
        // With a single subscriber, a line that another test's thread reaches first would be off for this one too.
        static ANOTHER: std::sync::OnceLock<tracing::Dispatch> = std::sync::OnceLock::new();
        ANOTHER.get_or_init(|| tracing_subscriber::fmt().with_writer(std::io::sink).into());
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::WARN)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    fn lines(&self) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().clone()).expect("text");
        text.lines().map(str::to_owned).collect()
    }
}
