//! Tests of lost groups: what makes them so, what they are kept out of, and how they end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::membership_tests::{
    Rig, admit, bytes_of, drain, fence, group, node, nodes, prefer, targets,
};
use super::*;
use std::collections::{BTreeMap, BTreeSet};
use tidelog_model::{LogIndex, NodeId, PlacementGroupId, TimestampMs, TopicId};
use uuid::Uuid;

/// Brokers 1 to `brokers`; group 1 on the first three of them and, without slots, groups with one copy: 8 on broker 2, 9 on broker 3.
fn rig(brokers: i32) -> Rig {
    let mut rig = Rig::new(brokers, &[(1, &[1, 2, 3])]);
    rig.changed(&MetadataCommand::CreateGroups {
        groups: targets(&[(8, &[2]), (9, &[3])]),
    });
    rig
}

fn topic(number: u128) -> TopicId {
    TopicId::new(Uuid::from_u128(number))
}

fn create(number: u128, at: &[u32]) -> MetadataCommand {
    MetadataCommand::CreateTopic {
        id: topic(number),
        name: format!("t{number}"),
        partitions: at.iter().copied().map(PlacementGroupId::new).collect(),
        configs: BTreeMap::new(),
        before: crate::metadata::NameBefore::Unknown,
    }
}

fn with_topic(rig: &mut Rig, number: u128, at: &[u32]) {
    let outcome = rig.run(&create(number, at));
    assert_eq!(outcome, MetadataOutcome::TopicCreated(topic(number)));
}

fn delete(rig: &mut Rig, number: u128) {
    let id = topic(number);
    let outcome = rig.run(&MetadataCommand::DeleteTopic { id });
    assert!(matches!(outcome, MetadataOutcome::TopicDeleted(_)));
}

fn checked(rig: &Rig) -> LogIndex {
    rig.image().last().index
}

fn lose(rig: &Rig, groups: &[(u32, &[i32])]) -> MetadataCommand {
    MetadataCommand::LoseGroups {
        groups: targets(groups),
        checked: checked(rig),
    }
}

fn find(rig: &Rig, ids: &[u32]) -> MetadataCommand {
    MetadataCommand::FindGroups {
        groups: ids.iter().copied().map(PlacementGroupId::new).collect(),
        checked: checked(rig),
    }
}

fn replace(rig: &Rig, id: u32, by: u32, at: &[i32]) -> MetadataCommand {
    MetadataCommand::ReplaceGroup {
        group: group(id),
        by: group(by),
        nodes: nodes(at),
        checked: checked(rig),
    }
}

fn left(rig: &Rig, id: u32, empty: &[i32]) -> Option<Vec<NodeId>> {
    let empty: BTreeSet<NodeId> = nodes(empty).into_iter().collect();
    rig.image().left_of(group(id), &empty)
}

/// Proves that a group whose only disk was replaced is lost at once, that no new partition goes to it, whoever chose it when, and that it is found again.
#[test]
fn a_lost_only_copy_gets_no_partition() {
    let mut rig = rig(3);
    with_topic(&mut rig, 1, &[8, 9]);
    rig.changed(&admit(2, 21, true));
    fence(&mut rig, 2, false);
    assert_eq!(rig.image().lost(), &targets(&[(8, &[])]));
    let moving: Vec<_> = rig.image().moves().keys().copied().collect();
    assert_eq!(moving, [group(1)]);
    // It would have the fewest partitions.
    with_topic(&mut rig, 2, &[9]);
    assert_eq!(choose_groups(rig.image(), 2, 1), [group(9), group(9)]);
    let on_two = choose_groups_on(rig.image(), &[nodes(&[2])]);
    assert_eq!(on_two, Err(nodes(&[2])));
    assert_eq!(rig.refused(&create(3, &[9, 8])), Refusal::Outdated);
    // All of one copy lost: groups have to be created, before anything can be placed.
    rig.changed(&admit(3, 31, true));
    fence(&mut rig, 3, false);
    assert!(choose_groups(rig.image(), 1, 1).is_empty());

    rig.changed(&find(&rig, &[8]));
    assert!(!rig.image().is_lost(group(8)) && rig.image().is_lost(group(9)));
    rig.finish_moves();
    assert_eq!(choose_groups(rig.image(), 1, 1), [group(8)]);
    assert_eq!(rig.image().groups()[&group(8)], nodes(&[2]));
}

