//! What lasts and what ends: leaving, static members, restarts, sizes, the loss of leadership.

use super::*;

/// Proves that what waits for a member that leaves is answered, and that static members leave by their instance.
#[test]
fn leaving_answers_what_waits() {
    let mut rig = Rig::new();
    let ids = rig.stable(2);
    let waiting = rig.rejoin(&ids[0]);
    assert_eq!(rig.leave(&ids[0], None), Ok(()));
    assert_eq!(rig.join_error(waiting), ConsumerGroupError::UnknownMember);
    let fixed = rig.join(statically("i"));
    rig.rejoin(&ids[1]);
    let fixed = rig.joined(fixed).member;
    assert_eq!(
        rig.leave(&MemberId::new("other"), Some("i")),
        Err(ConsumerGroupError::FencedInstance)
    );
    assert_eq!(
        rig.leave(&MemberId::default(), Some("j")),
        Err(ConsumerGroupError::UnknownMember)
    );
    assert_eq!(rig.leave(&MemberId::default(), Some("i")), Ok(()));
    assert!(!rig.group.members().contains_key(&fixed));
}

/// Proves that a static member that restarts keeps its assignment without a rebalance, and fences its old self.
#[test]
fn a_static_member_comes_back() {
    let mut rig = Rig::new();
    let tickets = [rig.join(request()), rig.join(statically("i"))];
    rig.pass(DELAY);
    let ids = tickets.map(|ticket| rig.joined(ticket).member);
    rig.sync_all(&ids);
    let back = rig.join(statically("i"));
    let joined = rig.joined(back);
    assert_ne!(joined.member, ids[1]);
    assert_eq!((joined.generation, rig.group.phase()), (1, Phase::Stable));
    let sync = rig.sync(&joined.member, 1, &[]);
    assert_eq!(rig.syncs[&sync].clone().unwrap().assignment, "part");
    let instance = InstanceId::new("i");
    assert_eq!(
        rig.group.heartbeat(rig.now, &ids[1], Some(&instance), 1),
        Err(ConsumerGroupError::FencedInstance)
    );
    assert_eq!(
        rig.group.check_commit(rig.now, &ids[1], Some(&instance), 1),
        Err(ConsumerGroupError::FencedInstance)
    );
    let stored = rig.log.group(&ConsumerGroupName::new("g")).unwrap();
    assert!(stored.members.contains_key(&joined.member) && !stored.members.contains_key(&ids[1]));
    // With another subscription there is a rebalance.
    let changed = JoinRequest {
        protocols: vec![("range".into(), Bytes::from_static(b"new"))],
        ..statically("i")
    };
    rig.join(changed);
    assert!(matches!(rig.group.phase(), Phase::Preparing { .. }));
}

/// Proves that a static leader that comes back does not assign again: it is told to skip it, or that another leads.
#[test]
fn a_static_leader_comes_back() {
    for understands in [true, false] {
        let mut rig = Rig::new();
        let leader = rig.join(statically("i"));
        rig.pass(DELAY);
        let leader = rig.joined(leader).member;
        rig.sync_all(std::slice::from_ref(&leader));
        let back = rig.join(JoinRequest {
            understands_skip_assignment: understands,
            ..statically("i")
        });
        let joined = rig.joined(back);
        assert_eq!(joined.skip_assignment, understands);
        assert_eq!(joined.leader == joined.member, understands);
        assert_eq!(joined.members.len(), usize::from(understands));
    }
}

/// Proves that a replacement that cannot be stored leads to a rebalance.
#[test]
fn a_replacement_that_is_not_stored_rebalances() {
    let mut rig = Rig::new();
    let fixed = rig.join(statically("i"));
    rig.pass(DELAY);
    let fixed = rig.joined(fixed).member;
    rig.sync_all(&[fixed]);
    rig.saves_at_once = false;
    let back = rig.join(statically("i"));
    assert!(!rig.joins.contains_key(&back));
    rig.save_next(Some(ConsumerGroupError::Unavailable));
    assert_eq!(rig.join_error(back), ConsumerGroupError::Unavailable);
    assert!(matches!(rig.group.phase(), Phase::Preparing { .. }));
}

/// Proves that members go on with the same generation after a restart, without a rebalance, and can be dropped.
#[test]
fn restored_members_go_on() {
    let mut rig = Rig::new();
    let ids = rig.stable(2);
    let stored = rig.log.group(&ConsumerGroupName::new("g")).unwrap().clone();
    let config = MembershipConfig::default();
    rig.group = Membership::restore(ConsumerGroupName::new("g"), config, &stored, rig.now);
    assert_eq!(rig.group.phase(), Phase::Stable);
    for id in &ids {
        assert_eq!(rig.group.heartbeat(rig.now, id, None, 1), Ok(()));
        assert_eq!(rig.group.check_commit(rig.now, id, None, 1), Ok(()));
    }
    let again = rig.sync(&ids[1], 1, &[]);
    assert_eq!(rig.syncs[&again].clone().unwrap().assignment, "part");
    rig.pass(u64::from(SESSION) + u64::from(REBALANCE));
    assert!(
        rig.group.is_idle(),
        "members that do not come back are dropped"
    );
    let new = rig.join(request());
    rig.pass(DELAY);
    assert!(rig.joined(new).generation > 1);
}

