//! `tidelog archive status | flush`: the Parquet and Iceberg copy.

use super::{Failure, Global, World, output};
use clap::{Args, Subcommand};
use std::time::Duration;

/// Flags of `tidelog archive`.
#[derive(Args, Debug)]
pub struct ArchiveArgs {
    /// What to do.
    #[command(subcommand)]
    pub verb: ArchiveVerb,
}

/// What to do with the archive.
#[derive(Subcommand, Debug)]
pub enum ArchiveVerb {
    /// Per table: where it is, its snapshot, its rows, how far each partition is archived.
    Status {
        /// Only this topic.
        #[arg(long, value_name = "T")]
        topic: Option<String>,
    },
    /// Move everything committed so far to the object store, then into the tables.
    Flush {
        /// Only this topic.
        #[arg(long, value_name = "T")]
        topic: Option<String>,
        /// Give up waiting after this long (what was archived stays archived).
        #[arg(long, default_value = "60s", value_parser = output::duration, value_name = "TIME")]
        timeout: Duration,
    },
}

pub(super) async fn run(_args: ArchiveArgs, _global: &Global, _world: &World) -> Result<(), Failure> {
    Err(Failure::Failed("this verb is not built yet".to_owned()))
}
