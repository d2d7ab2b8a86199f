//! Bytes of the commands and the part of the snapshot that are about membership.
//!
//! Spec: docs/formats/metadata-commands.md, docs/formats/metadata-snapshot.md

use super::DEPARTED_MAX;
use super::format_command::{put_address, take_address, take_nodes};
use super::image::MetadataImage;
use super::membership::{Admission, AdmissionExpects, ClusterMember, ReplicaMove};
use super::refill::Refill;
use crate::format::{FormatError, Reader, Writer, insert_ascending};
use std::collections::{BTreeMap, BTreeSet};
use tidelog_model::{LogIndex, NodeId, PlacementGroupId, RaftNodeId};

pub(super) fn put_admission(to: &mut Writer, admission: &Admission) {
    to.i32(admission.node.get());
    to.u64(admission.raft_node.get());
    to.text(&admission.zone);
    put_address(to, admission.peer.as_ref());
    to.u8(u8::from(admission.by_operator));
    if let Some(expects) = admission.expects {
        to.u64(expects.member.map_or(0, RaftNodeId::get));
        to.u8(u8::from(expects.although_it_lives));
        if let Some(checked) = expects.checked {
            to.u64(checked.get());
        }
    }
}

pub(super) fn take_admission(from: &mut Reader<'_>, version: u8) -> Result<Admission, FormatError> {
    Ok(Admission {
        node: NodeId::new(from.i32("the broker")?),
        raft_node: RaftNodeId::new(from.u64("the Raft node")?),
        zone: from.text("the zone")?,
        peer: take_address(from)?,
        by_operator: from.flag("who asked")?,
        expects: (version >= 2)
            .then(|| take_expects(from, version))
            .transpose()?,
    })
}

fn take_expects(from: &mut Reader<'_>, version: u8) -> Result<AdmissionExpects, FormatError> {
    Ok(AdmissionExpects {
        member: take_raft_node(from, "the member's Raft node")?,
        although_it_lives: from.flag("whether one that lives is replaced")?,
        checked: match version {
            2 => None,
            _ => Some(LogIndex::new(from.u64("the image's entry")?)),
        },
    })
}

/// Reads a Raft node, or 0 for none.
pub(super) fn take_raft_node(
    from: &mut Reader<'_>,
    what: &'static str,
) -> Result<Option<RaftNodeId>, FormatError> {
    let id = from.u64(what)?;
    Ok((id != 0).then(|| RaftNodeId::new(id)))
}

pub(super) fn put_refill(to: &mut Writer, refill: &Refill) {
    // What it expects is in its own fields.
    let admission = Admission {
        expects: None,
        ..refill.admission.clone()
    };
    put_admission(to, &admission);
    to.u64(refill.damaged.get());
    to.u64(refill.checked.get());
}

pub(super) fn take_refill(from: &mut Reader<'_>) -> Result<Refill, FormatError> {
    Ok(Refill {
        admission: take_admission(from, 1)?,
        damaged: RaftNodeId::new(from.u64("the damaged Raft node")?),
        checked: LogIndex::new(from.u64("the image's entry")?),
    })
}

pub(super) fn put_replicas(to: &mut Writer, groups: &BTreeMap<PlacementGroupId, Vec<NodeId>>) {
    to.count(groups.len());
    for (group, nodes) in groups {
        to.u32(group.get());
        put_nodes(to, nodes);
    }
}

pub(super) fn take_replicas(
    from: &mut Reader<'_>,
) -> Result<BTreeMap<PlacementGroupId, Vec<NodeId>>, FormatError> {
    let what = "the placement groups";
    let mut groups = BTreeMap::new();
    for _ in 0..from.count(8, what)? {
        let group = PlacementGroupId::new(from.u32("a placement group")?);
        insert_ascending(&mut groups, group, take_nodes(from)?, what)?;
    }
    Ok(groups)
}

pub(super) fn put_nodes(to: &mut Writer, nodes: &[NodeId]) {
    to.count(nodes.len());
    nodes.iter().for_each(|node| to.i32(node.get()));
}

/// Reads groups in ascending order.
pub(super) fn take_group_set(
    from: &mut Reader<'_>,
) -> Result<BTreeSet<PlacementGroupId>, FormatError> {
    let what = "the placement groups";
    let mut groups = BTreeMap::new();
    for _ in 0..from.count(4, what)? {
        let group = PlacementGroupId::new(from.u32("a placement group")?);
        insert_ascending(&mut groups, group, (), what)?;
    }
    Ok(groups.into_keys().collect())
}

