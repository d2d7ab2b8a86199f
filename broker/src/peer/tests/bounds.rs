//! Limits: what is in flight, in work, connected, and how slow a peer may be.

use super::receiver::Recorder;
use super::*;
use crate::peer::frame::WireLane;
use crate::peer::hello::ANSWER_MAGIC;
use crate::peer::io::read_handshake;
use crate::peer::limits::{
    APPEND_PAYLOAD_BYTES_MAX, GROUP_APPENDS_IN_WORK_MAX, REQUESTS_IN_WORK_MAX,
};
use crate::peer::messages;
use crate::placement::Lane;
use ::futures::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn listening(
    config: PeerListenerConfig,
) -> (Arc<Book>, Broker, PeerListener, Recorder, Registered) {
    let book = Arc::default();
    let (broker, recorder) = (Broker::new(2, &book), Recorder::new());
    let listener = broker.listen_with(config).await;
    let registered = broker.groups.register(GROUP, recorder.clone());
    (book, broker, listener, recorder, registered)
}

fn config() -> PeerListenerConfig {
    PeerListenerConfig::new(loopback())
}

fn asked() -> VoteRequest {
    VoteRequest {
        vote: vote(3),
        last: None,
        transfer: false,
    }
}

/// Proves that neither the count nor the bytes in flight go over their bounds, that what is over is refused without being sent, and
/// that an answer makes room.
#[tokio::test]
async fn what_is_in_flight_is_bounded() {
    let (book, broker, _listener, recorder, _registered) = listening(config()).await;
    let bounds = PeerConfig {
        in_flight_count_max: 4,
        in_flight_bytes_max: 20_000,
        ..PeerConfig::default()
    };
    let caller = Broker::with(identity(Some(cluster()), 1), bounds, &book);
    recorder.hold();
    let link = caller.link(&broker, Lane::Appends);
    let mut held: Vec<_> = (1..=2)
        .map(|index| link.append(append_at(index, &[0; 8000]), DEADLINE))
        .collect();
    let error = link
        .append(append_at(3, &[0; 8000]), DEADLINE)
        .await
        .expect_err("bytes");
    assert!(
        matches!(&error, PeerError::Unreachable(text) if text.contains("wait for the peer already")),
        "{error}"
    );
    held.extend((4..=5).map(|index| link.append(append_at(index, b""), DEADLINE)));
    let error = link
        .append(append_at(6, b""), DEADLINE)
        .await
        .expect_err("count");
    assert!(matches!(error, PeerError::Unreachable(_)), "{error}");
    assert_eq!(caller.transport.in_flight().0, 4);
    recorder.open();
    for reply in join_all(held).await {
        reply.expect("a reply");
    }
    assert_eq!(caller.transport.in_flight(), (0, 0));
    link.append(append_at(7, &[0; 8000]), DEADLINE)
        .await
        .expect("room again");
    assert_eq!(recorder.seen(), [1, 2, 4, 5, 7]);
}

/// Proves that a call whose caller gave up before it was sent is never sent, and takes no room.
#[tokio::test]
async fn what_nobody_waits_for_is_not_sent() {
    let (book, broker, _listener, recorder, _registered) = listening(config()).await;
    let caller = Broker::new(1, &book);
    let link = caller.link(&broker, Lane::Appends);
    drop(link.append(append_at(1, b"x"), DEADLINE));
    link.append(append_at(2, b"x"), DEADLINE)
        .await
        .expect("a reply");
    assert_eq!(recorder.seen(), [2]);
    assert_eq!(caller.transport.in_flight(), (0, 0));
}

/// Proves that a message that no frame can carry is refused, and one of the largest size is not.
#[tokio::test]
async fn the_largest_append_goes_through() {
    let (book, broker, _listener, recorder, _registered) = listening(config()).await;
    let caller = Broker::new(1, &book);
    let link = caller.link(&broker, Lane::Appends);
    // 8 bytes of directory.
    let largest = vec![5; APPEND_PAYLOAD_BYTES_MAX - 8];
    link.append(append_at(1, &largest), WAIT)
        .await
        .expect("a reply");
    let over = vec![5; APPEND_PAYLOAD_BYTES_MAX];
    let error = link
        .append(append_at(2, &over), WAIT)
        .await
        .expect_err("too large");
    assert!(
        matches!(&error, PeerError::Failed(text) if text.contains("larger than the lane of appends carries")),
        "{error}"
    );
    let signals = caller.link(&broker, Lane::Signals);
    signals
        .append(append_at(3, b"x"), WAIT)
        .await
        .expect_err("entries are no sign of life");
    assert_eq!(recorder.seen(), [1]);
}

