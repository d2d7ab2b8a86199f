//! Tests of the classic protocol: each rule by itself, then random lives of a group against its invariants.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::coordinator::state::{Committer, ConsumerGroupsState, CoordinatorOutcome};
use proptest::prelude::*;
use std::collections::BTreeSet;
use tidelog_model::TimestampMs;

const SESSION: u32 = 10_000;
const REBALANCE: u32 = 60_000;
const DELAY: u64 = 500;

/// A group, its log, and everything it has answered.
struct Rig {
    group: Membership,
    log: ConsumerGroupsState,
    now: Moment,
    tickets: u64,
    joins: BTreeMap<Ticket, Result<Joined, JoinRefusal>>,
    syncs: BTreeMap<Ticket, Result<Synced, ConsumerGroupError>>,
    saves: Vec<(SaveToken, CoordinatorCommand)>,
    /// Saves go to the log at once.
    saves_at_once: bool,
}

impl Rig {
    fn new() -> Self {
        Self {
            group: Membership::new(
                ConsumerGroupName::new("g"),
                MembershipConfig {
                    members_max: 5,
                    ..Default::default()
                },
            ),
            log: ConsumerGroupsState::new(),
            now: Moment(0),
            tickets: 0,
            joins: BTreeMap::new(),
            syncs: BTreeMap::new(),
            saves: Vec::new(),
            saves_at_once: true,
        }
    }

    fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    fn effects(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::AnswerJoin(ticket, answer) => {
                    assert!(
                        self.joins.insert(ticket, answer).is_none(),
                        "{ticket:?} answered twice"
                    );
                }
                Effect::AnswerSync(ticket, answer) => {
                    assert!(
                        self.syncs.insert(ticket, answer).is_none(),
                        "{ticket:?} answered twice"
                    );
                }
                Effect::Save(token, command) => self.saves.push((token, command)),
            }
        }
        while self.saves_at_once && !self.saves.is_empty() {
            self.save_next(None);
        }
    }

    /// Lets the oldest save happen, or fail.
    fn save_next(&mut self, failure: Option<ConsumerGroupError>) {
        if self.saves.is_empty() {
            return;
        }
        let (token, command) = self.saves.remove(0);
        let result = match failure {
            Some(error) => Err(error),
            None => match self.log.apply(command, TimestampMs::new(0)) {
                CoordinatorOutcome::Refused(error) => Err(error),
                _ => Ok(()),
            },
        };
        let effects = self.group.saved(self.now, token, result);
        self.effects(effects);
    }

    fn join(&mut self, request: JoinRequest) -> Ticket {
        let ticket = self.ticket();
        let fresh = MemberId::new(format!("fresh-{}", ticket.0));
        let effects = self.group.join(self.now, ticket, request, fresh);
        self.effects(effects);
        ticket
    }

    fn sync(
        &mut self,
        member: &MemberId,
        generation: i32,
        assignments: &[(&MemberId, &'static str)],
    ) -> Ticket {
        let ticket = self.ticket();
        let request = SyncRequest {
            member: member.clone(),
            generation,
            assignments: assignments
                .iter()
                .map(|(id, bytes)| ((*id).clone(), Bytes::from_static(bytes.as_bytes())))
                .collect(),
            ..SyncRequest::default()
        };
        let effects = self.group.sync(self.now, ticket, request);
        self.effects(effects);
        ticket
    }

    /// Moves time on, doing what is due on the way.
    fn pass(&mut self, ms: u64) {
        let until = self.now.after(ms);
        while let Some(at) = self.group.next_deadline().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            let effects = self.group.timer(self.now);
            self.effects(effects);
        }
        self.now = until;
    }

    fn joined(&self, ticket: Ticket) -> Joined {
        self.joins
            .get(&ticket)
            .expect("answered")
            .clone()
            .expect("joined")
    }

    fn join_error(&self, ticket: Ticket) -> ConsumerGroupError {
        match self
            .joins
            .get(&ticket)
            .expect("answered")
            .clone()
            .unwrap_err()
        {
            JoinRefusal::Error(error) => error,
            JoinRefusal::MemberIdRequired(id) => panic!("told to join as {id}"),
        }
    }

    fn leave(
        &mut self,
        member: &MemberId,
        instance: Option<&str>,
    ) -> Result<(), ConsumerGroupError> {
        let leaving = [(member.clone(), instance.map(InstanceId::new))];
        let (results, effects) = self.group.leave(self.now, &leaving);
        self.effects(effects);
        results[0]
    }

    /// A stable group of `count` members, in the order they came; the first leads.
    fn stable(&mut self, count: usize) -> Vec<MemberId> {
        let tickets: Vec<_> = (0..count).map(|_| self.join(request())).collect();
        self.pass(DELAY);
        let ids: Vec<_> = tickets
            .iter()
            .map(|ticket| self.joined(*ticket).member)
            .collect();
        self.sync_all(&ids);
        ids
    }

    fn sync_all(&mut self, ids: &[MemberId]) {
        let generation = self.group.generation();
        let leader = self.group.leader.clone().unwrap();
        for id in ids.iter().filter(|id| **id != leader) {
            self.sync(id, generation, &[]);
        }
        let assignments: Vec<_> = ids.iter().map(|id| (id, "part")).collect();
        self.sync(&leader, generation, &assignments);
        assert_eq!(self.group.phase(), Phase::Stable);
    }

    fn rejoin(&mut self, id: &MemberId) -> Ticket {
        self.join(JoinRequest {
            member: id.clone(),
            ..request()
        })
    }
}

