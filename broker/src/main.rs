//! The one binary: parse, load the configuration, start, wait.
//!
//! Owns: the command line of `dev`, `broker`, `doctor`; composes the verbs of the client and of minio-dev.
//! Not here: anything that runs (`node`, `tidelog-client`, `tidelog-minio-dev`).

mod cmd;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use tidelog_client::cli::{self, Global};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A retained, partitioned message log that any Kafka client can use.
///
/// `tidelog dev` starts a whole system on a directory. The other verbs talk to a running one.
#[derive(Parser, Debug)]
#[command(name = "tidelog", version, propagate_version = true)]
struct Root {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the whole system on a directory: broker, object store (a folder, or S3), archive.
    Dev(cmd::dev::DevArgs),
    /// Run one broker from a configuration file.
    Broker(cmd::broker::BrokerArgs),
    /// Check an object store: what Tidelog needs of it, and what to do where something is missing.
    Doctor(cmd::doctor::DoctorArgs),
    /// Start, stop and check a local S3 server for development.
    #[command(name = "minio-dev")]
    MinioDev(tidelog_minio_dev::MinioDev),
    #[command(flatten)]
    Client(cli::Command),
}

fn main() -> ExitCode {
    let root = Root::parse();
    cmd::logging::start(match root.command {
        Command::Broker(_) => "info",
        _ => "warn",
    });
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return cmd::fail(&format!("cannot start the runtime: {error}")),
    };
    runtime.block_on(async move {
        match root.command {
            Command::Dev(args) => cmd::dev::run(args).await,
            Command::Broker(args) => cmd::broker::run(args).await,
            Command::Doctor(args) => cmd::doctor::run(args, &root.global).await,
            Command::MinioDev(args) => match args.run(&mut std::io::stdout()).await {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => cmd::fail(&error.to_string()),
            },
            Command::Client(command) => {
                cli::run(command, &root.global, &cli::World::system()).await
            }
        }
    })
}
