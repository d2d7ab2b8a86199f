//! Tests of commits of one group that are under way together: their order, and what one that takes long keeps from the others.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::memory_log::MemoryLog;
use super::tests::{Rig, by, eventually, group, new_offset};
use super::*;
use crate::coordinator::limits::COMMITS_WAITING_MAX;
use crate::coordinator::state::{Committer, NewOffset};
use crate::error::ErrorCode;
use futures::FutureExt;
use std::collections::BTreeMap;
use tokio::sync::Semaphore;

/// Knows the end of partition 0; each other one is known once its gate is opened.
#[derive(Default)]
struct Gates(Mutex<BTreeMap<i32, Arc<Semaphore>>>);

impl Gates {
    fn of(&self, index: i32) -> Arc<Semaphore> {
        let mut gates = self.0.lock();
        let closed = || Arc::new(Semaphore::new(0));
        Arc::clone(gates.entry(index).or_insert_with(closed))
    }

    fn open(&self, index: i32) {
        self.of(index).close();
    }
}

#[async_trait]
impl CommitCheck for Gates {
    async fn check(&self, offsets: &[WantedOffset]) -> Vec<Result<(), ConsumerGroupError>> {
        for wanted in offsets {
            let index = wanted.partition.index.get();
            if index != 0 {
                let _ = self.of(index).acquire().await;
            }
        }
        vec![Ok(()); offsets.len()]
    }
}

/// A commit of one offset to partition 0, which waits for the gate `behind`, unless that is 0.
fn commit(committer: &Committer, offset: i64, behind: i32) -> CommitRequest {
    let mut offsets = vec![new_offset(0, offset)];
    if behind != 0 {
        offsets.push(new_offset(behind, 0));
    }
    CommitRequest {
        group: group(),
        committer: committer.clone(),
        offsets,
    }
}

async fn rig() -> (Rig, Arc<Gates>) {
    let gates = Arc::new(Gates::default());
    let log = Arc::new(MemoryLog::default());
    (Rig::with(log, gates.clone()).await, gates)
}

/// The offsets of partition 0 in the order in which they came into the log.
fn in_log(rig: &Rig) -> Vec<i64> {
    let proposals = rig.log.proposals.lock();
    let first = |command: &CoordinatorCommand| match command {
        CoordinatorCommand::CommitOffsets { offsets, .. } => Some(offsets[0].offset.get()),
        _ => None,
    };
    proposals.iter().filter_map(first).collect()
}

/// Proves that a commit whose check takes longer than that of a later one of its group comes into the log before it, whoever of them runs first; and that
/// another group does not wait.
#[tokio::test]
async fn commits_land_in_the_order_of_arrival() {
    let (rig, gates) = rig().await;
    let by = by(&rig.stable().await);
    let first = rig.coordinator.commit_offsets(commit(&by, 1, 1));
    let second = rig.coordinator.commit_offsets(commit(&by, 2, 0));
    let third = rig.coordinator.commit_offsets(commit(&by, 3, 2));
    let (third, second) = (tokio::spawn(third), tokio::spawn(second));
    let other = CommitRequest {
        group: ConsumerGroupName::new("other"),
        ..commit(&Committer::Simple, 9, 0)
    };
    assert_eq!(
        rig.coordinator.commit_offsets(other).await,
        Ok(vec![Ok(())])
    );
    gates.open(2);
    let first = tokio::spawn(first);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(in_log(&rig), [9]);
    gates.open(1);
    for committed in [first, second, third] {
        assert!(committed.await.unwrap().unwrap().iter().all(Result::is_ok));
    }
    assert_eq!(in_log(&rig), [9, 1, 2, 3]);
    assert_eq!(rig.committed().await, Some(3));
}

/// Proves that a commit is in the log before the one before it is answered: a group does not wait for the disk between its commits.
#[tokio::test]
async fn a_turn_ends_with_the_place_in_the_log() {
    let (rig, _gates) = rig().await;
    let by = by(&rig.stable().await);
    let mut first = Box::pin(rig.coordinator.commit_offsets(commit(&by, 1, 0)));
    let mut second = Box::pin(rig.coordinator.commit_offsets(commit(&by, 2, 0)));
    assert!(first.as_mut().now_or_never().is_none());
    assert!(second.as_mut().now_or_never().is_none());
    // Nobody polls them any more.
    eventually(|| in_log(&rig) == [1, 2]).await;
    assert_eq!(
        (first.await, second.await),
        (Ok(vec![Ok(())]), Ok(vec![Ok(())]))
    );
}