/// Proves that a broker with a lost group is not drained before the group's topics are deleted, that they are named, and that it goes then: no plan waits for
/// the lost group.
#[test]
fn who_holds_a_lost_group_goes_when_its_topics_are_deleted() {
    let mut rig = rig(4);
    with_topic(&mut rig, 1, &[9, 8]);
    rig.changed(&admit(2, 21, true));
    fence(&mut rig, 2, false);
    rig.finish_moves();
    let refusal = rig.refused(&drain(2, true));
    assert!(refusal.to_string().contains("most copies of t1-1"));
    assert!(matches!(refusal, Refusal::HoldsLost { .. }));
    let plan = plan_moves(rig.image());
    assert!(!plan.contains_key(&group(8)), "{plan:?}");
    assert_eq!(rig.refused(&replace(&rig, 8, 10, &[4])), Refusal::Outdated);
    delete(&mut rig, 1);
    rig.changed(&drain(2, true));
    let plan = plan_drains(rig.image());
    assert_eq!(plan, targets(&[(1, &[1, 3, 4])]));
    rig.changed(&MetadataCommand::MoveReplicas { targets: plan });
    rig.finish_moves();
    assert_eq!(choose_replicas_anew(rig.image(), 1), Some(nodes(&[1])));
    rig.changed(&replace(&rig, 8, 10, &[4]));
    rig.changed(&MetadataCommand::RemoveBroker { node: node(2) });
}

/// Proves that a move which nobody can finish is cancelled when the group is known to be lost, without a leader, that those who were to hold it let go of it, and
/// that other groups are planned again.
#[test]
fn moves_of_lost_groups_are_cancelled() {
    let mut rig = rig(4);
    with_topic(&mut rig, 1, &[8]);
    // As releases before this one left it.
    let moved = targets(&[(8, &[4])]);
    rig.changed(&MetadataCommand::MoveReplicas { targets: moved });
    rig.changed(&admit(2, 21, true));
    fence(&mut rig, 2, false);
    assert!(!rig.image().is_lost(group(8)), "broker 4 may have it all");
    rig.changed(&drain(2, true));
    rig.changed(&drain(2, false));
    let back = &rig.image().moves()[&group(8)];
    assert_eq!((&back.target, &back.also), (&nodes(&[2]), &nodes(&[4])));
    for id in [1, 9] {
        if let Some(id) = rig
            .image()
            .moves()
            .get(&group(id))
            .map(|at| (group(id), at.id))
        {
            let (group, id) = id;
            rig.changed(&MetadataCommand::ReplicasMoved { group, id });
        }
    }
    assert!(
        plan_moves(rig.image()).is_empty(),
        "it holds back all others"
    );
    assert_eq!(left(&rig, 8, &[2]), None);
    assert_eq!(left(&rig, 8, &[2, 4]), Some(Vec::new()));
    let lost = lose(&rig, &[(8, &[])]);
    rig.changed(&lost);
    assert_eq!(rig.refused(&lost), Refusal::Outdated, "the image is newer");
    assert!(rig.image().moves().is_empty());
    assert!(!rig.image().holds(group(8), node(4)));
    let planned = plan_moves(rig.image());
    assert!(!planned.is_empty() && !planned.contains_key(&group(8)));
    let late = targets(&[(8, &[4])]);
    rig.changed(&MetadataCommand::MoveReplicas { targets: late });
    assert!(rig.image().moves().is_empty(), "planned before");
}

/// Proves that a silent broker with the only copy of something is not drained and why is said, that its groups are planned nowhere, and that it goes once
/// nothing is in them; and that what would be moved is moved when it lives.
#[test]
fn a_silent_only_holder_is_not_drained() {
    let mut rig = rig(4);
    with_topic(&mut rig, 1, &[8, 9, 8]);
    fence(&mut rig, 2, true);
    let refusal = rig.refused(&drain(2, true));
    let text = refusal.to_string();
    assert!(
        text.contains("it is silent, and has the only copy of t1-0, t1-2. Start it"),
        "{text}"
    );
    fence(&mut rig, 2, false);
    rig.changed(&drain(2, true));
    assert!(plan_drains(rig.image()).contains_key(&group(8)));
    fence(&mut rig, 2, true);
    assert!(
        !plan_drains(rig.image()).contains_key(&group(8)),
        "nobody could move it"
    );
    rig.changed(&drain(2, false));
    assert!(rig.image().moves().is_empty(), "no half move is left");
    delete(&mut rig, 1);
    rig.changed(&drain(2, true));

    // Offsets of consumer groups are not given up silently either.
    let mut founded = Rig::new(3, &[(1, &[2]), (2, &[3])]);
    fence(&mut founded, 2, true);
    let text = founded.refused(&drain(2, true)).to_string();
    assert!(
        text.contains("copy of the offsets of consumer groups"),
        "{text}"
    );
}

