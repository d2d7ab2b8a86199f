//! What a replica costs on its way: the snapshot and the tail, never what is in the store.

use super::asking::http;
use super::members::{admin, members, producer, settled, start_stranger};
use super::three::{SETTLE, Three, create, until};
use tidelog_client::producer::{NewRecord, Producer};

/// MiB of records that are in the store, and nowhere else, before the replica moves; and of the hot tail. The long form has more.
const TIERED_MIB: (&str, usize) = ("REPLICA_TIERED_MIB", 96);
const HOT_MIB: (&str, usize) = ("REPLICA_HOT_MIB", 1);
const RECORD_BYTES: usize = 64 << 10;

fn bytes((name, usual): (&str, usize)) -> usize {
    let mib = std::env::var(name).map_or(usual, |text| text.parse().unwrap());
    mib << 20
}

/// Produces so many bytes and waits for all.
async fn fill(producer: &Producer, bytes: usize) {
    let value = vec![7; RECORD_BYTES];
    let mut waiting = Vec::new();
    for number in 0..bytes / RECORD_BYTES {
        let key = number.to_string();
        let record = NewRecord {
            topic: "t",
            key: Some(key.as_bytes()),
            value: Some(&value),
            ..NewRecord::default()
        };
        waiting.push(producer.send(record).await.unwrap());
    }
    for delivery in waiting {
        delivery.wait().await.unwrap();
    }
}

/// What a broker has received from its peers, by its metrics.
async fn received(three: &Three, id: i32) -> u64 {
    let page = http(three, id, "GET", "/metrics", "").await.1;
    let lines = page.lines();
    let values = lines.filter(|line| line.starts_with("tidelog_peer_received_bytes_total{"));
    values
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum()
}

/// Proves that a broker with an empty disk gets its replicas by a small part of what the partitions hold, and serves all of it (D5).
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_comes_without_what_is_in_the_store() {
    let mut three = Three::new();
    three.set.push("cluster.session-ms=3000".to_owned());
    three.set.push("tier.cut-interval-ms=600000".to_owned());
    // More than a partition of the hot tail has, so that it stays hot; the long form needs no disk for all that is in the store.
    three.set.push("tier.cut-bytes=67108864".to_owned());
    three.set.push("tier.local-bytes=0".to_owned());
    let (tiered, hot) = (bytes(TIERED_MIB), bytes(HOT_MIB));
    // Raft finds where logs agree by some probes of up to 1 MiB per group, which counts at the size of this test.
    three.set.push("cluster.data-groups=1".to_owned());
    three.start(&[1, 2, 3]).await;
    let connection = three.connect(2).await;
    create(&connection, "t", 3).await;
    let producer = producer(&three);
    fill(&producer, tiered).await;
    // Every leader moves what it leads, and drops it locally.
    for node in three.nodes.values() {
        for (_, offload) in node.parts.groups.offloads.all().iter() {
            offload.flush(true).await;
        }
    }
    let stored = members(&three, 2, "all is in the store", |_| {
        let remote: u64 = three.nodes[&2]
            .parts
            .groups
            .router
            .data_groups()
            .map(|group| {
                group.group().read(|machine| {
                    let held = machine.partitions();
                    held.iter().map(|state| state.remote_bytes()).sum::<u64>()
                })
            })
            .sum();
        remote >= tiered as u64
    });
    stored.await;
    fill(&producer, hot).await;

    three.nodes.remove(&1).unwrap().stop_abruptly().await;
    std::fs::remove_dir_all(three.dir.path().join("1")).unwrap();
    let starting = start_stranger(&three, 1);
    members(&three, 2, "it waits and is silent", |now| {
        let silent = now.brokers.iter().any(|at| at.id == 1 && !at.live);
        silent && now.waiting.iter().any(|at| at.id == 1)
    })
    .await;
    admin(&three, 2).add_broker(1, false).await.unwrap();
    let node = tokio::time::timeout(SETTLE, starting)
        .await
        .expect("it starts");
    three.nodes.insert(1, node.unwrap().unwrap());
    members(&three, 1, "it holds everything", |now| {
        settled(now) && now.brokers.iter().any(|at| at.id == 1 && at.replicas == 1)
    })
    .await;
    // A voter may still lack some entries of the tail.
    until("the tail came from its peers", || async {
        received(&three, 1).await >= hot as u64
    })
    .await;

    // It and one other serve all of it.
    three.nodes.remove(&3).unwrap().stop_abruptly().await;
    fill(&producer, RECORD_BYTES).await;
    producer.close().await.unwrap();
    let count = (tiered + hot + RECORD_BYTES) / RECORD_BYTES;
    let mut ends = [0; 3];
    let expected = vec![7; RECORD_BYTES];
    three
        .read_each("t", 3, count, |partition, offset, value| {
            assert_eq!(offset, ends[partition], "partition {partition}");
            assert!(value == expected, "partition {partition} offset {offset}");
            ends[partition] += 1;
        })
        .await;
    let moved = received(&three, 1).await;
    let all = (tiered + hot) as u64;
    assert!(
        moved * 100 < all * 15,
        "{moved} of {all} bytes came from peers"
    );
    three.stop().await;
}
