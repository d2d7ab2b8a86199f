//! The state machine as openraft sees it: apply, checkpoints, and the membership that belongs to each.
//!
//! Owns: [`MachineStore`]. Invariants: entries are applied once, in rising order; the checkpoint that openraft knows is on disk; a
//! checkpoint at C carries the membership as of C, however much was applied after it.
//! Not here: checkpoint files (`log`), their bytes (`format.rs`), the lock around the machine (`machine.rs`).
//! Spec: docs/protocols/placement.md (checkpoints and purging)

use super::contract::SnapshotError;
use super::format::{Image, decode_image, encode_image};
use super::machine::AnyMachine;
use super::raft_types::{
    Outcome, RaftEntry, RaftLogId, Snapshot, SnapshotMeta, StoredMembership, Types, from_raft,
    to_raft,
};
use crate::log::GroupLog;
use bytes::Bytes;
use futures::{Stream, TryStreamExt};
use openraft::entry::RaftEntry as _;
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder};
use parking_lot::Mutex;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tidelog_env::{CrashPoint, Mutant, crash_point, mutant};
use tidelog_model::LogId;
use tokio::sync::watch;

/// Clones share one machine.
#[derive(Clone)]
pub(super) struct MachineStore {
    machine: Arc<dyn AnyMachine>,
    log: GroupLog,
    inner: Arc<Inner>,
}

struct Inner {
    /// Held while a checkpoint is made or installed: one at a time, so that none overtakes a newer one.
    writing: tokio::sync::Mutex<()>,
    state: Mutex<State>,
    /// The last entry of the newest checkpoint on disk, for who waits for one.
    on_disk: watch::Sender<Option<LogId>>,
}

struct State {
    /// Memberships that were applied, oldest first; those before the checkpoint's own are forgotten.
    memberships: Vec<StoredMembership>,
    /// The newest checkpoint on disk. The image shares its bytes with what the machine offered.
    checkpoint: Option<Image>,
}

impl State {
    /// The membership in force at `last`.
    fn membership_at(&self, last: LogId) -> StoredMembership {
        let at = |stored: &&StoredMembership| {
            stored
                .log_id()
                .is_some_and(|id| id.index <= last.index.get())
        };
        self.memberships
            .iter()
            .rev()
            .find(at)
            .cloned()
            .unwrap_or_default()
    }

    /// Takes `image` as the newest checkpoint and forgets memberships that no later checkpoint can need.
    fn take_checkpoint(&mut self, image: Image) {
        let from = image.membership.log_id().map_or(0, |id| id.index);
        self.memberships
            .retain(|stored| stored.log_id().is_some_and(|id| id.index >= from));
        self.checkpoint = Some(image);
    }
}

impl MachineStore {
    /// Finds the newest checkpoint on disk. The machine is restored from it later, when openraft asks for that.
    ///
    /// # Errors
    /// The log cannot read it, or it is not one of ours.
    pub(super) async fn open(machine: Arc<dyn AnyMachine>, log: GroupLog) -> io::Result<Self> {
        let found = log
            .load_newest_checkpoint()
            .await
            .map_err(|error| error.to_io())?;
        let checkpoint = match found {
            None => None,
            Some((last, bytes)) => {
                let image = decode_image(&bytes).map_err(invalid)?;
                if image.last != last {
                    return Err(invalid(format!(
                        "the checkpoint of {last} says it is of {}",
                        image.last
                    )));
                }
                Some(image)
            }
        };
        let purged = log.state().purged;
        let held = checkpoint.as_ref().map(|image: &Image| image.last);
        if held < purged {
            return Err(invalid(format!(
                "entries up to {purged:?} are purged, but the newest checkpoint is of {held:?}"
            )));
        }
        let state = State {
            memberships: Vec::new(),
            checkpoint,
        };
        let inner = Inner {
            writing: tokio::sync::Mutex::new(()),
            state: Mutex::new(state),
            on_disk: watch::Sender::new(held),
        };
        Ok(Self {
            machine,
            log,
            inner: Arc::new(inner),
        })
    }

    /// The last entry of the newest checkpoint on disk.
    pub(super) fn checkpoint(&self) -> Option<LogId> {
        self.inner
            .state
            .lock()
            .checkpoint
            .as_ref()
            .map(|image| image.last)
    }

    /// The same, as it changes.
    pub(super) fn watch_checkpoint(&self) -> watch::Receiver<Option<LogId>> {
        self.inner.on_disk.subscribe()
    }

    /// Writes what the machine offers as a checkpoint, unless one as new is there already.
    ///
    /// When it returns, a checkpoint of the returned id is on disk. Cancelled, it may or may not be.
    pub(super) async fn persist(&self) -> Result<LogId, SnapshotError> {
        let _one_at_a_time = self.inner.writing.lock().await;
        let (last, state) = self.machine.snapshot().ok_or(SnapshotError::Nothing)?;
        let applied = self.machine.last_applied();
        if Some(last) > applied {
            return Err(SnapshotError::Ahead {
                offered: last,
                applied,
            });
        }
        if let Some(newest) = self.checkpoint()
            && newest >= last
        {
            return Ok(newest);
        }
        let membership = self.inner.state.lock().membership_at(last);
        let image = Image {
            last,
            membership,
            state,
        };
        let bytes =
            encode_image(&image).map_err(|error| SnapshotError::Write(error.to_string()))?;
        crash_point(CrashPoint::SnapshotMade);
        self.log
            .save_checkpoint(last, bytes)
            .await
            .map_err(|error| SnapshotError::Write(error.to_string()))?;
        crash_point(CrashPoint::SnapshotSaved);
        self.inner.state.lock().take_checkpoint(image);
        self.inner.on_disk.send_replace(Some(last));
        Ok(last)
    }

