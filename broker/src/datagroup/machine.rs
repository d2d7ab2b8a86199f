//! The state machine of a data group: partitions and consumer groups, told apart by the command's first byte.
//!
//! Owns: dispatch, and the group's snapshot image.
//! Not here: what either half does with a command (`partition::machine`, `coordinator::state`).

use crate::coordinator::state::{ConsumerGroupsState, CoordinatorOutcome};
use crate::partition::command::{KINDS_END, MalformedCommand};
use crate::partition::{PartitionOutcome, Partitions, image};
use crate::placement::{Command, StateMachine};
use bytes::Bytes;
use tidelog_env::{Mutant, mutant};
use tidelog_model::{ClusterId, LogId, LogIndex, PlacementGroupId};

/// What a command of a data group did.
#[derive(Debug)]
pub enum DataOutcome {
    /// A partition command.
    Partition(PartitionOutcome),
    /// A command of the coordinator.
    Coordinator(CoordinatorOutcome),
}

impl TryFrom<DataOutcome> for PartitionOutcome {
    type Error = DataOutcome;
    fn try_from(outcome: DataOutcome) -> Result<Self, DataOutcome> {
        match outcome {
            DataOutcome::Partition(outcome) => Ok(outcome),
            other @ DataOutcome::Coordinator(_) => Err(other),
        }
    }
}

/// Partitions and consumer groups of one placement group.
pub struct DataMachine {
    cluster: ClusterId,
    group: PlacementGroupId,
    partitions: Partitions,
    coordinator: ConsumerGroupsState,
}

impl DataMachine {
    /// An empty machine.
    #[must_use]
    pub fn new(cluster: ClusterId, group: PlacementGroupId) -> Self {
        Self {
            cluster,
            group,
            partitions: Partitions::default(),
            coordinator: ConsumerGroupsState::default(),
        }
    }

    /// The partitions.
    #[must_use]
    pub fn partitions(&self) -> &Partitions {
        &self.partitions
    }

    /// The consumer groups.
    #[must_use]
    pub fn coordinator(&self) -> &ConsumerGroupsState {
        &self.coordinator
    }

    /// Forgets hot batches below `first`, which the local log no longer holds. Not replicated: it concerns this disk.
    pub fn trim_hot(&mut self, first: LogIndex) {
        self.partitions.trim_hot(first);
    }
}

impl StateMachine for DataMachine {
    type Outcome = DataOutcome;

    fn apply(&mut self, id: LogId, command: &Command) -> DataOutcome {
        match command.dir.first() {
            Some(kind) if *kind >= KINDS_END => {
                DataOutcome::Coordinator(self.coordinator.apply_bytes(&command.dir))
            }
            Some(_) => {
                let coordinator = &self.coordinator;
                DataOutcome::Partition(self.partitions.apply(
                    id,
                    &command.dir,
                    command.body.len(),
                    || coordinator.encode(),
                ))
            }
            None => DataOutcome::Partition(PartitionOutcome::Malformed(MalformedCommand("empty"))),
        }
    }

    fn snapshot(&self) -> Option<(LogId, Bytes)> {
        image::encode(self.cluster, self.group, &self.partitions)
    }

    fn restore(&mut self, _last: LogId, bytes: &Bytes) -> Result<(), String> {
        let (partitions, coordinator) = image::decode(bytes).map_err(|error| error.to_string())?;
        let coordinator =
            ConsumerGroupsState::decode(&coordinator).map_err(|error| error.to_string())?;
        if !mutant(Mutant::SnapshotKeepsConsumerGroups) {
            self.coordinator = coordinator;
        }
        self.partitions = partitions;
        Ok(())
    }
}
