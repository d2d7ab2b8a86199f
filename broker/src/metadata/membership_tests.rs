//! Tests of members, moves, and plans.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::placement::StateMachine as _;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use tidelog_model::{
    ClusterId, LogId, LogIndex, NodeId, PlacementGroupId, RaftNodeId, Term, TimestampMs,
};
use uuid::Uuid;

pub(super) fn node(id: i32) -> NodeId {
    NodeId::new(id)
}

pub(super) fn nodes(ids: &[i32]) -> Vec<NodeId> {
    ids.iter().copied().map(NodeId::new).collect()
}

pub(super) fn group(id: u32) -> PlacementGroupId {
    PlacementGroupId::new(id)
}

pub(super) fn admission(id: i32, raft_node: u64, by_operator: bool) -> Admission {
    Admission {
        node: node(id),
        raft_node: RaftNodeId::new(raft_node),
        zone: format!("zone-{id}"),
        peer: Some(Address {
            host: format!("broker-{id}"),
            port: 9192,
        }),
        by_operator,
        expects: None,
    }
}

/// An operator's admission that holds only while the member of this id is `member`.
pub(super) fn add(
    id: i32,
    raft_node: u64,
    member: Option<u64>,
    although_it_lives: bool,
) -> MetadataCommand {
    MetadataCommand::AdmitBroker(Admission {
        expects: Some(AdmissionExpects {
            member: member.map(RaftNodeId::new),
            although_it_lives,
            checked: None,
        }),
        ..admission(id, raft_node, true)
    })
}

pub(super) fn register(id: i32, raft_node: u64) -> MetadataCommand {
    let Admission { zone, peer, .. } = admission(id, raft_node, false);
    MetadataCommand::RegisterBroker {
        node: node(id),
        raft_node: Some(RaftNodeId::new(raft_node)),
        zone,
        kafka: peer.clone(),
        peer,
        admin: None,
    }
}

pub(super) fn fence(rig: &mut Rig, id: i32, fenced: bool) {
    let node = node(id);
    rig.run(&MetadataCommand::SetBrokerFence { node, fenced });
}

pub(super) fn admit(id: i32, raft_node: u64, by_operator: bool) -> MetadataCommand {
    MetadataCommand::AdmitBroker(admission(id, raft_node, by_operator))
}

pub(super) fn drain(id: i32, draining: bool) -> MetadataCommand {
    MetadataCommand::SetDraining {
        node: node(id),
        draining,
    }
}

pub(super) fn prefer(id: u32, at: Option<i32>) -> MetadataCommand {
    MetadataCommand::PreferLeader {
        group: group(id),
        node: at.map(NodeId::new),
    }
}

pub(super) fn targets(targets: &[(u32, &[i32])]) -> BTreeMap<PlacementGroupId, Vec<NodeId>> {
    let one = |(id, at): &(u32, &[i32])| (group(*id), nodes(at));
    targets.iter().map(one).collect()
}

pub(super) struct Rig {
    machine: MetadataMachine,
    next: u64,
}

impl Rig {
    /// Brokers 1 to `brokers`, and groups with these replicas.
    pub(super) fn new(brokers: i32, groups: &[(u32, &[i32])]) -> Self {
        let mut rig = Self {
            machine: MetadataMachine::new(),
            next: 0,
        };
        rig.run(&MetadataCommand::BootstrapCluster {
            cluster: ClusterId::new(Uuid::from_u128(7)),
            name: "t".to_owned(),
            groups: targets(groups),
        });
        for id in 1..=brokers {
            let raft_node = u64::try_from(id * 10).unwrap();
            rig.changed(&admit(id, raft_node, true));
            let node = node(id);
            let fenced = false;
            rig.run(&MetadataCommand::SetBrokerFence { node, fenced });
        }
        rig
    }

    pub(super) fn run(&mut self, command: &MetadataCommand) -> MetadataOutcome {
        let id = LogId {
            term: Term::new(1),
            index: LogIndex::new(self.next),
        };
        self.next += 1;
        self.machine.apply(id, &command.encode(TimestampMs::new(5)))
    }

    pub(super) fn changed(&mut self, command: &MetadataCommand) {
        assert_eq!(self.run(command), MetadataOutcome::MembersChanged);
    }

    /// Runs a command that must change nothing.
    pub(super) fn refused(&mut self, command: &MetadataCommand) -> Refusal {
        let before = self.image().encode();
        let outcome = self.run(command);
        let mut after = self.image().clone();
        after.last = MetadataImage::decode(&before).unwrap().last;
        assert_eq!(after.encode(), before);
        let MetadataOutcome::Refused(refusal) = outcome else {
            panic!("{command:?}: {outcome:?}")
        };
        refusal
    }

