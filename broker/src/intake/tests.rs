//! Frames that share memory, on simulated time.

use super::*;
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use std::time::Duration;
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// As the Kafka listener asks.
const TERMS: Terms = Terms {
    stall: Duration::from_secs(30),
    bytes_per_second_min: 16 * KIB,
    within: Duration::from_secs(30),
};

fn budget(bytes: usize) -> Budget {
    Budget::new(bytes, BudgetMetrics::default())
}

type Reading = JoinHandle<Result<(bytes::Bytes, Hold), FrameError>>;

/// A frame of `bytes` that is being read, and the end that its peer writes to.
fn begin(budget: &Budget, bytes: usize) -> (DuplexStream, Reading) {
    let (peer, mut stream) = tokio::io::duplex(64 * KIB);
    let mut hold = budget.begin();
    let reading = tokio::spawn(async move {
        let frame = read_frame(&mut stream, b"head", bytes, &mut hold, TERMS).await?;
        Ok((frame, hold))
    });
    (peer, reading)
}

/// Sends `bytes` in pieces of `piece`, one each second. Ends early when nobody reads any more.
async fn drip(mut peer: DuplexStream, bytes: usize, piece: usize) {
    let mut left = bytes;
    while left > 0 {
        let now = left.min(piece);
        if peer.write_all(&vec![7; now]).await.is_err() {
            return;
        }
        left -= now;
        sleep(Duration::from_secs(1)).await;
    }
    // What is still in the pipe is read before it ends.
    let _ = peer.shutdown().await;
}

/// A number from `state`, below `bound`.
fn random(state: &mut u64, bound: usize) -> usize {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    usize::try_from(*state >> 33).unwrap() % bound
}

