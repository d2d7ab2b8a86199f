//! Starting the placement groups of a node: the metadata group first, then the data groups it names.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::World;
use super::error::StartError;
use super::identity::Identity;
use super::store::NodeStore;
use crate::config::Config;
use crate::coordinator::membership::MembershipConfig;
use crate::coordinator::service::{Coordinator, CoordinatorConfig, CoordinatorParts};
use crate::datagroup::{DataGroup, DataGroupConfig, DataMachine};
use crate::log::{GroupLog, GroupLogConfig, LogEnv, LogFailure, NoObserver};
use crate::metadata::{MetadataCommand, MetadataMachine, MetadataOutcome};
use crate::offload::{Offload, OffloadConfig, keep_metadata};
use crate::placement::{Group, GroupConfig, Member, NoPeers, StateMachine};
use crate::router::{CommitBounds, GroupLogOf, Router};
use tidelog_env::Tasks;
use tidelog_model::{PlacementGroupId, TimestampMs};
use tokio::sync::watch;

/// How long the only voter of a group may take to lead it. It campaigns at once; this is for a very slow disk.
const LEAD_WITHIN: Duration = Duration::from_secs(60);

/// The groups of a node and what drives them.
pub(super) struct NodeGroups {
    pub(super) metadata: Group<MetadataMachine>,
    pub(super) data: BTreeMap<PlacementGroupId, DataGroup>,
    pub(super) offloads: Arc<BTreeMap<PlacementGroupId, Offload>>,
    pub(super) router: Router,
    pub(super) coordinators: Arc<BTreeMap<PlacementGroupId, Coordinator>>,
}

impl NodeGroups {
    /// Stops every group; the metadata group last.
    pub(super) async fn stop(&self) {
        for group in self.data.values() {
            group.group().stop().await;
        }
        self.metadata.stop().await;
    }
}

struct Starter<'a> {
    config: &'a Config,
    world: &'a World,
    identity: Identity,
    fatal: &'a watch::Sender<Option<String>>,
    tasks: &'a Tasks,
}

impl Starter<'_> {
    async fn start_group<M: StateMachine>(
        &self,
        id: PlacementGroupId,
        machine: M,
        groups: usize,
    ) -> Result<Group<M>, StartError> {
        let dir = self
            .config
            .node
            .data_dir
            .join("groups")
            .join(id.to_string());
        let log = self
            .open_log(id, &dir, groups)
            .await
            .map_err(|error| StartError::Log { group: id, error })?;
        let member = Member {
            broker: self.identity.node,
            address: String::new(),
        };
        let group_config = GroupConfig::alone(id, self.identity.raft_node, member);
        let group = Group::start(group_config, log, machine, Arc::new(NoPeers)).await?;
        self.watch_fatal(&group);
        group.wait_leader(LEAD_WITHIN).await?;
        Ok(group)
    }

    async fn open_log(
        &self,
        id: PlacementGroupId,
        dir: &Path,
        groups: usize,
    ) -> Result<GroupLog, crate::log::LogError> {
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
        let fatal = self.fatal.clone();
        let env = LogEnv {
            disk: Arc::clone(&self.world.disk),
            random: Arc::clone(&self.world.random),
            tasks: self.tasks.clone(),
            fatal: Arc::new(move |failure: &LogFailure| {
                fatal.send_replace(Some(format!("log of group {id}: {failure}")));
            }),
            observer: Arc::new(NoObserver),
        };
        GroupLog::open(config, env).await
    }

    fn watch_fatal<M: StateMachine>(&self, group: &Group<M>) {
        let mut stopped = group.fatal();
        let fatal = self.fatal.clone();
        self.tasks.spawn("group-watch", async move {
            if let Ok(reason) = stopped.wait_for(Option::is_some).await {
                fatal.send_replace(reason.clone());
            }
        });
    }

    async fn bootstrap(
        &self,
        metadata: &Group<MetadataMachine>,
    ) -> Result<Vec<PlacementGroupId>, StartError> {
        let nodes = vec![self.identity.node];
        let groups = (1..=self.config.cluster.data_groups)
            .map(|id| (PlacementGroupId::new(id), nodes.clone()))
            .collect();
        let bootstrap = MetadataCommand::BootstrapCluster {
            cluster: self.identity.cluster,
            name: self.config.cluster.name.clone(),
            groups,
        };
        match self.metadata(metadata, &bootstrap).await? {
            MetadataOutcome::Bootstrapped(cluster) if cluster == self.identity.cluster => {}
            other => {
                return Err(StartError::Metadata(format!(
                    "this directory's log is of another cluster: {other:?}"
                )));
            }
        }
        let register = MetadataCommand::RegisterBroker {
            node: self.identity.node,
            zone: self.config.node.zone.clone(),
            kafka: None,
            peer: None,
            admin: None,
        };
        match self.metadata(metadata, &register).await? {
            MetadataOutcome::BrokerRegistered => {}
            other => {
                return Err(StartError::Metadata(format!(
                    "the broker was not registered: {other:?}"
                )));
            }
        }
        let groups: Vec<PlacementGroupId> =
            metadata.read(|machine| machine.image().groups().keys().copied().collect());
        let wanted = usize::try_from(self.config.cluster.data_groups).unwrap_or(usize::MAX);
        if groups.len() != wanted {
            tracing::warn!(
                "cluster.data-groups = {wanted} has no effect: this cluster was made with {} data groups",
                groups.len()
            );
        }
        Ok(groups)
    }

    async fn metadata(
        &self,
        group: &Group<MetadataMachine>,
        command: &MetadataCommand,
    ) -> Result<MetadataOutcome, StartError> {
        let stamp = TimestampMs::new(self.world.clock.now_ms());
        let proposed = group.propose(command.encode(stamp)).await;
        proposed
            .map(|(_, outcome)| outcome)
            .map_err(|error| StartError::Metadata(error.to_string()))
    }

    async fn data_group(
        &self,
        id: PlacementGroupId,
        store: &NodeStore,
        groups: usize,
    ) -> Result<DataGroup, StartError> {
        let machine = DataMachine::new(self.identity.cluster, id);
        let group = self.start_group(id, machine, groups).await?;
        let config = DataGroupConfig {
            disk_cache_bytes: 16 << 20,
            ..DataGroupConfig::default()
        };
        let reader = Arc::clone(&store.reader);
        let clock = Arc::clone(&self.world.clock);
        Ok(DataGroup::start(
            id, config, group, reader, clock, self.tasks,
        ))
    }
}

