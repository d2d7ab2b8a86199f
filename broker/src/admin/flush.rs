//! Flushes of placement groups, wherever they are led: any broker can be asked.
//!
//! Owns: [`FlushService`], what one broker asks of another, retries while leadership moves, one deadline over all.
//! Not here: what a flush does (`offload`), the routes (`tier.rs`, `archive.rs`).
//! Spec: docs/protocols/flush-forwarding.md

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::AdminState;
use super::error::Failure;
use crate::format::{FormatError, Reader, Writer};
use crate::metadata::{MetadataImage, listed};
use crate::offload::{FlushOutcome, Offload};
use crate::peer::{CallService, Caller, PeerTransport};
use crate::placement::GroupMap;
use crate::router::{BrokerBook, Router};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use tidelog_model::{LogIndex, NodeId, PlacementGroupId, TopicId};
use tokio::time::{Instant, timeout, timeout_at};

const VERSION: u8 = 1;

const DONE: u8 = 0;
const NOT_LEADER: u8 = 1;
const LATE: u8 = 2;

/// Pause before a leader is looked for again.
const AGAIN_PAUSE: Duration = Duration::from_millis(200);
/// A leader gives its groups to a broker with the right store within a second or two, where there is one that keeps up.
const WRONG_FOR: Duration = Duration::from_secs(5);
/// A leader answers so long before its caller gives up: then the caller learns why it is late.
const ANSWER_EARLIER: Duration = Duration::from_millis(200);

/// The other brokers, to send flushes and questions to.
#[derive(Clone)]
pub struct FlushLink {
    /// The connections.
    pub transport: PeerTransport,
    /// The number of the service there.
    pub service: u8,
    /// The number of [`super::TierService`].
    pub tier: u8,
    /// Whom to call.
    pub brokers: Arc<dyn BrokerBook>,
}

/// What a leader is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    group: PlacementGroupId,
    trim_local: bool,
}

/// What it says.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    /// All that was committed is in the store; a replica that has applied this entry knows of it.
    Done(LogIndex),
    /// Another broker leads.
    NotLeader,
    /// It goes on; the error of the newest step, if it failed.
    Late(String),
}

impl Request {
    fn encode(self) -> Bytes {
        let mut to = Writer::new();
        to.u8(VERSION);
        to.u32(self.group.get());
        to.u8(u8::from(self.trim_local));
        to.finish()
    }

    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut from = Reader::new(bytes);
        version(&mut from)?;
        let request = Self {
            group: PlacementGroupId::new(from.u32("the group")?),
            trim_local: from.flag("whether to trim")?,
        };
        from.finish()?;
        Ok(request)
    }
}

fn version(from: &mut Reader<'_>) -> Result<(), FormatError> {
    match from.u8("the version")? {
        VERSION => Ok(()),
        other => Err(FormatError::Version(u16::from(other))),
    }
}

impl Answer {
    fn encode(&self) -> Bytes {
        let mut to = Writer::new();
        to.u8(VERSION);
        match self {
            Self::Done(index) => {
                to.u8(DONE);
                to.u64(index.get());
            }
            Self::NotLeader => to.u8(NOT_LEADER),
            Self::Late(why) => {
                to.u8(LATE);
                to.text(why);
            }
        }
        to.finish()
    }

    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut from = Reader::new(bytes);
        version(&mut from)?;
        let answer = match from.u8("the kind")? {
            DONE => Self::Done(LogIndex::new(from.u64("the index")?)),
            NOT_LEADER => Self::NotLeader,
            LATE => Self::Late(from.text("why")?),
            _ => return Err(FormatError::Invalid("the kind")),
        };
        from.finish()?;
        Ok(answer)
    }
}

/// Flushes groups that this broker leads, for itself and for others.
#[derive(Clone)]
pub struct FlushService {
    /// Where the groups are.
    pub router: Router,
    /// Their drivers.
    pub offloads: GroupMap<Offload>,
}

impl FlushService {
    async fn flush(&self, request: Request, within: Duration) -> Answer {
        let Request { group, trim_local } = request;
        let held = self.router.data_group(group).zip(self.offloads.get(group));
        let Some((held, offload)) = held.filter(|(held, _)| held.group().is_leader()) else {
            return Answer::NotLeader;
        };
        let flushed = tokio::select! {
            flushed = timeout(within, offload.flush(trim_local)) => flushed,
            why = stays_wrong(|| offload.wrong_store()) => return Answer::Late(why),
        };
        match flushed {
            Ok(FlushOutcome::Done) => {
                let applied = held.group().applied().borrow().unwrap_or_default();
                Answer::Done(applied.index)
            }
            Ok(FlushOutcome::NotLeader) => Answer::NotLeader,
            Err(_) => Answer::Late(offload.progress().last_error().unwrap_or_default()),
        }
    }
}