/// Proves that loads are evened out with groups that can be moved, and that a lost one weighs nothing.
#[test]
fn lost_groups_are_not_evened_out() {
    let mut rig = Rig::new(2, &[(1, &[1]), (2, &[1]), (3, &[1]), (4, &[1])]);
    let planned: Vec<_> = plan_moves(rig.image()).into_keys().collect();
    assert_eq!(planned, [group(1), group(2)]);
    rig.changed(&lose(&rig, &[(1, &[]), (2, &[])]));
    let planned: Vec<_> = plan_moves(rig.image()).into_keys().collect();
    assert_eq!(planned, [group(3)]);
    fence(&mut rig, 1, true);
    assert!(plan_moves(rig.image()).is_empty(), "nobody could move them");
}

/// Proves that a group that lost two of three disks is lost, that the third keeps what it has wherever it was going, and that it goes on when another one comes
/// back.
#[test]
fn most_of_several_copies_are_lost() {
    let mut rig = Rig::new(5, &[(1, &[1, 2, 3])]);
    with_topic(&mut rig, 1, &[1]);
    let moved = targets(&[(1, &[3, 4, 5])]);
    rig.changed(&MetadataCommand::MoveReplicas { targets: moved });
    for id in [1, 3, 4, 5] {
        let raft_node = u64::try_from(id * 10 + 1).unwrap();
        rig.changed(&admit(id, raft_node, true));
        fence(&mut rig, id, false);
    }
    assert_eq!(
        left(&rig, 1, &[3, 4, 5]),
        None,
        "1 and 2 may be two of the voters"
    );
    assert_eq!(left(&rig, 1, &[1, 3, 4, 5]), Some(nodes(&[2])));
    for wrong in [&[1, 2][..], &[9]] {
        let lose = lose(&rig, &[(1, wrong)]);
        assert!(matches!(rig.refused(&lose), Refusal::InvalidField(_)));
    }
    // Broker 4 alone voted, and has something left: it keeps it although it shall hold nothing.
    assert_eq!(left(&rig, 1, &[1, 2, 3, 5]), Some(nodes(&[4])));
    rig.changed(&lose(&rig, &[(1, &[4])]));
    assert!(rig.image().moves().is_empty());
    assert!(rig.image().holds(group(1), node(4)) && !rig.image().holds(group(1), node(5)));
    let refusal = rig.refused(&drain(4, true)).to_string();
    assert!(refusal.contains("t1-0"), "{refusal}");
    rig.changed(&find(&rig, &[1]));
    let moving = &rig.image().moves()[&group(1)];
    assert_eq!(
        (&moving.target, &moving.also),
        (&nodes(&[1, 2, 3]), &nodes(&[4]))
    );
    // Lost again, and then the last disk too.
    rig.changed(&lose(&rig, &[(1, &[2])]));
    rig.changed(&admit(2, 21, true));
    assert_eq!(rig.image().lost(), &targets(&[(1, &[])]));
    assert!(rig.image().moves().is_empty());
}

/// Proves that brokers are told as those that keep offsets of consumer groups only where nothing else keeps a lost group from being replaced.
#[test]
fn who_keeps_offsets_is_told() {
    let mut rig = Rig::new(3, &[(1, &[1, 2, 3])]);
    let groups = targets(&[(2, &[1, 2, 3])]);
    rig.changed(&MetadataCommand::CreateGroups { groups });
    with_topic(&mut rig, 1, &[1]);
    let kept = |rig: &Rig| {
        let kept = rig.image().kept_offsets().into_iter();
        kept.map(|(group, at)| (group, at.to_vec()))
            .collect::<BTreeMap<_, _>>()
    };
    rig.changed(&lose(&rig, &[(1, &[3]), (2, &[2])]));
    assert!(
        kept(&rig).is_empty(),
        "partitions keep it; 2 has no offsets"
    );
    delete(&mut rig, 1);
    assert_eq!(kept(&rig), targets(&[(1, &[3])]));
    rig.changed(&admit(3, 31, true));
    assert!(kept(&rig).is_empty(), "its disk is gone too");
}

