//! Starting one placement group: its log, its first members, its place among the peers.
//!
//! Owns: [`Starter`], what a replica with an empty log may assume.
//! Not here: which groups (`host.rs`).
//! Spec: docs/protocols/membership.md (a replica that comes later starts empty)

use super::super::World;
use super::super::error::{Ended, StartError};
use super::super::held::HeldGroups;
use super::super::identity::Identity;
use super::super::peers::Peers;
use super::super::refill::Damage;
use super::Parts;
use crate::config::Config;
use crate::log::{
    GroupLog, GroupLogConfig, LogEnv, LogError, LogFailure, WriterMode, ZeroingPace, finish_drop,
    was_dropped,
};
use crate::metadata::MetadataImage;
use crate::peer::Registered;
use crate::placement::{
    Group, GroupConfig, Member, NoPeers, PeerNetwork, PlacementError, StateMachine,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tidelog_env::{CrashPoint, Tasks, crash_point};
use tidelog_model::{PlacementGroupId, RaftNodeId};
use tokio::sync::watch;

/// How long the only voter of a group may take to lead it. It campaigns at once; this is for a very slow disk.
const LEAD_WITHIN: Duration = Duration::from_secs(60);

/// Pause before a group is watched again.
const WATCH_PAUSE: Duration = Duration::from_millis(100);

/// What every group is started with.
pub(super) struct Starter {
    pub(super) config: Config,
    pub(super) world: World,
    pub(super) identity: Identity,
    pub(super) peers: Option<Arc<Peers>>,
    pub(super) fatal: watch::Sender<Option<Ended>>,
    /// Told what logs find damaged.
    damage: Arc<Damage>,
    /// Groups that are damaged here: nothing of them is opened, made, or deleted.
    pub(super) withheld: BTreeSet<PlacementGroupId>,
    /// Whose logs lie here.
    pub(super) held: HeldGroups,
    /// How fast the logs of all groups zero files ahead.
    zeroing: Arc<ZeroingPace>,
    /// Set while this broker takes no records for want of room.
    pub(super) refusing: Arc<AtomicBool>,
}

/// A running group.
pub(super) struct Started<M: StateMachine> {
    pub(super) group: Group<M>,
    /// As long as this lives, peers reach the group.
    pub(super) registered: Option<Registered>,
}

/// Starts a group; if that fails its log is closed, since the directory may be used for something else then.
async fn start_on<M: StateMachine>(
    config: GroupConfig,
    log: GroupLog,
    machine: M,
    peers: Arc<dyn PeerNetwork>,
) -> Result<Group<M>, PlacementError> {
    let started = Group::start(config, log.clone(), machine, peers).await;
    if started.is_err() {
        // Closed already, or it has failed: either way nothing writes any more.
        let _ = log.close().await;
    }
    started
}

impl Starter {
    pub(super) fn new(parts: &Parts<'_>) -> Result<Self, StartError> {
        let dir = parts.config.node.data_dir.clone();
        let raft_node = parts.identity.raft_node;
        let held = HeldGroups::load(Arc::clone(&parts.world.disk), dir.clone(), raft_node)?;
        Ok(Self {
            config: parts.config.clone(),
            world: parts.world.clone(),
            identity: parts.identity,
            peers: parts.peers.cloned(),
            fatal: parts.fatal.clone(),
            damage: Arc::new(Damage {
                disk: Arc::clone(&parts.world.disk),
                random: Arc::clone(&parts.world.random),
                dir,
                node: parts.identity.node,
                raft_node,
                alone: parts.peers.is_none(),
                refills: parts.config.refills(),
                fatal: parts.fatal.clone(),
                marking: parking_lot::Mutex::default(),
            }),
            withheld: parts
                .in_part
                .and_then(|mark| mark.withheld())
                .cloned()
                .unwrap_or_default(),
            held,
            zeroing: Arc::default(),
            refusing: Arc::clone(parts.refusing),
        })
    }

    /// The error of a group's log, with what to do about it.
    pub(super) fn failed(&self, group: PlacementGroupId, error: LogError) -> StartError {
        let what_to_do = self.damage.what_to_do(&error);
        StartError::Log {
            group,
            error,
            what_to_do,
        }
    }

    /// Does `work` for the group `id` where it may take its time.
    async fn on_disk(
        &self,
        id: PlacementGroupId,
        work: impl FnOnce() -> Result<(), LogError> + Send + 'static,
    ) -> Result<(), StartError> {
        match tidelog_env::blocking(work).await {
            Ok(done) => done.map_err(|error| self.failed(id, error)),
            Err(error) => Err(StartError::Metadata(error.to_string())),
        }
    }

    /// The directory of a group.
    pub(super) fn dir(&self, id: PlacementGroupId) -> PathBuf {
        self.groups_dir().join(id.to_string())
    }

    pub(super) fn groups_dir(&self) -> PathBuf {
        self.config.node.data_dir.join("groups")
    }

    /// All members of the founding record, if this broker is one of them with this disk; else none: it waits to be taken in.
    pub(super) fn record_members(&self) -> BTreeMap<RaftNodeId, Member> {
        let record = self.peers.as_ref().map(|peers| &peers.record);
        let founder =
            record.filter(|record| record.has(self.identity.node, self.identity.raft_node));
        founder
            .map(super::super::formation::Founding::first_members)
            .unwrap_or_default()
    }

    /// Whom this broker may set a data group up with if its log is empty: the group's founders, if it is one of them and never
    /// dropped its replica. Anybody else with an empty log waits to be taken in.
    pub(super) fn founders(
        &self,
        id: PlacementGroupId,
        image: &MetadataImage,
    ) -> Result<BTreeMap<RaftNodeId, Member>, StartError> {
        let (disk, dir) = (self.world.disk.as_ref(), self.dir(id));
        if was_dropped(disk, &dir).map_err(|error| self.failed(id, error))? {
            return Ok(BTreeMap::new());
        }
        let of_record = self.record_members();
        let Some(founders) = image.founders(id) else {
            return Ok(of_record);
        };
        let mut members = BTreeMap::new();
        for (broker, raft_node) in founders {
            let (id, member) = if raft_node.get() == 0 {
                // Of the founding record; who is not in it with this disk knows of none.
                let mut recorded = of_record.iter();
                match recorded.find(|(_, member)| member.broker == *broker) {
                    Some((id, member)) => (*id, member.clone()),
                    None => return Ok(BTreeMap::new()),
                }
            } else {
                let peer = image.brokers().get(broker).and_then(|at| at.peer.as_ref());
                let member = Member {
                    broker: *broker,
                    address: peer.map_or_else(String::new, ToString::to_string),
                };
                (*raft_node, member)
            };
            members.insert(id, member);
        }
        if members.contains_key(&self.identity.raft_node) {
            Ok(members)
        } else {
            Ok(BTreeMap::new())
        }
    }

    /// Starts a group. `groups` share the memory for caches of logs; `first` are its members if its log is empty.
    pub(super) async fn start_group<M: StateMachine>(
        &self,
        id: PlacementGroupId,
        machine: M,
        groups: usize,
        first: BTreeMap<RaftNodeId, Member>,
        tasks: &Tasks,
    ) -> Result<Started<M>, StartError> {
        let dir = self.dir(id);
        let failed = |error| self.failed(id, error);
        self.check_held(id, &dir).await?;
        let log = self.open_log(id, &dir, groups).await.map_err(failed)?;
        crash_point(CrashPoint::HeldLogCreated);
        let noted = self.held.clone();
        if let Err(error) = self.on_disk(id, move || noted.add(id)).await {
            let _ = log.close().await;
            return Err(error);
        }
        crash_point(CrashPoint::HeldNoted);
        let raft_node = self.identity.raft_node;
        let Some(peers) = &self.peers else {
            let member = Member {
                broker: self.identity.node,
                address: String::new(),
            };
            let group_config = GroupConfig::alone(id, raft_node, member);
            let group = start_on(group_config, log, machine, Arc::new(NoPeers)).await?;
            self.watch_fatal(&group, tasks);
            group.wait_leader(LEAD_WITHIN).await?;
            let registered = None;
            return Ok(Started { group, registered });
        };
        let mut group_config = GroupConfig::new(id, raft_node, first);
        let times = self.config.raft;
        group_config.heartbeat = Duration::from_millis(times.heartbeat_ms);
        group_config.election_min = Duration::from_millis(times.election_min_ms);
        group_config.election_max = Duration::from_millis(times.election_max_ms);
        let group = start_on(group_config, log, machine, peers.transport.group(id)).await?;
        self.watch_fatal(&group, tasks);
        let registered = Some(peers.groups.register(id, group.inbox()));
        Ok(Started { group, registered })
    }

    /// Finishes a drop that a crash interrupted; then a log that was here must be here.
    async fn check_held(&self, id: PlacementGroupId, dir: &Path) -> Result<(), StartError> {
        let (disk, held, damage) = (
            Arc::clone(&self.world.disk),
            self.held.clone(),
            Arc::clone(&self.damage),
        );
        let dir = dir.to_owned();
        self.on_disk(id, move || {
            finish_drop(disk.as_ref(), &dir)?;
            held.check(id).inspect_err(|error| {
                // Empty, it would vote without what it has acknowledged, and perhaps set the group up again.
                if matches!(error, LogError::Lost { .. }) {
                    damage.found(id, error);
                }
            })
        })
        .await
    }

    async fn open_log(
        &self,
        id: PlacementGroupId,
        dir: &Path,
        groups: usize,
    ) -> Result<GroupLog, LogError> {
        let mut config = GroupLogConfig::new(
            dir.to_owned(),
            self.identity.cluster,
            id,
            self.identity.raft_node,
        );
        let is_metadata = id == PlacementGroupId::METADATA;
        // Metadata changes are few and small, but the largest request must fit an entry (a quarter of a file).
        config = config.with_file_bytes(if is_metadata {
            16 << 20
        } else {
            self.config.log.file_bytes
        });
        config.cache_bytes = if is_metadata {
            1 << 20
        } else {
            self.config.log.cache_bytes / groups.max(1)
        };
        config.zeroing = Arc::clone(&self.zeroing);
        if self.world.disk.is_instant() {
            config.writer = WriterMode::Task;
        }
        let fatal = self.fatal.clone();
        let env = LogEnv {
            disk: Arc::clone(&self.world.disk),
            random: Arc::clone(&self.world.random),
            // A set of its own: the log is closed after the node's tasks have ended, and its writer is one of these in a simulation.
            tasks: Tasks::new(),
            fatal: Arc::new(move |failure: &LogFailure| {
                fatal.send_replace(Some(Ended::Failed(format!("log of group {id}: {failure}"))));
            }),
            observer: self.damage.of(id) as _,
        };
        GroupLog::open(config, env).await
    }

    fn watch_fatal<M: StateMachine>(&self, group: &Group<M>, tasks: &Tasks) {
        let stopped = group.fatal();
        let fatal = self.fatal.clone();
        tasks.supervise("group-watch", WATCH_PAUSE, move || {
            let (mut stopped, fatal) = (stopped.clone(), fatal.clone());
            async move {
                if let Ok(reason) = stopped.wait_for(Option::is_some).await {
                    fatal.send_replace(reason.clone().map(Ended::Failed));
                }
                std::future::pending().await
            }
        });
    }
}
