//! Replicas of a group that come and go, over a network that can be cut.

use super::peers::Cluster;
use super::*;
use std::collections::BTreeSet;

fn ids(ids: &[u64]) -> BTreeSet<RaftNodeId> {
    ids.iter().copied().map(RaftNodeId::new).collect()
}

fn replicas(voters: &[u64], learners: &[u64]) -> Replicas {
    let members = |ids: &[u64]| {
        let all = ids
            .iter()
            .map(|id| (RaftNodeId::new(*id), member(i32::try_from(*id).unwrap())));
        all.collect()
    };
    Replicas {
        voters: members(voters),
        learners: members(learners),
    }
}

/// Steps towards `wanted`, whoever leads, until `good` is so.
async fn step_until(
    cluster: &Cluster,
    wanted: &Replicas,
    good: impl Fn(&MembershipStep, &ReplicasNow) -> bool,
) -> MembershipStep {
    let until = tokio::time::Instant::now() + WAIT;
    loop {
        let (id, leader) = cluster.leader().await;
        let step = leader.step_membership(wanted).await;
        let now = leader.replicas();
        if let Ok(step) = &step
            && good(step, &now)
        {
            return step.clone();
        }
        assert!(
            tokio::time::Instant::now() < until,
            "{id} came to {step:?}, {now:?}"
        );
        // A transfer takes a moment, and is not asked for again meanwhile.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn settled(step: &MembershipStep, _: &ReplicasNow) -> bool {
    *step == MembershipStep::Settled
}

/// Proves that a new replica that never comes does not hold back the other new one: an old one stays in its place, so that there are as many
/// copies as wanted all the time, and goes when it comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_never_comes_holds_back_no_other() {
    let mut cluster = Cluster::start().await;
    let (_, leader) = cluster.leader().await;
    leader.propose(add(0, 0)).await.expect("applied");
    cluster.add(4, BTreeMap::new()).await;
    let wanted = replicas(&[1, 4, 5], &[]);
    let fifth = vec![RaftNodeId::new(5)];
    step_until(&cluster, &wanted, |step, now| {
        let one_stays = now.voters == ids(&[1, 2, 4]) || now.voters == ids(&[1, 3, 4]);
        *step == MembershipStep::CatchingUp(fifth.clone()) && now.settled && one_stays
    })
    .await;
    let (_, leader) = cluster.leader().await;
    let now = leader.replicas();
    let others = now.members.keys().filter(|id| !now.voters.contains(id));
    assert!(others.eq(&fifth), "who has gone is gone: {now:?}");

    cluster.add(5, BTreeMap::new()).await;
    step_until(&cluster, &wanted, settled).await;
    let (_, leader) = cluster.leader().await;
    assert_eq!(leader.replicas().voters, ids(&[1, 4, 5]));
    leader.propose(add(1, 0)).await.expect("applied");
    cluster.stop().await;
}

