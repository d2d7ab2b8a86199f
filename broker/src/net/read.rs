//! Reading frames.
//!
//! Owns: the order "head, checks, turn, body".
//! Not here: memory and pace of the body (`intake`), decoding (`wire`).
//! Spec: docs/protocols/kafka-wire.md

use super::connection::Shared;
use super::memory::{Held, Share};
use crate::intake::{FrameError, Slow, Terms, read_frame};
use crate::wire::{Api, FRAME_HEAD_BYTES, FrameHead, WireError};
use bytes::Bytes;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, BufReader};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Small frames are taken from the socket together; large ones go past this buffer.
const READ_BUFFER_BYTES: usize = 8 << 10;

/// Slowest pace at which a frame may arrive: below it, memory is held for too long.
const FRAME_BYTES_PER_SECOND_MIN: usize = 16 << 10;

/// Why no frame came.
#[derive(Debug)]
pub(super) enum ReadError {
    /// The peer closed the connection between two frames.
    Closed,
    /// The peer closed the connection inside a frame.
    Cut,
    /// No request for the idle time.
    Idle,
    /// A frame began and did not go on.
    Stalled,
    /// A frame came too slowly while others waited for memory.
    Slow(Slow),
    /// The bytes are not a frame.
    Wire(WireError),
    /// The socket failed.
    Io(io::Error),
}

impl From<FrameError> for ReadError {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Cut => Self::Cut,
            FrameError::Stalled => Self::Stalled,
            FrameError::Slow(slow) => Self::Slow(slow),
            FrameError::Io(error) => Self::Io(error),
        }
    }
}

/// A whole frame without its length.
pub(super) struct Received {
    pub(super) head: FrameHead,
    pub(super) frame: Bytes,
    pub(super) held: Held,
    /// Of a Fetch: that it is the only one in work.
    pub(super) bulk: Option<OwnedSemaphorePermit>,
}

/// Takes frames from a byte stream.
pub(super) struct FrameReader<R> {
    stream: BufReader<R>,
    share: Share,
    bulk: Arc<Semaphore>,
    shared: Arc<Shared>,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(super) fn new(stream: R, shared: Arc<Shared>) -> Self {
        Self {
            stream: BufReader::with_capacity(READ_BUFFER_BYTES, stream),
            share: Share::default(),
            bulk: Arc::new(Semaphore::new(1)),
            shared,
        }
    }

    /// The next frame. `busy` says whether requests are in work: the idle time does not run then.
    pub(super) async fn next(&mut self, busy: impl Fn() -> bool) -> Result<Received, ReadError> {
        let mut start = [0; FRAME_HEAD_BYTES];
        let first = self.first_bytes(&mut start, busy).await?;
        self.fill(&mut start[first..]).await?;
        let config = &self.shared.config;
        let head = FrameHead::parse(&start, &config.frames).map_err(ReadError::Wire)?;
        // What this connection waits for of itself comes first: meanwhile the frame holds nothing that others want.
        let bulk = match head.api {
            // Never closed, so that this does not fail; without a permit the request is only less bounded.
            Some(Api::Fetch) => Arc::clone(&self.bulk).acquire_owned().await.ok(),
            _ => None,
        };
        let share = self.share.begin(head.bytes).await;
        let mut memory = self.shared.memory.begin(head.bytes);
        let terms = Terms {
            stall: config.stall,
            bytes_per_second_min: FRAME_BYTES_PER_SECOND_MIN,
            // Clients give a request up after 30 s (`request.timeout.ms`), as a connection that stalls is given up here.
            within: config.stall,
        };
        let stream = &mut self.stream;
        let frame = read_frame(stream, &start[4..], head.bytes, &mut memory, terms).await?;
        self.shared
            .metrics
            .bytes_received
            .inc_by(u64::try_from(frame.len() + 4).unwrap_or(0));
        Ok(Received {
            head,
            frame,
            held: Held {
                _memory: memory,
                _share: share,
            },
            bulk,
        })
    }

    async fn first_bytes(
        &mut self,
        head: &mut [u8],
        busy: impl Fn() -> bool,
    ) -> Result<usize, ReadError> {
        loop {
            match tokio::time::timeout(self.shared.config.idle, self.stream.read(head)).await {
                Ok(Ok(0)) => return Err(ReadError::Closed),
                Ok(Ok(read)) => return Ok(read),
                Ok(Err(error)) => return Err(ReadError::Io(error)),
                Err(_) if busy() => {}
                Err(_) => return Err(ReadError::Idle),
            }
        }
    }

    async fn fill(&mut self, mut rest: &mut [u8]) -> Result<(), ReadError> {
        while !rest.is_empty() {
            let read = progress(self.shared.config.stall, self.stream.read(rest)).await?;
            rest = &mut rest[read..];
        }
        Ok(())
    }
}

async fn progress(
    stall: Duration,
    read: impl Future<Output = io::Result<usize>>,
) -> Result<usize, ReadError> {
    match tokio::time::timeout(stall, read).await {
        Ok(Ok(0)) => Err(ReadError::Cut),
        Ok(Ok(read)) => Ok(read),
        Ok(Err(error)) => Err(ReadError::Io(error)),
        Err(_) => Err(ReadError::Stalled),
    }
}
