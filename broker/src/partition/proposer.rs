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
use std::time::Duration;

use super::command::{BatchDescriptor, PartitionCommand, Stamped, append_overhead};
use super::machine::PartitionOutcome;
use super::state::AppendOutcome;
use crate::placement::{Command, Group, ProposeError, StateMachine};
use bytes::BytesMut;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tidelog_env::{Clock, Tasks};
use tidelog_model::{Summed, TimestampMs};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

/// Pause before the task begins anew after a panic. What it had taken is answered with an error, what waits is not lost.
const RESTART_PAUSE: Duration = Duration::from_millis(100);

/// Bounds of one proposer.
#[derive(Clone, Copy, Debug)]
pub struct ProposerConfig {
    /// Bytes of an entry at most, directory included, unless a single batch is larger; never more than the group takes. 1 MiB:
    /// what one append to a follower may carry (consensus measurements); larger entries gain nothing.
    pub entry_bytes_max: usize,
    /// Batches per entry at most: bounds the directory to 4096 * 64 B = 256 KiB.
    pub entry_batches_max: usize,
    /// Entries in flight at most. Eight entries of 1 MiB fill one group commit of the log (8 MiB): one is synced while the
    /// next gathers.
    pub entries_in_flight_max: usize,
    /// Bytes accepted and not yet answered at most; who comes next waits, in order.
    pub bytes_in_flight_max: usize,
}

