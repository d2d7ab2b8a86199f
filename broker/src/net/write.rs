//! Writing answers, in the order of their requests.
//!
//! Owns: the queue of requests in work of one connection, vectored writes, peers that do not read.
//! Not here: making answers.
//! Spec: docs/protocols/kafka-wire.md

use super::connection::Shared;
use super::metrics::reason;
use crate::wire::{self, Api, Connection, Frame, Response};
use bytes::{Buf, Bytes};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

/// Chunks in one write. Linux takes 1024; more than this brings nothing.
const CHUNKS_PER_WRITE: usize = 64;

/// A request in work.
pub(super) struct Slot {
    pub(super) pending: Pending,
    /// Held by the one Fetch in work.
    pub(super) bulk: Option<OwnedSemaphorePermit>,
    pub(super) in_work: InWork,
}

/// Where an answer comes from.
pub(super) enum Pending {
    /// A finished frame.
    Frame(Frame),
    /// An answer that is there, or a task that makes it.
    Answer {
        api: Api,
        version: i16,
        correlation_id: i32,
        started: Instant,
        source: Source,
    },
}

pub(super) enum Source {
    Now(Response),
    Task(AbortOnDropHandle<Response>),
}

/// Counts a request as in work while it lives.
pub(super) struct InWork(Arc<AtomicUsize>);

impl InWork {
    pub(super) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for InWork {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Writes answers until the queue is closed and empty, an answer says "close", or the peer is gone.
pub(super) async fn run<W: AsyncWrite + Unpin>(
    shared: Arc<Shared>,
    connection: Arc<Connection>,
    mut stream: W,
    mut slots: mpsc::Receiver<Slot>,
) {
    while let Some(slot) = slots.recv().await {
        let Slot {
            pending,
            bulk,
            in_work,
        } = slot;
        let goes_on = match pending {
            Pending::Frame(frame) => write(&shared, &connection, &mut stream, frame).await,
            Pending::Answer {
                api,
                version,
                correlation_id,
                started,
                source,
            } => match finish(&shared, &connection, api, version, correlation_id, source).await {
                Outcome::Frame(frame) => {
                    let written = write(&shared, &connection, &mut stream, frame).await;
                    shared.metrics.answered(api, started.elapsed());
                    written
                }
                Outcome::Nothing => {
                    shared.metrics.answered(api, started.elapsed());
                    true
                }
                Outcome::Close => false,
            },
        };
        drop((bulk, in_work));
        if !goes_on {
            break;
        }
    }
    // The peer may be gone already: then there is nobody to tell.
    let _ = tokio::time::timeout(shared.config.stall, stream.shutdown()).await;
}

enum Outcome {
    Frame(Frame),
    Nothing,
    Close,
}

async fn finish(
    shared: &Shared,
    connection: &Connection,
    api: Api,
    version: i16,
    correlation_id: i32,
    source: Source,
) -> Outcome {
    let response = match source {
        Source::Now(response) => response,
        Source::Task(task) => match task.await {
            Ok(response) => response,
            Err(error) => {
                shared.metrics.panics.inc();
                shared.metrics.closed("panic");
                tracing::error!(peer = %connection, api = api.name(), version, "answering a request failed: {error}");
                return Outcome::Close;
            }
        },
    };
    match response {
        Response::Nothing => Outcome::Nothing,
        Response::Close => {
            shared.metrics.closed("service");
            Outcome::Close
        }
        Response::Body(body) => match wire::encode(api, version, correlation_id, &body) {
            Ok(frame) => Outcome::Frame(frame),
            Err(error) => {
                shared.metrics.closed(reason(&error));
                tracing::error!(peer = %connection, "{error}");
                Outcome::Close
            }
        },
    }
}

async fn write<W: AsyncWrite + Unpin>(
    shared: &Shared,
    connection: &Connection,
    stream: &mut W,
    frame: Frame,
) -> bool {
    let bytes = u64::try_from(frame.bytes()).unwrap_or(0);
    match write_chunks(stream, frame.into_chunks().into(), shared.config.stall).await {
        Ok(()) => {
            shared.metrics.bytes_sent.inc_by(bytes);
            true
        }
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            shared.metrics.closed("slow_reader");
            tracing::warn!(peer = %connection, "the client does not read its answers; its connection is closed");
            false
        }
        Err(error) => {
            tracing::debug!(peer = %connection, "the client went away: {error}");
            false
        }
    }
}

/// Writes all chunks. Each write must make progress within `stall`.
async fn write_chunks<W: AsyncWrite + Unpin>(
    stream: &mut W,
    mut chunks: VecDeque<Bytes>,
    stall: Duration,
) -> io::Result<()> {
    while !chunks.is_empty() {
        let written = {
            let slices: Vec<IoSlice<'_>> = chunks
                .iter()
                .take(CHUNKS_PER_WRITE)
                .map(|chunk| IoSlice::new(chunk))
                .collect();
            tokio::time::timeout(stall, stream.write_vectored(&slices)).await??
        };
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        advance(&mut chunks, written);
    }
    tokio::time::timeout(stall, stream.flush()).await?
}

fn advance(chunks: &mut VecDeque<Bytes>, mut written: usize) {
    while let Some(front) = chunks.front_mut() {
        if written < front.len() {
            front.advance(written);
            return;
        }
        written -= front.len();
        chunks.pop_front();
    }
}
