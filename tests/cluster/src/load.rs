//! Producers and readers whose histories are judged.
//!
//! Owns: what is sent and how fast, when a reader is done.
//! Not here: the client (`tidelog-client`), the rules (`tidelog-check`).
//!
//! Producers are idempotent with five requests in flight and small batches, so that each fault meets several batches on their
//! way. An outage must not use up a client's patience: it is the brokers' fault that is tested, and every error a client
//! gives up with fails the scenario.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Error, Result, bail, ensure};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidelog_check::{Event, Offset, Partition, Producer, Reader, Sequence, Summary};
use tidelog_client::admin::OffsetSpec;
use tidelog_client::consumer::{self, Consumer, ConsumerConfig, Start, TopicPartition};
use tidelog_client::error::ErrorCode;
use tidelog_client::producer::{self, Delivery, NewRecord, ProducerConfig};
use tidelog_client::{Cluster, ClusterConfig, Outcome};
use tidelog_env::{Clock, Network, Random, SystemClock, SystemRandom, TcpNetwork};
use tidelog_model::PartitionIndex;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::record::Recorder;
use crate::rig::Rig;
use crate::wait::{Waiting, until};

const TOPIC: &str = "load";
/// The note when nothing is sent any more.
pub(crate) const ENDED: &str = "all producers have ended";
const BATCH_BYTES: usize = 2048;
/// Batches that one producer holds. A partition that waits ten seconds for a leader fills a part of it only, so that what
/// happens to the others can be seen.
const BATCHES_MAX: usize = 1024;
/// Records of one producer and partition without an answer; it waits for its batches long before.
const OUTSTANDING_MAX: usize = 8192;
/// A request that met a paused broker is tried again elsewhere after this.
const REQUEST: Duration = Duration::from_secs(5);
/// The next fault waits until no record has been without an answer for longer than this part of the patience. Where brokers take longer to start
/// than they then serve, what waits would else grow with each fault, and its oldest record would run out of patience without anybody's fault.
const OLDEST_PART: u32 = 4;
/// Failures that a report shows.
const FAILURES_MAX: usize = 5;

/// How much load.
#[derive(Clone, Copy, Debug)]
pub struct LoadConfig {
    /// Producers, each sending to all partitions.
    pub producers: u32,
    /// Readers, each of all partitions from their start.
    pub readers: u32,
    /// Partitions of the topic: as many as three brokers have groups.
    pub partitions: i32,
    /// A record is a few dozen bytes to this much more; of the usual ones a batch takes about twenty.
    pub padding_max: usize,
    /// A producer sends so many at once, then pauses.
    pub burst: u64,
    /// For this long.
    pub pause: Duration,
    /// Longest time without an acknowledgement, and longest operation: longer than any outage.
    pub patience: Duration,
    /// A reader's fetch waits so long for records.
    pub wait: Duration,
}

impl LoadConfig {
    /// What the scenarios use, and [`LoadConfig::default`]: at most 2,500 records a second, which two busy cores carry, and longer than
    /// any outage that a scenario makes.
    pub const SCENARIO: Self = Self {
        producers: 2,
        readers: 2,
        partitions: 6,
        padding_max: 150,
        burst: 10,
        pause: Duration::from_millis(4),
        patience: Duration::from_secs(120),
        wait: Duration::from_millis(200),
    };
}

impl Default for LoadConfig {
    fn default() -> Self {
        Self::SCENARIO
    }
}

/// What a load lives in.
#[derive(Clone)]
pub struct LoadWorld {
    /// Addresses of brokers, as a client is given them.
    pub bootstrap: String,
    /// Sockets.
    pub network: Arc<dyn Network>,
    /// Stamps of records.
    pub clock: Arc<dyn Clock>,
    /// Jitter, and names.
    pub random: Arc<dyn Random>,
    /// Where the history goes.
    pub recorder: Recorder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Load,
    /// Producers end; readers go on.
    Drain,
    /// Nothing is sent any more; readers read up to the end.
    ReadOut,
}

/// A running load.
pub struct Load {
    clients: Clients,
    producers: JoinSet<Result<()>>,
    readers: JoinSet<Result<()>>,
    readers_started: u32,
    phase: watch::Sender<Phase>,
}

/// What every task of a load needs.
#[derive(Clone)]
struct Clients {
    cluster: Cluster,
    clock: Arc<dyn Clock>,
    recorder: Recorder,
    config: LoadConfig,
    phase: watch::Receiver<Phase>,
    /// How many, of each partition.
    acknowledged: Arc<watch::Sender<Vec<usize>>>,
    /// When the oldest record without an answer was sent, of each producer and partition.
    oldest: Arc<Mutex<BTreeMap<(Producer, usize), Instant>>>,
    failures: Arc<Mutex<Vec<String>>>,
}

