//! A disk that held the only copies of some partitions is lost; and a broker that comes back is ready when its replicas are.

use super::asking::http;
use super::members::{admin, members, producer, settled, start_stranger};
use super::three::{SETTLE, Three, create, create_with, produce, until};
use std::collections::BTreeMap;
use tidelog_model::{LogId, PlacementGroupId};
use tokio::sync::watch;

/// Proves that partitions whose only copy is lost are named, by whichever broker is asked, and that the broker which held them is ready all the same:
/// there is nothing to wait for. The others are not touched.
#[tokio::test(flavor = "multi_thread")]
async fn partitions_without_a_copy_are_named() {
    let mut three = Three::new();
    three.set.push("cluster.session-ms=1000".to_owned());
    three.start(&[1, 2, 3]).await;
    let connection = three.connect(2).await;
    assert_eq!(create_with(&connection, "one", 3, 1).await.error_code, 0);
    create(&connection, "three", 1).await;
    let leaders = three.leaders("one").await;
    let index = leaders.iter().position(|leader| *leader == 1);
    let partition = format!("one-{}", index.expect("each broker holds one"));

    three.nodes.remove(&1).unwrap().stop_abruptly().await;
    let home = three.dir.path().join("1");
    std::fs::rename(&home, three.dir.path().join("lost")).unwrap();
    let starting = start_stranger(&three, 1);
    members(&three, 2, "it waits", |now| !now.waiting.is_empty()).await;
    admin(&three, 3).add_broker(1, true).await.unwrap();
    let node = tokio::time::timeout(SETTLE, starting).await;
    three.nodes.insert(1, node.unwrap().unwrap().unwrap());
    for id in 1..=3 {
        let now = members(&three, id, "the loss is told", |now| {
            let moving = now.groups.iter().filter(|at| at.target.is_some());
            moving.count() == 0 && now.groups.iter().any(|at| at.lost.is_some())
        })
        .await;
        let lost: Vec<_> = now.groups.iter().filter(|at| at.lost.is_some()).collect();
        assert_eq!(lost.len(), 1, "{lost:?}");
        assert_eq!(lost[0].lost.as_deref(), Some(&[partition.clone()][..]));
        assert_eq!(lost[0].leader, None);
        until("it is ready", || async {
            http(&three, id, "GET", "/readyz", "").await.0 == 200
        })
        .await;
    }
    let (_, ready) = http(&three, 1, "GET", "/readyz", "").await;
    assert!(ready.contains("no replica left"), "{ready}");
    let (_, page) = http(&three, 1, "GET", "/metrics", "").await;
    assert!(page.contains("\ntidelog_groups_lost 1\n"), "{page}");
    three.stop().await;
}

/// Proves that a broker which comes back is ready only when each of its replicas, metadata's too, follows closely: then the next one may be stopped.
#[tokio::test(flavor = "multi_thread")]
async fn who_comes_back_is_ready_when_it_has_caught_up() {
    let mut three = Three::new();
    three.start(&[1, 2, 3]).await;
    let connection = three.connect(1).await;
    create(&connection, "t", 3).await;
    three.nodes.remove(&3).unwrap().stop().await;
    let producer = producer(&three);
    let mut acknowledged = vec![Vec::new(); 3];
    produce(&producer, "t", 0..2_000, &mut acknowledged).await;
    producer.close().await.unwrap();
    let mark = |three: &Three, id: i32| {
        let router = &three.nodes[&id].parts.groups.router;
        let metadata = (PlacementGroupId::METADATA, router.metadata().applied());
        let data = router.data_groups();
        let all = data.map(|group| (group.id(), group.group().applied()));
        let index = |applied: watch::Receiver<Option<LogId>>| {
            let applied = *applied.borrow();
            applied.unwrap_or_default().index.get()
        };
        let all = all
            .chain([metadata])
            .map(|(id, applied)| (id, index(applied)));
        all.collect::<BTreeMap<PlacementGroupId, u64>>()
    };
    let before = mark(&three, 1);
    three.start(&[3]).await;
    until("it is ready", || async {
        http(&three, 3, "GET", "/readyz", "").await.0 == 200
    })
    .await;
    for (group, applied) in mark(&three, 3) {
        assert!(
            applied + 64 >= before[&group],
            "{group}: {applied}, {before:?}"
        );
    }
    members(&three, 3, "nothing moves", settled).await;
    three.stop().await;
}
