//! The listeners of a node: Kafka and admin. Opened last, when every group has recovered.

use std::collections::BTreeSet;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::World;
use super::error::StartError;
use super::groups::NodeGroups;
use super::identity::Identity;
use super::peers::{Peers, SERVICE_FLUSH, SERVICE_TIER};
use super::request_memory;
use super::store::NodeStore;
use crate::admin::{self, AdminServer, AdminState, FlushLink, FlushService, Health, TierService};
use crate::api::{AnswerMemory, ApiConfig, Broker};
use crate::config::Config;
use crate::net::{NetConfig, NetMetrics, NetServer};
use crate::observe::Metrics;
use crate::router::Router;
use crate::wire::FrameLimits;
use futures::FutureExt;
use tidelog_archive::{ArchiveConfig, Archiver};
use tidelog_env::Tasks;
use tidelog_model::NodeId;
use tokio::time::Instant;

/// How long requests in work may take to end when the node stops.
const DRAIN: Duration = Duration::from_secs(5);
/// Pause before the archive's loop begins anew after a panic.
const ARCHIVE_RESTART_PAUSE: Duration = Duration::from_secs(5);

/// Running listeners.
pub(super) struct Listeners {
    kafka: NetServer,
}

impl Listeners {
    pub(super) async fn stop(&self) {
        self.kafka.stop(DRAIN).await;
    }
}

/// What the listeners serve.
pub(super) struct Served<'a> {
    pub(super) config: &'a Config,
    pub(super) world: &'a World,
    pub(super) identity: Identity,
    pub(super) peers: Option<&'a Arc<Peers>>,
    pub(super) store: &'a NodeStore,
    pub(super) groups: &'a NodeGroups,
    pub(super) refusing: Arc<AtomicBool>,
    pub(super) admin: &'a AdminServer,
    pub(super) tasks: &'a Tasks,
}

pub(super) fn resolve(address: &str, key: &'static str) -> Result<SocketAddr, StartError> {
    let wrong = || StartError::Address {
        address: address.to_owned(),
        key,
    };
    address
        .to_socket_addrs()
        .map_err(|_| wrong())?
        .next()
        .ok_or_else(wrong)
}

pub(super) fn split(address: &str, key: &'static str) -> Result<Option<(String, u16)>, StartError> {
    if address.is_empty() {
        return Ok(None);
    }
    let wrong = || StartError::Address {
        address: address.to_owned(),
        key,
    };
    let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
    let port = port.parse().map_err(|_| wrong())?;
    Ok(Some((host.trim_matches(['[', ']']).to_owned(), port)))
}

/// What clients are told of this broker. Alone: what they dialled, unless configured.
fn advertised(config: &Config, several: bool) -> Result<Option<(String, u16)>, StartError> {
    let told = match config.kafka_address() {
        Some(address) if several => address,
        _ => &config.kafka.advertised,
    };
    split(told, "kafka.advertised")
}

fn metrics(net: &NetMetrics, peers: Option<&Arc<Peers>>) -> Arc<Metrics> {
    Arc::new(Metrics::new(|registry| {
        net.register(registry);
        if let Some(peers) = peers {
            peers.formation.register(registry);
            peers.metrics.register(registry);
            peers.tls.register(registry);
        }
    }))
}

fn net_config(config: &Config) -> Result<NetConfig, StartError> {
    let mut net = NetConfig::new(resolve(&config.kafka.listen, "kafka.listen")?);
    net.frames = FrameLimits::standard(config.kafka.max_request_bytes);
    net.connections_max = config.kafka.max_connections;
    Ok(net)
}

/// Opens the admin listener, which answers health alone until everything is there.
pub(super) async fn open_admin(
    config: &Config,
    world: &World,
    health: &Health,
    tasks: &Tasks,
) -> Result<AdminServer, StartError> {
    let address = resolve(&config.admin.listen, "admin.listen")?;
    let failed = |error| StartError::Listen {
        address: config.admin.listen.clone(),
        key: "admin.listen",
        error,
    };
    let listener = world.network.listen(address).await.map_err(failed)?;
    admin::serve(listener, health.clone(), tasks).map_err(failed)
}

