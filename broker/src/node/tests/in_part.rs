//! Damaged brokers whose metadata is whole: they run without the groups that are damaged, and are refilled when nothing needs them.

use super::asking::try_http;
use super::members::{admin, members, producer, settled, start_at};
use super::refilled::{damage, home, is_whole, loaded, raft_node};
use super::three::{Acknowledged, SETTLE, Three, create, create_with, produce, sorted, until};
use super::*;
use futures::FutureExt;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tidelog_client::admin_http::Members;
use tidelog_model::{PlacementGroupId, RaftNodeId};

/// The files of a group on a broker.
fn files(home: &Path, group: u32) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(home.join(format!("groups/{group}"))).unwrap();
    let file = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, std::fs::read(path).unwrap())
    };
    entries.map(file).collect()
}

/// Stops these brokers and damages a group on each; what lies there of it then.
async fn damage_on(three: &mut Three, at: &[(i32, u32)]) -> Vec<BTreeMap<String, Vec<u8>>> {
    for (id, group) in at {
        three.nodes.remove(id).unwrap().stop().await;
        damage(&home(three, *id), *group);
    }
    at.iter()
        .map(|(id, group)| files(&home(three, *id), *group))
        .collect()
}

/// What brokers have noted about damage, where a test finds something else than it expects.
fn noted(three: &Three) -> String {
    let note = |id: &i32| {
        let text = std::fs::read_to_string(home(three, *id).join("damaged.json"));
        format!("broker {id}: {text:?}")
    };
    let all: Vec<String> = three.ports.keys().map(note).collect();
    all.join("; ")
}

fn raft_nodes(three: &Three, at: &[(i32, u32)]) -> Vec<RaftNodeId> {
    at.iter().map(|(id, _)| raft_node(three, *id)).collect()
}

/// The groups that broker `id` runs, metadata's apart.
fn runs(three: &Three, id: i32) -> BTreeSet<u32> {
    let router = &three.nodes[&id].parts.groups.router;
    router.data_groups().map(|group| group.id().get()).collect()
}

/// These brokers are told to be damaged in these groups, and why they are not refilled.
async fn told(three: &Three, at: &[(i32, u32)]) {
    let told = |now: &Members| {
        at.iter().all(|(id, group)| {
            now.waiting.iter().any(|one| {
                let withheld = one.withheld.as_deref() == Some([*group].as_slice());
                one.id == *id && one.damaged && withheld && one.refused.is_some()
            })
        })
    };
    members(three, 1, "they are told", told).await;
    for (id, group) in at {
        let words = format!("group {group} is damaged on broker {id} ");
        until("it says so", || async {
            let answer = try_http(three, *id, "GET", "/readyz", "").await;
            answer.is_ok_and(|(status, text)| {
                status == 503 && text.contains(&words) && text.contains("serves its other groups")
            })
        })
        .await;
    }
}

/// A supervisor: starts again whoever of `ids` stops to be refilled, until all of them are other Raft nodes than `before`.
async fn refilled_in_turn(three: &mut Three, ids: &[i32], before: &[RaftNodeId]) {
    let until = Instant::now() + 4 * SETTLE;
    let mut left: BTreeSet<i32> = ids.iter().copied().collect();
    while !left.is_empty() {
        let ended = left.iter().map(|id| {
            let (id, node) = (*id, &three.nodes[id]);
            async move { (id, node.ended().await) }.boxed()
        });
        let next = futures::future::select_all(ended);
        let ((id, why), ..) = tokio::time::timeout_at(until, next)
            .await
            .unwrap_or_else(|_| panic!("{left:?} are not refilled"));
        assert!(matches!(&why, Ended::Refills(_)), "{why:?}");
        three.nodes.remove(&id).unwrap().stop().await;
        three.start(&[id]).await;
        let at = ids.iter().position(|known| *known == id).unwrap();
        if raft_node(three, id) != before[at] {
            left.remove(&id);
        }
    }
}

