//! Bytes of log files: file header and frames.
//!
//! Owns: encode and decode of docs/formats/group-log.md, version 1.
//! Not here: reading or writing files, the meaning of a sequence of frames (`replay.rs`).
//! Spec: docs/formats/group-log.md

use super::types::{EntryKind, Vote};
use tidelog_env::{Mutant, mutant};
use tidelog_model::{ClusterId, LogId, LogIndex, PlacementGroupId, RaftNodeId, Term};

/// Length of the file header; frames start here.
pub(super) const FILE_HEADER_BYTES: usize = 4096;
/// [`FILE_HEADER_BYTES`] as a position.
pub(super) const FRAMES_START: u64 = 4096;
/// Length of a frame's header, before dir and body.
pub(super) const FRAME_HEADER_BYTES: usize = 56;
/// Frames start at multiples of this.
pub(super) const FRAME_ALIGN: usize = 8;
/// Writes end at multiples of this (the page size that matters to the page cache).
pub(super) const WRITE_ALIGN: u64 = 4096;
/// The dir of an entry at most: what a reader takes into memory before a CRC says it is one. The directory of 1 MiB of
/// batches of 70 bytes takes 0.6 MiB.
pub const DIR_BYTES_MAX: usize = 4 << 20;
/// The only version.
pub(super) const VERSION: u16 = 1;

const FILE_MAGIC: &[u8; 8] = b"TIDELOG1";
/// Starts every frame; a search looks for it first.
pub(super) const FRAME_MAGIC: [u8; 4] = *b"TLF1";

const FLAG_SET: u8 = 1;

/// Whose file it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) cluster: ClusterId,
    pub(super) group: PlacementGroupId,
    pub(super) node: RaftNodeId,
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "cluster {}, group {}, raft node {}",
            self.cluster, self.group, self.node
        )
    }
}

/// The header of a log file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileHeader {
    pub(super) identity: Identity,
    pub(super) sequence: u64,
    pub(super) salt: u64,
    pub(super) last: Option<LogId>,
    pub(super) purged: Option<LogId>,
    pub(super) committed: Option<LogId>,
    pub(super) vote: Option<Vote>,
    pub(super) previous_end: u64,
    pub(super) file_bytes: u64,
}

/// Why bytes are not a header or frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BadHeader {
    /// No magic, or the CRC or a reserved byte is wrong.
    Damaged(&'static str),
    /// Whole, but of another version.
    Version(u16),
}

/// Writes fixed-width fields one after the other into a buffer whose length bounds them.
struct Put<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Put<'_> {
    fn raw(&mut self, value: &[u8]) {
        if let Some(target) = self.bytes.get_mut(self.at..self.at + value.len()) {
            target.copy_from_slice(value);
        }
        self.at += value.len();
    }

    fn u64(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }

    fn log_id(&mut self, id: Option<LogId>) {
        self.raw(&[u8::from(id.is_some()), 0, 0, 0, 0, 0, 0, 0]);
        let id = id.unwrap_or_default();
        self.u64(id.term.get());
        self.u64(id.index.get());
    }
}

/// Reads fixed-width fields one after the other; past the end it reads zeros.
struct Take<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Take<'_> {
    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut value = [0; N];
        if let Some(source) = self.bytes.get(self.at..self.at + N) {
            value.copy_from_slice(source);
        }
        self.at += N;
        value
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    fn log_id(&mut self) -> Option<LogId> {
        let present: [u8; 8] = self.array();
        let id = LogId {
            term: Term::new(self.u64()),
            index: LogIndex::new(self.u64()),
        };
        (present[0] != 0).then_some(id)
    }
}

