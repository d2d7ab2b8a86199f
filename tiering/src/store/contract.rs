//! The contract of a store: one set of checks that every implementation passes. Compiled for tests and under
//! `test-support`.
//!
//! Each check works below a cluster id of its own, so that checks and runs do not meet. A broken promise is a failed
//! assertion that says which; an error that should not be comes back as it is.

use super::faulty::{Call, Fault, FaultyStore};
use super::{OpenStore, PutOutcome, StoreError, StoreLimits, TierStore};
use crate::key::{self, ObjectKey};
use crate::manifest::ObjectId;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::Random;
use tidelog_model::{ClusterId, PlacementGroupId, Term};

/// Long enough for a local S3 server on a busy machine, short enough for a black hole.
const TRY_TIMEOUT: Duration = Duration::from_millis(1500);
const MIB: usize = 1024 * 1024;

/// A fresh cluster in a store, and how to make trouble for it.
pub struct Subject {
    /// The cluster's part of the store.
    pub store: TierStore,
    /// Faults between it and the store.
    pub faulty: FaultyStore,
    random: Arc<dyn Random>,
}

impl Subject {
    /// In `open`, with small limits.
    #[must_use]
    pub fn new(open: &OpenStore, random: Arc<dyn Random>) -> Self {
        let faulty = FaultyStore::new(Arc::clone(&open.store));
        let limits = StoreLimits {
            try_timeout: TRY_TIMEOUT,
            retry_delay_min: Duration::from_millis(5),
            multipart_bytes_min: 6 * 1024 * 1024,
            part_bytes: 5 * MIB,
            ..StoreLimits::default()
        };
        let cluster = ClusterId::new(random.uuid());
        let store = TierStore::new(
            Arc::new(faulty.clone()),
            &open.prefix,
            cluster,
            Arc::clone(&random),
            limits,
        );
        Self {
            store,
            faulty,
            random,
        }
    }

    fn data_key(&self) -> ObjectKey {
        let id = self.random.uuid_at(1_700_000_000_000);
        key::data(&ObjectId {
            group: PlacementGroupId::new(1),
            term: Term::new(1),
            id,
        })
    }

    fn bytes(&self, length: usize) -> Bytes {
        // Eight bytes that never repeat at a time: a part in the wrong place cannot go unseen.
        let mut word = self.random.next_u64();
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            word = word
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.truncate(length);
        bytes.into()
    }
}

/// Runs every check.
///
/// # Errors
/// The first error a check did not expect.
///
/// # Panics
/// When a promise is broken.
pub async fn check_all(open: &OpenStore, random: &Arc<dyn Random>) -> Result<(), StoreError> {
    let subject = || Subject::new(open, Arc::clone(random));
    // At the same time: most of their time they wait for deadlines.
    futures::try_join!(
        async { objects_come_back_as_put(&subject()).await },
        async { missing_objects_are_missing(&subject()).await },
        async { large_objects_go_up_in_parts(&subject()).await },
        async { put_if_absent_never_overwrites(&subject()).await },
        async { of_racing_writers_one_wins(&subject()).await },
        async { listings_show_what_was_put(&subject()).await },
        async { deleted_objects_are_gone(&subject()).await },
        async { lost_replies_are_resolved(&subject()).await },
        async { refusals_of_the_moment_are_bridged(&subject()).await },
        async { black_holes_end_at_the_deadline(&subject()).await },
        async { broken_uploads_are_put_again(&subject()).await },
        async { bad_bodies_are_read_again(&subject()).await },
    )?;
    Ok(())
}

/// Every byte and any range comes back; the length is known.
///
/// # Errors
/// Unexpected ones.
pub async fn objects_come_back_as_put(subject: &Subject) -> Result<(), StoreError> {
    let (store, key) = (&subject.store, subject.data_key());
    let bytes = subject.bytes(100_000);
    let chunks = vec![
        bytes.slice(..1),
        Bytes::new(),
        bytes.slice(1..70_000),
        bytes.slice(70_000..),
    ];
    store.put_object(&key, chunks).await?;
    assert_eq!(store.get(&key).await?, bytes);
    assert_eq!(store.head(&key).await?.length, 100_000);
    for (from, to) in [
        (0u32, 1u32),
        (0, 100_000),
        (69_999, 70_001),
        (99_999, 100_000),
        (5, 5),
    ] {
        let found = store
            .get_range(&key, u64::from(from)..u64::from(to))
            .await?;
        let range = usize::try_from(from).unwrap_or(0)..usize::try_from(to).unwrap_or(0);
        assert_eq!(found, bytes.slice(range), "range {from}..{to}");
    }
    let past = store.get_range(&key, 99_999..100_001).await;
    assert!(
        matches!(past, Err(StoreError::Corrupt { .. })),
        "a range past the end is an error: {past:?}"
    );
    Ok(())
}

