//! The other brokers: the listener they reach, and the transport that reaches them. Only in clusters of several brokers.
//!
//! Owns: wiring of `peer` for this node, the numbers of its services, asking others who leads what.
//! Not here: bytes between brokers (`peer`), forming a cluster (`formation`).
//! Spec: docs/protocols/peer.md

use super::World;
use super::book::Book;
use super::error::StartError;
use super::formation::{Asker, Formation, Formed, Founding};
use super::identity::Directory;
use super::listeners::{resolve, split};
use super::mistakes;
use super::refill::Marked;
use crate::admin::Health;
use crate::config::Config;
use crate::peer::{
    CallService, CallServices, Caller, PeerConfig, PeerGroups, PeerIdentity, PeerListener,
    PeerListenerConfig, PeerListenerParts, PeerMetrics, PeerTls, PeerTlsCheck, PeerTransport,
    PeerTransportParts,
};
use crate::router::{
    BrokerBook, EndsService, LeadersElsewhere, Router, decode_leaders, encode_leaders,
};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::{Random, Tasks};
use tidelog_model::NodeId;

/// Service of cluster formation.
pub(super) const SERVICE_FORMATION: u8 = 1;
/// Service of metadata forwarding.
pub(super) const SERVICE_METADATA: u8 = 2;
/// Service of flushes.
pub(super) const SERVICE_FLUSH: u8 = 3;
/// Service of what leaders have of their partitions.
pub(super) const SERVICE_TIER: u8 = 4;

/// Service of who leads what.
pub(super) const SERVICE_LEADERS: u8 = 16;
/// Service of the ends of partitions.
pub(super) const SERVICE_ENDS: u8 = 17;
/// How often others are asked who leads the groups that are not held here; half a second late is soon enough after an election.
const LEADERS_PAUSE: Duration = Duration::from_millis(500);
/// How long one may take to answer.
const LEADERS_WITHIN: Duration = Duration::from_secs(1);

/// The connections with the other brokers, and the record of the cluster they make.
pub(super) struct Peers {
    pub(super) transport: PeerTransport,
    pub(super) groups: PeerGroups,
    pub(super) services: CallServices,
    pub(super) metrics: PeerMetrics,
    pub(super) tls: PeerTls,
    pub(super) record: Founding,
    pub(super) book: Arc<Book>,
    pub(super) formation: Formation,
    listener: PeerListener,
    tasks: Tasks,
}

impl Peers {
    /// Opens the listener and waits until this broker is in a cluster; where it is `marked` for that, until it is taken in anew. `None`: not as it is marked.
    pub(super) async fn start(
        config: &Config,
        world: &World,
        health: &Health,
        directory: &mut Directory,
        marked: Marked<'_>,
    ) -> Result<Option<Self>, StartError> {
        let seeds = config.seeds();
        check_named(&seeds, directory)?;
        let speaker = speaker(directory, marked);
        let identity = Arc::new(identity(config, world, &speaker));
        let at = seeds.into_iter();
        let at = at.map(|(id, address)| (NodeId::new(id), address));
        let book = Arc::new(Book::new(at.collect()));
        let (metrics, tasks) = (PeerMetrics::default(), Tasks::new());
        let tls = load_tls(config, world)?;
        let parts = PeerTransportParts {
            identity: Arc::clone(&identity),
            network: Arc::clone(&world.network),
            random: Arc::clone(&world.random),
            book: Arc::clone(&book) as _,
            tls: tls.clone(),
            metrics: metrics.clone(),
            tasks: tasks.clone(),
        };
        let transport = PeerTransport::new(PeerConfig::default(), parts);
        let (groups, services) = (PeerGroups::new(), CallServices::new());
        let formation = Formation::new(config, &speaker, Arc::clone(&book));
        services.register(SERVICE_FORMATION, Arc::new(formation.clone()));
        let listen = resolve(&config.peer.listen, "peer.listen")?;
        let parts = PeerListenerParts {
            identity: Arc::clone(&identity),
            network: Arc::clone(&world.network),
            groups: groups.clone(),
            services: services.clone(),
            metrics: metrics.clone(),
            tls: tls.clone(),
        };
        let listener = PeerListener::start(PeerListenerConfig::new(listen), parts).await?;
        tls.watch(&tasks);
        mistakes::watch(&transport, &book, health, &tasks);
        let asker = Asker {
            config,
            world,
            transport: &transport,
            formation: &formation,
            health,
            marked,
        };
        let formed = asker.form(directory).await;
        let Ok(Formed::In(record)) = formed else {
            listener.stop().await;
            tasks.stop().await;
            return formed.map(|_| None);
        };
        identity.join(record.cluster());
        book.join(record.clone());
        Ok(Some(Self {
            transport,
            groups,
            services,
            metrics,
            tls,
            record,
            book,
            formation,
            listener,
            tasks,
        }))
    }

    /// Tells others who leads the groups of this broker, and where the partitions end that it leads.
    pub(super) fn answer_for_led(&self, router: &Router) {
        let service = LeadersService(router.clone());
        self.services.register(SERVICE_LEADERS, Arc::new(service));
        let service = EndsService(router.clone());
        self.services.register(SERVICE_ENDS, Arc::new(service));
    }

