//! What the leaders of groups have of their partitions: any broker can be asked for the status of the tier.
//!
//! Owns: [`TierService`], the answers of one broker for the groups that it leads, asking the others.
//! Not here: the route (`tier.rs`).
//! Spec: docs/protocols/tier-status.md

use std::time::Duration;

use super::AdminState;
use crate::datagroup::DataGroup;
use crate::format::{FormatError, Reader, Writer};
use crate::peer::{CallService, Caller};
use crate::router::Router;
use bytes::Bytes;
use futures::FutureExt;
use futures::StreamExt;
use futures::future::BoxFuture;
use std::collections::BTreeMap;
use tidelog_model::{NodeId, Offset, PartitionId, PartitionIndex, PlacementGroupId, TopicId};
use uuid::Uuid;

const VERSION: u8 = 1;
const HERE: u8 = 0;
const NOT_HERE: u8 = 1;

/// Bytes of one part.
const PART_BYTES: usize = 16 + 4 + 6 * 8;
/// Parts of an answer, so that it fits a call; a group with more partitions is told by the broker that is asked.
const PARTS_MAX: usize = 50_000;
const _: () = assert!(PARTS_MAX * PART_BYTES < crate::peer::CALL_BYTES_MAX - 64);
/// How long a leader may take; without it the broker that was asked tells what it has itself.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// Groups that are asked for at the same time.
const ASKED_AT_ONCE: usize = 16;

/// A partition as the broker `of` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) partition: PartitionId,
    pub(super) log_start: Offset,
    pub(super) tiered_until: Offset,
    pub(super) high_watermark: Offset,
    pub(super) local_start: Offset,
    pub(super) local_bytes: u64,
    pub(super) remote_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    group: PlacementGroupId,
    topic: Option<TopicId>,
}

impl Request {
    fn encode(self) -> Bytes {
        let mut to = Writer::new();
        to.u8(VERSION);
        to.u32(self.group.get());
        to.uuid(self.topic.map_or(Uuid::nil(), TopicId::get));
        to.finish()
    }

    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut from = Reader::new(bytes);
        version(&mut from)?;
        let group = PlacementGroupId::new(from.u32("the group")?);
        let topic = from.uuid("the topic")?;
        from.finish()?;
        let topic = (!topic.is_nil()).then(|| TopicId::new(topic));
        Ok(Self { group, topic })
    }
}

fn version(from: &mut Reader<'_>) -> Result<(), FormatError> {
    match from.u8("the version")? {
        VERSION => Ok(()),
        other => Err(FormatError::Version(u16::from(other))),
    }
}

/// `None`: not led here, or too many.
fn encode(parts: Option<&[Part]>) -> Bytes {
    let mut to = Writer::new();
    to.u8(VERSION);
    let Some(parts) = parts.filter(|parts| parts.len() <= PARTS_MAX) else {
        to.u8(NOT_HERE);
        return to.finish();
    };
    to.u8(HERE);
    to.count(parts.len());
    for part in parts {
        to.uuid(part.partition.topic.get());
        to.i32(part.partition.index.get());
        to.i64(part.log_start.get());
        to.i64(part.tiered_until.get());
        to.i64(part.high_watermark.get());
        to.i64(part.local_start.get());
        to.u64(part.local_bytes);
        to.u64(part.remote_bytes);
    }
    to.finish()
}

fn decode(bytes: &[u8]) -> Result<Option<Vec<Part>>, FormatError> {
    let mut from = Reader::new(bytes);
    version(&mut from)?;
    let parts = match from.u8("the kind")? {
        NOT_HERE => None,
        HERE => {
            let count = from.count(PART_BYTES, "the parts")?;
            if count > PARTS_MAX {
                return Err(FormatError::Invalid("the parts"));
            }
            let parts = (0..count).map(|_| part(&mut from));
            Some(parts.collect::<Result<Vec<_>, _>>()?)
        }
        _ => return Err(FormatError::Invalid("the kind")),
    };
    from.finish()?;
    Ok(parts)
}

fn part(from: &mut Reader<'_>) -> Result<Part, FormatError> {
    Ok(Part {
        partition: PartitionId {
            topic: TopicId::new(from.uuid("the topic")?),
            index: PartitionIndex::new(from.natural_i32("the partition")?),
        },
        log_start: Offset::new(from.natural("log start")?),
        tiered_until: Offset::new(from.natural("tiered until")?),
        high_watermark: Offset::new(from.natural("the high watermark")?),
        local_start: Offset::new(from.natural("local start")?),
        local_bytes: from.u64("local bytes")?,
        remote_bytes: from.u64("remote bytes")?,
    })
}

/// The partitions of a group as this broker's replica has them.
fn parts_of(group: &DataGroup, topic: Option<TopicId>) -> Vec<Part> {
    group.group().read(|machine| {
        let partitions = machine.partitions().iter();
        let wanted = partitions.filter(|p| topic.is_none_or(|topic| p.id.topic == topic));
        let part = wanted.map(|p| Part {
            partition: p.id,
            log_start: p.log_start,
            tiered_until: p.tiered_until,
            high_watermark: p.next_offset,
            local_start: p.local_start(),
            local_bytes: p.hot.bytes(),
            remote_bytes: p.remote_bytes(),
        });
        part.collect()
    })
}

