//! Bytes of hellos, frames and messages: golden, both ways, damaged, hostile.

use super::*;
use crate::format::{FormatError, Writer};
use crate::peer::frame::{Direction, Frame, FrameError, Kind, Message, Prefix, WireLane};
use crate::peer::hello::{ANSWER_MAGIC, Answer, HELLO_MAGIC, Hello, Reason, Refusal, Versions};
use crate::peer::io::{FrameReader, ReadError, read_handshake};
use crate::peer::limits::PREFIX_BYTES;
use crate::peer::messages::{self, ErrorCode, ErrorReply, SnapshotBegin};
use proptest::prelude::*;
use std::fmt::Write as _;
use std::sync::LazyLock;
use tidelog_model::Summed;

fn append_request() -> AppendRequest {
    AppendRequest {
        vote: vote(3),
        previous: Some(id(2, 6)),
        committed: Some(id(2, 5)),
        acknowledged: Some(id(2, 6)),
        entries: vec![
            LogEntry {
                id: id(3, 7),
                kind: EntryKind::Blank,
                dir: Bytes::new(),
                body: Summed::default(),
            },
            entry(3, 8, b"records"),
            LogEntry {
                id: id(3, 9),
                kind: EntryKind::Membership,
                dir: Bytes::from_static(b"members"),
                body: Summed::default(),
            },
        ],
    }
}

/// One of each message, with its name in the golden file.
fn samples() -> Vec<(&'static str, Message)> {
    let asked = VoteRequest {
        vote: vote(4),
        last: Some(id(3, 9)),
        transfer: true,
    };
    let granted = VoteReply {
        vote: vote(4),
        granted: true,
        last: None,
    };
    let transfer = TransferRequest {
        from: vote(4),
        to: node_of(2),
        last: Some(id(4, 10)),
    };
    let begin = SnapshotBegin {
        vote: vote(4),
        id: 0x1122_3344,
        bytes: 5000,
        crc: 0xaabb_ccdd,
    };
    let error = ErrorReply::new(ErrorCode::UnknownGroup, "not here");
    vec![
        ("append", messages::append(GROUP, append_request())),
        ("heartbeat", messages::append(GROUP, heartbeat())),
        ("vote", messages::vote(Kind::Vote, GROUP, &asked)),
        ("pre-vote", messages::vote(Kind::PreVote, GROUP, &asked)),
        ("transfer", messages::transfer(GROUP, &transfer)),
        ("snapshot-begin", messages::snapshot_begin(GROUP, &begin)),
        (
            "snapshot-chunk",
            messages::snapshot_chunk(GROUP, 5, 4096, Bytes::from_static(b"image")),
        ),
        ("snapshot-end", messages::snapshot_end(GROUP, vote(4), 5)),
        ("call", messages::call(7, Bytes::from_static(b"question"))),
        ("ping", messages::ping(Kind::Ping)),
        (
            "append-reply-matched",
            messages::append_reply(GROUP, &AppendReply::Matched),
        ),
        (
            "append-reply-up-to",
            messages::append_reply(GROUP, &AppendReply::MatchedUpTo(Some(id(3, 8)))),
        ),
        (
            "append-reply-conflict",
            messages::append_reply(GROUP, &AppendReply::Conflict),
        ),
        (
            "append-reply-newer",
            messages::append_reply(GROUP, &AppendReply::Newer(vote(5))),
        ),
        (
            "vote-reply",
            messages::vote_reply(Kind::VoteReply, GROUP, &granted),
        ),
        (
            "pre-vote-reply",
            messages::vote_reply(Kind::PreVoteReply, GROUP, &granted),
        ),
        (
            "transfer-reply-accepted",
            messages::transfer_reply(GROUP, &TransferReply::Accepted),
        ),
        (
            "transfer-reply-changed",
            messages::transfer_reply(GROUP, &TransferReply::VoteChanged(vote(5))),
        ),
        (
            "transfer-reply-behind",
            messages::transfer_reply(GROUP, &TransferReply::Behind(None)),
        ),
        (
            "snapshot-begin-reply",
            messages::have(Kind::SnapshotBeginReply, GROUP, 4096),
        ),
        (
            "snapshot-chunk-reply",
            messages::have(Kind::SnapshotChunkReply, GROUP, 5000),
        ),
        (
            "snapshot-end-reply",
            messages::snapshot_end_reply(GROUP, vote(4)),
        ),
        (
            "call-reply",
            messages::call_reply(Bytes::from_static(b"answer")),
        ),
        ("ping-reply", messages::ping(Kind::PingReply)),
        ("error", messages::error(GROUP, &error)),
    ]
}