/// Broker 4 comes.
async fn add_a_fourth(three: &mut Three) {
    let starting = start_at(three, 4, "4", 1);
    members(three, 1, "it waits", |now| {
        now.waiting.iter().any(|at| at.id == 4)
    })
    .await;
    admin(three, 1).add_broker(4, false).await.unwrap();
    let node = tokio::time::timeout(SETTLE, starting).await.unwrap();
    three.nodes.insert(4, node.unwrap().unwrap());
}

async fn goes_on(
    three: &Three,
    partitions: usize,
    values: std::ops::Range<u32>,
    acknowledged: &mut Acknowledged,
) {
    let upto = usize::try_from(values.end).unwrap();
    let producer = producer(three);
    produce(&producer, "t", values, acknowledged).await;
    producer.close().await.unwrap();
    let count = i32::try_from(partitions).unwrap();
    let read = three.read_all("t", count, upto).await;
    assert_eq!(read, sorted(acknowledged.clone()));
}

/// Proves that of three brokers two of which are damaged, each in another group, the cluster goes on: both run as who they were, without touching what is damaged, and say
/// so; every group has a leader and takes records, and nothing that was acknowledged is missing. A broker more makes room: both are refilled by themselves, one after the
/// other.
#[tokio::test(flavor = "multi_thread")]
async fn two_damaged_brokers_run_in_part() {
    let (mut three, mut acknowledged) = loaded().await;
    let at = [(2, 1), (3, 2)];
    let before = raft_nodes(&three, &at);
    let found = damage_on(&mut three, &at).await;
    three.start(&[2, 3]).await;
    assert_eq!(raft_nodes(&three, &at), before, "{}", noted(&three));
    assert_eq!(runs(&three, 2), BTreeSet::from([2, 3]));
    assert_eq!(runs(&three, 3), BTreeSet::from([1, 3]));
    goes_on(&three, 3, 300..350, &mut acknowledged).await;
    told(&three, &at).await;
    let refused = admin(&three, 3).transfer_leader(1, 2).await.unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("group 1 is damaged on broker 2"), "{text}");
    let now = members(&three, 2, "all are led", |now| {
        now.groups.iter().all(|group| group.leader.is_some())
    })
    .await;
    assert!(now.brokers.iter().all(|broker| broker.live));
    for ((id, group), found) in at.iter().zip(&found) {
        assert_eq!(&files(&home(&three, *id), *group), found, "broker {id}");
    }
    add_a_fourth(&mut three).await;
    refilled_in_turn(&mut three, &[2, 3], &before).await;
    members(&three, 1, "all is whole", |now| {
        settled(now) && now.waiting.is_empty() && now.groups.iter().all(|at| at.leader.is_some())
    })
    .await;
    for id in [2, 3] {
        assert!(!home(&three, id).join("damaged.json").exists());
    }
    goes_on(&three, 3, 350..400, &mut acknowledged).await;
    three.stop().await;
}

/// Proves the way out by hand where a broker more is not enough by itself: one of the two damaged ones is decommissioned, which moves what it has whole and what is damaged
/// there; it leaves, and the other one is refilled then. Nothing that was acknowledged is missing.
#[tokio::test(flavor = "multi_thread")]
async fn a_mutual_wait_ends_by_a_decommission() {
    let mut three = Three::new();
    for set in ["cluster.session-ms=1000", "cluster.data-groups=2"] {
        three.set.push(set.to_owned());
    }
    three.start(&[1, 2, 3]).await;
    let connection = three.connect(3).await;
    create(&connection, "t", 2).await;
    let mut acknowledged = vec![Vec::new(); 2];
    goes_on(&three, 2, 0..200, &mut acknowledged).await;
    // Group 1 goes from broker 3 to the new one; each of these two stays where it is damaged, and where the other one needs it.
    let at = [(1, 2), (2, 1)];
    let before = raft_nodes(&three, &at);
    damage_on(&mut three, &at).await;
    three.start(&[1, 2]).await;
    assert_eq!(raft_nodes(&three, &at), before, "{}", noted(&three));
    add_a_fourth(&mut three).await;
    members(&three, 3, "loads are even", |now| {
        settled(now) && now.brokers.iter().all(|at| at.replicas > 0)
    })
    .await;
    told(&three, &at).await;
    goes_on(&three, 2, 200..250, &mut acknowledged).await;
    admin(&three, 3).decommission(2, false).await.unwrap();
    let why = tokio::time::timeout(2 * SETTLE, three.nodes[&2].ended()).await;
    let why = why.expect("it leaves");
    assert!(matches!(why, Ended::Left(_)), "{why:?}");
    three.nodes.remove(&2).unwrap().stop().await;
    three.ports.remove(&2);
    refilled_in_turn(&mut three, &[1], &before[..1]).await;
    members(&three, 3, "all is whole", |now| {
        settled(now) && now.waiting.is_empty() && now.groups.iter().all(|at| at.leader.is_some())
    })
    .await;
    goes_on(&three, 2, 250..300, &mut acknowledged).await;
    three.stop().await;
}