/// Returns when `wrong` has said for so long why this broker's store is not the cluster's that leadership would be with a broker whose store is right, if there were
/// one: nothing will move, however long the flush waits.
async fn stays_wrong(wrong: impl Fn() -> Option<String>) -> String {
    let mut since = None;
    loop {
        match wrong() {
            None => since = None,
            Some(why) => {
                let since = since.get_or_insert_with(Instant::now);
                if since.elapsed() >= WRONG_FOR {
                    return why;
                }
            }
        }
        tokio::time::sleep(AGAIN_PAUSE).await;
    }
}

impl CallService for FlushService {
    fn call(&self, caller: Caller, request: Bytes) -> BoxFuture<'static, Bytes> {
        let service = self.clone();
        async move {
            let answer = match Request::decode(&request) {
                Ok(request) => {
                    let within = caller.deadline.saturating_sub(ANSWER_EARLIER);
                    service.flush(request, within).await
                }
                Err(error) => Answer::Late(format!("the request cannot be read: {error}")),
            };
            answer.encode()
        }
        .boxed()
    }
}

/// What a flush has left out: partitions of lost groups, which nobody leads and nobody can flush, by name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LeftOut {
    partitions: Vec<String>,
    /// Of the topic that was asked for, not of some among all.
    of_topic: bool,
}

impl LeftOut {
    fn new(
        image: &MetadataImage,
        lost: &BTreeSet<PlacementGroupId>,
        topic: Option<TopicId>,
    ) -> Self {
        let there = lost.iter().flat_map(|group| image.partitions_of(*group));
        let asked = there.filter(|(id, _)| topic.is_none_or(|topic| id.topic == topic));
        let mut asked: Vec<_> = asked
            .map(|(id, topic)| (topic.name.as_str(), id.index.get()))
            .collect();
        asked.sort_unstable();
        let name = |(topic, index): (&str, i32)| format!("{topic}-{index}");
        Self {
            partitions: asked.into_iter().map(name).collect(),
            of_topic: topic.is_some(),
        }
    }

    /// The partitions, where all topics were asked for: a loss that is known fails no flush of the others for ever. A failure where it is the topic that was
    /// asked for, when everything else is done.
    pub(super) fn told(self) -> Result<Vec<String>, Failure> {
        if self.of_topic && !self.partitions.is_empty() {
            return Err(Failure::partitions_lost(&listed(&self.partitions)));
        }
        Ok(self.partitions)
    }
}

/// Flushes the groups that hold `topic` (all groups without one), with a deadline over all of them. Replicas of this broker know of it
/// when it returns. Lost groups are left out.
pub(super) async fn flush_groups(
    state: &AdminState,
    topic: Option<TopicId>,
    trim_local: bool,
    within: Duration,
) -> Result<LeftOut, Failure> {
    let begun = Instant::now();
    let deadline = begun + within;
    let groups: BTreeSet<PlacementGroupId> = state.router.image(|image| {
        let of_topic = topic.map(|topic| image.topic(topic));
        match of_topic {
            Some(topic) => topic
                .into_iter()
                .flat_map(|topic| &topic.partitions)
                .copied()
                .collect(),
            None => image.groups().keys().copied().collect(),
        }
    });
    let flushes = groups.into_iter().map(|group| {
        let request = Request { group, trim_local };
        flush_group(state, request, deadline)
    });
    let flushed = futures::future::join_all(flushes).await;
    let (mut lost, mut late) = (BTreeSet::new(), Vec::new());
    for flushed in flushed {
        match flushed {
            Ok(Flushed::Done) => {}
            Ok(Flushed::Lost(group)) => {
                lost.insert(group);
            }
            Err(why) => late.push(why),
        }
    }
    if late.is_empty() {
        return Ok(state
            .router
            .image(|image| LeftOut::new(image, &lost, topic)));
    }
    Err(Failure::timeout(format!(
        "not everything is in the store after {} s: {}",
        begun.elapsed().as_secs(),
        late.join("; ")
    )))
}

/// What became of one group.
enum Flushed {
    /// Its entries are in the store.
    Done,
    /// Nobody can elect a leader of it.
    Lost(PlacementGroupId),
}

/// Flushes one group at its leader, whoever that is by then. `Err`: why it was not done by the deadline.
async fn flush_group(
    state: &AdminState,
    request: Request,
    deadline: Instant,
) -> Result<Flushed, String> {
    let group = request.group;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let answer = match state.router.leader(group) {
            Some((leader, _)) if leader == state.router.node() => {
                state.flushes.flush(request, left).await
            }
            Some((leader, _)) => ask(state, leader, request, left).await,
            None => Answer::NotLeader,
        };
        match answer {
            Answer::Done(index) => {
                wait_known(state, group, index, deadline).await?;
                return Ok(Flushed::Done);
            }
            Answer::Late(why) if why.is_empty() => {
                return Err(format!("group {group} goes on in the background"));
            }
            Answer::Late(why) => return Err(format!("group {group}: {why}")),
            // It may come to be known while it is waited for.
            Answer::NotLeader if state.router.image(|image| image.is_lost(group)) => {
                return Ok(Flushed::Lost(group));
            }
            Answer::NotLeader if Instant::now() + AGAIN_PAUSE >= deadline => {
                return Err(format!("group {group} has no leader"));
            }
            Answer::NotLeader => tokio::time::sleep(AGAIN_PAUSE).await,
        }
    }
}