impl FileHeader {
    /// The 4096 bytes.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; FILE_HEADER_BYTES];
        let mut put = Put {
            bytes: &mut bytes,
            at: 0,
        };
        put.raw(FILE_MAGIC);
        put.raw(&VERSION.to_le_bytes());
        put.raw(&[0; 2]);
        put.raw(&4096u32.to_le_bytes());
        put.raw(self.identity.cluster.get().as_bytes());
        put.raw(&self.identity.group.get().to_le_bytes());
        put.raw(&[0; 4]);
        put.u64(self.identity.node.get());
        put.u64(self.sequence);
        put.u64(self.salt);
        put.u64(
            self.last
                .map_or(0, |last| last.index.get().saturating_add(1)),
        );
        put.log_id(self.last);
        put.log_id(self.purged);
        put.log_id(self.committed);
        let (present, vote) = (u8::from(self.vote.is_some()), self.vote);
        put.raw(&[
            present,
            u8::from(vote.is_some_and(|vote| vote.committed)),
            0,
            0,
            0,
            0,
            0,
            0,
        ]);
        put.u64(vote.map_or(0, |vote| vote.term.get()));
        put.u64(vote.map_or(0, |vote| vote.node.get()));
        put.u64(self.previous_end);
        put.u64(self.file_bytes);
        put.at = FILE_HEADER_BYTES - 4;
        let crc = crc32c::crc32c(&put.bytes[..FILE_HEADER_BYTES - 4]);
        put.raw(&crc.to_le_bytes());
        bytes
    }

    /// Reads what `encode` wrote. Anything else is refused: the header must encode to the same bytes again.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, BadHeader> {
        if bytes.len() != FILE_HEADER_BYTES || !bytes.starts_with(FILE_MAGIC) {
            return Err(BadHeader::Damaged("the file header has no magic"));
        }
        let mut take = Take {
            bytes,
            at: FILE_HEADER_BYTES - 4,
        };
        if take.u32() != crc32c::crc32c(&bytes[..FILE_HEADER_BYTES - 4]) {
            return Err(BadHeader::Damaged(
                "the CRC of the file header does not match",
            ));
        }
        take.at = 8;
        let version = take.u16();
        if version != VERSION {
            return Err(BadHeader::Version(version));
        }
        take.at = 16;
        let cluster = ClusterId::new(uuid::Uuid::from_bytes(take.array()));
        let group = PlacementGroupId::new(take.u32());
        take.at = 40;
        let node = RaftNodeId::new(take.u64());
        let (sequence, salt) = (take.u64(), take.u64());
        take.at = 72;
        let (last, purged, committed) = (take.log_id(), take.log_id(), take.log_id());
        let flags: [u8; 8] = take.array();
        let vote = Vote {
            term: Term::new(take.u64()),
            node: RaftNodeId::new(take.u64()),
            committed: flags[1] != 0,
        };
        let header = Self {
            identity: Identity {
                cluster,
                group,
                node,
            },
            sequence,
            salt,
            last,
            purged,
            committed,
            vote: (flags[0] != 0).then_some(vote),
            previous_end: take.u64(),
            file_bytes: take.u64(),
        };
        if header.encode() == bytes {
            Ok(header)
        } else {
            Err(BadHeader::Damaged(
                "reserved bytes of the file header are set",
            ))
        }
    }
}

/// What a frame says. Dir and body of an entry travel beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Record {
    Entry { id: LogId, kind: EntryKind },
    Vote(Vote),
    Committed(Option<LogId>),
    Truncate(Option<LogId>),
    Purge(LogId),
}

/// The fixed part of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) record: Record,
    pub(super) dir_len: u32,
    pub(super) body_len: u32,
    pub(super) durable_upto: u64,
}

/// A frame header as read, with the CRC that its body must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DecodedFrame {
    pub(super) header: FrameHeader,
    pub(super) body_crc: u32,
    header_crc: u32,
}

/// Which file and place a frame is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Binding {
    pub(super) salt: u64,
    pub(super) sequence: u64,
}

impl Binding {
    /// Where both CRCs of the frame at `position` start.
    pub(super) fn seed(self, position: u64) -> u32 {
        let mut bytes = [0; 24];
        let mut put = Put {
            bytes: &mut bytes,
            at: 0,
        };
        if !mutant(Mutant::StaleFramesValid) {
            put.u64(self.salt);
            put.u64(self.sequence);
        }
        put.u64(position);
        crc32c::crc32c(&bytes)
    }
}

/// Whole length of a frame: header, dir, body, padding.
pub(super) const fn frame_bytes(dir_len: usize, body_len: usize) -> usize {
    (FRAME_HEADER_BYTES + dir_len + body_len).next_multiple_of(FRAME_ALIGN)
}

impl FrameHeader {
    /// Whole length of the frame.
    pub(super) fn frame_bytes(&self) -> u64 {
        let (dir, body) = (u64::from(self.dir_len), u64::from(self.body_len));
        (56 + dir + body).next_multiple_of(8)
    }

