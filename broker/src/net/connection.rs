//! One connection: frames are read and started one after the other, answers are made side by side and written in order.
//!
//! Owns: the order of starting, how much of one connection may be in work, what is logged when it ends.
//! Not here: reading (`read`), writing (`write`), accepting (`server`).
//! Spec: docs/protocols/kafka-wire.md

use super::metrics::{NetMetrics, reason};
use super::read::{FrameReader, ReadError, Received};
use super::server::NetConfig;
use super::write::{self, InWork, Pending, Slot, Source};
use crate::wire::{self, Answer, Api, Connection, Incoming, Request, Service, WireError};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidelog_env::BoxStream;
use tidelog_model::limits;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// What all connections share.
pub(super) struct Shared {
    pub(super) config: NetConfig,
    pub(super) service: Arc<dyn Service>,
    pub(super) metrics: NetMetrics,
    pub(super) memory: Memory,
    pub(super) stop: CancellationToken,
}

/// The budget of frames in work, over all connections; and one beside it for small requests, which must not wait
/// behind large frames that arrive slowly.
pub(super) struct Memory {
    large: Arc<Semaphore>,
    large_bytes: u32,
    small: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
}

impl Memory {
    pub(super) fn new(bytes: usize) -> Self {
        let large_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        Self {
            large: Arc::new(Semaphore::new(
                usize::try_from(large_bytes).unwrap_or(usize::MAX),
            )),
            large_bytes,
            small: Arc::new(Semaphore::new(limits::REQUEST_MEMORY_SMALL_BYTES)),
            waiting: Arc::default(),
        }
    }

    /// Waits for memory; more than all of it counts as all of it. `None` never happens while the listener lives.
    pub(super) async fn reserve(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let permits = u32::try_from(bytes)
            .unwrap_or(u32::MAX)
            .min(self.large_bytes);
        let is_small = bytes <= limits::REQUEST_SMALL_BYTES_MAX && permits < self.large_bytes;
        if is_small {
            return Arc::clone(&self.small)
                .acquire_many_owned(permits)
                .await
                .ok();
        }
        if let Ok(memory) = Arc::clone(&self.large).try_acquire_many_owned(permits) {
            return Some(memory);
        }
        let _waiting = InWork::new(&self.waiting);
        Arc::clone(&self.large)
            .acquire_many_owned(permits)
            .await
            .ok()
    }

    /// Whether somebody waits for memory that others hold.
    pub(super) fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Bytes reserved now.
    pub(super) fn used(&self) -> usize {
        let total = usize::try_from(self.large_bytes).unwrap_or(usize::MAX);
        let small =
            limits::REQUEST_MEMORY_SMALL_BYTES.saturating_sub(self.small.available_permits());
        total
            .saturating_sub(self.large.available_permits())
            .saturating_add(small)
    }
}

/// Serves the connection until it ends.
pub(super) async fn run(shared: Arc<Shared>, connection: Arc<Connection>, stream: BoxStream) {
    let (read, write) = tokio::io::split(stream);
    // The writer holds one more outside of the queue.
    let (queue, slots) = mpsc::channel(limits::CONNECTION_REQUESTS_IN_FLIGHT_MAX - 1);
    let writer = tokio::spawn(write::run(
        Arc::clone(&shared),
        Arc::clone(&connection),
        write,
        slots,
    ));
    let mut writer = AbortOnDropHandle::new(writer);
    let mut reader = Reader {
        frames: FrameReader::new(read, Arc::clone(&shared)),
        bulk: Arc::new(Semaphore::new(1)),
        in_work: Arc::new(AtomicUsize::new(0)),
        queue,
        shared,
        connection,
    };
    let ended = tokio::select! {
        ended = reader.serve() => ended,
        // The writer ends first when an answer said so or the peer stopped reading.
        _ = &mut writer => return,
    };
    let drain = reader.report(&ended);
    drop(reader);
    if drain {
        // Ends when every answer in work is written, or the peer does not read, or the server's drain time is over.
        let _ = writer.await;
    }
}

