//! Reading records: from offsets, times or the ends, of many partitions at once; alone or in a consumer group.
//!
//! Owns: positions, one long poll per broker on its way, gaps as events.
//! Not here: the group protocol (`group`), bytes of a fetch (`fetch`), offsets that leaders must tell (`places`).
//!
//! A position moves only over what was handed out. When the wanted history is gone the partition stops with a
//! [`Gap`]; nobody is moved to another offset in silence: the caller seeks, or gives up.

pub mod assignor;
mod fetch;
pub mod group;
mod places;

pub use fetch::{Fetched, FetchedRecord};
pub use group::{GroupConfig, GroupConsumer};

use crate::admin::OffsetSpec;
use crate::cluster::{Cluster, SILENCE};
use crate::error::{Error, ErrorCode};
use crate::limits::{FETCH_BYTES_MAX, FETCH_PARTITION_BYTES_MAX};
use crate::retry::Backoff;
use fetch::{FetchJob, NodeAnswer, PartitionAnswer};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use places::{Places, Wanted};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tidelog_model::{NodeId, Offset, PartitionIndex, TimestampMs};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

/// How a consumer works.
#[derive(Clone, Debug)]
pub struct ConsumerConfig {
    /// How long a broker may hold a fetch that has nothing yet.
    pub wait: Duration,
    /// Bytes of one fetch.
    pub fetch_bytes: usize,
    /// Bytes of one partition in one fetch.
    pub partition_bytes: usize,
}

impl Default for ConsumerConfig {
    fn default() -> Self {
        Self {
            wait: Duration::from_millis(500),
            fetch_bytes: FETCH_BYTES_MAX,
            partition_bytes: FETCH_PARTITION_BYTES_MAX,
        }
    }
}

/// A partition by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    /// The topic.
    pub topic: Arc<str>,
    /// The partition.
    pub partition: PartitionIndex,
}

/// Where reading begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At this offset.
    At(Offset),
    /// At an offset that the leader knows.
    By(OffsetSpec),
}

impl Start {
    /// The first record still there.
    pub const EARLIEST: Self = Self::By(OffsetSpec::Earliest);
    /// Only what comes.
    pub const LATEST: Self = Self::By(OffsetSpec::Latest);

    /// The first record with this time or a later one.
    #[must_use]
    pub const fn since(time: TimestampMs) -> Self {
        Self::By(OffsetSpec::Timestamp(time))
    }
}

/// The wanted history is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Which partition.
    pub partition: TopicPartition,
    /// The offset that was wanted.
    pub wanted: Offset,
    /// The first offset still there.
    pub first_available: Offset,
    /// The high watermark. A wanted offset above it never was there.
    pub end: Offset,
}

/// What [`Consumer::poll`] hands out.
#[derive(Clone, Debug)]
pub enum Event {
    /// Batches of one partition, from the position on.
    Fetched(Fetched),
    /// The partition has stopped; [`Consumer::seek`] starts it again.
    Gap(Gap),
}

#[derive(Clone, Debug)]
struct Reading {
    position: Offset,
    high_watermark: Option<Offset>,
    on_way: bool,
    stopped: bool,
    /// Since when the broker answers errors for it.
    failing_since: Option<Instant>,
}

/// How often brokers are looked at that a fetch is on its way to.
const LOOK: Duration = Duration::from_millis(500);

/// Reads partitions. Give it a [`Cluster`] of its own ([`Cluster::separate`]) when others use theirs: a long poll holds
/// up what is asked behind it on the same connection.
pub struct Consumer {
    cluster: Cluster,
    config: ConsumerConfig,
    readings: BTreeMap<TopicPartition, Reading>,
    places: Places,
    on_way: FuturesUnordered<BoxFuture<'static, NodeAnswer>>,
    /// Brokers that a fetch is on its way to, and for what.
    busy: BTreeMap<NodeId, Vec<TopicPartition>>,
    not_before: BTreeMap<NodeId, Instant>,
    stale: bool,
    refresh_not_before: Instant,
    backoff: Backoff,
    failing_since: Option<Instant>,
}

