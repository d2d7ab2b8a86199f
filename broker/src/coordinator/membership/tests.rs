//! Tests of the classic protocol: each rule by itself, then random lives of a group against its invariants.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::coordinator::state::{Committer, ConsumerGroupsState, CoordinatorOutcome};
use proptest::prelude::*;
use std::collections::BTreeSet;
use tidelog_model::TimestampMs;

mod joining;
mod keeping;
mod lives;
mod rebalancing;

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