impl Default for ProposerConfig {
    fn default() -> Self {
        Self {
            entry_bytes_max: 1 << 20,
            entry_batches_max: 4096,
            entries_in_flight_max: 16,
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
    pub bytes: Summed,
}

/// Why a whole append has no outcome. See [`ProposeError::may_have_happened`].
pub type AppendFailure = ProposeError;

type Outcomes = Result<Vec<AppendOutcome>, AppendFailure>;

/// Batches that are proposed in one entry: an append, or a share of one that is too large for that.
struct Waiting {
    batches: Vec<AppendBatch>,
    /// Bytes of the batches.
    bytes: usize,
    reply: oneshot::Sender<Outcomes>,
    permit: Arc<OwnedSemaphorePermit>,
}

/// An accepted append: its place in the order is fixed. Dropping it abandons the answer, not the append.
pub struct PendingAppend(Vec<Share>);

struct Share {
    batches: usize,
    outcomes: oneshot::Receiver<Outcomes>,
}

impl PendingAppend {
    /// One outcome per batch, in the order they were given. An outcome means that the batch is committed and applied: its
    /// records are then on a majority's disk (I7). A large append takes several entries, so a part of it may fail alone.
    ///
    /// Errors of a batch: [`AppendFailure`]; its `may_have_happened` says whether the records may still become visible. What
    /// has no outcome at `deadline` is [`ProposeError::Timeout`].
    pub async fn outcomes(self, deadline: Instant) -> Vec<Result<AppendOutcome, AppendFailure>> {
        let mut all = Vec::new();
        for share in self.0 {
            let error = match timeout_at(deadline, share.outcomes).await {
                Ok(Ok(Ok(outcomes))) if outcomes.len() == share.batches => {
                    all.extend(outcomes.into_iter().map(Ok));
                    continue;
                }
                Ok(Ok(Err(error))) => error,
                Ok(Ok(Ok(_)) | Err(_)) => ProposeError::Unknown,
                Err(_) => ProposeError::Timeout,
            };
            all.extend(std::iter::repeat_n(Err(error), share.batches));
        }
        all
    }
}

/// Handle to the proposer task of one placement group.
#[derive(Clone)]
pub struct Proposer {
    queue: mpsc::Sender<Waiting>,
    budget: Arc<Semaphore>,
    budget_max: usize,
    entry_bytes_max: usize,
    entry_batches_max: usize,
}

impl Proposer {
    /// Starts the task. It ends with `tasks`.
    pub fn start<M>(
        mut config: ProposerConfig,
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
        config.entry_bytes_max = config.entry_bytes_max.min(group.entry_bytes_max());
        let waiting = Arc::new(tokio::sync::Mutex::new(waiting));
        tasks.supervise("proposer", RESTART_PAUSE, move || {
            let (group, clock) = (group.clone(), Arc::clone(&clock));
            let waiting = Arc::clone(&waiting);
            async move {
                run(config, group, clock, &mut *waiting.lock().await).await;
                // The handle is gone; this ends with its tasks.
                std::future::pending().await
            }
        });
        Self {
            queue,
            budget: Arc::new(Semaphore::new(budget_max)),
            budget_max,
            entry_bytes_max: config.entry_bytes_max,
            entry_batches_max: config.entry_batches_max,
        }
    }

    /// Accepts an append: when this returns, everything accepted later comes after it in the log. Waits, in order,
    /// while [`ProposerConfig::bytes_in_flight_max`] bytes are under way. What one entry does not take is shared out over
    /// several, in order. Cancelled, some of the batches may be appended.
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
        // Given back when the last share is answered.
        let permit = Arc::new(permit);
        let mut pending = Vec::new();
        for batches in shares(batches, self.entry_bytes_max, self.entry_batches_max) {
            let bytes: usize = batches.iter().map(|batch| batch.bytes.len()).sum();
            let (reply, outcomes) = oneshot::channel();
            pending.push(Share {
                batches: batches.len(),
                outcomes,
            });
            let waiting = Waiting {
                batches,
                bytes,
                reply,
                permit: Arc::clone(&permit),
            };
            if self.queue.send(waiting).await.is_err() && pending.len() == 1 {
                return Err(stopped());
            }
        }
        Ok(PendingAppend(pending))
    }
}

/// Shares `batches` out, in order, so that each share makes an entry within the bounds; a batch that is larger by itself is
/// alone.
fn shares(
    batches: Vec<AppendBatch>,
    bytes_max: usize,
    batches_max: usize,
) -> Vec<Vec<AppendBatch>> {
    let whole: usize = batches.iter().map(|batch| batch.bytes.len()).sum();
    if batches.len() <= 1 || fits(whole, batches.len(), bytes_max, batches_max) {
        return vec![batches];
    }
    let mut shares = Vec::new();
    let mut share: Vec<AppendBatch> = Vec::new();
    let mut bytes = 0;
    for batch in batches {
        let more = batch.bytes.len();
        if !share.is_empty() && !fits(bytes + more, share.len() + 1, bytes_max, batches_max) {
            shares.push(std::mem::take(&mut share));
            bytes = 0;
        }
        bytes += more;
        share.push(batch);
    }
    shares.push(share);
    shares
}

/// Whether `count` batches of `bytes` together make an entry within the bounds.
fn fits(bytes: usize, count: usize, bytes_max: usize, batches_max: usize) -> bool {
    bytes + append_overhead(count) <= bytes_max && count <= batches_max
}

type InFlight = FuturesUnordered<Pin<Box<dyn Future<Output = ()> + Send>>>;

async fn run<M>(
    config: ProposerConfig,
    group: Group<M>,
    clock: Arc<dyn Clock>,
    queue: &mut mpsc::Receiver<Waiting>,
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
            let (more, batches) = (bytes + next.bytes, count + next.batches.len());
            if !fits(
                more,
                batches,
                config.entry_bytes_max,
                config.entry_batches_max,
            ) {
                left_over = Some(next);
                break;
            }
            (bytes, count) = (more, batches);
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
    let mut crc = 0;
    let mut descriptors = Vec::with_capacity(count);
    for batch in taken.iter().flat_map(|waiting| &waiting.batches) {
        let mut descriptor = batch.descriptor;
        descriptor.position = u32::try_from(body.len()).unwrap_or(u32::MAX);
        // The one copy of a batch: from the network frame into its log entry, so that the entry pins its own bytes only.
        body.extend_from_slice(&batch.bytes);
        crc = batch.bytes.crc_behind(crc);
        descriptors.push(descriptor);
    }
    let dir = Stamped {
        stamp,
        command: PartitionCommand::Append(descriptors),
    }
    .encode();
    Command {
        dir,
        body: Summed::known(body.freeze(), crc),
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

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;
    use tidelog_model::{
        PartitionId, PartitionIndex, ProducerEpoch, ProducerId, Sequence, TopicId,
    };
    use uuid::Uuid;

    fn batch(number: usize, bytes: usize) -> AppendBatch {
        let descriptor = BatchDescriptor {
            partition: PartitionId {
                topic: TopicId::new(Uuid::from_u128(1)),
                index: PartitionIndex::new(i32::try_from(number).unwrap()),
            },
            position: 0,
            length: u32::try_from(bytes).unwrap(),
            records: 1,
            producer_id: ProducerId::NONE,
            producer_epoch: ProducerEpoch::new(-1),
            log_append_time: false,
            base_sequence: Sequence::new(-1),
            first_timestamp: TimestampMs::new(1),
            max_timestamp: TimestampMs::new(1),
        };
        AppendBatch {
            descriptor,
            bytes: bytes::Bytes::from(vec![0; bytes]).into(),
        }
    }

    fn entry_bytes(share: &[AppendBatch]) -> usize {
        let command =
            PartitionCommand::Append(share.iter().map(|batch| batch.descriptor).collect());
        let stamp = TimestampMs::new(1);
        let body: usize = share.iter().map(|batch| batch.bytes.len()).sum();
        Stamped { stamp, command }.encode().len() + body
    }

    /// Proves that shares keep the order, lose nothing, and fit their bounds to the byte; only a batch that is too large by
    /// itself is over, and alone.
    #[test]
    fn shares_fit_and_keep_the_order() {
        const BYTES_MAX: usize = 10_000;
        for sizes in [
            vec![],
            vec![9_000],
            vec![20_000],
            vec![9_000, 856],
            vec![9_000, 857],
            vec![4_000, 20_000, 4_000, 4_000, 4_000],
            vec![0; 12],
            vec![61; 1_000],
        ] {
            let batches: Vec<_> = sizes
                .iter()
                .enumerate()
                .map(|(number, bytes)| batch(number, *bytes))
                .collect();
            let shares = shares(batches.clone(), BYTES_MAX, 5);
            let order = |batches: &[AppendBatch]| {
                batches
                    .iter()
                    .map(|batch| batch.descriptor.partition)
                    .collect::<Vec<_>>()
            };
            assert_eq!(order(&shares.concat()), order(&batches));
            for (at, share) in shares.iter().enumerate() {
                assert!(share.len() <= 5);
                assert!(entry_bytes(share) <= BYTES_MAX || share.len() == 1);
                if let Some(next) = shares.get(at + 1).and_then(|share| share.first()) {
                    let more = [share.as_slice(), std::slice::from_ref(next)].concat();
                    assert!(
                        entry_bytes(&more) > BYTES_MAX || more.len() > 5,
                        "no share is cut short"
                    );
                }
            }
        }
        assert_eq!(entry_bytes(&[batch(0, 9_000), batch(1, 856)]), BYTES_MAX);
    }
}
