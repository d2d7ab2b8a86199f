//! Many seeds of the simulation.
//!
//! Owns: its arguments, running seeds beside each other, the sum of what they tell, making the plan of a failing seed smaller.
//! Not here: what one seed does (`tests/sim`).
//! Spec: docs/simulation.md

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::mutants;

/// Seeds of the ordinary run.
const SEEDS: u64 = 200;
/// So many of them run twice.
const TWICE: u64 = 4;
/// In a run of so many seeds every crash point is passed.
const PASSED_BY: u64 = 1000;
/// Runs of smaller plans for one failing seed.
const SMALLER_MAX: u32 = 60;
/// A seed that takes longer hangs: they take seconds.
const HANGS: Duration = Duration::from_secs(300);
/// So many of the slowest are told.
const SLOWEST: usize = 3;
/// How often a running seed is looked at.
const LOOK: Duration = Duration::from_millis(5);
/// Lines of a failing run that are shown.
const SHOWN: usize = 60;

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    seeds: u64,
    first: u64,
    minutes: Option<u64>,
    mutants: bool,
}

/// What one run told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// The last line: everything that must be the same for the same plan.
    line: String,
    pub(crate) simulated: Duration,
    faults: BTreeMap<String, u64>,
    /// Crash points that were passed.
    passed: BTreeMap<String, u64>,
    /// The first line of why it failed.
    pub(crate) failure: Option<String>,
    text: String,
    /// Wall time.
    took: Duration,
}

impl Settings {
    /// `[--mutants] [--seeds N] [--seed S] [--minutes M]`
    pub(crate) fn parse(words: &[&str]) -> Option<Self> {
        let (mutants, words) = match words {
            ["--mutants", rest @ ..] => (true, rest),
            all => (false, all),
        };
        let mut settings = Self {
            seeds: if mutants { mutants::SEEDS } else { SEEDS },
            first: 1,
            minutes: None,
            mutants,
        };
        let mut pairs = words.chunks_exact(2);
        for pair in &mut pairs {
            match pair {
                ["--seeds", number] => settings.seeds = number.parse().ok()?,
                ["--seed", number] => settings.first = number.parse().ok()?,
                ["--minutes", number] => settings.minutes = Some(number.parse().ok()?),
                _ => return None,
            }
        }
        if settings.minutes.is_some() {
            settings.seeds = u64::MAX - settings.first;
        }
        (pairs.remainder().is_empty() && settings.seeds > 0).then_some(settings)
    }

    pub(crate) fn seeds(&self) -> u64 {
        self.seeds
    }

    pub(crate) fn first(&self) -> u64 {
        self.first
    }
}

impl Default for Settings {
    /// Those of the ordinary run.
    fn default() -> Self {
        Self {
            seeds: SEEDS,
            first: 1,
            minutes: None,
            mutants: false,
        }
    }
}

/// Replays the kept plans, then runs seeds, as many at a time as there are cores.
pub(crate) fn run(settings: &Settings, program: &Path, kept: &Path) -> Result<()> {
    if settings.mutants {
        return mutants::run(settings, program);
    }
    let started = Instant::now();
    let plans = plans(kept)?;
    let total = Mutex::new(Total::default());
    each(&plans, |plan| {
        let told = tell(Command::new(program).arg("--plan").arg(plan))?;
        let name = plan.display().to_string();
        lock(&total)?.add(&name, &told);
        Ok(())
    })?;
    let until = settings
        .minutes
        .map(|m| started + Duration::from_secs(60 * m));
    let next = AtomicU64::new(0);
    let seeds = || {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let late = until.is_some_and(|until| Instant::now() >= until);
        (number < settings.seeds && !late).then(|| settings.first + number)
    };
    workers(|| {
        while let Some(seed) = seeds() {
            let told = tell(&mut of_seed(program, seed))?;
            if seed - settings.first < TWICE {
                same(&told, &tell(&mut of_seed(program, seed))?)?;
            }
            lock(&total)?.add(&format!("seed {seed}"), &told);
            if told.failure.is_some() {
                let plan = smaller(program, seed, &told, kept)?;
                println!("its smallest plan that fails so is {}", plan.display());
            }
        }
        Ok(())
    })?;
    lock(&total)?.finish(started.elapsed(), &points(program)?)
}

