//! /api/v1/members and /api/v1/leaders: who is in the cluster, who holds and leads what, and changing both.
//!
//! Owns: the operators' commands, each a proposal to the metadata group.
//! Not here: what follows from them (`node::members`), the rules (`metadata`).
//! Spec: docs/protocols/membership.md, docs/protocols/admin-http.md

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::AdminState;
use super::error::{Body, Failure};
use super::help::check_drain;
use super::replace::{self, Wanted};
use crate::metadata::{Address, Admission, MetadataCommand, MetadataImage, MetadataOutcome};
use crate::placement::ReplicasNow;
use tidelog_model::{NodeId, PlacementGroupId, RaftNodeId, Term, TimestampMs};

/// A broker that asks to be taken in.
#[derive(Clone, Debug)]
pub struct WaitingBroker {
    /// Its id.
    pub node: NodeId,
    /// Its Raft node.
    pub raft_node: RaftNodeId,
    /// Its zone.
    pub zone: String,
    /// `host:port` where it says that others reach it.
    pub peer: String,
    /// Its disk is damaged: it is taken in anew by itself, unless it is refused.
    pub damaged: bool,
    /// Why it is refused.
    pub refused: Option<String>,
    /// It is damaged, and runs without these groups, as the member that it is. `None`: it serves nothing.
    pub withheld: Option<BTreeSet<PlacementGroupId>>,
}

/// Asks this broker and all live members who asks to be taken in. Takes a second at most.
pub type AskMembers = Arc<dyn Fn() -> BoxFuture<'static, Vec<WaitingBroker>> + Send + Sync>;

#[derive(Serialize)]
pub(super) struct Members {
    cluster_id: String,
    metadata_leader: Option<i32>,
    /// How old it is what this broker knows of who lives; absent while it hears the leader of metadata, or is it.
    #[serde(skip_serializing_if = "Option::is_none")]
    liveness_age_ms: Option<u64>,
    brokers: Vec<Broker>,
    waiting: Vec<Waiting>,
    groups: Vec<Group>,
}

#[derive(Serialize)]
struct Broker {
    id: i32,
    zone: String,
    peer: String,
    raft_node: u64,
    live: bool,
    /// It has come since it was taken in.
    registered: bool,
    draining: bool,
    /// Replicas that it holds or is getting.
    replicas: usize,
    /// Groups that it leads, as far as the asked broker knows; metadata's too.
    leads: usize,
}

#[derive(Serialize)]
struct Waiting {
    id: i32,
    zone: String,
    peer: String,
    raft_node: u64,
    /// A member has this id: adding this one replaces it.
    replaces: bool,
    /// It was the member, and found its disk damaged: it is taken in anew by itself.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    damaged: bool,
    /// Why it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    /// It serves all but these groups meanwhile, the first of many; absent: it serves nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    withheld: Option<Vec<u32>>,
}

#[derive(Serialize)]
struct Group {
    group: u32,
    replicas: Vec<i32>,
    /// Where the replicas are going; absent while nothing is on its way.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<Vec<i32>>,
    leader: Option<i32>,
    term: Option<u64>,
    /// An operator asked for this leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    preferred: Option<i32>,
    /// Partitions that nobody can append to or read, since the disks of a majority of the replicas are gone; absent while there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<Vec<String>>,
    /// Brokers with a copy of offsets of consumer groups, which keep a lost group without partitions from being replaced; absent where that is not so.
    #[serde(skip_serializing_if = "Option::is_none")]
    offsets_at: Option<Vec<i32>>,
}

fn ids(nodes: &[NodeId]) -> Vec<i32> {
    nodes.iter().map(|node| node.get()).collect()
}

async fn members_of(state: &AdminState) -> Members {
    let asked = (state.ask_members)().await;
    let router = &state.router;
    let metadata = router.known_leader(router.metadata());
    let replicas = router.metadata().replicas();
    let now = router.now();
    let liveness_age_ms = liveness_age_ms(state);
    let known: Vec<PlacementGroupId> =
        router.image(|image| image.groups().keys().copied().collect());
    let leaders: BTreeMap<PlacementGroupId, (NodeId, Term)> = known
        .into_iter()
        .filter_map(|group| Some((group, router.leader(group)?)))
        .collect();
    router.image(|image| Members {
        cluster_id: state.identity.cluster_id.clone(),
        metadata_leader: metadata.map(|(leader, _)| leader.get()),
        liveness_age_ms,
        brokers: brokers(image, &leaders, metadata.map(|(leader, _)| leader)),
        waiting: waiting(image, asked),
        groups: std::iter::once(metadata_group(image, &replicas, metadata, now))
            .chain(data_groups(image, &leaders))
            .collect(),
    })
}

