//! The network between brokers: a proxy in front of each peer listener, with a rule for each direction of each pair.
//!
//! Owns: cut, cut in one direction, delay, healing.
//! Not here: what the brokers say, except who calls: the broker id of the hello.
//! Spec: docs/protocols/peer.md (hello)
//!
//! A cut loses nothing, as TCP does not: bytes wait in the proxy and its sockets (about a mebibyte, then the sender
//! waits) and go on when the cut is healed, late; ends of connections wait with them. A connection that is opened through
//! a cut is never answered. TLS hides who calls: such connections are carried as they are, cuts and delays do not concern them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// The first bytes of a hello, up to the caller's broker id.
const HELLO_BYTES: usize = 32;
const HELLO_MAGIC: &[u8] = b"TLPR";
/// The first byte of a connection with TLS.
const TLS_HANDSHAKE: u8 = 22;
const CHUNK_BYTES: usize = 16 * 1024;
/// Chunks on their way in one direction of one connection.
const CHUNKS_MAX: usize = 64;

/// What happens to bytes from one broker to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Rule {
    cut: bool,
    delay: Duration,
}

type Rules = BTreeMap<(i32, i32), watch::Sender<Rule>>;

/// All links of a rig. The proxies live as long as the runtime.
#[derive(Clone)]
pub(crate) struct Links(Arc<Rules>);

impl Links {
    /// Opens a proxy for each broker: its id, where peers dial, where it listens.
    pub(crate) async fn open(brokers: &[(i32, String, String)]) -> Result<Self> {
        let ids = || brokers.iter().map(|(id, ..)| *id);
        let pairs = ids().flat_map(|from| ids().map(move |to| (from, to)));
        let rules = pairs.filter(|(from, to)| from != to);
        let links = Self(Arc::new(
            rules
                .map(|pair| (pair, watch::Sender::new(Rule::default())))
                .collect(),
        ));
        for (id, front, behind) in brokers {
            let listener = TcpListener::bind(front)
                .await
                .with_context(|| format!("proxy of broker {id} at {front}"))?;
            tokio::spawn(accept(listener, *id, behind.clone(), links.clone()));
        }
        Ok(links)
    }

    /// Nothing goes in this direction; the other is open.
    ///
    /// # Errors
    /// There is no such pair.
    pub(crate) fn cut_one_way(&self, from: i32, to: i32) -> Result<()> {
        self.change(from, to, |rule| rule.cut = true)
    }

    /// Bytes of both directions take this long.
    ///
    /// # Errors
    /// There is no such pair.
    pub(crate) fn delay(&self, a: i32, b: i32, delay: Duration) -> Result<()> {
        self.change(a, b, |rule| rule.delay = delay)?;
        self.change(b, a, |rule| rule.delay = delay)
    }

    /// No cuts and no delays any more.
    pub(crate) fn heal(&self) {
        for rule in self.0.values() {
            rule.send_replace(Rule::default());
        }
    }

    fn change(&self, from: i32, to: i32, change: impl FnOnce(&mut Rule)) -> Result<()> {
        let rule = self.0.get(&(from, to));
        let rule = rule.with_context(|| format!("there is no link from {from} to {to}"))?;
        rule.send_modify(change);
        Ok(())
    }

    fn watch(&self, from: i32, to: i32) -> Option<watch::Receiver<Rule>> {
        self.0.get(&(from, to)).map(watch::Sender::subscribe)
    }
}

async fn accept(listener: TcpListener, to: i32, behind: String, links: Links) {
    loop {
        // An error concerns the one connection.
        if let Ok((stream, _)) = listener.accept().await {
            let (behind, links) = (behind.clone(), links.clone());
            // A connection that fails is closed, which is what its ends see.
            tokio::spawn(async move { carry(stream, to, &behind, &links).await });
        }
    }
}

