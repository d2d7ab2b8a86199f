//! The producer's state without any I/O: what is collected, what is due, what a result means.
//!
//! Owns: batches per partition, sequences, which batch may be sent now, what is sent again and under which identity.
//! Not here: sockets, the metadata, timers (`sender`); bytes (`parcel`).
//!
//! Invariants, per partition:
//! - sequences are given in the order records were accepted, without a gap, under one identity at a time;
//! - a batch that is sent again under its place is byte for byte the same;
//! - while batches wait to be sent again, only the first of them is on its way, so order cannot change;
//! - a batch gets another place only after the broker said it was not appended, and no attempt was left open;
//! - at most `PRODUCE_IN_FLIGHT_MAX` batches, counted from the oldest on its way, are on their way, all to one broker, so that whoever leads
//!   recognises each when it is sent again.

use super::delivery::{BatchAck, BatchDone, Delivery};
use super::parcel::{Identity, Opening, Parcel, Place};
use crate::error::{Error, ErrorCode, Outcome};
use crate::limits::PRODUCE_IN_FLIGHT_MAX;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tidelog_model::batch::{BatchBuilder, BatchError, HeaderRef};
use tidelog_model::codec::Codec;
use tidelog_model::{NodeId, Sequence, TimestampMs};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

/// What the core is told once.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) batch_bytes: usize,
    pub(super) linger: Duration,
    pub(super) codec: Codec,
    pub(super) idempotent: bool,
    pub(super) delivery_timeout: Duration,
    pub(super) request_bytes: usize,
}

/// A record's parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts<'a> {
    pub(super) timestamp: TimestampMs,
    pub(super) key: Option<&'a [u8]>,
    pub(super) value: Option<&'a [u8]>,
    pub(super) headers: &'a [HeaderRef<'a>],
}

/// What [`Core::append`] did.
pub(super) enum Appended {
    /// It is in a batch. `wake`: the sender has something new to look at.
    Done { delivery: Delivery, wake: bool },
    /// A new batch is needed: come again with room for it.
    NeedsRoom,
    /// The topic is not known here: [`Core::add_topic`] first.
    UnknownTopic,
    /// Refused; nothing changed.
    Refused(Error),
}

/// What is to be sent now, and when to look again.
#[derive(Default)]
pub(super) struct Drained {
    /// At most one request per broker.
    pub(super) requests: BTreeMap<NodeId, Vec<Parcel>>,
    /// When something becomes due by time alone.
    pub(super) wake: Option<Instant>,
    /// Topics with batches whose leader is not known.
    pub(super) leaderless: Vec<Arc<str>>,
}

#[derive(Default)]
struct Queue {
    open: Option<Parcel>,
    closed: VecDeque<Parcel>,
    retry: VecDeque<Parcel>,
    /// Orders of the batches on their way, and to whom they are.
    on_way: Vec<u64>,
    on_way_to: Option<NodeId>,
    order_next: u64,
    identity: Option<Identity>,
    sequence_next: Sequence,
    /// The identity is given up once nothing is on its way.
    reset: bool,
    not_before: Option<Instant>,
    /// Size of the newest closed batch: what the next one will need.
    filled: usize,
}

struct Topic {
    name: Arc<str>,
    queues: Vec<Queue>,
    sticky: usize,
}

/// See the head of the file.
pub(super) struct Core {
    settings: Settings,
    topics: Vec<Topic>,
    by_name: HashMap<Arc<str>, usize>,
    identity: Option<Identity>,
    outstanding: BTreeMap<u64, Arc<BatchDone>>,
    number_next: u64,
    rotation: usize,
    pub(super) flushing: usize,
    stopped: bool,
}

