//! A name that a deleted topic had is free again when no broker can take records or offsets for that topic any more.
//!
//! Owns: waiting for that, before a topic of the name is created; what a leader says of itself.
//! Invariants: I1: a leader that has not heard of the deletion acknowledges records by the name; were it free already, they would be sought in the new topic. I15: a
//! coordinator that has not heard of it keeps offsets of the name for the old topic.
//! Not here: coordinators that come to lead later (`names.rs`), what is remembered of deleted topics (`metadata/deleted.rs`), dropping partitions (`reconcile.rs`).
//! Spec: docs/protocols/topics.md

use super::Router;
use super::ends::End;
use super::topics::{EFFECT_WITHIN, LOOK_PAUSE, TopicError};
use crate::datagroup::DataGroup;
use crate::metadata::{DeletedTopic, NameBefore};
use futures::StreamExt;
use tidelog_env::{Mutant, mutant};
use tidelog_model::{PartitionId, PartitionIndex, PlacementGroupId, TopicId};
use tokio::time::{Instant, sleep};

/// Groups that are asked at the same time.
const ASKED_TOGETHER: usize = 16;

impl Router {
    /// Waits until all groups have dropped the topic that had `name` last, and their leaders know that it is gone. That stays so: a group creates no partition by an older
    /// image of metadata than the one by which it has dropped something, and who comes to lead asks metadata before it keeps offsets by name.
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

    /// The groups that may have partitions of a deleted topic, or keep offsets for it: those of which no leader says that it has heard of the deletion, and has nothing of it. All are
    /// asked, since any of them may coordinate a consumer group of the topic.
    async fn not_dropped(&self, topic: &DeletedTopic, deadline: Instant) -> Vec<PlacementGroupId> {
        // Nobody leads a lost group, or one that was taken out.
        let groups: Vec<PlacementGroupId> = self.image(|image| {
            let groups = image.groups().keys().copied();
            groups.filter(|group| !image.is_lost(*group)).collect()
        });
        let groups = futures::stream::iter(groups).map(|group| async move {
            let dropped = self.has_dropped(group, topic.id, deadline).await;
            (!dropped).then_some(group)
        });
        let left = groups.buffered(ASKED_TOGETHER);
        left.filter_map(std::future::ready).collect().await
    }

    /// Whether the leader of a group says that it has heard that `topic` is gone, and has no partition of it.
    async fn has_dropped(
        &self,
        group: PlacementGroupId,
        topic: TopicId,
        deadline: Instant,
    ) -> bool {
        let held = self.data_group(group);
        if let Some(held) = held.filter(|held| held.group().can_serve_reads()) {
            return self.is_free_of(&held, topic).await;
        }
        let Some((leader, _)) = self.leader(group) else {
            return false;
        };
        // Any partition: the answer is about all of them.
        let index = PartitionIndex::new(0);
        let asked = [(group, PartitionId { topic, index })];
        let within = EFFECT_WITHIN.min(deadline.saturating_duration_since(Instant::now()));
        let ends = self.ask_ends(leader, &asked, within).await;
        ends.is_some_and(|ends| ends == [End::Missing])
    }

    /// Whether this broker remembers that `topic` was deleted, and a group that it leads has no partition of it, nor ever gets one: it has dropped something by an image of
    /// metadata that knows of the deletion, now if not before. A creation that was decided earlier came before that, or is refused. Who has not even heard of the topic's
    /// creation does not know that.
    pub(super) async fn is_free_of(&self, led: &DataGroup, topic: TopicId) -> bool {
        let Some(term) = led.group().serving_term() else {
            return false;
        };
        let deleted = self.image(|image| image.deleted_topic(topic).cloned());
        let Some(deleted) = deleted else {
            return false;
        };
        let had = deleted.partitions.contains(&led.id());
        let look = || {
            led.group().read(|machine| {
                let held = machine.partitions();
                (held.has_topic(topic), held.dropped_at() >= deleted.at)
            })
        };
        let (has, fenced) = look();
        if had && (has || !fenced) && self.drop_topic(led, topic).await.is_err() {
            return false;
        }
        // What was looked at is a leader's if it is one of the same term afterwards.
        let has = has && look().0;
        !has && led.group().serving_term() == Some(term)
    }
}
