//! `tidelog topic create | list | describe | delete`.

use super::patience::{Patience, aloud, look_at_cluster};
use super::{Failure, Global, Output, World, cluster_until, output};
use crate::admin::{ConfigEntry, OffsetSpec};
use crate::cluster::{Cluster, Metadata, TopicMeta};
use crate::error::Error;
use crate::retry::Attempts;
use clap::{Args, Subcommand};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use tidelog_model::{NodeId, Offset, PartitionIndex};
use tokio::time::Instant;

/// How long is waited for leaders that do not tell where their partitions begin and end.
const PATIENCE: Duration = Duration::from_secs(5);

/// Flags of `tidelog topic`.
#[derive(Args, Debug)]
pub struct TopicArgs {
    /// What to do.
    #[command(subcommand)]
    pub verb: TopicVerb,
    /// Give up after this long, all together.
    #[arg(long, global = true, default_value = "60s", value_parser = output::duration, value_name = "TIME")]
    pub timeout: Duration,
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
        /// Copies of every partition: 1, 3 or 5. Without it the cluster's default.
        #[arg(long, short = 'r', value_parser = clap::value_parser!(i16).range(1..), value_name = "N")]
        replication_factor: Option<i16>,
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

impl TopicVerb {
    /// The topic whose leaders are asked; else those of metadata are.
    fn read(&self) -> Option<&str> {
        match self {
            Self::Describe { name } => Some(name),
            Self::Create { .. } | Self::Delete { .. } | Self::List => None,
        }
    }
}

fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("say key=value".to_owned()),
    }
}

#[derive(Serialize)]
struct Done<'a> {
    topic: &'a str,
    status: &'a str,
}

#[derive(Serialize)]
struct TopicList {
    topics: Vec<ListedTopic>,
}

#[derive(Serialize)]
struct ListedTopic {
    topic: String,
    topic_id: String,
    partitions: usize,
    internal: bool,
}

#[derive(Serialize)]
struct Description {
    topic: String,
    topic_id: String,
    partitions: Vec<DescribedPartition>,
    configs: Vec<DescribedConfig>,
}

#[derive(Serialize)]
struct DescribedPartition {
    partition: i32,
    leader: Option<i32>,
    leader_epoch: i32,
    replicas: Vec<i32>,
    in_sync: Vec<i32>,
    /// Not known where the leader does not tell.
    log_start: Option<i64>,
    high_watermark: Option<i64>,
}

#[derive(Serialize)]
struct DescribedConfig {
    name: String,
    value: Option<String>,
    source: &'static str,
}

pub(super) async fn run(args: TopicArgs, global: &Global, world: &World) -> Result<(), Failure> {
    let mut patience = Patience::total(args.timeout, world);
    let cluster = cluster_until(global, world, Some(patience.until()))?;
    let topic = args.verb.read().map(str::to_owned);
    let look = || look_at_cluster(&cluster, topic.as_deref());
    aloud(&mut patience, run_verb(args.verb, &cluster, global), look).await
}

async fn run_verb(verb: TopicVerb, cluster: &Cluster, global: &Global) -> Result<(), Failure> {
    match verb {
        TopicVerb::Create {
            name,
            partitions,
            replication_factor,
            config,
        } => {
            let copies = replication_factor.unwrap_or(-1);
            cluster
                .create_topic_with(&name, partitions, copies, &config)
                .await?;
            done(&name, "created", global.output)
        }
        TopicVerb::Delete { name } => {
            cluster.delete_topic(&name).await?;
            done(&name, "deleted", global.output)
        }
        TopicVerb::List => list(&*cluster.list_topics().await?, global.output),
        TopicVerb::Describe { name } => describe(cluster, &name, global.output).await,
    }
}

fn done(topic: &str, status: &str, output: Output) -> Result<(), Failure> {
    match output {
        Output::Json => output::json(&Done { topic, status }),
        Output::Table => output::table(
            &["TOPIC", "STATUS"],
            &[vec![topic.to_owned(), status.to_owned()]],
        ),
    }
}

fn list(metadata: &Metadata, output: Output) -> Result<(), Failure> {
    let topics: Vec<ListedTopic> = metadata
        .topics
        .iter()
        .map(|(name, topic)| ListedTopic {
            topic: name.clone(),
            topic_id: id_text(topic),
            partitions: topic.partitions.len(),
            internal: topic.is_internal,
        })
        .collect();
    match output {
        Output::Json => output::json(&TopicList { topics }),
        Output::Table => {
            let row = |topic: &ListedTopic| {
                vec![
                    topic.topic.clone(),
                    topic.partitions.to_string(),
                    topic.topic_id.clone(),
                ]
            };
            output::table(
                &["TOPIC", "PARTITIONS", "ID"],
                &topics.iter().map(row).collect::<Vec<_>>(),
            )
        }
    }
}

