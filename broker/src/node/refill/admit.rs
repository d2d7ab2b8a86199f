//! The leader of metadata takes damaged brokers in anew, where nothing depends on what they had.
//!
//! Owns: the decision, and the loop that makes it.
//! Not here: the rule of the image (`metadata`), what a group's leader knows (`placement`), asking members (`formation`).
//! Spec: docs/protocols/refill.md (steps 3 and 4)

use super::super::formation::Candidate;
use super::super::listeners::split;
use super::super::peers::Peers;
use crate::metadata::{
    Address, Admission, MetadataCommand, MetadataImage, MetadataOutcome, Refill, RefillRefused,
    brokers,
};
use crate::placement::ProposeError;
use crate::router::MetadataClient;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::{CrashPoint, Tasks, crash_point};
use tidelog_model::{NodeId, PlacementGroupId, RaftNodeId, TimestampMs};

/// How often the leader looks: a round costs a question to each member, and only while somebody waits.
const TICK: Duration = Duration::from_secs(1);
/// Groups that are named at most.
const NAMED_MAX: usize = 5;

/// Why a damaged broker is not taken in now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Refused {
    /// The image says so.
    #[error(transparent)]
    Image(#[from] RefillRefused),
    /// Two directories.
    #[error("several brokers wait with this id")]
    SeveralWait,
    /// A leader is missing, or a copy.
    #[error("{} no leader now whose other copies have all that was acknowledged{}", groups(.0), .1)]
    Unsafe(Vec<PlacementGroupId>, Silent),
    /// It says that it cannot be reached.
    #[error("{0:?}, where it says that others reach it, is no host:port")]
    Address(String),
    /// Nobody decides.
    #[error("nobody leads the cluster's metadata now")]
    NoLeader,
    /// It is tried again.
    #[error("{0}; it is tried again")]
    Later(String),
}

/// Whose copies are missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Silent {
    /// Brokers that do not serve.
    nodes: Vec<NodeId>,
    /// Those of them that wait with a damaged disk too.
    damaged: Vec<NodeId>,
}

impl std::fmt::Display for Silent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.nodes.is_empty() {
            return Ok(());
        }
        write!(f, "; they wait for {}", brokers(&self.nodes))?;
        match self.damaged.len() {
            0 => Ok(()),
            _ => write!(f, " (damaged too: {})", brokers(&self.damaged)),
        }
    }
}

fn groups(all: &[PlacementGroupId]) -> String {
    let names = all.iter().take(NAMED_MAX).map(ToString::to_string);
    let names = names.collect::<Vec<_>>().join(", ");
    match (all.len(), all.len().saturating_sub(NAMED_MAX)) {
        (1, _) => format!("group {names} has"),
        (_, 0) => format!("groups {names} have"),
        (_, more) => format!("groups {names} and {more} more have"),
    }
}

/// Whether `node` may be taken in instead of its `damaged` Raft node: what the image says, and of all groups that it holds, or is getting, and in which anything
/// is, what their leaders say. `safe`: the groups that need it not. `also`: brokers that wait with a damaged disk.
fn decide(
    image: &MetadataImage,
    (node, damaged): (NodeId, RaftNodeId),
    safe: &BTreeSet<PlacementGroupId>,
    also: &BTreeSet<NodeId>,
) -> Result<(), Refused> {
    image.check_refill(node, damaged)?;
    let missing = image.needed(node, safe);
    if missing.is_empty() {
        return Ok(());
    }
    let nodes = image.silent_holders(&missing, node);
    let damaged = nodes.iter().copied().filter(|at| also.contains(at));
    let damaged = damaged.collect();
    Err(Refused::Unsafe(missing, Silent { nodes, damaged }))
}

/// Takes damaged brokers in while this one leads metadata.
pub(in crate::node) fn admit_damaged(peers: &Arc<Peers>, metadata: &MetadataClient, tasks: &Tasks) {
    let (peers, metadata) = (Arc::clone(peers), metadata.clone());
    tasks.supervise("refill", TICK, move || {
        let (peers, metadata) = (Arc::clone(&peers), metadata.clone());
        async move {
            loop {
                tokio::time::sleep(metadata.random.jitter(TICK)).await;
                let leads = metadata.group.is_leader();
                for candidate in peers.formation.damaged(leads) {
                    let refused = admit(&peers, &metadata, &candidate).await.err();
                    let refused = refused.map(|why| why.to_string());
                    peers.formation.answer_damaged(&candidate, refused);
                }
            }
        }
    });
}

