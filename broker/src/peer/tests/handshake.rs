//! Who is let in, and what who is not is told.

use super::receiver::Recorder;
use super::*;
use crate::peer::frame::WireLane;
use crate::peer::hello::{ANSWER_MAGIC, Answer, Hello, Reason, Versions, Who};
use crate::peer::io::read_handshake;
use crate::placement::Lane;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What the broker at `address` answers to `hello`.
async fn ask(address: SocketAddr, hello: &Hello) -> Answer {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    stream.write_all(&hello.encode()).await.expect("sent");
    let bytes = read_handshake(&mut stream, ANSWER_MAGIC, "answer").await;
    Answer::decode(&bytes.expect("an answer")).expect("well formed")
}

/// A hello of broker 2 to broker 1 that is let in.
fn hello() -> Hello {
    identity(Some(cluster()), 2).hello(WireLane::Appends, Some(NodeId::new(1)), Some(node_of(1)))
}

/// Proves that each reason to refuse a caller is found, named, counted, and said in words that name both sides.
#[tokio::test]
async fn each_refusal_has_its_text() {
    let broker = Broker::new(1, &Arc::default());
    let listener = broker.listen().await;
    let instance = broker.identity.instance;
    let other = ClusterId::new(uuid::Uuid::from_u128(8));
    assert_eq!(ask(listener.local_addr(), &hello()).await.refused, None);

    type Change = Box<dyn Fn(&mut Hello)>;
    let cases: Vec<(Reason, &str, Change)> = vec![
        (
            Reason::Version,
            "broker 1 speaks peer protocol versions 2 to 2, broker 2 speaks 3 to 4: update the older one",
            Box::new(|hello| {
                hello.versions = Versions {
                    newest: 4,
                    oldest: 3,
                }
            }),
        ),
        (
            Reason::Malformed,
            "the lane, the flags or the Raft node id is not allowed",
            Box::new(|hello| hello.lane = None),
        ),
        (
            Reason::Malformed,
            "the lane, the flags or the Raft node id is not allowed",
            Box::new(|hello| hello.from.node = RaftNodeId::new(0)),
        ),
        (
            Reason::ClusterName,
            "broker 2 has cluster.name \"prod\", broker 1 has another one",
            Box::new(|hello| hello.name = "prod".to_owned()),
        ),
        (
            Reason::ClusterName,
            "broker 2 has cluster.name \"a\\nWARN all is lost\", broker 1 has another one",
            Box::new(|hello| hello.name = "a\nWARN all is lost".to_owned()),
        ),
        (
            Reason::Itself,
            "broker 1 has connected to itself",
            Box::new(move |hello| hello.from.instance = instance),
        ),
        (
            Reason::Duplicate,
            "two brokers have node.id 1: give one of them another one",
            Box::new(|hello| hello.from.broker = NodeId::new(1)),
        ),
        (
            Reason::Duplicate,
            "brokers 1 and 2 have the same Raft node id 1001: one data directory is a copy of the other",
            Box::new(|hello| hello.from.node = node_of(1)),
        ),
        (
            Reason::Cluster,
            "broker 2 is of cluster 00000000-0000-0000-0000-000000000008, broker 1 of another one",
            Box::new(move |hello| hello.from.cluster = Some(other)),
        ),
        (
            Reason::NoCluster,
            "broker 2 is in no cluster yet",
            Box::new(|hello| hello.from.cluster = None),
        ),
        (
            Reason::Node,
            "broker 1 is at this address, not broker 3",
            Box::new(|hello| hello.broker_wanted = Some(NodeId::new(3))),
        ),
        (
            Reason::Node,
            "broker 1 runs on another data directory than the one that is wanted: one of them was replaced (its Raft node is not 1003)",
            Box::new(|hello| {
                hello.broker_wanted = None;
                hello.node_wanted = Some(node_of(3));
            }),
        ),
    ];
    for (reason, text, change) in cases {
        let before = broker.metrics.refused_for(reason.name());
        let mut hello = hello();
        change(&mut hello);
        let answer = ask(listener.local_addr(), &hello).await;
        let told = (answer.from.cluster, answer.from.instance);
        assert_eq!(told, (None, 0), "nobody can pass for it");
        let refusal = answer.refused.expect(text);
        assert_eq!(
            (refusal.reason, refusal.text.as_str()),
            (Some(reason), text)
        );
        assert_eq!(broker.metrics.refused_for(reason.name()), before + 1);
    }
    listener.stop().await;
}

