//! Appends of one group on one connection: handed to the group in order, several in work at once.
//!
//! Owns: [`Ordered`].
//! Not here: what an append does.
//! Spec: docs/protocols/peer.md (order)

use super::limits::GROUP_APPENDS_IN_WORK_MAX;
use futures::future::BoxFuture;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;

type Work = BoxFuture<'static, ()>;

/// A queue of work that begins in order.
///
/// One task polls the oldest first, always: work that enters a queue (openraft's core has a bounded one) at its first polls enters it
/// in this order, even when that queue is full and everybody waits for room.
pub(super) struct Ordered {
    queue: mpsc::Sender<(Work, OwnedSemaphorePermit)>,
    places: Arc<Semaphore>,
}

impl Ordered {
    /// Runs as a task of `tasks` until it is dropped and its work is done.
    pub(super) fn start(tasks: &mut JoinSet<()>) -> Self {
        let (queue, incoming) = mpsc::channel(GROUP_APPENDS_IN_WORK_MAX);
        tasks.spawn(drive(incoming));
        Self {
            queue,
            places: Arc::new(Semaphore::new(GROUP_APPENDS_IN_WORK_MAX)),
        }
    }

    /// Adds work, unless too much is in work. Whether it was taken.
    pub(super) fn push(&self, work: Work) -> bool {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            return false;
        };
        self.queue.try_send((work, place)).is_ok()
    }
}

async fn drive(mut incoming: mpsc::Receiver<(Work, OwnedSemaphorePermit)>) {
    let mut running: VecDeque<(Work, OwnedSemaphorePermit)> = VecDeque::new();
    poll_fn(move |context| {
        let is_closed = loop {
            match incoming.poll_recv(context) {
                Poll::Ready(Some(work)) => running.push_back(work),
                Poll::Ready(None) => break true,
                Poll::Pending => break false,
            }
        };
        running.retain_mut(|(work, _)| work.as_mut().poll(context).is_pending());
        if is_closed && running.is_empty() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}