/// Why a connection takes no more requests.
enum Ended {
    Read(ReadError),
    Decode(WireError),
    Stopped,
    WriterGone,
}

struct Reader<R> {
    frames: FrameReader<R>,
    queue: mpsc::Sender<Slot>,
    bulk: Arc<Semaphore>,
    in_work: Arc<AtomicUsize>,
    shared: Arc<Shared>,
    connection: Arc<Connection>,
}

impl<R: tokio::io::AsyncRead + Unpin> Reader<R> {
    async fn serve(&mut self) -> Ended {
        loop {
            if let Err(ended) = self.take_request().await {
                return ended;
            }
        }
    }

    /// Reads one request and starts it. A stop is heeded before a request is whole, not after: what was started gets
    /// its answer.
    async fn take_request(&mut self) -> Result<(), Ended> {
        let stop = self.shared.stop.clone();
        let in_work = Arc::clone(&self.in_work);
        let queue = self.queue.clone();
        let (place, received) = tokio::select! {
            biased;
            () = stop.cancelled() => return Err(Ended::Stopped),
            taken = async {
                // A place first: what cannot be started is not read.
                let place = queue.reserve_owned().await.map_err(|_| Ended::WriterGone)?;
                let received = self.frames.next(|| in_work.load(Ordering::Relaxed) > 0).await.map_err(Ended::Read)?;
                Ok((place, received))
            } => taken?,
        };
        let Received { frame, mut memory } = received;
        let bytes = frame.len();
        let incoming = wire::decode(frame).map_err(Ended::Decode)?;
        // Decoded: of what decoding might have taken, the frame's own size stays reserved.
        drop(memory.split(memory.num_permits().saturating_sub(bytes)));
        let in_work = InWork::new(&self.in_work);
        let (pending, bulk) = match incoming {
            Incoming::Request(request) => self.start(*request).await,
            Incoming::UnsupportedApiVersions { correlation_id } => (
                Pending::Frame(
                    wire::unsupported_api_versions_frame(correlation_id).map_err(Ended::Decode)?,
                ),
                None,
            ),
        };
        place.send(Slot {
            pending,
            memory,
            bulk,
            in_work,
        });
        Ok(())
    }

    async fn start(&mut self, request: Request) -> (Pending, Option<OwnedSemaphorePermit>) {
        let (api, version, correlation_id) =
            (request.api(), request.version, request.correlation_id);
        let bulk = match api {
            // Never closed, so that this does not fail; without a permit the request is only less bounded.
            Api::Fetch => Arc::clone(&self.bulk).acquire_owned().await.ok(),
            _ => None,
        };
        let started = Instant::now();
        let source = match self.shared.service.start(&self.connection, request).await {
            Answer::Now(response) => Source::Now(response),
            Answer::Later(future) => Source::Task(AbortOnDropHandle::new(tokio::spawn(future))),
        };
        (
            Pending::Answer {
                api,
                version,
                correlation_id,
                started,
                source,
            },
            bulk,
        )
    }

    /// Logs and counts the end. Whether answers in work are still worth writing.
    fn report(&self, ended: &Ended) -> bool {
        let (peer, metrics) = (&self.connection, &self.shared.metrics);
        match ended {
            Ended::Stopped => true,
            Ended::WriterGone | Ended::Read(ReadError::Closed) => false,
            Ended::Read(ReadError::Cut) => {
                metrics.closed("cut");
                tracing::info!(%peer, "the client closed its connection inside a request");
                false
            }
            Ended::Read(ReadError::Io(error)) => {
                tracing::debug!(%peer, "the connection failed: {error}");
                false
            }
            Ended::Read(ReadError::Idle) => {
                metrics.closed("idle");
                tracing::debug!(%peer, "the connection was idle; it is closed");
                false
            }
            Ended::Read(ReadError::Stalled) => {
                metrics.closed("stalled");
                tracing::warn!(%peer, "a request began and did not go on; the connection is closed");
                false
            }
            Ended::Read(ReadError::Wire(error)) | Ended::Decode(error) => {
                metrics.closed(reason(error));
                tracing::warn!(%peer, "the connection is closed: {error}");
                true
            }
        }
    }
}
