//! `tidelog archive status | flush`: the Parquet and Iceberg copy.

use super::patience::{Patience, aloud, look_at_members};
use super::tier::but;
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
            let mut patience = Patience::total(timeout, world);
            let work = admin.archive_flush(topic.as_deref(), timeout);
            let look = || look_at_members(global, world);
            let status = aloud(&mut patience, work, look).await?;
            output::say(&format!(
                "everything committed before this command is in the tables{}",
                but(&status.left_out)
            ));
            status
        }
    };
    print(&status, global.output)
}

const COLUMNS: [&str; 8] = [
    "TOPIC",
    "PARTITION",
    "ARCHIVED-UNTIL",
    "TIERED-UNTIL",
    "TABLE-ROWS",
    "SNAPSHOT",
    "LOCATION",
    "METADATA",
];

fn print(status: &ArchiveStatus, output: Output) -> Result<(), Failure> {
    if output == Output::Json {
        return output::json(status);
    }
    output::table(&COLUMNS, &rows(status))
}

/// One row per partition.
fn rows(status: &ArchiveStatus) -> Vec<Vec<String>> {
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let mut rows = Vec::new();
    for table in &status.tables {
        for partition in &table.partitions {
            let row = [
                table.topic.clone(),
                partition.partition.to_string(),
                partition.archived_until.to_string(),
                partition.tiered_until.to_string(),
                table.rows.to_string(),
                or_none(table.snapshot_id.map(|id| id.to_string())),
                table.location.clone(),
                or_none(table.metadata_location.clone()),
            ];
            rows.push(row.to_vec());
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin_http::{ArchivePartition, ArchiveTable};

    /// Proves that every column has its value, also of a table that has no metadata file yet: its location is where to look later.
    #[test]
    fn rows_fit_the_columns() {
        let partition = ArchivePartition {
            partition: 3,
            archived_until: 0,
            tiered_until: 7,
        };
        let table = ArchiveTable {
            topic: "t".to_owned(),
            topic_id: "id".to_owned(),
            location: "s3://b/archive/t-id".to_owned(),
            metadata_location: None,
            snapshot_id: None,
            rows: 0,
            partitions: vec![partition],
        };
        let status = ArchiveStatus {
            tables: vec![table],
            left_out: Vec::new(),
        };
        let rows = rows(&status);
        assert_eq!(
            rows,
            [["t", "3", "0", "7", "0", "-", "s3://b/archive/t-id", "-"].map(str::to_owned)]
        );
        assert_eq!(rows[0].len(), COLUMNS.len());
    }
}
