//! A metadata group of one as the router uses it, and changes that meet each other there.

use super::*;
use crate::datagroup::{DataGroupConfig, DataMachine, batch_bytes_in};
use crate::log::{GroupLog, GroupLogConfig, LogEnv, NoObserver};
use crate::metadata::{Admission, MetadataCommand, MetadataOutcome, NameBefore};
use crate::partition::{PartitionCommand, PartitionOutcome};
use crate::placement::{GroupConfig, Member, NoPeers};
use object_store::memory::InMemory;
use std::collections::BTreeMap;
use std::time::Duration;
use tidelog_env::{MemoryDisk, SystemClock, SystemRandom, Tasks};
use tidelog_model::{ClusterId, ProducerId, RaftNodeId, TimestampMs};
use tidelog_tiering::reader::{ReaderConfig, RemoteReader};
use tidelog_tiering::store::{StoreLimits, TierStore};
use tokio::time::Instant;
use uuid::Uuid;

const WITHIN: Duration = Duration::from_secs(20);
const FILE_BYTES: u64 = 4 << 20;
pub(super) const STAMP: TimestampMs = TimestampMs::new(1);
const OWN: (NodeId, RaftNodeId) = (NodeId::new(1), RaftNodeId::new(11));

/// A metadata group of broker 1 alone, with one data group.
pub(super) async fn metadata_group() -> Group<MetadataMachine> {
    let cluster = ClusterId::new(Uuid::from_u128(7));
    let dir = "/data/groups/0".into();
    let config = GroupLogConfig::new(dir, cluster, PlacementGroupId::METADATA, OWN.1);
    let env = LogEnv {
        disk: MemoryDisk::default().shared(),
        random: SystemRandom::shared(),
        tasks: Tasks::new(),
        fatal: Arc::new(|failure| panic!("{failure}")),
        observer: Arc::new(NoObserver),
    };
    let log = GroupLog::open(config.with_file_bytes(FILE_BYTES), env).await;
    let member = Member {
        broker: OWN.0,
        address: String::new(),
    };
    let config = GroupConfig::alone(PlacementGroupId::METADATA, OWN.1, member);
    let machine = MetadataMachine::new();
    let started = Group::start(config, log.unwrap(), machine, Arc::new(NoPeers)).await;
    let group = started.unwrap();
    group.wait_leader(WITHIN).await.unwrap();
    let groups = BTreeMap::from([(PlacementGroupId::new(1), vec![OWN.0])]);
    let bootstrap = MetadataCommand::BootstrapCluster {
        cluster,
        name: "t".to_owned(),
        groups,
    };
    group.propose(bootstrap.encode(STAMP)).await.unwrap();
    admit(&group, OWN).await;
    group
}

pub(super) async fn admit(group: &Group<MetadataMachine>, who: (NodeId, RaftNodeId)) {
    let admission = Admission {
        node: who.0,
        raft_node: who.1,
        zone: "z".to_owned(),
        peer: None,
        by_operator: true,
        expects: None,
    };
    let command = MetadataCommand::AdmitBroker(admission);
    let (_, outcome) = group.propose(command.encode(STAMP)).await.unwrap();
    assert_eq!(outcome, MetadataOutcome::MembersChanged);
}

fn router(group: &Group<MetadataMachine>) -> Router {
    let client = MetadataClient {
        node: OWN.0,
        raft_node: OWN.1,
        group: group.clone(),
        sessions: BrokerSessions::new(Duration::from_secs(6)),
        link: None,
        clock: SystemClock::shared(),
        random: SystemRandom::shared(),
    };
    Router::new(
        client,
        LeadersElsewhere::default(),
        batch_bytes_in(FILE_BYTES),
    )
}

/// Proves that topics which ask for groups of new numbers of copies at the same time are all created: who was slower plans anew.
#[tokio::test]
async fn groups_of_several_numbers_of_copies_at_once() {
    let group = metadata_group().await;
    for id in 1..=4 {
        let node = NodeId::new(id);
        let raft_node = RaftNodeId::new(u64::try_from(id).unwrap() * 11);
        admit(&group, (node, raft_node)).await;
        let fence = MetadataCommand::SetBrokerFence {
            node,
            fenced: false,
        };
        group.propose(fence.encode(STAMP)).await.unwrap();
    }
    let router = router(&group);
    let create = |copies: usize| {
        let topic = NewTopic {
            name: format!("t{copies}"),
            partitions: 2,
            placement: Placement::Copies(Some(copies)),
            configs: BTreeMap::new(),
        };
        router.create_topic(topic, Instant::now() + WITHIN)
    };
    // All have looked before the first one changes anything.
    let created = futures::future::join_all([create(2), create(3), create(4)]).await;
    for (copies, topic) in (2..).zip(created) {
        let topic = topic.unwrap();
        let placed = router.image(|image| {
            let groups = image.topic(topic).unwrap().partitions.clone();
            let copies = groups.iter().map(|group| image.groups()[group].len());
            copies.collect::<Vec<_>>()
        });
        assert_eq!(placed, [copies; 2]);
    }
    group.stop().await;
}

