//! The classic consumer-group protocol as a pure state machine: one group, as its coordinator sees it.
//!
//! Owns: who is a member, who leads, the phases of a rebalance, sessions and their deadlines.
//! Not here: sockets, clocks, random ids, the log (`service` hands them in and carries the effects out), committed
//! offsets (`state`).
//! Spec: docs/protocols/consumer-groups.md
//!
//! Every input takes the time and returns effects. Each join and each sync carries a ticket, and each ticket is answered
//! exactly once. Invariants: the generation never goes back; one leader per generation; a group that is not empty
//! always has a next deadline, so it cannot be stuck (field report A29).

mod join;
mod rebalance;
mod sync;
#[cfg(test)]
mod tests;
mod timers;

use super::limits;
use super::state::{CoordinatorCommand, StoredConsumerGroup};
use super::{ConsumerGroupError, ConsumerGroupName, InstanceId, MemberId};
use bytes::Bytes;
use std::collections::BTreeMap;
use tidelog_env::{Mutant, mutant};

/// Milliseconds on the coordinator's own monotonic time line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Moment(pub u64);

impl Moment {
    /// This moment, `ms` later.
    #[must_use]
    pub const fn after(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }
}

/// Names one waiting join or sync request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Names one command on its way into the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SaveToken(pub u64);

/// Tunables of the classic protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MembershipConfig {
    /// How long an empty group waits for more members after each new one (`group.initial.rebalance.delay.ms`).
    pub initial_delay_ms: u64,
    /// Shortest session timeout (`group.min.session.timeout.ms`).
    pub session_timeout_ms_min: u32,
    /// Longest session timeout (`group.max.session.timeout.ms`); also caps rebalance timeouts.
    pub session_timeout_ms_max: u32,
    /// Most members (`group.max.size`), at most [`limits::MEMBERS_MAX`].
    pub members_max: usize,
    /// Pause before an empty generation that could not be saved is tried again.
    pub save_retry_ms: u64,
}

impl Default for MembershipConfig {
    /// Kafka's bounds; the initial delay is short, as for a development broker.
    fn default() -> Self {
        Self {
            initial_delay_ms: 500,
            session_timeout_ms_min: 6_000,
            session_timeout_ms_max: 1_800_000,
            members_max: limits::MEMBERS_MAX,
            save_retry_ms: 1_000,
        }
    }
}

/// A member asks to be part of the next generation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JoinRequest {
    /// Its id; empty when it has none yet.
    pub member: MemberId,
    /// Its static id.
    pub instance: Option<InstanceId>,
    /// What the client calls itself.
    pub client_id: String,
    /// Where it connects from.
    pub client_host: String,
    /// Silence after which it counts as dead.
    pub session_timeout_ms: u32,
    /// How long a rebalance waits for it.
    pub rebalance_timeout_ms: u32,
    /// `consumer`, `connect`, …
    pub protocol_type: String,
    /// Protocols (assignors) it can use, preferred first, each with its subscription.
    pub protocols: Vec<(String, Bytes)>,
    /// A new member is first given an id and must join again with it (JoinGroup 4 and later).
    pub require_known_member: bool,
    /// The client understands "you lead, but assign nothing" (JoinGroup 9 and later).
    pub understands_skip_assignment: bool,
}

/// The answer to a join: the member is in this generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// The generation.
    pub generation: i32,
    /// The protocol type.
    pub protocol_type: String,
    /// The protocol chosen.
    pub protocol: String,
    /// The leader.
    pub leader: MemberId,
    /// The member's own id.
    pub member: MemberId,
    /// For the leader: all members, in the order they came. Empty for the others.
    pub members: Vec<JoinedMember>,
    /// The leader need not assign again: its old assignment stands.
    pub skip_assignment: bool,
}

/// What the leader learns of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinedMember {
    /// Its id.
    pub member: MemberId,
    /// Its static id.
    pub instance: Option<InstanceId>,
    /// Its subscription in the chosen protocol's encoding.
    pub subscription: Bytes,
}

/// Why a join has no generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JoinRefusal {
    /// Join again with this id.
    MemberIdRequired(MemberId),
    /// Refused.
    Error(ConsumerGroupError),
}

/// The leader brings assignments, the others ask for theirs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SyncRequest {
    /// The member.
    pub member: MemberId,
    /// Its static id.
    pub instance: Option<InstanceId>,
    /// The generation it joined.
    pub generation: i32,
    /// The protocol type it believes in (SyncGroup 5 and later).
    pub protocol_type: Option<String>,
    /// The protocol it believes in.
    pub protocol: Option<String>,
    /// From the leader: what each member gets.
    pub assignments: Vec<(MemberId, Bytes)>,
}

/// The answer to a sync.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Synced {
    /// The protocol type.
    pub protocol_type: String,
    /// The protocol chosen.
    pub protocol: String,
    /// What the leader assigned to the member.
    pub assignment: Bytes,
}