/// Proves that the listener works on a bounded number of requests per connection and group, and says so to the others.
#[tokio::test]
async fn what_is_in_work_is_bounded() {
    let (book, broker, _listener, recorder, _registered) = listening(config()).await;
    let caller = Broker::new(1, &book);
    recorder.hold();
    let overloaded = |error: &PeerError| matches!(error, PeerError::Unreachable(text) if text.contains("too many requests"));
    let link = caller.link(&broker, Lane::Appends);
    let votes: Vec<_> = (0..REQUESTS_IN_WORK_MAX)
        .map(|_| link.vote(asked(), WAIT))
        .collect();
    let error = link.vote(asked(), WAIT).await.expect_err("one too many");
    assert!(overloaded(&error), "{error}");
    let count = u64::try_from(GROUP_APPENDS_IN_WORK_MAX).unwrap();
    let appends: Vec<_> = (1..=count)
        .map(|index| link.append(append_at(index, b"x"), WAIT))
        .collect();
    let error = link
        .append(append_at(count + 1, b"x"), WAIT)
        .await
        .expect_err("one too many");
    assert!(overloaded(&error), "{error}");
    assert_eq!(broker.metrics.overloaded.get(), 2);
    recorder.open();
    for reply in join_all(votes).await {
        reply.expect("a reply");
    }
    for reply in join_all(appends).await {
        reply.expect("a reply");
    }
    link.vote(asked(), WAIT).await.expect("room again");
    assert_eq!(recorder.seen(), (1..=count).collect::<Vec<_>>());
}

