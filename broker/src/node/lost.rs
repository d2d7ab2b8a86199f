//! The leader of metadata finds groups that are lost, finds them again, and gives those without partitions new groups in their place.
//!
//! Owns: the decision, and the loop that makes it.
//! Not here: what follows from it (`metadata`), asking members (`formation`).
//! Spec: docs/protocols/membership.md (lost groups)

use super::formation::ReplicasTold;
use super::peers::Peers;
use crate::metadata::{MetadataCommand, MetadataImage, MetadataOutcome, choose_replicas_anew};
use crate::placement::ProposeError;
use crate::router::{MetadataClient, Router};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::Tasks;
use tidelog_model::{LogIndex, NodeId, PlacementGroupId, TimestampMs};

/// How often the leader looks: a round costs a question to each member, and only while a group has no leader.
const TICK: Duration = Duration::from_secs(1);

/// What members say of their replicas.
#[derive(Debug, Default)]
struct Seen {
    led: BTreeSet<PlacementGroupId>,
    empty: BTreeMap<PlacementGroupId, BTreeSet<NodeId>>,
}

impl Seen {
    /// Of those alone that are members by this image, under the Raft nodes that they speak for.
    fn new(image: &MetadataImage, told: Vec<ReplicasTold>) -> Self {
        let mut seen = Self::default();
        for told in told {
            let member = image.members().get(&told.node);
            if member.is_none_or(|member| member.raft_node != told.raft_node) {
                continue;
            }
            seen.led.extend(told.led);
            for group in told.empty {
                seen.empty.entry(group).or_default().insert(told.node);
            }
        }
        seen
    }

    /// Brokers that have nothing of the group, or leave and are silent while nothing is in it.
    fn without(&self, image: &MetadataImage, group: PlacementGroupId) -> BTreeSet<NodeId> {
        let mut without = self.empty.get(&group).cloned().unwrap_or_default();
        let unused = !image.has_partitions(group);
        // Offsets alone are given up when it is known that they are gone.
        if unused && (image.is_lost(group) || !image.has_slots(group)) {
            let members = image.members().iter();
            let leaving = members.filter(|(_, member)| member.draining);
            let silent = leaving.filter(|(node, _)| !image.is_live(**node));
            without.extend(silent.map(|(node, _)| *node));
        }
        without
    }
}

/// What is so, and the image does not say.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    /// Groups that are lost, with the brokers that may have something of them.
    lost: BTreeMap<PlacementGroupId, Vec<NodeId>>,
    /// Groups that are not any more.
    found: BTreeSet<PlacementGroupId>,
    /// Lost groups that nobody uses.
    unused: BTreeSet<PlacementGroupId>,
}

fn look(image: &MetadataImage, seen: &Seen) -> Found {
    let mut all = Found::default();
    for group in image.groups().keys() {
        let led = seen.led.contains(group);
        let left = || image.left_of(*group, &seen.without(image, *group));
        match (image.is_lost(*group), led) {
            (true, true) => {
                all.found.insert(*group);
            }
            (true, false) if !image.has_partitions(*group) => {
                if may_be_replaced(left().as_deref(), image.has_slots(*group)) {
                    all.unused.insert(*group);
                }
            }
            (false, false) => {
                if let Some(left) = left() {
                    all.lost.insert(*group, left);
                }
            }
            (true | false, _) => {}
        }
    }
    all
}

/// Whether a lost group without partitions is given up, when the brokers `left` may have something of it (`None`: enough of them). Offsets of consumer
/// groups that one copy still has are not: who starts anew at the end would skip records.
fn may_be_replaced(left: Option<&[NodeId]>, offsets: bool) -> bool {
    left.is_some_and(|left| left.is_empty() || !offsets)
}

/// The new group in the place of `group`; `None` while too few brokers live.
fn replacement(
    image: &MetadataImage,
    group: PlacementGroupId,
    checked: LogIndex,
) -> Option<MetadataCommand> {
    let copies = image.groups().get(&group)?.len();
    let last = image.groups().keys().next_back()?;
    let by = PlacementGroupId::new(last.get().checked_add(1)?);
    let nodes = choose_replicas_anew(image, copies)?;
    Some(MetadataCommand::ReplaceGroup {
        group,
        by,
        nodes,
        checked,
    })
}

/// Looks while this broker leads metadata.
pub(super) fn watch(peers: &Arc<Peers>, metadata: &MetadataClient, router: &Router, tasks: &Tasks) {
    let (peers, metadata, router) = (Arc::clone(peers), metadata.clone(), router.clone());
    tasks.supervise("lost-groups", TICK, move || {
        let watch = Watch {
            peers: Arc::clone(&peers),
            metadata: metadata.clone(),
            router: router.clone(),
        };
        async move {
            let mut doubted = BTreeSet::new();
            loop {
                tokio::time::sleep(watch.metadata.random.jitter(TICK)).await;
                let round = watch.round(&doubted).await;
                doubted = round.unwrap_or_else(|error| {
                    tracing::debug!("lost groups are looked for again: {error}");
                    BTreeSet::new()
                });
            }
        }
    });
}

