//! Changes of the metadata group from any broker: proposed here when this broker leads it, else sent to the leader.
//!
//! Owns: finding the leader, retries of what did not happen, read-your-writes.
//! Not here: the answering side (`metadata_service.rs`), what commands mean (`metadata`).
//! Spec: docs/protocols/metadata-forwarding.md

use super::heartbeats::{BrokerSessions, HeartbeatError};
use super::metadata_service::{Answer, Request};
use crate::metadata::{MetadataCommand, MetadataMachine, MetadataOutcome, Standing};
use crate::peer::{CallError, PeerTarget, PeerTransport};
use crate::placement::{Group, ProposeError};
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::{Clock, Random};
use tidelog_model::{LogId, NodeId, RaftNodeId, TimestampMs};
use tokio::time::{Instant, timeout_at};

/// How long a change may look for a leader, and for its outcome: below the 30 s that clients give a request, above a bad election.
const DEADLINE: Duration = Duration::from_secs(15);
/// Pause before what did not happen is tried again, with jitter: a tenth of an election.
const RETRY_PAUSE: Duration = Duration::from_millis(150);

/// Who brokers are and where.
pub trait BrokerBook: Send + Sync + 'static {
    /// How `broker` is called; `None` if nobody has heard of it. Returns at once.
    fn target(&self, broker: NodeId) -> Option<PeerTarget>;
}

/// The other brokers, to send commands to.
#[derive(Clone)]
pub struct MetadataLink {
    /// The connections.
    pub transport: PeerTransport,
    /// The number of the service there.
    pub service: u8,
    /// The number of the service that says where partitions end.
    pub ends: u8,
    /// Whom to call.
    pub brokers: Arc<dyn BrokerBook>,
}

/// The metadata group as every broker uses it. Clones share it.
#[derive(Clone)]
pub struct MetadataClient {
    /// This broker.
    pub node: NodeId,
    /// It as a Raft node.
    pub raft_node: RaftNodeId,
    /// Its replica of the metadata group.
    pub group: Group<MetadataMachine>,
    /// When brokers were heard, while this one leads the group.
    pub sessions: BrokerSessions,
    /// The others; `None` in a cluster of one.
    pub link: Option<Arc<MetadataLink>>,
    /// For stamps.
    pub clock: Arc<dyn Clock>,
    /// For jitter.
    pub random: Arc<dyn Random>,
}

impl MetadataClient {
    /// Proposes a command, wherever the metadata group is led; when this returns an outcome, this broker's image has it.
    ///
    /// # Errors
    /// [`ProposeError`], after retries of what did not happen.
    pub async fn propose(
        &self,
        command: &MetadataCommand,
    ) -> Result<MetadataOutcome, ProposeError> {
        self.propose_by(command, Instant::now() + DEADLINE).await
    }

    /// The same, for who cannot wait that long: no answer by `deadline` is an error, too.
    ///
    /// # Errors
    /// [`ProposeError`].
    pub async fn propose_by(
        &self,
        command: &MetadataCommand,
        deadline: Instant,
    ) -> Result<MetadataOutcome, ProposeError> {
        let deadline = deadline.min(Instant::now() + DEADLINE);
        loop {
            let error = match self.try_propose(command, deadline).await {
                Ok((id, outcome)) => {
                    self.wait_applied(id, deadline).await?;
                    return Ok(outcome);
                }
                Err(error) => error,
            };
            self.pause_or(error, deadline).await?;
        }
    }