async fn admit(
    peers: &Peers,
    metadata: &MetadataClient,
    candidate: &Candidate,
) -> Result<(), Refused> {
    // Who it takes for the leader, itself perhaps, is none that a majority hears.
    let later = |error: ProposeError| match error {
        ProposeError::NotLeader { .. } => Refused::NoLeader,
        error => Refused::Later(error.to_string()),
    };
    let Some(damaged) = candidate.damaged() else {
        return Ok(());
    };
    let node = candidate.node();
    if peers.formation.waiting(node) > 1 {
        return Err(Refused::SeveralWait);
    }
    let peer = address(&candidate.peer).ok_or(Refused::Address(candidate.peer.clone()))?;
    metadata.group.read_barrier().await.map_err(later)?;
    let (checked, others) = metadata.group.read(|machine| {
        let image = machine.image();
        image.check_refill(node, damaged)?;
        let members = image.members().keys().copied();
        let others = members.filter(|id| *id != metadata.node && image.is_live(*id));
        Ok::<_, RefillRefused>((image.last().index, others.collect::<Vec<_>>()))
    })?;
    let asked = peers
        .formation
        .ask_without(&peers.transport, others, damaged);
    let safe = asked.await;
    let also = peers.formation.damaged(true);
    let also = also.iter().map(Candidate::node).collect();
    let look = |image: &MetadataImage| {
        if image.last().index != checked {
            return Err(Refused::Later("metadata has changed meanwhile".to_owned()));
        }
        decide(image, (node, damaged), &safe, &also)
    };
    metadata.group.read(|machine| look(machine.image()))?;
    let admission = Admission {
        node,
        raft_node: candidate.raft_node(),
        zone: candidate.zone.clone(),
        peer: Some(peer),
        by_operator: true,
        expects: None,
    };
    let command = MetadataCommand::RefillBroker(Refill {
        damaged,
        checked,
        admission,
    });
    let stamp = TimestampMs::new(metadata.clock.now_ms());
    // By this leader or not at all: another one looks for itself.
    let proposed = metadata.group.propose(command.encode(stamp)).await;
    match proposed.map_err(later)? {
        (_, MetadataOutcome::MembersChanged) => {
            crash_point(CrashPoint::RefillAdmitted);
            tracing::warn!(
                "broker {node} is damaged and is refilled: Raft node {} takes the place of {damaged}",
                candidate.raft_node()
            );
            Ok(())
        }
        (_, MetadataOutcome::Refused(refusal)) => Err(Refused::Later(refusal.to_string())),
        (_, other) => Err(Refused::Later(format!("{other:?}"))),
    }
}

