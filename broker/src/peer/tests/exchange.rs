//! Messages between two brokers over loopback: order, deadlines, breaks, errors, calls.

use super::receiver::{PANICS, Recorder, STOPPED};
use super::*;
use crate::peer::frame::WireLane;
use crate::peer::hello::{HELLO_MAGIC, Hello};
use crate::peer::io::read_handshake;
use crate::placement::Lane;
use ::futures::future::BoxFuture;
use ::futures::{FutureExt, StreamExt, stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Brokers 1 (calls) and 2 (listens, with a recorder as its group).
struct Pair {
    caller: Broker,
    listening: Broker,
    listener: PeerListener,
    recorder: Recorder,
    _registered: Registered,
}

async fn pair_with(config: PeerConfig, listening: PeerListenerConfig, recorder: Recorder) -> Pair {
    let book = Arc::default();
    let caller = Broker::with(identity(Some(cluster()), 1), config, &book);
    let other = Broker::new(2, &book);
    Pair {
        listener: other.listen_with(listening).await,
        _registered: other.groups.register(GROUP, recorder.clone()),
        caller,
        listening: other,
        recorder,
    }
}

async fn pair() -> Pair {
    let listening = PeerListenerConfig::new(loopback());
    pair_with(PeerConfig::default(), listening, Recorder::new()).await
}

impl Pair {
    fn link(&self, lane: Lane) -> Arc<dyn PeerLink> {
        self.caller.link(&self.listening, lane)
    }
}

/// Proves that every kind of message reaches the group and its reply comes back, on whatever lane's link it is sent.
#[tokio::test]
async fn each_message_has_its_reply() {
    let pair = pair().await;
    for lane in [Lane::Appends, Lane::Signals, Lane::Snapshots] {
        let link = pair.link(lane);
        let asked = VoteRequest {
            vote: vote(3),
            last: Some(id(2, 8)),
            transfer: false,
        };
        let granted = link.vote(asked.clone(), DEADLINE).await.expect("a reply");
        assert_eq!((granted.granted, granted.last), (true, Some(id(2, 8))));
        let granted = link.pre_vote(asked, DEADLINE).await.expect("a reply");
        assert_eq!((granted.granted, granted.vote), (false, vote(3)));
        let transfer = TransferRequest {
            from: vote(3),
            to: node_of(2),
            last: Some(id(2, 8)),
        };
        let reply = link.transfer(transfer, DEADLINE).await;
        assert_eq!(reply, Ok(TransferReply::Behind(Some(id(2, 8)))));
        let snapshot = SnapshotRequest {
            vote: vote(3),
            image: Bytes::from_static(b"image"),
        };
        assert_eq!(link.snapshot(snapshot, DEADLINE).await, Ok(vote(3)));
        let reply = link.append(heartbeat(), DEADLINE).await;
        assert_eq!(reply, Ok(AppendReply::MatchedUpTo(None)));
    }
    assert_eq!(pair.recorder.snapshots.lock().len(), 3);
    assert_eq!(pair.caller.transport.in_flight(), (0, 0), "all given back");
}

/// Proves that appends of a link begin at the group in the order of the calls, several at a time, also when they wait in a full
/// queue of the group's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_keep_their_order() {
    for recorder in [Recorder::new(), Recorder::narrow()] {
        let listening = PeerListenerConfig::new(loopback());
        let pair = pair_with(PeerConfig::default(), listening, recorder).await;
        let link = pair.link(Lane::Appends);
        let replies = stream::iter(1..=600_u64).map(|index| {
            let body = vec![1; usize::try_from(index * 379 % 40_000).unwrap()];
            link.append(append_at(index, &body), DEADLINE)
                .map(move |reply| (index, reply))
        });
        let mut replies = replies.buffer_unordered(8);
        while let Some((index, reply)) = replies.next().await {
            assert_eq!(reply, Ok(AppendReply::MatchedUpTo(Some(id(3, index)))));
        }
        until("all seen", || pair.recorder.seen().len() == 600).await;
        assert_eq!(pair.recorder.seen(), (1..=600).collect::<Vec<_>>());
    }
}

