//! The two tasks of a connection: one writes frames, one reads them.
//!
//! Owns: the queue of requests without an answer, and what each learns when the connection ends.
//! Invariant: a request is in `pending` before its first byte is written; what is still in the queue was not sent.

use crate::error::Error;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tidelog_env::{BoxStream, Tasks};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::limits::REQUESTS_QUEUED_MAX;

/// Small answers are read many at a time; an answer larger than this goes straight into its own buffer.
const READ_BUFFER_BYTES: usize = 64 * 1024;
/// Frames that are written together at most.
const FRAMES_TOGETHER_MAX: usize = 32;

type Reply = oneshot::Sender<Result<Bytes, Error>>;

/// A frame to write. Without a correlation id no answer is expected and `reply` fires once it is written.
pub(super) struct Outgoing {
    pub(super) chunks: Vec<Bytes>,
    pub(super) correlation: Option<i32>,
    pub(super) reply: Reply,
    pub(super) permit: Option<OwnedSemaphorePermit>,
}

struct Pending {
    correlation: i32,
    since: Instant,
    reply: Reply,
    _permit: Option<OwnedSemaphorePermit>,
}

/// What the handle and both tasks share.
pub(super) struct Shared {
    pub(super) address: String,
    response_bytes_max: usize,
    pending: Mutex<VecDeque<Pending>>,
    /// When the last answer came.
    heard: Mutex<Instant>,
    why_closed: OnceLock<String>,
    stop: CancellationToken,
}

impl Shared {
    pub(super) fn new(address: String, response_bytes_max: usize, stop: CancellationToken) -> Self {
        Self {
            address,
            response_bytes_max,
            pending: Mutex::new(VecDeque::new()),
            heard: Mutex::new(Instant::now()),
            why_closed: OnceLock::new(),
            stop,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        !self.stop.is_cancelled()
    }

    /// For how long the broker has said nothing though something is awaited.
    pub(super) fn silent_for(&self) -> Duration {
        let since = self.pending.lock().front().map(|oldest| oldest.since);
        let heard = *self.heard.lock();
        since.map_or(Duration::ZERO, |since| since.max(heard).elapsed())
    }

    /// Ends both tasks; every request on its way learns the first reason given.
    pub(super) fn close(&self, why: &str) {
        let _ = self.why_closed.set(why.to_owned());
        self.stop.cancel();
        let pending: Vec<Pending> = self.pending.lock().drain(..).collect();
        for request in pending {
            let _ = request.reply.send(Err(self.no_answer()));
        }
    }

    pub(super) fn no_answer(&self) -> Error {
        Error::NoAnswer {
            address: self.address.clone(),
            cause: self.why("the connection closed"),
        }
    }

    pub(super) fn not_sent(&self, otherwise: &str) -> Error {
        Error::NotSent {
            address: self.address.clone(),
            cause: self.why(otherwise),
        }
    }

    fn why(&self, otherwise: &str) -> String {
        self.why_closed
            .get()
            .cloned()
            .unwrap_or_else(|| otherwise.to_owned())
    }

    /// Makes a request one that was (perhaps) sent. Gives the reply back when the connection is closed already.
    fn expect(&self, pending: Pending) -> Result<(), Reply> {
        let mut queue = self.pending.lock();
        if self.stop.is_cancelled() {
            return Err(pending.reply);
        }
        queue.push_back(pending);
        Ok(())
    }
}

/// Starts both tasks and returns the queue to the writer.
pub(super) fn spawn(
    stream: BoxStream,
    shared: &Arc<Shared>,
    tasks: &Tasks,
) -> mpsc::Sender<Outgoing> {
    let (reader, writer) = tokio::io::split(stream);
    let (queue, waiting) = mpsc::channel(REQUESTS_QUEUED_MAX);
    // Not under the set's own stop: the writer must live to answer what is left in its queue.
    let own = Tasks::new();
    let for_writer = Arc::clone(shared);
    own.spawn(
        "client connection writer",
        write_loop(writer, waiting, for_writer),
    );
    let for_reader = Arc::clone(shared);
    tasks.spawn("client connection reader", async move {
        let why = read_loop(reader, &for_reader).await;
        for_reader.close(&why);
    });
    queue
}

async fn write_loop<W: AsyncWrite + Unpin>(
    mut writer: W,
    mut waiting: mpsc::Receiver<Outgoing>,
    shared: Arc<Shared>,
) {
    let mut batch = Vec::with_capacity(FRAMES_TOGETHER_MAX);
    loop {
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => break,
            count = waiting.recv_many(&mut batch, FRAMES_TOGETHER_MAX) => if count == 0 { break },
        }
        if let Err(why) = write_batch(&mut writer, &mut batch, &shared).await {
            shared.close(&why);
            break;
        }
    }
    shared.close("the client closed it");
    waiting.close();
    while let Some(outgoing) = waiting.recv().await {
        let _ = outgoing.reply.send(Err(shared.not_sent("closed")));
    }
    let _ = writer.shutdown().await;
}

async fn write_batch<W: AsyncWrite + Unpin>(
    writer: &mut W,
    batch: &mut Vec<Outgoing>,
    shared: &Shared,
) -> Result<(), String> {
    let mut chunks = Chunks::default();
    let mut unanswered = Vec::new();
    for outgoing in batch.drain(..) {
        match outgoing.correlation {
            Some(correlation) => {
                let pending = Pending {
                    correlation,
                    since: Instant::now(),
                    reply: outgoing.reply,
                    _permit: outgoing.permit,
                };
                if let Err(reply) = shared.expect(pending) {
                    let _ = reply.send(Err(shared.not_sent("closed")));
                    continue;
                }
            }
            None => unanswered.push(outgoing.reply),
        }
        chunks.extend(outgoing.chunks);
    }
    let written = tokio::select! {
        biased;
        () = shared.stop.cancelled() => Err("closed".to_owned()),
        written = writer.write_all_buf(&mut chunks) => written.map_err(|error| error.to_string()),
    };
    for reply in unanswered {
        let _ = reply.send(
            written
                .as_ref()
                .map(|()| Bytes::new())
                .map_err(|_| shared.no_answer()),
        );
    }
    written
}

