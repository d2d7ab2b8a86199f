//! Making each group's Raft membership what metadata wants, and metadata what operators asked for.
//!
//! Owns: the two loops: one per group that the group's leader works in, one that the leader of metadata plans in.
//! Not here: what is wanted (`metadata`), a single step (`placement`).
//! Spec: docs/protocols/membership.md

use crate::metadata::{
    MetadataCommand, MetadataImage, MetadataOutcome, Refusal, plan_drains, plan_moves,
};
use crate::placement::{Group, Member, MembershipStep, ProposeError, Replicas, StateMachine};
use crate::router::MetadataClient;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidelog_env::{CrashPoint, Tasks, crash_point};
use tidelog_model::{LogIndex, NodeId, PlacementGroupId, RaftNodeId, TimestampMs};
use tokio::time::Instant;

/// How often a leader compares.
const TICK: Duration = Duration::from_millis(500);
/// A member that has not come so long after it was taken in is not waited for: a start takes seconds. The same for a line about a new
/// replica that does not catch up.
const LATE: Duration = Duration::from_secs(60);

/// The replicas that a group shall have, and the move that is done when it has them. `None`: not to be touched now.
fn wanted(
    image: &MetadataImage,
    group: PlacementGroupId,
    now: TimestampMs,
) -> Option<(Replicas, Option<LogIndex>)> {
    let members = |nodes: &mut dyn Iterator<Item = NodeId>| {
        nodes
            .map(|node| {
                let member = image.members().get(&node)?;
                let peer = image.brokers().get(&node).and_then(|at| at.peer.as_ref());
                let at = Member {
                    broker: node,
                    address: peer.map_or_else(String::new, ToString::to_string),
                };
                Some((member.raft_node, at))
            })
            .collect::<Option<BTreeMap<RaftNodeId, Member>>>()
    };
    if group == PlacementGroupId::METADATA {
        if !image.knows_holders() {
            return None;
        }
        let (voters, learners) = image.metadata_replicas(now);
        let replicas = Replicas {
            voters: members(&mut voters.into_iter())?,
            learners: members(&mut learners.into_iter())?,
        };
        return (!replicas.voters.is_empty()).then_some((replicas, None));
    }
    let moving = image.moves().get(&group).map(|moving| moving.id);
    let nodes = image.replicas_wanted(group).iter().copied();
    let replicas = Replicas {
        voters: members(&mut { nodes })?,
        learners: BTreeMap::new(),
    };
    (!replicas.voters.is_empty()).then_some((replicas, moving))
}

/// Works on the membership of `group` while this broker leads it.
pub(super) fn keep<M: StateMachine>(
    id: PlacementGroupId,
    group: &Group<M>,
    metadata: &MetadataClient,
    tasks: &Tasks,
) {
    let (group, metadata) = (group.clone(), metadata.clone());
    tasks.supervise("members", TICK, move || {
        let (group, metadata) = (group.clone(), metadata.clone());
        async move {
            let mut said = Said::default();
            loop {
                tokio::time::sleep(metadata.random.jitter(TICK)).await;
                // Several quick steps in a row make one change. Without a majority each step would ask for one in vain.
                while group.is_leader()
                    && group.can_serve_reads()
                    && step(id, &group, &metadata, &mut said).await
                {}
            }
        }
    });
}

/// What was said of a group's steps, so that each thing is said once.
#[derive(Default)]
struct Said {
    step: Option<(MembershipStep, Instant)>,
    late: bool,
}

impl Said {
    fn step(&mut self, id: PlacementGroupId, stepped: &MembershipStep, replicas: &Replicas) {
        let known = self.step.as_ref().filter(|(step, _)| step == stepped);
        let Some((_, since)) = known else {
            if *stepped != MembershipStep::Settled {
                tracing::info!(group = %id, "replicas change: {stepped:?}");
            }
            self.step = Some((stepped.clone(), Instant::now()));
            self.late = false;
            return;
        };
        let MembershipStep::CatchingUp(behind) = stepped else {
            return;
        };
        if !self.late && since.elapsed() >= LATE {
            self.late = true;
            let all: BTreeMap<_, _> = replicas.voters.iter().chain(&replicas.learners).collect();
            let brokers = behind.iter().filter_map(|node| all.get(node));
            let brokers: Vec<_> = brokers.map(|member| member.broker.to_string()).collect();
            tracing::warn!(group = %id, "new replicas on the brokers {} have not caught up for {LATE:?}; the others go on. Are these brokers up, and reached?", brokers.join(", "));
        }
    }
}

