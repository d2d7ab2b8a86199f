//! The table of live groups: memberships, waiting requests, the schedule of timers.
//!
//! Owns: carrying effects out, forgetting idle groups, taking over and resigning.

use super::Shared;
use crate::coordinator::limits::{GROUPS_MAX, WAITING_MAX};
use crate::coordinator::membership::{
    Effect, JoinRefusal, Joined, Membership, Moment, Synced, Ticket,
};
use crate::coordinator::state::StoredConsumerGroup;
use crate::coordinator::{ConsumerGroupError, ConsumerGroupName};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tidelog_model::Term;
use tokio::sync::oneshot;

/// How long an administrator's request waits for a group to settle.
const SETTLE_WAIT: Duration = Duration::from_secs(5);

type JoinReply = Result<Joined, JoinRefusal>;
type SyncReply = Result<Synced, ConsumerGroupError>;

/// Everything a coordinator keeps in memory.
#[derive(Default)]
pub(super) struct Table {
    /// The term in which this coordinator leads.
    pub(super) leading: Option<Term>,
    groups: BTreeMap<ConsumerGroupName, Slot>,
    /// When to look at which group. A group has at most one entry, never later than its next deadline.
    schedule: BTreeSet<(Moment, ConsumerGroupName)>,
    joins: BTreeMap<Ticket, oneshot::Sender<JoinReply>>,
    syncs: BTreeMap<Ticket, oneshot::Sender<SyncReply>>,
    next_ticket: u64,
    next_instance: u64,
}

struct Slot {
    membership: Membership,
    /// Tells this life of the group from an earlier one under the same name.
    instance: u64,
    wake: Option<Moment>,
}

impl Table {
    pub(super) fn next_deadline(&self) -> Option<Moment> {
        self.schedule.first().map(|(at, _)| *at)
    }

    pub(super) fn take_due(&mut self, now: Moment) -> Vec<ConsumerGroupName> {
        let mut due = Vec::new();
        while let Some((at, group)) = self.schedule.pop_first() {
            if at > now {
                self.schedule.insert((at, group));
                break;
            }
            if let Some(slot) = self.groups.get_mut(&group) {
                slot.wake = None;
            }
            due.push(group);
        }
        due
    }

    pub(super) fn is_same(&self, group: &ConsumerGroupName, instance: u64) -> bool {
        self.groups
            .get(group)
            .is_some_and(|slot| slot.instance == instance)
    }

    pub(super) fn get(&self, group: &ConsumerGroupName) -> Option<&Membership> {
        self.groups.get(group).map(|slot| &slot.membership)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&ConsumerGroupName, &Membership)> {
        self.groups
            .iter()
            .map(|(name, slot)| (name, &slot.membership))
    }

    pub(super) fn wait_join(
        &mut self,
    ) -> Result<(Ticket, oneshot::Receiver<JoinReply>), ConsumerGroupError> {
        let ticket = self.ticket()?;
        let (sender, receiver) = oneshot::channel();
        self.joins.insert(ticket, sender);
        Ok((ticket, receiver))
    }

    pub(super) fn wait_sync(
        &mut self,
    ) -> Result<(Ticket, oneshot::Receiver<SyncReply>), ConsumerGroupError> {
        let ticket = self.ticket()?;
        let (sender, receiver) = oneshot::channel();
        self.syncs.insert(ticket, sender);
        Ok((ticket, receiver))
    }

    fn ticket(&mut self) -> Result<Ticket, ConsumerGroupError> {
        if self.joins.len() + self.syncs.len() >= WAITING_MAX {
            return Err(ConsumerGroupError::Overloaded);
        }
        self.next_ticket += 1;
        Ok(Ticket(self.next_ticket))
    }

    fn insert(&mut self, group: ConsumerGroupName, membership: Membership) {
        self.next_instance += 1;
        let slot = Slot {
            membership,
            instance: self.next_instance,
            wake: None,
        };
        self.groups.insert(group, slot);
    }

    fn remove(&mut self, group: &ConsumerGroupName) -> Option<Slot> {
        let slot = self.groups.remove(group)?;
        if let Some(at) = slot.wake {
            self.schedule.remove(&(at, group.clone()));
        }
        Some(slot)
    }
}

impl Shared {
    /// Refuses when this coordinator does not lead.
    pub(super) fn check_leading(table: &Table) -> Result<(), ConsumerGroupError> {
        if table.leading.is_some() {
            Ok(())
        } else {
            Err(ConsumerGroupError::NotCoordinator)
        }
    }

    /// Brings the group into the table, from what is stored or new.
    pub(super) fn admit(
        &self,
        table: &mut Table,
        group: &ConsumerGroupName,
    ) -> Result<(), ConsumerGroupError> {
        if table.groups.contains_key(group) {
            return Ok(());
        }
        if table.groups.len() >= GROUPS_MAX {
            return Err(ConsumerGroupError::Overloaded);
        }
        let (config, now) = (self.config.membership, self.now());
        let restored = self.stored(group, |stored| {
            Membership::restore(group.clone(), config, stored, now)
        });
        table.insert(
            group.clone(),
            restored.unwrap_or_else(|| Membership::new(group.clone(), config)),
        );
        Ok(())
    }

