//! The long forms of the cluster scenarios: how long a failover takes, and many faults.
//!
//! Owns: their arguments, how many rounds in which runs, running them beside each other.
//! Not here: the scenarios (`tests/cluster`), how they are built (`steps`).
//! Spec: tests/README.md

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::steps::{cargo_command, keep_file};

/// Kills whose history is judged together: every record of it is in memory.
const KILLS_TOGETHER: u32 = 50;
/// Faults of each other scenario.
const ROUNDS: u32 = 100;
/// The scenario that the kills are of.
const KILLS: &str = "three::leader_kills";

/// Sizes of the replica move: what is in the store, and what is not.
pub(crate) const REPLICA_MOVE: [(&str, &str); 2] =
    [("REPLICA_TIERED_MIB", "5120"), ("REPLICA_HOT_MIB", "50")];

/// With what users run: the long forms wait for elections, not for a slow program.
const SCENARIOS: [&str; 8] = [
    "test",
    "--release",
    "--package",
    "tidelog-cluster",
    "--test",
    "scenarios",
    "--no-run",
    "--message-format=json",
];

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) kills: u32,
    pub(crate) seed: u64,
    /// Runs beside each other.
    pub(crate) lanes: usize,
    /// Only scenarios whose name contains one of these; none for all, and the kills.
    pub(crate) names: Vec<String>,
}

/// One run of scenarios.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    name: String,
    rounds: u32,
    seed: u64,
}

impl Settings {
    /// `[--kills N] [--seed S] [--lanes L] [NAME]…`
    pub(crate) fn parse(words: &[&str], kills: u32) -> Option<Self> {
        let lanes = std::thread::available_parallelism().map_or(1, usize::from);
        let mut settings = Self {
            kills,
            seed: 1,
            lanes,
            names: Vec::new(),
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--kills" => settings.kills = words.next()?.parse().ok()?,
                "--seed" => settings.seed = words.next()?.parse().ok()?,
                "--lanes" => settings.lanes = words.next()?.parse().ok()?,
                option if option.starts_with('-') => return None,
                name => settings.names.push(name.to_owned()),
            }
        }
        (settings.kills > 0 && settings.lanes > 0).then_some(settings)
    }

    /// Kills and pauses of leaders, one at a time.
    pub(crate) fn failover(&self) -> Run {
        Run {
            name: "three::failover".to_owned(),
            rounds: self.kills,
            seed: self.seed,
        }
    }

    /// Every scenario with many rounds, then the kills, some at a time; or only the scenarios that were asked for.
    pub(crate) fn soak(&self, scenarios: &[String]) -> Vec<Run> {
        let asked = |name: &&String| {
            self.names.is_empty() || self.names.iter().any(|part| name.contains(part))
        };
        let run = |name: &String| Run {
            name: name.clone(),
            rounds: ROUNDS,
            seed: self.seed,
        };
        let mut runs: Vec<Run> = scenarios.iter().filter(asked).map(run).collect();
        let mut left = if self.names.is_empty() { self.kills } else { 0 };
        while left > 0 {
            let rounds = left.min(KILLS_TOGETHER);
            left -= rounds;
            runs.push(Run {
                name: KILLS.to_owned(),
                rounds,
                seed: self.seed.wrapping_add(u64::from(left)),
            });
        }
        runs
    }
}

