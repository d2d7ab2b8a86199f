//! Peers that break the protocol, send nothing, or do not read.

use super::*;
use tidelog_env::{Accepted, Listener, Network};

/// Proves that every cut of valid frames of several APIs ends the connection, with no answer and nothing started.
#[tokio::test]
async fn every_cut_ends_the_connection() {
    let rig = Rig::start(|_| {}).await;
    let mut cuts = 0;
    for api in [
        Api::Produce,
        Api::Fetch,
        Api::Metadata,
        Api::ApiVersions,
        Api::JoinGroup,
        Api::CreateTopics,
    ] {
        let newest = golden::of(api)
            .into_iter()
            .filter(|message| message.request && message.version == api.range().max);
        let frame = newest.map(|message| message.frame).next().unwrap();
        for cut in 1..frame.len() {
            // Cut where the connection ends.
            let mut client = rig.connect().await;
            client.write_all(&frame[..cut]).await.unwrap();
            client.shutdown().await.unwrap();
            assert_eq!(
                answer(&mut client).await,
                None,
                "{} cut at {cut}",
                api.name()
            );
            cuts += 1;
            // Cut where the length says it ends.
            if cut > 4 {
                let mut short = frame[..cut].to_vec();
                short[..4].copy_from_slice(&i32::try_from(cut - 4).unwrap().to_be_bytes());
                let mut client = rig.connect().await;
                client.write_all(&short).await.unwrap();
                client.shutdown().await.unwrap();
                assert_eq!(
                    answer(&mut client).await,
                    None,
                    "{} ends at {cut}",
                    api.name()
                );
            }
        }
    }
    assert!(rig.service.started().is_empty());
    assert!(rig.metrics.closed_for("malformed") > 100);
    rig.closed("cut", cuts).await;
    rig.is_well().await;
}

/// Proves that impossible and hostile lengths close the connection at once, and reserve nothing.
#[tokio::test]
async fn hostile_lengths_close_the_connection() {
    let rig = Rig::start(|_| {}).await;
    let mut count = 0;
    for api_key in [0i16, 3, 18, 999] {
        for length in [i32::MIN, -1, 0, 7, (100 << 20) + 1, i32::MAX] {
            let mut client = rig.connect().await;
            let head = [
                length.to_be_bytes().as_slice(),
                &api_key.to_be_bytes(),
                &[0; 6],
            ]
            .concat();
            client.write_all(&head).await.unwrap();
            assert_eq!(answer(&mut client).await, None, "{length}");
            count += 1;
            assert_eq!(rig.metrics.closed_for("frame_length"), count);
            assert_eq!(rig.server.request_memory_used(), 0);
        }
    }
    // A frame that only Produce may have.
    let mut client = rig.connect().await;
    let head = [
        (50i32 << 20).to_be_bytes().as_slice(),
        &3i16.to_be_bytes(),
        &[0; 6],
    ]
    .concat();
    client.write_all(&head).await.unwrap();
    assert_eq!(answer(&mut client).await, None);
    rig.is_well().await;
}

/// Proves that requests that are not served close the connection after the answers before them, except ApiVersions,
/// whose unknown versions are answered and go on.
#[tokio::test]
async fn what_is_not_served_closes_the_connection() {
    let rig = Rig::start(|_| {}).await;
    let mut client = rig.connect().await;
    client
        .write_all(&frame(Api::ApiVersions, 99, 5, b"garbage"))
        .await
        .unwrap();
    let (correlation_id, body) = answer(&mut client).await.unwrap();
    assert_eq!((correlation_id, &body[..2]), (5, [0, 35].as_slice()));
    client
        .write_all(&[list_groups(6), frame(Api::Produce, 2, 7, &[0; 40])].concat())
        .await
        .unwrap();
    assert_eq!(answer(&mut client).await.unwrap().0, 6);
    assert_eq!(answer(&mut client).await, None);
    assert_eq!(rig.metrics.closed_for("unsupported"), 1);
    rig.is_well().await;
}

/// Proves that HTTP and TLS on this port are recognised.
#[tokio::test]
async fn other_protocols_are_recognised() {
    let rig = Rig::start(|_| {}).await;
    let mut client = rig.connect().await;
    client
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    assert_eq!(answer(&mut client).await, None);
    let mut client = rig.connect().await;
    client
        .write_all(&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 0, 0, 0])
        .await
        .unwrap();
    assert_eq!(answer(&mut client).await, None);
    assert_eq!(
        (
            rig.metrics.closed_for("http"),
            rig.metrics.closed_for("tls")
        ),
        (1, 1)
    );
    rig.is_well().await;
}

