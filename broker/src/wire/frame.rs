//! Frames: an int32 length and that many bytes.
//!
//! Owns: the checks before anything is allocated for a frame, recognising other protocols, building answer frames.
//! Not here: reading and writing (`net`).
//! Spec: docs/protocols/kafka-wire.md

use super::{Api, WireError};
use bytes::{Bytes, BytesMut};
use tidelog_model::limits;

/// Bytes that are read of a frame before it is accepted: length 4, api key 2, version 2, correlation id 4. Every
/// request has them.
pub const FRAME_HEAD_BYTES: usize = 4 + limits::FRAME_BYTES_MIN;

/// Largest accepted frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameLimits {
    /// Produce requests.
    pub produce_bytes_max: usize,
    /// All others.
    pub other_bytes_max: usize,
}

impl FrameLimits {
    /// For a peer that may do what it is allowed to; `request_bytes_max` is `max.request.bytes`.
    #[must_use]
    pub fn standard(request_bytes_max: usize) -> Self {
        Self {
            produce_bytes_max: request_bytes_max,
            other_bytes_max: request_bytes_max.min(limits::FRAME_BYTES_MAX_WITHOUT_RECORDS),
        }
    }
}

impl Default for FrameLimits {
    fn default() -> Self {
        Self::standard(limits::FRAME_BYTES_MAX_DEFAULT)
    }
}

/// The first bytes of a frame, accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHead {
    /// Bytes after the length.
    pub bytes: usize,
    /// The API, if it is served.
    pub api: Option<Api>,
}

impl FrameHead {
    /// Checks the head of a frame before anything is allocated for the rest.
    ///
    /// # Errors
    /// [`WireError::Http`], [`WireError::Tls`] for other protocols, [`WireError::FrameLength`].
    pub fn parse(head: &[u8; FRAME_HEAD_BYTES], limits: &FrameLimits) -> Result<Self, WireError> {
        if let Some(foreign) = recognise(head) {
            return Err(foreign);
        }
        let length = i32::from_be_bytes([head[0], head[1], head[2], head[3]]);
        let api_key = i16::from_be_bytes([head[4], head[5]]);
        let api = Api::from_key(api_key);
        let bytes_max = match api {
            Some(Api::Produce) => limits.produce_bytes_max,
            _ => limits.other_bytes_max,
        };
        let bytes_min = limits::FRAME_BYTES_MIN;
        match usize::try_from(length) {
            Ok(bytes) if (bytes_min..=bytes_max).contains(&bytes) => Ok(Self { bytes, api }),
            _ => Err(WireError::FrameLength {
                bytes: length,
                bytes_min,
                bytes_max,
                api_key,
            }),
        }
    }

    /// Bytes of memory that decoding the frame may take; with records, next to nothing.
    #[must_use]
    pub fn decode_bytes(&self) -> usize {
        match self.api {
            Some(Api::Produce) => 0,
            _ => self.bytes.saturating_mul(limits::DECODE_EXPANSION_MAX),
        }
    }
}

/// Another protocol's first bytes. None of them is a possible frame: as lengths they are over 300 MiB.
fn recognise(head: &[u8]) -> Option<WireError> {
    const HTTP: [&[u8]; 9] = [
        b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"PRI ",
    ];
    if HTTP.iter().any(|method| head.starts_with(method)) {
        return Some(WireError::Http);
    }
    // Record type 22 (handshake), version 3.x, and after the record's length the type 1 (ClientHello).
    matches!(head, [0x16, 0x03, 0..=4, _, _, 0x01, ..]).then_some(WireError::Tls)
}

/// A whole answer, ready to be written: its chunks in order, length prefix included.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    chunks: Vec<Bytes>,
    bytes: usize,
}

impl Frame {
    /// The chunks in order. None is empty.
    #[must_use]
    pub fn chunks(&self) -> &[Bytes] {
        &self.chunks
    }

    /// The chunks in order.
    #[must_use]
    pub fn into_chunks(self) -> Vec<Bytes> {
        self.chunks
    }

    /// Bytes in all chunks.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Chunks up to this size are copied into the buffer around them: a write of many tiny pieces costs more.
const COPY_BYTES_MAX: usize = 1024;

/// Builds a [`Frame`]: bytes are appended to a buffer, large shared bytes are put between.
#[derive(Debug)]
pub(super) struct FrameBuilder {
    first: Option<BytesMut>,
    rest: Vec<Bytes>,
    buffer: BytesMut,
    bytes: usize,
}

impl FrameBuilder {
    /// Starts with room for the length.
    pub(super) fn new() -> Self {
        let mut buffer = BytesMut::with_capacity(256);
        buffer.extend_from_slice(&[0; 4]);
        Self {
            first: None,
            rest: Vec::new(),
            buffer,
            bytes: 0,
        }
    }

    /// Where to append.
    pub(super) fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// Appends shared bytes.
    pub(super) fn put(&mut self, chunk: Bytes) {
        if chunk.len() <= COPY_BYTES_MAX {
            self.buffer.extend_from_slice(&chunk);
            return;
        }
        self.flush();
        self.bytes += chunk.len();
        self.rest.push(chunk);
    }

    fn flush(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        let filled = self.buffer.split();
        self.bytes += filled.len();
        if self.first.is_none() {
            self.first = Some(filled);
        } else {
            self.rest.push(filled.freeze());
        }
    }

    /// Sets the length. `None` if it is not an int32.
    pub(super) fn finish(mut self) -> Option<Frame> {
        self.flush();
        let mut first = self.first?;
        let length = i32::try_from(self.bytes.checked_sub(4)?).ok()?;
        first.get_mut(..4)?.copy_from_slice(&length.to_be_bytes());
        let mut chunks = Vec::with_capacity(1 + self.rest.len());
        chunks.push(first.freeze());
        chunks.append(&mut self.rest);
        Some(Frame {
            chunks,
            bytes: self.bytes,
        })
    }
}
