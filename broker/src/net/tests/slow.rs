//! Peers that announce much and send slowly.

use super::*;
use tidelog_model::limits;
use tokio::task::JoinHandle;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Announces a Produce of `announced` bytes, sends `first` of it at once, and then `piece` every 50 ms until the connection is closed.
async fn drip(rig: &Rig, announced: usize, first: usize, piece: usize) -> JoinHandle<()> {
    let mut client = rig.connect().await;
    let mut begin = produce(1, first);
    begin[..4].copy_from_slice(&i32::try_from(announced).unwrap().to_be_bytes());
    tokio::spawn(async move {
        if client.write_all(&begin).await.is_err() {
            return;
        }
        let mut sent = begin.len();
        while sent + piece < announced {
            tokio::time::sleep(Duration::from_millis(50)).await;
            if client.write_all(&begin[..piece]).await.is_err() {
                return;
            }
            sent += piece;
        }
    })
}

/// Produces `count` frames of `bytes` one after the other; each is answered (a request behind it is) before the next.
async fn produce_all(rig: &Rig, bytes: usize, count: i32) {
    let mut client = rig.connect().await;
    let mut frame = produce(1, bytes);
    frame.extend_from_slice(&list_groups(2));
    for _ in 0..count {
        client.write_all(&frame).await.unwrap();
        assert_eq!(answer(&mut client).await.unwrap().0, 2);
    }
}

/// Proves that two connections that announce the largest frames and send them slowly hold no memory but what they sent, and hold up neither a producer nor small requests,
/// with the limits that a broker has.
#[tokio::test]
async fn announced_frames_hold_up_nobody() {
    let rig = Rig::start(|_| {}).await;
    let mut slow = Vec::new();
    for _ in 0..2 {
        slow.push(drip(&rig, limits::FRAME_BYTES_MAX_DEFAULT, 2 * KIB, KIB).await);
    }
    produce_all(&rig, MIB, 50).await;
    assert!(rig.server.request_memory_used() < 8 * MIB);
    assert_eq!(rig.server.memory_watch().shortage(), None, "nobody waited");
    assert!(slow.iter().all(|drip| !drip.is_finished()), "nor is closed");
    assert_eq!(rig.metrics.closed_for("slow"), 0);
    slow.iter().for_each(JoinHandle::abort);
    rig.is_well().await;
}

/// Proves that slow frames which have filled the budget do not stop a producer, and are closed and counted while it has to wait; and that small requests are answered meanwhile.
#[tokio::test]
async fn slow_frames_that_fill_the_budget_are_closed() {
    const SLOW: u64 = 6;
    let rig = Rig::start(|config| {
        config.request_memory_bytes = MIB;
        // Looked at every 200 ms; the largest frame is to come within 2 s.
        config.stall = Duration::from_secs(2);
    })
    .await;
    let mut slow = Vec::new();
    for _ in 0..SLOW {
        slow.push(drip(&rig, 20 * MIB, 200 * KIB, 2 * KIB).await);
    }
    let full = async {
        while rig.server.memory_watch().shortage().is_none() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within(full).await;
    assert!(rig.server.request_memory_used() > MIB / 2);
    let mut other = rig.connect().await;
    other.write_all(&list_groups(3)).await.unwrap();
    assert_eq!(answer(&mut other).await.unwrap().0, 3);
    drop(other);
    produce_all(&rig, 500 * KIB, 20).await;
    // Those that are left hold less than what others lack.
    let closed = async {
        while rig.server.memory_watch().shortage().is_some() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within(closed).await;
    let closed = rig.metrics.closed_for("slow");
    assert!((2..=SLOW).contains(&closed), "{closed}");
    slow.iter().for_each(JoinHandle::abort);
    rig.is_well().await;
}

/// Proves that one connection has no more in work than its share, of large frames; another one goes on, and so does the first when its requests are done.
#[tokio::test]
async fn a_connection_has_a_share() {
    let rig = Rig::start(|_| {}).await;
    let held: Vec<_> = (1..=4).map(|id| rig.service.hold(id)).collect();
    let mut client = rig.connect().await;
    let (mut read, mut write) = client.split();
    // Three of 15 MiB are more than the share of 40.
    let frames: Vec<u8> = (1..=4).flat_map(|id| produce(id, 15 * MIB)).collect();
    let sending = write.write_all(&frames);
    let watching = async {
        rig.service.wait_for(&[1, 2]).await;
        produce_all(&rig, MIB, 20).await;
        assert!(rig.server.request_memory_used() < 32 * MIB);
        for sender in held {
            sender.send(Response::Nothing).unwrap();
        }
        let mut started = rig.service.started.subscribe();
        let all = started.wait_for(|now| now.contains(&4));
        within(all).await.unwrap();
    };
    let (sent, ()) = within(async { tokio::join!(sending, watching) }).await;
    sent.unwrap();
    write.shutdown().await.unwrap();
    assert_eq!(within(read.read(&mut [0])).await.unwrap(), 0);
    drop(client);
    rig.is_well().await;
}

/// Proves that the memory of a request is free when the request is done, though its answer is not read, and an earlier one is still to be made.
#[tokio::test]
async fn who_does_not_read_holds_no_memory() {
    let rig = Rig::start(|_| {}).await;
    let first = rig.service.hold(1);
    let mut client = rig.connect().await;
    client
        .write_all(&[list_groups(1), produce(2, MIB), list_groups(3)].concat())
        .await
        .unwrap();
    rig.service.wait_for(&[1, 2, 3]).await;
    let free = async {
        while rig.server.request_memory_used() > KIB {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within(free).await;
    first.send(nothing()).unwrap();
    for expected in [1, 3] {
        assert_eq!(answer(&mut client).await.unwrap().0, expected);
    }
    // A second Fetch is not read while the first is not written: it holds nothing.
    let fetching = rig.service.hold(4);
    let mut large = fetch(5, 10);
    large.extend_from_slice(&[0; 100]);
    let length = i32::try_from(large.len() - 4).unwrap();
    large[..4].copy_from_slice(&length.to_be_bytes());
    client
        .write_all(&[fetch(4, 10), large].concat())
        .await
        .unwrap();
    rig.service.wait_for(&[1, 2, 3, 4]).await;
    assert!(rig.server.request_memory_used() < 100);
    fetching.send(FetchAnswer::default().into()).unwrap();
    for expected in [4, 5] {
        assert_eq!(answer(&mut client).await.unwrap().0, expected);
    }
    drop(client);
    rig.is_well().await;
}