/// A flush may be repeated: what has no answer is asked again, as if nobody led.
async fn ask(state: &AdminState, leader: NodeId, request: Request, within: Duration) -> Answer {
    let link = state.flush_link.as_ref();
    let target = link.and_then(|link| Some((link, link.brokers.target(leader)?)));
    let Some((link, target)) = target else {
        return Answer::NotLeader;
    };
    let called = link
        .transport
        .call(&target, link.service, request.encode(), within);
    match called.await.map(|answer| Answer::decode(&answer)) {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => {
            tracing::warn!("the answer of broker {leader} to a flush cannot be read: {error}");
            Answer::NotLeader
        }
        Err(error) => {
            tracing::debug!("broker {leader} did not answer a flush: {error}");
            Answer::NotLeader
        }
    }
}

/// So that a status asked for next shows what was flushed.
async fn wait_known(
    state: &AdminState,
    group: PlacementGroupId,
    index: LogIndex,
    deadline: Instant,
) -> Result<(), String> {
    let Some(held) = state.router.data_group(group) else {
        return Ok(());
    };
    let mut applied = held.group().applied();
    let known = applied.wait_for(|at| at.is_some_and(|at| at.index >= index));
    match timeout_at(deadline, known).await {
        Ok(_) => Ok(()),
        Err(_) => Err(format!("group {group}: this broker's replica is behind")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::metadata::MetadataCommand;
    use std::collections::BTreeMap;
    use tidelog_model::{ClusterId, TimestampMs};
    use uuid::Uuid;

    /// Proves that lost partitions are told where all topics were asked for, and fail the flush of their own topic, and of no other one.
    #[test]
    fn what_is_lost_fails_its_own_topic_alone() {
        let mut image = MetadataImage::default();
        let stamp = TimestampMs::new(1);
        let group = PlacementGroupId::new;
        let one = vec![NodeId::new(1)];
        let bootstrap = MetadataCommand::BootstrapCluster {
            cluster: ClusterId::new(Uuid::from_u128(7)),
            name: "t".to_owned(),
            groups: (1..=2).map(|id| (group(id), one.clone())).collect(),
        };
        image.apply(bootstrap, stamp);
        let id = |id| TopicId::new(Uuid::from_u128(id));
        for (at, name, partitions) in [
            (1, "b", vec![1, 2, 1]),
            (2, "a", vec![1, 2]),
            (3, "c", vec![2]),
        ] {
            let create = MetadataCommand::CreateTopic {
                id: id(at),
                name: name.to_owned(),
                partitions: partitions.into_iter().map(group).collect(),
                configs: BTreeMap::new(),
                before: crate::metadata::NameBefore::Unknown,
            };
            image.apply(create, stamp);
        }
        let lost = BTreeSet::from([group(1)]);
        let left = |topic| LeftOut::new(&image, &lost, topic).told();
        assert_eq!(left(None).unwrap(), ["a-0", "b-0", "b-2"]);
        let refused = serde_json::to_string(&left(Some(id(1))).unwrap_err()).unwrap();
        assert!(
            refused.contains("partitions_lost") && refused.contains("b-0, b-2"),
            "{refused}"
        );
        assert!(left(Some(id(3))).unwrap().is_empty());
    }

    /// Proves that a store which stays wrong is said after some seconds, and that one which is right again meanwhile is not.
    #[tokio::test(start_paused = true)]
    async fn a_wrong_store_is_not_waited_for() {
        let begun = Instant::now();
        let at = |from: u64, until: u64| {
            let now = begun.elapsed().as_secs();
            (now < from || now >= until).then(|| "another store".to_owned())
        };
        let why = stays_wrong(|| at(3, 6)).await;
        assert_eq!(why, "another store");
        assert_eq!(begun.elapsed().as_secs(), 11);
        let right = timeout(WRONG_FOR * 10, stays_wrong(|| None)).await;
        assert!(right.is_err());
    }

    /// Proves that requests and answers are the bytes of the page, come back as they went, and that cut or longer ones are refused.
    #[test]
    fn bytes_of_version_1() {
        let request = Request {
            group: PlacementGroupId::new(258),
            trim_local: true,
        };
        assert_eq!(request.encode()[..], [1, 2, 1, 0, 0, 1]);
        assert_eq!(Request::decode(&request.encode()).unwrap(), request);
        assert!(Request::decode(&[1, 2, 1, 0, 0, 2]).is_err());
        assert!(Request::decode(&[2, 2, 1, 0, 0, 1]).is_err());
        let late = Answer::Late("a".to_owned());
        assert_eq!(late.encode()[..], [1, 2, 1, 0, 0, 0, b'a']);
        for answer in [Answer::Done(LogIndex::new(7)), Answer::NotLeader, late] {
            let bytes = answer.encode();
            assert_eq!(Answer::decode(&bytes).unwrap(), answer);
            assert!(Answer::decode(&[&bytes[..], &[0]].concat()).is_err());
            for length in 0..bytes.len() {
                assert!(Answer::decode(&bytes[..length]).is_err());
            }
        }
    }
}
