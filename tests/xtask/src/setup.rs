//! Brings onto the machine what the tests need beyond Rust and Python 3.
//!
//! Owns: Debian packages, the Python environment of the client tests, the check for Rust's tools.
//! Not here: running tests (`steps`).
//! Spec: CONTRIBUTING.md

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::steps::{checked, root};

/// Debian packages, each with the command that succeeds when it is there.
const PACKAGES: &[(&str, &[&str])] = &[
    ("kcat", &["kcat", "-V"]),
    // Gives one broker of the client tests another clock.
    ("faketime", &["faketime", "-f", "+1h", "true"]),
    ("python3-venv", &["python3", "-c", "import ensurepip, venv"]),
];

pub(crate) fn system_packages() -> Result<()> {
    let missing: Vec<&str> = PACKAGES
        .iter()
        .filter(|(_, probe)| !succeeds(probe))
        .map(|(package, _)| *package)
        .collect();
    if missing.is_empty() {
        println!("all there");
        return Ok(());
    }
    let list = missing.join(" ");
    if !succeeds(&["apt-get", "--version"]) {
        bail!("missing: {list}. Install them with this system's package manager and run again");
    }
    println!("installing {list}");
    apt_get(&["update", "-q"])?;
    let mut install = vec!["install", "-y", "-q", "--no-install-recommends"];
    install.extend(&missing);
    apt_get(&install).with_context(|| format!("install {list} by hand and run again"))?;
    for (package, probe) in PACKAGES {
        if !succeeds(probe) {
            bail!("{package} is installed but {probe:?} still fails");
        }
    }
    Ok(())
}

fn apt_get(arguments: &[&str]) -> Result<()> {
    let mut command = if rustix::process::geteuid().is_root() {
        Command::new("apt-get")
    } else if succeeds(&["sudo", "-n", "true"]) {
        let mut sudo = Command::new("sudo");
        sudo.args(["-n", "DEBIAN_FRONTEND=noninteractive", "apt-get"]);
        sudo
    } else {
        bail!(
            "neither root nor sudo without a password: run `apt-get {}` as root",
            arguments.join(" ")
        );
    };
    command
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null());
    checked(&mut command)
}

pub(crate) fn rust_components() -> Result<()> {
    for (component, probe) in [("rustfmt", "fmt"), ("clippy", "clippy")] {
        if !succeeds(&["cargo", probe, "--version"]) {
            println!("adding {component}");
            checked(Command::new("rustup").args(["component", "add", component])).with_context(
                || format!("this Rust has no {component}: install it and run again"),
            )?;
        }
    }
    Ok(())
}

/// Makes the environment when it is missing, and anew when the requirements or the Python changed.
/// Two runs at the same time wait for each other.
pub(crate) fn python_environment() -> Result<()> {
    let venv = venv()?;
    let parent = venv.parent().context("the cache folder has no parent")?;
    std::fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
    let guard = File::create(parent.join("venv.lock"))?;
    guard.lock()?;

    let requirements = root().join("tests/clients/requirements.txt");
    let wanted = wanted_stamp(&requirements)?;
    let stamp = venv.join("tidelog-requirements");
    if std::fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
        println!("{} is up to date", venv.display());
        return Ok(());
    }
    println!("making {}", venv.display());
    checked(
        Command::new("python3")
            .args(["-m", "venv", "--clear"])
            .arg(&venv),
    )?;
    checked(
        Command::new(venv.join("bin/python"))
            .args(["-m", "pip", "install", "--quiet", "--no-input"])
            .args(["--disable-pip-version-check", "--requirement"])
            .arg(&requirements),
    )?;
    std::fs::write(&stamp, wanted).context("stamp of the Python environment")
}

fn wanted_stamp(requirements: &Path) -> Result<String> {
    let version = Command::new("python3").arg("--version").output()?;
    let text = std::fs::read_to_string(requirements)?;
    Ok(format!(
        "{}{text}",
        String::from_utf8_lossy(&version.stdout)
    ))
}

/// `$XDG_CACHE_HOME/tidelog/venv`, or the same under `~/.cache`.
pub(crate) fn venv() -> Result<PathBuf> {
    let cache = match std::env::var_os("XDG_CACHE_HOME").filter(|v| !v.is_empty()) {
        Some(cache) => PathBuf::from(cache),
        None => std::env::home_dir()
            .context("no home directory: set XDG_CACHE_HOME")?
            .join(".cache"),
    };
    Ok(cache.join("tidelog/venv"))
}

fn succeeds(command: &[&str]) -> bool {
    let Some((program, arguments)) = command.split_first() else {
        return false;
    };
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
