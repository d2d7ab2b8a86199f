//! One `tidelog broker` process and what can be done to it.
//!
//! Owns: its folder, its log file, start, kill, pause, graceful stop, wipe.
//! Not here: which broker gets what when (`rig`, the scenarios).

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::admin::{self, ClusterView};
use crate::config::Addresses;
use crate::guard::Guard;
use crate::tls::{self, Authority};
use crate::wait::{Waiting, until};

/// From the start of the process to ready, on a busy machine.
const READY: Duration = Duration::from_secs(60);
/// From SIGTERM to the end of the process.
const STOPPED: Duration = Duration::from_secs(30);
/// The last lines of a log that a report shows.
const TAIL_LINES: usize = 40;

/// A broker of the rig; it is killed when this is dropped.
pub struct Broker {
    /// Its id.
    pub id: i32,
    pub(crate) at: Addresses,
    folder: PathBuf,
    child: Option<Child>,
    /// Ends the process if this one is killed.
    guard: Option<Guard>,
    paused: bool,
}

impl Broker {
    /// Not started yet. Its folder will hold `broker.toml`, `data` and `log.txt`.
    pub(crate) fn new(id: i32, at: Addresses, folder: PathBuf) -> Self {
        Self {
            id,
            at,
            folder,
            child: None,
            guard: None,
            paused: false,
        }
    }