impl Consumer {
    /// A consumer of nothing yet.
    #[must_use]
    pub fn new(cluster: Cluster, config: ConsumerConfig) -> Self {
        let backoff = Backoff::failover(cluster.random());
        Self {
            places: Places::new(cluster.clone()),
            cluster,
            config,
            readings: BTreeMap::new(),
            on_way: FuturesUnordered::new(),
            busy: BTreeMap::new(),
            not_before: BTreeMap::new(),
            stale: false,
            refresh_not_before: Instant::now(),
            backoff,
            failing_since: None,
        }
    }

    /// The cluster it reads from.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Replaces what is read. Offsets that the leaders must tell are asked for here. Where some leader does not tell within seconds, the others' partitions
    /// are read, and its own once it has told: from where they begin or end then.
    ///
    /// # Errors
    /// What trying again does not mend, such as an unknown topic; and when no leader tells anything within the cluster's operation timeout.
    pub async fn assign(&mut self, starts: Vec<(TopicPartition, Start)>) -> Result<(), Error> {
        let mut readings = BTreeMap::new();
        let mut wanted = Wanted::new();
        for (partition, start) in starts {
            match start {
                Start::At(position) => {
                    readings.insert(partition, Reading::at(position));
                }
                Start::By(spec) => {
                    wanted
                        .entry(partition.topic)
                        .or_default()
                        .insert(partition.partition, spec);
                }
            }
        }
        let known = self.places.ask(wanted).await?;
        readings.extend(
            known
                .into_iter()
                .map(|(at, offset)| (at, Reading::at(offset))),
        );
        for topic in readings
            .keys()
            .map(|partition| &partition.topic)
            .collect::<BTreeSet<_>>()
        {
            self.cluster.topic(topic).await?;
        }
        self.readings = readings;
        Ok(())
    }

    /// Goes on at `position`, also after a [`Gap`]. Ignored for partitions that are not assigned.
    pub fn seek(&mut self, partition: &TopicPartition, position: Offset) {
        if self.places.settle(partition) {
            self.readings
                .insert(partition.clone(), Reading::at(position));
        }
        if let Some(reading) = self.readings.get_mut(partition) {
            reading.position = position;
            reading.stopped = false;
        }
    }

    /// The next offset of each partition: everything below it was handed out. Partitions whose leaders have not told yet where they begin are not in it.
    #[must_use]
    pub fn positions(&self) -> BTreeMap<TopicPartition, Offset> {
        self.readings
            .iter()
            .map(|(partition, reading)| (partition.clone(), reading.position))
            .collect()
    }

    /// The high watermark that the newest answer told.
    #[must_use]
    pub fn high_watermark(&self, partition: &TopicPartition) -> Option<Offset> {
        self.readings.get(partition)?.high_watermark
    }

    /// What has come within `wait`; empty when nothing has. The next fetches are on their way while the caller works on
    /// the result. Fails on errors that trying again does not mend, and when nothing works for the cluster's operation
    /// timeout. Cancelling it loses nothing.
    pub async fn poll(&mut self, wait: Duration) -> Result<Vec<Event>, Error> {
        let deadline = Instant::now() + wait;
        loop {
            for (partition, offset) in self.places.told()? {
                self.readings.insert(partition, Reading::at(offset));
            }
            self.look_for_silent_brokers();
            self.refresh_if_stale().await;
            let wake = self.start_fetches();
            let look = Instant::now() + LOOK;
            let until = wake.map_or(look, |wake| wake.min(look)).min(deadline);
            let answer = if self.on_way.is_empty() {
                tokio::time::sleep_until(until).await;
                None
            } else {
                tokio::time::timeout_at(until, self.on_way.next())
                    .await
                    .ok()
                    .flatten()
            };
            if let Some(answer) = answer {
                let events = self.take(answer).await?;
                if !events.is_empty() {
                    // The next fetches travel while the caller works.
                    self.start_fetches();
                    return Ok(events);
                }
            }
            if Instant::now() >= deadline {
                return Ok(Vec::new());
            }
        }
    }