/// Proves that who is let in hears of the ids of a broker those that it said itself, and no others: with them it could pass for the broker.
#[tokio::test]
async fn nobody_learns_to_pass_for_a_broker() {
    let broker = Broker::new(1, &Arc::default());
    let listener = broker.listen().await;
    let told = async |change: fn(&mut Hello)| {
        let mut hello = hello();
        hello.lane = Some(WireLane::Calls);
        change(&mut hello);
        let answer = ask(listener.local_addr(), &hello).await;
        assert_eq!(answer.refused, None);
        let Who {
            cluster,
            node,
            instance,
            ..
        } = answer.from;
        (cluster, node.get(), instance)
    };
    assert_eq!(told(|_| {}).await, (Some(cluster()), 1001, 0));
    let any_node = told(|hello| hello.node_wanted = None).await;
    assert_eq!(any_node, (Some(cluster()), 0, 0));
    let stranger = told(|hello| {
        hello.from.cluster = None;
        hello.node_wanted = None;
    });
    assert_eq!(stranger.await, (None, 0, 0));
    listener.stop().await;
}

/// Proves that a newer caller that still speaks our version is let in with it, whatever it has added to its hello.
#[tokio::test]
async fn a_newer_caller_speaks_the_older_version() {
    let broker = Broker::new(1, &Arc::default());
    let listener = broker.listen().await;
    let mut newer = hello();
    newer.versions = Versions {
        newest: 3,
        oldest: 2,
    };
    // A field of version 3, before the checksum.
    let mut bytes = newer.encode().to_vec();
    bytes.truncate(bytes.len() - 4);
    bytes.extend_from_slice(b"later");
    let length = u16::try_from(bytes.len() + 4).unwrap();
    bytes[8..10].copy_from_slice(&length.to_le_bytes());
    let crc = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    let mut stream = TcpStream::connect(listener.local_addr()).await.unwrap();
    stream.write_all(&bytes).await.unwrap();
    let answer = read_handshake(&mut stream, ANSWER_MAGIC, "answer")
        .await
        .unwrap();
    let answer = Answer::decode(&answer).unwrap();
    assert_eq!(answer.refused, None);
    assert_eq!(answer.versions.newest, 2);
    listener.stop().await;
}

/// Proves that a caller that is refused tells its groups so, in the listener's words, and that the message was not acted on.
#[tokio::test]
async fn a_refused_caller_knows_why() {
    let book = Arc::default();
    let (broker, receiver) = (Broker::new(1, &book), Recorder::new());
    let listener = broker.listen().await;
    let _registered = broker.groups.register(GROUP, receiver.clone());
    let other = ClusterId::new(uuid::Uuid::from_u128(8));
    let stranger = Broker::with(identity(Some(other), 2), PeerConfig::default(), &book);
    let link = stranger.link(&broker, Lane::Appends);
    let error = link
        .append(append_at(1, b""), DEADLINE)
        .await
        .expect_err("refused");
    let PeerError::Unreachable(text) = error else {
        panic!("{error}");
    };
    assert!(text.contains("broker 1 at 127.0.0.1:"), "{text}");
    assert!(text.contains("refuses: broker 2 is of cluster"), "{text}");
    let mistake = stranger.transport.mistake().expect("one");
    assert!(mistake.contains("of another cluster than"), "{mistake}");
    assert!(receiver.seen().is_empty());
    assert!(stranger.metrics.connect_failures.get() > 0);
    listener.stop().await;
    // Nobody is there any more who refuses it.
    let over = async {
        while stranger.transport.mistake().is_some() {
            let _ = link.append(append_at(1, b""), DEADLINE).await;
        }
    };
    tokio::time::timeout(WAIT, over).await.expect("it is over");
}

