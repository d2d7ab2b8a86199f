//! Command line verbs that talk to a running broker. The binary `tidelog` composes them with its own.
//!
//! Owns: flags, global flags, exit codes, the dispatch to one file per noun.
//! Not here: `dev`, `broker`, `doctor`, `minio-dev` (the binary's), the work itself (the library's modules).
//! Spec: `docs/guides/cli.md`

pub mod archive;
pub mod bench;
pub mod cluster;
pub mod consume;
pub mod output;
mod patience;
pub mod produce;
pub mod tier;
pub mod topic;

use crate::cluster::{Cluster, ClusterConfig};
use clap::{Args, Subcommand, ValueEnum};
use std::process::ExitCode;
use std::sync::Arc;
use tidelog_env::{Clock, Network, Random, SystemClock, SystemRandom, TcpNetwork};
use tokio::time::Instant;

/// Flags that every verb takes, before or after it.
#[derive(Args, Debug, Clone)]
pub struct Global {
    /// Kafka address of any broker of the cluster.
    #[arg(
        long,
        short = 'b',
        global = true,
        env = "TIDELOG_BOOTSTRAP",
        default_value = "127.0.0.1:9092",
        value_name = "HOST:PORT"
    )]
    pub bootstrap: String,
    /// Admin address of any broker of the cluster (used by `tier`, `archive`, `cluster` and `leaders`).
    #[arg(
        long,
        global = true,
        env = "TIDELOG_ADMIN_URL",
        default_value = "http://127.0.0.1:9640",
        value_name = "URL"
    )]
    pub admin_url: String,
    /// How results are printed on stdout.
    #[arg(long, global = true, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// How results are printed.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// For people: aligned columns. May change between versions.
    Table,
    /// For programs: one JSON document, documented and stable.
    Json,
}

/// The verbs of this crate. Flatten it into the binary's own subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Create, list, describe and delete topics.
    Topic(topic::TopicArgs),
    /// Publish lines from stdin as records.
    #[command(
        after_help = "Examples:\n  tidelog produce orders < orders.txt\n  tidelog produce orders --key-separator : --codec zstd < orders.txt\n  tidelog produce hdfs --key-regex '(blk_-?[0-9]+)' < HDFS.log"
    )]
    Produce(produce::ProduceArgs),
    /// Print records.
    #[command(
        after_help = "Examples:\n  tidelog consume orders --until-end\n  tidelog consume orders --from @2026-01-01T00:00:00Z --format '%p %o %k %v\\n'\n  tidelog consume orders --group billing --format json"
    )]
    Consume(consume::ConsumeArgs),
    /// What is local and what is in the object store; move it there now.
    Tier(tier::TierArgs),
    /// The Parquet and Iceberg archive: its progress; bring it up to date now.
    Archive(archive::ArchiveArgs),
    /// Brokers of the cluster: status, take one in, take one out.
    Cluster(cluster::ClusterArgs),
    /// Which broker leads which placement group.
    #[command(alias = "leader")]
    Leaders(cluster::LeadersArgs),
    /// Measure a cluster, and check what comes back.
    Bench(bench::BenchArgs),
}

/// The outside world of the verbs.
#[derive(Clone)]
pub struct World {
    /// Opens connections.
    pub network: Arc<dyn Network>,
    /// Stamps records.
    pub clock: Arc<dyn Clock>,
    /// Jitter.
    pub random: Arc<dyn Random>,
}

impl World {
    /// The operating system's network, clock and entropy.
    #[must_use]
    pub fn system() -> Self {
        Self {
            network: TcpNetwork::shared(),
            clock: SystemClock::shared(),
            random: SystemRandom::shared(),
        }
    }
}

/// How a verb ended.
#[derive(Debug)]
pub enum Failure {
    /// Exit code 1. The text says what, where, why, and what to do.
    Failed(String),
    /// Exit code 2: the command line asks for something that makes no sense.
    Usage(String),
    /// The reader of stdout went away: not an error, nothing more to say.
    BrokenPipe,
}

impl std::convert::From<crate::error::Error> for Failure {
    fn from(error: crate::error::Error) -> Self {
        let open = error.outcome() == crate::error::Outcome::MayHaveHappened;
        let note = if open {
            ". It may have been done all the same"
        } else {
            ""
        };
        Self::Failed(format!("{error}{note}{}", advice(&error)))
    }
}

impl std::convert::From<crate::admin_http::AdminError> for Failure {
    fn from(error: crate::admin_http::AdminError) -> Self {
        match error {
            crate::admin_http::AdminError::BadUrl { .. } => Self::Usage(error.to_string()),
            _ => Self::Failed(error.to_string()),
        }
    }
}