/// One connection, to its end.
async fn carry(mut caller: TcpStream, to: i32, behind: &str, links: &Links) -> Result<()> {
    let mut hello = [0; HELLO_BYTES];
    caller.read_exact(&mut hello).await?;
    let (mut there, back) = if hello.starts_with(&[TLS_HANDSHAKE]) {
        let always = || watch::Sender::new(Rule::default()).subscribe();
        (always(), always())
    } else {
        let from = calling(&hello).context("not a hello")?;
        let there = links.watch(from, to).context("nobody of this rig")?;
        let back = links.watch(to, from).context("nobody of this rig")?;
        (there, back)
    };
    open(&mut there).await?;
    let mut listener = TcpStream::connect(behind).await?;
    caller.set_nodelay(true)?;
    listener.set_nodelay(true)?;
    let delay = there.borrow().delay;
    tokio::time::sleep(delay).await;
    listener.write_all(&hello).await?;
    let (caller_reads, caller_writes) = caller.into_split();
    let (listener_reads, listener_writes) = listener.into_split();
    tokio::try_join!(
        pump(caller_reads, listener_writes, there),
        pump(listener_reads, caller_writes, back),
    )?;
    Ok(())
}

/// The broker id in the first bytes of a hello.
fn calling(hello: &[u8; HELLO_BYTES]) -> Result<i32> {
    ensure!(hello.starts_with(HELLO_MAGIC), "another magic");
    let id = hello.last_chunk::<4>().context("too short")?;
    Ok(i32::from_le_bytes(*id))
}

/// Waits while the direction is cut.
async fn open(rule: &mut watch::Receiver<Rule>) -> Result<()> {
    rule.wait_for(|rule| !rule.cut).await?;
    Ok(())
}

/// One direction of one connection.
async fn pump(
    from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut rule: watch::Receiver<Rule>,
) -> Result<()> {
    let (chunks, mut due) = mpsc::channel(CHUNKS_MAX);
    let reading = read(from, chunks, rule.clone());
    let writing = async {
        while let Some((at, chunk)) = due.recv().await {
            let chunk: Bytes = chunk;
            tokio::time::sleep_until(at).await;
            open(&mut rule).await?;
            to.write_all(&chunk).await?;
        }
        open(&mut rule).await?;
        to.shutdown().await?;
        Ok(())
    };
    let ((), written) = tokio::join!(reading, writing);
    written
}

