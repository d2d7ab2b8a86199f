//! A broker that cannot start alone says so to who asks for its health.

use super::asking::http;
use super::three::{Three, until};
use super::*;

/// Status and body of `/readyz`, once the admin listener is there.
async fn ready(three: &Three, id: i32) -> (u16, String) {
    let port = three.ports[&id][2];
    until("the admin listener answers", || async move {
        tokio::net::TcpStream::connect(("127.0.0.1", port))
            .await
            .is_ok()
    })
    .await;
    http(three, id, "GET", "/readyz", "").await
}

async fn waits_for(three: &Three, id: i32, what: &str) {
    until(what, || async {
        let (status, body) = ready(three, id).await;
        assert_eq!(status, 503, "{body}");
        assert!(body.contains(r#""part":"start""#), "{body}");
        body.contains(what)
    })
    .await;
    let (status, body) = http(three, id, "GET", "/livez", "").await;
    assert_eq!((status, body.as_str()), (200, "ok\n"));
    let (status, body) = http(three, id, "GET", "/api/v1/cluster", "").await;
    assert_eq!(status, 503);
    assert!(
        body.contains("\"starting\"") && body.contains(what),
        "{body}"
    );
}

/// Proves that a broker which waits for the others of its first start, and later for a majority, lives and says what it waits for, and that it
/// becomes ready when they come.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_alone_says_what_it_waits_for() {
    let mut three = Three::new();
    let alone = tokio::spawn(Node::start(three.config(2), World::system()));
    waits_for(&three, 2, "waiting for the brokers 1, 3").await;
    three.start(&[1, 3]).await;
    let started = tokio::time::timeout(WITHIN, alone).await.unwrap();
    three.nodes.insert(2, started.unwrap().unwrap());
    until("it is ready", || async { ready(&three, 2).await.0 == 200 }).await;
    while let Some((_, node)) = three.nodes.pop_first() {
        node.stop().await;
    }
    let alone = tokio::spawn(Node::start(three.config(2), World::system()));
    waits_for(&three, 2, "leader of metadata").await;
    alone.abort();
    let _ = alone.await;
}