    /// The 56 bytes; `body_crc` and `seed` as the page says.
    pub(super) fn encode(&self, seed: u32, dir: &[u8], body_crc: u32) -> [u8; FRAME_HEADER_BYTES] {
        let (kind, flag, id, node) = match self.record {
            Record::Entry { id, kind } => (kind_code(kind), false, id, 0),
            Record::Vote(vote) => (
                4,
                vote.committed,
                LogId {
                    term: vote.term,
                    index: LogIndex::new(0),
                },
                vote.node.get(),
            ),
            Record::Committed(id) => (5, id.is_none(), id.unwrap_or_default(), 0),
            Record::Truncate(id) => (6, id.is_none(), id.unwrap_or_default(), 0),
            Record::Purge(id) => (7, false, id, 0),
        };
        let mut bytes = [0; FRAME_HEADER_BYTES];
        let mut put = Put {
            bytes: &mut bytes,
            at: 8,
        };
        put.raw(&[kind, u8::from(flag), 0, 0]);
        put.raw(&self.dir_len.to_le_bytes());
        put.raw(&self.body_len.to_le_bytes());
        put.raw(&body_crc.to_le_bytes());
        put.u64(id.term.get());
        put.u64(id.index.get());
        put.u64(self.durable_upto);
        put.u64(node);
        let crc = crc32c::crc32c_append(crc32c::crc32c_append(seed, &put.bytes[8..]), dir);
        put.at = 0;
        put.raw(&FRAME_MAGIC);
        put.raw(&crc.to_le_bytes());
        bytes
    }
}

const fn kind_code(kind: EntryKind) -> u8 {
    match kind {
        EntryKind::Blank => 1,
        EntryKind::Command => 2,
        EntryKind::Membership => 3,
    }
}

impl DecodedFrame {
    /// The fields of a frame header, with its lengths checked against `room` (bytes from the frame's start to the end of
    /// the file). Not trusted before [`DecodedFrame::check`].
    pub(super) fn parse(bytes: &[u8; FRAME_HEADER_BYTES], room: u64) -> Option<Self> {
        let mut take = Take { bytes, at: 0 };
        if take.array() != FRAME_MAGIC {
            return None;
        }
        let header_crc = take.u32();
        let [kind, flags, zero_a, zero_b] = take.array();
        let (dir_len, body_len, body_crc) = (take.u32(), take.u32(), take.u32());
        let id = LogId {
            term: Term::new(take.u64()),
            index: LogIndex::new(take.u64()),
        };
        let (durable_upto, node) = (take.u64(), RaftNodeId::new(take.u64()));
        let flag = flags == FLAG_SET;
        let record = match kind {
            1 => Record::Entry {
                id,
                kind: EntryKind::Blank,
            },
            2 => Record::Entry {
                id,
                kind: EntryKind::Command,
            },
            3 => Record::Entry {
                id,
                kind: EntryKind::Membership,
            },
            4 => Record::Vote(Vote {
                term: id.term,
                node,
                committed: flag,
            }),
            5 => Record::Committed((!flag).then_some(id)),
            6 => Record::Truncate((!flag).then_some(id)),
            7 => Record::Purge(id),
            _ => return None,
        };
        let header = FrameHeader {
            record,
            dir_len,
            body_len,
            durable_upto,
        };
        let sizes = matches!(record, Record::Entry { .. }) || (dir_len == 0 && body_len == 0);
        let clean = flags <= FLAG_SET && zero_a == 0 && zero_b == 0;
        let bounded = u64::from(dir_len) <= DIR_BYTES_MAX as u64;
        (sizes && clean && bounded && header.frame_bytes() <= room).then_some(Self {
            header,
            body_crc,
            header_crc,
        })
    }

    /// Whether the header and dir are the ones written at the place that `seed` stands for.
    pub(super) fn check(&self, bytes: &[u8; FRAME_HEADER_BYTES], seed: u32, dir: &[u8]) -> bool {
        crc32c::crc32c_append(crc32c::crc32c_append(seed, &bytes[8..]), dir) == self.header_crc
    }
}

#[cfg(test)]
#[path = "format_tests.rs"]
mod tests;