/// Proves that the group in the place of a lost one has an id that no group had before, its slots and its number of copies, and that nothing of the old one is left.
#[test]
fn a_lost_group_is_replaced_under_a_new_id() {
    let mut rig = Rig::new(3, &[(1, &[2]), (2, &[3])]);
    rig.changed(&MetadataCommand::CreateGroups {
        groups: targets(&[(3, &[1, 2, 3])]),
    });
    rig.changed(&prefer(1, Some(2)));
    rig.changed(&admit(2, 21, true));
    fence(&mut rig, 2, false);
    rig.finish_moves();
    for used in [0, 1, 2, 3] {
        assert_eq!(
            rig.refused(&replace(&rig, 1, used, &[1])),
            Refusal::Outdated
        );
    }
    assert_eq!(
        rig.refused(&replace(&rig, 2, 4, &[1])),
        Refusal::Outdated,
        "not lost"
    );
    // The old disk, with offsets on it, is put back between the look and the command.
    let late = replace(&rig, 1, 4, &[2]);
    rig.changed(&admit(2, 22, true));
    assert_eq!(rig.refused(&late), Refusal::Outdated);
    rig.changed(&admit(2, 21, true));
    fence(&mut rig, 2, false);
    rig.finish_moves();
    let wrong = rig.refused(&replace(&rig, 1, 4, &[1, 2]));
    assert!(matches!(wrong, Refusal::InvalidField(_)));
    rig.changed(&replace(&rig, 1, 4, &[2]));
    let image = rig.image();
    assert!(!image.groups().contains_key(&group(1)) && image.lost().is_empty());
    assert_eq!(image.founders(group(4)).unwrap()[&node(2)].get(), 21);
    assert_eq!(image.preferred().get(&group(1)), None);
    let slots: BTreeSet<_> = (0..SLOTS).map(|slot| image.slot_group(slot)).collect();
    assert_eq!(
        slots,
        [Some(group(2)), Some(group(4))].into_iter().collect()
    );
    assert_eq!(copies_default(image), 1);
    let image = image.encode();
    assert_eq!(&MetadataImage::decode(&image).unwrap(), rig.image());
    // The newest one is lost too: its id is not used again, whoever has an old image.
    rig.changed(&lose(&rig, &[(4, &[])]));
    rig.changed(&replace(&rig, 4, 5, &[2]));
    let groups = targets(&[(4, &[1])]);
    let create = MetadataCommand::CreateGroups { groups };
    assert_eq!(rig.refused(&create), Refusal::Outdated);
}

/// Proves that the bytes of the commands stay as they are, and that a snapshot of version 5, which knew no store, is read.
#[test]
fn golden() {
    let commands = bytes_of(vec![
        MetadataCommand::LoseGroups {
            groups: targets(&[(1, &[2, 3]), (8, &[])]),
            checked: LogIndex::new(77),
        },
        MetadataCommand::FindGroups {
            groups: [group(1), group(8)].into_iter().collect(),
            checked: LogIndex::new(78),
        },
        MetadataCommand::ReplaceGroup {
            group: group(8),
            by: group(10),
            nodes: nodes(&[1]),
            checked: LogIndex::new(79),
        },
    ]);
    let mut rig = rig(3);
    rig.changed(&prefer(1, Some(2)));
    rig.changed(&admit(2, 21, true));
    assert_eq!(
        commands,
        include_bytes!("testdata/metadata-membership-v3.bin")
    );
    let lost = include_bytes!("testdata/metadata-snapshot-v5.bin");
    let decoded = MetadataImage::decode(lost).unwrap();
    let mut expected = rig.image().clone();
    expected.as_version_6_said();
    assert_eq!(decoded, expected);
    assert_eq!(decoded.lost(), &targets(&[(8, &[])]));
    assert_eq!(decoded.stamp(), TimestampMs::new(5));
    for length in 0..lost.len() {
        assert!(MetadataImage::decode(&lost[..length]).is_err());
    }
}
