//! Leadership over the brokers: spread over them while they run, handed over before one stops.
//!
//! Owns: when leadership moves to the preferred replica, or away from a broker that something is in the way of; the hand-over of a stop.
//! Not here: which replica is preferred (`metadata`), what is in the way of whom (`fitness`), elections, and how leadership is transferred (`placement`).
//! Spec: docs/protocols/fitness.md (when it goes, and to whom)

pub(super) mod told;

use super::fitness::Fit;
use super::identity::Identity;
use crate::metadata::MetadataMachine;
use crate::placement::{Group, StateMachine};
use crate::router::Fitness;
use std::collections::BTreeMap;
use std::time::Duration;
use tidelog_env::Tasks;
use tidelog_model::{PlacementGroupId, RaftNodeId};
use tokio::time::{Instant, timeout_at};

/// How often a leader looks whether another replica is preferred.
const TICK: Duration = Duration::from_secs(1);
/// A preferred replica must have kept up for so many ticks: a broker that just came back still warms up, or goes again.
const TICKS_STEADY: u32 = 3;
/// Pause after a transfer, whatever became of it.
const TRANSFER_PAUSE: Duration = Duration::from_secs(10);
/// At most that long, doubled each time that leadership came back or never went.
const TRANSFER_PAUSE_MAX: Duration = Duration::from_secs(300);
/// Longest pause between two attempts to give leadership away; the first is a tick, each is twice the one before.
const YIELD_PAUSE_MAX: Duration = Duration::from_secs(300);
/// Attempts are counted anew when there was none for so long: longer than any pause, so that no circle begins anew by its own pauses.
const YIELD_FORGET: Duration = Duration::from_secs(900);
/// How long a stop waits for others to lead: a transfer takes some round trips, and whoever is left elects anyway.
const HAND_OVER_WITHIN: Duration = Duration::from_secs(5);
/// How long a stop waits for a replica that could take over: one that was started a moment ago, or is a little behind under load. Without
/// one clients wait for an election.
const HEIR_WITHIN: Duration = Duration::from_secs(1);
/// Pause between two looks for one.
const HEIR_LOOK: Duration = Duration::from_millis(50);

/// Whether `node` is close behind: within what a transfer waits for.
fn keeps_up(caught_up: &BTreeMap<RaftNodeId, bool>, node: RaftNodeId) -> bool {
    caught_up.get(&node).copied().unwrap_or(false)
}

/// The Raft node that should lead the group, if it is another one than this broker.
fn wanted(
    id: PlacementGroupId,
    metadata: &Group<MetadataMachine>,
    own: Identity,
) -> Option<RaftNodeId> {
    metadata.read(|machine| {
        let image = machine.image();
        let node = image
            .preferred_leader(id)
            .filter(|node| *node != own.node)?;
        image.members().get(&node).map(|member| member.raft_node)
    })
}

/// Moves leadership of `group` to its preferred replica whenever this broker leads and that one has kept up for some time, unless something is in the way of
/// that one's leading.
pub(super) fn spread<M: StateMachine>(
    id: PlacementGroupId,
    group: &Group<M>,
    metadata: &Group<MetadataMachine>,
    own: Identity,
    fit: &Fit,
    tasks: &Tasks,
) {
    let (group, metadata, fit) = (group.clone(), metadata.clone(), fit.clone());
    tasks.supervise("leaders", TICK, move || {
        let (group, metadata, fit) = (group.clone(), metadata.clone(), fit.clone());
        async move {
            let mut steady = 0;
            let mut pause = TRANSFER_PAUSE;
            loop {
                tokio::time::sleep(TICK).await;
                let next = wanted(id, &metadata, own)
                    .filter(|next| group.is_leader() && keeps_up(&group.followers(), *next))
                    // A learner cannot lead.
                    .filter(|next| group.replicas().voters.contains(next))
                    .filter(|next| may_take(fit.own(), fit.said_by(*next)));
                let Some(next) = next else {
                    steady = 0;
                    continue;
                };
                steady += 1;
                if steady < TICKS_STEADY {
                    continue;
                }
                tracing::info!(group = %id, to = %next, "leadership goes to the preferred replica");
                if group.transfer_leadership(next).await.is_err() {
                    return std::future::pending().await;
                }
                steady = 0;
                tokio::time::sleep(pause).await;
                // Back, or never gone: that broker cannot lead, or does not want to.
                pause = if group.is_leader() {
                    (pause * 2).min(TRANSFER_PAUSE_MAX)
                } else {
                    TRANSFER_PAUSE
                };
            }
        }
    });
}

/// Whether a broker of fitness `own` gives leadership to the preferred one, by what that one has said: to one that is worse it would come back at once.
fn may_take(own: Fitness, preferred: Option<Fitness>) -> bool {
    preferred.is_none_or(|said| said <= own)
}

