//! A `tidelog dev` that is measured.
//!
//! Owns: starting and ending it, running verbs against it, what the system says of its process.
//! Not here: what is measured (`one`, `three`).
//! Spec: README.md, "Numbers"

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
/// How often ports in a row are looked for.
const PORT_TRIES: usize = 100;
/// Ticks of a second in the process's times; Linux fixes it for what it tells.
const TICKS: f64 = 100.0;

/// A `tidelog dev` that ends with this value.
pub(super) struct Broker {
    process: Child,
    binary: PathBuf,
    kafka: String,
    admin: String,
}

impl Broker {
    /// So many brokers in one process, once they answer.
    pub(super) fn start(binary: &Path, brokers: u16, arguments: Vec<OsString>) -> Result<Self> {
        let kafka = free_addresses(brokers)?;
        let admin = free_addresses(brokers)?;
        let peer = free_addresses(brokers)?;
        let process = Command::new(binary)
            .arg("dev")
            .args(arguments)
            .args(["--kafka", &kafka, "--admin", &admin, "--peer", &peer])
            .args(["--brokers", &brokers.to_string()])
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
    pub(super) fn json(&self, verb: &[&str]) -> Result<Value> {
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

    /// Processor time of the process until now, in seconds: its own and the system's for it.
    pub(super) fn cpu_seconds(&self) -> Result<f64> {
        let path = format!("/proc/{}/stat", self.process.id());
        let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
        // The second field is the program's name and may hold blanks; utime and stime are the 14th and 15th.
        let ticks = text.rsplit_once(')').and_then(|(_, rest)| {
            let mut words = rest.split_whitespace().skip(11);
            let user: f64 = words.next()?.parse().ok()?;
            let system: f64 = words.next()?.parse().ok()?;
            Some(user + system)
        });
        Ok(ticks.with_context(|| format!("no times in {path}"))? / TICKS)
    }

    /// A line of the process's status, in MiB.
    pub(super) fn memory(&self, name: &str) -> Result<f64> {
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

/// The first of so many addresses with ports that follow each other, all of them free.
fn free_addresses(count: u16) -> Result<String> {
    for _ in 0..PORT_TRIES {
        let first = TcpListener::bind("127.0.0.1:0").context("a free port")?;
        let port = first.local_addr()?.port();
        let others: Option<Vec<TcpListener>> = (1..count)
            .map(|more| TcpListener::bind(("127.0.0.1", port.checked_add(more)?)).ok())
            .collect();
        if others.is_some() {
            return Ok(format!("127.0.0.1:{port}"));
        }
    }
    bail!("no {count} free ports in a row")
}