    /// Reads one stored group.
    pub(super) fn stored<R>(
        &self,
        group: &ConsumerGroupName,
        read: impl FnOnce(&StoredConsumerGroup) -> R,
    ) -> Option<R> {
        let (mut read, mut result) = (Some(read), None);
        self.log.read(&mut |state| {
            if let (Some(stored), Some(read)) = (state.group(group), read.take()) {
                result = Some(read(stored));
            }
        });
        result
    }

    /// Gives `input` to the group's membership and carries out what follows. `None`: the group is not in the table.
    pub(super) fn with_group<R>(
        self: &Arc<Self>,
        table: &mut Table,
        group: &ConsumerGroupName,
        input: impl FnOnce(&mut Membership) -> (R, Vec<Effect>),
    ) -> Option<R> {
        let slot = table.groups.get_mut(group)?;
        let instance = slot.instance;
        let (result, effects) = input(&mut slot.membership);
        self.carry_out(table, group, instance, effects);
        self.settle(table, group);
        Some(result)
    }

    fn carry_out(
        self: &Arc<Self>,
        table: &mut Table,
        group: &ConsumerGroupName,
        instance: u64,
        effects: Vec<Effect>,
    ) {
        for effect in effects {
            // A receiver that is gone belongs to a client that is gone; its session decides what follows.
            match effect {
                Effect::AnswerJoin(ticket, reply) => {
                    if let Some(sender) = table.joins.remove(&ticket) {
                        let _ = sender.send(reply);
                    }
                }
                Effect::AnswerSync(ticket, reply) => {
                    if let Some(sender) = table.syncs.remove(&ticket) {
                        let _ = sender.send(reply);
                    }
                }
                Effect::Save(token, command) => {
                    let shared = Arc::clone(self);
                    let group = group.clone();
                    let save = async move { shared.save(group, instance, token, command).await };
                    self.tasks.spawn("coordinator save", save);
                }
            }
        }
    }

    /// Forgets the group when nothing of it is left, else sees to its next deadline.
    pub(super) fn settle(&self, table: &mut Table, group: &ConsumerGroupName) {
        let Some(slot) = table.groups.get_mut(group) else {
            return;
        };
        if slot.membership.is_idle() {
            table.remove(group);
            self.settled.notify_waiters();
            return;
        }
        let next = slot.membership.next_deadline();
        // A deadline that moved away is found out when the timer comes; only an earlier one needs a new entry.
        let earlier = match (next, slot.wake) {
            (Some(next), Some(wake)) => next < wake,
            (Some(_), None) => true,
            (None, _) => false,
        };
        if let (true, Some(next)) = (earlier, next) {
            let before = slot.wake.replace(next);
            if let Some(wake) = before {
                table.schedule.remove(&(wake, group.clone()));
            }
            table.schedule.insert((next, group.clone()));
            if table.next_deadline() == Some(next) {
                self.earlier.notify_one();
            }
        }
    }

    /// The placement group is led here: members of stored generations go on as they were.
    pub(super) fn take_over(self: &Arc<Self>, table: &mut Table) {
        let (config, now) = (self.config.membership, self.now());
        let mut restored = Vec::new();
        self.log.read(&mut |state| {
            restored = state
                .groups()
                .iter()
                .filter(|(_, stored)| !stored.members.is_empty())
                .map(|(name, stored)| {
                    (
                        name.clone(),
                        Membership::restore(name.clone(), config, stored, now),
                    )
                })
                .collect();
        });
        for (name, membership) in restored {
            table.insert(name.clone(), membership);
            self.settle(table, &name);
        }
    }

    /// Lets go of every group and answers what waits.
    pub(super) fn resign(self: &Arc<Self>, table: &mut Table) {
        table.leading = None;
        let names: Vec<ConsumerGroupName> = table.groups.keys().cloned().collect();
        for name in names {
            self.drop_group(table, &name, ConsumerGroupError::NotCoordinator);
        }
        table.schedule.clear();
        table.joins.clear();
        table.syncs.clear();
    }

    /// Waits, a few seconds at most, until the leaving of a group's last member is in the log, so that an administrator's
    /// request right after it finds the group empty.
    pub(super) async fn wait_settled(&self, group: &ConsumerGroupName) {
        let wait = async {
            loop {
                let settled = self.settled.notified();
                let leaving =
                    |membership: &Membership| membership.is_vacant() && !membership.is_idle();
                if !self.table.lock().get(group).is_some_and(leaving) {
                    return;
                }
                settled.await;
            }
        };
        // A save that takes longer shows as the answer of apply.
        let _ = tokio::time::timeout(SETTLE_WAIT, wait).await;
    }

    /// Lets go of one group and answers what waits for it.
    pub(super) fn drop_group(
        self: &Arc<Self>,
        table: &mut Table,
        group: &ConsumerGroupName,
        error: ConsumerGroupError,
    ) {
        if let Some(mut slot) = table.remove(group) {
            let effects = slot.membership.kill(error);
            self.carry_out(table, group, slot.instance, effects);
            self.settled.notify_waiters();
        }
    }

    /// Begins the group anew from what is stored.
    pub(super) fn reload(self: &Arc<Self>, table: &mut Table, group: &ConsumerGroupName) {
        self.drop_group(table, group, ConsumerGroupError::NotCoordinator);
        if self.admit(table, group).is_ok() {
            self.settle(table, group);
        }
    }
}
