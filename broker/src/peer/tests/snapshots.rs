//! Snapshots in chunks: bounds and order at the receiver, and going on after a break.

use super::receiver::Recorder;
use super::*;
use crate::peer::messages::{ErrorCode, SnapshotBegin};
use crate::peer::partial::Partials;
use crate::placement::Lane;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const ONE: RaftNodeId = RaftNodeId::new(1001);
const TWO: RaftNodeId = RaftNodeId::new(1002);

fn begin(term: u64, id: u64, image: &[u8]) -> SnapshotBegin {
    SnapshotBegin {
        vote: vote(term),
        id,
        bytes: u64::try_from(image.len()).unwrap(),
        crc: crc32c::crc32c(image),
    }
}

fn code<T>(result: Result<T, crate::peer::messages::ErrorReply>) -> Option<ErrorCode> {
    result.err().map(|error| error.code)
}

/// Proves steps 1 to 3 at the receiver: chunks in order, going on, wrong positions, missing and surplus bytes, damage.
#[tokio::test]
async fn chunks_make_a_snapshot() {
    let partials = Partials::new(1000, Duration::from_secs(60));
    let image = [7_u8; 100];
    let start = begin(3, 5, &image);
    assert_eq!(partials.begin(GROUP, ONE, &start), Ok(0));
    assert_eq!(partials.chunk(GROUP, ONE, (5, 0), &image[..40]), Ok(40));
    assert_eq!(partials.begin(GROUP, ONE, &start), Ok(40), "it goes on");
    let position = Some(ErrorCode::SnapshotPosition);
    assert_eq!(
        code(partials.chunk(GROUP, ONE, (5, 0), &image[..40])),
        position,
        "twice"
    );
    assert_eq!(
        code(partials.chunk(GROUP, ONE, (5, 41), &image[..10])),
        position,
        "a gap"
    );
    assert_eq!(
        code(partials.chunk(GROUP, ONE, (6, 40), &image[..10])),
        position,
        "another id"
    );
    assert_eq!(
        code(partials.chunk(GROUP, TWO, (5, 40), &image[..10])),
        position,
        "another sender"
    );
    assert_eq!(
        code(partials.whole(GROUP, ONE, 5)),
        position,
        "chunks are missing"
    );
    assert_eq!(
        code(partials.chunk(GROUP, ONE, (5, 40), &image[..61])),
        Some(ErrorCode::Malformed)
    );
    assert_eq!(partials.chunk(GROUP, ONE, (5, 40), &image[40..]), Ok(100));
    let whole = Ok(Bytes::copy_from_slice(&image));
    assert_eq!(partials.whole(GROUP, ONE, 5), whole);
    assert_eq!(
        partials.begin(GROUP, ONE, &start),
        Ok(100),
        "all of it, until it is installed"
    );
    assert_eq!(partials.whole(GROUP, ONE, 5), whole);
    partials.done(GROUP, ONE, 5);
    assert_eq!(partials.announced(), 0);
    assert_eq!(code(partials.whole(GROUP, ONE, 5)), position);

    let mut damaged = begin(3, 6, &image);
    damaged.crc ^= 1;
    assert_eq!(partials.begin(GROUP, ONE, &damaged), Ok(0));
    assert_eq!(partials.chunk(GROUP, ONE, (6, 0), &image), Ok(100));
    assert_eq!(
        code(partials.whole(GROUP, ONE, 6)),
        Some(ErrorCode::Malformed)
    );
    assert_eq!(partials.announced(), 0, "dropped");
    assert_eq!(
        code(partials.begin(GROUP, ONE, &begin(3, 7, &[]))),
        Some(ErrorCode::Malformed)
    );
}

/// Proves who takes whose place, and that all partial snapshots together stay within their bound.
#[tokio::test(start_paused = true)]
async fn partial_snapshots_are_bounded() {
    let partials = Partials::new(250, Duration::from_secs(60));
    let image = [7_u8; 100];
    assert_eq!(partials.begin(GROUP, ONE, &begin(3, 5, &image)), Ok(0));
    let overloaded = Some(ErrorCode::Overloaded);
    assert_eq!(
        code(partials.begin(GROUP, TWO, &begin(2, 6, &image))),
        overloaded,
        "an older leader"
    );
    assert_eq!(
        partials.begin(GROUP, TWO, &begin(4, 6, &image)),
        Ok(0),
        "a newer one"
    );
    assert_eq!(partials.announced(), 100);
    assert_eq!(
        partials.begin(GROUP, TWO, &begin(4, 7, &image)),
        Ok(0),
        "its next snapshot"
    );
    let other = PlacementGroupId::new(2);
    let third = PlacementGroupId::new(3);
    assert_eq!(partials.begin(other, ONE, &begin(3, 5, &image)), Ok(0));
    assert_eq!(partials.announced(), 200);
    assert_eq!(
        code(partials.begin(third, ONE, &begin(3, 5, &image))),
        overloaded
    );
    let mut huge = begin(3, 5, &image);
    huge.bytes = u64::MAX;
    assert_eq!(code(partials.begin(third, ONE, &huge)), overloaded);
    tokio::time::advance(Duration::from_secs(40)).await;
    assert_eq!(partials.chunk(other, ONE, (5, 0), &image[..1]), Ok(1));
    tokio::time::advance(Duration::from_secs(30)).await;
    assert_eq!(
        partials.begin(third, ONE, &begin(3, 5, &image)),
        Ok(0),
        "the idle one made room"
    );
    assert_eq!(
        partials.begin(other, ONE, &begin(3, 5, &image)),
        Ok(1),
        "the other stays"
    );
    partials.sweep(|group| group != other);
    assert_eq!(partials.announced(), 100, "its group is gone");
    tokio::time::advance(Duration::from_secs(60)).await;
    partials.sweep(|_| true);
    assert_eq!(partials.announced(), 0, "idle");
}

