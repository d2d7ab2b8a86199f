//! The name of a deleted topic, while a broker has not heard of the deletion.

use super::asking::produce_one;
use super::commits::{commit, commit_until, coordinator, fetched, fill, groups, router};
use super::lost::delete;
use super::three::{SETTLE, Three, create, create_with, create_with_timeout, until};
use super::*;
use crate::datagroup::DataGroup;
use crate::log::Vote;
use crate::peer::{PeerReceiver, Receiving, Registered};
use crate::placement::{
    AppendReply, AppendRequest, PeerError, SnapshotRequest, TransferReply, TransferRequest,
    VoteReply, VoteRequest,
};
use tidelog_model::{PlacementGroupId, Term};

/// Proves that a name is not given to a new topic while the leader of a partition of the old one may not know that it is gone: it is silent here. The refusal
/// says that nothing was created; when the broker is back, it drops what it has, and the name is free: what is written then is in the new topic only.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_name_is_held_until_all_have_dropped_it() {
    let mut three = Three::new();
    three.start(&[1, 2, 3]).await;
    let connection = three.connect(1).await;
    let created = create_with(&connection, "t", 3, 1).await;
    assert_eq!(created.error_code, 0, "{:?}", created.error_message);
    let leaders = three.leaders("t").await;
    let at = leaders.iter().position(|leader| *leader != 1).unwrap();
    let gone = leaders[at];
    let held = i32::try_from(at).unwrap();
    let old = three.connect(gone).await;
    assert_eq!(produce_one(&old, "t", held, 10_000).await, (0, 0));
    three.nodes.remove(&gone).unwrap().stop_abruptly().await;
    three.cluster().delete_topic("t").await.unwrap();
    let refused = create_with_timeout(&connection, "t", 3, 2_000).await;
    assert_eq!(refused.error_code, ErrorCode::RequestTimedOut.code());
    let why = refused.error_message.unwrap();
    assert!(why.contains("Nothing was created"), "{why}");
    // Another name waits for nobody.
    let other = create_with(&connection, "other", 1, 3).await;
    assert!(
        other.error_code == 0 || other.error_code == ErrorCode::InvalidReplicationFactor.code(),
        "{:?}",
        other.error_message
    );
    three.start(&[gone]).await;
    name_is_free(&connection, "t", 3).await;
    let leaders = three.leaders("t").await;
    for (partition, leader) in (0i32..).zip(leaders) {
        let connection = three.connect(leader).await;
        let (code, offset) = produce_one(&connection, "t", partition, 10_000).await;
        assert_eq!((code, offset), (0, 0), "the new topic is empty");
    }
    three.stop().await;
}

/// Creates the topic as soon as its name is free.
async fn name_is_free(connection: &Connection, topic: &str, partitions: i32) {
    let held = ErrorCode::RequestTimedOut.code();
    until("the name is free", || async {
        let created = create_with_timeout(connection, topic, partitions, 2_000).await;
        let (code, why) = (created.error_code, created.error_message);
        assert!(code == 0 || code == held, "{code} {why:?}");
        code == 0
    })
    .await;
}

/// Hears nothing.
struct Deaf;

macro_rules! hears_nothing {
    ($($message:ident: $request:ty => $reply:ty),+ $(,)?) => {
        impl PeerReceiver for Deaf {
            $(fn $message(&self, _: $request) -> Receiving<$reply> {
                let cut = PeerError::Unreachable("it is cut off".to_owned());
                Box::pin(std::future::ready(Err(cut)))
            })+
        }
    };
}

hears_nothing! {
    append: AppendRequest => AppendReply,
    vote: VoteRequest => VoteReply,
    pre_vote: VoteRequest => VoteReply,
    snapshot: SnapshotRequest => Vote,
    transfer: TransferRequest => TransferReply,
}

/// Cuts a broker off from the metadata group, and from no other.
fn cut(three: &Three, id: i32) -> Registered {
    let parts = &three.nodes[&id].parts;
    let groups = &parts.peers.as_ref().unwrap().groups;
    groups.register(PlacementGroupId::METADATA, Deaf)
}

fn heal(three: &Three, id: i32) -> Registered {
    let parts = &three.nodes[&id].parts;
    let groups = &parts.peers.as_ref().unwrap().groups;
    let inbox = parts.groups.router.metadata().inbox();
    groups.register(PlacementGroupId::METADATA, inbox)
}

