//! A broker whose disk is damaged: it is refilled by the others without anybody's help, and only where nothing depends on what it had.

use super::asking::{http, try_http};
use super::lost::delete;
use super::members::{admin, members, producer, settled, start_stranger};
use super::three::{Acknowledged, SETTLE, Three, create, create_with, produce, sorted, until};
use super::*;
use crate::metadata::{Admission, MetadataCommand, MetadataOutcome};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tidelog_model::{NodeId, RaftNodeId};

/// Where the frames of a log file begin, and what their headers say (docs/formats/group-log.md).
const FRAMES_START: usize = 4096;
const FRAME_HEADER: usize = 56;

/// The bodies of all entries of a group on a broker: the file, and the place in it.
fn bodies(home: &Path, group: u32) -> Vec<(PathBuf, usize)> {
    let frames = frames(home, group).into_iter();
    frames.map(|(path, _, middle)| (path, middle)).collect()
}

/// The frames of all entries with a body: the file, where the frame begins, and the middle of the body.
pub(super) fn frames(home: &Path, group: u32) -> Vec<(PathBuf, usize, usize)> {
    let all = all_frames(home, group).into_iter();
    let with_body = all.filter(|(.., body)| *body > 0);
    with_body
        .map(|(path, at, dir, body)| (path, at, at + FRAME_HEADER + dir + body / 2))
        .collect()
}

/// All frames: the file, where the frame begins, and the lengths of directory and body.
fn all_frames(home: &Path, group: u32) -> Vec<(PathBuf, usize, usize, usize)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(home.join(format!("groups/{group}"))).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "log") {
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        let mut at = FRAMES_START;
        while let Some(header) = bytes.get(at..at + FRAME_HEADER)
            && header.starts_with(b"TLF1")
        {
            let field = |from: usize| {
                let field = header[from..from + 4].try_into().unwrap();
                usize::try_from(u32::from_le_bytes(field)).unwrap()
            };
            let (dir, body) = (field(12), field(16));
            found.push((path.clone(), at, dir, body));
            at += (FRAME_HEADER + dir + body).next_multiple_of(8);
        }
    }
    found
}

pub(super) fn flip((path, at): &(PathBuf, usize)) {
    let options = std::fs::OpenOptions::new().read(true).write(true).clone();
    let file = options.open(path).unwrap();
    let (mut byte, at) = ([0], u64::try_from(*at).unwrap());
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 16], at).unwrap();
    file.sync_all().unwrap();
}

/// Flips a bit of an entry of group `group` of a broker that does not run.
pub(super) fn damage(home: &Path, group: u32) -> (PathBuf, usize) {
    let bodies = bodies(home, group);
    let place = bodies[bodies.len() / 2].clone();
    flip(&place);
    place
}

/// Flips a bit of a change of metadata of a broker that does not run: these have no bodies.
pub(super) fn damage_metadata(home: &Path) -> (PathBuf, usize) {
    let all = all_frames(home, 0).into_iter();
    let changes: Vec<_> = all.filter(|(_, _, dir, _)| *dir > 0).collect();
    let (path, at, dir, _) = changes[changes.len() / 2].clone();
    let place = (path, at + FRAME_HEADER + dir / 2);
    flip(&place);
    place
}

pub(super) fn raft_node(three: &Three, id: i32) -> RaftNodeId {
    three.nodes[&id].addresses().identity.raft_node
}

pub(super) fn home(three: &Three, id: i32) -> PathBuf {
    three.dir.path().join(id.to_string())
}

/// Three brokers and a topic whose records lie in every group.
pub(super) async fn loaded() -> (Three, Acknowledged) {
    let mut three = Three::new();
    three.set.push("cluster.session-ms=1000".to_owned());
    three.start(&[1, 2, 3]).await;
    let connection = three.connect(1).await;
    create(&connection, "t", 3).await;
    let producer = producer(&three);
    let mut acknowledged = vec![Vec::new(); 3];
    produce(&producer, "t", 0..300, &mut acknowledged).await;
    producer.close().await.unwrap();
    (three, acknowledged)
}

/// What a broker that does not serve says it waits for, once that has these words.
pub(super) async fn waits(three: &Three, id: i32, words: &str) {
    until(words, || async move {
        let answer = try_http(three, id, "GET", "/readyz", "").await;
        answer.is_ok_and(|(_, text)| text.contains(words))
    })
    .await;
}

