//! The metadata group's checkpoints: saved locally, published to the store, and its log purged behind them.
//!
//! Owns: when. The state is small and has no bulk data, so there is no cut: a snapshot at any applied entry is whole.
//! Not here: the bytes (`metadata::format_snapshot`).

use std::time::Duration;

use super::error::OffloadError;
use super::guard::StoreGuard;
use crate::metadata::MetadataMachine;
use crate::placement::{Group, StateMachine};
use tidelog_env::{CrashPoint, Tasks, crash_point};
use tidelog_model::LogIndex;
use tidelog_tiering::key;

/// How often it is looked whether there is something to save.
const TICK: Duration = Duration::from_secs(10);
/// Entries after which a local checkpoint is worth its write: a restart applies at most these again.
const ENTRIES_MIN: u64 = 200;

/// Starts the keeper; it ends with `tasks`.
pub fn keep_metadata(group: &Group<MetadataMachine>, store: &StoreGuard, tasks: &Tasks) {
    let (group, store) = (group.clone(), store.clone());
    tasks.supervise("metadata-keeper", TICK, move || {
        let keeper = Keeper {
            group: group.clone(),
            store: store.clone(),
            saved: LogIndex::new(0),
            published: None,
        };
        keeper.run()
    });
}

struct Keeper {
    group: Group<MetadataMachine>,
    store: StoreGuard,
    saved: LogIndex,
    published: Option<LogIndex>,
}

impl Keeper {
    async fn run(mut self) {
        loop {
            // Every replica saves and purges its own log; the one that leads publishes.
            let saved = self.save().await;
            let published = if self.group.is_leader() {
                self.publish().await
            } else {
                Ok(())
            };
            for result in [saved, published] {
                if let Err(error) = result {
                    tracing::warn!("metadata was not saved, it is tried again: {error}");
                }
            }
            tokio::time::sleep(TICK).await;
        }
    }

    async fn save(&mut self) -> Result<(), OffloadError> {
        let applied = self
            .group
            .applied()
            .borrow()
            .map_or(LogIndex::new(0), |id| id.index);
        if applied.get() < self.saved.get() + ENTRIES_MIN {
            return Ok(());
        }
        let saved = self.group.snapshot_and_persist().await?;
        self.group.purge(saved.index).await?;
        self.saved = saved.index;
        Ok(())
    }

    /// Puts the state under its log index: the same index is the same state, so a key that is taken is ours.
    async fn publish(&mut self) -> Result<(), OffloadError> {
        let Some((id, bytes)) = self.group.read(|machine| {
            let last = machine.image().last().index;
            if self.published == Some(last) {
                None
            } else {
                machine.snapshot()
            }
        }) else {
            return Ok(());
        };
        match self.store.check().await {
            Ok(()) => {}
            // Who watches the store has said so, or it comes.
            Err(OffloadError::Unmarked | OffloadError::WrongStore { .. }) => return Ok(()),
            Err(error) => return Err(error),
        }
        self.store
            .store()
            .put_if_absent(&key::metadata(id.index.get()), bytes)
            .await?;
        crash_point(CrashPoint::MetadataPublished);
        self.published = Some(id.index);
        Ok(())
    }
}
