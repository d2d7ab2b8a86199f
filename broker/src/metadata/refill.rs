//! Taking in a broker that found its disk damaged, without an operator: what the image must say for that.
//!
//! Owns: [`Refill`], [`RefillRefused`], the rule.
//! Not here: what the groups' leaders must say (`node`), the admission itself (`membership.rs`).
//! Spec: docs/protocols/refill.md

use super::apply::{MetadataOutcome, Refusal};
use super::image::MetadataImage;
use super::membership::Admission;
use tidelog_model::{LogIndex, NodeId, PlacementGroupId, RaftNodeId};

/// What [`super::MetadataCommand::RefillBroker`] carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refill {
    /// The Raft node whose files are damaged.
    pub damaged: RaftNodeId,
    /// The last entry of the image on which this was decided: nothing may have been applied since.
    pub checked: LogIndex,
    /// Whom to take in instead.
    pub admission: Admission,
}

/// Why a damaged broker is not taken in by itself, as far as the image says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RefillRefused {
    /// It was decommissioned.
    #[error("broker {0} is no member of the cluster any more")]
    NotMember(NodeId),
    /// Another directory is used in its place.
    #[error("another data directory has taken its place")]
    Replaced,
    /// It was heard lately, or a copy of it.
    #[error(
        "its Raft node {0} still counts as living: it, or a copy of it, was heard within `cluster.session-ms`"
    )]
    Lives(RaftNodeId),
    /// It is leaving: its replicas go elsewhere.
    #[error("it is being decommissioned: its replicas go to other brokers, and it leaves then")]
    Draining,
    /// What it holds is nowhere else.
    #[error("{} no other copy", have(.0))]
    OnlyCopy(Vec<PlacementGroupId>),
}

/// `group 3 has`, `groups 3, 4 have`.
fn have(groups: &[PlacementGroupId]) -> String {
    let names: Vec<_> = groups.iter().map(ToString::to_string).collect();
    let names = names.join(", ");
    if groups.len() == 1 {
        format!("group {names} has")
    } else {
        format!("groups {names} have")
    }
}

impl MetadataImage {
    /// Whether `node`, a member as the Raft node `damaged`, may be taken in anew as far as this image knows.
    ///
    /// # Errors
    /// Why not.
    pub fn check_refill(&self, node: NodeId, damaged: RaftNodeId) -> Result<(), RefillRefused> {
        self.check_refill_once_silent(node, damaged)?;
        if self.is_live(node) {
            Err(RefillRefused::Lives(damaged))
        } else {
            Ok(())
        }
    }

    /// The same of one that runs, if it did not.
    ///
    /// # Errors
    /// Why not.
    pub fn check_refill_once_silent(
        &self,
        node: NodeId,
        damaged: RaftNodeId,
    ) -> Result<(), RefillRefused> {
        let member = self.members.get(&node);
        let member = member.ok_or(RefillRefused::NotMember(node))?;
        if member.raft_node != damaged {
            return Err(RefillRefused::Replaced);
        }
        if member.draining {
            return Err(RefillRefused::Draining);
        }
        let alone = self.groups.iter().filter(|(_, nodes)| **nodes == [node]);
        // Of a lost one it has nothing. One in which nothing is, is lost by this, and another one takes its place.
        let alone = alone.filter(|(group, _)| !self.is_lost(**group) && self.has_content(**group));
        let alone: Vec<_> = alone.map(|(group, _)| *group).collect();
        if alone.is_empty() {
            Ok(())
        } else {
            Err(RefillRefused::OnlyCopy(alone))
        }
    }

