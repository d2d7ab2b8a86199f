//! Where replicas shall go when a broker is drained or has come. Pure.
//!
//! Owns: [`plan_moves`], [`plan_drains`], [`choose_replicas`]: distinct zones first, then even loads, as few moves as possible.
//! Not here: applying it (`membership.rs`).

use super::image::MetadataImage;
use std::collections::{BTreeMap, BTreeSet};
use tidelog_model::{NodeId, PlacementGroupId};

/// Brokers that may take replicas, each with its zone and the replicas it shall hold.
struct Room<'a> {
    zones: BTreeMap<NodeId, &'a str>,
    loads: BTreeMap<NodeId, usize>,
    /// Those that take new ones: a broker that is fenced keeps what it has.
    takes: BTreeSet<NodeId>,
}

impl<'a> Room<'a> {
    fn new(image: &'a MetadataImage) -> Self {
        let open = image
            .members()
            .iter()
            .filter(|(_, member)| !member.draining);
        let zones: BTreeMap<NodeId, &str> = open
            .map(|(node, _)| {
                let broker = image.brokers().get(node);
                (*node, broker.map_or("", |broker| broker.zone.as_str()))
            })
            .collect();
        let takes = zones
            .keys()
            .copied()
            .filter(|node| image.is_live(*node))
            .collect();
        let mut loads: BTreeMap<NodeId, usize> = zones.keys().map(|node| (*node, 0)).collect();
        // What is lost weighs nothing.
        let groups = image.groups().keys();
        for group in groups.filter(|group| !image.is_lost(**group)) {
            for node in image.replicas_wanted(*group) {
                if let Some(load) = loads.get_mut(node) {
                    *load += 1;
                }
            }
        }
        Self {
            zones,
            loads,
            takes,
        }
    }

    /// How many of these brokers share a zone with another one of them.
    fn shared_zones(&self, nodes: &[NodeId]) -> usize {
        let zones: BTreeSet<&str> = nodes
            .iter()
            .filter_map(|node| self.zones.get(node).copied())
            .collect();
        nodes.len() - zones.len()
    }

    /// The broker that a set of replicas gets next.
    fn next(&self, nodes: &[NodeId]) -> Option<NodeId> {
        let free = self
            .loads
            .iter()
            .filter(|(node, _)| self.takes.contains(node) && !nodes.contains(node));
        let best = free.min_by_key(|(node, load)| {
            let mut with = nodes.to_vec();
            with.push(**node);
            (self.shared_zones(&with), **load, **node)
        });
        best.map(|(node, _)| *node)
    }

    fn left(&mut self, node: NodeId) {
        if let Some(load) = self.loads.get_mut(&node) {
            *load = load.saturating_sub(1);
        }
    }

    fn took(&mut self, node: NodeId) {
        *self.loads.entry(node).or_default() += 1;
    }
}

/// The targets that differ from what is wanted now: replicas of draining brokers go elsewhere, and once nothing is on its way loads are
/// evened out. Only of groups that can have a leader now: nobody else could do it. Empty: nothing to do, or no room.
#[must_use]
pub fn plan_moves(image: &MetadataImage) -> BTreeMap<PlacementGroupId, Vec<NodeId>> {
    let mut moves = plan_drains(image);
    let mut room = Room::new(image);
    if moves.is_empty() && image.moves().is_empty() {
        spread_over_zones(image, &mut room, &mut moves);
    }
    if moves.is_empty() && image.moves().is_empty() {
        even_out(image, &mut room, &mut moves);
    }
    moves
}

fn movable(image: &MetadataImage) -> impl Iterator<Item = &PlacementGroupId> {
    let groups = image.groups().keys();
    groups.filter(|group| image.can_move(**group))
}

/// The part of [`plan_moves`] that does not wait for anybody: where replicas of draining brokers go.
#[must_use]
pub fn plan_drains(image: &MetadataImage) -> BTreeMap<PlacementGroupId, Vec<NodeId>> {
    let mut room = Room::new(image);
    let mut moves = BTreeMap::new();
    for group in movable(image) {
        let wanted = image.replicas_wanted(*group);
        let mut nodes: Vec<NodeId> = wanted
            .iter()
            .copied()
            .filter(|node| room.zones.contains_key(node))
            .collect();
        if nodes.len() == wanted.len() {
            continue;
        }
        while nodes.len() < wanted.len() {
            let Some(next) = room.next(&nodes) else {
                break;
            };
            room.took(next);
            nodes.push(next);
        }
        if nodes.len() < wanted.len() {
            // No room for this one now; the others may go on.
            let chosen = nodes.iter().filter(|node| !wanted.contains(node));
            chosen.for_each(|node| room.left(*node));
            continue;
        }
        nodes.sort_unstable();
        moves.insert(*group, nodes);
    }
    moves
}

