//! `cargo xtask numbers`: measures what the README's table says, several times, and prints the table.
//!
//! Owns: rounds (all cases in turn, so that a busy machine hits them alike), median and spread.
//! Not here: the cases (`one`, `three`), the measurements themselves (`tidelog bench`).
//! Spec: README.md, "Numbers"

mod broker;
mod one;
mod three;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

/// What to measure, and where.
pub(crate) struct Settings {
    rounds: usize,
    /// On the disk that is measured.
    dir: Option<PathBuf>,
    /// On another device.
    elsewhere: PathBuf,
    /// Three brokers instead of one.
    three: bool,
}

impl Settings {
    pub(crate) fn parse(words: &[&str]) -> Option<Self> {
        let mut settings = Self {
            rounds: 3,
            dir: None,
            elsewhere: PathBuf::from("/dev/shm"),
            three: false,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let value = words.next()?;
            match *word {
                "--rounds" => settings.rounds = value.parse().ok().filter(|rounds| *rounds > 0)?,
                "--dir" => settings.dir = Some(PathBuf::from(value)),
                "--elsewhere" => settings.elsewhere = PathBuf::from(value),
                "--brokers" => {
                    settings.three = *["1", "3"].iter().find(|known| *known == value)? == "3"
                }
                _ => return None,
            }
        }
        Some(settings)
    }
}

/// A row's name and its unit.
type Row = (&'static str, &'static str);
/// Rows of a case, with what each round gave.
type Rows = Vec<(Row, Vec<f64>)>;

/// What is measured: its rows in the order in which they were first told.
#[derive(Default)]
struct Table(Vec<(&'static str, Rows)>);

impl Table {
    fn add(&mut self, case: &'static str, row: Row, value: f64) {
        let rows = entry(&mut self.0, case);
        entry(rows, row).push(value);
    }

    fn print(&self) {
        println!("| what | median (lowest to highest) |\n|---|---|");
        for (case, rows) in &self.0 {
            println!("| **{case}** | |");
            for ((name, unit), values) in rows {
                let mut sorted = values.clone();
                sorted.sort_by(f64::total_cmp);
                let (low, high) = (sorted[0], sorted[sorted.len() - 1]);
                let median = sorted[sorted.len() / 2];
                println!("| {name} | {median:.1} {unit} ({low:.1} to {high:.1}) |");
            }
        }
    }
}

/// The value of a key; a new one comes last.
fn entry<K: PartialEq, V: Default>(list: &mut Vec<(K, V)>, key: K) -> &mut V {
    let at = list.iter().position(|(known, _)| *known == key);
    let at = at.unwrap_or_else(|| {
        list.push((key, V::default()));
        list.len() - 1
    });
    &mut list[at].1
}

/// A number of a report, named by its JSON pointer.
fn number(report: &Value, path: &str) -> Result<f64> {
    let value = report.pointer(path).and_then(Value::as_f64);
    value.with_context(|| format!("{path} is not in the report"))
}

/// Measures with the release binary, prints.
pub(crate) fn run(settings: &Settings, binary: &Path) -> Result<()> {
    let home = match &settings.dir {
        Some(dir) => tempfile::tempdir_in(dir),
        None => tempfile::tempdir(),
    }
    .context("a directory on the disk to measure")?;
    let mut table = Table::default();
    for round in 1..=settings.rounds {
        let elsewhere = tempfile::tempdir_in(&settings.elsewhere)
            .with_context(|| format!("a directory in {}", settings.elsewhere.display()))?;
        eprintln!("round {round} of {}", settings.rounds);
        if settings.three {
            three::measure(binary, home.path(), elsewhere.path(), &mut table)?;
        } else {
            one::measure(binary, home.path(), elsewhere.path(), &mut table)?;
        }
    }
    table.print();
    Ok(())
}
