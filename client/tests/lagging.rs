//! Brokers that have not heard of a topic yet: one, or all for a moment. Nobody takes their word for that of the cluster.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    dead_code
)]

mod fake;

use fake::{FakeBroker, Fault};
use std::collections::BTreeMap;
use std::time::Duration;
use tidelog_client::admin::OffsetSpec;
use tidelog_client::consumer::{
    Consumer, ConsumerConfig, GroupConfig, GroupConsumer, Start, TopicPartition,
};
use tidelog_client::producer::{NewRecord, Producer, ProducerConfig};
use tidelog_client::{Cluster, ClusterConfig, Error, ErrorCode};
use tidelog_env::{SystemClock, SystemRandom, TcpNetwork};
use tidelog_model::{Offset, PartitionIndex};
use tokio::time::Instant;

const METADATA: i16 = 3;
const OFFSET_COMMIT: i16 = 8;
const ALWAYS: usize = usize::MAX;

fn cluster(broker: &FakeBroker, within: Duration) -> Cluster {
    let mut config = ClusterConfig::new(&broker.address.to_string());
    config.request_timeout = Duration::from_secs(10);
    config.operation_timeout = within;
    Cluster::new(config, TcpNetwork::shared(), SystemRandom::seeded(1)).unwrap()
}

/// Two brokers with the topic `t`, which they have not heard of for so many answers.
async fn two(first_lags: usize, second_lags: usize) -> (FakeBroker, FakeBroker, Cluster) {
    let first = FakeBroker::start().await;
    first.topic("t", 1);
    let second = first.start_other(2).await;
    first.state.lock().lagging = BTreeMap::from([(1, first_lags), (2, second_lags)]);
    let cluster = cluster(&first, Duration::from_secs(20));
    (first, second, cluster)
}

fn place() -> TopicPartition {
    TopicPartition {
        topic: "t".into(),
        partition: PartitionIndex::new(0),
    }
}

async fn send(cluster: &Cluster) -> Result<Offset, Error> {
    let config = ProducerConfig::default();
    let producer = Producer::start(cluster.clone(), config, SystemClock::shared()).unwrap();
    let record = NewRecord {
        topic: "t",
        value: Some(b"v"),
        ..NewRecord::default()
    };
    let delivery = producer.send(record).await?;
    let ack = delivery.wait().await.map_err(|failed| failed.error)?;
    Ok(ack.offset.unwrap())
}

/// Proves that a producer, a consumer, a member of a group, and who asks for offsets find a topic of which the first broker they ask never hears.
#[tokio::test]
async fn another_broker_knows_the_topic() {
    let (_first, _second, producing) = two(ALWAYS, 0).await;
    assert_eq!(send(&producing).await.unwrap(), Offset::ZERO);

    let (_first, _second, reading) = two(ALWAYS, 0).await;
    let mut consumer = Consumer::new(reading, ConsumerConfig::default());
    let start = Start::At(Offset::ZERO);
    consumer.assign(vec![(place(), start)]).await.unwrap();

    let (_first, _second, asking) = two(ALWAYS, 0).await;
    let wanted = [(PartitionIndex::new(0), OffsetSpec::Latest)].into();
    let found = asking.list_offsets("t", &wanted).await.unwrap();
    assert_eq!(found[&PartitionIndex::new(0)], Offset::ZERO);

    let (_first, _second, joining) = two(ALWAYS, 0).await;
    let config = GroupConfig::new("g", "t", Start::EARLIEST);
    let member = GroupConsumer::join(&joining, config, ConsumerConfig::default());
    let member = member.await.unwrap();
    assert!(member.consumer().positions().contains_key(&place()));
}

/// Proves that a topic of which no broker has heard yet is asked for again.
#[tokio::test]
async fn a_new_topic_is_waited_for() {
    let (first, _second, cluster) = two(2, 2).await;
    assert_eq!(send(&cluster).await.unwrap(), Offset::ZERO);
    let lags = first.state.lock().lagging.clone();
    assert!(lags.values().any(|left| *left == 0), "{lags:?}");
    assert!(first.seen(METADATA) > 3);
}

/// Proves that a topic is unknown when all brokers have said so for a while, long before the deadline, and that the error names them.
#[tokio::test]
async fn unknown_is_what_all_say() {
    let (first, _second, cluster) = two(0, 0).await;
    let began = Instant::now();
    let error = cluster.topic("absent").await.unwrap_err();
    let took = began.elapsed();
    assert!(matches!(error, Error::Broker { .. }), "{error}");
    assert_eq!(error.code(), Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION));
    assert!(
        error.to_string().contains("brokers 1, 2 know none"),
        "{error}"
    );
    let waited = Duration::from_secs(1)..Duration::from_secs(15);
    assert!(waited.contains(&took), "{took:?}");
    assert!(first.seen(METADATA) >= 6, "several rounds");
}

/// Proves that a broker which does not answer may be the one that knows: it is waited for until the deadline, and named then; and found when it answers before.
#[tokio::test]
async fn who_does_not_answer_may_know() {
    let (first, second, _) = two(ALWAYS, 0).await;
    second.pause();
    let short = cluster(&first, Duration::from_secs(4));
    let error = short.topic("t").await.unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("broker 1 knows none; broker 2 did not answer"),
        "{text}"
    );
    let again = cluster(&first, Duration::from_secs(20));
    let (found, ()) = tokio::join!(again.topic("t"), async {
        let before = first.seen(METADATA);
        while first.seen(METADATA) < before + 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        second.go_on();
    });
    found.unwrap();
}

/// Proves that a commit which the coordinator cannot check now, or whose topic it has not heard of, is made again, and one of an older generation is not.
#[tokio::test]
async fn a_commit_is_made_again() {
    use Fault::Code;
    let (first, _second, cluster) = two(0, 0).await;
    send(&cluster).await.unwrap();
    let config = GroupConfig::new("g", "t", Start::EARLIEST);
    let member = GroupConsumer::join(&cluster, config, ConsumerConfig::default());
    let mut member = member.await.unwrap();
    first.fault(OFFSET_COMMIT, &[Code(14), Code(3)]);
    let at = |offset| BTreeMap::from([(place(), Offset::new(offset))]);
    member.commit_at(at(1)).await.unwrap();
    let key = ("g".to_owned(), "t".to_owned(), 0);
    assert_eq!(first.state.lock().committed[&key], 1);
    assert_eq!(first.seen(OFFSET_COMMIT), 3);
    first.fault(OFFSET_COMMIT, &[Code(22)]);
    let error = member.commit_at(at(0)).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::ILLEGAL_GENERATION));
    assert_eq!(first.seen(OFFSET_COMMIT), 4);
}
