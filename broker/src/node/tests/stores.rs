//! Which store is the cluster's: brokers with stores of their own, a store that is exchanged while brokers run, and one that a restart finds.

use super::asking::http;
use super::three::{Acknowledged, SETTLE, Three, produce, sorted, until};
use super::*;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use tidelog_client::producer::{Producer, ProducerConfig};
use tidelog_env::SystemClock;
use tidelog_model::{PartitionId, PlacementGroupId, StoreId};
use tidelog_tiering::key;
use tidelog_tiering::marker::Marker;
use tidelog_tiering::store::faulty::{Call, Fault, FaultyStore};

const OTHER: &str = "is not the store of this cluster";

/// What `/readyz` of broker `id` says.
async fn ready(three: &Three, id: i32) -> (u16, String) {
    http(three, id, "GET", "/readyz", "").await
}

/// The brokers that are not ready because their store is another one, once each of the others is ready.
async fn with_other_stores(three: &Three, expected: usize) -> Vec<i32> {
    let until = Instant::now() + SETTLE;
    loop {
        let (mut others, mut answers) = (Vec::new(), Vec::new());
        for id in three.nodes.keys() {
            let (status, body) = ready(three, *id).await;
            if status == 503 && body.contains(OTHER) {
                others.push(*id);
            }
            answers.push((status, body));
        }
        let well = answers.iter().filter(|(status, _)| *status == 200).count();
        if others.len() == expected && well + expected == answers.len() {
            return others;
        }
        assert!(Instant::now() < until, "{answers:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Waits until all brokers are ready, each of them with the warning that its store is another one, or none.
async fn all_ready(three: &Three, warned: bool) {
    until("all are ready", || async {
        for id in three.nodes.keys() {
            let (status, body) = ready(three, *id).await;
            if status != 200 || body.contains(OTHER) != warned {
                return false;
            }
        }
        true
    })
    .await;
}

/// Three brokers with one store, each with a front of its own to it, and a topic of three partitions.
async fn behind_fronts() -> (Three, Producer) {
    let mut three = Three::new();
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    for id in 1..=3 {
        three
            .stores
            .insert(id, FaultyStore::new(Arc::clone(&store)));
    }
    three.start(&[1, 2, 3]).await;
    all_ready(&three, false).await;
    let cluster = three.cluster();
    cluster.create_topic("t", 3, &[]).await.unwrap();
    let clock = SystemClock::shared();
    let producer = Producer::start(cluster, ProducerConfig::default(), clock).unwrap();
    settled(&three).await;
    (three, producer)
}

/// Who leads each group, metadata's too, as the brokers say themselves.
fn led(three: &Three) -> BTreeMap<PlacementGroupId, i32> {
    let mut led = BTreeMap::new();
    for (id, node) in &three.nodes {
        let router = &node.parts.groups.router;
        if router.metadata().is_leader() {
            led.insert(PlacementGroupId::METADATA, *id);
        }
        let data = router
            .data_groups()
            .filter(|group| group.group().is_leader());
        led.extend(data.map(|group| (group.id(), *id)));
    }
    led
}

/// Waits until each group is led by the broker that should.
async fn settled(three: &Three) {
    until("everybody leads what it should", || async {
        let preferred = three.nodes[&1].parts.groups.router.image(|image| {
            let data = image.groups().keys().copied();
            let groups = data.chain([PlacementGroupId::METADATA]);
            let preferred = groups.map(|group| (group, image.preferred_leader(group)));
            preferred
                .map(|(group, node)| (group, node.unwrap().get()))
                .collect()
        });
        led(three) == preferred
    })
    .await;
}

/// How often leadership was given away since something was in the way of its leader.
fn given(three: &Three) -> u64 {
    let nodes = three.nodes.values();
    nodes.map(|node| node.parts.groups.fit.given()).sum()
}

/// Produces until each of these brokers has asked its store so many times more; all of it is acknowledged.
async fn produce_while_they_look(three: &Three, producer: &Producer, ids: &[i32], times: u64) {
    let calls = |id: &i32| three.stores[id].calls(Call::Get);
    let begun: Vec<u64> = ids.iter().map(calls).collect();
    let deadline = Instant::now() + SETTLE;
    let mut acknowledged: Acknowledged = vec![Vec::new(); 3];
    let mut values = 0..10;
    while ids
        .iter()
        .zip(&begun)
        .any(|(id, begun)| calls(id) < begun + times)
    {
        assert!(Instant::now() < deadline, "nobody looks");
        produce(producer, "t", values.clone(), &mut acknowledged).await;
        values = values.end..values.end + 10;
    }
}

/// Segments and manifests of data groups below a directory.
fn objects(dir: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return 0;
    };
    let count = entries.map(|entry| {
        let path = entry.unwrap().path();
        let extension = path.extension().and_then(|text| text.to_str());
        usize::from(matches!(extension, Some("seg" | "snap"))) + objects(&path)
    });
    count.sum()
}

fn store_of(three: &Three, id: i32) -> Option<StoreId> {
    let router = &three.nodes[&id].parts.groups.router;
    router.image(|image| image.store())
}

/// Proves that of three brokers with a store each, all but one say that theirs is not the cluster's, put nothing into it, and drop nothing that they have:
/// what was acknowledged is readable after flushes that trim, also from the brokers that are left when the one with the cluster's store is gone.
#[tokio::test(flavor = "multi_thread")]
async fn stores_of_their_own_lose_nothing() {
    let mut three = Three::new();
    three.set.push("tier.cut-interval-ms=600000".to_owned());
    for id in 1..=3 {
        let dir = three.dir.path().join(format!("store-{id}"));
        let url = format!("store.url=file://{}", dir.display());
        three.own.insert(id, vec![url]);
    }
    three.start(&[1, 2, 3]).await;
    let cluster = three.cluster();
    cluster.create_topic("t", 2, &[]).await.unwrap();
    let clock = SystemClock::shared();
    let producer = Producer::start(cluster, ProducerConfig::default(), clock).unwrap();
    let mut acknowledged: Acknowledged = vec![Vec::new(); 2];
    produce(&producer, "t", 0..200, &mut acknowledged).await;
    producer.close().await.unwrap();
    let others = with_other_stores(&three, 2).await;
    let (_, said) = ready(&three, others[0]).await;
    for part in [
        "store-identity",
        "it has no marker",
        "All brokers need the same store",
    ] {
        assert!(said.contains(part), "{said}");
    }
    // By turns: leaders go away from brokers with other stores.
    let body = r#"{"topic":"t","trim_local":true,"timeout_ms":5000}"#;
    for id in [1, 2, 3, 1, 2, 3] {
        let (status, answer) = http(&three, id, "POST", "/api/v1/tier/flush", body).await;
        assert!(matches!(status, 200 | 504), "{status} {answer}");
    }
    for id in 1..=3 {
        let (_, page) = http(&three, id, "GET", "/metrics", "").await;
        let is_other = others.contains(&id);
        let line = format!("\ntidelog_store_wrong {}\n", i32::from(is_other));
        assert!(page.contains(&line), "broker {id}");
        let dir = three.dir.path().join(format!("store-{id}"));
        if is_other {
            assert_eq!(objects(&dir), 0, "broker {id}");
        }
        assert_eq!(store_of(&three, id), store_of(&three, 1));
    }
    let expected = sorted(acknowledged);
    assert_eq!(three.read_all("t", 2, 200).await, expected);
    let right = (1..=3).find(|id| !others.contains(id)).unwrap();
    three.nodes.remove(&right).unwrap().stop_abruptly().await;
    assert_eq!(three.read_all("t", 2, 200).await, expected);
    three.stop().await;
}

/// Proves that brokers with one store are ready and agree on it; that all of them find it exchanged while they run, move nothing and say so, with the
/// marker that would have to be there, and stay ready, since none of them has a better one; and that they go on when it is back.
#[tokio::test(flavor = "multi_thread")]
async fn an_exchanged_store_is_found_while_brokers_run() {
    let mut three = Three::new();
    three.set.push("tier.cut-interval-ms=600000".to_owned());
    three.start(&[1, 2, 3]).await;
    assert!(with_other_stores(&three, 0).await.is_empty());
    let marked = store_of(&three, 1).unwrap();
    assert!((2..=3).all(|id| store_of(&three, id) == Some(marked)));
    let cluster = three.cluster();
    cluster.create_topic("t", 2, &[]).await.unwrap();
    let clock = SystemClock::shared();
    let producer = Producer::start(cluster, ProducerConfig::default(), clock).unwrap();
    let mut acknowledged: Acknowledged = vec![Vec::new(); 2];
    produce(&producer, "t", 0..100, &mut acknowledged).await;
    producer.close().await.unwrap();
    let store = three.dir.path().join("store");
    let (here, away) = (store.join("v1"), store.join("away"));
    std::fs::rename(&here, &away).unwrap();
    let body = r#"{"topic":"t","trim_local":true,"timeout_ms":1000}"#;
    let (status, answer) = http(&three, 2, "POST", "/api/v1/tier/flush", body).await;
    assert_eq!(status, 504, "{answer}");
    all_ready(&three, true).await;
    let (_, said) = ready(&three, 3).await;
    assert!(
        said.contains(&marked.to_string()) && said.contains("store.json"),
        "{said}"
    );
    assert_eq!(objects(&here), 0);
    until("the store is back", || async {
        let _ = std::fs::remove_dir_all(&here);
        std::fs::rename(&away, &here).is_ok()
    })
    .await;
    all_ready(&three, false).await;
    let body = r#"{"topic":"t","trim_local":true,"timeout_ms":30000}"#;
    let (status, answer) = http(&three, 2, "POST", "/api/v1/tier/flush", body).await;
    assert_eq!(status, 200, "{answer}");
    assert!(objects(&here) > 0);
    assert_eq!(three.read_all("t", 2, 100).await, sorted(acknowledged));
    three.stop().await;
}

/// Proves that a broker alone marks its store, and that a restart with another one is not ready and says so, until it has the first one again.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_with_another_store() {
    let stores: [Arc<dyn ObjectStore>; 2] = [Arc::new(InMemory::new()), Arc::new(InMemory::new())];
    let dir = tempfile::tempdir().unwrap();
    let set = [
        format!("node.data-dir={}", dir.path().display()),
        "kafka.listen=127.0.0.1:0".to_owned(),
        "admin.listen=127.0.0.1:0".to_owned(),
        "log.file-bytes=8388608".to_owned(),
        "log.reserve-bytes=0".to_owned(),
    ];
    let mut known = None;
    for (store, right) in [(0, true), (1, false), (0, true)] {
        let sources = Sources {
            set: set.to_vec(),
            ..Sources::default()
        };
        let world = World {
            store: Some(Arc::clone(&stores[store])),
            ..World::system()
        };
        let config = Config::load(&sources).unwrap();
        let node = Node::start(config, world).await.unwrap();
        let health = node.parts.groups.store.clone();
        until("it is known", || async { health.expected().is_some() }).await;
        assert_eq!(*known.get_or_insert(health.expected()), health.expected());
        until("it is compared", || async {
            match health.check().await {
                Ok(()) => right && !health.is_wrong(),
                Err(error) => {
                    !right && health.is_wrong() && error.to_string().contains("no marker")
                }
            }
        })
        .await;
        node.stop().await;
    }
}

/// Proves that a marker that is deleted, and put back, gives no group another leader: none of the brokers could do better, and all of them know. Appends go on, and all
/// brokers stay ready, with a warning.
#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_marker_gives_no_group_another_leader() {
    let (three, producer) = behind_fronts().await;
    let guard = three.nodes[&1].parts.groups.store.clone();
    let marker = Marker {
        cluster: guard.store().cluster(),
        store: guard.expected().unwrap(),
    };
    guard.store().delete(&key::marker()).await.unwrap();
    guard.suspect();
    all_ready(&three, true).await;
    produce_while_they_look(&three, &producer, &[1, 2, 3], 3).await;
    assert_eq!(given(&three), 0);
    settled(&three).await;
    let at = key::marker();
    let put = guard.store().put_if_absent(&at, marker.encode()).await;
    put.unwrap();
    all_ready(&three, false).await;
    settled(&three).await;
    assert_eq!(given(&three), 0);
    producer.close().await.unwrap();
    three.stop().await;
}