/// What the shell has to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Answer a join.
    AnswerJoin(Ticket, Result<Joined, JoinRefusal>),
    /// Answer a sync.
    AnswerSync(Ticket, Result<Synced, ConsumerGroupError>),
    /// Propose the command, then tell [`Membership::saved`] what became of it.
    Save(SaveToken, CoordinatorCommand),
}

/// Where a group is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// No members.
    Empty,
    /// Waiting until all members have joined again, at most until `deadline`.
    Preparing {
        /// When the rebalance goes on without those who are missing.
        deadline: Moment,
        /// A group that was empty waits until then for more members.
        window: Option<Moment>,
    },
    /// All have joined; waiting for the leader's assignment, and then for the log.
    Completing {
        /// The assignment is on its way into the log.
        saving: Option<SaveToken>,
    },
    /// Members have their assignments.
    Stable,
    /// The coordinator has let go of the group; nothing is accepted.
    Dead(ConsumerGroupError),
}

impl Phase {
    /// Kafka's name of the phase.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::Preparing { .. } => "PreparingRebalance",
            Self::Completing { .. } => "CompletingRebalance",
            Self::Stable => "Stable",
            Self::Dead(_) => "Dead",
        }
    }
}

/// A member, as the coordinator sees it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its static id.
    pub instance: Option<InstanceId>,
    /// What the client calls itself.
    pub client_id: String,
    /// Where it connects from.
    pub client_host: String,
    /// The protocols it offers.
    pub protocols: Vec<(String, Bytes)>,
    /// What it was assigned.
    pub assignment: Bytes,
    session_timeout_ms: u32,
    rebalance_timeout_ms: u32,
    /// Members are listed to the leader in the order they came.
    order: u64,
    /// When its session ends; does not count while a request of it waits.
    deadline: Moment,
    /// By when it must have asked for its assignment.
    sync_by: Option<Moment>,
    join: Option<Ticket>,
    sync: Option<Ticket>,
}

impl Member {
    fn subscription(&self, protocol: &str) -> Bytes {
        let found = self.protocols.iter().find(|(name, _)| name == protocol);
        found.map(|(_, bytes)| bytes.clone()).unwrap_or_default()
    }

    /// Bytes it takes in the command that stores its generation, besides subscription and assignment.
    fn name_bytes(&self, id: &MemberId) -> usize {
        name_bytes(
            id,
            self.instance.as_ref(),
            &self.client_id,
            &self.client_host,
        )
    }

    /// The same with everything it offers: the chosen protocol's part is no more than that.
    fn bytes(&self, id: &MemberId) -> usize {
        self.name_bytes(id) + protocol_bytes(&self.protocols)
    }

    const fn waits(&self) -> bool {
        self.join.is_some() || self.sync.is_some()
    }

    fn touch(&mut self, now: Moment) {
        self.deadline = now.after(u64::from(self.session_timeout_ms));
    }
}

fn name_bytes(
    id: &MemberId,
    instance: Option<&InstanceId>,
    client_id: &str,
    client_host: &str,
) -> usize {
    let instance = instance.map_or(0, |instance| 4 + instance.as_str().len());
    limits::MEMBER_FIXED_BYTES + id.as_str().len() + instance + client_id.len() + client_host.len()
}

fn protocol_bytes(protocols: &[(String, Bytes)]) -> usize {
    protocols
        .iter()
        .map(|(name, bytes)| name.len() + bytes.len())
        .sum()
}

/// What is on its way into the log.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Saving {
    /// The generation of the current completing phase.
    Generation,
    /// The last member has left.
    Empty,
    /// A static member came back; its join waits.
    Static {
        ticket: Ticket,
        member: MemberId,
        old: MemberId,
        generation: i32,
        skip: bool,
    },
}

/// One consumer group at its coordinator.
#[derive(Debug, Clone)]
pub struct Membership {
    group: ConsumerGroupName,
    config: MembershipConfig,
    phase: Phase,
    generation: i32,
    protocol_type: String,
    protocol: String,
    leader: Option<MemberId>,
    members: BTreeMap<MemberId, Member>,
    instances: BTreeMap<InstanceId, MemberId>,
    /// Ids given out that have not joined yet, with the end of their session.
    pending: BTreeMap<MemberId, Moment>,
    saving: BTreeMap<SaveToken, Saving>,
    /// An empty generation could not be saved; try again then.
    save_again: Option<Moment>,
    next_order: u64,
    next_token: u64,
    effects: Vec<Effect>,
}

impl Membership {
    /// A group without members.
    #[must_use]
    pub const fn new(group: ConsumerGroupName, config: MembershipConfig) -> Self {
        Self {
            group,
            config,
            phase: Phase::Empty,
            generation: 0,
            protocol_type: String::new(),
            protocol: String::new(),
            leader: None,
            members: BTreeMap::new(),
            instances: BTreeMap::new(),
            pending: BTreeMap::new(),
            saving: BTreeMap::new(),
            save_again: None,
            next_order: 0,
            next_token: 0,
            effects: Vec::new(),
        }
    }

