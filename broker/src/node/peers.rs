//! The other brokers: the listener they reach, and the transport that reaches them. Only in clusters of several brokers.
//!
//! Owns: wiring of `peer` for this node, the numbers of its services, where seeds are.
//! Not here: bytes between brokers (`peer`), forming a cluster (`formation`).
//! Spec: docs/protocols/peer.md

use super::World;
use super::error::StartError;
use super::formation::{Asker, Formation, Founding};
use super::identity::Directory;
use super::listeners::resolve;
use crate::config::Config;
use crate::peer::{
    AddressBook, CallServices, PeerConfig, PeerGroups, PeerIdentity, PeerListener,
    PeerListenerConfig, PeerListenerParts, PeerMetrics, PeerTarget, PeerTransport,
    PeerTransportParts,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use tidelog_env::Tasks;
use tidelog_model::NodeId;

/// Service of cluster formation.
pub(super) const SERVICE_FORMATION: u8 = 1;
/// Service of metadata forwarding.
pub(super) const SERVICE_METADATA: u8 = 2;

/// Where the configuration says that brokers are.
struct SeedBook(BTreeMap<NodeId, String>);

impl AddressBook for SeedBook {
    fn address(&self, broker: NodeId) -> Option<String> {
        self.0.get(&broker).cloned()
    }
}

/// The connections with the other brokers, and the record of the cluster they make.
pub(super) struct Peers {
    pub(super) transport: PeerTransport,
    pub(super) groups: PeerGroups,
    pub(super) services: CallServices,
    pub(super) metrics: PeerMetrics,
    pub(super) record: Founding,
    listener: PeerListener,
    tasks: Tasks,
}

impl Peers {
    /// Opens the listener and waits until this broker is in a cluster.
    pub(super) async fn start(
        config: &Config,
        world: &World,
        directory: &mut Directory,
    ) -> Result<Self, StartError> {
        let seeds = config.seeds();
        check_members(&seeds, directory)?;
        let cluster = directory.founding.as_ref().map(Founding::cluster);
        let identity = Arc::new(PeerIdentity::new(
            cluster,
            &config.cluster.name,
            directory.node,
            directory.raft_node,
            world.random.as_ref(),
        ));
        let tasks = Tasks::new();
        let book = seeds
            .iter()
            .map(|(id, address)| (NodeId::new(*id), address.clone()));
        let metrics = PeerMetrics::default();
        let parts = PeerTransportParts {
            identity: Arc::clone(&identity),
            network: Arc::clone(&world.network),
            random: Arc::clone(&world.random),
            book: Arc::new(SeedBook(book.collect())),
            metrics: metrics.clone(),
            tasks: tasks.clone(),
        };
        let transport = PeerTransport::new(PeerConfig::default(), parts);
        let (groups, services) = (PeerGroups::new(), CallServices::new());
        let formation = Formation::new(config, directory);
        services.register(SERVICE_FORMATION, Arc::new(formation.clone()));
        let listen = resolve(&config.peer.listen, "peer.listen")?;
        let parts = PeerListenerParts {
            identity: Arc::clone(&identity),
            network: Arc::clone(&world.network),
            groups: groups.clone(),
            services: services.clone(),
            metrics: metrics.clone(),
        };
        let listener = PeerListener::start(PeerListenerConfig::new(listen), parts).await?;
        let asker = Asker {
            config,
            world,
            transport: &transport,
            formation: &formation,
        };
        let record = match &directory.founding {
            Some(record) => Ok(record.clone()),
            None => asker.form(directory).await,
        };
        let record = match record {
            Ok(record) => record,
            Err(error) => {
                listener.stop().await;
                tasks.stop().await;
                return Err(error);
            }
        };
        identity.join(record.cluster());
        Ok(Self {
            transport,
            groups,
            services,
            metrics,
            record,
            listener,
            tasks,
        })
    }

    /// The other members, as calls reach them.
    pub(super) fn targets(&self, own: NodeId) -> BTreeMap<NodeId, PeerTarget> {
        let members = self.record.first_members().into_iter();
        members
            .filter(|(_, member)| member.broker != own)
            .map(|(raft_node, member)| {
                let target = PeerTarget {
                    broker: Some(member.broker),
                    node: Some(raft_node),
                    address: member.address,
                };
                (member.broker, target)
            })
            .collect()
    }

    /// Ends every connection. What was in work may have happened.
    pub(super) async fn stop(&self) {
        self.listener.stop().await;
        self.tasks.stop().await;
    }
}

/// A directory that is in a cluster belongs to exactly the brokers that the seeds name.
fn check_members(seeds: &BTreeMap<i32, String>, directory: &Directory) -> Result<(), StartError> {
    let Some(record) = &directory.founding else {
        return Ok(());
    };
    let mut members: Vec<i32> = record.brokers().iter().map(|id| id.get()).collect();
    if members.is_empty() {
        members.push(directory.node.get());
    }
    if seeds.keys().eq(&members) && record.has(directory.node, directory.raft_node) {
        return Ok(());
    }
    let words = |ids: Vec<String>| ids.join(", ");
    Err(StartError::OtherMembers {
        cluster: record.cluster(),
        seeds: words(seeds.keys().map(ToString::to_string).collect()),
        members: words(members.iter().map(ToString::to_string).collect()),
    })
}

/// A broker without seeds must not go on alone in the directory of a cluster of several.
pub(super) fn check_alone(directory: &Directory) -> Result<(), StartError> {
    let several = directory.founding.as_ref();
    match several.filter(|record| record.members.len() > 1) {
        None => Ok(()),
        Some(_) => check_members(
            &BTreeMap::from([(directory.node.get(), String::new())]),
            directory,
        ),
    }
}
