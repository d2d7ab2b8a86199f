//! Changing the replicas of a group, one safe step at a time.
//!
//! Owns: [`Replicas`], [`MembershipStep`], [`Group::step_membership`].
//! Not here: which replicas a group should have (metadata), when to ask (node), joint consensus itself (openraft).
//! Spec: docs/protocols/membership.md

use super::contract::{ProposeError, StateMachine};
use super::group::Group;
use super::peer_client::snapshot_request;
use super::peers::Lane;
use super::raft_types::{Member, Types, from_raft};
use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::errors::{ClientWriteError, RaftError};
use openraft::{ChangeMembers, ServerState};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::time::Duration;
use tidelog_env::{CrashPoint, crash_point};
use tidelog_model::{LogIndex, RaftNodeId};
use tokio::time::{Instant, timeout, timeout_at};

/// How long one entry may take to be committed and applied. Afterwards it may still come; the next step looks.
const STEP_WITHIN: Duration = Duration::from_secs(20);

/// How long a quorum may take to say that this replica leads still: some heartbeats. The next step asks again.
const LEADS_WITHIN: Duration = Duration::from_secs(3);

/// How long voters may take to answer that they are there. Who asks for it waits a second for all, and asks again.
const ANSWERS_WITHIN: Duration = Duration::from_millis(500);

/// How long a checkpoint may take on its way, as Raft's own.
const SEED_WITHIN: Duration = Duration::from_secs(120);

/// Replicas that a group shall have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Replicas {
    /// Who votes.
    pub voters: BTreeMap<RaftNodeId, Member>,
    /// Who only gets everything.
    pub learners: BTreeMap<RaftNodeId, Member>,
}

/// Replicas that a group has now, as far as this replica knows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReplicasNow {
    /// Who votes; of both sets while a change is under way.
    pub voters: BTreeSet<RaftNodeId>,
    /// Everybody, with the broker.
    pub members: BTreeMap<RaftNodeId, Member>,
    /// No change is under way, and this is committed.
    pub settled: bool,
}

impl ReplicasNow {
    /// Whether these are exactly the replicas that are wanted, and that is committed.
    #[must_use]
    pub fn is(&self, wanted: &Replicas) -> bool {
        let all = wanted.voters.keys().chain(wanted.learners.keys());
        self.settled
            && self.voters.iter().eq(wanted.voters.keys())
            && self.members.keys().copied().collect::<BTreeSet<_>>() == all.copied().collect()
    }
}

/// What one step came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembershipStep {
    /// The replicas are the wanted ones, and that is committed.
    Settled,
    /// Something was changed; step again.
    Changed,
    /// These are new and not caught up yet.
    CatchingUp(Vec<RaftNodeId>),
    /// Leadership was asked to go to this replica first.
    HandedOver(RaftNodeId),
}

impl<M: StateMachine> Group<M> {
    /// The replicas as this one knows them; only the leader's answer is current.
    #[must_use]
    pub fn replicas(&self) -> ReplicasNow {
        let metrics = self.core.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let membership = metrics.membership_config.membership();
        let id = |id: u64| RaftNodeId::new(id);
        ReplicasNow {
            voters: membership.voter_ids().map(id).collect(),
            members: membership
                .nodes()
                .map(|(node, member)| (id(*node), member.clone()))
                .collect(),
            settled: membership.get_joint_config().len() == 1
                && metrics.membership_config == metrics.committed_membership_config,
        }
    }

    /// Whether `replica` votes for good, as far as this one knows: in each set of voters that is committed. One that a change under way lets vote does so perhaps no more
    /// under the next leader, and until the change is finished, a majority of the old voters is needed besides.
    #[must_use]
    pub fn votes(&self, replica: RaftNodeId) -> bool {
        let metrics = self.core.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let sets = metrics.committed_membership_config.membership();
        let sets = sets.get_joint_config();
        !sets.is_empty() && sets.iter().all(|voters| voters.contains(&replica.get()))
    }

    /// How far each replica's log is known to agree with the leader's, those that have lost what they acknowledged left out; empty unless this replica leads.
    #[must_use]
    pub fn matched(&self) -> BTreeMap<RaftNodeId, LogIndex> {
        let metrics = self.core.raft.data_metrics();
        let metrics = metrics.borrow_watched();
        let reverted = self.reverted();
        let matched = metrics.replication.iter().flatten();
        let matched = matched.filter(|(node, _)| !reverted.contains_key(&RaftNodeId::new(**node)));
        matched
            .filter_map(|(node, at)| Some((RaftNodeId::new(*node), from_raft((*at)?).index)))
            .collect()
    }

