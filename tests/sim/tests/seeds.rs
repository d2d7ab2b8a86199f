//! A few seeds in every run of the tests. `cargo xtask sim` runs many.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::process::{Child, Command, Stdio};

fn start(arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_tidelog-sim"))
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The last line, and everything, of a run that must go well.
fn told(child: Child) -> (String, String) {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    let last = text.lines().last().unwrap_or_default().to_owned();
    assert!(last.ends_with(" ok"), "{text}\n{errors}");
    (last, text)
}

/// Proves that one broker on a machine that fails loses nothing, doubles nothing, and is live in the end.
#[test]
fn one_broker_keeps_its_promise() {
    let (_, text) = told(start(&["--seed", "6"]));
    assert!(text.contains("fault host.crash"), "{text}");
}

/// Proves the same of three brokers, and that a seed goes the same way twice: every line that a broker logs and every event that a client
/// sees, byte for byte.
#[test]
fn three_brokers_keep_their_promise_the_same_way_twice() {
    let (one, other) = (start(&["--seed", "9"]), start(&["--seed", "9"]));
    let (one, text) = told(one);
    let (other, _) = told(other);
    assert_eq!(one, other);
    assert!(text.contains("fault net.cut"), "{text}");
}

/// A run of this plan.
fn planned(plan: &str) -> (Option<i32>, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plan");
    std::fs::write(&path, plan).unwrap();
    let run = start(&["--plan", path.to_str().unwrap()]);
    let output = run.wait_with_output().unwrap();
    let all = [output.stdout, output.stderr].concat();
    (
        output.status.code(),
        String::from_utf8_lossy(&all).into_owned(),
    )
}

/// Proves that a run can fail: the only disk is lost, with acknowledged records on it, and that is told.
#[test]
fn a_loss_is_told() {
    let calm = "seed 1\nbrokers 1\ntick 10\nbreaking 30000\n";
    let (code, text) = planned(&format!("{calm}at 20000 for 1000 lose-disk 0\n"));
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("failure: "), "{text}");
    let (code, text) = planned(calm);
    assert_eq!(code, Some(0), "{text}");
}

/// Proves that a plan which cannot be carried out is an error, not a run.
#[test]
fn a_wrong_plan_is_no_run() {
    let (code, text) = planned("seed 1\nbrokers 1\ntick 50\nbreaking 1000\nat 1 for 2 kill 7\n");
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("no such broker: kill 7"), "{text}");
}
