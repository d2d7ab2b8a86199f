//! A state machine in its lock, and the same machine without its type.
//!
//! Owns: [`MachineCell`], [`AnyMachine`]: apply, read and snapshot under one lock, and the `applied` watch that moves with it.
//! Not here: openraft's view of it (`machine_store.rs`).

use super::contract::{Command, StateMachine};
use super::raft_types::Outcome;
use bytes::Bytes;
use parking_lot::RwLock;
use tidelog_model::LogId;
use tokio::sync::watch;

/// A machine and the id of the last entry it holds. `applied` moves under the machine's write lock, so whoever holds
/// the read lock sees both agree.
pub(super) struct MachineCell<M> {
    machine: RwLock<M>,
    applied: watch::Sender<Option<LogId>>,
}

impl<M: StateMachine> MachineCell<M> {
    pub(super) fn new(machine: M) -> Self {
        Self {
            machine: RwLock::new(machine),
            applied: watch::Sender::new(None),
        }
    }

    pub(super) fn read<R>(&self, f: impl FnOnce(&M) -> R) -> R {
        f(&self.machine.read())
    }

    pub(super) fn update_local<R>(&self, f: impl FnOnce(&mut M) -> R) -> R {
        f(&mut self.machine.write())
    }
}

/// What placement needs of a machine, whatever its type: the Raft core is compiled once for all of them.
pub(super) trait AnyMachine: Send + Sync + 'static {
    fn apply(&self, id: LogId, command: &Command) -> Outcome;
    fn applied_blank(&self, id: LogId);
    fn snapshot(&self) -> Option<(LogId, Bytes)>;
    fn restore(&self, last: LogId, image: &Bytes) -> Result<(), String>;
    fn applied(&self) -> watch::Receiver<Option<LogId>>;
    fn last_applied(&self) -> Option<LogId>;
}

impl<M: StateMachine> AnyMachine for MachineCell<M> {
    fn apply(&self, id: LogId, command: &Command) -> Outcome {
        let mut machine = self.machine.write();
        let outcome = machine.apply(id, command);
        self.applied.send_replace(Some(id));
        drop(machine);
        Outcome::new(outcome)
    }

    fn applied_blank(&self, id: LogId) {
        let mut machine = self.machine.write();
        machine.applied_blank(id);
        self.applied.send_replace(Some(id));
    }

    fn snapshot(&self) -> Option<(LogId, Bytes)> {
        self.machine.read().snapshot()
    }

    fn restore(&self, last: LogId, image: &Bytes) -> Result<(), String> {
        let mut machine = self.machine.write();
        machine.restore(last, image)?;
        self.applied.send_replace(Some(last));
        Ok(())
    }

    fn applied(&self) -> watch::Receiver<Option<LogId>> {
        self.applied.subscribe()
    }

    fn last_applied(&self) -> Option<LogId> {
        *self.applied.borrow()
    }
}