    /// Asks members who leads the groups that this broker does not hold, while there are any.
    pub(super) fn ask_leaders(
        &self,
        router: &Router,
        elsewhere: &LeadersElsewhere,
        random: Arc<dyn Random>,
        tasks: &Tasks,
    ) {
        let (transport, book) = (self.transport.clone(), Arc::clone(&self.book));
        let (router, elsewhere) = (router.clone(), elsewhere.clone());
        tasks.supervise("leaders-elsewhere", LEADERS_PAUSE, move || {
            let (transport, book) = (transport.clone(), Arc::clone(&book));
            let (router, elsewhere) = (router.clone(), elsewhere.clone());
            let random = Arc::clone(&random);
            async move {
                loop {
                    ask_once(&transport, &book, &router, &elsewhere).await;
                    tokio::time::sleep(random.jitter(LEADERS_PAUSE)).await;
                }
            }
        });
    }

    /// Ends every connection. What was in work may have happened.
    pub(super) async fn stop(&self) {
        self.listener.stop().await;
        self.tasks.stop().await;
    }
}

/// One round: whoever holds a group that this broker does not is asked.
async fn ask_once(
    transport: &PeerTransport,
    book: &Book,
    router: &Router,
    elsewhere: &LeadersElsewhere,
) {
    let held = |group| router.data_group(group).is_some();
    let others: BTreeSet<NodeId> = router.image(|image| {
        elsewhere.keep(|group| image.groups().contains_key(&group) && !held(group));
        let missing = image.groups().iter().filter(|(group, _)| !held(**group));
        let holders = missing.flat_map(|(_, nodes)| nodes.iter().copied());
        // This broker is a holder too, while it still starts its replica.
        let others = holders.filter(|node| *node != router.node());
        others.filter(|node| image.is_live(*node)).collect()
    });
    let asked = others.into_iter().filter_map(|node| {
        let target = book.target(node)?;
        Some(async move {
            let request = Bytes::from_static(&[1]);
            let answer = transport.call(&target, SERVICE_LEADERS, request, LEADERS_WITHIN);
            match decode_leaders(&answer.await.ok()?) {
                Ok(said) => Some(said),
                Err(error) => {
                    tracing::debug!(
                        "broker {node} says who leads in words that cannot be read: {error}"
                    );
                    None
                }
            }
        })
    });
    for said in futures::future::join_all(asked).await.into_iter().flatten() {
        elsewhere.note(&said);
    }
}

/// Answers who leads the groups of this broker. The request is one byte, its version.
struct LeadersService(Router);

impl CallService for LeadersService {
    fn call(&self, _: Caller, _: Bytes) -> BoxFuture<'static, Bytes> {
        let groups = self.0.data_groups();
        let known = groups.filter_map(|group| Some((group.id(), self.0.leader(group.id())?)));
        let answer = encode_leaders(&known.collect());
        std::future::ready(answer).boxed()
    }
}

/// For whom it speaks: a damaged broker that runs nothing for whom it wants to be, since who it was takes part in nothing then.
fn speaker(directory: &Directory, marked: Marked<'_>) -> Directory {
    let raft_node = match marked {
        Marked::Anew(mark) => mark.next,
        Marked::Not | Marked::InPart(_) | Marked::Spared => directory.raft_node,
    };
    Directory {
        raft_node,
        ..directory.clone()
    }
}

/// Who this broker is, as its handshakes say it.
fn identity(config: &Config, world: &World, directory: &Directory) -> PeerIdentity {
    PeerIdentity::new(
        directory.founding.as_ref().map(Founding::cluster),
        &config.cluster.name,
        directory.node,
        directory.raft_node,
        world.random.as_ref(),
    )
}

/// TLS between brokers, as it is configured. The certificate must be for the hosts that others dial.
fn load_tls(config: &Config, world: &World) -> Result<PeerTls, StartError> {
    let Some(files) = config.peer_tls() else {
        return Ok(PeerTls::off());
    };
    let (disk, clock) = (Arc::clone(&world.disk), Arc::clone(&world.clock));
    Ok(PeerTls::load(files, dialled(config)?, disk, clock)?)
}

/// Checks the files of TLS between brokers (`tidelog doctor`); `None` if none are configured. Blocks while it reads.
///
/// # Errors
/// What ends a start.
pub fn check_peer_tls(config: &Config, world: &World) -> Result<Option<PeerTlsCheck>, StartError> {
    let Some(files) = config.peer_tls() else {
        return Ok(None);
    };
    let hosts = dialled(config)?;
    let checked = PeerTls::check(&files, &hosts, world.disk.as_ref(), &world.clock)?;
    Ok(Some(checked))
}

/// The hosts under which other brokers dial this one.
fn dialled(config: &Config) -> Result<Vec<String>, StartError> {
    let seeds = config.seeds();
    let dialled = [
        ("cluster.seeds", seeds.get(&config.node.id)),
        ("peer.advertised", Some(&config.peer.advertised)),
    ];
    let mut hosts = Vec::new();
    for (key, address) in dialled {
        if let Some(address) = address {
            hosts.extend(split(address, key)?.map(|(host, _)| host));
        }
    }
    Ok(hosts)
}

/// A broker of a cluster of several is one of its own seeds.
fn check_named(seeds: &BTreeMap<i32, String>, directory: &Directory) -> Result<(), StartError> {
    let several = directory
        .founding
        .as_ref()
        .filter(|record| record.members.len() > 1);
    match several {
        Some(record) if !seeds.contains_key(&directory.node.get()) => Err(StartError::NotASeed {
            cluster: record.cluster(),
            node: directory.node,
        }),
        _ => Ok(()),
    }
}

/// A broker without seeds must not go on alone in the directory of a cluster of several.
pub(super) fn check_alone(directory: &Directory) -> Result<(), StartError> {
    check_named(&BTreeMap::new(), directory)
}
