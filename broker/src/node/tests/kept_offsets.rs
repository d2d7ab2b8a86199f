//! Lost groups whose partitions are deleted, and of which one broker has offsets of consumer groups still: that is told, and so is the way out.

use super::asking::http;
use super::lost::delete;
use super::members::{admin, members, settled, start_stranger};
use super::three::{SETTLE, Three, create, free_ports, until};
use tidelog_client::admin_http::Members;

/// Proves that brokers with a copy of such offsets are named, in the status and by `/readyz` of one that has none; and that decommissioning one of them, and
/// stopping it then, lets an empty group take the place of the lost one.
#[tokio::test(flavor = "multi_thread")]
async fn offsets_that_one_broker_keeps_are_told_and_given_up() {
    let mut five = Three::new();
    five.ports.extend((4..=5).map(|id| (id, free_ports())));
    for set in ["cluster.session-ms=1000", "cluster.data-groups=5"] {
        five.set.push(set.to_owned());
    }
    five.start(&[1, 2, 3, 4, 5]).await;
    let connection = five.connect(4).await;
    create(&connection, "t", 5).await;
    members(&five, 4, "it is at rest", settled).await;
    // Groups 1 and 5 have two of their three copies on these.
    for id in [1, 2] {
        five.nodes.remove(&id).unwrap().stop_abruptly().await;
        let aside = five.dir.path().join(format!("lost-{id}"));
        std::fs::rename(five.dir.path().join(id.to_string()), aside).unwrap();
    }
    let starting = [1, 2].map(|id| (id, start_stranger(&five, id)));
    members(&five, 4, "both wait", |now| now.waiting.len() == 2).await;
    // At once: the leaders that are left have a lease yet, and give the new replicas nothing all the same.
    for id in [1, 2] {
        let added = admin(&five, 4).add_broker_giving_up_data(id, true).await;
        added.unwrap();
    }
    for (id, starting) in starting {
        let node = tokio::time::timeout(SETTLE, starting).await;
        five.nodes.insert(id, node.unwrap().unwrap().unwrap());
    }
    let lost = |now: &Members| now.groups.iter().filter(|at| at.lost.is_some()).count();
    let now = members(&five, 4, "two are lost", |now| lost(now) == 2).await;
    assert!(now.groups.iter().all(|at| at.offsets_at.is_none()));
    delete(&connection, "t").await;
    let kept = |now: &Members, group: u32| {
        let mut groups = now.groups.iter();
        groups.find(|at| at.group == group)?.offsets_at.clone()
    };
    members(&five, 4, "who has offsets is told", |now| {
        kept(now, 1) == Some(vec![3]) && kept(now, 5) == Some(vec![5])
    })
    .await;
    until("whoever is asked warns", || async {
        let (_, text) = http(&five, 4, "GET", "/readyz", "").await;
        text.contains("nobody can use these consumer groups")
    })
    .await;

    admin(&five, 4).decommission(3, false).await.unwrap();
    let others_are_moved = |now: &Members| {
        let mut held = now.groups.iter().filter(|at| at.group != 0);
        held.all(|at| at.lost.is_some() || !at.replicas.contains(&3))
    };
    members(&five, 4, "it holds nothing else", others_are_moved).await;
    five.nodes.remove(&3).unwrap().stop().await;
    members(&five, 4, "an empty group takes its place", |now| {
        let gone = now.groups.iter().all(|at| at.group != 1);
        let mut fresh = now.groups.iter().filter(|at| at.group > 5);
        gone && fresh.all(|at| at.leader.is_some()) && now.brokers.iter().all(|at| at.id != 3)
    })
    .await;
    five.stop().await;
}