fn lane_of(kind: Kind) -> WireLane {
    let carries = |lane: &WireLane| kind.goes_by(*lane);
    WireLane::ALL.into_iter().find(carries).expect("a lane")
}

const fn direction_of(kind: Kind) -> Direction {
    if kind.is_reply() {
        Direction::Replies
    } else {
        Direction::Requests
    }
}

fn bytes_of(message: Message) -> Vec<u8> {
    assert!(message.fits(lane_of(message.kind)));
    message.into_parts(0x0102_0304, 1500).concat()
}

/// Deadlines of reads want a timer, though everything is there.
static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().build().expect("a runtime")
});

/// Reads one frame from `bytes`, as from a socket that ends after them.
fn read(bytes: &[u8], kind: Kind) -> Result<Frame, ReadError> {
    let stall = Duration::from_secs(1);
    let mut frames = FrameReader::new(bytes, lane_of(kind), direction_of(kind), stall);
    let frame = async {
        let prefix = frames.prefix(None).await?;
        frames.rest(prefix).await
    };
    RUNTIME.block_on(frame)
}

/// Decodes the frame's fields and encodes them again.
fn again(frame: &Frame) -> Result<Message, FormatError> {
    let group = frame.group;
    Ok(match frame.kind {
        Kind::Append => messages::append(group, messages::read_append(frame)?),
        Kind::Vote | Kind::PreVote => {
            messages::vote(frame.kind, group, &messages::read_vote(frame)?)
        }
        Kind::Transfer => messages::transfer(group, &messages::read_transfer(frame)?),
        Kind::SnapshotBegin => {
            messages::snapshot_begin(group, &messages::read_snapshot_begin(frame)?)
        }
        Kind::SnapshotChunk => {
            let (id, at) = messages::read_snapshot_chunk(frame)?;
            messages::snapshot_chunk(group, id, at, frame.payload.clone().into_bytes())
        }
        Kind::SnapshotEnd => {
            let (vote, id) = messages::read_snapshot_end(frame)?;
            messages::snapshot_end(group, vote, id)
        }
        Kind::Call => messages::call(
            messages::read_call(frame)?,
            frame.payload.clone().into_bytes(),
        ),
        Kind::Ping | Kind::PingReply => {
            messages::read_ping(frame)?;
            messages::ping(frame.kind)
        }
        Kind::AppendReply => messages::append_reply(group, &messages::read_append_reply(frame)?),
        Kind::VoteReply | Kind::PreVoteReply => {
            messages::vote_reply(frame.kind, group, &messages::read_vote_reply(frame)?)
        }
        Kind::TransferReply => {
            messages::transfer_reply(group, &messages::read_transfer_reply(frame)?)
        }
        Kind::SnapshotBeginReply | Kind::SnapshotChunkReply => {
            messages::have(frame.kind, group, messages::read_have(frame)?)
        }
        Kind::SnapshotEndReply => {
            messages::snapshot_end_reply(group, messages::read_snapshot_end_reply(frame)?)
        }
        Kind::CallReply => messages::call_reply(messages::read_call_reply(frame)?),
        Kind::Error => messages::error(group, &messages::read_error(frame)?),
    })
}

fn fixed_identity() -> PeerIdentity {
    let mut identity = identity(Some(cluster()), 1);
    identity.instance = 0x5566;
    identity
}

fn hello() -> Hello {
    fixed_identity().hello(WireLane::Signals, Some(NodeId::new(2)), Some(node_of(2)))
}

