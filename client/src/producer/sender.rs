//! The producer's tasks: one decides what is sent, one per broker sends it and waits for answers.
//!
//! Owns: requests on their way, asking for identities and metadata.
//! Not here: what may be sent and what a result means (`core`).

use super::core::Core;
use super::delivery::BatchAck;
use super::parcel::{Identity, Parcel};
use super::wire;
use crate::cluster::{Cluster, SILENCE};
use crate::connection::{Answer, Connection};
use crate::error::{Error, ErrorCode};
use crate::limits::PRODUCE_IN_FLIGHT_MAX;
use crate::retry::Backoff;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use kafka_wire::{InitProducerIdRequest, ProduceRequest, ProduceResponse};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::Tasks;
use tidelog_model::{NodeId, Offset, ProducerEpoch, ProducerId};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

/// What the handle and the sender share.
pub(super) struct Shared {
    pub(super) core: Mutex<Core>,
    pub(super) wake: Notify,
}

/// How requests are sent.
#[derive(Clone)]
pub(super) struct Sending {
    pub(super) cluster: Cluster,
    pub(super) acks: i16,
    pub(super) request_timeout: Duration,
}

type Parcels = Vec<Parcel>;
type Outcome = (NodeId, Vec<(Parcel, Result<BatchAck, Error>)>);

struct Node {
    queue: mpsc::Sender<Parcels>,
    on_way: usize,
    /// Batches on their way, per partition.
    places: BTreeMap<(Arc<str>, i32), usize>,
    /// Tells the broker's task not to wait for a connection any more.
    left: Arc<Notify>,
}

impl Node {
    fn returned(&mut self, parcel: &Parcel) {
        let place = (Arc::clone(&parcel.topic), parcel.partition);
        if let Some(count) = self.places.get_mut(&place) {
            *count -= 1;
            if *count == 0 {
                self.places.remove(&place);
            }
        }
    }
}

/// How often brokers are looked at that something is on its way to.
const LOOK: Duration = Duration::from_millis(500);

/// The deciding task.
pub(super) struct Sender {
    shared: Arc<Shared>,
    sending: Sending,
    tasks: Tasks,
    nodes: HashMap<NodeId, Node>,
    results: (mpsc::Sender<Outcome>, mpsc::Receiver<Outcome>),
    identity: Option<BoxFuture<'static, Result<Identity, Error>>>,
    refresh: Option<BoxFuture<'static, ()>>,
    stale: BTreeSet<Arc<str>>,
    backoff: Backoff,
    identity_backoff: Backoff,
    refresh_backoff: Backoff,
    identity_not_before: Instant,
    look_at: Instant,
}

impl Sender {
    pub(super) fn new(shared: Arc<Shared>, sending: Sending, tasks: Tasks) -> Self {
        let random = sending.cluster.random();
        let backoff = Backoff::failover(Arc::clone(&random));
        Self {
            shared,
            tasks,
            nodes: HashMap::new(),
            results: mpsc::channel(64),
            identity: None,
            refresh: None,
            stale: BTreeSet::new(),
            identity_backoff: Backoff::new(random),
            refresh_backoff: backoff.clone(),
            backoff,
            identity_not_before: Instant::now(),
            look_at: Instant::now(),
            sending,
        }
    }

    /// Runs until it is dropped.
    pub(super) async fn run(mut self) {
        loop {
            let wake = self.send_what_is_due().await;
            self.look_for_silent_brokers();
            self.ask_for_what_lacks();
            let wake = wake.map_or(self.look_at, |wake| wake.min(self.look_at));
            tokio::select! {
                () = self.shared.wake.notified() => {}
                Some((node, results)) = self.results.1.recv() => self.complete(node, results),
                result = pending(&mut self.identity) => self.identified(result),
                () = pending(&mut self.refresh) => self.refresh = None,
                () = tokio::time::sleep_until(wake) => {}
            }
            while let Ok((node, results)) = self.results.1.try_recv() {
                self.complete(node, results);
            }
        }
    }