/// Who of these should lead in place of a broker of fitness `own`: one of the best, if they have said that they are better. Of several it is another one
/// with each `turn`.
///
/// Leadership that is given away for unfitness therefore goes to strictly better brokers only, and to the preferred one never to a worse: as long as brokers
/// stay what they are there is no circle, whoever prefers whom.
fn heir(own: Fitness, heirs: &[(RaftNodeId, Option<Fitness>)], turn: usize) -> Option<RaftNodeId> {
    let better = |said: &Fitness| *said < own;
    let best = heirs
        .iter()
        .filter_map(|(_, said)| *said)
        .filter(better)
        .min()?;
    let equal: Vec<_> = heirs
        .iter()
        .filter(|(_, said)| *said == Some(best))
        .collect();
    equal
        .get(turn.checked_rem(equal.len())?)
        .map(|(node, _)| *node)
}

/// Who of these leads after a stop: whoever has said nothing has nothing to say.
fn successor(heirs: &[(RaftNodeId, Option<Fitness>)]) -> Option<RaftNodeId> {
    let best = heirs
        .iter()
        .min_by_key(|(_, said)| said.unwrap_or_default());
    best.map(|(node, _)| *node)
}

/// How often leadership of one group was given away. Time is handed in.
#[derive(Debug, Default)]
struct Giving {
    given: u32,
    at: Option<Instant>,
}

impl Giving {
    /// Whether it may be given away now. Once is enough where everybody says what it is; it is elections, or brokers that change all the time, that bring
    /// it back, and then it goes less often each time.
    fn may(&mut self, now: Instant) -> bool {
        let Some(at) = self.at else {
            return true;
        };
        let passed = now.saturating_duration_since(at);
        if passed >= YIELD_FORGET {
            *self = Self::default();
        }
        passed >= (TICK * 2_u32.saturating_pow(self.given.min(16))).min(YIELD_PAUSE_MAX)
    }

    fn gave(&mut self, now: Instant) {
        self.given = self.given.saturating_add(1);
        self.at = Some(now);
    }
}

/// Gives leadership of `group` away while something is in the way of this broker's leading, to one that has said that it is better.
pub(super) fn give_away<M: StateMachine>(
    id: PlacementGroupId,
    group: &Group<M>,
    fit: &Fit,
    tasks: &Tasks,
) {
    let (group, fit) = (group.clone(), fit.clone());
    tasks.supervise("leaders-give-away", TICK, move || {
        let (group, fit) = (group.clone(), fit.clone());
        async move {
            let mut giving = Giving::default();
            loop {
                tokio::time::sleep(TICK).await;
                let own = fit.own();
                if own == Fitness::FIT || !group.is_leader() || !giving.may(Instant::now()) {
                    continue;
                }
                // Groups go to several heirs, and each to another one the next time.
                let turn = usize::try_from(id.get().wrapping_add(giving.given)).unwrap_or(0);
                let choose = |heirs: &[RaftNodeId]| heir(own, &said(&fit, heirs), turn);
                if choose(&heirs(&group)).is_none() || !fit.is_still_unfit().await {
                    continue;
                }
                let number = fit.count_given();
                tracing::info!(group = %id, "leadership is given away, the {number}. time since the start: {}", why(own));
                hand_over(&group, choose).await;
                giving.gave(Instant::now());
            }
        }
    });
}

const fn why(own: Fitness) -> &'static str {
    if own.no_room {
        "the disk has too little room for new records"
    } else {
        "the object store of this broker is not the one of the cluster"
    }
}

fn said(fit: &Fit, heirs: &[RaftNodeId]) -> Vec<(RaftNodeId, Option<Fitness>)> {
    let said = heirs.iter().map(|node| (*node, fit.said_by(*node)));
    said.collect()
}

/// Replicas that could take over at once.
fn heirs<M: StateMachine>(group: &Group<M>) -> Vec<RaftNodeId> {
    let (followers, voters) = (group.followers(), group.replicas().voters);
    let ready = followers
        .iter()
        .filter(|(node, ready)| **ready && voters.contains(node));
    ready.map(|(node, _)| *node).collect()
}

/// Hands leadership of `group` over before this broker stops, to one that nothing is in the way of, if there is one.
pub(super) async fn hand_over_to_stop<M: StateMachine>(group: &Group<M>, fit: &Fit) {
    hand_over(group, |heirs| successor(&said(fit, heirs))).await;
}

/// Hands leadership of `group` to the replica that `choose` takes of those that keep up, and waits until it leads. Without one, after a moment, it does nothing.
async fn hand_over<M: StateMachine>(
    group: &Group<M>,
    choose: impl Fn(&[RaftNodeId]) -> Option<RaftNodeId>,
) {
    let deadline = Instant::now() + HAND_OVER_WITHIN;
    let no_heir = Instant::now() + HEIR_WITHIN;
    let mut leadership = group.leadership();
    while group.is_leader() && Instant::now() < deadline {
        let Some(next) = choose(&heirs(group)) else {
            // A single copy has no other replica to lead it.
            if group.replicas().voters.len() < 2 || Instant::now() >= no_heir {
                return;
            }
            tokio::time::sleep(HEIR_LOOK).await;
            continue;
        };
        if group.transfer_leadership(next).await.is_err() {
            return;
        }
        // A transfer that was lost on the way is asked for again.
        let retry = deadline.min(Instant::now() + TICK);
        let gone = leadership.wait_for(|known| !known.is_leader);
        if let Ok(Err(_)) = timeout_at(retry, gone).await {
            return;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
