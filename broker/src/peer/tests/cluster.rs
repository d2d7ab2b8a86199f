//! Three whole groups over real connections and real files: what the in-memory network of placement's tests proves, over TCP.

use super::*;
use crate::log::{GroupLog, GroupLogConfig, LogEnv, NoObserver};
use crate::placement::{Command, Group, GroupConfig, StateMachine};
use ::bytes::{Buf, BufMut, BytesMut};
use std::path::PathBuf;
use tidelog_env::RealDisk;

/// Bytes that every image carries besides the values: a snapshot takes seven chunks.
const PADDING: usize = 3 << 20;

/// Remembers every value it was given, in order; an empty command freezes the state for a checkpoint.
#[derive(Default)]
struct Values {
    values: Vec<u64>,
    frozen: Option<(LogId, Bytes)>,
}

impl Values {
    fn image(&self) -> Bytes {
        let mut image = BytesMut::zeroed(PADDING);
        for value in &self.values {
            image.put_u64_le(*value);
        }
        image.freeze()
    }
}

impl StateMachine for Values {
    type Outcome = usize;

    fn apply(&mut self, id: LogId, command: &Command) -> usize {
        if command.dir.is_empty() {
            self.frozen = Some((id, self.image()));
        } else {
            self.values.push(command.dir.clone().get_u64_le());
        }
        self.values.len()
    }

    fn snapshot(&self) -> Option<(LogId, Bytes)> {
        self.frozen.clone()
    }

    fn restore(&mut self, last: LogId, image: &Bytes) -> Result<(), String> {
        let values = image.get(PADDING..).ok_or("too short")?;
        self.values = values
            .chunks_exact(8)
            .map(|mut value| value.get_u64_le())
            .collect();
        self.frozen = Some((last, image.clone()));
        Ok(())
    }
}

/// One broker with its replica.
struct Replica {
    broker: Broker,
    listener: PeerListener,
    group: Group<Values>,
    registered: Registered,
    log_tasks: Tasks,
}

impl Replica {
    async fn start(
        id: i32,
        dir: PathBuf,
        first: BTreeMap<RaftNodeId, Member>,
        book: &Arc<Book>,
    ) -> Self {
        let broker = Broker::new(id, book);
        let node = broker.identity.node;
        let mut log_config = GroupLogConfig::new(dir, cluster(), GROUP, node);
        log_config = log_config.with_file_bytes(1 << 20);
        let log_tasks = Tasks::new();
        let env = LogEnv {
            disk: RealDisk::shared(),
            random: SystemRandom::shared(),
            tasks: log_tasks.clone(),
            fatal: Arc::new(|failure| panic!("{failure}")),
            observer: Arc::new(NoObserver),
        };
        let log = GroupLog::open(log_config, env)
            .await
            .expect("the log opens");
        let mut config = GroupConfig::new(GROUP, node, first);
        config.heartbeat = Duration::from_millis(100);
        config.election_min = Duration::from_millis(500);
        config.election_max = Duration::from_millis(1000);
        // The listener first: a peer that asks too early hears "unknown group".
        let listener = broker.listen().await;
        let group = Group::start(
            config,
            log,
            Values::default(),
            broker.transport.group(GROUP),
        )
        .await
        .expect("the group starts");
        Self {
            registered: broker.groups.register(GROUP, group.inbox()),
            broker,
            listener,
            group,
            log_tasks,
        }
    }

    /// Ends it as a process would: nobody answers any more.
    async fn stop(self) {
        drop(self.registered);
        self.listener.stop().await;
        self.broker.tasks.stop().await;
        self.group.stop().await;
        self.log_tasks.stop().await;
    }
}

struct Cluster {
    dir: tempfile::TempDir,
    book: Arc<Book>,
    replicas: BTreeMap<i32, Replica>,
}

impl Cluster {
    async fn start() -> Self {
        let mut cluster = Self {
            dir: tempfile::tempdir().expect("a temporary directory"),
            book: Arc::default(),
            replicas: BTreeMap::new(),
        };
        let members: BTreeMap<_, _> = (1..=3)
            .map(|id| {
                let member = Member {
                    broker: NodeId::new(id),
                    address: "127.0.0.1:1".to_owned(),
                };
                (node_of(id), member)
            })
            .collect();
        for id in [3, 2, 1] {
            cluster.start_one(id, members.clone()).await;
        }
        cluster
    }

