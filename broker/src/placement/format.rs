//! Bytes of membership entries and of checkpoint images.
//!
//! Owns: [`encode_membership`], [`decode_membership`], [`encode_image`], [`decode_image`], and their bounds.
//! Not here: frames and checkpoint files (`log`), what is inside a state machine's image (the machine).
//! Spec: docs/formats/group-entries.md

use super::raft_types::{Member, RaftMembership, StoredMembership, from_raft, to_raft};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::collections::{BTreeMap, BTreeSet};
use tidelog_model::{LogId, LogIndex, NodeId, Term};

const MEMBERSHIP_VERSION: u8 = 1;
const IMAGE_VERSION: u16 = 1;
const IMAGE_MAGIC: &[u8; 4] = b"TLCK";
const IMAGE_HEADER_BYTES: usize = 64;
/// Bytes of the header that its checksum covers: all but the two checksums.
const IMAGE_HEADER_SUMMED: usize = 56;

/// Voter sets of one membership: two while a change is under way; the rest is room.
const CONFIGS_MAX: usize = 4;
/// Replicas of one group: three to five, and as many learners; the rest is room.
const NODES_MAX: usize = 128;
const ADDRESS_BYTES_MAX: usize = 1024;
/// 4 sets of 128 ids (8 bytes) and 128 replicas of 14 + 1024 bytes are 137 KiB.
const MEMBERSHIP_BYTES_MAX: usize = 1 << 20;
/// An image is refused above this; real ones are megabytes (design.md D5).
const IMAGE_BYTES_MAX: usize = 1 << 30;

const _: () = assert!(
    8 + CONFIGS_MAX * (2 + NODES_MAX * 8) + NODES_MAX * (14 + ADDRESS_BYTES_MAX)
        < MEMBERSHIP_BYTES_MAX
);

/// Bytes that are not what the specification says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub(super) struct FormatError {
    what: &'static str,
    why: String,
}

fn bad<T>(what: &'static str, why: impl Into<String>) -> Result<T, FormatError> {
    Err(FormatError {
        what,
        why: why.into(),
    })
}

const MEMBERSHIP: &str = "membership";
const IMAGE: &str = "checkpoint image";

/// Encodes a membership.
///
/// # Errors
/// It exceeds a bound of the format.
pub(super) fn encode_membership(membership: &RaftMembership) -> Result<Bytes, FormatError> {
    let configs = membership.get_joint_config();
    let nodes: BTreeMap<u64, &Member> = membership
        .nodes()
        .map(|(id, member)| (*id, member))
        .collect();
    let mut out = BytesMut::with_capacity(64);
    out.put_u8(MEMBERSHIP_VERSION);
    out.put_u8(0);
    out.put_u16_le(count("configs", configs.len(), CONFIGS_MAX)?);
    out.put_u16_le(count("nodes", nodes.len(), NODES_MAX)?);
    out.put_u16_le(0);
    for voters in configs {
        out.put_u16_le(count("voters", voters.len(), NODES_MAX)?);
        for id in voters {
            out.put_u64_le(*id);
        }
    }
    for (id, member) in nodes {
        out.put_u64_le(id);
        out.put_i32_le(member.broker.get());
        out.put_u16_le(count(
            "address bytes",
            member.address.len(),
            ADDRESS_BYTES_MAX,
        )?);
        out.put_slice(member.address.as_bytes());
    }
    Ok(out.freeze())
}

fn count(name: &str, value: usize, max: usize) -> Result<u16, FormatError> {
    match u16::try_from(value) {
        Ok(small) if value <= max => Ok(small),
        _ => bad(
            MEMBERSHIP,
            format!("{value} {name}, at most {max} are allowed"),
        ),
    }
}

