//! The bodies of replies, good and bad.
//!
//! Owns: what a body fault does to the bytes and the time they take.
//! Not here: whether one hits (`faults`).
//! Spec: docs/simulation.md

use super::faults::{BodyFault, Drawing};
use super::objects::Found;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use object_store::Result;
use rand::Rng;
use std::time::Duration;
use tidelog_tiering::store::faulty::{Fault, RequestFailed};

/// Pieces a trickling body comes in, at most.
const PIECES_MAX: usize = 16;

/// The body of a reply, and the fault that really hit it.
pub(super) fn body(
    found: &Found,
    fault: Option<BodyFault>,
    drawing: &mut Drawing,
) -> (BoxStream<'static, Result<Bytes>>, Option<&'static str>) {
    let bytes = found.bytes.clone();
    let good = |bytes: Bytes| stream::once(std::future::ready(Ok(bytes))).boxed();
    let length = bytes.len();
    match fault {
        Some(_) if length == 0 => (good(bytes), None),
        None => (good(bytes), None),
        Some(BodyFault::WrongBytes) => {
            let at = drawing.random.random_range(0..length);
            (
                good(Fault::FlipBit(at).spoil(bytes)),
                Some("store.wrong-bytes"),
            )
        }
        Some(BodyFault::WrongRange) => match elsewhere(found, drawing) {
            Some(other) => (good(other), Some("store.wrong-range")),
            None => (good(bytes), None),
        },
        Some(BodyFault::Short) => {
            let missing = drawing.random.random_range(1..=length);
            let short = good(Fault::ShortBody(missing).spoil(bytes));
            let short = if drawing.random.random_bool(0.5) {
                let broken = RequestFailed::BrokenBody.error("");
                short
                    .chain(stream::once(std::future::ready(Err(broken))))
                    .boxed()
            } else {
                short
            };
            (short, Some("store.short-body"))
        }
        Some(BodyFault::Trickle) => (trickle(bytes, drawing), Some("store.trickle")),
    }
}

/// As many bytes from another place of the object, unless all its places hold the same.
fn elsewhere(found: &Found, drawing: &mut Drawing) -> Option<Bytes> {
    let length = found.bytes.len();
    for _ in 0..8 {
        let at = drawing.random.random_range(0..=found.whole.len() - length);
        let other = found.whole.slice(at..at + length);
        if other != found.bytes {
            return Some(other);
        }
    }
    None
}

fn trickle(bytes: Bytes, drawing: &mut Drawing) -> BoxStream<'static, Result<Bytes>> {
    let piece = bytes.len().div_ceil(PIECES_MAX);
    let longest = drawing.rates.pause_max.max(Duration::from_millis(1));
    let mut rest = bytes;
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        let pause = drawing
            .random
            .random_range(Duration::from_millis(1)..=longest);
        pieces.push((pause, rest.split_to(piece.min(rest.len()))));
    }
    stream::iter(pieces)
        .then(|(pause, piece)| async move {
            tokio::time::sleep(pause).await;
            Ok(piece)
        })
        .boxed()
}