/// Where two replicas share a zone and another zone has none, one of them goes there.
fn spread_over_zones(
    image: &MetadataImage,
    room: &mut Room<'_>,
    moves: &mut BTreeMap<PlacementGroupId, Vec<NodeId>>,
) {
    for group in movable(image) {
        let now = image.replicas_wanted(*group);
        let better = now.iter().find_map(|from| {
            let kept: Vec<NodeId> = now.iter().copied().filter(|node| node != from).collect();
            let to = room.next(&kept).filter(|to| to != from)?;
            let mut nodes = kept;
            nodes.push(to);
            nodes.sort_unstable();
            (room.shared_zones(&nodes) < room.shared_zones(now)).then_some((*from, to, nodes))
        });
        if let Some((from, to, nodes)) = better {
            room.left(from);
            room.took(to);
            moves.insert(*group, nodes);
        }
    }
}

/// Moves replicas from the fullest broker to the emptiest while that makes them more even.
fn even_out(
    image: &MetadataImage,
    room: &mut Room<'_>,
    moves: &mut BTreeMap<PlacementGroupId, Vec<NodeId>>,
) {
    loop {
        let by_load = |(node, load): (&NodeId, &usize)| (*load, *node);
        let open = room
            .loads
            .iter()
            .filter(|(node, _)| room.takes.contains(node));
        let Some((least, to)) = open.map(by_load).min() else {
            return;
        };
        let mut fullest: Vec<_> = room.loads.iter().map(by_load).collect();
        fullest.sort_unstable_by(|a, b| b.cmp(a));
        let moved = fullest
            .into_iter()
            .take_while(|(load, _)| *load >= least + 2)
            .find_map(|(_, from)| {
                let mut groups = movable(image).filter(|group| !moves.contains_key(group));
                groups.find_map(|group| {
                    let now = image.replicas_wanted(*group);
                    if !now.contains(&from) || now.contains(&to) {
                        return None;
                    }
                    let kept = now.iter().copied().filter(|node| *node != from);
                    let mut nodes: Vec<NodeId> = kept.chain([to]).collect();
                    nodes.sort_unstable();
                    (room.shared_zones(&nodes) <= room.shared_zones(now))
                        .then_some((*group, from, nodes))
                })
            });
        let Some((group, from, nodes)) = moved else {
            return;
        };
        room.left(from);
        room.took(to);
        moves.insert(group, nodes);
    }
}

/// Copies of a group when nothing else is asked for: a majority of three survives the loss of one.
pub const COPIES_DEFAULT: usize = 3;

/// Replicas for the first groups of a cluster of these brokers, by turns: zones are not known yet, and are seen to later. There are more groups than were
/// asked for where it takes them to put every broker on one: who holds nothing of a new cluster is no member of it.
#[must_use]
pub fn choose_first_replicas(nodes: &[NodeId], groups: u32) -> Vec<Vec<NodeId>> {
    let copies = nodes.len().min(COPIES_DEFAULT);
    let covering = nodes.len() - copies + 1;
    (0..covering.max(groups as usize))
        .map(|at| {
            let turn = nodes.iter().cycle().skip(at % nodes.len().max(1));
            let mut chosen: Vec<NodeId> = turn.take(copies).copied().collect();
            chosen.sort_unstable();
            chosen
        })
        .collect()
}

/// Replicas for `groups` new groups of `copies` each, spread like the others; `None` when there are not so many brokers.
#[must_use]
pub fn choose_replicas(
    image: &MetadataImage,
    groups: usize,
    copies: usize,
) -> Option<Vec<Vec<NodeId>>> {
    let mut room = Room::new(image);
    // The load of the new groups alone, over the brokers: other groups have other numbers of copies, and their leaders elsewhere.
    room.loads.values_mut().for_each(|load| *load = 0);
    (0..groups)
        .map(|_| {
            let mut nodes = Vec::new();
            while nodes.len() < copies {
                let next = room.next(&nodes)?;
                room.took(next);
                nodes.push(next);
            }
            nodes.sort_unstable();
            Some(nodes)
        })
        .collect()
}

/// Replicas for one new group in the place of a lost one: where the least is; `None` when there are not so many brokers.
#[must_use]
pub fn choose_replicas_anew(image: &MetadataImage, copies: usize) -> Option<Vec<NodeId>> {
    let room = Room::new(image);
    let mut nodes = Vec::new();
    while nodes.len() < copies {
        nodes.push(room.next(&nodes)?);
    }
    nodes.sort_unstable();
    Some(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that every broker of a new cluster holds a group, however few were asked for, and that so many are made as were.
    #[test]
    fn first_groups_cover_all() {
        for brokers in 1..=5 {
            let nodes: Vec<NodeId> = (1..=brokers).map(NodeId::new).collect();
            for asked in 1..=10 {
                let groups = choose_first_replicas(&nodes, asked);
                let least = nodes.len().saturating_sub(COPIES_DEFAULT) + 1;
                assert_eq!(groups.len(), least.max(asked as usize));
                assert!(groups.iter().all(|held| held.len() == nodes.len().min(3)));
                let held: std::collections::BTreeSet<_> = groups.into_iter().flatten().collect();
                assert_eq!(held.len(), nodes.len(), "{brokers} brokers, {asked} groups");
            }
        }
    }
}
