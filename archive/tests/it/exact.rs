//! Exactly once, against crashes, lost replies, late requests, other committers and sleepers.

use crate::bucket::{Bucket, Rec, Spec, Topic};
use crate::faults::{Fault, FaultStore, Hold};
use crate::table::assert_exact;
use futures::TryStreamExt;
use object_store::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tidelog_archive::ArchiveError;
use tidelog_env::SystemRandom;

async fn bucket() -> (Bucket, Topic) {
    let mut bucket = Bucket::in_memory();
    let topic = bucket.topic("t");
    bucket.append(&topic, 0, vec![Spec::values(0, 0..50)]).await;
    bucket.append(&topic, 1, vec![Spec::values(0, 0..30)]).await;
    (bucket, topic)
}

async fn check(bucket: &Bucket, topic: &Topic) {
    let report = bucket.archiver().run_once(None).await.unwrap();
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    assert_exact(bucket, topic, &report.tables[0]).await;
}

async fn data_files(bucket: &Bucket) -> usize {
    let all: Vec<_> = bucket
        .raw
        .list(Some(&Path::from("pre")))
        .try_collect()
        .await
        .unwrap();
    all.iter()
        .filter(|object| object.location.as_ref().ends_with(".parquet"))
        .count()
}

fn is_commit(operation: &str, key: &str) -> bool {
    operation == "put" && key.ends_with(".metadata.json")
}

/// Proves that a crash before each store operation of a run loses and doubles nothing, and that what was written is
/// written again under the same names: each key one content (I9).
#[tokio::test]
async fn a_crash_before_any_operation() {
    for crash in 0.. {
        let (mut bucket, topic) = bucket().await;
        check(&bucket, &topic).await;
        bucket
            .append(&topic, 0, vec![Spec::values(0, 50..60)])
            .await;
        let mut operations = 0;
        let faulty = FaultStore::new(&bucket.raw, move |_, _| {
            operations += 1;
            if operations > crash {
                Fault::Fail
            } else {
                Fault::Pass
            }
        });
        let outcome = bucket
            .archiver_on(&faulty.raw(), bucket.config(), 7)
            .run_once(None)
            .await;
        let whole = outcome.is_ok_and(|report| report.errors.is_empty());
        check(&bucket, &topic).await;
        assert_eq!(data_files(&bucket).await, 2, "after {crash} operations");
        if whole {
            assert!(crash > 10, "the whole run had only {crash} operations");
            return;
        }
    }
}

/// Proves that a crash after each PUT took effect, its reply lost and the store gone, loses and doubles nothing.
#[tokio::test]
async fn a_lost_reply_to_any_put_and_then_nothing() {
    for crash in 1..8 {
        let (bucket, topic) = bucket().await;
        let mut puts = 0;
        let faulty = FaultStore::new(&bucket.raw, move |operation, _| {
            puts += i32::from(operation == "put");
            if operation == "put" && puts == crash {
                Fault::LoseReplyAndGoDown
            } else {
                Fault::Pass
            }
        });
        let outcome = bucket
            .archiver_on(&faulty.raw(), bucket.config(), 7)
            .run_once(None)
            .await;
        if crash == 4 {
            // The commit itself: the archiver may not say that it happened, nor that it did not.
            let errors = outcome.unwrap().errors;
            assert!(
                matches!(errors[..], [ArchiveError::CommitUnknown { version: 1, .. }]),
                "{errors:?}"
            );
        }
        check(&bucket, &topic).await;
        assert_eq!(data_files(&bucket).await, 1);
    }
}

/// Proves that a lost reply with the store still there is resolved at once.
#[tokio::test]
async fn a_lost_reply_is_resolved_by_reading_back() {
    let (bucket, topic) = bucket().await;
    let mut lose = true;
    let faulty = FaultStore::new(&bucket.raw, move |operation, key| {
        if is_commit(operation, key) && std::mem::take(&mut lose) {
            Fault::LoseReply
        } else {
            Fault::Pass
        }
    });
    let archiver = bucket.archiver_on(&faulty.raw(), bucket.config(), 7);
    let report = archiver.run_once(None).await.unwrap();
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    assert!(
        report.tables[0]
            .metadata_location
            .as_ref()
            .unwrap()
            .ends_with("/v1.metadata.json")
    );
    assert_exact(&bucket, &topic, &report.tables[0]).await;
    let metrics = archiver.metrics();
    assert_eq!(
        metrics.counters()[2..5],
        [
            ("commits_total", 1),
            ("commits_lost_total", 0),
            ("commits_unknown_total", 0)
        ]
    );
}

/// Proves that a commit request that arrives after its sender gave it up, before or after the next attempt's, does not
/// double a row: either it is the version, or it is refused.
#[tokio::test]
async fn a_late_commit_request() {
    for before in [true, false] {
        let (bucket, topic) = bucket().await;
        let mut late = true;
        let faulty = FaultStore::new(&bucket.raw, move |operation, key| {
            if is_commit(operation, key) && std::mem::take(&mut late) {
                Fault::Late
            } else {
                Fault::Pass
            }
        });
        let archiver = bucket.archiver_on(&faulty.raw(), bucket.config(), 7);
        let errors = archiver.run_once(None).await.unwrap().errors;
        assert!(
            matches!(errors[..], [ArchiveError::CommitUnknown { .. }]),
            "{errors:?}"
        );
        faulty.come_up();
        if before {
            assert_eq!(faulty.land().await, 1, "nothing else is there yet");
        }
        let report = archiver.run_once(None).await.unwrap();
        assert!(report.errors.is_empty(), "{:?}", report.errors);
        if !before {
            assert_eq!(faulty.land().await, 0, "its name is taken");
        }
        assert!(
            report.tables[0]
                .metadata_location
                .as_ref()
                .unwrap()
                .ends_with("/v1.metadata.json")
        );
        check(&bucket, &topic).await;
    }
}

