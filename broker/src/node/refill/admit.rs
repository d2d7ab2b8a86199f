//! The leader of metadata takes damaged brokers in anew, where nothing depends on what they had.
//!
//! Owns: the decision, and the loop that makes it.
//! Not here: the rule of the image (`metadata`), what a group's leader knows (`placement`), asking members (`formation`).
//! Spec: docs/protocols/refill.md (steps 3 and 4)

use super::super::formation::{Candidate, Reason};
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
use tidelog_model::{LogIndex, NodeId, PlacementGroupId, RaftNodeId, TimestampMs};
use tokio::time::Instant;

/// How often the leader looks: a round costs a question to each member, and only while somebody waits.
const TICK: Duration = Duration::from_secs(1);
/// So long nobody else is told that it may stop: it hears of that within seconds, and hands over and ends within ten. Then it is silent, and counts as no copy for others.
const TURN: Duration = Duration::from_secs(30);
/// Groups that are named at most.
const NAMED_MAX: usize = 5;

/// Why a damaged broker is not taken in now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Refused {
    /// The image says so.
    #[error(transparent)]
    Image(#[from] RefillRefused),
    /// Two directories.
    #[error("several brokers wait with this id: stop all but one")]
    SeveralWait,
    /// A leader is missing, or a copy.
    #[error("{} no leader now whose other copies have all that was acknowledged{}", groups(.0), .1)]
    Unsafe(Vec<PlacementGroupId>, Silent),
    /// It says that it cannot be reached.
    #[error("{0:?}, where it says that others reach it, is no host:port: set its peer.advertised")]
    Address(String),
    /// It runs, and so does that one, which stops first.
    #[error("broker {0}, which is damaged too, is refilled first")]
    OtherFirst(NodeId),
    /// Nobody decides.
    #[error("nobody leads the cluster's metadata now")]
    NoLeader,
    /// Something came between.
    #[error("{0}")]
    Later(String),
}