/// Everything that was acknowledged is there with broker 3 and one other alone, and broker 3 holds all its replicas as a new Raft node.
pub(super) async fn is_whole(mut three: Three, before: RaftNodeId, mut acknowledged: Acknowledged) {
    let now = members(&three, 3, "it holds everything", |now| {
        let back = |at: &tidelog_client::admin_http::MemberBroker| {
            at.id == 3 && at.live && at.replicas == 3
        };
        settled(now) && now.waiting.is_empty() && now.brokers.iter().any(back)
    })
    .await;
    assert!(now.groups.iter().all(|at| at.replicas == [1, 2, 3]));
    assert_ne!(raft_node(&three, 3), before);
    let home = home(&three, 3);
    assert!(home.join(format!("set-aside-{before}/1")).exists());
    assert!(!home.join("damaged.json").exists());
    three.nodes.remove(&2).unwrap().stop_abruptly().await;
    let producer = producer(&three);
    produce(&producer, "t", 300..350, &mut acknowledged).await;
    producer.close().await.unwrap();
    let read = three.read_all("t", 3, 350).await;
    assert_eq!(read, sorted(acknowledged));
    three.stop().await;
}

/// Proves that a broker which finds a flipped bit at its start is taken in anew and holds everything again, by itself, and that its damaged files are set aside
/// as they were.
#[tokio::test(flavor = "multi_thread")]
async fn damage_found_at_the_start() {
    let (mut three, acknowledged) = loaded().await;
    let before = raft_node(&three, 3);
    three.nodes.remove(&3).unwrap().stop().await;
    let (path, at) = damage(&home(&three, 3), 1);
    let damaged = std::fs::read(&path).unwrap();
    three.start(&[3]).await;
    let aside = home(&three, 3).join(format!("set-aside-{before}/1"));
    let kept = std::fs::read(aside.join(path.file_name().unwrap())).unwrap();
    assert_eq!(kept[at], damaged[at]);
    is_whole(three, before, acknowledged).await;
}

/// Proves that a broker which is refilled is ready only when it votes in each of its groups: the next one may be stopped then.
#[tokio::test(flavor = "multi_thread")]
async fn ready_means_that_another_may_go() {
    let (mut three, acknowledged) = loaded().await;
    let before = raft_node(&three, 3);
    three.nodes.remove(&3).unwrap().stop().await;
    damage(&home(&three, 3), 1);
    three.start(&[3]).await;
    until("it is ready", || async {
        let answer = try_http(&three, 3, "GET", "/readyz", "").await;
        answer.is_ok_and(|(status, _)| status == 200)
    })
    .await;
    let (after, router) = (raft_node(&three, 3), &three.nodes[&3].parts.groups.router);
    let votes: Vec<bool> = router
        .data_groups()
        .map(|group| group.group().replicas().voters.contains(&after))
        .collect();
    assert_eq!(votes, [true; 3], "of the groups that it holds");
    is_whole(three, before, acknowledged).await;
}

/// Proves that damage which no start looks at, and a read finds, ends the broker without serving it, and that the next start is refilled all the same.
#[tokio::test(flavor = "multi_thread")]
async fn damage_found_by_a_read() {
    let (mut three, acknowledged) = loaded().await;
    three.nodes.remove(&3).unwrap().stop().await;
    three.set.push("log.cache-bytes=0".to_owned());
    three.start(&[3]).await;
    let before = raft_node(&three, 3);
    members(&three, 3, "it has caught up", settled).await;
    for place in bodies(&home(&three, 3), 1) {
        flip(&place);
    }
    // It leads group 1 from now on and reads what it is asked for, or sends others what they lack.
    let router = &three.nodes[&3].parts.groups.router;
    let group = router
        .data_groups()
        .find(|group| group.id().get() == 1)
        .unwrap();
    let log = group.group().log().clone();
    let state = log.state();
    let first = state.purged.map_or(0, |id| id.index.get()) + 1;
    let last = state.last.unwrap().index;
    let mut found = None;
    for index in first..=last.get() {
        let index = tidelog_model::LogIndex::new(index);
        found = found.or(log.entries(index..index.next(), 1).await.err());
    }
    let found = found.expect("a damaged entry").to_string();
    assert!(found.contains("damaged"), "{found}");
    let old = three.nodes.remove(&3).unwrap();
    let why = tokio::time::timeout(SETTLE, old.ended()).await.unwrap();
    assert!(matches!(why, Ended::Failed(_)), "{why:?}");
    old.stop_abruptly().await;
    three.start(&[3]).await;
    is_whole(three, before, acknowledged).await;
}

