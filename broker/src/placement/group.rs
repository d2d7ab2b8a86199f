//! One placement group on this broker.
//!
//! Owns: [`Group`]: start, propose, read, checkpoints, purging, stop.
//! Not here: the parts it is made of (the other files of this folder).
//! Spec: docs/protocols/placement.md

use super::acknowledged::Acknowledged;
use super::config::{GroupConfig, PlacementError};
use super::contract::{Command, Leadership, ProposeError, SnapshotError, StateMachine};
use super::in_flight::InFlight;
use super::leadership::{Observer, ObserverTimes};
use super::log_store::LogStore;
use super::machine::{AnyMachine, MachineCell};
use super::machine_store::MachineStore;
use super::peer_client::PeerFactory;
use super::peer_inbox::PeerInbox;
use super::peers::PeerNetwork;
use super::propose::Proposer;
use super::raft_types::{Types, to_raft};
use crate::log::GroupLog;
use openraft::errors::{InitializeError, RaftError};
use openraft::{Raft, ReadPolicy};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::{CrashPoint, Tasks, crash_point};
use tidelog_model::{LogId, LogIndex, NodeId, PlacementGroupId, RaftNodeId, Term};
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

/// How long the core may take to note a checkpoint that is on disk already.
const NOTE_DEADLINE: Duration = Duration::from_secs(10);
/// It ignores a request while it deals with an earlier one; then it is asked again.
const NOTE_RETRY: Duration = Duration::from_millis(100);

/// Entries that a replica which is close behind may lack: less than what is in flight under load.
const FOLLOWER_LAG_MAX: u64 = 64;

/// A handle to a running group. Clones are the same group; it runs until [`Group::stop`].
pub struct Group<M: StateMachine> {
    machine: Arc<MachineCell<M>>,
    pub(super) core: Arc<Core>,
}

impl<M: StateMachine> Clone for Group<M> {
    fn clone(&self) -> Self {
        Self {
            machine: Arc::clone(&self.machine),
            core: Arc::clone(&self.core),
        }
    }
}

/// What does not depend on the machine's type.
pub(super) struct Core {
    group: PlacementGroupId,
    pub(super) own: RaftNodeId,
    pub(super) raft: Raft<Types, MachineStore>,
    pub(super) store: MachineStore,
    pub(super) peers: Arc<dyn PeerNetwork>,
    log: GroupLog,
    pub(super) observer: Observer,
    proposer: Proposer,
    tasks: Tasks,
}

impl<M: StateMachine> Group<M> {
    /// Starts the group over a log that was opened for it, from the newest checkpoint and the entries after it.
    ///
    /// Sets the group up if its log is empty and `config` names first members. The only voter campaigns at once; see
    /// [`Group::wait_leader`]. Cancelled, it may leave a core running over `log`: end the process.
    ///
    /// # Errors
    /// [`PlacementError`]; nothing is left running.
    pub async fn start(
        config: GroupConfig,
        log: GroupLog,
        machine: M,
        peers: Arc<dyn PeerNetwork>,
    ) -> Result<Self, PlacementError> {
        let machine = Arc::new(MachineCell::new(machine));
        let any: Arc<dyn AnyMachine> = Arc::clone(&machine) as Arc<dyn AnyMachine>;
        let core = Arc::new(Core::build(&config, log, any, peers).await?);
        core.raft.run();
        if let Err(error) = core.set_up(&config).await {
            core.stop().await;
            return Err(error);
        }
        Ok(Self { machine, core })
    }

    /// Proposes a command; when it returns an outcome, the command is committed, on a quorum's disk, and applied here.
    ///
    /// Cancelled, the command may still happen. Calls that run at the same time enter the log in the order of their first poll; use
    /// [`Group::propose_ordered`] where the order matters.
    ///
    /// # Errors
    /// [`ProposeError::may_have_happened`] says what each leaves.
    pub async fn propose(&self, command: Command) -> Result<(LogId, M::Outcome), ProposeError> {
        self.core.proposer.propose(command).await
    }

    /// Like [`Group::propose`], but the command has its place in the order before this returns: entries lie in the log in the order of the
    /// calls. The future only waits for the outcome. Needs a tokio runtime.
    ///
    /// # Errors
    /// Of the future: as [`Group::propose`].
    pub fn propose_ordered(
        &self,
        command: Command,
    ) -> impl Future<Output = Result<(LogId, M::Outcome), ProposeError>> + Send + use<M> {
        self.core.proposer.propose(command)
    }