fn answers() -> [Answer; 2] {
    let from = fixed_identity().who();
    let accepted = Answer {
        versions: Versions::OURS,
        refused: None,
        from,
    };
    let refused = Answer {
        refused: Some(Refusal {
            reason: Some(Reason::Cluster),
            text: "another cluster".to_owned(),
        }),
        ..accepted.clone()
    };
    [accepted, refused]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Proves that a hello of version 1 is read, so that its sender is told what does not fit.
#[test]
fn a_hello_of_version_1_is_read() {
    let golden = include_str!("../testdata/peer-v1.txt");
    let line = golden.lines().find_map(|line| line.strip_prefix("hello "));
    let digits: Vec<char> = line.unwrap().chars().collect();
    let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap();
    let bytes: Vec<u8> = digits.chunks(2).map(byte).collect();
    let one = Versions {
        newest: 1,
        oldest: 1,
    };
    let expected = Hello {
        versions: one,
        ..hello()
    };
    assert_eq!(Hello::decode(&bytes), Ok(expected));
}

/// Proves that version 2's bytes are what they were: other brokers speak them. TIDELOG_WRITE_GOLDEN=1 writes the file anew, which
/// only a new version may need.
#[test]
fn golden_bytes() {
    let mut text = String::new();
    for (name, message) in samples() {
        let _ = writeln!(text, "{name} {}", hex(&bytes_of(message)));
    }
    let _ = writeln!(text, "hello {}", hex(&hello().encode()));
    for (name, answer) in ["accepted", "refused"].into_iter().zip(answers()) {
        let _ = writeln!(text, "{name} {}", hex(&answer.encode()));
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/peer/testdata/peer-v2.txt");
    if std::env::var_os("TIDELOG_WRITE_GOLDEN").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let golden = std::fs::read_to_string(path).unwrap();
    for (golden, now) in golden.lines().zip(text.lines()) {
        assert_eq!(golden, now);
    }
    assert_eq!(golden, text);
}

/// Proves that each kind has a sample here, and comes back from its bytes with all fields.
#[test]
fn messages_come_back() {
    let samples = samples();
    for kind in Kind::ALL {
        assert!(
            samples.iter().any(|(_, message)| message.kind == *kind),
            "{kind:?}"
        );
    }
    for (name, message) in samples {
        let bytes = bytes_of(message.clone());
        let frame = read(&bytes, message.kind).expect(name);
        assert_eq!((frame.correlation, frame.deadline_ms), (0x0102_0304, 1500));
        assert_eq!(frame.bytes(), bytes.len());
        let again = again(&frame).expect(name);
        assert_eq!(again, message, "{name}");
    }
    let frame = read(
        &bytes_of(messages::append(GROUP, append_request())),
        Kind::Append,
    )
    .unwrap();
    assert_eq!(messages::read_append(&frame), Ok(append_request()));
}

/// Proves that every truncation and every flipped bit of every frame is an error.
#[test]
fn damaged_frames_are_refused() {
    for (name, message) in samples() {
        let kind = message.kind;
        let bytes = bytes_of(message);
        for length in 0..bytes.len() {
            assert!(
                read(&bytes[..length], kind).is_err(),
                "{name}: {length} bytes"
            );
        }
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&damaged, kind).is_err(), "{name}: bit {bit}");
        }
    }
}

/// Proves that a damaged prefix is refused by itself: no length out of it is ever allocated.
#[test]
fn a_damaged_prefix_allocates_nothing() {
    let bytes = bytes_of(messages::append(GROUP, append_request()));
    let prefix: [u8; PREFIX_BYTES] = *bytes.first_chunk().unwrap();
    for bit in 0..PREFIX_BYTES * 8 {
        let mut damaged = prefix;
        damaged[bit / 8] ^= 1 << (bit % 8);
        let parsed = Prefix::parse(&damaged, WireLane::Appends, Direction::Requests);
        assert_eq!(parsed, Err(FrameError::Checksum("prefix")), "bit {bit}");
    }
}

/// A prefix with checksums that fit, whatever it says.
fn sealed_prefix(header: u32, payload: u32, kind: u8, flags: u8) -> [u8; PREFIX_BYTES] {
    let mut out = Writer::new();
    out.u32(header);
    out.u32(payload);
    out.u8(kind);
    out.u8(flags);
    out.raw(&[0; 26]);
    let summed = out.finish();
    assert_eq!(summed.len(), PREFIX_BYTES - 4);
    let mut out = Writer::new();
    out.raw(&summed);
    out.u32(crc32c::crc32c(&summed));
    *out.finish().first_chunk().unwrap()
}

/// Proves that lengths over a lane's bounds, kinds that a lane does not carry, and flags are refused before anything is read.
#[test]
fn hostile_prefixes_are_refused() {
    let parse = |header, payload, kind, flags, lane| {
        let prefix = sealed_prefix(header, payload, kind, flags);
        Prefix::parse(&prefix, lane, Direction::Requests)
    };
    let large =
        |result: Result<Prefix, FrameError>| matches!(result, Err(FrameError::TooLarge { .. }));
    assert!(
        parse(64 << 10, 24 << 20, 1, 0, WireLane::Appends).is_ok(),
        "at the bound"
    );
    assert!(large(parse((64 << 10) + 1, 0, 1, 0, WireLane::Appends)));
    assert!(large(parse(0, (24 << 20) + 1, 1, 0, WireLane::Appends)));
    assert!(large(parse(u32::MAX, u32::MAX, 1, 0, WireLane::Appends)));
    assert!(
        large(parse(0, 1, 1, 0, WireLane::Signals)),
        "signals have no payload"
    );
    assert!(large(parse(4096, 0, 2, 0, WireLane::Signals)));
    assert!(large(parse(0, (1 << 20) + 1, 6, 0, WireLane::Snapshots)));
    assert!(large(parse(0, (4 << 20) + 1, 8, 0, WireLane::Calls)));
    for (kind, lane) in [
        (0, WireLane::Appends),
        (10, WireLane::Calls),
        (2, WireLane::Appends),
        (5, WireLane::Signals),
        (8, WireLane::Signals),
        (129, WireLane::Appends),
        (255, WireLane::Calls),
    ] {
        assert_eq!(
            parse(0, 0, kind, 0, lane),
            Err(FrameError::Kind(kind)),
            "{lane:?}"
        );
    }
    assert!(parse(0, 0, 1, 1, WireLane::Appends).is_err(), "flags");
}

