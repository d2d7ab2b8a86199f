//! Committing, fetching, deleting and expiring offsets.

use super::lines::Place;
use super::requests::{check_group, check_member};
use super::{Coordinator, Shared, WantedOffset, from_propose};
use crate::coordinator::limits::{
    COMMIT_BYTES_MAX, COMMIT_OFFSET_BYTES, EXPIRE_GROUPS_MAX, OFFSET_METADATA_BYTES_MAX,
};
use crate::coordinator::state::{
    CommittedOffset, Committer, CoordinatorCommand, CoordinatorOutcome, NewOffset,
    StoredConsumerGroup,
};
use crate::coordinator::{ConsumerGroupError, ConsumerGroupName};
use std::future::Future;
use std::sync::Arc;
use tidelog_model::{PartitionId, TopicId};

/// Offsets to commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitRequest {
    /// The group.
    pub group: ConsumerGroupName,
    /// Who commits.
    pub committer: Committer,
    /// What.
    pub offsets: Vec<NewOffset>,
}

/// One result for each offset of a commit, or why all of it is refused.
type Committed = Result<Vec<Result<(), ConsumerGroupError>>, ConsumerGroupError>;

impl Coordinator {
    /// Commits offsets; those that pass are in the log when this returns. One result for each, in order.
    ///
    /// Commits of one group reach the log in the order of the calls of this function, whenever the futures are polled; the ends of partitions are
    /// asked for side by side. One that is refused, or whose future is dropped, holds nobody back.
    ///
    /// # Errors
    /// When the whole request is refused. [`ConsumerGroupError::Unavailable`]: it may have happened.
    pub fn commit_offsets(
        &self,
        request: CommitRequest,
    ) -> impl Future<Output = Committed> + Send + use<> {
        let placed =
            check_request(&request).and_then(|()| self.shared.commits.join(&request.group));
        let shared = Arc::clone(&self.shared);
        async move { shared.commit(request, placed?).await }
    }

    /// The committed offsets of `partitions`, or all that the group has. A group or partition without one is `None` or
    /// absent, never an error, as clients expect.
    ///
    /// # Errors
    /// When this coordinator cannot answer.
    pub async fn fetch_offsets(
        &self,
        group: &ConsumerGroupName,
        partitions: Option<&[PartitionId]>,
    ) -> Result<Vec<(PartitionId, Option<CommittedOffset>)>, ConsumerGroupError> {
        check_group(group)?;
        Shared::check_leading(&self.shared.table.lock())?;
        self.shared
            .log
            .read_barrier()
            .await
            .map_err(|error| from_propose(&error))?;
        let all = |stored: &StoredConsumerGroup| {
            stored
                .offsets
                .iter()
                .map(|(partition, committed)| (*partition, Some(committed.clone())))
                .collect()
        };
        let some = |asked: &[PartitionId], stored: &StoredConsumerGroup| {
            asked
                .iter()
                .map(|partition| (*partition, stored.offsets.get(partition).cloned()))
                .collect()
        };
        let found = self.shared.stored(group, |stored| {
            partitions.map_or_else(|| all(stored), |asked| some(asked, stored))
        });
        Ok(found.unwrap_or_else(|| {
            partitions
                .unwrap_or_default()
                .iter()
                .map(|asked| (*asked, None))
                .collect()
        }))
    }

    /// Deletes offsets of a group without members. Returns how many there were.
    ///
    /// # Errors
    /// Kafka's reason. [`ConsumerGroupError::Unavailable`]: it may have happened.
    pub async fn delete_offsets(
        &self,
        group: &ConsumerGroupName,
        partitions: Vec<PartitionId>,
    ) -> Result<usize, ConsumerGroupError> {
        check_group(group)?;
        self.shared.check_deletable(group)?;
        self.shared.wait_settled(group).await;
        if partitions.len().saturating_mul(20) > COMMIT_BYTES_MAX {
            return Err(ConsumerGroupError::CommitTooLarge);
        }
        let command = CoordinatorCommand::DeleteOffsets {
            group: group.clone(),
            partitions,
        };
        match self.shared.propose(&command).await? {
            CoordinatorOutcome::Removed { offsets, .. } => Ok(offsets),
            CoordinatorOutcome::Done | CoordinatorOutcome::Refused(_) => Ok(0),
        }
    }