impl Core {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            topics: Vec::new(),
            by_name: HashMap::new(),
            identity: None,
            outstanding: BTreeMap::new(),
            number_next: 0,
            rotation: 0,
            flushing: 0,
            stopped: false,
        }
    }

    /// Makes a topic known, or more of its partitions (they never become fewer). `start` is where keyless records begin.
    pub(super) fn add_topic(&mut self, name: &str, partitions: usize, start: usize) {
        let at = match self.by_name.get(name) {
            Some(at) => *at,
            None => {
                let name: Arc<str> = Arc::from(name);
                self.topics.push(Topic {
                    name: Arc::clone(&name),
                    queues: Vec::new(),
                    sticky: start % partitions.max(1),
                });
                self.by_name.insert(name, self.topics.len() - 1);
                self.topics.len() - 1
            }
        };
        let queues = &mut self.topics[at].queues;
        while queues.len() < partitions {
            queues.push(Queue::default());
        }
    }

    /// How many partitions a known topic has.
    pub(super) fn partitions(&self, topic: &str) -> Option<usize> {
        self.by_name
            .get(topic)
            .map(|at| self.topics[*at].queues.len())
    }

    /// Adds a record to its partition's open batch (without a partition: to the topic's current one, which changes with
    /// every new batch). A new batch takes `room`, left in place when it is not needed.
    pub(super) fn append(
        &mut self,
        topic: &str,
        partition: Option<usize>,
        parts: Parts<'_>,
        room: &mut Option<OwnedSemaphorePermit>,
        now: Instant,
    ) -> Appended {
        if self.stopped {
            return Appended::Refused(Error::Stopped);
        }
        let Some(topic) = self
            .by_name
            .get(topic)
            .and_then(|at| self.topics.get_mut(*at))
        else {
            return Appended::UnknownTopic;
        };
        let bytes = BatchBuilder::record_bytes_max(parts.key, parts.value, parts.headers);
        let limit = self.settings.batch_bytes;
        let at = match partition {
            Some(at) => at,
            None if topic.queues[topic.sticky].fits(bytes, limit) => topic.sticky,
            None if room.is_none() => return Appended::NeedsRoom,
            None => {
                topic.sticky = (topic.sticky + 1) % topic.queues.len();
                topic.sticky
            }
        };
        let Some(queue) = topic.queues.get_mut(at) else {
            return Appended::Refused(Error::Invalid(format!(
                "topic '{}' has no partition {at}",
                topic.name
            )));
        };
        let wake = !queue.fits(bytes, limit);
        if wake {
            let Some(room) = room.take() else {
                return Appended::NeedsRoom;
            };
            let done = queue.start(Opening {
                number: self.number_next,
                topic: Arc::clone(&topic.name),
                partition: i32::try_from(at).unwrap_or(i32::MAX),
                now,
                deadline: now + self.settings.delivery_timeout,
                builder: BatchBuilder::with_capacity(self.settings.codec, queue.filled),
                room,
            });
            self.outstanding.insert(self.number_next, done);
            self.number_next += 1;
        }
        match queue.add(parts) {
            Ok(delivery) => Appended::Done { delivery, wake },
            Err(error) => {
                if let Some(number) = queue.drop_empty() {
                    self.outstanding.remove(&number);
                }
                Appended::Refused(Error::Invalid(error.to_string()))
            }
        }
    }

    /// Takes what can be sent now: one batch per partition, one request per broker, at most `room(broker)` requests.
    pub(super) fn drain(
        &mut self,
        now: Instant,
        leader: impl Fn(&str, i32) -> Option<NodeId>,
        room: impl Fn(NodeId) -> usize,
    ) -> Drained {
        let mut drained = Drained::default();
        let mut bytes: BTreeMap<NodeId, usize> = BTreeMap::new();
        self.rotation = self.rotation.wrapping_add(1);
        let total: usize = self.topics.iter().map(|topic| topic.queues.len()).sum();
        let places: Vec<(usize, usize)> = (0..self.topics.len())
            .flat_map(|at| (0..self.topics[at].queues.len()).map(move |queue| (at, queue)))
            .collect();
        for step in 0..total {
            let (topic_at, queue_at) = places[(step + self.rotation) % total];
            self.settle(topic_at, queue_at, now);
            let flushing = self.flushing > 0;
            let topic = &mut self.topics[topic_at];
            let queue = &mut topic.queues[queue_at];
            if let Err(wake) = queue.ready(now, flushing, &self.settings) {
                drained.wake = [drained.wake, wake].into_iter().flatten().min();
                continue;
            }
            if self.settings.idempotent && queue.identity.or(self.identity).is_none() {
                continue;
            }
            let Some(node) = leader(&topic.name, i32::try_from(queue_at).unwrap_or(i32::MAX))
            else {
                drained.leaderless.push(Arc::clone(&topic.name));
                continue;
            };
            // What is on its way to another broker comes back first: it may be in the log, and five later batches would hide it.
            if !queue.on_way.is_empty() && queue.on_way_to != Some(node) {
                continue;
            }
            let size = queue.next_bytes();
            let used = bytes.entry(node).or_default();
            if room(node) == 0 || (*used > 0 && *used + size > self.settings.request_bytes) {
                continue;
            }
            if let Some(parcel) = queue.take(self.identity.filter(|_| self.settings.idempotent)) {
                queue.on_way_to = Some(node);
                *used += size;
                drained.requests.entry(node).or_default().push(parcel);
            }
        }
        drained
    }

    /// Gives up what is past its deadline, and an identity once nothing is on its way under it.
    fn settle(&mut self, topic_at: usize, queue_at: usize, now: Instant) {
        let queue = &mut self.topics[topic_at].queues[queue_at];
        for parcel in queue.expired(now) {
            self.outstanding.remove(&parcel.number);
            let error = Error::Deadline {
                after: now.duration_since(parcel.opened),
                outcome: Outcome::DidNotHappen,
                last: Box::new(parcel.last_error.clone().unwrap_or_else(|| Error::NotSent {
                    address: "the partition's leader".to_owned(),
                    cause: "it is not reachable".to_owned(),
                })),
            };
            parcel.fail(error);
        }
        if !queue.reset || !queue.on_way.is_empty() {
            return;
        }
        queue.reset = false;
        if self.identity == queue.identity {
            self.identity = None;
        }
        queue.identity = None;
        for parcel in queue.take_unresolvable() {
            self.outstanding.remove(&parcel.number);
            let error = parcel.last_error.clone().unwrap_or(Error::Stopped);
            parcel.fail(error);
        }
    }

    /// Whether an identity must be asked for before anything can go on.
    pub(super) fn needs_identity(&self) -> bool {
        self.settings.idempotent
            && self.identity.is_none()
            && self
                .topics
                .iter()
                .flat_map(|topic| &topic.queues)
                .any(|queue| queue.identity.is_none() && !queue.is_idle())
    }

    /// The identity for all partitions that have none.
    pub(super) fn set_identity(&mut self, identity: Identity) {
        self.identity = Some(identity);
    }

    /// What became of a batch that [`Core::drain`] gave out.
    /// Returns whether the metadata must be refreshed.
    pub(super) fn complete(
        &mut self,
        mut parcel: Parcel,
        result: Result<BatchAck, Error>,
        pause: Duration,
        now: Instant,
    ) -> bool {
        let Some(at) = self.by_name.get(&parcel.topic).copied() else {
            return false;
        };
        let Some(queue) = usize::try_from(parcel.partition)
            .ok()
            .and_then(|partition| self.topics[at].queues.get_mut(partition))
        else {
            return false;
        };
        queue.on_way.retain(|order| *order != parcel.order);
        let error = match result {
            Ok(ack) => {
                self.outstanding.remove(&parcel.number);
                parcel.succeed(ack);
                return false;
            }
            Err(error) => error,
        };
        parcel.maybe |= error.outcome() == Outcome::MayHaveHappened;
        parcel.last_error = Some(error.clone());
        let stale = error.wants_metadata();
        match queue.verdict(&parcel, &error, self.settings.idempotent, now) {
            Verdict::Appended => {
                self.outstanding.remove(&parcel.number);
                parcel.succeed(BatchAck {
                    base_offset: None,
                    at: now,
                });
            }
            Verdict::Again => {
                queue.not_before = Some(now + pause);
                queue.retry_in_order(parcel);
            }
            Verdict::NewIdentity => {
                queue.reset = true;
                queue.retry_in_order(parcel);
            }
            Verdict::GiveUp => {
                // Its sequences stay unused: what follows them would be out of order for ever.
                queue.reset |= parcel.place.is_some();
                self.outstanding.remove(&parcel.number);
                parcel.fail(error);
            }
        }
        stale
    }

    /// Everything not acknowledged yet.
    pub(super) fn outstanding(&self) -> Vec<Arc<BatchDone>> {
        self.outstanding.values().cloned().collect()
    }

    /// Fails everything that is left and refuses what comes.
    pub(super) fn stop(&mut self, error: &Error) {
        self.stopped = true;
        for queue in self.topics.iter_mut().flat_map(|topic| &mut topic.queues) {
            let left = queue
                .retry
                .drain(..)
                .chain(queue.closed.drain(..))
                .chain(queue.open.take());
            left.for_each(|parcel| parcel.fail(error.clone()));
        }
        for done in std::mem::take(&mut self.outstanding).into_values() {
            // What is left here is on its way.
            done.set(Err(super::delivery::Failed {
                outcome: Outcome::MayHaveHappened,
                error: error.clone(),
            }));
        }
    }
}

