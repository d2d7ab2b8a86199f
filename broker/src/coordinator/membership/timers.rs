//! Time: sessions that end, rebalances that do not wait for ever.

use super::{Effect, Membership, Moment, Phase};
use crate::coordinator::{ConsumerGroupError, MemberId};

impl Membership {
    /// When [`Membership::timer`] has something to do next; `None` when nothing is waited for.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        let phase = match self.phase {
            Phase::Preparing { deadline, window } => {
                Some(window.map_or(deadline, |window| window.min(deadline)))
            }
            Phase::Empty | Phase::Completing { .. } | Phase::Stable | Phase::Dead(_) => None,
        };
        let sessions = self
            .members
            .values()
            .filter(|member| !member.waits())
            .map(|member| member.deadline);
        let syncs = self.members.values().filter_map(|member| member.sync_by);
        let pending = self.pending.values().copied();
        sessions
            .chain(syncs)
            .chain(pending)
            .chain(phase)
            .chain(self.save_again)
            .min()
    }

    /// Does what is due at `now`.
    pub fn timer(&mut self, now: Moment) -> Vec<Effect> {
        self.pending.retain(|_, deadline| *deadline > now);
        let silent: Vec<MemberId> = self
            .members
            .iter()
            .filter(|(_, member)| {
                let late = member.sync_by.is_some_and(|by| by <= now);
                late || (!member.waits() && member.deadline <= now)
            })
            .map(|(id, _)| id.clone())
            .collect();
        for id in &silent {
            self.remove_member(id, ConsumerGroupError::UnknownMember);
        }
        if !silent.is_empty() {
            self.after_removal(now);
        }
        if let Phase::Preparing { deadline, window } = &mut self.phase {
            if window.is_some_and(|until| until <= now) {
                *window = None;
            }
            if *deadline <= now {
                self.complete_without_missing(now);
            } else {
                self.maybe_complete(now);
            }
        }
        if self.phase == Phase::Empty && self.save_again.is_some_and(|at| at <= now) {
            self.save_empty();
        }
        self.take_effects()
    }
}