/// Proves that where two of three copies of one group are damaged nothing of it is given up, or made anew, and nobody is refilled; the other groups go on. Once the damage of
/// one is put back, the other one is refilled, and everything is there.
#[tokio::test(flavor = "multi_thread")]
async fn two_damaged_copies_of_one_group_stay() {
    let (mut three, acknowledged) = loaded().await;
    let at = [(2, 1), (3, 1)];
    let before = raft_nodes(&three, &at);
    let mut places = Vec::new();
    for (id, group) in at {
        three.nodes.remove(&id).unwrap().stop().await;
        places.push(damage(&home(&three, id), group));
    }
    three.start(&[2, 3]).await;
    told(&three, &at).await;
    let now = members(&three, 1, "the others are led", |now| {
        let led = now.groups.iter().filter(|at| at.leader.is_some());
        led.map(|at| at.group).eq([0, 2, 3])
    })
    .await;
    assert!(now.groups.iter().all(|group| group.lost.is_none()));
    // Several looks at lost groups, and decisions.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(raft_nodes(&three, &at), before, "{}", noted(&three));
    let group = PlacementGroupId::new(1);
    let router = &three.nodes[&1].parts.groups.router;
    assert!(router.image(|image| !image.is_lost(group)) && router.leader(group).is_none());

    super::refilled::flip(&places[0]);
    three.nodes.remove(&2).unwrap().stop().await;
    let own = vec!["cluster.refill-damaged=false".to_owned()];
    three.own.insert(2, own);
    three.start(&[2]).await;
    refilled_in_turn(&mut three, &[3], &before[1..]).await;
    let mark = home(&three, 2).join("damaged.json");
    until("what was found is forgotten", || async { !mark.exists() }).await;
    is_whole(three, before[1], acknowledged).await;
}

/// Proves that a broker that runs in part, and has the only copy of something, is not replaced unasked; and that one in whose place the Raft node is taken in that it asked
/// to be, while it runs, ends, and goes on as that one.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_taken_in_while_it_runs_goes_on_as_that_one() {
    let (mut three, _) = loaded().await;
    let connection = three.connect(1).await;
    assert_eq!(create_with(&connection, "one", 3, 1).await.error_code, 0);
    let at = [(3, 1)];
    let before = raft_nodes(&three, &at);
    damage_on(&mut three, &at).await;
    three.start(&[3]).await;
    told(&three, &at).await;
    let refused = admin(&three, 1).add_broker(3, false).await.unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("serves all but group 1"), "{text}");
    let refused = admin(&three, 1).add_broker(3, true).await.unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("It holds what nobody else has"), "{text}");
    assert_eq!(raft_nodes(&three, &at), before, "{}", noted(&three));
    let given_up = admin(&three, 1).add_broker_giving_up_data(3, true).await;
    given_up.unwrap();
    refilled_in_turn(&mut three, &[3], &before).await;
    let aside = home(&three, 3).join(format!("set-aside-{}/1", before[0]));
    assert!(aside.exists() && !home(&three, 3).join("damaged.json").exists());
    members(&three, 3, "the loss is told", |now| {
        settled(now) && now.groups.iter().any(|at| at.lost.is_some())
    })
    .await;
    three.stop().await;
}
