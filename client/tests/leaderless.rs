//! Partitions that nobody leads, or whose leader does not tell where they begin: they hold up no others.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    dead_code
)]

mod fake;

use fake::FakeBroker;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidelog_client::consumer::{Consumer, ConsumerConfig, Event, Start, TopicPartition};
use tidelog_client::producer::{NewRecord, Producer, ProducerConfig};
use tidelog_client::{Cluster, ClusterConfig, Error, ErrorCode};
use tidelog_env::{SystemClock, SystemRandom, TcpNetwork};
use tidelog_model::{Offset, PartitionIndex};
use tokio::time::Instant;

const PARTITIONS: i32 = 3;
const LIMIT: Duration = Duration::from_secs(30);
const NOT_LEADER: i16 = 6;
const NOT_ALLOWED: i16 = 29;

fn at(partition: i32) -> TopicPartition {
    TopicPartition {
        topic: "t".into(),
        partition: PartitionIndex::new(partition),
    }
}

fn all(start: Start) -> Vec<(TopicPartition, Start)> {
    (0..PARTITIONS)
        .map(|partition| (at(partition), start))
        .collect()
}

fn cluster(broker: &FakeBroker, within: Duration) -> Cluster {
    let mut config = ClusterConfig::new(&broker.address.to_string());
    config.operation_timeout = within;
    Cluster::new(config, TcpNetwork::shared(), SystemRandom::seeded(1)).unwrap()
}

/// A broker with one record in each partition of `t`, and a cluster.
async fn filled() -> (FakeBroker, Cluster) {
    let broker = FakeBroker::start().await;
    broker.topic("t", usize::try_from(PARTITIONS).unwrap());
    let cluster = cluster(&broker, LIMIT);
    let config = ProducerConfig::default();
    let producer = Producer::start(cluster.clone(), config, SystemClock::shared()).unwrap();
    for partition in 0..PARTITIONS {
        let record = NewRecord {
            topic: "t",
            partition: Some(PartitionIndex::new(partition)),
            value: Some(b"v"),
            ..NewRecord::default()
        };
        let delivery = producer.send(record).await.unwrap();
        delivery.wait().await.unwrap();
    }
    (broker, cluster)
}

/// Polls until something of each of these partitions has come. Nothing comes of others.
async fn read(consumer: &mut Consumer, wanted: &[i32]) {
    let mut left: BTreeSet<i32> = wanted.iter().copied().collect();
    let end = Instant::now() + LIMIT;
    while !left.is_empty() {
        assert!(Instant::now() < end, "nothing comes of {left:?}");
        for event in consumer.poll(Duration::from_millis(200)).await.unwrap() {
            let Event::Fetched(fetched) = event else {
                panic!("{event:?}");
            };
            let partition = fetched.partition.partition.get();
            assert!(left.remove(&partition), "{partition} comes again");
        }
    }
}

/// Proves that the partitions which are led are read while one is not, which is read from its beginning once it is; and so where the leader is known and does not tell.
#[tokio::test]
async fn who_is_led_is_read() {
    let (broker, cluster) = filled().await;
    let mut consumer = Consumer::new(cluster.separate(), ConsumerConfig::default());
    for without_leader in [true, false] {
        {
            let mut state = broker.state.lock();
            if without_leader {
                state.leaderless.insert(1);
            }
            state.untold.insert(1, NOT_LEADER);
        }
        consumer.assign(all(Start::EARLIEST)).await.unwrap();
        let known: Vec<_> = consumer.positions().into_keys().collect();
        assert_eq!(known, [at(0), at(2)]);
        read(&mut consumer, &[0, 2]).await;
        {
            let mut state = broker.state.lock();
            state.leaderless.clear();
            state.untold.clear();
        }
        read(&mut consumer, &[1]).await;
        assert_eq!(consumer.positions()[&at(1)], Offset::new(1));
    }
}

/// Proves that the caller may say where a partition is read from that nobody could be asked about; what its leader tells later changes nothing.
#[tokio::test]
async fn the_caller_may_know_better() {
    let (broker, cluster) = filled().await;
    broker.state.lock().leaderless.insert(1);
    let mut consumer = Consumer::new(cluster.separate(), ConsumerConfig::default());
    consumer.assign(all(Start::LATEST)).await.unwrap();
    consumer.seek(&at(1), Offset::ZERO);
    assert_eq!(consumer.positions()[&at(1)], Offset::ZERO);
    broker.state.lock().leaderless.clear();
    read(&mut consumer, &[1]).await;
    assert_eq!(consumer.positions()[&at(1)], Offset::new(1));
}

/// Proves that an assignment fails when nothing is told at all until the deadline, and at once when trying again does not help.
#[tokio::test]
async fn nothing_told_is_an_error() {
    let (broker, _) = filled().await;
    let untold = |code| (0..PARTITIONS).map(|at| (at, code)).collect();
    let short = cluster(&broker, Duration::from_secs(2));
    broker.state.lock().untold = untold(NOT_LEADER);
    let mut consumer = Consumer::new(short, ConsumerConfig::default());
    let error = consumer.assign(all(Start::EARLIEST)).await.unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error}");
    broker.state.lock().untold = BTreeMap::from([(0, NOT_LEADER), (2, NOT_ALLOWED)]);
    let error = consumer.assign(all(Start::EARLIEST)).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::new(NOT_ALLOWED)), "{error}");
}
