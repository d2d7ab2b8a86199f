//! What the cluster may lose with a broker whose Raft node is replaced.
//!
//! Owns: which groups may need the old Raft node, as far as the image says and leaders have told; who else could help them.
//! Not here: asking the leaders (`node`), what an operator is told (`admin`), the admission itself (`membership.rs`).
//! Spec: docs/protocols/membership.md (what is given up with a replaced broker)

use super::apply::Refusal;
use super::image::MetadataImage;
use super::lost::listed;
use std::collections::BTreeSet;
use tidelog_model::{LogIndex, NodeId, PlacementGroupId};

impl MetadataImage {
    /// Groups that may need what `node` has: anything is in them, it holds them or is getting them, and their leaders have not said that they are `safe`
    /// without it. Metadata's is among all. Of a lost group nobody is safe; whose replica of it is empty has nothing to give up.
    #[must_use]
    pub fn needed(&self, node: NodeId, safe: &BTreeSet<PlacementGroupId>) -> Vec<PlacementGroupId> {
        let held = self.groups.keys().copied();
        let held = held.filter(|group| self.holds(*group, node) && self.has_content(*group));
        let empty = |group: &PlacementGroupId| {
            let left = self.lost.get(group);
            left.is_some_and(|left| !left.contains(&node))
        };
        let held = held.filter(|group| !empty(group));
        let all = std::iter::once(PlacementGroupId::METADATA).chain(held);
        all.filter(|group| !safe.contains(group)).collect()
    }

    /// Groups of which `node` may have what nobody else can give, as far as the image says, whatever leaders say: it holds them alone, or they are lost and it has
    /// something of them.
    #[must_use]
    pub fn only_at(&self, node: NodeId) -> Vec<PlacementGroupId> {
        let only = self.groups.iter().filter(|(group, nodes)| {
            let alone = **nodes == [node];
            let left = self.lost.get(group);
            self.has_content(**group) && left.map_or(alone, |left| left.contains(&node))
        });
        only.map(|(group, _)| *group).collect()
    }

