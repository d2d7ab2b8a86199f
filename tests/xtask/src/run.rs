//! Runs the steps one after another and sums up.
//!
//! Owns: the timing, the summary, the rule that one failed step fails the run.
//! Not here: what the steps are (`steps`).
//! Spec: CONTRIBUTING.md

use std::time::{Duration, Instant};

use anyhow::Result;

/// What becomes of the run when a step fails.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnFailure {
    /// Later steps cannot work without this one.
    Stop,
    /// Later steps still say something worth knowing.
    GoOn,
}

/// One named thing to do. It failed when it returns an error.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) on_failure: OnFailure,
    pub(crate) action: Box<dyn Fn() -> Result<()>>,
}

struct Outcome {
    name: &'static str,
    took: Duration,
    failure: Option<String>,
}

/// Runs the steps in order; true when every one was run and passed.
pub(crate) fn all(steps: &[Step]) -> Result<bool> {
    let mut outcomes = Vec::new();
    for step in steps {
        println!("\n== {}", step.name);
        let start = Instant::now();
        let failure = (step.action)().err().map(|error| format!("{error:#}"));
        if let Some(why) = &failure {
            println!("== {} FAILED: {why}", step.name);
        }
        let failed = failure.is_some();
        outcomes.push(Outcome {
            name: step.name,
            took: start.elapsed(),
            failure,
        });
        if failed && step.on_failure == OnFailure::Stop {
            break;
        }
    }
    Ok(summary(steps, &outcomes))
}

fn summary(steps: &[Step], outcomes: &[Outcome]) -> bool {
    println!("\n== summary");
    for outcome in outcomes {
        let mark = if outcome.failure.is_none() {
            "ok"
        } else {
            "FAILED"
        };
        println!(
            "{mark:>7}  {:>6.1}s  {}",
            outcome.took.as_secs_f32(),
            outcome.name
        );
    }
    for step in steps.iter().skip(outcomes.len()) {
        println!("not run           {}", step.name);
    }
    let passed = outcomes.iter().filter(|o| o.failure.is_none()).count();
    let failed = steps.len() - passed;
    println!("steps: {passed} passed, {failed} failed");
    failed == 0
}
