//! `tidelog bench consume`: reads everything and checks it.
//!
//! Owns: the check that offsets follow each other without a gap; the rate.
//! Not here: the CRC check (every fetch does it).

use super::{BenchConsumeArgs, megabytes_per_second, per_second};
use crate::admin::OffsetSpec;
use crate::cli::produce::missing_topic;
use crate::cli::{Failure, Global, Output, World, cluster, output};
use crate::cluster::Cluster;
use crate::consumer::{Consumer, ConsumerConfig, Event, Fetched, Start, TopicPartition};
use crate::error::Error;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::Tasks;
use tidelog_model::{Offset, PartitionIndex};
use tokio::sync::mpsc;
use tokio::time::Instant;

#[derive(Serialize)]
struct Report {
    topic: String,
    consumers: u16,
    seconds: f64,
    records: u64,
    bytes: u64,
    mb_per_s: f64,
    records_per_s: f64,
    batches: u64,
    reached_end: bool,
}

type Ends = BTreeMap<TopicPartition, Offset>;

pub(super) async fn run(
    args: BenchConsumeArgs,
    global: &Global,
    world: &World,
) -> Result<(), Failure> {
    let cluster = cluster(global, world)?;
    let metadata = cluster
        .topic(&args.topic)
        .await
        .map_err(|error| missing_topic(error, &args.topic))?;
    let all = |spec| {
        (0..metadata.partition_count(&args.topic))
            .map(|at| (PartitionIndex::new(at), spec))
            .collect()
    };
    let starts = cluster
        .list_offsets(&args.topic, &all(OffsetSpec::Earliest))
        .await?;
    let ends = cluster
        .list_offsets(&args.topic, &all(OffsetSpec::Latest))
        .await?;
    let topic: Arc<str> = Arc::from(args.topic.as_str());
    let tasks = Tasks::new();
    let (results, mut collected) = mpsc::channel(usize::from(args.consumers));
    let started = Instant::now();
    let deadline = args.duration.map(|duration| started + duration);
    for number in 0..args.consumers {
        let share =
            |(at, _): &(i32, _)| u16::try_from(at % i32::from(args.consumers)).ok() == Some(number);
        let mine: Vec<_> = (0..metadata.partition_count(&args.topic))
            .map(|at| (at, ()))
            .filter(share)
            .collect();
        let at = |index: i32| TopicPartition {
            topic: Arc::clone(&topic),
            partition: PartitionIndex::new(index),
        };
        let of = |offsets: &BTreeMap<PartitionIndex, Offset>| -> Ends {
            mine.iter()
                .map(|(index, ())| {
                    (
                        at(*index),
                        offsets
                            .get(&PartitionIndex::new(*index))
                            .copied()
                            .unwrap_or_default(),
                    )
                })
                .collect()
        };
        let worker = Worker::new(cluster.separate(), of(&starts), of(&ends), deadline);
        let results = results.clone();
        tasks.spawn("bench consumer", async move {
            let _ = results.send(worker.run().await).await;
        });
    }
    drop(results);
    let mut total = Tally::default();
    while let Some(result) = collected.recv().await {
        total.add(&result?);
    }
    tasks.stop().await;
    let report = total.report(&args, started);
    match global.output {
        Output::Json => output::json(&report),
        Output::Table => print(&report),
    }
}

#[derive(Default)]
struct Tally {
    records: u64,
    bytes: u64,
    batches: u64,
    ended: Option<Instant>,
    unfinished: bool,
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.records += other.records;
        self.bytes += other.bytes;
        self.batches += other.batches;
        self.ended = self.ended.max(other.ended);
        self.unfinished |= other.unfinished;
    }

    fn report(&self, args: &BenchConsumeArgs, started: Instant) -> Report {
        let seconds = self.ended.map_or(0.0, |ended| {
            ended.saturating_duration_since(started).as_secs_f64()
        });
        Report {
            topic: args.topic.clone(),
            consumers: args.consumers,
            seconds,
            records: self.records,
            bytes: self.bytes,
            mb_per_s: megabytes_per_second(self.bytes, seconds),
            records_per_s: per_second(self.records, seconds),
            batches: self.batches,
            reached_end: !self.unfinished,
        }
    }
}

struct Worker {
    consumer: Consumer,
    starts: Ends,
    ends: Ends,
    expected: BTreeMap<TopicPartition, Offset>,
    deadline: Option<Instant>,
    tally: Tally,
}

impl Worker {
    fn new(cluster: Cluster, starts: Ends, ends: Ends, deadline: Option<Instant>) -> Self {
        let consumer = Consumer::new(cluster, ConsumerConfig::default());
        Self {
            consumer,
            expected: starts.clone(),
            starts,
            ends,
            deadline,
            tally: Tally::default(),
        }
    }

    async fn run(mut self) -> Result<Tally, Failure> {
        let starts = self
            .starts
            .iter()
            .map(|(at, start)| (at.clone(), Start::At(*start)))
            .collect();
        self.consumer.assign(starts).await?;
        while self
            .expected
            .iter()
            .any(|(at, next)| self.ends.get(at).is_some_and(|end| next < end))
        {
            if self
                .deadline
                .is_some_and(|deadline| Instant::now() >= deadline)
            {
                self.tally.unfinished = true;
                break;
            }
            for event in self.consumer.poll(Duration::from_millis(500)).await? {
                match event {
                    Event::Fetched(fetched) => self.check(&fetched)?,
                    Event::Gap(gap) => {
                        let place = format!("{}/{}", gap.partition.topic, gap.partition.partition);
                        return Err(Failure::Failed(format!(
                            "{place}: offset {} is gone, the first still there is {}",
                            gap.wanted, gap.first_available
                        )));
                    }
                }
            }
        }
        self.tally.ended.get_or_insert_with(Instant::now);
        Ok(self.tally)
    }

    /// Batches follow each other, and hold as many records as their offsets say.
    fn check(&mut self, fetched: &Fetched) -> Result<(), Error> {
        let Some(expected) = self.expected.get_mut(&fetched.partition) else {
            return Ok(());
        };
        for batch in &fetched.batches {
            let header = batch.header();
            let broken = |cause: String| Error::Corrupt {
                what: format!(
                    "{}/{} at offset {}",
                    fetched.partition.topic, fetched.partition.partition, header.base_offset
                ),
                cause,
            };
            if header.base_offset != *expected
                && !(header.base_offset < *expected && *expected == fetched.from)
            {
                return Err(broken(format!("offset {expected} was due")));
            }
            if header.record_count != header.last_offset_delta + 1 {
                return Err(broken(format!(
                    "{} records over {} offsets",
                    header.record_count,
                    header.last_offset_delta + 1
                )));
            }
            *expected = header
                .base_offset
                .plus(i64::from(header.last_offset_delta) + 1);
            self.tally.records += u64::try_from(header.record_count).unwrap_or(0);
            self.tally.bytes += u64::try_from(batch.bytes().len()).unwrap_or(0);
            self.tally.batches += 1;
        }
        self.tally.ended = Some(Instant::now());
        Ok(())
    }
}

fn print(report: &Report) -> Result<(), Failure> {
    output::table(
        &["MB/S", "RECORDS/S", "RECORDS", "SECONDS", "CHECKED"],
        &[vec![
            format!("{:.1}", report.mb_per_s),
            format!("{:.0}", report.records_per_s),
            report.records.to_string(),
            format!("{:.1}", report.seconds),
            if report.reached_end {
                "to the end".to_owned()
            } else {
                "until the time was over".to_owned()
            },
        ]],
    )
}
