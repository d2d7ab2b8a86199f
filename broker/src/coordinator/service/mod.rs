//! The coordinator of one data group: answers consumer-group requests with the pure parts below it.
//!
//! Owns: the table of live groups, waiting requests, timers, proposing commands and carrying out effects.
//! Not here: the protocol's rules (`membership`), what is stored (`state`), Kafka's wire types (api), finding the
//! coordinator of a group (router, by `slot_of`).
//! Spec: docs/protocols/consumer-groups.md
//!
//! One lock guards the table; it is never held across an await. The replicated state is read inside it, so an
//! implementation of [`CoordinatorLog`] must not call the coordinator while it holds the state.

mod groups;
mod lines;
#[cfg(test)]
mod memory_log;
mod offsets;
#[cfg(test)]
mod order_tests;
mod requests;
mod table;
#[cfg(test)]
mod tests;

pub use groups::{DescribedConsumerGroup, DescribedMember, ListedConsumerGroup};
pub use offsets::CommitRequest;

use super::ConsumerGroupError;
use super::membership::{MembershipConfig, Moment, SaveToken};
use super::state::{ConsumerGroupsState, CoordinatorCommand, CoordinatorOutcome};
use crate::coordinator::ConsumerGroupName;
use crate::placement::{Command, Leadership, ProposeError};
use async_trait::async_trait;
use futures::future::BoxFuture;
use lines::Lines;
use parking_lot::Mutex;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use table::Table;
use tidelog_env::{Clock, Random, Tasks};
use tidelog_model::{Offset, PartitionId, TimestampMs};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// The placement group under a coordinator: where commands go and where the state is.
#[async_trait]
pub trait CoordinatorLog: Send + Sync + 'static {
    /// Proposes an encoded coordinator command; the future returns what apply made of it. The command has its place in the order of the log before
    /// this returns: commands lie there in the order of the calls.
    fn propose(
        &self,
        command: Command,
    ) -> BoxFuture<'static, Result<CoordinatorOutcome, ProposeError>>;
    /// Returns when this replica still leads and its state holds everything acknowledged before the call.
    async fn read_barrier(&self) -> Result<(), ProposeError>;
    /// Calls `reader` once with the applied state, under a short read lock.
    fn read(&self, reader: &mut dyn FnMut(&ConsumerGroupsState));
}

/// An offset that a group wants to commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WantedOffset {
    /// The partition.
    pub partition: PartitionId,
    /// The offset.
    pub offset: Offset,
    /// What the group has committed of this partition. It was checked then: the partition is at least so long, unless it was lost since.
    pub committed: Option<Offset>,
}

/// Says whether offsets may be committed (R7). Partitions may lie on other brokers.
#[async_trait]
pub trait CommitCheck: Send + Sync + 'static {
    /// One result for each offset, in order. [`ConsumerGroupError::OffsetOutOfRange`]: past the end of the log;
    /// [`ConsumerGroupError::EndUnknown`]: nobody says where that is.
    async fn check(&self, offsets: &[WantedOffset]) -> Vec<Result<(), ConsumerGroupError>>;
}

/// Tunables of a coordinator.
#[derive(Debug, Clone, Copy)]
pub struct CoordinatorConfig {
    /// The protocol's.
    pub membership: MembershipConfig,
    /// How long offsets outlive their commit and the last member of their group (`offsets.retention.minutes`).
    pub offsets_retention: Duration,
    /// How often expired offsets are looked for.
    pub expire_interval: Duration,
}

impl Default for CoordinatorConfig {
    fn default() -> Self {
        Self {
            membership: MembershipConfig::default(),
            offsets_retention: Duration::from_secs(7 * 24 * 60 * 60),
            expire_interval: Duration::from_secs(60),
        }
    }
}

/// What a coordinator works with.
pub struct CoordinatorParts {
    /// The placement group.
    pub log: Arc<dyn CoordinatorLog>,
    /// The check of committed offsets.
    pub check: Arc<dyn CommitCheck>,
    /// Who leads the placement group.
    pub leadership: watch::Receiver<Leadership>,
    /// Wall clock for stamps.
    pub clock: Arc<dyn Clock>,
    /// Member ids.
    pub random: Arc<dyn Random>,
    /// Background tasks.
    pub tasks: Tasks,
}

/// Handle of the coordinator of one data group. Clones share it.
#[derive(Clone)]
pub struct Coordinator {
    shared: Arc<Shared>,
}

struct Shared {
    config: CoordinatorConfig,
    log: Arc<dyn CoordinatorLog>,
    check: Arc<dyn CommitCheck>,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    tasks: Tasks,
    started: Instant,
    table: Mutex<Table>,
    /// Commits under way.
    commits: Arc<Lines>,
    /// Rung when an earlier deadline than the timer sleeps for has come up.
    earlier: Notify,
    /// Rung when a group has left the table.
    settled: Notify,
}

