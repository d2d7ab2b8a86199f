//! What three brokers say about each other: live and fenced brokers, in-sync and offline replicas, the same everywhere.

use super::asking::http;
use super::three::{SETTLE, Three, create, until};
use super::*;
use crate::wire::messages::{DescribeClusterRequest, MetadataResponse};
use std::collections::BTreeSet;

/// Brokers that agree say the same this much later than the first of them, on a machine that does other things too.
const AGREE_WITHIN: Duration = Duration::from_secs(5);

/// Leader, leader epoch, replicas, in-sync and offline replicas.
type Partition = (i32, i32, Vec<i32>, Vec<i32>, Vec<i32>);

/// What clients act on, the same from all: brokers, and of each partition leader, leader epoch, replicas, in-sync and offline replicas.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Said {
    brokers: Vec<i32>,
    partitions: Vec<Partition>,
}

impl Said {
    fn by(answer: MetadataResponse) -> Self {
        let partitions = answer.topics.into_iter().flat_map(|topic| topic.partitions);
        Self {
            brokers: answer.brokers.iter().map(|broker| broker.node_id).collect(),
            partitions: partitions
                .map(|partition| {
                    (
                        partition.leader_id,
                        partition.leader_epoch,
                        partition.replica_nodes,
                        partition.isr_nodes,
                        partition.offline_replicas,
                    )
                })
                .collect(),
        }
    }

    /// Whether it is what should be said while exactly these brokers live.
    fn fits(&self, live: &[i32]) -> bool {
        let dead: Vec<i32> = (1..=3).filter(|id| !live.contains(id)).collect();
        self.brokers == live
            && self
                .partitions
                .iter()
                .all(|(leader, _, all, isr, offline)| {
                    live.contains(leader) && *all == [1, 2, 3] && isr == live && *offline == dead
                })
    }
}

impl Three {
    async fn said(&self) -> BTreeSet<Said> {
        let mut said = BTreeSet::new();
        for id in self.nodes.keys() {
            let answer = self.metadata(*id).await;
            // Changes go to whoever answers: it lives.
            assert_eq!(answer.controller_id, *id);
            said.insert(Said::by(answer));
        }
        said
    }

    /// Waits until one broker says what is so while `live` live; soon after it, all have to.
    async fn all_say(&self, live: &[i32]) {
        let until = Instant::now() + SETTLE;
        let mut first = None;
        loop {
            let said = self.said().await;
            if said.len() == 1 && said.first().is_some_and(|said| said.fits(live)) {
                return;
            }
            if first.is_none() && said.iter().any(|said| said.fits(live)) {
                first = Some(Instant::now());
            }
            assert!(Instant::now() < until, "{live:?}: {said:?}");
            assert!(
                first.is_none_or(|at| at.elapsed() < AGREE_WITHIN),
                "{live:?}: {said:?}"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn described(&self, id: i32) -> Vec<i32> {
        let connection = self.connect(id).await;
        let request = |_| DescribeClusterRequest::default();
        let answer = connection.call(0..=0, deadline(), request).await.unwrap();
        connection.close("asked");
        answer.brokers.iter().map(|one| one.broker_id).collect()
    }
}

/// Proves that a broker which falls silent leaves the lists of live brokers and of in-sync replicas on all others, with metrics and
/// status that say so, that replicas stay, and that it is back everywhere once it runs again.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_broker_is_fenced_everywhere_and_comes_back() {
    let mut three = Three::new();
    three.set.push("cluster.session-ms=2000".to_owned());
    three.start(&[1, 2, 3]).await;
    let connection = three.connect(1).await;
    assert_eq!(create(&connection, "t", 3).await.error_code, 0);
    three.all_say(&[1, 2, 3]).await;
    let silent = three.nodes.remove(&2).unwrap();
    silent.stop_abruptly().await;
    three.all_say(&[1, 3]).await;
    assert_eq!(three.described(3).await, [1, 3]);
    let metrics = http(&three, 1, "GET", "/metrics", "").await.1;
    assert!(metrics.contains("\ntidelog_cluster_brokers 3\n"));
    assert!(metrics.contains("\ntidelog_cluster_brokers_fenced 1\n"));
    let cluster: serde_json::Value =
        serde_json::from_str(&http(&three, 3, "GET", "/api/v1/cluster", "").await.1).unwrap();
    let fenced: Vec<_> = (0..3).map(|at| &cluster["brokers"][at]["fenced"]).collect();
    assert_eq!(fenced, [false, true, false]);
    assert!(cluster["brokers"][1]["fenced_since_ms"].as_i64().unwrap() > 0);
    // New topics go on, and count on who lives.
    assert_eq!(create(&connection, "u", 3).await.error_code, 0);
    three.all_say(&[1, 3]).await;
    three.start(&[2]).await;
    three.all_say(&[1, 2, 3]).await;
    connection.close("done");
    three.stop().await;
}

/// Proves that a broker that stops in order is out of the lists when its stop returns, however long a session is.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_stops_says_so() {
    let mut three = Three::new();
    three.set.push("cluster.session-ms=600000".to_owned());
    three.start(&[1, 2, 3]).await;
    let connection = three.connect(1).await;
    assert_eq!(create(&connection, "t", 3).await.error_code, 0);
    connection.close("created");
    for id in [3, 2, 1] {
        let stopped = three.nodes.remove(&id).unwrap();
        stopped.stop().await;
        let live: Vec<i32> = (1..=3).filter(|other| *other != id).collect();
        three.all_say(&live).await;
        three.start(&[id]).await;
        three.all_say(&[1, 2, 3]).await;
    }
    three.stop().await;
}

/// Proves that nobody is fenced by a change of the leader of metadata, though sessions are short.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_leader_of_metadata_fences_nobody_who_lives() {
    let mut three = Three::new();
    three.set.push("cluster.session-ms=3000".to_owned());
    three.start(&[1, 2, 3]).await;
    three.all_say(&[1, 2, 3]).await;
    let metadata = |id: &i32| three.nodes[id].parts.groups.metadata.clone();
    for _ in 0..3 {
        let leader = (1..=3).find(|id| metadata(id).is_leader()).unwrap();
        let next = (1..=3).find(|id| *id != leader).unwrap();
        let to = three.nodes[&next].addresses().identity.raft_node;
        until("another leads", || async {
            let _ = metadata(&leader).transfer_leadership(to).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
            metadata(&next).is_leader()
        })
        .await;
        let watched = Instant::now() + Duration::from_secs(4);
        while Instant::now() < watched {
            let live = metadata(&next).read(|machine| {
                let brokers = machine.image().brokers().values();
                brokers.filter(|broker| broker.fenced.is_none()).count()
            });
            assert_eq!(live, 3);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    three.stop().await;
}
