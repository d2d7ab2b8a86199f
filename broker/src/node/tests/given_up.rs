//! Two of five brokers are damaged, metadata too: what neither may be replaced, or drained, for is said, and is not given up unless somebody asks for it.

use super::members::{admin, members, producer, settled};
use super::refilled::{damage_metadata, flip, home, raft_node, waits};
use super::three::{SETTLE, Three, create, free_ports, produce, sorted};
use super::*;
use tidelog_client::admin_http::{AdminError, Members};

/// What an operator is told, once the refusal has these words. Others come before: who is slow has not said yet that it waits, or lives no more, or what it has.
async fn refused<T: std::fmt::Debug>(
    words: &[&str],
    ask: impl AsyncFn() -> Result<T, AdminError>,
) -> String {
    let until = Instant::now() + SETTLE;
    loop {
        let refused = ask().await.expect_err("it is not done");
        let message = refused.to_string();
        if words.iter().all(|words| message.contains(words)) {
            return message;
        }
        assert!(Instant::now() < until, "{words:?}: {message}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Broker `id` of five is not replaced, since data is needed.
async fn not_replaced(five: &Three, id: i32, words: &[&str]) -> String {
    let words = [words, &["(data_needed)"]].concat();
    refused(&words, async || admin(five, 3).add_broker(id, false).await).await
}

/// Takes broker 1 in instead of the old one, whatever is lost: as soon as it is known to wait.
async fn give_up_the_first(five: &Three) {
    let until = Instant::now() + SETTLE;
    loop {
        match admin(five, 4).add_broker_giving_up_data(1, false).await {
            Ok(_) => return,
            Err(error @ AdminError::Refused { .. }) => {
                assert!(Instant::now() < until, "{error}");
            }
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn raft_nodes(members: &Members) -> Vec<(i32, u64)> {
    let brokers = members.brokers.iter();
    brokers.map(|at| (at.id, at.raft_node)).collect()
}

/// Proves that of two damaged brokers that hold groups together neither is taken in by an operator unless he gives data up, though each group has two whole copies
/// yet; that both say what to do first; and that what was given up with one is there again when the other one comes back with what it had.
#[tokio::test(flavor = "multi_thread")]
async fn what_two_damaged_brokers_have_is_not_given_up_unasked() {
    let mut five = Three::new();
    five.ports.extend((4..=5).map(|id| (id, free_ports())));
    for set in ["cluster.session-ms=1000", "cluster.data-groups=5"] {
        five.set.push(set.to_owned());
    }
    five.start(&[1, 2, 3, 4, 5]).await;
    let connection = five.connect(3).await;
    create(&connection, "t", 5).await;
    let producer = producer(&five);
    let mut acknowledged = vec![Vec::new(); 5];
    produce(&producer, "t", 0..200, &mut acknowledged).await;
    producer.close().await.unwrap();
    let before = members(&five, 3, "it is at rest", settled).await;
    let held = |group: u32| {
        let at = before.groups.iter().find(|at| at.group == group);
        at.unwrap().replicas.clone()
    };
    assert_eq!((held(1), held(5)), (vec![1, 2, 3], vec![1, 2, 5]));

    let mut places = Vec::new();
    let old = raft_node(&five, 1);
    // With metadata damaged they run nothing.
    for id in [1, 2] {
        five.nodes.remove(&id).unwrap().stop().await;
        places.push(damage_metadata(&home(&five, id)));
    }
    // A start that waits ends with its process.
    let process = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let first = tokio::spawn(Node::start(five.config(1), World::system()));
    let _second = process.spawn(Node::start(five.config(2), World::system()));
    waits(&five, 1, "they wait for broker 2 (damaged too: broker 2)").await;
    waits(&five, 2, "First start the brokers that are missing").await;

    let damaged = "Damaged and waiting: broker 2.";
    not_replaced(&five, 1, &["groups 1, 5 (t-", damaged, "--give-up-data"]).await;
    not_replaced(&five, 2, &["groups 1, 5 (t-"]).await;
    let now = members(&five, 3, "nothing moves", settled).await;
    assert_eq!(raft_nodes(&now), raft_nodes(&before));

    give_up_the_first(&five).await;
    let node = tokio::time::timeout(SETTLE, first).await;
    five.nodes.insert(1, node.unwrap().unwrap().unwrap());
    assert_ne!(raft_node(&five, 1), old);
    // The only ones that are left of groups 1 and 5 are no majority: the second one is needed all the more.
    let nothing = "Broker 1 got a new data directory, in which nothing is of groups 1, 5";
    let text = not_replaced(&five, 2, &["groups 1, 5 (t-", nothing]).await;
    assert!(!text.contains("try again in a minute"), "{text}");
    // Nobody could move what it holds there.
    let words = ["nobody leads groups 1, 5 (t-", damaged];
    refused(&words, async || {
        admin(&five, 3).decommission(2, false).await
    })
    .await;
    let now = members(&five, 3, "nobody is drained", |now| !now.brokers.is_empty()).await;
    assert!(now.brokers.iter().all(|at| !at.draining));

    process.shutdown_background();
    for port in five.ports[&2] {
        three::until("nobody listens", || async move {
            let connected = tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
            connected.is_err()
        })
        .await;
    }
    flip(&places[1]);
    let own = vec!["cluster.refill-damaged=false".to_owned()];
    five.own.insert(2, own);
    five.start(&[2]).await;
    members(&five, 3, "all is there again", |now| {
        let led = now.groups.iter().all(|at| at.leader.is_some());
        settled(now) && led && now.brokers.iter().all(|at| at.live)
    })
    .await;
    assert_eq!(five.read_all("t", 5, 200).await, sorted(acknowledged));
    five.stop().await;
}