/// Proves that signs of life are answered while appends wait for the group and for memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signals_do_not_wait_behind_appends() {
    let mut listening = PeerListenerConfig::new(loopback());
    listening.frame_memory_bytes = 2 << 20;
    let pair = pair_with(PeerConfig::default(), listening, Recorder::new()).await;
    pair.recorder.hold();
    let link = pair.link(Lane::Appends);
    let appends: Vec<_> = (1..=8)
        .map(|index| link.append(append_at(index, &vec![0; 900_000]), WAIT))
        .collect();
    let appends = tokio::spawn(::futures::future::join_all(appends));
    until("memory is used up", || {
        pair.listener.shared.memory.used() > 1_800_000
    })
    .await;
    // Heartbeats are answered by another group here: this one's answers are held.
    let other = PlacementGroupId::new(2);
    let _registered = pair.listening.groups.register(other, Recorder::new());
    let network = pair.caller.transport.group(other);
    let signals = network.link(
        pair.listening.identity.node,
        &pair.listening.member(),
        Lane::Signals,
    );
    for _ in 0..20 {
        let reply = signals.append(heartbeat(), DEADLINE).await;
        assert_eq!(reply, Ok(AppendReply::MatchedUpTo(None)));
    }
    assert!(!appends.is_finished());
    assert!(
        pair.recorder.seen().len() < 8,
        "the others are not read yet"
    );
    pair.recorder.open();
    for reply in appends.await.unwrap() {
        reply.expect("a reply");
    }
    until("memory is given back", || {
        pair.listener.shared.memory.used() == 0
    })
    .await;
}

/// Proves what a caller learns at its deadline: `Failed` for what was sent, `Unreachable` for what was not.
#[tokio::test]
async fn deadlines_say_whether_it_was_sent() {
    let pair = pair().await;
    pair.recorder.hold();
    let link = pair.link(Lane::Appends);
    link.append(heartbeat(), Duration::from_millis(100))
        .await
        .expect_err("held");
    let error = link
        .append(append_at(5, b"x"), Duration::from_millis(100))
        .await;
    assert_eq!(
        error,
        Err(PeerError::Failed("no reply within 100ms".to_owned()))
    );
    assert_eq!(pair.recorder.seen(), [0, 5], "it was acted on");

    // Somebody accepts and says nothing: the handshake does not end before the deadline.
    let silent = tokio::net::TcpListener::bind(loopback()).await.unwrap();
    let address = silent.local_addr().unwrap().to_string();
    pair.caller.book.0.lock().insert(NodeId::new(3), address);
    let third = Broker::new(3, &pair.caller.book);
    let link = pair.caller.link(&third, Lane::Appends);
    let error = link
        .append(append_at(6, b"x"), Duration::from_millis(100))
        .await;
    assert_eq!(
        error,
        Err(PeerError::Unreachable("not sent within 100ms".to_owned()))
    );
}

