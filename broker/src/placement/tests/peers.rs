//! Three replicas in one process: the adapters of both directions, over a network that can be cut.

use super::*;
use futures::FutureExt;
use std::collections::BTreeSet;
use tokio::sync::{mpsc, oneshot};

/// Delivers messages between replicas, unless the way is cut.
#[derive(Default)]
pub(super) struct Hub {
    inboxes: Mutex<BTreeMap<RaftNodeId, PeerInbox>>,
    isolated: Mutex<BTreeSet<RaftNodeId>>,
    snapshots: Mutex<u64>,
    /// Appends, empty ones too, that were sent to each.
    pub(super) appends: Mutex<BTreeMap<RaftNodeId, usize>>,
    pub(super) asked_to_lead: Mutex<BTreeSet<RaftNodeId>>,
}

impl Hub {
    fn inbox(&self, from: RaftNodeId, to: RaftNodeId) -> Result<PeerInbox, PeerError> {
        let isolated = self.isolated.lock();
        if isolated.contains(&from) || isolated.contains(&to) {
            return Err(PeerError::Unreachable("the way is cut".to_owned()));
        }
        let found = self.inboxes.lock().get(&to).cloned();
        found.ok_or_else(|| PeerError::Unreachable("not started".to_owned()))
    }
}

/// The network of one replica.
struct From(Arc<Hub>, RaftNodeId);

impl PeerNetwork for From {
    fn link(&self, target: RaftNodeId, _member: &Member, _lane: Lane) -> Arc<dyn PeerLink> {
        let (queue, mut waiting) = mpsc::unbounded_channel::<(AppendRequest, oneshot::Sender<_>)>();
        let (hub, from) = (Arc::clone(&self.0), self.1);
        tokio::spawn(async move {
            while let Some((request, reply)) = waiting.recv().await {
                let answer = match hub.inbox(from, target) {
                    Ok(inbox) => inbox.append(request).await,
                    Err(error) => Err(error),
                };
                let _ = reply.send(answer);
            }
        });
        Arc::new(Link {
            hub: Arc::clone(&self.0),
            from,
            to: target,
            queue,
        })
    }
}

type Queue = mpsc::UnboundedSender<(
    AppendRequest,
    oneshot::Sender<Result<AppendReply, PeerError>>,
)>;

struct Link {
    hub: Arc<Hub>,
    from: RaftNodeId,
    to: RaftNodeId,
    queue: Queue,
}

impl Link {
    /// Delivers, and lets the answer come back only if the way is still open.
    fn call<T, F>(&self, call: impl FnOnce(PeerInbox) -> F + Send + 'static) -> PeerReply<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, PeerError>> + Send,
    {
        let (hub, from, to) = (Arc::clone(&self.hub), self.from, self.to);
        let exchange = async move {
            let answer = call(hub.inbox(from, to)?).await?;
            hub.inbox(from, to).map(|_| answer)
        };
        exchange.boxed()
    }
}

impl PeerLink for Link {
    fn append(&self, request: AppendRequest, deadline: Duration) -> PeerReply<AppendReply> {
        *self.hub.appends.lock().entry(self.to).or_default() += 1;
        let (reply, answer) = oneshot::channel();
        self.queue.send((request, reply)).expect("the worker runs");
        let exchange = async move {
            match tokio::time::timeout(deadline, answer).await {
                Ok(Ok(answer)) => answer,
                _ => Err(PeerError::Failed("no answer".to_owned())),
            }
        };
        exchange.boxed()
    }

    fn vote(&self, request: VoteRequest, _deadline: Duration) -> PeerReply<VoteReply> {
        self.call(move |inbox| async move { inbox.vote(request).await })
    }

    fn pre_vote(&self, request: VoteRequest, _deadline: Duration) -> PeerReply<VoteReply> {
        self.call(move |inbox| async move { inbox.pre_vote(request).await })
    }

    fn snapshot(
        &self,
        request: SnapshotRequest,
        _deadline: Duration,
    ) -> PeerReply<crate::log::Vote> {
        *self.hub.snapshots.lock() += 1;
        self.call(move |inbox| async move { inbox.snapshot(request).await })
    }

