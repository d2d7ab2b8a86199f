//! The rebalance itself: waiting for members, choosing protocol and leader, becoming stable or empty.
//!
//! Spec: docs/protocols/consumer-groups.md, "Rebalance"

use super::{Effect, Member, Membership, Moment, Phase, SaveToken, Saving, Ticket};
use crate::coordinator::state::{CoordinatorCommand, StoredMember};
use crate::coordinator::{ConsumerGroupError, MemberId};
use std::collections::BTreeMap;

impl Membership {
    /// The first member of an empty group came: wait a little for the others.
    pub(super) fn open_window(&mut self, now: Moment) {
        let delay = self.config.initial_delay_ms;
        let deadline = now.after(self.rebalance_timeout_ms().max(delay));
        let window = (delay > 0).then(|| now.after(delay));
        self.save_again = None;
        self.phase = Phase::Preparing { deadline, window };
        self.maybe_complete(now);
    }

    /// Another new member came while the window is open: it stays open a little longer, never past the deadline.
    pub(super) fn extend_window(&mut self, now: Moment) {
        if let Phase::Preparing {
            deadline,
            window: Some(window),
        } = &mut self.phase
        {
            *window = now.after(self.config.initial_delay_ms).min(*deadline);
        }
    }

    /// All members must join again.
    pub(super) fn prepare(&mut self, now: Moment) {
        for member in self.members.values_mut() {
            member.sync_by = None;
            if let Some(ticket) = member.sync.take() {
                // It did not time out while it waited; its session begins anew with the answer.
                member.touch(now);
                self.effects.push(Effect::AnswerSync(
                    ticket,
                    Err(ConsumerGroupError::RebalanceInProgress),
                ));
            }
        }
        self.phase = Phase::Preparing {
            deadline: now.after(self.rebalance_timeout_ms()),
            window: None,
        };
        self.maybe_complete(now);
    }

    fn rebalance_timeout_ms(&self) -> u64 {
        self.members
            .values()
            .map(|member| u64::from(member.rebalance_timeout_ms))
            .max()
            .unwrap_or(0)
    }

    /// Goes on when nobody is missing any more.
    pub(super) fn maybe_complete(&mut self, now: Moment) {
        let Phase::Preparing { window, .. } = self.phase else {
            return;
        };
        if self.members.is_empty() {
            self.become_empty();
        } else if window.is_none_or(|until| until <= now)
            && self.pending.is_empty()
            && self.members.values().all(|member| member.join.is_some())
        {
            self.complete(now);
        }
    }

    /// The deadline of the rebalance passed: it goes on without dynamic members that are missing. Static members stay
    /// until their session ends.
    pub(super) fn complete_without_missing(&mut self, now: Moment) {
        let missing = |member: &Member| member.join.is_none() && member.instance.is_none();
        let gone: Vec<MemberId> = self
            .members
            .iter()
            .filter(|(_, member)| missing(member))
            .map(|(id, _)| id.clone())
            .collect();
        for id in gone {
            self.remove_member(&id, ConsumerGroupError::UnknownMember);
        }
        if self.members.is_empty() {
            self.become_empty();
        } else if self.members.values().any(|member| member.join.is_some()) {
            self.complete(now);
        } else {
            let wait = self.rebalance_timeout_ms().max(1);
            self.phase = Phase::Preparing {
                deadline: now.after(wait),
                window: None,
            };
        }
    }

    fn complete(&mut self, now: Moment) {
        self.generation = self.generation.saturating_add(1);
        self.protocol = Self::choose_protocol(&self.members).unwrap_or_default();
        let mut joined: Vec<(u64, MemberId)> = Vec::new();
        for (id, member) in &self.members {
            if member.join.is_some() {
                joined.push((member.order, id.clone()));
            }
        }
        joined.sort();
        let leads = |id: &MemberId| joined.iter().any(|(_, other)| other == id);
        if !self.leader.as_ref().is_some_and(leads) {
            self.leader = joined.first().map(|(_, id)| id.clone());
        }
        self.phase = Phase::Completing { saving: None };
        let sync_by = now.after(self.rebalance_timeout_ms().max(1));
        for (_, id) in joined {
            let answer = self.joined(&id);
            let Some(member) = self.members.get_mut(&id) else {
                continue;
            };
            member.assignment = bytes::Bytes::new();
            member.sync_by = Some(sync_by);
            member.touch(now);
            if let Some(ticket) = member.join.take() {
                self.answer_join(ticket, answer);
            }
        }
    }

    fn become_empty(&mut self) {
        self.generation = self.generation.saturating_add(1);
        self.phase = Phase::Empty;
        self.leader = None;
        self.protocol.clear();
        self.save_empty();
    }

    pub(super) fn save_empty(&mut self) {
        self.save_again = None;
        let command = self.store_command(BTreeMap::new());
        self.save(Saving::Empty, command);
    }

    /// The leader's assignment is there: into the log with the generation.
    pub(super) fn save_generation(&mut self) {
        let store = |member: &Member| StoredMember {
            instance: member.instance.clone(),
            client_id: member.client_id.clone(),
            client_host: member.client_host.clone(),
            session_timeout_ms: member.session_timeout_ms,
            rebalance_timeout_ms: member.rebalance_timeout_ms,
            subscription: member.subscription(&self.protocol),
            assignment: member.assignment.clone(),
        };
        let members = self
            .members
            .iter()
            .map(|(id, member)| (id.clone(), store(member)))
            .collect();
        let command = self.store_command(members);
        let token = self.save(Saving::Generation, command);
        self.phase = Phase::Completing {
            saving: Some(token),
        };
    }