    fn apply_one(&self, entry: RaftEntry) -> io::Result<Outcome> {
        let id = from_raft(entry.log_id());
        if Some(id) <= self.machine.last_applied() {
            return Err(invalid(format!("entry {id} is applied a second time")));
        }
        // A machine that panics would end only the task it runs in and leave proposers waiting: it stops the group instead.
        let applied = catch_unwind(AssertUnwindSafe(|| match entry.payload {
            EntryPayload::Normal(command) => self.machine.apply(id, &command),
            EntryPayload::Blank => {
                self.machine.applied_blank(id);
                Outcome::none()
            }
            EntryPayload::Membership(membership) => {
                // Before `applied` moves: a checkpoint at this entry must find it.
                self.inner
                    .state
                    .lock()
                    .memberships
                    .push(StoredMembership::new(Some(to_raft(id)), membership));
                self.machine.applied_blank(id);
                Outcome::none()
            }
        }));
        applied.map_err(|_| invalid(format!("the state machine panicked at entry {id}")))
    }

    pub(super) fn current(&self) -> Option<Snapshot> {
        self.inner.state.lock().checkpoint.as_ref().map(snapshot_of)
    }
}

fn snapshot_of(image: &Image) -> Snapshot {
    let meta = SnapshotMeta {
        last_log_id: Some(to_raft(image.last)),
        last_membership: image.membership.clone(),
    };
    Snapshot {
        meta,
        snapshot: image.state.clone(),
    }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl RaftStateMachine<Types> for MachineStore {
    type SnapshotData = Bytes;
    type SnapshotBuilder = CheckpointBuilder;

    async fn applied_state(&mut self) -> Result<(Option<RaftLogId>, StoredMembership), io::Error> {
        let membership = self
            .inner
            .state
            .lock()
            .memberships
            .last()
            .cloned()
            .unwrap_or_default();
        Ok((self.machine.last_applied().map(to_raft), membership))
    }

    async fn apply<S>(&mut self, mut entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<Types>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let outcome = self.apply_one(entry)?;
            crash_point(CrashPoint::ApplyDone);
            if let Some(responder) = responder {
                responder.send(outcome);
            }
        }
        Ok(())
    }

    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<Self::SnapshotBuilder> {
        let builder = CheckpointBuilder {
            store: self.clone(),
            force,
        };
        (force || self.checkpoint().is_some()).then_some(builder)
    }

    async fn get_snapshot_builder(&mut self) -> Self::SnapshotBuilder {
        CheckpointBuilder {
            store: self.clone(),
            force: true,
        }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: Bytes,
    ) -> Result<(), io::Error> {
        let _one_at_a_time = self.inner.writing.lock().await;
        let last = meta
            .last_log_id
            .map(from_raft)
            .ok_or_else(|| invalid("a snapshot of nothing"))?;
        let image = Image {
            last,
            membership: meta.last_membership.clone(),
            state: snapshot,
        };
        // At the start openraft installs what `open` found; that is on disk already.
        let on_disk = self.inner.state.lock().checkpoint.as_ref() == Some(&image);
        // The machine first: an image that it refuses must not become what the next start begins with.
        self.machine.restore(last, &image.state).map_err(invalid)?;
        if !on_disk && !mutant(Mutant::InstalledSnapshotNotSaved) {
            crash_point(CrashPoint::InstallRestored);
            let bytes = encode_image(&image).map_err(invalid)?;
            self.log
                .save_checkpoint(last, bytes)
                .await
                .map_err(|error| error.to_io())?;
            crash_point(CrashPoint::InstallSaved);
            tracing::info!(%last, "a snapshot of a peer is installed");
        }
        {
            let mut state = self.inner.state.lock();
            state.memberships = vec![image.membership.clone()];
            if mutant(Mutant::SnapshotDropsMembers) && !on_disk {
                state.memberships.clear();
            }
            state.take_checkpoint(image);
        }
        self.inner.on_disk.send_replace(Some(last));
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        Ok(self.current())
    }
}

/// Hands openraft the checkpoint that is on disk. Only `force`d (openraft needs one for a follower or at the start) it makes a
/// new one: then a failure stops the group, while [`MachineStore::persist`] called before lets it go on.
pub(super) struct CheckpointBuilder {
    store: MachineStore,
    force: bool,
}

impl RaftSnapshotBuilder<Types> for CheckpointBuilder {
    type SnapshotData = Bytes;

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        let made = if self.force {
            self.store.persist().await
        } else {
            Err(SnapshotError::Nothing)
        };
        match (self.store.current(), made) {
            (Some(snapshot), _) => Ok(snapshot),
            // openraft may ask before anything was applied; a snapshot of nothing is what there is.
            (None, Err(SnapshotError::Nothing)) => Ok(Snapshot {
                meta: SnapshotMeta::default(),
                snapshot: Bytes::new(),
            }),
            (None, Err(error)) => Err(io::Error::other(error)),
            (None, Ok(_)) => Err(io::Error::other("the checkpoint is gone")),
        }
    }
}
