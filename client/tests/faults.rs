//! Protocol edges against a scripted broker: errors, connections lost in the middle, lost answers, gaps, group changes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    dead_code
)]

mod fake;

use fake::{FakeBroker, Fault};
use std::sync::Arc;
use std::time::Duration;
use tidelog_client::admin::OffsetSpec;
use tidelog_client::consumer::{
    Consumer, ConsumerConfig, Event, GroupConfig, GroupConsumer, Start, TopicPartition,
};
use tidelog_client::producer::{Acks, NewRecord, Producer, ProducerConfig};
use tidelog_client::{Cluster, ClusterConfig, Error, ErrorCode, Outcome};
use tidelog_env::{SystemClock, SystemRandom, TcpNetwork};
use tidelog_model::{Offset, PartitionIndex};

const PRODUCE: i16 = 0;
const FETCH: i16 = 1;
const INIT_PRODUCER_ID: i16 = 22;

fn cluster_at(address: &str) -> Cluster {
    let mut config = ClusterConfig::new(address);
    config.request_timeout = Duration::from_millis(500);
    config.operation_timeout = Duration::from_secs(10);
    Cluster::new(config, TcpNetwork::shared(), SystemRandom::seeded(1)).unwrap()
}

fn cluster(broker: &FakeBroker) -> Cluster {
    cluster_at(&broker.address.to_string())
}

fn producer(broker: &FakeBroker, acks: Acks) -> Producer {
    let config = ProducerConfig {
        acks,
        batch_bytes: 300,
        buffer_bytes: 3000,
        linger: Duration::from_millis(1),
        request_timeout: Duration::from_millis(500),
        ..ProducerConfig::default()
    };
    Producer::start(cluster(broker), config, SystemClock::shared()).unwrap()
}

fn value(number: usize) -> Vec<u8> {
    format!("value number {number}").into_bytes()
}

async fn send(
    producer: &Producer,
    numbers: std::ops::Range<usize>,
) -> Vec<tidelog_client::producer::Delivery> {
    let mut deliveries = Vec::new();
    for number in numbers {
        let value = value(number);
        let record = NewRecord {
            topic: "t",
            partition: Some(PartitionIndex::new(0)),
            value: Some(&value),
            ..NewRecord::default()
        };
        deliveries.push(producer.send(record).await.unwrap());
    }
    deliveries
}

/// Proves that lost answers, connections lost in the middle of one, silence and refusals lead neither to a duplicate nor
/// to a gap, and that each record learns its offset.
#[tokio::test]
async fn lost_answers_make_no_duplicates() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    use Fault::*;
    broker.fault(INIT_PRODUCER_ID, &[CloseBefore, Code(15), CloseAfter]);
    broker.fault(
        PRODUCE,
        &[
            CloseAfter,
            Code(6),
            CloseInTheMiddle,
            CloseBefore,
            Silence,
            CloseAfter,
            Code(19),
            CloseAfter,
        ],
    );
    let producer = producer(&broker, Acks::All);
    let deliveries = send(&producer, 0..300).await;
    producer.flush().await.unwrap();
    for (number, delivery) in deliveries.iter().enumerate() {
        let offset = delivery.wait().await.unwrap().offset.unwrap();
        assert_eq!(offset.get(), i64::try_from(number).unwrap());
    }
    let expected: Vec<_> = (0..300).map(value).collect();
    assert_eq!(broker.state.lock().topics["t"][0].values(), expected);
    assert!(
        broker.state.lock().faults[&PRODUCE].is_empty(),
        "every fault happened"
    );
}

