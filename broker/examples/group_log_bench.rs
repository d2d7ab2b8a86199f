//! Measures the group log against the disk itself, in one run: rounds alternate between appends to a `GroupLog` (a window
//! of entries in flight) and plain sequential writes of the log's mean batch size into a pre-written file, each with
//! `fdatasync`. Prints the median and the spread.
//!
//! `cargo run --release -p tidelog --example group_log_bench -- DIR [ENTRY_KIB 64] [WINDOW 16] [MIB_PER_ROUND 256] [ROUNDS 5]`

#![allow(clippy::print_stdout, reason = "a program of the command line")]
#![allow(clippy::disallowed_methods, reason = "it measures the real world")]

use anyhow::Context;
use bytes::Bytes;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use tidelog::log::{EntryKind, GroupLog, GroupLogConfig, LogEntry, LogEnv, NoObserver};
use tidelog_env::disk::OpenMode;
use tidelog_env::{Disk, DiskFile, RealDisk, SystemRandom, Tasks};
use tidelog_model::{ClusterId, LogId, LogIndex, PlacementGroupId, RaftNodeId, Summed, Term};
use tokio::sync::{Semaphore, mpsc};

struct Settings {
    dir: PathBuf,
    entry_bytes: usize,
    window: usize,
    round_bytes: usize,
    rounds: usize,
}

fn settings() -> anyhow::Result<Settings> {
    let mut arguments = std::env::args().skip(1);
    let dir = PathBuf::from(
        arguments
            .next()
            .context("the first argument is an empty directory")?,
    );
    let mut number = |default: usize| arguments.next().map_or(Ok(default), |text| text.parse());
    Ok(Settings {
        dir,
        entry_bytes: number(64)? << 10,
        window: number(16)?,
        round_bytes: number(256)? << 20,
        rounds: number(5)?,
    })
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let settings = settings()?;
    let log = open(&settings.dir).await?;
    // The first round fills and recycles files; it does not count.
    let mut next = log_round(&log, &settings, 0).await?.1;
    let metrics = log.metrics();
    let (bytes, batches) = (metrics.bytes.get(), metrics.batches.get().max(1));
    let batch_bytes = usize::try_from(bytes / batches)?.next_multiple_of(4096);
    let raw = raw_file(&settings.dir.join("raw"), settings.round_bytes)?;
    let (mut log_rates, mut raw_rates) = (Vec::new(), Vec::new());
    for _ in 0..settings.rounds {
        let (rate, after) = log_round(&log, &settings, next).await?;
        next = after;
        log_rates.push(rate);
        raw_rates.push(raw_round(raw.as_ref(), settings.round_bytes, batch_bytes)?);
    }
    let (log_median, raw_median) = (
        print("group log", &mut log_rates),
        print("raw disk", &mut raw_rates),
    );
    println!(
        "ratio {:.2}, batch {} KiB, entries per sync {:.1}, prepared {}, recycled {}",
        log_median / raw_median,
        batch_bytes >> 10,
        ratio(metrics.entries.get(), metrics.syncs.get()),
        metrics.files_prepared.get(),
        metrics.files_recycled.get(),
    );
    log.close().await?;
    Ok(())
}

async fn open(dir: &Path) -> anyhow::Result<GroupLog> {
    let cluster = ClusterId::new(uuid::Uuid::nil());
    let mut config = GroupLogConfig::new(
        dir.join("log"),
        cluster,
        PlacementGroupId::new(1),
        RaftNodeId::new(1),
    );
    config.spare_files = 3;
    let env = LogEnv {
        disk: RealDisk::shared(),
        random: SystemRandom::shared(),
        tasks: Tasks::new(),
        fatal: Arc::new(|failure| println!("{failure}")),
        observer: Arc::new(NoObserver),
    };
    let log = GroupLog::open(config, env).await?;
    spares_ready(&log).await;
    Ok(log)
}

/// Waits until the next round finds its files: what is measured is the steady state, not the making of files.
async fn spares_ready(log: &GroupLog) {
    while log.disk_bytes() < 4 * (128 << 20) {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// Appends one round's bytes with `window` entries in flight, then purges them. MB/s, and the next index.
async fn log_round(log: &GroupLog, settings: &Settings, first: u64) -> anyhow::Result<(f64, u64)> {
    let body = Summed::from(Bytes::from(vec![0x5a; settings.entry_bytes]));
    let dir = Bytes::from_static(&[7; 200]);
    let count = u64::try_from(settings.round_bytes / settings.entry_bytes)?;
    let window = Arc::new(Semaphore::new(settings.window));
    let (failed, mut failures) = mpsc::unbounded_channel();
    let start = Instant::now();
    let mut id = LogId {
        term: Term::new(1),
        index: LogIndex::new(first),
    };
    for index in first..first + count {
        let permit = Arc::clone(&window).acquire_owned().await?;
        let failed = failed.clone();
        id.index = LogIndex::new(index);
        let entry = LogEntry {
            id,
            kind: EntryKind::Command,
            dir: dir.clone(),
            body: body.clone(),
        };
        let done = move |result: std::io::Result<()>| {
            if let Err(error) = result {
                drop(failed.send(error));
            }
            drop(permit);
        };
        log.append(vec![entry], Box::new(done));
    }
    let _all = window.acquire_many(u32::try_from(settings.window)?).await?;
    let rate = megabytes(settings.round_bytes) / start.elapsed().as_secs_f64();
    if let Ok(error) = failures.try_recv() {
        return Err(error.into());
    }
    log.purge(id).await?;
    while log.local_bytes() > 128 << 20 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    spares_ready(log).await;
    Ok((rate, first + count))
}

fn raw_file(path: &Path, length: usize) -> anyhow::Result<Arc<dyn DiskFile>> {
    let file = RealDisk.open(path, OpenMode::CreateNew)?;
    raw_round(file.as_ref(), length, 4 << 20)?;
    Ok(file)
}

fn raw_round(file: &dyn DiskFile, length: usize, batch_bytes: usize) -> anyhow::Result<f64> {
    let batch = vec![0x5a; batch_bytes];
    let start = Instant::now();
    let mut position = 0;
    while position < length {
        file.write_all_at(&[IoSlice::new(&batch)], u64::try_from(position)?)?;
        file.sync_data()?;
        position += batch_bytes;
    }
    Ok(megabytes(position) / start.elapsed().as_secs_f64())
}

#[allow(clippy::cast_precision_loss, reason = "a rate to print")]
fn megabytes(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}

#[allow(clippy::cast_precision_loss, reason = "a ratio to print")]
fn ratio(of: u64, to: u64) -> f64 {
    of as f64 / to.max(1) as f64
}

fn print(name: &str, rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    let middle = rates.get(rates.len() / 2).copied().unwrap_or_default();
    let (low, high) = (
        rates.first().copied().unwrap_or_default(),
        rates.last().copied().unwrap_or_default(),
    );
    println!("{name}: median {middle:.0} MB/s (lowest {low:.0}, highest {high:.0})");
    middle
}