/// Proves that a break fails what was sent, that meanwhile messages are refused at once, and that the peer is found again on its
/// port, and on another one.
#[tokio::test]
async fn a_peer_that_is_back_is_found() {
    let pair = pair().await;
    let link = pair.link(Lane::Appends);
    link.append(append_at(1, b"x"), DEADLINE)
        .await
        .expect("a reply");
    pair.recorder.hold();
    let sent = link.append(append_at(2, b"x"), DEADLINE);
    until("it is there", || pair.recorder.seen() == [1, 2]).await;
    let address = pair.listener.local_addr();
    pair.listener.stop().await;
    let error = sent.await.expect_err("broken");
    assert!(matches!(error, PeerError::Failed(_)), "{error}");
    let error = link
        .append(append_at(3, b"x"), DEADLINE)
        .await
        .expect_err("gone");
    assert!(matches!(error, PeerError::Unreachable(_)), "{error}");
    assert_eq!(pair.recorder.seen(), [1, 2], "it was not acted on");

    pair.recorder.open();
    for again in [
        PeerListenerConfig::new(address),
        PeerListenerConfig::new(loopback()),
    ] {
        let listener = pair.listening.listen_with(again).await;
        let before = pair.caller.metrics.reconnects.get();
        let found = async {
            while link.append(append_at(4, b"x"), DEADLINE).await.is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(WAIT, found)
            .await
            .expect("found again");
        assert_eq!(pair.caller.metrics.reconnects.get(), before + 1);
        listener.stop().await;
    }
}

/// Proves that a peer that falls silent is pinged, given up, and its messages fail, long before their deadline.
#[tokio::test]
async fn a_silent_peer_is_given_up() {
    let config = PeerConfig {
        ping_after: Duration::from_millis(80),
        silence_max: Duration::from_millis(400),
        ..PeerConfig::default()
    };
    let book = Arc::default();
    let caller = Broker::with(identity(Some(cluster()), 1), config, &book);
    let other = Broker::new(2, &book);
    let socket = tokio::net::TcpListener::bind(loopback()).await.unwrap();
    let address = socket.local_addr().unwrap().to_string();
    book.0.lock().insert(NodeId::new(2), address);
    let identity = Arc::clone(&other.identity);
    let peer = tokio::spawn(async move {
        let (mut stream, _) = socket.accept().await.unwrap();
        let hello = read_handshake(&mut stream, HELLO_MAGIC, "hello")
            .await
            .unwrap();
        let answer = identity.answer(&Hello::decode(&hello).unwrap());
        stream.write_all(&answer.encode()).await.unwrap();
        let mut received = Vec::new();
        let _ = stream.read_to_end(&mut received).await;
        received
    });
    let link = caller.link(&other, Lane::Signals);
    let error = link.append(heartbeat(), WAIT).await;
    let silent = "the peer was silent for 400ms".to_owned();
    assert_eq!(error, Err(PeerError::Failed(silent)));
    let received = peer.await.unwrap();
    assert_eq!(
        received.last_chunk::<40>().expect("a ping")[8],
        9,
        "it was pinged"
    );
}

/// Proves that a peer that hears and is not heard is given up although each message is given up earlier: signs of life have short
/// deadlines, and a leader that nobody answers must not be heard for ever.
#[tokio::test]
async fn a_peer_that_misses_short_deadlines_is_given_up() {
    let config = PeerConfig {
        ping_after: Duration::from_millis(80),
        silence_max: Duration::from_millis(400),
        ..PeerConfig::default()
    };
    let book = Arc::default();
    let caller = Broker::with(identity(Some(cluster()), 1), config, &book);
    let other = Broker::new(2, &book);
    let socket = tokio::net::TcpListener::bind(loopback()).await.unwrap();
    let address = socket.local_addr().unwrap().to_string();
    book.0.lock().insert(NodeId::new(2), address);
    let identity = Arc::clone(&other.identity);
    let peer = tokio::spawn(async move {
        let (mut stream, _) = socket.accept().await.unwrap();
        let hello = read_handshake(&mut stream, HELLO_MAGIC, "hello")
            .await
            .unwrap();
        let answer = identity.answer(&Hello::decode(&hello).unwrap());
        stream.write_all(&answer.encode()).await.unwrap();
        // Up to the end that the caller makes.
        let _ = stream.read_to_end(&mut Vec::new()).await;
    });
    let link = caller.link(&other, Lane::Signals);
    let beats = async {
        loop {
            let short = Duration::from_millis(50);
            assert!(link.append(heartbeat(), short).await.is_err());
        }
    };
    tokio::select! {
        ended = tokio::time::timeout(WAIT, peer) => ended.expect("the connection ends").unwrap(),
        () = beats => {}
    }
}

/// Proves that a slow peer is not taken for a dead one: it answers pings.
#[tokio::test]
async fn a_slow_peer_is_waited_for() {
    let config = PeerConfig {
        ping_after: Duration::from_millis(20),
        silence_max: Duration::from_millis(200),
        ..PeerConfig::default()
    };
    let listening = PeerListenerConfig::new(loopback());
    let pair = pair_with(config, listening, Recorder::new()).await;
    pair.recorder.hold();
    let reply = tokio::spawn(pair.link(Lane::Appends).append(append_at(1, b"x"), WAIT));
    let lane = pair.listening.metrics.lane(WireLane::Appends);
    until("it was pinged for longer than silence is borne", || {
        lane.received_messages.get() > 15
    })
    .await;
    pair.recorder.open();
    reply.await.unwrap().expect("a reply");
}

/// Proves that each error of a peer is told as what it leaves: not acted on, or perhaps.
#[tokio::test]
async fn errors_say_what_they_leave() {
    let pair = pair().await;
    let nowhere = PlacementGroupId::new(5);
    let network = pair.caller.transport.group(nowhere);
    let link = network.link(
        pair.listening.identity.node,
        &pair.listening.member(),
        Lane::Appends,
    );
    let error = link.append(append_at(1, b"x"), DEADLINE).await;
    let unknown = PeerError::Unreachable("placement group 5 is not on broker 2".to_owned());
    assert_eq!(error, Err(unknown.clone()));
    let registered = pair.listening.groups.register(nowhere, Recorder::new());
    link.append(append_at(1, b"x"), DEADLINE)
        .await
        .expect("it is there now");
    // Registered anew, the earlier registration ends without an effect.
    let again = pair.listening.groups.register(nowhere, Recorder::new());
    drop(registered);
    link.append(append_at(2, b"x"), DEADLINE)
        .await
        .expect("it is still there");
    drop(again);
    assert_eq!(
        link.append(append_at(3, b"x"), DEADLINE).await,
        Err(unknown)
    );

    let link = pair.link(Lane::Appends);
    let stopped = "the group stopped".to_owned();
    let error = link.append(append_at(STOPPED, b"x"), DEADLINE).await;
    assert_eq!(error, Err(PeerError::Failed(stopped)));
    let error = link.append(append_at(PANICS, b"x"), DEADLINE).await;
    assert_eq!(
        error,
        Err(PeerError::Failed("answering panicked".to_owned()))
    );
    assert_eq!(pair.listening.metrics.panics.get(), 1);
    let reply = link.append(append_at(7, b"x"), DEADLINE).await;
    assert_eq!(
        reply,
        Ok(AppendReply::MatchedUpTo(Some(id(3, 7)))),
        "the group goes on"
    );
    let mut gap = append_at(8, b"x");
    gap.previous = Some(id(3, 3));
    let error = link.append(gap, DEADLINE).await.expect_err("malformed");
    assert!(
        matches!(&error, PeerError::Failed(text) if text.contains("order of the entries")),
        "{error}"
    );
    let snapshot = SnapshotRequest {
        vote: vote(3),
        image: Bytes::new(),
    };
    let error = link.snapshot(snapshot, DEADLINE).await;
    assert_eq!(
        error,
        Err(PeerError::Failed("a snapshot without bytes".to_owned()))
    );
}

/// As [`Echo`], for everybody.
struct OpenEcho;

impl CallService for OpenEcho {
    fn call(&self, from: Caller, request: Bytes) -> BoxFuture<'static, Bytes> {
        Echo.call(from, request)
    }

    fn serves_strangers(&self) -> bool {
        true
    }
}

