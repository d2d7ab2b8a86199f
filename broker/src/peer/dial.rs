//! Reaching one peer: its address, connecting, the caller's half of the handshake.
//!
//! Owns: [`Dialer`], what is logged about a peer that is not reached.
//! Not here: when it is tried again (`drive.rs`).
//! Spec: docs/protocols/peer.md (handshake)

use super::config::{PeerConfig, PeerIdentity};
use super::frame::WireLane;
use super::hello::{ANSWER_MAGIC, Answer};
use super::io::{ReadError, read_handshake, write_parts};
use super::tls::{self, PeerTls};
use super::transport::AddressBook;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tidelog_env::{BoxStream, Network};
use tidelog_model::{NodeId, RaftNodeId};
use tokio::time::timeout;

/// Connects to one peer, on any lane.
pub(super) struct Dialer {
    pub(super) config: PeerConfig,
    pub(super) identity: Arc<PeerIdentity>,
    pub(super) network: Arc<dyn Network>,
    pub(super) book: Arc<dyn AddressBook>,
    pub(super) tls: PeerTls,
    pub(super) broker: Option<NodeId>,
    pub(super) node: Option<RaftNodeId>,
    /// Where it was said to be when it was last asked for.
    pub(super) address: Mutex<String>,
    /// What was last logged: a state is told once, not at every try.
    pub(super) said: Mutex<Option<String>>,
}

impl Dialer {
    /// A connection that was accepted; or why there is none, in words that name the address.
    pub(super) async fn dial(&self, lane: WireLane) -> Result<BoxStream, String> {
        let booked = self.broker.and_then(|broker| self.book.address(broker));
        let address = booked.unwrap_or_else(|| self.address.lock().clone());
        let dialled = timeout(self.config.handshake, self.try_dial(lane, &address)).await;
        let result = match dialled {
            Ok(result) => result,
            Err(_) => Err(format!("no answer within {:?}", self.config.handshake)),
        };
        match result {
            Ok(stream) => {
                if self.said.lock().take().is_some() {
                    tracing::info!(address, "{} is reached again", self.name());
                }
                Ok(stream)
            }
            Err(why) => {
                let text = format!("{} at {address} is not reached: {why}", self.name());
                let mut said = self.said.lock();
                if said.as_ref() != Some(&text) {
                    tracing::warn!("{text}");
                    *said = Some(text.clone());
                }
                Err(text)
            }
        }
    }

    fn name(&self) -> String {
        match (self.broker, self.node) {
            (Some(broker), _) => format!("broker {broker}"),
            (None, Some(node)) => format!("Raft node {node}"),
            (None, None) => "a broker".to_owned(),
        }
    }

    async fn try_dial(&self, lane: WireLane, address: &str) -> Result<BoxStream, String> {
        let (host, port) = split(address)?;
        let stream = self
            .network
            .connect(host, port)
            .await
            .map_err(|error| error.to_string())?;
        let mut stream = self.tls.connect(host, stream).await?;
        let hello = self.identity.hello(lane, self.broker, self.node);
        let parts = VecDeque::from([hello.encode()]);
        let sent = write_parts(&mut stream, parts, self.config.handshake).await;
        // Read also after a failure: what the peer said before it closed is the reason.
        let read = read_handshake(&mut stream, ANSWER_MAGIC, "answer to a hello").await;
        let bytes = match (sent, read) {
            (Ok(()), Ok(bytes)) => bytes,
            (_, Err(ReadError::Io(error))) if let Some(why) = tls::refusal(&error) => {
                return Err(why);
            }
            (Ok(()), Err(error)) => return Err(format!("in the handshake: {error}")),
            (Err(error), _) => return Err(error.to_string()),
        };
        let answer =
            Answer::decode(&bytes).map_err(|error| format!("in the handshake: {error}"))?;
        self.identity.check_answer(&hello, &answer)?;
        Ok(stream)
    }
}

/// `host:port`, `[v6]:port`.
fn split(address: &str) -> Result<(&str, u16), String> {
    let wrong = || format!("\"{address}\" is not host:port");
    let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
    let port = port.parse().map_err(|_| wrong())?;
    Ok((host.trim_matches(['[', ']']), port))
}