    /// Drops the offsets of deleted topics. Does nothing when no group has any.
    ///
    /// # Errors
    /// Nothing was dropped, or ([`ConsumerGroupError::Unavailable`]) it may have been; trying again is harmless.
    pub async fn forget_topics(&self, topics: &[TopicId]) -> Result<(), ConsumerGroupError> {
        Shared::check_leading(&self.shared.table.lock())?;
        let mut present = Vec::new();
        self.shared.log.read(&mut |state| {
            let has = |topic: &&TopicId| {
                state.groups().values().any(|group| {
                    group
                        .offsets
                        .keys()
                        .any(|partition| partition.topic == **topic)
                })
            };
            present = topics.iter().filter(has).copied().collect();
        });
        for topics in present.chunks(COMMIT_BYTES_MAX / 32) {
            self.shared
                .propose(&CoordinatorCommand::ForgetTopics {
                    topics: topics.to_vec(),
                })
                .await?;
        }
        Ok(())
    }
}

impl Shared {
    async fn commit(self: Arc<Self>, request: CommitRequest, place: Place) -> Committed {
        let CommitRequest {
            group,
            committer,
            offsets,
        } = request;
        self.check_committer(&group, &committer)?;
        let settled = async {
            if committer == Committer::Simple {
                self.wait_settled(&group).await;
            }
        };
        // Both are bounded, and those before began earlier: the turn comes hardly later than the slowest of them is checked.
        let (mut results, ()) = tokio::join!(self.check_offsets(&group, &offsets), settled);
        let passed: Vec<NewOffset> = offsets
            .into_iter()
            .zip(&results)
            .filter(|(_, result)| result.is_ok())
            .map(|(new, _)| new)
            .collect();
        if passed.is_empty() {
            return Ok(results);
        }
        let command = CoordinatorCommand::CommitOffsets {
            group,
            committer,
            offsets: passed,
        };
        place.turn().await;
        let proposed = self.propose(&command);
        drop(place);
        if let Err(error) = proposed.await {
            for result in results.iter_mut().filter(|result| result.is_ok()) {
                *result = Err(error);
            }
        }
        Ok(results)
    }

    fn check_committer(
        self: &Arc<Self>,
        group: &ConsumerGroupName,
        committer: &Committer,
    ) -> Result<(), ConsumerGroupError> {
        let mut table = self.table.lock();
        Self::check_leading(&table)?;
        let now = self.now();
        let live = self.with_group(&mut table, group, |membership| {
            let result = match committer {
                Committer::Simple if membership.is_vacant() => Ok(()),
                Committer::Simple => Err(ConsumerGroupError::UnknownMember),
                Committer::Member {
                    generation,
                    member,
                    instance,
                } => membership.check_commit(now, member, instance.as_ref(), *generation),
            };
            (result, Vec::new())
        });
        // A group without members lives in the log only.
        let stored = || self.stored(group, |stored| stored.check_committer(committer));
        match (live.or_else(stored), committer) {
            (Some(result), _) => result,
            (None, Committer::Simple) => Ok(()),
            (None, Committer::Member { .. }) => Err(ConsumerGroupError::IllegalGeneration),
        }
    }