/// Decodes a membership; the whole slice must be one.
///
/// # Errors
/// Any deviation from the specification.
pub(super) fn decode_membership(bytes: &[u8]) -> Result<RaftMembership, FormatError> {
    let mut rest = bytes;
    need(rest, 8)?;
    let (version, flags) = (rest.get_u8(), rest.get_u8());
    let (configs, nodes, reserved) = (rest.get_u16_le(), rest.get_u16_le(), rest.get_u16_le());
    if version != MEMBERSHIP_VERSION {
        return bad(MEMBERSHIP, format!("version {version} is not known"));
    }
    if flags != 0 || reserved != 0 {
        return bad(MEMBERSHIP, "flags or reserved bytes are set");
    }
    let (configs, nodes) = (usize::from(configs), usize::from(nodes));
    if configs > CONFIGS_MAX || nodes > NODES_MAX {
        return bad(
            MEMBERSHIP,
            format!("{configs} voter sets and {nodes} replicas are too many"),
        );
    }
    let sets = (0..configs)
        .map(|_| decode_voters(&mut rest))
        .collect::<Result<Vec<_>, _>>()?;
    let replicas = decode_replicas(&mut rest, nodes)?;
    if !rest.is_empty() {
        return bad(MEMBERSHIP, format!("{} bytes are left over", rest.len()));
    }
    RaftMembership::new(sets, replicas).or_else(|error| bad(MEMBERSHIP, error.to_string()))
}

fn need(rest: &[u8], bytes: usize) -> Result<(), FormatError> {
    if rest.len() < bytes {
        return bad(
            MEMBERSHIP,
            format!("{bytes} bytes are needed, {} are left", rest.len()),
        );
    }
    Ok(())
}

fn decode_voters(rest: &mut &[u8]) -> Result<BTreeSet<u64>, FormatError> {
    need(rest, 2)?;
    let voters = usize::from(rest.get_u16_le());
    if voters == 0 || voters > NODES_MAX {
        return bad(MEMBERSHIP, format!("a voter set of {voters}"));
    }
    need(rest, voters * 8)?;
    let mut set = BTreeSet::new();
    for _ in 0..voters {
        let id = rest.get_u64_le();
        if set.last().is_some_and(|last| *last >= id) {
            return bad(MEMBERSHIP, "voter ids do not rise");
        }
        set.insert(id);
    }
    Ok(set)
}

fn decode_replicas(rest: &mut &[u8], nodes: usize) -> Result<BTreeMap<u64, Member>, FormatError> {
    let mut replicas = BTreeMap::new();
    for _ in 0..nodes {
        need(rest, 14)?;
        let (id, broker) = (rest.get_u64_le(), rest.get_i32_le());
        let length = usize::from(rest.get_u16_le());
        if length > ADDRESS_BYTES_MAX {
            return bad(MEMBERSHIP, format!("an address of {length} bytes"));
        }
        need(rest, length)?;
        let (address, tail) = rest.split_at(length);
        *rest = tail;
        let Ok(address) = std::str::from_utf8(address) else {
            return bad(MEMBERSHIP, "an address is not UTF-8");
        };
        if replicas
            .last_key_value()
            .is_some_and(|(last, _)| *last >= id)
        {
            return bad(MEMBERSHIP, "replica ids do not rise");
        }
        replicas.insert(
            id,
            Member {
                broker: NodeId::new(broker),
                address: address.to_owned(),
            },
        );
    }
    Ok(replicas)
}

/// A state machine's image with its position and the membership in force there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Image {
    pub(super) last: LogId,
    pub(super) membership: StoredMembership,
    pub(super) state: Bytes,
}

