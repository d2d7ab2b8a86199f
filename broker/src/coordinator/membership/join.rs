//! Joining: new members, members that come again, static members that come back.
//!
//! Spec: docs/protocols/consumer-groups.md, "Join"

use super::{Effect, name_bytes, protocol_bytes};
use super::{
    JoinRefusal, JoinRequest, Joined, JoinedMember, Member, Membership, Moment, Phase, Saving,
    Ticket,
};
use crate::coordinator::limits::{
    GENERATION_BYTES_MAX, GENERATION_HEAD_BYTES_MAX, MEMBER_BYTES_MAX, PROTOCOLS_MAX,
};
use crate::coordinator::state::CoordinatorCommand;
use crate::coordinator::{ConsumerGroupError, InstanceId, MemberId};

impl Membership {
    /// A join request. `fresh` is a new unique member id, used when the request needs one.
    pub fn join(
        &mut self,
        now: Moment,
        ticket: Ticket,
        request: JoinRequest,
        fresh: MemberId,
    ) -> Vec<Effect> {
        if let Err(refusal) = self.try_join(now, ticket, request, fresh) {
            self.effects.push(Effect::AnswerJoin(ticket, Err(refusal)));
        }
        self.take_effects()
    }

    fn try_join(
        &mut self,
        now: Moment,
        ticket: Ticket,
        request: JoinRequest,
        fresh: MemberId,
    ) -> Result<(), JoinRefusal> {
        self.check_join(&request, &fresh)
            .map_err(JoinRefusal::Error)?;
        if request.member.is_empty() {
            return self.join_new(now, ticket, request, fresh);
        }
        let id = request.member.clone();
        if request.instance.is_none() && self.pending.remove(&id).is_some() {
            self.add_member(now, ticket, id, request);
            return Ok(());
        }
        self.validate(&id, request.instance.as_ref())
            .map_err(JoinRefusal::Error)?;
        self.join_again(now, ticket, id, request);
        Ok(())
    }

    fn check_join(
        &self,
        request: &JoinRequest,
        fresh: &MemberId,
    ) -> Result<(), ConsumerGroupError> {
        if let Phase::Dead(error) = self.phase {
            return Err(error);
        }
        let timeout = request.session_timeout_ms;
        if timeout < self.config.session_timeout_ms_min
            || timeout > self.config.session_timeout_ms_max
        {
            return Err(ConsumerGroupError::InvalidSessionTimeout);
        }
        if request.protocols.is_empty() || request.protocol_type.is_empty() {
            return Err(ConsumerGroupError::InconsistentProtocol);
        }
        let bytes = protocol_bytes(&request.protocols);
        if bytes > MEMBER_BYTES_MAX || request.protocols.len() > PROTOCOLS_MAX {
            return Err(ConsumerGroupError::InvalidRequest);
        }
        let replaced = request
            .instance
            .as_ref()
            .and_then(|instance| self.instances.get(instance));
        let own = replaced.unwrap_or(&request.member);
        let others = || self.members.iter().filter(|(id, _)| *id != own);
        if others().next().is_none() {
            return Ok(());
        }
        let common = |name: &str| {
            others().all(|(_, member)| member.protocols.iter().any(|(offered, _)| offered == name))
        };
        if request.protocol_type != self.protocol_type
            || !request.protocols.iter().any(|(name, _)| common(name))
        {
            return Err(ConsumerGroupError::InconsistentProtocol);
        }
        // A static member that comes back gets a new id.
        let id = if request.member.is_empty() {
            fresh
        } else {
            &request.member
        };
        let names = name_bytes(
            id,
            request.instance.as_ref(),
            &request.client_id,
            &request.client_host,
        );
        let members: usize = others().map(|(id, member)| member.bytes(id)).sum();
        if GENERATION_HEAD_BYTES_MAX + members + names + bytes > GENERATION_BYTES_MAX {
            return Err(ConsumerGroupError::GroupFull);
        }
        Ok(())
    }

    fn join_new(
        &mut self,
        now: Moment,
        ticket: Ticket,
        request: JoinRequest,
        fresh: MemberId,
    ) -> Result<(), JoinRefusal> {
        let owner = request
            .instance
            .as_ref()
            .and_then(|instance| self.instances.get(instance))
            .cloned();
        if let (Some(instance), Some(old)) = (request.instance.clone(), owner) {
            self.replace_static(now, ticket, request, instance, &old, fresh);
            return Ok(());
        }
        if self.members.len() + self.pending.len() >= self.config.members_max {
            return Err(JoinRefusal::Error(ConsumerGroupError::GroupFull));
        }
        if request.require_known_member && request.instance.is_none() {
            self.pending.insert(
                fresh.clone(),
                now.after(u64::from(request.session_timeout_ms)),
            );
            return Err(JoinRefusal::MemberIdRequired(fresh));
        }
        self.add_member(now, ticket, fresh, request);
        Ok(())
    }

    fn join_again(&mut self, now: Moment, ticket: Ticket, id: MemberId, request: JoinRequest) {
        let same = self
            .members
            .get(&id)
            .is_some_and(|member| member.protocols == request.protocols);
        let leads = self.leader.as_ref() == Some(&id);
        let goes_on = match self.phase {
            // The answer to its first join was lost.
            Phase::Completing { .. } => same,
            // The leader joins again to have partitions assigned anew.
            Phase::Stable => same && !leads,
            Phase::Empty | Phase::Preparing { .. } | Phase::Dead(_) => false,
        };
        if goes_on {
            if let Some(member) = self.members.get_mut(&id) {
                member.touch(now);
            }
            let joined = self.joined(&id);
            self.answer_join(ticket, joined);
            return;
        }
        self.update_member(now, ticket, &id, request);
        match self.phase {
            Phase::Preparing { .. } => self.maybe_complete(now),
            _ => self.prepare(now),
        }
    }