    /// The group as it was stored, after a restart or a change of coordinator: members of its stable generation go on
    /// with the same generation, each with a fresh session, and no rebalance.
    #[must_use]
    pub fn restore(
        group: ConsumerGroupName,
        config: MembershipConfig,
        stored: &StoredConsumerGroup,
        now: Moment,
    ) -> Self {
        let mut membership = Self::new(group, config);
        membership.generation = stored.generation;
        if stored.members.is_empty() {
            return membership;
        }
        membership.phase = Phase::Stable;
        membership.protocol_type.clone_from(&stored.protocol_type);
        membership.protocol.clone_from(&stored.protocol);
        membership.leader = stored
            .members
            .contains_key(&stored.leader)
            .then(|| stored.leader.clone());
        for (id, member) in &stored.members {
            if let Some(instance) = &member.instance {
                membership.instances.insert(instance.clone(), id.clone());
            }
            let restored = Member {
                instance: member.instance.clone(),
                client_id: member.client_id.clone(),
                client_host: member.client_host.clone(),
                protocols: vec![(stored.protocol.clone(), member.subscription.clone())],
                assignment: member.assignment.clone(),
                session_timeout_ms: member.session_timeout_ms,
                rebalance_timeout_ms: member.rebalance_timeout_ms,
                order: membership.next_order,
                deadline: now.after(u64::from(member.session_timeout_ms)),
                sync_by: None,
                join: None,
                sync: None,
            };
            membership.next_order += 1;
            membership.members.insert(id.clone(), restored);
        }
        membership
    }

    /// Where the group is in its life.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// The current generation.
    #[must_use]
    pub const fn generation(&self) -> i32 {
        self.generation
    }

    /// The protocol type; empty when the group is.
    #[must_use]
    pub fn protocol_type(&self) -> &str {
        &self.protocol_type
    }

    /// The protocol of the current generation.
    #[must_use]
    pub fn protocol(&self) -> &str {
        &self.protocol
    }

    /// Members now, by id.
    #[must_use]
    pub const fn members(&self) -> &BTreeMap<MemberId, Member> {
        &self.members
    }

    /// Whether nobody is, or is about to become, a member.
    #[must_use]
    pub fn is_vacant(&self) -> bool {
        self.members.is_empty() && self.pending.is_empty()
    }

    /// Whether the shell may forget the group: it is vacant and nothing of it is on its way into the log.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.is_vacant() && self.saving.is_empty() && self.save_again.is_none()
    }

    /// Lets go of the group: answers everything that waits with `error` and accepts nothing any more.
    pub fn kill(&mut self, error: ConsumerGroupError) -> Vec<Effect> {
        let ids: Vec<MemberId> = self.members.keys().cloned().collect();
        for id in ids {
            self.remove_member(&id, error);
        }
        for (_, saving) in std::mem::take(&mut self.saving) {
            if let Saving::Static { ticket, .. } = saving {
                self.refuse_join(ticket, error);
            }
        }
        self.pending.clear();
        self.save_again = None;
        self.phase = Phase::Dead(error);
        self.take_effects()
    }

    /// Whether a commit by this member may go to the log, which checks again; counts as a heartbeat.
    ///
    /// # Errors
    /// Kafka's reason.
    pub fn check_commit(
        &mut self,
        now: Moment,
        member: &MemberId,
        instance: Option<&InstanceId>,
        generation: i32,
    ) -> Result<(), ConsumerGroupError> {
        if let Phase::Dead(error) = self.phase {
            return Err(error);
        }
        if mutant(Mutant::GenerationNotChecked) {
            return Ok(());
        }
        self.validate(member, instance)?;
        if generation != self.generation {
            return Err(ConsumerGroupError::IllegalGeneration);
        }
        if matches!(self.phase, Phase::Completing { .. }) {
            return Err(ConsumerGroupError::RebalanceInProgress);
        }
        if let Some(member) = self.members.get_mut(member) {
            member.touch(now);
        }
        Ok(())
    }

    fn validate(
        &self,
        member: &MemberId,
        instance: Option<&InstanceId>,
    ) -> Result<(), ConsumerGroupError> {
        if let Some(instance) = instance {
            match self.instances.get(instance) {
                None => return Err(ConsumerGroupError::UnknownMember),
                Some(owner) if owner != member => return Err(ConsumerGroupError::FencedInstance),
                Some(_) => {}
            }
        }
        if self.members.contains_key(member) {
            Ok(())
        } else {
            Err(ConsumerGroupError::UnknownMember)
        }
    }

    fn answer_join(&mut self, ticket: Ticket, joined: Joined) {
        self.effects.push(Effect::AnswerJoin(ticket, Ok(joined)));
    }

    fn refuse_join(&mut self, ticket: Ticket, error: ConsumerGroupError) {
        self.effects
            .push(Effect::AnswerJoin(ticket, Err(JoinRefusal::Error(error))));
    }

    fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    fn save(&mut self, saving: Saving, command: CoordinatorCommand) -> SaveToken {
        let token = SaveToken(self.next_token);
        self.next_token += 1;
        self.saving.insert(token, saving);
        self.effects.push(Effect::Save(token, command));
        token
    }
}