    /// Sends until nothing more is due; returns when something will be.
    async fn send_what_is_due(&mut self) -> Option<Instant> {
        loop {
            let metadata = self.sending.cluster.metadata();
            let nodes = &self.nodes;
            let mut drained = self.shared.core.lock().drain(
                Instant::now(),
                |topic, partition| {
                    metadata.leader(topic, tidelog_model::PartitionIndex::new(partition))
                },
                |node| {
                    PRODUCE_IN_FLIGHT_MAX
                        .saturating_sub(nodes.get(&node).map_or(0, |node| node.on_way))
                },
            );
            self.stale.extend(drained.leaderless.drain(..));
            if drained.requests.is_empty() {
                return drained.wake;
            }
            for (node, parcels) in drained.requests {
                self.dispatch(node, parcels).await;
            }
        }
    }

    /// A broker that says nothing (paused, cut off) would keep what it was sent until the request's deadline. Others are asked meanwhile
    /// who leads; once that is another broker, the silent one is left, and what it has not answered is sent to that one. Its outcome is open,
    /// so only batches that a broker recognises are sent again this way.
    fn look_for_silent_brokers(&mut self) {
        const ACKS_ALL: i16 = -1;
        let now = Instant::now();
        if now < self.look_at {
            return;
        }
        self.look_at = now + LOOK;
        if self.sending.acks != ACKS_ALL {
            return;
        }
        let cluster = &self.sending.cluster;
        let metadata = cluster.metadata();
        for (id, node) in &self.nodes {
            if node.on_way == 0 || !cluster.is_silent(*id, SILENCE) {
                continue;
            }
            let moved = |(topic, partition): &(Arc<str>, i32)| {
                let index = tidelog_model::PartitionIndex::new(*partition);
                metadata
                    .leader(topic, index)
                    .is_some_and(|leader| leader != *id)
            };
            if node.places.keys().any(moved) {
                tracing::debug!("broker {id} is silent and leads no more: it is left");
                cluster.leave(*id, "it said nothing, and another broker leads");
                node.left.notify_waiters();
            }
            let topics = node.places.keys().map(|(topic, _)| Arc::clone(topic));
            self.stale.extend(topics);
        }
    }

    async fn dispatch(&mut self, id: NodeId, parcels: Parcels) {
        let mut sealed = Vec::with_capacity(parcels.len());
        for mut parcel in parcels {
            match parcel.seal() {
                Ok(()) => sealed.push(parcel),
                Err(error) => {
                    let error = Error::Invalid(error.to_string());
                    self.shared.core.lock().complete(
                        parcel,
                        Err(error),
                        Duration::ZERO,
                        Instant::now(),
                    );
                }
            }
        }
        if sealed.is_empty() {
            return;
        }
        let node = self.nodes.entry(id).or_insert_with(|| {
            let (queue, requests) = mpsc::channel(PRODUCE_IN_FLIGHT_MAX);
            let left = Arc::new(Notify::new());
            let sending = self.sending.clone();
            let results = self.results.0.clone();
            self.tasks.spawn(
                "producer to one broker",
                node_loop(id, sending, Arc::clone(&left), requests, results),
            );
            Node {
                queue,
                on_way: 0,
                places: BTreeMap::new(),
                left,
            }
        });
        node.on_way += 1;
        for parcel in &sealed {
            let place = (Arc::clone(&parcel.topic), parcel.partition);
            *node.places.entry(place).or_default() += 1;
        }
        // There is room: no more than PRODUCE_IN_FLIGHT_MAX are on their way.
        if let Err(mpsc::error::SendError(parcels)) = node.queue.send(sealed).await {
            let gone = |parcel| {
                (
                    parcel,
                    Err(Error::NotSent {
                        address: format!("broker {id}"),
                        cause: "its task ended".to_owned(),
                    }),
                )
            };
            self.complete(id, parcels.into_iter().map(gone).collect());
            self.nodes.remove(&id);
        }
    }

