//! Topics whose creation or deletion is not answered: the library finds out whether it was done.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    dead_code
)]

mod fake;

use fake::{FakeBroker, Fault};
use std::time::Duration;
use tidelog_client::{Cluster, ClusterConfig, ErrorCode};
use tidelog_env::{SystemRandom, TcpNetwork};

const CREATE_TOPICS: i16 = 19;
const DELETE_TOPICS: i16 = 20;

fn cluster(broker: &FakeBroker) -> Cluster {
    let mut config = ClusterConfig::new(&broker.address.to_string());
    config.request_timeout = Duration::from_millis(500);
    config.operation_timeout = Duration::from_secs(10);
    Cluster::new(config, TcpNetwork::shared(), SystemRandom::seeded(1)).unwrap()
}

fn settings(value: &str) -> Vec<(String, String)> {
    vec![("retention.ms".to_owned(), value.to_owned())]
}

/// Proves that a creation is done once and told as done, whether the request or its answer was lost, and however often.
#[tokio::test]
async fn a_lost_answer_to_a_creation_is_looked_into() {
    use Fault::*;
    let broker = FakeBroker::start().await;
    let cluster = cluster(&broker);
    for (name, faults) in [
        ("lost-before", &[CloseBefore][..]),
        ("lost-after", &[CloseAfter]),
        ("half", &[CloseInTheMiddle]),
        ("both", &[CloseBefore, CloseAfter, Code(41), CloseBefore]),
    ] {
        broker.fault(CREATE_TOPICS, faults);
        let before = broker.seen(CREATE_TOPICS);
        cluster
            .create_topic(name, 2, &settings("3600000"))
            .await
            .unwrap();
        assert_eq!(broker.state.lock().topics[name].len(), 2);
        assert_eq!(
            broker.seen(CREATE_TOPICS) - before,
            faults.len() + 1,
            "{name}"
        );
    }
    let again = cluster.create_topic("half", 2, &settings("3600000")).await;
    assert_eq!(
        again.unwrap_err().code(),
        Some(ErrorCode::TOPIC_ALREADY_EXISTS),
        "a topic that was there before is not ours"
    );
}

/// Proves that a topic with other partitions or settings is not taken for the one that was asked for.
#[tokio::test]
async fn another_topic_is_not_taken_for_the_created_one() {
    let broker = FakeBroker::start().await;
    let cluster = cluster(&broker);
    cluster
        .create_topic("other", 2, &settings("1"))
        .await
        .unwrap();
    for (partitions, value) in [(3, "1"), (2, "2")] {
        broker.fault(CREATE_TOPICS, &[Fault::CloseBefore]);
        let error = cluster
            .create_topic("other", partitions, &settings(value))
            .await
            .unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::TOPIC_ALREADY_EXISTS));
        assert!(
            error.to_string().contains("other partitions, copies"),
            "{error}"
        );
    }
}

/// Proves that a deletion whose answer is lost is told as done, and that a topic which is not there at first is an error.
#[tokio::test]
async fn a_lost_answer_to_a_deletion_is_looked_into() {
    use Fault::*;
    let broker = FakeBroker::start().await;
    let cluster = cluster(&broker);
    for faults in [
        &[CloseBefore][..],
        &[CloseAfter],
        &[CloseInTheMiddle, CloseAfter],
    ] {
        broker.topic_with_id("t", 1);
        broker.fault(DELETE_TOPICS, faults);
        cluster.delete_topic("t").await.unwrap();
        assert!(!broker.state.lock().topics.contains_key("t"));
    }
    let error = cluster.delete_topic("t").await.unwrap_err();
    assert!(error.to_string().contains("no such topic"), "{error}");
}

/// Proves that a deletion which is asked for again does not take a new topic of the same name.
#[tokio::test]
async fn a_deletion_does_not_take_the_next_topic() {
    let broker = FakeBroker::start().await;
    let cluster = cluster(&broker);
    broker.topic_with_id("t", 1);
    broker.fault(DELETE_TOPICS, &[Fault::Silence]);
    let deletion = cluster.delete_topic("t");
    let creation = async {
        while broker.state.lock().topics.contains_key("t") {
            tokio::task::yield_now().await;
        }
        broker.topic_with_id("t", 3);
    };
    let (deleted, ()) = tokio::join!(deletion, creation);
    deleted.unwrap();
    assert_eq!(broker.seen(DELETE_TOPICS), 2);
    assert_eq!(broker.state.lock().topics["t"].len(), 3);
}

/// Proves that a deletion by an id that is gone goes on by name: a broker that lags told the id of an earlier topic. The one that has the name is deleted, and
/// where there is none, that is told.
#[tokio::test]
async fn an_id_that_is_gone_is_not_taken_for_the_name() {
    let broker = FakeBroker::start().await;
    let cluster = cluster(&broker);
    for unknown in [
        &[Fault::Code(100)][..],
        &[Fault::CloseBefore, Fault::Code(7), Fault::Code(100)],
    ] {
        cluster.create_topic("again", 1, &[]).await.unwrap();
        broker.fault(DELETE_TOPICS, unknown);
        let before = broker.seen(DELETE_TOPICS);
        let lost = unknown.len() > 1;
        cluster.delete_topic("again").await.unwrap();
        // After an answer that was lost, an id that is gone is the one that was deleted.
        assert_eq!(broker.state.lock().topics.contains_key("again"), lost);
        assert_eq!(
            broker.seen(DELETE_TOPICS) - before,
            if lost { 3 } else { 2 }
        );
        broker.forget_topic("again");
    }
    let error = cluster.delete_topic("again").await.unwrap_err();
    assert!(
        error.to_string().contains("there is no such topic"),
        "{error}"
    );
}