/// Proves that frames in work share one budget, and that no more than one goes over it: what does not fit waits unread, and goes on when memory is free.
#[tokio::test]
async fn frames_share_a_memory_budget() {
    const BUDGET: usize = 1 << 20;
    let rig = Rig::start(|config| config.request_memory_bytes = BUDGET).await;
    let held: Vec<_> = (1..=4).map(|id| rig.service.hold(id)).collect();
    let mut clients = Vec::new();
    for id in 1..=4 {
        let mut client = rig.connect().await;
        let frame = produce(id, 600_000);
        tokio::spawn(async move {
            client
                .write_all(&[frame, list_groups(100 + id)].concat())
                .await
                .unwrap();
            assert_eq!(answer(&mut client).await.unwrap().0, 100 + id);
        });
        clients.push(id);
    }
    // One fits, one goes ahead. The others cannot start.
    let mut started = rig.service.started.subscribe();
    let large = |now: &Vec<i32>| now.iter().filter(|id| **id < 100).count();
    within(started.wait_for(|now| large(now) == 2))
        .await
        .unwrap();
    within(async {
        while rig.metrics.memory("large").waiting.get() < 2 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    // Small requests have memory of their own.
    let small = 4 * tidelog_model::limits::REQUEST_SMALL_BYTES_MAX;
    assert!(rig.server.request_memory_used() <= BUDGET + 600_100 + small);
    assert_eq!(large(&rig.service.started()), 2);
    for sender in held {
        sender.send(Response::Nothing).unwrap();
    }
    let all = within(started.wait_for(|now| now.len() == 8));
    assert_eq!(all.await.unwrap().iter().filter(|id| **id < 100).count(), 4);
    rig.is_well().await;
}

/// Proves that a frame larger than the whole budget is taken when nothing else is in work, and not stuck for ever.
#[tokio::test]
async fn a_frame_over_the_budget_is_not_stuck() {
    let rig = Rig::start(|config| config.request_memory_bytes = 1000).await;
    let mut client = rig.connect().await;
    client
        .write_all(&[produce(1, 50_000), list_groups(2)].concat())
        .await
        .unwrap();
    assert_eq!(answer(&mut client).await.unwrap().0, 2);
    drop(client);
    rig.is_well().await;
}

/// Proves that a client that does not read its answers is closed, and its memory is free again.
#[tokio::test]
async fn a_slow_reader_is_closed() {
    let rig = Rig::start(|config| config.stall = Duration::from_millis(200)).await;
    let mut client = rig.connect().await;
    client.write_all(&fetch(1, 64 << 20)).await.unwrap();
    rig.closed("slow_reader", 1).await;
    drop(client);
    rig.is_well().await;
}

/// Proves that a connection without requests is closed after the idle time, and one with a request in work is not.
#[tokio::test]
async fn idle_connections_are_closed() {
    let rig = Rig::start(|config| config.idle = Duration::from_millis(50)).await;
    let mut idle = rig.connect().await;
    assert_eq!(answer(&mut idle).await, None);
    assert_eq!(rig.metrics.closed_for("idle"), 1);

    let held = rig.service.hold(1);
    let mut busy = rig.connect().await;
    busy.write_all(&list_groups(1)).await.unwrap();
    rig.service.wait_for(&[1]).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(rig.metrics.closed_for("idle"), 1);
    held.send(nothing()).unwrap();
    assert_eq!(answer(&mut busy).await.unwrap().0, 1);
    assert_eq!(answer(&mut busy).await, None);
    assert_eq!(rig.metrics.closed_for("idle"), 2);
}

/// Proves that a frame that stops coming is given up, in its head and in its body.
#[tokio::test]
async fn stalled_frames_are_given_up() {
    let rig = Rig::start(|config| config.stall = Duration::from_millis(50)).await;
    let frame = produce(1, 1000);
    for (sent, count) in [(3, 1), (500, 2)] {
        let mut client = rig.connect().await;
        client.write_all(&frame[..sent]).await.unwrap();
        assert_eq!(answer(&mut client).await, None);
        assert_eq!(rig.metrics.closed_for("stalled"), count);
    }
    rig.is_well().await;
}

/// Fails to accept as a process without free file descriptors does, then hands out one connection.
struct Exhausted {
    failures: u32,
    stream: Option<tidelog_env::BoxStream>,
}

#[async_trait]
impl Listener for Exhausted {
    async fn accept(&mut self) -> std::io::Result<Accepted> {
        if self.failures > 0 {
            self.failures -= 1;
            return Err(std::io::Error::from_raw_os_error(24));
        }
        let Some(stream) = self.stream.take() else {
            return std::future::pending().await;
        };
        let address = self.local_addr()?;
        Ok(Accepted {
            stream,
            peer: address,
            local: address,
        })
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        Ok(SocketAddr::from(([127, 0, 0, 1], 9092)))
    }
}

struct ExhaustedNetwork(Mutex<Option<Exhausted>>);

#[async_trait]
impl Network for ExhaustedNetwork {
    async fn listen(&self, _: SocketAddr) -> std::io::Result<Box<dyn Listener>> {
        Ok(Box::new(self.0.lock().take().unwrap()))
    }

    async fn connect(&self, _: &str, _: u16) -> std::io::Result<tidelog_env::BoxStream> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

/// Proves that accepts that fail do not end the listener: it goes on when descriptors are free again.
#[tokio::test]
async fn failed_accepts_do_not_end_the_listener() {
    let (mut client, stream) = tokio::io::duplex(1000);
    let network = ExhaustedNetwork(Mutex::new(Some(Exhausted {
        failures: 3,
        stream: Some(Box::new(stream)),
    })));
    let metrics = NetMetrics::default();
    let config = NetConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
    let server = NetServer::start(config, &network, Recorder::new(), metrics.clone())
        .await
        .unwrap();
    client.write_all(&list_groups(1)).await.unwrap();
    let mut head = [0; 8];
    within(client.read_exact(&mut head)).await.unwrap();
    assert_eq!(head[4..], [0, 0, 0, 1]);
    assert_eq!(metrics.accept_errors.get(), 3);
    within(server.stop(Duration::from_secs(1))).await;
}