impl Load {
    /// Makes the topic and starts the clients.
    ///
    /// # Errors
    /// The topic cannot be made.
    pub async fn start(rig: &Rig, config: LoadConfig) -> Result<Self> {
        let world = LoadWorld {
            bootstrap: rig.bootstrap(),
            network: TcpNetwork::shared(),
            clock: SystemClock::shared(),
            random: SystemRandom::shared(),
            recorder: rig.recorder().clone(),
        };
        Self::start_in(world, config).await
    }

    /// As [`Load::start`], anywhere.
    ///
    /// # Errors
    /// The topic cannot be made.
    pub async fn start_in(world: LoadWorld, config: LoadConfig) -> Result<Self> {
        let phase = watch::Sender::new(Phase::Load);
        let mut cluster = ClusterConfig::new(&world.bootstrap);
        cluster.request_timeout = REQUEST;
        cluster.operation_timeout = config.patience;
        let cluster = Cluster::new(cluster, world.network, world.random)?;
        let mut load = Self {
            clients: Clients {
                cluster,
                clock: world.clock,
                recorder: world.recorder,
                config,
                phase: phase.subscribe(),
                acknowledged: Arc::new(watch::Sender::new(vec![
                    0;
                    usize::try_from(config.partitions)?
                ])),
                oldest: Arc::default(),
                failures: Arc::default(),
            },
            producers: JoinSet::new(),
            readers: JoinSet::new(),
            readers_started: 0,
            phase,
        };
        // It is there when an answer was lost.
        match load.create_topic().await {
            Err(error) if !is_there(&error) => return Err(error),
            Ok(()) | Err(_) => {}
        }
        for number in 0..config.producers {
            let clients = load.clients.clone();
            load.producers.spawn(produce(clients, Producer(number)));
        }
        for _ in 0..config.readers {
            load.add_reader();
        }
        Ok(load)
    }

    /// Makes the topic; again where a broker lost all.
    ///
    /// # Errors
    /// It is there, or the brokers refuse.
    pub async fn create_topic(&self) -> Result<()> {
        let Clients {
            cluster, config, ..
        } = &self.clients;
        cluster.create_topic(TOPIC, config.partitions, &[]).await?;
        Ok(())
    }

    fn add_reader(&mut self) {
        let reader = Reader(self.readers_started);
        self.readers_started += 1;
        self.readers.spawn(read(self.clients.clone(), reader));
    }

    /// Waits until so many more records are acknowledged, and none has waited for a good part of the clients' patience.
    ///
    /// # Errors
    /// A client ended early, or it takes too long.
    pub async fn progress(&mut self, records: usize) -> Result<()> {
        let before: usize = self.counts().iter().sum();
        let what = format!("{records} more acknowledged records");
        self.wait(&what, |counts| {
            counts.iter().sum::<usize>() >= before + records
        })
        .await
    }

    /// As [`Load::progress`], with so many more records of each partition: after a fault, until every group has a leader that clients find.
    ///
    /// # Errors
    /// A client ended early, or it takes too long.
    pub async fn progress_everywhere(&mut self, records: usize) -> Result<()> {
        let before = self.counts();
        let what = format!("{records} more acknowledged records of each partition");
        let done = |now: &[usize]| {
            let mut each = now.iter().zip(&before);
            each.all(|(now, before)| *now >= before + records)
        };
        self.wait(&what, done).await
    }

    fn counts(&self) -> Vec<usize> {
        self.clients.acknowledged.borrow().clone()
    }

    async fn wait(&mut self, what: &str, done: impl Fn(&[usize]) -> bool) -> Result<()> {
        until(what, self.clients.config.patience, async || {
            let ended = self.producers.try_join_next();
            if let Some(ended) = ended.or_else(|| self.readers.try_join_next()) {
                ended??;
                bail!("a client of the load ended early");
            }
            let now = self.counts();
            let oldest = self.clients.oldest_waits();
            Ok(
                if done(&now) && oldest <= self.clients.config.patience / OLDEST_PART {
                    Waiting::Done(())
                } else {
                    Waiting::NotYet(format!("{now:?}, the oldest waits for {oldest:?}"))
                },
            )
        })
        .await
    }

    /// Ends the producers, lets every reader and a new one read up to the end, and judges the history.
    ///
    /// # Errors
    /// The history breaks a rule, or a client gave something up.
    pub async fn finish(&mut self) -> Result<Summary> {
        self.phase.send_replace(Phase::Drain);
        while let Some(ended) = self.producers.join_next().await {
            ended?.context("a producer")?;
        }
        self.clients.recorder.note(ENDED);
        let summary = self.read_again().await?;
        let failures = self.clients.failures.lock();
        let shown = failures.get(..FAILURES_MAX).unwrap_or(&failures);
        ensure!(
            failures.is_empty(),
            "{} records were given up:\n{}",
            failures.len(),
            shown.join("\n")
        );
        Ok(summary)
    }