/// What `look` finds in an image that is current. The one here may be behind, and say what was wanted once: a replica that has moved on would be taken
/// out again. `None`: it cannot be known.
async fn current<W>(
    look: impl Fn() -> W,
    barrier: Option<impl Future<Output = Result<(), ProposeError>>>,
) -> Option<W> {
    if let Some(barrier) = barrier
        && barrier.await.is_err()
    {
        return None;
    }
    Some(look())
}

/// One step; true: step again at once.
async fn step<M: StateMachine>(
    id: PlacementGroupId,
    group: &Group<M>,
    metadata: &MetadataClient,
    said: &mut Said,
) -> bool {
    let look = || {
        let now = TimestampMs::new(metadata.clock.now_ms());
        let group = &metadata.group;
        group.read(|machine| wanted(machine.image(), id, now))
    };
    let Some((replicas, moving)) = look() else {
        return false;
    };
    if moving.is_none() && group.replicas().is(&replicas) {
        return false;
    }
    // The leader of metadata has all of its image.
    let behind = id != PlacementGroupId::METADATA;
    let barrier = behind.then(|| metadata.barrier());
    let Some((replicas, moving)) = current(look, barrier).await.flatten() else {
        return false;
    };
    let stepped = match group.step_membership(&replicas).await {
        Ok(stepped) => stepped,
        Err(error) => {
            tracing::debug!(group = %id, "a change of replicas is tried again: {error}");
            return false;
        }
    };
    said.step(id, &stepped, &replicas);
    match stepped {
        MembershipStep::Changed => true,
        MembershipStep::CatchingUp(_) | MembershipStep::HandedOver(_) => false,
        MembershipStep::Settled => {
            let Some(moving) = moving else {
                return false;
            };
            crash_point(CrashPoint::MembersSettled);
            let done = MetadataCommand::ReplicasMoved {
                group: id,
                id: moving,
            };
            say(metadata, &done).await;
            false
        }
    }
}

/// Proposes what may be refused because something was faster.
async fn say(metadata: &MetadataClient, command: &MetadataCommand) {
    match metadata.propose(command).await {
        Ok(MetadataOutcome::Refused(Refusal::Outdated)) | Err(_) => {}
        Ok(MetadataOutcome::Refused(refusal)) => {
            tracing::warn!("a change of replicas was refused: {refusal}");
        }
        Ok(_) => {}
    }
}

/// Members that shall stay and have not come yet, and since when they are waited for.
fn awaited(image: &MetadataImage) -> impl Iterator<Item = (NodeId, TimestampMs)> {
    let members = image.members().iter();
    let staying = members.filter(|(_, member)| !member.draining);
    staying.filter_map(|(node, _)| {
        let taken_in = image.brokers().get(node)?.registered;
        (!image.is_registered(*node)).then_some((*node, taken_in))
    })
}

fn is_late(taken_in: TimestampMs, now: TimestampMs) -> bool {
    let passed = now.get().saturating_sub(taken_in.get());
    u64::try_from(passed).is_ok_and(|passed| Duration::from_millis(passed) >= LATE)
}

/// What the leader of metadata proposes next, by the image alone.
fn next(image: &MetadataImage, now: TimestampMs) -> Option<MetadataCommand> {
    // A member that has not said yet where it is and in which zone is waited for, before loads are evened out. Who is drained goes meanwhile.
    let all_came = awaited(image).all(|(_, taken_in)| is_late(taken_in, now));
    let targets = if all_came {
        plan_moves(image)
    } else {
        plan_drains(image)
    };
    if !targets.is_empty() {
        return Some(MetadataCommand::MoveReplicas { targets });
    }
    let holds = |node: NodeId| image.groups().keys().any(|group| image.holds(*group, node));
    let mut drained = image.members().iter().filter(|(_, member)| member.draining);
    let (node, _) = drained.find(|(node, _)| !holds(**node))?;
    Some(MetadataCommand::RemoveBroker { node: *node })
}