enum Verdict {
    Appended,
    Again,
    NewIdentity,
    GiveUp,
}

impl Queue {
    fn is_idle(&self) -> bool {
        self.open.is_none() && self.closed.is_empty() && self.retry.is_empty()
    }

    /// Whether the open batch takes `bytes` more.
    fn fits(&self, bytes: usize, limit: usize) -> bool {
        self.open
            .as_ref()
            .is_some_and(|open| open.bytes() + bytes <= limit)
    }

    /// Closes the open batch and opens another.
    fn start(&mut self, opening: Opening) -> Arc<BatchDone> {
        let full = self.close_open();
        self.closed.extend(full);
        let parcel = Parcel::open(opening);
        let done = Arc::clone(&parcel.done);
        self.open = Some(parcel);
        done
    }

    fn close_open(&mut self) -> Option<Parcel> {
        let open = self.open.take()?;
        self.filled = open.bytes();
        Some(open)
    }

    fn add(&mut self, parts: Parts<'_>) -> Result<Delivery, BatchError> {
        let Some(open) = self.open.as_mut() else {
            return Err(BatchError::InvalidRecord("there is no open batch"));
        };
        let done = Arc::clone(&open.done);
        let partition = open.partition;
        let Some(builder) = open.builder() else {
            return Err(BatchError::InvalidRecord("the batch is closed"));
        };
        let index = builder.record_count();
        builder.append(parts.timestamp, parts.key, parts.value, parts.headers)?;
        Ok(Delivery {
            done,
            index,
            partition,
        })
    }

