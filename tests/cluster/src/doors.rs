//! The network between clients and brokers: a proxy in front of each Kafka listener that can lose answers.
//!
//! Owns: losing what a broker answers, breaking its clients' connections.
//! Not here: what the bytes say; the network between brokers (`links`).
//!
//! A broker whose answers are lost gets every request and acts on it; its clients see silence, then a broken connection: the
//! case in which they do not know whether what they asked for has happened.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const CHUNK_BYTES: usize = 64 * 1024;

/// What a door does with its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct State {
    /// Answers go nowhere.
    loses: bool,
    /// Connections that were opened before this number was reached are broken.
    broken: u64,
}

/// All doors of a rig. They live as long as the runtime.
#[derive(Clone)]
pub(crate) struct Doors(Arc<BTreeMap<i32, watch::Sender<State>>>);

impl Doors {
    /// Opens a door for each broker: its id, where clients dial, where it listens.
    pub(crate) async fn open(brokers: &[(i32, String, String)]) -> Result<Self> {
        let mut doors = BTreeMap::new();
        for (id, front, behind) in brokers {
            let listener = TcpListener::bind(front)
                .await
                .with_context(|| format!("door of broker {id} at {front}"))?;
            let state = watch::Sender::new(State::default());
            tokio::spawn(accept(listener, behind.clone(), state.subscribe()));
            doors.insert(*id, state);
        }
        Ok(Self(Arc::new(doors)))
    }

    /// From now on, what the broker answers is lost.
    ///
    /// # Errors
    /// There is no such broker.
    pub(crate) fn lose_answers(&self, id: i32) -> Result<()> {
        self.change(id, |state| state.loses = true)
    }

    /// Breaks all connections through the door; new ones lose nothing.
    ///
    /// # Errors
    /// There is no such broker.
    pub(crate) fn break_all(&self, id: i32) -> Result<()> {
        self.change(id, |state| {
            state.loses = false;
            state.broken += 1;
        })
    }

    fn change(&self, id: i32, change: impl FnOnce(&mut State)) -> Result<()> {
        let state = self.0.get(&id);
        let state = state.with_context(|| format!("there is no broker {id}"))?;
        state.send_modify(change);
        Ok(())
    }
}

async fn accept(listener: TcpListener, behind: String, state: watch::Receiver<State>) {
    loop {
        // An error concerns the one connection.
        if let Ok((client, _)) = listener.accept().await {
            let (behind, mut state) = (behind.clone(), state.clone());
            let opened = state.borrow_and_update().broken;
            tokio::spawn(async move {
                let answers = state.clone();
                // A connection that ends either way is closed, which is what its ends see.
                tokio::select! {
                    _ = carry(client, &behind, answers) => {}
                    _ = state.wait_for(|state| state.broken > opened) => {}
                }
            });
        }
    }
}

async fn carry(mut client: TcpStream, behind: &str, state: watch::Receiver<State>) -> Result<()> {
    let mut broker = TcpStream::connect(behind).await?;
    client.set_nodelay(true)?;
    broker.set_nodelay(true)?;
    let (mut client_reads, mut client_writes) = client.split();
    let (mut broker_reads, mut broker_writes) = broker.split();
    let requests = async {
        tokio::io::copy(&mut client_reads, &mut broker_writes).await?;
        broker_writes.shutdown().await
    };
    let answers = async {
        let mut chunk = vec![0; CHUNK_BYTES];
        // A part of an answer that is lost cannot be followed by a later one: the connection is silent until it breaks.
        let mut lost = false;
        loop {
            let read = broker_reads.read(&mut chunk).await?;
            if read == 0 {
                return client_writes.shutdown().await;
            }
            lost |= state.borrow().loses;
            if !lost {
                client_writes
                    .write_all(chunk.get(..read).unwrap_or_default())
                    .await?;
            }
        }
    };
    tokio::try_join!(requests, answers)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::time::Duration;

    use super::*;
    use crate::config::free_port;

    // Proves: with answers lost the request still arrives, and the client hears nothing; broken, both ends see the end, and a new
    // connection loses nothing.
    #[tokio::test]
    async fn lost_answers_and_their_end() {
        let front = format!("127.0.0.1:{}", free_port().unwrap());
        let behind = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = behind.local_addr().unwrap().to_string();
        let doors = Doors::open(&[(1, front.clone(), address)]).await.unwrap();
        let mut client = TcpStream::connect(&front).await.unwrap();
        let (mut broker, _) = behind.accept().await.unwrap();
        broker.write_u8(1).await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), 1);
        doors.lose_answers(1).unwrap();
        client.write_u8(2).await.unwrap();
        assert_eq!(broker.read_u8().await.unwrap(), 2);
        broker.write_u8(3).await.unwrap();
        let heard = tokio::time::timeout(Duration::from_millis(100), client.read_u8()).await;
        assert!(heard.is_err(), "the answer is lost");
        doors.break_all(1).unwrap();
        assert!(client.read_u8().await.is_err());
        assert!(broker.read_u8().await.is_err());
        let mut client = TcpStream::connect(&front).await.unwrap();
        let (mut broker, _) = behind.accept().await.unwrap();
        broker.write_u8(4).await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), 4);
        assert!(doors.lose_answers(2).is_err());
    }
}