impl Refused {
    /// What is told of it. Data are in the way, and may be given up, where nobody else has them, or who has is missing; all else passes by itself, and is tried again, or says
    /// what to do.
    fn reason(&self) -> Reason {
        let (says_all, then) = match self {
            Self::Image(RefillRefused::OnlyCopy(_)) => (false, ""),
            Self::Unsafe(_, silent) if !silent.nodes.is_empty() => (false, ""),
            Self::Unsafe(..) => (
                true,
                "; all brokers that hold them live, so copies are on their way perhaps, and it is tried again. Where that stays so, `tidelog cluster add` says what helps",
            ),
            Self::Image(RefillRefused::Draining) | Self::SeveralWait | Self::Address(_) => {
                (true, "")
            }
            Self::Image(
                RefillRefused::NotMember(_) | RefillRefused::Replaced | RefillRefused::Lives(_),
            )
            | Self::OtherFirst(_)
            | Self::NoLeader
            | Self::Later(_) => (true, "; it is tried again"),
        };
        let text = format!("{self}{then}");
        Reason { text, says_all }
    }
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

/// What the image says of who asks.
fn check(image: &MetadataImage, candidate: &Candidate) -> Result<(), Refused> {
    let (node, Some(damaged)) = (candidate.node(), candidate.damaged()) else {
        return Ok(());
    };
    let said = if candidate.runs() {
        image.check_refill_once_silent(node, damaged)
    } else {
        image.check_refill(node, damaged)
    };
    said.map_err(Refused::from)
}

/// Whether `candidate` may be taken in instead of its damaged Raft node: what the image says, and of all groups that it holds, or is getting, and in which anything is,
/// what their leaders say. `safe`: the groups that need it not. `also`: all brokers that wait with a damaged disk.
fn decide(
    image: &MetadataImage,
    candidate: &Candidate,
    safe: &BTreeSet<PlacementGroupId>,
    also: &[Candidate],
) -> Result<(), Refused> {
    check(image, candidate)?;
    let node = candidate.node();
    let missing = image.needed(node, safe);
    if missing.is_empty() {
        return Ok(());
    }
    // Who runs without a group gives it nothing.
    let lacks = |other: &&Candidate| {
        let withheld = other.withheld().unwrap_or_default();
        let mut lacks = missing.iter().filter(|group| withheld.contains(group));
        lacks.any(|group| image.holders(*group).contains(&other.node()))
    };
    let others = also.iter().filter(|other| other.node() != node);
    let lacking = others.filter(lacks).map(Candidate::node);
    let mut nodes = image.silent_holders(&missing, node);
    nodes.extend(lacking);
    nodes.sort_unstable();
    nodes.dedup();
    let damaged = |at: &NodeId| also.iter().any(|other| other.node() == *at);
    let damaged = nodes.iter().copied().filter(damaged).collect();
    Err(Refused::Unsafe(missing, Silent { nodes, damaged }))
}

/// Who was told last that it may stop. One at a time: each of two is a copy that the other one's refill needs.
#[derive(Default)]
struct Turn(Option<(NodeId, Instant)>);

impl Turn {
    /// Whether it is the turn of `node`.
    fn take(&mut self, node: NodeId, now: Instant) -> Result<(), Refused> {
        match self.0 {
            Some((other, at)) if other != node && now.duration_since(at) < TURN => {
                Err(Refused::OtherFirst(other))
            }
            _ => {
                self.0 = Some((node, now));
                Ok(())
            }
        }
    }
}

/// Takes damaged brokers in while this one leads metadata.
pub(in crate::node) fn admit_damaged(peers: &Arc<Peers>, metadata: &MetadataClient, tasks: &Tasks) {
    let (peers, metadata) = (Arc::clone(peers), metadata.clone());
    tasks.supervise("refill", TICK, move || {
        let (peers, metadata) = (Arc::clone(&peers), metadata.clone());
        async move {
            let mut turn = Turn::default();
            loop {
                tokio::time::sleep(metadata.random.jitter(TICK)).await;
                let leads = metadata.group.is_leader();
                for candidate in peers.formation.damaged(leads) {
                    let refused = answer(&peers, &metadata, &candidate, &mut turn).await.err();
                    let refused = refused.map(|why| why.reason());
                    peers.formation.answer_damaged(&candidate, refused);
                }
            }
        }
    });
}

/// Takes `candidate` in, or, where it runs, finds that it may stop for that.
async fn answer(
    peers: &Peers,
    metadata: &MetadataClient,
    candidate: &Candidate,
    turn: &mut Turn,
) -> Result<(), Refused> {
    let Some(damaged) = candidate.damaged() else {
        return Ok(());
    };
    let (checked, peer) = look(peers, metadata, candidate, damaged).await?;
    if candidate.runs() {
        return turn.take(candidate.node(), Instant::now());
    }
    take_in(metadata, candidate, damaged, checked, peer).await
}

fn later(error: ProposeError) -> Refused {
    match error {
        // Who it takes for the leader, itself perhaps, is none that a majority hears.
        ProposeError::NotLeader { .. } => Refused::NoLeader,
        error => Refused::Later(error.to_string()),
    }
}

/// Step 3: as of which entry nothing needs what it had, and where it is reached.
async fn look(
    peers: &Peers,
    metadata: &MetadataClient,
    candidate: &Candidate,
    damaged: RaftNodeId,
) -> Result<(LogIndex, Address), Refused> {
    let node = candidate.node();
    if peers.formation.waiting(node) > 1 {
        return Err(Refused::SeveralWait);
    }
    let peer = address(&candidate.peer).ok_or(Refused::Address(candidate.peer.clone()))?;
    metadata.group.read_barrier().await.map_err(later)?;
    let (checked, others) = metadata.group.read(|machine| {
        let image = machine.image();
        check(image, candidate)?;
        let members = image.members().keys().copied();
        let others = members.filter(|id| *id != metadata.node && image.is_live(*id));
        Ok::<_, Refused>((image.last().index, others.collect::<Vec<_>>()))
    })?;
    let asked = peers
        .formation
        .ask_without(&peers.transport, others, damaged);
    let safe = asked.await;
    let also = peers.formation.damaged(true);
    let look = |image: &MetadataImage| {
        if image.last().index != checked {
            return Err(Refused::Later("metadata has changed meanwhile".to_owned()));
        }
        decide(image, candidate, &safe, &also)
    };
    metadata.group.read(|machine| look(machine.image()))?;
    Ok((checked, peer))
}

/// Step 4.
async fn take_in(
    metadata: &MetadataClient,
    candidate: &Candidate,
    damaged: RaftNodeId,
    checked: LogIndex,
    peer: Address,
) -> Result<(), Refused> {
    let node = candidate.node();
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

    /// Broker `id`, which has found damage, and runs without a group, or not at all.
    fn asks(id: i32, withheld: Option<u32>) -> Candidate {
        let withheld =
            withheld.map_or_else(String::new, |group| format!(r#","withheld":[{group}]"#));
        let (old, new) = (id * 10, id * 10 + 1);
        let text = format!(
            r#"{{"broker_id":{id},"raft_node_id":{new},"zone":"","peer":"h:1","damaged":{old}{withheld}}}"#
        );
        serde_json::from_str(&text).unwrap()
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
            let also = [asks(3, None), asks(2, None)];
            decide(image, &also[0], &safe, &also)
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

    /// Proves that one that runs may stop where it would be taken in then, and that one that runs without a group counts as a copy of it no more than a silent one, and
    /// is named.
    #[test]
    fn who_runs_in_part_may_stop() {
        let mut image = image(&[(1, &[1, 2, 3]), (2, &[1, 2, 4])]);
        for node in [1, 2, 3, 4].map(NodeId::new) {
            let fenced = false;
            let lives = MetadataCommand::SetBrokerFence { node, fenced };
            image.apply(lives, TimestampMs::new(2));
        }
        let also = [asks(3, Some(5)), asks(2, Some(1)), asks(4, Some(2))];
        let says = |safe: &[u32]| {
            let safe = safe.iter().copied().map(group).collect();
            decide(&image, &also[0], &safe, &also)
        };
        assert_eq!(says(&[0, 1]), Ok(()));
        let two = || vec![NodeId::new(2)];
        let silent = Silent {
            nodes: two(),
            damaged: two(),
        };
        assert_eq!(says(&[0]), Err(Refused::Unsafe(vec![group(1)], silent)));
        let stopped = decide(&image, &asks(3, None), &BTreeSet::new(), &also);
        assert_eq!(stopped, Err(RefillRefused::Lives(DAMAGED).into()));
    }

    /// Proves that of several that may stop one is told so at a time, and the others when that one has had its time.
    #[tokio::test(start_paused = true)]
    async fn one_stops_at_a_time() {
        let (two, now) = (NodeId::new(2), Instant::now());
        let mut turn = Turn::default();
        assert_eq!(turn.take(two, now), Ok(()));
        assert_eq!(turn.take(THREE, now), Err(Refused::OtherFirst(two)));
        let later = now + TURN / 2;
        assert_eq!(turn.take(two, later), Ok(()), "it is still its turn");
        assert_eq!(turn.take(THREE, now + TURN), Err(Refused::OtherFirst(two)));
        assert_eq!(turn.take(THREE, later + TURN), Ok(()));
        assert!(turn.take(two, later + TURN).is_err());
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
        let decide =
            |image: &MetadataImage, safe: &BTreeSet<_>| decide(image, &asks(3, None), safe, &[]);
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
        let refused = decide(&image, &asks(3, None), &safe, &[]).unwrap_err();
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

    /// Proves that data are said to be in the way only where nobody else has them, or somebody is missing who has; and that all else says that it is tried again, or what to do.
    #[test]
    fn what_passes_says_so() {
        let two = NodeId::new(2);
        let silent = Silent {
            nodes: vec![two],
            damaged: Vec::new(),
        };
        let only = RefillRefused::OnlyCopy(vec![group(4)]);
        for refused in [Refused::Unsafe(vec![group(4)], silent), only.into()] {
            let reason = refused.reason();
            assert_eq!((reason.text, reason.says_all), (refused.to_string(), false));
        }
        let passes = [
            Refused::OtherFirst(two),
            Refused::NoLeader,
            Refused::Later("a timeout".to_owned()),
            RefillRefused::Lives(DAMAGED).into(),
            RefillRefused::Replaced.into(),
            RefillRefused::NotMember(THREE).into(),
            Refused::Unsafe(vec![group(4)], Silent::default()),
        ];
        for refused in passes {
            let reason = refused.reason();
            assert!(reason.text.contains("it is tried again"), "{}", reason.text);
            assert!(reason.says_all, "{}", reason.text);
        }
        let does = [
            (Refused::SeveralWait, "stop all but one"),
            (Refused::Address("h".to_owned()), "set its peer.advertised"),
            (RefillRefused::Draining.into(), "it leaves then"),
        ];
        for (refused, words) in does {
            let reason = refused.reason();
            assert!(reason.text.ends_with(words), "{}", reason.text);
            assert!(reason.says_all, "{}", reason.text);
        }
    }

    /// Proves that a long list is told short.
    #[test]
    fn many_groups_are_counted() {
        let text = groups(&(1..=7).map(group).collect::<Vec<_>>());
        assert_eq!(text, "groups 1, 2, 3, 4, 5 and 2 more have");
        assert_eq!(groups(&[group(4)]), "group 4 has");
    }
}