    fn add_member(&mut self, now: Moment, ticket: Ticket, id: MemberId, request: JoinRequest) {
        if self.members.is_empty() {
            self.protocol_type.clone_from(&request.protocol_type);
        }
        if let Some(instance) = &request.instance {
            self.instances.insert(instance.clone(), id.clone());
        }
        let member = Member {
            instance: request.instance,
            client_id: request.client_id,
            client_host: request.client_host,
            protocols: request.protocols,
            assignment: bytes::Bytes::new(),
            session_timeout_ms: request.session_timeout_ms,
            rebalance_timeout_ms: request
                .rebalance_timeout_ms
                .min(self.config.session_timeout_ms_max),
            order: self.next_order,
            deadline: now.after(u64::from(request.session_timeout_ms)),
            sync_by: None,
            join: Some(ticket),
            sync: None,
        };
        self.next_order += 1;
        self.members.insert(id, member);
        match self.phase {
            Phase::Empty => self.open_window(now),
            Phase::Preparing { .. } => {
                self.extend_window(now);
                self.maybe_complete(now);
            }
            Phase::Completing { .. } | Phase::Stable | Phase::Dead(_) => self.prepare(now),
        }
    }

    fn update_member(&mut self, now: Moment, ticket: Ticket, id: &MemberId, request: JoinRequest) {
        let rebalance_timeout_ms_max = self.config.session_timeout_ms_max;
        let alone = self.members.len() == 1;
        let Some(member) = self.members.get_mut(id) else {
            return;
        };
        member.client_id = request.client_id;
        member.client_host = request.client_host;
        member.protocols = request.protocols;
        member.session_timeout_ms = request.session_timeout_ms;
        member.rebalance_timeout_ms = request.rebalance_timeout_ms.min(rebalance_timeout_ms_max);
        member.sync_by = None;
        member.touch(now);
        let waiting = (member.join.replace(ticket), member.sync.take());
        if alone {
            self.protocol_type = request.protocol_type;
        }
        // A client sends a second request only when it has given the first one up.
        if let Some(earlier) = waiting.0 {
            self.refuse_join(earlier, ConsumerGroupError::RebalanceInProgress);
        }
        if let Some(earlier) = waiting.1 {
            self.effects.push(Effect::AnswerSync(
                earlier,
                Err(ConsumerGroupError::RebalanceInProgress),
            ));
        }
    }

    /// A static member came back without its member id: the old id is fenced. In a stable group with an unchanged
    /// subscription it takes its assignment over without a rebalance.
    fn replace_static(
        &mut self,
        now: Moment,
        ticket: Ticket,
        request: JoinRequest,
        instance: InstanceId,
        old: &MemberId,
        new: MemberId,
    ) {
        let Some(mut member) = self.members.remove(old) else {
            return;
        };
        if let Some(waiting) = member.join.take() {
            self.refuse_join(waiting, ConsumerGroupError::FencedInstance);
        }
        if let Some(waiting) = member.sync.take() {
            self.effects.push(Effect::AnswerSync(
                waiting,
                Err(ConsumerGroupError::FencedInstance),
            ));
        }
        let subscription = request
            .protocols
            .iter()
            .find(|(name, _)| *name == self.protocol);
        let unchanged =
            subscription.is_some_and(|(_, bytes)| *bytes == member.subscription(&self.protocol));
        self.members.insert(new.clone(), member);
        self.instances.insert(instance.clone(), new.clone());
        if self.leader.as_ref() == Some(old) {
            self.leader = Some(new.clone());
        }
        let skip = request.understands_skip_assignment;
        let protocols = request.protocols.clone();
        if !(unchanged && self.phase == Phase::Stable && self.still_chosen(&new, &protocols)) {
            self.update_member(now, ticket, &new, request);
            match self.phase {
                Phase::Preparing { .. } => self.maybe_complete(now),
                _ => self.prepare(now),
            }
            return;
        }
        self.update_member(now, ticket, &new, request);
        if let Some(member) = self.members.get_mut(&new) {
            member.join = None;
        }
        let command = CoordinatorCommand::ReplaceStaticMember {
            group: self.group.clone(),
            generation: self.generation,
            instance,
            old: old.clone(),
            new: new.clone(),
        };
        let saving = Saving::Static {
            ticket,
            member: new,
            old: old.clone(),
            generation: self.generation,
            skip,
        };
        self.save(saving, command);
    }

    /// Whether the group would choose its present protocol again if `id` offered `protocols`.
    fn still_chosen(&self, id: &MemberId, protocols: &[(String, bytes::Bytes)]) -> bool {
        let mut offers = self.members.clone();
        if let Some(member) = offers.get_mut(id) {
            member.protocols = protocols.to_vec();
        }
        Self::choose_protocol(&offers).as_deref() == Some(self.protocol.as_str())
    }

    /// The answer for a member of the current generation.
    pub(super) fn joined(&self, id: &MemberId) -> Joined {
        let leads = self.leader.as_ref() == Some(id);
        let mut listed: Vec<_> = self.members.iter().filter(|_| leads).collect();
        listed.sort_by_key(|(_, member)| member.order);
        let list = |(id, member): (&MemberId, &Member)| JoinedMember {
            member: id.clone(),
            instance: member.instance.clone(),
            subscription: member.subscription(&self.protocol),
        };
        Joined {
            generation: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            leader: self.leader.clone().unwrap_or_default(),
            member: id.clone(),
            members: listed.into_iter().map(list).collect(),
            skip_assignment: false,
        }
    }
}