fn request() -> JoinRequest {
    JoinRequest {
        client_id: "c".into(),
        client_host: "h".into(),
        session_timeout_ms: SESSION,
        rebalance_timeout_ms: REBALANCE,
        protocol_type: "consumer".into(),
        protocols: vec![("range".into(), Bytes::from_static(b"sub"))],
        ..JoinRequest::default()
    }
}

fn offering(protocols: &[&str]) -> JoinRequest {
    let protocols = protocols
        .iter()
        .map(|name| ((*name).to_owned(), Bytes::from_static(b"sub")))
        .collect();
    JoinRequest {
        protocols,
        ..request()
    }
}

fn statically(instance: &str) -> JoinRequest {
    JoinRequest {
        instance: Some(InstanceId::new(instance)),
        ..request()
    }
}

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

#[derive(Debug, Clone)]
enum Step {
    Join { instance: Option<u8>, known: bool },
    Rejoin(usize, bool),
    Sync(usize),
    Heartbeat(usize),
    Leave(usize),
    Pass(u64),
    Save(bool),
    Restart,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (proptest::option::weighted(0.3, 0u8..2), any::<bool>())
            .prop_map(|(instance, known)| Step::Join { instance, known }),
        6 => (0usize..8, any::<bool>()).prop_map(|(who, changed)| Step::Rejoin(who, changed)),
        8 => (0usize..8).prop_map(Step::Sync),
        3 => (0usize..8).prop_map(Step::Heartbeat),
        1 => (0usize..8).prop_map(Step::Leave),
        4 => prop_oneof![0u64..1_000, 1_000u64..30_000].prop_map(Step::Pass),
        6 => proptest::bool::weighted(0.85).prop_map(Step::Save),
        1 => Just(Step::Restart),
    ]
}

/// Remembers who was told to lead which generation.
fn leaders(rig: &Rig, told: &mut BTreeMap<i32, BTreeSet<MemberId>>) {
    for joined in rig.joins.values().flatten() {
        if joined.leader == joined.member && !joined.skip_assignment {
            told.entry(joined.generation)
                .or_default()
                .insert(joined.member.clone());
        }
    }
}

