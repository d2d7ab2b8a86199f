//! The state file: what was started, so that another call can find, check and end it.
//!
//! Owns: `<data-dir>/minio-dev.json`, also read by scripts.
//! Not here: the server's own files (`<data-dir>/data`).
//! Spec: docs/guides/local-s3.md

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::choice::{ACCESS_KEY, Ports, Program, SECRET_KEY};
use crate::error::Error;
use crate::process::Identity;

const FILE: &str = "minio-dev.json";

/// What runs the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Running {
    /// A process; known again by id and start time.
    Process {
        /// Process id.
        pid: u32,
        /// Start time, opaque.
        started: String,
    },
    /// A container of the Docker engine.
    Container {
        /// The full container id.
        id: String,
    },
}

/// A started server. The fields are a stable interface for scripts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Which server.
    pub server: Program,
    /// What runs it.
    pub running: Running,
    /// `http://127.0.0.1:PORT`.
    pub endpoint: String,
    /// The bucket that exists.
    pub bucket: String,
    /// The region to sign with.
    pub region: String,
    /// For `AWS_ACCESS_KEY_ID`.
    pub access_key: String,
    /// For `AWS_SECRET_ACCESS_KEY`.
    pub secret_key: String,
    ports: Ports,
}

impl State {
    pub(crate) fn new(server: Program, running: Running, ports: Ports, bucket: &str) -> Self {
        Self {
            server,
            running,
            endpoint: format!("http://127.0.0.1:{}", ports.s3),
            bucket: bucket.to_owned(),
            region: "us-east-1".to_owned(),
            access_key: ACCESS_KEY.to_owned(),
            secret_key: SECRET_KEY.to_owned(),
            ports,
        }
    }

    pub(crate) fn file(folder: &Path) -> PathBuf {
        folder.join(FILE)
    }

    /// The state of the server started with this data folder; none when none was started.
    ///
    /// # Errors
    /// [`Error::State`] when the file is not ours.
    pub fn load(folder: &Path) -> Result<Option<Self>, Error> {
        let path = Self::file(folder);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io(format!("read {}", path.display()))(error)),
        };
        serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| Error::State {
                path,
                reason: error.to_string(),
            })
    }

    /// Replaces the file in one step; readable by its owner only.
    pub(crate) fn save(&self, folder: &Path) -> Result<(), Error> {
        use std::os::unix::fs::OpenOptionsExt;
        let path = Self::file(folder);
        let new = folder.join(format!("{FILE}.new"));
        let write = || -> std::io::Result<()> {
            let mut file = std::fs::File::options()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&new)?;
            file.write_all(&serde_json::to_vec_pretty(self)?)?;
            file.write_all(b"\n")?;
            std::fs::rename(&new, &path)
        };
        write().map_err(Error::io(format!("write {}", path.display())))
    }

    pub(crate) fn forget(folder: &Path) -> Result<(), Error> {
        let path = Self::file(folder);
        std::fs::remove_file(&path).map_err(Error::io(format!("remove {}", path.display())))
    }

    /// Whether the process that was started still runs. A container is asked of its engine.
    #[must_use]
    pub fn is_running(&self) -> bool {
        match &self.running {
            Running::Process { pid, started } => Identity {
                pid: *pid,
                started: started.clone(),
            }
            .is_alive(),
            Running::Container { id } => crate::down::container_runs(id),
        }
    }

    pub(crate) fn ports(&self) -> impl Iterator<Item = u16> {
        std::iter::once(self.ports.s3).chain(self.ports.inner.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    // Proves: the file reads back, is private, and a damaged one is named with what to do.
    #[test]
    fn saved_and_read_again() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(State::load(folder.path()).unwrap(), None);
        let running = Running::Process {
            pid: 1,
            started: "2".into(),
        };
        let ports = Ports {
            s3: 3,
            inner: vec![4],
        };
        let state = State::new(Program::Seaweedfs("/weed".into()), running, ports, "b");
        state.save(folder.path()).unwrap();
        assert_eq!(State::load(folder.path()).unwrap().unwrap(), state);
        let mode = std::fs::metadata(State::file(folder.path()))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::write(State::file(folder.path()), "{").unwrap();
        let error = State::load(folder.path()).unwrap_err().to_string();
        assert!(
            error.contains("minio-dev.json") && error.contains("remove it"),
            "{error}"
        );
    }
}