    fn transfer(&self, request: TransferRequest, _deadline: Duration) -> PeerReply<TransferReply> {
        self.hub.asked_to_lead.lock().insert(request.to);
        self.call(move |inbox| async move { inbox.transfer(request).await })
    }
}

pub(super) struct Cluster {
    pub(super) hub: Arc<Hub>,
    pub(super) disk: MemoryDisk,
    pub(super) groups: BTreeMap<RaftNodeId, Group<Values>>,
}

impl Cluster {
    pub(super) async fn start() -> Self {
        let members: BTreeMap<_, _> = (1..=3)
            .map(|id| (RaftNodeId::new(id), member(i32::try_from(id).unwrap())))
            .collect();
        let mut cluster = Self {
            hub: Arc::default(),
            disk: MemoryDisk::new(),
            groups: BTreeMap::new(),
        };
        for id in 1..=3 {
            cluster.add(id, members.clone()).await;
        }
        cluster
    }

    /// Starts one more replica.
    pub(super) async fn add(&mut self, id: u64, first: BTreeMap<RaftNodeId, Member>) {
        let dir = PathBuf::from(format!("/replica-{id}/1"));
        let home = Home::on(self.disk.shared(), dir, id);
        let mut config = GroupConfig::new(GROUP, home.node, first);
        config.heartbeat = Duration::from_millis(50);
        config.election_min = Duration::from_millis(300);
        config.election_max = Duration::from_millis(600);
        config.propose_deadline = Duration::from_secs(2);
        let network = Arc::new(From(Arc::clone(&self.hub), home.node));
        let group = Group::start(config, home.log().await, Values::new(Cuts::AtCut), network)
            .await
            .expect("starts");
        self.hub.inboxes.lock().insert(home.node, group.inbox());
        self.groups.insert(home.node, group);
    }

    /// Stops a replica; its files stay.
    pub(super) async fn remove(&mut self, id: RaftNodeId) {
        self.hub.inboxes.lock().remove(&id);
        self.groups.remove(&id).expect("it runs").stop().await;
    }

    pub(super) fn isolate(&self, id: RaftNodeId) {
        self.hub.isolated.lock().insert(id);
    }

    pub(super) fn heal(&self) {
        self.hub.isolated.lock().clear();
    }

    /// Snapshots that were sent.
    pub(super) fn snapshots(&self) -> u64 {
        *self.hub.snapshots.lock()
    }

