//! Starting the placement groups of a node: the metadata group first, then the data groups it names.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::World;
use super::error::StartError;
use super::identity::Identity;
use super::leaders::{self, hand_over};
use super::listeners::split;
use super::peers::{Peers, SERVICE_METADATA};
use super::store::NodeStore;
use crate::config::Config;
use crate::coordinator::membership::MembershipConfig;
use crate::coordinator::service::{Coordinator, CoordinatorConfig, CoordinatorParts};
use crate::datagroup::{DataGroup, DataGroupConfig, DataMachine};
use crate::log::{GroupLog, GroupLogConfig, LogEnv, LogFailure, NoObserver};
use crate::metadata::{Address, MetadataCommand, MetadataMachine, MetadataOutcome};
use crate::offload::{Offload, OffloadConfig, keep_metadata};
use crate::peer::Registered;
use crate::placement::{Group, GroupConfig, Member, NoPeers, ProposeError, StateMachine};
use crate::router::{
    BrokerSessions, CommitBounds, GroupLogOf, Heartbeats, MetadataClient, MetadataLink,
    MetadataService, Router,
};
use parking_lot::Mutex;
use tidelog_env::Tasks;
use tidelog_model::PlacementGroupId;
use tokio::sync::watch;
use tokio::time::Instant;

/// How long the only voter of a group may take to lead it. It campaigns at once; this is for a very slow disk.
const LEAD_WITHIN: Duration = Duration::from_secs(60);
/// Pause between two tries to set the cluster up while nobody leads, with jitter.
const SET_UP_PAUSE: Duration = Duration::from_millis(300);
/// One line per this long about a cluster without a majority.
const SAY_PAUSE: Duration = Duration::from_secs(10);

/// The groups of a node and what drives them.
pub(super) struct NodeGroups {
    pub(super) metadata: Group<MetadataMachine>,
    client: MetadataClient,
    pub(super) data: BTreeMap<PlacementGroupId, DataGroup>,
    pub(super) offloads: Arc<BTreeMap<PlacementGroupId, Offload>>,
    pub(super) router: Router,
    pub(super) coordinators: Arc<BTreeMap<PlacementGroupId, Coordinator>>,
    registered: Mutex<Vec<Registered>>,
}

impl NodeGroups {
    /// Lets others lead what this broker leads. Returns when they do, or after some seconds.
    pub(super) async fn hand_over(&self) {
        let data = self.data.values().map(|group| hand_over(group.group()));
        futures::future::join_all(data).await;
        hand_over(&self.metadata).await;
    }

    /// Tells the others from now on that this broker serves. `None` in a cluster of one, where nobody asks.
    pub(super) fn start_heartbeats(&self, tasks: &Tasks) -> Option<Heartbeats> {
        let others = self.client.link.is_some();
        others.then(|| Heartbeats::start(self.client.clone(), tasks))
    }

    /// Stops every group; the metadata group last. Peers reach none of them before.
    pub(super) async fn stop(&self) {
        self.registered.lock().clear();
        for group in self.data.values() {
            group.group().stop().await;
        }
        self.metadata.stop().await;
    }
}

type DataGroups = (
    BTreeMap<PlacementGroupId, DataGroup>,
    BTreeMap<PlacementGroupId, Offload>,
);