/// Proves that a caller does not rely on the other side's checks: who answers must be whom it wanted.
#[tokio::test]
async fn a_caller_checks_who_answers() {
    let one = identity(Some(cluster()), 1);
    let from = |change: fn(&mut Answer)| {
        let mut answer = identity(Some(cluster()), 2).answer(&hello_to_two(&one));
        change(&mut answer);
        one.check_answer(&hello_to_two(&one), &answer)
    };
    assert_eq!(from(|_| {}), Ok(()));
    let refused = |change, part: &str| {
        let text = from(change).expect_err(part).text;
        assert!(text.contains(part), "{text}");
    };
    refused(
        |answer| answer.versions.newest = 3,
        "wants to speak version 3",
    );
    refused(
        |answer| answer.from.broker = NodeId::new(3),
        "broker 3 is at this address, not broker 2",
    );
    refused(
        |answer| answer.from.node = node_of(3),
        "broker 2 runs on another data directory",
    );
    refused(
        |answer| answer.from.broker = NodeId::new(1),
        "two brokers have node.id 1",
    );
    refused(
        |answer| answer.from.cluster = None,
        "broker 2 is in no cluster yet",
    );
    refused(
        |answer| answer.from.cluster = Some(ClusterId::new(uuid::Uuid::from_u128(8))),
        "of cluster",
    );
}

/// A connection of `hello` that was let in, or why it was not.
async fn enter(address: SocketAddr, hello: &Hello) -> Result<TcpStream, (Option<Reason>, String)> {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    stream.write_all(&hello.encode()).await.expect("sent");
    let bytes = read_handshake(&mut stream, ANSWER_MAGIC, "answer").await;
    let answer = Answer::decode(&bytes.expect("an answer")).expect("well formed");
    match answer.refused {
        None => Ok(stream),
        Some(refusal) => Err((refusal.reason, refusal.text)),
    }
}

