//! `down`: end the server that `up` started, and nothing else.
//!
//! Owns: the check that what is ended is really ours; the engine's calls.
//! Not here: the data; it stays for the next `up`.
//! Spec: docs/guides/local-s3.md

use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::choice::Program;
use crate::error::Error;
use crate::process::Identity;
use crate::state::{Running, State};

/// Ends the server started with this data folder. Returns what it was, and whether it still ran.
///
/// # Errors
/// [`Error::NotStarted`] when none was started here; the state file stays when ending failed.
pub async fn down(data_dir: &Path) -> Result<(State, bool), Error> {
    let folder = std::path::absolute(data_dir)
        .map_err(Error::io(format!("path of {}", data_dir.display())))?;
    let state = State::load(&folder)?.ok_or_else(|| Error::NotStarted(folder.clone()))?;
    let ran = state.is_running();
    end(&state, None).await?;
    State::forget(&folder)?;
    Ok((state, ran))
}

/// Ends the server if it is still the one recorded. `child` is given where it is our own child:
/// it must be waited for, or it stays as a zombie.
pub(crate) async fn end(state: &State, child: Option<&mut Child>) -> Result<(), Error> {
    match &state.running {
        Running::Process { pid, started } => {
            let identity = Identity {
                pid: *pid,
                started: started.clone(),
            };
            identity.end().await?;
            if let Some(child) = child {
                child.wait().map_err(Error::io("wait for the server"))?;
            }
        }
        Running::Container { id } => {
            if container_runs(id) {
                docker(&["rm", "--force", id].map(str::to_owned))?;
            }
        }
    }
    remove_sockets(state);
    Ok(())
}

/// SeaweedFS leaves sockets with fixed names, made of its ports, in the temporary folder.
fn remove_sockets(state: &State) {
    if !matches!(state.server, Program::Seaweedfs(_)) {
        return;
    }
    for port in state.ports() {
        for part in [
            "filer",
            "filer-grpc",
            "master-grpc",
            "s3",
            "s3-grpc",
            "volume-grpc",
        ] {
            let socket = format!("/tmp/seaweedfs-{part}-{port}.sock");
            // Most of these names do not exist; what cannot be removed is no reason to fail.
            drop(std::fs::remove_file(socket));
        }
    }
}

/// True while the engine has a container of this id that carries our label.
pub(crate) fn container_runs(id: &str) -> bool {
    let format = "{{index .Config.Labels \"tidelog.minio-dev\"}}";
    docker(&["inspect", "--format", format, id].map(str::to_owned)).is_ok_and(|label| label == "1")
}

/// Runs the engine's client; what it prints, without the line end.
pub(crate) fn docker(arguments: &[String]) -> Result<String, Error> {
    let fail = |reason: String| Error::Docker {
        command: arguments.first().cloned().unwrap_or_default(),
        reason,
    };
    let output = Command::new("docker")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| fail(error.to_string()))?;
    if !output.status.success() {
        return Err(fail(
            String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        ));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