/// Proves that commits which are dropped, or refused, hold nobody back.
#[tokio::test]
async fn who_goes_away_holds_nobody_back() {
    let (rig, _gates) = rig().await;
    let by = by(&rig.stable().await);
    let waiting = tokio::spawn(rig.coordinator.commit_offsets(commit(&by, 1, 1)));
    let unpolled = rig.coordinator.commit_offsets(commit(&by, 2, 0));
    let refused = rig
        .coordinator
        .commit_offsets(commit(&Committer::Simple, 3, 0));
    let last = tokio::spawn(rig.coordinator.commit_offsets(commit(&by, 4, 0)));
    assert_eq!(refused.await, Err(ConsumerGroupError::UnknownMember));
    waiting.abort();
    drop(unpolled);
    assert_eq!(last.await.unwrap(), Ok(vec![Ok(())]));
    assert_eq!(in_log(&rig), [4]);
}

/// Proves that a group has so many commits under way and no more, that the others are refused as something to try again, and that there is room again.
#[tokio::test]
async fn commits_under_way_are_bounded() {
    let (rig, _gates) = rig().await;
    let asked = commit(&Committer::Simple, 1, 0);
    let mut under_way: Vec<_> = (0..COMMITS_WAITING_MAX)
        .map(|_| rig.coordinator.commit_offsets(asked.clone()))
        .collect();
    let full = rig.coordinator.commit_offsets(asked.clone()).await;
    assert_eq!(full, Err(ConsumerGroupError::Overloaded));
    assert!(ConsumerGroupError::Overloaded.code().retriable());
    under_way.clear();
    assert!(rig.coordinator.commit_offsets(asked).await.is_ok());
}

/// Knows where no partition ends: passes what was checked before.
struct Blind;

#[async_trait]
impl CommitCheck for Blind {
    async fn check(&self, offsets: &[WantedOffset]) -> Vec<Result<(), ConsumerGroupError>> {
        let checked = |wanted: &WantedOffset| {
            let known = wanted.committed >= Some(wanted.offset);
            known.then_some(()).ok_or(ConsumerGroupError::EndUnknown)
        };
        offsets.iter().map(checked).collect()
    }
}

/// Proves that the check learns what the group, and no other one, has committed of each partition; and that a partition whose end is not known is refused alone, as
/// something to try again with this coordinator.
#[tokio::test]
async fn partitions_without_an_end_fail_alone() {
    let log = Arc::new(MemoryLog::default());
    let commits = |group: ConsumerGroupName, offsets: Vec<NewOffset>| CommitRequest {
        group,
        committer: Committer::Simple,
        offsets,
    };
    let before = CoordinatorCommand::CommitOffsets {
        group: group(),
        committer: Committer::Simple,
        offsets: vec![new_offset(0, 5), new_offset(1, 5)],
    };
    log.state.write().apply(before, TimestampMs::new(0));
    let rig = Rig::with(log, Arc::new(Blind)).await;
    let offsets = vec![new_offset(0, 4), new_offset(1, 6), new_offset(2, 0)];
    let unknown = Err(ConsumerGroupError::EndUnknown);
    let committed = rig
        .coordinator
        .commit_offsets(commits(group(), offsets))
        .await;
    assert_eq!(committed, Ok(vec![Ok(()), unknown, unknown]));
    assert_eq!(in_log(&rig), [4]);
    let other = commits(ConsumerGroupName::new("other"), vec![new_offset(0, 4)]);
    assert_eq!(
        rig.coordinator.commit_offsets(other).await,
        Ok(vec![unknown])
    );
    let code = ConsumerGroupError::EndUnknown.code();
    assert!(code.retriable() && code == ErrorCode::CoordinatorLoadInProgress);
}