    fn complete(&mut self, id: NodeId, results: Vec<(Parcel, Result<BatchAck, Error>)>) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.on_way = node.on_way.saturating_sub(1);
            for (parcel, _) in &results {
                node.returned(parcel);
            }
        }
        let failed = results.iter().any(|(_, result)| result.is_err());
        let pause = if failed {
            self.backoff.pause()
        } else {
            Duration::ZERO
        };
        if !failed {
            self.backoff.reset();
        }
        let now = Instant::now();
        let mut core = self.shared.core.lock();
        for (parcel, result) in results {
            if let Err(error) = &result {
                tracing::debug!(topic = %parcel.topic, partition = parcel.partition, "batch not acknowledged: {error}");
            }
            let topic = Arc::clone(&parcel.topic);
            if core.complete(parcel, result, pause, now) {
                self.stale.insert(topic);
            }
        }
    }

    fn ask_for_what_lacks(&mut self) {
        if self.identity.is_none() && self.shared.core.lock().needs_identity() {
            let cluster = self.sending.cluster.clone();
            let not_before = self.identity_not_before;
            self.identity = Some(Box::pin(async move {
                tokio::time::sleep_until(not_before).await;
                init_producer_id(&cluster).await
            }));
        }
        if self.refresh.is_none() && !self.stale.is_empty() {
            let topics = std::mem::take(&mut self.stale);
            let cluster = self.sending.cluster.clone();
            let pause = self.refresh_backoff.pause();
            self.refresh = Some(Box::pin(async move {
                tokio::time::sleep(pause).await;
                let names: Vec<&str> = topics.iter().map(AsRef::as_ref).collect();
                if let Err(error) = cluster.refresh(Some(&names)).await {
                    tracing::debug!("metadata not refreshed: {error}");
                }
            }));
        } else if self.stale.is_empty() && self.refresh.is_none() {
            self.refresh_backoff.reset();
        }
    }

    fn identified(&mut self, result: Result<Identity, Error>) {
        self.identity = None;
        match result {
            Ok(identity) => {
                self.identity_backoff.reset();
                self.shared.core.lock().set_identity(identity);
            }
            Err(error) if error.is_retriable() => {
                tracing::debug!("no producer id yet: {error}");
                self.identity_not_before = Instant::now() + self.identity_backoff.pause();
            }
            Err(error) => self.shared.core.lock().stop(&error),
        }
    }
}

