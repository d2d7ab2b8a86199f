//! A replica whose log ends before what it had acknowledged: a torn tail that was none.

use super::peers::Cluster;
use super::*;
use std::io::IoSlice;
use std::path::Path;
use tidelog_env::disk::OpenMode;

/// Where the frames of a log file begin, and what their headers say (docs/formats/group-log.md).
const FRAMES_START: u64 = 4096;
const FRAME_HEADER: u64 = 56;

/// Makes the only log file in `dir` end before its last entry with a body, as if that had never been written.
fn cut_last_entry(disk: &dyn Disk, dir: &Path) {
    let files = disk.list(dir).unwrap();
    let file = files.iter().find(|file| file.name.ends_with(".log"));
    let path = dir.join(&file.unwrap().name);
    let file = disk.open(&path, OpenMode::ReadWrite).unwrap();
    let (mut at, mut last) = (FRAMES_START, None);
    loop {
        let mut header = vec![0; usize::try_from(FRAME_HEADER).unwrap()];
        file.read_exact_at(&mut header, at).unwrap();
        if !header.starts_with(b"TLF1") {
            break;
        }
        let field = |from: usize| {
            u64::from(u32::from_le_bytes(
                header[from..from + 4].try_into().unwrap(),
            ))
        };
        let (dir, body) = (field(12), field(16));
        if body > 0 {
            last = Some(at);
        }
        at += (FRAME_HEADER + dir + body).next_multiple_of(8);
    }
    let last = last.expect("an entry");
    let zeros = vec![0; usize::try_from(at - last).unwrap()];
    file.write_all_at(&[IoSlice::new(&zeros)], last).unwrap();
    file.sync_data().unwrap();
}

async fn until(what: &str, is: impl Fn() -> bool) {
    let waited = tokio::time::timeout(WAIT, async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    assert!(waited.await.is_ok(), "{what}");
}

/// A leader with two followers that have acknowledged all of its entries.
async fn acknowledged() -> (Cluster, Group<Values>, [RaftNodeId; 2]) {
    let cluster = Cluster::start().await;
    let (own, leader) = cluster.leader().await;
    for value in 0..20 {
        leader.propose(add(value, 100)).await.expect("applied");
    }
    let others: Vec<_> = cluster.groups.keys().filter(|id| **id != own).collect();
    let others = [*others[0], *others[1]];
    let last = leader.applied().borrow().unwrap().index;
    until("both have everything", || {
        let matched = leader.matched();
        others.iter().all(|id| matched.get(id) == Some(&last))
            && others.iter().all(|id| leader.holds_without(*id))
    })
    .await;
    (cluster, leader, others)
}

/// Proves that a follower which came back without an entry it had acknowledged counts as a copy of nothing from the next sign of life on: another copy is not given
/// up for it, it is not close, it does not vote. It is told so, is not sent anything over and over, and the leader goes on with the other one (I1).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_lost_its_end_counts_no_more() {
    let (mut cluster, leader, [victim, other]) = acknowledged().await;
    assert!(leader.reverted().is_empty());
    cluster.remove(victim).await;
    let dir = PathBuf::from(format!("/replica-{victim}/1"));
    cut_last_entry(cluster.disk.shared().as_ref(), &dir);
    let term = leader.term();
    cluster.add(victim.get(), BTreeMap::new()).await;
    until("the leader finds out", || {
        leader.reverted().contains_key(&victim)
    })
    .await;
    assert_eq!(leader.term(), term, "the same leadership");
    assert!(!leader.holds_without(other), "only the leader is left");
    assert!(leader.holds_without(victim), "the two others have it all");
    assert!(!leader.matched().contains_key(&victim));
    assert_eq!(leader.followers().get(&victim), Some(&false));
    let back = cluster.groups[&victim].clone();
    let vote = VoteRequest {
        vote: crate::log::Vote {
            term: Term::new(term.get() + 1),
            node: other,
            committed: false,
        },
        last: None,
        transfer: true,
    };
    let refused = back.inbox().vote(vote).await.unwrap_err().to_string();
    assert!(refused.contains("lost"), "{refused}");
    assert!(!back.is_in_sync() && back.following_term().is_none());

    for value in 20..40 {
        leader.propose(add(value, 100)).await.expect("applied");
    }
    let sent = || cluster.hub.appends.lock()[&victim];
    let before = sent();
    tokio::time::sleep(Duration::from_secs(1)).await;
    // A sign of life each 50 ms, and a try each 200 ms.
    assert!(sent() - before < 60, "{} in a second", sent() - before);
    assert!(!leader.holds_without(other) && leader.holds_without(victim));
    let values = back.read(|machine| machine.values.len());
    assert!(values < 20, "it takes nothing: {values}");
    cluster.stop().await;
}

/// Proves that a follower which crashes and comes back with all that it had acknowledged is none of these, nor is one that a new leader finds behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_only_was_away_counts() {
    let (mut cluster, leader, [victim, other]) = acknowledged().await;
    cluster.remove(victim).await;
    for value in 20..30 {
        leader.propose(add(value, 100)).await.expect("applied");
    }
    cluster.add(victim.get(), BTreeMap::new()).await;
    until("it catches up", || leader.holds_without(other)).await;
    assert!(leader.reverted().is_empty());
    cluster.remove(victim).await;
    // What the old leader knows of it ends with its leadership: the next one sends what is missing.
    let dir = PathBuf::from(format!("/replica-{victim}/1"));
    cut_last_entry(cluster.disk.shared().as_ref(), &dir);
    leader.transfer_leadership(other).await.unwrap();
    let next = cluster.groups[&other].clone();
    next.wait_leader(WAIT).await.unwrap();
    cluster.add(victim.get(), BTreeMap::new()).await;
    cluster.agree(&(0..30).collect::<Vec<_>>()).await;
    assert!(next.reverted().is_empty() && leader.reverted().is_empty());
    cluster.stop().await;
}