    pub(super) fn image(&self) -> &MetadataImage {
        self.machine.image()
    }

    pub(super) fn finish_moves(&mut self) {
        for (group, moving) in self.image().moves().clone() {
            let id = moving.id;
            self.changed(&MetadataCommand::ReplicasMoved { group, id });
        }
    }

    /// Does what is planned until nothing is.
    pub(super) fn settle(&mut self) {
        for _ in 0..20 {
            let targets = plan_moves(self.image());
            if targets.is_empty() {
                return;
            }
            self.changed(&MetadataCommand::MoveReplicas { targets });
            self.finish_moves();
        }
        panic!("the plan does not come to rest");
    }
}

/// Proves who may say which Raft node a broker is: a holder of replicas the first time, an operator always, nobody with another's.
#[test]
fn admission_is_checked() {
    let mut rig = Rig::new(0, &[(1, &[1, 2, 3])]);
    assert_eq!(
        rig.refused(&admit(4, 40, false)),
        Refusal::NotMember(node(4))
    );
    rig.changed(&admit(1, 10, false));
    rig.changed(&admit(1, 10, false));
    assert_eq!(
        rig.refused(&admit(1, 11, false)),
        Refusal::OtherRaftNode(node(1))
    );
    for (id, raft_node) in [(2, 10), (2, 0)] {
        let refusal = rig.refused(&admit(id, raft_node, true));
        assert_eq!(refusal, Refusal::InvalidField("the Raft node id"));
    }
    rig.changed(&admit(4, 40, true));
    assert_eq!(rig.image().members().len(), 2);
    let peer = rig.image().brokers()[&node(4)].peer.clone().unwrap();
    assert_eq!(peer.host, "broker-4");
}

/// Proves that of two operators who take in two brokers with one id the faster one wins, also when both force it, and that a repeated command is none of that.
#[test]
fn of_two_admissions_one_holds() {
    let mut rig = Rig::new(3, &[(1, &[1, 2, 3])]);
    rig.changed(&add(4, 40, None, false));
    rig.changed(&add(4, 40, None, false));
    let refusal = rig.refused(&add(4, 41, None, false));
    let now = Some(RaftNodeId::new(40));
    assert_eq!(refusal, Refusal::OtherMemberNow { node: node(4), now });
    assert!(refusal.to_string().contains("the Raft node 40 now"));

    fence(&mut rig, 2, true);
    rig.changed(&add(2, 21, Some(20), true));
    let refusal = rig.refused(&add(2, 22, Some(20), true));
    assert!(matches!(refusal, Refusal::OtherMemberNow { .. }));
    let refusal = rig.refused(&add(9, 90, Some(91), false));
    let now = None;
    assert_eq!(refusal, Refusal::OtherMemberNow { node: node(9), now });
    assert!(refusal.to_string().contains("no member has this id now"));
}

/// Proves that a member which comes back between the look of an operator and the command is not replaced, unless that was forced.
#[test]
fn who_came_back_is_not_replaced() {
    let mut rig = Rig::new(3, &[(1, &[1, 2, 3])]);
    fence(&mut rig, 2, true);
    // The operator looks now; then:
    fence(&mut rig, 2, false);
    let add_without_force = add(2, 21, Some(20), false);
    assert_eq!(
        rig.refused(&add_without_force),
        Refusal::MemberLives(node(2))
    );
    fence(&mut rig, 2, true);
    rig.changed(&add_without_force);
    fence(&mut rig, 2, false);
    rig.changed(&add(2, 22, Some(21), true));
    assert_eq!(rig.image().members()[&node(2)].raft_node.get(), 22);
}

/// Proves that the directory of a broker that was taken out is never taken in again, that one with an empty directory is, and that only so many are remembered.
#[test]
fn who_has_left_does_not_come_back() {
    let mut rig = Rig::new(4, &[(1, &[1, 2, 3])]);
    let remove = |rig: &mut Rig| {
        rig.changed(&drain(4, true));
        rig.changed(&MetadataCommand::RemoveBroker { node: node(4) });
    };
    remove(&mut rig);
    assert!(rig.image().has_left(RaftNodeId::new(40)));
    for command in [
        add(4, 40, None, true),
        admit(4, 40, true),
        admit(5, 40, true),
    ] {
        assert!(matches!(rig.refused(&command), Refusal::Departed(_)));
    }
    for raft_node in 41..=1_041 {
        rig.changed(&add(4, raft_node, None, false));
        remove(&mut rig);
    }
    assert!(!rig.image().has_left(RaftNodeId::new(41)), "forgotten");
    assert!(rig.image().has_left(RaftNodeId::new(42)));
    let image = rig.image().encode();
    assert_eq!(&MetadataImage::decode(&image).unwrap(), rig.image());
}