/// Answers other brokers for the groups that this one leads.
#[derive(Clone)]
pub struct TierService(pub Router);

impl CallService for TierService {
    fn call(&self, _: Caller, request: Bytes) -> BoxFuture<'static, Bytes> {
        let parts = Request::decode(&request).ok().and_then(|request| {
            let group = self.0.data_group(request.group)?;
            let leads = group.group().is_leader();
            leads.then(|| parts_of(&group, request.topic))
        });
        std::future::ready(encode(parts.as_deref())).boxed()
    }
}

/// What was heard of one group.
pub(super) struct Heard {
    pub(super) group: PlacementGroupId,
    /// The broker whose replica it is: the leader, or this one where no leader answers. `None`: nobody's, then there are no parts.
    pub(super) from: Option<NodeId>,
    pub(super) parts: Vec<Part>,
}

/// All groups that have partitions of `topic`, or of all topics.
pub(super) async fn leader_parts(state: &AdminState, topic: Option<TopicId>) -> Vec<Heard> {
    let groups: Vec<PlacementGroupId> = state.router.image(|image| {
        let loads: BTreeMap<PlacementGroupId, usize> = image.group_loads();
        let of_topic = topic.map(|topic| image.topic(topic).map(|topic| &topic.partitions));
        let holds = |group: &PlacementGroupId| match of_topic {
            None => true,
            Some(placed) => placed.is_some_and(|placed| placed.contains(group)),
        };
        let loaded = loads.into_iter().filter(|(_, load)| *load > 0);
        loaded.map(|(group, _)| group).filter(holds).collect()
    });
    let asked = groups.into_iter().map(|group| async move {
        let own = state.router.node();
        let leader = state.router.leader(group).map(|(leader, _)| leader);
        if let Some(leader) = leader.filter(|leader| *leader != own)
            && let Some(parts) = ask(state, leader, Request { group, topic }).await
        {
            let from = Some(leader);
            return Heard { group, from, parts };
        }
        let held = state.router.data_group(group);
        Heard {
            group,
            from: held.as_ref().map(|_| own),
            parts: held.map_or_else(Vec::new, |held| parts_of(&held, topic)),
        }
    });
    let asked = futures::stream::iter(asked).buffered(ASKED_AT_ONCE);
    asked.collect().await
}

async fn ask(state: &AdminState, leader: NodeId, request: Request) -> Option<Vec<Part>> {
    let link = state.flush_link.as_ref()?;
    let target = link.brokers.target(leader)?;
    let called = link
        .transport
        .call(&target, link.tier, request.encode(), ANSWER_WITHIN);
    match called.await.map(|answer| decode(&answer)) {
        Ok(Ok(parts)) => parts,
        Ok(Err(error)) => {
            tracing::warn!(
                "the answer of broker {leader} about its partitions cannot be read: {error}"
            );
            None
        }
        Err(error) => {
            tracing::debug!("broker {leader} does not say what it has of its partitions: {error}");
            None
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;

    /// Proves that requests and answers are the bytes of the page, come back as they went, and that cut or longer ones are refused.
    #[test]
    fn bytes_of_version_1() {
        let topic = TopicId::new(Uuid::from_u128(7));
        let group = PlacementGroupId::new(258);
        for topic in [None, Some(topic)] {
            let request = Request { group, topic };
            let bytes = request.encode();
            assert_eq!(bytes[..5], [1, 2, 1, 0, 0]);
            assert_eq!(bytes.len(), 21);
            assert_eq!(Request::decode(&bytes).unwrap(), request);
            assert!(Request::decode(&bytes[..20]).is_err());
        }
        let part = Part {
            partition: PartitionId {
                topic,
                index: PartitionIndex::new(3),
            },
            log_start: Offset::new(1),
            tiered_until: Offset::new(2),
            high_watermark: Offset::new(4),
            local_start: Offset::new(2),
            local_bytes: 5,
            remote_bytes: 6,
        };
        let bytes = encode(Some(&[part]));
        assert_eq!(bytes[..6], [1, 0, 1, 0, 0, 0]);
        assert_eq!(bytes.len(), 6 + PART_BYTES);
        assert_eq!(bytes[6 + 16..6 + 20], [3, 0, 0, 0]);
        assert_eq!(decode(&bytes).unwrap().unwrap(), [part]);
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length]).is_err());
        }
        assert!(decode(&[&bytes[..], &[0]].concat()).is_err());
        assert_eq!(encode(None)[..], [1, 1]);
        assert_eq!(decode(&[1, 1]).unwrap(), None);
        assert!(decode(&[1, 2]).is_err() && decode(&[2, 1]).is_err());
        let many = encode(Some(&vec![part; PARTS_MAX + 1]));
        assert_eq!(decode(&many).unwrap(), None, "told by who is asked");
    }
}