fn frame(kind: Kind, header: Bytes, payload: Bytes) -> Frame {
    Frame {
        kind,
        group: GROUP,
        correlation: 1,
        deadline_ms: 1,
        header,
        payload: payload.into(),
    }
}

/// An append's header with one entry row as given.
fn append_header(count: u32, rows: &[(u64, u64, u8, u32, u32)]) -> Bytes {
    let mut out = Writer::new();
    out.raw(&[0; 17 + 17 + 17 + 17]);
    out.u32(count);
    for (term, index, kind, dir, body) in rows {
        out.u64(*term);
        out.u64(*index);
        out.u8(*kind);
        out.u32(*dir);
        out.u32(*body);
    }
    out.finish()
}

/// Proves that counts and lengths inside a header are checked against what is there, and entries against each other.
#[test]
fn hostile_headers_are_refused() {
    let read = |count, rows: &[_], payload: &'static [u8]| {
        let header = append_header(count, rows);
        messages::read_append(&frame(Kind::Append, header, Bytes::from_static(payload)))
    };
    assert!(read(1, &[(1, 5, 1, 2, 3)], b"12345").is_ok());
    assert!(read(u32::MAX, &[], b"").is_err(), "a count without rows");
    assert!(read(2, &[(1, 5, 1, 2, 3)], b"12345").is_err());
    assert!(
        read(1, &[(1, 5, 1, u32::MAX, 0)], b"12345").is_err(),
        "a directory over its bound"
    );
    assert!(
        read(1, &[(1, 5, 1, 6, 0)], b"12345").is_err(),
        "more than is there"
    );
    assert!(read(1, &[(1, 5, 1, 2, u32::MAX)], b"12345").is_err());
    assert!(
        read(1, &[(1, 5, 1, 2, 2)], b"12345").is_err(),
        "bytes left over"
    );
    assert!(
        read(1, &[(1, 5, 3, 2, 3)], b"12345").is_err(),
        "an unknown kind"
    );
    let order = Err(FormatError::Invalid("the order of the entries"));
    assert_eq!(
        read(2, &[(1, 5, 1, 0, 0), (1, 7, 1, 0, 0)], b""),
        order,
        "a gap"
    );
    assert_eq!(
        read(2, &[(2, 5, 1, 0, 0), (1, 6, 1, 0, 0)], b""),
        order,
        "a term that goes back"
    );
    assert_eq!(
        read(2, &[(1, u64::MAX, 1, 0, 0), (1, 0, 1, 0, 0)], b""),
        order,
        "an overflow"
    );
    let chunk = frame(Kind::SnapshotChunk, Bytes::from(vec![0; 16]), Bytes::new());
    assert!(
        messages::read_snapshot_chunk(&chunk).is_err(),
        "a chunk of nothing"
    );
    let mut error = Writer::new();
    error.u8(1);
    error.u16(513);
    error.raw(&[b'x'; 513]);
    assert!(messages::read_error(&frame(Kind::Error, error.finish(), Bytes::new())).is_err());
}

fn read_hello(bytes: &[u8]) -> Result<Hello, String> {
    let mut stream = bytes;
    let read = read_handshake(&mut stream, HELLO_MAGIC, "hello");
    let bytes = ::futures::executor::block_on(read).map_err(|error| error.to_string())?;
    Hello::decode(&bytes).map_err(|error| error.to_string())
}

fn read_answer(bytes: &[u8]) -> Result<Answer, String> {
    let mut stream = bytes;
    let read = read_handshake(&mut stream, ANSWER_MAGIC, "answer");
    let bytes = ::futures::executor::block_on(read).map_err(|error| error.to_string())?;
    Answer::decode(&bytes).map_err(|error| error.to_string())
}

