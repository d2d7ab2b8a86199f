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

use crate::run::{OnFailure, Step};
use crate::setup;

pub(crate) fn test() -> Vec<Step> {
    let mut steps = setup();
    steps.extend(lint());
    steps.push(step("build", OnFailure::Stop, build));
    steps.push(step("rust tests", OnFailure::GoOn, || {
        cargo(&["test", "--workspace", "--no-fail-fast"])
    }));
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
            cargo(&["fmt", "--all", "--check"])
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

fn build() -> Result<()> {
    cargo(&["build", "--workspace", "--all-targets"])
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
    let built = std::env::current_exe()?.with_file_name(program);
    let kept = directory.join(program);
    if std::fs::hard_link(&built, &kept).is_err() {
        std::fs::copy(&built, &kept).with_context(|| format!("copy of {}", built.display()))?;
    }
    Ok(kept)
}

fn cargo(arguments: &[&str]) -> Result<()> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .args(arguments)
        .current_dir(root())
        .env("PATH", path_with_venv()?);
    checked(&mut command)
}

/// The tests find the S3 server of the Python environment before any other.
fn path_with_venv() -> Result<OsString> {
    let old = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(setup::venv()?.join("bin")).chain(std::env::split_paths(&old));
    Ok(std::env::join_paths(all)?)
}

/// Runs the command and turns every exit code but zero into an error.
pub(crate) fn checked(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let status = command
        .status()
        .with_context(|| format!("start of {shown}"))?;
    if !status.success() {
        bail!("{shown}: {status}");
    }
    Ok(())
}

/// The repository's root: two folders above this package.
pub(crate) fn root() -> PathBuf {
    let package =
        std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&package).join("../..")
}
