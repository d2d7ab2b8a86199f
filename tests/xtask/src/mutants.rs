//! Whether the simulation finds the faults that are put into the code on purpose.
//!
//! Owns: running seeds with each mutant until one fails, the table of what was found.
//! Not here: what a mutant breaks (`tidelog_env::breaking`), one run (`tests/sim`).
//! Spec: docs/simulation.md (mutants)

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::sim::{self, Settings, lock};

/// Seeds that are tried with each mutant, unless asked otherwise.
pub(crate) const SEEDS: u64 = 30;

/// What became of a mutant.
#[derive(Clone, Debug)]
struct Found {
    seed: u64,
    /// Simulated time of the seed that failed.
    simulated: Duration,
    failure: String,
}

/// Every mutant, one after the other; its seeds beside each other. A mutant that no seed finds is an error.
pub(crate) fn run(settings: &Settings, program: &Path) -> Result<()> {
    let mutants = sim::listed(program, "mutant ")?;
    println!("| mutant | found by seed | after (s, all seeds) | simulated (s, that seed) | as |");
    println!("|---|---|---|---|---|");
    let mut missed = Vec::new();
    for mutant in &mutants {
        let started = Instant::now();
        match hunt(settings, program, mutant)? {
            Some(found) => println!(
                "| {mutant} | {} | {} | {} | {} |",
                found.seed,
                started.elapsed().as_secs(),
                found.simulated.as_secs(),
                found.failure.replace('|', "/")
            ),
            None => {
                println!(
                    "| {mutant} | none of {} | {} | | |",
                    settings.seeds(),
                    started.elapsed().as_secs()
                );
                missed.push(mutant.clone());
            }
        }
    }
    println!(
        "{} of {} mutants found",
        mutants.len() - missed.len(),
        mutants.len()
    );
    ensure!(missed.is_empty(), "not found: {}", missed.join(", "));
    Ok(())
}

/// The lowest seed among those that were running when the first one failed.
fn hunt(settings: &Settings, program: &Path, mutant: &str) -> Result<Option<Found>> {
    let next = AtomicU64::new(0);
    let found: Mutex<Option<Found>> = Mutex::new(None);
    sim::workers(|| {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= settings.seeds() || lock(&found)?.is_some() {
                return Ok(());
            }
            let seed = settings.first() + number;
            let told = sim::tell(sim::of_seed(program, seed).args(["--mutant", mutant]))?;
            if let Some(failure) = told.failure {
                let mut found = lock(&found)?;
                if found.as_ref().is_none_or(|other| other.seed > seed) {
                    *found = Some(Found {
                        seed,
                        simulated: told.simulated,
                        failure: failure.chars().take(140).collect(),
                    });
                }
            }
        }
    })?;
    let found = lock(&found)?.clone();
    Ok(found)
}