/// Returns why it ended.
async fn read_loop<R: AsyncRead + Unpin>(reader: R, shared: &Shared) -> String {
    let mut reader = BufReader::with_capacity(READ_BUFFER_BYTES, reader);
    loop {
        let frame = match read_frame(&mut reader, shared.response_bytes_max).await {
            Ok(frame) => frame,
            Err(why) => return why,
        };
        let Some(mut head) = frame.get(..4) else {
            return "an answer shorter than its header".to_owned();
        };
        let correlation = head.get_i32();
        *shared.heard.lock() = Instant::now();
        let Some(request) = shared.pending.lock().pop_front() else {
            return format!("an answer {correlation} that nobody asked for");
        };
        if request.correlation != correlation {
            let why = format!("answer {correlation} where {} was due", request.correlation);
            let _ = request.reply.send(Err(Error::Protocol {
                address: shared.address.clone(),
                cause: why.clone(),
            }));
            return why;
        }
        let _ = request.reply.send(Ok(frame));
    }
}

async fn read_frame<R: AsyncRead + Unpin>(
    reader: &mut R,
    bytes_max: usize,
) -> Result<Bytes, String> {
    let mut prefix = [0; 4];
    reader
        .read_exact(&mut prefix)
        .await
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => "the broker closed the connection".to_owned(),
            _ => error.to_string(),
        })?;
    let length = i32::from_be_bytes(prefix);
    let length = match usize::try_from(length) {
        Ok(length) if length <= bytes_max => length,
        _ => return Err(bad_length(prefix, bytes_max)),
    };
    let mut frame = BytesMut::with_capacity(length);
    while frame.len() < length {
        let left = length - frame.len();
        let read = reader
            .read_buf(&mut (&mut frame).limit(left))
            .await
            .map_err(|error| error.to_string())?;
        if read == 0 {
            return Err("the broker closed the connection in the middle of an answer".to_owned());
        }
    }
    Ok(frame.freeze())
}

fn bad_length(prefix: [u8; 4], bytes_max: usize) -> String {
    match prefix {
        [b'H', b'T', b'T', b'P'] => {
            "this port speaks HTTP, not Kafka: is it the admin address?".to_owned()
        }
        [0x15 | 0x16, 3, ..] => "this port speaks TLS, and this client does not yet".to_owned(),
        _ => format!(
            "an answer of {} bytes; at most {bytes_max} are read",
            i32::from_be_bytes(prefix)
        ),
    }
}

/// Frames as one buffer for vectored writes.
#[derive(Default)]
struct Chunks(VecDeque<Bytes>);

impl Chunks {
    fn extend(&mut self, chunks: Vec<Bytes>) {
        self.0
            .extend(chunks.into_iter().filter(|chunk| !chunk.is_empty()));
    }
}

impl Buf for Chunks {
    fn remaining(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    fn chunk(&self) -> &[u8] {
        self.0.front().map_or(&[], |chunk| chunk)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut count = 0;
        for (slot, chunk) in slices.iter_mut().zip(&self.0) {
            *slot = IoSlice::new(chunk);
            count += 1;
        }
        count
    }

    fn advance(&mut self, mut count: usize) {
        while count > 0 {
            let Some(front) = self.0.front_mut() else {
                return;
            };
            if count < front.len() {
                front.advance(count);
                return;
            }
            count -= front.len();
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    /// Proves that vectored chunks come out as the same bytes for every split of the writes.
    #[test]
    fn chunks_advance_over_borders() {
        for step in 1..=7 {
            let mut chunks = Chunks::default();
            chunks.extend(vec![
                Bytes::from_static(b"abc"),
                Bytes::new(),
                Bytes::from_static(b"de"),
                Bytes::from_static(b"f"),
            ]);
            let mut out = Vec::new();
            while chunks.has_remaining() {
                let mut slices = [IoSlice::new(&[]), IoSlice::new(&[])];
                let filled = chunks.chunks_vectored(&mut slices);
                let all: Vec<u8> = slices[..filled]
                    .iter()
                    .flat_map(|slice| slice.to_vec())
                    .collect();
                let taken = step.min(all.len());
                out.extend_from_slice(&all[..taken]);
                chunks.advance(taken);
            }
            assert_eq!(out, b"abcdef");
        }
    }

    /// Proves that a length beyond the bound, or negative, is refused before anything is allocated, and that HTTP and
    /// TLS on the other side are named.
    #[tokio::test]
    async fn hostile_lengths_are_refused() {
        for (bytes, text) in [
            (&b"\x7f\xff\xff\xff"[..], "bytes"),
            (&b"\xff\xff\xff\xff"[..], "bytes"),
            (&b"HTTP/1.1 400"[..], "HTTP"),
            (&b"\x15\x03\x03\x00\x02"[..], "TLS"),
            (&b"\x00\x00\x00\x09short"[..], "middle"),
            (&b"\x00\x00"[..], "closed"),
        ] {
            let mut reader = bytes;
            let error = read_frame(&mut reader, 1000).await.unwrap_err();
            assert!(error.contains(text), "{error}");
        }
    }
}
