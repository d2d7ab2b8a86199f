//! One broker, as in the README's first table.
//!
//! Owns: its cases and their rows.
//! Not here: median and spread, the broker's process.
//! Spec: README.md, "Numbers"

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, Result};

use super::broker::Broker;
use super::{Table, number};

/// How a broker is set up.
struct Case {
    name: &'static str,
    /// The store lies on another device than the log.
    elsewhere: bool,
}

const CASES: [Case; 2] = [
    Case {
        name: "store on the log's disk, first minute",
        elsewhere: false,
    },
    Case {
        name: "store elsewhere, log files recycled",
        elsewhere: true,
    },
];

/// One round of each case.
pub(super) fn measure(
    binary: &Path,
    home: &Path,
    elsewhere: &Path,
    table: &mut Table,
) -> Result<()> {
    for case in &CASES {
        let store = tempfile::tempdir_in(elsewhere).context("a directory for the store")?;
        measure_case(binary, home, store.path(), case, table)?;
    }
    Ok(())
}

fn measure_case(
    binary: &Path,
    home: &Path,
    elsewhere: &Path,
    case: &Case,
    table: &mut Table,
) -> Result<()> {
    let data = home.join("data");
    let mut arguments: Vec<OsString> = vec!["--data-dir".into(), data.clone().into()];
    if case.elsewhere {
        let mut url = OsString::from("file://");
        url.push(elsewhere);
        arguments.extend(["--store".into(), url]);
        for setting in [
            "tier.upload-bytes-per-second=1000000000",
            "tier.local-bytes=268435456",
        ] {
            arguments.extend(["--set".into(), setting.into()]);
        }
    }
    let broker = Broker::start(binary, 1, arguments)?;
    let mut add = |name, unit, value| table.add(case.name, (name, unit), value);
    add("memory, idle", "MiB", broker.memory("VmRSS")?);
    if case.elsewhere {
        broker.json(&["bench", "produce", "--duration", "10s"])?;
    }
    let disk = home.to_str().context("the directory's name is no text")?;
    let produce = broker.json(&[
        "bench",
        "produce",
        "--duration",
        "10s",
        "--half-rate",
        "--disk-dir",
        disk,
    ])?;
    for (name, unit, path) in [
        ("produce", "MB/s", "/full/mb_per_s"),
        ("the disk's limit", "MB/s", "/disk/mb_per_s"),
    ] {
        add(name, unit, number(&produce, path)?);
    }
    let share = number(&produce, "/disk/produce_to_disk")? * 100.0;
    add("share of the disk", "%", share);
    for (name, path) in [
        ("half rate, p50", "/half_rate/latency_ms/p50"),
        ("half rate, p95", "/half_rate/latency_ms/p95"),
    ] {
        add(name, "ms", number(&produce, path)?);
    }
    add(
        "memory, peak after producing",
        "MiB",
        broker.memory("VmHWM")?,
    );
    let hot = broker.json(&["bench", "consume"])?;
    add("consume from hot", "MB/s", number(&hot, "/mb_per_s")?);
    broker.json(&["tier", "flush", "--trim-local", "--timeout", "300s"])?;
    let cold = broker.json(&["bench", "consume"])?;
    add("cold read", "MB/s", number(&cold, "/mb_per_s")?);
    add("memory, peak of all", "MiB", broker.memory("VmHWM")?);
    drop(broker);
    std::fs::remove_dir_all(&data).context("removing the data directory")
}