/// Proves that a broker whose metadata is damaged, and which alone has a copy of something, serves nothing and waits, names what, leaves its files as they are, and is taken in by an operator only; and that one
/// which shall not be refilled refuses to start, as it did before.
#[tokio::test(flavor = "multi_thread")]
async fn an_only_copy_is_not_given_up() {
    let (mut three, _) = loaded().await;
    let connection = three.connect(1).await;
    assert_eq!(create_with(&connection, "one", 3, 1).await.error_code, 0);
    let before = raft_node(&three, 3);
    three.nodes.remove(&3).unwrap().stop().await;
    let home = home(&three, 3);
    let (path, _) = damage_metadata(&home);
    let kept = std::fs::read(&path).unwrap();
    let own = vec!["cluster.refill-damaged=false".to_owned()];
    three.own.insert(3, own);
    let refused = start_stranger(&three, 3).await.unwrap().err().unwrap();
    let refused = refused.to_string();
    let may_be_refilled = "without `cluster.refill-damaged=false`";
    assert!(
        refused.contains("is damaged at byte") && refused.contains(may_be_refilled),
        "{refused}"
    );
    assert!(!refused.contains("empty"), "{refused}");
    assert!(!home.join("damaged.json").exists());
    three.own.clear();
    let starting = start_stranger(&three, 3);
    waits(&three, 3, "has no other copy").await;
    let (_, says) = try_http(&three, 3, "GET", "/readyz", "").await.unwrap();
    let first = says.find("First start the brokers");
    let found = &says[..first.unwrap()];
    assert!(
        !found.contains("empty") && !found.contains("cluster add"),
        "what is there is not to be thrown away: {says}"
    );
    let now = members(&three, 2, "it is told", |now| {
        let told = |at: &tidelog_client::admin_http::WaitingBroker| {
            let why = at.refused.as_ref();
            at.id == 3 && at.damaged && why.is_some_and(|why| why.contains("no other copy"))
        };
        now.waiting.iter().any(told)
    })
    .await;
    let member = now.brokers.iter().find(|at| at.id == 3).unwrap();
    assert_eq!(member.raft_node, before.get());
    let leader = now.metadata_leader.unwrap();
    until("it is counted", || async {
        let (_, page) = http(&three, leader, "GET", "/metrics", "").await;
        page.contains("\ntidelog_brokers_damaged_waiting 1\n")
    })
    .await;
    assert!(!starting.is_finished());
    assert_eq!(std::fs::read(&path).unwrap(), kept);
    assert!(!home.join(format!("set-aside-{before}")).exists());

    let refused = admin(&three, 1).add_broker(3, false).await.unwrap_err();
    let text = refused.to_string();
    assert!(
        text.contains("It holds what nobody else has") && text.contains("(one-"),
        "{text}"
    );
    assert!(!starting.is_finished());
    let given_up = admin(&three, 1).add_broker_giving_up_data(3, false).await;
    given_up.unwrap();
    let node = tokio::time::timeout(SETTLE, starting).await.unwrap();
    three.nodes.insert(3, node.unwrap().unwrap());
    assert!(home.join(format!("set-aside-{before}")).exists());
    members(&three, 3, "the loss is told", |now| {
        settled(now) && now.groups.iter().any(|at| at.lost.is_some())
    })
    .await;
    three.stop().await;
}

/// Proves that groups with one copy in which nothing is any more keep nobody from being refilled: the topic that they were made for was deleted. Others take
/// their place, so that all are led again, by whom they were not before.
#[tokio::test(flavor = "multi_thread")]
async fn unused_groups_hold_nobody_back() {
    let (mut three, _) = loaded().await;
    let connection = three.connect(1).await;
    assert_eq!(create_with(&connection, "one", 3, 1).await.error_code, 0);
    three.leaders("one").await;
    delete(&connection, "one").await;
    let before = raft_node(&three, 3);
    let alone = |now: &tidelog_client::admin_http::Members| {
        let alone = now.groups.iter().filter(|at| at.replicas == [3]);
        alone.map(|at| at.group).collect::<Vec<_>>()
    };
    let old = members(&three, 1, "it holds one alone", |now| alone(now).len() == 1).await;
    three.nodes.remove(&3).unwrap().stop().await;
    damage(&home(&three, 3), 1);
    three.start(&[3]).await;
    assert_ne!(raft_node(&three, 3), before);
    members(&three, 1, "all are led", |now| {
        let led = now.groups.iter().all(|at| at.leader.is_some());
        let gone = now.groups.iter().all(|at| at.group != alone(&old)[0]);
        settled(now) && led && gone && now.groups.len() == old.groups.len()
    })
    .await;
    assert_eq!(create_with(&connection, "two", 3, 1).await.error_code, 0);
    three.leaders("two").await;
    three.stop().await;
}