/// Proves that an assignment that no log entry holds is refused and that the group goes on.
#[test]
fn an_assignment_that_is_too_large_is_refused() {
    let mut rig = Rig::new();
    let ticket = rig.join(request());
    rig.pass(DELAY);
    let id = rig.joined(ticket).member;
    let ticket = rig.ticket();
    let request = SyncRequest {
        member: id.clone(),
        generation: 1,
        assignments: vec![(id, Bytes::from(vec![0; limits::GENERATION_BYTES_MAX]))],
        ..SyncRequest::default()
    };
    let effects = rig.group.sync(rig.now, ticket, request);
    rig.effects(effects);
    assert_eq!(
        rig.syncs[&ticket],
        Err(ConsumerGroupError::AssignmentTooLarge)
    );
}

/// A group with as many members of the longest names as it takes, its first generation complete; and its leader.
fn full_of_long_names() -> (Rig, Joined) {
    let mut rig = Rig::new();
    let config = MembershipConfig::default();
    rig.group = Membership::new(ConsumerGroupName::new("g".repeat(1_024)), config);
    rig.saves_at_once = false;
    let mut tickets = Vec::new();
    let refused = loop {
        let name = format!("{:01024}", tickets.len());
        let request = JoinRequest {
            client_id: "c".repeat(limits::CLIENT_TEXT_BYTES_MAX),
            client_host: "h".repeat(limits::CLIENT_TEXT_BYTES_MAX),
            ..statically(&name)
        };
        let ticket = rig.ticket();
        let effects = rig
            .group
            .join(rig.now, ticket, request, MemberId::new(name));
        rig.effects(effects);
        if rig.joins.contains_key(&ticket) {
            break ticket;
        }
        tickets.push(ticket);
    };
    assert_eq!(rig.join_error(refused), ConsumerGroupError::GroupFull);
    assert!(tickets.len() > 700, "{} members", tickets.len());
    rig.pass(DELAY);
    let leader = rig.joined(tickets[0]);
    (rig, leader)
}

/// Proves that names count too: a group is full before its generation outgrows a log entry, and the generation of those who
/// got in fits when the leader assigns as much as it may, but not one byte more.
#[test]
fn names_count_towards_the_generation() {
    for more in [0, 1] {
        let (mut rig, leader) = full_of_long_names();
        let room = limits::GENERATION_BYTES_MAX - rig.group.generation_bytes();
        let ticket = rig.ticket();
        let request = SyncRequest {
            member: leader.member.clone(),
            generation: leader.generation,
            assignments: vec![(leader.member, Bytes::from(vec![0; room + more]))],
            ..SyncRequest::default()
        };
        let effects = rig.group.sync(rig.now, ticket, request);
        rig.effects(effects);
        if more == 0 {
            let bytes = rig.saves[0].1.encode(TimestampMs::new(1)).bytes();
            assert!(bytes <= limits::GENERATION_BYTES_MAX);
            assert!(bytes + limits::GENERATION_HEAD_BYTES_MAX > limits::GENERATION_BYTES_MAX);
        } else {
            let answer = rig.syncs[&ticket].clone();
            assert_eq!(answer, Err(ConsumerGroupError::AssignmentTooLarge));
            assert!(rig.saves.is_empty());
        }
    }
}

/// Proves that letting go answers everything and that nothing is accepted afterwards.
#[test]
fn letting_go_answers_everything() {
    let mut rig = Rig::new();
    let ids = rig.stable(2);
    let waiting = rig.rejoin(&ids[0]);
    let effects = rig.group.kill(ConsumerGroupError::NotCoordinator);
    rig.effects(effects);
    assert_eq!(rig.join_error(waiting), ConsumerGroupError::NotCoordinator);
    let late = rig.join(request());
    assert_eq!(rig.join_error(late), ConsumerGroupError::NotCoordinator);
    assert_eq!(
        rig.group.heartbeat(rig.now, &ids[1], None, 1),
        Err(ConsumerGroupError::NotCoordinator)
    );
    assert_eq!(
        rig.leave(&ids[1], None),
        Err(ConsumerGroupError::NotCoordinator)
    );
    assert_eq!(rig.group.next_deadline(), None);
}
