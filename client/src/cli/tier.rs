//! `tidelog tier status | flush`: what is local, what is in the object store.

use super::{Failure, Global, World, output};
use clap::{Args, Subcommand};
use std::time::Duration;

/// Flags of `tidelog tier`.
#[derive(Args, Debug)]
pub struct TierArgs {
    /// What to do.
    #[command(subcommand)]
    pub verb: TierVerb,
}

/// What to do with the object store's part of the log.
#[derive(Subcommand, Debug)]
pub enum TierVerb {
    /// Per partition: log start, tiered-until, high watermark, local and remote bytes.
    Status {
        /// Only this topic.
        #[arg(long, value_name = "T")]
        topic: Option<String>,
    },
    /// Move everything committed so far to the object store.
    Flush {
        /// Only this topic.
        #[arg(long, value_name = "T")]
        topic: Option<String>,
        /// Then drop what was moved from the local disk.
        #[arg(long)]
        trim_local: bool,
        /// Give up waiting after this long (what was moved stays moved).
        #[arg(long, default_value = "60s", value_parser = output::duration, value_name = "TIME")]
        timeout: Duration,
    },
}

pub(super) async fn run(_args: TierArgs, _global: &Global, _world: &World) -> Result<(), Failure> {
    Err(Failure::Failed("this verb is not built yet".to_owned()))
}
