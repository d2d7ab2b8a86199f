//! `tidelog bench produce`.
//!
//! Owns: producers at a rate, latency from `send` to acknowledgement, the comparison with the disk.
//! Not here: records' content (`payload`), the disk's limit (`disk`).

use super::disk::Disk;
use super::payload::Payload;
use super::{AcksName, BenchProduceArgs, Rate, megabytes_per_second, per_second};
use crate::cli::{Failure, Global, Output, World, cluster, output};
use crate::cluster::Cluster;
use crate::error::{Error, ErrorCode};
use crate::producer::{Acks, Delivery, NewRecord, Producer, ProducerConfig};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidelog_env::Tasks;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Before the first phase: connections, leaders, and the size of batches, which the disk's blocks then have.
const WARM_UP: Duration = Duration::from_secs(2);
/// Each of the two disk measurements.
const DISK_TIME: Duration = Duration::from_secs(5);
/// Longest latency the histogram tells apart, in microseconds.
const LATENCY_MAX_US: u64 = 600_000_000;

#[derive(Serialize)]
struct Report {
    topic: String,
    record_bytes: u32,
    producers: u16,
    acks: &'static str,
    codec: &'static str,
    full: Phase,
    half_rate: Option<Phase>,
    disk: Option<DiskReport>,
}

#[derive(Serialize)]
struct Phase {
    target_records_per_s: Option<f64>,
    seconds: f64,
    records: u64,
    errors: u64,
    first_error: Option<String>,
    mb_per_s: f64,
    records_per_s: f64,
    batch_bytes_mean: u64,
    latency_ms: Latency,
}

#[derive(Serialize)]
struct Latency {
    p50: f64,
    p95: f64,
    p99: f64,
    max: f64,
}

#[derive(Serialize)]
struct DiskReport {
    write_bytes: u64,
    before_mb_per_s: f64,
    after_mb_per_s: f64,
    mb_per_s: f64,
    produce_to_disk: f64,
}

pub(super) async fn run(
    args: BenchProduceArgs,
    global: &Global,
    world: &World,
) -> Result<(), Failure> {
    let cluster = cluster(global, world)?;
    ensure_topic(&cluster, &args).await?;
    let bench = Bench {
        cluster,
        world: world.clone(),
        args,
    };
    let report = bench.run().await?;
    match global.output {
        Output::Json => output::json(&report)?,
        Output::Table => print(&report)?,
    }
    let phases = [Some(&report.full), report.half_rate.as_ref()];
    match phases.into_iter().flatten().find(|phase| phase.errors > 0) {
        Some(phase) => Err(Failure::Failed(format!(
            "{} records were not acknowledged; the first reason: {}",
            phase.errors,
            phase.first_error.as_deref().unwrap_or("unknown")
        ))),
        None => Ok(()),
    }
}

async fn ensure_topic(cluster: &Cluster, args: &BenchProduceArgs) -> Result<(), Error> {
    match cluster.topic(&args.topic).await {
        Ok(_) => return Ok(()),
        Err(error) if error.code() == Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION) => {}
        Err(error) => return Err(error),
    }
    match cluster
        .create_topic(&args.topic, args.partitions, &[])
        .await
    {
        Err(error) if error.code() == Some(ErrorCode::TOPIC_ALREADY_EXISTS) => {
            cluster.topic(&args.topic).await.map(drop)
        }
        result => result,
    }
}

struct Bench {
    cluster: Cluster,
    world: World,
    args: BenchProduceArgs,
}