    /// After a refused first record: an empty batch must not be sent.
    fn drop_empty(&mut self) -> Option<u64> {
        self.open
            .take_if(|open| open.count() == 0)
            .map(|empty| empty.number)
    }

    /// `Err`: not now, and when time alone changes that.
    fn ready(
        &self,
        now: Instant,
        flushing: bool,
        settings: &Settings,
    ) -> Result<(), Option<Instant>> {
        if self.reset || self.window() >= PRODUCE_IN_FLIGHT_MAX {
            return Err(None);
        }
        if let Some(not_before) = self.not_before.filter(|not_before| *not_before > now) {
            return Err((!self.is_idle()).then_some(not_before));
        }
        if !self.retry.is_empty() {
            return if self.on_way.is_empty() {
                Ok(())
            } else {
                Err(None)
            };
        }
        match (&self.open, self.closed.is_empty()) {
            (_, false) => Ok(()),
            (None, true) => Err(None),
            (Some(_), true) if flushing => Ok(()),
            (Some(open), true) => {
                let due = open.opened + settings.linger;
                if due <= now { Ok(()) } else { Err(Some(due)) }
            }
        }
    }

    /// Batches from the oldest on its way to the newest that was ever sent.
    fn window(&self) -> usize {
        let oldest = self.on_way.iter().min().copied();
        let window = self.order_next - oldest.unwrap_or(self.order_next);
        usize::try_from(window).unwrap_or(usize::MAX)
    }