pub(crate) fn of_seed(program: &Path, seed: u64) -> Command {
    let mut command = Command::new(program);
    command.arg("--seed").arg(seed.to_string());
    command
}

/// Runs `act` on as many threads as there are cores; the first error of each is told.
pub(crate) fn workers(act: impl Fn() -> Result<()> + Sync) -> Result<()> {
    let cores = std::thread::available_parallelism()?.get();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(&act)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| match thread.join() {
                Ok(result) => result,
                Err(_) => bail!("a worker panicked"),
            })
    })
}

fn each(items: &[PathBuf], act: impl Fn(&Path) -> Result<()> + Sync) -> Result<()> {
    let items = Mutex::new(items.iter());
    workers(|| {
        loop {
            let Some(item) = lock(&items)?.next() else {
                return Ok(());
            };
            act(item)?;
        }
    })
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> Result<std::sync::MutexGuard<'_, T>> {
    mutex.lock().ok().context("another worker panicked")
}

/// The plans of seeds that failed once.
fn plans(kept: &Path) -> Result<Vec<PathBuf>> {
    let mut plans = Vec::new();
    for entry in std::fs::read_dir(kept).with_context(|| kept.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "plan") {
            plans.push(path);
        }
    }
    plans.sort();
    Ok(plans)
}

/// The crash points of the program's code.
fn points(program: &Path) -> Result<Vec<String>> {
    listed(program, "point ")
}

/// The names that the program lists as such.
pub(crate) fn listed(program: &Path, kind: &str) -> Result<Vec<String>> {
    let output = Command::new(program).arg("--list").output();
    let text = String::from_utf8(output.context("the program's list")?.stdout)?;
    let names = text
        .lines()
        .filter_map(|line| line.strip_prefix(kind)?.split(' ').next());
    let names: Vec<String> = names.map(str::to_owned).collect();
    ensure!(!names.is_empty(), "the program lists no {kind}");
    Ok(names)
}

/// Runs one seed or plan to its end, or until it hangs.
pub(crate) fn tell(command: &mut Command) -> Result<Told> {
    let output = tempfile::NamedTempFile::new()?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(output.reopen()?)
        .stderr(output.reopen()?)
        .spawn()
        .context("start of the simulation")?;
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if started.elapsed() > HANGS {
            child.kill()?;
            child.wait()?;
            break None;
        }
        std::thread::sleep(LOOK);
    };
    let text = String::from_utf8_lossy(&std::fs::read(output.path())?).into_owned();
    let mut told = parse(text);
    told.took = started.elapsed();
    match status {
        None => told.failure = Some(format!("it hangs: more than {} s", HANGS.as_secs())),
        Some(status) if status.success() && told.failure.is_none() => {
            ensure!(!told.line.is_empty(), "a run that tells nothing");
        }
        Some(status) => {
            told.failure
                .get_or_insert_with(|| format!("it ended with {status}"));
        }
    }
    Ok(told)
}

fn parse(text: String) -> Told {
    let mut told = Told::default();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["fault", kind, count] => {
                let count = count.parse().unwrap_or_default();
                told.faults.insert((*kind).to_owned(), count);
            }
            ["passed", point, count] => {
                let count = count.parse().unwrap_or_default();
                told.passed.insert((*point).to_owned(), count);
            }
            ["failure:", ..] if told.failure.is_none() => told.failure = Some(line.to_owned()),
            ["seed", _, "brokers", _, "simulated", ms, "ms", "trace", ..] => {
                told.simulated = Duration::from_millis(ms.parse().unwrap_or_default());
                told.line = line.to_owned();
            }
            _ => {}
        }
    }
    told.text = text;
    told
}