    async fn start_one(&mut self, id: i32, first: BTreeMap<RaftNodeId, Member>) {
        let dir = self.dir.path().join(format!("{id}/groups/1"));
        let replica = Replica::start(id, dir, first, &self.book).await;
        self.replicas.insert(id, replica);
    }

    async fn stop_one(&mut self, id: i32) {
        self.replicas.remove(&id).expect("it runs").stop().await;
    }

    async fn leader(&self) -> (i32, Group<Values>) {
        let found = tokio::time::timeout(WAIT, async {
            loop {
                for (id, replica) in &self.replicas {
                    if replica.group.can_serve_reads() {
                        return (*id, replica.group.clone());
                    }
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        found.await.expect("somebody leads")
    }

    /// Waits until every running replica holds exactly `0..values`.
    async fn agree(&self, values: u64) {
        let values: Vec<u64> = (0..values).collect();
        for (id, replica) in &self.replicas {
            let mut applied = replica.group.applied();
            let holds = async {
                while replica.group.read(|machine| machine.values != values) {
                    applied.changed().await.expect("it runs");
                }
            };
            if tokio::time::timeout(WAIT, holds).await.is_err() {
                let held = replica.group.read(|machine| machine.values.clone());
                panic!("replica {id} holds {held:?}");
            }
        }
    }

    async fn stop(mut self) {
        while let Some((_, replica)) = self.replicas.pop_first() {
            replica.stop().await;
        }
    }
}

async fn propose(leader: &Group<Values>, values: std::ops::Range<u64>) {
    let waiting: Vec<_> = values
        .map(|value| {
            let dir = Bytes::copy_from_slice(&value.to_le_bytes());
            leader.propose_ordered(Command::new(dir, Bytes::from(vec![7; 700])))
        })
        .collect();
    for result in futures::future::join_all(waiting).await {
        result.expect("applied");
    }
}

/// Proves the whole way over TCP: an election, replication in order, a new leader when the old one is gone, and the old one
/// taking part again at another address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_brokers_agree_and_go_on_without_their_leader() {
    let mut cluster = Cluster::start().await;
    let (old, leader) = cluster.leader().await;
    propose(&leader, 0..200).await;
    cluster.agree(200).await;
    let before = leader.term();

    cluster.stop_one(old).await;
    let (new, leader) = cluster.leader().await;
    assert_ne!(new, old);
    assert!(leader.term() > before);
    propose(&leader, 200..300).await;
    cluster.agree(300).await;

    cluster.start_one(old, BTreeMap::new()).await;
    cluster.agree(300).await;
    let (_, leader) = cluster.leader().await;
    propose(&leader, 300..350).await;
    cluster.agree(350).await;
    cluster.stop().await;
}

/// Proves that a replica whose missing entries are purged gets the checkpoint in chunks, and the entries after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_far_behind_gets_the_checkpoint_in_chunks() {
    let mut cluster = Cluster::start().await;
    let (leading, leader) = cluster.leader().await;
    propose(&leader, 0..20).await;
    cluster.agree(20).await;
    let behind = if leading == 3 { 2 } else { 3 };
    cluster.stop_one(behind).await;
    propose(&leader, 20..120).await;
    let (at_cut, _) = leader.propose(Command::default()).await.expect("applied");
    propose(&leader, 120..150).await;
    assert_eq!(leader.snapshot_and_persist().await, Ok(at_cut));
    leader.purge(at_cut.index).await.expect("asked");
    until("purged", || leader.log().state().purged == Some(at_cut)).await;

    cluster.start_one(behind, BTreeMap::new()).await;
    cluster.agree(150).await;
    let replica = &cluster.replicas[&behind];
    let newest = replica.group.log().load_newest_checkpoint().await;
    let (found, image) = newest.expect("readable").expect("there");
    assert_eq!(found, at_cut, "what was installed is a checkpoint here too");
    assert!(image.len() > PADDING);
    let metrics = replica
        .broker
        .metrics
        .lane(crate::peer::frame::WireLane::Snapshots);
    let received = metrics.received_bytes.get();
    let padding = u64::try_from(PADDING).unwrap();
    assert!(
        (padding..padding + (64 << 10)).contains(&received),
        "{received} bytes: once"
    );
    // A begin, seven chunks, an end; and perhaps begins that came before the group was registered.
    assert!(metrics.received_messages.get() >= 9, "in chunks");
    assert_eq!(
        replica.listener.shared.partials.announced(),
        0,
        "and forgotten"
    );
    propose(&leader, 150..160).await;
    cluster.agree(160).await;
    cluster.stop().await;
}