    async fn check_offsets(
        &self,
        group: &ConsumerGroupName,
        offsets: &[NewOffset],
    ) -> Vec<Result<(), ConsumerGroupError>> {
        let mut results: Vec<Result<(), ConsumerGroupError>> =
            offsets.iter().map(check_shape).collect();
        let sound = offsets
            .iter()
            .zip(&results)
            .filter(|(_, result)| result.is_ok());
        let mut wanted: Vec<WantedOffset> = sound
            .map(|(new, _)| WantedOffset {
                partition: new.partition,
                offset: new.offset,
                committed: None,
            })
            .collect();
        if wanted.is_empty() {
            return results;
        }
        self.stored(group, |stored| {
            for one in &mut wanted {
                let committed = stored.offsets.get(&one.partition);
                one.committed = committed.map(|committed| committed.offset);
            }
        });
        let mut checked = self.check.check(&wanted).await.into_iter();
        for result in results.iter_mut().filter(|result| result.is_ok()) {
            *result = checked
                .next()
                .unwrap_or(Err(ConsumerGroupError::EndUnknown));
        }
        results
    }

    /// Whether nobody is, or is about to become, a member of a group that exists.
    pub(super) fn check_deletable(
        &self,
        group: &ConsumerGroupName,
    ) -> Result<(), ConsumerGroupError> {
        let table = self.table.lock();
        Self::check_leading(&table)?;
        if table
            .get(group)
            .is_some_and(|membership| !membership.is_vacant())
        {
            return Err(ConsumerGroupError::NonEmptyGroup);
        }
        self.stored(group, |_| ())
            .ok_or(ConsumerGroupError::GroupNotFound)
    }

    pub(super) async fn run_expiry(self: Arc<Self>) {
        loop {
            tokio::time::sleep(self.config.expire_interval).await;
            self.expire_once().await;
        }
    }

    /// Proposes the expiry of old offsets, only for groups in which nobody is or is about to be (field report A27).
    pub(super) async fn expire_once(&self) {
        let retention_ms =
            i64::try_from(self.config.offsets_retention.as_millis()).unwrap_or(i64::MAX);
        let horizon = self.stamp().get().saturating_sub(retention_ms);
        let mut due = Vec::new();
        {
            let table = self.table.lock();
            if table.leading.is_none() {
                return;
            }
            self.log.read(&mut |state| {
                let old = |stored: &StoredConsumerGroup| {
                    let empty = stored
                        .empty_since
                        .is_some_and(|since| since.get() <= horizon);
                    let mut commits = stored
                        .offsets
                        .values()
                        .map(|committed| committed.stamp.get());
                    empty && (stored.offsets.is_empty() || commits.any(|stamp| stamp <= horizon))
                };
                let free = |name: &ConsumerGroupName| {
                    table
                        .get(name)
                        .is_none_or(|membership| membership.is_idle())
                };
                let names = state
                    .groups()
                    .iter()
                    .filter(|(name, stored)| old(stored) && free(name));
                due = names.map(|(name, _)| name.clone()).collect();
            });
        }
        for groups in due.chunks(EXPIRE_GROUPS_MAX) {
            let command = CoordinatorCommand::ExpireOffsets {
                retention_ms,
                groups: groups.to_vec(),
            };
            match self.propose(&command).await {
                Ok(outcome) => {
                    tracing::info!(?outcome, "offsets of groups without members expired")
                }
                Err(error) => {
                    tracing::debug!("offsets could not be expired now: {error}");
                    return;
                }
            }
        }
    }
}

fn check_request(request: &CommitRequest) -> Result<(), ConsumerGroupError> {
    check_group(&request.group)?;
    if let Committer::Member {
        member, instance, ..
    } = &request.committer
    {
        check_member(member, instance.as_ref())?;
    }
    let bytes =
        |new: &NewOffset| COMMIT_OFFSET_BYTES + new.metadata.len().min(OFFSET_METADATA_BYTES_MAX);
    if request.offsets.iter().map(bytes).sum::<usize>() > COMMIT_BYTES_MAX {
        return Err(ConsumerGroupError::CommitTooLarge);
    }
    Ok(())
}

fn check_shape(new: &NewOffset) -> Result<(), ConsumerGroupError> {
    if new.metadata.len() > OFFSET_METADATA_BYTES_MAX {
        return Err(ConsumerGroupError::MetadataTooLarge);
    }
    if new.offset.get() < 0 || new.partition.index.get() < 0 {
        return Err(ConsumerGroupError::OffsetOutOfRange);
    }
    Ok(())
}
