//! Three whole brokers in this process that form one cluster: what formation, replication, and failover mean to clients.

use super::*;
use crate::wire::messages::{FindCoordinatorRequest, MetadataRequest, MetadataResponse};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use tidelog_client::consumer::{Consumer, ConsumerConfig, Event, Start, TopicPartition};
use tidelog_client::producer::{NewRecord, Producer, ProducerConfig};
use tidelog_client::{Cluster, ClusterConfig};
use tidelog_env::{SystemClock, SystemRandom};
use tidelog_model::PartitionIndex;
use tidelog_tiering::store::faulty::FaultyStore;

/// An election and everything around it, on a machine that does other things too.
pub(super) const SETTLE: Duration = Duration::from_secs(60);

pub(super) struct Three {
    pub(super) dir: tempfile::TempDir,
    /// Peer, Kafka and admin port of each broker.
    pub(super) ports: BTreeMap<i32, [u16; 3]>,
    pub(super) nodes: BTreeMap<i32, Node>,
    /// Settings besides the rig's own; the later one of a key counts.
    pub(super) set: Vec<String>,
    /// And of single brokers.
    pub(super) own: BTreeMap<i32, Vec<String>>,
    /// Stores in place of the directory.
    pub(super) stores: BTreeMap<i32, FaultyStore>,
}

/// Ports that are free now, and that the system gives to nobody by itself: a connection of another test must not take one meanwhile.
pub(super) fn free_ports() -> [u16; 3] {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 10_000;
    const COUNT: u16 = 20_000;
    // Processes that start together have neighbouring ids: each begins far from the others.
    let start =
        u16::try_from((std::process::id() % u32::from(COUNT)) * 331 % u32::from(COUNT)).unwrap();
    let mut free = std::iter::repeat_with(|| {
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let at = (u32::from(start) + u32::from(next)) % u32::from(COUNT);
        FIRST + u16::try_from(at).unwrap()
    });
    let mut port = || {
        let held = free.find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok());
        held.unwrap()
    };
    [port(), port(), port()]
}

