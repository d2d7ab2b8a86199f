//! The placement groups of a node: the metadata group first, then the data groups that it says this broker holds.
//!
//! Owns: [`NodeGroups`], the order of their start and stop.
//! Not here: one group's parts (`starter.rs`), coming and going of replicas (`host.rs`), setting a cluster up (`setup.rs`).

mod host;
mod setup;
mod starter;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::World;
use super::error::{Ended, StartError};
use super::fitness::{Exchange, Fit, FitnessService, SERVICE_FITNESS};
use super::formation::StandingWatch;
use super::identity::Identity;
use super::leaders::{self, hand_over_to_stop};
use super::lost;
use super::members;
use super::peers::{Peers, SERVICE_ENDS, SERVICE_METADATA};
use super::refill::{InPart, Mark, admit_damaged};
use super::store::NodeStore;
use super::store_mark::{self, Marking};
use crate::config::Config;
use crate::coordinator::service::Coordinator;
use crate::datagroup::batch_bytes_in;
use crate::metadata::MetadataMachine;
use crate::offload::{Offload, StoreGuard, keep_metadata};
use crate::peer::Registered;
use crate::placement::{Group, GroupMap};
use crate::router::{
    BrokerSessions, Heartbeats, LeadersElsewhere, MetadataClient, MetadataLink, MetadataService,
    Router,
};
use host::Host;
use starter::Starter;
use tidelog_env::Tasks;
use tidelog_model::PlacementGroupId;
use tokio::sync::watch;

/// A broker that has heard no leader of metadata for so many sessions (30 s) asks others what it is. A leader is elected sooner.
const SESSIONS_SILENT: u32 = 5;

/// The groups of a node and what drives them.
pub(super) struct NodeGroups {
    pub(super) metadata: Group<MetadataMachine>,
    pub(super) offloads: GroupMap<Offload>,
    pub(super) router: Router,
    pub(super) coordinators: GroupMap<Coordinator>,
    pub(super) store: StoreGuard,
    pub(super) fit: Fit,
    client: MetadataClient,
    host: Arc<Host>,
    registered: Option<Registered>,
}

impl NodeGroups {
    /// Tells the others from now on that this broker serves. `None` in a cluster of one, where nobody asks.
    pub(super) fn start_heartbeats(&self, tasks: &Tasks) -> Option<Heartbeats> {
        let others = self.client.link.is_some();
        let host = Arc::clone(&self.host);
        let ended = move |standing| host.end(standing);
        others.then(|| Heartbeats::start(self.client.clone(), ended, tasks))
    }

    /// Lets others lead what this broker leads. Returns when they do, or after some seconds.
    pub(super) async fn hand_over(&self) {
        let groups: Vec<_> = self.router.data_groups().collect();
        let fit = &self.fit;
        let data = groups
            .iter()
            .map(|group| hand_over_to_stop(group.group(), fit));
        futures::future::join_all(data).await;
        hand_over_to_stop(&self.metadata, fit).await;
    }

    /// Stops every group; the metadata group last. Peers reach none of them before.
    pub(super) async fn stop(mut self) {
        self.host.stop().await;
        self.registered = None;
        self.metadata.stop().await;
    }
}

/// What the groups are started with.
pub(super) struct Parts<'a> {
    pub(super) config: &'a Config,
    pub(super) world: &'a World,
    pub(super) identity: Identity,
    pub(super) peers: Option<&'a Arc<Peers>>,
    /// Groups are damaged, and this broker runs without them.
    pub(super) in_part: Option<&'a Mark>,
    pub(super) store: &'a Arc<NodeStore>,
    pub(super) fatal: &'a watch::Sender<Option<Ended>>,
    pub(super) refusing: &'a Arc<AtomicBool>,
    pub(super) tasks: &'a Tasks,
}

/// The metadata group as this broker uses it, and for others that send their changes here.
fn metadata_client(parts: &Parts<'_>, group: &Group<MetadataMachine>) -> MetadataClient {
    let world = parts.world;
    let session = Duration::from_millis(parts.config.cluster.session_ms);
    let sessions = BrokerSessions::new(session);
    let link = parts.peers.map(|peers| {
        peers.book.know(group);
        let service =
            MetadataService::new(group.clone(), sessions.clone(), Arc::clone(&world.clock));
        peers.services.register(SERVICE_METADATA, Arc::new(service));
        Arc::new(MetadataLink {
            transport: peers.transport.clone(),
            service: SERVICE_METADATA,
            ends: SERVICE_ENDS,
            brokers: Arc::clone(&peers.book) as _,
        })
    });
    MetadataClient {
        node: parts.identity.node,
        raft_node: parts.identity.raft_node,
        group: group.clone(),
        sessions,
        link,
        clock: Arc::clone(&world.clock),
        random: Arc::clone(&world.random),
    }
}