/// Answers with who asked and what, after a while for a `w`, with too much for an `l`.
struct Echo;

impl CallService for Echo {
    fn call(&self, from: Caller, request: Bytes) -> BoxFuture<'static, Bytes> {
        async move {
            match request.first() {
                Some(b'w') => std::future::pending().await,
                Some(b'l') => Bytes::from(vec![0; CALL_BYTES_MAX + 1]),
                Some(b'a') => Bytes::from(vec![7; CALL_BYTES_MAX]),
                _ => {
                    let in_cluster = from.cluster.is_some();
                    let text = format!(
                        "{} {} {in_cluster} {}",
                        from.broker,
                        from.node,
                        request.len()
                    );
                    Bytes::from(text)
                }
            }
        }
        .boxed()
    }
}

/// Proves that calls reach their service and say what is known when they do not.
#[tokio::test]
async fn calls_reach_their_service() {
    let pair = pair().await;
    pair.listening.services.register(7, Arc::new(Echo));
    let target = pair.listening.target();
    let call = |service, request: Vec<u8>, deadline| {
        pair.caller
            .transport
            .call(&target, service, Bytes::from(request), deadline)
    };
    let answer = call(7, b"hello".to_vec(), DEADLINE).await;
    assert_eq!(answer, Ok(Bytes::from_static(b"1 1001 true 5")));
    let answer = call(7, vec![0; CALL_BYTES_MAX], DEADLINE).await;
    assert_eq!(
        answer,
        Ok(Bytes::from_static(b"1 1001 true 4194304")),
        "the largest"
    );
    assert_eq!(
        call(7, b"a".to_vec(), DEADLINE)
            .await
            .map(|answer| answer.len()),
        Ok(CALL_BYTES_MAX)
    );
    assert_eq!(
        call(7, Vec::new(), DEADLINE).await,
        Ok(Bytes::from_static(b"1 1001 true 0"))
    );

    let error = call(8, Vec::new(), DEADLINE).await;
    assert_eq!(
        error,
        Err(CallError::NotDone("broker 2 has no service 8".to_owned()))
    );
    let error = call(7, vec![0; CALL_BYTES_MAX + 1], DEADLINE)
        .await
        .expect_err("too large");
    assert!(!error.may_have_happened(), "{error}");
    let error = call(7, b"l".to_vec(), DEADLINE)
        .await
        .expect_err("too large an answer");
    assert!(error.may_have_happened(), "{error}");
    let error = call(7, b"w".to_vec(), Duration::from_millis(100))
        .await
        .expect_err("late");
    assert!(error.may_have_happened(), "{error}");
    pair.listener.stop().await;
    until("nothing is in flight", || {
        pair.caller.transport.in_flight() == (0, 0)
    })
    .await;
    let gone = async {
        while !matches!(
            call(7, Vec::new(), DEADLINE).await,
            Err(CallError::NotDone(_))
        ) {}
    };
    tokio::time::timeout(WAIT, gone)
        .await
        .expect("not reached, and that is known");
}