    /// Its data directory.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// What it has set aside of its data directory, since it was damaged.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn set_aside(&self) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(self.data())? {
            let entry = entry?;
            if entry
                .file_name()
                .to_string_lossy()
                .starts_with("set-aside-")
            {
                found.push(entry.path());
            }
        }
        Ok(found)
    }

    pub(crate) fn configure(&self, text: &str) -> Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        Ok(std::fs::write(self.folder.join("broker.toml"), text)?)
    }

    /// Gives it a new certificate of `authority`, in the place of the one before.
    pub(crate) fn certify(&self, authority: &Authority) -> Result<()> {
        authority.certify(&self.folder)
    }

    /// Configures TLS of this mode with peers, from its next start on.
    pub(crate) fn secure(&self, mode: &str) -> Result<()> {
        let text = std::fs::read_to_string(self.folder.join("broker.toml"))?;
        self.configure(&tls::configured(&text, &self.folder, mode))
    }

    pub(crate) fn log_path(&self) -> PathBuf {
        self.folder.join("log.txt")
    }

    /// Starts the process; it is not ready yet.
    pub(crate) fn start(&mut self) -> Result<()> {
        ensure!(self.child.is_none(), "broker {} runs already", self.id);
        let mut log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_path())?;
        writeln!(log, "--- start")?;
        let program = program()?;
        let mut command = Command::new(&program);
        command
            .arg("broker")
            .arg("--config")
            .arg(self.folder.join("broker.toml"))
            .env_clear()
            .envs(std::env::vars_os().filter(|(name, _)| {
                let name = name.to_string_lossy();
                !name.starts_with("TIDELOG_") && !name.starts_with("AWS_")
            }))
            .envs(std::env::var_os("CLUSTER_LOG").map(|filter| ("TIDELOG_LOG", filter)))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = command
            .spawn()
            .with_context(|| format!("start of {}", program.display()))?;
        let guard = Guard::over(&child);
        self.child = Some(child);
        self.guard = Some(guard?);
        Ok(())
    }

    pub(crate) fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// Whether the process is there and not paused.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.child.is_some() && !self.paused
    }

    /// Fails when the process has ended by itself.
    pub(crate) fn still_running(&mut self) -> Result<()> {
        let id = self.id;
        match self.child()?.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("broker {id} ended by itself: {status}"),
        }
    }

    /// Waits until it says that it is ready.
    pub(crate) async fn ready(&mut self) -> Result<()> {
        let what = format!("broker {} to get ready", self.id);
        until(&what, READY, async || {
            self.still_running()?;
            Ok(match admin::get(&self.at.admin, "/readyz").await {
                Ok((200, _)) => Waiting::Done(()),
                Ok((status, body)) => Waiting::NotYet(format!("{status} {body}")),
                Err(error) => Waiting::NotYet(format!("{error:#}")),
            })
        })
        .await
    }

    /// Whether the process has ended by itself, also before.
    pub(crate) fn has_ended(&mut self) -> Result<bool> {
        let Some(child) = self.child.as_mut() else {
            return Ok(true);
        };
        if child.try_wait()?.is_none() {
            return Ok(false);
        }
        self.child = None;
        self.guard = None;
        Ok(true)
    }

    /// Waits until it says that it is ready, or has ended by itself. Whether it is ready.
    pub(crate) async fn ready_or_ended(&mut self) -> Result<bool> {
        let what = format!("broker {} to get ready or end", self.id);
        until(&what, READY, async || {
            if self.has_ended()? {
                return Ok(Waiting::Done(false));
            }
            Ok(match admin::get(&self.at.admin, "/readyz").await {
                Ok((200, _)) => Waiting::Done(true),
                other => Waiting::NotYet(format!("{other:?}")),
            })
        })
        .await
    }

    /// How often its log says so.
    ///
    /// # Errors
    /// Its log cannot be read.
    pub fn says(&self, what: &str) -> Result<usize> {
        let text = read_lossy(&self.log_path())?;
        Ok(text.lines().filter(|line| line.contains(what)).count())
    }

    /// How often its log says so in a line without `but`.
    ///
    /// # Errors
    /// Its log cannot be read.
    pub fn says_without(&self, what: &str, but: &str) -> Result<usize> {
        let text = read_lossy(&self.log_path())?;
        let lines = text.lines().filter(|line| line.contains(what));
        Ok(lines.filter(|line| !line.contains(but)).count())
    }

    /// What it says of the cluster.
    ///
    /// # Errors
    /// It does not answer in time, or not as documented.
    pub async fn cluster(&self) -> Result<ClusterView> {
        let (status, body) = admin::get(&self.at.admin, "/api/v1/cluster").await?;
        ensure!(status == 200, "broker {}: {status} {body}", self.id);
        admin::cluster_view(&body)
    }

    /// kill -9, also of a paused one.
    pub(crate) fn kill(&mut self) -> Result<()> {
        let mut child = self.child.take().context("the broker does not run")?;
        self.paused = false;
        self.guard = None;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// SIGSTOP: the process is there and does nothing.
    pub(crate) fn pause(&mut self) -> Result<()> {
        self.signal(Signal::STOP)?;
        self.paused = true;
        Ok(())
    }

    /// SIGCONT.
    pub(crate) fn resume(&mut self) -> Result<()> {
        self.signal(Signal::CONT)?;
        self.paused = false;
        Ok(())
    }

    /// SIGTERM; it must end by itself, in time, with exit code 0.
    pub(crate) async fn stop(&mut self) -> Result<()> {
        self.signal(Signal::TERM)?;
        let what = format!("broker {} to stop", self.id);
        let status = until::<ExitStatus>(&what, STOPPED, async || {
            let ended = self.child()?.try_wait()?;
            Ok(ended.map_or(Waiting::NotYet("it runs".to_owned()), Waiting::Done))
        })
        .await?;
        self.child = None;
        self.guard = None;
        ensure!(status.success(), "broker {} stopped with {status}", self.id);
        Ok(())
    }

    /// Removes its data directory, as a lost disk does.
    pub(crate) fn wipe(&self) -> Result<()> {
        ensure!(self.child.is_none(), "broker {} still runs", self.id);
        Ok(std::fs::remove_dir_all(self.data())?)
    }

    fn child(&mut self) -> Result<&mut Child> {
        let id = self.id;
        self.child
            .as_mut()
            .with_context(|| format!("broker {id} does not run"))
    }

    fn signal(&mut self, signal: Signal) -> Result<()> {
        let child = self.child()?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        // The child is not reaped, so its id is nobody else's.
        kill_process(pid.context("a process id")?, signal)?;
        Ok(())
    }

    /// The end of its log, for people.
    pub(crate) fn last_words(&self) -> String {
        let text = read_lossy(&self.log_path()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines.get(lines.len().saturating_sub(TAIL_LINES)..);
        tail.unwrap_or_default().join("\n")
    }

    /// Lines that a broker in good order never writes, killed or not.
    pub(crate) fn complaints(&self) -> Result<Vec<String>> {
        if !self.log_path().exists() {
            // It was never started.
            return Ok(Vec::new());
        }
        let text = read_lossy(&self.log_path())?;
        let bad = |line: &&str| line.contains(" ERROR ") || line.contains("panicked");
        Ok(text.lines().filter(bad).map(str::to_owned).collect())
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.guard = None;
        if let Some(mut child) = self.child.take() {
            // Either it is gone already, or this ends it.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn read_lossy(path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut File::open(path)?, &mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The program that `cargo xtask` built and named.
fn program() -> Result<PathBuf> {
    let path = std::env::var_os("TIDELOG_BIN").map(PathBuf::from);
    let path = path.context("TIDELOG_BIN is not set: run `cargo xtask cluster`")?;
    ensure!(path.is_file(), "TIDELOG_BIN: no file {}", path.display());
    Ok(path)
}
