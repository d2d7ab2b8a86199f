//! The command line: `minio-dev up | down | check`, also as `tidelog minio-dev`.
//!
//! Owns: flags, their defaults, what is printed.
//! Not here: the work (`up`, `down`, `check`).
//! Spec: docs/guides/local-s3.md

use std::io::Write;
use std::path::PathBuf;

use crate::check::check;
use crate::choice::Server;
use crate::down::down;
use crate::error::Error;
use crate::state::{Running, State};
use crate::up::{UpOptions, log_file, up};

/// Start and prepare a local S3 server
#[derive(Clone, Debug, clap::Args)]
pub struct MinioDev {
    /// What to do
    #[command(subcommand)]
    pub verb: Verb,
}

/// The verbs.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Verb {
    /// Start a server on 127.0.0.1, make the bucket, print the settings to paste
    Up {
        /// Which server; auto takes MinIO, else SeaweedFS, else Docker
        #[arg(long, value_enum, default_value = "auto")]
        server: Server,
        /// The bucket to make
        #[arg(long, default_value = "tidelog")]
        bucket: String,
        /// The S3 port; 0 takes any free one
        #[arg(long, default_value_t = 8333)]
        port: u16,
        #[command(flatten)]
        folder: Folder,
    },
    /// Stop the server that `up` started; its data stays
    Down {
        #[command(flatten)]
        folder: Folder,
    },
    /// Try what Tidelog needs of the server and report
    Check {
        #[command(flatten)]
        folder: Folder,
    },
}

/// The data folder, which also tells one started server from another.
#[derive(Clone, Debug, clap::Args)]
pub struct Folder {
    /// Where the server's data, its log and the state file minio-dev.json are
    #[arg(long, default_value = "./tidelog-minio-dev")]
    pub data_dir: PathBuf,
}

impl MinioDev {
    /// Does what the verb says and prints to `out`.
    ///
    /// # Errors
    /// The verb's own; [`Error::ChecksFailed`] after every check was printed.
    pub async fn run(&self, out: &mut impl Write) -> Result<(), Error> {
        let said = match &self.verb {
            Verb::Up {
                server,
                bucket,
                port,
                folder,
            } => {
                let options = UpOptions {
                    server: *server,
                    bucket: bucket.clone(),
                    port: *port,
                    data_dir: folder.data_dir.clone(),
                };
                let state = up(&options).await?;
                settings(&state, &folder.data_dir)
            }
            Verb::Down { folder } => {
                let (state, ran) = down(&folder.data_dir).await?;
                let how = if ran {
                    "stopped"
                } else {
                    "was no longer running"
                };
                let kept = folder.data_dir.display();
                format!("{} {how}; its data stays in {kept}\n", state.server.name())
            }
            Verb::Check { folder } => return self.print_checks(folder, out).await,
        };
        out.write_all(said.as_bytes()).map_err(Error::io("print"))
    }

    async fn print_checks(&self, folder: &Folder, out: &mut impl Write) -> Result<(), Error> {
        let results = check(&folder.data_dir).await?;
        for result in &results {
            match &result.failure {
                None => writeln!(out, "ok      {}", result.name),
                Some(why) => writeln!(out, "FAILED  {}: {why}", result.name),
            }
            .map_err(Error::io("print"))?;
        }
        match results
            .iter()
            .filter(|result| result.failure.is_some())
            .count()
        {
            0 => Ok(()),
            failed => Err(Error::ChecksFailed {
                failed,
                all: results.len(),
            }),
        }
    }
}

/// A shell can evaluate it: what is not a setting is a comment.
fn settings(state: &State, folder: &std::path::Path) -> String {
    let what = match &state.running {
        Running::Process { pid, .. } => format!("process {pid}"),
        Running::Container { id } => format!("container {}", id.get(..12).unwrap_or(id)),
    };
    format!(
        "# {name} runs at {endpoint} ({what}; data in {folder}, log in {log})\n\
         export AWS_ACCESS_KEY_ID={access}\n\
         export AWS_SECRET_ACCESS_KEY={secret}\n\
         export AWS_REGION={region}\n\
         # next: tidelog dev --store s3://{bucket}/dev --set store.endpoint={endpoint} --set store.path-style=true\n\
         # stop: minio-dev down --data-dir {folder}\n",
        name = state.server.name(),
        endpoint = state.endpoint,
        folder = folder.display(),
        log = log_file(folder).display(),
        access = state.access_key,
        secret = state.secret_key,
        region = state.region,
        bucket = state.bucket,
    )
}