    fn next_bytes(&self) -> usize {
        self.retry
            .front()
            .or(self.closed.front())
            .or(self.open.as_ref())
            .map_or(0, Parcel::bytes)
    }

    /// The next batch with its place.
    fn take(&mut self, identity: Option<Identity>) -> Option<Parcel> {
        let fresh = self.retry.is_empty();
        let mut parcel = self
            .retry
            .pop_front()
            .or_else(|| self.closed.pop_front())
            .or_else(|| self.close_open())?;
        if fresh {
            parcel.order = self.order_next;
            self.order_next += 1;
            if self.identity.is_none() {
                self.identity = identity;
                self.sequence_next = Sequence::new(0);
            }
            if let Some(identity) = self.identity {
                parcel.place = Some(Place {
                    identity,
                    sequence: self.sequence_next,
                });
                self.sequence_next = self.sequence_next.plus(parcel.count());
            }
        }
        self.on_way.push(parcel.order);
        Some(parcel)
    }

    fn retry_in_order(&mut self, parcel: Parcel) {
        let at = self
            .retry
            .partition_point(|waiting| waiting.order < parcel.order);
        self.retry.insert(at, parcel);
    }

    fn expired(&mut self, now: Instant) -> Vec<Parcel> {
        let mut expired = Vec::new();
        for queue in [&mut self.retry, &mut self.closed] {
            while queue.front().is_some_and(|parcel| parcel.deadline <= now) {
                expired.extend(queue.pop_front());
            }
        }
        expired.extend(self.open.take_if(|open| open.deadline <= now));
        self.reset |= expired.iter().any(|parcel| parcel.place.is_some());
        expired
    }

    /// When an identity is given up: batches that were certainly not appended go back in front of the closed ones, to
    /// get a new place; the others are returned, since under another identity they could be appended twice.
    fn take_unresolvable(&mut self) -> Vec<Parcel> {
        let (open, certain): (Vec<_>, Vec<_>) =
            self.retry.drain(..).partition(|parcel| parcel.maybe);
        for mut parcel in certain.into_iter().rev() {
            parcel.place = None;
            self.closed.push_front(parcel);
        }
        open
    }

    fn verdict(&self, parcel: &Parcel, error: &Error, idempotent: bool, now: Instant) -> Verdict {
        let code = error.code();
        if idempotent && code == Some(ErrorCode::DUPLICATE_SEQUENCE_NUMBER) {
            return Verdict::Appended;
        }
        let about_sequence = matches!(
            code,
            Some(
                ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER
                    | ErrorCode::UNKNOWN_PRODUCER_ID
                    | ErrorCode::INVALID_PRODUCER_EPOCH
            )
        );
        let in_time = parcel.deadline > now;
        if idempotent && about_sequence && in_time {
            let earlier = |order: &u64| *order < parcel.order;
            let waits_for_earlier = self.on_way.iter().any(earlier)
                || self.retry.iter().any(|waiting| earlier(&waiting.order));
            return match (waits_for_earlier || self.reset, parcel.maybe) {
                (true, _) => Verdict::Again,
                (false, false) => Verdict::NewIdentity,
                (false, true) => Verdict::GiveUp,
            };
        }
        let safe = idempotent || error.outcome() == Outcome::DidNotHappen;
        if error.is_retriable() && in_time && safe {
            Verdict::Again
        } else {
            Verdict::GiveUp
        }
    }
}

#[cfg(test)]
mod tests;
