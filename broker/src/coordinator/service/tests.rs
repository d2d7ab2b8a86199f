//! Tests of the coordinator's shell over an in-memory log: requests, leadership, time, faults.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::memory_log::MemoryLog;
use super::*;
use crate::coordinator::membership::{JoinRefusal, JoinRequest, Joined, SyncRequest};
use crate::coordinator::state::{Committer, NewOffset};
use crate::coordinator::{InstanceId, MemberId, limits};
use bytes::Bytes;
use std::sync::atomic::{AtomicI64, Ordering};
use tidelog_env::SystemRandom;
use tidelog_model::{LeaderEpoch, PartitionIndex, Term, TopicId};
use uuid::Uuid;

/// Partitions end at offset 100.
struct EndsAtHundred;

#[async_trait]
impl CommitCheck for EndsAtHundred {
    async fn check(&self, offsets: &[WantedOffset]) -> Vec<Result<(), ConsumerGroupError>> {
        let check = |wanted: &WantedOffset| {
            if wanted.offset.get() <= 100 {
                Ok(())
            } else {
                Err(ConsumerGroupError::OffsetOutOfRange)
            }
        };
        offsets.iter().map(check).collect()
    }
}

struct TestClock(AtomicI64);

impl Clock for TestClock {
    fn now_ms(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

pub(super) struct Rig {
    pub(super) coordinator: Coordinator,
    pub(super) log: Arc<MemoryLog>,
    clock: Arc<TestClock>,
    leadership: watch::Sender<Leadership>,
    tasks: Tasks,
}

impl Rig {
    async fn new() -> Self {
        Self::over(Arc::default()).await
    }

    /// A coordinator that leads, over what `log` holds.
    async fn over(log: Arc<MemoryLog>) -> Self {
        Self::with(log, Arc::new(EndsAtHundred)).await
    }

    pub(super) async fn with(log: Arc<MemoryLog>, check: Arc<dyn CommitCheck>) -> Self {
        let (leadership, receiver) = watch::channel(Leadership::default());
        let clock = Arc::new(TestClock(AtomicI64::new(1_000_000)));
        let tasks = Tasks::new();
        let config = CoordinatorConfig {
            membership: MembershipConfig {
                initial_delay_ms: 50,
                session_timeout_ms_min: 10,
                save_retry_ms: 10,
                ..MembershipConfig::default()
            },
            offsets_retention: Duration::from_secs(60),
            expire_interval: Duration::from_millis(20),
        };
        let parts = CoordinatorParts {
            log: log.clone(),
            check,
            leadership: receiver,
            clock: clock.clone(),
            random: SystemRandom::seeded(7),
            tasks: tasks.clone(),
        };
        let rig = Self {
            coordinator: Coordinator::start(config, parts),
            log,
            clock,
            leadership,
            tasks,
        };
        rig.lead(Some(1)).await;
        rig
    }

    async fn lead(&self, term: Option<u64>) {
        let term_seen = Term::new(term.unwrap_or(99));
        self.leadership
            .send(Leadership {
                leader: None,
                term: term_seen,
                is_leader: term.is_some(),
            })
            .unwrap();
        while self.coordinator.shared.table.lock().leading != term.map(Term::new) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn join(&self, request: JoinRequest) -> Result<Joined, JoinRefusal> {
        self.coordinator.join_group(&group(), request).await
    }

    async fn sync(&self, joined: &Joined) -> Result<Bytes, ConsumerGroupError> {
        let assignments = joined
            .members
            .iter()
            .map(|one| (one.member.clone(), Bytes::from_static(b"part")))
            .collect();
        let request = SyncRequest {
            member: joined.member.clone(),
            generation: joined.generation,
            assignments,
            ..SyncRequest::default()
        };
        self.coordinator
            .sync_group(&group(), request)
            .await
            .map(|synced| synced.assignment)
    }

    /// One member in a stable group.
    pub(super) async fn stable(&self) -> Joined {
        let joined = self.join(request()).await.unwrap();
        assert_eq!(self.sync(&joined).await.unwrap(), "part");
        joined
    }

    async fn commit(&self, committer: Committer, offset: i64) -> Result<(), ConsumerGroupError> {
        let request = CommitRequest {
            group: group(),
            committer,
            offsets: vec![new_offset(0, offset)],
        };
        self.coordinator.commit_offsets(request).await?[0]
    }

    pub(super) async fn committed(&self) -> Option<i64> {
        let asked = [partition(0)];
        let fetched = self
            .coordinator
            .fetch_offsets(&group(), Some(&asked))
            .await
            .unwrap();
        fetched[0]
            .1
            .as_ref()
            .map(|committed| committed.offset.get())
    }
}

/// Waits until `condition` holds; the test fails when it does not for a long time.
pub(super) async fn eventually(condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), wait)
        .await
        .unwrap();
}

fn phase(rig: &Rig) -> &'static str {
    rig.coordinator.describe_group(&group()).unwrap().phase
}