/// Proves that without idempotence a lost answer is reported as open and the batch is not sent again.
#[tokio::test]
async fn without_idempotence_a_lost_answer_is_open() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    broker.fault(PRODUCE, &[Fault::CloseAfter]);
    let producer = producer(&broker, Acks::Leader);
    let delivery = send(&producer, 0..1).await.remove(0);
    let failed = delivery.wait().await.unwrap_err();
    assert_eq!(failed.outcome, Outcome::MayHaveHappened);
    assert_eq!(broker.state.lock().topics["t"][0].values().len(), 1);
    assert_eq!(broker.seen(INIT_PRODUCER_ID), 0);
    producer.close().await.unwrap();
}

/// Proves that a final refusal fails only its batch; what comes after goes on under a new identity.
#[tokio::test]
async fn a_refused_batch_does_not_stop_the_others() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    broker.fault(PRODUCE, &[Fault::Code(10)]);
    let producer = producer(&broker, Acks::All);
    let refused = send(&producer, 0..1).await.remove(0);
    let failed = refused.wait().await.unwrap_err();
    assert_eq!(
        (failed.outcome, failed.error.code()),
        (Outcome::DidNotHappen, Some(ErrorCode::MESSAGE_TOO_LARGE))
    );
    let next = send(&producer, 1..2).await.remove(0);
    assert_eq!(next.wait().await.unwrap().offset, Some(Offset::new(0)));
    assert_eq!(broker.seen(INIT_PRODUCER_ID), 2);
    assert_eq!(broker.state.lock().topics["t"][0].values(), [value(1)]);
}

/// Proves that acks=0 is sent and answered by nobody.
#[tokio::test]
async fn unacknowledged_records_are_written() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    // The fake broker always answers; Kafka does not for acks=0.
    broker.fault(PRODUCE, &[Fault::Silence; 100]);
    let producer = producer(&broker, Acks::None);
    let deliveries = send(&producer, 0..50).await;
    producer.flush().await.unwrap();
    assert_eq!(deliveries[49].wait().await.unwrap().offset, None);
    let arrived = async {
        while broker.state.lock().topics["t"][0].values().len() < 50 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), arrived)
        .await
        .unwrap();
}

/// Proves that dropping a producer tells what was accepted and not acknowledged, instead of waiting for ever.
#[tokio::test]
async fn dropping_a_producer_settles_everything() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    broker.fault(PRODUCE, &[Fault::Silence; 10]);
    let producer = producer(&broker, Acks::All);
    let deliveries = send(&producer, 0..40).await;
    drop(producer);
    for delivery in deliveries {
        assert!(delivery.wait().await.is_err());
    }
}

async fn read(consumer: &mut Consumer, count: usize) -> Vec<(i64, Vec<u8>)> {
    let mut found = Vec::new();
    while found.len() < count {
        for event in consumer.poll(Duration::from_secs(5)).await.unwrap() {
            let Event::Fetched(fetched) = event else {
                panic!("{event:?}")
            };
            for record in fetched.records() {
                let record = record.unwrap();
                found.push((record.offset.get(), record.record.value.unwrap().to_vec()));
            }
        }
    }
    found
}

fn place() -> TopicPartition {
    TopicPartition {
        topic: Arc::from("t"),
        partition: PartitionIndex::new(0),
    }
}

/// Proves that a consumer reads each record once, in order, over lost connections and refusals.
#[tokio::test]
async fn consumer_survives_lost_connections() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    let producer = producer(&broker, Acks::All);
    send(&producer, 0..100).await;
    producer.flush().await.unwrap();
    use Fault::*;
    broker.fault(
        FETCH,
        &[CloseBefore, Code(6), CloseInTheMiddle, Code(5), CloseAfter],
    );
    let mut consumer = Consumer::new(cluster(&broker), ConsumerConfig::default());
    consumer
        .assign(vec![(place(), Start::At(Offset::new(3)))])
        .await
        .unwrap();
    let found = read(&mut consumer, 97).await;
    let expected: Vec<_> = (3..100)
        .map(|number| (i64::try_from(number).unwrap(), value(number)))
        .collect();
    assert_eq!(found, expected);
    assert_eq!(consumer.positions()[&place()], Offset::new(100));
}

