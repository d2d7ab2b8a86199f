//! The steps of each `cargo xtask` command.
//!
//! Owns: which commands are run, with which arguments.
//! Not here: the order rules and the summary (`run`), the machine's packages (`setup`).
//! Spec: CONTRIBUTING.md
//!
//! Every build here takes the whole workspace with all targets: another selection resolves other
//! features and compiles the shared dependencies a second time.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::numbers;
use crate::run::{OnFailure, Step};
use crate::setup;
use crate::sim;
use crate::soak::{self, Scenarios, Settings};

pub(crate) fn test() -> Vec<Step> {
    let mut steps = setup();
    steps.extend(lint());
    steps.push(step("build", OnFailure::Stop, build));
    steps.push(step("rust tests", OnFailure::GoOn, rust_tests));
    steps.push(step("client tests", OnFailure::GoOn, || first_light(&[])));
    steps
}

pub(crate) fn setup() -> Vec<Step> {
    vec![
        step("system packages", OnFailure::Stop, setup::system_packages),
        step(
            "python environment",
            OnFailure::Stop,
            setup::python_environment,
        ),
    ]
}

pub(crate) fn lint() -> Vec<Step> {
    vec![
        step("rust components", OnFailure::Stop, setup::rust_components),
        step("format", OnFailure::GoOn, || {
            cargo(&["fmt", "--all", "--", "--check", "-l"])
        }),
        step("clippy", OnFailure::GoOn, || {
            cargo(&[
                "clippy",
                "--workspace",
                "--all-targets",
                "--",
                "-D",
                "warnings",
            ])
        }),
    ]
}

pub(crate) fn fmt() -> Vec<Step> {
    vec![step("format", OnFailure::Stop, || cargo(&["fmt", "--all"]))]
}

pub(crate) fn clients(names: &[&str]) -> Vec<Step> {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let mut steps = setup();
    steps.push(step("build", OnFailure::Stop, build));
    steps.push(step("client tests", OnFailure::Stop, move || {
        first_light(&names)
    }));
    steps
}

/// The cluster scenarios only, all or those whose name contains one of the given.
pub(crate) fn cluster(names: &[&str]) -> Vec<Step> {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    vec![
        step("build", OnFailure::Stop, build),
        step("cluster scenarios", OnFailure::Stop, move || {
            scenarios(&names)
        }),
    ]
}

/// Kills and pauses leaders of a cluster under load, and tells how long writes paused.
pub(crate) fn failover(settings: Settings) -> Vec<Step> {
    vec![
        step("release build", OnFailure::Stop, release_build),
        step("failover", OnFailure::Stop, move || {
            let scenarios = Scenarios::build()?;
            soak::many(&[settings.failover()], &scenarios, &release_binary()?, 1)
        }),
    ]
}

/// The long form of the cluster scenarios, all or those whose name contains one of the given.
pub(crate) fn soak(settings: Settings) -> Vec<Step> {
    let mut steps = Vec::new();
    if settings.names.is_empty() {
        steps.push(step("build", OnFailure::Stop, build));
        steps.push(step("replica move", OnFailure::Stop, || {
            let mut command = cargo_command(&REPLICA_MOVE)?;
            checked(command.envs(soak::REPLICA_MOVE))
        }));
    }
    steps.push(step("release build", OnFailure::Stop, release_build));
    steps.push(step("soak", OnFailure::Stop, move || {
        let scenarios = Scenarios::build()?;
        let runs = settings.soak(&scenarios.names);
        soak::many(&runs, &scenarios, &release_binary()?, settings.lanes)
    }));
    steps
}

/// Seeds of the simulation.
pub(crate) fn sim(settings: sim::Settings) -> Vec<Step> {
    vec![
        step("build of the simulation", OnFailure::Stop, || {
            cargo(&SIM_BUILD)
        }),
        step("simulation", OnFailure::Stop, move || simulate(&settings)),
    ]
}

fn simulate(settings: &sim::Settings) -> Result<()> {
    let program = built("release", "tidelog-sim")?;
    sim::run(settings, &program, &root().join("tests/data/seeds"))
}