/// Proves that no change is begun whose voters are mostly gone: it could neither be finished nor undone. The group goes on as it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_change_without_a_majority_of_its_voters() {
    let mut cluster = Cluster::start().await;
    for id in [4, 5] {
        cluster.add(id, BTreeMap::new()).await;
    }
    let five = replicas(&[1, 2, 3, 4, 5], &[]);
    step_until(&cluster, &five, settled).await;
    for id in [4, 5] {
        cluster.isolate(RaftNodeId::new(id));
    }
    let silent = tokio::time::timeout(WAIT, async {
        loop {
            let (_, leader) = cluster.leader().await;
            let close = leader.followers();
            if [4, 5]
                .iter()
                .all(|id| close.get(&RaftNodeId::new(*id)) == Some(&false))
            {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    silent.await.expect("they are missed");
    // They vote already, so nothing has to catch up.
    let wanted = replicas(&[1, 4, 5], &[]);
    let step = step_until(&cluster, &wanted, |step, _| {
        matches!(step, MembershipStep::CatchingUp(_))
    })
    .await;
    assert_eq!(
        step,
        MembershipStep::CatchingUp(ids(&[4, 5]).into_iter().collect())
    );
    let (_, leader) = cluster.leader().await;
    assert_eq!(leader.replicas().voters, ids(&[1, 2, 3, 4, 5]));
    assert!(leader.replicas().settled);
    leader.propose(add(0, 0)).await.expect("three of five");
    cluster.heal();
    step_until(&cluster, &wanted, settled).await;
    cluster.stop().await;
}

/// Proves that a learner is never asked to lead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_learner_is_not_asked_to_lead() {
    let mut cluster = Cluster::start().await;
    cluster.add(4, BTreeMap::new()).await;
    let wanted = replicas(&[1, 2, 3], &[4]);
    step_until(&cluster, &wanted, settled).await;
    let (id, leader) = cluster.leader().await;
    let learner = RaftNodeId::new(4);
    let close = tokio::time::timeout(WAIT, async {
        while leader.followers().get(&learner) != Some(&true) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    close.await.expect("it is close behind");
    leader.transfer_leadership(learner).await.expect("asked");
    // What is asked later is done later.
    let next = ids(&[1, 2, 3])
        .into_iter()
        .find(|other| *other != id)
        .expect("a voter");
    leader.transfer_leadership(next).await.expect("asked");
    cluster.groups[&next]
        .wait_leader(WAIT)
        .await
        .expect("the voter leads");
    assert_eq!(*cluster.hub.asked_to_lead.lock(), ids(&[next.get()]));
    cluster.stop().await;
}

/// Proves that a leader which has lost the others a moment ago, and may serve reads still, takes nobody in: new replicas would be copies of a group that nobody leads
/// again. It goes on when the others are back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_takes_nobody_in() {
    let mut cluster = Cluster::start().await;
    for id in [4, 5] {
        cluster.add(id, BTreeMap::new()).await;
    }
    let (own, leader) = cluster.leader().await;
    leader.propose(add(0, 0)).await.expect("applied");
    leader.propose(cut()).await.expect("applied");
    let others = ids(&[1, 2, 3]).into_iter().filter(|id| *id != own);
    others.for_each(|id| cluster.isolate(id));
    // The lease is as good as new, or over: what is asked is a quorum.
    let wanted = replicas(&[own.get(), 4, 5], &[]);
    for _ in 0..2 {
        let step = leader.step_membership(&wanted).await;
        assert!(
            matches!(step, Err(ProposeError::NotLeader { .. })),
            "{step:?}"
        );
    }
    assert_eq!(cluster.snapshots(), 0);
    for id in [4, 5] {
        assert!(cluster.groups[&RaftNodeId::new(id)].is_empty(), "{id}");
    }
    assert_eq!(leader.replicas().voters, ids(&[1, 2, 3]));
    cluster.heal();
    step_until(&cluster, &wanted, settled).await;
    cluster.stop().await;
}

/// Proves that a replica which a change under way lets vote does not count as a voter before that is committed, and finished.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_vote_soon_does_not_vote() {
    let mut cluster = Cluster::start().await;
    cluster.add(4, BTreeMap::new()).await;
    let new = RaftNodeId::new(4);
    step_until(&cluster, &replicas(&[1, 2, 3], &[4]), settled).await;
    let (own, leader) = cluster.leader().await;
    assert!(leader.votes(own) && !leader.votes(new));
    let others = ids(&[1, 2, 3]).into_iter().filter(|id| *id != own);
    let others: Vec<RaftNodeId> = others.collect();
    others.iter().for_each(|id| cluster.isolate(*id));
    let voters = BTreeSet::from([own.get(), others[0].get(), new.get()]);
    let changing = tokio::spawn(async move {
        let raft = leader.core.raft.clone();
        raft.change_membership(voters, false).await
    });
    let there = cluster.groups[&new].clone();
    let hears = tokio::time::timeout(WAIT, async {
        while !there.replicas().voters.contains(&new) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    hears.await.expect("it hears of the change");
    assert!(!there.votes(new));
    cluster.heal();
    let wanted = replicas(&[own.get(), others[0].get(), 4], &[]);
    step_until(&cluster, &wanted, settled).await;
    let votes = tokio::time::timeout(WAIT, async {
        while !there.votes(new) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    votes.await.expect("it learns that it is committed");
    changing.abort();
    cluster.stop().await;
}
