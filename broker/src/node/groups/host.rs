//! The data groups that this broker holds: started and dropped as metadata says, while everything else runs.
//!
//! Owns: [`Host`], the order of starting and dropping a replica.
//! Not here: where replicas shall be (`metadata`), making Raft agree (`members`), deleting files (`log`).
//! Spec: docs/protocols/membership.md (replicas move, step 5)

use super::super::error::{Ended, StartError};
use super::super::fitness::Fit;
use super::super::leaders;
use super::super::members;
use super::super::refill::replaced_in_part;
use super::super::store::NodeStore;
use super::starter::Starter;
use crate::coordinator::membership::MembershipConfig;
use crate::coordinator::service::{Coordinator, CoordinatorConfig, CoordinatorParts};
use crate::datagroup::{DataGroup, DataGroupConfig, DataMachine};
use crate::log::drop_replica;
use crate::metadata::Standing;
use crate::offload::{Offload, OffloadConfig, StoreGuard};
use crate::peer::Registered;
use crate::placement::GroupMap;
use crate::router::{CommitBounds, GroupLogOf, MetadataClient, Router};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::{CrashPoint, Tasks, crash_point};
use tidelog_model::PlacementGroupId;
use tokio::sync::Mutex;

/// Pause before what failed is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// One replica, with everything that belongs to it alone.
struct Held {
    group: DataGroup,
    registered: Option<Registered>,
    tasks: Tasks,
}

/// The replicas of this broker.
pub(super) struct Host {
    starter: Starter,
    store: Arc<NodeStore>,
    pub(super) guard: StoreGuard,
    pub(super) fit: Fit,
    metadata: MetadataClient,
    router: Router,
    pub(super) offloads: GroupMap<Offload>,
    pub(super) coordinators: GroupMap<Coordinator>,
    held: Mutex<BTreeMap<PlacementGroupId, Held>>,
}

impl Host {
    pub(super) fn new(
        starter: Starter,
        (store, guard): (Arc<NodeStore>, StoreGuard),
        metadata: MetadataClient,
        router: Router,
    ) -> Self {
        let refusing = Arc::clone(&starter.refusing);
        Self {
            starter,
            store,
            fit: Fit::new(refusing, guard.clone(), router.clone()),
            guard,
            metadata,
            router,
            offloads: GroupMap::default(),
            coordinators: GroupMap::default(),
            held: Mutex::default(),
        }
    }

    /// The groups that this broker holds, or shall hold, by its image, those that are withheld among them.
    fn wanted(&self) -> BTreeSet<PlacementGroupId> {
        let node = self.starter.identity.node;
        self.metadata.group.read(|machine| {
            let image = machine.image();
            let groups = image.groups().keys().copied();
            groups.filter(|group| image.holds(*group, node)).collect()
        })
    }

