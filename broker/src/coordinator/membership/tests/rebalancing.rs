//! A stable group changes: new members, sessions that end, leaders that vanish.

use super::*;

/// Proves a rebalance: a new member, heartbeats that tell the others, a larger generation, the same leader.
#[test]
fn a_new_member_starts_a_rebalance() {
    let mut rig = Rig::new();
    let ids = rig.stable(2);
    let new = rig.join(request());
    assert_eq!(
        rig.group.heartbeat(rig.now, &ids[0], None, 1),
        Err(ConsumerGroupError::RebalanceInProgress)
    );
    // During the rebalance members of the generation before may still commit.
    assert_eq!(rig.group.check_commit(rig.now, &ids[0], None, 1), Ok(()));
    let again = [rig.rejoin(&ids[0]), rig.rejoin(&ids[1])];
    let (leader, new) = (rig.joined(again[0]), rig.joined(new));
    assert_eq!((leader.generation, leader.members.len()), (2, 3));
    assert_eq!(new.leader, ids[0]);
    assert_eq!(
        rig.group.check_commit(rig.now, &ids[0], None, 1),
        Err(ConsumerGroupError::IllegalGeneration)
    );
    assert_eq!(
        rig.group.check_commit(rig.now, &ids[0], None, 2),
        Err(ConsumerGroupError::RebalanceInProgress)
    );
    assert_eq!(
        rig.group.heartbeat(rig.now, &ids[0], None, 1),
        Err(ConsumerGroupError::IllegalGeneration)
    );
    let stale = rig.sync(&ids[1], 1, &[]);
    assert_eq!(
        rig.syncs[&stale],
        Err(ConsumerGroupError::IllegalGeneration)
    );
}

/// Proves that a follower whose answer was lost is answered again, and that the leader can ask for a rebalance.
#[test]
fn joining_again() {
    let mut rig = Rig::new();
    let ids = rig.stable(2);
    let lost = rig.rejoin(&ids[1]);
    assert_eq!(rig.joined(lost).generation, 1);
    assert_eq!(rig.group.phase(), Phase::Stable);
    let changed = JoinRequest {
        member: ids[1].clone(),
        protocols: vec![("range".into(), Bytes::from_static(b"other"))],
        ..request()
    };
    let changed = rig.join(changed);
    assert!(matches!(rig.group.phase(), Phase::Preparing { .. }));
    let leader = rig.rejoin(&ids[0]);
    assert_eq!(rig.joined(changed).generation, 2);
    assert_eq!(rig.joined(leader).members[1].subscription, "other");
    rig.sync_all(&ids);
    let leader = rig.rejoin(&ids[0]);
    assert!(
        !rig.joins.contains_key(&leader),
        "the leader waits for a rebalance"
    );
    // A second request of the same member takes the place of the first.
    let second = rig.rejoin(&ids[0]);
    assert_eq!(
        rig.join_error(leader),
        ConsumerGroupError::RebalanceInProgress
    );
    rig.rejoin(&ids[1]);
    assert_eq!(rig.joined(second).generation, 3);
}

/// Proves that silent members are dropped after their session and that heartbeats keep the others.
#[test]
fn sessions_end() {
    let mut rig = Rig::new();
    let ids = rig.stable(2);
    for _ in 0..3 {
        rig.pass(u64::from(SESSION) / 2);
        let _ = rig
            .group
            .heartbeat(rig.now, &ids[0], None, rig.group.generation());
    }
    assert!(!rig.group.members().contains_key(&ids[1]));
    let alone = rig.rejoin(&ids[0]);
    assert_eq!(rig.joined(alone).members.len(), 1);
    assert_eq!(
        rig.group.heartbeat(rig.now, &ids[1], None, 2),
        Err(ConsumerGroupError::UnknownMember)
    );
}

