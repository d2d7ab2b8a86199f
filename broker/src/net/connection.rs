//! One connection: frames are read and started one after the other, answers are made side by side and written in order.
//!
//! Owns: the order of starting, how much of one connection may be in work, what is logged when it ends.
//! Not here: reading (`read`), writing (`write`), accepting (`server`).
//! Spec: docs/protocols/kafka-wire.md

use super::memory::{Held, Memory};
use super::metrics::{NetMetrics, reason};
use super::read::{FrameReader, ReadError, Received};
use super::server::{LogGate, NetConfig};
use super::write::{self, InWork, Pending, Slot, Source};
use crate::wire::{self, Answer, Connection, Incoming, Request, Service, WireError};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidelog_env::BoxStream;
use tidelog_model::limits;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// What all connections share.
pub(super) struct Shared {
    pub(super) config: NetConfig,
    pub(super) service: Arc<dyn Service>,
    pub(super) metrics: NetMetrics,
    pub(super) memory: Memory,
    /// About frames that are too slow.
    pub(super) slow: Mutex<LogGate>,
    pub(super) stop: CancellationToken,
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
        let Received {
            head,
            frame,
            held,
            bulk,
        } = received;
        // What decoding may take is held while it runs; from then on the frame's own size, until the request is done.
        let decoding = self.shared.memory.decode(head.decode_bytes()).await;
        let decoded = wire::decode(frame);
        drop(decoding);
        let incoming = decoded.map_err(Ended::Decode)?;
        let in_work = InWork::new(&self.in_work);
        let pending = match incoming {
            Incoming::Request(request) => self.start(*request, held).await,
            Incoming::UnsupportedApiVersions { correlation_id } => Pending::Frame(
                wire::unsupported_api_versions_frame(correlation_id).map_err(Ended::Decode)?,
            ),
        };
        place.send(Slot {
            pending,
            bulk,
            in_work,
        });
        Ok(())
    }

    /// Starts a request. Its memory is free when its answer is made: a client that reads slowly holds none.
    async fn start(&mut self, request: Request, held: Held) -> Pending {
        let (api, version, correlation_id) =
            (request.api(), request.version, request.correlation_id);
        let started = Instant::now();
        let source = match self.shared.service.start(&self.connection, request).await {
            Answer::Now(response) => Source::Now(response),
            Answer::Later(future) => {
                let work = async move {
                    let response = future.await;
                    drop(held);
                    response
                };
                Source::Task(AbortOnDropHandle::new(tokio::spawn(work)))
            }
        };
        Pending::Answer {
            api,
            version,
            correlation_id,
            started,
            source,
        }
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
            Ended::Read(ReadError::Slow(slow)) => {
                metrics.closed("slow");
                if self.shared.slow.lock().open() {
                    tracing::warn!(%peer, "a request is too slow: {slow}; the connection is closed (kafka_connections_closed_by_broker counts them)");
                }
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