/// Proves that brokers without a cluster can call each other by address alone, and nothing else, until they have joined.
#[tokio::test]
async fn brokers_without_a_cluster_can_call() {
    let book = Arc::default();
    let caller = Broker::with(identity(None, 1), PeerConfig::default(), &book);
    let other = Broker::with(identity(None, 2), PeerConfig::default(), &book);
    let listener = other.listen().await;
    other.services.register(7, Arc::new(OpenEcho));
    other.services.register(8, Arc::new(Echo));
    let _registered = other.groups.register(GROUP, Recorder::new());
    let target = PeerTarget {
        broker: None,
        node: None,
        address: listener.local_addr().to_string(),
    };
    let call = |target| caller.transport.call(target, 7, Bytes::new(), DEADLINE);
    assert_eq!(
        call(&target).await,
        Ok(Bytes::from_static(b"1 1001 false 0"))
    );
    let inner = || caller.transport.call(&target, 8, Bytes::new(), DEADLINE);
    let refused = |answer: Result<Bytes, CallError>| matches!(&answer, Err(CallError::NotDone(why)) if why.contains("of its own cluster only"));
    assert!(refused(inner().await), "neither is in a cluster");
    let link = caller.link(&other, Lane::Appends);
    let error = link
        .append(append_at(1, b"x"), DEADLINE)
        .await
        .expect_err("no cluster");
    assert!(
        matches!(&error, PeerError::Unreachable(text) if text.contains("in no cluster yet")),
        "{error}"
    );
    other.identity.join(cluster());
    assert!(refused(inner().await), "the caller is in none");
    caller.identity.join(cluster());
    let known = async {
        // The first may be on the old connection, as it ends.
        while inner().await != Ok(Bytes::from_static(b"1 1001 true 0")) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(WAIT, known)
        .await
        .expect("the connection is made anew");
    let joined = async {
        while link.append(append_at(1, b"x"), DEADLINE).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(WAIT, joined)
        .await
        .expect("a cluster now");

    let myself = PeerTarget {
        address: caller.listen().await.local_addr().to_string(),
        ..target
    };
    let error = call(&myself).await.expect_err("itself");
    assert!(
        error.to_string().contains("has connected to itself"),
        "{error}"
    );
    assert!(!error.may_have_happened());
}
