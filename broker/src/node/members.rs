//! Making each group's Raft membership what metadata wants, and metadata what operators asked for.
//!
//! Owns: the two loops: one per group that the group's leader works in, one that the leader of metadata plans in.
//! Not here: what is wanted (`metadata`), a single step (`placement`).
//! Spec: docs/protocols/membership.md

use crate::metadata::{MetadataCommand, MetadataImage, MetadataOutcome, Refusal, plan_moves};
use crate::placement::{Group, Member, MembershipStep, Replicas, StateMachine};
use crate::router::MetadataClient;
use std::collections::BTreeMap;
use std::time::Duration;
use tidelog_env::Tasks;
use tidelog_model::{LogIndex, NodeId, PlacementGroupId, RaftNodeId};

/// How often a leader compares.
const TICK: Duration = Duration::from_millis(500);

/// The replicas that a group shall have, and the move that is done when it has them. `None`: not to be touched now.
fn wanted(image: &MetadataImage, group: PlacementGroupId) -> Option<(Replicas, Option<LogIndex>)> {
    let members = |nodes: &mut dyn Iterator<Item = NodeId>| {
        nodes
            .map(|node| {
                let member = image.members().get(&node)?;
                let peer = image.brokers().get(&node).and_then(|at| at.peer.as_ref());
                let at = Member {
                    broker: node,
                    address: peer.map_or_else(String::new, ToString::to_string),
                };
                Some((member.raft_node, at))
            })
            .collect::<Option<BTreeMap<RaftNodeId, Member>>>()
    };
    if group == PlacementGroupId::METADATA {
        // Until all that hold replicas have said who they are, a voter that is no member is not one that has left.
        let mut holders = image.groups().values().flatten();
        if !holders.all(|node| image.members().contains_key(node)) {
            return None;
        }
        let (voters, learners) = image.metadata_replicas();
        let replicas = Replicas {
            voters: members(&mut voters.into_iter())?,
            learners: members(&mut learners.into_iter())?,
        };
        return (!replicas.voters.is_empty()).then_some((replicas, None));
    }
    let moving = image.moves().get(&group).map(|moving| moving.id);
    let nodes = image.replicas_wanted(group).iter().copied();
    let replicas = Replicas {
        voters: members(&mut { nodes })?,
        learners: BTreeMap::new(),
    };
    (!replicas.voters.is_empty()).then_some((replicas, moving))
}

/// Works on the membership of `group` while this broker leads it.
pub(super) fn keep<M: StateMachine>(
    id: PlacementGroupId,
    group: &Group<M>,
    metadata: &MetadataClient,
    tasks: &Tasks,
) {
    let (group, metadata) = (group.clone(), metadata.clone());
    tasks.supervise("members", TICK, move || {
        let (group, metadata) = (group.clone(), metadata.clone());
        async move {
            let mut said = None;
            loop {
                tokio::time::sleep(metadata.random.jitter(TICK)).await;
                // Several quick steps in a row make one change.
                while group.is_leader() && step(id, &group, &metadata, &mut said).await {}
            }
        }
    });
}

/// One step; true: step again at once.
async fn step<M: StateMachine>(
    id: PlacementGroupId,
    group: &Group<M>,
    metadata: &MetadataClient,
    said: &mut Option<MembershipStep>,
) -> bool {
    let look = || metadata.group.read(|machine| wanted(machine.image(), id));
    let Some((replicas, moving)) = look() else {
        return false;
    };
    if moving.is_none() && group.replicas().is(&replicas) {
        return false;
    }
    // The image here may be behind, and say what was wanted once. The leader of metadata has all of it.
    let behind = id != PlacementGroupId::METADATA;
    if behind && metadata.barrier().await.is_err() {
        return false;
    }
    let Some((replicas, moving)) = look() else {
        return false;
    };
    let stepped = match group.step_membership(&replicas).await {
        Ok(stepped) => stepped,
        Err(error) => {
            tracing::debug!(group = %id, "a change of replicas is tried again: {error}");
            return false;
        }
    };
    if said.as_ref() != Some(&stepped) && stepped != MembershipStep::Settled {
        tracing::info!(group = %id, "replicas change: {stepped:?}");
    }
    *said = Some(stepped.clone());
    match stepped {
        MembershipStep::Changed => true,
        MembershipStep::CatchingUp(_) | MembershipStep::HandedOver(_) => false,
        MembershipStep::Settled => {
            let Some(moving) = moving else {
                return false;
            };
            let done = MetadataCommand::ReplicasMoved {
                group: id,
                id: moving,
            };
            say(metadata, &done).await;
            false
        }
    }
}

/// Proposes what may be refused because something was faster.
async fn say(metadata: &MetadataClient, command: &MetadataCommand) {
    match metadata.propose(command).await {
        Ok(MetadataOutcome::Refused(Refusal::Outdated)) | Err(_) => {}
        Ok(MetadataOutcome::Refused(refusal)) => {
            tracing::warn!("a change of replicas was refused: {refusal}");
        }
        Ok(_) => {}
    }
}

/// What the leader of metadata proposes next, by the image alone.
fn next(image: &MetadataImage) -> Option<MetadataCommand> {
    // A member that has not said yet where it is and in which zone is waited for.
    let mut staying = image
        .members()
        .iter()
        .filter(|(_, member)| !member.draining);
    let said = |node| {
        image
            .brokers()
            .get(node)
            .is_some_and(|at| at.kafka.is_some())
    };
    if !staying.all(|(node, _)| said(node)) {
        return None;
    }
    let targets = plan_moves(image);
    if !targets.is_empty() {
        return Some(MetadataCommand::MoveReplicas { targets });
    }
    let holds = |node: NodeId| image.groups().keys().any(|group| image.holds(*group, node));
    let mut drained = image.members().iter().filter(|(_, member)| member.draining);
    let (node, _) = drained.find(|(node, _)| !holds(**node))?;
    Some(MetadataCommand::RemoveBroker { node: *node })
}

/// Plans while this broker leads metadata.
pub(super) fn plan(metadata: &MetadataClient, tasks: &Tasks) {
    let metadata = metadata.clone();
    tasks.supervise("plan", TICK, move || {
        let metadata = metadata.clone();
        async move {
            loop {
                tokio::time::sleep(metadata.random.jitter(TICK * 2)).await;
                if !metadata.group.is_leader() {
                    continue;
                }
                let command = metadata.group.read(|machine| next(machine.image()));
                if let Some(command) = command {
                    tracing::info!("replicas are planned anew: {command:?}");
                    say(&metadata, &command).await;
                }
            }
        }
    });
}