/// Proves A29: a leader that vanishes between join and sync does not hold the group up.
#[test]
fn a_leader_that_vanishes_before_sync_is_dropped() {
    let mut rig = Rig::new();
    let leader = rig.join(request());
    let other = rig.join(request());
    rig.pass(DELAY);
    assert_eq!(rig.joined(leader).leader, rig.joined(leader).member);
    let other = rig.joined(other).member;
    let sync = rig.sync(&other, 1, &[]);
    rig.pass(u64::from(SESSION));
    assert_eq!(
        rig.syncs[&sync],
        Err(ConsumerGroupError::RebalanceInProgress)
    );
    let again = rig.rejoin(&other);
    let joined = rig.joined(again);
    assert_eq!((joined.generation, joined.leader), (2, other.clone()));
    rig.sync_all(&[other]);
}

/// Proves that a leader that heartbeats but never brings an assignment is dropped at the rebalance timeout.
#[test]
fn a_leader_that_never_syncs_is_dropped() {
    let mut rig = Rig::new();
    let leader = rig.join(request());
    rig.pass(DELAY);
    let leader = rig.joined(leader).member;
    for _ in 0..20 {
        rig.pass(u64::from(SESSION) / 2);
        let _ = rig.group.heartbeat(rig.now, &leader, None, 1);
    }
    assert!(rig.group.is_vacant());
}

/// Proves that a rebalance goes on at its deadline without dynamic members that are missing, but keeps static ones.
#[test]
fn the_rebalance_deadline_drops_missing_members() {
    let mut rig = Rig::new();
    let tickets = [
        rig.join(request()),
        rig.join(request()),
        rig.join(statically("i")),
    ];
    rig.pass(DELAY);
    let ids = tickets.map(|ticket| rig.joined(ticket).member);
    rig.sync_all(&ids);
    let long = |id: &MemberId| JoinRequest {
        member: id.clone(),
        session_timeout_ms: 600_000,
        ..request()
    };
    // All but the first stay alive by long sessions yet do not join again.
    for id in &ids {
        rig.group.members.get_mut(id).unwrap().session_timeout_ms = 600_000;
        rig.group.heartbeat(rig.now, id, None, 1).unwrap();
    }
    let first = rig.join(long(&ids[0]));
    rig.pass(u64::from(REBALANCE) - 1);
    assert!(!rig.joins.contains_key(&first));
    rig.pass(1);
    let joined = rig.joined(first);
    let listed: Vec<_> = joined
        .members
        .iter()
        .map(|listed| listed.member.clone())
        .collect();
    assert_eq!(listed, [ids[0].clone(), ids[2].clone()]);
}

/// Proves that the last member's leaving is stored, tried again when it fails, and that the group can then be forgotten.
#[test]
fn the_last_member_leaves() {
    let mut rig = Rig::new();
    let ids = rig.stable(1);
    rig.saves_at_once = false;
    assert_eq!(rig.leave(&ids[0], None), Ok(()));
    assert_eq!(rig.group.phase(), Phase::Empty);
    assert!(rig.group.is_vacant() && !rig.group.is_idle());
    rig.save_next(Some(ConsumerGroupError::Overloaded));
    assert!(!rig.group.is_idle());
    rig.pass(1_000);
    rig.save_next(None);
    assert!(rig.group.is_idle());
    let stored = rig.log.group(&ConsumerGroupName::new("g")).unwrap();
    assert_eq!((stored.generation, stored.members.len()), (2, 0));
    assert_eq!(
        rig.leave(&ids[0], None),
        Err(ConsumerGroupError::UnknownMember)
    );
}

/// Proves that an empty generation that is in the log already is not saved for ever: a later one overtook it.
#[test]
fn an_empty_generation_is_saved_once() {
    let mut rig = Rig::new();
    let ids = rig.stable(1);
    rig.saves_at_once = false;
    assert_eq!(rig.leave(&ids[0], None), Ok(()));
    let again = rig.join(request());
    rig.pass(DELAY);
    let again = rig.joined(again).member;
    assert_eq!(rig.leave(&again, None), Ok(()));
    rig.save_next(Some(ConsumerGroupError::Unavailable));
    rig.pass(1_000);
    assert_eq!(rig.saves.len(), 2);
    rig.save_next(None);
    rig.save_next(None);
    assert!(rig.group.is_idle());
}