/// Proves that history that is gone is told as a gap with both offsets, and that nothing moves until the caller seeks.
#[tokio::test]
async fn a_gap_is_told_and_nobody_is_moved() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    let producer = producer(&broker, Acks::All);
    send(&producer, 0..100).await;
    producer.flush().await.unwrap();
    let first = {
        let mut state = broker.state.lock();
        let partition = &mut state.topics.get_mut("t").unwrap()[0];
        partition.batches.remove(0);
        partition.log_start = partition.batches[0].header().base_offset.get();
        partition.log_start
    };
    let mut consumer = Consumer::new(cluster(&broker), ConsumerConfig::default());
    consumer
        .assign(vec![(place(), Start::At(Offset::ZERO))])
        .await
        .unwrap();
    let events = consumer.poll(Duration::from_secs(5)).await.unwrap();
    let [Event::Gap(gap)] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(
        (gap.wanted, gap.first_available.get(), gap.end.get()),
        (Offset::ZERO, first, 100)
    );
    assert!(
        consumer
            .poll(Duration::from_millis(100))
            .await
            .unwrap()
            .is_empty(),
        "it has stopped"
    );
    assert_eq!(consumer.positions()[&place()], Offset::ZERO);
    consumer.seek(&place(), gap.first_available);
    assert_eq!(read(&mut consumer, 1).await[0].0, first);
}

/// Proves that a batch damaged on its way is an error, not a record.
#[tokio::test]
async fn damage_is_an_error() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    let producer = producer(&broker, Acks::All);
    send(&producer, 0..3).await;
    producer.flush().await.unwrap();
    {
        let mut state = broker.state.lock();
        let partition = &mut state.topics.get_mut("t").unwrap()[0];
        let mut bytes = partition.batches[0].bytes().to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        partition.batches[0] = tidelog_model::batch::RecordBatch::parse(bytes.into()).unwrap();
    }
    let mut consumer = Consumer::new(cluster(&broker), ConsumerConfig::default());
    consumer
        .assign(vec![(place(), Start::EARLIEST)])
        .await
        .unwrap();
    let error = consumer.poll(Duration::from_secs(5)).await.unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error:?}");
}

/// Proves that a group member joins (with the member id it is told), goes on from what was committed, joins again when
/// the group changes, and starts under a new name when it was forgotten.
#[tokio::test]
async fn group_resumes_and_rejoins() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    let producer = producer(&broker, Acks::All);
    send(&producer, 0..50).await;
    producer.flush().await.unwrap();
    let config = || {
        let mut config = GroupConfig::new("g", "t", Start::EARLIEST);
        config.heartbeat_interval = Duration::from_millis(20);
        config
    };
    let mut member = GroupConsumer::join(&cluster(&broker), config(), ConsumerConfig::default())
        .await
        .unwrap();
    while member.consumer().positions()[&place()] < Offset::new(50) {
        member.poll(Duration::from_secs(1)).await.unwrap();
    }
    member.commit().await.unwrap();
    assert_eq!(
        broker.state.lock().committed[&("g".to_owned(), "t".to_owned(), 0)],
        50
    );
    member.leave().await.unwrap();

    let mut member = GroupConsumer::join(&cluster(&broker), config(), ConsumerConfig::default())
        .await
        .unwrap();
    assert_eq!(member.consumer().positions()[&place()], Offset::new(50));
    send(&producer, 50..60).await;
    producer.flush().await.unwrap();
    for code in [27, 25] {
        let joins = broker.seen(11);
        broker.state.lock().heartbeat_code = code;
        while broker.seen(11) == joins {
            member.poll(Duration::from_millis(20)).await.unwrap();
        }
    }
    while member.consumer().positions()[&place()] < Offset::new(60) {
        member.poll(Duration::from_secs(1)).await.unwrap();
    }
    member.commit().await.unwrap();
    assert_eq!(
        broker.state.lock().committed[&("g".to_owned(), "t".to_owned(), 0)],
        60
    );
}

