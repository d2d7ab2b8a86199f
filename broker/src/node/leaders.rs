//! Leadership over the brokers: spread over them while they run, handed over before one stops.
//!
//! Owns: which replica of a group is preferred, when leadership moves to it, the hand-over of a stop.
//! Not here: elections, and how leadership is transferred (`placement`).
//!
//! Group `k` prefers replica `k mod n`, in the order of broker ids: every broker leads its share, and all brokers agree without talking.

use super::formation::Founding;
use crate::placement::{Group, StateMachine};
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
/// How long a stop waits for others to lead: a transfer takes some round trips, and whoever is left elects anyway.
const HAND_OVER_WITHIN: Duration = Duration::from_secs(5);

/// The replica that should lead the group.
fn preferred(group: PlacementGroupId, replicas: &[RaftNodeId]) -> Option<RaftNodeId> {
    let count = u32::try_from(replicas.len()).ok().filter(|n| *n > 0)?;
    let at = usize::try_from(group.get() % count).ok()?;
    replicas.get(at).copied()
}

/// Raft nodes of the members, in the order of broker ids.
pub(super) fn replicas(record: &Founding) -> Vec<RaftNodeId> {
    let members = record.members.iter();
    members
        .map(|member| RaftNodeId::new(member.raft_node_id))
        .collect()
}

/// Whether `node` is close behind: within what a transfer waits for.
fn keeps_up(caught_up: &BTreeMap<RaftNodeId, bool>, node: RaftNodeId) -> bool {
    caught_up.get(&node).copied().unwrap_or(false)
}

/// Moves leadership of `group` to its preferred replica whenever this broker leads and that one has kept up for some time.
pub(super) fn spread<M: StateMachine>(
    id: PlacementGroupId,
    group: &Group<M>,
    own: RaftNodeId,
    replicas: &[RaftNodeId],
    tasks: &Tasks,
) {
    let Some(wanted) = preferred(id, replicas).filter(|wanted| *wanted != own) else {
        return;
    };
    let group = group.clone();
    tasks.supervise("leaders", TICK, move || {
        let group = group.clone();
        async move {
            let mut steady = 0;
            loop {
                tokio::time::sleep(TICK).await;
                let ready = group.is_leader() && keeps_up(&group.followers(), wanted);
                steady = if ready { steady + 1 } else { 0 };
                if steady < TICKS_STEADY {
                    continue;
                }
                tracing::info!(group = %id, to = %wanted, "leadership goes to the preferred replica");
                if group.transfer_leadership(wanted).await.is_err() {
                    return std::future::pending().await;
                }
                steady = 0;
                tokio::time::sleep(TRANSFER_PAUSE).await;
            }
        }
    });
}

/// Hands leadership of `group` to a replica that keeps up, and waits until it leads. Without one it does nothing.
pub(super) async fn hand_over<M: StateMachine>(group: &Group<M>) {
    let deadline = Instant::now() + HAND_OVER_WITHIN;
    let mut leadership = group.leadership();
    while group.is_leader() && Instant::now() < deadline {
        let followers = group.followers();
        let next = followers.iter().find(|(_, ready)| **ready);
        let Some((next, _)) = next else {
            return;
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    /// Proves that groups are shared out evenly, the same on every broker.
    #[test]
    fn groups_are_shared_out() {
        let replicas: Vec<_> = [11, 22, 33].map(RaftNodeId::new).to_vec();
        let mut led: BTreeMap<RaftNodeId, usize> = BTreeMap::new();
        for group in 1..=6 {
            let leader = preferred(PlacementGroupId::new(group), &replicas).unwrap();
            *led.entry(leader).or_default() += 1;
        }
        assert!(led.len() == 3 && led.values().all(|count| *count == 2));
        assert_eq!(preferred(PlacementGroupId::new(1), &[]), None);
    }
}