/// The same plan must go the same way, byte for byte.
fn same(one: &Told, other: &Told) -> Result<()> {
    ensure!(
        one.line == other.line && one.faults == other.faults,
        "the same seed went two ways:\n{}\n{}",
        one.line,
        other.line
    );
    Ok(())
}

/// Leaves out steps of the plan as long as it fails for the same reason, and keeps what is left.
fn smaller(program: &Path, seed: u64, told: &Told, kept: &Path) -> Result<PathBuf> {
    let printed = Command::new(program)
        .args(["--seed", &seed.to_string(), "--print-plan"])
        .output()?;
    let text = String::from_utf8(printed.stdout)?;
    let (head, steps): (Vec<&str>, Vec<&str>) =
        text.lines().partition(|line| !line.starts_with("at "));
    let wanted = reason(told);
    let file = tempfile::NamedTempFile::new()?;
    let fails = |steps: &[&str]| -> Result<bool> {
        let lines: Vec<&str> = head.iter().chain(steps).copied().collect();
        std::fs::write(file.path(), lines.join("\n") + "\n")?;
        let told = tell(Command::new(program).arg("--plan").arg(file.path()))?;
        Ok(reason(&told) == wanted)
    };
    let steps = shrink(steps, SMALLER_MAX, fails)?;
    let path = kept.join(format!("seed-{seed}.plan"));
    let failure = told.failure.as_deref().unwrap_or_default();
    let lines: Vec<&str> = head.iter().chain(&steps).copied().collect();
    std::fs::write(&path, format!("# {failure}\n{}\n", lines.join("\n")))?;
    Ok(path)
}

/// What a failure is about, without the numbers in it.
fn reason(told: &Told) -> String {
    let failure = told.failure.clone().unwrap_or_default();
    let mut reason: String = failure.chars().filter(|c| !c.is_ascii_digit()).collect();
    reason.truncate(
        reason
            .char_indices()
            .nth(160)
            .map_or(reason.len(), |(at, _)| at),
    );
    reason
}

/// Leaves out halves, then quarters, and so on, of `items` as long as `fails` says that what is left fails.
fn shrink(
    items: Vec<&str>,
    runs_max: u32,
    fails: impl Fn(&[&str]) -> Result<bool>,
) -> Result<Vec<&str>> {
    let mut items = items;
    let mut size = items.len().div_ceil(2);
    let mut runs = 0;
    while size > 0 && runs < runs_max {
        let mut at = 0;
        let mut less = false;
        while at < items.len() && runs < runs_max {
            let end = (at + size).min(items.len());
            let rest: Vec<&str> = [&items[..at], &items[end..]].concat();
            runs += 1;
            if fails(&rest)? {
                items = rest;
                less = true;
            } else {
                at = end;
            }
        }
        if !less || size > items.len() {
            size /= 2;
        }
    }
    Ok(items)
}

/// The sum of all runs.
#[derive(Default)]
struct Total {
    runs: u64,
    simulated: Duration,
    faults: BTreeMap<String, u64>,
    passed: BTreeMap<String, u64>,
    failed: Vec<String>,
    took: Vec<(Duration, String)>,
}

impl Total {
    fn add(&mut self, name: &str, told: &Told) {
        self.runs += 1;
        self.took.push((told.took, name.to_owned()));
        self.simulated += told.simulated;
        for (kind, count) in &told.faults {
            *self.faults.entry(kind.clone()).or_default() += count;
        }
        for (point, count) in &told.passed {
            *self.passed.entry(point.clone()).or_default() += count;
        }
        if let Some(failure) = &told.failure {
            let lines: Vec<&str> = told.text.lines().collect();
            let shown = lines.get(lines.len().saturating_sub(SHOWN)..);
            println!(
                "{name} FAILED: {failure}\n{}",
                shown.unwrap_or_default().join("\n")
            );
            self.failed.push(name.to_owned());
        }
    }

