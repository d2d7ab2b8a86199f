//! A broker that is refused for what it says it is tells which mistake that is, and who is right is not held up by it.

use super::asking::try_http;
use super::three::{Three, free_ports, until};
use super::*;

/// Waits until broker `id`, which may be starting, is not ready for a mistake of identity that says this, and tells it to who asks for the status too.
pub(super) async fn mistaken(three: &Three, id: i32, what: &str) {
    let says = |path: &'static str, part: &'static str| async move {
        let answer = try_http(three, id, "GET", path, "").await;
        answer
            .is_ok_and(|(status, text)| status == 503 && text.contains(part) && text.contains(what))
    };
    until(what, || says("/readyz", r#""part":"identity""#)).await;
    until(what, || says("/api/v1/members", r#""starting""#)).await;
}

/// Proves that a broker with the data directory of another cluster says so and what to do, that the brokers which it calls stay ready, and that the right directory ends it.
#[tokio::test(flavor = "multi_thread")]
async fn a_directory_of_another_cluster_is_told() {
    let mut other = Three::new();
    other.start(&[1, 2, 3]).await;
    while let Some((_, node)) = other.nodes.pop_first() {
        node.stop().await;
    }
    let mut three = Three::new();
    three.start(&[1, 2, 3]).await;
    three.nodes.remove(&3).unwrap().stop().await;
    let [peer, kafka, admin] = free_ports();
    let own = vec![
        format!("node.data-dir={}", other.dir.path().join("3").display()),
        format!("peer.listen=127.0.0.1:{peer}"),
        format!("kafka.listen=127.0.0.1:{kafka}"),
        format!("admin.listen=127.0.0.1:{admin}"),
    ];
    three.own.insert(3, own);
    let wrong = tokio::spawn(Node::start(three.config(3), World::system()));
    three.own.remove(&3);
    three.ports.insert(9, [peer, kafka, admin]);
    mistaken(&three, 9, "of another cluster than that broker").await;
    mistaken(&three, 9, "with the data directory that it had there").await;
    for id in [1, 2] {
        until("it is ready", || async {
            let answer = try_http(&three, id, "GET", "/readyz", "").await;
            answer.is_ok_and(|(status, text)| status == 200 && !text.contains("identity"))
        })
        .await;
    }
    wrong.abort();
    let _ = wrong.await;
    three.ports.remove(&9);
    three.start(&[3]).await;
    until("it is ready", || async {
        let answer = try_http(&three, 3, "GET", "/readyz", "").await;
        answer.is_ok_and(|(status, text)| status == 200 && !text.contains("identity"))
    })
    .await;
    three.stop().await;
}

/// Proves that a broker which finds one with its own id where another one should be says so, while no cluster comes of it.
#[tokio::test(flavor = "multi_thread")]
async fn two_with_one_id_are_told() {
    let mut three = Three::new();
    three.own.insert(2, vec!["node.id=1".to_owned()]);
    let starts = [1, 2].map(|id| tokio::spawn(Node::start(three.config(id), World::system())));
    mistaken(&three, 1, "two brokers have node.id 1: give one of them").await;
    for starts in starts {
        assert!(!starts.is_finished());
        starts.abort();
        let _ = starts.await;
    }
}
