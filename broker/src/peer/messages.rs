//! Headers and payloads of the messages between brokers.
//!
//! Owns: fields of each kind, their bounds, error codes.
//! Not here: the frame around them (`frame.rs`), sending and handling.
//! Spec: docs/protocols/peer.md (messages)

use super::frame::{Frame, Kind, Message};
use super::limits::TEXT_BYTES_MAX;
use crate::format::{FormatError, Reader, Writer};
use crate::log::{DIR_BYTES_MAX, EntryKind, LogEntry, Vote};
use crate::observe::printable;
use crate::placement::{
    AppendReply, AppendRequest, TransferReply, TransferRequest, VoteReply, VoteRequest,
};
use bytes::Bytes;
use tidelog_model::{LogId, LogIndex, PlacementGroupId, RaftNodeId, Summed, Term};

/// Bytes of an entry's row in an append.
const ENTRY_ROW_BYTES: usize = 25;
/// Group field of messages that concern no group.
pub(super) const NO_GROUP: PlacementGroupId = PlacementGroupId::new(0);

type Parsed<T> = Result<T, FormatError>;

fn put_log_id(out: &mut Writer, id: LogId) {
    out.u64(id.term.get());
    out.u64(id.index.get());
}

fn get_log_id(reader: &mut Reader<'_>, what: &'static str) -> Parsed<LogId> {
    Ok(LogId {
        term: Term::new(reader.u64(what)?),
        index: LogIndex::new(reader.u64(what)?),
    })
}

fn put_optional(out: &mut Writer, id: Option<LogId>) {
    out.u8(u8::from(id.is_some()));
    put_log_id(out, id.unwrap_or_default());
}

fn get_optional(reader: &mut Reader<'_>, what: &'static str) -> Parsed<Option<LogId>> {
    let known = reader.flag(what)?;
    let id = get_log_id(reader, what)?;
    match (known, id == LogId::default()) {
        (true, _) => Ok(Some(id)),
        (false, true) => Ok(None),
        (false, false) => Err(FormatError::Invalid(what)),
    }
}

fn put_vote(out: &mut Writer, vote: Vote) {
    out.u64(vote.term.get());
    out.u64(vote.node.get());
    out.u8(u8::from(vote.committed));
}

fn get_vote(reader: &mut Reader<'_>) -> Parsed<Vote> {
    Ok(Vote {
        term: Term::new(reader.u64("the vote")?),
        node: RaftNodeId::new(reader.u64("the vote")?),
        committed: reader.flag("the vote")?,
    })
}

fn message(kind: Kind, group: PlacementGroupId, write: impl FnOnce(&mut Writer)) -> Message {
    let mut out = Writer::new();
    write(&mut out);
    Message::new(kind, group, out.finish())
}

