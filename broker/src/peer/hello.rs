//! Bytes of the handshake.
//!
//! Owns: [`Hello`], [`Answer`], [`Reason`].
//! Not here: what is accepted (`welcome.rs`), who sends them (`dial.rs`).
//! Spec: docs/protocols/peer.md (handshake)

use super::frame::WireLane;
use super::limits::{HELLO_BYTES_MAX, NAME_BYTES_MAX, TEXT_BYTES_MAX};
use crate::format::{FormatError, Reader, Writer};
use crate::observe::printable;
use bytes::Bytes;
use tidelog_model::{ClusterId, NodeId, RaftNodeId};
use uuid::Uuid;

/// The protocol version of this program, and the oldest it speaks.
pub(super) const VERSION: u16 = 2;
pub(super) const VERSION_MIN: u16 = 2;

/// Bytes that say how long a hello or an answer is; the same in every version.
pub(super) const HEAD_BYTES: usize = 10;
pub(super) const HELLO_MAGIC: [u8; 4] = *b"TLPR";
pub(super) const ANSWER_MAGIC: [u8; 4] = *b"TLPA";

/// Versions that a side speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Versions {
    pub(super) newest: u16,
    pub(super) oldest: u16,
}

impl Versions {
    pub(super) const OURS: Self = Self {
        newest: VERSION,
        oldest: VERSION_MIN,
    };

    /// The newest that both speak.
    pub(super) fn common(self, other: Self) -> Option<u16> {
        let version = self.newest.min(other.newest);
        (version >= self.oldest && version >= other.oldest).then_some(version)
    }
}

/// Who one side is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Who {
    pub(super) cluster: Option<ClusterId>,
    pub(super) broker: NodeId,
    pub(super) node: RaftNodeId,
    pub(super) instance: u64,
}

/// A caller's first message. Of another version, only `versions` is certain to mean what it says; the rest is read as
/// version 1, whose fields later versions keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) versions: Versions,
    /// `None`: a number that is not a lane.
    pub(super) lane: Option<WireLane>,
    pub(super) from: Who,
    pub(super) broker_wanted: Option<NodeId>,
    pub(super) node_wanted: Option<RaftNodeId>,
    pub(super) name: String,
}

/// Why a caller is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    Version,
    Malformed,
    ClusterName,
    Itself,
    Duplicate,
    Cluster,
    NoCluster,
    Node,
    Tls,
}

impl Reason {
    const ALL: [Self; 9] = [
        Self::Version,
        Self::Malformed,
        Self::ClusterName,
        Self::Itself,
        Self::Duplicate,
        Self::Cluster,
        Self::NoCluster,
        Self::Node,
        Self::Tls,
    ];

    const fn number(self) -> u8 {
        match self {
            Self::Version => 1,
            Self::Malformed => 2,
            Self::ClusterName => 3,
            Self::Itself => 4,
            Self::Duplicate => 5,
            Self::Cluster => 6,
            Self::NoCluster => 7,
            Self::Node => 8,
            Self::Tls => 9,
        }
    }

    /// The label of metrics.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Version => "version",
            Self::Malformed => "malformed",
            Self::ClusterName => "cluster_name",
            Self::Itself => "itself",
            Self::Duplicate => "duplicate",
            Self::Cluster => "cluster",
            Self::NoCluster => "no_cluster",
            Self::Node => "node",
            Self::Tls => "tls",
        }
    }
}

/// A listener's reply. Accepted, `versions.newest` is the version that is spoken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) versions: Versions,
    pub(super) refused: Option<Refusal>,
    pub(super) from: Who,
}

/// Why, and in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    /// `None`: a reason of a later version; the text says it.
    pub(super) reason: Option<Reason>,
    pub(super) text: String,
}

/// The length of the whole hello or answer that `head` begins.
pub(super) fn length(
    head: &[u8; HEAD_BYTES],
    magic: [u8; 4],
    what: &'static str,
) -> Result<usize, FormatError> {
    let mut reader = Reader::new(head);
    if reader.take(4, "the magic")? != magic {
        return Err(FormatError::Magic(what));
    }
    reader.take(4, "the versions")?;
    let length = usize::from(reader.u16("the length")?);
    if !(HEAD_BYTES + 4..=HELLO_BYTES_MAX).contains(&length) {
        return Err(FormatError::Invalid("the length"));
    }
    Ok(length)
}

fn put_versions(out: &mut Writer, magic: [u8; 4], versions: Versions, length: usize) {
    out.raw(&magic);
    out.u16(versions.newest);
    out.u16(versions.oldest);
    out.u16(u16::try_from(length).unwrap_or(u16::MAX));
}

fn put_who(out: &mut Writer, who: Who) {
    out.uuid(who.cluster.map_or(Uuid::nil(), ClusterId::get));
    out.i32(who.broker.get());
    out.u64(who.node.get());
    out.u64(who.instance);
}