/// Starts the groups. Returns when this broker's part of the cluster works; what a broker that was just taken in shall hold is still on
/// its way then. After an error none of them runs.
pub(super) async fn start(parts: Parts<'_>) -> Result<NodeGroups, StartError> {
    let starter = Starter::new(&parts)?;
    let first = starter.record_members();
    let machine = MetadataMachine::new();
    let started = starter
        .start_group(PlacementGroupId::METADATA, machine, 1, first, parts.tasks)
        .await?;
    let metadata = started.group;
    let client = metadata_client(&parts, &metadata);
    let elsewhere = LeadersElsewhere::default();
    let batch_bytes = batch_bytes_in(parts.config.log.file_bytes);
    let router = Router::new(client.clone(), elsewhere.clone(), batch_bytes);
    router.withhold(starter.withheld.clone());
    let marked = metadata.clone();
    let guard = StoreGuard::new(parts.store.tier.clone(), move || {
        marked.read(|machine| machine.image().store())
    });
    let store = (Arc::clone(parts.store), guard.clone());
    let host = Arc::new(Host::new(starter, store, client.clone(), router.clone()));
    let begun = begin(&parts, &client, &host, &router, &elsewhere).await;
    let groups = NodeGroups {
        metadata,
        offloads: host.offloads.clone(),
        router,
        coordinators: host.coordinators.clone(),
        store: guard,
        fit: host.fit.clone(),
        client,
        host,
        registered: started.registered,
    };
    if let Err(error) = begun {
        // In the order of a stop: who uses a group that is gone says so as an error.
        parts.tasks.stop().await;
        if let Some(peers) = parts.peers {
            peers.stop().await;
        }
        groups.stop().await;
        return Err(error);
    }
    Ok(groups)
}

/// A broker that runs in part asks to be refilled. Before it runs any data group: whoever remembers that it had stopped for that knows then that it runs.
async fn ask_in_part(parts: &Parts<'_>, peers: &Arc<Peers>, client: &MetadataClient) {
    let Some(mark) = parts.in_part else {
        return;
    };
    let asks = InPart {
        mark: mark.clone(),
        node: parts.identity.node,
        peers: Arc::clone(peers),
        zone: parts.config.node.zone.clone(),
        peer: parts.config.peer_address().to_owned(),
        session: client.session(),
        health: parts.store.health.clone(),
        random: Arc::clone(&parts.world.random),
        fatal: parts.fatal.clone(),
    };
    asks.start(parts.tasks).await;
}

/// Everything after the metadata group runs.
async fn begin(
    parts: &Parts<'_>,
    client: &MetadataClient,
    host: &Arc<Host>,
    router: &Router,
    elsewhere: &LeadersElsewhere,
) -> Result<(), StartError> {
    let (metadata, metadata_id) = (&client.group, PlacementGroupId::METADATA);
    setup::bootstrap(parts, client).await?;
    let (tasks, random) = (parts.tasks, &parts.world.random);
    if let Some(peers) = parts.peers {
        peers.answer_for_led(router);
        peers.ask_leaders(router, elsewhere, Arc::clone(random), tasks);
        members::keep(metadata_id, metadata, client, tasks);
        let (own, fit) = (parts.identity, &host.fit);
        leaders::spread(metadata_id, metadata, metadata, own, fit, tasks);
        leaders::give_away(metadata_id, metadata, fit, tasks);
        members::plan(client, tasks);
        admit_damaged(peers, client, tasks);
        lost::watch(peers, client, router, tasks);
        client.watch_brokers(tasks);
        ask_in_part(parts, peers, client).await;
    }
    host.start_all().await?;
    if parts.peers.is_none() {
        let reconciled = router.reconcile().await;
        reconciled.map_err(|error| StartError::Metadata(error.to_string()))?;
    }
    router.start_reconcile(tasks);
    leaders::told::tell(router, tasks);
    host.watch(tasks);
    if let Some(peers) = parts.peers {
        let watch = StandingWatch {
            transport: peers.transport.clone(),
            book: Arc::clone(&peers.book),
            seeds: parts.config.seeds(),
            metadata: metadata.clone(),
            own: parts.identity,
            random: Arc::clone(random),
            silence: SESSIONS_SILENT * client.session(),
        };
        let host = Arc::clone(host);
        watch.start(move |standing| host.end(standing), tasks);
    }
    let guard = &host.guard;
    keep_metadata(metadata, guard, tasks);
    let marking = Marking {
        guard: guard.clone(),
        url: parts.store.url.clone(),
        health: parts.store.health.clone(),
        client: client.clone(),
        router: router.clone(),
    };
    let exchange = parts.peers.map(|peers| {
        let service = FitnessService::new(host.fit.clone(), marking.clone());
        peers.services.register(SERVICE_FITNESS, Arc::new(service));
        let exchange = Exchange {
            fit: host.fit.clone(),
            transport: peers.transport.clone(),
            book: Arc::clone(&peers.book),
            random: Arc::clone(random),
        };
        exchange.start(tasks);
        exchange
    });
    store_mark::start(marking, exchange, tasks);
    Ok(())
}
