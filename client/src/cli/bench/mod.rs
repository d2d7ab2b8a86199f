//! `tidelog bench produce | consume`: measures a cluster, and checks what comes back.
//!
//! Owns: flags.
//! Not here: the measurements (`produce`, `consume`, `disk`), the records' content (`payload`).
//! Spec: `docs/guides/cli.md`, section bench.

mod consume;
mod disk;
mod payload;
mod produce;

use super::produce::CodecName;
use super::{Failure, Global, World, output};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// Flags of `tidelog bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// What to measure.
    #[command(subcommand)]
    pub verb: BenchVerb,
}

/// What to measure.
#[derive(Subcommand, Debug)]
pub enum BenchVerb {
    /// Publish at a rate or as fast as it goes; latency is from send to acknowledgement.
    Produce(BenchProduceArgs),
    /// Read a topic from its beginning; every batch's CRC and the order of offsets are checked.
    Consume(BenchConsumeArgs),
}

/// Flags of `tidelog bench produce`.
#[derive(Args, Debug, Clone)]
pub struct BenchProduceArgs {
    /// The topic; created when it is absent.
    #[arg(long, default_value = "tidelog-bench", value_name = "T")]
    pub topic: String,
    /// Partitions of a created topic.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(i32).range(1..), value_name = "N")]
    pub partitions: i32,
    /// Bytes of a record's value: half of them compress, half are random.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=900_000), value_name = "BYTES")]
    pub size: u32,
    /// Records per second over all producers, or max.
    #[arg(long, default_value = "max", value_parser = rate, value_name = "N|max")]
    pub rate: Rate,
    /// How long to publish (each phase).
    #[arg(long, default_value = "30s", value_parser = output::duration, value_name = "TIME")]
    pub duration: Duration,
    /// Whose acknowledgement counts.
    #[arg(long, value_enum, default_value_t = AcksName::All)]
    pub acks: AcksName,
    /// How batches are compressed.
    #[arg(long, value_enum, default_value_t = CodecName::None)]
    pub codec: CodecName,
    /// Producers, each with its own connection and identity.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64), value_name = "N")]
    pub producers: u16,
    /// How long a batch may wait for more records.
    #[arg(long, default_value = "5ms", value_parser = humantime::parse_duration, value_name = "TIME")]
    pub linger: Duration,
    /// Largest batch in bytes.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1024..=1_000_000), value_name = "BYTES")]
    pub batch_bytes: u32,
    /// Also measure what this directory's disk can do: sequential writes of the same size, each with fdatasync, before
    /// and after the run.
    #[arg(long, value_name = "DIR")]
    pub disk_dir: Option<PathBuf>,
    /// Then a second phase at half of the reached rate.
    #[arg(long)]
    pub half_rate: bool,
    /// Seed of the records' content.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
}

/// Flags of `tidelog bench consume`.
#[derive(Args, Debug, Clone)]
pub struct BenchConsumeArgs {
    /// The topic.
    #[arg(long, default_value = "tidelog-bench", value_name = "T")]
    pub topic: String,
    /// Consumers, each with its own connection; the partitions are dealt out among them.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64), value_name = "N")]
    pub consumers: u16,
    /// Stop after this long even if the end is not reached.
    #[arg(long, value_parser = output::duration, value_name = "TIME")]
    pub duration: Option<Duration>,
}

/// A target rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    /// As fast as it goes.
    Max,
    /// This many records a second.
    PerSecond(f64),
}

/// Whose acknowledgement counts.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcksName {
    /// A majority's, on disk. Idempotent.
    All,
    /// The leader's.
    #[value(name = "1")]
    Leader,
    /// Nobody's: sent is done.
    #[value(name = "0")]
    None,
}

fn rate(text: &str) -> Result<Rate, String> {
    if text == "max" {
        return Ok(Rate::Max);
    }
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(Rate::PerSecond(number)),
        _ => Err("say a number of records a second above 0, or max".to_owned()),
    }
}

pub(super) async fn run(args: BenchArgs, global: &Global, world: &World) -> Result<(), Failure> {
    match args.verb {
        BenchVerb::Produce(args) => produce::run(args, global, world).await,
        BenchVerb::Consume(args) => consume::run(args, global, world).await,
    }
}

/// Millions of bytes (10^6) a second.
#[allow(
    clippy::cast_precision_loss,
    reason = "a rate, printed with one decimal"
)]
fn megabytes_per_second(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 {
        bytes as f64 / 1e6 / seconds
    } else {
        0.0
    }
}

#[allow(
    clippy::cast_precision_loss,
    reason = "a rate, printed without decimals"
)]
fn per_second(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 {
        count as f64 / seconds
    } else {
        0.0
    }
}