    /// Brokers besides `node` that may have something of these groups and do not live: started with what they had, they could help.
    #[must_use]
    pub fn silent_holders(&self, groups: &[PlacementGroupId], node: NodeId) -> Vec<NodeId> {
        let holders = groups.iter().flat_map(|group| self.holders(*group));
        let silent = holders.filter(|at| *at != node && !self.is_live(*at));
        silent.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// All brokers that hold the group, shall, or should once; of metadata those that vote.
    #[must_use]
    pub fn holders(&self, group: PlacementGroupId) -> BTreeSet<NodeId> {
        if group == PlacementGroupId::METADATA {
            self.metadata_replicas(self.stamp).0
        } else {
            self.brokers_of(group)
        }
    }

    /// Groups that `node` holds or is getting, in which anything is, that are not lost, and that nobody leads who is known: `led` are.
    #[must_use]
    pub fn unled_content(
        &self,
        node: NodeId,
        led: &BTreeSet<PlacementGroupId>,
    ) -> Vec<PlacementGroupId> {
        let held = self.groups.keys().copied();
        let held = held.filter(|group| self.holds(*group, node) && !led.contains(group));
        let unled = held.filter(|group| self.has_content(*group) && !self.is_lost(*group));
        unled.collect()
    }

    /// What is in these groups, for people: partitions, the first of many, and the offsets of consumer groups.
    #[must_use]
    pub fn content_names(&self, groups: &[PlacementGroupId]) -> String {
        let names = groups.iter().flat_map(|group| self.partition_names(*group));
        let names: Vec<_> = names.collect();
        let slots = groups.iter().any(|group| self.has_slots(*group));
        let metadata = groups.contains(&PlacementGroupId::METADATA);
        let parts = [
            (!names.is_empty()).then(|| listed(&names)),
            slots.then(|| "offsets of consumer groups".to_owned()),
            metadata.then(|| "the cluster's metadata".to_owned()),
        ];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        parts.join(" and ")
    }

    /// Whether `node` may be replaced by an admission that gives nothing up: whoever asked has found on the image as of `checked` that no group needs it, and
    /// nothing was applied since.
    pub(super) fn check_nothing_given_up(
        &self,
        node: NodeId,
        checked: LogIndex,
    ) -> Result<(), Refusal> {
        if checked.next() != self.last.index {
            return Err(Refusal::Outdated);
        }
        let only = self.only_at(node);
        if only.is_empty() {
            return Ok(());
        }
        let copies = self.content_names(&only);
        Err(Refusal::GivesUp { node, copies })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::super::membership_tests::{
        Rig, admission, bytes_of, fence, group, node, nodes, targets,
    };
    use super::super::{Admission, AdmissionExpects, MetadataCommand, MetadataOutcome};
    use super::*;
    use std::collections::BTreeMap;
    use tidelog_model::{RaftNodeId, TopicId};
    use uuid::Uuid;

    fn safe(ids: &[u32]) -> BTreeSet<PlacementGroupId> {
        ids.iter().copied().map(group).collect()
    }

    fn create(rig: &mut Rig, name: &str, at: &[u32]) {
        let id = u128::from(name.as_bytes()[0]);
        let outcome = rig.run(&MetadataCommand::CreateTopic {
            id: TopicId::new(Uuid::from_u128(id)),
            name: name.to_owned(),
            partitions: at.iter().copied().map(group).collect(),
            configs: BTreeMap::new(),
            before: crate::metadata::NameBefore::Unknown,
        });
        assert!(
            matches!(outcome, MetadataOutcome::TopicCreated(_)),
            "{outcome:?}"
        );
    }

    /// Group 1 on the brokers 1 to 3, with slots; groups 2 (on broker 1) and 3 (on broker 2), without; a partition in each of the two first ones.
    fn rig() -> Rig {
        let mut rig = Rig::new(4, &[(1, &[1, 2, 3])]);
        let groups = targets(&[(2, &[1]), (3, &[2])]);
        rig.changed(&MetadataCommand::CreateGroups { groups });
        create(&mut rig, "a", &[1, 2]);
        rig
    }

    /// An admission of broker `id` in place of its first Raft node, as of `checked`.
    fn replace(id: i32, checked: Option<LogIndex>) -> MetadataCommand {
        let old = u64::try_from(id * 10).unwrap();
        MetadataCommand::AdmitBroker(Admission {
            expects: Some(AdmissionExpects {
                member: Some(RaftNodeId::new(old)),
                although_it_lives: true,
                checked,
            }),
            ..admission(id, old + 1, true)
        })
    }

    /// Proves which groups a broker is needed for: those in which anything is, that it holds or is getting, and that nobody has called safe.
    #[test]
    fn who_is_needed_for_what() {
        let mut rig = rig();
        let needed = |rig: &Rig, id: i32, ids: &[u32]| {
            let needed = rig.image().needed(node(id), &safe(ids));
            needed
                .into_iter()
                .map(|group| group.get())
                .collect::<Vec<_>>()
        };
        assert_eq!(needed(&rig, 1, &[]), [0, 1, 2]);
        assert_eq!(needed(&rig, 1, &[0, 1]), [2]);
        assert_eq!(needed(&rig, 2, &[0, 1]), [0; 0], "nothing is in group 3");
        assert_eq!(needed(&rig, 4, &[0]), [0; 0]);
        let moved = targets(&[(1, &[1, 2, 4])]);
        rig.changed(&MetadataCommand::MoveReplicas { targets: moved });
        assert_eq!(needed(&rig, 4, &[0]), [1], "on its way to it");
        let checked = rig.image().last().index;
        let groups = targets(&[(1, &[3])]);
        rig.changed(&MetadataCommand::LoseGroups { groups, checked });
        assert_eq!(needed(&rig, 2, &[0]), [0; 0], "it has nothing of it");
        assert_eq!(needed(&rig, 3, &[0]), [1]);
        let only = |id| rig.image().only_at(node(id));
        assert_eq!(only(1), [group(2)]);
        assert_eq!((only(2), only(3)), (Vec::new(), vec![group(1)]));
    }

    /// Proves that silent holders are named as those that could help, of metadata too, and what is in groups, in words.
    #[test]
    fn who_could_help_and_what_is_there() {
        let mut rig = rig();
        let helps = |rig: &Rig, groups: &[u32]| {
            let groups: Vec<_> = groups.iter().copied().map(group).collect();
            rig.image().silent_holders(&groups, node(1))
        };
        assert_eq!(helps(&rig, &[0, 1, 2]), nodes(&[]));
        for id in [1, 3, 4] {
            fence(&mut rig, id, true);
        }
        assert_eq!(helps(&rig, &[1, 2]), nodes(&[3]));
        assert_eq!(helps(&rig, &[0]), nodes(&[3, 4]));
        let says = |ids: &[u32]| {
            let groups: Vec<_> = ids.iter().copied().map(group).collect();
            rig.image().content_names(&groups)
        };
        assert_eq!(says(&[1, 2]), "a-0, a-1 and offsets of consumer groups");
        assert_eq!(says(&[2]), "a-1");
        assert_eq!(says(&[0]), "the cluster's metadata");
    }

    /// Proves that an admission which gives nothing up holds on the image alone that was looked at, and never where nobody else has a copy; that one which gives it
    /// up does; and that its bytes are of version 3.
    #[test]
    fn nothing_is_given_up_unasked() {
        let mut rig = rig();
        let looked = rig.image().last().index;
        fence(&mut rig, 4, true);
        let refusal = rig.refused(&replace(3, Some(looked)));
        assert_eq!(refusal, Refusal::Outdated);
        let looked = rig.image().last().index;
        rig.changed(&replace(3, Some(looked)));
        rig.changed(&replace(3, Some(looked)));
        let looked = rig.image().last().index;
        let refusal = rig.refused(&replace(1, Some(looked)));
        assert_eq!(
            refusal,
            Refusal::GivesUp {
                node: node(1),
                copies: "a-1".to_owned()
            }
        );
        let text = refusal.to_string();
        assert!(text.contains("--give-up-data"), "{text}");
        rig.changed(&replace(1, None));
        assert!(rig.image().is_lost(group(2)));

        let checked = Some(LogIndex::new(258));
        let bytes = bytes_of(vec![replace(3, checked)]);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(hex.starts_with("1003"), "{hex}");
        let expects = "1e0000000000000001";
        assert!(
            hex.ends_with(&format!("{expects}0201000000000000")),
            "{hex}"
        );
        assert!(bytes_of(vec![replace(3, None)]).starts_with(&[16, 2]));
    }
}