/// What to do about an error that is about leaders.
fn advice(error: &crate::error::Error) -> &'static str {
    use crate::error::ErrorCode;
    let about_leaders = error.code().is_some_and(|code| {
        [
            ErrorCode::NOT_CONTROLLER,
            ErrorCode::LEADER_NOT_AVAILABLE,
            ErrorCode::NOT_LEADER_OR_FOLLOWER,
            ErrorCode::COORDINATOR_NOT_AVAILABLE,
        ]
        .contains(&code)
    });
    if about_leaders {
        ". Is a majority of the brokers up? `tidelog cluster status` shows them"
    } else {
        ""
    }
}

/// The cluster that the global flags name.
fn cluster(global: &Global, world: &World) -> Result<Cluster, Failure> {
    cluster_until(global, world, None)
}

/// The same, for a verb that ends by then.
fn cluster_until(
    global: &Global,
    world: &World,
    until: Option<Instant>,
) -> Result<Cluster, Failure> {
    let mut config = ClusterConfig::new(&global.bootstrap);
    if let Some(until) = until {
        config.operation_timeout = until.saturating_duration_since(Instant::now());
        config.until = Some(until);
    }
    Cluster::new(
        config,
        Arc::clone(&world.network),
        Arc::clone(&world.random),
    )
    .map_err(|error| Failure::Usage(error.to_string()))
}

/// Runs one verb to its end. 0 done, 1 failed, 2 wrong usage; errors are told on stderr.
pub async fn run(command: Command, global: &Global, world: &World) -> ExitCode {
    let result = match command {
        Command::Topic(args) => topic::run(args, global, world).await,
        Command::Produce(args) => produce::run(args, global, world).await,
        Command::Consume(args) => consume::run(args, global, world).await,
        Command::Tier(args) => tier::run(args, global, world).await,
        Command::Archive(args) => archive::run(args, global, world).await,
        Command::Cluster(args) => cluster::run(args, global, world).await,
        Command::Leaders(args) => cluster::leaders(args, global, world).await,
        Command::Bench(args) => bench::run(args, global, world).await,
    };
    match result {
        Ok(()) | Err(Failure::BrokenPipe) => ExitCode::SUCCESS,
        Err(Failure::Failed(text)) => {
            output::say(&format!("error: {text}"));
            ExitCode::from(1)
        }
        Err(Failure::Usage(text)) => {
            output::say(&format!(
                "error: {text}\n\nFor more information, try '--help'."
            ));
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use clap::Parser;

    #[derive(Parser, Debug)]
    struct Root {
        #[command(flatten)]
        global: Global,
        #[command(subcommand)]
        command: Command,
    }

    fn parse(line: &str) -> Result<Root, clap::Error> {
        Root::try_parse_from(std::iter::once("tidelog").chain(line.split(' ')))
    }

    /// Proves that the command lines that scripts rely on parse, global flags in any place.
    #[test]
    fn fixed_command_lines_parse() {
        for line in [
            "topic create orders --partitions 6 --config retention.ms=1000 --config cleanup.policy=delete",
            "topic list --output json",
            "--bootstrap h:1 topic describe orders",
            "topic delete orders --bootstrap h:1 --timeout 5s",
            "topic --timeout 5s list",
            "produce orders --key-separator : --codec zstd --timeout 10s",
            "produce orders --key-regex (blk_-?[0-9]+)",
            "consume orders --from earliest --count 5",
            "consume orders --from @2026-01-01T00:00:00Z --until-end",
            "consume orders --from 17 --group g --format %t/%p/%o",
            "tier status --topic orders",
            "tier flush --topic orders --trim-local --timeout 60s",
            "archive status",
            "archive flush --timeout 2m --admin-url http://h:1",
            "cluster status --output json",
            "cluster add 4 --no-wait",
            "cluster add 4 --give-up-data --force",
            "cluster decommission 2 --timeout 5m",
            "cluster decommission 2 --cancel",
            "cluster leaders balance",
            "leaders balance",
            "leader transfer 3 1",
            "bench produce --topic b --size 1000 --rate max --duration 30s --acks all",
            "bench produce --rate 5000 --half-rate --disk-dir /tmp",
            "bench consume --topic b --output json",
        ] {
            parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    /// Proves that wrong usage is found while parsing, with clap's exit code 2.
    #[test]
    fn wrong_usage_is_exit_code_two() {
        for line in [
            "consume orders --count 5 --until-end",
            "consume orders --from yesterday",
            "consume orders --format %q",
            "produce orders --key-separator a --key-regex b",
            "produce orders --key-regex (",
            "produce orders --codec brotli",
            "topic create orders --config novalue",
            "topic create orders --partitions 0",
            "tier flush --timeout soon",
            "bench produce --rate 0",
            "bench produce --acks 2",
        ] {
            let error = parse(line).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }
}