    /// The leader among those that are not cut off.
    pub(super) async fn leader(&self) -> (RaftNodeId, Group<Values>) {
        let found = tokio::time::timeout(WAIT, async {
            loop {
                for (id, group) in &self.groups {
                    if group.can_serve_reads() && !self.hub.isolated.lock().contains(id) {
                        return (*id, group.clone());
                    }
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        found.await.expect("somebody leads")
    }

    /// Waits until every replica holds exactly `values`.
    pub(super) async fn agree(&self, values: &[u64]) {
        for (id, group) in &self.groups {
            let mut applied = group.applied();
            let holds = async {
                while group.read(|machine| machine.values != values) {
                    applied.changed().await.expect("it runs");
                }
            };
            if tokio::time::timeout(WAIT, holds).await.is_err() {
                panic!(
                    "replica {id} holds {:?}",
                    group.read(|machine| machine.values.clone())
                );
            }
        }
    }

    pub(super) async fn stop(self) {
        for group in self.groups.values() {
            group.stop().await;
        }
    }
}

/// Proves that entries reach every replica in order, that followers know the leader, and that they refuse proposals.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_replicas_agree() {
    let cluster = Cluster::start().await;
    let (id, leader) = cluster.leader().await;
    let waiting: Vec<_> = (0..300)
        .map(|value| leader.propose_ordered(add(value, 500)))
        .collect();
    for result in futures::future::join_all(waiting).await {
        result.expect("applied");
    }
    cluster.agree(&(0..300).collect::<Vec<_>>()).await;
    for (follower, group) in cluster.groups.iter().filter(|(other, _)| **other != id) {
        assert!(!group.is_leader() && !group.can_serve_reads());
        assert!(matches!(
            group.read_barrier().await,
            Err(ProposeError::NotLeader { .. })
        ));
        let broker = Some(NodeId::new(i32::try_from(id.get()).unwrap()));
        assert_eq!(
            group.leadership().borrow().leader,
            broker,
            "replica {follower}"
        );
        assert_eq!(
            group.propose(add(9, 0)).await,
            Err(ProposeError::NotLeader { leader: broker })
        );
    }
    cluster.stop().await;
}

/// Proves that a leader that is cut off stops serving and acknowledging, another takes over in a newer term, and after the
/// cut heals everything that was acknowledged is everywhere (I1, I4).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_off_leader_serves_nothing() {
    let cluster = Cluster::start().await;
    let (old_id, old) = cluster.leader().await;
    old.propose(add(0, 0)).await.expect("applied");
    let old_term = old.term();
    cluster.isolate(old_id);
    let lost = old.propose(add(100, 0)).await.expect_err("no quorum");
    assert!(
        lost.may_have_happened() || matches!(lost, ProposeError::NotLeader { .. }),
        "{lost}"
    );
    assert!(!old.can_serve_reads(), "its lease has run out");
    let refused = old.propose(add(101, 0)).await.expect_err("no lease");
    assert_eq!(
        refused,
        ProposeError::NotLeader { leader: None },
        "did not happen"
    );

    let (new_id, new) = cluster.leader().await;
    assert_ne!(new_id, old_id);
    assert!(new.term() > old_term);
    new.propose(add(1, 0)).await.expect("applied");
    cluster.heal();
    cluster.agree(&[0, 1]).await;
    assert!(!old.is_leader());
    cluster.stop().await;
}

/// Proves that a replica whose missing entries are purged gets the checkpoint at the cut and the entries after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_far_behind_gets_the_checkpoint() {
    let cluster = Cluster::start().await;
    let (id, leader) = cluster.leader().await;
    let behind = cluster
        .groups
        .keys()
        .copied()
        .find(|other| *other != id)
        .expect("a follower");
    leader.propose(add(0, 0)).await.expect("applied");
    cluster.agree(&[0]).await;
    cluster.isolate(behind);
    for value in 1..40 {
        leader
            .propose(add(value, 200))
            .await
            .expect("applied by two");
    }
    let (at_cut, _) = leader.propose(cut()).await.expect("applied");
    for value in 40..50 {
        leader
            .propose(add(value, 200))
            .await
            .expect("applied by two");
    }
    assert_eq!(leader.snapshot_and_persist().await, Ok(at_cut));
    leader.purge(at_cut.index).await.expect("asked");
    let purged = tokio::time::timeout(WAIT, async {
        // A leader keeps what a follower is being sent; the cut-off one is not sent anything that goes through.
        while leader.log().state().purged != Some(at_cut) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    purged.await.expect("purged");
    cluster.heal();
    cluster.agree(&(0..50).collect::<Vec<_>>()).await;
    assert!(*cluster.hub.snapshots.lock() > 0, "by a snapshot");
    let (found, _) = cluster.groups[&behind]
        .log()
        .load_newest_checkpoint()
        .await
        .expect("readable")
        .expect("there");
    assert_eq!(found, at_cut, "what was installed is a checkpoint here too");
    leader.propose(add(50, 0)).await.expect("applied");
    cluster.agree(&(0..=50).collect::<Vec<_>>()).await;
    cluster.stop().await;
}

/// Proves that leadership is handed over on request, to the one that was named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_is_handed_over() {
    let cluster = Cluster::start().await;
    let (id, leader) = cluster.leader().await;
    leader.propose(add(0, 0)).await.expect("applied");
    leader.read_barrier().await.expect("a quorum answers");
    cluster.agree(&[0]).await;
    let next = cluster
        .groups
        .keys()
        .copied()
        .find(|other| *other != id)
        .expect("a follower");
    leader.transfer_leadership(next).await.expect("asked");
    cluster.groups[&next]
        .wait_leader(WAIT)
        .await
        .expect("the named one leads");
    cluster.groups[&next]
        .propose(add(1, 0))
        .await
        .expect("applied");
    cluster.agree(&[0, 1]).await;
    cluster.stop().await;
}

/// Proves that a replica that waits to be taken in gives nobody its vote: it may have held what was acknowledged, and lost it.
#[tokio::test]
async fn an_empty_replica_grants_no_vote() {
    let home = Home::on(MemoryDisk::new().shared(), PathBuf::from("/replica-1/1"), 1);
    let config = GroupConfig::new(GROUP, home.node, BTreeMap::new());
    let network = Arc::new(From(Arc::<Hub>::default(), home.node));
    let group = Group::start(config, home.log().await, Values::new(Cuts::AtCut), network)
        .await
        .expect("starts");
    let request = || VoteRequest {
        vote: crate::log::Vote {
            term: Term::new(9),
            node: RaftNodeId::new(2),
            committed: false,
        },
        last: None,
        transfer: true,
    };
    let refused = group.inbox().vote(request()).await.unwrap_err();
    assert!(
        refused.to_string().contains("not in the group"),
        "{refused}"
    );
    assert!(group.inbox().pre_vote(request()).await.is_err());
    group.stop().await;
}
