//! Groups that are lost: the disks of so many of their copies are gone that those which are left elect no leader.
//!
//! Owns: the fact in the image, the rule for it, what the commands on it do, what it keeps a broker from.
//! Not here: finding it out (`node::lost`), plans (`plan.rs`, `spread.rs`), bytes (`format_membership.rs`).
//! Spec: docs/protocols/membership.md (lost groups)

use super::apply::{MetadataOutcome, Refusal};
use super::image::MetadataImage;
use std::collections::{BTreeMap, BTreeSet};
use tidelog_model::{LogIndex, NodeId, PlacementGroupId};

/// Partitions that are named at most.
const NAMED_MAX: usize = 20;

impl MetadataImage {
    /// Lost groups, each with the brokers whose replicas have something all the same: too few to elect a leader.
    #[must_use]
    pub const fn lost(&self) -> &BTreeMap<PlacementGroupId, Vec<NodeId>> {
        &self.lost
    }

    /// Whether the group is lost.
    #[must_use]
    pub fn is_lost(&self, group: PlacementGroupId) -> bool {
        self.lost.contains_key(&group)
    }

    /// Whether replicas of the group can be moved now: it is not lost, and most of its holders live, or most of those that it goes to.
    #[must_use]
    pub fn can_move(&self, group: PlacementGroupId) -> bool {
        let held = self.groups.get(&group).map_or(&[][..], Vec::as_slice);
        let wanted = self.replicas_wanted(group);
        !self.is_lost(group) && (self.majority_lives(held) || self.majority_lives(wanted))
    }

    /// Whether more than half of these brokers live.
    #[must_use]
    pub fn majority_lives(&self, nodes: &[NodeId]) -> bool {
        let live = nodes.iter().filter(|node| self.is_live(**node)).count();
        2 * live > nodes.len()
    }

    /// Who may have something of the group, when the replicas of the brokers `empty` have nothing; `None` if those may be enough to elect a leader, as long
    /// as one may be. Raft may have let vote who holds it, who shall, and who should once: any of these, as many as there are copies. Of a group in which
    /// nothing is, nobody misses what those have who do not hold it yet.
    #[must_use]
    pub fn left_of(
        &self,
        group: PlacementGroupId,
        empty: &BTreeSet<NodeId>,
    ) -> Option<Vec<NodeId>> {
        let held = self.groups.get(&group)?;
        let copies = held.len();
        let mut left = self.brokers_of(group);
        if !self.has_content(group) {
            left = held.iter().copied().collect();
        }
        left.retain(|node| !empty.contains(node));
        (2 * left.len() <= copies).then(|| left.into_iter().collect())
    }

    /// All brokers that hold the group, shall, or should once.
    pub(super) fn brokers_of(&self, group: PlacementGroupId) -> BTreeSet<NodeId> {
        let also = self.moves.get(&group).map(|moving| &moving.also);
        let lists = [self.groups.get(&group), also, self.lost.get(&group)];
        let lists = lists.into_iter().flatten().flatten();
        let wanted = self.replicas_wanted(group).iter();
        lists.chain(wanted).copied().collect()
    }

    /// Whether partitions are in the group.
    #[must_use]
    pub fn has_partitions(&self, group: PlacementGroupId) -> bool {
        self.partitions_of(group).next().is_some()
    }

    /// Whether the group keeps the offsets of consumer groups.
    #[must_use]
    pub fn has_slots(&self, group: PlacementGroupId) -> bool {
        self.slots.contains(&group)
    }

    /// Whether anything is in the group: partitions, or the offsets of consumer groups.
    #[must_use]
    pub fn has_content(&self, group: PlacementGroupId) -> bool {
        self.has_partitions(group) || self.has_slots(group)
    }

    /// Lost groups that nothing but the offsets of consumer groups keeps from being replaced: no partition is in them any more, and these brokers have a copy.
    #[must_use]
    pub fn kept_offsets(&self) -> BTreeMap<PlacementGroupId, &[NodeId]> {
        let lost = self.lost.iter().filter(|(group, left)| {
            !left.is_empty() && self.has_slots(**group) && !self.has_partitions(**group)
        });
        lost.map(|(group, left)| (*group, left.as_slice()))
            .collect()
    }

    /// The partitions of a group for people: `topic-0`, in the order of their names.
    #[must_use]
    pub fn partition_names(&self, group: PlacementGroupId) -> Vec<String> {
        let partitions = self.partitions_of(group);
        let mut names: Vec<_> = partitions
            .map(|(id, topic)| (topic.name.as_str(), id.index.get()))
            .collect();
        names.sort_unstable();
        let name = |(topic, index): (&str, i32)| format!("{topic}-{index}");
        names.into_iter().map(name).collect()
    }

