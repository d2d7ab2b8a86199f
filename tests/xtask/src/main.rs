//! `cargo xtask`: the one command that checks everything.
//!
//! Owns: the list of steps and their order, the summary, the exit code.
//! Not here: how a step is run (`run`), what the machine needs (`setup`), the tests themselves.
//! Spec: CONTRIBUTING.md

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool talks to its user"
)]

mod mutants;
mod numbers;
mod run;
mod setup;
mod sim;
mod soak;
mod steps;

use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask test             set up what the tests need, then run all of them
cargo xtask setup            only the set up: packages, Python environment
cargo xtask lint             cargo fmt --check and clippy, warnings are errors
cargo xtask fmt              format the code
cargo xtask clients [NAME]…  only the client tests (all, or those named)
cargo xtask cluster [NAME]…  only the cluster scenarios (all, or those named)
cargo xtask failover [--kills N] [--seed S]
                             how long writes pause when a leader is killed or paused: N faults (20), about ten seconds each
cargo xtask soak [--kills N] [--seed S] [--lanes L] [NAME]…
                             a replica move with 5 GiB in the store (6 GiB of disk), every cluster scenario with 100 faults,
                             then N kills of leaders (1000), L runs beside each other (one for each core): hours;
                             or only the scenarios named, with 100 faults each
cargo xtask sim [--seeds N] [--seed S] [--minutes M]
                             whole clusters on simulated time, everything around them failing: the kept plans, then N seeds (200)
                             from S (1) on, or as many as go into M minutes
cargo xtask sim --mutants [--seeds N] [--seed S]
                             whether it finds the faults that are put into the code on purpose: N seeds (30) for each
cargo xtask numbers [--brokers 1|3] [--rounds N] [--dir DIR] [--elsewhere DIR]
                             measure the README's table of one broker, or of three: a few minutes a round, on a machine that does nothing else.
                             DIR is on the disk that is measured, the other (/dev/shm) on another device";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let steps = match words.as_slice() {
        ["test"] => steps::test(),
        ["setup"] => steps::setup(),
        ["lint"] => steps::lint(),
        ["fmt"] => steps::fmt(),
        ["clients", names @ ..] => steps::clients(names),
        ["cluster", names @ ..] => steps::cluster(names),
        ["failover", words @ ..] => match soak::Settings::parse(words, 20) {
            Some(settings) if settings.names.is_empty() => steps::failover(settings),
            _ => {
                eprintln!("{USAGE}");
                return ExitCode::from(2);
            }
        },
        ["soak", words @ ..] => match soak::Settings::parse(words, 1000) {
            Some(settings) => steps::soak(settings),
            None => {
                eprintln!("{USAGE}");
                return ExitCode::from(2);
            }
        },
        ["sim", words @ ..] => match sim::Settings::parse(words) {
            Some(settings) => steps::sim(settings),
            None => {
                eprintln!("{USAGE}");
                return ExitCode::from(2);
            }
        },
        ["numbers", words @ ..] => match numbers::Settings::parse(words) {
            Some(settings) => steps::numbers(settings),
            None => {
                eprintln!("{USAGE}");
                return ExitCode::from(2);
            }
        },
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run::all(&steps) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
