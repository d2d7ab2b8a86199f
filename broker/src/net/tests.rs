#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::wire::messages::{FetchRequest, ListGroupsResponse};
use crate::wire::tests::golden;
use crate::wire::{
    Answer, Api, Connection, FetchAnswer, FetchedPartition, FetchedTopic, Request, RequestBody,
    Response, Service,
};
use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::TcpNetwork;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{oneshot, watch};

mod hostile;
mod slow;

/// Answers ListGroups with nothing, Fetch with as many bytes as it allows, Produce not, and closes on Heartbeat. Requests
/// whose correlation id is held are answered when the test says so.
struct Recorder {
    started: watch::Sender<Vec<i32>>,
    held: Mutex<HashMap<i32, oneshot::Receiver<Response>>>,
}

impl Recorder {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            started: watch::Sender::new(Vec::new()),
            held: Mutex::new(HashMap::new()),
        })
    }

    fn hold(&self, correlation_id: i32) -> oneshot::Sender<Response> {
        let (sender, receiver) = oneshot::channel();
        self.held.lock().insert(correlation_id, receiver);
        sender
    }

    /// Waits until exactly these were started, in this order.
    async fn wait_for(&self, expected: &[i32]) {
        let mut started = self.started.subscribe();
        let waited = within(started.wait_for(|now| now.len() >= expected.len()));
        assert_eq!(*waited.await.unwrap(), expected);
    }

    fn started(&self) -> Vec<i32> {
        self.started.borrow().clone()
    }
}

#[async_trait]
impl Service for Recorder {
    async fn start(&self, _: &Arc<Connection>, request: Request) -> Answer {
        self.started
            .send_modify(|started| started.push(request.correlation_id));
        if let Some(receiver) = self.held.lock().remove(&request.correlation_id) {
            return Answer::Later(Box::pin(async move { receiver.await.unwrap() }));
        }
        match request.body {
            RequestBody::ListGroups(_) => ListGroupsResponse::default().into(),
            RequestBody::Fetch(fetch) => fetched(&fetch).into(),
            RequestBody::Produce(_) => Answer::Now(Response::Nothing),
            RequestBody::Heartbeat(_) => Answer::Now(Response::Close),
            other => panic!("not asked for: {other:?}"),
        }
    }
}

/// A Fetch answer with the bytes that the request allows.
fn fetched(fetch: &FetchRequest) -> FetchAnswer {
    let records = vec![Bytes::from(vec![
        7;
        usize::try_from(fetch.max_bytes).unwrap()
    ])];
    let partition = FetchedPartition {
        records,
        ..Default::default()
    };
    FetchAnswer {
        topics: vec![FetchedTopic {
            partitions: vec![partition],
            ..Default::default()
        }],
        ..Default::default()
    }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future)
        .await
        .expect("no end within 20 s")
}

struct Rig {
    server: NetServer,
    metrics: NetMetrics,
    service: Arc<Recorder>,
}

impl Rig {
    async fn start(change: impl FnOnce(&mut NetConfig)) -> Self {
        let service = Recorder::new();
        let metrics = NetMetrics::default();
        let mut config = NetConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
        change(&mut config);
        let shared: Arc<dyn Service> = service.clone();
        let server = NetServer::start(config, &TcpNetwork, shared, metrics.clone())
            .await
            .unwrap();
        Self {
            server,
            metrics,
            service,
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.server.local_addr()).await.unwrap()
    }