impl Run {
    /// What the scenarios read.
    fn environment(&self) -> [(&'static str, OsString); 2] {
        [
            ("CLUSTER_ROUNDS", self.rounds.to_string().into()),
            ("CLUSTER_SEED", self.seed.to_string().into()),
        ]
    }
}

/// The built scenarios, kept where a later build does not replace them.
pub(crate) struct Scenarios {
    folder: TempDir,
    program: PathBuf,
    pub(crate) names: Vec<String>,
}

impl Scenarios {
    pub(crate) fn build() -> Result<Self> {
        let output = cargo_command(&SCENARIOS)?
            .stderr(Stdio::inherit())
            .output()
            .context("building the scenarios")?;
        ensure!(
            output.status.success(),
            "building the scenarios: {}",
            output.status
        );
        let text = String::from_utf8(output.stdout)?;
        let built = text.lines().find_map(executable);
        let built = built.context("cargo names no program of the scenarios")?;
        let folder = tempfile::tempdir().context("temporary directory for the programs")?;
        let program = keep_file(folder.path(), &built)?;
        let listed = Command::new(&program)
            .args(["--list", "--include-ignored"])
            .output()
            .context("listing the scenarios")?;
        let names: Vec<String> = String::from_utf8(listed.stdout)?
            .lines()
            .filter_map(|line| line.strip_suffix(": test"))
            .map(str::to_owned)
            .collect();
        ensure!(!names.is_empty(), "there are no scenarios");
        Ok(Self {
            folder,
            program,
            names,
        })
    }
}

/// The program that a line of cargo's messages says was built from the scenarios.
fn executable(line: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(line).ok()?;
    let of_scenarios = message.pointer("/target/name")?.as_str()? == "scenarios";
    let program = message.get("executable")?.as_str()?;
    of_scenarios.then(|| program.into())
}

/// Runs with the program `broker`, so many beside each other; what each says is printed when it has ended. After a failure
/// none is begun.
pub(crate) fn many(runs: &[Run], scenarios: &Scenarios, broker: &Path, lanes: usize) -> Result<()> {
    ensure!(!runs.is_empty(), "no scenario has such a name");
    let folder = scenarios.folder.path();
    let broker = keep_file(folder, broker)?;
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let lane = || {
        while failures.lock().is_ok_and(|failures| failures.is_empty()) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(run) = runs.get(number) else { return };
            println!("run {} of {}: {run:?}", number + 1, runs.len());
            let report = folder.join(format!("{number}/pauses"));
            if let Err(error) = one(run, &scenarios.program, &broker, &report) {
                println!("run {} failed", number + 1);
                if let Ok(mut failures) = failures.lock() {
                    failures.push(format!("{run:?}: {error:#}"));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..lanes.min(runs.len()) {
            scope.spawn(lane);
        }
    });
    let failures = failures
        .into_inner()
        .map_err(|_| anyhow!("a lane panicked"))?;
    if !failures.is_empty() {
        bail!("{}", failures.join("\n"));
    }
    Ok(())
}

fn one(run: &Run, scenarios: &Path, broker: &Path, report: &Path) -> Result<()> {
    let begun = Instant::now();
    let place = report.parent().context("a folder for the report")?;
    std::fs::create_dir(place)?;
    let output = Command::new(scenarios)
        .args(["--include-ignored", "--exact", &run.name])
        .envs(run.environment())
        .env("TIDELOG_BIN", broker)
        .env("CLUSTER_REPORT", report)
        .output()
        .context("running the scenarios")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        print!("{text}{}", String::from_utf8_lossy(&output.stderr));
        bail!("{}", output.status);
    }
    // A name that matches nothing passes too.
    ensure!(text.contains("test result: ok. 1 passed"), "nothing ran");
    println!(
        "in order: {}, {} faults, seed {}, {} s",
        run.name,
        run.rounds,
        run.seed,
        begun.elapsed().as_secs()
    );
    // A scenario without faults that writes wait for says nothing.
    if let Ok(text) = std::fs::read_to_string(report) {
        print!("{text}");
    }
    // Histories of hours would fill the disk.
    std::fs::remove_dir_all(place).context("removing the reports")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that the scenarios' program is found among cargo's messages.
    #[test]
    fn the_program_is_named() {
        let line = |name, program| {
            format!(
                r#"{{"reason":"compiler-artifact","target":{{"name":"{name}"}},"executable":{program}}}"#
            )
        };
        assert_eq!(executable(&line("scenarios", "null")), None);
        assert_eq!(executable(&line("tidelog", r#""/t/a""#)), None);
        assert_eq!(executable("no message"), None);
        let found = executable(&line("scenarios", r#""/t/scenarios-1""#));
        assert_eq!(found, Some("/t/scenarios-1".into()));
    }

    /// Proves that arguments are read, wrong ones refused, and that a soak has each scenario, and each kill once, under seeds of
    /// their own; named scenarios come without the kills.
    #[test]
    fn kills_are_shared_out() {
        assert_eq!(Settings::parse(&["--kills"], 10), None);
        assert_eq!(Settings::parse(&["--kills", "0"], 10), None);
        assert_eq!(Settings::parse(&["--lanes", "0"], 10), None);
        assert_eq!(Settings::parse(&["--kill", "1"], 10), None);
        let all = ["one::kills".to_owned(), KILLS.to_owned()];
        let runs = |words: &[&str]| {
            let asked = Settings::parse(words, 10);
            asked.map(|asked| asked.soak(&all)).unwrap_or_default()
        };
        let asked = runs(&["--seed", "7", "--kills", "120"]);
        let rounds: Vec<u32> = asked.iter().map(|run| run.rounds).collect();
        assert_eq!(rounds, [ROUNDS, ROUNDS, 50, 50, 20]);
        let seeds: std::collections::BTreeSet<u64> =
            asked.iter().skip(2).map(|run| run.seed).collect();
        assert_eq!(seeds.len(), 3);
        let named: Vec<String> = runs(&["one::"]).into_iter().map(|run| run.name).collect();
        assert_eq!(named, ["one::kills"]);
    }
}