impl Bench {
    async fn run(self) -> Result<Report, Failure> {
        output::say("warming up");
        let warm = self
            .phase(self.args.rate, WARM_UP.min(self.args.duration))
            .await?;
        let block = usize::try_from(warm.batch_bytes_mean.max(4096)).unwrap_or(1 << 20);
        let (disk, before) = match &self.args.disk_dir {
            Some(directory) => {
                let (disk, rate) = disk_before(directory, block, self.args.seed).await?;
                (Some(disk), rate)
            }
            None => (None, 0.0),
        };
        let full = self.phase(self.args.rate, self.args.duration).await?;
        let disk = match disk {
            Some(disk) => {
                Some(disk_after(disk, block, before, self.args.seed, full.mb_per_s).await?)
            }
            None => None,
        };
        let half_rate = if self.args.half_rate {
            let half = (full.records_per_s / 2.0).max(1.0);
            output::say(&format!("half of the reached rate: {half:.0} records/s"));
            Some(
                self.phase(Rate::PerSecond(half), self.args.duration)
                    .await?,
            )
        } else {
            None
        };
        Ok(Report {
            topic: self.args.topic.clone(),
            record_bytes: self.args.size,
            producers: self.args.producers,
            acks: match self.args.acks {
                AcksName::All => "all",
                AcksName::Leader => "1",
                AcksName::None => "0",
            },
            codec: self.args.codec.codec().name(),
            full,
            half_rate,
            disk,
        })
    }

    async fn phase(&self, rate: Rate, duration: Duration) -> Result<Phase, Failure> {
        let tasks = Tasks::new();
        let (results, mut collected) = mpsc::channel(usize::from(self.args.producers));
        let acknowledged = Arc::new(AtomicU64::new(0));
        let started = Instant::now();
        for number in 0..self.args.producers {
            let worker =
                self.worker(number, rate, started + duration, Arc::clone(&acknowledged))?;
            let results = results.clone();
            tasks.spawn("bench producer", async move {
                let _ = results.send(worker.run().await).await;
            });
        }
        drop(results);
        tasks.spawn(
            "bench progress",
            progress(acknowledged, u64::from(self.args.size)),
        );
        let mut total = Tally::new()?;
        for _ in 0..self.args.producers {
            match collected.recv().await {
                Some(Ok(tally)) => total.add(&tally)?,
                Some(Err(error)) => return Err(error),
                None => {
                    return Err(Failure::Failed(
                        "a bench producer ended without a result".to_owned(),
                    ));
                }
            }
        }
        tasks.stop().await;
        Ok(total.phase(rate, started, u64::from(self.args.size)))
    }

    fn worker(
        &self,
        number: u16,
        rate: Rate,
        until: Instant,
        acknowledged: Arc<AtomicU64>,
    ) -> Result<Worker, Failure> {
        let config = ProducerConfig {
            acks: match self.args.acks {
                AcksName::All => Acks::All,
                AcksName::Leader => Acks::Leader,
                AcksName::None => Acks::None,
            },
            codec: self.args.codec.codec(),
            batch_bytes: usize::try_from(self.args.batch_bytes).unwrap_or(1_000_000),
            linger: self.args.linger,
            ..ProducerConfig::default()
        };
        let size = usize::try_from(self.args.size).unwrap_or(1000);
        Ok(Worker {
            producer: Producer::start(self.cluster.separate(), config, self.world.clock.clone())?,
            topic: self.args.topic.clone(),
            payload: Payload::new(size, self.args.seed.wrapping_add(u64::from(number))),
            pace: match rate {
                Rate::Max => None,
                Rate::PerSecond(records) => Some(records / f64::from(self.args.producers)),
            },
            until,
            acknowledged,
        })
    }
}

/// One producer of a phase.
struct Worker {
    producer: Producer,
    topic: String,
    payload: Payload,
    pace: Option<f64>,
    until: Instant,
    acknowledged: Arc<AtomicU64>,
}

/// Records of one batch, with the times they were sent.
struct Run {
    batch: Delivery,
    sent: Vec<Instant>,
}

impl Worker {
    async fn run(mut self) -> Result<Tally, Failure> {
        let (runs, waiting) = mpsc::channel(4096);
        let acknowledged = Arc::clone(&self.acknowledged);
        let collect = collect(waiting, acknowledged);
        let feed = async {
            let fed = self.feed(&runs).await;
            // What is open is flushed; failures are counted by the collector.
            let _ = self.producer.flush().await;
            drop(runs);
            fed
        };
        let (fed, tally) = tokio::join!(feed, tokio::spawn(collect));
        let mut tally = tally.map_err(|error| Failure::Failed(error.to_string()))??;
        if let Err(error) = fed {
            tally.fail(1, &error.to_string());
        }
        Ok(tally)
    }

