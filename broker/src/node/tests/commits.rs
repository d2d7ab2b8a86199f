//! Offsets that are committed at a broker which does not lead the partition, or holds no replica of it.

use super::three::{SETTLE, Three, create, create_with, free_ports, until};
use super::*;
use crate::api::{AnswerMemory, ApiConfig, Broker};
use crate::coordinator::ConsumerGroupError;
use crate::coordinator::service::{CommitCheck as _, WantedOffset};
use crate::coordinator::{ConsumerGroupName, slot_of};
use crate::node::peers::SERVICE_ENDS;
use crate::observe::Metrics;
use crate::peer::{CallService, Caller};
use crate::router::{CommitBounds, EndsService, Router};
use crate::wire::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use crate::wire::messages::offset_fetch_request::OffsetFetchRequestTopic;
use crate::wire::messages::{OffsetCommitRequest, OffsetFetchRequest};
use crate::wire::{self, Answer, RequestBody, Service as _};
use futures::FutureExt;
use futures::future::BoxFuture;
use std::collections::BTreeSet;
use std::sync::Arc;
use tidelog_client::producer::{NewRecord, Producer, ProducerConfig};
use tidelog_env::SystemClock;
use tidelog_model::{NodeId, Offset, PartitionId, PartitionIndex};

const RECORDS: i64 = 3;

pub(super) fn router(three: &Three, id: i32) -> Router {
    three.nodes[&id].parts.groups.router.clone()
}

/// So many records into each partition of `topic`.
pub(super) async fn fill(three: &Three, topic: &str, partitions: i32) {
    let (config, clock) = (ProducerConfig::default(), SystemClock::shared());
    let producer = Producer::start(three.cluster(), config, clock).unwrap();
    for partition in 0..partitions {
        for _ in 0..RECORDS {
            let record = NewRecord {
                topic,
                partition: Some(PartitionIndex::new(partition)),
                value: Some(b"v"),
                ..NewRecord::default()
            };
            let delivery = producer.send(record).await.unwrap();
            delivery.wait().await.unwrap();
        }
    }
    producer.close().await.unwrap();
}

/// The broker that coordinates `group`, once all agree on it.
pub(super) async fn coordinator(three: &Three, group: &str) -> i32 {
    let slot = slot_of(&ConsumerGroupName::new(group));
    let all: Vec<Router> = three.nodes.keys().map(|id| router(three, *id)).collect();
    let agreed = || {
        let says = |router: &Router| router.coordinator_broker(slot);
        let first = says(&all[0])?;
        let same = all.iter().all(|router| says(router) == Some(first));
        same.then_some(first.get())
    };
    until("all name the coordinator", || async { agreed().is_some() }).await;
    agreed().unwrap_or(1)
}

/// One consumer group for each data group that coordinates.
pub(super) fn groups(three: &Three) -> Vec<String> {
    let router = router(three, 1);
    let mut seen = BTreeSet::new();
    let names = (0..200).map(|number| format!("readers-{number}"));
    let first = names.filter(|name| {
        let slot = slot_of(&ConsumerGroupName::new(name));
        seen.insert(router.image(|image| image.slot_group(slot)).unwrap())
    });
    first.collect()
}

/// Commits, and returns the error code of each partition.
pub(super) async fn commit(
    three: &Three,
    at: i32,
    group: &str,
    topic: &str,
    offsets: &[i64],
) -> Vec<i16> {
    let connection = three.connect(at).await;
    let answer = connection
        .call(8..=8, deadline(), |_| {
            let mut of_topic = OffsetCommitRequestTopic::default();
            of_topic.name = StrBytes::from(topic);
            for (index, offset) in (0..).zip(offsets) {
                let mut partition = OffsetCommitRequestPartition::default();
                partition.partition_index = index;
                partition.committed_offset = *offset;
                of_topic.partitions.push(partition);
            }
            let mut request = OffsetCommitRequest::default();
            request.group_id = StrBytes::from(group);
            request.generation_id_or_member_epoch = -1;
            request.topics.push(of_topic);
            request
        })
        .await
        .unwrap();
    connection.close("committed");
    let partitions = answer.topics[0].partitions.iter();
    partitions.map(|partition| partition.error_code).collect()
}