/// Proves that a late request which lands between the reload and the next attempt makes that attempt lose.
#[tokio::test]
async fn a_late_request_lands_under_the_next_attempt() {
    let (bucket, topic) = bucket().await;
    let (mut commits, hold) = (0, Arc::new(Hold::default()));
    let held = Arc::clone(&hold);
    let faulty = FaultStore::new(&bucket.raw, move |operation, key| {
        commits += i32::from(is_commit(operation, key));
        match (is_commit(operation, key), commits) {
            (true, 1) => Fault::Late,
            (true, 2) => Fault::Hold(Arc::clone(&held)),
            _ => Fault::Pass,
        }
    });
    let archiver = bucket.archiver_on(&faulty.raw(), bucket.config(), 7);
    archiver.run_once(None).await.unwrap();
    faulty.come_up();
    let again = tokio::spawn(async move { archiver.run_once(None).await });
    hold.arrived.notified().await;
    assert_eq!(faulty.land().await, 1);
    hold.go.notify_one();
    let report = again.await.unwrap().unwrap();
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    assert_exact(&bucket, &topic, &report.tables[0]).await;
}

/// Proves that of two committers that built the same version one wins, and that the other, which slept between its
/// check and its commit while much was archived, neither doubles nor undoes anything.
#[tokio::test]
async fn a_sleeper_cannot_duplicate() {
    let (mut bucket, topic) = bucket().await;
    let (mut first, hold) = (true, Arc::new(Hold::default()));
    let held = Arc::clone(&hold);
    let faulty = FaultStore::new(&bucket.raw, move |operation, key| {
        if is_commit(operation, key) && std::mem::take(&mut first) {
            Fault::Hold(Arc::clone(&held))
        } else {
            Fault::Pass
        }
    });
    let sleeper = bucket.archiver_on(&faulty.raw(), bucket.config(), 7);
    let metrics = sleeper.metrics();
    let asleep = tokio::spawn(async move { sleeper.run_once(None).await });
    hold.arrived.notified().await;
    for value in 50..53 {
        check(&bucket, &topic).await;
        bucket
            .append(&topic, 0, vec![Spec::values(0, value..value + 1)])
            .await;
    }
    hold.go.notify_one();
    let report = asleep.await.unwrap().unwrap();
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    assert_eq!(metrics.counters()[3], ("commits_lost_total", 1));
    check(&bucket, &topic).await;
}

/// Proves that an attempt that took too long is given up before its commit, and that a run that never gets to commit
/// ends with an error that says so.
#[tokio::test]
async fn an_old_attempt_is_given_up() {
    let (bucket, topic) = bucket().await;
    let mut config = bucket.config();
    config.attempt_age_max = Duration::ZERO;
    let report = bucket
        .archiver_on(&bucket.raw, config, 7)
        .run_once(None)
        .await
        .unwrap();
    assert!(
        matches!(
            report.errors[..],
            [ArchiveError::Contended { attempts: 8, .. }]
        ),
        "{:?}",
        report.errors
    );
    assert_eq!(
        bucket.archiver().status(None).await.unwrap()[0].snapshot_id,
        None
    );
    check(&bucket, &topic).await;
}

/// Proves the whole under chance: archivers at the same time on one table, a store that fails one request in eight and
/// loses one reply in eight, segments published meanwhile; in the end each record is one row.
#[tokio::test]
async fn many_archivers_and_a_bad_store() {
    for seed in 0..4 {
        let mut bucket = Bucket::in_memory();
        let topic = bucket.topic("t");
        bucket.append(&topic, 0, vec![Spec::values(0, 0..10)]).await;
        let mut archivers = Vec::new();
        for number in 0..3 {
            let random = SystemRandom::seeded(seed * 10 + number);
            let faulty = FaultStore::new(&bucket.raw, move |operation, _| {
                match random.next_u64() % 16 {
                    0 | 1 => Fault::Fail,
                    2 | 3 if operation == "put" => Fault::LoseReply,
                    _ => Fault::Pass,
                }
            });
            let mut config = bucket.config();
            (config.commit_bytes, config.read_bytes) = (700, 300);
            let archiver = bucket.archiver_on(&faulty.raw(), config, seed * 100 + number);
            archivers.push(tokio::spawn(async move {
                for _ in 0..12 {
                    let _ = archiver.run_once(None).await;
                    tokio::task::yield_now().await;
                }
            }));
        }
        let random = SystemRandom::seeded(seed);
        for value in 10..50 {
            let spread = i64::try_from(random.next_u64() % 4).unwrap() * 86_400_000;
            let record = Rec {
                timestamp: spread,
                value: Some(vec![b'v'; 80]),
                ..Rec::default()
            };
            bucket
                .append(&topic, value % 2, vec![Spec::of(vec![record; 3])])
                .await;
            tokio::task::yield_now().await;
        }
        for archiver in archivers {
            archiver.await.unwrap();
        }
        check(&bucket, &topic).await;
    }
}