/// Proves that leadership leaves a broker whose store is another one, and does not come back while it is: neither does it give it away again, nor do others prefer it, nor
/// are readers in its zone sent to it. When its store is right again all of that is as before.
#[tokio::test(flavor = "multi_thread")]
async fn leadership_leaves_a_broker_with_another_store_once() {
    let (three, producer) = behind_fronts().await;
    let mine = led(&three).values().filter(|leader| **leader == 2).count();
    assert!(mine > 0);
    let sent = |to: Option<i32>| {
        let mut leaders = three.nodes.iter().filter(|(id, _)| **id != 2);
        let router = |node: &Node| node.parts.groups.router.clone();
        leaders.all(|(_, node)| {
            let router = router(node);
            let (topic, known) = router.topic_by_name("t").unwrap();
            let mut led = (0..)
                .zip(&known.partitions)
                .filter(|(_, group)| router.data_group(**group).unwrap().group().is_leader());
            led.all(|(index, _)| {
                let index = tidelog_model::PartitionIndex::new(index);
                let partition = PartitionId { topic, index };
                router
                    .follower_in("zone-2", partition)
                    .map(|node| node.get())
                    == to
            })
        })
    };
    until("readers of zone 2 are sent there", || async {
        sent(Some(2))
    })
    .await;
    three.stores[&2].inject_forever(Call::Get, Fault::Status(404));
    three.nodes[&2].parts.groups.store.suspect();
    let leads = || led(&three).values().any(|leader| *leader == 2);
    until("it leads nothing", || async { !leads() }).await;
    assert_eq!(with_other_stores(&three, 1).await, [2]);
    produce_while_they_look(&three, &producer, &[2], 4).await;
    assert!(!leads() && sent(None));
    assert!(given(&three) <= u64::try_from(mine).unwrap());
    three.stores[&2].heal();
    all_ready(&three, false).await;
    settled(&three).await;
    until("readers are sent there again", || async { sent(Some(2)) }).await;
    assert!(given(&three) <= u64::try_from(mine).unwrap());
    producer.close().await.unwrap();
    three.stop().await;
}
