//! `tidelog tier status | flush`: what is local, what is in the object store.

use super::patience::{Patience, aloud, look_at_members};
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
            let mut patience = Patience::total(timeout, world);
            let work = admin.tier_flush(topic.as_deref(), trim_local, timeout);
            let look = || look_at_members(global, world);
            let status = aloud(&mut patience, work, look).await?;
            let moved = if trim_local {
                "in the store, and no longer on the local disk"
            } else {
                "in the store"
            };
            output::say(&format!(
                "everything committed before this command is {moved}{}",
                but(&status.left_out)
            ));
            status
        }
    };
    print(&status, global.output)
}

/// What a flush has left out, for its last line.
pub(super) fn but(left_out: &[String]) -> String {
    const SHOWN: usize = 20;
    let shown = left_out.iter().take(SHOWN).map(String::as_str);
    let shown = shown.collect::<Vec<_>>().join(", ");
    let more = match left_out.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    if left_out.is_empty() {
        return String::new();
    }
    format!(
        ", but for {shown}{more}: most of their copies are gone with their disks, and nobody leads them"
    )
}

fn print(status: &TierStatus, output: Output) -> Result<(), Failure> {
    if output == Output::Json {
        return output::json(status);
    }
    let (head, rows) = table(status);
    output::table(&head, &rows)
}

/// Head and rows; a column of notes only where there is one.
fn table(status: &TierStatus) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let known = status.partitions.iter().map(|partition| {
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
    let mut head = vec![
        "TOPIC",
        "PARTITION",
        "LOG-START",
        "TIERED-UNTIL",
        "HIGH-WATERMARK",
        "LOCAL-START",
        "LOCAL",
        "REMOTE",
    ];
    let mut rows: Vec<Vec<String>> = known.collect();
    if !status.unanswered.is_empty() {
        rows.iter_mut().for_each(|row| row.push(String::new()));
        rows.extend(status.unanswered.iter().map(|at| {
            let mut row = vec![at.topic.clone(), at.partition.to_string()];
            row.resize(head.len(), "-".to_owned());
            row.push(at.why.clone());
            row
        }));
        head.push("NOTE");
    }
    (head, rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin_http::{TierPartition, TierUnanswered};

    /// Proves that partitions which were left out are named, the first of many.
    #[test]
    fn what_was_left_out_is_said() {
        assert_eq!(but(&[]), "");
        let names = |count: usize| (0..count).map(|at| format!("t-{at}")).collect::<Vec<_>>();
        assert!(but(&names(2)).starts_with(", but for t-0, t-1: most"));
        assert!(but(&names(22)).contains("t-19 and 2 more: most"));
    }

    /// Proves that a partition of which nothing is known has a row that says so.
    #[test]
    fn what_is_not_known_is_said() {
        let partition = TierPartition {
            topic: "t".to_owned(),
            partition: 0,
            group: 1,
            leader: Some(1),
            log_start: 0,
            tiered_until: 2,
            high_watermark: 3,
            local_start: 2,
            local_bytes: 10,
            local_broker: Some(1),
            remote_bytes: 20,
        };
        let mut status = TierStatus {
            partitions: vec![partition],
            unanswered: Vec::new(),
            left_out: Vec::new(),
        };
        let (head, rows) = table(&status);
        assert_eq!((head.len(), rows.len(), rows[0].len()), (8, 1, 8));
        status.unanswered.push(TierUnanswered {
            topic: "t".to_owned(),
            partition: 1,
            group: 2,
            leader: Some(3),
            why: "no answer from its leader, broker 3".to_owned(),
        });
        let (head, rows) = table(&status);
        assert_eq!(head.last(), Some(&"NOTE"));
        assert!(rows.iter().all(|row| row.len() == 9));
        assert_eq!(rows[1][1..3], ["1".to_owned(), "-".to_owned()]);
        assert_eq!(rows[1][8], "no answer from its leader, broker 3");
    }
}
