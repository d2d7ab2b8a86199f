//! Frames and handshakes over any byte stream.
//!
//! Owns: reading with deadlines, vectored writing.
//! Not here: memory for what is read (`memory.rs`) and the pace of a frame (`intake`), what frames mean.
//! Spec: docs/protocols/peer.md

use super::frame::{Direction, Frame, FrameError, Prefix, WireLane};
use super::hello::{HEAD_BYTES, length};
use super::limits::PREFIX_BYTES;
use crate::format::FormatError;
use crate::intake::{self, Budget, Hold, Slow, Terms};
use bytes::{Buf, Bytes};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::time::timeout;

/// Small frames are taken from the socket together; large ones go past this buffer.
const READ_BUFFER_BYTES: usize = 16 << 10;
/// Slowest pace of a frame as a whole: below it, memory is held for too long.
const FRAME_BYTES_PER_SECOND_MIN: usize = 256 << 10;
/// While others wait for memory, a frame must come at a pace that brings the whole of it within so many times the time in which it must make progress: the largest of 24 MiB within
/// 30 s, at 6.7 Mbit/s.
const WITHIN_STALLS: u32 = 3;
/// Parts in one write. Linux takes 1024; more than this brings nothing.
const PARTS_PER_WRITE: usize = 64;

/// Why no frame came.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error("the peer closed the connection")]
    Closed,
    #[error("the peer closed the connection inside a frame")]
    Cut,
    #[error("no frame came for too long")]
    Idle,
    #[error("a frame began and did not go on")]
    Stalled,
    #[error("a frame is too slow: {0}")]
    Slow(Slow),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
}

impl From<intake::FrameError> for ReadError {
    fn from(error: intake::FrameError) -> Self {
        match error {
            intake::FrameError::Cut => Self::Cut,
            intake::FrameError::Stalled => Self::Stalled,
            intake::FrameError::Slow(slow) => Self::Slow(slow),
            intake::FrameError::Io(error) => Self::Io(error),
        }
    }
}

/// Takes frames of one lane and direction from a byte stream.
pub(super) struct FrameReader<R> {
    stream: BufReader<R>,
    lane: WireLane,
    direction: Direction,
    stall: Duration,
    /// Of frames whose memory is bounded otherwise.
    own: Budget,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(super) fn new(stream: R, lane: WireLane, direction: Direction, stall: Duration) -> Self {
        Self {
            stream: BufReader::with_capacity(READ_BUFFER_BYTES, stream),
            lane,
            direction,
            stall,
            own: Budget::unbounded(),
        }
    }

    /// The next frame's prefix; `idle` bounds the time until its first byte. Nothing else of the frame has been read then.
    pub(super) async fn prefix(&mut self, idle: Option<Duration>) -> Result<Prefix, ReadError> {
        let mut bytes = [0; PREFIX_BYTES];
        let first = self.stream.read(&mut bytes);
        let first = match idle {
            Some(idle) => timeout(idle, first).await.map_err(|_| ReadError::Idle)?,
            None => first.await,
        };
        let read = match first {
            Ok(0) => return Err(ReadError::Closed),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                // TLS: the peer is gone without a last word. Between frames that says as much as an end does.
                return Err(ReadError::Closed);
            }
            Err(error) => return Err(error.into()),
        };
        let mut filled = read;
        while filled < PREFIX_BYTES {
            filled += progress(self.stall, self.stream.read(&mut bytes[filled..])).await?;
        }
        Ok(Prefix::parse(&bytes, self.lane, self.direction)?)
    }

    /// The rest of a frame whose memory is bounded otherwise: a reply, of which there are no more than requests.
    pub(super) async fn rest(&mut self, prefix: Prefix) -> Result<Frame, ReadError> {
        let mut memory = self.own.begin();
        self.rest_within(prefix, &mut memory).await
    }

    /// The rest of the frame; `memory` holds what it takes then.
    pub(super) async fn rest_within(
        &mut self,
        prefix: Prefix,
        memory: &mut Hold,
    ) -> Result<Frame, ReadError> {
        let terms = Terms {
            stall: self.stall,
            bytes_per_second_min: FRAME_BYTES_PER_SECOND_MIN,
            within: self.stall * WITHIN_STALLS,
        };
        let bytes = prefix.rest_bytes();
        let rest = intake::read_frame(&mut self.stream, &[], bytes, memory, terms).await?;
        Ok(prefix.complete(&rest)?)
    }
}

async fn progress(
    stall: Duration,
    read: impl Future<Output = io::Result<usize>>,
) -> Result<usize, ReadError> {
    match timeout(stall, read).await {
        Ok(Ok(0)) => Err(ReadError::Cut),
        Ok(Ok(read)) => Ok(read),
        Ok(Err(error)) => Err(ReadError::Io(error)),
        Err(_) => Err(ReadError::Stalled),
    }
}

/// A whole hello or answer. The caller sets the deadline.
pub(super) async fn read_handshake<R: AsyncRead + Unpin>(
    stream: &mut R,
    magic: [u8; 4],
    what: &'static str,
) -> Result<Vec<u8>, ReadError> {
    let head = read_head(stream).await?;
    read_rest(stream, head, magic, what).await
}

/// As much as says what a connection begins with.
pub(super) async fn read_head<R: AsyncRead + Unpin>(
    stream: &mut R,
) -> Result<[u8; HEAD_BYTES], ReadError> {
    let mut head = [0; HEAD_BYTES];
    exactly(stream, &mut head).await?;
    Ok(head)
}

/// The whole hello or answer that begins with `head`.
pub(super) async fn read_rest<R: AsyncRead + Unpin>(
    stream: &mut R,
    head: [u8; HEAD_BYTES],
    magic: [u8; 4],
    what: &'static str,
) -> Result<Vec<u8>, ReadError> {
    let format = |error: FormatError| ReadError::Frame(FrameError::Format(error));
    let length = length(&head, magic, what).map_err(format)?;
    let mut bytes = vec![0; length];
    let (begin, rest) = bytes.split_at_mut(HEAD_BYTES);
    begin.copy_from_slice(&head);
    exactly(stream, rest).await?;
    Ok(bytes)
}

async fn exactly<R: AsyncRead + Unpin>(stream: &mut R, to: &mut [u8]) -> Result<(), ReadError> {
    match stream.read_exact(to).await {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(ReadError::Cut),
        Err(error) => Err(error.into()),
    }
}

/// Writes all parts, from where they lie. Each write must make progress within `stall`.
pub(super) async fn write_parts<W: AsyncWrite + Unpin>(
    stream: &mut W,
    mut parts: VecDeque<Bytes>,
    stall: Duration,
) -> io::Result<()> {
    while !parts.is_empty() {
        let written = {
            let slices: Vec<IoSlice<'_>> = parts
                .iter()
                .take(PARTS_PER_WRITE)
                .map(|part| IoSlice::new(part))
                .collect();
            timeout(stall, stream.write_vectored(&slices)).await??
        };
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        advance(&mut parts, written);
    }
    timeout(stall, stream.flush()).await?
}

fn advance(parts: &mut VecDeque<Bytes>, mut written: usize) {
    while let Some(front) = parts.front_mut() {
        if written < front.len() {
            front.advance(written);
            return;
        }
        written -= front.len();
        parts.pop_front();
    }
}