/// Builds the release binary, then measures with it.
pub(crate) fn numbers(settings: numbers::Settings) -> Vec<Step> {
    vec![
        step("release build", OnFailure::Stop, release_build),
        step("numbers", OnFailure::Stop, move || {
            numbers::run(&settings, &release_binary()?)
        }),
    ]
}

/// Beside the profile's directory that this program was built into.
fn release_binary() -> Result<PathBuf> {
    built("release", "tidelog")
}

/// Where the build of this profile puts a program.
fn built(profile: &str, program: &str) -> Result<PathBuf> {
    let this = std::env::current_exe()?;
    let target = this.parent().and_then(Path::parent);
    let target = target.context("the target directory of this build")?;
    Ok(target.join(profile).join(program))
}

fn step(
    name: &'static str,
    on_failure: OnFailure,
    action: impl Fn() -> Result<()> + 'static,
) -> Step {
    Step {
        name,
        on_failure,
        action: Box::new(action),
    }
}

/// How variables begin that `cargo run` sets for the package that it runs.
const OF_THIS_PACKAGE: [&str; 2] = ["CARGO_MANIFEST_", "CARGO_PKG_"];

const RUST_TESTS: [&str; 5] = [
    "test",
    "--workspace",
    "--no-fail-fast",
    "--",
    "--include-ignored",
];

/// The whole workspace is named, as everywhere; no other package has a target of this name.
const SCENARIOS: [&str; 6] = [
    "test",
    "--workspace",
    "--test",
    "scenarios",
    "--",
    "--include-ignored",
];

/// With crash points and mutants in the brokers' code.
const SIM_BUILD: [&str; 6] = [
    "build",
    "--release",
    "--package",
    "tidelog-sim",
    "--features",
    "breaking",
];

/// What a replica costs on its way, alone on the machine.
const REPLICA_MOVE: [&str; 4] = ["test", "--workspace", "--lib", "replica_moves::"];

fn release_build() -> Result<()> {
    cargo(&["build", "--release", "--package", "tidelog"])
}

fn build() -> Result<()> {
    cargo(&["build", "--workspace", "--all-targets"])
}

/// With an S3 server beside them, for the tests that every kind of store must pass, and the built program, for the cluster
/// scenarios. Those that need one of these, or the Python environment, are ignored elsewhere: here everything runs.
fn rust_tests() -> Result<()> {
    let programs = tempfile::tempdir().context("temporary directory for the programs")?;
    let server = S3::start(&keep(programs.path(), "minio-dev")?, programs.path())?;
    let broker = keep(programs.path(), "tidelog")?;
    let mut command = cargo_command(&RUST_TESTS)?;
    checked(
        command
            .envs(server.environment()?)
            .env("TIDELOG_BIN", broker),
    )
}

fn scenarios(names: &[String]) -> Result<()> {
    let programs = tempfile::tempdir().context("temporary directory for the programs")?;
    let broker = keep(programs.path(), "tidelog")?;
    let mut command = cargo_command(&SCENARIOS)?;
    checked(command.args(names).env("TIDELOG_BIN", broker))
}

/// A SeaweedFS that ends with this value.
struct S3 {
    minio_dev: PathBuf,
    folder: PathBuf,
}

impl S3 {
    fn start(minio_dev: &Path, parent: &Path) -> Result<Self> {
        let server = Self {
            minio_dev: minio_dev.to_owned(),
            folder: parent.join("s3"),
        };
        checked(
            server
                .verb("up")
                .args(["--server", "seaweedfs", "--port", "0"]),
        )?;
        Ok(server)
    }

    fn verb(&self, verb: &str) -> Command {
        let mut command = Command::new(&self.minio_dev);
        command.arg(verb).arg("--data-dir").arg(&self.folder);
        command
    }

