//! What the coordinators need of the rest: their log, and the ends of partitions.

use super::Router;
use crate::coordinator::ConsumerGroupError;
use crate::coordinator::service::{CommitCheck, CoordinatorLog};
use crate::coordinator::state::{ConsumerGroupsState, CoordinatorOutcome};
use crate::datagroup::{DataGroup, DataOutcome};
use crate::placement::{Command, ProposeError};
use async_trait::async_trait;
use tidelog_model::{Offset, PartitionId};

/// A data group as the log of its coordinator.
pub struct GroupLogOf(pub DataGroup);

#[async_trait]
impl CoordinatorLog for GroupLogOf {
    async fn propose(&self, command: Command) -> Result<CoordinatorOutcome, ProposeError> {
        match self.0.group().propose(command).await?.1 {
            DataOutcome::Coordinator(outcome) => Ok(outcome),
            DataOutcome::Partition(_) => Err(ProposeError::Fatal(
                "a coordinator's command was answered with a partition's outcome".to_owned(),
            )),
        }
    }

    async fn read_barrier(&self) -> Result<(), ProposeError> {
        self.0.group().read_barrier().await
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
        offsets
            .iter()
            .map(|(partition, offset)| {
                let group = self
                    .0
                    .group_of(*partition)
                    .map_err(|_| ConsumerGroupError::UnknownPartition)?;
                let (_, end) = group
                    .bounds(*partition)
                    .map_err(|_| ConsumerGroupError::UnknownPartition)?;
                if *offset < Offset::ZERO || *offset > end {
                    Err(ConsumerGroupError::OffsetOutOfRange)
                } else {
                    Ok(())
                }
            })
            .collect()
    }
}
