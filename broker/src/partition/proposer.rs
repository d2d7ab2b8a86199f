//! The proposer: takes all appends that wait and proposes them as one entry; a few entries are in flight at once.
//!
//! Owns: coalescing (D2), order of appends, the bound on bytes that are accepted and not yet applied.
//! Not here: validation of batches (`api`), Raft (`placement`).
//!
//! A lone append is proposed at once: nothing here waits for a timer (R2). While the disk is busy, what arrives in the
//! meantime becomes the next entry.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use super::command::{BatchDescriptor, PartitionCommand, Stamped};
use super::machine::PartitionOutcome;
use super::state::AppendOutcome;
use crate::placement::{Command, Group, ProposeError, StateMachine};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tidelog_env::{Clock, Tasks};
use tidelog_model::TimestampMs;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

/// Bounds of one proposer.
#[derive(Clone, Copy, Debug)]
pub struct ProposerConfig {
    /// Bytes of batches per entry at most, unless a single batch is larger. 1 MiB: what one append to a follower may
    /// carry (consensus measurements); larger entries gain nothing.
    pub entry_bytes_max: usize,
    /// Batches per entry at most: bounds the directory to 4096 * 64 B = 256 KiB.
    pub entry_batches_max: usize,
    /// Entries in flight at most. Eight entries of 1 MiB fill one group commit of the log (8 MiB).
    pub entries_in_flight_max: usize,
    /// Bytes accepted and not yet answered at most; who comes next waits, in order.
    pub bytes_in_flight_max: usize,
}

impl Default for ProposerConfig {
    fn default() -> Self {
        Self {
            entry_bytes_max: 1 << 20,
            entry_batches_max: 4096,
            entries_in_flight_max: 8,
            bytes_in_flight_max: 64 << 20,
        }
    }
}

/// One validated batch on its way into the log.
#[derive(Clone, Debug)]
pub struct AppendBatch {
    /// What the log needs to know of it; `position` is set by the proposer.
    pub descriptor: BatchDescriptor,
    /// Its bytes, as produced.
    pub bytes: Bytes,
}

/// Why a whole append has no outcome. See [`ProposeError::may_have_happened`].
pub type AppendFailure = ProposeError;

type Outcomes = Result<Vec<AppendOutcome>, AppendFailure>;

struct Waiting {
    batches: Vec<AppendBatch>,
    bytes: usize,
    reply: oneshot::Sender<Outcomes>,
    permit: OwnedSemaphorePermit,
}

/// An accepted append: its place in the order is fixed. Dropping it abandons the answer, not the append.
pub struct PendingAppend(oneshot::Receiver<Outcomes>);

impl PendingAppend {
    /// Waits until the append is committed and applied: the records are then on a majority's disk (I7).
    ///
    /// # Errors
    /// [`AppendFailure`]; its `may_have_happened` says whether the records may still become visible.
    pub async fn outcome(self) -> Outcomes {
        self.0.await.unwrap_or(Err(ProposeError::Unknown))
    }
}

/// Handle to the proposer task of one placement group.
#[derive(Clone)]
pub struct Proposer {
    queue: mpsc::Sender<Waiting>,
    budget: Arc<Semaphore>,
    budget_max: usize,
}

impl Proposer {
    /// Starts the task. It ends with `tasks`.
    pub fn start<M>(
        config: ProposerConfig,
        group: Group<M>,
        clock: Arc<dyn Clock>,
        tasks: &Tasks,
    ) -> Self
    where
        M: StateMachine,
        M::Outcome: TryInto<PartitionOutcome>,
    {
        // Each waiting append holds budget for its bytes, at least 1, so the queue cannot hold more than the budget;
        // the channel's own bound only limits the number of tiny appends.
        let (queue, waiting) = mpsc::channel(16 * 1024);
        let budget_max = config
            .bytes_in_flight_max
            .min(Semaphore::MAX_PERMITS)
            .min(u32::MAX as usize);
        tasks.spawn("proposer", run(config, group, clock, waiting));
        Self {
            queue,
            budget: Arc::new(Semaphore::new(budget_max)),
            budget_max,
        }
    }