/// One frame of the model.
enum Modelled {
    Reads(Hold),
    Waits(BoxFuture<'static, Hold>),
    /// Whole, in work.
    Works(#[allow(dead_code, reason = "it is held")] Hold),
    Done,
}

/// Proves, for many random courses, that frames that take memory in steps all become whole though their sum is many times the budget and none of them gives anything
/// back before it is, that no more than the budget and one frame are ever used, that who gives up a wait leaves nothing behind, and that all is free in the end.
#[test]
fn frames_that_hold_all_of_the_budget_end() {
    const BUDGET: usize = 100_000;
    const LARGEST: usize = 60_000;
    for seed in 0..300 {
        let mut random_state = seed;
        let mut next = |bound: usize| random(&mut random_state, bound);
        let budget = budget(BUDGET);
        let sizes: Vec<usize> = (0..20).map(|_| 1 + next(LARGEST)).collect();
        let mut frames: Vec<Modelled> = sizes
            .iter()
            .map(|_| Modelled::Reads(budget.begin()))
            .collect();
        let mut turns = 0;
        while frames.iter().any(|frame| !matches!(frame, Modelled::Done)) {
            turns += 1;
            assert!(turns < 100_000, "seed {seed}: nothing goes on");
            let at = next(frames.len());
            let (gives_up, step) = (next(20) == 0, 1 + next(10_000));
            let frame = std::mem::replace(&mut frames[at], Modelled::Done);
            frames[at] = match frame {
                Modelled::Reads(mut hold) if hold.bytes() == sizes[at] => {
                    hold.whole();
                    Modelled::Works(hold)
                }
                Modelled::Reads(mut hold) => {
                    let step = step.min(sizes[at] - hold.bytes());
                    if hold.try_take(step) {
                        Modelled::Reads(hold)
                    } else {
                        Modelled::Waits(
                            async move {
                                hold.take(step).await;
                                hold
                            }
                            .boxed(),
                        )
                    }
                }
                // Its connection ends; another frame comes in its place.
                Modelled::Waits(_) if gives_up => Modelled::Reads(budget.begin()),
                Modelled::Waits(mut waits) => match (&mut waits).now_or_never() {
                    Some(hold) => Modelled::Reads(hold),
                    None => Modelled::Waits(waits),
                },
                Modelled::Works(_) | Modelled::Done => Modelled::Done,
            };
            assert!(
                budget.used() <= BUDGET + LARGEST,
                "seed {seed}: {} are used",
                budget.used()
            );
        }
        assert_eq!(budget.used(), 0, "seed {seed}");
        assert_eq!(budget.shortage(), None, "seed {seed}");
    }
}

/// Proves that a frame that has begun does not wait behind newer ones, and that a newer one does not overtake it with a smaller step.
#[test]
fn the_oldest_frame_is_next() {
    let budget = budget(100);
    let (mut full, mut old, mut new) = (budget.begin(), budget.begin(), budget.begin());
    let mut newest = budget.begin();
    // The first goes ahead, so that the others wait.
    assert!(full.try_take(90));
    full.take(20).now_or_never().unwrap();
    let mut second = Box::pin(new.take(30));
    assert!((&mut second).now_or_never().is_none());
    let mut first = Box::pin(old.take(40));
    assert!((&mut first).now_or_never().is_none());
    assert!(!newest.try_take(1));
    assert_eq!(budget.shortage().unwrap().waiting, 2);
    full.whole();
    // 110 of 100 are used: the next may not go ahead as well.
    assert!((&mut first).now_or_never().is_none());
    drop(full);
    (&mut first).now_or_never().unwrap();
    (&mut second).now_or_never().unwrap();
    drop((first, second));
    assert_eq!(budget.used(), 70);
    drop((old, new, newest));
    assert_eq!(budget.used(), 0);
}

/// Proves that what is announced takes no memory: it follows what comes, a step ahead at most.
#[tokio::test(start_paused = true)]
async fn memory_follows_what_comes() {
    let budget = budget(160 * MIB);
    let mut peers: Vec<_> = (0..100).map(|_| begin(&budget, 100 * MIB)).collect();
    sleep(Duration::from_millis(1)).await;
    assert_eq!(budget.used(), 100 * STEP_BYTES_MIN);
    let mut sent = 0;
    for piece in [STEP_BYTES_MIN, 40 * KIB, 500 * KIB, 5 * MIB] {
        peers[0].0.write_all(&vec![7; piece]).await.unwrap();
        sent += piece;
        sleep(Duration::from_millis(1)).await;
        let used = budget.used() - 99 * STEP_BYTES_MIN;
        let ahead = sent.min(STEP_BYTES_MAX) + STEP_BYTES_MIN;
        assert!(used >= sent && used <= sent + ahead, "{used} for {sent}");
    }
    assert_eq!(budget.shortage(), None);
    for (peer, reading) in peers {
        drop(peer);
        assert!(matches!(reading.await.unwrap(), Err(FrameError::Cut)));
    }
    assert_eq!(budget.used(), 0);
}

/// Proves that frames of all sizes around a step and around the buffer's sizes arrive as they were sent, in a buffer of their own size, and hold as much as they have.
#[tokio::test(start_paused = true)]
async fn frames_arrive_whole() {
    let budget = budget(64 * MIB);
    let edges = [
        STEP_BYTES_MIN,
        128 * KIB,
        2 * MIB,
        2 * MIB + STEP_BYTES_MAX,
        33 * MIB,
    ];
    let sizes = edges.iter().flat_map(|at| [at - 1, *at, at + 1]);
    for bytes in [4, 5].into_iter().chain(sizes) {
        let (mut peer, reading) = begin(&budget, bytes);
        let sent: Vec<u8> = (0..=250u8).cycle().take(bytes - 4).collect();
        peer.write_all(&sent).await.unwrap();
        let (frame, hold) = reading.await.unwrap().unwrap();
        assert_eq!((&frame[..4], frame.len()), (b"head".as_slice(), bytes));
        assert!(frame[4..] == sent, "{bytes}");
        let whole = frame.try_into_mut().unwrap();
        assert_eq!(whole.capacity(), bytes);
        assert_eq!((hold.bytes(), budget.used()), (bytes, bytes));
    }
    assert_eq!(budget.used(), 0);
}

/// Proves that a large frame at a modest pace is taken while nobody waits for memory, that one which rests for too long is not, nor one that takes too long as a whole.
#[tokio::test(start_paused = true)]
async fn a_modest_pace_is_enough_while_nobody_waits() {
    let budget = budget(4 * MIB);
    let (peer, reading) = begin(&budget, 2 * MIB);
    // A fifth of what is asked while others wait.
    let writing = tokio::spawn(drip(peer, 2 * MIB - 4, 20 * KIB));
    let (frame, _hold) = reading.await.unwrap().unwrap();
    assert_eq!(frame.len(), 2 * MIB);
    writing.await.unwrap();

    let began = Instant::now();
    let (mut peer, reading) = begin(&budget, 2 * MIB);
    peer.write_all(&[7; 100]).await.unwrap();
    assert!(matches!(reading.await.unwrap(), Err(FrameError::Stalled)));
    assert_eq!(began.elapsed().as_secs(), 30);

    let began = Instant::now();
    let (peer, reading) = begin(&budget, 2 * MIB);
    let writing = tokio::spawn(drip(peer, 2 * MIB, 10 * KIB));
    assert!(matches!(reading.await.unwrap(), Err(FrameError::Stalled)));
    assert_eq!(began.elapsed().as_secs(), 30 + 128);
    writing.await.unwrap();
}

/// Sends frames of `bytes` one after the other, and holds each for `work`; how long the slowest took.
async fn produce(budget: &Budget, bytes: usize, count: usize, work: Duration) -> Duration {
    let mut slowest = Duration::ZERO;
    for _ in 0..count {
        let began = Instant::now();
        let (mut peer, reading) = begin(budget, bytes);
        peer.write_all(&vec![7; bytes - 4]).await.unwrap();
        let (_frame, _hold) = reading.await.unwrap().unwrap();
        sleep(work).await;
        slowest = slowest.max(began.elapsed());
    }
    slowest
}

/// Proves that drips which fill the budget hold up nobody for long: an ordinary producer goes on, first by going ahead, and then because they are closed for their pace,
/// which their errors say; and that a large frame at the pace that is asked for stays.
#[tokio::test(start_paused = true)]
async fn drips_are_closed_while_others_wait() {
    let budget = budget(4 * MIB);
    let mut drips = Vec::new();
    for _ in 0..40 {
        let (peer, reading) = begin(&budget, 100 * MIB);
        tokio::spawn(drip(peer, 100 * MIB, 20 * KIB));
        drips.push(reading);
    }
    let (peer, honest) = begin(&budget, 2 * MIB);
    tokio::spawn(drip(peer, 2 * MIB - 4, 160 * KIB));
    let work = Duration::from_millis(50);
    let slowest = produce(&budget, MIB, 1_200, work).await;
    // Until memory counts as short, the one that goes ahead has had its window, and the others have.
    assert!(slowest < 4 * TERMS.window(), "{slowest:?}");
    let (_, _hold) = honest.await.unwrap().unwrap();
    let (closed, left): (Vec<_>, Vec<_>) = drips.into_iter().partition(|drip| drip.is_finished());
    for reading in closed {
        let Err(FrameError::Slow(slow)) = reading.await.unwrap() else {
            panic!("it was slow");
        };
        // What waited in the pipe came faster than the drip.
        assert!(slow.bytes_per_second < 100_000, "{slow}");
        assert_eq!(slow.asked_per_second, 3_495_253);
    }
    assert!(
        left.len() <= 20,
        "{} hold too little to be in the way",
        left.len()
    );
}

/// Proves that fast frames which together are far more than the budget, each begun before any is whole, end one after the other and none is closed; time in which they
/// wait for memory does not count as slowness.
#[tokio::test(start_paused = true)]
async fn honest_overload_closes_nobody() {
    let budget = budget(4 * MIB);
    let mut writing = Vec::new();
    let mut reading = Vec::new();
    for _ in 0..40 {
        let (mut peer, read) = begin(&budget, 3 * MIB);
        writing.push(async move {
            peer.write_all(&vec![7; 3 * MIB - 4]).await.unwrap();
        });
        // Slow work: the last of them waits for two minutes.
        reading.push(async move {
            let (_frame, _hold) = read.await.unwrap().unwrap();
            sleep(Duration::from_secs(3)).await;
        });
    }
    let began = Instant::now();
    let all = futures::future::join(join_all(writing), join_all(reading));
    timeout(Duration::from_secs(600), all).await.unwrap();
    assert!(began.elapsed() > Duration::from_secs(60));
    assert_eq!(budget.used(), 0);
}

/// Proves that the one that goes ahead and does not go on is closed, and the next one goes.
#[tokio::test(start_paused = true)]
async fn who_goes_ahead_has_to_go_on() {
    let budget = budget(MIB);
    let mut begun = Vec::new();
    for _ in 0..3 {
        let (mut peer, reading) = begin(&budget, 2 * MIB);
        // Sent fast, and then no more.
        peer.write_all(&vec![7; 380 * KIB]).await.unwrap();
        begun.push((peer, reading));
    }
    let slowest = produce(&budget, MIB, 1, Duration::ZERO).await;
    assert!(slowest <= 4 * TERMS.window(), "{slowest:?}");
    let closed = begun.iter().filter(|(_, reading)| reading.is_finished());
    assert!(closed.count() >= 1);
}

/// Proves that metrics say what is held, who waits, and how long those waited that had to.
#[tokio::test(start_paused = true)]
async fn a_budget_tells_of_itself() {
    let metrics = BudgetMetrics::default();
    let budget = Budget::new(100, metrics.clone());
    let (mut one, mut two) = (budget.begin(), budget.begin());
    assert!(one.try_take(90));
    one.take(20).await;
    let waits = tokio::spawn(async move {
        two.take(50).await;
        two
    });
    sleep(Duration::from_secs(2)).await;
    assert_eq!((metrics.used.get(), metrics.waiting.get()), (110, 1));
    let shortage = budget.shortage().unwrap();
    assert_eq!(
        (shortage.waiting, shortage.longest.as_secs(), shortage.used),
        (1, 2, 110)
    );
    assert!(budget.is_short_for(Duration::from_secs(2)));
    assert!(!budget.is_short_for(Duration::from_secs(3)));
    drop(one);
    let two = waits.await.unwrap();
    assert_eq!((metrics.used.get(), metrics.waiting.get()), (50, 0));
    assert_eq!(budget.shortage(), None);
    drop(two);
    let mut registry = prometheus_client::registry::Registry::default();
    registry.register("wait", "How long", metrics.wait_seconds.clone());
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    assert!(text.contains("wait_sum 2.0"), "{text}");
    assert!(text.contains("wait_count 2"), "{text}");
}