    /// Starts what is wanted and not there.
    pub(super) async fn start_all(&self) -> Result<(), StartError> {
        let mut held = self.held.lock().await;
        let missing = self
            .wanted()
            .into_iter()
            .filter(|id| !held.contains_key(id) && !self.starter.withheld.contains(id));
        // All at once: each reads its log, and its peers wait for it.
        let starting =
            missing.map(|id| async move { Ok::<_, StartError>((id, self.start(id).await?)) });
        let started = futures::future::join_all(starting.collect::<Vec<_>>()).await;
        let mut failed = None;
        for one in started {
            match one {
                Ok((id, replica)) => {
                    held.insert(id, replica);
                }
                // The others run, and are stopped with the node.
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Follows metadata until `tasks` stop.
    pub(super) fn watch(self: &Arc<Self>, tasks: &Tasks) {
        let host = Arc::clone(self);
        tasks.supervise("replicas", RETRY_PAUSE, move || {
            let host = Arc::clone(&host);
            async move {
                let mut applied = host.metadata.group.applied();
                loop {
                    applied.borrow_and_update();
                    let left = host.follow().await;
                    tokio::select! {
                        changed = applied.changed() => {
                            if changed.is_err() {
                                return std::future::pending().await;
                            }
                        }
                        // What could not be dropped is tried again without waiting for a change.
                        () = tokio::time::sleep(RETRY_PAUSE), if left => {}
                    }
                }
            }
        });
    }

    /// Does what metadata says; true if something is left to do.
    async fn follow(&self) -> bool {
        if let Err(error) = self.start_all().await {
            // As at a start: what this broker must hold it cannot.
            let failed = Ended::Failed(error.to_string());
            self.starter.fatal.send_replace(Some(failed));
            return false;
        }
        let own = self.starter.identity;
        let standing = self
            .metadata
            .group
            .read(|machine| machine.image().standing(own.node, own.raft_node));
        if standing != Standing::Member {
            self.end(standing);
            return false;
        }
        let mut left = false;
        for id in self.unwanted().await {
            if let Err(error) = self.drop_replica(id).await {
                tracing::debug!(group = %id, "the replica is not dropped yet: {error}");
                left = true;
            }
        }
        left
    }

    /// This broker is no member any more: it ends.
    pub(super) fn end(&self, standing: Standing) {
        let node = self.starter.identity.node;
        let ended = match standing {
            Standing::Replaced if !self.starter.withheld.is_empty() => Some(replaced_in_part(node)),
            standing => Ended::of(standing, node),
        };
        if let Some(ended) = ended {
            self.starter.fatal.send_if_modified(|known| {
                let first = known.is_none();
                if first {
                    *known = Some(ended);
                }
                first
            });
        }
    }

    /// Replicas that run, or whose files lie here, and that nobody wants. Not those that are withheld: damaged files are set aside as a whole.
    async fn unwanted(&self) -> Vec<PlacementGroupId> {
        let wanted = self.wanted();
        let mut found: BTreeSet<PlacementGroupId> =
            self.held.lock().await.keys().copied().collect();
        let disk = &self.starter.world.disk;
        for entry in disk.list(&self.starter.groups_dir()).unwrap_or_default() {
            // A directory's name is a number; marks have an extension.
            let Ok(id) = entry.name.parse().map(PlacementGroupId::new) else {
                continue;
            };
            let files = disk.list(&self.starter.dir(id)).unwrap_or_default();
            if id != PlacementGroupId::METADATA && !files.is_empty() {
                found.insert(id);
            }
        }
        found
            .into_iter()
            .filter(|id| !wanted.contains(id) && !self.starter.withheld.contains(id))
            .collect()
    }

    /// Stops the replica, and deletes its files once it is certain that nobody counts on it any more.
    async fn drop_replica(&self, id: PlacementGroupId) -> Result<(), StartError> {
        let mut held = self.held.lock().await;
        if let Some(replica) = held.remove(&id) {
            self.stop_one(id, replica).await;
        }
        // After the stop: what is decided later finds no replica here, what was decided before is seen now.
        let current = self.metadata.barrier().await;
        current.map_err(|error| StartError::Metadata(error.to_string()))?;
        if self.wanted().contains(&id) {
            held.insert(id, self.start(id).await?);
            return Ok(());
        }
        let (disk, dir) = (Arc::clone(&self.starter.world.disk), self.starter.dir(id));
        let noted = self.starter.held.clone();
        let dropped = tidelog_env::blocking(move || {
            // First: files that are gone and noted are damage; files that are there and not noted are dropped again.
            noted.remove(id)?;
            crash_point(CrashPoint::DropForgotten);
            drop_replica(disk.as_ref(), &dir)
        });
        let dropped = dropped.await;
        match dropped {
            Ok(Ok(())) => {
                tracing::info!(group = %id, "the replica was dropped: other brokers hold the group")
            }
            Ok(Err(error)) => return Err(self.starter.failed(id, error)),
            Err(error) => return Err(StartError::Metadata(error.to_string())),
        }
        Ok(())
    }

    async fn start(&self, id: PlacementGroupId) -> Result<Held, StartError> {
        let tasks = Tasks::new();
        let (starter, world) = (&self.starter, &self.starter.world);
        let (first, groups) = self.metadata.group.read(|machine| {
            let image = machine.image();
            (starter.founders(id, image), image.groups().len())
        });
        let machine = DataMachine::new(starter.identity.cluster, id);
        let started = starter
            .start_group(id, machine, groups, first?, &tasks)
            .await?;
        let config = DataGroupConfig {
            disk_cache_bytes: 16 << 20,
            ..DataGroupConfig::default()
        };
        let reader = Arc::clone(&self.store.reader);
        let clock = Arc::clone(&world.clock);
        let group = DataGroup::start(id, config, started.group, reader, clock, &tasks);
        let raft_group = group.group();
        if starter.peers.is_some() {
            members::keep(id, raft_group, &self.metadata, &tasks);
            leaders::spread(
                id,
                raft_group,
                &self.metadata.group,
                starter.identity,
                &self.fit,
                &tasks,
            );
            leaders::give_away(id, raft_group, &self.fit, &tasks);
        }
        let tier = &starter.config.tier;
        let offload_config = OffloadConfig {
            cut_bytes: tier.cut_bytes,
            cut_interval: Duration::from_millis(tier.cut_interval_ms),
            local_bytes: tier.local_bytes,
            upload_bytes_per_second: self.store.upload_bytes_per_second(tier),
        };
        let offload = Offload::start(
            offload_config,
            group.clone(),
            self.guard.clone(),
            Arc::clone(&world.clock),
            Arc::clone(&world.random),
            &tasks,
        );
        self.offloads.insert(id, offload);
        self.coordinators
            .insert(id, self.coordinator(&group, &tasks));
        self.router.hold(group.clone());
        Ok(Held {
            group,
            registered: started.registered,
            tasks,
        })
    }

    fn coordinator(&self, group: &DataGroup, tasks: &Tasks) -> Coordinator {
        let (config, world) = (&self.starter.config, &self.starter.world);
        let membership = MembershipConfig {
            initial_delay_ms: config.groups.initial_rebalance_delay_ms,
            ..MembershipConfig::default()
        };
        let parts = CoordinatorParts {
            log: Arc::new(GroupLogOf(group.clone())),
            check: Arc::new(CommitBounds(self.router.clone())),
            leadership: group.group().leadership(),
            clock: Arc::clone(&world.clock),
            random: Arc::clone(&world.random),
            tasks: tasks.clone(),
        };
        let config = CoordinatorConfig {
            membership,
            ..CoordinatorConfig::default()
        };
        Coordinator::start(config, parts)
    }

    async fn stop_one(&self, id: PlacementGroupId, mut held: Held) {
        self.router.let_go(id);
        self.offloads.remove(id);
        self.coordinators.remove(id);
        held.registered = None;
        held.tasks.stop().await;
        held.group.group().stop().await;
    }

    /// Stops all replicas.
    pub(super) async fn stop(&self) {
        let mut held = self.held.lock().await;
        while let Some((id, replica)) = held.pop_first() {
            self.stop_one(id, replica).await;
        }
    }
}
