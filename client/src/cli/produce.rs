//! `tidelog produce`: lines from stdin become records.

use super::{Failure, Global, World};
use clap::{Args, ValueEnum};
use regex::bytes::Regex;

/// Flags of `tidelog produce`.
#[derive(Args, Debug)]
pub struct ProduceArgs {
    /// The topic. It must exist.
    pub topic: String,
    /// The first occurrence splits a line into key and value. A line without it has no key.
    #[arg(long, short = 'K', value_name = "S", conflicts_with = "key_regex", value_parser = separator)]
    pub key_separator: Option<String>,
    /// The first capture group (or the whole match, without a group) is the key; the value is the whole line.
    /// A line that does not match has no key.
    #[arg(long, value_name = "RE", value_parser = regex)]
    pub key_regex: Option<Regex>,
    /// How batches are compressed.
    #[arg(long, short = 'z', value_enum, default_value_t = CodecName::None, value_name = "C")]
    pub codec: CodecName,
}

/// A codec by its Kafka name.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum CodecName {
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

fn separator(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("the separator is empty".to_owned());
    }
    Ok(text.replace("\\t", "\t"))
}

fn regex(text: &str) -> Result<Regex, String> {
    Regex::new(text).map_err(|error| error.to_string())
}

pub(super) async fn run(_args: ProduceArgs, _global: &Global, _world: &World) -> Result<(), Failure> {
    Err(Failure::Failed("this verb is not built yet".to_owned()))
}