/// Adds members and moves.
pub(super) fn put_members(to: &mut Writer, image: &MetadataImage) {
    to.count(image.members.len());
    for (node, member) in &image.members {
        to.i32(node.get());
        to.u64(member.raft_node.get());
        to.u8(u8::from(member.draining));
    }
    to.count(image.moves.len());
    for (group, moving) in &image.moves {
        to.u32(group.get());
        to.u64(moving.id.get());
        put_nodes(to, &moving.target);
        put_nodes(to, &moving.also);
    }
    to.count(image.founders.len());
    for (group, members) in &image.founders {
        to.u32(group.get());
        to.count(members.len());
        for (node, raft_node) in members {
            to.i32(node.get());
            to.u64(raft_node.get());
        }
    }
}

/// Adds the leaders that operators asked for.
pub(super) fn put_preferred(to: &mut Writer, image: &MetadataImage) {
    to.count(image.preferred.len());
    for (group, node) in &image.preferred {
        to.u32(group.get());
        to.i32(node.get());
    }
}

pub(super) fn take_preferred(
    from: &mut Reader<'_>,
    image: &mut MetadataImage,
) -> Result<(), FormatError> {
    for _ in 0..from.count(4 + 4, "the preferred leaders")? {
        let group = PlacementGroupId::new(from.u32("a led group")?);
        let node = NodeId::new(from.natural_i32("a preferred leader")?);
        insert_ascending(&mut image.preferred, group, node, "the preferred leaders")?;
    }
    Ok(())
}

/// Adds who has left, in the order of leaving.
pub(super) fn put_departed(to: &mut Writer, image: &MetadataImage) {
    to.count(image.departed.len());
    for (node, raft_node) in &image.departed {
        to.i32(node.get());
        to.u64(raft_node.get());
    }
}

pub(super) fn take_departed(
    from: &mut Reader<'_>,
    image: &mut MetadataImage,
) -> Result<(), FormatError> {
    let count = from.count(4 + 8, "who has left")?;
    if count > DEPARTED_MAX {
        return Err(FormatError::Invalid("who has left"));
    }
    for _ in 0..count {
        let node = NodeId::new(from.natural_i32("a broker that has left")?);
        let raft_node = RaftNodeId::new(from.u64("its Raft node")?);
        image.departed.push((node, raft_node));
    }
    Ok(())
}

/// Reads the lost groups, which exist and are not moved.
pub(super) fn take_lost(
    from: &mut Reader<'_>,
    image: &mut MetadataImage,
) -> Result<(), FormatError> {
    image.lost = take_replicas(from)?;
    let good = |group| image.groups.contains_key(group) && !image.moves.contains_key(group);
    if image.lost.keys().all(good) {
        Ok(())
    } else {
        Err(FormatError::Invalid("a lost group"))
    }
}

/// Reads what [`put_members`] wrote. Moves are of groups that exist, between members.
pub(super) fn take_members(
    from: &mut Reader<'_>,
    image: &mut MetadataImage,
) -> Result<(), FormatError> {
    for _ in 0..from.count(4 + 8 + 1, "the members")? {
        let node = NodeId::new(from.natural_i32("a member")?);
        let member = ClusterMember {
            raft_node: RaftNodeId::new(from.u64("a member's Raft node")?),
            draining: from.flag("whether a member is drained")?,
        };
        insert_ascending(&mut image.members, node, member, "the members")?;
    }
    for _ in 0..from.count(4 + 8 + 4 + 4, "the moves")? {
        let group = PlacementGroupId::new(from.u32("a moved group")?);
        let moving = ReplicaMove {
            id: LogIndex::new(from.u64("a move")?),
            target: take_nodes(from)?,
            also: take_nodes(from)?,
        };
        let known = moving
            .target
            .iter()
            .all(|node| image.members.contains_key(node));
        if !image.groups.contains_key(&group) || !known {
            return Err(FormatError::Invalid("a move"));
        }
        insert_ascending(&mut image.moves, group, moving, "the moves")?;
    }
    for _ in 0..from.count(4 + 4, "the founders")? {
        let group = PlacementGroupId::new(from.u32("a founded group")?);
        let mut members = BTreeMap::new();
        for _ in 0..from.count(4 + 8, "the founders of a group")? {
            let node = NodeId::new(from.natural_i32("a founder")?);
            let raft_node = RaftNodeId::new(from.u64("a founder's Raft node")?);
            insert_ascending(&mut members, node, raft_node, "the founders of a group")?;
        }
        if !image.groups.contains_key(&group) {
            return Err(FormatError::Invalid("a founded group"));
        }
        insert_ascending(&mut image.founders, group, members, "the founders")?;
    }
    Ok(())
}
