//! `tidelog topic create | list | describe | delete`.

use super::{Failure, Global, World};
use clap::{Args, Subcommand};

/// Flags of `tidelog topic`.
#[derive(Args, Debug)]
pub struct TopicArgs {
    /// What to do.
    #[command(subcommand)]
    pub verb: TopicVerb,
}

/// What to do with topics.
#[derive(Subcommand, Debug)]
pub enum TopicVerb {
    /// Create a topic.
    Create {
        /// Its name.
        name: String,
        /// How many partitions.
        #[arg(long, short = 'p', default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..), value_name = "N")]
        partitions: i32,
        /// A topic setting under Kafka's name, for example retention.ms=86400000.
        #[arg(long, short = 'c', value_parser = key_value, value_name = "K=V")]
        config: Vec<(String, String)>,
    },
    /// List the topics.
    List,
    /// Partitions, offsets and settings of one topic.
    Describe {
        /// Its name.
        name: String,
    },
    /// Delete a topic and all its records.
    Delete {
        /// Its name.
        name: String,
    },
}

fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("say key=value".to_owned()),
    }
}

pub(super) async fn run(_args: TopicArgs, _global: &Global, _world: &World) -> Result<(), Failure> {
    Err(Failure::Failed("this verb is not built yet".to_owned()))
}