/// Commits until each partition answers as it shall. Leaders move in the first seconds of a cluster: what is to be tried again may come before. Returns who coordinated.
pub(super) async fn commit_until(
    three: &Three,
    group: &str,
    topic: &str,
    offsets: &[i64],
    expected: &[i16],
) -> i32 {
    let passing = [
        ErrorCode::CoordinatorNotAvailable.code(),
        ErrorCode::CoordinatorLoadInProgress.code(),
        ErrorCode::NotCoordinator.code(),
    ];
    let end = Instant::now() + SETTLE;
    loop {
        let at = coordinator(three, group).await;
        let codes = commit(three, at, group, topic, offsets).await;
        if codes == expected {
            return at;
        }
        let fits = |(code, wanted): (&i16, &i16)| code == wanted || passing.contains(code);
        let fit = codes.iter().zip(expected).all(fits);
        assert!(fit && Instant::now() < end, "{group} at {at}: {codes:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn committed(three: &Three, at: i32, group: &str, topic: &str, partitions: i32) -> Vec<i64> {
    let connection = three.connect(at).await;
    let answer = connection
        .call(7..=7, deadline(), |_| {
            let mut of_topic = OffsetFetchRequestTopic::default();
            of_topic.name = StrBytes::from(topic);
            of_topic.partition_indexes = (0..partitions).collect();
            let mut request = OffsetFetchRequest::default();
            request.group_id = StrBytes::from(group);
            request.topics = Some(vec![of_topic]);
            request
        })
        .await
        .unwrap();
    connection.close("fetched");
    let partitions = answer.topics[0].partitions.iter();
    partitions
        .map(|partition| partition.committed_offset)
        .collect()
}

/// The error of a fetch of offsets, and what it says of partition 0.
pub(super) async fn fetched(three: &Three, at: i32, group: &str, topic: &str) -> (i16, i64) {
    let connection = three.connect(at).await;
    let answer = connection.call(7..=7, deadline(), |_| {
        let mut of_topic = OffsetFetchRequestTopic::default();
        of_topic.name = StrBytes::from(topic);
        of_topic.partition_indexes = vec![0];
        let mut request = OffsetFetchRequest::default();
        request.group_id = StrBytes::from(group);
        request.topics = Some(vec![of_topic]);
        request
    });
    let answer = answer.await.unwrap();
    connection.close("fetched");
    let offset = answer.topics[0].partitions[0].committed_offset;
    (answer.error_code, offset)
}

/// Every partition, through every coordinator: to the end, not past it, and not where there is none. Returns how many partitions were elsewhere.
async fn everything_through_everyone(three: &Three, topic: &str, partitions: i32) -> usize {
    let count = usize::try_from(partitions).unwrap();
    let mut elsewhere = 0;
    for group in groups(three) {
        let mut asked = vec![RECORDS; count];
        asked.push(0);
        let mut expected = vec![0; count];
        expected.push(ErrorCode::UnknownTopicOrPartition.code());
        let at = commit_until(three, &group, topic, &asked, &expected).await;
        let router = router(three, at);
        let is_elsewhere = |index: &i32| {
            let partition = router.partition(topic, *index).unwrap();
            router.group_of(partition).is_err()
        };
        elsewhere += (0..partitions).filter(is_elsewhere).count();
        let refused = vec![ErrorCode::OffsetOutOfRange.code(); count];
        commit_until(three, &group, topic, &vec![RECORDS + 1; count], &refused).await;
        commit_until(three, &group, topic, &vec![-2; count], &refused).await;
        until("what was committed is kept, and nothing else", || async {
            let at = coordinator(three, &group).await;
            committed(three, at, &group, topic, partitions).await == vec![RECORDS; count]
        })
        .await;
    }
    elsewhere
}

/// Proves that in a cluster where no broker holds all groups each coordinator commits what it should of every partition, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn five_brokers_with_three_copies() {
    let mut five = Three::new();
    five.ports.insert(4, free_ports());
    five.ports.insert(5, free_ports());
    five.set.push("cluster.data-groups=5".to_owned());
    five.start(&[1, 2, 3, 4, 5]).await;
    let connection = five.connect(1).await;
    create_with(&connection, "t", 10, 3).await;
    five.leaders("t").await;
    fill(&five, "t", 10).await;
    assert!(everything_through_everyone(&five, "t", 10).await > 0);
    five.stop().await;
}

/// Proves the same of single copies on three brokers: two of three partitions are elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn three_brokers_with_single_copies() {
    let mut three = Three::new();
    three.start(&[1, 2, 3]).await;
    let connection = three.connect(1).await;
    create_with(&connection, "t", 6, 1).await;
    three.leaders("t").await;
    fill(&three, "t", 6).await;
    let elsewhere = everything_through_everyone(&three, "t", 6).await;
    assert_eq!(elsewhere, 4 * groups(&three).len());
    three.stop().await;
}

