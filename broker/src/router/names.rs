//! What a name of a topic stands for, where offsets of consumer groups are kept by name.
//!
//! Owns: when a coordinator may take its image's word for it.
//! Invariants: an offset that is acknowledged under a name is found under it, as long as the topic is there; a new topic of a name has none of an earlier one's (I15).
//! Not here: the other half, which is a condition of giving a name to a new topic (`dropped.rs`); what is asked by name (`api`).
//! Spec: docs/protocols/topics.md

use super::Router;
use crate::metadata::MetadataImage;
use crate::placement::ProposeError;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidelog_model::{PlacementGroupId, Term};
use tokio::time::timeout;

/// How long the first one who asks in a term, and those with it, wait for metadata: as long as a commit waits for the ends of partitions.
const NAMES_WITHIN: Duration = Duration::from_millis(1500);

/// The newest term of a group in which the image here was made current after this broker had come to lead it.
type Current = Arc<tokio::sync::Mutex<Option<Term>>>;

/// That of each group that was led here. As many as there are groups.
#[derive(Default)]
pub(super) struct Names(Mutex<BTreeMap<PlacementGroupId, Current>>);

impl Names {
    fn of(&self, group: PlacementGroupId) -> Current {
        Arc::clone(self.0.lock().entry(group).or_default())
    }
}

impl Router {
    /// What `look` finds in the image here, when the coordinator of `slot` is here and may go by the names in it: no name has another topic now than the one that the image says, but
    /// for a creation that ends later. `None`: nobody leads metadata, or this broker leads the slot's group no more. Once in each term of the group metadata is asked, and never again.
    pub async fn with_names<R>(
        &self,
        slot: usize,
        look: impl FnOnce(&MetadataImage) -> R,
    ) -> Option<R> {
        let group = self.coordinator_of(slot).ok()?;
        let term = group.group().serving_term()?;
        let current = timeout(NAMES_WITHIN, self.make_current(group.id(), term)).await;
        current.ok()?.ok()?;
        let found = self.image(look);
        (group.group().serving_term() == Some(term)).then_some(found)
    }

    async fn make_current(&self, group: PlacementGroupId, term: Term) -> Result<(), ProposeError> {
        let current = self.inner.names.of(group);
        // Who comes meanwhile waits for the first one's answer.
        let mut current = current.lock().await;
        if current.is_none_or(|known| known < term) {
            self.metadata_barrier().await?;
            *current = Some(term);
        }
        Ok(())
    }
}
