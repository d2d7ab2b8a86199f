//! The listener's half of the handshake: TLS where it is wanted, hello, answer, and a place among those that are let in.
//!
//! Owns: what a new connection may do until it is let in, what is said about those that are not.
//! Not here: the checks of a hello (`welcome.rs`), the connection after it (`session.rs`).
//! Spec: docs/protocols/peer.md (handshake, TLS)

use super::hello::{HEAD_BYTES, HELLO_MAGIC, Hello};
use super::io::{ReadError, read_head, read_rest, write_parts};
use super::metrics::OpenConnection;
use super::presence::Present;
use super::session::{self, Shared};
use super::tls;
use super::waiting::Place;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use tidelog_env::BoxStream;
use tokio::io::AsyncWriteExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// A connection that is let in.
struct Guest {
    hello: Hello,
    stream: BoxStream,
    seat: Seat,
    /// Counts it while it lives, if it is TLS.
    tls: Option<OpenConnection>,
}

/// What a connection holds while it is let in.
enum Seat {
    Member(OwnedSemaphorePermit, Present),
    /// The caller is in no cluster: it speaks for no Raft node, and keeps no member out.
    Stranger(Place),
}

/// Serves a new connection until it ends. It takes one of `places` once its hello is accepted.
pub(super) async fn run(
    shared: Arc<Shared>,
    peer: SocketAddr,
    stream: BoxStream,
    mut waiting: Place,
    places: Arc<Semaphore>,
) {
    let within = shared.config.handshake;
    let greeted = tokio::select! {
        greeted = timeout(within, greet(&shared, peer, stream, places)) => greeted,
        () = waiting.taken() => return shared.metrics.closed("handshakes"),
    };
    drop(waiting);
    match greeted {
        Ok(Some(guest)) => {
            let Guest { hello, stream, .. } = guest;
            let own = Arc::clone(&shared);
            match guest.seat {
                Seat::Member(place, present) => {
                    tokio::select! {
                        () = session::run(own, peer, stream, hello, Some(&present)) => {}
                        () = present.replaced() => shared.metrics.closed("replaced"),
                    }
                    drop(place);
                }
                Seat::Stranger(mut place) => tokio::select! {
                    () = session::run(own, peer, stream, hello, None) => {}
                    () = place.taken() => shared.metrics.closed("strangers"),
                },
            }
            drop(guest.tls);
        }
        Ok(None) => {}
        Err(_) => {
            shared.metrics.closed("handshake");
            if shared.said.may_say("handshake") {
                tracing::warn!(%peer, "no handshake within {within:?}; the connection is closed");
            }
        }
    }
}

/// `None` if the connection ends with its handshake.
async fn greet(
    shared: &Shared,
    peer: SocketAddr,
    mut stream: BoxStream,
    places: Arc<Semaphore>,
) -> Option<Guest> {
    let mut head = head(peer, &mut stream).await?;
    let mut open = None;
    if tls::is_tls(&head) {
        stream = secure(shared, peer, head, stream).await?;
        let counted = shared.tls.metrics();
        open = counted.map(|metrics| OpenConnection::new(&metrics.connections_accepted_open));
        head = self::head(peer, &mut stream).await?;
    }
    let read = read_rest(&mut stream, head, HELLO_MAGIC, "hello of a broker").await;
    let hello = match read.map(|bytes| Hello::decode(&bytes)) {
        Ok(Ok(hello)) => hello,
        Ok(Err(error)) => return garbage(shared, peer, &error),
        Err(ReadError::Frame(error)) => return garbage(shared, peer, &error),
        Err(error) => return broken(peer, &error),
    };
    let mut answer = if open.is_none() && !shared.tls.takes_plain() {
        shared.identity.wants_tls(&hello)
    } else {
        shared.identity.answer(&hello)
    };
    let mut seat = None;
    if answer.refused.is_none() && hello.from.cluster.is_none() {
        seat = Some(Seat::Stranger(shared.strangers.begin().0));
    } else if answer.refused.is_none() {
        let place = place(shared, peer, places)?;
        match shared.presence.enter(hello.from, peer).await {
            Ok(present) => seat = Some(Seat::Member(place, present)),
            Err(twin) => answer = shared.identity.twin(&hello, twin),
        }
    }
    let parts = VecDeque::from([answer.encode()]);
    if let Err(error) = write_parts(&mut stream, parts, shared.config.stall).await {
        tracing::debug!(%peer, "the connection failed in the handshake: {error}");
        return None;
    }
    if let Some(seat) = seat {
        return Some(Guest {
            hello,
            stream,
            seat,
            tls: open,
        });
    }
    if let Some(refusal) = &answer.refused
        && let Some(reason) = refusal.reason
    {
        shared.metrics.refused(reason);
        if shared.said.may_say_of(reason.name(), hello.from.broker) {
            tracing::warn!(%peer, "a broker is refused: {}", refusal.text);
        }
    }
    // The peer may be gone already: then there is nobody to tell.
    let _ = stream.shutdown().await;
    None
}

async fn head(peer: SocketAddr, stream: &mut BoxStream) -> Option<[u8; HEAD_BYTES]> {
    match read_head(stream).await {
        Ok(head) => Some(head),
        Err(error) => broken(peer, &error),
    }
}

fn broken<T>(peer: SocketAddr, error: &ReadError) -> Option<T> {
    tracing::debug!(%peer, "no handshake: {error}");
    None
}

fn garbage<T>(shared: &Shared, peer: SocketAddr, error: &dyn std::fmt::Display) -> Option<T> {
    shared.metrics.closed("garbage");
    if shared.said.may_say("garbage") {
        tracing::warn!(%peer, "this is not a broker ({error}); its connection is closed");
    }
    None
}

/// The TLS handshake of a connection that begins with one.
async fn secure(
    shared: &Shared,
    peer: SocketAddr,
    head: [u8; HEAD_BYTES],
    stream: BoxStream,
) -> Option<BoxStream> {
    if !shared.tls.is_on() {
        shared.metrics.closed("tls_off");
        if shared.said.may_say("tls_off") {
            tracing::warn!(%peer, "a TLS connection is closed: this broker takes plain ones only; set peer.tls-mode and its files");
        }
        return None;
    }
    match shared.tls.accept(head, stream).await {
        Ok(stream) => Some(stream),
        Err(why) => {
            shared.metrics.closed("tls");
            if shared.said.may_say("tls_handshake") {
                tracing::warn!(%peer, "a TLS connection is refused: {why}");
            }
            None
        }
    }
}

/// A place among the connections that are let in.
fn place(
    shared: &Shared,
    peer: SocketAddr,
    places: Arc<Semaphore>,
) -> Option<OwnedSemaphorePermit> {
    let place = places.try_acquire_owned().ok();
    if place.is_none() {
        shared.over_bound(peer);
    }
    place
}