/// Encodes an image; copies the state once.
///
/// # Errors
/// A bound of the format is exceeded, or the membership is newer than the image.
pub(super) fn encode_image(image: &Image) -> Result<Bytes, FormatError> {
    let membership = encode_membership(image.membership.membership())?;
    if image.state.len() > IMAGE_BYTES_MAX {
        return bad(
            IMAGE,
            format!("{} bytes of state are too many", image.state.len()),
        );
    }
    let at = image.membership.log_id().map(from_raft);
    check_position(image.last, at)?;
    let mut out =
        BytesMut::with_capacity(IMAGE_HEADER_BYTES + membership.len() + image.state.len());
    out.put_slice(IMAGE_MAGIC);
    out.put_u16_le(IMAGE_VERSION);
    out.put_u16_le(0);
    out.put_u64_le(image.last.term.get());
    out.put_u64_le(image.last.index.get());
    out.put_u32_le(u32::from(at.is_some()));
    out.put_u32_le(u32::try_from(membership.len()).or_else(|_| bad(IMAGE, "membership too long"))?);
    let at = at.unwrap_or_default();
    out.put_u64_le(at.term.get());
    out.put_u64_le(at.index.get());
    out.put_u64_le(u64::try_from(image.state.len()).or_else(|_| bad(IMAGE, "state too long"))?);
    let header_crc = crc32c::crc32c_append(crc32c::crc32c(&out), &membership);
    out.put_u32_le(header_crc);
    out.put_u32_le(crc32c::crc32c(&image.state));
    out.put_slice(&membership);
    out.put_slice(&image.state);
    Ok(out.freeze())
}

fn check_position(last: LogId, membership: Option<LogId>) -> Result<(), FormatError> {
    match membership {
        Some(at) if at.index > last.index => {
            bad(IMAGE, format!("membership of {at} in an image of {last}"))
        }
        _ => Ok(()),
    }
}

/// Decodes an image; the whole of `bytes` must be one. The state shares the buffer.
///
/// # Errors
/// Any deviation from the specification.
pub(super) fn decode_image(bytes: &Bytes) -> Result<Image, FormatError> {
    if bytes.len() < IMAGE_HEADER_BYTES {
        return bad(
            IMAGE,
            format!("{} bytes are fewer than a header", bytes.len()),
        );
    }
    let (magic, mut rest) = bytes.split_at(4);
    if magic != IMAGE_MAGIC {
        return bad(IMAGE, "the magic is not TLCK");
    }
    let (version, flags) = (rest.get_u16_le(), rest.get_u16_le());
    if version != IMAGE_VERSION || flags != 0 {
        return bad(
            IMAGE,
            format!("version {version} with flags {flags} is not known"),
        );
    }
    let last = get_log_id(&mut rest);
    let (known, membership_bytes) = (rest.get_u32_le(), rest.get_u32_le());
    let at = get_log_id(&mut rest);
    let state_bytes = rest.get_u64_le();
    let (header_crc, state_crc) = (rest.get_u32_le(), rest.get_u32_le());
    let lengths = (
        usize::try_from(membership_bytes),
        usize::try_from(state_bytes),
    );
    let (Ok(membership_bytes), Ok(state_bytes)) = lengths else {
        return bad(IMAGE, "lengths are out of range");
    };
    if membership_bytes > MEMBERSHIP_BYTES_MAX || state_bytes > IMAGE_BYTES_MAX {
        return bad(IMAGE, "lengths are out of range");
    }
    if rest.len() != membership_bytes + state_bytes {
        return bad(
            IMAGE,
            format!(
                "{membership_bytes} + {state_bytes} bytes are promised, {} are there",
                rest.len()
            ),
        );
    }
    let (membership, state) = rest.split_at(membership_bytes);
    let summed = bytes.get(..IMAGE_HEADER_SUMMED).unwrap_or_default();
    if crc32c::crc32c_append(crc32c::crc32c(summed), membership) != header_crc
        || crc32c::crc32c(state) != state_crc
    {
        return bad(IMAGE, "a checksum does not fit");
    }
    let at = match known {
        0 if at == LogId::default() => None,
        1 => Some(at),
        _ => return bad(IMAGE, "the membership's position is not well formed"),
    };
    check_position(last, at)?;
    let membership = StoredMembership::new(at.map(to_raft), decode_membership(membership)?);
    Ok(Image {
        last,
        membership,
        state: bytes.slice(IMAGE_HEADER_BYTES + membership_bytes..),
    })
}

fn get_log_id(rest: &mut &[u8]) -> LogId {
    let (term, index) = (rest.get_u64_le(), rest.get_u64_le());
    LogId {
        term: Term::new(term),
        index: LogIndex::new(index),
    }
}

#[cfg(test)]
#[path = "format_tests.rs"]
mod tests;