pub(super) async fn start(
    config: &Config,
    world: &World,
    identity: Identity,
    store: &NodeStore,
    fatal: &watch::Sender<Option<String>>,
    tasks: &Tasks,
) -> Result<NodeGroups, StartError> {
    let starter = Starter {
        config,
        world,
        identity,
        fatal,
        tasks,
    };
    let metadata = starter
        .start_group(PlacementGroupId::METADATA, MetadataMachine::new(), 1)
        .await?;
    let ids = starter.bootstrap(&metadata).await?;
    let mut data = BTreeMap::new();
    let mut offloads = BTreeMap::new();
    for id in &ids {
        let group = starter.data_group(*id, store, ids.len()).await?;
        let offload_config = OffloadConfig {
            cut_bytes: config.tier.cut_bytes,
            cut_interval: Duration::from_millis(config.tier.cut_interval_ms),
            local_bytes: config.tier.local_bytes,
            upload_bytes_per_second: store.upload_bytes_per_second(&config.tier),
        };
        let (clock, random) = (Arc::clone(&world.clock), Arc::clone(&world.random));
        let offload = Offload::start(
            offload_config,
            group.clone(),
            store.tier.clone(),
            clock,
            random,
            tasks,
        );
        offloads.insert(*id, offload);
        data.insert(*id, group);
    }
    let router = Router::new(
        identity.node,
        metadata.clone(),
        data.clone(),
        Arc::clone(&world.clock),
        Arc::clone(&world.random),
    );
    router
        .reconcile()
        .await
        .map_err(|error| StartError::Metadata(error.to_string()))?;
    router.start_reconcile(tasks);
    keep_metadata(&metadata, &store.tier, tasks);
    let coordinators = data.values().map(|group| {
        (
            group.id(),
            coordinator(config, world, group, &router, tasks),
        )
    });
    let coordinators = Arc::new(coordinators.collect());
    Ok(NodeGroups {
        metadata,
        data,
        offloads: Arc::new(offloads),
        router,
        coordinators,
    })
}

fn coordinator(
    config: &Config,
    world: &World,
    group: &DataGroup,
    router: &Router,
    tasks: &Tasks,
) -> Coordinator {
    let membership = MembershipConfig {
        initial_delay_ms: config.groups.initial_rebalance_delay_ms,
        ..MembershipConfig::default()
    };
    let parts = CoordinatorParts {
        log: Arc::new(GroupLogOf(group.clone())),
        check: Arc::new(CommitBounds(router.clone())),
        leadership: group.group().leadership(),
        clock: Arc::clone(&world.clock),
        random: Arc::clone(&world.random),
        tasks: tasks.clone(),
    };
    Coordinator::start(
        CoordinatorConfig {
            membership,
            ..CoordinatorConfig::default()
        },
        parts,
    )
}