/// Plans while this broker leads metadata.
pub(super) fn plan(metadata: &MetadataClient, tasks: &Tasks) {
    let metadata = metadata.clone();
    tasks.supervise("plan", TICK, move || {
        let metadata = metadata.clone();
        async move {
            let mut said = BTreeSet::new();
            loop {
                tokio::time::sleep(metadata.random.jitter(TICK * 2)).await;
                if !metadata.group.is_leader() {
                    continue;
                }
                let now = TimestampMs::new(metadata.clock.now_ms());
                let (command, late) = metadata.group.read(|machine| {
                    let late = awaited(machine.image()).filter(|(_, since)| is_late(*since, now));
                    let late: BTreeSet<NodeId> = late.map(|(node, _)| node).collect();
                    (next(machine.image(), now), late)
                });
                for node in late.difference(&said) {
                    tracing::warn!(
                        "broker {node} was taken in and has not come for {LATE:?}: replicas are planned without waiting for it. Start it; if it shall not \
                         come, run `tidelog cluster decommission {node}`, which says what to do first if a group has no leader without it"
                    );
                }
                said = late;
                if let Some(command) = command {
                    tracing::info!("replicas are planned anew: {command:?}");
                    say(&metadata, &command).await;
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::metadata::{Address, Admission};
    use tidelog_model::ClusterId;
    use uuid::Uuid;

    fn address() -> Address {
        Address {
            host: "h".to_owned(),
            port: 1,
        }
    }

    fn change(image: &mut MetadataImage, command: MetadataCommand) {
        let outcome = image.apply(command, TimestampMs::new(5_000));
        assert!(
            !matches!(outcome, MetadataOutcome::Refused(_)),
            "{outcome:?}"
        );
    }

    /// Takes a broker in, and lets it come.
    fn member(image: &mut MetadataImage, id: i32, comes: bool) {
        let node = NodeId::new(id);
        let admission = Admission {
            node,
            raft_node: RaftNodeId::new(u64::try_from(id).unwrap()),
            zone: format!("z{id}"),
            peer: Some(address()),
            by_operator: true,
            expects: None,
        };
        change(image, MetadataCommand::AdmitBroker(admission));
        if comes {
            let register = MetadataCommand::RegisterBroker {
                node,
                raft_node: Some(RaftNodeId::new(u64::try_from(id).unwrap())),
                zone: format!("z{id}"),
                kafka: Some(address()),
                peer: Some(address()),
                admin: None,
            };
            change(image, register);
            let fenced = false;
            change(image, MetadataCommand::SetBrokerFence { node, fenced });
        }
    }

    /// Proves that what is wanted is read off an image that is current, and that nothing is done when that cannot be had.
    #[tokio::test]
    async fn an_old_image_moves_nothing() {
        let image = std::cell::Cell::new("old");
        let caught_up = async {
            image.set("new");
            Ok(())
        };
        assert_eq!(current(|| image.get(), Some(caught_up)).await, Some("new"));
        let unreached = std::future::ready(Err(ProposeError::NotLeader { leader: None }));
        assert_eq!(current(|| image.get(), Some(unreached)).await, None);
        let leads = None::<std::future::Ready<Result<(), ProposeError>>>;
        assert_eq!(current(|| image.get(), leads).await, Some("new"));
    }

    /// Proves that a member which does not come holds back neither a drain nor, after a minute, the rest of the plan.
    #[test]
    fn who_does_not_come_is_not_waited_for() {
        let group = |id| PlacementGroupId::new(id);
        let all = [1, 2, 3].map(NodeId::new);
        let mut image = MetadataImage::default();
        change(
            &mut image,
            MetadataCommand::BootstrapCluster {
                cluster: ClusterId::new(Uuid::from_u128(7)),
                name: "t".to_owned(),
                groups: (1..=4).map(|id| (group(id), all.to_vec())).collect(),
            },
        );
        for id in 1..=4 {
            member(&mut image, id, true);
        }
        member(&mut image, 5, false);
        let (soon, late) = (TimestampMs::new(64_999), TimestampMs::new(65_000));
        assert_eq!(awaited(&image).count(), 1);
        assert_eq!(next(&image, soon), None, "loads are not evened out yet");
        let Some(MetadataCommand::MoveReplicas { targets }) = next(&image, late) else {
            panic!("nothing is planned");
        };
        assert!(targets.values().flatten().any(|node| node.get() == 4));
        assert!(targets.values().flatten().all(|node| node.get() != 5));

        let (node, draining) = (NodeId::new(1), true);
        change(&mut image, MetadataCommand::SetDraining { node, draining });
        let Some(MetadataCommand::MoveReplicas { targets }) = next(&image, soon) else {
            panic!("the drain waits");
        };
        assert_eq!(targets.len(), 4);
        assert!(targets.values().all(|to| *to == [2, 3, 4].map(NodeId::new)));
    }
}
