//! Signs of life of brokers: sent to the leader of the metadata group, which keeps clients away from the silent ones.
//!
//! Owns: [`BrokerSessions`], the leader's side; [`Heartbeats`], the sender's side.
//! Not here: the rule (`sessions.rs`), bytes (`metadata_service.rs`), what a fence means to clients (`api`).
//! Spec: docs/protocols/broker-sessions.md

use super::metadata_client::MetadataClient;
use super::sessions::Sessions;
use crate::metadata::{MetadataCommand, MetadataMachine, MetadataOutcome, Standing};
use crate::placement::{Group, ProposeError};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::Tasks;
use tidelog_model::{LogId, NodeId, RaftNodeId, TimestampMs};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout};

/// Signs of life within a session: three may be lost or late.
const HEARTBEATS_PER_SESSION: u32 = 4;
/// How often a leader looks for the silent ones, within a session: what a fence may come later.
const LOOKS_PER_SESSION: u32 = 12;
/// Pause before it is said again.
const LEAVE_PAUSE: Duration = Duration::from_millis(50);
/// How long a broker that stops tries to say so. Whoever misses it finds out within a session.
const LEAVE_WITHIN: Duration = Duration::from_secs(1);

/// Why a sign of life was not taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum HeartbeatError {
    /// Nobody took it; the next one may be.
    #[error(transparent)]
    Unheard(#[from] ProposeError),
    /// The leader says that the caller is no member any more. It never will be again under its Raft node.
    #[error("this broker is no member any more: {0:?}")]
    NotMember(Standing),
}

/// When brokers were heard, on the broker that leads the metadata group. Clones share it.
#[derive(Clone)]
pub struct BrokerSessions {
    session: Duration,
    sessions: Arc<Mutex<Sessions>>,
}

impl BrokerSessions {
    /// Nobody was heard yet; who is silent for `session` is fenced.
    #[must_use]
    pub fn new(session: Duration) -> Self {
        Self {
            session,
            sessions: Arc::new(Mutex::new(Sessions::new(session))),
        }
    }

    /// A sign of life of `caller`, or its word that it stops, at the leader. A fence is changed before this returns.
    pub(super) async fn hear(
        &self,
        group: &Group<MetadataMachine>,
        caller: (NodeId, RaftNodeId),
        leaving: bool,
        stamp: TimestampMs,
    ) -> Result<LogId, HeartbeatError> {
        if !group.is_leader() {
            let leader = group.leadership().borrow().leader;
            return Err(ProposeError::NotLeader { leader }.into());
        }
        let (node, raft_node) = caller;
        let standing = || group.read(|machine| machine.image().standing(node, raft_node));
        if standing() != Standing::Member {
            // One that was cut off may not know who has come since, and may not know yet that it does not lead.
            group.read_barrier().await?;
            let standing = standing();
            if standing != Standing::Member {
                return Err(HeartbeatError::NotMember(standing));
            }
        }
        let known = group.read(|machine| {
            let broker = machine.image().brokers().get(&node);
            broker.map(|broker| broker.fenced.is_some())
        });
        // Who is not registered yet has nothing to be fenced from.
        if let Some(fenced) = known {
            if !leaving {
                self.sessions.lock().heard(node, Instant::now());
            }
            if fenced != leaving {
                return Ok(set_fence(group, node, leaving, stamp).await?);
            }
        }
        let applied = *group.applied().borrow();
        Ok(applied.unwrap_or_default())
    }

    fn silent(&self, group: &Group<MetadataMachine>) -> Vec<NodeId> {
        let known = *group.leadership().borrow();
        let live: Vec<NodeId> = group.read(|machine| {
            let brokers = machine.image().brokers().iter();
            let live = brokers.filter(|(_, broker)| broker.fenced.is_none());
            live.map(|(node, _)| *node).collect()
        });
        let term = known.is_leader.then_some(known.term);
        self.sessions.lock().look(term, &live, Instant::now())
    }
}

async fn set_fence(
    group: &Group<MetadataMachine>,
    node: NodeId,
    fenced: bool,
    stamp: TimestampMs,
) -> Result<LogId, ProposeError> {
    let command = MetadataCommand::SetBrokerFence { node, fenced };
    let (id, outcome) = group.propose(command.encode(stamp)).await?;
    match outcome {
        MetadataOutcome::BrokerFenceSet if fenced => {
            tracing::warn!("broker {node} is fenced: it is silent, or it stops");
        }
        MetadataOutcome::BrokerFenceSet => tracing::info!("broker {node} lives again"),
        other => tracing::warn!("the fence of broker {node} was not changed: {other:?}"),
    }
    Ok(id)
}

impl MetadataClient {
    /// How long a broker may be silent.
    #[must_use]
    pub const fn session(&self) -> Duration {
        self.sessions.session
    }