async fn describe(cluster: &Cluster, name: &str, output: Output) -> Result<(), Failure> {
    let metadata = cluster.topic(name).await?;
    let (start, end) = tokio::try_join!(
        ends_known(cluster, name, OffsetSpec::Earliest),
        ends_known(cluster, name, OffsetSpec::Latest),
    )?;
    let configs = cluster.describe_topic_configs(name).await?;
    let description = description(name, &metadata, &start, &end, configs);
    match output {
        Output::Json => output::json(&description),
        Output::Table => print_description(&description),
    }
}

/// One end of each partition, where its leader tells it: a partition without one is described, too.
async fn ends_known(
    cluster: &Cluster,
    name: &str,
    spec: OffsetSpec,
) -> Result<BTreeMap<PartitionIndex, Offset>, Error> {
    let count = cluster.topic(name).await?.partition_count(name);
    let mut left: BTreeMap<_, _> = (0..count)
        .map(|at| (PartitionIndex::new(at), spec))
        .collect();
    let until = cluster.request_deadline().min(Instant::now() + PATIENCE);
    let mut attempts = Attempts::until(until, cluster.random());
    let mut known = BTreeMap::new();
    loop {
        let (told, failed) = cluster.offsets_by(name, &left, until).await;
        left.retain(|partition, _| !told.contains_key(partition));
        known.extend(told);
        let Some(error) = failed else {
            return Ok(known);
        };
        if !error.is_retriable() {
            return Err(error);
        }
        if attempts.again(error).await.is_err() {
            return Ok(known);
        }
        // Its failure is that of the next question.
        let _ = cluster.refresh(Some(&[name])).await;
    }
}

fn description(
    name: &str,
    metadata: &Metadata,
    start: &BTreeMap<PartitionIndex, Offset>,
    end: &BTreeMap<PartitionIndex, Offset>,
    configs: Vec<ConfigEntry>,
) -> Description {
    let topic = metadata.topics.get(name);
    let numbers = |nodes: &[NodeId]| nodes.iter().map(|node| node.get()).collect();
    let known = |ends: &BTreeMap<PartitionIndex, Offset>, index| {
        ends.get(&PartitionIndex::new(index)).map(|end| end.get())
    };
    let partitions = (0..)
        .zip(
            topic
                .map(|topic| topic.partitions.as_slice())
                .unwrap_or_default(),
        )
        .map(|(index, partition)| DescribedPartition {
            partition: index,
            leader: partition.leader.map(NodeId::get),
            leader_epoch: partition.leader_epoch,
            replicas: numbers(&partition.replicas),
            in_sync: numbers(&partition.in_sync),
            log_start: known(start, index),
            high_watermark: known(end, index),
        })
        .collect();
    let configs = configs
        .into_iter()
        .map(|entry| DescribedConfig {
            name: entry.name,
            value: entry.value,
            source: entry.source,
        })
        .collect();
    Description {
        topic: name.to_owned(),
        topic_id: topic.map(id_text).unwrap_or_default(),
        partitions,
        configs,
    }
}

fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn print_description(description: &Description) -> Result<(), Failure> {
    output::data("SUMMARY\n")?;
    output::table(
        &["TOPIC", "ID", "PARTITIONS"],
        &[vec![
            description.topic.clone(),
            description.topic_id.clone(),
            description.partitions.len().to_string(),
        ]],
    )?;
    output::data("\nCONFIGS\n")?;
    let configs = description.configs.iter().map(|config| {
        vec![
            config.name.clone(),
            config.value.clone().unwrap_or_else(|| "-".to_owned()),
            config.source.to_owned(),
        ]
    });
    output::table(&["KEY", "VALUE", "SOURCE"], &configs.collect::<Vec<_>>())?;
    output::data("\nPARTITIONS\n")?;
    let partitions = description.partitions.iter().map(|partition| {
        vec![
            partition.partition.to_string(),
            or_dash(partition.leader),
            partition.leader_epoch.to_string(),
            format!("{:?}", partition.replicas),
            or_dash(partition.log_start),
            or_dash(partition.high_watermark),
        ]
    });
    output::table(
        &[
            "PARTITION",
            "LEADER",
            "EPOCH",
            "REPLICAS",
            "LOG-START",
            "HIGH-WATERMARK",
        ],
        &partitions.collect::<Vec<_>>(),
    )
}

fn id_text(topic: &TopicMeta) -> String {
    uuid::Uuid::from_bytes(topic.id).to_string()
}
