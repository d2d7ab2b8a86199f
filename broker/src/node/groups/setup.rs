//! Making the cluster know of itself and of this broker. Every step may be repeated until it is known to have happened.
//!
//! Owns: the first commands of a cluster and of a start.
//! Spec: docs/protocols/cluster-formation.md (bootstrap), docs/protocols/membership.md

use super::super::START;
use super::super::error::{Ended, StartError};
use super::super::formation::MemberRecord;
use super::super::listeners::split;
use super::Parts;
use crate::metadata::{
    Address, Admission, MetadataCommand, MetadataOutcome, choose_first_replicas,
};
use crate::placement::ProposeError;
use crate::router::MetadataClient;
use std::time::Duration;
use tidelog_env::{CrashPoint, crash_point};
use tidelog_model::{NodeId, PlacementGroupId, RaftNodeId};
use tokio::time::Instant;

/// Pause between two tries to set the cluster up while nobody leads, with jitter.
const SET_UP_PAUSE: Duration = Duration::from_millis(300);
/// One line per this long about a cluster without a majority.
const SAY_PAUSE: Duration = Duration::from_secs(10);

/// Sets the cluster up if it is not, and says who this broker is.
pub(super) async fn bootstrap(
    parts: &Parts<'_>,
    metadata: &MetadataClient,
) -> Result<(), StartError> {
    let nodes = match parts.peers {
        Some(peers) => peers.record.brokers(),
        None => vec![parts.identity.node],
    };
    let count = parts.config.cluster.data_groups;
    let replicas = choose_first_replicas(&nodes, count);
    let groups = (1..).map(PlacementGroupId::new).zip(replicas);
    let bootstrap = MetadataCommand::BootstrapCluster {
        cluster: parts.identity.cluster,
        name: parts.config.cluster.name.clone(),
        groups: groups.collect(),
    };
    match propose(parts, metadata, &bootstrap).await? {
        MetadataOutcome::Bootstrapped(cluster) if cluster == parts.identity.cluster => {}
        other => {
            return Err(StartError::Metadata(format!(
                "this directory's log is of another cluster: {other:?}"
            )));
        }
    }
    crash_point(CrashPoint::FormationBootstrapped);
    admit(parts, metadata).await?;
    crash_point(CrashPoint::FormationAdmitted);
    match propose(parts, metadata, &registration(parts)?).await? {
        MetadataOutcome::BrokerRegistered => {}
        // It was taken out, or replaced, a moment ago.
        MetadataOutcome::Refused(refusal) => return Err(StartError::Refused(refusal.to_string())),
        other => {
            return Err(StartError::Metadata(format!(
                "the broker was not registered: {other:?}"
            )));
        }
    }
    let groups = metadata
        .group
        .read(|machine| machine.image().groups().len());
    if u32::try_from(groups).is_ok_and(|groups| groups < count) {
        tracing::info!(
            "cluster.data-groups = {count} is read when a cluster is founded; this one was with {groups} data groups"
        );
    }
    Ok(())
}

/// This broker, and all others of the founding record: whoever is first says it for all, so that nobody acts on half a cluster.
async fn admit(parts: &Parts<'_>, metadata: &MetadataClient) -> Result<(), StartError> {
    let own = admission(
        parts.identity.node,
        parts.identity.raft_node,
        parts.config.node.zone.clone(),
        own_peer(parts)?,
    );
    let known = |node: &NodeId| {
        metadata
            .group
            .read(|machine| machine.image().members().contains_key(node))
    };
    match propose(parts, metadata, &own).await? {
        MetadataOutcome::MembersChanged => {}
        MetadataOutcome::Refused(refusal) => return Err(StartError::Refused(refusal.to_string())),
        other => return Err(StartError::Metadata(format!("not a member: {other:?}"))),
    }
    let members = parts.peers.map(|peers| peers.record.members.as_slice());
    for member in members.unwrap_or_default() {
        let MemberRecord {
            broker_id,
            raft_node_id,
            peer,
        } = member;
        let node = NodeId::new(*broker_id);
        if known(&node) {
            continue;
        }
        let raft_node = RaftNodeId::new(*raft_node_id);
        // Its zone comes with its own registration.
        let zone = "unknown".to_owned();
        let command = admission(node, raft_node, zone, address(peer)?);
        // Refused: it has left, or came back with another disk. Then others know better.
        propose(parts, metadata, &command).await?;
    }
    Ok(())
}

fn admission(
    node: NodeId,
    raft_node: RaftNodeId,
    zone: String,
    peer: Option<Address>,
) -> MetadataCommand {
    MetadataCommand::AdmitBroker(Admission {
        node,
        raft_node,
        zone,
        peer,
        by_operator: false,
        expects: None,
    })
}

fn address(text: &str) -> Result<Option<Address>, StartError> {
    let parts = split(text, "cluster.seeds")?;
    Ok(parts.map(|(host, port)| Address { host, port }))
}

/// Where the configuration says that other brokers reach this one.
fn own_peer(parts: &Parts<'_>) -> Result<Option<Address>, StartError> {
    match parts.peers {
        Some(_) => address(parts.config.peer_address()),
        None => Ok(None),
    }
}

fn registration(parts: &Parts<'_>) -> Result<MetadataCommand, StartError> {
    let config = parts.config;
    let (mut kafka, mut admin) = (None, None);
    if parts.peers.is_some() {
        let address = |text: &str, key| -> Result<Option<Address>, StartError> {
            let parts = split(text, key)?;
            Ok(parts.map(|(host, port)| Address { host, port }))
        };
        let told = config.kafka_address().unwrap_or_default();
        kafka = address(told, "kafka.advertised")?;
        admin = address(&config.admin.listen, "admin.listen")?;
    }
    Ok(MetadataCommand::RegisterBroker {
        node: parts.identity.node,
        raft_node: Some(parts.identity.raft_node),
        zone: config.node.zone.clone(),
        kafka,
        peer: own_peer(parts)?,
        admin,
    })
}

/// Proposes a command that may be repeated until it is known to have happened. With several brokers that takes a majority,
/// for as long as it takes.
async fn propose(
    parts: &Parts<'_>,
    metadata: &MetadataClient,
    command: &MetadataCommand,
) -> Result<MetadataOutcome, StartError> {
    let mut said = Instant::now();
    loop {
        let error = match metadata.propose(command).await {
            Ok(outcome) => return Ok(outcome),
            Err(error) => error,
        };
        if parts.peers.is_none() || matches!(error, ProposeError::Fatal(_)) {
            return Err(StartError::Metadata(error.to_string()));
        }
        // Its own replica has stopped: no answer of the others will ever be seen here.
        if let Some(Ended::Failed(why)) = &*parts.fatal.borrow() {
            return Err(StartError::Metadata(why.clone()));
        }
        let text = if metadata.group.is_taken_in() {
            "the cluster has no leader for its metadata, is a majority of the brokers up?"
        } else {
            "waiting for the leader of metadata to take this broker in"
        };
        parts.store.health.not_ready(START, text);
        if said.elapsed() >= SAY_PAUSE {
            tracing::warn!("{text} ({error})");
            said = Instant::now();
        }
        tokio::time::sleep(parts.world.random.jitter(SET_UP_PAUSE)).await;
    }
}