    /// Fences brokers that fall silent, whenever this broker leads the metadata group.
    pub fn watch_brokers(&self, tasks: &Tasks) {
        let client = self.clone();
        let pause = self.sessions.session / LOOKS_PER_SESSION;
        tasks.supervise("broker-sessions", pause, move || {
            let client = client.clone();
            async move {
                loop {
                    tokio::time::sleep(pause).await;
                    for node in client.sessions.silent(&client.group) {
                        let stamp = TimestampMs::new(client.clock.now_ms());
                        if let Err(error) = set_fence(&client.group, node, true, stamp).await {
                            tracing::debug!("broker {node} could not be fenced: {error}");
                        }
                    }
                }
            }
        });
    }
}

/// The signs of life of this broker. They end when it is dropped, or with the tasks.
pub struct Heartbeats {
    leave: oneshot::Sender<oneshot::Sender<()>>,
}

impl Heartbeats {
    /// Tells the leader of the metadata group that this broker serves: now, several times in a session, and when another leads. If the leader
    /// says that it is no member any more, `ended` is told so, once.
    #[must_use]
    pub fn start(
        client: MetadataClient,
        ended: impl Fn(Standing) + Send + Sync + 'static,
        tasks: &Tasks,
    ) -> Self {
        let (leave, left) = oneshot::channel::<oneshot::Sender<()>>();
        let left = Arc::new(tokio::sync::Mutex::new(left));
        let ended = Arc::new(ended);
        let interval = client.sessions.session / HEARTBEATS_PER_SESSION;
        tasks.supervise("heartbeats", interval, move || {
            let (client, ended) = (client.clone(), Arc::clone(&ended));
            let left = Arc::clone(&left);
            async move {
                let mut left = left.lock().await;
                let mut leadership = client.group.leadership();
                let told = tokio::select! {
                    standing = beat(&client, interval, &mut leadership) => {
                        if let Some(standing) = standing {
                            ended(standing);
                        }
                        None
                    }
                    done = &mut *left => Some(done),
                };
                // Who is no member any more has nobody to tell that it stops.
                let (done, tells) = match told {
                    Some(done) => (done, true),
                    None => ((&mut *left).await, false),
                };
                if let Ok(done) = done {
                    if tells && timeout(LEAVE_WITHIN, say_leave(&client)).await.is_err() {
                        tracing::debug!("nobody could be told that this broker stops");
                    }
                    let _ = done.send(());
                }
                std::future::pending().await
            }
        });
        Self { leave }
    }

    /// Says that this broker stops, and gives no sign of life any more. Returns when that is known, or after a second.
    pub async fn leave(self) {
        let (done, said) = oneshot::channel();
        if self.leave.send(done).is_ok() {
            // An error: the task has ended with its set.
            let _ = said.await;
        }
    }
}

/// Until somebody takes it: this broker may have handed leadership over a moment ago.
async fn say_leave(client: &MetadataClient) {
    while let Err(HeartbeatError::Unheard(_)) = client.heartbeat(true, LEAVE_WITHIN).await {
        tokio::time::sleep(LEAVE_PAUSE).await;
    }
}

/// Ends when the group does, or with what this broker is when it is no member any more.
async fn beat(
    client: &MetadataClient,
    interval: Duration,
    leadership: &mut watch::Receiver<crate::placement::Leadership>,
) -> Option<Standing> {
    loop {
        leadership.borrow_and_update();
        let next = Instant::now() + interval;
        match timeout(interval, client.heartbeat(false, interval)).await {
            Ok(Ok(_)) => {}
            Ok(Err(HeartbeatError::NotMember(standing))) => return Some(standing),
            Ok(Err(error)) => tracing::debug!("no sign of life was taken: {error}"),
            Err(_) => tracing::debug!("a sign of life was not answered in time"),
        }
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            changed = leadership.changed() => {
                if changed.is_err() {
                    return None;
                }
                // Leadership may change several times within moments.
                tokio::time::sleep(interval / 10).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::super::tests::{STAMP, admit, metadata_group};
    use super::*;

    /// Proves that signs of life are taken from members by their Raft nodes: one that was replaced, and one that is gone, are told so, and keep
    /// nobody else alive.
    #[tokio::test]
    async fn only_members_live() {
        let group = metadata_group().await;
        let sessions = BrokerSessions::new(Duration::from_secs(6));
        let two = NodeId::new(2);
        let (old, new) = (RaftNodeId::new(22), RaftNodeId::new(23));
        admit(&group, (two, old)).await;
        let hear = |node, raft_node| sessions.hear(&group, (node, raft_node), false, STAMP);
        let live = || group.read(|machine| machine.image().is_live(two));
        hear(two, old).await.unwrap();
        assert!(live());

        admit(&group, (two, new)).await;
        let said = hear(two, old).await.unwrap_err();
        let HeartbeatError::NotMember(standing) = said else {
            panic!("{said}");
        };
        assert_eq!(standing, Standing::Replaced);
        assert!(!live(), "the old one does not speak for the new one");
        hear(two, new).await.unwrap();
        assert!(live());

        let stranger = hear(NodeId::new(3), RaftNodeId::new(33)).await;
        let gone = HeartbeatError::NotMember(Standing::Gone);
        assert_eq!(stranger.unwrap_err().to_string(), gone.to_string());
        group.stop().await;
    }
}
