//! Reaching one peer: its address, connecting, the caller's half of the handshake.
//!
//! Owns: [`Dialer`], what is logged about a peer that is not reached.
//! Not here: when it is tried again (`drive.rs`).
//! Spec: docs/protocols/peer.md (handshake)

use super::config::{PeerConfig, PeerIdentity};
use super::frame::WireLane;
use super::hello::{ANSWER_MAGIC, Answer};
use super::io::{ReadError, read_handshake, write_parts};
use super::mistakes::Mistakes;
use super::tls::{self, PeerTls};
use super::transport::AddressBook;
use super::welcome::NotLetIn;
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
    /// Where the last try failed: the next one goes to the next address.
    pub(super) failed_at: Mutex<Option<String>>,
    /// What was logged since it was last reached: a state is told once, not at every try. Several lanes, and tries at several addresses, may fail in several ways.
    pub(super) said: Mutex<Vec<String>>,
    pub(super) mistakes: Mistakes,
}

/// Different texts about one peer until it is reached again.
const TEXTS_MAX: usize = 8;

impl Dialer {
    /// A connection that was accepted; or why there is none, in words that name the address.
    pub(super) async fn dial(&self, lane: WireLane) -> Result<BoxStream, String> {
        let address = self.next_address();
        let dialled = timeout(self.config.handshake, self.try_dial(lane, &address)).await;
        let result = match dialled {
            Ok(result) => result,
            Err(_) => Err(format!("no answer within {:?}", self.config.handshake).into()),
        };
        match result {
            Ok(stream) => {
                self.mistakes.note(&address, None);
                *self.failed_at.lock() = None;
                if !std::mem::take(&mut *self.said.lock()).is_empty() {
                    tracing::info!(address, "{} is reached again", self.name());
                }
                Ok(stream)
            }
            Err(NotLetIn { reason, text: why }) => {
                let refused = reason.map(|reason| (reason, why.as_str()));
                self.mistakes.note(&address, refused);
                let text = format!("{} at {address} is not reached: {why}", self.name());
                *self.failed_at.lock() = Some(address);
                let mut said = self.said.lock();
                if said.len() < TEXTS_MAX && !said.contains(&text) {
                    tracing::warn!("{text}");
                    said.push(text.clone());
                }
                Err(text)
            }
        }
    }

    /// The likeliest address, or after a failure the one after that which failed. Metadata and seeds may both be old: a broker that has moved is found
    /// by whoever knows better.
    fn next_address(&self) -> String {
        let booked = self.broker.map(|broker| self.book.addresses(broker));
        let own = self.address.lock().clone();
        let mut known: Vec<String> = Vec::new();
        for address in booked.into_iter().flatten().chain([own]) {
            if !address.is_empty() && !known.contains(&address) {
                known.push(address);
            }
        }
        let failed = self.failed_at.lock().clone();
        let failed = failed.and_then(|at| known.iter().position(|address| *address == at));
        let next = failed.map_or(0, |at| (at + 1) % known.len());
        known.into_iter().nth(next).unwrap_or_default()
    }

    fn name(&self) -> String {
        match (self.broker, self.node) {
            (Some(broker), _) => format!("broker {broker}"),
            (None, Some(node)) => format!("Raft node {node}"),
            (None, None) => "a broker".to_owned(),
        }
    }

    async fn try_dial(&self, lane: WireLane, address: &str) -> Result<BoxStream, NotLetIn> {
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
                return Err(why.into());
            }
            (Ok(()), Err(error)) => return Err(format!("in the handshake: {error}").into()),
            (Err(error), _) => return Err(error.to_string().into()),
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