/// What is not there is `NotFound`; deleting it is fine.
///
/// # Errors
/// Unexpected ones.
pub async fn missing_objects_are_missing(subject: &Subject) -> Result<(), StoreError> {
    let (store, key) = (&subject.store, subject.data_key());
    assert!(matches!(
        store.get(&key).await,
        Err(StoreError::NotFound { .. })
    ));
    assert!(matches!(
        store.get_range(&key, 0..1).await,
        Err(StoreError::NotFound { .. })
    ));
    assert!(matches!(
        store.head(&key).await,
        Err(StoreError::NotFound { .. })
    ));
    assert!(
        store
            .list(&key::data_prefix(PlacementGroupId::new(1)))
            .await?
            .is_empty()
    );
    store.delete(&key).await
}

/// An object above the threshold goes up in parts and comes back whole.
///
/// # Errors
/// Unexpected ones.
pub async fn large_objects_go_up_in_parts(subject: &Subject) -> Result<(), StoreError> {
    let (store, key) = (&subject.store, subject.data_key());
    let bytes = subject.bytes(12 * MIB + 17);
    store
        .put_object(&key, vec![bytes.slice(..MIB), bytes.slice(MIB..)])
        .await?;
    assert_eq!(subject.faulty.calls(Call::MultipartPart), 3);
    assert_eq!(subject.faulty.calls(Call::Put), 0);
    assert!(
        store.get(&key).await? == bytes,
        "a multipart object has the bytes that were put"
    );
    Ok(())
}

/// The first content stays; writing the same again is `Created`, another one `Exists`.
///
/// # Errors
/// Unexpected ones.
pub async fn put_if_absent_never_overwrites(subject: &Subject) -> Result<(), StoreError> {
    let (store, key) = (&subject.store, key::snapshot(PlacementGroupId::new(1), 1));
    let first = Bytes::from_static(b"first");
    assert_eq!(
        store.put_if_absent(&key, first.clone()).await?,
        PutOutcome::Created
    );
    assert_eq!(
        store.put_if_absent(&key, first.clone()).await?,
        PutOutcome::Created
    );
    for other in ["other", "of another length", ""] {
        assert_eq!(
            store.put_if_absent(&key, Bytes::from(other)).await?,
            PutOutcome::Exists
        );
    }
    assert_eq!(store.get(&key).await?, first);
    Ok(())
}

/// Of writers that race for a key exactly one is told that it created it, and its bytes are there.
///
/// # Errors
/// Unexpected ones.
pub async fn of_racing_writers_one_wins(subject: &Subject) -> Result<(), StoreError> {
    for round in 1..=4 {
        let key = key::snapshot(PlacementGroupId::new(1), round);
        let writers = (0..6).map(|writer| {
            let (key, bytes) = (
                key.clone(),
                Bytes::from(format!("writer {writer} of round {round}")),
            );
            async move {
                Ok::<_, StoreError>((
                    subject.store.put_if_absent(&key, bytes.clone()).await?,
                    bytes,
                ))
            }
        });
        let outcomes = futures::future::try_join_all(writers).await?;
        let winners: Vec<_> = outcomes
            .into_iter()
            .filter(|(outcome, _)| *outcome == PutOutcome::Created)
            .collect();
        assert_eq!(winners.len(), 1, "one winner");
        assert_eq!(
            winners.first().map(|(_, bytes)| bytes),
            Some(&subject.store.get(&key).await?)
        );
    }
    Ok(())
}

/// A listing right after a put shows it, in key order, and nothing of a neighbour whose name begins alike.
///
/// # Errors
/// Unexpected ones.
pub async fn listings_show_what_was_put(subject: &Subject) -> Result<(), StoreError> {
    let store = &subject.store;
    let (one, ten) = (PlacementGroupId::new(1), PlacementGroupId::new(10));
    for sequence in [2, 30, 1, 100] {
        store
            .put_if_absent(&key::snapshot(one, sequence), Bytes::from_static(b"x"))
            .await?;
    }
    store
        .put_if_absent(&key::snapshot(ten, 7), Bytes::from_static(b"xyz"))
        .await?;
    let keys = |listed: Vec<super::ListedObject>| {
        listed.into_iter().map(|one| one.key).collect::<Vec<_>>()
    };
    let expected: Vec<_> = [1, 2, 30, 100]
        .map(|sequence| key::snapshot(one, sequence))
        .into();
    assert_eq!(
        keys(store.list(&key::snapshot_prefix(one)).await?),
        expected
    );
    let after = store
        .list_after(&key::snapshot_prefix(one), &key::snapshot(one, 2))
        .await?;
    assert_eq!(keys(after), expected[2..]);
    let all = store.list(&key::snapshots_root()).await?;
    assert_eq!(all.len(), 5);
    assert_eq!(
        all.last().map(|one| (one.key.clone(), one.info.length)),
        Some((key::snapshot(ten, 7), 3))
    );
    Ok(())
}

