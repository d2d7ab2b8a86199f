//! A disk that held the only copies of some partitions is lost; and a broker that comes back is ready when its replicas are.

use super::asking::http;
use super::members::{admin, members, producer, settled, start_at, start_stranger};
use super::three::{SETTLE, Three, create, create_with, produce, until};
use super::*;
use crate::wire::messages::DeleteTopicsRequest;
use crate::wire::messages::delete_topics_request::DeleteTopicState;
use std::collections::BTreeMap;
use tidelog_client::admin_http::Members;
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
    let refused = admin(&three, 3).add_broker(1, true).await.unwrap_err();
    let refused = refused.to_string();
    assert!(
        refused.contains("It holds what nobody else has") && refused.contains(&partition),
        "{refused}"
    );
    let given_up = admin(&three, 3).add_broker_giving_up_data(1, true).await;
    given_up.unwrap();
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
    assert!(ready.contains("is lost"), "{ready}");
    let (_, page) = http(&three, 1, "GET", "/metrics", "").await;
    assert!(page.contains("\ntidelog_groups_lost 1\n"), "{page}");
    // All else is flushed, whichever broker is asked.
    let flush = |body: &'static str| http(&three, 2, "POST", "/api/v1/tier/flush", body);
    let (status, text) = flush(r#"{"timeout_ms":30000}"#).await;
    let left_out = format!(r#""left_out":["{partition}"]"#);
    assert!(status == 200 && text.contains(&left_out), "{status} {text}");
    let (status, text) = flush(r#"{"topic":"three","timeout_ms":30000}"#).await;
    assert!(
        status == 200 && !text.contains("left_out"),
        "{status} {text}"
    );
    let (status, text) = flush(r#"{"topic":"one","timeout_ms":30000}"#).await;
    assert!(
        status == 409 && text.contains("partitions_lost") && text.contains(&partition),
        "{status} {text}"
    );
    three.stop().await;
}

/// Kills broker `id`, empties its directory, and takes it in again.
async fn lose_disk(three: &mut Three, id: i32, aside: &str) {
    let asked = if id == 1 { 2 } else { 1 };
    three.nodes.remove(&id).unwrap().stop_abruptly().await;
    let home = three.dir.path().join(id.to_string());
    std::fs::rename(&home, three.dir.path().join(aside)).unwrap();
    take_in(three, id, asked, true).await;
}

/// Starts broker `id`, which is no member with its directory, and takes it in.
async fn take_in(three: &mut Three, id: i32, asked: i32, gives_up: bool) {
    // Who waited before is remembered for some seconds.
    members(three, asked, "nobody waits", |now| now.waiting.is_empty()).await;
    let starting = start_stranger(three, id);
    members(three, asked, "it waits", |now| !now.waiting.is_empty()).await;
    let admin = admin(three, asked);
    let added = if gives_up {
        admin.add_broker_giving_up_data(id, true).await
    } else {
        admin.add_broker(id, true).await
    };
    added.unwrap();
    let node = tokio::time::timeout(SETTLE, starting).await;
    three.nodes.insert(id, node.unwrap().unwrap().unwrap());
}

async fn start_fourth(three: &mut Three) {
    let starting = start_at(three, 4, "4", 1);
    // Another one is remembered perhaps.
    let waits = |now: &Members| now.waiting.iter().any(|at| at.id == 4);
    members(three, 1, "it waits", waits).await;
    admin(three, 1).add_broker(4, false).await.unwrap();
    let node = tokio::time::timeout(SETTLE, starting).await;
    three.nodes.insert(4, node.unwrap().unwrap().unwrap());
    let has_come =
        |now: &Members| settled(now) && now.brokers.iter().any(|at| at.id == 4 && at.replicas > 0);
    members(three, 1, "it has its share", has_come).await;
}

pub(super) async fn delete(connection: &Connection, name: &str) {
    let deleting = connection.call(6..=6, deadline(), |_| {
        let mut topic = DeleteTopicState::default();
        topic.name = Some(StrBytes::from(name));
        let mut request = DeleteTopicsRequest::default();
        request.timeout_ms = 30_000;
        request.topics.push(topic);
        request
    });
    assert_eq!(deleting.await.unwrap().responses[0].error_code, 0);
}

/// Proves that new topics are not placed on a lost group, that a group takes its place once its topics are deleted, and that its broker can be decommissioned
/// then and not before; and that the old disk, put back, brings a group that has partitions back.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_group_ends_with_its_topics() {
    let mut three = Three::new();
    three.set.push("cluster.session-ms=1000".to_owned());
    three.start(&[1, 2, 3]).await;
    let connection = three.connect(1).await;
    assert_eq!(create_with(&connection, "one", 3, 1).await.error_code, 0);
    three.leaders("one").await;
    let old = members(&three, 1, "all are led", settled).await;
    let old: Vec<u32> = old.groups.iter().map(|at| at.group).collect();

    lose_disk(&mut three, 2, "lost").await;
    let lost = |now: &Members| {
        let lost = now.groups.iter().find(|at| at.lost.is_some());
        lost.map(|at| at.group)
    };
    let now = members(&three, 1, "it is lost", |now| {
        settled(now) && lost(now).is_some()
    })
    .await;
    let group = lost(&now).unwrap();
    assert_eq!(create_with(&connection, "two", 6, 1).await.error_code, 0);
    // All of it is led: nothing is on the lost group.
    let leaders = three.leaders("two").await;
    assert!(
        leaders.iter().all(|leader| [1, 3].contains(leader)),
        "{leaders:?}"
    );

    // The disk is found, and goes again.
    three.nodes.remove(&2).unwrap().stop_abruptly().await;
    let home = three.dir.path().join("2");
    std::fs::rename(&home, three.dir.path().join("empty")).unwrap();
    std::fs::rename(three.dir.path().join("lost"), &home).unwrap();
    // The new one has nothing of the lost group, and the others have all else.
    take_in(&mut three, 2, 1, false).await;
    members(&three, 1, "it is found", |now| {
        let led = now.groups.iter().find(|at| at.group == group).unwrap();
        settled(now) && lost(now).is_none() && led.leader == Some(2)
    })
    .await;
    assert!(three.leaders("one").await.contains(&2));
    lose_disk(&mut three, 2, "again").await;
    members(&three, 1, "it is lost again", |now| {
        settled(now) && lost(now) == Some(group)
    })
    .await;

    start_fourth(&mut three).await;
    let refused = admin(&three, 1).decommission(2, false).await.unwrap_err();
    assert!(
        refused.to_string().contains("most copies of one-"),
        "{refused}"
    );
    for id in [2, 4] {
        until("it is ready", || async {
            http(&three, id, "GET", "/readyz", "").await.0 == 200
        })
        .await;
    }
    let gone = admin(&three, 1).decommission(2, true).await.unwrap();
    assert!(
        gone.groups
            .iter()
            .all(|at| at.target.is_none() || at.group != group)
    );
    delete(&connection, "one").await;
    members(&three, 1, "another group takes its place", |now| {
        let fresh = now.groups.iter().filter(|at| !old.contains(&at.group));
        lost(now).is_none() && fresh.filter(|at| at.leader.is_some()).count() == 1
    })
    .await;
    admin(&three, 1).decommission(2, false).await.unwrap();
    members(&three, 1, "it leaves", |now| {
        now.brokers.iter().all(|at| at.id != 2)
    })
    .await;
    three.nodes.remove(&2).unwrap().stop().await;
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
