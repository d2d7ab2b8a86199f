//! Reading frames.
//!
//! Owns: the order "head, checks, memory, body", deadlines of a frame that has begun.
//! Not here: decoding (`wire`).
//! Spec: docs/protocols/kafka-wire.md

use super::connection::Shared;
use crate::wire::{FRAME_HEAD_BYTES, FrameHead, WireError};
use bytes::{BufMut, Bytes, BytesMut};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, BufReader};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

/// Small frames are taken from the socket together; large ones go past this buffer.
const READ_BUFFER_BYTES: usize = 8 << 10;

/// Slowest pace at which a frame may arrive: below it, memory is held for too long.
const FRAME_BYTES_PER_SECOND_MIN: usize = 16 << 10;

/// How long a frame may rest while other connections wait for the memory it holds.
const REST_WHEN_WANTED: Duration = Duration::from_secs(3);

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
    /// The bytes are not a frame.
    Wire(WireError),
    /// The socket failed.
    Io(io::Error),
}

/// A whole frame without its length, and the memory that it may take.
pub(super) struct Received {
    pub(super) frame: Bytes,
    pub(super) memory: OwnedSemaphorePermit,
}

/// Takes frames from a byte stream.
pub(super) struct FrameReader<R> {
    stream: BufReader<R>,
    shared: Arc<Shared>,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(super) fn new(stream: R, shared: Arc<Shared>) -> Self {
        Self {
            stream: BufReader::with_capacity(READ_BUFFER_BYTES, stream),
            shared,
        }
    }

    /// The next frame. `busy` says whether requests are in work: the idle time does not run then.
    pub(super) async fn next(&mut self, busy: impl Fn() -> bool) -> Result<Received, ReadError> {
        let mut head = [0; FRAME_HEAD_BYTES];
        let first = self.first_bytes(&mut head, busy).await?;
        self.fill(&mut head[first..]).await?;
        let accepted =
            FrameHead::parse(&head, &self.shared.config.frames).map_err(ReadError::Wire)?;
        let memory = self
            .shared
            .memory
            .reserve(accepted.memory_bytes())
            .await
            .ok_or(ReadError::Closed)?;
        let frame = self.body(&head[4..], accepted.bytes).await?;
        self.shared
            .metrics
            .bytes_received
            .inc_by(u64::try_from(frame.len() + 4).unwrap_or(0));
        Ok(Received { frame, memory })
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

    async fn body(&mut self, head: &[u8], bytes: usize) -> Result<Bytes, ReadError> {
        let seconds = u64::try_from(bytes / FRAME_BYTES_PER_SECOND_MIN).unwrap_or(u64::MAX);
        let deadline = self.shared.config.stall + Duration::from_secs(seconds);
        // Exactly the frame's size, so that record batches that are kept hold no more than their request.
        let mut frame = BytesMut::with_capacity(bytes);
        frame.extend_from_slice(head);
        let read = async {
            while frame.len() < bytes {
                let left = bytes - frame.len();
                self.more(&mut (&mut frame).limit(left)).await?;
            }
            Ok(())
        };
        tokio::time::timeout(deadline, read)
            .await
            .map_err(|_| ReadError::Stalled)??;
        Ok(frame.freeze())
    }

    /// Some more bytes of a frame. One that rests keeps its memory only while nobody wants it.
    async fn more(&mut self, frame: &mut (impl BufMut + Send)) -> Result<usize, ReadError> {
        let stall = self.shared.config.stall;
        let since = Instant::now();
        loop {
            let rest = stall.saturating_sub(since.elapsed()).min(REST_WHEN_WANTED);
            match progress(rest, self.stream.read_buf(frame)).await {
                Err(ReadError::Stalled)
                    if since.elapsed() < stall && !self.shared.memory.is_wanted() => {}
                result => return result,
            }
        }
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