    /// Accepts an append: when this returns, everything accepted later comes after it in the log. Waits, in order,
    /// while [`ProposerConfig::bytes_in_flight_max`] bytes are under way.
    ///
    /// # Errors
    /// [`ProposeError::Fatal`] if the group has stopped: did not happen.
    pub async fn accept(&self, batches: Vec<AppendBatch>) -> Result<PendingAppend, AppendFailure> {
        let stopped = || ProposeError::Fatal("the broker is stopping".to_owned());
        let bytes: usize = batches.iter().map(|batch| batch.bytes.len()).sum();
        let cost = u32::try_from(bytes.clamp(1, self.budget_max)).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.budget)
            .acquire_many_owned(cost)
            .await
            .map_err(|_| stopped())?;
        let (reply, outcome) = oneshot::channel();
        self.queue
            .send(Waiting {
                batches,
                bytes,
                reply,
                permit,
            })
            .await
            .map_err(|_| stopped())?;
        Ok(PendingAppend(outcome))
    }
}

type InFlight = FuturesUnordered<Pin<Box<dyn Future<Output = ()> + Send>>>;

async fn run<M>(
    config: ProposerConfig,
    group: Group<M>,
    clock: Arc<dyn Clock>,
    mut queue: mpsc::Receiver<Waiting>,
) where
    M: StateMachine,
    M::Outcome: TryInto<PartitionOutcome>,
{
    let mut in_flight = InFlight::new();
    let mut stamp = 0i64;
    let mut left_over: Option<Waiting> = None;
    loop {
        let first = if let Some(waiting) = left_over.take() {
            Some(waiting)
        } else {
            tokio::select! {
                waiting = queue.recv(), if in_flight.len() < config.entries_in_flight_max => waiting,
                Some(()) = in_flight.next() => continue,
            }
        };
        let Some(first) = first else { break };
        let mut taken = vec![first];
        let mut bytes = taken[0].bytes;
        let mut count = taken[0].batches.len();
        while let Ok(next) = queue.try_recv() {
            if bytes + next.bytes > config.entry_bytes_max
                || count + next.batches.len() > config.entry_batches_max
            {
                left_over = Some(next);
                break;
            }
            bytes += next.bytes;
            count += next.batches.len();
            taken.push(next);
        }
        stamp = stamp.max(clock.now_ms());
        let command = build(&taken, bytes, count, TimestampMs::new(stamp));
        let proposed = group.propose_ordered(command);
        in_flight.push(Box::pin(async move { answer::<M>(taken, proposed.await) }));
        while in_flight.len() >= config.entries_in_flight_max && left_over.is_some() {
            in_flight.next().await;
        }
    }
    while in_flight.next().await.is_some() {}
}

fn build(taken: &[Waiting], bytes: usize, count: usize, stamp: TimestampMs) -> Command {
    let mut body = BytesMut::with_capacity(bytes);
    let mut descriptors = Vec::with_capacity(count);
    for batch in taken.iter().flat_map(|waiting| &waiting.batches) {
        let mut descriptor = batch.descriptor;
        descriptor.position = u32::try_from(body.len()).unwrap_or(u32::MAX);
        // The one copy of a batch: from the network frame into its log entry, so that the entry pins its own bytes only.
        body.extend_from_slice(&batch.bytes);
        descriptors.push(descriptor);
    }
    let dir = Stamped {
        stamp,
        command: PartitionCommand::Append(descriptors),
    }
    .encode();
    Command {
        dir,
        body: body.freeze(),
    }
}

fn answer<M>(taken: Vec<Waiting>, result: Result<(tidelog_model::LogId, M::Outcome), ProposeError>)
where
    M: StateMachine,
    M::Outcome: TryInto<PartitionOutcome>,
{
    let outcomes = result.and_then(|(_, outcome)| match outcome.try_into() {
        Ok(PartitionOutcome::Appended(outcomes)) => Ok(outcomes),
        _ => Err(ProposeError::Fatal(
            "an append was answered with another command's outcome".to_owned(),
        )),
    });
    match outcomes {
        Ok(outcomes) => {
            let mut outcomes = outcomes.into_iter();
            for waiting in taken {
                let mine: Vec<AppendOutcome> =
                    outcomes.by_ref().take(waiting.batches.len()).collect();
                // A receiver that is gone has stopped waiting; its records are appended all the same.
                let _gone = waiting.reply.send(Ok(mine));
                drop(waiting.permit);
            }
        }
        Err(error) => {
            for waiting in taken {
                let _gone = waiting.reply.send(Err(error.clone()));
                drop(waiting.permit);
            }
        }
    }
}