/// Proves that a registration which comes late leaves no broker behind that is none: neither of one that has left, nor of one that was replaced.
#[test]
fn late_registrations_leave_no_ghost() {
    let mut rig = Rig::new(4, &[(1, &[1, 2, 3])]);
    assert_eq!(rig.run(&register(4, 40)), MetadataOutcome::BrokerRegistered);
    rig.changed(&drain(4, true));
    rig.changed(&MetadataCommand::RemoveBroker { node: node(4) });
    assert_eq!(rig.refused(&register(4, 40)), Refusal::NotMember(node(4)));
    assert!(!rig.image().brokers().contains_key(&node(4)));
    rig.changed(&admit(2, 21, true));
    assert_eq!(
        rig.refused(&register(2, 20)),
        Refusal::OtherRaftNode(node(2))
    );
    assert!(!rig.image().is_registered(node(2)));
    assert_eq!(rig.run(&register(2, 21)), MetadataOutcome::BrokerRegistered);
}

/// Proves that a group whose only copy is lost is not waited for: replicas of others are built anew, and nothing is left on its way.
#[test]
fn a_lost_group_holds_nobody_back() {
    let mut rig = Rig::new(4, &[(1, &[1, 2, 3]), (2, &[2])]);
    rig.changed(&admit(2, 21, true));
    let moving: Vec<_> = rig.image().moves().keys().copied().collect();
    assert_eq!(moving, [group(1)]);
    assert_eq!(rig.image().replicas_wanted(group(2)), nodes(&[2]));
    rig.finish_moves();
    assert!(rig.image().moves().is_empty());
}

/// Proves that a broker with a new disk has all its replicas built anew, wherever they were or were to be.
#[test]
fn a_new_disk_means_new_replicas() {
    let mut rig = Rig::new(4, &[(1, &[1, 2, 3]), (2, &[2, 3, 4]), (3, &[1, 3, 4])]);
    let moved = targets(&[(3, &[1, 2, 3])]);
    rig.changed(&MetadataCommand::MoveReplicas { targets: moved });
    let first = rig.image().moves()[&group(3)].id;
    rig.changed(&admit(2, 21, true));
    let image = rig.image();
    assert_eq!(image.members()[&node(2)].raft_node.get(), 21);
    assert_eq!(
        image.moves().keys().copied().collect::<Vec<_>>(),
        [group(1), group(2), group(3)]
    );
    assert_eq!(image.replicas_wanted(group(2)), nodes(&[2, 3, 4]));
    assert_ne!(image.moves()[&group(3)].id, first);
    // What was achieved with the old disk does not count.
    let old = MetadataCommand::ReplicasMoved {
        group: group(3),
        id: first,
    };
    assert_eq!(rig.refused(&old), Refusal::Outdated);
    rig.finish_moves();
    assert!(rig.image().moves().is_empty());
    assert_eq!(rig.image().groups()[&group(3)], nodes(&[1, 2, 3]));
}

/// Proves the life of a drain: refused without room, planned over distinct zones, turned back, finished, and only then the broker goes.
#[test]
fn drains() {
    let mut three = Rig::new(3, &[(1, &[1, 2, 3])]);
    let refusal = three.refused(&drain(2, true));
    assert!(refusal.to_string().contains("add one first"), "{refusal}");
    assert_eq!(
        three.refused(&drain(9, true)),
        Refusal::UnknownBroker(node(9))
    );

    let mut rig = Rig::new(4, &[(1, &[1, 2, 3]), (2, &[2, 3, 4]), (3, &[1, 3, 4])]);
    rig.changed(&drain(2, true));
    assert!(matches!(
        rig.refused(&drain(3, true)),
        Refusal::TooFewBrokers { .. }
    ));
    let plan = plan_moves(rig.image());
    assert_eq!(plan, targets(&[(1, &[1, 3, 4]), (2, &[1, 3, 4])]));
    rig.changed(&MetadataCommand::MoveReplicas { targets: plan });
    let done = rig.image().moves()[&group(1)].id;
    let moved = MetadataCommand::ReplicasMoved {
        group: group(1),
        id: done,
    };
    rig.changed(&moved);
    let remove = MetadataCommand::RemoveBroker { node: node(2) };
    assert_eq!(rig.refused(&remove), Refusal::StillHolds(node(2)));

    // Cancelled: group 2 turns back, group 1 stays moved until loads are evened out.
    rig.changed(&drain(2, false));
    assert_eq!(rig.image().replicas_wanted(group(2)), nodes(&[2, 3, 4]));
    assert_eq!(rig.image().replicas_wanted(group(1)), nodes(&[1, 3, 4]));
    rig.finish_moves();
    rig.settle();
    assert_eq!(rig.refused(&remove), Refusal::StillHolds(node(2)));

    rig.changed(&drain(2, true));
    rig.settle();
    rig.changed(&remove);
    assert!(!rig.image().members().contains_key(&node(2)));
    assert!(!rig.image().brokers().contains_key(&node(2)));
}