/// Proves what is said when nobody listens: the address, where it comes from, what to do; at once.
#[tokio::test]
async fn unreachable_says_what_to_do() {
    let nobody = cluster_at("127.0.0.1:1");
    let at_once = tokio::time::timeout(Duration::from_secs(5), nobody.topic("t"));
    assert!(matches!(
        at_once.await.unwrap().unwrap_err(),
        Error::Unreachable { .. }
    ));
    let at_once = tokio::time::timeout(Duration::from_secs(5), nobody.delete_topic("t"));
    assert!(matches!(
        at_once.await.unwrap().unwrap_err(),
        Error::Unreachable { .. }
    ));
    let error = cluster_at("127.0.0.1:1").list_topics().await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }));
    let text = error.to_string();
    assert!(
        text.contains("127.0.0.1:1 (bootstrap)") && text.contains("tidelog dev"),
        "{text}"
    );

    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    broker.state.lock().advertised_port = Some(1);
    let mut cluster = cluster(&broker);
    cluster.refresh(Some(&["t"])).await.unwrap();
    let error = cluster
        .node(tidelog_model::NodeId::new(1))
        .await
        .map(drop)
        .unwrap_err();
    assert!(
        error.to_string().contains("advertised by broker 1"),
        "{error}"
    );
    cluster = cluster_at(&broker.address.to_string());
    assert!(
        cluster
            .topic("absent")
            .await
            .unwrap_err()
            .to_string()
            .contains("absent")
    );
}

/// Proves that offsets are asked for again after a leader change, and that a time after the last record means the end.
#[tokio::test]
async fn offsets_are_asked_for_again() {
    let broker = FakeBroker::start().await;
    broker.topic("t", 1);
    let producer = producer(&broker, Acks::All);
    send(&producer, 0..5).await;
    producer.flush().await.unwrap();
    broker.fault(2, &[Fault::Code(6), Fault::CloseBefore]);
    let late = OffsetSpec::Timestamp(tidelog_model::TimestampMs::new(i64::MAX));
    let wanted = [(PartitionIndex::new(0), late)].into();
    let found = cluster(&broker).list_offsets("t", &wanted).await.unwrap();
    assert_eq!(found[&PartitionIndex::new(0)], Offset::new(5));
}

/// Proves that a partition which stays unreadable ends the consumer with that partition's error, though the other
/// partitions answer well all the time, and that the broker is not asked without pauses meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_unreadable_partition_is_told_in_the_end() {
    const KAFKA_STORAGE_ERROR: i16 = 56;
    let broker = FakeBroker::start().await;
    broker.topic("t", 2);
    broker
        .state
        .lock()
        .unreadable
        .insert(1, KAFKA_STORAGE_ERROR);
    let mut config = ClusterConfig::new(&broker.address.to_string());
    config.request_timeout = Duration::from_millis(500);
    config.operation_timeout = Duration::from_secs(2);
    let cluster = Cluster::new(config, TcpNetwork::shared(), SystemRandom::seeded(1)).unwrap();
    let mut consumer = Consumer::new(cluster, ConsumerConfig::default());
    let places = (0..2).map(|partition| {
        let place = TopicPartition {
            partition: PartitionIndex::new(partition),
            ..place()
        };
        (place, Start::At(Offset::new(0)))
    });
    consumer.assign(places.collect()).await.unwrap();
    let ended = async {
        loop {
            if let Err(error) = consumer.poll(Duration::from_millis(200)).await {
                return error;
            }
        }
    };
    let error = tokio::time::timeout(Duration::from_secs(20), ended)
        .await
        .expect("the consumer ends");
    let Error::Deadline { last, .. } = error else {
        panic!("{error:?}")
    };
    assert!(last.to_string().contains("56"), "{last}");
    assert!(last.to_string().contains("t/1"), "{last}");
    let asked = broker.state.lock().seen[&FETCH];
    assert!(asked < 200, "{asked} fetches in two seconds");
}

