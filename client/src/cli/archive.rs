//! `tidelog archive status | flush`: the Parquet and Iceberg copy.

use super::{Failure, Global, Output, World, output};
use crate::admin_http::{AdminClient, ArchiveStatus};
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

pub(super) async fn run(args: ArchiveArgs, global: &Global, world: &World) -> Result<(), Failure> {
    let admin = AdminClient::new(&global.admin_url, world.network.clone())?;
    let status = match args.verb {
        ArchiveVerb::Status { topic } => admin.archive_status(topic.as_deref()).await?,
        ArchiveVerb::Flush { topic, timeout } => {
            let status = admin.archive_flush(topic.as_deref(), timeout).await?;
            output::say("everything committed before this command is in the tables");
            status
        }
    };
    print(&status, global.output)
}

fn print(status: &ArchiveStatus, output: Output) -> Result<(), Failure> {
    if output == Output::Json {
        return output::json(status);
    }
    let mut rows = Vec::new();
    for table in &status.tables {
        for partition in &table.partitions {
            rows.push(vec![
                table.topic.clone(),
                partition.partition.to_string(),
                partition.archived_until.to_string(),
                partition.tiered_until.to_string(),
                table.rows.to_string(),
                table
                    .snapshot_id
                    .map_or_else(|| "-".to_owned(), |id| id.to_string()),
                table
                    .metadata_location
                    .clone()
                    .unwrap_or_else(|| "-".to_owned()),
            ]);
        }
    }
    output::table(
        &[
            "TOPIC",
            "PARTITION",
            "ARCHIVED-UNTIL",
            "TIERED-UNTIL",
            "TABLE-ROWS",
            "SNAPSHOT",
            "METADATA",
        ],
        &rows,
    )
}
