//! The log of a coordinator under test: in memory, in order, failing when told to.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use futures::FutureExt;
use parking_lot::RwLock;
use std::collections::VecDeque;

/// A log of one replica that applies a little later, in the order of the calls, and fails when told to.
#[derive(Default)]
pub(super) struct MemoryLog(Arc<Inner>);

type Reply = tokio::sync::oneshot::Sender<Result<CoordinatorOutcome, ProposeError>>;

#[derive(Default)]
pub(super) struct Inner {
    pub(super) state: RwLock<ConsumerGroupsState>,
    pub(super) failures: Mutex<VecDeque<ProposeError>>,
    pub(super) proposals: Mutex<Vec<CoordinatorCommand>>,
    queue: Mutex<VecDeque<(Command, Reply)>>,
}

impl std::ops::Deref for MemoryLog {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.0
    }
}

#[async_trait]
impl CoordinatorLog for MemoryLog {
    fn propose(
        &self,
        command: Command,
    ) -> BoxFuture<'static, Result<CoordinatorOutcome, ProposeError>> {
        let log = Arc::clone(&self.0);
        let (reply, outcome) = tokio::sync::oneshot::channel();
        log.queue.lock().push_back((command, reply));
        // Whoever comes first applies what is first in the queue.
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(2)).await;
            let mut queue = log.queue.lock();
            let (command, reply) = queue.pop_front().unwrap();
            let _ = reply.send(log.apply(&command));
        });
        async move { outcome.await.unwrap() }.boxed()
    }

    async fn read_barrier(&self) -> Result<(), ProposeError> {
        self.failures.lock().pop_front().map_or(Ok(()), Err)
    }

    fn read(&self, reader: &mut dyn FnMut(&ConsumerGroupsState)) {
        reader(&self.state.read());
    }
}

impl Inner {
    fn apply(&self, command: &Command) -> Result<CoordinatorOutcome, ProposeError> {
        if let Some(error) = self.failures.lock().pop_front() {
            return Err(error);
        }
        let (decoded, _) = crate::coordinator::state::decode_command(&command.dir).unwrap();
        self.proposals.lock().push(decoded);
        Ok(self.state.write().apply_bytes(&command.dir))
    }
}