    fn finish(&mut self, took: Duration, points: &[String]) -> Result<()> {
        println!("faults that happened:");
        for (kind, count) in &self.faults {
            println!("  {kind:24} {count}");
        }
        println!("crash points passed:");
        for point in points {
            let passed = self.passed.get(point).copied().unwrap_or_default();
            println!("  {point:24} {passed}");
        }
        let hours = self.simulated.as_secs_f64() / 3600.0;
        println!(
            "{} runs, {hours:.1} simulated hours in {:.0} s: {:.0} simulated hours an hour; the slowest:",
            self.runs,
            took.as_secs_f64(),
            hours / (took.as_secs_f64() / 3600.0)
        );
        self.took.sort();
        for (took, name) in self.took.iter().rev().take(SLOWEST) {
            println!("  {:.1} s: {name}", took.as_secs_f64());
        }
        ensure!(
            self.failed.is_empty(),
            "{} of {} failed: {}; replay one with `cargo xtask sim --seeds 1 --seed N`",
            self.failed.len(),
            self.runs,
            self.failed.join(", ")
        );
        let never: Vec<&str> = points
            .iter()
            .filter(|point| !self.passed.contains_key(*point))
            .map(String::as_str)
            .collect();
        ensure!(
            self.runs < PASSED_BY || never.is_empty(),
            "crash points that no seed has passed: {}",
            never.join(", ")
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Proves that arguments are read, and wrong ones refused.
    #[test]
    fn arguments_are_read() {
        let usual = Settings::parse(&[]).unwrap();
        assert_eq!((usual.seeds, usual.first), (SEEDS, 1));
        let asked = Settings::parse(&["--seed", "7", "--seeds", "2"]).unwrap();
        assert_eq!((asked.seeds, asked.first), (2, 7));
        let hunt = Settings::parse(&["--mutants", "--seeds", "5"]).unwrap();
        assert!(hunt.mutants && hunt.seeds == 5);
        assert_eq!(Settings::parse(&[]), Some(Settings::default()));
        let long = Settings::parse(&["--minutes", "60"]).unwrap();
        assert_eq!(long.minutes, Some(60));
        assert!(long.seeds > 1_000_000);
        for wrong in [&["--seeds"][..], &["--seeds", "0"], &["--see", "1"]] {
            assert_eq!(Settings::parse(wrong), None);
        }
    }

    /// Proves that what a run tells is read, and that two ways of the same seed are an error.
    #[test]
    fn runs_are_compared() {
        let text = "fault net.cut 3\nseed 1 brokers 3 simulated 5000 ms trace 0f lines 9 ok\n";
        let told = parse(text.to_owned());
        assert_eq!(told.simulated, Duration::from_secs(5));
        assert_eq!(told.faults.get("net.cut"), Some(&3));
        assert!(told.failure.is_none());
        let other = parse(text.replace("0f", "10"));
        assert!(same(&told, &told.clone()).is_ok());
        assert!(same(&told, &other).is_err());
        assert!(same(&told, &parse(text.replace("cut 3", "cut 4"))).is_err());
        let failed = parse(format!("failure: lost 17 of 20\n{text}"));
        assert_eq!(
            reason(&failed),
            reason(&parse("failure: lost 3 of 9".to_owned()))
        );
        assert_ne!(reason(&failed), reason(&told));
    }

    /// Proves that a plan is made as small as it can be, within the number of runs.
    #[test]
    fn plans_become_smaller() {
        let all = vec!["a", "b", "c", "d", "e", "f", "g"];
        let needs = |wanted: &'static [&str]| {
            move |steps: &[&str]| Ok(wanted.iter().all(|step| steps.contains(step)))
        };
        let two = shrink(all.clone(), 100, needs(&["b", "f"])).unwrap();
        assert_eq!(two, ["b", "f"]);
        assert!(shrink(all.clone(), 100, needs(&[])).unwrap().is_empty());
        assert_eq!(shrink(all.clone(), 0, needs(&[])).unwrap(), all);
    }
}
