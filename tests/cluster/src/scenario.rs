//! One scenario from its start to its end.
//!
//! Owns: the runtime, the limit of time, the seed, the number of rounds, what a failure says.
//! Not here: the scenarios.

use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::rig::Rig;

/// A scenario of few rounds takes seconds; this only ends one that hangs. Each round more gets [`ROUND`].
const LIMIT: Duration = Duration::from_secs(180);
/// A start on a busy machine, with patience.
const ROUND: Duration = Duration::from_secs(60);

/// Runs a scenario on a rig of `brokers` brokers, of which none is started.
///
/// # Errors
/// What the scenario says, that it takes too long, or that a broker complained in its log; with the end of each broker's log,
/// what the checker finds in the history so far, and the folder, which is kept.
pub fn run(
    name: &str,
    brokers: i32,
    scenario: impl AsyncFnOnce(&mut Rig) -> Result<()>,
) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let limit = LIMIT + ROUND.saturating_mul(rounds(0)?);
        let mut rig = Rig::new(name, brokers).await?;
        let ended = tokio::time::timeout(limit, scenario(&mut rig)).await;
        let result = ended.unwrap_or_else(|_| Err(anyhow!("{name} takes more than {limit:?}")));
        match result.and_then(|()| rig.in_order()) {
            Ok(()) => Ok(()),
            Err(error) => Err(rig.failed(error)),
        }
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

/// Random moments, from `CLUSTER_SEED`.
pub struct Dice(StdRng);

impl Dice {
    /// The same seed gives the same moments; what the brokers do in them differs.
    ///
    /// # Errors
    /// The variable is no number.
    pub fn new() -> Result<Self> {
        let seed = number("CLUSTER_SEED", 1).context("seed")?;
        Ok(Self(StdRng::seed_from_u64(seed)))
    }

    /// Lets a random time pass.
    pub async fn moment(&mut self, ms: Range<u64>) {
        let ms = self.0.random_range(ms);
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
}