    /// Bytes (dir and body) of one command at most; a dir has its own bound besides, [`crate::log::DIR_BYTES_MAX`]. Who
    /// gathers or splits commands asks here, so that none is refused as [`ProposeError::TooLarge`].
    #[must_use]
    pub fn entry_bytes_max(&self) -> usize {
        self.core.proposer.entry_bytes_max
    }

    /// Entries and bytes that are proposed and not answered.
    #[must_use]
    pub fn in_flight(&self) -> (usize, usize) {
        let used = self.core.proposer.used();
        (used.count, used.bytes)
    }

    /// Looks at the machine under its read lock. Short: entries are not applied meanwhile.
    pub fn read<R>(&self, f: impl FnOnce(&M) -> R) -> R {
        self.machine.read(f)
    }

    /// Changes what the machine keeps for this replica alone (an index over the local log, say). Never anything that a
    /// snapshot says or an outcome depends on: other replicas do not see it. Short, as [`Group::read`].
    pub fn update_local<R>(&self, f: impl FnOnce(&mut M) -> R) -> R {
        self.machine.update_local(f)
    }

    /// Waits until this replica has applied everything that was committed when it was called: a read that follows is
    /// current.
    ///
    /// # Errors
    /// [`ProposeError::NotLeader`] if this replica does not lead or its lease has run out.
    pub async fn read_barrier(&self) -> Result<(), ProposeError> {
        self.core.read_barrier().await
    }

    /// The last applied entry; it moves together with the machine.
    #[must_use]
    pub fn applied(&self) -> watch::Receiver<Option<LogId>> {
        self.machine.applied()
    }

