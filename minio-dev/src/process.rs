//! A detached server process: start it, recognise it again, end it.
//!
//! Owns: the identity of a process (its id alone is reused by the system), free ports.
//! Not here: which program (`choice`), when it is ready (`up`).
//! Spec: docs/guides/local-s3.md

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// How long a server may take to end after SIGTERM before it gets SIGKILL. SeaweedFS closes its
/// volumes within the first second and then waits for its own streams, which never end.
const TERM_WAIT: Duration = Duration::from_secs(4);
/// How long the system may take to remove a killed process.
const KILL_WAIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(50);

/// A process that can be told from a later one with the same id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) pid: u32,
    /// When it started, as the system tells it; opaque.
    pub(crate) started: String,
}

impl Identity {
    pub(crate) fn of(pid: u32) -> Option<Self> {
        Some(Self {
            pid,
            started: started(pid)?,
        })
    }

    pub(crate) fn is_alive(&self) -> bool {
        started(self.pid).is_some_and(|now| now == self.started)
    }

    /// SIGTERM, and SIGKILL for one that does not listen. Returns when the process is gone.
    pub(crate) async fn end(&self) -> Result<(), Error> {
        for (signal, wait) in [(Signal::TERM, TERM_WAIT), (Signal::KILL, KILL_WAIT)] {
            if !self.is_alive() {
                return Ok(());
            }
            self.signal(signal)?;
            let gone = async {
                while self.is_alive() {
                    tokio::time::sleep(POLL).await;
                }
            };
            if tokio::time::timeout(wait, gone).await.is_ok() {
                return Ok(());
            }
        }
        Err(Error::DidNotEnd {
            pid: self.pid,
            seconds: (TERM_WAIT + KILL_WAIT).as_secs(),
        })
    }

    fn signal(&self, signal: Signal) -> Result<(), Error> {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else {
            return Ok(());
        };
        match rustix::process::kill_process(pid, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(Error::io(format!("signal to process {}", self.pid))(
                error.into(),
            )),
        }
    }
}

/// The start time of a live process; none for one that ended, also when nobody waited for it yet.
#[cfg(target_os = "linux")]
fn started(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may hold blanks and brackets: fields are counted after the last one.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    // Field 22 of proc(5); the state was field 3.
    let start = fields.nth(18)?;
    (!matches!(state, "Z" | "X")).then(|| start.to_owned())
}

#[cfg(not(target_os = "linux"))]
fn started(pid: u32) -> Option<String> {
    let output = Command::new("ps")
        .args(["-o", "stat=,lstart=", "-p", &pid.to_string()])
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (state, start) = text.trim().split_once(' ')?;
    (!state.starts_with('Z')).then(|| start.trim().to_owned())
}

/// Starts the command in a process group of its own, so that Ctrl-C in this terminal does not reach
/// it, with its output appended to `log`.
pub(crate) fn spawn_detached(command: &mut Command, log: &Path) -> Result<Child, Error> {
    let file = File::options()
        .create(true)
        .append(true)
        .open(log)
        .map_err(Error::io(format!("open {}", log.display())))?;
    let copy = file
        .try_clone()
        .map_err(Error::io("second handle of the log"))?;
    command
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(copy)
        .process_group(0);
    let shown = command.get_program().display().to_string();
    command.spawn().map_err(Error::io(format!("start {shown}")))
}

/// The port asked for (0: any), checked to be free, and `more` free ones beside it.
pub(crate) fn free_ports(asked: u16, more: usize) -> Result<(u16, Vec<u16>), Error> {
    let bind = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    let first = bind(asked).map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => Error::PortInUse { port: asked },
        _ => Error::io(format!("listen on 127.0.0.1:{asked}"))(error),
    })?;
    // All are held until all are known, so that none is given twice.
    let rest: Vec<TcpListener> = (0..more)
        .map(|_| bind(0))
        .collect::<Result<_, _>>()
        .map_err(Error::io("find free ports"))?;
    let port = |listener: &TcpListener| listener.local_addr().map(|address| address.port());
    let numbers = rest.iter().map(port).collect::<Result<_, _>>();
    Ok((
        port(&first).map_err(Error::io("read a port"))?,
        numbers.map_err(Error::io("read a port"))?,
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn sleeper() -> Child {
        Command::new("sleep").arg("600").spawn().unwrap()
    }

    // Proves: another process under a recorded id is never signalled.
    #[tokio::test]
    async fn a_stranger_with_the_same_id_lives() {
        let mut child = sleeper();
        let mut recorded = Identity::of(child.id()).unwrap();
        recorded.started.push('0');
        assert!(!recorded.is_alive());
        recorded.end().await.unwrap();
        assert_eq!(child.try_wait().unwrap(), None);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    // Proves: the recorded process is ended, and a zombie counts as ended.
    #[tokio::test]
    async fn the_recorded_process_ends() {
        let mut child = sleeper();
        let recorded = Identity::of(child.id()).unwrap();
        assert!(recorded.is_alive());
        recorded.end().await.unwrap();
        assert!(!recorded.is_alive());
        child.wait().unwrap();
        recorded.end().await.unwrap();
        assert_eq!(Identity::of(recorded.pid), None);
    }

    // Proves: a taken port is named in the error, and free ports differ.
    #[test]
    fn ports() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        assert!(matches!(free_ports(port, 1), Err(Error::PortInUse { port: p }) if p == port));
        let (first, mut all) = free_ports(0, 7).unwrap();
        all.push(first);
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 8);
    }
}