    /// After the producers' end: one more reader reads everything, and the whole history is judged.
    ///
    /// # Errors
    /// The history breaks a rule, or a reader fails.
    pub async fn read_again(&mut self) -> Result<Summary> {
        self.phase.send_replace(Phase::ReadOut);
        self.add_reader();
        while let Some(ended) = self.readers.join_next().await {
            ended?.context("a reader")?;
        }
        let verdict = self.clients.recorder.history(tidelog_check::check);
        Ok(verdict?)
    }
}

fn is_there(error: &Error) -> bool {
    let error = error.downcast_ref::<tidelog_client::error::Error>();
    matches!(error, Some(tidelog_client::error::Error::Broker { code, .. }) if *code == ErrorCode::TOPIC_ALREADY_EXISTS)
}

/// Sends until the phase changes; ends when each record has its result.
async fn produce(clients: Clients, number: Producer) -> Result<()> {
    let config = ProducerConfig {
        batch_bytes: BATCH_BYTES,
        buffer_bytes: BATCHES_MAX * BATCH_BYTES,
        linger: Duration::from_millis(1),
        delivery_timeout: clients.config.patience,
        request_timeout: REQUEST,
        ..ProducerConfig::default()
    };
    let cluster = clients.cluster.separate();
    let producer = producer::Producer::start(cluster, config, Arc::clone(&clients.clock))?;
    // Partitions apart: one that waits for a leader must not hide what the others do.
    let mut answers = Vec::new();
    let mut ends = JoinSet::new();
    for at in 0..usize::try_from(clients.config.partitions)? {
        let (answered, waiting) = mpsc::channel(OUTSTANDING_MAX);
        answers.push(answered);
        ends.spawn(results(clients.clone(), number, at, waiting));
    }
    let mut dice = StdRng::seed_from_u64(u64::from(number.0));
    let mut sequence = 0;
    while *clients.phase.borrow() == Phase::Load {
        for _ in 0..clients.config.burst {
            let at = dice.random_range(0..answers.len());
            let partition = i32::try_from(at)?;
            let padding = dice.random_range(0..clients.config.padding_max);
            let value = format!("{}:{sequence}:{}", number.0, "x".repeat(padding)).into_bytes();
            clients.recorder.record(Event::Sent {
                producer: number,
                sequence: Sequence(sequence),
                partition: Partition(partition),
                value: value.clone(),
            });
            let record = NewRecord {
                topic: TOPIC,
                partition: Some(PartitionIndex::new(partition)),
                value: Some(&value),
                ..NewRecord::default()
            };
            match producer.send(record).await {
                Ok(delivery) => answers
                    .get(at)
                    .context("a partition")?
                    .send((Sequence(sequence), Instant::now(), delivery))
                    .await
                    .context("the results' task ended")?,
                // What was not accepted is not sent.
                Err(error) => clients.failed(number, Sequence(sequence), false, &error.into()),
            }
            sequence += 1;
        }
        tokio::time::sleep(clients.config.pause).await;
    }
    drop(answers);
    while let Some(ended) = ends.join_next().await {
        ended?;
    }
    // Every record has its result; a failure among them is recorded.
    let _ = producer.close().await;
    Ok(())
}

/// Records what became of each record of one partition.
async fn results(
    clients: Clients,
    producer: Producer,
    partition: usize,
    mut waiting: mpsc::Receiver<(Sequence, Instant, Delivery)>,
) {
    let of = (producer, partition);
    while let Some((sequence, sent, delivery)) = waiting.recv().await {
        clients.oldest.lock().insert(of, sent);
        let answer = delivery.wait().await;
        clients.oldest.lock().remove(&of);
        match answer {
            Ok(ack) => {
                clients.recorder.record(Event::Acknowledged {
                    producer,
                    sequence,
                    offset: ack.offset.map(|offset| Offset(offset.get())),
                });
                clients.acknowledged.send_modify(|counts| {
                    if let Some(count) = counts.get_mut(partition) {
                        *count += 1;
                    }
                });
            }
            Err(failed) => {
                let open = failed.outcome == Outcome::MayHaveHappened;
                clients.failed(producer, sequence, open, &failed.into());
            }
        }
    }
}

impl Clients {
    fn failed(
        &self,
        producer: Producer,
        sequence: Sequence,
        may_have_happened: bool,
        error: &Error,
    ) {
        self.recorder.record(Event::Failed {
            producer,
            sequence,
            may_have_happened,
        });
        let text = format!("producer {}: {}: {error:#}", producer.0, sequence.0);
        self.failures.lock().push(text);
    }