    /// Who leads.
    #[must_use]
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.core.observer.leadership()
    }

    /// How often this replica has seen another leader since it started, or the same one in a newer term.
    #[must_use]
    pub fn leader_changes(&self) -> u64 {
        self.core.observer.changes()
    }

    /// Whether this replica leads and has passed the barrier of its term.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.core.observer.now().is_leader
    }

    /// The newest term this replica has seen.
    #[must_use]
    pub fn term(&self) -> Term {
        self.core.observer.now().term
    }

    /// Whether reads that must be current may be served: this replica leads, has passed the barrier of its term, and a quorum has
    /// answered it within the time no other leader can be elected in. No message is sent.
    #[must_use]
    pub fn can_serve_reads(&self) -> bool {
        self.serving_term().is_some()
    }

    /// The term in which reads that must be current may be served now, as [`Group::can_serve_reads`] says. What was read before it is
    /// asked is current if it is still the same.
    #[must_use]
    pub fn serving_term(&self) -> Option<Term> {
        self.core.observer.serving_term()
    }

    /// Whether the leader, which is another replica, was heard within the time in which a silent one is followed. Otherwise who leads is
    /// not known, whatever [`Group::leadership`] remembers.
    #[must_use]
    pub fn hears_leader(&self) -> bool {
        self.core.observer.hears_leader()
    }

    /// How long ago this replica was last in touch with a leader: heard one, or led itself and heard a majority. `None`: never since it started.
    #[must_use]
    pub fn in_touch(&self) -> Option<Duration> {
        self.core.observer.in_touch()
    }

    /// The term of the leader that this replica follows closely: it heard the leader within a lease, and has applied nearly all that it
    /// knows to be committed. Reads here are of committed entries, a little behind the leader.
    #[must_use]
    pub fn following_term(&self) -> Option<Term> {
        let applied = self.applied().borrow().unwrap_or_default();
        self.core.observer.following_term(applied.index)
    }

    /// Whether this replica leads and may serve reads, or hears its leader and is so close behind that it could take over.
    #[must_use]
    pub fn is_in_sync(&self) -> bool {
        let applied = self.applied().borrow().unwrap_or_default();
        let core = &self.core;
        self.can_serve_reads() || core.observer.is_close(FOLLOWER_LAG_MAX, applied.index)
    }

    /// Whether the leader was heard after `since`, and this replica has applied all that the leader had committed when it sent that. A message may
    /// have been on its way for some time.
    #[must_use]
    pub fn is_current_since(&self, since: Instant) -> bool {
        let applied = self.applied().borrow().unwrap_or_default();
        self.core.observer.is_current(since, applied.index)
    }

    /// Brokers of the other replicas that are there and close behind. Empty unless this replica leads.
    #[must_use]
    pub fn close_brokers(&self) -> Vec<NodeId> {
        if self.is_leader() {
            self.core.observer.close_brokers(FOLLOWER_LAG_MAX)
        } else {
            Vec::new()
        }
    }

    /// Waits until this replica leads and has passed the barrier of its term, and returns the term.
    ///
    /// # Errors
    /// The group stopped, or `wait` has passed.
    pub async fn wait_leader(&self, wait: Duration) -> Result<Term, PlacementError> {
        let mut leadership = self.leadership();
        let led = timeout(wait, leadership.wait_for(|known| known.is_leader)).await;
        match led {
            Ok(Ok(known)) => Ok(known.term),
            Ok(Err(_)) => Err(self.core.fatal(self.core.observer.stop_reason())),
            Err(_) => Err(self.core.fatal(format!("no leadership within {wait:?}"))),
        }
    }

    /// Writes what the machine offers as a checkpoint and lets Raft take note; entries up to the returned id may be purged then.
    ///
    /// The checkpoint is on disk when it returns. Returns the newest checkpoint's id without writing when the machine offers nothing newer.
    ///
    /// # Errors
    /// [`SnapshotError`]; the group goes on, except after [`SnapshotError::Fatal`].
    pub async fn snapshot_and_persist(&self) -> Result<LogId, SnapshotError> {
        self.core.snapshot_and_persist().await
    }

    /// Asks that entries up to `upto` be dropped, never past the newest checkpoint. Whole log files go a little later.
    ///
    /// # Errors
    /// The group stopped.
    pub async fn purge(&self, upto: LogIndex) -> Result<(), PlacementError> {
        let asked = self.core.raft.trigger().purge_log(upto.get()).await;
        asked.map_err(|error| self.core.fatal(error.to_string()))
    }

    /// Asks `next` to take over leadership; it does once it has every entry on disk. Not leading, or if `next` has no vote (a learner cannot
    /// lead, and would only disturb the others), this does nothing.
    ///
    /// # Errors
    /// The group stopped.
    pub async fn transfer_leadership(&self, next: RaftNodeId) -> Result<(), PlacementError> {
        if !self.replicas().voters.contains(&next) {
            return Ok(());
        }
        let asked = self.core.raft.trigger().transfer_leader(next.get()).await;
        asked.map_err(|error| self.core.fatal(error.to_string()))
    }

    /// The other replicas, and whether each is there and close behind, so that it could take over at once. Empty unless this
    /// replica leads.
    #[must_use]
    pub fn followers(&self) -> BTreeMap<RaftNodeId, bool> {
        if self.is_leader() {
            self.core.observer.followers(FOLLOWER_LAG_MAX)
        } else {
            BTreeMap::new()
        }
    }

    /// Replicas that have lost entries they had acknowledged to this leader, with their brokers: they count as gone. Empty unless this replica leads.
    #[must_use]
    pub fn reverted(&self) -> BTreeMap<RaftNodeId, NodeId> {
        self.core.observer.reverted()
    }

    /// The group's log, to read bodies of entries from.
    #[must_use]
    pub fn log(&self) -> &GroupLog {
        &self.core.log
    }

    /// Where the transport hands in what peers send.
    #[must_use]
    pub fn inbox(&self) -> PeerInbox {
        let core = &self.core;
        PeerInbox::new(
            core.raft.clone(),
            core.observer.heard(),
            core.log.clone(),
            core.store.clone(),
        )
    }

    /// Turns to the reason when the group stopped by itself; the process should end with it.
    #[must_use]
    pub fn fatal(&self) -> watch::Receiver<Option<String>> {
        self.core.observer.fatal()
    }

    /// Stops the group and closes its log. Proposals that are under way get [`ProposeError::Fatal`] or their outcome.
    pub async fn stop(&self) {
        self.core.stop().await;
    }
}