/// Opens the Kafka listener, and all of the admin routes.
pub(super) async fn serve(served: Served<'_>) -> Result<(SocketAddr, Listeners), StartError> {
    let Served {
        config,
        world,
        identity,
        peers,
        store,
        groups,
        refusing,
        admin,
        tasks,
    } = served;
    let net_metrics = NetMetrics::default();
    let metrics = metrics(&net_metrics, peers);
    let broker = Broker {
        router: groups.router.clone(),
        coordinators: groups.coordinators.clone(),
        metrics: Arc::clone(&metrics),
        clock: Arc::clone(&world.clock),
        refusing,
        answers: AnswerMemory::default(),
        config: Arc::new(ApiConfig {
            cluster: identity.cluster,
            zone: config.node.zone.clone(),
            advertised: advertised(config, peers.is_some())?,
            auto_create_topics: config.kafka.auto_create_topics,
            default_partitions: config.kafka.default_partitions,
        }),
    };
    let kafka = NetServer::start(
        net_config(config)?,
        world.network.as_ref(),
        Arc::new(broker),
        net_metrics,
    )
    .await?;
    let kafka_address = kafka.local_addr();
    let flushes = FlushService {
        router: groups.router.clone(),
        offloads: groups.offloads.clone(),
    };
    let state = AdminState {
        router: groups.router.clone(),
        offloads: groups.offloads.clone(),
        flush_link: flush_link(peers, &flushes),
        flushes,
        archiver: start_archive(config, world, store, groups, tasks),
        store: groups.store.clone(),
        reader: Arc::clone(&store.reader),
        ask_members: ask_members(peers, &groups.router),
        ask_without: ask_without(peers, &groups.router),
        ask_replicas: ask_replicas(peers, &groups.router),
        health: store.health.clone(),
        metrics,
        tasks: tasks.clone(),
        started: Instant::now(),
        identity: Arc::new(admin::Identity {
            cluster_id: identity.cluster.to_string(),
            cluster_name: config.cluster.name.clone(),
            zone: config.node.zone.clone(),
            kafka: kafka_address.to_string(),
            admin: admin.address.to_string(),
        }),
    };
    let memory = kafka.memory_watch();
    request_memory::watch(move || memory.shortage(), &store.health, tasks);
    admin::watch_groups(&groups.router, &store.health, tasks);
    admin.open(state);
    Ok((kafka_address, Listeners { kafka }))
}

/// Answers flushes and questions of other brokers, and knows where to send one.
fn flush_link(peers: Option<&Arc<Peers>>, flushes: &FlushService) -> Option<FlushLink> {
    let peers = peers?;
    let service = Arc::new(flushes.clone());
    peers.services.register(SERVICE_FLUSH, service);
    let tier = TierService(flushes.router.clone());
    peers.services.register(SERVICE_TIER, Arc::new(tier));
    Some(FlushLink {
        transport: peers.transport.clone(),
        service: SERVICE_FLUSH,
        tier: SERVICE_TIER,
        brokers: Arc::clone(&peers.book) as _,
    })
}

/// Asks all members what they know of the others.
fn ask_members(peers: Option<&Arc<Peers>>, router: &Router) -> admin::AskMembers {
    let (peers, router) = (peers.cloned(), router.clone());
    if let Some(peers) = &peers {
        peers.formation.know(&router);
    }
    Arc::new(move || {
        let (peers, router) = (peers.clone(), router.clone());
        async move {
            let Some(peers) = peers else {
                return Vec::new();
            };
            let asked = peers
                .formation
                .ask_members(&peers.transport, live_others(&router));
            let shown = asked
                .await
                .into_iter()
                .map(|candidate| admin::WaitingBroker {
                    withheld: candidate.withheld(),
                    node: candidate.node(),
                    raft_node: candidate.raft_node(),
                    damaged: candidate.damaged.is_some(),
                    zone: candidate.zone,
                    peer: candidate.peer,
                    refused: candidate.refused,
                });
            shown.collect()
        }
        .boxed()
    })
}

