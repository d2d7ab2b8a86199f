//! `cargo xtask numbers`: measures what the README's table says, several times, and prints the table.
//!
//! Owns: the cases, their order (alternating, so that a busy machine hits all alike), median and spread.
//! Not here: the measurements themselves (`tidelog bench`).
//! Spec: README.md, "Numbers"

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Longest wait for a broker to answer.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// Pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(50);

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

/// What to measure, and where.
pub(crate) struct Settings {
    rounds: usize,
    /// On the disk that is measured.
    dir: Option<PathBuf>,
    /// On another device.
    elsewhere: PathBuf,
}

impl Settings {
    pub(crate) fn parse(words: &[&str]) -> Option<Self> {
        let mut settings = Self {
            rounds: 3,
            dir: None,
            elsewhere: PathBuf::from("/dev/shm"),
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let value = words.next()?;
            match *word {
                "--rounds" => settings.rounds = value.parse().ok().filter(|rounds| *rounds > 0)?,
                "--dir" => settings.dir = Some(PathBuf::from(value)),
                "--elsewhere" => settings.elsewhere = PathBuf::from(value),
                _ => return None,
            }
        }
        Some(settings)
    }
}

/// A row's name and its unit.
type Row = (&'static str, &'static str);

#[derive(Default)]
struct Table(BTreeMap<(usize, usize), (Row, Vec<f64>)>);

impl Table {
    fn add(&mut self, case: usize, at: usize, row: Row, value: f64) {
        let entry = self.0.entry((case, at));
        entry.or_insert_with(|| (row, Vec::new())).1.push(value);
    }

    fn print(&self) {
        println!("| what | median (lowest to highest) |\n|---|---|");
        let mut last = None;
        for ((case, _), ((name, unit), values)) in &self.0 {
            if last.replace(case) != Some(case) {
                println!("| **{}** | |", CASES[*case].name);
            }
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            let (low, high) = (sorted[0], sorted[sorted.len() - 1]);
            let median = sorted[sorted.len() / 2];
            println!("| {name} | {median:.1} {unit} ({low:.1} to {high:.1}) |");
        }
    }
}

/// Builds the release binary with `build`, measures, prints.
pub(crate) fn run(settings: &Settings, binary: &Path) -> Result<()> {
    let home = match &settings.dir {
        Some(dir) => tempfile::tempdir_in(dir),
        None => tempfile::tempdir(),
    }
    .context("a directory on the disk to measure")?;
    let mut table = Table::default();
    for round in 1..=settings.rounds {
        for (at, case) in CASES.iter().enumerate() {
            eprintln!("round {round} of {}: {}", settings.rounds, case.name);
            let store = tempfile::tempdir_in(&settings.elsewhere)
                .with_context(|| format!("a directory in {}", settings.elsewhere.display()))?;
            measure(binary, home.path(), store.path(), (at, case), &mut table)?;
        }
    }
    table.print();
    Ok(())
}

fn measure(
    binary: &Path,
    home: &Path,
    elsewhere: &Path,
    (at, case): (usize, &Case),
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
    let broker = Broker::start(binary, arguments)?;
    table.add(at, 0, ("memory, idle", "MiB"), broker.memory("VmRSS")?);
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
    let number = |path: &str| {
        let value = produce.pointer(path).and_then(Value::as_f64);
        value.with_context(|| format!("{path} is not in the report"))
    };
    table.add(at, 1, ("produce", "MB/s"), number("/full/mb_per_s")?);
    table.add(
        at,
        2,
        ("the disk's limit", "MB/s"),
        number("/disk/mb_per_s")?,
    );
    let share = number("/disk/produce_to_disk")? * 100.0;
    table.add(at, 3, ("share of the disk", "%"), share);
    for (row, name, path) in [
        (4, "half rate, p50", "/half_rate/latency_ms/p50"),
        (5, "half rate, p95", "/half_rate/latency_ms/p95"),
    ] {
        table.add(at, row, (name, "ms"), number(path)?);
    }
    table.add(
        at,
        6,
        ("memory, peak after producing", "MiB"),
        broker.memory("VmHWM")?,
    );
    let rate = |report: &Value| {
        let value = report.get("mb_per_s").and_then(Value::as_f64);
        value.context("mb_per_s is not in the report")
    };
    let hot = broker.json(&["bench", "consume"])?;
    table.add(at, 7, ("consume from hot", "MB/s"), rate(&hot)?);
    broker.json(&["tier", "flush", "--trim-local", "--timeout", "300s"])?;
    let cold = broker.json(&["bench", "consume"])?;
    table.add(at, 8, ("cold read", "MB/s"), rate(&cold)?);
    table.add(
        at,
        9,
        ("memory, peak of all", "MiB"),
        broker.memory("VmHWM")?,
    );
    drop(broker);
    std::fs::remove_dir_all(&data).context("removing the data directory")
}

/// A `tidelog dev` that ends with this value.
struct Broker {
    process: Child,
    binary: PathBuf,
    kafka: String,
    admin: String,
}

impl Broker {
    fn start(binary: &Path, arguments: Vec<OsString>) -> Result<Self> {
        let (kafka, admin) = (free_address()?, free_address()?);
        let process = Command::new(binary)
            .arg("dev")
            .args(arguments)
            .args(["--kafka", &kafka, "--admin", &admin])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("starting {}", binary.display()))?;
        let mut broker = Self {
            process,
            binary: binary.to_owned(),
            kafka,
            admin,
        };
        let begun = Instant::now();
        while broker.json(&["topic", "list"]).is_err() {
            if let Some(status) = broker.process.try_wait()? {
                bail!("the broker ended: {status}");
            }
            if begun.elapsed() > READY_WITHIN {
                bail!("the broker does not answer");
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(broker)
    }

    /// Runs a verb against it; its report.
    fn json(&self, verb: &[&str]) -> Result<Value> {
        let admin = format!("http://{}", self.admin);
        let output = Command::new(&self.binary)
            .args(verb)
            .args(["--bootstrap", &self.kafka, "--admin-url", &admin])
            .args(["--output", "json"])
            .stderr(Stdio::null())
            .output()
            .context("running the binary")?;
        if !output.status.success() {
            bail!("{} failed: {}", verb.join(" "), output.status);
        }
        serde_json::from_slice(&output.stdout)
            .with_context(|| format!("the report of {}", verb.join(" ")))
    }

    /// A line of the process's status, in MiB.
    fn memory(&self, name: &str) -> Result<f64> {
        let path = format!("/proc/{}/status", self.process.id());
        let status = std::fs::read_to_string(&path).with_context(|| path.clone())?;
        let kib = status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .and_then(|rest| rest.split_whitespace().next())
            .and_then(|word| word.parse::<f64>().ok());
        Ok(kib.with_context(|| format!("{name} is not in {path}"))? / 1024.0)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // It may have ended already; then there is nothing to do.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn free_address() -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").context("a free port")?;
    Ok(listener.local_addr()?.to_string())
}
