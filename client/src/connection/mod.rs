//! One connection to one broker: framed, pipelined, with deadlines.
//!
//! Owns: correlation ids, version negotiation, the bound on responses, what a lost connection means for each request
//! (not sent, or sent without an answer).
//! Not here: which broker to ask, trying again (`cluster`, `retry`).
//!
//! Requests are written in the order they were accepted and answered in that order (Kafka's rule), so one answer that
//! does not come blocks all behind it: a request that misses its deadline closes the connection.

mod io;
mod versions;

pub use versions::Versions;

use crate::error::Error;
use crate::limits::{
    ARRAY_ELEMENTS_MAX, REQUEST_BYTES_MAX, REQUESTS_IN_FLIGHT_MAX, RESPONSE_BYTES_MAX,
    STRING_BYTES_MAX,
};
use bytes::{Bytes, BytesMut};
use io::{Outgoing, Shared};
use kafka_wire::{
    KafkaRequest, OutboundFrameLimits, RequestResponsePair, ResponseHeader, encode_request,
    response_header_version_for,
};
use kafka_wire_core::{ApiVersion, DecodeLimits, Decoder, KafkaDecode, KafkaEncode, StrBytes};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;
use tidelog_env::{Network, Tasks};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::Instant;

/// How a connection is opened.
#[derive(Clone, Debug)]
pub struct ConnectionConfig {
    /// The name under which the broker logs this client.
    pub client_id: String,
    /// Deadline for connecting and agreeing on versions.
    pub connect_timeout: Duration,
    /// Largest response that is read.
    pub response_bytes_max: usize,
}

impl Default for ConnectionConfig {
    fn default() -> Self {
        Self {
            client_id: "tidelog".to_owned(),
            connect_timeout: Duration::from_secs(10),
            response_bytes_max: RESPONSE_BYTES_MAX,
        }
    }
}

/// A connection. Clones share it; it closes when the last one is dropped.
#[derive(Clone)]
pub struct Connection(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    versions: Versions,
    client_id: StrBytes,
    correlation: AtomicI32,
    queue: mpsc::Sender<Outgoing>,
    permits: Arc<Semaphore>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.close("the client closed it");
    }
}

/// A request on its way. Dropping it forgets the answer; the connection stays usable.
pub struct Answer {
    shared: Arc<Shared>,
    reply: oneshot::Receiver<Result<Bytes, Error>>,
    deadline: Instant,
}

impl Answer {
    /// The whole response frame (header included), at the latest at the deadline.
    pub async fn frame(mut self) -> Result<Bytes, Error> {
        let result = match tokio::time::timeout_at(self.deadline, &mut self.reply).await {
            Ok(result) => result,
            Err(_) => {
                self.shared.close("no answer before the deadline");
                self.reply.await
            }
        };
        result.unwrap_or_else(|_| Err(self.shared.no_answer()))
    }
}

impl Connection {
    /// Connects to `host:port` and agrees on versions.
    pub async fn open(
        network: &dyn Network,
        host: &str,
        port: u16,
        config: &ConnectionConfig,
    ) -> Result<Self, Error> {
        let address = format!("{host}:{port}");
        let deadline = Instant::now() + config.connect_timeout;
        let unreachable = |cause: String| Error::Unreachable {
            address: address.clone(),
            known_by: String::new(),
            cause,
            advice: String::new(),
        };
        let stream = tokio::time::timeout_at(deadline, network.connect(host, port))
            .await
            .map_err(|_| unreachable(format!("no connection within {:?}", config.connect_timeout)))?
            .map_err(|error| unreachable(error.to_string()))?;
        let tasks = Tasks::new();
        let shared = Arc::new(Shared::new(
            address,
            config.response_bytes_max,
            tasks.stopping(),
        ));
        let queue = io::spawn(stream, &shared, &tasks);
        let mut inner = Inner {
            shared,
            versions: Versions::default(),
            client_id: StrBytes::from(config.client_id.as_str()),
            correlation: AtomicI32::new(0),
            queue,
            permits: Arc::new(Semaphore::new(REQUESTS_IN_FLIGHT_MAX)),
        };
        inner.versions = versions::negotiate(&inner, deadline).await?;
        Ok(Self(Arc::new(inner)))
    }