impl Three {
    pub(super) fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            ports: (1..=3).map(|id| (id, free_ports())).collect(),
            nodes: BTreeMap::new(),
            set: Vec::new(),
            own: BTreeMap::new(),
            stores: BTreeMap::new(),
        }
    }

    pub(super) fn config(&self, id: i32) -> Config {
        let [peer, kafka, admin] = self.ports[&id];
        let seeds: Vec<String> = self
            .ports
            .iter()
            .map(|(id, ports)| format!("{id}@127.0.0.1:{}", ports[0]))
            .collect();
        let set = [
            format!("node.id={id}"),
            format!("node.zone=zone-{id}"),
            format!(
                "node.data-dir={}",
                self.dir.path().join(id.to_string()).display()
            ),
            format!(
                "store.url=file://{}",
                self.dir.path().join("store").display()
            ),
            format!("peer.listen=127.0.0.1:{peer}"),
            format!("kafka.listen=127.0.0.1:{kafka}"),
            format!("admin.listen=127.0.0.1:{admin}"),
            format!("cluster.seeds={}", seeds.join(",")),
            "cluster.data-groups=3".to_owned(),
            "log.file-bytes=8388608".to_owned(),
            "log.reserve-bytes=0".to_owned(),
            "archive.enable=false".to_owned(),
            "tier.cut-interval-ms=1000".to_owned(),
        ];
        let own = self.own.get(&id).into_iter().flatten();
        let sources = Sources {
            set: set.iter().chain(&self.set).chain(own).cloned().collect(),
            ..Sources::default()
        };
        Config::load(&sources).unwrap()
    }

    /// Starts brokers in this order, each when the one before listens for its peers.
    pub(super) async fn start(&mut self, order: &[i32]) {
        let mut starting = Vec::new();
        for id in order {
            let config = self.config(*id);
            let world = World {
                store: self
                    .stores
                    .get(id)
                    .map(|store| Arc::new(store.clone()) as _),
                ..World::system()
            };
            let task = tokio::spawn(Node::start(config, world));
            starting.push((*id, task));
            let peer = self.ports[id][0];
            until("it listens", || async move {
                tokio::net::TcpStream::connect(("127.0.0.1", peer))
                    .await
                    .is_ok()
            })
            .await;
        }
        for (id, task) in starting {
            let node = tokio::time::timeout(SETTLE, task).await.expect("it starts");
            self.nodes.insert(id, node.unwrap().unwrap());
        }
    }

    pub(super) async fn connect(&self, id: i32) -> Connection {
        let network = TcpNetwork::shared();
        let port = self.ports[&id][1];
        Connection::open(
            network.as_ref(),
            "127.0.0.1",
            port,
            &ConnectionConfig::default(),
        )
        .await
        .unwrap()
    }

    pub(super) async fn metadata(&self, id: i32) -> MetadataResponse {
        let connection = self.connect(id).await;
        let answer = connection
            .call(9..=9, deadline(), |_| {
                let mut request = MetadataRequest::default();
                request.topics = None;
                request
            })
            .await
            .unwrap();
        connection.close("asked");
        answer
    }

    pub(super) fn cluster(&self) -> Cluster {
        let at: Vec<_> = self
            .nodes
            .keys()
            .map(|id| format!("127.0.0.1:{}", self.ports[id][1]))
            .collect();
        let config = ClusterConfig::new(&at.join(","));
        Cluster::new(config, TcpNetwork::shared(), SystemRandom::shared()).unwrap()
    }

    pub(super) fn cluster_ids(&self) -> BTreeSet<String> {
        let ids = self.nodes.values().map(|node| node.addresses().identity);
        ids.map(|identity| identity.cluster.to_string()).collect()
    }

    /// Who leads each partition of `topic`, once all brokers say the same and somebody leads each.
    pub(super) async fn leaders(&self, topic: &str) -> Vec<i32> {
        let until = Instant::now() + SETTLE;
        loop {
            let mut said = BTreeSet::new();
            for id in self.nodes.keys() {
                let answer = self.metadata(*id).await;
                let found = answer.topics.iter().find(|known| {
                    known
                        .name
                        .as_ref()
                        .is_some_and(|name| name.as_str() == topic)
                });
                said.insert(found.map(|topic| {
                    let partitions = topic.partitions.iter();
                    partitions
                        .map(|partition| partition.leader_id)
                        .collect::<Vec<_>>()
                }));
            }
            if let (1, Some(Some(leaders))) = (said.len(), said.first())
                && leaders.iter().all(|id| self.nodes.contains_key(id))
            {
                return leaders.clone();
            }
            assert!(Instant::now() < until, "no agreement: {said:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub(super) async fn stop(mut self) {
        while let Some((_, node)) = self.nodes.pop_first() {
            node.stop().await;
        }
    }

    /// All records of a topic: their offsets and values, per partition.
    pub(super) async fn read_all(
        &self,
        topic: &str,
        partitions: i32,
        records: usize,
    ) -> Vec<Vec<(i64, String)>> {
        let mut read = vec![Vec::new(); usize::try_from(partitions).unwrap()];
        self.read_each(topic, partitions, records, |partition, offset, value| {
            let value = String::from_utf8(value.to_vec()).unwrap();
            read[partition].push((offset, value));
        })
        .await;
        read
    }

    /// Hands out partition, offset, and value of so many records of a topic from its start, each partition in order.
    pub(super) async fn read_each(
        &self,
        topic: &str,
        partitions: i32,
        records: usize,
        mut each: impl FnMut(usize, i64, &[u8]),
    ) {
        let mut consumer = Consumer::new(self.cluster(), ConsumerConfig::default());
        let places = (0..partitions).map(|partition| {
            let place = TopicPartition {
                topic: topic.into(),
                partition: PartitionIndex::new(partition),
            };
            (place, Start::EARLIEST)
        });
        let mut until = Instant::now() + SETTLE;
        let places: Vec<_> = places.collect();
        while let Err(error) = consumer.assign(places.clone()).await {
            assert!(Instant::now() < until, "{error}");
        }
        let mut read = 0;
        while read < records {
            assert!(Instant::now() < until, "only {read} of {records} records");
            let Ok(events) = consumer.poll(Duration::from_millis(200)).await else {
                continue;
            };
            for event in events {
                let Event::Fetched(fetched) = event else {
                    panic!("a gap");
                };
                let at = usize::try_from(fetched.partition.partition.get()).unwrap();
                for record in fetched.records() {
                    let record = record.unwrap();
                    each(at, record.offset.get(), &record.record.value.unwrap());
                    read += 1;
                }
                until = Instant::now() + SETTLE;
            }
        }
    }
}

pub(super) async fn until<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let until = Instant::now() + SETTLE;
    while !condition().await {
        assert!(Instant::now() < until, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What was acknowledged: offset and value, per partition.
pub(super) type Acknowledged = Vec<Vec<(i64, String)>>;

/// Produces values `from..to`, one after the other into two partitions, and waits for all.
pub(super) async fn produce(
    producer: &Producer,
    topic: &str,
    values: std::ops::Range<u32>,
    acknowledged: &mut Acknowledged,
) {
    let mut waiting = Vec::new();
    for value in values {
        let value = value.to_string();
        let record = NewRecord {
            topic,
            key: Some(value.as_bytes()),
            value: Some(value.as_bytes()),
            ..NewRecord::default()
        };
        waiting.push((producer.send(record).await.unwrap(), value.clone()));
    }
    for (delivery, value) in waiting {
        let ack = delivery.wait().await.unwrap();
        let at = usize::try_from(delivery.partition()).unwrap();
        acknowledged[at].push((ack.offset.unwrap().get(), value));
    }
}

pub(super) fn sorted(mut all: Acknowledged) -> Acknowledged {
    all.iter_mut().for_each(|partition| partition.sort());
    all
}

/// Proves that every order of starts, with empty directories, gives exactly one cluster whose brokers all know each other.
#[tokio::test(flavor = "multi_thread")]
async fn every_order_of_starts_gives_one_cluster() {
    for order in [
        [1, 2, 3],
        [1, 3, 2],
        [2, 1, 3],
        [2, 3, 1],
        [3, 1, 2],
        [3, 2, 1],
    ] {
        let mut three = Three::new();
        three.start(&order).await;
        assert_eq!(three.cluster_ids().len(), 1, "{order:?}");
        let answer = three.metadata(order[2]).await;
        let known: Vec<_> = answer
            .brokers
            .iter()
            .map(|broker| {
                let rack = broker.rack.as_ref().unwrap().as_str().to_owned();
                (broker.node_id, broker.port, rack)
            })
            .collect();
        let expected: Vec<_> = (1..=3)
            .map(|id| (id, i32::from(three.ports[&id][1]), format!("zone-{id}")))
            .collect();
        assert_eq!(known, expected, "{order:?}");
        three.stop().await;
    }
}

/// Proves that a change made through any broker is seen on all, that every broker names the same leaders and coordinators, and that
/// who does not lead says so.
#[tokio::test(flavor = "multi_thread")]
async fn any_broker_takes_changes_and_all_agree() {
    let mut three = Three::new();
    three.start(&[3, 1, 2]).await;
    for id in 1..=3 {
        let connection = three.connect(id).await;
        let name = format!("from-{id}");
        let created = create(&connection, &name, 3).await;
        assert_eq!(created.error_code, 0, "{:?}", created.error_message);
        assert_eq!((created.num_partitions, created.replication_factor), (3, 3));
        let refused = create_with(&connection, "two-copies", 1, 2).await;
        assert_code(refused.error_code, ErrorCode::InvalidReplicationFactor);
        assert!(
            refused
                .error_message
                .unwrap()
                .as_str()
                .contains("takes 1, 3,")
        );
        let again = create(&connection, &name, 3).await;
        assert_code(again.error_code, ErrorCode::TopicAlreadyExists);
        assert_eq!(three.leaders(&name).await.len(), 3);
        connection.close("done");
    }
    let mut coordinators = BTreeSet::new();
    for id in 1..=3 {
        let connection = three.connect(id).await;
        let found = connection
            .call(3..=3, deadline(), |_| {
                let mut request = FindCoordinatorRequest::default();
                request.key = StrBytes::from("a consumer group");
                request
            })
            .await
            .unwrap();
        assert_eq!(found.error_code, 0);
        coordinators.insert((found.node_id, found.port));
        connection.close("done");
    }
    assert_eq!(coordinators.len(), 1, "{coordinators:?}");
    three.stop().await;
}

/// Proves that nothing acknowledged is lost or doubled when the leader falls silent, and that the same idempotent producer goes on
/// with the next leader; then that all three, started again in another order, still have everything at its offsets.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_survives_a_leader_and_a_restart() {
    let mut three = Three::new();
    three.start(&[1, 2, 3]).await;
    let cluster = three.cluster();
    cluster.create_topic("t", 2, &[]).await.unwrap();
    let before = three.leaders("t").await;
    let clock = SystemClock::shared();
    let producer = Producer::start(cluster, ProducerConfig::default(), clock).unwrap();
    let mut acknowledged = vec![Vec::new(); 2];
    produce(&producer, "t", 0..300, &mut acknowledged).await;

    three
        .nodes
        .remove(&before[0])
        .unwrap()
        .stop_abruptly()
        .await;
    produce(&producer, "t", 300..600, &mut acknowledged).await;
    let after = three.leaders("t").await;
    assert_ne!(after[0], before[0]);
    producer.close().await.unwrap();
    let expected = sorted(acknowledged);
    assert_eq!(three.read_all("t", 2, 600).await, expected);

    let cluster_ids = three.cluster_ids();
    while let Some((_, node)) = three.nodes.pop_first() {
        node.stop().await;
    }
    three.start(&[3, 2, 1]).await;
    assert_eq!(three.cluster_ids(), cluster_ids);
    three.leaders("t").await;
    assert_eq!(three.read_all("t", 2, 600).await, expected);
    three.stop().await;
}

/// Proves that leaders come to be spread over the brokers, and that a broker that stops in order hands its leadership over.
#[tokio::test(flavor = "multi_thread")]
async fn leaders_are_spread_and_handed_over() {
    let mut three = Three::new();
    three.start(&[2, 3, 1]).await;
    three.cluster().create_topic("t", 3, &[]).await.unwrap();
    let until = Instant::now() + SETTLE;
    loop {
        let leaders: BTreeSet<_> = three.leaders("t").await.into_iter().collect();
        if leaders.len() == 3 {
            break;
        }
        assert!(Instant::now() < until, "not spread: {leaders:?}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let stopped = three.nodes.remove(&2).unwrap();
    stopped.stop().await;
    let leaders = three.leaders("t").await;
    assert!(!leaders.contains(&2), "{leaders:?}");
    three.stop().await;
}

/// Proves that replicas that do not lead save checkpoints of published cuts too: their logs do not grow for ever.
#[tokio::test(flavor = "multi_thread")]
async fn every_replica_saves_published_cuts() {
    let mut three = Three::new();
    three.start(&[1, 2, 3]).await;
    let cluster = three.cluster();
    cluster.create_topic("t", 2, &[]).await.unwrap();
    let clock = SystemClock::shared();
    let producer = Producer::start(cluster, ProducerConfig::default(), clock).unwrap();
    let mut acknowledged = vec![Vec::new(); 2];
    produce(&producer, "t", 0..50, &mut acknowledged).await;
    producer.close().await.unwrap();
    let used: BTreeSet<_> = three.nodes[&1].parts.groups.router.image(|image| {
        let (_, topic) = image.topic_by_name("t").unwrap();
        topic.partitions.iter().copied().collect()
    });
    for node in three.nodes.values() {
        for group in &used {
            let held = node.parts.groups.router.data_group(*group).unwrap();
            let log = held.group().log();
            until("a checkpoint", || async {
                log.load_newest_checkpoint().await.unwrap().is_some()
            })
            .await;
        }
    }
    assert_eq!(three.read_all("t", 2, 50).await, sorted(acknowledged));
    three.stop().await;
}

pub(super) async fn create(
    connection: &Connection,
    name: &str,
    partitions: i32,
) -> CreatableTopicResult {
    create_with(connection, name, partitions, -1).await
}

pub(super) async fn create_with(
    connection: &Connection,
    name: &str,
    partitions: i32,
    factor: i16,
) -> CreatableTopicResult {
    create_by(connection, name, partitions, factor, 30_000).await
}

/// A topic with the default replication factor.
pub(super) async fn create_with_timeout(
    connection: &Connection,
    name: &str,
    partitions: i32,
    timeout_ms: i32,
) -> CreatableTopicResult {
    create_by(connection, name, partitions, -1, timeout_ms).await
}

async fn create_by(
    connection: &Connection,
    name: &str,
    partitions: i32,
    factor: i16,
    timeout_ms: i32,
) -> CreatableTopicResult {
    let answer = connection
        .call(7..=7, deadline(), |_| {
            let mut topic = CreatableTopic::default();
            topic.name = StrBytes::from(name);
            topic.num_partitions = partitions;
            topic.replication_factor = factor;
            let mut request = CreateTopicsRequest::default();
            request.topics.push(topic);
            request.timeout_ms = timeout_ms;
            request
        })
        .await
        .unwrap();
    answer.topics.into_iter().next().unwrap()
}
