//! Three whole brokers with TLS between them: what a cluster does over it, and how it gets there while it is used.

use super::asking::http;
use super::three::{SETTLE, Three, produce, sorted, until};
use super::*;
use crate::peer::certificates::{Authority, write};
use std::path::PathBuf;
use tidelog_client::producer::{Producer, ProducerConfig};
use tidelog_env::SystemClock;

const HERE: &[&str] = &["127.0.0.1"];

fn folder(three: &Three, id: i32) -> PathBuf {
    three.dir.path().join(format!("tls-{id}"))
}

/// Writes the files of a broker and names them in its configuration.
fn secure(three: &mut Three, id: i32, authority: &Authority, mode: &str) {
    let dir = folder(three, id);
    write(&dir, &authority.issue(HERE), &authority.pem);
    let key = |key: &str, name: &str| format!("peer.tls-{key}={}", dir.join(name).display());
    let own = vec![
        key("cert-file", "cert.pem"),
        key("key-file", "key.pem"),
        key("ca-file", "ca.pem"),
        format!("peer.tls-mode={mode}"),
    ];
    three.own.insert(id, own);
}

/// A metric without labels, if the broker has it.
async fn metric(three: &Three, id: i32, name: &str) -> Option<i64> {
    let page = http(three, id, "GET", "/metrics", "").await.1;
    let line = page
        .lines()
        .find(|line| line.split(' ').next() == Some(name))?;
    Some(line.rsplit(' ').next().unwrap().parse().unwrap())
}

/// Open connections from peers: all, and those with TLS.
async fn open(three: &Three, id: i32) -> (i64, i64) {
    let all = metric(three, id, "tidelog_peer_connections_accepted_open").await;
    let tls = metric(three, id, "tidelog_peer_tls_connections_accepted_open").await;
    (all.unwrap(), tls.unwrap_or(0))
}

/// Proves that brokers form a cluster over TLS alone, replicate, follow a leader that is gone, and find each other again; that a broker with a
/// certificate of another CA takes no part and harms nobody, and takes part once it has the right one.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_over_tls() {
    let (authority, other) = (Authority::new(), Authority::new());
    let mut three = Three::new();
    for id in 1..=3 {
        secure(&mut three, id, &authority, "require");
    }
    three.start(&[2, 3, 1]).await;
    assert_eq!(three.cluster_ids().len(), 1);
    let cluster = three.cluster();
    cluster.create_topic("t", 2, &[]).await.unwrap();
    let clock = SystemClock::shared();
    let producer = Producer::start(cluster, ProducerConfig::default(), clock).unwrap();
    let mut acknowledged = vec![Vec::new(); 2];
    produce(&producer, "t", 0..200, &mut acknowledged).await;
    for id in 1..=3 {
        let (all, tls) = open(&three, id).await;
        assert!(all > 0 && all == tls, "broker {id}: {all}, {tls}");
        let until = metric(
            &three,
            id,
            "tidelog_peer_tls_certificate_expires_at_seconds",
        )
        .await;
        assert_eq!(
            until,
            Some(rcgen::date_time_ymd(2100, 1, 1).unix_timestamp())
        );
    }

    let leader = three.leaders("t").await[0];
    let gone = three.nodes.remove(&leader).unwrap();
    gone.stop_abruptly().await;
    produce(&producer, "t", 200..400, &mut acknowledged).await;
    // It comes back as a stranger: nobody hears it, and it hears nobody.
    let dir = folder(&three, leader);
    write(&dir, &other.issue(HERE), &other.pem);
    let config = three.config(leader);
    let stranger = tokio::spawn(Node::start(config, World::system()));
    until("it is refused", || async {
        let mut refused = 0;
        for id in three.nodes.keys() {
            let name = "tidelog_peer_connections_closed_total{reason=\"tls\"}";
            refused += metric(&three, *id, name).await.unwrap_or(0);
        }
        refused > 0
    })
    .await;
    produce(&producer, "t", 400..500, &mut acknowledged).await;
    // The right files are taken without another start.
    secure(&mut three, leader, &authority, "require");
    let started = tokio::time::timeout(SETTLE, stranger)
        .await
        .expect("it starts");
    three.nodes.insert(leader, started.unwrap().unwrap());
    assert_eq!(
        metric(&three, leader, "tidelog_peer_tls_reloads_total").await,
        Some(1)
    );
    produce(&producer, "t", 500..600, &mut acknowledged).await;
    producer.close().await.unwrap();
    assert_eq!(three.read_all("t", 2, 600).await, sorted(acknowledged));
    three.stop().await;
}

/// Proves that a cluster of plain brokers gets to TLS alone by restarts of one broker after the other, without an error or a loss for who uses it,
/// and that its metrics say when it is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_cluster_gets_to_tls() {
    let authority = Authority::new();
    let mut three = Three::new();
    three.start(&[1, 2, 3]).await;
    let cluster = three.cluster();
    cluster.create_topic("t", 2, &[]).await.unwrap();
    let clock = SystemClock::shared();
    let producer = Producer::start(cluster, ProducerConfig::default(), clock).unwrap();
    let mut acknowledged = vec![Vec::new(); 2];
    let mut produced = 0;
    for mode in ["allow", "prefer", "require"] {
        for id in 1..=3 {
            three.nodes.remove(&id).unwrap().stop().await;
            secure(&mut three, id, &authority, mode);
            three.start(&[id]).await;
            produce(&producer, "t", produced..produced + 50, &mut acknowledged).await;
            produced += 50;
        }
        for id in 1..=3 {
            let (all, tls) = open(&three, id).await;
            assert!(all > 0, "{mode}: broker {id}");
            assert_eq!(
                tls,
                if mode == "allow" { 0 } else { all },
                "{mode}: broker {id}"
            );
        }
    }
    producer.close().await.unwrap();
    let read = three
        .read_all("t", 2, usize::try_from(produced).unwrap())
        .await;
    assert_eq!(read, sorted(acknowledged));
    three.stop().await;
}

/// Proves that files that cannot be used end the start with their line, and leave nothing running.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_files_end_the_start() {
    let mut three = Three::new();
    secure(&mut three, 1, &Authority::new(), "allow");
    let dir = folder(&three, 1);
    write(&dir, &Authority::new().issue(HERE), &Authority::new().pem);
    for _ in 0..2 {
        let started = Node::start(three.config(1), World::system()).await;
        let error = started.err().expect("refused").to_string();
        let cert = dir.join("cert.pem");
        let begins = format!(
            "peer.tls-cert-file = {}: the certificate is not signed by a CA in",
            cert.display()
        );
        assert!(error.starts_with(&begins), "{error}");
    }
}