/// Reads all of a header; the payload must be empty.
fn read<T>(frame: &Frame, fields: impl FnOnce(&mut Reader<'_>) -> Parsed<T>) -> Parsed<T> {
    if !frame.payload.is_empty() {
        return Err(FormatError::Trailing(frame.payload.len()));
    }
    read_header(frame, fields)
}

fn read_header<T>(frame: &Frame, fields: impl FnOnce(&mut Reader<'_>) -> Parsed<T>) -> Parsed<T> {
    let mut reader = Reader::new(&frame.header);
    let value = fields(&mut reader)?;
    reader.finish()?;
    Ok(value)
}

const fn entry_kind(kind: EntryKind) -> u8 {
    match kind {
        EntryKind::Blank => 0,
        EntryKind::Command => 1,
        EntryKind::Membership => 2,
    }
}

/// Shares the entries' bytes; nothing is copied but the row of each.
pub(super) fn append(group: PlacementGroupId, request: AppendRequest) -> Message {
    let mut message = message(Kind::Append, group, |out| {
        put_vote(out, request.vote);
        put_optional(out, request.previous);
        put_optional(out, request.committed);
        put_optional(out, request.acknowledged);
        out.count(request.entries.len());
        for entry in &request.entries {
            put_log_id(out, entry.id);
            out.u8(entry_kind(entry.kind));
            out.count(entry.dir.len());
            out.count(entry.body.len());
        }
    });
    for entry in request.entries {
        message = message.with_payload(entry.dir).with_payload(entry.body);
    }
    message
}

/// The entries share the frame's buffer.
pub(super) fn read_append(frame: &Frame) -> Parsed<AppendRequest> {
    let mut reader = Reader::new(&frame.header);
    let vote = get_vote(&mut reader)?;
    let previous = get_optional(&mut reader, "the previous entry")?;
    let committed = get_optional(&mut reader, "the committed entry")?;
    let acknowledged = get_optional(&mut reader, "the acknowledged entry")?;
    let count = reader.count(ENTRY_ROW_BYTES, "the entries")?;
    let mut entries = Vec::with_capacity(count);
    let mut before = previous;
    let mut rest = Rest::of(&frame.payload);
    for _ in 0..count {
        let entry = read_entry(&mut reader, &mut rest)?;
        let follows = before.is_none_or(|before| {
            before.index.get().checked_add(1) == Some(entry.id.index.get())
                && before.term <= entry.id.term
        });
        if !follows {
            return Err(FormatError::Invalid("the order of the entries"));
        }
        before = Some(entry.id);
        entries.push(entry);
    }
    reader.finish()?;
    if rest.left() > 0 {
        return Err(FormatError::Trailing(rest.left()));
    }
    Ok(AppendRequest {
        vote,
        previous,
        committed,
        acknowledged,
        entries,
    })
}

/// What is not read yet of a payload, whose sum was checked.
struct Rest<'a> {
    payload: &'a Summed,
    at: usize,
    /// The CRC of what is before `at`.
    before: u32,
}

impl<'a> Rest<'a> {
    fn of(payload: &'a Summed) -> Self {
        Self {
            payload,
            at: 0,
            before: 0,
        }
    }

    fn left(&self) -> usize {
        self.payload.len() - self.at
    }

    /// The next part; the last one's sum is derived, so that of a lone entry no byte is summed twice.
    fn take(&mut self, length: usize) -> Summed {
        let part = if length == self.left() {
            Summed::end_of(self.payload, self.before, self.at)
        } else {
            Summed::from(self.payload.slice(self.at..self.at + length))
        };
        self.before = part.crc_behind(self.before);
        self.at += length;
        part
    }
}

fn read_entry(reader: &mut Reader<'_>, rest: &mut Rest<'_>) -> Parsed<LogEntry> {
    let id = get_log_id(reader, "an entry")?;
    let kind = match reader.u8("an entry's kind")? {
        0 => EntryKind::Blank,
        1 => EntryKind::Command,
        2 => EntryKind::Membership,
        _ => return Err(FormatError::Invalid("an entry's kind")),
    };
    let mut part = |what, max: usize| {
        let length = usize::try_from(reader.u32(what)?).unwrap_or(usize::MAX);
        if length > max {
            return Err(FormatError::Invalid(what));
        }
        if length > rest.left() {
            return Err(FormatError::Truncated(what));
        }
        Ok(rest.take(length))
    };
    Ok(LogEntry {
        id,
        kind,
        dir: part("an entry's directory", DIR_BYTES_MAX)?.into_bytes(),
        body: part("an entry's body", usize::MAX)?,
    })
}

pub(super) fn append_reply(group: PlacementGroupId, reply: &AppendReply) -> Message {
    message(Kind::AppendReply, group, |out| match reply {
        AppendReply::Matched => out.u8(0),
        AppendReply::MatchedUpTo(last) => {
            out.u8(1);
            put_optional(out, *last);
        }
        AppendReply::Conflict => out.u8(2),
        AppendReply::Newer(vote) => {
            out.u8(3);
            put_vote(out, *vote);
        }
    })
}

pub(super) fn read_append_reply(frame: &Frame) -> Parsed<AppendReply> {
    read(frame, |reader| match reader.u8("the result")? {
        0 => Ok(AppendReply::Matched),
        1 => Ok(AppendReply::MatchedUpTo(get_optional(
            reader,
            "the last entry",
        )?)),
        2 => Ok(AppendReply::Conflict),
        3 => Ok(AppendReply::Newer(get_vote(reader)?)),
        _ => Err(FormatError::Invalid("the result")),
    })
}

/// `kind` is a vote or a pre-vote.
pub(super) fn vote(kind: Kind, group: PlacementGroupId, request: &VoteRequest) -> Message {
    message(kind, group, |out| {
        put_vote(out, request.vote);
        put_optional(out, request.last);
        out.u8(u8::from(request.transfer));
    })
}

pub(super) fn read_vote(frame: &Frame) -> Parsed<VoteRequest> {
    read(frame, |reader| {
        Ok(VoteRequest {
            vote: get_vote(reader)?,
            last: get_optional(reader, "the last entry")?,
            transfer: reader.flag("the transfer flag")?,
        })
    })
}

/// `kind` is a reply to a vote or to a pre-vote.
pub(super) fn vote_reply(kind: Kind, group: PlacementGroupId, reply: &VoteReply) -> Message {
    message(kind, group, |out| {
        put_vote(out, reply.vote);
        out.u8(u8::from(reply.granted));
        put_optional(out, reply.last);
    })
}

pub(super) fn read_vote_reply(frame: &Frame) -> Parsed<VoteReply> {
    read(frame, |reader| {
        Ok(VoteReply {
            vote: get_vote(reader)?,
            granted: reader.flag("whether it is granted")?,
            last: get_optional(reader, "the last entry")?,
        })
    })
}

pub(super) fn transfer(group: PlacementGroupId, request: &TransferRequest) -> Message {
    message(Kind::Transfer, group, |out| {
        put_vote(out, request.from);
        out.u64(request.to.get());
        put_optional(out, request.last);
    })
}

pub(super) fn read_transfer(frame: &Frame) -> Parsed<TransferRequest> {
    read(frame, |reader| {
        Ok(TransferRequest {
            from: get_vote(reader)?,
            to: RaftNodeId::new(reader.u64("the next leader")?),
            last: get_optional(reader, "the last entry")?,
        })
    })
}

pub(super) fn transfer_reply(group: PlacementGroupId, reply: &TransferReply) -> Message {
    message(Kind::TransferReply, group, |out| match reply {
        TransferReply::Accepted => out.u8(0),
        TransferReply::VoteChanged(vote) => {
            out.u8(1);
            put_vote(out, *vote);
        }
        TransferReply::Behind(last) => {
            out.u8(2);
            put_optional(out, *last);
        }
    })
}

pub(super) fn read_transfer_reply(frame: &Frame) -> Parsed<TransferReply> {
    read(frame, |reader| match reader.u8("the result")? {
        0 => Ok(TransferReply::Accepted),
        1 => Ok(TransferReply::VoteChanged(get_vote(reader)?)),
        2 => Ok(TransferReply::Behind(get_optional(
            reader,
            "the last entry",
        )?)),
        _ => Err(FormatError::Invalid("the result")),
    })
}

/// What a snapshot's first message announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SnapshotBegin {
    pub(super) vote: Vote,
    pub(super) id: u64,
    pub(super) bytes: u64,
    pub(super) crc: u32,
}