    async fn feed(&mut self, runs: &mpsc::Sender<Run>) -> Result<(), Error> {
        let started = Instant::now();
        let mut filling: BTreeMap<i32, Run> = BTreeMap::new();
        let mut count: u32 = 0;
        let mut result = Ok(());
        loop {
            let mut now = Instant::now();
            if let Some(pace) = self.pace {
                let due = started + Duration::from_secs_f64(f64::from(count) / pace);
                if due > now {
                    tokio::time::sleep_until(due).await;
                    now = Instant::now();
                }
            }
            if now >= self.until {
                break;
            }
            let record = NewRecord {
                topic: &self.topic,
                value: Some(self.payload.value()),
                ..NewRecord::default()
            };
            let delivery = match self.producer.send(record).await {
                Ok(delivery) => delivery,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            };
            count = count.saturating_add(1);
            match filling.get_mut(&delivery.partition()) {
                Some(run) if run.batch.same_batch(&delivery) => run.sent.push(now),
                slot => {
                    let room = slot.map_or(64, |run| run.sent.len());
                    let mut sent = Vec::with_capacity(room);
                    sent.push(now);
                    if let Some(full) = filling.insert(
                        delivery.partition(),
                        Run {
                            batch: delivery,
                            sent,
                        },
                    ) {
                        let _ = runs.send(full).await;
                    }
                }
            }
        }
        for run in filling.into_values() {
            let _ = runs.send(run).await;
        }
        result
    }
}

/// Waits for batches in the order they were filled.
async fn collect(
    mut runs: mpsc::Receiver<Run>,
    acknowledged: Arc<AtomicU64>,
) -> Result<Tally, Failure> {
    let mut tally = Tally::new()?;
    while let Some(run) = runs.recv().await {
        let count = u64::try_from(run.sent.len()).unwrap_or(0);
        match run.batch.wait().await {
            Ok(ack) => {
                for sent in run.sent {
                    let micros = u64::try_from(ack.at.saturating_duration_since(sent).as_micros())
                        .unwrap_or(u64::MAX);
                    tally.latency.saturating_record(micros.max(1));
                }
                tally.records += count;
                tally.batches += 1;
                tally.ended = Some(tally.ended.map_or(ack.at, |ended| ended.max(ack.at)));
                acknowledged.fetch_add(count, Ordering::Relaxed);
            }
            Err(failed) => tally.fail(count, &failed.to_string()),
        }
    }
    Ok(tally)
}

async fn progress(acknowledged: Arc<AtomicU64>, size: u64) {
    let every = Duration::from_secs(5);
    let mut before = 0;
    loop {
        tokio::time::sleep(every).await;
        let now = acknowledged.load(Ordering::Relaxed);
        let rate = megabytes_per_second((now - before) * size, every.as_secs_f64());
        output::say(&format!("{now} records acknowledged, {rate:.1} MB/s"));
        before = now;
    }
}

struct Tally {
    records: u64,
    batches: u64,
    errors: u64,
    first_error: Option<String>,
    latency: Histogram<u64>,
    ended: Option<Instant>,
}

impl Tally {
    fn new() -> Result<Self, Failure> {
        let latency = Histogram::new_with_bounds(1, LATENCY_MAX_US, 3)
            .map_err(|error| Failure::Failed(format!("no histogram: {error}")))?;
        Ok(Self {
            records: 0,
            batches: 0,
            errors: 0,
            first_error: None,
            latency,
            ended: None,
        })
    }

    fn fail(&mut self, count: u64, error: &str) {
        self.errors += count;
        self.first_error.get_or_insert_with(|| error.to_owned());
    }

    fn add(&mut self, other: &Self) -> Result<(), Failure> {
        self.records += other.records;
        self.batches += other.batches;
        self.errors += other.errors;
        if self.first_error.is_none() {
            self.first_error.clone_from(&other.first_error);
        }
        self.ended = self.ended.max(other.ended);
        self.latency
            .add(&other.latency)
            .map_err(|error| Failure::Failed(format!("no histogram: {error}")))
    }

