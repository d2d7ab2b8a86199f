//! Connections whose handshake is not done: few, and the oldest gives way, so that who connects and says nothing keeps nobody out.
//!
//! Owns: [`Waiting`], [`Place`].
//! Not here: connections that are let in (`listener.rs`), how long a handshake may take (`config.rs`).
//! Spec: docs/protocols/peer.md (bounds)

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::oneshot;

/// The handshakes that are under way.
pub(super) struct Waiting {
    max: usize,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// By age. Dropping what is in it tells the handshake to end.
    places: BTreeMap<u64, oneshot::Sender<()>>,
    next: u64,
}

/// The place of one handshake; free when dropped.
pub(super) struct Place {
    waiting: Arc<Waiting>,
    number: u64,
    taken: oneshot::Receiver<()>,
}

impl Waiting {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max: max.max(1),
            known: Mutex::default(),
        })
    }

    /// A place for a new one; when there is none, the oldest's. Whether that was so.
    pub(super) fn begin(self: &Arc<Self>) -> (Place, bool) {
        let (keep, taken) = oneshot::channel();
        let mut known = self.known.lock();
        let full = known.places.len() >= self.max;
        if full {
            known.places.pop_first();
        }
        let number = known.next;
        known.next += 1;
        known.places.insert(number, keep);
        let place = Place {
            waiting: Arc::clone(self),
            number,
            taken,
        };
        (place, full)
    }
}

impl Place {
    /// Returns when the place was given to a newer one.
    pub(super) async fn taken(&mut self) {
        // Nothing is ever sent: the other end is dropped.
        let _ = (&mut self.taken).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.waiting.known.lock().places.remove(&self.number);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;
    use futures::FutureExt;

    /// Proves that the oldest gives way, that nobody else does, and that an end makes room.
    #[test]
    fn the_oldest_gives_way() {
        let waiting = Waiting::new(2);
        let (mut first, full) = waiting.begin();
        assert!(!full);
        let (second, _) = waiting.begin();
        assert_eq!(first.taken().now_or_never(), None);
        let (mut third, full) = waiting.begin();
        assert!(full);
        assert_eq!(first.taken().now_or_never(), Some(()));
        drop((first, second));
        let (_fourth, full) = waiting.begin();
        assert!(!full);
        assert_eq!(third.taken().now_or_never(), None);
    }
}
