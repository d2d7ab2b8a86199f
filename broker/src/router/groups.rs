//! A data group as the log of its coordinator.
//!
//! Not here: the check of commits (`commit_bounds.rs`).

use crate::coordinator::service::CoordinatorLog;
use crate::coordinator::state::{ConsumerGroupsState, CoordinatorOutcome};
use crate::datagroup::{DataGroup, DataOutcome};
use crate::placement::{Command, ProposeError};
use async_trait::async_trait;
use futures::FutureExt;
use futures::future::BoxFuture;
use std::time::Duration;
use tidelog_env::{Mutant, mutant};
use tokio::time::timeout;

/// How long a command of a coordinator, and the look whether it still leads, may take. Members and consumers wait for the answer, and
/// have better things to do when a majority is gone: they find the coordinator anew.
const COMMAND_WITHIN: Duration = Duration::from_secs(10);

/// A data group as the log of its coordinator.
pub struct GroupLogOf(pub DataGroup);

#[async_trait]
impl CoordinatorLog for GroupLogOf {
    fn propose(
        &self,
        command: Command,
    ) -> BoxFuture<'static, Result<CoordinatorOutcome, ProposeError>> {
        let proposed = self.0.group().propose_ordered(command);
        let outcome = async move {
            let proposed = timeout(COMMAND_WITHIN, proposed).await;
            match proposed.map_err(|_| ProposeError::Timeout)??.1 {
                DataOutcome::Coordinator(outcome) => Ok(outcome),
                DataOutcome::Partition(_) => Err(ProposeError::Fatal(
                    "a coordinator's command was answered with a partition's outcome".to_owned(),
                )),
            }
        };
        outcome.boxed()
    }

    async fn read_barrier(&self) -> Result<(), ProposeError> {
        if mutant(Mutant::OffsetsReadWithoutBarrier) {
            return Ok(());
        }
        let passed = timeout(COMMAND_WITHIN, self.0.group().read_barrier()).await;
        passed.map_err(|_| ProposeError::NotLeader { leader: None })?
    }

    fn read(&self, reader: &mut dyn FnMut(&ConsumerGroupsState)) {
        self.0.group().read(|machine| reader(machine.coordinator()));
    }
}