    /// How long the oldest record without an answer has waited.
    fn oldest_waits(&self) -> Duration {
        let oldest = self.oldest.lock().values().min().copied();
        oldest.map_or(Duration::ZERO, |sent| sent.elapsed())
    }

    fn places(&self) -> impl Iterator<Item = PartitionIndex> + use<> {
        (0..self.config.partitions).map(PartitionIndex::new)
    }

    /// Where each partition ends now.
    async fn ends(&self) -> Result<BTreeMap<PartitionIndex, tidelog_model::Offset>> {
        let wanted = self.places().map(|index| (index, OffsetSpec::Latest));
        let wanted = wanted.collect();
        Ok(self.cluster.list_offsets(TOPIC, &wanted).await?)
    }
}

/// Reads all partitions from their start; after the producers' end, up to where they end.
async fn read(clients: Clients, reader: Reader) -> Result<()> {
    let config = ConsumerConfig {
        wait: clients.config.wait,
        ..ConsumerConfig::default()
    };
    let mut consumer = Consumer::new(clients.cluster.separate(), config);
    let mut reading = Reading::new(&clients, reader);
    let starts = clients.places().map(|partition| {
        let place = TopicPartition {
            topic: TOPIC.into(),
            partition,
        };
        (place, Start::At(tidelog_model::Offset::default()))
    });
    consumer.assign(starts.collect()).await?;
    let mut ends = None;
    loop {
        if ends.is_none() && *clients.phase.borrow() == Phase::ReadOut {
            ends = Some(clients.ends().await?);
        }
        let positions = consumer.positions();
        let at_end = |ends: &BTreeMap<PartitionIndex, tidelog_model::Offset>| {
            let mut all = positions.iter();
            all.all(|(place, next)| ends.get(&place.partition).is_some_and(|end| next >= end))
        };
        if let Some(ends) = ends.as_ref().filter(|ends| at_end(ends)) {
            reading.caught_up(ends);
            return Ok(());
        }
        for event in consumer.poll(clients.config.wait).await? {
            reading.take(&mut consumer, event)?;
        }
        for place in positions.keys() {
            if let Some(offset) = consumer.high_watermark(place) {
                reading.told(place.partition, offset);
            }
        }
    }
}

/// One reader's part of the history.
struct Reading<'a> {
    recorder: &'a Recorder,
    reader: Reader,
    told: BTreeMap<PartitionIndex, tidelog_model::Offset>,
}

impl<'a> Reading<'a> {
    fn new(clients: &'a Clients, reader: Reader) -> Self {
        for partition in clients.places() {
            clients.recorder.record(Event::ReadFrom {
                reader,
                partition: Partition(partition.get()),
                offset: Offset(0),
            });
        }
        Self {
            recorder: &clients.recorder,
            reader,
            told: BTreeMap::new(),
        }
    }

    /// A high watermark; one that is the same as before says nothing new.
    fn told(&mut self, partition: PartitionIndex, offset: tidelog_model::Offset) {
        if self.told.insert(partition, offset) != Some(offset) {
            self.recorder.record(Event::HighWatermark {
                reader: self.reader,
                partition: Partition(partition.get()),
                offset: Offset(offset.get()),
            });
        }
    }

    fn take(&mut self, consumer: &mut Consumer, event: consumer::Event) -> Result<()> {
        match event {
            consumer::Event::Fetched(fetched) => {
                let partition = fetched.partition.partition;
                self.told(partition, fetched.high_watermark);
                for record in fetched.records() {
                    let record = record?;
                    let value = record.record.value.unwrap_or_default();
                    self.recorder.record(Event::Polled {
                        reader: self.reader,
                        partition: Partition(partition.get()),
                        offset: Offset(record.offset.get()),
                        value: value.to_vec(),
                    });
                }
            }
            // Nothing is ever removed here. The reader goes where it is sent without having wanted to; the judge sees
            // offsets left out, or the log's end gone back.
            consumer::Event::Gap(gap) => {
                self.recorder.note(format!(
                    "reader {} wanted offset {} of partition {}: there is {} to {}",
                    self.reader.0,
                    gap.wanted.get(),
                    gap.partition.partition.get(),
                    gap.first_available.get(),
                    gap.end.get()
                ));
                self.told(gap.partition.partition, gap.end);
                let next = gap.wanted.max(gap.first_available).min(gap.end);
                consumer.seek(&gap.partition, next);
            }
        }
        Ok(())
    }

    fn caught_up(&self, ends: &BTreeMap<PartitionIndex, tidelog_model::Offset>) {
        for (partition, end) in ends {
            self.recorder.record(Event::CaughtUp {
                reader: self.reader,
                partition: Partition(partition.get()),
                end: Offset(end.get()),
            });
        }
    }
}
