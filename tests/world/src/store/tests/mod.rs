//! The store without faults is a store; with each fault it fails as it should, counts it, and heals.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bodies;
mod history;
mod like_s3;
mod requests;

use super::*;
use bytes::Bytes;
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt, PutMode, PutOptions};
use std::time::Duration;
use tidelog_env::SystemRandom;
use tidelog_tiering::store::OpenStore;
use tidelog_tiering::store::contract::check_all;
use tidelog_tiering::store::faulty::RequestFailed;
use tokio::time::Instant;

pub(super) const START_MS: i64 = 1_700_000_000_000;

/// A store with a host, on the paused clock of the test's runtime.
pub(super) struct Rig {
    pub(super) counts: Faults,
    pub(super) store: SimStore,
    pub(super) client: Arc<dyn ObjectStore>,
}

impl Rig {
    pub(super) fn new(seed: u64) -> Self {
        let counts = Faults::default();
        let start = Instant::now();
        let clock = move || START_MS + i64::try_from(start.elapsed().as_millis()).unwrap();
        let store = SimStore::new(seed, &counts, clock);
        let client = store.client("a");
        Self {
            counts,
            store,
            client,
        }
    }

    pub(super) fn count(&self, kind: &str) -> u64 {
        self.counts.counts().get(kind).copied().unwrap_or(0)
    }

    pub(super) fn rates(&self, change: impl FnOnce(&mut StoreFaults)) {
        let mut rates = StoreFaults::default();
        change(&mut rates);
        self.store.set_faults(rates);
    }

    pub(super) async fn put(&self, key: &str, bytes: &'static str) -> object_store::Result<()> {
        self.client
            .put(&Path::from(key), bytes.into())
            .await
            .map(drop)
    }

    pub(super) async fn create(&self, key: &str, bytes: &'static str) -> object_store::Result<()> {
        let (path, options) = (Path::from(key), PutOptions::from(PutMode::Create));
        let put = self.client.put_opts(&path, bytes.into(), options);
        put.await.map(drop)
    }

    pub(super) async fn get(&self, key: &str) -> object_store::Result<Bytes> {
        self.client.get(&Path::from(key)).await?.bytes().await
    }

    /// What the store holds under a key, without asking it.
    pub(super) fn held(&self, key: &str) -> Option<Bytes> {
        self.store.snapshot().remove(key)
    }
}

/// What the client says was wrong with the request.
pub(super) fn request_failed(error: &Error) -> Option<RequestFailed> {
    match error {
        Error::Generic { source, .. } => source.downcast_ref().copied(),
        _ => None,
    }
}

/// Proves that the store without faults keeps the contract that every store of Tidelog's keeps.
#[tokio::test(start_paused = true)]
async fn it_keeps_the_contract() {
    let rig = Rig::new(1);
    let open = OpenStore {
        store: Arc::clone(&rig.client),
        prefix: Path::default(),
    };
    check_all(&open, &SystemRandom::seeded(1)).await.unwrap();
    assert!(rig.counts.counts().is_empty(), "no faults of its own");
    assert_eq!(rig.store.open_uploads(), 0);
}

/// Proves that requests take simulated time, and objects have theirs from the clock that was handed in.
#[tokio::test(start_paused = true)]
async fn time_is_handed_in() {
    let rig = Rig::new(2);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let before = Instant::now();
    rig.put("k", "v").await.unwrap();
    let took = before.elapsed();
    assert!(
        took >= Duration::from_millis(5) && took <= Duration::from_millis(60),
        "{took:?}"
    );
    let written = rig
        .client
        .head(&Path::from("k"))
        .await
        .unwrap()
        .last_modified;
    let since = written.timestamp_millis() - START_MS;
    assert!((60_000..60_060).contains(&since), "{since}");
    let payload = Bytes::from(vec![1; 100 << 20]);
    let before = Instant::now();
    rig.client
        .put(&Path::from("large"), payload.into())
        .await
        .unwrap();
    assert!(
        before.elapsed() >= Duration::from_secs(1),
        "100 MiB at 100 MiB/s"
    );
}

/// Proves that the same seed and the same calls give the same faults, times and objects.
#[test]
fn the_same_seed_gives_the_same_outcomes() {
    let run = |seed| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let rig = Rig::new(seed);
            rig.rates(|rates| {
                rates.status_503 = 0.1;
                rates.status_500 = 0.1;
                rates.lost_reply = 0.1;
                rates.slow = 0.1;
                rates.short_body = 0.1;
                rates.wrong_bytes = 0.1;
                rates.trickle = 0.1;
                rates.stale_list = 0.1;
                rates.late = 0.5;
            });
            let start = Instant::now();
            let mut log = Vec::new();
            for number in 0..100u64 {
                let key = format!("k/{}", number % 7);
                let limit = Duration::from_millis(40);
                let put = tokio::time::timeout(limit, rig.create(&key, "value")).await;
                log.push(format!("{put:?} {:?}", rig.get(&key).await));
                let prefix = Path::from("k");
                let listed = rig.client.list_with_delimiter(Some(&prefix)).await;
                log.push(format!("{listed:?} {:?}", start.elapsed()));
                let _ = rig.client.delete(&Path::from(key)).await;
            }
            (
                log,
                rig.store.snapshot(),
                rig.store.deleted(),
                rig.counts.counts(),
            )
        })
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5).0, run(6).0);
}