    /// Waits until a connection was closed for `reason` as often as `count`.
    async fn closed(&self, reason: &'static str, count: u64) {
        within(async {
            while self.metrics.closed_for(reason) < count {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
        .await;
    }

    /// Proves that the server still answers, and that no connection holds memory.
    async fn is_well(&self) {
        let mut client = self.connect().await;
        let correlation_id = 0x7eed_0001;
        client
            .write_all(&list_groups(correlation_id))
            .await
            .unwrap();
        assert_eq!(answer(&mut client).await.unwrap().0, correlation_id);
        drop(client);
        within(async {
            while self.server.connections() > 0 || self.server.request_memory_used() > 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
        .await;
        assert_eq!(self.metrics.connections.get(), 0);
    }
}

/// A frame with a header of version 1 without client id.
fn frame(api: Api, version: i16, correlation_id: i32, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(&i32::try_from(10 + body.len()).unwrap().to_be_bytes());
    out.extend_from_slice(&api.key().to_be_bytes());
    out.extend_from_slice(&version.to_be_bytes());
    out.extend_from_slice(&correlation_id.to_be_bytes());
    out.extend_from_slice(&[0xff, 0xff]);
    out.extend_from_slice(body);
    out
}

fn list_groups(correlation_id: i32) -> Vec<u8> {
    frame(Api::ListGroups, 0, correlation_id, &[])
}

/// A Fetch of version 4 that allows `bytes` in its answer.
fn fetch(correlation_id: i32, bytes: i32) -> Vec<u8> {
    let mut body = [0; 21];
    body[12..16].copy_from_slice(&bytes.to_be_bytes());
    frame(Api::Fetch, 4, correlation_id, &body)
}

/// A Produce of version 3, acks 0, with `bytes` of records to one partition.
fn produce(correlation_id: i32, bytes: usize) -> Vec<u8> {
    let mut body = vec![
        0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 1, 0, 0, 0, 0,
    ];
    body.extend_from_slice(&i32::try_from(bytes).unwrap().to_be_bytes());
    body.extend_from_slice(&vec![9; bytes]);
    frame(Api::Produce, 3, correlation_id, &body)
}

/// The next answer: correlation id and the rest. `None` at the end of the connection.
async fn answer(client: &mut TcpStream) -> Option<(i32, Vec<u8>)> {
    within(async {
        let length = client.read_i32().await.ok()?;
        let correlation_id = client.read_i32().await.ok()?;
        let mut rest = vec![0; usize::try_from(length).unwrap() - 4];
        client.read_exact(&mut rest).await.ok()?;
        Some((correlation_id, rest))
    })
    .await
}

fn nothing() -> Response {
    ListGroupsResponse::default().into()
}

/// Proves that requests are started in order and side by side, and answered in order, whichever is done first.
#[tokio::test]
async fn answers_come_in_order_of_requests_that_run_side_by_side() {
    let rig = Rig::start(|_| {}).await;
    let (first, third) = (rig.service.hold(1), rig.service.hold(3));
    let mut client = rig.connect().await;
    client
        .write_all(&(1..=4).flat_map(list_groups).collect::<Vec<_>>())
        .await
        .unwrap();
    rig.service.wait_for(&[1, 2, 3, 4]).await;
    third.send(nothing()).unwrap();
    first.send(nothing()).unwrap();
    for expected in 1..=4 {
        assert_eq!(answer(&mut client).await.unwrap().0, expected);
    }
    drop(client);
    rig.is_well().await;
}

/// Proves that no more requests of one connection than allowed are in work; the next starts when one is answered.
#[tokio::test]
async fn requests_in_work_are_bounded() {
    let rig = Rig::start(|_| {}).await;
    let count = i32::try_from(tidelog_model::limits::CONNECTION_REQUESTS_IN_FLIGHT_MAX).unwrap();
    let mut held: Vec<_> = (0..count + 2).map(|id| rig.service.hold(id)).collect();
    let mut client = rig.connect().await;
    client
        .write_all(&(0..count + 2).flat_map(list_groups).collect::<Vec<_>>())
        .await
        .unwrap();
    let first: Vec<i32> = (0..count).collect();
    rig.service.wait_for(&first).await;
    // Another connection is served meanwhile, and what is over the bound has not started.
    let mut other = rig.connect().await;
    other.write_all(&list_groups(1000)).await.unwrap();
    assert_eq!(answer(&mut other).await.unwrap().0, 1000);
    let with_other: Vec<i32> = first.iter().copied().chain([1000]).collect();
    assert_eq!(rig.service.started(), with_other);
    for sender in held.drain(..) {
        sender.send(nothing()).unwrap();
    }
    for expected in 0..count + 2 {
        assert_eq!(answer(&mut client).await.unwrap().0, expected);
    }
}

/// Proves that a connection has one Fetch in work: the next is started when the first is written.
#[tokio::test]
async fn one_fetch_is_in_work() {
    let rig = Rig::start(|_| {}).await;
    let first = rig.service.hold(1);
    let mut client = rig.connect().await;
    client
        .write_all(&[fetch(1, 10), list_groups(2), fetch(3, 10), list_groups(4)].concat())
        .await
        .unwrap();
    rig.service.wait_for(&[1, 2]).await;
    first.send(FetchAnswer::default().into()).unwrap();
    for expected in 1..=4 {
        assert_eq!(answer(&mut client).await.unwrap().0, expected);
    }
    assert_eq!(rig.service.started(), [1, 2, 3, 4]);
}

/// Proves that large answers arrive whole, in writes of many pieces.
#[tokio::test]
async fn large_answers_arrive_whole() {
    let rig = Rig::start(|_| {}).await;
    let mut client = rig.connect().await;
    client.write_all(&fetch(1, 20_000_000)).await.unwrap();
    let (_, body) = answer(&mut client).await.unwrap();
    assert_eq!(body.iter().filter(|byte| **byte == 7).count(), 20_000_000);
}

/// Proves that a request without an answer writes nothing and holds up nothing, and that an answer can close.
#[tokio::test]
async fn nothing_and_close_are_heeded() {
    let rig = Rig::start(|_| {}).await;
    let mut client = rig.connect().await;
    client
        .write_all(&[produce(1, 100), list_groups(2)].concat())
        .await
        .unwrap();
    assert_eq!(answer(&mut client).await.unwrap().0, 2);
    let heartbeat = golden::of(Api::Heartbeat)
        .into_iter()
        .find(|message| message.request)
        .unwrap();
    client.write_all(&list_groups(3)).await.unwrap();
    client.write_all(&heartbeat.frame).await.unwrap();
    assert_eq!(answer(&mut client).await.unwrap().0, 3);
    assert_eq!(answer(&mut client).await, None);
    assert_eq!(rig.metrics.closed_for("service"), 1);
    rig.is_well().await;
}

/// Proves that a panic while answering costs one connection and is counted.
#[tokio::test]
async fn a_panic_costs_one_connection() {
    let rig = Rig::start(|_| {}).await;
    drop(rig.service.hold(1));
    let mut client = rig.connect().await;
    client.write_all(&list_groups(1)).await.unwrap();
    assert_eq!(answer(&mut client).await, None);
    let mut client = rig.connect().await;
    // Not asked for: the service panics while starting.
    client
        .write_all(&frame(Api::Metadata, 0, 2, &[0; 4]))
        .await
        .unwrap();
    assert_eq!(answer(&mut client).await, None);
    rig.is_well().await;
    assert_eq!(rig.metrics.panics.get(), 2);
}

/// Proves that a stop lets requests in work have their answer and takes no more, and that the drain time ends it.
#[tokio::test]
async fn stop_drains_and_then_ends() {
    let rig = Arc::new(Rig::start(|_| {}).await);
    let held = rig.service.hold(1);
    let mut client = rig.connect().await;
    client.write_all(&list_groups(1)).await.unwrap();
    rig.service.wait_for(&[1]).await;
    let stopping = tokio::spawn({
        let rig = Arc::clone(&rig);
        async move { rig.server.stop(Duration::from_secs(20)).await }
    });
    within(async { while TcpStream::connect(rig.server.local_addr()).await.is_ok() {} }).await;
    client.write_all(&list_groups(2)).await.unwrap();
    held.send(nothing()).unwrap();
    assert_eq!(answer(&mut client).await.unwrap().0, 1);
    assert_eq!(answer(&mut client).await, None);
    within(stopping).await.unwrap();
    assert_eq!(rig.service.started(), [1]);

    let rig = Rig::start(|_| {}).await;
    let _held = rig.service.hold(1);
    let mut client = rig.connect().await;
    client.write_all(&list_groups(1)).await.unwrap();
    rig.service.wait_for(&[1]).await;
    within(rig.server.stop(Duration::from_millis(50))).await;
    assert_eq!(answer(&mut client).await, None);
    assert_eq!(rig.server.connections(), 0);
}

/// Proves that a connection over the bound is closed at once, and that a place that is free again is given again.
#[tokio::test]
async fn connections_are_bounded() {
    let rig = Rig::start(|config| config.connections_max = 1).await;
    let mut first = rig.connect().await;
    first.write_all(&list_groups(1)).await.unwrap();
    answer(&mut first).await.unwrap();
    let mut second = rig.connect().await;
    let _ = second.write_all(&list_groups(2)).await;
    assert_eq!(answer(&mut second).await, None);
    assert_eq!(rig.metrics.connections_refused.get(), 1);
    drop((first, second));
    within(async {
        while rig.server.connections() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    rig.is_well().await;
}

/// Proves that a port in use is told in one line that says what to do.
#[tokio::test]
async fn a_port_in_use_is_told() {
    let rig = Rig::start(|_| {}).await;
    let config = NetConfig::new(rig.server.local_addr());
    let service: Arc<dyn Service> = rig.service.clone();
    let refused = NetServer::start(config, &TcpNetwork, service, NetMetrics::default()).await;
    let text = refused.err().unwrap().to_string();
    assert!(
        text.contains(&rig.server.local_addr().to_string()) && text.contains("kafka.listen"),
        "{text}"
    );
}

/// Proves that metrics are registered under names of their own, and count.
#[tokio::test]
async fn metrics_are_exposed() {
    let rig = Rig::start(|_| {}).await;
    rig.is_well().await;
    let mut registry = prometheus_client::registry::Registry::with_prefix("tidelog");
    rig.metrics.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for line in [
        "tidelog_kafka_connections_accepted_total 1",
        "tidelog_kafka_received_bytes_total 14",
        "tidelog_kafka_request_latency_seconds_count{api=\"ListGroups\"} 1",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
}