/// What was deleted is not found, not listed, and can be put again.
///
/// # Errors
/// Unexpected ones.
pub async fn deleted_objects_are_gone(subject: &Subject) -> Result<(), StoreError> {
    let (store, key) = (&subject.store, key::metadata(1));
    store.put_if_absent(&key, Bytes::from_static(b"a")).await?;
    store.delete(&key).await?;
    assert!(matches!(
        store.head(&key).await,
        Err(StoreError::NotFound { .. })
    ));
    assert!(store.list(&key::metadata_prefix()).await?.is_empty());
    assert_eq!(
        store.put_if_absent(&key, Bytes::from_static(b"b")).await?,
        PutOutcome::Created
    );
    Ok(())
}

/// A write whose reply was lost is found to have happened; one that somebody else won meanwhile is found lost (A16).
///
/// # Errors
/// Unexpected ones.
pub async fn lost_replies_are_resolved(subject: &Subject) -> Result<(), StoreError> {
    let Subject { store, faulty, .. } = subject;
    let group = PlacementGroupId::new(1);
    for (sequence, fault) in [(1, Fault::LoseReply), (2, Fault::LoseReplyAndHang)] {
        faulty.inject(Call::PutIfAbsent, [fault]);
        let key = key::snapshot(group, sequence);
        assert_eq!(
            store
                .put_if_absent(&key, Bytes::from_static(b"ours"))
                .await?,
            PutOutcome::Created
        );
        faulty.inject(Call::PutIfAbsent, [fault]);
        assert_eq!(
            store
                .put_if_absent(&key, Bytes::from_static(b"late"))
                .await?,
            PutOutcome::Exists
        );
        assert_eq!(store.get(&key).await?, "ours");
    }
    // A read-back that ends early is no proof that somebody else was first.
    faulty.inject(Call::PutIfAbsent, [Fault::LoseReply]);
    faulty.inject(Call::Get, [Fault::ShortBody(1)]);
    let key = key::snapshot(group, 4);
    let cut = store.put_if_absent(&key, Bytes::from_static(b"ours"));
    assert_eq!(cut.await?, PutOutcome::Created);
    // The read-back fails too, again and again: then the call must say that it may have happened.
    faulty.inject(Call::PutIfAbsent, [Fault::LoseReply]);
    faulty.inject_forever(Call::Head, Fault::Unavailable);
    let unknown = store
        .put_if_absent(&key::snapshot(group, 3), Bytes::from_static(b"ours"))
        .await;
    assert!(
        matches!(unknown, Err(StoreError::MayHaveHappened { .. })),
        "{unknown:?}"
    );
    faulty.heal();
    assert_eq!(
        store
            .put_if_absent(&key::snapshot(group, 3), Bytes::from_static(b"ours"))
            .await?,
        PutOutcome::Created
    );

    for fault in [Fault::LoseReply, Fault::LoseReplyAndHang] {
        let key = subject.data_key();
        let before = faulty.calls(Call::Put);
        faulty.inject(Call::Put, [fault]);
        store
            .put_object(&key, vec![Bytes::from_static(b"data")])
            .await?;
        assert_eq!(
            faulty.calls(Call::Put),
            before + 1,
            "what was stored is not sent twice"
        );
        assert_eq!(store.get(&key).await?, "data");
    }
    Ok(())
}

/// A few 503s are bridged; refused credentials are reported at once; endless 503s end.
///
/// # Errors
/// Unexpected ones.
pub async fn refusals_of_the_moment_are_bridged(subject: &Subject) -> Result<(), StoreError> {
    let Subject { store, faulty, .. } = subject;
    let key = subject.data_key();
    for call in [
        Call::Put,
        Call::Get,
        Call::Head,
        Call::List,
        Call::Delete,
        Call::PutIfAbsent,
    ] {
        faulty.inject(call, [Fault::Unavailable, Fault::Unavailable]);
    }
    store
        .put_object(&key, vec![Bytes::from_static(b"data")])
        .await?;
    assert_eq!(store.get(&key).await?, "data");
    assert_eq!(store.get_range(&key, 1..3).await?, "at");
    assert_eq!(
        store
            .list(&key::data_prefix(PlacementGroupId::new(1)))
            .await?
            .len(),
        1
    );
    assert_eq!(
        store
            .put_if_absent(&key::metadata(1), Bytes::from_static(b"m"))
            .await?,
        PutOutcome::Created
    );
    store.delete(&key).await?;

    faulty.heal();
    faulty.inject_forever(Call::Put, Fault::Refuse);
    let before = faulty.calls(Call::Put);
    let refused = store
        .put_object(&key, vec![Bytes::from_static(b"data")])
        .await;
    assert!(
        matches!(refused, Err(StoreError::Refused { .. })),
        "{refused:?}"
    );
    assert_eq!(
        faulty.calls(Call::Put),
        before + 1,
        "refused credentials are not tried again"
    );
    faulty.inject_forever(Call::Put, Fault::Unavailable);
    let down = store
        .put_object(&key, vec![Bytes::from_static(b"data")])
        .await;
    assert!(
        matches!(down, Err(StoreError::MayHaveHappened { .. })),
        "{down:?}"
    );
    faulty.inject_forever(Call::Get, Fault::Unavailable);
    let down = store.get(&key).await;
    assert!(
        matches!(down, Err(StoreError::Unavailable { tries: 5, .. })),
        "{down:?}"
    );
    faulty.heal();
    Ok(())
}

