//! A broker whose disk lost what it had acknowledged, in a way that nothing on the disk shows: it is refilled all the same.

use super::members::{producer, start_stranger};
use super::refilled::{frames, home, is_whole, loaded, raft_node, waits};
use super::three::{SETTLE, Three, produce, sorted, until};
use super::*;
use std::os::unix::fs::FileExt;
use tidelog_model::{PlacementGroupId, RaftNodeId, Term};

/// A data group that another broker leads, and all of which the replica of `node`, on broker 3, has acknowledged to it.
async fn acknowledged_by(three: &Three, node: RaftNodeId) -> u32 {
    let found = || {
        let groups = [1, 2].into_iter().flat_map(|id| {
            let router = &three.nodes[&id].parts.groups.router;
            router.data_groups().collect::<Vec<_>>()
        });
        let mut whole = groups.filter(|group| {
            let group = group.group();
            let last = group.applied().borrow().map(|id| id.index);
            group.is_leader() && last.is_some() && group.matched().get(&node).copied() == last
        });
        whole
            .find(|group| !frames(&home(three, 3), group.id().get()).is_empty())
            .map(|group| group.id().get())
    };
    until("everything is acknowledged", || async { found().is_some() }).await;
    found().unwrap()
}

/// The newest term of a group that brokers 1 and 2 know.
fn term(three: &Three, group: u32) -> Option<Term> {
    let groups = [1, 2].into_iter().filter_map(|id| {
        let router = &three.nodes[&id].parts.groups.router;
        router.data_group(PlacementGroupId::new(group))
    });
    groups.map(|held| held.group().term()).max()
}

/// Starts broker 3, which has lost something of `group`, and again if it ended by itself. Whether it is another Raft node than `before` then: if a new leader, which
/// knows nothing of what it had acknowledged to the old one, has made it whole, it is not.
async fn refilled(three: &mut Three, before: RaftNodeId, group: u32) -> bool {
    let led = term(three, group);
    three.start(&[3]).await;
    if raft_node(three, 3) != before {
        return true;
    }
    let now: &Three = three;
    let ended = now.nodes[&3].ended();
    let moved = until(
        "another one leads",
        || async move { term(now, group) != led },
    );
    let why = tokio::select! {
        why = ended => why,
        () = moved => return false,
    };
    assert!(matches!(why, Ended::Failed(_)), "{why:?}");
    three.nodes.remove(&3).unwrap().stop_abruptly().await;
    three.start(&[3]).await;
    raft_node(three, 3) != before
}

/// Makes a log of broker 3 end before its last entry with a body, as if that had never been written.
fn cut_end(three: &Three, group: u32) {
    let (path, frame, _) = frames(&home(three, 3), group).pop().unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    let frame = u64::try_from(frame).unwrap();
    let length = file.metadata().unwrap().len() - frame;
    let zeros = vec![0; usize::try_from(length).unwrap()];
    file.write_all_at(&zeros, frame).unwrap();
    file.sync_all().unwrap();
}

/// Proves that a broker whose last acknowledged entry is gone as if it had never been written, which recovery takes for a torn tail, learns it from the leader and is
/// refilled by itself as a new Raft node.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_end_is_refilled() {
    let (mut three, acknowledged) = loaded().await;
    let before = raft_node(&three, 3);
    // Leaders move for some seconds yet.
    for tried in 1.. {
        let group = acknowledged_by(&three, before).await;
        three.nodes.remove(&3).unwrap().stop_abruptly().await;
        cut_end(&three, group);
        if refilled(&mut three, before, group).await {
            break;
        }
        assert!(tried < 5, "it is never refilled");
    }
    is_whole(three, before, acknowledged).await;
}

/// Proves that a broker one of whose groups has lost its directory never starts it empty: it is refilled as a new Raft node, or refuses to start where it shall not be.
#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_is_gone_is_never_begun_anew() {
    let (mut three, acknowledged) = loaded().await;
    let before = raft_node(&three, 3);
    three.nodes.remove(&3).unwrap().stop().await;
    let home = home(&three, 3);
    for group in 2..=3 {
        std::fs::remove_dir_all(home.join(format!("groups/{group}"))).unwrap();
    }
    three
        .own
        .insert(3, vec!["cluster.refill-damaged=false".to_owned()]);
    let refused = start_stranger(&three, 3).await.unwrap().err().unwrap();
    let refused = refused.to_string();
    assert!(
        refused.contains("has lost what was acknowledged"),
        "{refused}"
    );
    assert!(!home.join("damaged.json").exists());
    let begun = std::fs::read_dir(home.join("groups/2"));
    assert!(begun.is_err(), "nothing was begun");
    three.own.clear();
    three.start(&[3]).await;
    is_whole(three, before, acknowledged).await;
}

/// Proves that what the others acknowledged without a broker is not lost by that one and an emptied one together: neither sets the group up again, nor votes for it.
#[tokio::test(flavor = "multi_thread")]
async fn emptied_groups_elect_nobody() {
    let (mut three, mut acknowledged) = loaded().await;
    three.nodes.remove(&1).unwrap().stop().await;
    let producer = producer(&three);
    produce(&producer, "t", 300..350, &mut acknowledged).await;
    producer.close().await.unwrap();
    let before = raft_node(&three, 3);
    for id in [3, 2] {
        three.nodes.remove(&id).unwrap().stop_abruptly().await;
    }
    let home = home(&three, 3);
    for group in std::fs::read_dir(home.join("groups")).unwrap() {
        let group = group.unwrap();
        if group.file_name() != "0" && group.path().is_dir() {
            std::fs::remove_dir_all(group.path()).unwrap();
        }
    }
    // Broker 1 lacks what 2 and 3 had: without 2 it may lead nothing.
    let one = start_stranger(&three, 1);
    let starting = start_stranger(&three, 3);
    waits(&three, 3, "waits to be refilled").await;
    assert!(!starting.is_finished() && home.join("damaged.json").exists());
    three.start(&[2]).await;
    let node = tokio::time::timeout(SETTLE, one).await.unwrap();
    three.nodes.insert(1, node.unwrap().unwrap());
    let node = tokio::time::timeout(SETTLE, starting).await.unwrap();
    three.nodes.insert(3, node.unwrap().unwrap());
    assert_ne!(raft_node(&three, 3), before);
    let read = three.read_all("t", 3, 350).await;
    assert_eq!(read, sorted(acknowledged));
    three.stop().await;
}