/// How long ago this broker last knew who lives; `None`: it knows now. Without a leader of metadata nobody is fenced, however long it is silent.
pub(super) fn liveness_age_ms(state: &AdminState) -> Option<u64> {
    let router = &state.router;
    if router.known_leader(router.metadata()).is_some() {
        return None;
    }
    let age = router.metadata().in_touch();
    let age = age.unwrap_or_else(|| state.started.elapsed());
    Some(u64::try_from(age.as_millis()).unwrap_or(u64::MAX))
}

fn brokers(
    image: &MetadataImage,
    leaders: &BTreeMap<PlacementGroupId, (NodeId, Term)>,
    metadata: Option<NodeId>,
) -> Vec<Broker> {
    let one = |(node, member): (&NodeId, &crate::metadata::ClusterMember)| {
        let registered = image.brokers().get(node);
        let held = image.groups().keys();
        let led = leaders.values().filter(|(leader, _)| leader == node);
        Broker {
            id: node.get(),
            zone: registered.map_or_else(String::new, |at| at.zone.clone()),
            peer: registered
                .and_then(|at| at.peer.as_ref())
                .map_or_else(String::new, ToString::to_string),
            raft_node: member.raft_node.get(),
            live: image.is_live(*node),
            registered: image.is_registered(*node),
            draining: member.draining,
            replicas: held.filter(|group| image.holds(**group, *node)).count(),
            leads: led.count() + usize::from(metadata == Some(*node)),
        }
    };
    image.members().iter().map(one).collect()
}

fn waiting(image: &MetadataImage, asked: Vec<WaitingBroker>) -> Vec<Waiting> {
    asked
        .into_iter()
        .map(|waiting| Waiting {
            id: waiting.node.get(),
            zone: waiting.zone,
            peer: waiting.peer,
            raft_node: waiting.raft_node.get(),
            replaces: image.members().contains_key(&waiting.node),
            damaged: waiting.damaged,
            refused: waiting.refused,
            withheld: waiting
                .withheld
                .map(|groups| groups.into_iter().map(PlacementGroupId::get).collect()),
        })
        .collect()
}

/// The metadata group: its replicas as this broker's own knows them, not as they are wanted.
fn metadata_group(
    image: &MetadataImage,
    now: &ReplicasNow,
    leader: Option<(NodeId, Term)>,
    at: TimestampMs,
) -> Group {
    let group = PlacementGroupId::METADATA;
    let (voters, learners) = image.metadata_replicas(at);
    let raft_nodes = |nodes: &BTreeSet<NodeId>| {
        let members = nodes.iter().filter_map(|node| image.members().get(node));
        members
            .map(|member| member.raft_node)
            .collect::<BTreeSet<_>>()
    };
    let held = |votes: bool| {
        let replicas = now.members.iter();
        let of_kind = replicas.filter(move |(id, _)| now.voters.contains(id) == votes);
        of_kind
            .map(|(_, member)| member.broker)
            .collect::<BTreeSet<_>>()
    };
    let all = |voters: &BTreeSet<NodeId>, learners: &BTreeSet<NodeId>| {
        let others = learners.difference(voters);
        ids(&voters.iter().chain(others).copied().collect::<Vec<_>>())
    };
    let arrived = now.settled
        && now.voters == raft_nodes(&voters)
        && now.members.len() == voters.len() + learners.len();
    Group {
        group: group.get(),
        replicas: all(&held(true), &held(false)),
        target: (!arrived && image.knows_holders()).then(|| all(&voters, &learners)),
        leader: leader.map(|(node, _)| node.get()),
        term: leader.map(|(_, term)| term.get()),
        preferred: image.preferred().get(&group).map(|node| node.get()),
        lost: None,
        offsets_at: None,
    }
}