    fn phase(&self, rate: Rate, started: Instant, size: u64) -> Phase {
        let seconds = self.ended.map_or(0.0, |ended| {
            ended.saturating_duration_since(started).as_secs_f64()
        });
        let bytes = self.records * size;
        Phase {
            target_records_per_s: match rate {
                Rate::Max => None,
                Rate::PerSecond(records) => Some(records),
            },
            seconds,
            records: self.records,
            errors: self.errors,
            first_error: self.first_error.clone(),
            mb_per_s: megabytes_per_second(bytes, seconds),
            records_per_s: per_second(self.records, seconds),
            batch_bytes_mean: bytes.checked_div(self.batches).unwrap_or(0),
            latency_ms: Latency {
                p50: millis(self.latency.value_at_quantile(0.5)),
                p95: millis(self.latency.value_at_quantile(0.95)),
                p99: millis(self.latency.value_at_quantile(0.99)),
                max: millis(self.latency.max()),
            },
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "microseconds below 10 minutes")]
fn millis(micros: u64) -> f64 {
    micros as f64 / 1000.0
}

fn disk_failure(error: &std::io::Error) -> Failure {
    Failure::Failed(format!("cannot measure the disk: {error}"))
}

async fn disk_before(directory: &Path, block: usize, seed: u64) -> Result<(Disk, f64), Failure> {
    output::say("measuring the disk");
    let directory = directory.to_owned();
    let measured = tokio::task::spawn_blocking(move || {
        let mut disk = Disk::prepare(&directory, Payload::new(1 << 20, seed).value())?;
        let (bytes, seconds) = disk.measure(Payload::new(block, seed).value(), DISK_TIME)?;
        Ok((disk, megabytes_per_second(bytes, seconds)))
    });
    measured
        .await
        .map_err(|error| Failure::Failed(error.to_string()))?
        .map_err(|error| disk_failure(&error))
}

async fn disk_after(
    mut disk: Disk,
    block: usize,
    before: f64,
    seed: u64,
    produced: f64,
) -> Result<DiskReport, Failure> {
    output::say("measuring the disk again");
    let measured = tokio::task::spawn_blocking(move || {
        disk.measure(Payload::new(block, seed).value(), DISK_TIME)
    });
    let (bytes, seconds) = measured
        .await
        .map_err(|error| Failure::Failed(error.to_string()))?
        .map_err(|error| disk_failure(&error))?;
    let after = megabytes_per_second(bytes, seconds);
    let mean = f64::midpoint(before, after);
    Ok(DiskReport {
        write_bytes: u64::try_from(block).unwrap_or(u64::MAX),
        before_mb_per_s: before,
        after_mb_per_s: after,
        mb_per_s: mean,
        produce_to_disk: if mean > 0.0 { produced / mean } else { 0.0 },
    })
}

fn print(report: &Report) -> Result<(), Failure> {
    let row = |name: &str, phase: &Phase| {
        vec![
            name.to_owned(),
            format!("{:.1}", phase.mb_per_s),
            format!("{:.0}", phase.records_per_s),
            format!("{:.1}", phase.latency_ms.p50),
            format!("{:.1}", phase.latency_ms.p95),
            format!("{:.1}", phase.latency_ms.p99),
            format!("{:.1}", phase.latency_ms.max),
            phase.batch_bytes_mean.to_string(),
            phase.errors.to_string(),
        ]
    };
    let mut rows = vec![row("full", &report.full)];
    rows.extend(
        report
            .half_rate
            .as_ref()
            .map(|phase| row("half rate", phase)),
    );
    output::table(
        &[
            "PHASE",
            "MB/S",
            "RECORDS/S",
            "P50-MS",
            "P95-MS",
            "P99-MS",
            "MAX-MS",
            "BATCH-BYTES",
            "ERRORS",
        ],
        &rows,
    )?;
    if let Some(disk) = &report.disk {
        output::data(&format!(
            "\ndisk: {:.1} MB/s before, {:.1} MB/s after ({} bytes a write, fdatasync each); produce reached {:.0} % of it\n",
            disk.before_mb_per_s,
            disk.after_mb_per_s,
            disk.write_bytes,
            disk.produce_to_disk * 100.0
        ))?;
    }
    Ok(())
}