/// Proves that hellos and answers come back, and that each truncation and each flipped bit of them is an error.
#[test]
fn handshakes_come_back_whole_or_not() {
    assert_eq!(read_hello(&hello().encode()), Ok(hello()));
    for answer in answers() {
        assert_eq!(read_answer(&answer.encode()), Ok(answer));
    }
    let [accepted, refused] = answers().map(|answer| answer.encode());
    let hello = hello().encode();
    for (bytes, is_hello) in [(hello, true), (accepted, false), (refused, false)] {
        let refused = |bytes: &[u8]| {
            if is_hello {
                read_hello(bytes).is_err()
            } else {
                read_answer(bytes).is_err()
            }
        };
        for length in 0..bytes.len() {
            assert!(refused(&bytes[..length]), "{length} bytes");
        }
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(refused(&damaged), "bit {bit}");
        }
    }
}

prop_compose! {
    fn any_vote()(term: u64, node: u64, committed: bool) -> Vote {
        Vote { term: Term::new(term), node: RaftNodeId::new(node), committed }
    }
}

prop_compose! {
    fn any_id()(term: u64, index: u64) -> LogId {
        id(term, index)
    }
}

prop_compose! {
    fn any_append()(
        vote in any_vote(),
        committed in proptest::option::of(any_id()),
        acknowledged in proptest::option::of(any_id()),
        before in 0..u64::MAX / 2,
        has_previous: bool,
        parts in proptest::collection::vec(
            (0_u8..3, 0_u64..3, proptest::collection::vec(any::<u8>(), 0..50), proptest::collection::vec(any::<u8>(), 0..500)),
            0..20,
        ),
    ) -> AppendRequest {
        let mut last = id(4, before);
        let previous = has_previous.then_some(last);
        let entries = parts.into_iter().map(|(kind, terms, dir, body)| {
            last = id(last.term.get() + terms, last.index.get() + 1);
            LogEntry {
                id: last,
                kind: [EntryKind::Blank, EntryKind::Command, EntryKind::Membership][usize::from(kind)],
                dir: Bytes::from(dir),
                body: Bytes::from(body).into(),
            }
        });
        let entries = entries.collect();
        AppendRequest { vote, previous, committed, acknowledged, entries }
    }
}

proptest! {
    /// Proves that any append comes back as it was.
    #[test]
    fn any_append_comes_back(request in any_append()) {
        let bytes = bytes_of(messages::append(GROUP, request.clone()));
        let frame = read(&bytes, Kind::Append).unwrap();
        prop_assert_eq!(messages::read_append(&frame), Ok(request));
    }

    /// Proves that any votes, hand-overs and their replies come back as they were.
    #[test]
    fn any_signal_comes_back(
        vote in any_vote(), newer in any_vote(), last in proptest::option::of(any_id()), flag: bool, to: u64,
    ) {
        let asked = VoteRequest { vote, last, transfer: flag };
        let back = read(&bytes_of(messages::vote(Kind::Vote, GROUP, &asked)), Kind::Vote).unwrap();
        prop_assert_eq!(messages::read_vote(&back), Ok(asked));
        let granted = VoteReply { vote, granted: flag, last };
        let reply = messages::vote_reply(Kind::VoteReply, GROUP, &granted);
        let back = read(&bytes_of(reply), Kind::VoteReply).unwrap();
        prop_assert_eq!(messages::read_vote_reply(&back), Ok(granted));
        let transfer = TransferRequest { from: vote, to: RaftNodeId::new(to), last };
        let back = read(&bytes_of(messages::transfer(GROUP, &transfer)), Kind::Transfer).unwrap();
        prop_assert_eq!(messages::read_transfer(&back), Ok(transfer));
        for reply in [AppendReply::MatchedUpTo(last), AppendReply::Newer(newer)] {
            let back = read(&bytes_of(messages::append_reply(GROUP, &reply)), Kind::AppendReply).unwrap();
            prop_assert_eq!(messages::read_append_reply(&back), Ok(reply));
        }
    }

    /// Proves that a header of any bytes, of any kind, is read or refused; what is read is written the same again.
    #[test]
    fn any_header_is_read_or_refused(
        kind in 0..Kind::ALL.len(),
        header in proptest::collection::vec(any::<u8>(), 0..120),
        payload in proptest::collection::vec(any::<u8>(), 0..60),
    ) {
        let (header, payload) = (Bytes::from(header), Bytes::from(payload));
        let frame = frame(Kind::ALL[kind], header.clone(), payload.clone());
        if let Ok(message) = again(&frame) {
            prop_assert_eq!(message.header, header);
            let parts: Vec<Bytes> = message.payload.into_iter().map(Summed::into_bytes).collect();
            prop_assert_eq!(parts.concat(), payload);
        }
    }
}