    /// A broker that says nothing (paused, cut off) would keep its fetch until the deadline. Others are asked meanwhile who leads; what
    /// another broker leads then is fetched there.
    fn look_for_silent_brokers(&mut self) {
        let limit = self.config.wait + SILENCE;
        let metadata = self.cluster.metadata();
        for (node, asked) in &self.busy {
            if !self.cluster.is_silent(*node, limit) {
                continue;
            }
            let moved = |partition: &TopicPartition| {
                metadata
                    .leader(&partition.topic, partition.partition)
                    .is_some_and(|leader| leader != *node)
            };
            if asked.iter().any(moved) {
                tracing::debug!("broker {node} is silent and leads no more: it is left");
                self.cluster
                    .leave(*node, "it said nothing, and another broker leads");
            }
            self.stale = true;
        }
    }

    async fn refresh_if_stale(&mut self) {
        if !self.stale || Instant::now() < self.refresh_not_before {
            return;
        }
        self.refresh_not_before = Instant::now() + self.backoff.pause();
        let topics: BTreeSet<Arc<str>> = self
            .readings
            .keys()
            .map(|partition| Arc::clone(&partition.topic))
            .collect();
        let names: Vec<&str> = topics.iter().map(AsRef::as_ref).collect();
        match self.cluster.refresh(Some(&names)).await {
            Ok(_) => self.stale = false,
            Err(error) => tracing::debug!("metadata not refreshed: {error}"),
        }
    }

    /// Starts a fetch at every broker that has something for us and none on its way. Returns when to look again.
    fn start_fetches(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let metadata = self.cluster.metadata();
        let mut wake = None;
        let mut jobs: BTreeMap<NodeId, Vec<(TopicPartition, Offset)>> = BTreeMap::new();
        for (partition, reading) in &self.readings {
            if reading.on_way || reading.stopped {
                continue;
            }
            let Some(leader) = metadata.leader(&partition.topic, partition.partition) else {
                self.stale = true;
                wake = Some(self.refresh_not_before);
                continue;
            };
            if self.busy.contains_key(&leader) {
                continue;
            }
            if let Some(not_before) = self
                .not_before
                .get(&leader)
                .filter(|not_before| **not_before > now)
            {
                wake = Some(wake.map_or(*not_before, |wake: Instant| wake.min(*not_before)));
                continue;
            }
            jobs.entry(leader)
                .or_default()
                .push((partition.clone(), reading.position));
        }
        if self.stale {
            wake = Some(wake.map_or(self.refresh_not_before, |wake: Instant| {
                wake.min(self.refresh_not_before)
            }));
        }
        for (node, partitions) in jobs {
            for (partition, _) in &partitions {
                if let Some(reading) = self.readings.get_mut(partition) {
                    reading.on_way = true;
                }
            }
            let asked = partitions.iter().map(|(partition, _)| partition.clone());
            self.busy.insert(node, asked.collect());
            let job = FetchJob {
                node,
                partitions,
                config: self.config.clone(),
            };
            // A task of its own: a fetch may hold the lock of a connection that is being opened, and this consumer may wait
            // for that lock (fresh metadata, a gap's offsets) without polling its fetches. Neither would ever end.
            let asked = job.partitions.clone();
            let task = AbortOnDropHandle::new(tokio::spawn(job.run(self.cluster.clone())));
            self.on_way.push(Box::pin(async move {
                task.await.unwrap_or_else(|_| NodeAnswer {
                    node,
                    asked,
                    result: Err(Error::Stopped),
                })
            }));
        }
        wake.map(|wake| wake.max(now + Duration::from_millis(1)))
    }