/// A broker that leads neither metadata nor the partition, and a consumer group that it coordinates.
async fn bystander(three: &Three, leader: i32) -> (i32, String) {
    until(
        "each leads one group, and nothing moves any more",
        || async {
            let mut all = three.nodes.keys();
            all.all(|id| router(three, *id).led_groups().len() == 1)
        },
    )
    .await;
    let found = || async {
        let metadata = router(three, 1).controller()?.get();
        for group in groups(three) {
            let at = coordinator(three, &group).await;
            if at != leader && at != metadata {
                return Some((at, group));
            }
        }
        None
    };
    until("somebody leads neither", || async {
        found().await.is_some()
    })
    .await;
    found().await.unwrap()
}

/// Who leads which data group, in which term.
fn terms(three: &Three) -> Vec<(i32, PlacementGroupId, Option<Term>)> {
    let mut all = Vec::new();
    for id in three.nodes.keys() {
        let held = router(three, *id);
        let of = |group: DataGroup| (*id, group.id(), group.group().serving_term());
        all.extend(held.data_groups().map(of));
    }
    all
}

/// Proves that a coordinator which is cut off from metadata keeps no offset by name before it has asked metadata once, and goes on by itself then; and that the name of a
/// deleted topic is not given to a new one while such a coordinator has not heard of the deletion, though it has no partition of it. What it kept is not the new topic's.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_coordinator_that_lags_keeps_no_offsets_for_the_next_topic() {
    for tried in 1.. {
        let mut three = Three::new();
        three.start(&[1, 2, 3]).await;
        let steady = lags(&three).await;
        three.stop().await;
        if steady {
            break;
        }
        assert!(tried < 5, "leaders never stay");
    }
}

/// False if leaders moved meanwhile: a new one asks metadata anew, so what it answers proves nothing.
async fn lags(three: &Three) -> bool {
    const UNSURE: i16 = ErrorCode::CoordinatorLoadInProgress.code();
    let connection = three.connect(1).await;
    create(&connection, "t", 1).await;
    let leader = three.leaders("t").await[0];
    fill(three, "t", 1).await;
    let (at, group) = bystander(three, leader).await;
    let first = terms(three);
    let moved = || terms(three) != first;
    let other = (1..=3).find(|id| *id != at).unwrap();
    let there = three.connect(other).await;
    let goes_on = async |topic: &str| {
        let created = create(&there, topic, 1).await;
        assert_eq!(created.error_code, 0, "{:?}", created.error_message);
    };

    let deaf = cut(three, at);
    goes_on("metadata").await;
    let first_commit = commit(three, at, &group, "t", &[1]).await;
    let first_fetched = fetched(three, at, &group, "t").await;
    if moved() {
        return false;
    }
    assert_eq!(first_commit, [UNSURE]);
    assert_eq!(first_fetched, (UNSURE, -1));
    let heard = heal(three, at);
    drop(deaf);
    let kept_at = commit_until(three, &group, "t", &[2], &[0]).await;

    let deaf = cut(three, at);
    drop(heard);
    goes_on("more").await;
    let answered = commit(three, at, &group, "t", &[2]).await;
    if moved() {
        return false;
    }
    assert_eq!(kept_at, at);
    assert_eq!(answered, [0], "it asks nobody a second time");
    delete(&there, "t").await;
    let held = ErrorCode::RequestTimedOut.code();
    let refused = create_with_timeout(&there, "t", 1, 2_000).await;
    assert_eq!(refused.error_code, held, "{:?}", refused.error_message);
    // It has not heard of it, and the name is nobody else's.
    let answered = commit(three, at, &group, "t", &[2]).await;
    if moved() {
        return false;
    }
    assert_eq!(answered, [0]);

    let _heard = heal(three, at);
    drop(deaf);
    name_is_free(&there, "t", 1).await;
    let end = Instant::now() + SETTLE;
    loop {
        let at = coordinator(three, &group).await;
        match fetched(three, at, &group, "t").await {
            (0, offset) => break assert_eq!(offset, -1, "of the old topic"),
            (code, _) => assert!(Instant::now() < end, "{code}"),
        }
    }
    let at = commit_until(three, &group, "t", &[0], &[0]).await;
    assert_eq!(fetched(three, at, &group, "t").await, (0, 0));
    true
}