/// Proves that a replica of a target that was given up is kept until the next move is done: Raft may have let it vote already. And that a group
/// that has moved is set up by nobody any more.
#[test]
fn given_up_targets_are_held() {
    let mut rig = Rig::new(5, &[(1, &[1, 2, 3])]);
    let holds = |rig: &Rig, id: i32| rig.image().holds(group(1), node(id));
    for target in [[1, 2, 4], [1, 2, 5], [1, 2, 3]] {
        let targets = targets(&[(1, &target)]);
        rig.changed(&MetadataCommand::MoveReplicas { targets });
    }
    assert!((1..=5).all(|id| holds(&rig, id)));
    assert_eq!(rig.image().moves()[&group(1)].also, nodes(&[4, 5]));
    assert!(!rig.image().founders(group(1)).unwrap().is_empty());
    rig.finish_moves();
    assert_eq!(
        (holds(&rig, 3), holds(&rig, 4), holds(&rig, 5)),
        (true, false, false)
    );
    assert!(rig.image().founders(group(1)).unwrap().is_empty());
}

/// Proves that no broker is drained when those that would vote on metadata then are mostly silent.
#[test]
fn a_drain_needs_a_live_majority() {
    let mut rig = Rig::new(5, &[(1, &[1])]);
    for id in [4, 5] {
        let (node, fenced) = (node(id), true);
        rig.run(&MetadataCommand::SetBrokerFence { node, fenced });
    }
    assert!(matches!(
        rig.refused(&drain(1, true)),
        Refusal::TooFewBrokers { .. }
    ));
    rig.changed(&drain(4, true));
}

/// Proves that no broker is drained whose copies find no room on brokers that live, that the silent ones are named, and that a silent one itself is drained where the
/// others have room.
#[test]
fn a_drain_needs_live_room() {
    let mut rig = Rig::new(4, &[(1, &[1, 2, 4]), (2, &[2, 3, 4])]);
    fence(&mut rig, 3, true);
    let refusal = rig.refused(&drain(1, true));
    let text = refusal.to_string();
    assert!(
        text.contains("3 brokers that live") && text.contains("2 do: start broker 3 first"),
        "{text}"
    );
    rig.changed(&drain(3, true));
    rig.changed(&drain(3, false));
    fence(&mut rig, 3, false);
    rig.changed(&drain(1, true));
}

/// Proves that groups of another number of copies can be made, once, on members only.
#[test]
fn groups_are_created() {
    let mut rig = Rig::new(3, &[(1, &[1, 2, 3])]);
    let chosen = choose_replicas(rig.image(), 3, 1).unwrap();
    assert_eq!(chosen, [nodes(&[1]), nodes(&[2]), nodes(&[3])]);
    assert_eq!(choose_replicas(rig.image(), 1, 5), None);
    let groups = targets(&[(2, &[1]), (3, &[2])]);
    let create = MetadataCommand::CreateGroups { groups };
    rig.changed(&create);
    assert_eq!(rig.refused(&create), Refusal::Outdated);
    assert_eq!(rig.image().founders(group(2)).unwrap()[&node(1)].get(), 10);
    assert_eq!(rig.image().founders(group(1)).unwrap()[&node(1)].get(), 0);
    let groups = targets(&[(4, &[9])]);
    let refusal = rig.refused(&MetadataCommand::CreateGroups { groups });
    assert_eq!(refusal, Refusal::UnknownBroker(node(9)));
}