fn take_step(rig: &mut Rig, step: Step) {
    let known: Vec<MemberId> = rig
        .group
        .members()
        .keys()
        .chain(rig.group.pending.keys())
        .cloned()
        .collect();
    let pick = |who: usize| {
        known
            .get(who % known.len().max(1))
            .cloned()
            .unwrap_or_else(|| MemberId::new("nobody"))
    };
    let generation = rig.group.generation();
    match step {
        Step::Join { instance, known } => {
            let base = instance.map_or_else(request, |number| statically(&format!("i{number}")));
            rig.join(JoinRequest {
                require_known_member: known,
                ..base
            });
        }
        Step::Rejoin(who, changed) => {
            let subscription = Bytes::from_static(if changed { b"changed" } else { b"sub" });
            let protocols = vec![("range".to_owned(), subscription)];
            rig.join(JoinRequest {
                member: pick(who),
                protocols,
                ..request()
            });
        }
        Step::Sync(who) => {
            let id = pick(who);
            rig.sync(&id, generation, &[(&id, "part")]);
        }
        Step::Heartbeat(who) => drop(rig.group.heartbeat(rig.now, &pick(who), None, generation)),
        Step::Leave(who) => drop(rig.leave(&pick(who), None)),
        Step::Pass(ms) => rig.pass(ms),
        Step::Save(works) => rig.save_next((!works).then_some(ConsumerGroupError::Unavailable)),
        Step::Restart => {
            // What was on its way into the log is lost; another coordinator begins from the log.
            rig.saves.clear();
            let effects = rig.group.kill(ConsumerGroupError::NotCoordinator);
            rig.effects(effects);
            let name = ConsumerGroupName::new("g");
            let stored = rig.log.group(&name).cloned().unwrap_or_default();
            rig.group = Membership::restore(name, rig.group.config, &stored, rig.now);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Proves, over random lives of a group: generations never go back between restarts, one leader per generation,
    /// what is stored is what was answered, no ticket is answered twice (the rig checks), none is forgotten, and the
    /// group is never stuck: left alone, it ends empty with everything answered.
    #[test]
    fn random_lives(steps in proptest::collection::vec(any_step(), 1..120)) {
        let mut rig = Rig::new();
        rig.saves_at_once = false;
        let mut told = BTreeMap::new();
        let mut generation = 0;
        for step in steps {
            if matches!(step, Step::Restart) {
                leaders(&rig, &mut told);
                told.clear();
                rig.joins.retain(|_, answer| answer.is_err());
                generation = 0;
            }
            take_step(&mut rig, step);
            prop_assert!(rig.group.generation() >= generation, "the generation went back");
            generation = rig.group.generation();
            leaders(&rig, &mut told);
            if !rig.group.is_vacant() {
                let waits = rig.group.members().values().any(Member::waits);
                let saving = !rig.saves.is_empty();
                prop_assert!(rig.group.next_deadline().is_some() || (waits && saving), "stuck");
            }
            for member in rig.group.members().values() {
                if let Some(instance) = &member.instance {
                    prop_assert!(rig.group.instances.contains_key(instance));
                }
            }
            if rig.group.phase() == Phase::Stable && rig.saves.is_empty() {
                let stored = rig.log.group(&ConsumerGroupName::new("g")).unwrap();
                prop_assert_eq!(stored.generation, rig.group.generation());
                for id in rig.group.members().keys() {
                    let committer =
                        Committer::Member { generation: stored.generation, member: id.clone(), instance: None };
                    prop_assert_eq!(stored.check_committer(&committer), Ok(()));
                }
            }
        }
        for (generation, who) in &told {
            prop_assert!(who.len() <= 1, "generation {} had the leaders {:?}", generation, who);
        }
        // Everyone goes silent: saves come through, timers run, and the group comes to rest.
        for _ in 0..50 {
            while !rig.saves.is_empty() {
                rig.save_next(None);
            }
            rig.pass(60_000);
        }
        prop_assert!(rig.group.is_idle(), "not at rest: {:?}", rig.group);
        prop_assert_eq!(rig.group.next_deadline(), None);
    }
}
