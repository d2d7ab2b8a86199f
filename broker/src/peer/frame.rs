//! The prefix of a frame: what is known before its header and payload are read.
//!
//! Owns: [`Prefix`], [`Kind`], [`WireLane`], [`Frame`], bounds per lane, checksums.
//! Not here: what the headers hold (`messages.rs`), reading and writing (`io.rs`).
//! Spec: docs/protocols/peer.md (frame)

use super::limits::{
    APPEND_PAYLOAD_BYTES_MAX, CALL_BYTES_MAX, CHUNK_BYTES_MAX, HEADER_BYTES_MAX, PREFIX_BYTES,
    SIGNAL_FRAME_BYTES_MAX,
};
use crate::format::{FormatError, Reader, Writer};
use bytes::Bytes;
use tidelog_model::PlacementGroupId;
use tidelog_model::Summed;

/// Bytes of the prefix that its checksum covers.
const PREFIX_SUMMED: usize = 36;

/// A connection's purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum WireLane {
    Appends,
    Signals,
    Snapshots,
    Calls,
}

impl WireLane {
    pub(super) const ALL: [Self; 4] = [Self::Appends, Self::Signals, Self::Snapshots, Self::Calls];

    pub(super) const fn number(self) -> u8 {
        match self {
            Self::Appends => 1,
            Self::Signals => 2,
            Self::Snapshots => 3,
            Self::Calls => 4,
        }
    }

    pub(super) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|lane| lane.number() == number)
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Appends => "appends",
            Self::Signals => "signals",
            Self::Snapshots => "snapshots",
            Self::Calls => "calls",
        }
    }

    /// The largest header and payload of a request.
    const fn request_max(self) -> (usize, usize) {
        match self {
            Self::Appends => (HEADER_BYTES_MAX, APPEND_PAYLOAD_BYTES_MAX),
            Self::Signals => (SIGNAL_FRAME_BYTES_MAX - PREFIX_BYTES, 0),
            Self::Snapshots => (HEADER_BYTES_MAX, CHUNK_BYTES_MAX),
            Self::Calls => (HEADER_BYTES_MAX, CALL_BYTES_MAX),
        }
    }

    /// The largest header and payload of a reply.
    const fn reply_max(self) -> (usize, usize) {
        match self {
            Self::Calls => (SIGNAL_FRAME_BYTES_MAX - PREFIX_BYTES, CALL_BYTES_MAX),
            _ => (SIGNAL_FRAME_BYTES_MAX - PREFIX_BYTES, 0),
        }
    }
}

macro_rules! kinds {
    ($($name:ident = $number:literal),+ $(,)?) => {
        /// What a frame is.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub(super) enum Kind { $($name),+ }

        impl Kind {
            #[cfg(test)]
            pub(super) const ALL: &'static [Self] = &[$(Self::$name),+];

            pub(super) const fn number(self) -> u8 {
                match self { $(Self::$name => $number),+ }
            }

            fn from_number(number: u8) -> Option<Self> {
                match number { $($number => Some(Self::$name),)+ _ => None }
            }
        }
    };
}

kinds! {
    Append = 1,
    Vote = 2,
    PreVote = 3,
    Transfer = 4,
    SnapshotBegin = 5,
    SnapshotChunk = 6,
    SnapshotEnd = 7,
    Call = 8,
    Ping = 9,
    AppendReply = 129,
    VoteReply = 130,
    PreVoteReply = 131,
    TransferReply = 132,
    SnapshotBeginReply = 133,
    SnapshotChunkReply = 134,
    SnapshotEndReply = 135,
    CallReply = 136,
    PingReply = 137,
    Error = 255,
}

impl Kind {
    pub(super) const fn is_reply(self) -> bool {
        self.number() >= 128
    }

    /// Whether `lane` carries it, as a request or as a reply.
    pub(super) const fn goes_by(self, lane: WireLane) -> bool {
        match self {
            Self::Ping | Self::PingReply | Self::Error => true,
            Self::Append | Self::AppendReply => {
                matches!(lane, WireLane::Appends | WireLane::Signals)
            }
            Self::Vote
            | Self::PreVote
            | Self::Transfer
            | Self::VoteReply
            | Self::PreVoteReply
            | Self::TransferReply => matches!(lane, WireLane::Signals),
            Self::SnapshotBegin
            | Self::SnapshotChunk
            | Self::SnapshotEnd
            | Self::SnapshotBeginReply
            | Self::SnapshotChunkReply
            | Self::SnapshotEndReply => matches!(lane, WireLane::Snapshots),
            Self::Call | Self::CallReply => matches!(lane, WireLane::Calls),
        }
    }
}

/// Which way frames go that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Requests,
    Replies,
}

/// A message without its addressing: header fields and payload parts, which are written from where they lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: Kind,
    pub(super) group: PlacementGroupId,
    pub(super) header: Bytes,
    pub(super) payload: Vec<Summed>,
}

impl Message {
    pub(super) fn new(kind: Kind, group: PlacementGroupId, header: Bytes) -> Self {
        Self {
            kind,
            group,
            header,
            payload: Vec::new(),
        }
    }

    pub(super) fn with_payload(mut self, part: impl Into<Summed>) -> Self {
        let part = part.into();
        if !part.is_empty() {
            self.payload.push(part);
        }
        self
    }

    pub(super) fn payload_bytes(&self) -> usize {
        self.payload
            .iter()
            .fold(0, |sum, part| sum.saturating_add(part.len()))
    }

    pub(super) fn frame_bytes(&self) -> usize {
        PREFIX_BYTES
            .saturating_add(self.header.len())
            .saturating_add(self.payload_bytes())
    }