/// Answers nothing that can be read, as another release might.
struct Strange;

impl CallService for Strange {
    fn call(&self, _: Caller, _: Bytes) -> BoxFuture<'static, Bytes> {
        std::future::ready(Bytes::from_static(b"?")).boxed()
    }
}

/// Proves that a commit which needs an answer of a leader that gives none, or is dead, fails with a retriable error in time and alone; that what is known, or was
/// committed before, needs none; that a leader which is gone for long is not waited for; and that the commit succeeds once the leader is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_does_not_answer() {
    let unknown = Err(ConsumerGroupError::EndUnknown);
    let mut three = Three::new();
    three.start(&[1, 2, 3]).await;
    let connection = three.connect(1).await;
    create_with(&connection, "t", 3, 1).await;
    let leaders = three.leaders("t").await;
    fill(&three, "t", 3).await;
    let (at, dead) = (1, 2);
    let here = router(&three, at);
    let bounds = CommitBounds(here.clone());
    let index = |id: i32| leaders.iter().position(|leader| *leader == id).unwrap();
    let all = [at, dead, 3].map(|id| {
        let index = i32::try_from(index(id)).unwrap();
        here.partition("t", index).unwrap()
    });
    let services = three.nodes[&dead].parts.peers.as_ref().unwrap();
    let services = services.services.clone();
    services.register(SERVICE_ENDS, Arc::new(Strange));
    let wanted = |offset: i64, committed: Option<i64>| {
        all.map(|partition| WantedOffset {
            partition,
            offset: Offset::new(offset),
            committed: committed.map(Offset::new),
        })
    };
    let began = Instant::now();
    let checked = bounds.check(&wanted(1, None)).await;
    assert_eq!(checked, [Ok(()), unknown, Ok(())]);
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(bounds.check(&wanted(1, Some(1))).await, [Ok(()); 3]);
    assert_eq!(bounds.check(&wanted(0, None)).await, [Ok(()); 3]);
    services.register(SERVICE_ENDS, Arc::new(EndsService(router(&three, dead))));
    assert_eq!(bounds.check(&wanted(1, None)).await, [Ok(()); 3]);

    let stopped = three.nodes.remove(&dead).unwrap();
    stopped.stop_abruptly().await;
    // The first answer told the end.
    assert_eq!(bounds.check(&wanted(RECORDS, None)).await, [Ok(()); 3]);
    let out_of_range = Err(ConsumerGroupError::OffsetOutOfRange);
    let checked = bounds.check(&wanted(RECORDS + 1, None)).await;
    assert_eq!(checked, [out_of_range, unknown, out_of_range]);

    // Over the wire: the others are committed, and soon nobody waits any more. Who coordinates moves away from the dead one.
    let group = &groups(&three)[0];
    let slot = slot_of(&ConsumerGroupName::new(group));
    let coordinator = || here.coordinator_broker(slot).map(NodeId::get);
    let mut offsets = [RECORDS; 3];
    offsets[index(dead)] = RECORDS + 1;
    let mut expected = [0; 3];
    expected[index(dead)] = ErrorCode::CoordinatorLoadInProgress.code();
    let elsewhere = [
        ErrorCode::NotCoordinator.code(),
        ErrorCode::CoordinatorNotAvailable.code(),
    ];
    until("the leader that is gone is not waited for", || async {
        let Some(coordinator) = coordinator().filter(|id| *id != dead) else {
            return false;
        };
        let began = Instant::now();
        let codes = commit(&three, coordinator, group, "t", &offsets).await;
        if codes.iter().any(|code| elsewhere.contains(code)) {
            return false;
        }
        assert_eq!(codes, expected);
        began.elapsed() < Duration::from_millis(1_000)
    })
    .await;
    let mut kept = [RECORDS; 3];
    kept[index(dead)] = -1;
    until("the others are committed, and nothing else", || async {
        let at = coordinator().unwrap_or(at);
        committed(&three, at, group, "t", 3).await == kept
    })
    .await;

    three.start(&[dead]).await;
    three.leaders("t").await;
    fill(&three, "t", 3).await;
    commit_until(&three, "readers", "t", &[2 * RECORDS; 3], &[0; 3]).await;
    three.stop().await;
}

