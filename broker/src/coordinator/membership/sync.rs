//! Sync, heartbeat and leave.
//!
//! Spec: docs/protocols/consumer-groups.md, "Sync", "Heartbeat", "Leave"

use super::{Effect, Membership, Moment, Phase, SyncRequest, Synced, Ticket};
use crate::coordinator::limits::{GENERATION_BYTES_MAX, GENERATION_HEAD_BYTES_MAX};
use crate::coordinator::{ConsumerGroupError, InstanceId, MemberId};
use std::collections::BTreeMap;

impl Membership {
    /// A sync request.
    pub fn sync(&mut self, now: Moment, ticket: Ticket, request: SyncRequest) -> Vec<Effect> {
        if let Err(error) = self.try_sync(now, ticket, request) {
            self.effects.push(Effect::AnswerSync(ticket, Err(error)));
        }
        self.take_effects()
    }

    fn try_sync(
        &mut self,
        now: Moment,
        ticket: Ticket,
        request: SyncRequest,
    ) -> Result<(), ConsumerGroupError> {
        if let Phase::Dead(error) = self.phase {
            return Err(error);
        }
        self.validate(&request.member, request.instance.as_ref())?;
        if request.generation != self.generation {
            return Err(ConsumerGroupError::IllegalGeneration);
        }
        let differs =
            |asked: &Option<String>, ours: &str| asked.as_ref().is_some_and(|asked| asked != ours);
        if differs(&request.protocol_type, &self.protocol_type)
            || differs(&request.protocol, &self.protocol)
        {
            return Err(ConsumerGroupError::InconsistentProtocol);
        }
        let id = request.member;
        let stable = match self.phase {
            Phase::Empty => return Err(ConsumerGroupError::UnknownMember),
            Phase::Dead(error) => return Err(error),
            Phase::Preparing { .. } => return Err(ConsumerGroupError::RebalanceInProgress),
            Phase::Completing { .. } => false,
            Phase::Stable => true,
        };
        let Some(member) = self.members.get_mut(&id) else {
            return Err(ConsumerGroupError::UnknownMember);
        };
        member.touch(now);
        member.sync_by = None;
        if stable {
            let answer = self.synced(&id);
            self.effects.push(Effect::AnswerSync(ticket, Ok(answer)));
            return Ok(());
        }
        if let Some(earlier) = member.sync.replace(ticket) {
            self.effects.push(Effect::AnswerSync(
                earlier,
                Err(ConsumerGroupError::RebalanceInProgress),
            ));
        }
        if self.phase == (Phase::Completing { saving: None }) && self.leader.as_ref() == Some(&id) {
            self.assign(now, request.assignments);
        }
        Ok(())
    }

    /// Most bytes that the command of this generation takes besides the assignments.
    pub(super) fn generation_bytes(&self) -> usize {
        let members: usize = self
            .members
            .iter()
            .map(|(id, member)| member.name_bytes(id) + member.subscription(&self.protocol).len())
            .sum();
        GENERATION_HEAD_BYTES_MAX + members
    }

    fn assign(&mut self, now: Moment, assignments: Vec<(MemberId, bytes::Bytes)>) {
        let assigned: usize = assignments.iter().map(|(_, bytes)| bytes.len()).sum();
        if self.generation_bytes().saturating_add(assigned) > GENERATION_BYTES_MAX {
            self.fail_generation(now, ConsumerGroupError::AssignmentTooLarge);
            return;
        }
        let mut assignments: BTreeMap<MemberId, bytes::Bytes> = assignments.into_iter().collect();
        // Whom the leader leaves out gets nothing, not what it had in an earlier generation.
        for (id, member) in &mut self.members {
            member.assignment = assignments.remove(id).unwrap_or_default();
        }
        self.save_generation();
    }

    /// The answer for a member of the current generation.
    pub(super) fn synced(&self, id: &MemberId) -> Synced {
        Synced {
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            assignment: self
                .members
                .get(id)
                .map(|member| member.assignment.clone())
                .unwrap_or_default(),
        }
    }

    /// A heartbeat: the member lives.
    ///
    /// # Errors
    /// Kafka's reason; on [`ConsumerGroupError::RebalanceInProgress`] the member was heard and must join again.
    pub fn heartbeat(
        &mut self,
        now: Moment,
        member: &MemberId,
        instance: Option<&InstanceId>,
        generation: i32,
    ) -> Result<(), ConsumerGroupError> {
        if let Phase::Dead(error) = self.phase {
            return Err(error);
        }
        self.validate(member, instance)?;
        if generation != self.generation {
            return Err(ConsumerGroupError::IllegalGeneration);
        }
        if let Some(member) = self.members.get_mut(member) {
            member.touch(now);
        }
        match self.phase {
            Phase::Preparing { .. } => Err(ConsumerGroupError::RebalanceInProgress),
            Phase::Empty => Err(ConsumerGroupError::UnknownMember),
            Phase::Completing { .. } | Phase::Stable => Ok(()),
            Phase::Dead(error) => Err(error),
        }
    }

    /// Members leave; one result for each, in order. A static member may be named by its instance alone.
    pub fn leave(
        &mut self,
        now: Moment,
        leaving: &[(MemberId, Option<InstanceId>)],
    ) -> (Vec<Result<(), ConsumerGroupError>>, Vec<Effect>) {
        let before = self.members.len();
        let results = leaving
            .iter()
            .map(|(member, instance)| self.leave_one(member, instance.as_ref()))
            .collect();
        // An id that was only given out, and leaves, can be what a rebalance waits for; a stable group does not care.
        if self.members.len() < before || matches!(self.phase, Phase::Preparing { .. }) {
            self.after_removal(now);
        }
        (results, self.take_effects())
    }

    fn leave_one(
        &mut self,
        member: &MemberId,
        instance: Option<&InstanceId>,
    ) -> Result<(), ConsumerGroupError> {
        if let Phase::Dead(error) = self.phase {
            return Err(error);
        }
        let id = match instance.and_then(|instance| self.instances.get(instance)) {
            Some(owner) if member.is_empty() => owner.clone(),
            _ => member.clone(),
        };
        if instance.is_none() && self.pending.remove(&id).is_some() {
            return Ok(());
        }
        self.validate(&id, instance)?;
        self.remove_member(&id, ConsumerGroupError::UnknownMember);
        Ok(())
    }
}