    /// Waits until this broker's image has everything that was committed when this was called.
    ///
    /// # Errors
    /// [`ProposeError`]: nobody leads the metadata group, or it is not reached. Nothing has changed.
    pub async fn barrier(&self) -> Result<(), ProposeError> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let error = match self.leader() {
                None => match timeout_at(deadline, self.group.read_barrier()).await {
                    Ok(Ok(())) => return Ok(()),
                    Ok(Err(error)) => error,
                    Err(_) => ProposeError::NotLeader { leader: None },
                },
                Some(target) => match self.call(&target, &Request::Barrier, deadline).await {
                    Ok((id, _)) => return self.wait_applied(id, deadline).await,
                    // A barrier may be repeated whatever became of it.
                    Err(_) => ProposeError::NotLeader { leader: None },
                },
            };
            self.pause_or(error, deadline).await?;
        }
    }

    /// Tells the leader of the metadata group that this broker lives, or that it stops. Not tried again here.
    pub(super) async fn heartbeat(
        &self,
        leaving: bool,
        within: Duration,
    ) -> Result<LogId, HeartbeatError> {
        let Some(target) = self.leader() else {
            let stamp = TimestampMs::new(self.clock.now_ms());
            let own = (self.node, self.raft_node);
            return self.sessions.hear(&self.group, own, leaving, stamp).await;
        };
        let deadline = Instant::now() + within;
        let request = Request::Heartbeat { leaving };
        match self.ask(&target, &request, deadline).await? {
            Answer::NotMember { replaced } => {
                let standing = if replaced {
                    Standing::Replaced
                } else {
                    Standing::Gone
                };
                Err(HeartbeatError::NotMember(standing))
            }
            answer => Ok(done(answer)?.0),
        }
    }

    async fn pause_or(&self, error: ProposeError, deadline: Instant) -> Result<(), ProposeError> {
        let again = matches!(
            error,
            ProposeError::NotLeader { .. } | ProposeError::Overloaded
        );
        let pause = self.random.jitter(RETRY_PAUSE);
        if !again || self.link.is_none() || Instant::now() + pause >= deadline {
            return Err(error);
        }
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// The other broker to ask; `None`: this one.
    fn leader(&self) -> Option<PeerTarget> {
        let known = *self.group.leadership().borrow();
        if known.is_leader {
            return None;
        }
        // It may be this one, which does not know yet that it may lead.
        let other = known.leader.filter(|leader| *leader != self.node)?;
        self.link.as_ref()?.brokers.target(other)
    }

    async fn try_propose(
        &self,
        command: &MetadataCommand,
        deadline: Instant,
    ) -> Result<(LogId, MetadataOutcome), ProposeError> {
        let stamped = command.encode(TimestampMs::new(self.clock.now_ms()));
        let Some(target) = self.leader() else {
            // Without a majority the group would think about it for longer.
            return match timeout_at(deadline, self.group.propose(stamped)).await {
                Ok(proposed) => proposed,
                Err(_) => Err(ProposeError::Timeout),
            };
        };
        let request = Request::Propose(stamped.dir);
        match self.call(&target, &request, deadline).await? {
            (id, Some(outcome)) => Ok((id, outcome)),
            (_, None) => Err(ProposeError::Unknown),
        }
    }

    async fn call(
        &self,
        target: &PeerTarget,
        request: &Request,
        deadline: Instant,
    ) -> Result<(LogId, Option<MetadataOutcome>), ProposeError> {
        done(self.ask(target, request, deadline).await?)
    }

    async fn ask(
        &self,
        target: &PeerTarget,
        request: &Request,
        deadline: Instant,
    ) -> Result<Answer, ProposeError> {
        let Some(link) = &self.link else {
            return Err(ProposeError::NotLeader { leader: None });
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let called = link
            .transport
            .call(target, link.service, request.encode(), left)
            .await;
        let answer = match called {
            Ok(answer) => answer,
            Err(CallError::NotDone(_)) => return Err(ProposeError::NotLeader { leader: None }),
            Err(CallError::Unknown(_)) => return Err(ProposeError::Unknown),
        };
        Answer::decode(&answer).map_err(|error| {
            tracing::warn!("the answer of the leader of metadata cannot be read: {error}");
            ProposeError::Unknown
        })
    }

    /// It happened; whether this broker sees it in time is another matter.
    async fn wait_applied(&self, id: LogId, deadline: Instant) -> Result<(), ProposeError> {
        let mut applied = self.group.applied();
        let seen = applied.wait_for(|at| at.is_some_and(|at| at.index >= id.index));
        match timeout_at(deadline, seen).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(ProposeError::Fatal("the broker is stopping".to_owned())),
            Err(_) => Err(ProposeError::Timeout),
        }
    }
}

/// What an answer says of the change that was asked for.
fn done(answer: Answer) -> Result<(LogId, Option<MetadataOutcome>), ProposeError> {
    match answer {
        Answer::Done(id, outcome) => Ok((id, outcome)),
        Answer::NotLeader(leader) => Err(ProposeError::NotLeader { leader }),
        Answer::DidNotHappen(why) => {
            tracing::debug!("the leader of metadata did nothing: {why}");
            Err(ProposeError::Overloaded)
        }
        Answer::NotMember { .. } => Err(ProposeError::Overloaded),
        Answer::MayHaveHappened(why) => {
            tracing::debug!("the leader of metadata does not know: {why}");
            Err(ProposeError::Unknown)
        }
    }
}