/// Proves that of three brokers two of which have damaged metadata neither begins anew, nor runs in part, since nobody leads without them; and that, once the other one is back with what it had,
/// the one that is damaged is refilled, by whichever of its starts.
#[tokio::test(flavor = "multi_thread")]
async fn two_damaged_brokers_keep_what_they_have() {
    let (mut three, acknowledged) = loaded().await;
    let before = raft_node(&three, 3);
    let mut places = Vec::new();
    for id in [2, 3] {
        three.nodes.remove(&id).unwrap().stop().await;
        places.push(damage_metadata(&home(&three, id)));
    }
    // A start that waits ends with its process: these two are one.
    let process = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let waiting = [2, 3].map(|id| process.spawn(Node::start(three.config(id), World::system())));
    for id in [2, 3] {
        waits(&three, id, "waits to be refilled by the others").await;
    }
    let mark = |id| std::fs::read_to_string(home(&three, id).join("damaged.json")).unwrap();
    let marks = [mark(2), mark(3)];
    // Several sessions and rounds of decisions in which nothing may happen.
    tokio::time::sleep(Duration::from_secs(4)).await;
    for (id, starting) in [2, 3].into_iter().zip(&waiting) {
        assert!(!starting.is_finished());
        assert!(home(&three, id).join("groups/1").exists());
        assert_eq!(mark(id), marks[if id == 2 { 0 } else { 1 }]);
    }
    process.shutdown_background();
    for id in [2, 3] {
        for port in three.ports[&id] {
            until("nobody listens", || async move {
                let connected = tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
                connected.is_err()
            })
            .await;
        }
    }
    assert_eq!([mark(2), mark(3)], marks, "the same wish at every start");

    // The disk of broker 2 was right after all.
    flip(&places[0]);
    let own = vec!["cluster.refill-damaged=false".to_owned()];
    three.own.insert(2, own);
    three.start(&[2]).await;
    three.start(&[3]).await;
    // It is well: a later start does not refill it for what it was once thought to be.
    let mark = home(&three, 2).join("damaged.json");
    until("what was found is forgotten", || async { !mark.exists() }).await;
    is_whole(three, before, acknowledged).await;
}

/// Broker 3 is a member as `next` from now on.
async fn taken_in(three: &Three, next: RaftNodeId) {
    let admission = Admission {
        node: NodeId::new(3),
        raft_node: next,
        zone: "zone-3".to_owned(),
        peer: None,
        by_operator: true,
        expects: None,
    };
    let router = &three.nodes[&1].parts.groups.router;
    let admit = MetadataCommand::AdmitBroker(admission);
    let outcome = router.propose_metadata(&admit).await.unwrap();
    assert_eq!(outcome, MetadataOutcome::MembersChanged);
}

/// Proves that a broker that crashed after it was taken in anew, be it before its directory says so or after, goes on as the new Raft node and is refilled.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_after_it_was_taken_in() {
    for switched in [false, true] {
        let (mut three, acknowledged) = loaded().await;
        let (before, next) = (raft_node(&three, 3), RaftNodeId::new(4_711));
        three.nodes.remove(&3).unwrap().stop().await;
        let home = home(&three, 3);
        let mark = format!(
            r#"{{"version":1,"raft_node_id":{before},"next_raft_node_id":{next},"what":"a bit"}}"#
        );
        std::fs::write(home.join("damaged.json"), mark).unwrap();
        taken_in(&three, next).await;
        if switched {
            let path = home.join("cluster.json");
            let text = std::fs::read_to_string(&path).unwrap();
            let (old, new) = (before.to_string(), next.to_string());
            let own = |id: &str| format!("\"raft_node_id\": {id},\n  \"cluster\"");
            assert!(text.contains(&own(&old)), "{text}");
            std::fs::write(&path, text.replace(&own(&old), &own(&new))).unwrap();
        }
        three.start(&[3]).await;
        assert_eq!(raft_node(&three, 3), next);
        is_whole(three, before, acknowledged).await;
    }
}

/// Proves that a broker which was taken in anew, and is started as it was, is told to go on as the new one, not to be taken in again; and that it does when it is
/// started so.
#[tokio::test(flavor = "multi_thread")]
async fn who_was_taken_in_anew_is_not_taken_in_again() {
    let (mut three, acknowledged) = loaded().await;
    let (before, next) = (raft_node(&three, 3), RaftNodeId::new(4_711));
    three.nodes.remove(&3).unwrap().stop().await;
    let mark = format!(
        r#"{{"version":1,"raft_node_id":{before},"next_raft_node_id":{next},"what":"a bit"}}"#
    );
    std::fs::write(home(&three, 3).join("damaged.json"), mark).unwrap();
    taken_in(&three, next).await;
    let own = vec!["cluster.refill-damaged=false".to_owned()];
    three.own.insert(3, own);
    // A start that waits ends with its process.
    let process = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let _waiting = process.spawn(Node::start(three.config(3), World::system()));
    waits(&three, 3, "Start it without `cluster.refill-damaged=false`").await;
    process.shutdown_background();
    for port in three.ports[&3] {
        until("nobody listens", || async move {
            let connected = tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
            connected.is_err()
        })
        .await;
    }
    three.own.clear();
    three.start(&[3]).await;
    assert_eq!(raft_node(&three, 3), next);
    is_whole(three, before, acknowledged).await;
}