/// The future's output, and never again; never when there is none.
async fn pending<T>(slot: &mut Option<BoxFuture<'static, T>>) -> T {
    match slot {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// Asked again elsewhere, it may use up an id that nobody gets.
async fn init_producer_id(cluster: &Cluster) -> Result<Identity, Error> {
    let response = cluster
        .ask_talking::<InitProducerIdRequest>(0..=4, |_| {
            let mut request = InitProducerIdRequest::default();
            request.transactional_id = None;
            request.transaction_timeout_ms = i32::MAX;
            request.producer_id = -1;
            request.producer_epoch = -1;
            request
        })
        .await?;
    ErrorCode::new(response.error_code).check("producer id", None)?;
    Ok(Identity {
        id: ProducerId::new(response.producer_id),
        epoch: ProducerEpoch::new(response.producer_epoch),
    })
}

/// Sends in the order of `requests`; answers come back in any order.
async fn node_loop(
    id: NodeId,
    sending: Sending,
    left: Arc<Notify>,
    mut requests: mpsc::Receiver<Parcels>,
    results: mpsc::Sender<Outcome>,
) {
    let mut answers = FuturesUnordered::new();
    loop {
        let outcome = tokio::select! {
            Some(outcome) = answers.next() => outcome,
            request = requests.recv() => {
                let Some(parcels) = request else { return };
                match submit(id, &sending, &left, &parcels).await {
                    Ok(submitted) => {
                        answers.push(answered(submitted, parcels));
                        continue;
                    }
                    Err(error) => parcels.into_iter().map(|parcel| (parcel, Err(error.clone()))).collect(),
                }
            }
        };
        if results.send((id, outcome)).await.is_err() {
            return;
        }
    }
}

struct Submitted {
    connection: Connection,
    version: i16,
    /// `None` with acks=0: it was written.
    answer: Option<Answer>,
}

async fn submit(
    id: NodeId,
    sending: &Sending,
    left: &Notify,
    parcels: &[Parcel],
) -> Result<Submitted, Error> {
    let connection = tokio::select! {
        connection = sending.cluster.node(id) => connection?,
        () = left.notified() => {
            return Err(Error::NotSent {
                address: format!("broker {id}"),
                cause: "it said nothing, and another broker leads".to_owned(),
            });
        }
    };
    let version = connection.version::<ProduceRequest>(wire::VERSIONS)?;
    let deadline = Instant::now() + sending.request_timeout;
    let correlation = connection.next_correlation();
    let head = wire::Head {
        version,
        correlation,
        client_id: connection.client_id().as_str(),
        acks: sending.acks,
        timeout_ms: i32::try_from(sending.request_timeout.as_millis()).unwrap_or(i32::MAX),
    };
    let mut by_topic: BTreeMap<&str, Vec<(i32, bytes::Bytes)>> = BTreeMap::new();
    for parcel in parcels {
        let bytes = parcel.sealed().cloned().unwrap_or_default();
        by_topic
            .entry(&parcel.topic)
            .or_default()
            .push((parcel.partition, bytes));
    }
    let topics: Vec<_> = by_topic
        .into_iter()
        .map(|(name, batches)| wire::TopicBatches { name, batches })
        .collect();
    let chunks = wire::encode(&head, &topics).ok_or_else(|| {
        Error::Invalid("a produce request is too large for the protocol".to_owned())
    })?;
    if sending.acks == 0 {
        connection.submit_unanswered(chunks, deadline).await?;
        return Ok(Submitted {
            connection,
            version,
            answer: None,
        });
    }
    let answer = connection.submit(chunks, correlation, deadline).await?;
    Ok(Submitted {
        connection,
        version,
        answer: Some(answer),
    })
}

async fn answered(
    submitted: Submitted,
    parcels: Parcels,
) -> Vec<(Parcel, Result<BatchAck, Error>)> {
    let Some(answer) = submitted.answer else {
        let ack = BatchAck {
            base_offset: None,
            at: Instant::now(),
        };
        return parcels
            .into_iter()
            .map(|parcel| (parcel, Ok(ack)))
            .collect();
    };
    let response = match answer.frame().await {
        Ok(frame) => submitted
            .connection
            .decode::<ProduceRequest>(frame, submitted.version),
        Err(error) => Err(error),
    };
    let at = Instant::now();
    match response {
        Ok(response) => {
            let address = submitted.connection.address();
            parcels
                .into_iter()
                .map(|parcel| {
                    let result = result_of(&response, &parcel, address, at);
                    (parcel, result)
                })
                .collect()
        }
        Err(error) => parcels
            .into_iter()
            .map(|parcel| (parcel, Err(error.clone())))
            .collect(),
    }
}

fn result_of(
    response: &ProduceResponse,
    parcel: &Parcel,
    address: &str,
    at: Instant,
) -> Result<BatchAck, Error> {
    let what = || format!("produce to {}/{}", parcel.topic, parcel.partition);
    let result = response
        .responses
        .iter()
        .filter(|topic| topic.name.as_str() == &*parcel.topic)
        .flat_map(|topic| &topic.partition_responses)
        .find(|partition| partition.index == parcel.partition);
    let Some(result) = result else {
        return Err(Error::Protocol {
            address: address.to_owned(),
            cause: format!("the answer to {} lacks the partition", what()),
        });
    };
    let code = ErrorCode::new(result.error_code);
    if code == ErrorCode::NONE {
        return Ok(BatchAck {
            base_offset: (result.base_offset >= 0).then(|| Offset::new(result.base_offset)),
            at,
        });
    }
    let first = result
        .record_errors
        .iter()
        .find_map(|record| record.batch_index_error_message.as_deref());
    code.check(what(), result.error_message.as_deref().or(first))?;
    Ok(BatchAck {
        base_offset: None,
        at,
    })
}
