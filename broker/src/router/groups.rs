//! What the coordinators need of the rest: their log, and the ends of partitions.

use super::Router;
use crate::coordinator::ConsumerGroupError;
use crate::coordinator::service::{CommitCheck, CoordinatorLog};
use crate::coordinator::state::{ConsumerGroupsState, CoordinatorOutcome};
use crate::datagroup::{DataGroup, DataOutcome};
use crate::placement::{Command, ProposeError};
use async_trait::async_trait;
use std::time::Duration;
use tidelog_model::{Offset, PartitionId};
use tokio::time::{Instant, timeout, timeout_at};

/// How long a replica that is behind may take to learn what a consumer has read already: some heartbeats.
const CATCH_UP_WITHIN: Duration = Duration::from_millis(1500);
/// How often it is looked meanwhile whether waiting is of any use.
const LOOK: Duration = Duration::from_millis(50);

/// How long a command of a coordinator, and the look whether it still leads, may take. Members and consumers wait for the answer, and
/// have better things to do when a majority is gone: they find the coordinator anew.
const COMMAND_WITHIN: Duration = Duration::from_secs(10);

/// A data group as the log of its coordinator.
pub struct GroupLogOf(pub DataGroup);

#[async_trait]
impl CoordinatorLog for GroupLogOf {
    async fn propose(&self, command: Command) -> Result<CoordinatorOutcome, ProposeError> {
        let proposed = timeout(COMMAND_WITHIN, self.0.group().propose(command)).await;
        match proposed.map_err(|_| ProposeError::Timeout)??.1 {
            DataOutcome::Coordinator(outcome) => Ok(outcome),
            DataOutcome::Partition(_) => Err(ProposeError::Fatal(
                "a coordinator's command was answered with a partition's outcome".to_owned(),
            )),
        }
    }

    async fn read_barrier(&self) -> Result<(), ProposeError> {
        let passed = timeout(COMMAND_WITHIN, self.0.group().read_barrier()).await;
        passed.map_err(|_| ProposeError::NotLeader { leader: None })?
    }

    fn read(&self, reader: &mut dyn FnMut(&ConsumerGroupsState)) {
        self.0.group().read(|machine| reader(machine.coordinator()));
    }
}

/// Refuses commits past the end of a partition (R7).
pub struct CommitBounds(pub Router);

#[async_trait]
impl CommitCheck for CommitBounds {
    async fn check(
        &self,
        offsets: &[(PartitionId, Offset)],
    ) -> Vec<Result<(), ConsumerGroupError>> {
        let deadline = Instant::now() + CATCH_UP_WITHIN;
        let mut checked = Vec::with_capacity(offsets.len());
        for (partition, offset) in offsets {
            checked.push(self.check_one(*partition, *offset, deadline).await);
        }
        checked
    }
}

impl CommitBounds {
    async fn check_one(
        &self,
        partition: PartitionId,
        offset: Offset,
        deadline: Instant,
    ) -> Result<(), ConsumerGroupError> {
        let group = self
            .0
            .group_of(partition)
            .map_err(|_| ConsumerGroupError::UnknownPartition)?;
        if offset < Offset::ZERO {
            return Err(ConsumerGroupError::OffsetOutOfRange);
        }
        let mut applied = group.group().applied();
        let began = Instant::now();
        loop {
            applied.borrow_and_update();
            // Before the bounds: a leader's bounds are current, a follower's only say that the offset was committed.
            let leads = group.group().can_serve_reads();
            let current = group.group().is_current_since(began);
            let refused = match group.bounds(partition) {
                Ok((_, end)) if offset <= end => return Ok(()),
                Ok(_) => ConsumerGroupError::OffsetOutOfRange,
                Err(_) => ConsumerGroupError::UnknownPartition,
            };
            if leads {
                return Err(refused);
            }
            // The consumer read from a leader that is ahead of what this replica has heard, or the offset is wrong: it tries again.
            let vain = current || !group.group().hears_leader() || Instant::now() >= deadline;
            if vain {
                return Err(ConsumerGroupError::Unavailable);
            }
            let look = deadline.min(Instant::now() + LOOK);
            if let Ok(Err(_)) = timeout_at(look, applied.changed()).await {
                return Err(ConsumerGroupError::Unavailable);
            }
        }
    }
}
