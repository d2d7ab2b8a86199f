//! One scenario from its start to its end.
//!
//! Owns: the runtime, the limit of time, the seed, the number of rounds, what a failure says.
//! Not here: the scenarios.

use std::fmt;
use std::ops::Range;
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::rig::Rig;

/// A scenario of few rounds takes seconds; this only ends one that hangs. Each round more gets [`ROUND`].
const LIMIT: Duration = Duration::from_secs(180);
/// A start on a busy machine, with patience.
const ROUND: Duration = Duration::from_secs(60);

/// Why a scenario failed, as a page to read.
pub struct Failure(String);

// A test prints the error of its function this way.
impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Runs a scenario on a rig of `brokers` brokers, of which none is started. It usually makes its fault `usual` times.
///
/// # Errors
/// What the scenario says, that it takes too long, or that a broker complained in its log; with what the checker finds in the
/// history so far, the end of each broker's log, and the folder, which is kept.
pub fn run(
    name: &str,
    brokers: i32,
    usual: u32,
    scenario: impl AsyncFnOnce(&mut Rig) -> Result<()>,
) -> Result<(), Failure> {
    in_runtime(name, brokers, usual, scenario)
        .unwrap_or_else(|error| Err(Failure(format!("{error:#}"))))
}

/// The outer error: there was no scenario.
fn in_runtime(
    name: &str,
    brokers: i32,
    usual: u32,
    scenario: impl AsyncFnOnce(&mut Rig) -> Result<()>,
) -> Result<Result<(), Failure>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let limit = LIMIT + ROUND.saturating_mul(rounds(usual)?);
        let mut rig = Rig::new(name, brokers).await?;
        let ended = tokio::time::timeout(limit, scenario(&mut rig)).await;
        let result = ended.unwrap_or_else(|_| Err(anyhow!("{name} takes more than {limit:?}")));
        let result = result.and_then(|()| rig.in_order());
        if let (Ok(()), Some(report)) = (&result, std::env::var_os("CLUSTER_REPORT")) {
            rig.report(name, &report)?;
        }
        let again = format!("CLUSTER_SEED={} CLUSTER_ROUNDS={}", seed()?, rounds(usual)?);
        Ok(result.map_err(|error| Failure(format!("{}\n== {again}", rig.failed(&error)))))
    })
}

/// How often a scenario repeats its fault: `CLUSTER_ROUNDS`, or the scenario's own number.
///
/// # Errors
/// The variable is no number.
pub fn rounds(usual: u32) -> Result<u32> {
    number("CLUSTER_ROUNDS", usual)
}

fn number<T: std::str::FromStr>(name: &str, usual: T) -> Result<T> {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .map_err(|_| anyhow!("{name} is no number: {text}")),
        Err(_) => Ok(usual),
    }
}

/// `CLUSTER_SEED`, or a number that is told when a scenario fails.
fn seed() -> Result<u64> {
    static ELSE: LazyLock<u64> = LazyLock::new(|| StdRng::from_os_rng().random_range(0..1_000_000));
    number("CLUSTER_SEED", *ELSE).context("seed")
}

/// Random moments, from `CLUSTER_SEED`.
pub struct Dice(StdRng);

impl Dice {
    /// The same seed gives the same moments; what the brokers do in them differs.
    ///
    /// # Errors
    /// The variable is no number.
    pub fn new() -> Result<Self> {
        Ok(Self(StdRng::seed_from_u64(seed()?)))
    }

    /// One of several.
    pub fn one_of<T: Copy>(&mut self, several: &[T]) -> Option<T> {
        let last = several.len().checked_sub(1)?;
        several.get(self.0.random_range(0..=last)).copied()
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        self.0.random_range(0..end)
    }

    /// Lets a random time pass.
    pub async fn moment(&mut self, ms: Range<u64>) {
        let ms = self.0.random_range(ms);
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::path::PathBuf;

    use anyhow::{bail, ensure};
    use tidelog_check::{Event, Offset, Partition, Reader};

    use super::*;

    // Proves: a scenario that passes leaves nothing behind; one that fails keeps its folder, with the history, and says what it
    // noticed, what the history shows, and where the folder is.
    #[test]
    fn what_is_left_behind() {
        let mut folder = PathBuf::new();
        run("passes", 1, 1, async |rig: &mut Rig| {
            folder = rig.folder().to_owned();
            ensure!(folder.join("broker-1/broker.toml").exists());
            Ok(())
        })
        .unwrap();
        assert!(!folder.exists());
        let failure = run("fails", 1, 1, async |rig: &mut Rig| {
            folder = rig.folder().to_owned();
            rig.recorder().record(Event::Polled {
                reader: Reader(7),
                partition: Partition(0),
                offset: Offset(0),
                value: Vec::new(),
            });
            bail!("on purpose")
        });
        let page = format!("{:?}", failure.unwrap_err());
        let history = std::fs::read_to_string(folder.join("history.txt")).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(page.starts_with("on purpose\n== the history says\n1 violations\n"));
        assert!(page.contains(&format!("== kept: {}\n== CLUSTER_SEED=", folder.display())));
        assert!(history.contains("reader 7 gets offset 0"));
    }

    // Proves: an error in a broker's log fails a scenario that saw nothing wrong.
    #[test]
    fn a_complaint_in_a_log() {
        let mut folder = PathBuf::new();
        let failure = run("complains", 1, 1, async |rig: &mut Rig| {
            folder = rig.folder().to_owned();
            std::fs::write(folder.join("broker-1/log.txt"), "x\n12:00 ERROR ouch\n")?;
            Ok(())
        });
        let page = format!("{:?}", failure.unwrap_err());
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(page.starts_with("broker 1 complained 1 times:\n12:00 ERROR ouch\n"));
    }
}