    /// The disk of `node` is gone, and it held the group alone, or the group is lost already: nobody can copy. False if that is not so.
    pub(super) fn lose_copy(&mut self, group: PlacementGroupId, node: NodeId) -> bool {
        if let Some(left) = self.lost.get_mut(&group) {
            left.retain(|at| *at != node);
            return true;
        }
        let alone = self
            .groups
            .get(&group)
            .is_some_and(|nodes| nodes == &[node]);
        let is_lost = alone && !self.moves.contains_key(&group);
        if is_lost {
            self.lost.insert(group, Vec::new());
        }
        is_lost
    }

    /// These groups are lost: nobody can do what is on its way.
    pub(super) fn lose_groups(
        &mut self,
        groups: BTreeMap<PlacementGroupId, Vec<NodeId>>,
        checked: LogIndex,
    ) -> Result<MetadataOutcome, Refusal> {
        self.check_unchanged(checked)?;
        for (group, left) in &groups {
            let copies = self.groups.get(group).map(Vec::len);
            let copies = copies.ok_or(Refusal::UnknownGroup(*group))?;
            let known = self.brokers_of(*group);
            let ascending = left.windows(2).all(|pair| pair[0] < pair[1]);
            if !ascending || 2 * left.len() > copies || !left.iter().all(|at| known.contains(at)) {
                return Err(Refusal::InvalidField("the list of replicas"));
            }
        }
        for (group, left) in groups {
            self.moves.remove(&group);
            self.lost.insert(group, left);
        }
        Ok(MetadataOutcome::MembersChanged)
    }

    /// These groups have leaders after all: copies have come back. Their leaders see to the rest.
    pub(super) fn find_groups(
        &mut self,
        groups: &BTreeSet<PlacementGroupId>,
        checked: LogIndex,
    ) -> Result<MetadataOutcome, Refusal> {
        self.check_unchanged(checked)?;
        for group in groups {
            let Some(left) = self.lost.remove(group) else {
                continue;
            };
            let target = self.groups.get(group).cloned().unwrap_or_default();
            self.start_move(*group, target, left);
        }
        Ok(MetadataOutcome::MembersChanged)
    }

    fn check_unchanged(&self, checked: LogIndex) -> Result<(), Refusal> {
        if checked.next() == self.last.index {
            Ok(())
        } else {
            Err(Refusal::Outdated)
        }
    }

    /// A lost group without partitions ends, and the new one takes its place. Ids ascend: an old one is never used again, so that no copy which comes
    /// back ever speaks as the new group.
    pub(super) fn replace_group(
        &mut self,
        group: PlacementGroupId,
        by: PlacementGroupId,
        nodes: Vec<NodeId>,
        checked: LogIndex,
    ) -> Result<MetadataOutcome, Refusal> {
        // A disk with offsets of consumer groups may have come back meanwhile.
        self.check_unchanged(checked)?;
        if !self.is_lost(group) || self.has_partitions(group) {
            return Err(Refusal::Outdated);
        }
        if self.groups.get(&group).map(Vec::len) != Some(nodes.len()) {
            return Err(Refusal::InvalidField("the number of replicas"));
        }
        let founders = self.check_new_group(by, &nodes)?;
        self.founders.insert(by, founders);
        self.groups.insert(by, nodes);
        self.groups.remove(&group);
        self.lost.remove(&group);
        self.moves.remove(&group);
        self.founders.remove(&group);
        self.preferred.remove(&group);
        let slots = self.slots.iter_mut().filter(|slot| **slot == group);
        slots.for_each(|slot| *slot = by);
        Ok(MetadataOutcome::MembersChanged)
    }

    /// Whether `node` may be drained as far as what only it has goes: nobody could take that over, so it would wait for ever; and it is not given up silently.
    pub(super) fn check_copies_without(&self, node: NodeId) -> Result<(), Refusal> {
        let (mut lost, mut only, mut offsets) = (Vec::new(), Vec::new(), false);
        for (group, nodes) in &self.groups {
            if !self.holds(*group, node) {
                continue;
            }
            if self.is_lost(*group) {
                lost.extend(self.partition_names(*group));
            } else if *nodes == [node] && !self.is_live(node) && !self.moves.contains_key(group) {
                only.extend(self.partition_names(*group));
                offsets |= self.has_slots(*group);
            }
        }
        if !lost.is_empty() {
            let partitions = listed(&lost);
            return Err(Refusal::HoldsLost { node, partitions });
        }
        if !only.is_empty() || offsets {
            let offsets = offsets.then(|| "the offsets of consumer groups".to_owned());
            let partitions = (!only.is_empty()).then(|| listed(&only));
            let all: Vec<_> = partitions.into_iter().chain(offsets).collect();
            let copies = all.join(" and ");
            return Err(Refusal::OnlyCopies { node, copies });
        }
        Ok(())
    }
}

/// Names for people: all, or the first of many.
#[must_use]
pub fn listed(names: &[String]) -> String {
    let shown = names.iter().take(NAMED_MAX).map(String::as_str);
    let shown = shown.collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMED_MAX) {
        0 => shown,
        1 => format!("{shown} and 1 other"),
        more => format!("{shown} and {more} others"),
    }
}
