//! `up`: start the server, wait until it takes objects, make the bucket.
//!
//! Owns: the order of the steps and what is undone when one fails.
//! Not here: command lines (`choice`), processes (`process`).
//! Spec: docs/guides/local-s3.md

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use aws_sdk_s3::Client;
use aws_sdk_s3::primitives::ByteStream;

use crate::choice::{self, Places, Ports, Program, Server};
use crate::error::Error;
use crate::process::{Identity, free_ports, spawn_detached};
use crate::s3;
use crate::state::{Running, State};

/// A first start makes volumes, or loads an image's layers from disk, on a busy machine.
const READY_TIMEOUT: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(100);
/// How much of the server's log an error shows.
const LOG_TAIL_LINES: usize = 15;

/// What to start.
#[derive(Clone, Debug)]
pub struct UpOptions {
    /// Which server.
    pub server: Server,
    /// The bucket that exists afterwards.
    pub bucket: String,
    /// The S3 port on 127.0.0.1; 0 takes any free one.
    pub port: u16,
    /// Where the server's data, its log and the state file are.
    pub data_dir: PathBuf,
}

/// Starts the server, or finds the one already running with this data folder. When it returns, the
/// bucket exists and a put was answered. A server that does not get ready is ended again.
///
/// # Errors
/// Each says what to do; nothing was left running, except for [`Error::DidNotEnd`].
pub async fn up(options: &UpOptions) -> Result<State, Error> {
    std::fs::create_dir_all(options.data_dir.join("data"))
        .map_err(Error::io(format!("create {}", options.data_dir.display())))?;
    // The server gets its own working folder: paths must not depend on ours.
    let folder = std::path::absolute(&options.data_dir)
        .map_err(Error::io(format!("path of {}", options.data_dir.display())))?;
    if let Some(mut state) = State::load(&folder)?
        && state.is_running()
    {
        state.bucket.clone_from(&options.bucket);
        ready(&state, None, &folder).await?;
        state.save(&folder)?;
        return Ok(state);
    }
    let program = choice::find(
        options.server,
        &Places::of_this_machine(),
        choice::docker_answers,
    )?;
    let (port, inner) = free_ports(options.port, choice::inner_ports(&program))?;
    let ports = Ports { s3: port, inner };
    let (running, mut child) = start(&program, &folder, &ports)?;
    let state = State::new(program, running, ports, &options.bucket);
    // Saved before it is ready: whatever interrupts the wait, `down` finds the server.
    state.save(&folder)?;
    if let Err(error) = ready(&state, child.as_mut(), &folder).await {
        crate::down::end(&state, child.as_mut()).await?;
        State::forget(&folder)?;
        return Err(error);
    }
    Ok(state)
}

fn start(
    program: &Program,
    folder: &Path,
    ports: &Ports,
) -> Result<(Running, Option<Child>), Error> {
    let path = match program {
        Program::Docker => {
            let name = format!("tidelog-minio-dev-{}", ports.s3);
            let id = crate::down::docker(&choice::docker_run(&name, folder, ports))?;
            return Ok((Running::Container { id }, None));
        }
        Program::Minio(path) | Program::Seaweedfs(path) => path,
    };
    if matches!(program, Program::Seaweedfs(_)) {
        let file = folder.join("identities.json");
        std::fs::write(&file, choice::seaweedfs_identities().to_string())
            .map_err(Error::io(format!("write {}", file.display())))?;
    }
    let mut command: Command = choice::command(path, program, folder, ports);
    let child = spawn_detached(&mut command, &log_file(folder))?;
    let identity = Identity::of(child.id()).unwrap_or(Identity {
        pid: child.id(),
        started: String::new(),
    });
    let running = Running::Process {
        pid: identity.pid,
        started: identity.started,
    };
    Ok((running, Some(child)))
}

/// Waits until the bucket exists and an object can be put and deleted.
async fn ready(state: &State, mut child: Option<&mut Child>, folder: &Path) -> Result<(), Error> {
    let client = s3::client(state);
    let fail = |reason: String| Error::NotReady {
        server: state.server.name().to_owned(),
        reason,
        log_tail: log_tail(&log_file(folder)),
    };
    let start = tokio::time::Instant::now();
    loop {
        if let Some(status) = child
            .as_mut()
            .and_then(|child| child.try_wait().ok().flatten())
        {
            return Err(fail(format!("it ended with {status}")));
        }
        let reason = match usable(&client, &state.bucket).await {
            Ok(()) => return Ok(()),
            Err(reason) => reason,
        };
        if start.elapsed() > READY_TIMEOUT {
            return Err(fail(reason));
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn usable(client: &Client, bucket: &str) -> Result<(), String> {
    match client.create_bucket().bucket(bucket).send().await {
        Ok(_) => {}
        Err(error) => {
            let service = error.as_service_error();
            let exists = service.is_some_and(|e| {
                e.is_bucket_already_owned_by_you() || e.is_bucket_already_exists()
            });
            if !exists {
                return Err(s3::explain(error));
            }
        }
    }
    const KEY: &str = ".minio-dev/ready";
    let put = client.put_object().bucket(bucket).key(KEY);
    put.body(ByteStream::from_static(b"ready"))
        .send()
        .await
        .map_err(s3::explain)?;
    client
        .delete_object()
        .bucket(bucket)
        .key(KEY)
        .send()
        .await
        .map_err(s3::explain)?;
    Ok(())
}

pub(crate) fn log_file(folder: &Path) -> PathBuf {
    folder.join("server.log")
}

fn log_tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let start = lines.len().saturating_sub(LOG_TAIL_LINES);
    lines.get(start..).unwrap_or_default().join("\n")
}
