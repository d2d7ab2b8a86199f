//! From a command to its place in the core's queue, and from the core's answer to the proposer.
//!
//! Owns: [`Proposer`]: admission, order of enqueueing, deadlines, what an error means.
//! Not here: the budget itself (`in_flight.rs`), apply (`machine_store.rs`).
//! Spec: docs/protocols/placement.md (a proposal)

use super::contract::{Command, ProposeError};
use super::in_flight::{InFlight, Used};
use super::leadership::Observer;
use super::machine_store::MachineStore;
use super::raft_types::{Reply, Types, from_raft};
use crate::log::DIR_BYTES_MAX;
use openraft::Raft;
use openraft::errors::ClientWriteError;
use openraft::raft::ClientWriteResult;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tidelog_env::Tasks;
use tidelog_model::LogId;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

/// Takes commands into the core. Clones share the budget.
#[derive(Clone)]
pub(super) struct Proposer {
    pub(super) raft: Raft<Types, MachineStore>,
    pub(super) observer: Observer,
    pub(super) in_flight: InFlight,
    pub(super) tasks: Tasks,
    pub(super) entry_bytes_max: usize,
    pub(super) deadline: Duration,
}

impl Proposer {
    /// Enqueues now, waits in the future that it returns. The order of calls is the order in the log.
    pub(super) fn propose<T: Send + 'static>(
        &self,
        command: Command,
    ) -> impl Future<Output = Result<(LogId, T), ProposeError>> + Send + use<T> {
        let until = Instant::now() + self.deadline;
        let enqueued = self.enqueue(command);
        let observer = self.observer.clone();
        async move {
            let answer = match timeout_at(until, enqueued?).await {
                Err(_) => return Err(ProposeError::Timeout),
                Ok(Err(_)) => return Err(ProposeError::Fatal(observer.stop_reason())),
                Ok(Ok(answer)) => answer,
            };
            let written = answer.map_err(refused)?;
            let outcome = written
                .data
                .take()
                .ok_or_else(|| ProposeError::Fatal("an outcome of another machine".to_owned()))?;
            Ok((from_raft(written.log_id), outcome))
        }
    }

    pub(super) fn used(&self) -> Used {
        self.in_flight.used()
    }

    fn enqueue(
        &self,
        command: Command,
    ) -> Result<oneshot::Receiver<ClientWriteResult<Types>>, ProposeError> {
        let bytes = command.bytes();
        if bytes > self.entry_bytes_max {
            return Err(ProposeError::TooLarge {
                bytes,
                bytes_max: self.entry_bytes_max,
            });
        }
        // The log refuses what its frame cannot say; by then the group would be lost.
        if command.dir.len() > DIR_BYTES_MAX {
            return Err(ProposeError::TooLarge {
                bytes: command.dir.len(),
                bytes_max: DIR_BYTES_MAX,
            });
        }
        let slot = self
            .in_flight
            .try_acquire(bytes)
            .ok_or(ProposeError::Overloaded)?;
        let (reply, answer) = Reply::new(slot);
        let raft = self.raft.clone();
        // Unconstrained: tokio's budget of the calling task must not make a queue with room look full.
        let mut sent = Box::pin(tokio::task::unconstrained(async move {
            // On an error the reply was dropped with the command, and the proposer learns it there.
            let _ = raft.client_write_ff(command, Some(reply)).await;
        }));
        // One poll puts the command into the queue. If the queue is full, the poll took a place in its line, which keeps the order; the
        // task only waits for it. The same when the core has stopped, where the call waits for the reason.
        if pin!(&mut sent).poll(&mut Context::from_waker(Waker::noop())) == Poll::Pending {
            self.tasks.spawn("placement-enqueue", sent);
        }
        Ok(answer)
    }
}

fn refused(error: ClientWriteError<Types>) -> ProposeError {
    match error {
        ClientWriteError::ForwardToLeader(forward) => ProposeError::NotLeader {
            leader: forward.leader_node.map(|member| member.broker),
        },
        ClientWriteError::LogEntryDiscarded(_) => ProposeError::Unknown,
        // Neither is asked for by a proposal; the careful answer costs nothing.
        ClientWriteError::ChangeMembershipError(_) | ClientWriteError::PreconditionFailed(_) => {
            ProposeError::Unknown
        }
    }
}