/// Proves that metadata is voted on in as many zones as there are, by five at most, and that a draining broker only listens.
#[test]
fn metadata_replicas() {
    let mut rig = Rig::new(7, &[(1, &[1])]);
    let later = TimestampMs::new(5 + VOTER_AWAY_MS);
    let (voters, learners) = rig.image().metadata_replicas(later);
    assert_eq!(voters, nodes(&[1, 2, 3, 4, 5]).into_iter().collect());
    assert_eq!(learners, nodes(&[6, 7]).into_iter().collect());
    rig.changed(&drain(2, true));
    let (voters, learners) = rig.image().metadata_replicas(later);
    assert_eq!(voters, nodes(&[1, 3, 4, 5, 6]).into_iter().collect());
    assert_eq!(learners, nodes(&[2, 7]).into_iter().collect());
    // Who does not live votes only where there are not enough others.
    let fence = |rig: &mut Rig, id, fenced| {
        fence(rig, id, fenced);
        rig.image().metadata_replicas(later).0
    };
    let voters = fence(&mut rig, 1, true);
    assert_eq!(voters, nodes(&[3, 4, 5, 6, 7]).into_iter().collect());
    let voters = fence(&mut rig, 5, true);
    assert_eq!(voters, nodes(&[1, 3, 4, 6, 7]).into_iter().collect());
    let voters = fence(&mut rig, 5, false);
    assert_eq!(voters, nodes(&[3, 4, 5, 6, 7]).into_iter().collect());
}

/// Proves that a voter which is silent for a moment keeps its vote and one that stays silent does not, that one which is back has it at once, and that a
/// member which has never come does not vote while others can.
#[test]
fn a_moment_of_silence_changes_no_voters() {
    let mut rig = Rig::new(7, &[(1, &[1])]);
    for id in 1..=7 {
        rig.run(&register(id, u64::try_from(id * 10).unwrap()));
    }
    let voters = |rig: &Rig, after: i64| {
        let now = TimestampMs::new(5 + after);
        let voters = rig.image().metadata_replicas(now).0;
        voters.into_iter().map(NodeId::get).collect::<Vec<_>>()
    };
    for silent in [1, 2] {
        fence(&mut rig, silent, true);
        assert_eq!(voters(&rig, VOTER_AWAY_MS - 1), [1, 2, 3, 4, 5]);
    }
    assert_eq!(voters(&rig, VOTER_AWAY_MS), [3, 4, 5, 6, 7]);
    fence(&mut rig, 1, false);
    assert_eq!(voters(&rig, VOTER_AWAY_MS), [1, 3, 4, 5, 6]);
    fence(&mut rig, 2, false);
    assert_eq!(voters(&rig, VOTER_AWAY_MS), [1, 2, 3, 4, 5]);
    // Its zone is the first of all.
    rig.changed(&admit(0, 99, true));
    assert_eq!(voters(&rig, 0), [1, 2, 3, 4, 5]);
    rig.run(&register(0, 99));
    fence(&mut rig, 0, false);
    assert_eq!(voters(&rig, 0), [0, 1, 2, 3, 4]);
}

/// Proves that leaders are shared out evenly, that an operator's wish counts while that broker can lead, and never for another.
#[test]
fn leaders_are_preferred() {
    let all: Vec<(u32, &[i32])> = (1..=6).map(|id| (id, &[1, 2, 3][..])).collect();
    let mut rig = Rig::new(4, &all);
    let mut led: BTreeMap<NodeId, usize> = BTreeMap::new();
    for id in 1..=6 {
        *led.entry(rig.image().preferred_leader(group(id)).unwrap())
            .or_default() += 1;
    }
    assert!(led.len() == 3 && led.values().all(|count| *count == 2));
    let refusal = rig.refused(&prefer(1, Some(4)));
    assert!(matches!(refusal, Refusal::NotReplica { .. }));
    assert!(matches!(
        rig.refused(&prefer(9, Some(1))),
        Refusal::UnknownGroup(_)
    ));
    rig.changed(&prefer(1, Some(3)));
    rig.changed(&prefer(0, Some(4)));
    assert_eq!(rig.image().preferred_leader(group(1)), Some(node(3)));
    assert_eq!(rig.image().preferred_leader(group(0)), Some(node(4)));
    rig.changed(&drain(3, true));
    assert_ne!(rig.image().preferred_leader(group(1)), Some(node(3)));
    rig.changed(&drain(3, false));
    rig.changed(&prefer(1, None));
    assert_ne!(rig.image().preferred_leader(group(1)), Some(node(3)));
}