/// A call that is never answered ends at its deadline and is tried again (A07).
///
/// # Errors
/// Unexpected ones.
pub async fn black_holes_end_at_the_deadline(subject: &Subject) -> Result<(), StoreError> {
    let Subject { store, faulty, .. } = subject;
    let key = subject.data_key();
    faulty.inject(Call::Put, [Fault::BlackHole]);
    let started = tokio::time::Instant::now();
    store
        .put_object(&key, vec![Bytes::from_static(b"data")])
        .await?;
    faulty.inject(Call::Get, [Fault::BlackHole]);
    assert_eq!(store.get_range(&key, 0..4).await?, "data");
    assert!(
        started.elapsed() < TRY_TIMEOUT * 4,
        "two deadlines, not more"
    );
    for call in [Call::Get, Call::List, Call::PutIfAbsent] {
        faulty.inject(call, [Fault::BlackHole]);
    }
    let prefix = key::data_prefix(PlacementGroupId::new(1));
    let (got, listed) = futures::try_join!(store.get(&key), store.list(&prefix))?;
    assert_eq!((got, listed.len()), (Bytes::from_static(b"data"), 1));
    assert!(
        started.elapsed() < TRY_TIMEOUT * 9,
        "three deadlines and some work, no more"
    );
    assert_eq!(
        store
            .put_if_absent(&key::metadata(1), Bytes::from_static(b"m"))
            .await?,
        PutOutcome::Created
    );
    Ok(())
}

/// A multipart upload that fails in the middle is aborted and made anew; a lost completion is found (A08).
///
/// # Errors
/// Unexpected ones.
pub async fn broken_uploads_are_put_again(subject: &Subject) -> Result<(), StoreError> {
    let Subject { store, faulty, .. } = subject;
    let bytes = subject.bytes(7 * MIB);
    let key = subject.data_key();
    faulty.inject(Call::MultipartPart, [Fault::None, Fault::Unavailable]);
    store.put_object(&key, vec![bytes.clone()]).await?;
    assert_eq!(faulty.calls(Call::MultipartBegin), 2);
    assert!(store.get(&key).await? == bytes);
    let aborted = async {
        while faulty.calls(Call::MultipartAbort) == 0 {
            tokio::task::yield_now().await;
        }
    };
    let aborted = tokio::time::timeout(TRY_TIMEOUT, aborted).await;
    assert!(aborted.is_ok(), "the broken upload is aborted");

    let key = subject.data_key();
    let begun = faulty.calls(Call::MultipartBegin);
    faulty.inject(Call::MultipartComplete, [Fault::LoseReply]);
    store.put_object(&key, vec![bytes.clone()]).await?;
    assert_eq!(
        faulty.calls(Call::MultipartBegin),
        begun + 1,
        "a completed upload is not made again"
    );
    assert!(store.get(&key).await? == bytes);
    Ok(())
}

/// A body that ends early is read again, and never handed out.
///
/// # Errors
/// Unexpected ones.
pub async fn bad_bodies_are_read_again(subject: &Subject) -> Result<(), StoreError> {
    let Subject { store, faulty, .. } = subject;
    let key = subject.data_key();
    store
        .put_object(&key, vec![Bytes::from_static(b"0123456789")])
        .await?;
    faulty.inject(
        Call::Get,
        [Fault::ShortBody(1), Fault::ShortBody(10), Fault::LoseReply],
    );
    assert_eq!(store.get(&key).await?, "0123456789");
    faulty.inject(Call::Get, [Fault::ShortBody(1), Fault::ShortBody(4)]);
    assert_eq!(store.get_range(&key, 2..6).await?, "2345");
    faulty.inject_forever(Call::Get, Fault::ShortBody(1));
    let short = store.get_range(&key, 2..6).await;
    assert!(
        matches!(short, Err(StoreError::Unavailable { .. })),
        "{short:?}"
    );
    faulty.heal();
    Ok(())
}
