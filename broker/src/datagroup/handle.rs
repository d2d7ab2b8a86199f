//! The handle to one data group on this broker.
//!
//! Owns: bringing together the Raft group, its proposer, its hot reader and the remote reader.
//! Not here: reads (`read`, `times`), the choice of a group (`router`).

use std::sync::Arc;

use super::machine::{DataMachine, DataOutcome};
use crate::partition::command::{Stamped, append_overhead};
use crate::partition::{HotReader, PartitionCommand, PartitionOutcome, Proposer, ProposerConfig};
use crate::placement::{Command, Group, PlacementError, ProposeError, entry_bytes_max};
use bytes::Bytes;
use tidelog_env::{Clock, CrashPoint, Tasks, crash_point};
use tidelog_model::{LeaderEpoch, LogId, LogIndex, PlacementGroupId, TimestampMs};
use tidelog_tiering::reader::RemoteReader;

/// Bounds of one data group.
#[derive(Clone, Copy, Debug, Default)]
pub struct DataGroupConfig {
    /// The proposer's.
    pub proposer: ProposerConfig,
    /// Memory for log entries read back from disk, bytes.
    pub disk_cache_bytes: u64,
}

/// One data group. Clones are the same group.
#[derive(Clone)]
pub struct DataGroup {
    id: PlacementGroupId,
    group: Group<DataMachine>,
    proposer: Proposer,
    hot: HotReader,
    remote: Arc<RemoteReader>,
    clock: Arc<dyn Clock>,
}

/// The largest record batch that a data group takes whose log files have so many bytes, as [`DataGroup::batch_bytes_max`] says of one that is there.
#[must_use]
pub fn batch_bytes_in(file_bytes: u64) -> usize {
    entry_bytes_max(file_bytes).saturating_sub(append_overhead(1))
}

impl DataGroup {
    /// Puts the parts together and starts the proposer.
    #[must_use]
    pub fn start(
        id: PlacementGroupId,
        config: DataGroupConfig,
        group: Group<DataMachine>,
        remote: Arc<RemoteReader>,
        clock: Arc<dyn Clock>,
        tasks: &Tasks,
    ) -> Self {
        let proposer = Proposer::start(config.proposer, group.clone(), Arc::clone(&clock), tasks);
        let hot = HotReader::new(group.log().clone(), config.disk_cache_bytes);
        let data_group = Self {
            id,
            group,
            proposer,
            hot,
            remote,
            clock,
        };
        data_group.forget_purged();
        data_group
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> PlacementGroupId {
        self.id
    }

    /// The Raft group.
    #[must_use]
    pub fn group(&self) -> &Group<DataMachine> {
        &self.group
    }

    /// The leader epoch that clients see: the group's term.
    #[must_use]
    pub fn epoch(&self) -> LeaderEpoch {
        LeaderEpoch::of_term(self.group.term())
    }

    /// The largest record batch that an entry of this group takes.
    #[must_use]
    pub fn batch_bytes_max(&self) -> usize {
        self.group
            .entry_bytes_max()
            .saturating_sub(append_overhead(1))
    }

    /// Where appends go.
    #[must_use]
    pub fn proposer(&self) -> &Proposer {
        &self.proposer
    }

    /// The hot tail's reader.
    #[must_use]
    pub fn hot(&self) -> &HotReader {
        &self.hot
    }

    /// The object store's reader.
    #[must_use]
    pub fn remote(&self) -> &RemoteReader {
        &self.remote
    }

    /// Proposes a partition command with this broker's stamp and waits until it is applied.
    ///
    /// # Errors
    /// [`ProposeError`]; its `may_have_happened` says what a retry risks. All commands but appends may be repeated.
    pub async fn propose(
        &self,
        command: PartitionCommand,
    ) -> Result<(LogId, PartitionOutcome), ProposeError> {
        let stamp = TimestampMs::new(self.clock.now_ms());
        let dir = Stamped { stamp, command }.encode();
        let (id, outcome) = self.group.propose(Command::new(dir, Bytes::new())).await?;
        match outcome {
            DataOutcome::Partition(outcome) => Ok((id, outcome)),
            DataOutcome::Coordinator(_) => Err(ProposeError::Fatal(
                "a partition command was answered with a coordinator's outcome".to_owned(),
            )),
        }
    }

    /// Makes the hot index forget what the local log no longer holds.
    pub fn forget_purged(&self) {
        if let Some(purged) = self.group.log().state().purged {
            self.group
                .update_local(|machine| machine.trim_hot(purged.index.next()));
        }
    }

    /// Drops local log files up to `upto`, which a published snapshot must hold, and forgets their batches (I10).
    ///
    /// # Errors
    /// What placement says; the files stay then.
    pub async fn purge(&self, upto: LogIndex) -> Result<(), PlacementError> {
        // The index forgets first: what is in the store may be read from there while the files still exist.
        self.group
            .update_local(|machine| machine.trim_hot(upto.next()));
        crash_point(CrashPoint::TrimForgotten);
        self.group.purge(upto).await
    }
}