/// Forwards connections to `to`; the first one ends after `cut_after` bytes towards it. Counts those bytes.
pub(super) async fn proxy(to: SocketAddr, cut_after: u64, passed: Arc<AtomicU64>) -> SocketAddr {
    let socket = TcpListener::bind(loopback()).await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut left = cut_after;
        loop {
            let (from, _) = socket.accept().await.unwrap();
            let onward = TcpStream::connect(to).await.unwrap();
            let (mut from_read, mut from_write) = from.into_split();
            let (mut to_read, mut to_write) = onward.into_split();
            let back =
                tokio::spawn(async move { tokio::io::copy(&mut to_read, &mut from_write).await });
            let mut buffer = vec![0; 64 << 10];
            while let Ok(read) = from_read.read(&mut buffer).await
                && read > 0
                && left > 0
            {
                passed.fetch_add(u64::try_from(read).unwrap(), Ordering::SeqCst);
                left = left.saturating_sub(u64::try_from(read).unwrap());
                if to_write.write_all(&buffer[..read]).await.is_err() {
                    break;
                }
            }
            back.abort();
            left = u64::MAX;
        }
    });
    address
}

/// Proves that a snapshot whose connection broke in the middle goes on after the bytes that arrived: what is sent the second time is the
/// rest, and nothing more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_snapshot_goes_on() {
    const BYTES: usize = 20 << 20;
    let book = Arc::default();
    let (caller, other, recorder) = (
        Broker::new(1, &book),
        Broker::new(2, &book),
        Recorder::new(),
    );
    let listener = other.listen().await;
    let _registered = other.groups.register(GROUP, recorder.clone());
    let passed = Arc::new(AtomicU64::new(0));
    let address = proxy(listener.local_addr(), 10 << 20, Arc::clone(&passed)).await;
    book.0.lock().insert(NodeId::new(2), address.to_string());
    let image: Vec<u8> = (0..BYTES)
        .map(|at| u8::try_from(at * 31 % 251).unwrap())
        .collect();
    let image = Bytes::from(image);
    let request = SnapshotRequest {
        vote: vote(3),
        image: image.clone(),
    };
    let link = caller.link(&other, Lane::Snapshots);
    let error = link.snapshot(request.clone(), WAIT).await.expect_err("cut");
    assert!(matches!(error, PeerError::Failed(_)), "{error}");
    until("the break is seen", || {
        other.metrics.connections_accepted_open.get() == 0
    })
    .await;
    let bytes = u64::try_from(BYTES).unwrap();
    assert_eq!(listener.shared.partials.announced(), BYTES);

    let first = passed.swap(0, Ordering::SeqCst);
    assert!(
        (10 << 20..bytes).contains(&first),
        "{first} bytes before the cut"
    );
    let again = async {
        loop {
            match link.snapshot(request.clone(), WAIT).await {
                Ok(vote) => return vote,
                // Not reached yet: the pause after the break.
                Err(PeerError::Unreachable(_)) => {
                    tokio::time::sleep(Duration::from_millis(5)).await
                }
                Err(error) => panic!("{error}"),
            }
        }
    };
    assert_eq!(again.await, vote(3));
    let resumed = caller.metrics.snapshot_bytes_resumed.get();
    let second = passed.load(Ordering::SeqCst);
    assert!(
        resumed > first - (3 << 20),
        "{resumed} of {first} bytes were kept"
    );
    let rest = bytes - resumed;
    assert!(
        (rest..rest + 10_000).contains(&second),
        "{second} bytes for a rest of {rest}"
    );
    assert_eq!(*recorder.snapshots.lock(), [image]);
    assert_eq!(listener.shared.partials.announced(), 0);
    listener.stop().await;
}

/// Proves that an image that arrived whole is kept until it is installed: the second try sends begin and end, no chunk.
#[tokio::test]
async fn a_whole_snapshot_is_kept_until_it_is_installed() {
    let book = Arc::default();
    let (caller, other, recorder) = (
        Broker::new(1, &book),
        Broker::new(2, &book),
        Recorder::new(),
    );
    let listener = other.listen().await;
    let _registered = other.groups.register(GROUP, recorder.clone());
    recorder.hold();
    let request = SnapshotRequest {
        vote: vote(3),
        image: Bytes::from(vec![9; 2 << 20]),
    };
    let link = caller.link(&other, Lane::Snapshots);
    let first = tokio::spawn(link.snapshot(request.clone(), WAIT));
    until("it is being installed", || {
        recorder.snapshots.lock().len() == 1
    })
    .await;
    caller.tasks.stop().await;
    let error = first.await.unwrap().expect_err("broken");
    assert!(matches!(error, PeerError::Failed(_)), "{error}");
    until("the break is seen", || {
        other.metrics.connections_accepted_open.get() == 0
    })
    .await;
    recorder.open();
    let lane = other.metrics.lane(crate::peer::frame::WireLane::Snapshots);
    let before = lane.received_messages.get();
    // The same broker, started again.
    let caller = Broker::new(1, &book);
    let link = caller.link(&other, Lane::Snapshots);
    assert_eq!(link.snapshot(request, WAIT).await, Ok(vote(3)));
    assert_eq!(lane.received_messages.get(), before + 2, "begin and end");
    until("forgotten", || listener.shared.partials.announced() == 0).await;
    listener.stop().await;
}
