//! A group forms: the first members, ids, refusals, protocols.

use super::*;

/// Proves that members that come within the window share one generation, with one leader who sees all.
#[test]
fn first_members_share_a_generation() {
    let mut rig = Rig::new();
    let one = rig.join(request());
    rig.pass(DELAY - 1);
    let two = rig.join(request());
    rig.pass(DELAY - 1);
    assert!(
        rig.joins.is_empty(),
        "the window stays open after each new member"
    );
    rig.pass(1);
    let (one, two) = (rig.joined(one), rig.joined(two));
    assert_eq!((one.generation, two.generation), (1, 1));
    assert_eq!(one.leader, one.member);
    assert_eq!(two.leader, one.member);
    let listed: Vec<_> = one
        .members
        .iter()
        .map(|listed| listed.member.clone())
        .collect();
    assert_eq!(listed, [one.member, two.member]);
    assert!(two.members.is_empty());
}

/// Proves that syncs are answered only when the generation is in the log, each with its own assignment.
#[test]
fn syncs_wait_for_the_log() {
    let mut rig = Rig::new();
    rig.saves_at_once = false;
    let tickets = [rig.join(request()), rig.join(request())];
    rig.pass(DELAY);
    let ids = tickets.map(|ticket| rig.joined(ticket).member);
    let follower = rig.sync(&ids[1], 1, &[]);
    let leader = rig.sync(&ids[0], 1, &[(&ids[0], "p0"), (&ids[1], "p1")]);
    assert!(rig.syncs.is_empty());
    assert_eq!(rig.group.heartbeat(rig.now, &ids[1], None, 1), Ok(()));
    rig.save_next(None);
    assert_eq!(rig.syncs[&leader].clone().unwrap().assignment, "p0");
    assert_eq!(rig.syncs[&follower].clone().unwrap().assignment, "p1");
    assert_eq!(
        rig.log
            .group(&ConsumerGroupName::new("g"))
            .unwrap()
            .members
            .len(),
        2
    );
    // A sync that comes again is answered again.
    let again = rig.sync(&ids[1], 1, &[]);
    assert_eq!(rig.syncs[&again].clone().unwrap().assignment, "p1");
}

/// Proves that a generation that cannot be stored never becomes stable, and that the group goes on.
#[test]
fn a_generation_that_is_not_stored_is_not_stable() {
    let mut rig = Rig::new();
    rig.saves_at_once = false;
    let ticket = rig.join(request());
    rig.pass(DELAY);
    let id = rig.joined(ticket).member;
    let sync = rig.sync(&id, 1, &[(&id, "p")]);
    rig.save_next(Some(ConsumerGroupError::Unavailable));
    assert_eq!(rig.syncs[&sync], Err(ConsumerGroupError::Unavailable));
    assert!(matches!(rig.group.phase(), Phase::Preparing { .. }));
    let again = rig.rejoin(&id);
    assert_eq!(rig.joined(again).generation, 2);
}

/// Proves the two-step join of new members, that an id that does not come back is forgotten, and the size limit.
#[test]
fn new_members_are_given_an_id_first() {
    let mut rig = Rig::new();
    let ask = || JoinRequest {
        require_known_member: true,
        ..request()
    };
    let first = rig.join(ask());
    let Err(JoinRefusal::MemberIdRequired(id)) = rig.joins[&first].clone() else {
        panic!("no id given")
    };
    assert!(!rig.group.is_vacant());
    let joined = rig.join(JoinRequest {
        member: id.clone(),
        ..ask()
    });
    rig.pass(DELAY);
    assert_eq!(rig.joined(joined).member, id);
    let lost = rig.join(ask());
    let Err(JoinRefusal::MemberIdRequired(lost)) = rig.joins[&lost].clone() else {
        panic!("no id given")
    };
    rig.pass(u64::from(SESSION));
    let late = rig.join(JoinRequest {
        member: lost,
        ..ask()
    });
    assert_eq!(rig.join_error(late), ConsumerGroupError::UnknownMember);
    for _ in 0..5 {
        rig.join(ask());
    }
    let one_more = rig.join(ask());
    assert_eq!(rig.join_error(one_more), ConsumerGroupError::GroupFull);
}

/// Proves that bad joins are refused, each with its reason.
#[test]
fn bad_joins_are_refused() {
    let mut rig = Rig::new();
    for (request, error) in [
        (
            JoinRequest {
                session_timeout_ms: 5_999,
                ..request()
            },
            ConsumerGroupError::InvalidSessionTimeout,
        ),
        (
            JoinRequest {
                session_timeout_ms: 1_800_001,
                ..request()
            },
            ConsumerGroupError::InvalidSessionTimeout,
        ),
        (
            JoinRequest {
                protocol_type: String::new(),
                ..request()
            },
            ConsumerGroupError::InconsistentProtocol,
        ),
        (offering(&[]), ConsumerGroupError::InconsistentProtocol),
        (
            JoinRequest {
                member: MemberId::new("x"),
                ..request()
            },
            ConsumerGroupError::UnknownMember,
        ),
        (
            JoinRequest {
                member: MemberId::new("x"),
                ..statically("i")
            },
            ConsumerGroupError::UnknownMember,
        ),
        (
            offering(&["p"; limits::PROTOCOLS_MAX + 1]),
            ConsumerGroupError::InvalidRequest,
        ),
        (
            JoinRequest {
                protocols: vec![(
                    "range".into(),
                    Bytes::from(vec![0; limits::MEMBER_BYTES_MAX]),
                )],
                ..request()
            },
            ConsumerGroupError::InvalidRequest,
        ),
    ] {
        let ticket = rig.join(request);
        assert_eq!(rig.join_error(ticket), error);
    }
    assert!(rig.group.is_idle(), "refused joins leave nothing");
    rig.stable(1);
    let other = rig.join(offering(&["sticky"]));
    assert_eq!(
        rig.join_error(other),
        ConsumerGroupError::InconsistentProtocol
    );
    let other = rig.join(JoinRequest {
        protocol_type: "connect".into(),
        ..request()
    });
    assert_eq!(
        rig.join_error(other),
        ConsumerGroupError::InconsistentProtocol
    );
}

/// Proves that subscriptions of all members together are bounded.
#[test]
fn subscriptions_are_bounded_together() {
    let mut rig = Rig::new();
    let big = || JoinRequest {
        protocols: vec![("r".into(), Bytes::from(vec![0; 500 * 1_024]))],
        ..request()
    };
    let tickets: Vec<_> = (0..5).map(|_| rig.join(big())).collect();
    assert_eq!(rig.join_error(tickets[4]), ConsumerGroupError::GroupFull);
    rig.pass(DELAY);
    assert_eq!(rig.joined(tickets[0]).members.len(), 4);
}

/// Proves the vote: the most preferred protocol of those that all offer; the first member breaks a tie.
#[test]
fn protocols_are_voted_for() {
    let mut rig = Rig::new();
    let first = rig.join(offering(&["a", "b", "c"]));
    rig.join(offering(&["c", "b"]));
    rig.join(offering(&["x", "b", "c"]));
    rig.pass(DELAY);
    assert_eq!(rig.joined(first).protocol, "b", "b has two votes of three");
    let mut rig = Rig::new();
    let first = rig.join(offering(&["a", "b"]));
    rig.join(offering(&["b", "a"]));
    rig.pass(DELAY);
    assert_eq!(rig.joined(first).protocol, "a");
}