/// A data group of broker 1 alone, which compares nothing with metadata by itself.
async fn data_group(tasks: &Tasks) -> DataGroup {
    let (cluster, id) = (ClusterId::new(Uuid::from_u128(7)), PlacementGroupId::new(1));
    let config = GroupLogConfig::new("/data/groups/1".into(), cluster, id, OWN.1);
    let env = LogEnv {
        disk: MemoryDisk::default().shared(),
        random: SystemRandom::shared(),
        tasks: tasks.clone(),
        fatal: Arc::new(|failure| panic!("{failure}")),
        observer: Arc::new(NoObserver),
    };
    let log = GroupLog::open(config.with_file_bytes(FILE_BYTES), env).await;
    let member = Member {
        broker: OWN.0,
        address: String::new(),
    };
    let config = GroupConfig::alone(id, OWN.1, member);
    let machine = DataMachine::new(cluster, id);
    let started = Group::start(config, log.unwrap(), machine, Arc::new(NoPeers)).await;
    let group = started.unwrap();
    group.wait_leader(WITHIN).await.unwrap();
    let store = TierStore::new(
        Arc::new(InMemory::new()),
        &object_store::path::Path::default(),
        cluster,
        SystemRandom::shared(),
        StoreLimits::default(),
    );
    let reader = RemoteReader::new(store, ReaderConfig::default(), tasks.clone());
    let (config, clock) = (DataGroupConfig::default(), SystemClock::shared());
    DataGroup::start(id, config, group, Arc::new(reader), clock, tasks)
}

/// Proves that a partition whose creation was decided while its topic was there, and is committed late, is created no more once the name of the deleted topic is free; and
/// that the name is not free where the creation came first and nothing has dropped it yet, until it is dropped.
#[tokio::test]
async fn no_partition_comes_after_its_name_is_free() {
    let metadata = metadata_group().await;
    let tasks = Tasks::new();
    let group = data_group(&tasks).await;
    let router = router(&metadata);
    router.hold(group.clone());
    for (id, is_late) in [(1, true), (2, false)] {
        let topic = TopicId::new(Uuid::from_u128(id));
        let before = router.image(|image| {
            let before = image.deleted("t");
            before.map_or(NameBefore::Free, |topic| NameBefore::Dropped(topic.id))
        });
        let create = MetadataCommand::CreateTopic {
            id: topic,
            name: "t".to_owned(),
            partitions: vec![group.id()],
            configs: BTreeMap::new(),
            before,
        };
        let (_, outcome) = metadata.propose(create.encode(STAMP)).await.unwrap();
        assert_eq!(outcome, MetadataOutcome::TopicCreated(topic));
        let decided = router.image(|image| PartitionCommand::CreatePartition {
            partition: PartitionId {
                topic,
                index: PartitionIndex::new(0),
            },
            topic_name: "t".to_owned(),
            by: image.last().index,
            first_new_producer: ProducerId::new(0),
        });
        let delete = MetadataCommand::DeleteTopic { id: topic };
        let has = || {
            let group = group.group();
            group.read(|machine| machine.partitions().has_topic(topic))
        };
        if !is_late {
            group.propose(decided.clone()).await.unwrap();
            assert!(has());
        }
        metadata.propose(delete.encode(STAMP)).await.unwrap();
        let free = router.wait_dropped("t", Instant::now() + WITHIN).await;
        assert_eq!(free.unwrap(), NameBefore::Dropped(topic));
        let (_, outcome) = group.propose(decided).await.unwrap();
        assert!(
            matches!(outcome, PartitionOutcome::Refused(_)),
            "{outcome:?}"
        );
        assert!(!has());
    }
    group.group().stop().await;
    metadata.stop().await;
    tasks.stop().await;
}

/// Proves that a broker without a data group bounds record batches as one with a group of the same log files does.
#[tokio::test]
async fn batches_are_bounded_without_a_data_group() {
    let metadata = metadata_group().await;
    let tasks = Tasks::new();
    let router = router(&metadata);
    let without = router.batch_bytes_max();
    assert!(without < 1 << 20, "{without}");
    let group = data_group(&tasks).await;
    router.hold(group.clone());
    assert_eq!(router.batch_bytes_max(), without);
    group.group().stop().await;
    metadata.stop().await;
    tasks.stop().await;
}
