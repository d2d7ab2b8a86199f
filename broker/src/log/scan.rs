//! Reading frames out of a log file at start.
//!
//! Owns: walking frames, searching for headers after a bad one.
//! Not here: what follows from it (`recovery.rs`).
//! Spec: docs/formats/group-log.md, recovery rules 4 to 6

use super::files::LogFile;
use super::format::{DecodedFrame, FRAME_HEADER_BYTES, FRAME_MAGIC};
use std::io;

/// Read at once at least. A log file of 128 MiB takes 512 such reads.
const WINDOW_BYTES: u64 = 256 * 1024;
static ZEROS: [u8; 256 * 1024] = [0; 256 * 1024];

/// Most of a file that is not full: compared as a whole, since looking at each word of it takes most of the time of a start.
fn is_zero(chunk: &[u8]) -> bool {
    ZEROS.get(..chunk.len()).is_some_and(|zeros| zeros == chunk)
}

/// A frame found at a position.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub(super) position: u64,
    pub(super) frame: DecodedFrame,
}

impl Found {
    pub(super) fn end(&self) -> u64 {
        self.position + self.frame.header.frame_bytes()
    }
}

/// Reads one file through a window.
pub(super) struct Scanner<'a> {
    file: &'a LogFile,
    /// Frames end here at the latest.
    limit: u64,
    window: Vec<u8>,
    window_at: u64,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(file: &'a LogFile, limit: u64) -> Self {
        Self {
            file,
            limit: limit.min(file.file_bytes),
            window: Vec::new(),
            window_at: 0,
        }
    }

    /// Bytes of the file; `None` past the limit.
    fn bytes(&mut self, position: u64, length: u64) -> io::Result<Option<&[u8]>> {
        if position
            .checked_add(length)
            .is_none_or(|end| end > self.limit)
        {
            return Ok(None);
        }
        let window_end = self.window_at + self.window.len() as u64;
        if position < self.window_at || position + length > window_end {
            let size = length.max(WINDOW_BYTES).min(self.limit - position);
            let size = usize::try_from(size).map_err(io::Error::other)?;
            if self.window.len() < size {
                self.window = vec![0; size];
            }
            self.window.truncate(size);
            self.window_at = position;
            if let Err(error) = self.file.file.read_exact_at(&mut self.window, position) {
                self.window.clear();
                return Err(error);
            }
        }
        let from = usize::try_from(position - self.window_at).map_err(io::Error::other)?;
        let length = usize::try_from(length).map_err(io::Error::other)?;
        Ok(self.window.get(from..from + length))
    }

    /// The frame whose good header (with dir) is at `position`.
    pub(super) fn header_at(&mut self, position: u64) -> io::Result<Option<Found>> {
        let room = self.limit.saturating_sub(position);
        let seed = self.file.binding.seed(position);
        let Some(bytes) = self.bytes(position, FRAME_HEADER_BYTES as u64)? else {
            return Ok(None);
        };
        let mut header = [0; FRAME_HEADER_BYTES];
        header.copy_from_slice(bytes);
        let Some(frame) = DecodedFrame::parse(&header, room) else {
            return Ok(None);
        };
        let dir_at = position + FRAME_HEADER_BYTES as u64;
        let Some(dir) = self.bytes(dir_at, u64::from(frame.header.dir_len))? else {
            return Ok(None);
        };
        Ok(frame
            .check(&header, seed, dir)
            .then_some(Found { position, frame }))
    }

    /// Whether the body of a found frame has its CRC.
    pub(super) fn body_is_good(&mut self, found: &Found) -> io::Result<bool> {
        let header = found.frame.header;
        let at = found.position + FRAME_HEADER_BYTES as u64 + u64::from(header.dir_len);
        let seed = self.file.binding.seed(found.position);
        let body = self.bytes(at, u64::from(header.body_len))?;
        Ok(body.is_some_and(|body| crc32c::crc32c_append(seed, body) == found.frame.body_crc))
    }

    /// All good headers from `from` (a multiple of 8) to the limit, wherever they are: the highest durable-up-to, and where
    /// the last header ends.
    pub(super) fn search(&mut self, from: u64) -> io::Result<Option<(u64, u64)>> {
        let mut result: Option<(u64, u64)> = None;
        let mut chunk_at = from;
        while chunk_at < self.limit {
            let length = WINDOW_BYTES.min(self.limit - chunk_at);
            let Some(chunk) = self.bytes(chunk_at, length)? else {
                break;
            };
            if is_zero(chunk) {
                chunk_at += length;
                continue;
            }
            let hits: Vec<u64> = (0u64..)
                .zip(chunk.chunks_exact(8))
                .filter(|(_, word)| word.starts_with(&FRAME_MAGIC))
                .map(|(at, _)| chunk_at + at * 8)
                .collect();
            for position in hits {
                if let Some(found) = self.header_at(position)? {
                    let durable = found.frame.header.durable_upto;
                    let end = position + FRAME_HEADER_BYTES as u64;
                    let highest = result.map_or(0, |(highest, _)| highest);
                    result = Some((highest.max(durable), end));
                }
            }
            chunk_at += length;
        }
        Ok(result)
    }
}