struct Watch {
    peers: Arc<Peers>,
    metadata: MetadataClient,
    router: Router,
}

impl Watch {
    /// One look. A group is lost when two looks in a row say so: a replica that is being set up is empty for a moment. Returns what this one says.
    async fn round(
        &self,
        doubted: &BTreeSet<PlacementGroupId>,
    ) -> Result<BTreeSet<PlacementGroupId>, ProposeError> {
        if !self.metadata.group.is_leader() || !self.is_doubtful() {
            return Ok(BTreeSet::new());
        }
        self.metadata.group.read_barrier().await?;
        let (checked, others) = self.router.image(|image| {
            let members = image.members().keys().copied();
            let others = members.filter(|id| *id != self.metadata.node && image.is_live(*id));
            (image.last().index, others.collect::<Vec<_>>())
        });
        let told = self
            .peers
            .formation
            .ask_groups(&self.peers.transport, others);
        let told = told.await;
        let found = self.router.image(|image| {
            let same = image.last().index == checked;
            same.then(|| look(image, &Seen::new(image, told)))
        });
        let Some(found) = found else {
            // Metadata has changed meanwhile; what was doubted is doubted still.
            return Ok(doubted.clone());
        };
        let now: BTreeSet<_> = found.lost.keys().copied().collect();
        let mut lost = found.lost;
        lost.retain(|group, _| doubted.contains(group));
        if !lost.is_empty() {
            self.name(&lost);
            let groups = lost;
            self.propose(&MetadataCommand::LoseGroups { groups, checked })
                .await?;
        } else if !found.found.is_empty() {
            tracing::warn!(
                "copies of lost groups have come back: {:?}",
                found
                    .found
                    .iter()
                    .map(|group| group.get())
                    .collect::<Vec<_>>()
            );
            let groups = found.found;
            self.propose(&MetadataCommand::FindGroups { groups, checked })
                .await?;
        } else if let Some(group) = found.unused.first() {
            // One a look: it changes the image.
            self.replace(*group, checked).await?;
        }
        Ok(now)
    }

    /// Whether any group has no leader, or counts as lost.
    fn is_doubtful(&self) -> bool {
        let groups: Vec<_> = self.router.image(|image| {
            let lost = !image.lost().is_empty();
            let groups = image.groups().keys().copied();
            groups.map(|group| (group, lost)).collect()
        });
        let mut groups = groups.into_iter();
        groups.any(|(group, lost)| lost || self.router.leader(group).is_none())
    }

    fn name(&self, lost: &BTreeMap<PlacementGroupId, Vec<NodeId>>) {
        for group in lost.keys() {
            let partitions = self
                .router
                .image(|image| image.partition_names(*group).len());
            tracing::error!(
                group = %group,
                "the group is lost: most of its copies are gone with their disks. Nobody can append to or read its {partitions} partitions; \
                 `tidelog cluster status` names them"
            );
        }
    }

    async fn replace(
        &self,
        group: PlacementGroupId,
        checked: LogIndex,
    ) -> Result<(), ProposeError> {
        let command = self
            .router
            .image(|image| replacement(image, group, checked));
        let Some(command) = command else {
            return Ok(());
        };
        if let MetadataCommand::ReplaceGroup { by, nodes, .. } = &command {
            let nodes: Vec<_> = nodes.iter().map(|node| node.get()).collect();
            tracing::warn!(
                "the lost group {group} has no partitions: group {by} takes its place, empty, on the brokers {nodes:?}"
            );
        }
        self.propose(&command).await
    }