pub(super) fn snapshot_begin(group: PlacementGroupId, begin: &SnapshotBegin) -> Message {
    message(Kind::SnapshotBegin, group, |out| {
        put_vote(out, begin.vote);
        out.u64(begin.id);
        out.u64(begin.bytes);
        out.u32(begin.crc);
    })
}

pub(super) fn read_snapshot_begin(frame: &Frame) -> Parsed<SnapshotBegin> {
    read(frame, |reader| {
        Ok(SnapshotBegin {
            vote: get_vote(reader)?,
            id: reader.u64("the snapshot id")?,
            bytes: reader.u64("the length")?,
            crc: reader.u32("the checksum")?,
        })
    })
}

pub(super) fn snapshot_chunk(group: PlacementGroupId, id: u64, at: u64, bytes: Bytes) -> Message {
    let chunk = message(Kind::SnapshotChunk, group, |out| {
        out.u64(id);
        out.u64(at);
    });
    chunk.with_payload(bytes)
}

/// Snapshot id and where the chunk begins; its bytes are the payload.
pub(super) fn read_snapshot_chunk(frame: &Frame) -> Parsed<(u64, u64)> {
    if frame.payload.is_empty() {
        return Err(FormatError::Truncated("the chunk"));
    }
    read_header(frame, |reader| {
        Ok((reader.u64("the snapshot id")?, reader.u64("the position")?))
    })
}

pub(super) fn snapshot_end(group: PlacementGroupId, vote: Vote, id: u64) -> Message {
    message(Kind::SnapshotEnd, group, |out| {
        put_vote(out, vote);
        out.u64(id);
    })
}

