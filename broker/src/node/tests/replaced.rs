//! Brokers that were replaced while they live, or while nobody could tell them: they end, and say why.

use super::members::{admin, members, settled};
use super::three::{SETTLE, Three, until};
use super::*;
use async_trait::async_trait;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tidelog_env::{Accepted, BoxStream, Listener, Network};
use tokio::sync::watch;

/// What a [`CutNetwork`] lets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// All.
    Open,
    /// Nothing, in neither direction; listeners are closed for good.
    Away,
    /// What this side opens.
    Outward,
}

/// The system's network, which can be cut.
struct CutNetwork(watch::Receiver<Cut>);

struct CutListener {
    inner: Option<Box<dyn Listener>>,
    address: SocketAddr,
    cut: watch::Receiver<Cut>,
}

async fn away(cut: &mut watch::Receiver<Cut>) {
    if cut.wait_for(|cut| *cut == Cut::Away).await.is_err() {
        std::future::pending().await
    }
}

/// The stream, until the next cut.
fn until_cut(stream: BoxStream, mut cut: watch::Receiver<Cut>) -> BoxStream {
    let (near, mut far) = tokio::io::duplex(64 << 10);
    tokio::spawn(async move {
        let mut stream = stream;
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut stream, &mut far) => {}
            () = away(&mut cut) => {}
        }
    });
    Box::new(near)
}

#[async_trait]
impl Listener for CutListener {
    async fn accept(&mut self) -> io::Result<Accepted> {
        let Some(inner) = &mut self.inner else {
            return std::future::pending().await;
        };
        let accepted = tokio::select! {
            accepted = inner.accept() => Some(accepted?),
            () = away(&mut self.cut) => None,
        };
        let Some(accepted) = accepted else {
            self.inner = None;
            return std::future::pending().await;
        };
        let stream = until_cut(accepted.stream, self.cut.clone());
        Ok(Accepted { stream, ..accepted })
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

#[async_trait]
impl Network for CutNetwork {
    async fn listen(&self, address: SocketAddr) -> io::Result<Box<dyn Listener>> {
        let inner = TcpNetwork.listen(address).await?;
        Ok(Box::new(CutListener {
            address: inner.local_addr()?,
            inner: Some(inner),
            cut: self.0.clone(),
        }))
    }

    async fn connect(&self, host: &str, port: u16) -> io::Result<BoxStream> {
        if *self.0.borrow() == Cut::Away {
            return Err(io::ErrorKind::HostUnreachable.into());
        }
        let stream = TcpNetwork.connect(host, port).await?;
        Ok(until_cut(stream, self.0.clone()))
    }
}

/// Starts three brokers, broker 1 of them on a network that can be cut.
async fn start_with_cut(three: &mut Three) -> watch::Sender<Cut> {
    let cut = watch::Sender::new(Cut::Open);
    let world = World {
        network: Arc::new(CutNetwork(cut.subscribe())),
        ..World::system()
    };
    let first = tokio::spawn(Node::start(three.config(1), world));
    three.start(&[2, 3]).await;
    let first = tokio::time::timeout(SETTLE, first).await;
    three.nodes.insert(1, first.unwrap().unwrap().unwrap());
    cut
}

/// Proves that a broker which is cut off while another one takes its place ends as soon as it reaches somebody, and says that it was replaced;
/// the one that took its place goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_was_replaced_while_it_was_away_ends() {
    let mut three = Three::new();
    three.set.push("cluster.session-ms=1000".to_owned());
    let cut = start_with_cut(&mut three).await;
    cut.send_replace(Cut::Away);
    let old = three.nodes.remove(&1).unwrap();
    // At the same addresses, once the old one has let go of them.
    for port in three.ports[&1] {
        until("nobody listens", || async move {
            let connected = tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
            connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        })
        .await;
    }
    let home = three.dir.path().join("new");
    three.set.push(format!("node.data-dir={}", home.display()));
    let new = tokio::spawn(Node::start(three.config(1), World::system()));
    members(&three, 2, "it waits", |now| !now.waiting.is_empty()).await;
    admin(&three, 2).add_broker(1, true).await.unwrap();
    let new = tokio::time::timeout(SETTLE, new).await;
    three.nodes.insert(1, new.unwrap().unwrap().unwrap());
    members(&three, 1, "it holds everything", |now| {
        settled(now) && now.brokers.iter().all(|at| at.live && at.replicas == 3)
    })
    .await;

    cut.send_replace(Cut::Outward);
    let why = tokio::time::timeout(SETTLE, old.ended()).await;
    let why = why.expect("it ends by itself");
    assert!(
        matches!(&why, Ended::Replaced(text) if text.contains("broker 1 was replaced")),
        "{why:?}"
    );
    old.stop().await;
    let now = members(&three, 2, "the new one lives", |now| {
        now.brokers.iter().all(|at| at.live)
    })
    .await;
    assert!(now.waiting.is_empty(), "{:?}", now.waiting);
    three.stop().await;
}