    /// By this leader or not at all: another one looks for itself.
    async fn propose(&self, command: &MetadataCommand) -> Result<(), ProposeError> {
        let stamp = TimestampMs::new(self.metadata.clock.now_ms());
        let proposed = self.metadata.group.propose(command.encode(stamp)).await?;
        if let (_, MetadataOutcome::Refused(refusal)) = proposed {
            tracing::debug!("what was found of lost groups is looked for again: {refusal}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::metadata::Admission;
    use tidelog_model::{ClusterId, RaftNodeId, TopicId};
    use uuid::Uuid;

    fn group(id: u32) -> PlacementGroupId {
        PlacementGroupId::new(id)
    }

    fn change(image: &mut MetadataImage, command: MetadataCommand) {
        let outcome = image.apply(command, TimestampMs::new(5));
        assert!(
            !matches!(outcome, MetadataOutcome::Refused(_)),
            "{outcome:?}"
        );
    }

    fn admit(image: &mut MetadataImage, id: i32, raft_node: u64) {
        let node = NodeId::new(id);
        let admission = Admission {
            node,
            raft_node: RaftNodeId::new(raft_node),
            zone: format!("z{id}"),
            peer: None,
            by_operator: true,
            expects: None,
        };
        change(image, MetadataCommand::AdmitBroker(admission));
        let fenced = false;
        change(image, MetadataCommand::SetBrokerFence { node, fenced });
    }

    /// Group 1 on the brokers 1 to 3, with slots; group 2 on broker 2, without.
    fn image() -> MetadataImage {
        let mut image = MetadataImage::default();
        let all = [1, 2, 3].map(NodeId::new).to_vec();
        change(
            &mut image,
            MetadataCommand::BootstrapCluster {
                cluster: ClusterId::new(Uuid::from_u128(7)),
                name: "t".to_owned(),
                groups: BTreeMap::from([(group(1), all)]),
            },
        );
        (1..=4).for_each(|id| admit(&mut image, id, u64::try_from(id * 10).unwrap()));
        let groups = BTreeMap::from([(group(2), vec![NodeId::new(2)])]);
        change(&mut image, MetadataCommand::CreateGroups { groups });
        image
    }

    fn told(id: i32, raft_node: u64, led: &[u32], empty: &[u32]) -> ReplicasTold {
        let groups = |ids: &[u32]| ids.iter().copied().map(group).collect();
        ReplicasTold {
            node: NodeId::new(id),
            raft_node: RaftNodeId::new(raft_node),
            led: groups(led),
            empty: groups(empty),
        }
    }

    fn found(image: &MetadataImage, told: &[ReplicasTold]) -> Found {
        look(image, &Seen::new(image, told.to_vec()))
    }

    /// Proves what makes a group lost: replicas that are empty, said by those that are members now, so many that the others are no majority; not silence, and
    /// not while it is led.
    #[test]
    fn what_makes_a_group_lost() {
        let image = image();
        assert_eq!(found(&image, &[]), Found::default(), "nobody answers");
        let one = [told(1, 10, &[], &[1]), told(2, 20, &[2], &[])];
        assert_eq!(found(&image, &one), Found::default());
        let two = [told(1, 10, &[], &[1]), told(3, 30, &[], &[1])];
        let lost = found(&image, &two).lost;
        assert_eq!(lost, BTreeMap::from([(group(1), vec![NodeId::new(2)])]));
        let of_another = [told(1, 10, &[], &[1]), told(3, 31, &[], &[1])];
        assert_eq!(found(&image, &of_another), Found::default());
        let led = [
            two[0].clone(),
            told(3, 30, &[], &[1]),
            told(2, 20, &[1], &[]),
        ];
        assert_eq!(found(&image, &led), Found::default());
        let only = found(&image, &[told(2, 20, &[], &[2])]).lost;
        assert_eq!(only, BTreeMap::from([(group(2), Vec::new())]));
    }

    /// Proves that a lost group is found when it is led, and replaced only while it has no partitions and nobody may have anything of it.
    #[test]
    fn lost_groups_are_found_or_replaced() {
        let mut image = image();
        let before = image.clone();
        admit(&mut image, 2, 21);
        let id = TopicId::new(Uuid::from_u128(1));
        let empty = [told(2, 21, &[], &[2])];
        let unused = BTreeSet::from([group(2)]);
        assert_eq!(found(&image, &empty).unused, unused);
        assert_eq!(found(&image, &[]), Found::default(), "it may come back");
        let came_back = found(&image, &[told(2, 21, &[2], &[])]);
        assert_eq!(came_back.found, unused);
        let by = replacement(&image, group(2), image.last().index).unwrap();
        assert!(
            matches!(by, MetadataCommand::ReplaceGroup { group: old, by, .. } if (old, by) == (group(2), group(3)))
        );
        // One with partitions is only told.
        let mut used = before;
        let partitions = vec![group(2)];
        let (name, configs) = ("t".to_owned(), BTreeMap::new());
        change(
            &mut used,
            MetadataCommand::CreateTopic {
                id,
                name,
                partitions,
                configs,
                before: crate::metadata::NameBefore::Unknown,
            },
        );
        admit(&mut used, 2, 21);
        assert_eq!(found(&used, &empty), Found::default());
    }

    /// Proves that a lost group with offsets of consumer groups is not replaced while a broker may have a copy of them.
    #[test]
    fn offsets_that_one_copy_has_are_kept() {
        let one: &[NodeId] = &[NodeId::new(2)];
        assert!(!may_be_replaced(Some(one), true));
        assert!(may_be_replaced(Some(one), false));
        assert!(may_be_replaced(Some(&[]), true));
        assert!(!may_be_replaced(None, false), "it may come back");
    }

    /// Proves that a silent broker that leaves gives up groups in which there is nothing, and no other ones.
    #[test]
    fn who_leaves_silently_gives_up_what_is_empty() {
        let mut image = image();
        let node = NodeId::new(2);
        let fenced = true;
        change(&mut image, MetadataCommand::SetBrokerFence { node, fenced });
        assert_eq!(found(&image, &[]), Found::default(), "it may come back");
        let draining = true;
        change(&mut image, MetadataCommand::SetDraining { node, draining });
        let given_up = BTreeMap::from([(group(2), Vec::new())]);
        assert_eq!(found(&image, &[]).lost, given_up);
        // Two of three, but with offsets of consumer groups.
        let third = [told(3, 30, &[], &[1])];
        assert_eq!(found(&image, &third).lost, given_up);
    }
}
