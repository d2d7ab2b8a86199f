//! `tidelog tier status | flush`: what is local, what is in the object store.

use super::{Failure, Global, Output, World, output};
use crate::admin_http::{AdminClient, TierStatus};
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

pub(super) async fn run(args: TierArgs, global: &Global, world: &World) -> Result<(), Failure> {
    let admin = AdminClient::new(&global.admin_url, world.network.clone())?;
    let status = match args.verb {
        TierVerb::Status { topic } => admin.tier_status(topic.as_deref()).await?,
        TierVerb::Flush {
            topic,
            trim_local,
            timeout,
        } => {
            let status = admin
                .tier_flush(topic.as_deref(), trim_local, timeout)
                .await?;
            let moved = if trim_local {
                "in the store, and no longer on the local disk"
            } else {
                "in the store"
            };
            output::say(&format!(
                "everything committed before this command is {moved}"
            ));
            status
        }
    };
    print(&status, global.output)
}

fn print(status: &TierStatus, output: Output) -> Result<(), Failure> {
    if output == Output::Json {
        return output::json(status);
    }
    let rows = status.partitions.iter().map(|partition| {
        vec![
            partition.topic.clone(),
            partition.partition.to_string(),
            partition.log_start.to_string(),
            partition.tiered_until.to_string(),
            partition.high_watermark.to_string(),
            partition.local_start.to_string(),
            output::bytes(partition.local_bytes),
            output::bytes(partition.remote_bytes),
        ]
    });
    output::table(
        &[
            "TOPIC",
            "PARTITION",
            "LOG-START",
            "TIERED-UNTIL",
            "HIGH-WATERMARK",
            "LOCAL-START",
            "LOCAL",
            "REMOTE",
        ],
        &rows.collect::<Vec<_>>(),
    )
}
