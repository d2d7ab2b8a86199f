//! The bytes of one frame.
//!
//! Owns: reading as memory is given, the buffer, when a frame is given up.
//! Not here: lengths and kinds (`net`, `peer`).
//! Spec: docs/protocols/kafka-wire.md (memory of requests)

use super::budget::Hold;
use super::pace::{Pace, Slow, Terms};
use super::{STEP_BYTES_MAX, STEP_BYTES_MIN};
use bytes::{BufMut, Bytes, BytesMut};
use std::io;
use std::pin::pin;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::{Instant, timeout};

/// Frames up to this size have their buffer at once.
const BUFFER_BYTES_FIRST: usize = 128 << 10;
/// The buffer of a larger one grows by this when it is full: what is there is copied again then, 128 KiB of a frame of 1 MiB. So address space is not taken for what is
/// only announced: 4096 connections that announce the largest frame and send nothing have 512 MiB of it, and none of the memory.
const BUFFER_GROWTH: usize = 16;

/// Why the frame did not come.
#[derive(Debug)]
pub enum FrameError {
    /// The peer closed the connection inside the frame.
    Cut,
    /// The frame did not go on, or took too long as a whole.
    Stalled,
    /// It came too slowly while others waited for memory.
    Slow(Slow),
    /// The socket failed.
    Io(io::Error),
}

/// Reads the `bytes` of a frame that begins with `head`; `hold` holds its memory then. The buffer is as large as the frame, not more: what is cut out of it and kept,
/// as record batches are, keeps no more than their request.
///
/// # Errors
/// [`FrameError`]: bytes are lost, the connection cannot go on.
pub async fn read_frame<R: AsyncRead + Unpin>(
    stream: &mut R,
    head: &[u8],
    bytes: usize,
    hold: &mut Hold,
    terms: Terms,
) -> Result<Bytes, FrameError> {
    if bytes == 0 {
        return Ok(Bytes::new());
    }
    let mut frame = BytesMut::with_capacity(bytes.min(BUFFER_BYTES_FIRST));
    let mut pace = Pace::new(terms, bytes, head.len());
    take(hold, step(0, bytes), &pace, terms).await?;
    frame.extend_from_slice(head);
    while frame.len() < bytes {
        if frame.len() == hold.bytes() {
            take(hold, step(frame.len(), bytes), &pace, terms).await?;
        }
        if frame.len() == frame.capacity() {
            frame = larger(&frame, bytes);
        }
        let room = hold.bytes().min(bytes) - frame.len();
        more(stream, &mut (&mut frame).limit(room), hold, &mut pace).await?;
    }
    hold.whole();
    Ok(frame.freeze())
}

/// How much memory is taken next, `arrived` of `bytes` being there.
fn step(arrived: usize, bytes: usize) -> usize {
    arrived
        .clamp(STEP_BYTES_MIN, STEP_BYTES_MAX)
        .min(bytes - arrived)
}

fn larger(frame: &BytesMut, bytes: usize) -> BytesMut {
    let room = frame.capacity().saturating_mul(BUFFER_GROWTH).min(bytes);
    let mut larger = BytesMut::with_capacity(room);
    larger.extend_from_slice(frame);
    larger
}

/// Takes memory. Who has been slow so far does not wait for it while it is short.
async fn take(hold: &mut Hold, bytes: usize, pace: &Pace, terms: Terms) -> Result<(), FrameError> {
    if hold.try_take(bytes) {
        return Ok(());
    }
    let budget = hold.budget().clone();
    let mut taking = pin!(hold.take(bytes));
    loop {
        if let Some(slow) = pace.so_far()
            && budget.is_short_for(terms.window())
        {
            return Err(FrameError::Slow(slow));
        }
        if timeout(terms.window(), &mut taking).await.is_ok() {
            return Ok(());
        }
    }
}

/// Reads some more bytes.
async fn more<R: AsyncRead + Unpin>(
    stream: &mut R,
    frame: &mut (impl BufMut + Send),
    hold: &Hold,
    pace: &mut Pace,
) -> Result<(), FrameError> {
    loop {
        let began = Instant::now();
        let read = timeout(pace.patience(), stream.read_buf(frame)).await;
        let came = match read {
            Ok(Ok(0)) => return Err(FrameError::Cut),
            Ok(Ok(came)) => came,
            Ok(Err(error)) => return Err(FrameError::Io(error)),
            Err(_) => 0,
        };
        pace.waited(began.elapsed(), came);
        if pace.is_stalled() {
            return Err(FrameError::Stalled);
        }
        if let Some(slow) = pace.end_of_window()
            && hold.budget().is_short_for(pace.window())
        {
            return Err(FrameError::Slow(slow));
        }
        if came > 0 {
            return Ok(());
        }
    }
}