/// Proves that a replica that does not lead asks who does: an offset past the end is refused for good and at once, and what it asked for another one is
/// known from then on.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_asks_its_leader() {
    let mut three = Three::new();
    three.start(&[1, 2, 3]).await;
    let connection = three.connect(1).await;
    create(&connection, "t", 1).await;
    let leader = three.leaders("t").await[0];
    let other = (1..=3).find(|id| *id != leader).unwrap();
    let router = router(&three, other);
    let partition = router.partition("t", 0).unwrap();
    let bounds = CommitBounds(router);
    let wanted = |partition: PartitionId, offset: i64| WantedOffset {
        partition,
        offset: Offset::new(offset),
        committed: None,
    };
    assert!(bounds.check(&[wanted(partition, 0)]).await[0].is_ok());
    let mut took = Vec::new();
    // A machine that does other things may be late once.
    for _ in 0..5 {
        let asked = Instant::now();
        let checked = bounds.check(&[wanted(partition, 9)]).await;
        assert_eq!(checked, [Err(ConsumerGroupError::OffsetOutOfRange)]);
        took.push(asked.elapsed());
    }
    let best = took.iter().min().unwrap();
    assert!(*best < Duration::from_millis(1_000), "{took:?}");
    let unknown = PartitionId {
        index: PartitionIndex::new(7),
        ..partition
    };
    let checked = bounds.check(&[wanted(unknown, 0)]).await;
    assert_eq!(checked, [Err(ConsumerGroupError::UnknownPartition)]);
    three.stop().await;
}

/// Proves that of two commits of one connection the one that came first is in the log first, also when the second is worked on first.
#[tokio::test(flavor = "multi_thread")]
async fn commits_of_a_connection_are_in_line_once_they_are_started() {
    let rig = Rig::start(&[]).await;
    rig.created("t", 1).await;
    let groups = &rig.node.parts.groups;
    let broker = Broker {
        router: groups.router.clone(),
        coordinators: groups.coordinators.clone(),
        metrics: Arc::new(Metrics::new(|_| ())),
        clock: SystemClock::shared(),
        refusing: Arc::default(),
        answers: AnswerMemory::default(),
        config: Arc::new(ApiConfig {
            cluster: rig.node.addresses().identity.cluster,
            zone: String::new(),
            advertised: None,
            auto_create_topics: false,
            default_partitions: 1,
        }),
    };
    let at = rig.node.addresses().kafka;
    let client = Arc::new(wire::Connection::new(1, at, at));
    let note = |note: &str| {
        let mut partition = OffsetCommitRequestPartition::default();
        partition.committed_metadata = Some(StrBytes::from(note));
        let mut of_topic = OffsetCommitRequestTopic::default();
        of_topic.name = StrBytes::from("t");
        of_topic.partitions.push(partition);
        let mut body = OffsetCommitRequest::default();
        body.group_id = StrBytes::from("readers");
        body.generation_id_or_member_epoch = -1;
        body.topics.push(of_topic);
        wire::Request {
            version: 8,
            correlation_id: 0,
            client_id: None,
            body: RequestBody::OffsetCommit(body),
        }
    };
    let mut started = Vec::new();
    for text in ["first", "second"] {
        match broker.start(&client, note(text)).await {
            Answer::Later(answer) => started.push(answer),
            Answer::Now(_) => panic!("a commit takes time"),
        }
    }
    let [first, second] = <[_; 2]>::try_from(started).ok().unwrap();
    let mut second = tokio::spawn(second);
    let alone = tokio::time::timeout(Duration::from_millis(500), &mut second).await;
    assert!(alone.is_err(), "the second waits for the first");
    first.await;
    second.await.unwrap();
    let group = ConsumerGroupName::new("readers");
    let data_group = broker.router.coordinator_of(slot_of(&group)).ok().unwrap();
    let coordinator = broker.coordinators.get(data_group.id()).unwrap();
    let committed = coordinator.fetch_offsets(&group, None).await.unwrap();
    assert_eq!(committed[0].1.as_ref().unwrap().metadata, "second");
    rig.stop().await;
}