fn data_groups<'a>(
    image: &'a MetadataImage,
    leaders: &'a BTreeMap<PlacementGroupId, (NodeId, Term)>,
) -> impl Iterator<Item = Group> + 'a {
    let kept = image.kept_offsets();
    image.groups().iter().map(move |(group, replicas)| {
        // Who led a lost group is heard of for a moment still.
        let leader = leaders.get(group).filter(|_| !image.is_lost(*group));
        Group {
            group: group.get(),
            replicas: ids(replicas),
            target: image.moves().get(group).map(|moving| ids(&moving.target)),
            leader: leader.map(|(node, _)| node.get()),
            term: leader.map(|(_, term)| term.get()),
            preferred: image.preferred().get(group).map(|node| node.get()),
            lost: image.is_lost(*group).then(|| image.partition_names(*group)),
            offsets_at: kept.get(group).map(|left| ids(left)),
        }
    })
}

pub(super) async fn members(State(state): State<AdminState>) -> Json<Members> {
    Json(members_of(&state).await)
}

/// What became of a proposal.
pub(super) async fn proposed(
    state: &AdminState,
    command: &MetadataCommand,
) -> Result<MetadataOutcome, Failure> {
    let outcome = state.router.propose_metadata(command).await;
    outcome.map_err(|error| {
        if error.may_have_happened() {
            Failure::unknown(error.to_string())
        } else {
            Failure::unavailable(error.to_string())
        }
    })
}

/// Proposes, and answers with what is so then.
async fn propose(state: &AdminState, command: &MetadataCommand) -> Result<Json<Members>, Failure> {
    match proposed(state, command).await? {
        MetadataOutcome::MembersChanged => Ok(Json(members_of(state).await)),
        MetadataOutcome::Refused(refusal) => Err(Failure::refused(refusal.to_string())),
        other => Err(Failure::refused(format!(
            "an answer to something else: {other:?}"
        ))),
    }
}

#[derive(Deserialize)]
pub(super) struct AddRequest {
    broker: i32,
    /// Replace a member although it lives.
    #[serde(default)]
    force: bool,
    /// Replace a member although data may be lost with it.
    #[serde(default)]
    give_up_data: bool,
}

pub(super) async fn add(
    State(state): State<AdminState>,
    Body(request): Body<AddRequest>,
) -> Result<Json<Members>, Failure> {
    let node = NodeId::new(request.broker);
    let asked = (state.ask_members)().await;
    let same = asked.iter().filter(|waiting| waiting.node == node);
    let waiting = one_of(same.cloned().collect(), request.broker)?;
    let peer = address(&waiting.peer).ok_or_else(|| {
        Failure::refused(format!(
            "broker {node} says that others reach it at {:?}, which is no host:port; set its peer.advertised",
            waiting.peer
        ))
    })?;
    let admission = Admission {
        node,
        raft_node: waiting.raft_node,
        zone: waiting.zone.clone(),
        peer: Some(peer),
        by_operator: true,
        expects: None,
    };
    let wanted = Wanted {
        waiting,
        admission,
        force: request.force,
        give_up_data: request.give_up_data,
    };
    replace::admit(&state, &wanted, &asked).await?;
    Ok(Json(members_of(&state).await))
}

/// Why the broker cannot lead the group, as long as it has not been refilled: a wish for it would not be fulfilled.
fn cannot_lead(asked: &[WaitingBroker], wish: &TransferRequest) -> Option<String> {
    let TransferRequest { group, broker } = *wish;
    let withholds = |one: &&WaitingBroker| {
        let withheld = one.withheld.as_ref();
        withheld.is_some_and(|groups| groups.contains(&PlacementGroupId::new(group)))
    };
    let mut same = asked.iter().filter(|one| one.node.get() == broker);
    same.find(withholds)?;
    Some(format!(
        "group {group} is damaged on broker {broker}, which runs without it until it is refilled, and cannot lead it: choose another broker with a replica of it, or \
         repeat this when broker {broker} no longer waits (`tidelog cluster status`)"
    ))
}

/// The one broker of this id that waits.
fn one_of(mut waiting: Vec<WaitingBroker>, broker: i32) -> Result<WaitingBroker, Failure> {
    let Some(last) = waiting.pop() else {
        return Err(Failure::not_waiting(broker));
    };
    if waiting.is_empty() {
        return Ok(last);
    }
    waiting.push(last);
    let at: Vec<&str> = waiting.iter().map(|one| one.peer.as_str()).collect();
    Err(Failure::several_wait(broker, &at))
}

