//! Who is in no cluster learns nothing with which it could take a member's place, and is not taken in without an operator.

use super::members::{admin, members, settled, start_at, start_stranger};
use super::three::{SETTLE, Three};
use super::*;
use crate::peer::{
    NoAddressBook, PeerConfig, PeerIdentity, PeerMetrics, PeerTarget, PeerTls, PeerTransport,
    PeerTransportParts,
};
use bytes::Bytes;
use std::sync::Arc;
use tidelog_env::{SystemRandom, Tasks};
use tidelog_model::{NodeId, RaftNodeId};

const STRANGE: u64 = 4_242_424_242;

/// Something that speaks the peer protocol, knows the cluster's name, and pretends to be broker 3.
struct Stranger {
    transport: PeerTransport,
    tasks: Tasks,
}

impl Stranger {
    fn new(three: &Three) -> Self {
        let random = SystemRandom::shared();
        let (name, tasks) = (three.config(1).cluster.name, Tasks::new());
        let node = RaftNodeId::new(STRANGE);
        let identity = PeerIdentity::new(None, &name, NodeId::new(3), node, random.as_ref());
        let parts = PeerTransportParts {
            identity: Arc::new(identity),
            network: TcpNetwork::shared(),
            random,
            book: Arc::new(NoAddressBook),
            tls: PeerTls::off(),
            metrics: PeerMetrics::default(),
            tasks: tasks.clone(),
        };
        let transport = PeerTransport::new(PeerConfig::default(), parts);
        Self { transport, tasks }
    }

    /// What formation on broker `id` answers it.
    async fn ask(&self, three: &Three, id: i32, more: &str) -> String {
        let target = PeerTarget {
            broker: Some(NodeId::new(id)),
            node: None,
            address: format!("127.0.0.1:{}", three.ports[&id][0]),
        };
        let question = format!(r#"{{"version":2,"zone":"z","peer":"127.0.0.1:9"{more}}}"#);
        let within = Duration::from_secs(5);
        let call = self
            .transport
            .call(&target, 1, Bytes::from(question), within);
        String::from_utf8(call.await.unwrap().to_vec()).unwrap()
    }
}

/// Proves that a stranger that asks everything is told no cluster id and no Raft node, that it is not taken in as a damaged broker 3 while that one is away,
/// whatever it guesses, and that the real one is back at once; and that who is new, or has lost its disk, still waits for an operator and is taken in by one.
#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_takes_nobodys_place() {
    let mut three = Three::new();
    three.set.push("cluster.session-ms=1000".to_owned());
    three.start(&[1, 2, 3]).await;
    let nodes: Vec<String> = three
        .nodes
        .values()
        .map(|node| node.addresses().identity.raft_node.to_string())
        .collect();
    let cluster = three.nodes[&1].addresses().identity.cluster.to_string();
    let stranger = Stranger::new(&three);
    three.nodes.remove(&3).unwrap().stop_abruptly().await;
    members(&three, 1, "it is silent", |now| {
        now.brokers.iter().any(|at| at.id == 3 && !at.live)
    })
    .await;
    let until = Instant::now() + Duration::from_secs(5);
    let mut guess = 1;
    while Instant::now() < until {
        for id in [1, 2] {
            let guesses = format!(r#","waiting":true,"groups":true,"without":7,"damaged":{guess}"#);
            for more in ["", &guesses] {
                let told = stranger.ask(&three, id, more).await;
                for secret in nodes.iter().chain([&cluster]) {
                    assert!(!told.contains(secret), "{told}");
                }
            }
        }
        guess += 1;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let now = members(&three, 1, "it waits", |now| !now.waiting.is_empty()).await;
    assert!(now.waiting.iter().all(|at| at.id == 3 && !at.damaged));
    let third = now.brokers.iter().find(|at| at.id == 3).unwrap();
    assert_eq!(third.raft_node.to_string(), nodes[2]);
    three.start(&[3]).await;
    stranger.tasks.stop().await;

    let fourth = start_at(&mut three, 4, "4", 1);
    members(&three, 2, "the new one waits", |now| {
        now.waiting.iter().any(|at| at.id == 4)
    })
    .await;
    admin(&three, 2).add_broker(4, false).await.unwrap();
    let node = tokio::time::timeout(SETTLE, fourth).await.unwrap();
    three.nodes.insert(4, node.unwrap().unwrap());
    members(&three, 4, "it has its share", settled).await;

    three.nodes.remove(&3).unwrap().stop_abruptly().await;
    std::fs::rename(three.dir.path().join("3"), three.dir.path().join("lost")).unwrap();
    members(&three, 1, "nobody else waits", |now| now.waiting.is_empty()).await;
    let third = start_stranger(&three, 3);
    members(&three, 1, "it waits", |now| {
        now.waiting.iter().any(|at| at.id == 3 && at.replaces)
    })
    .await;
    admin(&three, 1).add_broker(3, true).await.unwrap();
    let node = tokio::time::timeout(SETTLE, third).await.unwrap();
    three.nodes.insert(3, node.unwrap().unwrap());
    three.stop().await;
}
