//! Leadership over the brokers: spread over them while they run, handed over before one stops.
//!
//! Owns: when leadership moves to the preferred replica, or away from a broker without room; the hand-over of a stop.
//! Not here: which replica is preferred (`metadata`), elections, and how leadership is transferred (`placement`).

use super::identity::Identity;
use crate::metadata::MetadataMachine;
use crate::placement::{Group, StateMachine};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
/// Leadership that is back sooner after it was given away has found nobody who does better. A leader that prefers this broker gives it
/// back after three ticks, and later each time.
const BACK_SOON: Duration = Duration::from_secs(8);
/// Longest pause between two attempts to give it away.
const YIELD_PAUSE_MAX: Duration = Duration::from_secs(300);
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

/// Moves leadership of `group` to its preferred replica whenever this broker leads and that one has kept up for some time.
pub(super) fn spread<M: StateMachine>(
    id: PlacementGroupId,
    group: &Group<M>,
    metadata: &Group<MetadataMachine>,
    own: Identity,
    tasks: &Tasks,
) {
    let (group, metadata) = (group.clone(), metadata.clone());
    tasks.supervise("leaders", TICK, move || {
        let (group, metadata) = (group.clone(), metadata.clone());
        async move {
            let mut steady = 0;
            let mut pause = TRANSFER_PAUSE;
            loop {
                tokio::time::sleep(TICK).await;
                let next = wanted(id, &metadata, own)
                    .filter(|next| group.is_leader() && keeps_up(&group.followers(), *next))
                    // A learner cannot lead.
                    .filter(|next| group.replicas().voters.contains(next));
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

/// Gives leadership of `group` away while `unfit` is set, and `why`: others may do better.
pub(super) fn yield_while<M: StateMachine>(
    id: PlacementGroupId,
    group: &Group<M>,
    unfit: &Arc<AtomicBool>,
    why: &'static str,
    tasks: &Tasks,
) {
    let (group, unfit) = (group.clone(), Arc::clone(unfit));
    tasks.supervise("leaders-yield", TICK, move || {
        let (group, unfit) = (group.clone(), Arc::clone(&unfit));
        async move {
            let mut pause = TICK;
            let mut given: Option<Instant> = None;
            let mut turn = 0;
            loop {
                tokio::time::sleep(pause).await;
                if !unfit.load(Ordering::Relaxed) {
                    (pause, given) = (TICK, None);
                    continue;
                }
                if !group.is_leader() {
                    continue;
                }
                let back_soon = given.is_some_and(|at| at.elapsed() < pause + BACK_SOON);
                pause = if back_soon {
                    (pause * 2).min(YIELD_PAUSE_MAX)
                } else {
                    TICK
                };
                tracing::info!(group = %id, "leadership is given away: {why}");
                hand_over(&group, turn).await;
                // The one that was tried may be no better: another one the next time.
                turn += 1;
                given = Some(Instant::now());
            }
        }
    });
}

/// Hands leadership of `group` to a replica that keeps up, and waits until it leads. Of several it is another one with each `turn`. Without one, after a
/// moment, it does nothing.
pub(super) async fn hand_over<M: StateMachine>(group: &Group<M>, turn: usize) {
    let deadline = Instant::now() + HAND_OVER_WITHIN;
    let no_heir = Instant::now() + HEIR_WITHIN;
    let mut leadership = group.leadership();
    while group.is_leader() && Instant::now() < deadline {
        let (followers, voters) = (group.followers(), group.replicas().voters);
        let heirs: Vec<_> = followers
            .iter()
            .filter(|(node, ready)| **ready && voters.contains(node))
            .map(|(node, _)| *node)
            .collect();
        let Some(next) = heirs.get(turn % heirs.len().max(1)) else {
            // A single copy has no other replica to lead it.
            if voters.len() < 2 || Instant::now() >= no_heir {
                return;
            }
            tokio::time::sleep(HEIR_LOOK).await;
            continue;
        };
        if group.transfer_leadership(*next).await.is_err() {
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