    async fn take(&mut self, answer: NodeAnswer) -> Result<Vec<Event>, Error> {
        self.busy.remove(&answer.node);
        for (partition, _) in &answer.asked {
            if let Some(reading) = self.readings.get_mut(partition) {
                reading.on_way = false;
            }
        }
        let parts = match answer.result {
            Ok(parts) => parts,
            Err(error) => {
                self.failed(answer.node, error)?;
                return Ok(Vec::new());
            }
        };
        let asked: BTreeMap<_, _> = answer.asked.into_iter().collect();
        let mut events = Vec::new();
        for part in parts {
            let position = asked.get(&part.partition).copied();
            // A seek or another assignment in between makes the answer worthless.
            let current = self
                .readings
                .get(&part.partition)
                .map(|reading| reading.position);
            if position.is_none() || current != position {
                continue;
            }
            if let Some(event) = self.take_partition(answer.node, part).await? {
                events.push(event);
            }
        }
        Ok(events)
    }

    async fn take_partition(
        &mut self,
        node: NodeId,
        part: PartitionAnswer,
    ) -> Result<Option<Event>, Error> {
        let Some(reading) = self.readings.get_mut(&part.partition) else {
            return Ok(None);
        };
        let wanted = reading.position;
        if part.code == ErrorCode::OFFSET_OUT_OF_RANGE {
            reading.stopped = true;
            return self.gap(part.partition, wanted).await.map(Some);
        }
        let what = || {
            format!(
                "fetch {}/{}",
                part.partition.topic, part.partition.partition
            )
        };
        if let Err(error) = part.code.check(what(), None) {
            let first = reading.failing_since.is_none();
            let since = *reading.failing_since.get_or_insert_with(Instant::now);
            if first {
                tracing::warn!("{error}; it is tried again");
            }
            self.failed_since(since, node, error)?;
            return Ok(None);
        }
        let fetched = part.decode(wanted)?;
        reading.high_watermark = Some(fetched.high_watermark);
        reading.failing_since = None;
        let found = !fetched.batches.is_empty();
        if found {
            reading.position = fetched.next;
        }
        // Good answers of other partitions do not end what goes wrong with one.
        let well = |reading: &Reading| reading.failing_since.is_none();
        if self.readings.values().all(well) {
            self.failing_since = None;
            self.backoff.reset();
        }
        Ok(found.then_some(Event::Fetched(fetched)))
    }

    async fn gap(&mut self, partition: TopicPartition, wanted: Offset) -> Result<Event, Error> {
        let ask = |spec| BTreeMap::from([(partition.partition, spec)]);
        let first = self
            .cluster
            .list_offsets(&partition.topic, &ask(OffsetSpec::Earliest))
            .await?;
        let end = self
            .cluster
            .list_offsets(&partition.topic, &ask(OffsetSpec::Latest))
            .await?;
        let of = |found: &BTreeMap<PartitionIndex, Offset>| {
            found.get(&partition.partition).copied().unwrap_or_default()
        };
        Ok(Event::Gap(Gap {
            wanted,
            first_available: of(&first),
            end: of(&end),
            partition,
        }))
    }

    /// Remembers a failure: a pause for the broker, fresh metadata if that can help, and the end when it goes on too long.
    fn failed(&mut self, node: NodeId, error: Error) -> Result<(), Error> {
        if !error.is_retriable() {
            return Err(error);
        }
        let since = *self.failing_since.get_or_insert_with(Instant::now);
        self.failed_since(since, node, error)
    }

    fn failed_since(&mut self, since: Instant, node: NodeId, error: Error) -> Result<(), Error> {
        if !error.is_retriable() {
            return Err(error);
        }
        let now = Instant::now();
        let after = now.duration_since(since);
        if after > self.cluster.config().operation_timeout {
            return Err(Error::Deadline {
                after,
                outcome: crate::error::Outcome::DidNotHappen,
                last: Box::new(error),
            });
        }
        tracing::debug!("fetch from broker {node}: {error}");
        self.stale |= error.wants_metadata();
        self.not_before.insert(node, now + self.backoff.pause());
        Ok(())
    }
}

impl Reading {
    fn at(position: Offset) -> Self {
        Self {
            position,
            high_watermark: None,
            on_way: false,
            stopped: false,
            failing_since: None,
        }
    }
}
