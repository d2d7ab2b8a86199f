//! Faults of bodies.

use super::*;
use std::collections::BTreeSet;

const TEXT: &str = "0123456789abcdefghijklmnopqrstuvwxyz";

async fn rig(seed: u64, set: fn(&mut StoreFaults)) -> Rig {
    let rig = Rig::new(seed);
    rig.put("k", TEXT).await.unwrap();
    rig.put("empty", "").await.unwrap();
    rig.rates(set);
    rig
}

impl Rig {
    async fn range(&self) -> object_store::Result<Bytes> {
        self.client.get_range(&Path::from("k"), 10..20).await
    }

    async fn is_healed(&self, kind: &str, count: u64) {
        assert!(self.get("empty").await.unwrap().is_empty());
        assert_eq!(self.count(kind), count, "an empty body cannot be hit");
        self.rates(|_| {});
        assert_eq!(self.get("k").await.unwrap(), TEXT);
        assert_eq!(self.range().await.unwrap(), &TEXT[10..20]);
        assert_eq!(self.count(kind), count);
    }
}

/// Proves that a trickling body is whole in the end, and takes its time.
#[tokio::test(start_paused = true)]
async fn bodies_trickle() {
    let rig = rig(1, |rates| rates.trickle = 1.0).await;
    let before = Instant::now();
    assert_eq!(rig.get("k").await.unwrap(), TEXT);
    assert!(
        before.elapsed() > Duration::from_secs(5),
        "{:?}",
        before.elapsed()
    );
    assert_eq!(rig.range().await.unwrap(), &TEXT[10..20]);
    rig.is_healed("store.trickle", 2).await;
}

/// Proves that short bodies are a true beginning, with an error at some seeds and without at others.
#[tokio::test(start_paused = true)]
async fn bodies_end_early() {
    let mut seen = BTreeSet::new();
    for seed in 0..20 {
        let rig = rig(seed, |rates| rates.short_body = 1.0).await;
        match rig.get("k").await {
            Ok(bytes) => {
                assert!(bytes.len() < TEXT.len() && TEXT.as_bytes().starts_with(&bytes));
                seen.insert("short");
            }
            Err(error) => {
                assert_eq!(request_failed(&error), Some(RequestFailed::BrokenBody));
                seen.insert("broken");
            }
        }
        rig.is_healed("store.short-body", 1).await;
    }
    assert_eq!(seen.len(), 2);
}

/// Proves that wrong bytes differ by one bit, here and not in the store.
#[tokio::test(start_paused = true)]
async fn bodies_have_wrong_bytes() {
    let rig = rig(1, |rates| rates.wrong_bytes = 1.0).await;
    let got = rig.get("k").await.unwrap();
    let turned: u32 = got
        .iter()
        .zip(TEXT.bytes())
        .map(|(a, b)| (a ^ b).count_ones())
        .sum();
    assert_eq!((got.len(), turned), (TEXT.len(), 1));
    assert_eq!(rig.held("k").unwrap(), TEXT);
    rig.is_healed("store.wrong-bytes", 1).await;
}

/// Proves that a wrong range has the right length and comes from the same object; a whole object has no other range.
#[tokio::test(start_paused = true)]
async fn ranges_are_mixed_up() {
    let rig = rig(1, |rates| rates.wrong_range = 1.0).await;
    assert_eq!(rig.get("k").await.unwrap(), TEXT);
    assert_eq!(rig.count("store.wrong-range"), 0);
    let got = rig.range().await.unwrap();
    let got = std::str::from_utf8(&got).unwrap();
    assert!(
        got.len() == 10 && got != &TEXT[10..20] && TEXT.contains(got),
        "{got}"
    );
    rig.is_healed("store.wrong-range", 1).await;
}
