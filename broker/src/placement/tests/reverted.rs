//! A replica whose log ends before what it had acknowledged: a torn tail that was none.

use super::peers::Cluster;
use super::*;
use crate::placement::peer_client::snapshot_request;
use futures::FutureExt;
use openraft::async_runtime::watch::WatchReceiver as _;
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
    // Up to the end of the file: the seal of a log that was closed tells of what is gone.
    let end = file.length().unwrap();
    let zeros = vec![0; usize::try_from(end - last).unwrap()];
    file.write_all_at(&[IoSlice::new(&zeros)], last).unwrap();
    file.sync_data().unwrap();
}

async fn until(what: &str, is: impl AsyncFn() -> bool) {
    let waited = tokio::time::timeout(WAIT, async {
        while !is().await {
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
    until("both have everything", async || {
        let matched = leader.matched();
        others.iter().all(|id| matched.get(id) == Some(&last)) && {
            let [one, two] = others.map(|id| leader.holds_without(id));
            one.await && two.await
        }
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
    until("the leader finds out", async || {
        leader.reverted().contains_key(&victim)
    })
    .await;
    assert_eq!(leader.term(), term, "the same leadership");
    assert!(
        !leader.holds_without(other).await,
        "only the leader is left"
    );
    assert!(
        leader.holds_without(victim).await,
        "the two others have it all"
    );
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
    assert!(!leader.holds_without(other).await && leader.holds_without(victim).await);
    let values = back.read(|machine| machine.values.len());
    assert!(values < 20, "it takes nothing: {values}");
    cluster.stop().await;
}

/// Proves that a follower which has stopped counts as a copy no more from that moment on, although the leader's lease still holds on its word: it may come back damaged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_stopped_within_the_lease_counts_no_more() {
    let (mut cluster, leader, [victim, other]) = acknowledged().await;
    assert!(leader.holds_without(other).await);
    cluster.remove(victim).await;
    assert!(
        !leader.holds_without(other).await,
        "only the leader is left"
    );
    assert!(leader.holds_without(victim).await && leader.is_leader());
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
    until("it catches up", async || leader.holds_without(other).await).await;
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

/// The log files in `dir` as they are now.
fn log_files(disk: &MemoryDisk, dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let paths = disk.paths().into_iter();
    let logs = paths
        .filter(|path| path.starts_with(dir) && path.extension().is_some_and(|of| of == "log"));
    logs.map(|path| (path.clone(), disk.contents(&path).unwrap()))
        .collect()
}

/// Proves that a follower whose disk comes back with all that it had acknowledged counts again, to the same leader, and gets entries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_its_end_again_counts() {
    let (mut cluster, leader, [victim, other]) = acknowledged().await;
    cluster.remove(victim).await;
    let dir = PathBuf::from(format!("/replica-{victim}/1"));
    let kept = log_files(&cluster.disk, &dir);
    cut_last_entry(&cluster.disk, &dir);
    let term = leader.term();
    cluster.add(victim.get(), BTreeMap::new()).await;
    until("the leader finds out", async || {
        leader.reverted().contains_key(&victim)
    })
    .await;
    cluster.remove(victim).await;
    for (path, _) in log_files(&cluster.disk, &dir) {
        cluster.disk.remove(&path).unwrap();
    }
    for (path, bytes) in &kept {
        let file = cluster.disk.open(path, OpenMode::CreateNew).unwrap();
        file.write_all_at(&[IoSlice::new(bytes)], 0).unwrap();
        file.sync_data().unwrap();
    }
    cluster.disk.sync_dir(&dir).unwrap();
    cluster.add(victim.get(), BTreeMap::new()).await;
    until("it counts again", async || {
        leader.reverted().is_empty() && leader.holds_without(other).await
    })
    .await;
    assert_eq!(leader.term(), term, "the same leadership");
    leader.propose(add(20, 100)).await.expect("applied");
    cluster.agree(&(0..=20).collect::<Vec<_>>()).await;
    cluster.stop().await;
}

/// A replica that waits to be taken in, with nothing.
async fn empty(disk: &MemoryDisk) -> (Home, Group<Values>) {
    let home = Home::on(disk.shared(), PathBuf::from("/replica-2/1"), 2);
    let config = GroupConfig::new(GROUP, home.node, BTreeMap::new());
    let machine = Values::new(Cuts::AtCut);
    let group = Group::start(config, home.log().await, machine, Arc::new(NoPeers)).await;
    (home, group.expect("starts"))
}

/// Proves that a replica which is made anew under the id of one that was dropped has lost nothing, whatever a leader that has not heard of that says to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_begins_with_nothing_has_lost_nothing() {
    let disk = MemoryDisk::new();
    let (_home, group) = empty(&disk).await;
    let id = |index: u64| {
        Some(LogId {
            term: Term::new(2),
            index: LogIndex::new(index),
        })
    };
    let append = AppendRequest {
        vote: crate::log::Vote {
            term: Term::new(3),
            node: RaftNodeId::new(1),
            committed: true,
        },
        previous: id(10),
        committed: id(10),
        acknowledged: id(12),
        entries: Vec::new(),
    };
    let answer = group.inbox().append(append).await;
    assert_eq!(answer, Ok(AppendReply::Conflict));
    assert!(!group.core.observer.heard().has_lost());
    group.stop().await;
}

/// A leader alone with some entries and a checkpoint of them: the leader, what it sends a replica that lacks them, and the same as entries.
async fn leader_with_checkpoint(
    disk: &MemoryDisk,
) -> (Group<Values>, SnapshotRequest, AppendRequest) {
    let leader = Home::in_memory(disk).lead(Values::new(Cuts::AtCut)).await;
    leader.propose(add(7, 10)).await.expect("applied");
    let (last, _) = leader.propose(cut()).await.expect("applied");
    assert_eq!(leader.snapshot_and_persist().await, Ok(last));
    let vote = leader.core.raft.server_metrics().borrow_watched().vote;
    let snapshot = leader.core.store.current().unwrap();
    let request = snapshot_request(&vote, snapshot).unwrap();
    let all = LogIndex::new(0)..last.index.next();
    let append = AppendRequest {
        vote: request.vote,
        previous: None,
        committed: Some(last),
        acknowledged: None,
        entries: leader.log().entries(all, 1 << 20).await.unwrap(),
    };
    assert_eq!(append.entries.last().unwrap().id, last);
    (leader, request, append)
}

/// Polls once: what it sends to the core comes there before what is sent later.
fn begun<T: Send + 'static>(
    answer: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    let mut answer = Box::pin(answer);
    assert!(answer.as_mut().now_or_never().is_none());
    tokio::spawn(answer)
}

fn send_snapshot(
    group: &Group<Values>,
    request: &SnapshotRequest,
) -> tokio::task::JoinHandle<Result<crate::log::Vote, PeerError>> {
    let (inbox, request) = (group.inbox(), request.clone());
    begun(async move { inbox.snapshot(request).await })
}

/// Proves that a snapshot is answered when it is on disk, not before, also when it is sent again while the first one is being written; and at once when it was
/// installed long ago. The answer is an acknowledgement.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_is_answered_from_the_disk() {
    let (source, disk) = (MemoryDisk::new(), MemoryDisk::new());
    let (leader, request, append) = leader_with_checkpoint(&source).await;
    let (_home, group) = empty(&disk).await;
    let sign = AppendRequest {
        entries: Vec::new(),
        committed: None,
        ..append
    };
    // The vote is on disk: only the snapshot is not.
    assert_eq!(group.inbox().append(sign).await, Ok(AppendReply::Matched));
    let held = disk.hold_syncs();
    let mut answers = [(); 2].map(|()| send_snapshot(&group, &request));
    until("it is written", async || held.waiting() > 0).await;
    let again = tokio::time::timeout(Duration::from_millis(300), &mut answers[1]).await;
    assert!(again.is_err(), "it is not on disk");
    drop(held);
    for answer in answers {
        assert_eq!(answer.await.unwrap(), Ok(request.vote));
    }
    let found = group.log().load_newest_checkpoint().await.unwrap();
    let last = leader.applied().borrow().unwrap();
    assert_eq!(found.unwrap().0, last);
    let vote = request.vote;
    assert_eq!(group.inbox().snapshot(request).await, Ok(vote));
    group.stop().await;
    leader.stop().await;
}

/// Proves that a snapshot of which nothing is needed, since its entries are here and committed, is answered when those are on disk. Raft's core takes it for known as
/// soon as they are on their way there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_of_known_entries_waits_for_them() {
    let (source, disk) = (MemoryDisk::new(), MemoryDisk::new());
    let (leader, request, append) = leader_with_checkpoint(&source).await;
    let (_home, group) = empty(&disk).await;
    let sign = AppendRequest {
        entries: Vec::new(),
        committed: None,
        ..append.clone()
    };
    assert_eq!(group.inbox().append(sign).await, Ok(AppendReply::Matched));
    let held = disk.hold_syncs();
    let inbox = group.inbox();
    let appended = begun(async move { inbox.append(append).await });
    until("they are written", async || held.waiting() > 0).await;
    let mut answer = send_snapshot(&group, &request);
    let early = tokio::time::timeout(Duration::from_millis(300), &mut answer).await;
    assert!(early.is_err() && !appended.is_finished(), "{early:?}");
    drop(held);
    assert_eq!(answer.await.unwrap(), Ok(request.vote));
    assert_eq!(appended.await.unwrap(), Ok(AppendReply::Matched));
    group.stop().await;
    leader.stop().await;
}