    pub(super) fn refill(&mut self, refill: Refill) -> Result<MetadataOutcome, Refusal> {
        let Refill {
            damaged,
            checked,
            admission,
        } = refill;
        let member = self.members.get(&admission.node);
        if member.is_some_and(|member| member.raft_node == admission.raft_node) {
            return Ok(MetadataOutcome::MembersChanged);
        }
        let unchanged = checked.next() == self.last.index;
        if !unchanged || self.check_refill(admission.node, damaged).is_err() {
            return Err(Refusal::Outdated);
        }
        self.admit(Admission {
            by_operator: true,
            expects: None,
            ..admission
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::super::{MetadataCommand, decode_command};
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};
    use tidelog_model::{ClusterId, LogId, Term, TimestampMs, TopicId};
    use uuid::Uuid;

    const DAMAGED: RaftNodeId = RaftNodeId::new(30);
    const THREE: NodeId = NodeId::new(3);

    fn admission(node: i32, raft_node: u64) -> Admission {
        Admission {
            node: NodeId::new(node),
            raft_node: RaftNodeId::new(raft_node),
            zone: "z".to_owned(),
            peer: None,
            by_operator: true,
            expects: None,
        }
    }

    fn apply(image: &mut MetadataImage, command: MetadataCommand) -> MetadataOutcome {
        image.last = LogId {
            term: Term::new(1),
            index: image.last.index.next(),
        };
        image.apply(command, TimestampMs::new(5))
    }

    /// Three brokers that hold these groups; broker 3 is silent.
    fn image(groups: &[&[i32]]) -> MetadataImage {
        let mut image = MetadataImage::default();
        let held = |ids: &&[i32]| ids.iter().copied().map(NodeId::new).collect();
        let groups: BTreeMap<_, Vec<NodeId>> = (1..)
            .map(PlacementGroupId::new)
            .zip(groups.iter().map(held))
            .collect();
        let bootstrap = MetadataCommand::BootstrapCluster {
            cluster: ClusterId::new(Uuid::from_u128(7)),
            name: "t".to_owned(),
            groups,
        };
        apply(&mut image, bootstrap);
        for id in 1..=3 {
            let raft_node = u64::try_from(id * 10).unwrap();
            apply(
                &mut image,
                MetadataCommand::AdmitBroker(admission(id, raft_node)),
            );
        }
        image
    }

    fn refill(image: &mut MetadataImage, checked: LogIndex) -> MetadataOutcome {
        let refill = Refill {
            damaged: DAMAGED,
            checked,
            admission: admission(3, 31),
        };
        apply(image, MetadataCommand::RefillBroker(refill))
    }

    /// Proves each reason of the image against it, and that apply has the same ones, whatever was seen when it was proposed.
    #[test]
    fn each_reason() {
        let refused = |mut image: MetadataImage| {
            let why = image.check_refill(THREE, DAMAGED).unwrap_err();
            let before = image.members().clone();
            let at = image.last.index;
            let outcome = refill(&mut image, at);
            assert_eq!(outcome, MetadataOutcome::Refused(Refusal::Outdated));
            assert_eq!(image.members(), &before);
            why
        };
        let all: &[i32] = &[1, 2, 3];
        let good = image(&[all]);
        assert_eq!(good.check_refill(THREE, DAMAGED), Ok(()));
        let mut lives = good.clone();
        let (node, fenced) = (THREE, false);
        apply(&mut lives, MetadataCommand::SetBrokerFence { node, fenced });
        assert_eq!(lives.check_refill_once_silent(THREE, DAMAGED), Ok(()));
        assert_eq!(refused(lives), RefillRefused::Lives(DAMAGED));
        let mut replaced = good.clone();
        apply(
            &mut replaced,
            MetadataCommand::AdmitBroker(admission(3, 39)),
        );
        assert_eq!(refused(replaced), RefillRefused::Replaced);
        let mut draining = good.clone();
        draining.members.get_mut(&THREE).unwrap().draining = true;
        assert_eq!(refused(draining), RefillRefused::Draining);
        let mut gone = good;
        gone.members.remove(&THREE);
        assert_eq!(refused(gone), RefillRefused::NotMember(THREE));
        let only = refused(image(&[all, &[3], &[1, 2], &[3]]));
        assert_eq!(only.to_string(), "groups 2, 4 have no other copy");
    }

    /// Proves that a group in which nothing is, neither partitions nor offsets, keeps nobody from being taken in; that it is lost then, or, on its way to another
    /// broker, once its holder says that it has nothing; and that it counts again as soon as a partition is in it.
    #[test]
    fn a_group_in_which_nothing_is_holds_nobody_back() {
        let mut image = image(&[&[1, 2, 3]]);
        let only = |id| PlacementGroupId::new(id);
        let groups = BTreeMap::from([(only(8), vec![THREE]), (only(9), vec![THREE])]);
        apply(&mut image, MetadataCommand::CreateGroups { groups });
        let targets = BTreeMap::from([(only(9), vec![NodeId::new(2)])]);
        apply(&mut image, MetadataCommand::MoveReplicas { targets });
        assert_eq!(image.check_refill(THREE, DAMAGED), Ok(()));
        let mut used = image.clone();
        let create = MetadataCommand::CreateTopic {
            id: TopicId::new(Uuid::from_u128(1)),
            name: "one".to_owned(),
            partitions: vec![only(8), only(9)],
            configs: BTreeMap::new(),
            before: crate::metadata::NameBefore::Unknown,
        };
        apply(&mut used, create);
        let copies = RefillRefused::OnlyCopy(vec![only(8), only(9)]);
        assert_eq!(used.check_refill(THREE, DAMAGED), Err(copies));
        // Placed between the look and the command.
        let checked = image.last.index;
        let outdated = MetadataOutcome::Refused(Refusal::Outdated);
        assert_eq!(refill(&mut used, checked), outdated);

        assert_eq!(refill(&mut image, checked), MetadataOutcome::MembersChanged);
        assert_eq!(image.lost(), &BTreeMap::from([(only(8), Vec::new())]));
        let empty = [THREE].into_iter().collect();
        assert_eq!(image.left_of(only(9), &BTreeSet::new()), None);
        assert_eq!(image.left_of(only(9), &empty), Some(Vec::new()));
        assert_eq!(used.left_of(only(9), &empty), None, "broker 2 may have it");
    }

    /// Proves that a damaged broker is taken in on the newest image alone, that all it held is moved then, and that the same command again changes nothing.
    #[test]
    fn on_the_newest_image_alone() {
        let mut image = image(&[&[1, 2, 3], &[1, 2]]);
        let seen = image.last.index;
        let (node, fenced) = (NodeId::new(1), true);
        apply(&mut image, MetadataCommand::SetBrokerFence { node, fenced });
        let outdated = MetadataOutcome::Refused(Refusal::Outdated);
        assert_eq!(refill(&mut image, seen), outdated);
        let now = image.last.index;
        assert_eq!(refill(&mut image, now), MetadataOutcome::MembersChanged);
        let member = image.members()[&THREE];
        assert_eq!(member.raft_node, RaftNodeId::new(31));
        assert!(!image.is_live(THREE));
        let moved: Vec<_> = image.moves().keys().copied().collect();
        assert_eq!(moved, [PlacementGroupId::new(1)]);
        let before = image.moves().clone();
        assert_eq!(refill(&mut image, seen), MetadataOutcome::MembersChanged);
        assert_eq!(image.moves(), &before);
    }

    /// Proves that the command's bytes are those of the page.
    #[test]
    fn golden() {
        let refill = Refill {
            damaged: DAMAGED,
            checked: LogIndex::new(258),
            admission: admission(3, 31),
        };
        let command = MetadataCommand::RefillBroker(refill);
        let stamp = TimestampMs::new(5);
        let bytes = command.encode(stamp).dir;
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let (head, who) = ("17010500000000000000", "030000001f00000000000000");
        let rest = "010000007a0001";
        let node_and_index = "1e000000000000000201000000000000";
        assert_eq!(hex, format!("{head}{who}{rest}{node_and_index}"));
        assert_eq!(decode_command(&bytes).unwrap(), (command, stamp));
        for length in 0..bytes.len() {
            assert!(decode_command(&bytes[..length]).is_err());
        }
    }
}