fn address(text: &str) -> Option<Address> {
    let (host, port) = split(text, "peer").ok().flatten()?;
    (port != 0 && !host.is_empty()).then_some(Address { host, port })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use std::collections::BTreeMap;
    use tidelog_model::ClusterId;
    use uuid::Uuid;

    const THREE: NodeId = NodeId::new(3);
    const DAMAGED: RaftNodeId = RaftNodeId::new(30);

    fn group(id: u32) -> PlacementGroupId {
        PlacementGroupId::new(id)
    }

    fn image(held: &[(u32, &[i32])]) -> MetadataImage {
        let mut image = MetadataImage::default();
        let groups: BTreeMap<_, Vec<NodeId>> = held
            .iter()
            .map(|(id, nodes)| (group(*id), nodes.iter().copied().map(NodeId::new).collect()))
            .collect();
        let stamp = TimestampMs::new(1);
        let bootstrap = MetadataCommand::BootstrapCluster {
            cluster: ClusterId::new(Uuid::from_u128(7)),
            name: "t".to_owned(),
            groups,
        };
        image.apply(bootstrap, stamp);
        for id in 1..=4 {
            let admission = Admission {
                node: NodeId::new(id),
                raft_node: RaftNodeId::new(u64::try_from(id * 10).unwrap()),
                zone: format!("z{id}"),
                peer: None,
                by_operator: true,
                expects: None,
            };
            image.apply(MetadataCommand::AdmitBroker(admission), stamp);
        }
        image
    }

    /// Proves that every group that the damaged broker holds, or is getting, metadata's too, must be safe without it, and no other one; that those that are
    /// not are named; and that a copy nobody else has is never given up.
    #[test]
    fn all_that_it_holds_must_be_safe() {
        let mut image = image(&[(1, &[1, 2, 3]), (2, &[1, 2, 4]), (3, &[2, 3, 4])]);
        let says = |image: &MetadataImage, safe: &[u32]| {
            let safe = safe.iter().copied().map(group).collect();
            let also = BTreeSet::from([NodeId::new(2)]);
            decide(image, (THREE, DAMAGED), &safe, &also)
        };
        assert_eq!(says(&image, &[0, 1, 3]), Ok(()));
        // All of them are silent in this image.
        let silent = |ids: &[i32], damaged: &[i32]| {
            let [nodes, damaged] =
                [ids, damaged].map(|ids| ids.iter().copied().map(NodeId::new).collect());
            Silent { nodes, damaged }
        };
        let missing = |ids: &[u32]| {
            let ids = ids.iter().copied().map(group).collect();
            Err(Refused::Unsafe(ids, silent(&[1, 2, 4], &[2])))
        };
        assert_eq!(says(&image, &[1, 3]), missing(&[0]));
        assert_eq!(says(&image, &[0, 2]), missing(&[1, 3]));
        assert_eq!(says(&image, &[]), missing(&[0, 1, 3]));
        let targets = BTreeMap::from([(group(2), [1, 2, 3].map(NodeId::new).to_vec())]);
        image.apply(
            MetadataCommand::MoveReplicas { targets },
            TimestampMs::new(2),
        );
        assert_eq!(says(&image, &[0, 1, 3]), missing(&[2]), "on its way to it");
        let lives = MetadataCommand::SetBrokerFence {
            node: THREE,
            fenced: false,
        };
        image.apply(lives, TimestampMs::new(3));
        let refused = says(&image, &[0, 1, 2, 3]);
        assert_eq!(refused, Err(RefillRefused::Lives(DAMAGED).into()));
    }

    /// Proves that groups in which nothing is need no leader: neither one on which it is alone, nor one that comes to it, until there is a partition in them.
    #[test]
    fn groups_in_which_nothing_is_need_no_leader() {
        let mut image = image(&[(1, &[1, 2, 3])]);
        let groups = [(group(8), vec![THREE]), (group(9), vec![NodeId::new(2)])];
        let groups = BTreeMap::from(groups);
        let stamp = TimestampMs::new(2);
        image.apply(MetadataCommand::CreateGroups { groups }, stamp);
        let targets = BTreeMap::from([(group(9), vec![THREE])]);
        image.apply(MetadataCommand::MoveReplicas { targets }, stamp);
        let safe = (0..2).map(group).collect();
        let decide = |image: &MetadataImage, safe: &BTreeSet<_>| {
            decide(image, (THREE, DAMAGED), safe, &BTreeSet::new())
        };
        assert_eq!(decide(&image, &safe), Ok(()));
        let create = MetadataCommand::CreateTopic {
            id: tidelog_model::TopicId::new(Uuid::from_u128(1)),
            name: "one".to_owned(),
            partitions: vec![group(9)],
            configs: BTreeMap::new(),
            before: crate::metadata::NameBefore::Unknown,
        };
        image.apply(create, stamp);
        let silent = Silent {
            nodes: vec![NodeId::new(2)],
            damaged: Vec::new(),
        };
        let missing = Err(Refused::Unsafe(vec![group(9)], silent));
        assert_eq!(decide(&image, &safe), missing);
    }

    /// Proves that a broker with the only copy of anything is refused whatever leaders say.
    #[test]
    fn an_only_copy_is_kept() {
        let image = image(&[(1, &[1, 2, 3]), (2, &[3])]);
        let safe = (0..3).map(group).collect();
        let refused = decide(&image, (THREE, DAMAGED), &safe, &BTreeSet::new()).unwrap_err();
        assert_eq!(refused.to_string(), "group 2 has no other copy");
    }

    /// Proves that the reason names whom the groups wait for, those that are damaged too, and that it fits an answer; and that nobody is called the leader who is none.
    #[test]
    fn who_is_waited_for_is_said() {
        let ids = |ids: &[i32]| ids.iter().copied().map(NodeId::new).collect();
        let silent = |all: &[i32], damaged: &[i32]| Silent {
            nodes: ids(all),
            damaged: ids(damaged),
        };
        let says = |silent| Refused::Unsafe(vec![group(4)], silent).to_string();
        assert!(says(silent(&[], &[])).ends_with("was acknowledged"));
        assert!(says(silent(&[2, 5], &[])).ends_with("acknowledged; they wait for brokers 2, 5"));
        let text = says(silent(&[2, 5], &[2]));
        assert!(
            text.ends_with("they wait for brokers 2, 5 (damaged too: broker 2)"),
            "{text}"
        );
        let groups = (1_000..2_000).map(group).collect();
        let many: Vec<i32> = (1_000..1_040).collect();
        let text = Refused::Unsafe(groups, silent(&many, &many)).to_string();
        assert!(text.len() < 512, "{text}");
        assert!(!Refused::NoLeader.to_string().contains("broker"));
    }

    /// Proves that a long list is told short.
    #[test]
    fn many_groups_are_counted() {
        let text = groups(&(1..=7).map(group).collect::<Vec<_>>());
        assert_eq!(text, "groups 1, 2, 3, 4, 5 and 2 more have");
        assert_eq!(groups(&[group(4)]), "group 4 has");
    }
}