    fn store_command(&self, members: BTreeMap<MemberId, StoredMember>) -> CoordinatorCommand {
        CoordinatorCommand::StoreGeneration {
            group: self.group.clone(),
            generation: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            leader: self.leader.clone().unwrap_or_default(),
            members,
        }
    }

    /// What became of a command that an [`Effect::Save`] asked for.
    pub fn saved(
        &mut self,
        now: Moment,
        token: SaveToken,
        result: Result<(), ConsumerGroupError>,
    ) -> Vec<Effect> {
        let awaited = self.phase
            == (Phase::Completing {
                saving: Some(token),
            });
        match self.saving.remove(&token) {
            Some(Saving::Generation) if awaited => self.generation_saved(now, result),
            // Refused as old: this generation, or a later one, is in the log already.
            Some(Saving::Empty) if result == Err(ConsumerGroupError::IllegalGeneration) => {}
            Some(Saving::Empty) if result.is_err() && self.phase == Phase::Empty => {
                self.save_again = Some(now.after(self.config.save_retry_ms.max(1)));
            }
            // The group has gone on meanwhile.
            None | Some(Saving::Generation | Saving::Empty) => {}
            Some(Saving::Static {
                ticket,
                member,
                old,
                generation,
                skip,
            }) => match result {
                Ok(()) => self.static_saved(ticket, &member, old, generation, skip),
                Err(error) => {
                    self.refuse_join(ticket, error);
                    if self.phase == Phase::Stable {
                        self.prepare(now);
                    }
                }
            },
        }
        self.take_effects()
    }

    fn static_saved(
        &mut self,
        ticket: Ticket,
        member: &MemberId,
        old: MemberId,
        generation: i32,
        skip: bool,
    ) {
        let current = self.generation == generation && self.members.contains_key(member);
        if self.phase != Phase::Stable || !current {
            self.refuse_join(ticket, ConsumerGroupError::RebalanceInProgress);
            return;
        }
        let mut joined = self.joined(member);
        if joined.leader == *member {
            joined.skip_assignment = skip;
            if !skip {
                // An older client that is told it leads would assign again, so it is told its fenced id leads.
                joined.members.clear();
                joined.leader = old;
            }
        }
        self.answer_join(ticket, joined);
    }

    fn generation_saved(&mut self, now: Moment, result: Result<(), ConsumerGroupError>) {
        match result {
            Ok(()) => {
                self.phase = Phase::Stable;
                let waiting: Vec<MemberId> = self
                    .members
                    .iter()
                    .filter(|(_, member)| member.sync.is_some())
                    .map(|(id, _)| id.clone())
                    .collect();
                for id in waiting {
                    let answer = self.synced(&id);
                    let Some(member) = self.members.get_mut(&id) else {
                        continue;
                    };
                    member.touch(now);
                    if let Some(ticket) = member.sync.take() {
                        self.effects.push(Effect::AnswerSync(ticket, Ok(answer)));
                    }
                }
            }
            Err(error) => self.fail_generation(now, error),
        }
    }

    /// The generation cannot become stable: those who wait are told why, and all join again.
    pub(super) fn fail_generation(&mut self, now: Moment, error: ConsumerGroupError) {
        for member in self.members.values_mut() {
            if let Some(ticket) = member.sync.take() {
                member.touch(now);
                self.effects.push(Effect::AnswerSync(ticket, Err(error)));
            }
        }
        self.prepare(now);
    }

    /// The protocol that most members prefer among those that all offer; the first member's order breaks a tie.
    pub(super) fn choose_protocol(members: &BTreeMap<MemberId, Member>) -> Option<String> {
        let first = members.values().min_by_key(|member| member.order)?;
        let offers = |member: &Member, name: &str| {
            member.protocols.iter().any(|(offered, _)| offered == name)
        };
        let common: Vec<&str> = first
            .protocols
            .iter()
            .map(|(name, _)| name.as_str())
            .filter(|name| members.values().all(|member| offers(member, name)))
            .collect();
        let vote = |member: &Member| {
            let preferred = member
                .protocols
                .iter()
                .find(|(name, _)| common.contains(&name.as_str()));
            preferred.map(|(name, _)| name.clone())
        };
        let votes: Vec<String> = members.values().filter_map(vote).collect();
        let count = |name: &str| votes.iter().filter(|vote| *vote == name).count();
        // max_by_key keeps the last of equals, so the list is walked from its end.
        common
            .iter()
            .rev()
            .max_by_key(|name| count(name))
            .map(|name| (*name).to_owned())
    }

    /// Takes a member out; what waits for it is answered with `error`. The caller decides what follows.
    pub(super) fn remove_member(&mut self, id: &MemberId, error: ConsumerGroupError) {
        let Some(member) = self.members.remove(id) else {
            return;
        };
        if let Some(instance) = &member.instance
            && self.instances.get(instance) == Some(id)
        {
            self.instances.remove(instance);
        }
        if self.leader.as_ref() == Some(id) {
            self.leader = None;
        }
        if let Some(ticket) = member.join {
            self.refuse_join(ticket, error);
        }
        if let Some(ticket) = member.sync {
            self.effects.push(Effect::AnswerSync(ticket, Err(error)));
        }
    }

    /// Members went away: the others must share anew.
    pub(super) fn after_removal(&mut self, now: Moment) {
        match self.phase {
            Phase::Completing { .. } | Phase::Stable => self.prepare(now),
            Phase::Preparing { .. } => self.maybe_complete(now),
            Phase::Empty | Phase::Dead(_) => {}
        }
    }
}
