//! Brokers that come, go, and lose their disks, while a producer goes on.

use super::three::{SETTLE, Three, create, create_with, produce, sorted};
use super::*;
use std::collections::BTreeSet;
use tidelog_client::admin_http::{AdminClient, AdminError, Members};
use tidelog_client::producer::{Producer, ProducerConfig};
use tidelog_env::SystemClock;

pub(super) fn admin(three: &Three, id: i32) -> AdminClient {
    let url = format!("http://127.0.0.1:{}", three.ports[&id][2]);
    AdminClient::new(&url, TcpNetwork::shared()).unwrap()
}

/// The members as broker `id` says, once `good` is so.
pub(super) async fn members(
    three: &Three,
    id: i32,
    what: &str,
    good: impl Fn(&Members) -> bool,
) -> Members {
    let until = Instant::now() + SETTLE;
    let mut last = None;
    loop {
        if let Ok(members) = admin(three, id).members().await {
            if good(&members) {
                return members;
            }
            last = Some(members);
        }
        assert!(Instant::now() < until, "{what}: {last:#?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

pub(super) fn producer(three: &Three) -> Producer {
    let clock = SystemClock::shared();
    Producer::start(three.cluster(), ProducerConfig::default(), clock).unwrap()
}

/// Nothing is on its way.
pub(super) fn settled(members: &Members) -> bool {
    members.groups.iter().all(|group| group.target.is_none())
}

/// Starts a broker that is not a member, in the background.
pub(super) fn start_stranger(
    three: &Three,
    id: i32,
) -> tokio::task::JoinHandle<Result<Node, crate::node::StartError>> {
    tokio::spawn(Node::start(three.config(id), World::system()))
}

/// Proves that a broker whose disk was lost founds nothing and takes nothing back by itself, is taken in by one command, holds everything again, and that
/// its old directory is refused from then on. Nothing that was acknowledged is missing afterwards, with only it and one other left.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_disk_is_replaced_by_one_command() {
    let mut three = Three::new();
    three.set.push("cluster.session-ms=3000".to_owned());
    three.start(&[1, 2, 3]).await;
    let connection = three.connect(1).await;
    create(&connection, "t", 2).await;
    let producer = producer(&three);
    let mut acknowledged = vec![Vec::new(); 2];
    produce(&producer, "t", 0..200, &mut acknowledged).await;

    let home = three.dir.path().join("1");
    three.nodes.remove(&1).unwrap().stop_abruptly().await;
    let kept = three.dir.path().join("kept");
    std::fs::rename(&home, &kept).unwrap();
    let refused = admin(&three, 2).add_broker(1, false).await.unwrap_err();
    assert!(matches!(&refused, AdminError::Refused { code, .. } if code == "not_waiting"));
    let starting = start_stranger(&three, 1);
    members(&three, 2, "it waits", |now| {
        now.waiting.iter().any(|at| at.id == 1 && at.replaces)
    })
    .await;
    produce(&producer, "t", 200..300, &mut acknowledged).await;
    assert!(!starting.is_finished());
    members(&three, 2, "it is silent", |now| {
        now.brokers.iter().any(|at| at.id == 1 && !at.live)
    })
    .await;
    let added = admin(&three, 2).add_broker(1, false).await.unwrap();
    assert!(
        added
            .groups
            .iter()
            .filter(|group| group.group != 0)
            .all(|group| group.target.is_some())
    );
    let node = tokio::time::timeout(SETTLE, starting)
        .await
        .expect("it starts");
    three.nodes.insert(1, node.unwrap().unwrap());
    produce(&producer, "t", 300..400, &mut acknowledged).await;
    members(&three, 1, "it holds everything", |now| {
        let back = now
            .brokers
            .iter()
            .any(|at| at.id == 1 && at.live && at.replicas == 3);
        settled(now) && back && now.waiting.is_empty()
    })
    .await;

    // Only the new disk and one other are left: every group has a majority of these two.
    three.nodes.remove(&3).unwrap().stop_abruptly().await;
    produce(&producer, "t", 400..450, &mut acknowledged).await;
    producer.close().await.unwrap();
    assert_eq!(three.read_all("t", 2, 450).await, sorted(acknowledged));

    // The old directory knows another Raft node.
    three.nodes.remove(&1).unwrap().stop().await;
    std::fs::rename(&home, three.dir.path().join("new")).unwrap();
    std::fs::rename(&kept, &home).unwrap();
    let old = start_stranger(&three, 1);
    // Two of three are down now: bring the third back, so that somebody can say no.
    three.start(&[3]).await;
    let now = members(&three, 2, "the old disk waits", |now| {
        !now.waiting.is_empty()
    })
    .await;
    assert!(now.waiting[0].replaces && !old.is_finished());
    old.abort();
    three.stop().await;
}

/// A broker that is not a member and names broker `seed` alone, on ports of its own.
pub(super) fn start_at(
    three: &mut Three,
    id: i32,
    dir: &str,
    seed: i32,
) -> tokio::task::JoinHandle<Result<Node, crate::node::StartError>> {
    let [peer, kafka, admin] = three::free_ports();
    let home = three.dir.path().join(dir);
    let first = three.ports[&seed][0];
    let known = three.set.len();
    three.ports.insert(id, [peer, kafka, admin]);
    three.set.push(format!(
        "cluster.seeds={id}@127.0.0.1:{peer},{seed}@127.0.0.1:{first}"
    ));
    three.set.push(format!("node.data-dir={}", home.display()));
    let starting = start_stranger(three, id);
    three.set.truncate(known);
    starting
}

/// Proves that a fourth broker is taken in and gets its share, whichever member is asked and not before its id is its own alone, that the first one is
/// drained, leaves and does not come back with its directory, and that a producer and the data see none of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_comes_and_another_goes() {
    let mut three = Three::new();
    three.start(&[1, 2, 3]).await;
    let connection = three.connect(2).await;
    create(&connection, "t", 2).await;
    let refused = admin(&three, 2).decommission(1, false).await.unwrap_err();
    assert!(refused.to_string().contains("add one first"), "{refused}");
    let producer = producer(&three);
    let mut acknowledged = vec![Vec::new(); 2];
    produce(&producer, "t", 0..200, &mut acknowledged).await;

    let twin = start_at(&mut three, 4, "twin", 1);
    let starting = start_at(&mut three, 4, "4", 1);
    members(&three, 3, "both wait", |now| {
        now.waiting.len() == 2 && now.waiting.iter().all(|at| at.id == 4 && !at.replaces)
    })
    .await;
    let refused = admin(&three, 2).add_broker(4, false).await.unwrap_err();
    assert!(matches!(&refused, AdminError::Refused { code, .. } if code == "several_wait"));
    twin.abort();
    members(&three, 3, "one waits", |now| now.waiting.len() == 1).await;
    admin(&three, 3).add_broker(4, false).await.unwrap();
    let node = tokio::time::timeout(SETTLE, starting)
        .await
        .expect("it starts");
    three.nodes.insert(4, node.unwrap().unwrap());
    let even = members(&three, 4, "loads are even", |now| {
        let loads: Vec<usize> = now.brokers.iter().map(|at| at.replicas).collect();
        loads.len() == 4 && settled(now) && loads.iter().all(|load| (2..=3).contains(load))
    })
    .await;
    assert!(
        even.groups
            .iter()
            .all(|group| group.replicas.len() == if group.group == 0 { 4 } else { 3 })
    );
    produce(&producer, "t", 200..300, &mut acknowledged).await;

    admin(&three, 4).decommission(1, false).await.unwrap();
    members(&three, 4, "it has left", |now| {
        now.brokers.iter().all(|at| at.id != 1)
    })
    .await;
    let first = three.nodes.remove(&1).unwrap();
    let why = tokio::time::timeout(SETTLE, first.ended())
        .await
        .expect("it ends by itself");
    assert!(
        matches!(&why, Ended::Left(text) if text.contains("decommissioned")),
        "{why:?}"
    );
    first.stop().await;
    three.ports.remove(&1);
    let groups = three.dir.path().join("1/groups");
    for id in 1..=3 {
        let files = std::fs::read_dir(groups.join(id.to_string()))
            .unwrap()
            .count();
        assert_eq!(files, 0, "replica {id} was dropped");
    }
    // Its directory is of no use any more: it is told so, and nobody is offered it.
    let again = start_at(&mut three, 1, "1", 2);
    let refused = tokio::time::timeout(SETTLE, again).await.expect("it ends");
    let Err(refused) = refused.unwrap() else {
        panic!("it started");
    };
    assert!(
        refused.to_string().contains("was decommissioned"),
        "{refused}"
    );
    three.ports.remove(&1);
    let now = admin(&three, 3).members().await.unwrap();
    assert!(now.waiting.is_empty(), "{:?}", now.waiting);
    produce(&producer, "t", 300..400, &mut acknowledged).await;
    producer.close().await.unwrap();
    assert_eq!(three.read_all("t", 2, 400).await, sorted(acknowledged));
    let leaders: BTreeSet<i32> = three.leaders("t").await.into_iter().collect();
    assert!(!leaders.contains(&1));
    three.stop().await;
}

/// Proves that an operator's wish moves leadership, that it holds, and that balance takes it back.
#[tokio::test(flavor = "multi_thread")]
async fn leaders_go_where_they_are_wanted() {
    let mut three = Three::new();
    three.start(&[1, 2, 3]).await;
    let led_by = |now: &Members, group: u32| {
        now.groups
            .iter()
            .find(|at| at.group == group)
            .and_then(|at| at.leader)
    };
    // Group 1 goes to the second of its three replicas by itself.
    members(&three, 1, "leaders are spread", |now| {
        led_by(now, 1) == Some(2)
    })
    .await;
    let (before, next) = (2, 3);
    admin(&three, 1).transfer_leader(1, next).await.unwrap();
    let now = members(&three, 2, "it was transferred", |now| {
        led_by(now, 1) == Some(next)
    })
    .await;
    let wished = now.groups.iter().find(|at| at.group == 1).unwrap();
    assert_eq!(wished.preferred, Some(next));
    let refused = admin(&three, 1).transfer_leader(1, 9).await.unwrap_err();
    assert!(
        refused.to_string().contains("holds no replica"),
        "{refused}"
    );
    admin(&three, 2).balance_leaders().await.unwrap();
    members(&three, 3, "it went back", |now| {
        led_by(now, 1) == Some(before)
    })
    .await;
    three.stop().await;
}

/// Proves that a topic with one copy gets groups of its own, that brokers which hold none of them name their leaders all the same, and that clients
/// produce and read there; that five copies are refused by three brokers; and that a partition whose leader does not answer is
/// shown as that in the status of the tier.
#[tokio::test(flavor = "multi_thread")]
async fn copies_are_a_choice() {
    let mut three = Three::new();
    three.start(&[1, 2, 3]).await;
    let connection = three.connect(2).await;
    let refused = create_with(&connection, "five", 1, 5).await;
    assert_eq!(
        refused.error_code,
        ErrorCode::InvalidReplicationFactor.code()
    );
    let created = create_with(&connection, "one", 2, 1).await;
    assert_eq!((created.error_code, created.replication_factor), (0, 1));
    let leaders = three.leaders("one").await;
    assert_eq!(
        leaders.iter().collect::<BTreeSet<_>>().len(),
        2,
        "{leaders:?}"
    );
    for id in 1..=3 {
        let metadata = three.metadata(id).await;
        let topic = &metadata.topics[0];
        for (partition, leader) in topic.partitions.iter().zip(&leaders) {
            assert_eq!(partition.replica_nodes, [*leader]);
        }
    }
    let producer = producer(&three);
    let mut acknowledged = vec![Vec::new(); 2];
    produce(&producer, "one", 0..100, &mut acknowledged).await;
    producer.close().await.unwrap();
    assert_eq!(three.read_all("one", 2, 100).await, sorted(acknowledged));

    // Three copies stay the default, in the groups of the start.
    let created = create_with(&connection, "three", 2, -1).await;
    assert_eq!((created.error_code, created.replication_factor), (0, 3));
    let now = members(&three, 1, "groups of both kinds", settled).await;
    let copies: Vec<usize> = now
        .groups
        .iter()
        .map(|group| group.replicas.len())
        .collect();
    assert_eq!(copies, [3, 3, 3, 3, 1, 1, 1]);

    // The only copy of partition 0 is away: whoever is asked says so.
    three
        .nodes
        .remove(&leaders[0])
        .unwrap()
        .stop_abruptly()
        .await;
    let asked = *three.nodes.keys().find(|id| **id != leaders[1]).unwrap();
    let status = admin(&three, asked).tier_status(Some("one")).await.unwrap();
    let told: Vec<i32> = status.partitions.iter().map(|at| at.partition).collect();
    assert_eq!(told, [1], "{status:?}");
    let unanswered: Vec<i32> = status.unanswered.iter().map(|at| at.partition).collect();
    assert_eq!(unanswered, [0], "{status:?}");
    assert!(status.unanswered[0].why.contains("leader"), "{status:?}");
    three.stop().await;
}
