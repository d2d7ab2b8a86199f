//! Lookups by time over both tiers of a real group: exact above log start, and while data moves from one tier to the other.

use super::*;
use crate::datagroup::{FetchError, TimeLookup};

fn batch_of(timestamps: &[i64]) -> Bytes {
    let mut builder = BatchBuilder::new(Codec::Zstd);
    for at in timestamps {
        builder
            .append(TimestampMs::new(*at), None, Some(b"value"), &[])
            .unwrap();
    }
    builder.build().unwrap()
}

fn found(offset: i64, timestamp: i64) -> Option<TimeLookup> {
    Some(TimeLookup {
        offset: Offset::new(offset),
        timestamp: TimestampMs::new(timestamp),
    })
}

impl Running {
    async fn delete_below(&self, index: i32, offset: i64) {
        let command = PartitionCommand::TrimPrefix {
            partition: partition(index),
            log_start: Offset::new(offset),
        };
        let (_, outcome) = self.group.propose(command).await.unwrap();
        assert_eq!(outcome, PartitionOutcome::LogStart(Offset::new(offset)));
    }

    async fn largest(&self) -> Option<TimeLookup> {
        self.group.find_max_timestamp(partition(0)).await.unwrap()
    }
}

/// Proves KIP-734 over every log start, in both tiers: the largest timestamp is that of a record that can still be read,
/// also when log start lies inside a batch or a segment whose own largest is gone.
#[tokio::test(flavor = "multi_thread")]
async fn the_largest_timestamp_is_of_a_readable_record() {
    let stamps = [900, 40, 50, 800, 10, 20, 700, 30, 60];
    for tiered in [false, true] {
        let rig = Rig::new();
        let running = rig.start().await;
        running.create(0).await;
        assert_eq!(running.largest().await, None);
        for (at, batch) in (0..).step_by(3).zip(stamps.chunks(3)) {
            running.append_batch(0, at, batch_of(batch)).await;
        }
        if tiered {
            running.flush(true).await;
        }
        for log_start in 0..stamps.len() {
            if log_start > 0 {
                let offset = i64::try_from(log_start).unwrap();
                running.delete_below(0, offset).await;
            }
            let expected = (0..)
                .zip(stamps)
                .skip(log_start)
                .max_by_key(|(_, at)| *at)
                .and_then(|(offset, at)| found(offset, at));
            assert_eq!(
                running.largest().await,
                expected,
                "log start {log_start}, tiered {tiered}"
            );
        }
        running.delete_below(0, 9).await;
        assert_eq!(running.largest().await, None);
        running.crash().await;
    }
}

/// Proves that a batch which cannot be decoded is an error: "no such record" would send a consumer to the end of the log.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_cannot_be_decoded_is_an_error() {
    let rig = Rig::new();
    let running = rig.start().await;
    running.create(0).await;
    let mut bytes = batch_of(&[10, 20, 30]).to_vec();
    let end = bytes.len();
    bytes[end - 12..].fill(0xff);
    running.append_batch(0, 0, bytes.into()).await;
    let at = TimestampMs::new(15);
    let answer = running.group.find_timestamp(partition(0), at).await;
    assert!(
        matches!(answer, Err(FetchError::Damaged { base_offset, .. }) if base_offset == Offset::ZERO),
        "{answer:?}"
    );
    running.delete_below(0, 1).await;
    let answer = running.group.find_max_timestamp(partition(0)).await;
    assert!(
        matches!(answer, Err(FetchError::Damaged { .. })),
        "{answer:?}"
    );
    running.crash().await;
}

/// Proves that a lookup whose tail moves to the store under its hands plans anew. The lookup is held in the store, between its
/// plan and its look at the tail; meanwhile what was the tail is tiered and dropped, and a later record that matches too comes
/// after it. A lookup that went on would answer the later one.
#[tokio::test(flavor = "multi_thread")]
async fn a_lookup_plans_anew_when_the_tail_moves() {
    let rig = Rig {
        try_timeout: WITHIN,
        ..Rig::new()
    };
    let running = rig.start().await;
    running.create(0).await;
    // The segment's largest timestamp is below log start: it is looked into, and nothing in it matches.
    running.append_batch(0, 0, batch_of(&[900, 1, 2])).await;
    running.delete_below(0, 1).await;
    running.flush(true).await;
    running.append_batch(0, 3, batch_of(&[3, 500, 4])).await;
    // That read alone: what is tiered meanwhile asks whether the store is the cluster's.
    rig.faulty.inject(Call::Get, [Fault::UntilHealed]);
    let before = rig.faulty.calls(Call::Get);
    let group = running.group.clone();
    let lookup = tokio::spawn(async move {
        let at = TimestampMs::new(500);
        group.find_timestamp(partition(0), at).await
    });
    let held = async {
        while rig.faulty.calls(Call::Get) == before {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(WITHIN, held)
        .await
        .expect("the lookup asks the store");
    running.flush(true).await;
    running.append_batch(0, 6, batch_of(&[600])).await;
    let hot_start = running.group.group().read(|machine| {
        let state = machine.partitions().get(partition(0)).unwrap();
        state.hot.start()
    });
    assert_eq!(hot_start, Some(Offset::new(6)), "the tail moved");
    rig.faulty.heal();
    assert_eq!(lookup.await.unwrap().unwrap(), found(4, 500));
    running.crash().await;
}