/// Reads until the end, or an error, which the other side sees as the end.
async fn read(
    mut from: OwnedReadHalf,
    chunks: mpsc::Sender<(Instant, Bytes)>,
    rule: watch::Receiver<Rule>,
) {
    loop {
        let mut chunk = BytesMut::with_capacity(CHUNK_BYTES);
        match from.read_buf(&mut chunk).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let due = Instant::now() + rule.borrow().delay;
                if chunks.send((due, chunk.freeze())).await.is_err() {
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::config::free_port;

    const QUIET: Duration = Duration::from_millis(100);
    const SOON: Duration = Duration::from_secs(20);

    /// Broker 2 behind its proxy, and a connection from broker 1 with both of its ends.
    struct Pair {
        links: Links,
        front: String,
        behind: TcpListener,
    }

    impl Pair {
        async fn new() -> Self {
            let front = format!("127.0.0.1:{}", free_port().unwrap());
            let behind = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = behind.local_addr().unwrap().to_string();
            let other = format!("127.0.0.1:{}", free_port().unwrap());
            let brokers = [
                (1, other, "127.0.0.1:9".to_owned()),
                (2, front.clone(), address),
            ];
            let links = Links::open(&brokers).await.unwrap();
            Self {
                links,
                front,
                behind,
            }
        }

        fn cut(&self) {
            self.links.cut_one_way(1, 2).unwrap();
            self.links.cut_one_way(2, 1).unwrap();
        }

        async fn call(&self) -> TcpStream {
            let mut caller = TcpStream::connect(&self.front).await.unwrap();
            let mut hello = [0; HELLO_BYTES];
            hello[..4].copy_from_slice(HELLO_MAGIC);
            hello[28..].copy_from_slice(&1_i32.to_le_bytes());
            caller.write_all(&hello).await.unwrap();
            caller
        }

        async fn connected(&self) -> (TcpStream, TcpStream) {
            let caller = self.call().await;
            let (mut listener, _) = self.behind.accept().await.unwrap();
            let mut hello = [0; HELLO_BYTES];
            listener.read_exact(&mut hello).await.unwrap();
            assert_eq!(calling(&hello).unwrap(), 1);
            (caller, listener)
        }
    }

    /// The next byte, or nothing for a while.
    async fn next(stream: &mut TcpStream, within: Duration) -> Option<u8> {
        tokio::time::timeout(within, stream.read_u8())
            .await
            .ok()
            .map(|byte| byte.unwrap())
    }

    // Proves: a cut holds the bytes of both directions, and healing lets them go on in their order.
    #[tokio::test]
    async fn a_cut_and_its_end() {
        let pair = Pair::new().await;
        let (mut caller, mut listener) = pair.connected().await;
        caller.write_u8(1).await.unwrap();
        assert_eq!(next(&mut listener, SOON).await, Some(1));
        pair.cut();
        caller.write_u8(2).await.unwrap();
        listener.write_u8(3).await.unwrap();
        assert_eq!(next(&mut listener, QUIET).await, None);
        assert_eq!(next(&mut caller, QUIET).await, None);
        caller.write_u8(4).await.unwrap();
        pair.links.heal();
        assert_eq!(next(&mut listener, SOON).await, Some(2));
        assert_eq!(next(&mut listener, SOON).await, Some(4));
        assert_eq!(next(&mut caller, SOON).await, Some(3));
    }

    // Proves: a cut in one direction leaves the other open.
    #[tokio::test]
    async fn a_cut_in_one_direction() {
        let pair = Pair::new().await;
        let (mut caller, mut listener) = pair.connected().await;
        pair.links.cut_one_way(2, 1).unwrap();
        caller.write_u8(1).await.unwrap();
        assert_eq!(next(&mut listener, SOON).await, Some(1));
        listener.write_u8(2).await.unwrap();
        assert_eq!(next(&mut caller, QUIET).await, None);
    }

    // Proves: no new connection gets through a cut; it does once it is healed. Ends of connections wait too.
    #[tokio::test]
    async fn connections_through_a_cut() {
        let pair = Pair::new().await;
        let (caller, mut listener) = pair.connected().await;
        pair.cut();
        drop(caller);
        let _second = pair.call().await;
        let accepted = tokio::time::timeout(QUIET, pair.behind.accept()).await;
        assert!(accepted.is_err());
        assert_eq!(next(&mut listener, QUIET).await, None);
        pair.links.heal();
        let accepted = tokio::time::timeout(SOON, pair.behind.accept()).await;
        assert!(accepted.is_ok());
        let ended = tokio::time::timeout(SOON, listener.read(&mut [0])).await;
        assert_eq!(ended.unwrap().unwrap(), 0);
    }

    // Proves: a delay holds bytes for its time and keeps their order.
    #[tokio::test]
    async fn a_delay() {
        const DELAY: Duration = Duration::from_millis(200);
        let pair = Pair::new().await;
        let (mut caller, mut listener) = pair.connected().await;
        pair.links.delay(1, 2, DELAY).unwrap();
        let start = Instant::now();
        for byte in 0..10 {
            caller.write_u8(byte).await.unwrap();
        }
        for byte in 0..10 {
            assert_eq!(next(&mut listener, SOON).await, Some(byte));
        }
        assert!(start.elapsed() >= DELAY);
    }

    // Proves: who is no broker of the rig is not let through; a link that is not there is told.
    #[tokio::test]
    async fn strangers() {
        let pair = Pair::new().await;
        let mut stranger = TcpStream::connect(&pair.front).await.unwrap();
        stranger.write_all(&[7; HELLO_BYTES]).await.unwrap();
        let ended = tokio::time::timeout(SOON, stranger.read(&mut [0])).await;
        assert!(matches!(ended.unwrap(), Ok(0) | Err(_)));
        assert!(pair.links.cut_one_way(1, 3).is_err() && pair.links.cut_one_way(1, 1).is_err());
    }
}