struct Starter<'a> {
    config: &'a Config,
    world: &'a World,
    identity: Identity,
    peers: Option<&'a Peers>,
    registered: Mutex<Vec<Registered>>,
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
        let raft_node = self.identity.raft_node;
        let Some(peers) = self.peers else {
            let member = Member {
                broker: self.identity.node,
                address: String::new(),
            };
            let group_config = GroupConfig::alone(id, raft_node, member);
            let group = Group::start(group_config, log, machine, Arc::new(NoPeers)).await?;
            self.watch_fatal(&group);
            group.wait_leader(LEAD_WITHIN).await?;
            return Ok(group);
        };
        let mut group_config = GroupConfig::new(id, raft_node, peers.record.first_members());
        let times = self.config.raft;
        group_config.heartbeat = Duration::from_millis(times.heartbeat_ms);
        group_config.election_min = Duration::from_millis(times.election_min_ms);
        group_config.election_max = Duration::from_millis(times.election_max_ms);
        let group = Group::start(group_config, log, machine, peers.transport.group(id)).await?;
        self.watch_fatal(&group);
        let registered = peers.groups.register(id, group.inbox());
        self.registered.lock().push(registered);
        leaders::spread(
            id,
            &group,
            raft_node,
            &leaders::replicas(&peers.record),
            self.tasks,
        );
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

    /// The metadata group as this broker uses it, and for others that send their changes here.
    fn metadata_client(&self, group: &Group<MetadataMachine>) -> MetadataClient {
        let session = Duration::from_millis(self.config.cluster.session_ms);
        let sessions = BrokerSessions::new(session);
        let link = self.peers.map(|peers| {
            let clock = Arc::clone(&self.world.clock);
            let service = MetadataService::new(group.clone(), sessions.clone(), clock);
            peers.services.register(SERVICE_METADATA, Arc::new(service));
            Arc::new(MetadataLink {
                transport: peers.transport.clone(),
                service: SERVICE_METADATA,
                brokers: peers.targets(self.identity.node),
            })
        });
        MetadataClient {
            node: self.identity.node,
            group: group.clone(),
            sessions,
            link,
            clock: Arc::clone(&self.world.clock),
            random: Arc::clone(&self.world.random),
        }
    }

    async fn bootstrap(
        &self,
        metadata: &MetadataClient,
    ) -> Result<Vec<PlacementGroupId>, StartError> {
        let nodes = match self.peers {
            Some(peers) => peers.record.brokers(),
            None => vec![self.identity.node],
        };
        let groups = (1..=self.config.cluster.data_groups)
            .map(|id| (PlacementGroupId::new(id), nodes.clone()))
            .collect();
        let bootstrap = MetadataCommand::BootstrapCluster {
            cluster: self.identity.cluster,
            name: self.config.cluster.name.clone(),
            groups,
        };
        match self.set_up(metadata, &bootstrap).await? {
            MetadataOutcome::Bootstrapped(cluster) if cluster == self.identity.cluster => {}
            other => {
                return Err(StartError::Metadata(format!(
                    "this directory's log is of another cluster: {other:?}"
                )));
            }
        }
        match self.set_up(metadata, &self.registration()?).await? {
            MetadataOutcome::BrokerRegistered => {}
            other => {
                return Err(StartError::Metadata(format!(
                    "the broker was not registered: {other:?}"
                )));
            }
        }
        let groups: Vec<PlacementGroupId> = metadata
            .group
            .read(|machine| machine.image().groups().keys().copied().collect());
        let wanted = usize::try_from(self.config.cluster.data_groups).unwrap_or(usize::MAX);
        if groups.len() != wanted {
            tracing::warn!(
                "cluster.data-groups = {wanted} has no effect: this cluster was made with {} data groups",
                groups.len()
            );
        }
        Ok(groups)
    }

    fn registration(&self) -> Result<MetadataCommand, StartError> {
        let (mut kafka, mut peer, mut admin) = (None, None, None);
        if self.peers.is_some() {
            let address = |text: &str, key| -> Result<Option<Address>, StartError> {
                let parts = split(text, key)?;
                Ok(parts.map(|(host, port)| Address { host, port }))
            };
            let told = self.config.kafka_address().unwrap_or_default();
            kafka = address(told, "kafka.advertised")?;
            let seeds = self.config.seeds();
            let own = seeds.get(&self.identity.node.get());
            peer = address(own.map_or("", String::as_str), "cluster.seeds")?;
            admin = address(&self.config.admin.listen, "admin.listen")?;
        }
        Ok(MetadataCommand::RegisterBroker {
            node: self.identity.node,
            zone: self.config.node.zone.clone(),
            kafka,
            peer,
            admin,
        })
    }

    /// Proposes a command that may be repeated until it is known to have happened. With several brokers that takes a majority,
    /// for as long as it takes.
    async fn set_up(
        &self,
        metadata: &MetadataClient,
        command: &MetadataCommand,
    ) -> Result<MetadataOutcome, StartError> {
        let mut said = Instant::now();
        loop {
            let error = match metadata.propose(command).await {
                Ok(outcome) => return Ok(outcome),
                Err(error) => error,
            };
            if self.peers.is_none() || matches!(error, ProposeError::Fatal(_)) {
                return Err(StartError::Metadata(error.to_string()));
            }
            if said.elapsed() >= SAY_PAUSE {
                tracing::warn!(
                    "the cluster has no leader for its metadata, is a majority of the brokers up? ({error})"
                );
                said = Instant::now();
            }
            tokio::time::sleep(self.world.random.jitter(SET_UP_PAUSE)).await;
        }
    }

    async fn data_groups(
        &self,
        ids: &[PlacementGroupId],
        store: &NodeStore,
    ) -> Result<DataGroups, StartError> {
        let mut data = BTreeMap::new();
        let mut offloads = BTreeMap::new();
        // All at once: each reads its log, and its peers wait for it.
        let groups = ids.iter().map(|id| self.data_group(*id, store, ids.len()));
        let groups = futures::future::try_join_all(groups).await?;
        for (id, group) in ids.iter().zip(groups) {
            let tier = &self.config.tier;
            let offload_config = OffloadConfig {
                cut_bytes: tier.cut_bytes,
                cut_interval: Duration::from_millis(tier.cut_interval_ms),
                local_bytes: tier.local_bytes,
                upload_bytes_per_second: store.upload_bytes_per_second(tier),
            };
            let offload = Offload::start(
                offload_config,
                group.clone(),
                store.tier.clone(),
                Arc::clone(&self.world.clock),
                Arc::clone(&self.world.random),
                self.tasks,
            );
            offloads.insert(*id, offload);
            data.insert(*id, group);
        }
        Ok((data, offloads))
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
    peers: Option<&Peers>,
    store: &NodeStore,
    fatal: &watch::Sender<Option<String>>,
    tasks: &Tasks,
) -> Result<NodeGroups, StartError> {
    let starter = Starter {
        config,
        world,
        identity,
        peers,
        registered: Mutex::default(),
        fatal,
        tasks,
    };
    let metadata = starter
        .start_group(PlacementGroupId::METADATA, MetadataMachine::new(), 1)
        .await?;
    let client = starter.metadata_client(&metadata);
    let ids = starter.bootstrap(&client).await?;
    if peers.is_some() {
        client.watch_brokers(tasks);
    }
    let (data, offloads) = starter.data_groups(&ids, store).await?;
    let router = Router::new(client.clone(), data.clone());
    if peers.is_none() {
        router
            .reconcile()
            .await
            .map_err(|error| StartError::Metadata(error.to_string()))?;
    }
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
        client,
        data,
        offloads: Arc::new(offloads),
        router,
        coordinators,
        registered: starter.registered,
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