pub(super) fn read_snapshot_end(frame: &Frame) -> Parsed<(Vote, u64)> {
    read(frame, |reader| {
        Ok((get_vote(reader)?, reader.u64("the snapshot id")?))
    })
}

/// `kind` is a reply to a begin or to a chunk.
pub(super) fn have(kind: Kind, group: PlacementGroupId, bytes: u64) -> Message {
    message(kind, group, |out| out.u64(bytes))
}

pub(super) fn read_have(frame: &Frame) -> Parsed<u64> {
    read(frame, |reader| reader.u64("the bytes held"))
}

pub(super) fn snapshot_end_reply(group: PlacementGroupId, vote: Vote) -> Message {
    message(Kind::SnapshotEndReply, group, |out| put_vote(out, vote))
}

pub(super) fn read_snapshot_end_reply(frame: &Frame) -> Parsed<Vote> {
    read(frame, get_vote)
}

pub(super) fn call(service: u8, request: Bytes) -> Message {
    message(Kind::Call, NO_GROUP, |out| out.u8(service)).with_payload(request)
}

/// The service; the request is the payload.
pub(super) fn read_call(frame: &Frame) -> Parsed<u8> {
    read_header(frame, |reader| reader.u8("the service"))
}

pub(super) fn call_reply(answer: Bytes) -> Message {
    Message::new(Kind::CallReply, NO_GROUP, Bytes::new()).with_payload(answer)
}

pub(super) fn read_call_reply(frame: &Frame) -> Parsed<Bytes> {
    read_header(frame, |_| Ok(()))?;
    Ok(Bytes::clone(&frame.payload))
}

pub(super) fn ping(kind: Kind) -> Message {
    Message::new(kind, NO_GROUP, Bytes::new())
}

pub(super) fn read_ping(frame: &Frame) -> Parsed<()> {
    read(frame, |_| Ok(()))
}

/// Why a request has no other reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ErrorCode {
    UnknownGroup,
    Stopped,
    Overloaded,
    Malformed,
    UnknownService,
    Late,
    SnapshotPosition,
}

impl ErrorCode {
    pub(super) const ALL: [Self; 7] = [
        Self::UnknownGroup,
        Self::Stopped,
        Self::Overloaded,
        Self::Malformed,
        Self::UnknownService,
        Self::Late,
        Self::SnapshotPosition,
    ];

    const fn number(self) -> u8 {
        match self {
            Self::UnknownGroup => 1,
            Self::Stopped => 2,
            Self::Overloaded => 3,
            Self::Malformed => 4,
            Self::UnknownService => 5,
            Self::Late => 6,
            Self::SnapshotPosition => 7,
        }
    }

    /// Whether the peer says that it did nothing and that a pause helps.
    pub(super) const fn is_not_done(self) -> bool {
        matches!(
            self,
            Self::UnknownGroup | Self::Overloaded | Self::UnknownService
        )
    }
}

/// An error reply: what a peer could not do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ErrorReply {
    pub(super) code: ErrorCode,
    pub(super) text: String,
}

impl ErrorReply {
    pub(super) fn new(code: ErrorCode, text: impl Into<String>) -> Self {
        let mut text = text.into();
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        Self { code, text }
    }
}

impl From<FormatError> for ErrorReply {
    fn from(error: FormatError) -> Self {
        Self::new(ErrorCode::Malformed, error.to_string())
    }
}

pub(super) fn error(group: PlacementGroupId, error: &ErrorReply) -> Message {
    message(Kind::Error, group, |out| {
        out.u8(error.code.number());
        out.u16(u16::try_from(error.text.len()).unwrap_or(0));
        out.raw(error.text.as_bytes());
    })
}

pub(super) fn read_error(frame: &Frame) -> Parsed<ErrorReply> {
    read(frame, |reader| {
        let number = reader.u8("the error code")?;
        let code = ErrorCode::ALL
            .into_iter()
            .find(|code| code.number() == number)
            .ok_or(FormatError::Invalid("the error code"))?;
        let length = usize::from(reader.u16("the text")?);
        if length > TEXT_BYTES_MAX {
            return Err(FormatError::Invalid("the text"));
        }
        let text = std::str::from_utf8(reader.take(length, "the text")?)
            .map_err(|_| FormatError::Invalid("the text"))?;
        Ok(ErrorReply {
            code,
            text: printable(text).into_owned(),
        })
    })
}