fn get_who(reader: &mut Reader<'_>) -> Result<Who, FormatError> {
    let cluster = reader.uuid("the cluster id")?;
    Ok(Who {
        cluster: (!cluster.is_nil()).then_some(ClusterId::new(cluster)),
        broker: NodeId::new(reader.i32("the broker id")?),
        node: RaftNodeId::new(reader.u64("the Raft node id")?),
        instance: reader.u64("the instance")?,
    })
}

fn sealed(out: Writer) -> Bytes {
    let bytes = out.finish();
    let crc = crc32c::crc32c(&bytes);
    let mut out = Writer::new();
    out.raw(&bytes);
    out.u32(crc);
    out.finish()
}

/// Checks magic, length and checksum; the reader begins after the length. Bytes after the fields of version 1 are for later versions.
fn open<'a>(
    bytes: &'a [u8],
    magic: [u8; 4],
    what: &'static str,
) -> Result<(Versions, Reader<'a>), FormatError> {
    let head = bytes
        .first_chunk::<HEAD_BYTES>()
        .ok_or(FormatError::Truncated(what))?;
    if length(head, magic, what)? != bytes.len() {
        return Err(FormatError::Truncated(what));
    }
    let (summed, crc) = bytes.split_at(bytes.len() - 4);
    if crc32c::crc32c(summed) != Reader::new(crc).u32("the checksum")? {
        return Err(FormatError::Checksum);
    }
    let mut reader = Reader::new(summed);
    reader.take(4, "the magic")?;
    let newest = reader.u16("the version")?;
    let oldest = reader.u16("the version")?;
    if oldest == 0 || newest < oldest {
        return Err(FormatError::Invalid("the versions"));
    }
    reader.u16("the length")?;
    Ok((Versions { newest, oldest }, reader))
}

fn get_text(
    reader: &mut Reader<'_>,
    max: usize,
    what: &'static str,
) -> Result<String, FormatError> {
    let length = usize::from(reader.u16(what)?);
    if length > max {
        return Err(FormatError::Invalid(what));
    }
    std::str::from_utf8(reader.take(length, what)?)
        .map(str::to_owned)
        .map_err(|_| FormatError::Invalid(what))
}

fn put_text(out: &mut Writer, text: &str) {
    out.u16(u16::try_from(text.len()).unwrap_or(0));
    out.raw(text.as_bytes());
}

impl Hello {
    /// The bytes. The name is at most 255 bytes long.
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Writer::new();
        put_versions(
            &mut out,
            HELLO_MAGIC,
            self.versions,
            62 + self.name.len() + 4,
        );
        out.u8(self.lane.map_or(0, WireLane::number));
        out.u8(0);
        put_who(&mut out, self.from);
        out.i32(self.broker_wanted.map_or(-1, NodeId::get));
        out.u64(self.node_wanted.map_or(0, RaftNodeId::get));
        put_text(&mut out, &self.name);
        sealed(out)
    }

    /// Reads a whole hello.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let (versions, mut reader) = open(bytes, HELLO_MAGIC, "hello")?;
        let lane = WireLane::from_number(reader.u8("the lane")?);
        let flags = reader.u8("the flags")?;
        let from = get_who(&mut reader)?;
        let broker = reader.i32("the broker wanted")?;
        let node = reader.u64("the node wanted")?;
        let name = get_text(&mut reader, NAME_BYTES_MAX, "the cluster name")?;
        let whole = reader.finish().is_ok() && flags == 0;
        Ok(Self {
            versions,
            // Our own version has these fields and no others.
            lane: lane.filter(|_| whole || versions.newest > VERSION),
            from,
            broker_wanted: (broker >= 0).then_some(NodeId::new(broker)),
            node_wanted: (node != 0).then_some(RaftNodeId::new(node)),
            name,
        })
    }
}

impl Answer {
    /// The bytes. A text is cut at 512 bytes.
    pub(super) fn encode(&self) -> Bytes {
        let text = self.refused.as_ref().map_or("", |refusal| &refusal.text);
        let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
        let reason = self
            .refused
            .as_ref()
            .map_or(0, |refusal| refusal.reason.map_or(255, Reason::number));
        let mut out = Writer::new();
        put_versions(&mut out, ANSWER_MAGIC, self.versions, 50 + text.len() + 4);
        out.u8(reason);
        out.u8(0);
        put_who(&mut out, self.from);
        put_text(&mut out, text);
        sealed(out)
    }

    /// Reads a whole answer.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let (versions, mut reader) = open(bytes, ANSWER_MAGIC, "answer to a hello")?;
        let number = reader.u8("the reason")?;
        reader.u8("the flags")?;
        let from = get_who(&mut reader)?;
        let text = get_text(&mut reader, TEXT_BYTES_MAX, "the text")?;
        let reason = Reason::ALL
            .into_iter()
            .find(|reason| reason.number() == number);
        Ok(Self {
            versions,
            refused: (number != 0).then(|| Refusal {
                reason,
                text: printable(&text).into_owned(),
            }),
            from,
        })
    }
}
