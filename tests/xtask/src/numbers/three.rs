//! Three brokers in one process, as in the README's second table.
//!
//! Owns: its cases and their rows.
//! Not here: median and spread, the brokers' process; pauses of a failover (`cargo xtask failover`).
//! Spec: README.md, "Numbers"

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::broker::Broker;
use super::{Table, number};

const DISK: &str = "data on the disk";
const MEMORY: &str = "data elsewhere (tmpfs), at 100 MB/s";
const IDLE: &str = "5,000 partitions, idle";

/// Copies of each byte.
const COPIES: f64 = 3.0;
/// How long nothing happens while the idle brokers are watched.
const WATCHED: Duration = Duration::from_secs(40);

/// One round of each case.
pub(super) fn measure(
    binary: &Path,
    home: &Path,
    elsewhere: &Path,
    table: &mut Table,
) -> Result<()> {
    on_disk(binary, home, table)?;
    at_a_rate(binary, elsewhere, table)?;
    idle(binary, home, table)
}

/// Three brokers with their data in a directory, and what was measured with them; the directory goes with them.
fn with(binary: &Path, home: &Path, act: impl FnOnce(&Broker) -> Result<()>) -> Result<()> {
    let data = tempfile::tempdir_in(home).context("a directory for the data")?;
    let broker = Broker::start(binary, 3, vec!["--data-dir".into(), data.path().into()])?;
    act(&broker)
}

fn on_disk(binary: &Path, home: &Path, table: &mut Table) -> Result<()> {
    let disk = home.to_str().context("the directory's name is no text")?;
    with(binary, home, |broker| {
        let mut add = |name, unit, value| table.add(DISK, (name, unit), value);
        let before = broker.cpu_seconds()?;
        let produce = broker.json(&[
            "bench",
            "produce",
            "--partitions",
            "24",
            "--duration",
            "10s",
            "--half-rate",
            "--disk-dir",
            disk,
        ])?;
        let cpu = broker.cpu_seconds()? - before;
        add("produce", "MB/s", number(&produce, "/full/mb_per_s")?);
        add(
            "the disk's limit",
            "MB/s",
            number(&produce, "/disk/mb_per_s")?,
        );
        let share = number(&produce, "/disk/produce_to_disk")? * COPIES * 100.0;
        add("share of a third of the disk", "%", share);
        for (name, path) in [
            ("half rate, p50", "/half_rate/latency_ms/p50"),
            ("half rate, p95", "/half_rate/latency_ms/p95"),
            ("half rate, p99", "/half_rate/latency_ms/p99"),
        ] {
            add(name, "ms", number(&produce, path)?);
        }
        let mut produced = 0.0;
        for phase in ["full", "half_rate"] {
            produced += number(&produce, &format!("/{phase}/mb_per_s"))?
                * number(&produce, &format!("/{phase}/seconds"))?;
        }
        // The warm-up of each phase is in the time and not in the bytes: this is a little too much.
        add(
            "CPU, all three brokers",
            "s per GB",
            cpu / produced * 1000.0,
        );
        add("memory, peak, all three", "MiB", broker.memory("VmHWM")?);
        Ok(())
    })
}

fn at_a_rate(binary: &Path, elsewhere: &Path, table: &mut Table) -> Result<()> {
    with(binary, elsewhere, |broker| {
        let mut add = |name, unit, value| table.add(MEMORY, (name, unit), value);
        let produce = broker.json(&[
            "bench",
            "produce",
            "--partitions",
            "24",
            "--duration",
            "10s",
            "--rate",
            "100000",
        ])?;
        add("produce", "MB/s", number(&produce, "/full/mb_per_s")?);
        for (name, path) in [
            ("p50", "/full/latency_ms/p50"),
            ("p95", "/full/latency_ms/p95"),
            ("p99", "/full/latency_ms/p99"),
        ] {
            add(name, "ms", number(&produce, path)?);
        }
        Ok(())
    })
}

fn idle(binary: &Path, home: &Path, table: &mut Table) -> Result<()> {
    with(binary, home, |broker| {
        let mut add = |name, unit, value| table.add(IDLE, (name, unit), value);
        for topic in ["idle-1", "idle-2", "idle-3", "idle-4", "idle-5"] {
            broker.json(&["topic", "create", topic, "--partitions", "1000"])?;
        }
        let (before, begun) = (broker.cpu_seconds()?, Instant::now());
        // What is measured is that time passes and nothing happens.
        std::thread::sleep(WATCHED);
        let cpu = broker.cpu_seconds()? - before;
        add(
            "of a core",
            "%",
            cpu / begun.elapsed().as_secs_f64() * 100.0,
        );
        add("memory", "MiB", broker.memory("VmRSS")?);
        Ok(())
    })
}
