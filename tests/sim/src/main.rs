//! One seed of the simulation: a whole cluster in this process, on simulated time.
//!
//! Owns: the command line of one run, its last line for whoever runs many.
//! Not here: running many seeds, making a failing plan smaller (`cargo xtask sim`).
//! Spec: docs/simulation.md

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool talks to its user"
)]

mod breaking;
mod brokers;
mod draw;
mod plan;
mod points;
mod run;
mod trace;
mod work;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use plan::Plan;
use tidelog_env::{CrashPoint, Mutant};
use trace::Trace;

const USAGE: &str = "\
tidelog-sim (--seed N | --plan FILE) [--mutant NAME] [--print-plan] [--log FILTER] [--trace FILE]
  runs one seed, or a plan that was written before; --print-plan only writes the plan
tidelog-sim --list
  the crash points and mutants of the brokers' code, with what each means";

/// What is in a trace, unless asked otherwise.
const FILTER: &str = "info,openraft=error";

struct Asked {
    plan: Plan,
    only_print: bool,
    filter: String,
    trace: Option<String>,
}

fn asked(words: &[String]) -> Result<Asked> {
    let (mut plan, mut only_print, mut trace, mut mutant) = (None, false, None, None);
    let mut filter = FILTER.to_owned();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} what?"));
        match word.as_str() {
            "--seed" => plan = Some(draw::plan(value()?.parse().context("--seed: no number")?)),
            "--plan" => {
                let name = value()?;
                let text = std::fs::read_to_string(name).with_context(|| name.clone())?;
                plan = Some(text.parse().with_context(|| name.clone())?);
            }
            "--mutant" => mutant = Some(value()?.parse().map_err(anyhow::Error::msg)?),
            "--print-plan" => only_print = true,
            "--log" => filter.clone_from(value()?),
            "--trace" => trace = Some(value()?.clone()),
            _ => bail!("{USAGE}"),
        }
    }
    let mut plan: Plan = plan.context(USAGE)?;
    plan.mutant = mutant.or(plan.mutant);
    Ok(Asked {
        plan,
        only_print,
        filter,
        trace,
    })
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words == ["--list"] {
        list();
        return ExitCode::SUCCESS;
    }
    match asked(&words).and_then(|asked| act(&asked)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn list() {
    for point in CrashPoint::ALL {
        println!("point {point} {}", point.meaning().trim());
    }
    for mutant in Mutant::ALL {
        println!("mutant {mutant} {}", mutant.meaning().trim());
    }
}

fn act(asked: &Asked) -> Result<bool> {
    if asked.only_print {
        print!("{}", asked.plan);
        return Ok(true);
    }
    let file = asked
        .trace
        .as_ref()
        .map(std::fs::File::create)
        .transpose()?;
    let (plan, filter) = (asked.plan.clone(), asked.filter.clone());
    let (told, trace) = tidelog_world::entropy::run_seeded(asked.plan.seed, move || {
        let trace = Trace::start(&filter, file)?;
        let told = run::run(&plan, &trace)?;
        anyhow::Ok((told, trace))
    })??;
    for (kind, count) in &told.faults {
        println!("fault {kind} {count}");
    }
    for (point, count) in &told.passed {
        println!("passed {point} {count}");
    }
    if let Some(failure) = &told.failure {
        println!("{}", trace.last());
        println!("failure: {failure}");
    }
    println!(
        "seed {} brokers {} simulated {} ms trace {:016x} lines {} {}",
        asked.plan.seed,
        asked.plan.brokers,
        told.simulated.as_millis(),
        told.trace.0,
        told.trace.1,
        if told.failure.is_some() {
            "FAILED"
        } else {
            "ok"
        }
    );
    Ok(told.failure.is_none())
}