pub(super) fn group() -> ConsumerGroupName {
    ConsumerGroupName::new("g")
}

pub(super) fn partition(index: i32) -> PartitionId {
    PartitionId {
        topic: TopicId::new(Uuid::from_u128(1)),
        index: PartitionIndex::new(index),
    }
}

pub(super) fn new_offset(index: i32, offset: i64) -> NewOffset {
    NewOffset {
        partition: partition(index),
        offset: Offset::new(offset),
        leader_epoch: LeaderEpoch::new(-1),
        metadata: String::new(),
    }
}

fn request() -> JoinRequest {
    JoinRequest {
        client_id: "c".into(),
        client_host: "h".into(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 30_000,
        protocol_type: "consumer".into(),
        protocols: vec![("range".into(), Bytes::from_static(b"sub"))],
        ..JoinRequest::default()
    }
}

pub(super) fn by(joined: &Joined) -> Committer {
    Committer::Member {
        generation: joined.generation,
        member: joined.member.clone(),
        instance: None,
    }
}

/// Proves the ordinary life of a group: join, sync, heartbeat, commit, fetch, list, describe, leave, delete.
#[tokio::test]
async fn a_group_lives() {
    let rig = Rig::new().await;
    let (one, two) = tokio::join!(rig.join(request()), rig.join(request()));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert!(one.member.as_str().starts_with("c-"));
    let synced = tokio::join!(rig.sync(&one), rig.sync(&two));
    assert_eq!(
        (synced.0.unwrap(), synced.1.unwrap()),
        (Bytes::from_static(b"part"), Bytes::from_static(b"part"))
    );
    assert_eq!(
        rig.coordinator.heartbeat(&group(), &one.member, None, 1),
        Ok(())
    );
    assert_eq!(rig.commit(by(&one), 42).await, Ok(()));
    assert_eq!(rig.committed().await, Some(42));
    let listed = rig.coordinator.list_groups().unwrap();
    assert_eq!(
        (listed[0].phase, listed[0].protocol_type.as_str()),
        ("Stable", "consumer")
    );
    let described = rig.coordinator.describe_group(&group()).unwrap();
    assert_eq!(
        (described.members.len(), described.protocol.as_str()),
        (2, "range")
    );
    assert_eq!(described.members[0].assignment, "part");
    assert_eq!(
        rig.coordinator.delete_group(&group()).await,
        Err(ConsumerGroupError::NonEmptyGroup)
    );
    assert_eq!(
        rig.commit(Committer::Simple, 1).await,
        Err(ConsumerGroupError::UnknownMember)
    );
    let leaving = [
        (one.member, None),
        (two.member, None),
        (MemberId::new("x"), None),
    ];
    let left = rig.coordinator.leave_group(&group(), &leaving).unwrap();
    assert_eq!(
        left,
        [Ok(()), Ok(()), Err(ConsumerGroupError::UnknownMember)]
    );
    // Right after the last member left, an administrator finds the group empty.
    assert_eq!(rig.commit(Committer::Simple, 7).await, Ok(()));
    assert_eq!(
        rig.coordinator.describe_group(&group()).unwrap().phase,
        "Empty"
    );
    assert_eq!(rig.committed().await, Some(7));
    assert_eq!(rig.coordinator.delete_group(&group()).await, Ok(()));
    assert_eq!(rig.committed().await, None);
    assert_eq!(
        rig.coordinator.describe_group(&group()),
        Err(ConsumerGroupError::GroupNotFound)
    );
    assert_eq!(
        rig.coordinator.delete_group(&group()).await,
        Err(ConsumerGroupError::GroupNotFound)
    );
    assert!(
        rig.coordinator.shared.table.lock().iter().next().is_none(),
        "nothing stays in memory"
    );
    rig.tasks.stop().await;
    assert_eq!(rig.tasks.panics(), 0);
}

/// Proves that a group deleted at once after its last member left is gone.
#[tokio::test]
async fn delete_waits_for_the_leaving() {
    let rig = Rig::new().await;
    let joined = rig.stable().await;
    rig.coordinator
        .leave_group(&group(), &[(joined.member, None)])
        .unwrap();
    assert_eq!(rig.coordinator.delete_group(&group()).await, Ok(()));
    assert_eq!(rig.log.state.read().groups().len(), 0);
}

/// Proves that commits past the end of a partition, and too large ones, are refused, each offset by itself (R7).
#[tokio::test]
async fn commits_are_checked() {
    let rig = Rig::new().await;
    let mut long = new_offset(3, 1);
    long.metadata = "x".repeat(limits::OFFSET_METADATA_BYTES_MAX + 1);
    let offsets = vec![
        new_offset(0, 100),
        new_offset(1, 101),
        new_offset(2, -1),
        long,
    ];
    let request = CommitRequest {
        group: group(),
        committer: Committer::Simple,
        offsets,
    };
    let results = rig.coordinator.commit_offsets(request).await.unwrap();
    let out_of_range = Err(ConsumerGroupError::OffsetOutOfRange);
    assert_eq!(
        results,
        [
            Ok(()),
            out_of_range,
            out_of_range,
            Err(ConsumerGroupError::MetadataTooLarge)
        ]
    );
    let all = rig.coordinator.fetch_offsets(&group(), None).await.unwrap();
    assert_eq!(all.len(), 1);
    let offsets = (0..20_000).map(|index| new_offset(index, 1)).collect();
    let request = CommitRequest {
        group: group(),
        committer: Committer::Simple,
        offsets,
    };
    assert_eq!(
        rig.coordinator.commit_offsets(request).await,
        Err(ConsumerGroupError::CommitTooLarge)
    );
    let nameless = CommitRequest {
        group: ConsumerGroupName::default(),
        committer: Committer::Simple,
        offsets: vec![],
    };
    assert_eq!(
        rig.coordinator.commit_offsets(nameless).await,
        Err(ConsumerGroupError::InvalidGroup)
    );
}

/// Proves that members that do not exist cannot commit and that an unknown group has no offsets and no error.
#[tokio::test]
async fn strangers() {
    let rig = Rig::new().await;
    assert_eq!(rig.committed().await, None);
    assert!(
        rig.coordinator
            .fetch_offsets(&group(), None)
            .await
            .unwrap()
            .is_empty()
    );
    let stranger = Committer::Member {
        generation: 1,
        member: MemberId::new("x"),
        instance: None,
    };
    assert_eq!(
        rig.commit(stranger.clone(), 1).await,
        Err(ConsumerGroupError::IllegalGeneration)
    );
    rig.stable().await;
    assert_eq!(
        rig.commit(stranger, 1).await,
        Err(ConsumerGroupError::UnknownMember)
    );
    let name = ConsumerGroupName::new("other");
    assert_eq!(
        rig.coordinator
            .heartbeat(&name, &MemberId::new("x"), None, 1),
        Err(ConsumerGroupError::UnknownMember)
    );
    let leaving = [(MemberId::new("x"), None)];
    assert_eq!(
        rig.coordinator.leave_group(&name, &leaving).unwrap(),
        [Err(ConsumerGroupError::UnknownMember)]
    );
    let sync = SyncRequest {
        member: MemberId::new("x"),
        generation: 1,
        ..SyncRequest::default()
    };
    assert_eq!(
        rig.coordinator.sync_group(&name, sync).await.unwrap_err(),
        ConsumerGroupError::UnknownMember
    );
    let long = JoinRequest {
        instance: Some(InstanceId::new("i".repeat(2_000))),
        ..request()
    };
    assert_eq!(
        rig.join(long).await,
        Err(JoinRefusal::Error(ConsumerGroupError::InvalidRequest))
    );
    assert_eq!(
        rig.log.proposals.lock().len(),
        1,
        "strangers cost no log entry"
    );
}

/// Proves that members go on in the same generation after a restart, and that one that stays away is dropped.
#[tokio::test]
async fn a_restart_keeps_members() {
    let rig = Rig::new().await;
    let short = JoinRequest {
        session_timeout_ms: 1_000,
        ..request()
    };
    let joined = rig.join(short).await.unwrap();
    rig.sync(&joined).await.unwrap();
    assert_eq!(rig.commit(by(&joined), 5).await, Ok(()));
    rig.tasks.stop().await;
    let rig = Rig::over(rig.log.clone()).await;
    assert_eq!(
        rig.coordinator.heartbeat(&group(), &joined.member, None, 1),
        Ok(())
    );
    assert_eq!(rig.commit(by(&joined), 6).await, Ok(()));
    assert_eq!(rig.committed().await, Some(6));
    eventually(|| phase(&rig) == "Empty").await;
    assert_eq!(
        rig.coordinator.heartbeat(&group(), &joined.member, None, 1),
        Err(ConsumerGroupError::UnknownMember)
    );
    assert_eq!(
        rig.coordinator.describe_group(&group()).unwrap().phase,
        "Empty"
    );
    assert_eq!(
        rig.commit(by(&joined), 7).await,
        Err(ConsumerGroupError::UnknownMember)
    );
}

/// Proves that a coordinator that lost leadership answers what waits and refuses everything, and comes back.
#[tokio::test]
async fn leadership_moves() {
    let rig = Rig::new().await;
    let joined = rig.stable().await;
    // A second member waits for the first one to join again.
    let waiting = rig.join(request());
    let lose = async {
        eventually(|| phase(&rig) == "PreparingRebalance").await;
        rig.lead(None).await;
    };
    let (waiting, ()) = tokio::join!(waiting, lose);
    assert_eq!(
        waiting,
        Err(JoinRefusal::Error(ConsumerGroupError::NotCoordinator))
    );
    assert!(!rig.coordinator.is_active());
    let error = ConsumerGroupError::NotCoordinator;
    assert_eq!(
        rig.coordinator.heartbeat(&group(), &joined.member, None, 1),
        Err(error)
    );
    assert_eq!(
        rig.coordinator.fetch_offsets(&group(), None).await,
        Err(error)
    );
    assert_eq!(rig.commit(Committer::Simple, 1).await, Err(error));
    assert_eq!(rig.coordinator.list_groups(), Err(error));
    assert_eq!(rig.coordinator.describe_group(&group()), Err(error));
    assert_eq!(rig.coordinator.delete_group(&group()).await, Err(error));
    assert_eq!(rig.coordinator.leave_group(&group(), &[]), Err(error));
    assert_eq!(rig.join(request()).await, Err(JoinRefusal::Error(error)));
    rig.lead(Some(3)).await;
    assert!(rig.coordinator.is_active());
    // A change of term that was not seen in between begins anew as well.
    rig.lead(Some(4)).await;
    assert!(rig.coordinator.describe_group(&group()).is_ok());
}

/// Proves that faults of the log reach the client as errors it can act on, and that the group recovers.
#[tokio::test]
async fn faults_of_the_log() {
    let rig = Rig::new().await;
    let joined = rig.join(request()).await.unwrap();
    rig.log.failures.lock().push_back(ProposeError::Timeout);
    assert_eq!(
        rig.sync(&joined).await,
        Err(ConsumerGroupError::Unavailable)
    );
    let joined = rig
        .join(JoinRequest {
            member: joined.member,
            ..request()
        })
        .await
        .unwrap();
    assert_eq!(joined.generation, 2);
    assert_eq!(rig.sync(&joined).await.unwrap(), "part");
    for (fault, error) in [
        (
            ProposeError::NotLeader { leader: None },
            ConsumerGroupError::NotCoordinator,
        ),
        (ProposeError::Overloaded, ConsumerGroupError::Overloaded),
        (ProposeError::Unknown, ConsumerGroupError::Unavailable),
        (
            ProposeError::Fatal(String::new()),
            ConsumerGroupError::Unavailable,
        ),
        (
            ProposeError::TooLarge {
                bytes: 2,
                bytes_max: 1,
            },
            ConsumerGroupError::CommitTooLarge,
        ),
    ] {
        rig.log.failures.lock().push_back(fault);
        assert_eq!(rig.commit(by(&joined), 1).await, Err(error));
    }
    rig.log.failures.lock().push_back(ProposeError::Unknown);
    assert_eq!(
        rig.coordinator.fetch_offsets(&group(), None).await,
        Err(ConsumerGroupError::Unavailable)
    );
    assert_eq!(rig.commit(by(&joined), 1).await, Ok(()));
    // The leaving of the last member is tried again until it is stored.
    rig.log.failures.lock().push_back(ProposeError::Overloaded);
    rig.coordinator
        .leave_group(&group(), &[(joined.member, None)])
        .unwrap();
    let empty = |state: &ConsumerGroupsState| state.group(&group()).unwrap().members.is_empty();
    eventually(|| empty(&rig.log.state.read())).await;
    assert!(
        rig.log
            .state
            .read()
            .group(&group())
            .unwrap()
            .members
            .is_empty()
    );
}

/// Proves that a generation that another coordinator stored meanwhile wins, and that this one begins anew from it.
#[tokio::test]
async fn a_foreign_generation_wins() {
    let rig = Rig::new().await;
    let joined = rig.join(request()).await.unwrap();
    let foreign = CoordinatorCommand::StoreGeneration {
        group: group(),
        generation: 5,
        protocol_type: "consumer".into(),
        protocol: "range".into(),
        leader: MemberId::new("foreign"),
        members: std::collections::BTreeMap::from([(
            MemberId::new("foreign"),
            crate::coordinator::state::StoredMember {
                session_timeout_ms: 10_000,
                ..Default::default()
            },
        )]),
    };
    rig.log.state.write().apply(foreign, TimestampMs::new(0));
    assert_eq!(
        rig.sync(&joined).await,
        Err(ConsumerGroupError::NotCoordinator)
    );
    assert_eq!(
        rig.coordinator
            .heartbeat(&group(), &MemberId::new("foreign"), None, 5),
        Ok(())
    );
    assert_eq!(
        rig.coordinator.heartbeat(&group(), &joined.member, None, 1),
        Err(ConsumerGroupError::UnknownMember)
    );
}

/// Proves that offsets expire, but not in groups where somebody is, or keeps joining (field report A27).
#[tokio::test]
async fn offsets_expire() {
    let rig = Rig::new().await;
    assert_eq!(rig.commit(Committer::Simple, 5).await, Ok(()));
    let idle = CommitRequest {
        group: ConsumerGroupName::new("idle"),
        committer: Committer::Simple,
        offsets: vec![new_offset(0, 1)],
    };
    rig.coordinator.commit_offsets(idle).await.unwrap();
    // A member is in "g", but never brings an assignment: the stored group stays empty.
    let joined = rig.join(request()).await.unwrap();
    rig.clock.0.fetch_add(180_000, Ordering::Relaxed);
    let idle = ConsumerGroupName::new("idle");
    eventually(|| rig.log.state.read().group(&idle).is_none()).await;
    rig.coordinator.shared.expire_once().await;
    assert_eq!(rig.committed().await, Some(5));
    rig.coordinator
        .leave_group(&group(), &[(joined.member, None)])
        .unwrap();
    eventually(|| rig.log.state.read().group(&group()).unwrap().generation == 2).await;
    rig.coordinator.shared.expire_once().await;
    assert_eq!(
        rig.committed().await,
        Some(5),
        "the leaving counts, not the old commit"
    );
    rig.clock.0.fetch_add(180_000, Ordering::Relaxed);
    eventually(|| rig.log.state.read().group(&group()).is_none()).await;
    assert_eq!(rig.committed().await, None);
}

/// Proves that the offsets of deleted topics and chosen offsets go, and that nothing is written when there are none.
#[tokio::test]
async fn offsets_are_deleted() {
    let rig = Rig::new().await;
    let topic = TopicId::new(Uuid::from_u128(1));
    assert_eq!(rig.coordinator.forget_topics(&[topic]).await, Ok(()));
    assert!(rig.log.proposals.lock().is_empty());
    assert_eq!(rig.commit(Committer::Simple, 5).await, Ok(()));
    assert_eq!(
        rig.coordinator
            .delete_offsets(&group(), vec![partition(0), partition(9)])
            .await,
        Ok(1)
    );
    assert_eq!(rig.committed().await, None);
    assert_eq!(rig.commit(Committer::Simple, 5).await, Ok(()));
    assert_eq!(rig.coordinator.forget_topics(&[topic]).await, Ok(()));
    assert_eq!(rig.committed().await, None);
    let unknown = rig
        .coordinator
        .delete_offsets(&ConsumerGroupName::new("x"), vec![])
        .await;
    assert_eq!(unknown, Err(ConsumerGroupError::GroupNotFound));
}

/// Proves that a client that goes away while it waits does not disturb the others.
#[tokio::test]
async fn a_client_that_goes_away() {
    let rig = Rig::new().await;
    let short = JoinRequest {
        session_timeout_ms: 200,
        ..request()
    };
    let gone = tokio::time::timeout(Duration::from_millis(5), rig.join(short)).await;
    assert!(gone.is_err());
    let joined = rig.join(request()).await.unwrap();
    let leads = joined.leader == joined.member;
    let first = rig.sync(&joined).await;
    if !leads {
        // The one that went away led: its session ends, and the other leads.
        assert_eq!(first, Err(ConsumerGroupError::RebalanceInProgress));
        let joined = rig
            .join(JoinRequest {
                member: joined.member,
                ..request()
            })
            .await
            .unwrap();
        assert_eq!(joined.leader, joined.member);
        assert_eq!(rig.sync(&joined).await.unwrap(), "part");
    }
}