    /// `host:port` of the broker.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.0.shared.address
    }

    /// Whether requests can still be sent.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.shared.is_open()
    }

    /// For how long the broker has said nothing though something is awaited. A long poll is silent too.
    pub(crate) fn silent_for(&self) -> Duration {
        self.0.shared.silent_for()
    }

    /// Closes it: everything on its way fails, as not sent or without an answer.
    pub fn close(&self, why: &str) {
        self.0.shared.close(why);
    }

    /// The highest version of `R` within `ours` that the broker serves too.
    pub fn version<R: KafkaRequest>(&self, ours: RangeInclusive<i16>) -> Result<i16, Error> {
        self.0.versions.pick::<R>(ours, &self.0.shared.address)
    }

    /// One request and its answer. `build` makes the request for the version agreed on, which lies within `ours`.
    pub async fn call<R>(
        &self,
        ours: RangeInclusive<i16>,
        deadline: Instant,
        build: impl FnOnce(i16) -> R,
    ) -> Result<R::Response, Error>
    where
        R: RequestResponsePair + KafkaEncode,
    {
        let version = self.version::<R>(ours)?;
        let request = build(version);
        call(&self.0, version, &request, deadline).await
    }

    /// The correlation id for a frame that the caller encodes by itself.
    pub(crate) fn next_correlation(&self) -> i32 {
        self.0.next_correlation()
    }

    /// The client id that request headers carry.
    pub(crate) fn client_id(&self) -> &StrBytes {
        &self.0.client_id
    }

    /// Queues a complete frame (length prefix included) made with `correlation`. Waits while the connection is full.
    pub(crate) async fn submit(
        &self,
        chunks: Vec<Bytes>,
        correlation: i32,
        deadline: Instant,
    ) -> Result<Answer, Error> {
        submit(&self.0, chunks, correlation, deadline).await
    }

    /// As [`Connection::submit`] for a request that the broker does not answer (acks=0): returns once it is written.
    pub(crate) async fn submit_unanswered(
        &self,
        chunks: Vec<Bytes>,
        deadline: Instant,
    ) -> Result<(), Error> {
        let (written, done) = oneshot::channel();
        let outgoing = Outgoing {
            chunks,
            correlation: None,
            reply: written,
            permit: None,
        };
        enqueue(&self.0, outgoing, deadline).await?;
        let answer = Answer {
            shared: Arc::clone(&self.0.shared),
            reply: done,
            deadline,
        };
        answer.frame().await.map(drop)
    }

    /// Decodes the response of `R` from a frame.
    pub(crate) fn decode<R: RequestResponsePair>(
        &self,
        frame: Bytes,
        version: i16,
    ) -> Result<R::Response, Error> {
        decode::<R>(&self.0, frame, version)
    }
}

impl Inner {
    fn next_correlation(&self) -> i32 {
        self.correlation.fetch_add(1, Ordering::Relaxed)
    }
}

async fn call<R>(
    inner: &Inner,
    version: i16,
    request: &R,
    deadline: Instant,
) -> Result<R::Response, Error>
where
    R: RequestResponsePair + KafkaEncode,
{
    let correlation = inner.next_correlation();
    let mut frame = BytesMut::new();
    encode_request(
        &mut frame,
        correlation,
        Some(inner.client_id.clone()),
        request,
        ApiVersion::new(version),
        OutboundFrameLimits::new(REQUEST_BYTES_MAX),
    )
    .map_err(|error| Error::Invalid(format!("{} cannot be encoded: {error}", R::NAME)))?;
    let answer = submit(inner, vec![frame.freeze()], correlation, deadline).await?;
    decode::<R>(inner, answer.frame().await?, version)
}

async fn submit(
    inner: &Inner,
    chunks: Vec<Bytes>,
    correlation: i32,
    deadline: Instant,
) -> Result<Answer, Error> {
    let permit = tokio::time::timeout_at(deadline, Arc::clone(&inner.permits).acquire_owned())
        .await
        .map_err(|_| {
            inner
                .shared
                .not_sent("too many requests on the way until the deadline")
        })?
        .map_err(|_| inner.shared.not_sent("closed"))?;
    let (reply, answer) = oneshot::channel();
    let outgoing = Outgoing {
        chunks,
        correlation: Some(correlation),
        reply,
        permit: Some(permit),
    };
    enqueue(inner, outgoing, deadline).await?;
    Ok(Answer {
        shared: Arc::clone(&inner.shared),
        reply: answer,
        deadline,
    })
}

async fn enqueue(inner: &Inner, outgoing: Outgoing, deadline: Instant) -> Result<(), Error> {
    match tokio::time::timeout_at(deadline, inner.queue.send(outgoing)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(inner.shared.not_sent("closed")),
        Err(_) => Err(inner
            .shared
            .not_sent("the queue was full until the deadline")),
    }
}

fn decode<R: RequestResponsePair>(
    inner: &Inner,
    frame: Bytes,
    version: i16,
) -> Result<R::Response, Error> {
    let version = ApiVersion::new(version);
    let broken = |cause: String| {
        let error = Error::Protocol {
            address: inner.shared.address.clone(),
            cause: format!("answer to {}: {cause}", R::NAME),
        };
        inner.shared.close("an answer that cannot be decoded");
        error
    };
    let header =
        response_header_version_for::<R>(version).map_err(|error| broken(error.to_string()))?;
    let mut decoder =
        Decoder::new(frame, decode_limits()).map_err(|error| broken(error.to_string()))?;
    ResponseHeader::decode(&mut decoder, ApiVersion::new(header))
        .map_err(|error| broken(error.to_string()))?;
    let response =
        R::Response::decode(&mut decoder, version).map_err(|error| broken(error.to_string()))?;
    decoder
        .finish()
        .map_err(|error| broken(error.to_string()))?;
    Ok(response)
}

/// The caps under which responses are decoded.
#[must_use]
pub fn decode_limits() -> DecodeLimits {
    let mut limits = DecodeLimits::default();
    limits.max_frame_bytes = RESPONSE_BYTES_MAX;
    limits.max_bytes_bytes = RESPONSE_BYTES_MAX;
    limits.max_string_bytes = STRING_BYTES_MAX;
    limits.max_array_elements = ARRAY_ELEMENTS_MAX;
    limits
}