    /// Whether this replica leads and may serve, and all that it has applied, so all that was ever acknowledged, is on the disks of a quorum of
    /// voters without `gone`, each of which has answered a message that was sent after this was called: a lease says of a broker only that it lived a moment ago, and it
    /// may have found its disk damaged since. If `gone` takes no part any more, it stays so. False where this replica does not know, at the latest after half a second.
    pub async fn holds_without(&self, gone: RaftNodeId) -> bool {
        let asked = Instant::now();
        let Some(term) = self.serving_term() else {
            return false;
        };
        // The next one comes by itself, and counts too.
        let _ = self.core.raft.trigger().heartbeat().await;
        let mut news = self.core.raft.data_metrics();
        loop {
            let applied = self.applied().borrow().unwrap_or_default();
            let holds = self
                .core
                .observer
                .quorum_without(gone, applied.index, asked);
            // The same term afterwards: what was looked at was a leader's.
            if self.serving_term() != Some(term) {
                return false;
            }
            if holds {
                return true;
            }
            match timeout_at(asked + ANSWERS_WITHIN, news.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return false,
            }
        }
    }

    /// Does the next thing that brings the group closer to `wanted`. New replicas are taken in as learners, and vote only when they are
    /// close behind, each as soon as it is; a leader that shall go hands over first. Only the leader may step. May be cancelled and repeated at any time: each
    /// step starts from what is there. Nothing is done, and nothing sent to a new replica, before a quorum of voters has answered a question that was asked after this was
    /// called: a leader that lost them a moment ago may serve reads still, and what it sent would be a copy of a group that is lost.
    ///
    /// # Errors
    /// [`ProposeError`]: not the leader (any more), a change of somebody else is under way (`Overloaded`), or not known ([`ProposeError::Timeout`]).
    pub async fn step_membership(&self, wanted: &Replicas) -> Result<MembershipStep, ProposeError> {
        if !self.is_leader() {
            let leader = self.leadership().borrow().leader;
            return Err(ProposeError::NotLeader { leader });
        }
        let leads = timeout(LEADS_WITHIN, self.read_barrier()).await;
        leads.map_err(|_| ProposeError::NotLeader { leader: None })??;
        let now = self.replicas();
        let all = wanted.voters.iter().chain(&wanted.learners);
        let mut unreached = Vec::new();
        for (id, member) in all.filter(|(id, _)| !now.members.contains_key(id)) {
            if !self.seed(*id, member).await {
                // It does not keep the others waiting.
                unreached.push(*id);
                continue;
            }
            crash_point(CrashPoint::MembersSeeded);
            self.core.observer.forget(*id);
            let adding = self.core.raft.add_learner(id.get(), member.clone(), false);
            within(adding).await?;
            crash_point(CrashPoint::MembersLearnerAdded);
            return Ok(MembershipStep::Changed);
        }
        if let Some(stepped) = self.step_voters(wanted, &now).await? {
            return Ok(stepped);
        }
        let gone: BTreeSet<u64> = now
            .members
            .keys()
            .filter(|id| !wanted.voters.contains_key(id) && !wanted.learners.contains_key(id))
            .filter(|id| !now.voters.contains(id))
            .map(|id| id.get())
            .collect();
        if !gone.is_empty() {
            let removing = ChangeMembers::RemoveNodes(gone);
            within(self.core.raft.change_membership(removing, false)).await?;
            return Ok(MembershipStep::Changed);
        }
        let voters = wanted.voters.keys();
        unreached.extend(voters.filter(|id| !now.voters.contains(id)));
        if unreached.is_empty() {
            Ok(MembershipStep::Settled)
        } else {
            unreached.sort_unstable();
            unreached.dedup();
            Ok(MembershipStep::CatchingUp(unreached))
        }
    }

    /// Sends the newest checkpoint to a replica before it is taken in, so that it gets the log after it only: Raft by itself would send all
    /// that is still here, most of which is in the store (D5). False: it did not arrive; a later step tries again.
    async fn seed(&self, id: RaftNodeId, member: &Member) -> bool {
        // A follower that came to lead has perhaps not saved the newest cut that was published. Without any there is nothing to send.
        if let Err(error) = self.snapshot_and_persist().await {
            tracing::debug!(to = %id, "no newer checkpoint: {error}");
        }
        let Some(snapshot) = self.core.store.current() else {
            return true;
        };
        let vote = self.core.raft.server_metrics().borrow_watched().vote;
        let Ok(request) = snapshot_request(&vote, snapshot) else {
            return true;
        };
        let link = self.core.peers.link(id, member, Lane::Snapshots);
        match link.snapshot(request, SEED_WITHIN).await {
            Ok(_) => true,
            Err(error) => {
                tracing::debug!(to = %id, "the checkpoint is sent again: {error}");
                false
            }
        }
    }