impl Coordinator {
    /// Starts following leadership, timers and expiry. Answers NOT_COORDINATOR until the placement group is led here.
    #[must_use]
    pub fn start(config: CoordinatorConfig, parts: CoordinatorParts) -> Self {
        let CoordinatorParts {
            log,
            check,
            leadership,
            clock,
            random,
            tasks,
        } = parts;
        let shared = Arc::new(Shared {
            config,
            log,
            check,
            clock,
            random,
            tasks: tasks.clone(),
            started: Instant::now(),
            table: Mutex::new(Table::default()),
            commits: Arc::default(),
            earlier: Notify::new(),
            settled: Notify::new(),
        });
        let pause = Duration::from_millis(100);
        let (one, two, three) = (
            Arc::clone(&shared),
            Arc::clone(&shared),
            Arc::clone(&shared),
        );
        tasks.supervise("coordinator leadership", pause, move || {
            let (shared, leadership) = (Arc::clone(&one), leadership.clone());
            async move {
                shared.follow(leadership).await;
                // The group has ended; this does with its tasks.
                std::future::pending().await
            }
        });
        tasks.supervise("coordinator timers", pause, move || {
            Arc::clone(&two).run_timers()
        });
        tasks.supervise("coordinator expiry", pause, move || {
            Arc::clone(&three).run_expiry()
        });
        Self { shared }
    }

    /// Whether this coordinator answers requests now.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.shared.table.lock().leading.is_some()
    }
}

impl Shared {
    fn now(&self) -> Moment {
        Moment(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    fn stamp(&self) -> TimestampMs {
        TimestampMs::new(self.clock.now_ms())
    }

    async fn follow(self: Arc<Self>, mut leadership: watch::Receiver<Leadership>) {
        loop {
            let seen = *leadership.borrow_and_update();
            let led = seen.is_leader.then_some(seen.term);
            {
                let mut table = self.table.lock();
                if table.leading != led {
                    self.resign(&mut table);
                    if led.is_some() {
                        self.take_over(&mut table);
                        table.leading = led;
                    }
                }
            }
            if leadership.changed().await.is_err() {
                let mut table = self.table.lock();
                self.resign(&mut table);
                return;
            }
        }
    }

    /// Proposes a stamped command; an outcome that is a refusal is an error. Its place in the log is fixed before this returns.
    fn propose(
        &self,
        command: &CoordinatorCommand,
    ) -> impl Future<Output = Result<CoordinatorOutcome, ConsumerGroupError>> + Send + use<> {
        let proposed = self.log.propose(command.encode(self.stamp()));
        async move {
            match proposed.await {
                Ok(CoordinatorOutcome::Refused(error)) => Err(error),
                Ok(outcome) => Ok(outcome),
                Err(error) => Err(from_propose(&error)),
            }
        }
    }

    /// Carries a save of a group's membership out and reports back.
    async fn save(
        self: Arc<Self>,
        group: ConsumerGroupName,
        instance: u64,
        token: SaveToken,
        command: CoordinatorCommand,
    ) {
        let result = self.propose(&command).await.map(|_| ());
        let mut table = self.table.lock();
        if !table.is_same(&group, instance) {
            return;
        }
        let result = match (&command, result) {
            // The log holds a generation this coordinator does not know of: begin anew from what is stored.
            (
                CoordinatorCommand::StoreGeneration { members, .. },
                Err(ConsumerGroupError::IllegalGeneration),
            ) if !members.is_empty() => {
                self.reload(&mut table, &group);
                return;
            }
            // Not the joining client's fault: it finds the coordinator and tries again.
            (CoordinatorCommand::ReplaceStaticMember { .. }, Err(error))
                if error != ConsumerGroupError::NotCoordinator =>
            {
                Err(ConsumerGroupError::Unavailable)
            }
            (_, result) => result,
        };
        let now = self.now();
        self.with_group(&mut table, &group, |membership| {
            ((), membership.saved(now, token, result))
        });
        // The group ended here, yet the log holds members of another coordinator: they need their sessions watched.
        let foreign = self.stored(&group, |stored| !stored.members.is_empty());
        if table.get(&group).is_none() && foreign == Some(true) {
            self.reload(&mut table, &group);
        }
    }

    async fn run_timers(self: Arc<Self>) {
        loop {
            let due = self.table.lock().next_deadline();
            let wait = async {
                match due {
                    Some(at) => {
                        tokio::time::sleep_until(self.started + Duration::from_millis(at.0)).await
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = wait => {}
                () = self.earlier.notified() => continue,
            }
            let now = self.now();
            let mut table = self.table.lock();
            for group in table.take_due(now) {
                self.with_group(&mut table, &group, |membership| ((), membership.timer(now)));
            }
        }
    }
}

/// What a failed proposal means for a request.
fn from_propose(error: &ProposeError) -> ConsumerGroupError {
    match error {
        ProposeError::NotLeader { .. } => ConsumerGroupError::NotCoordinator,
        ProposeError::TooLarge { .. } => ConsumerGroupError::CommitTooLarge,
        ProposeError::Overloaded => ConsumerGroupError::Overloaded,
        ProposeError::Timeout | ProposeError::Unknown | ProposeError::Fatal(_) => {
            ConsumerGroupError::Unavailable
        }
    }
}
