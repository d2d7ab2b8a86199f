//! A copied data directory that runs beside the one it was copied from: the cluster does not take it for the real broker.

use super::asking::http;
use super::mistaken::mistaken;
use super::three::{Three, free_ports, until};
use super::*;
use std::path::Path;

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), &to).unwrap();
        }
    }
}

/// How many callers broker `id` has refused as duplicates.
async fn refused(three: &Three, id: i32) -> u64 {
    let (_, metrics) = http(three, id, "GET", "/metrics", "").await;
    let name = "tidelog_peer_handshakes_refused_total{reason=\"duplicate\"} ";
    let mut lines = metrics.lines();
    let count = lines.find_map(|line| line.strip_prefix(name));
    count.map_or(0, |count| count.parse().unwrap())
}

/// Proves that a process on a copy of a broker's directory, on other ports, is refused by both other brokers while the real one runs, and that the
/// real one is not, be it after a restart; that the copy does not take its place while it restarts either.
#[tokio::test(flavor = "multi_thread")]
async fn a_copied_directory_takes_no_part() {
    let mut three = Three::new();
    three.start(&[1, 2, 3]).await;
    three.nodes.remove(&3).unwrap().stop().await;
    let dir = three.dir.path();
    copy(&dir.join("3"), &dir.join("copy"));
    let elsewhere = format!("node.data-dir={}", dir.join("copy").display());
    three.start(&[3]).await;
    until("the real one is ready", || async {
        http(&three, 3, "GET", "/readyz", "").await.0 == 200
    })
    .await;
    for id in [1, 2] {
        assert_eq!(refused(&three, id).await, 0, "a restart is no copy");
    }

    let [peer, kafka, admin] = free_ports();
    let own = vec![
        elsewhere,
        format!("peer.listen=127.0.0.1:{peer}"),
        format!("kafka.listen=127.0.0.1:{kafka}"),
        format!("admin.listen=127.0.0.1:{admin}"),
    ];
    three.own.insert(3, own);
    let copied = tokio::spawn(Node::start(three.config(3), World::system()));
    three.ports.insert(9, [peer, kafka, admin]);
    mistaken(
        &three,
        9,
        "another process runs with the identity of broker 3",
    )
    .await;
    three.ports.remove(&9);
    until("both refuse it", || async {
        refused(&three, 1).await > 6 && refused(&three, 2).await > 6
    })
    .await;
    three.nodes.remove(&3).unwrap().stop().await;
    let before = (refused(&three, 1).await, refused(&three, 2).await);
    until("both refuse it while the real one is away", || async {
        refused(&three, 1).await > before.0 + 1 && refused(&three, 2).await > before.1 + 1
    })
    .await;
    three.own.remove(&3);
    three.start(&[3]).await;
    until("the real one is ready again", || async {
        http(&three, 3, "GET", "/readyz", "").await.0 == 200
    })
    .await;
    assert!(!copied.is_finished(), "it does not get to work");
    let (status, body) = http(&three, 3, "GET", "/readyz", "").await;
    assert!(status == 200 && !body.contains("identity"), "{body}");
    copied.abort();
    let _ = copied.await;
    three.stop().await;
}