impl Core {
    async fn build(
        config: &GroupConfig,
        log: GroupLog,
        machine: Arc<dyn AnyMachine>,
        peers: Arc<dyn PeerNetwork>,
    ) -> Result<Self, PlacementError> {
        let raft_config = Arc::new(config.check()?);
        let entry_bytes_max = log.entry_bytes_max();
        let group = config.group;
        let applied = machine.applied();
        let store = MachineStore::open(machine, log.clone())
            .await
            .map_err(|error| PlacementError::Checkpoint {
                group,
                why: error.to_string(),
            })?;
        let log_store = LogStore::new(log.clone());
        let acknowledged = Arc::new(Acknowledged::new(group));
        let network = PeerFactory::new(Arc::clone(&peers), Arc::clone(&acknowledged));
        let raft = Raft::build(
            config.node.get(),
            raft_config,
            network,
            log_store,
            store.clone(),
        )
        .await
        .map_err(|error| PlacementError::Fatal {
            group,
            why: error.to_string(),
        })?;
        let tasks = Tasks::new();
        let times = ObserverTimes {
            lease: config.election_min,
            // By then somebody else would have been elected.
            silence: 2 * config.election_max,
        };
        let observer = Observer::start(
            &raft,
            group,
            config.node,
            applied,
            acknowledged,
            times,
            &tasks,
        );
        let proposer = Proposer {
            raft: raft.clone(),
            observer: observer.clone(),
            in_flight: InFlight::new(config.in_flight_count_max, config.in_flight_bytes_max),
            tasks: tasks.clone(),
            entry_bytes_max: entry_bytes_max.min(config.entry_bytes_max),
            deadline: config.propose_deadline,
        };
        Ok(Self {
            group,
            own: config.node,
            raft,
            peers,
            store,
            log,
            observer,
            proposer,
            tasks,
        })
    }

    /// Steps 3 and 4 of a start: first members into an empty log, and the only voter campaigns.
    async fn set_up(&self, config: &GroupConfig) -> Result<(), PlacementError> {
        let stopped = |error: &dyn std::fmt::Display| self.fatal(error.to_string());
        if config.first_members.is_empty() {
            tracing::debug!(group = %self.group, "no first members: waiting to be taken in");
        } else {
            let members: BTreeMap<_, _> = config
                .first_members
                .iter()
                .map(|(id, member)| (id.get(), member.clone()))
                .collect();
            match self.raft.initialize(members).await {
                // openraft campaigns by itself once the entry is there.
                Ok(()) => {
                    crash_point(CrashPoint::GroupSetUp);
                    return Ok(());
                }
                // Not allowed: it was set up before.
                Err(RaftError::APIError(InitializeError::NotAllowed(_))) => {}
                Err(error) => return Err(stopped(&error)),
            }
        }
        let only = [config.node.get()];
        let voters = self
            .raft
            .with_raft_state(move |state| state.membership_state.effective().voter_ids().eq(only));
        if voters.await.map_err(|error| stopped(&error))? {
            self.raft
                .trigger()
                .elect(false)
                .await
                .map_err(|error| stopped(&error))?;
        }
        Ok(())
    }

    async fn read_barrier(&self) -> Result<(), ProposeError> {
        match self.raft.ensure_linearizable(ReadPolicy::ReadIndex).await {
            Ok(_) => Ok(()),
            Err(RaftError::Fatal(error)) => Err(ProposeError::Fatal(error.to_string())),
            Err(RaftError::APIError(_)) => Err(ProposeError::NotLeader {
                leader: self.observer.now().leader,
            }),
        }
    }

    async fn snapshot_and_persist(&self) -> Result<LogId, SnapshotError> {
        let last = self.store.persist().await?;
        let stopped = || SnapshotError::Fatal(self.observer.stop_reason());
        let mut noted = self.raft.watch_snapshot_progress();
        let target = Some(to_raft(last));
        let until = Instant::now() + NOTE_DEADLINE;
        while noted.get() < target {
            if Instant::now() >= until {
                return Err(SnapshotError::Timeout);
            }
            self.raft
                .trigger()
                .snapshot()
                .await
                .map_err(|_| stopped())?;
            let retry = until.min(Instant::now() + NOTE_RETRY);
            if let Ok(Err(_)) = timeout_at(retry, noted.wait_until_ge(&target)).await {
                return Err(stopped());
            }
        }
        crash_point(CrashPoint::SnapshotNoted);
        Ok(last)
    }

    async fn stop(&self) {
        self.observer.expect_stop();
        if let Err(error) = self.raft.shutdown().await {
            tracing::warn!(group = %self.group, "the Raft core did not end well: {error}");
        }
        self.tasks.stop().await;
        if let Err(error) = self.log.close().await {
            tracing::warn!(group = %self.group, "the group log did not close well: {error}");
        }
    }

    fn fatal(&self, why: String) -> PlacementError {
        PlacementError::Fatal {
            group: self.group,
            why,
        }
    }
}