fn address(text: &str) -> Option<Address> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.trim_matches(['[', ']']).to_owned();
    let port = port.parse().ok().filter(|port| *port != 0)?;
    (!host.is_empty()).then_some(Address { host, port })
}

#[derive(Deserialize)]
pub(super) struct DecommissionRequest {
    broker: i32,
    /// Keep it after all.
    #[serde(default)]
    cancel: bool,
}

pub(super) async fn decommission(
    State(state): State<AdminState>,
    Body(request): Body<DecommissionRequest>,
) -> Result<Json<Members>, Failure> {
    let node = NodeId::new(request.broker);
    if !request.cancel {
        check_drain(&state, node).await?;
    }
    let command = MetadataCommand::SetDraining {
        node,
        draining: !request.cancel,
    };
    propose(&state, &command).await
}

#[derive(Deserialize)]
pub(super) struct TransferRequest {
    group: u32,
    broker: i32,
}

pub(super) async fn transfer(
    State(state): State<AdminState>,
    Body(request): Body<TransferRequest>,
) -> Result<Json<Members>, Failure> {
    let asked = (state.ask_members)().await;
    if let Some(why) = cannot_lead(&asked, &request) {
        return Err(Failure::refused(why));
    }
    let command = MetadataCommand::PreferLeader {
        group: PlacementGroupId::new(request.group),
        node: Some(NodeId::new(request.broker)),
    };
    propose(&state, &command).await
}

pub(super) async fn balance(State(state): State<AdminState>) -> Result<Json<Members>, Failure> {
    // Also when no wish is known: who cannot be asked has not said that there is none.
    let current = state.router.metadata_barrier().await;
    current.map_err(|error| Failure::unavailable(error.to_string()))?;
    let asked: Vec<PlacementGroupId> = state
        .router
        .image(|image| image.preferred().keys().copied().collect());
    for group in asked {
        let _now = propose(&state, &MetadataCommand::PreferLeader { group, node: None }).await?;
    }
    Ok(Json(members_of(&state).await))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    /// Proves that only the broker that withholds a group cannot lead it, and only that group.
    #[test]
    fn who_withholds_a_group_cannot_lead_it() {
        let waits = |node, withheld: Option<&[u32]>| WaitingBroker {
            node: NodeId::new(node),
            raft_node: RaftNodeId::new(7),
            zone: String::new(),
            peer: "a:1".to_owned(),
            damaged: true,
            refused: None,
            withheld: withheld.map(|ids| ids.iter().copied().map(PlacementGroupId::new).collect()),
        };
        let asked = [
            waits(2, Some(&[1, 3])),
            waits(4, Some(&[2])),
            waits(5, None),
        ];
        let why = |group, broker| cannot_lead(&asked, &TransferRequest { group, broker });
        assert!(
            why(1, 2)
                .unwrap()
                .starts_with("group 1 is damaged on broker 2,")
        );
        assert!(why(3, 2).is_some() && why(2, 4).is_some());
        assert_eq!(
            (why(2, 2), why(1, 4), why(1, 5), why(1, 1)),
            (None, None, None, None)
        );
    }

    /// Proves that of two waiting brokers with one id none is taken in, and that both are named.
    #[test]
    fn two_with_one_id_are_refused() {
        let waits = |raft_node, peer: &str| WaitingBroker {
            node: NodeId::new(4),
            raft_node: RaftNodeId::new(raft_node),
            zone: String::new(),
            peer: peer.to_owned(),
            damaged: false,
            refused: None,
            withheld: None,
        };
        let one = one_of(vec![waits(1, "a:1")], 4).unwrap();
        assert_eq!(one.raft_node, RaftNodeId::new(1));
        let both = one_of(vec![waits(1, "a:1"), waits(2, "b:1")], 4).unwrap_err();
        let text = serde_json::to_string(&both).unwrap();
        assert!(
            text.contains("several_wait") && text.contains("a:1, b:1"),
            "{text}"
        );
        let none = serde_json::to_string(&one_of(Vec::new(), 4).unwrap_err()).unwrap();
        assert!(none.contains("not_waiting"), "{none}");
    }
}