/// Proves that a process with a copied data directory is refused, on every lane, while the other one lives, that both sides of it are told, and
/// that it is let in as soon as the other's connections have ended: that is a restart.
#[tokio::test]
async fn a_copy_is_refused_while_its_twin_lives() {
    let (log, _logged) = Log::start();
    let broker = Broker::new(1, &Arc::default());
    let listener = broker.listen().await;
    let address = listener.local_addr();
    let (real, copy) = (identity(Some(cluster()), 2), identity(Some(cluster()), 2));
    let hello = |of: &PeerIdentity, lane| of.hello(lane, Some(NodeId::new(1)), Some(node_of(1)));
    let appends = enter(address, &hello(&real, WireLane::Appends))
        .await
        .unwrap();
    let calls = enter(address, &hello(&real, WireLane::Calls))
        .await
        .unwrap();
    let from = appends.local_addr().unwrap();
    let before = broker.metrics.refused_for("duplicate");
    for lane in [WireLane::Appends, WireLane::Signals, WireLane::Calls] {
        let (reason, text) = enter(address, &hello(&copy, lane)).await.unwrap_err();
        assert_eq!(reason, Some(Reason::Duplicate));
        for part in [
            "another process runs with the identity of broker 2 (Raft node 1002)",
            &format!("from {from}"),
            "stop the copy",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
    assert_eq!(broker.metrics.refused_for("duplicate"), before + 3);
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("peer=127.0.0.1:"), "{lines:?}");
    assert!(lines[0].contains(&from.to_string()), "{lines:?}");

    drop(appends);
    enter(address, &hello(&copy, WireLane::Appends))
        .await
        .expect_err("the other connection is open");
    drop(calls);
    let let_in = enter(address, &hello(&copy, WireLane::Appends))
        .await
        .unwrap();
    enter(address, &hello(&real, WireLane::Appends))
        .await
        .expect_err("now the other one is the second");
    drop(let_in);
    listener.stop().await;
}

/// Proves that bytes of any connection count as life; that a process that was refused beside a living one is kept out for a while when that one
/// vanishes without closing its connections, longer than its silence alone would; and that these connections end then.
#[tokio::test]
async fn a_silent_twin_gives_way() {
    let broker = Broker::new(1, &Arc::default());
    let mut config = PeerListenerConfig::new(loopback());
    config.silence = Duration::from_millis(1500);
    config.twin_memory = Duration::from_secs(4);
    let listener = broker.listen_with(config).await;
    let address = listener.local_addr();
    let (old, new) = (hello(), hello());
    let first = enter(address, &old).await.unwrap();
    let (mut answers, mut pings) = first.into_split();
    let pinging = tokio::spawn(async move {
        let ping = crate::peer::messages::ping(crate::peer::frame::Kind::Ping).into_parts(0, 0);
        let until = tokio::time::Instant::now() + Duration::from_millis(2500);
        while tokio::time::Instant::now() < until {
            for part in &ping {
                pings.write_all(part).await.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        pings
    });
    while !pinging.is_finished() {
        let (reason, _) = enter(address, &new).await.expect_err("the other one pings");
        assert_eq!(reason, Some(Reason::Duplicate));
    }
    let pings = pinging.await.unwrap();
    let second = async {
        let mut remembered = false;
        loop {
            match enter(address, &new).await {
                Ok(stream) => return (stream, remembered),
                Err((_, text)) => remembered |= text.contains("beside this one: it was connected"),
            }
        }
    };
    let second = tokio::time::timeout(WAIT, second).await.expect("let in");
    let (second, remembered) = second;
    assert!(remembered);
    // Its answers, then the end.
    let _ = answers.read_to_end(&mut Vec::new()).await;
    assert_eq!(broker.metrics.closed_for("replaced"), 1);
    drop((pings, second));
    listener.stop().await;
}

/// Proves that a connection without work is pinged, so that who lives is heard, and its copy kept out at a broker it has nothing to say to.
#[tokio::test]
async fn an_idle_broker_is_heard() {
    let book = Arc::default();
    let (broker, receiver) = (Broker::new(1, &book), Recorder::new());
    let mut config = PeerListenerConfig::new(loopback());
    config.silence = Duration::from_millis(1500);
    let listener = broker.listen_with(config).await;
    let _registered = broker.groups.register(GROUP, receiver);
    let often = PeerConfig {
        ping_after: Duration::from_millis(100),
        ..PeerConfig::default()
    };
    let real = Broker::with(identity(Some(cluster()), 2), often, &book);
    let link = real.link(&broker, Lane::Appends);
    link.append(append_at(1, b""), DEADLINE).await.unwrap();
    let began = std::time::Instant::now();
    while began.elapsed() < Duration::from_millis(2500) {
        let (reason, _) = enter(listener.local_addr(), &hello()).await.unwrap_err();
        assert_eq!(reason, Some(Reason::Duplicate));
    }
    listener.stop().await;
}

fn hello_to_two(one: &PeerIdentity) -> Hello {
    one.hello(WireLane::Signals, Some(NodeId::new(2)), Some(node_of(2)))
}

/// Proves that bytes of anything else close the connection without an answer and with one line, before and after the
/// handshake, and that who says nothing is not waited for.
#[tokio::test]
async fn garbage_closes_the_connection() {
    let (log, _logged) = Log::start();
    let broker = Broker::new(1, &Arc::default());
    let mut config = PeerListenerConfig::new(loopback());
    config.handshake = Duration::from_millis(200);
    let listener = broker.listen_with(config).await;
    let address = listener.local_addr();

    let mut web = TcpStream::connect(address).await.unwrap();
    web.write_all(b"GET / HTTP/1.1\r\nhost: there\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    // A reset is as good as an end: bytes of ours were not read.
    let _ = web.read_to_end(&mut answer).await;
    assert!(answer.is_empty());
    assert_eq!(broker.metrics.closed_for("garbage"), 1);

    let mut peer = TcpStream::connect(address).await.unwrap();
    peer.write_all(&hello().encode()).await.unwrap();
    read_handshake(&mut peer, ANSWER_MAGIC, "answer")
        .await
        .expect("let in");
    peer.write_all(&[0xff; 200]).await.unwrap();
    let _ = peer.read_to_end(&mut answer).await;
    assert!(answer.is_empty());
    assert_eq!(broker.metrics.closed_for("garbage"), 2);

    let mut silent = TcpStream::connect(address).await.unwrap();
    silent.read_to_end(&mut answer).await.unwrap();
    assert!(answer.is_empty());
    assert_eq!(broker.metrics.closed_for("handshake"), 1);
    let lines = log.lines();
    assert_eq!(lines.len(), 3, "{lines:?}");
    for (line, part) in lines.iter().zip([
        "this is not a broker",
        "what the peer sends cannot be read",
        "no handshake within 200ms",
    ]) {
        assert!(line.contains(part), "{line}");
    }
    listener.stop().await;
}