    /// What the tests read, from the server's state file (docs/guides/local-s3.md).
    fn environment(&self) -> Result<Vec<(&'static str, String)>> {
        let text = std::fs::read(self.folder.join("minio-dev.json"))?;
        let state: serde_json::Value = serde_json::from_slice(&text)?;
        let field = |name: &str| {
            let value = state.get(name).and_then(serde_json::Value::as_str);
            value
                .map(str::to_owned)
                .with_context(|| format!("no {name} in the state file"))
        };
        Ok(vec![
            (
                "TIDELOG_TEST_S3_URL",
                format!("s3://{}/rust-tests", field("bucket")?),
            ),
            ("TIDELOG_TEST_S3_ENDPOINT", field("endpoint")?),
            ("AWS_ACCESS_KEY_ID", field("access_key")?),
            ("AWS_SECRET_ACCESS_KEY", field("secret_key")?),
            ("AWS_REGION", field("region")?),
        ])
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        if let Err(error) = checked(&mut self.verb("down")) {
            println!("the S3 server of the tests may still run: {error:#}");
        }
    }
}

fn first_light(names: &[String]) -> Result<()> {
    let programs = tempfile::tempdir().context("temporary directory for the programs")?;
    let broker = keep(programs.path(), "tidelog")?;
    let minio_dev = keep(programs.path(), "minio-dev")?;
    let mut command = Command::new(setup::venv()?.join("bin/python"));
    command
        .arg("-u")
        .arg(root().join("tests/clients/first-light"))
        .args(names)
        .env("TIDELOG_BIN", broker)
        .env("MINIO_DEV_BIN", minio_dev);
    checked(&mut command)
}

/// A name of the program that a later build does not replace while the tests use it.
fn keep(directory: &Path, program: &str) -> Result<PathBuf> {
    keep_file(directory, &std::env::current_exe()?.with_file_name(program))
}

pub(crate) fn keep_file(directory: &Path, built: &Path) -> Result<PathBuf> {
    let kept = directory.join(built.file_name().context("a program's name")?);
    if std::fs::hard_link(built, &kept).is_err() {
        std::fs::copy(built, &kept).with_context(|| format!("copy of {}", built.display()))?;
    }
    Ok(kept)
}

fn cargo(arguments: &[&str]) -> Result<()> {
    checked(&mut cargo_command(arguments)?)
}

pub(crate) fn cargo_command(arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .args(arguments)
        .current_dir(root())
        .env("PATH", path_with_venv()?);
    // What `cargo run` says of this package is in the fingerprints of build scripts that ask for it (ring's): with it, this build and
    // one from a shell would compile those crates, and all that use them, again and again in turn.
    let own = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in own.filter(|name| OF_THIS_PACKAGE.iter().any(|own| name.starts_with(own))) {
        command.env_remove(name);
    }
    Ok(command)
}

/// The tests find the S3 server of the Python environment before any other.
fn path_with_venv() -> Result<OsString> {
    let old = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(setup::venv()?.join("bin")).chain(std::env::split_paths(&old));
    Ok(std::env::join_paths(all)?)
}

/// Runs the command and turns every exit code but zero into an error.
pub(crate) fn checked(command: &mut Command) -> Result<()> {
    let shown = shown(command);
    let status = command
        .status()
        .with_context(|| format!("start of {shown}"))?;
    if !status.success() {
        bail!("{shown}: {status}");
    }
    Ok(())
}

/// Program and arguments, without the environment.
fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

/// The repository's root: two folders above this package.
pub(crate) fn root() -> PathBuf {
    let package =
        std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&package).join("../..")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Proves that builds do not see which package runs them.
    #[test]
    fn builds_do_not_know_this_package() {
        assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
        let command = cargo_command(&["build"]).unwrap();
        let removed: Vec<_> = command
            .get_envs()
            .filter(|(_, value)| value.is_none())
            .collect();
        assert!(
            removed
                .iter()
                .any(|(name, _)| *name == "CARGO_MANIFEST_DIR")
        );
        assert!(removed.iter().all(|(name, _)| *name != "CARGO_TARGET_DIR"));
    }

    /// Proves that the run of everything takes the tests that are ignored elsewhere.
    #[test]
    fn nothing_is_left_out() {
        assert!(
            RUST_TESTS.contains(&"--workspace") && RUST_TESTS.ends_with(&["--include-ignored"])
        );
    }
}
