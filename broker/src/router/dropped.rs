//! A name that a deleted topic had is free again when no broker can take records for that topic any more.
//!
//! Owns: waiting for that, before a topic of the name is created.
//! Invariants: I1: a leader that has not heard of the deletion acknowledges records by the name; were it free already, they would be sought in the new topic.
//! Not here: what is remembered of deleted topics (`metadata/deleted.rs`), dropping partitions (`reconcile.rs`).
//! Spec: docs/protocols/topics.md

use super::Router;
use super::ends::{Asked, End};
use super::topics::{EFFECT_WITHIN, LOOK_PAUSE, TopicError};
use crate::coordinator::limits::COMMIT_OFFSETS_MAX;
use crate::metadata::{DeletedTopic, NameBefore};
use futures::StreamExt;
use std::collections::BTreeMap;
use tidelog_env::{Mutant, mutant};
use tidelog_model::{PartitionId, PartitionIndex, PlacementGroupId, TopicId};
use tokio::time::{Instant, sleep};

/// Groups that are asked at the same time.
const ASKED_TOGETHER: usize = 16;

impl Router {
    /// Waits until all groups have dropped the topic that had `name` last. That stays so: a group creates no partition by an older image of metadata
    /// than the one by which it has dropped something.
    ///
    /// # Errors
    /// [`TopicError::NameHeld`] shortly before `deadline`; nothing was changed.
    pub(super) async fn wait_dropped(
        &self,
        name: &str,
        deadline: Instant,
    ) -> Result<NameBefore, TopicError> {
        loop {
            let Some(deleted) = self.image(|image| image.deleted(name).cloned()) else {
                return Ok(NameBefore::Free);
            };
            let groups = match mutant(Mutant::NameFreeAtOnce) {
                true => Vec::new(),
                false => self.not_dropped(&deleted, deadline).await,
            };
            if groups.is_empty() {
                return Ok(NameBefore::Dropped(deleted.id));
            }
            if Instant::now() + LOOK_PAUSE >= deadline {
                return Err(TopicError::NameHeld { groups });
            }
            sleep(LOOK_PAUSE).await;
        }
    }

    /// The groups of a deleted topic that have partitions of it, or of which nobody says that they have not.
    async fn not_dropped(&self, topic: &DeletedTopic, deadline: Instant) -> Vec<PlacementGroupId> {
        let mut by_group: BTreeMap<PlacementGroupId, Vec<Asked>> = BTreeMap::new();
        for (index, group) in (0i32..).zip(&topic.partitions) {
            let index = PartitionIndex::new(index);
            let topic = topic.id;
            let partition = PartitionId { topic, index };
            by_group
                .entry(*group)
                .or_default()
                .push((*group, partition));
        }
        // Nobody leads a lost group, or one that was taken out.
        by_group.retain(|group, _| {
            self.image(|image| image.groups().contains_key(group) && !image.is_lost(*group))
        });
        let groups = futures::stream::iter(by_group).map(|(group, asked)| async move {
            let dropped = self.has_dropped(group, topic.id, &asked, deadline).await;
            (!dropped).then_some(group)
        });
        let left = groups.buffered(ASKED_TOGETHER);
        left.filter_map(std::future::ready).collect().await
    }

    /// Whether the leader of a group says that it has none of these partitions, which are all of the topic's there.
    async fn has_dropped(
        &self,
        group: PlacementGroupId,
        topic: TopicId,
        asked: &[Asked],
        deadline: Instant,
    ) -> bool {
        let held = self.data_group(group);
        if let Some(held) = held.filter(|held| held.group().can_serve_reads()) {
            let has = held
                .group()
                .read(|machine| machine.partitions().has_topic(topic));
            return !has;
        }
        let Some((leader, _)) = self.leader(group) else {
            return false;
        };
        for asked in asked.chunks(COMMIT_OFFSETS_MAX) {
            let within = EFFECT_WITHIN.min(deadline.saturating_duration_since(Instant::now()));
            let ends = self.ask_ends(leader, asked, within).await;
            if !ends.is_some_and(|ends| ends.iter().all(|end| *end == End::Missing)) {
                return false;
            }
        }
        true
    }
}
