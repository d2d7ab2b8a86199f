//! A broker whose disk lost what it had acknowledged, in a way that nothing on the disk shows: it is refilled all the same.

use super::refilled::{frames, home, is_whole, loaded, raft_node};
use super::three::{SETTLE, Three, until};
use super::*;
use std::os::unix::fs::FileExt;
use tidelog_model::RaftNodeId;

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

/// Starts broker 3, and again if it ended by itself, until it is another Raft node than `before`.
async fn refilled(three: &mut Three, before: RaftNodeId) {
    three.start(&[3]).await;
    if raft_node(three, 3) == before {
        let old = three.nodes.remove(&3).unwrap();
        let why = tokio::time::timeout(SETTLE, old.ended()).await.unwrap();
        assert!(matches!(why, Ended::Failed(_)), "{why:?}");
        old.stop_abruptly().await;
        three.start(&[3]).await;
    }
}

/// Proves that a broker whose last acknowledged entry is gone as if it had never been written, which recovery takes for a torn tail, learns it from the leader and is
/// refilled by itself as a new Raft node.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_end_is_refilled() {
    let (mut three, acknowledged) = loaded().await;
    let before = raft_node(&three, 3);
    let group = acknowledged_by(&three, before).await;
    three.nodes.remove(&3).unwrap().stop_abruptly().await;
    let (path, frame, _) = frames(&home(&three, 3), group).pop().unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    let frame = u64::try_from(frame).unwrap();
    let length = file.metadata().unwrap().len() - frame;
    let zeros = vec![0; usize::try_from(length).unwrap()];
    file.write_all_at(&zeros, frame).unwrap();
    file.sync_all().unwrap();
    refilled(&mut three, before).await;
    is_whole(three, before, acknowledged).await;
}
