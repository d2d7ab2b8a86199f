//! Finishes what a crash interrupted: partitions that metadata has and a data group lacks, or the other way round.
//!
//! Owns: the comparison, and the order of reads that makes deleting safe.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use super::Router;
use crate::datagroup::DataGroup;
use crate::placement::ProposeError;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tidelog_env::{Mutant, Tasks, mutant};
use tidelog_model::{PartitionId, TopicId};
use tokio::sync::watch;

/// Pause before a comparison that failed is made again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Waits for the first change of any.
async fn until_changed<E>(
    applied: impl Future<Output = Result<(), E>>,
    mut led: FuturesUnordered<impl Future<Output = Result<(), E>>>,
) -> Result<(), E> {
    tokio::select! {
        changed = applied => changed,
        Some(changed) = led.next(), if !led.is_empty() => changed,
    }
}

impl Router {
    /// Compares once at start, after every change of the metadata group, and when leadership of a group changes, until `tasks` stop.
    pub fn start_reconcile(&self, tasks: &Tasks) {
        let router = self.clone();
        tasks.supervise("reconcile", RETRY_PAUSE, move || {
            let router = router.clone();
            async move {
                let mut applied = router.metadata().applied();
                let mut held = router.held();
                let mut led = Vec::new();
                let mut known = None;
                loop {
                    applied.borrow_and_update();
                    let version = *held.borrow_and_update();
                    if known != Some(version) {
                        let groups = router.data_groups();
                        led = groups.map(|group| group.group().leadership()).collect();
                        known = Some(version);
                    }
                    for leadership in &mut led {
                        leadership.borrow_and_update();
                    }
                    match router.reconcile().await {
                        Ok(()) => {
                            // A group that comes to be led here may lack what its last leader did not come to.
                            let changes: FuturesUnordered<_> =
                                led.iter_mut().map(watch::Receiver::changed).collect();
                            tokio::select! {
                                changed = until_changed(applied.changed(), changes) => {
                                    if changed.is_err() && !held.has_changed().unwrap_or(false) {
                                        return std::future::pending().await;
                                    }
                                }
                                _ = held.changed() => {}
                            }
                        }
                        Err(error) => {
                            tracing::debug!(
                                "partitions and metadata are not compared yet: {error}"
                            );
                            tokio::time::sleep(RETRY_PAUSE).await;
                        }
                    }
                }
            }
        });
    }

    /// Makes the data groups that this broker leads hold exactly the partitions that metadata names.
    ///
    /// # Errors
    /// [`ProposeError`] when a group cannot be asked now; what was done stays done.
    pub async fn reconcile(&self) -> Result<(), ProposeError> {
        // The order matters: a topic is in metadata before its first partition is in a data group. So what is read
        // here and is missing in a later, current reading of metadata was deleted. The other order would take a
        // topic created in between for a deleted one, and lose its data.
        let held: Vec<_> = self
            .data_groups()
            .filter(|group| group.group().can_serve_reads())
            .map(|group| {
                let held = group.group().read(|machine| {
                    let mut held: BTreeMap<TopicId, Vec<PartitionId>> = BTreeMap::new();
                    for state in machine.partitions().iter() {
                        held.entry(state.id.topic).or_default().push(state.id);
                    }
                    held
                });
                (group, held)
            })
            .collect();
        if held.is_empty() {
            return Ok(());
        }
        if !mutant(Mutant::ReconcileWithoutBarrier) {
            self.metadata_barrier().await?;
        }
        for (group, held) in held {
            self.reconcile_group(&group, held).await?;
        }
        Ok(())
    }

    async fn reconcile_group(
        &self,
        group: &DataGroup,
        held: BTreeMap<TopicId, Vec<PartitionId>>,
    ) -> Result<(), ProposeError> {
        let (gone, missing) = self.image(|image| {
            let gone: Vec<TopicId> = held
                .keys()
                .copied()
                .filter(|topic| image.topic(*topic).is_none())
                .collect();
            let missing: Vec<PartitionId> = image
                .partitions_of(group.id())
                .map(|(partition, _)| partition)
                .filter(|partition| {
                    !held
                        .get(&partition.topic)
                        .is_some_and(|known| known.contains(partition))
                })
                .collect();
            (gone, missing)
        });
        for partition in missing {
            self.create_partition(group, partition).await?;
        }
        for topic in gone {
            tracing::info!(%topic, group = %group.id(), "dropping partitions of a deleted topic");
            self.drop_topic(group, topic).await?;
        }
        Ok(())
    }
}