/// Far below the request's deadline, far above what is needed.
const SOON: Duration = Duration::from_secs(15);

/// Two brokers; requests wait for half a minute.
async fn two_brokers() -> (FakeBroker, FakeBroker, Cluster) {
    let first = FakeBroker::start().await;
    first.topic("t", 1);
    let second = first.start_other(2).await;
    let cluster = Cluster::new(
        ClusterConfig::new(&first.address.to_string()),
        TcpNetwork::shared(),
        SystemRandom::seeded(1),
    );
    (first, second, cluster.unwrap())
}

/// Proves that a producer leaves a leader that is paused in the middle of its requests as soon as another broker leads, not at the
/// deadline of the requests; nothing is lost, repeated or reordered.
#[tokio::test]
async fn a_producer_leaves_a_paused_leader() {
    let (first, _second, cluster) = two_brokers().await;
    let config = ProducerConfig {
        batch_bytes: 300,
        linger: Duration::from_millis(1),
        ..ProducerConfig::default()
    };
    let producer = Producer::start(cluster, config, SystemClock::shared()).unwrap();
    let mut deliveries = send(&producer, 0..100).await;
    producer.flush().await.unwrap();
    // Done, and never answered: what is sent again must not be there twice.
    first.fault(PRODUCE, &[Fault::Silence; 100]);
    deliveries.extend(send(&producer, 100..110).await);
    while first.state.lock().topics["t"][0].end() < 110 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    first.pause();
    first.state.lock().faults.clear();
    deliveries.extend(send(&producer, 110..200).await);
    first.state.lock().leader = Some(2);
    tokio::time::timeout(SOON, producer.flush())
        .await
        .expect("the paused broker is not waited for")
        .unwrap();
    for (number, delivery) in deliveries.iter().enumerate() {
        let offset = delivery.wait().await.unwrap().offset.unwrap();
        assert_eq!(offset.get(), i64::try_from(number).unwrap());
    }
    let expected: Vec<_> = (0..200).map(value).collect();
    assert_eq!(first.state.lock().topics["t"][0].values(), expected);
}

/// Proves that a consumer goes on at the new leader while the old one is paused with its fetch.
#[tokio::test]
async fn a_consumer_leaves_a_paused_leader() {
    let (first, second, cluster) = two_brokers().await;
    let mut consumer = Consumer::new(cluster.separate(), ConsumerConfig::default());
    let place = TopicPartition {
        topic: "t".into(),
        partition: PartitionIndex::new(0),
    };
    let start = Start::At(Offset::default());
    consumer.assign(vec![(place.clone(), start)]).await.unwrap();
    let events = consumer.poll(Duration::from_millis(100)).await.unwrap();
    assert!(events.is_empty());
    first.pause();
    // This fetch stays with the paused broker.
    consumer.poll(Duration::from_millis(100)).await.unwrap();
    first.state.lock().leader = Some(2);
    let producer = self::producer(&second, Acks::All);
    send(&producer, 0..1).await;
    let read = async {
        while consumer.positions()[&place] == Offset::default() {
            consumer.poll(Duration::from_millis(100)).await.unwrap();
        }
    };
    tokio::time::timeout(SOON, read)
        .await
        .expect("the paused broker is not waited for");
}

/// Proves that metadata comes from a broker that talks, whichever of them is paused, and that a single broker is waited for.
#[tokio::test]
async fn metadata_comes_from_a_broker_that_talks() {
    let (first, _second, cluster) = two_brokers().await;
    cluster.refresh(Some(&["t"])).await.unwrap();
    first.pause();
    for _ in 0..10 {
        tokio::time::timeout(SOON, cluster.refresh(Some(&["t"])))
            .await
            .expect("the paused broker is not waited for")
            .unwrap();
    }
}