    /// Whether a frame of it fits the lane.
    pub(super) fn fits(&self, lane: WireLane) -> bool {
        let (header, payload) = if self.kind.is_reply() {
            lane.reply_max()
        } else {
            lane.request_max()
        };
        self.kind.goes_by(lane) && self.header.len() <= header && self.payload_bytes() <= payload
    }

    /// The frame, in parts to be written one after the other. The message must fit its lane.
    pub(super) fn into_parts(self, correlation: u64, deadline_ms: u32) -> Vec<Bytes> {
        let payload_crc = self
            .payload
            .iter()
            .fold(0, |crc, part| part.crc_behind(crc));
        let mut prefix = Writer::new();
        prefix.count(self.header.len());
        prefix.count(self.payload_bytes());
        prefix.u8(self.kind.number());
        prefix.u8(0);
        prefix.u16(0);
        prefix.u32(self.group.get());
        prefix.u64(correlation);
        prefix.u32(deadline_ms);
        prefix.u32(payload_crc);
        prefix.u32(crc32c::crc32c(&self.header));
        let prefix = prefix.finish();
        let crc = crc32c::crc32c(&prefix);
        let mut head = Writer::new();
        head.raw(&prefix);
        head.u32(crc);
        head.raw(&self.header);
        let mut parts = Vec::with_capacity(1 + self.payload.len());
        parts.push(head.finish());
        parts.extend(self.payload.into_iter().map(Summed::into_bytes));
        parts
    }
}

/// What is known of a frame before its header and payload are read. Its lengths are within the lane's bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Prefix {
    pub(super) header_bytes: usize,
    pub(super) payload_bytes: usize,
    pub(super) kind: Kind,
    pub(super) group: PlacementGroupId,
    pub(super) correlation: u64,
    pub(super) deadline_ms: u32,
    payload_crc: u32,
    header_crc: u32,
}

/// Why bytes are not a frame; nothing after them can be trusted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameError {
    #[error("a frame's {0} does not fit its checksum")]
    Checksum(&'static str),
    #[error("the frame cannot be read: {0}")]
    Format(#[from] FormatError),
    #[error("a frame of kind {0} is not carried here")]
    Kind(u8),
    #[error("a frame with {header} bytes of header and {payload} of payload is too large")]
    TooLarge { header: usize, payload: usize },
}

impl Prefix {
    /// Reads a prefix; its checksum comes first, then its bounds.
    pub(super) fn parse(
        bytes: &[u8; PREFIX_BYTES],
        lane: WireLane,
        direction: Direction,
    ) -> Result<Self, FrameError> {
        let (summed, crc) = bytes.split_at(PREFIX_SUMMED);
        if crc32c::crc32c(summed) != Reader::new(crc).u32("the checksum")? {
            return Err(FrameError::Checksum("prefix"));
        }
        let mut reader = Reader::new(summed);
        let size = |value| usize::try_from(value).unwrap_or(usize::MAX);
        let header = size(reader.u32("the header length")?);
        let payload = size(reader.u32("the payload length")?);
        let number = reader.u8("the kind")?;
        if reader.u8("the flags")? != 0 || reader.u16("the reserved bytes")? != 0 {
            return Err(FormatError::Invalid("the flags").into());
        }
        let (replies, (header_max, payload_max)) = match direction {
            Direction::Requests => (false, lane.request_max()),
            Direction::Replies => (true, lane.reply_max()),
        };
        let kind = Kind::from_number(number)
            .filter(|kind| kind.is_reply() == replies && kind.goes_by(lane))
            .ok_or(FrameError::Kind(number))?;
        if header > header_max || payload > payload_max {
            return Err(FrameError::TooLarge { header, payload });
        }
        Ok(Self {
            header_bytes: header,
            payload_bytes: payload,
            kind,
            group: PlacementGroupId::new(reader.u32("the group")?),
            correlation: reader.u64("the correlation id")?,
            deadline_ms: reader.u32("the deadline")?,
            payload_crc: reader.u32("the payload's checksum")?,
            header_crc: reader.u32("the header's checksum")?,
        })
    }

    /// Whether header and payload are within `max` together.
    ///
    /// # Errors
    /// They are not.
    pub(super) const fn check_size(&self, max: usize) -> Result<(), FrameError> {
        let (header, payload) = (self.header_bytes, self.payload_bytes);
        if self.rest_bytes() > max {
            return Err(FrameError::TooLarge { header, payload });
        }
        Ok(())
    }

    /// Bytes that follow the prefix.
    pub(super) const fn rest_bytes(&self) -> usize {
        self.header_bytes + self.payload_bytes
    }

    /// The frame, from the bytes after the prefix: exactly [`Prefix::rest_bytes`] of them.
    pub(super) fn complete(self, rest: &Bytes) -> Result<Frame, FrameError> {
        if rest.len() != self.rest_bytes() {
            return Err(FormatError::Truncated("the frame").into());
        }
        let header = rest.slice(..self.header_bytes);
        let payload = Summed::from(rest.slice(self.header_bytes..));
        if crc32c::crc32c(&header) != self.header_crc {
            return Err(FrameError::Checksum("header"));
        }
        if payload.crc() != self.payload_crc {
            return Err(FrameError::Checksum("payload"));
        }
        Ok(Frame {
            kind: self.kind,
            group: self.group,
            correlation: self.correlation,
            deadline_ms: self.deadline_ms,
            header,
            payload,
        })
    }
}

/// A frame that was read whole. Header and payload share its buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) group: PlacementGroupId,
    pub(super) correlation: u64,
    pub(super) deadline_ms: u32,
    pub(super) header: Bytes,
    pub(super) payload: Summed,
}

impl Frame {
    /// Bytes it took on the wire.
    pub(super) fn bytes(&self) -> usize {
        PREFIX_BYTES + self.header.len() + self.payload.len()
    }
}