fn samples() -> Vec<MetadataCommand> {
    vec![
        admit(1, 10, false),
        admit(2, 20, true),
        drain(2, true),
        MetadataCommand::MoveReplicas {
            targets: targets(&[(1, &[1, 2]), (2, &[3])]),
        },
        MetadataCommand::ReplicasMoved {
            group: group(1),
            id: LogIndex::new(77),
        },
        MetadataCommand::RemoveBroker { node: node(2) },
        prefer(1, Some(2)),
        prefer(0, None),
        MetadataCommand::CreateGroups {
            groups: targets(&[(3, &[1])]),
        },
    ]
}

/// What version 2 adds.
fn samples_2() -> Vec<MetadataCommand> {
    vec![
        add(2, 20, None, false),
        add(2, 21, Some(20), true),
        register(2, 21),
    ]
}

pub(super) fn bytes_of(commands: Vec<MetadataCommand>) -> Vec<u8> {
    let mut all = Vec::new();
    for command in commands {
        let dir = command.encode(TimestampMs::new(5)).dir;
        assert_eq!(decode_command(&dir).unwrap().0, command);
        for length in 0..dir.len() {
            assert!(decode_command(&dir[..length]).is_err());
        }
        all.extend_from_slice(&dir);
    }
    all
}

/// Proves that the bytes stay as they are, survive, and are refused when cut; and that kinds without a version 2 are not read as one.
#[test]
fn golden() {
    let (all, all_2) = (bytes_of(samples()), bytes_of(samples_2()));
    let mut newer = drain(2, true).encode(TimestampMs::new(5)).dir.to_vec();
    newer[1] = 2;
    assert!(decode_command(&newer).is_err());
    let mut rig = Rig::new(4, &[(1, &[1, 2, 3])]);
    rig.changed(&MetadataCommand::CreateGroups {
        groups: targets(&[(2, &[4])]),
    });
    rig.changed(&prefer(1, Some(2)));
    rig.changed(&drain(3, true));
    let moved = targets(&[(1, &[1, 2, 4])]);
    rig.changed(&MetadataCommand::MoveReplicas { targets: moved });
    // Version 3 did not remember who has left.
    let old = MetadataImage::decode(include_bytes!("testdata/metadata-snapshot-v3.bin"));
    let as_before = |image: &MetadataImage| {
        let mut image = image.clone();
        image.as_version_6_said();
        image
    };
    assert_eq!(old.unwrap(), as_before(rig.image()));
    rig.finish_moves();
    rig.changed(&MetadataCommand::RemoveBroker { node: node(3) });
    let image = rig.image().encode();
    assert_eq!(&MetadataImage::decode(&image).unwrap(), rig.image());
    // Version 4 did not know lost groups.
    let old = MetadataImage::decode(include_bytes!("testdata/metadata-snapshot-v4.bin"));
    assert_eq!(old.unwrap(), as_before(rig.image()));
    for (name, bytes) in [
        ("metadata-membership-v1.bin", &all[..]),
        ("metadata-membership-v2.bin", &all_2[..]),
    ] {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/metadata/testdata");
        let path = format!("{folder}/{name}");
        if std::env::var_os("TIDELOG_WRITE_GOLDEN").is_some() {
            std::fs::write(&path, bytes).unwrap();
        }
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "{name}");
    }
}

proptest! {
    /// Proves that plans come to rest with even loads, the number of copies kept, distinct brokers, and nothing on drained ones.
    #[test]
    fn plans_come_to_rest(
        brokers in 4i32..8,
        copies in 1usize..4,
        groups in 1u32..12,
        drained in proptest::option::of(1i32..4),
    ) {
        let start: Vec<i32> = (1..=i32::try_from(copies).unwrap()).collect();
        let all: Vec<(u32, &[i32])> = (1..=groups).map(|id| (id, &start[..])).collect();
        let mut rig = Rig::new(brokers, &all);
        if let Some(id) = drained {
            rig.changed(&drain(id, true));
        }
        rig.settle();
        let image = rig.image();
        let mut loads: BTreeMap<NodeId, usize> = (1..=brokers)
            .filter(|id| Some(*id) != drained)
            .map(|id| (node(id), 0))
            .collect();
        for held in image.groups().values() {
            prop_assert_eq!(held.iter().collect::<BTreeSet<_>>().len(), copies);
            for at in held {
                *loads.get_mut(at).expect("a broker that is not drained") += 1;
            }
        }
        prop_assert!(loads.values().max().unwrap() - loads.values().min().unwrap() <= 1);
    }
}