    /// `None`: the voters are as wanted, as far as that can be now.
    async fn step_voters(
        &self,
        wanted: &Replicas,
        now: &ReplicasNow,
    ) -> Result<Option<MembershipStep>, ProposeError> {
        let own = self.core.own;
        let followers = self.followers();
        let ready = |id: &RaftNodeId| *id == own || followers.get(id).copied().unwrap_or(false);
        let voters = next_voters(wanted, now, own, ready);
        if now.voters == voters && now.settled {
            return Ok(None);
        }
        // A change that its voters cannot commit could never be undone.
        let (there, away): (Vec<RaftNodeId>, Vec<RaftNodeId>) =
            voters.iter().copied().partition(|id| ready(id));
        if 2 * there.len() <= voters.len() {
            return Ok(Some(MembershipStep::CatchingUp(away)));
        }
        if !voters.contains(&own) && now.settled {
            let mut heirs = voters.iter().filter(|id| now.voters.contains(id));
            if let Some(next) = heirs.find(|id| ready(id)) {
                let asked = self.transfer_leadership(*next).await;
                asked.map_err(|error| ProposeError::Fatal(error.to_string()))?;
                return Ok(Some(MembershipStep::HandedOver(*next)));
            }
        }
        // A voter that becomes a learner stays in; others go at once.
        let retain = now.voters.iter().any(|id| wanted.learners.contains_key(id));
        let ids: BTreeSet<u64> = voters.iter().map(|id| id.get()).collect();
        within(self.core.raft.change_membership(ids, retain)).await?;
        crash_point(CrashPoint::MembersVotersChanged);
        Ok(Some(MembershipStep::Changed))
    }

    /// Whether this replica has never heard of the group: it waits to be taken in, with nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let metrics = self.core.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let mut known = metrics.membership_config.membership().nodes();
        known.next().is_none() && self.applied().borrow().is_none()
    }

    /// Whether this replica's Raft core takes part as a voter or a learner of a group that exists.
    #[must_use]
    pub fn is_taken_in(&self) -> bool {
        let metrics = self.core.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let own = self.core.own.get();
        let membership = metrics.membership_config.membership();
        metrics.state != ServerState::Shutdown && membership.nodes().any(|(id, _)| *id == own)
    }
}

/// The voters to change to now: those that are wanted and vote already or are close behind. For each other one that is wanted, one that is to go stays
/// until then, so that there are never fewer copies than wanted; one that is there rather than one that is not.
fn next_voters(
    wanted: &Replicas,
    now: &ReplicasNow,
    own: RaftNodeId,
    ready: impl Fn(&RaftNodeId) -> bool,
) -> BTreeSet<RaftNodeId> {
    let can = |id: &&RaftNodeId| now.voters.contains(id) || ready(id);
    let mut voters: BTreeSet<RaftNodeId> = wanted.voters.keys().filter(can).copied().collect();
    let missing = wanted.voters.len() - voters.len();
    let going = now.voters.iter().copied();
    let mut going: Vec<RaftNodeId> = going.filter(|id| !wanted.voters.contains_key(id)).collect();
    // The leader first: it need not hand over.
    going.sort_by_key(|id| (*id != own, !ready(id), *id));
    voters.extend(going.into_iter().take(missing));
    voters
}

async fn within<T>(
    change: impl Future<Output = Result<T, RaftError<Types, ClientWriteError<Types>>>>,
) -> Result<(), ProposeError> {
    let error = match timeout(STEP_WITHIN, change).await {
        Ok(Ok(_)) => return Ok(()),
        Ok(Err(error)) => error,
        Err(_) => return Err(ProposeError::Timeout),
    };
    Err(match error {
        RaftError::Fatal(error) => ProposeError::Fatal(error.to_string()),
        RaftError::APIError(ClientWriteError::ForwardToLeader(to)) => ProposeError::NotLeader {
            leader: to.leader_node.map(|member| member.broker),
        },
        RaftError::APIError(ClientWriteError::LogEntryDiscarded(_)) => ProposeError::Unknown,
        RaftError::APIError(other) => {
            tracing::debug!("a change of replicas has to wait: {other}");
            ProposeError::Overloaded
        }
    })
}