/// Asks all members which groups need a Raft node not.
fn ask_without(peers: Option<&Arc<Peers>>, router: &Router) -> admin::AskWithout {
    let (peers, router) = (peers.cloned(), router.clone());
    Arc::new(move |gone| {
        let (peers, router) = (peers.clone(), router.clone());
        async move {
            let Some(peers) = peers else {
                return BTreeSet::new();
            };
            let others = live_others(&router);
            let asked = peers.formation.ask_without(&peers.transport, others, gone);
            asked.await
        }
        .boxed()
    })
}

/// Asks all members for their replicas. Answers of those count that are members, under the Raft nodes that they speak for.
fn ask_replicas(peers: Option<&Arc<Peers>>, router: &Router) -> admin::AskReplicas {
    let (peers, router) = (peers.cloned(), router.clone());
    Arc::new(move || {
        let (peers, router) = (peers.clone(), router.clone());
        async move {
            let mut said = admin::ReplicasSaid::default();
            let Some(peers) = peers else {
                said.led.extend(router.led_groups());
                return said;
            };
            let asked = peers
                .formation
                .ask_groups(&peers.transport, live_others(&router));
            for told in asked.await {
                let known = router.image(|image| {
                    let member = image.members().get(&told.node);
                    member.is_some_and(|member| member.raft_node == told.raft_node)
                });
                if !known {
                    continue;
                }
                said.led.extend(told.led);
                for group in told.empty {
                    said.empty.entry(group).or_default().insert(told.node);
                }
            }
            said
        }
        .boxed()
    })
}

fn live_others(router: &Router) -> Vec<NodeId> {
    router.image(|image| {
        let members = image.members().keys().copied();
        let live = members.filter(|node| *node != router.node() && image.is_live(*node));
        live.collect()
    })
}

/// The archive, which any broker can be asked to run; by itself it runs where the metadata group is led.
fn start_archive(
    config: &Config,
    world: &World,
    store: &NodeStore,
    groups: &NodeGroups,
    tasks: &Tasks,
) -> Option<Archiver> {
    if !config.archive.enable {
        return None;
    }
    let mut archive = ArchiveConfig::new(store.root_uri.clone());
    archive.interval = Duration::from_millis(config.archive.interval_ms);
    let interval = archive.interval;
    let (clock, random) = (Arc::clone(&world.clock), Arc::clone(&world.random));
    let archiver = Archiver::new(archive, store.tier.clone(), clock, Arc::clone(&random));
    let (running, metadata) = (archiver.clone(), groups.metadata.clone());
    let guard = groups.store.clone();
    tasks.supervise("archive", ARCHIVE_RESTART_PAUSE, move || {
        let (archiver, metadata) = (running.clone(), metadata.clone());
        let guard = guard.clone();
        let random = Arc::clone(&random);
        async move {
            loop {
                tokio::time::sleep(random.jitter(interval)).await;
                // One broker is enough. Two for a moment do no harm: a commit asserts what it was made on.
                if !metadata.is_leader() {
                    continue;
                }
                // Another store has no manifests, or those of somebody else: nothing is archived from it, nor into it.
                if let Err(error) = guard.check().await {
                    tracing::debug!("the archive waits: {error}");
                    continue;
                }
                match archiver.run_once(None).await {
                    Ok(report) => report
                        .errors
                        .iter()
                        .for_each(|error| tracing::warn!("{error}")),
                    Err(error) => tracing::warn!("{error}"),
                }
            }
        }
    });
    Some(archiver)
}