/// Proves that connections over the bound are closed at once, and that their place is free again when one ends.
#[tokio::test]
async fn connections_are_bounded() {
    let mut bounded = config();
    bounded.connections_max = 1;
    let (book, broker, _listener, _recorder, _registered) = listening(bounded).await;
    let first = Broker::new(1, &book);
    let link = first.link(&broker, Lane::Appends);
    link.append(append_at(1, b"x"), DEADLINE)
        .await
        .expect("the first");
    assert_eq!(broker.metrics.connections_accepted_open.get(), 1);
    let error = link
        .vote(asked(), DEADLINE)
        .await
        .expect_err("another lane is another connection");
    assert!(matches!(error, PeerError::Unreachable(_)), "{error}");
    assert!(broker.metrics.connections_over_bound.get() >= 1);
    first.tasks.stop().await;
    let second = Broker::new(3, &book);
    let link = second.link(&broker, Lane::Signals);
    let let_in = async {
        while link.vote(asked(), DEADLINE).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(WAIT, let_in)
        .await
        .expect("a free place");
    assert_eq!(second.metrics.connections_made_open.get(), 1);
}

/// Proves that a frame that begins and does not go on closes its connection and gives its memory back, and that a
/// connection without a frame is closed after its time.
#[tokio::test]
async fn slow_senders_are_closed() {
    let mut slow = config();
    slow.stall = Duration::from_millis(150);
    slow.idle = Duration::from_millis(400);
    let (_, broker, listener, _recorder, _registered) = listening(slow).await;
    let connect = || async {
        let mut stream = TcpStream::connect(listener.local_addr()).await.unwrap();
        let hello = identity(Some(cluster()), 1).hello(WireLane::Appends, None, None);
        stream.write_all(&hello.encode()).await.unwrap();
        read_handshake(&mut stream, ANSWER_MAGIC, "answer")
            .await
            .expect("let in");
        stream
    };
    let mut stalled = connect().await;
    let parts = messages::append(GROUP, append_at(1, &[0; 100_000])).into_parts(1, 1000);
    stalled.write_all(&parts[0]).await.unwrap();
    until("its memory is taken", || listener.shared.memory.used() > 0).await;
    assert!(
        listener.shared.memory.used() < 100_000,
        "as much as came, not as was announced"
    );
    let mut rest = Vec::new();
    let _ = stalled.read_to_end(&mut rest).await;
    assert_eq!(broker.metrics.closed_for("stalled"), 1);
    assert_eq!(listener.shared.memory.used(), 0);
    let mut idle = connect().await;
    let _ = idle.read_to_end(&mut rest).await;
    assert_eq!(broker.metrics.closed_for("idle"), 1);
    assert!(rest.is_empty());
    until("both are gone", || {
        broker.metrics.connections_accepted_open.get() == 0
    })
    .await;
}

/// Proves that callers without a cluster hold no memory that members need, however many they are and however slowly they send: a frame of theirs that is larger
/// than any question ends its connection before a byte of it is read, and a smaller one has little time.
#[tokio::test]
async fn strangers_hold_no_memory_of_members() {
    let mut small = config();
    // Room for one append, and for none of strangers beside it.
    small.frame_memory_bytes = 120_000;
    small.handshake = Duration::from_millis(500);
    let (book, broker, listener, recorder, _registered) = listening(small).await;
    let begin = async |node: u64, bytes: usize| {
        let mut stream = TcpStream::connect(listener.local_addr()).await.unwrap();
        let mut hello = identity(None, 3).hello(WireLane::Calls, None, None);
        hello.from.node = RaftNodeId::new(7_000 + node);
        stream.write_all(&hello.encode()).await.unwrap();
        read_handshake(&mut stream, ANSWER_MAGIC, "answer")
            .await
            .expect("let in");
        let parts = messages::call(1, Bytes::from(vec![0; bytes])).into_parts(1, 1000);
        stream.write_all(&parts[0]).await.unwrap();
        stream
    };
    let mut strangers = Vec::new();
    for node in 0..32 {
        strangers.push(begin(node, 4 << 20).await);
        strangers.push(begin(100 + node, 15_000).await);
    }
    assert_eq!(listener.shared.memory.used(), 0);
    let caller = Broker::new(1, &book);
    let link = caller.link(&broker, Lane::Appends);
    link.append(append_at(1, &[0; 100_000]), DEADLINE)
        .await
        .expect("nobody is in its way");
    assert_eq!(recorder.seen(), [1]);
    for mut stranger in strangers {
        let mut rest = Vec::new();
        let _ = stranger.read_to_end(&mut rest).await;
        assert!(rest.is_empty());
    }
    assert_eq!(broker.metrics.closed_for("garbage"), 32, "too large");
    assert_eq!(broker.metrics.closed_for("stalled"), 32, "too slow");
}

/// Proves that traffic is counted by lane, alike on both sides.
#[tokio::test]
async fn traffic_is_counted() {
    let (book, broker, _listener, _recorder, _registered) = listening(config()).await;
    let caller = Broker::new(1, &book);
    let link = caller.link(&broker, Lane::Appends);
    for index in 1..=10 {
        link.append(append_at(index, &[0; 1000]), DEADLINE)
            .await
            .expect("a reply");
    }
    link.vote(asked(), DEADLINE).await.expect("a reply");
    let of = |broker: &Broker, lane| broker.metrics.lane(lane);
    for (lane, count) in [(WireLane::Appends, 10), (WireLane::Signals, 1)] {
        let (ours, theirs) = (of(&caller, lane), of(&broker, lane));
        assert_eq!(ours.sent_messages.get(), count);
        assert_eq!(ours.sent_bytes.get(), theirs.received_bytes.get());
        assert_eq!(ours.received_messages.get(), count);
        until("the writer has counted", || {
            theirs.sent_bytes.get() == ours.received_bytes.get()
                && theirs.sent_messages.get() == count
        })
        .await;
    }
    assert!(of(&caller, WireLane::Appends).sent_bytes.get() > 10_000);
    let mut registry = prometheus_client::registry::Registry::default();
    caller.metrics.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    assert!(
        text.contains("peer_sent_messages_total{lane=\"appends\"} 10"),
        "{text}"
    );
}

/// The calling side's target of a Raft node that nobody runs any more.
fn gone(node: u64) -> PeerTarget {
    PeerTarget {
        broker: None,
        node: Some(RaftNodeId::new(5_000 + node)),
        address: "127.0.0.1:1".to_owned(),
    }
}

/// Proves that any number of Raft nodes may come and go while a broker runs: who is not used any more makes room, and who is used stays as it is.
#[tokio::test]
async fn peers_that_nobody_uses_make_room() {
    let (book, broker, _listener, recorder, _registered) = listening(config()).await;
    let caller = Broker::new(1, &book);
    let link = caller.link(&broker, Lane::Appends);
    link.append(append_at(1, b""), DEADLINE)
        .await
        .expect("it is there");
    for node in 0..600 {
        let call = caller
            .transport
            .call(&gone(node), 1, Bytes::new(), DEADLINE);
        let error = call.await.expect_err("nobody is there");
        assert!(
            !error.to_string().contains("peers already"),
            "{node}: {error}"
        );
    }
    assert_eq!(caller.transport.known(), 256);
    link.append(append_at(2, b""), DEADLINE)
        .await
        .expect("the same connection");
    assert_eq!(recorder.seen(), [1, 2]);
    assert_eq!(caller.metrics.reconnects.get(), 0);
}

/// Proves that a transport has to do with a bounded number of peers that groups have links to, that it goes on talking to those, and that a link which is
/// given up makes room.
#[tokio::test]
async fn peers_with_links_are_bounded() {
    let (book, broker, _listener, _recorder, _registered) = listening(config()).await;
    let caller = Broker::new(1, &book);
    let link = caller.link(&broker, Lane::Appends);
    let network = caller.transport.group(GROUP);
    let mut links: Vec<_> = (1..256)
        .map(|node| network.link(RaftNodeId::new(node), &broker.member(), Lane::Appends))
        .collect();
    let over = network.link(RaftNodeId::new(256), &broker.member(), Lane::Appends);
    let error = over
        .append(append_at(1, b"x"), DEADLINE)
        .await
        .expect_err("one too many");
    assert!(
        matches!(&error, PeerError::Unreachable(text) if text.contains("256 peers already")),
        "{error}"
    );
    let call = || caller.transport.call(&gone(1), 7, Bytes::new(), DEADLINE);
    let called = call().await;
    assert!(
        matches!(&called, Err(CallError::NotDone(text)) if text.contains("256 peers already")),
        "{called:?}"
    );
    link.append(append_at(1, b"x"), DEADLINE)
        .await
        .expect("a reply");
    links.pop();
    let called = call().await;
    assert!(
        matches!(&called, Err(CallError::NotDone(text)) if text.contains("is not reached")),
        "{called:?}"
    );
}

/// Proves that a broker which is not at the likeliest address is found at the next one, and that what fails in turns is said once each.
#[tokio::test]
async fn a_broker_is_looked_for_at_every_address() {
    struct Two(String);
    impl AddressBook for Two {
        fn addresses(&self, _: NodeId) -> Vec<String> {
            vec!["127.0.0.1:1".to_owned(), self.0.clone()]
        }
    }
    let (log, _logged) = Log::start();
    let (_book, broker, listener, recorder, _registered) = listening(config()).await;
    let tasks = Tasks::new();
    let parts = PeerTransportParts {
        identity: Arc::new(identity(Some(cluster()), 1)),
        network: TcpNetwork::shared(),
        random: SystemRandom::seeded(5),
        book: Arc::new(Two(listener.local_addr().to_string())),
        tls: PeerTls::off(),
        metrics: PeerMetrics::default(),
        tasks: tasks.clone(),
    };
    let transport = PeerTransport::new(PeerConfig::default(), parts);
    let link = transport
        .group(GROUP)
        .link(broker.identity.node, &broker.member(), Lane::Appends);
    let sent = async {
        while link.append(append_at(1, b""), DEADLINE).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(WAIT, sent).await.expect("it is found");
    assert_eq!(recorder.seen(), [1]);
    listener.stop().await;
    // It fails at both addresses now, in turns.
    for _ in 0..12 {
        let _ = link.append(append_at(2, b""), DEADLINE).await;
        tokio::time::sleep(Duration::from_millis(120)).await;
    }
    let lines = log.lines();
    let at = |address: &str| lines.iter().filter(|line| line.contains(address)).count();
    let second = listener.local_addr().to_string();
    // Once before it was reached, once after.
    assert!(at("127.0.0.1:1 ") <= 2 && at(&second) <= 2, "{lines:#?}");
    assert!(at("127.0.0.1:1 ") >= 1, "{lines:#?}");
    tasks.stop().await;
}
