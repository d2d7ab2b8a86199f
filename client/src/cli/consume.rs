//! `tidelog consume`: records on stdout.
//!
//! Owns: where it begins and ends, progress of a group, what is said about gaps.
//! Not here: how a record is printed (`format`), fetching (`consumer`).
//! Spec: `docs/guides/cli.md`, section consume.

pub mod format;

use self::format::{Format, Printable};
use super::patience::{Patience, aloud, look_at_cluster};
use super::produce::missing_topic;
use super::{Failure, Global, World, cluster, output};
use crate::admin::OffsetSpec;
use crate::cluster::Cluster;
use crate::consumer::{
    Consumer, ConsumerConfig, Event, Fetched, Gap, GroupConfig, GroupConsumer, Start,
    TopicPartition,
};
use crate::error::Error;
use clap::Args;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidelog_model::{Offset, PartitionIndex, TimestampMs};
use tokio::io::{AsyncWriteExt, Stdout};
use tokio::time::Instant;

/// Flags of `tidelog consume`.
#[derive(Args, Debug)]
pub struct ConsumeArgs {
    /// The topic.
    pub topic: String,
    /// Where to begin: earliest, latest, an offset, or @ and a time such as @2026-01-01T00:00:00Z.
    /// With --group: where a partition without a committed offset begins. [default: earliest]
    #[arg(long, short = 'o', value_name = "FROM", value_parser = from)]
    pub from: Option<From>,
    /// Share the partitions with the other members of this consumer group and remember the progress.
    #[arg(long, short = 'g', value_name = "G")]
    pub group: Option<String>,
    /// Stop after this many records.
    #[arg(long, short = 'n', value_name = "N", conflicts_with = "until_end", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Stop at the ends that the partitions had at the start.
    #[arg(long, short = 'e')]
    pub until_end: bool,
    /// `value` (a line each), `json` (an object a line), or text with %t topic, %p partition, %o offset, %k key,
    /// %v or %s value, %S value length, %K key length, %h headers, %T timestamp in ms, %% and \n \t \r \\ \xHH.
    #[arg(long, short = 'f', value_name = "FORMAT", default_value = "value", value_parser = format::parse)]
    pub format: Format,
}

/// Where to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// The first record still there.
    Earliest,
    /// Only what comes from now on.
    Latest,
    /// This offset, in every partition.
    Offset(i64),
    /// The first record with this time (ms since 1970) or a later one.
    Timestamp(i64),
}

fn from(text: &str) -> Result<From, String> {
    match text {
        "earliest" => return Ok(From::Earliest),
        "latest" => return Ok(From::Latest),
        _ => {}
    }
    if let Some(stamp) = text.strip_prefix('@') {
        let time =
            time::OffsetDateTime::parse(stamp, &time::format_description::well_known::Rfc3339)
                .map_err(|error| format!("{error}: say @2026-01-01T00:00:00Z"))?;
        let millis = time.unix_timestamp_nanos().div_euclid(1_000_000);
        return i64::try_from(millis)
            .map(From::Timestamp)
            .map_err(|error| error.to_string());
    }
    match text.parse::<i64>() {
        Ok(offset) if offset >= 0 => Ok(From::Offset(offset)),
        _ => Err("say earliest, latest, an offset, or @ and an RFC 3339 time".to_owned()),
    }
}

impl From {
    fn start(self) -> Start {
        match self {
            Self::Earliest => Start::EARLIEST,
            Self::Latest => Start::LATEST,
            Self::Offset(offset) => Start::At(Offset::new(offset)),
            Self::Timestamp(time) => Start::since(TimestampMs::new(time)),
        }
    }
}

/// How long one poll waits; only how soon an end is noticed depends on it.
const POLL: Duration = Duration::from_millis(500);
/// Between two commits of a group's progress.
const COMMIT_INTERVAL: Duration = Duration::from_secs(5);

pub(super) async fn run(args: ConsumeArgs, global: &Global, world: &World) -> Result<(), Failure> {
    let mut patience = Patience::open("still trying".to_owned(), world);
    let topic = args.topic.clone();
    let cluster = cluster(global, world)?;
    let look = || look_at_cluster(&cluster, Some(&topic));
    aloud(&mut patience, consume(args, &cluster), look).await
}

async fn consume(args: ConsumeArgs, cluster: &Cluster) -> Result<(), Failure> {
    cluster
        .topic(&args.topic)
        .await
        .map_err(|error| missing_topic(error, &args.topic))?;
    let reader = Reader::open(cluster, &args).await?;
    let mut printer = Printer {
        out: tokio::io::stdout(),
        buffer: Vec::new(),
        format: args.format.clone(),
        left: args.count,
        next: BTreeMap::new(),
    };
    let ends = if args.until_end {
        Some(ends(cluster, &args.topic).await?)
    } else {
        None
    };
    drive(reader, &mut printer, ends, &args).await
}

/// The high watermarks now.
async fn ends(cluster: &Cluster, topic: &str) -> Result<BTreeMap<PartitionIndex, Offset>, Error> {
    let count = cluster.topic(topic).await?.partition_count(topic);
    let wanted = (0..count)
        .map(|at| (PartitionIndex::new(at), OffsetSpec::Latest))
        .collect();
    cluster.list_offsets(topic, &wanted).await
}

/// Alone or in a group.
enum Reader {
    Alone(Box<Consumer>),
    Group(Box<GroupConsumer>),
}

impl Reader {
    async fn open(cluster: &Cluster, args: &ConsumeArgs) -> Result<Self, Error> {
        let config = ConsumerConfig::default();
        if let Some(group) = &args.group {
            let start = args.from.unwrap_or(From::Earliest).start();
            let group = GroupConfig::new(group, &args.topic, start);
            return Ok(Self::Group(Box::new(
                GroupConsumer::join(cluster, group, config).await?,
            )));
        }
        let start = args.from.unwrap_or(From::Earliest).start();
        let topic: Arc<str> = Arc::from(args.topic.as_str());
        let count = cluster
            .topic(&args.topic)
            .await?
            .partition_count(&args.topic);
        let starts = (0..count)
            .map(|at| {
                (
                    TopicPartition {
                        topic: Arc::clone(&topic),
                        partition: PartitionIndex::new(at),
                    },
                    start,
                )
            })
            .collect();
        let mut consumer = Consumer::new(cluster.separate(), config);
        consumer.assign(starts).await?;
        Ok(Self::Alone(Box::new(consumer)))
    }

    async fn poll(&mut self) -> Result<Vec<Event>, Error> {
        match self {
            Self::Alone(consumer) => consumer.poll(POLL).await,
            Self::Group(consumer) => consumer.poll(POLL).await,
        }
    }

    fn positions(&self) -> BTreeMap<TopicPartition, Offset> {
        match self {
            Self::Alone(consumer) => consumer.positions(),
            Self::Group(consumer) => consumer.consumer().positions(),
        }
    }

    fn seek(&mut self, partition: &TopicPartition, position: Offset) {
        match self {
            Self::Alone(consumer) => consumer.seek(partition, position),
            Self::Group(consumer) => consumer.seek(partition, position),
        }
    }

    async fn commit(&mut self, printed: &BTreeMap<TopicPartition, Offset>) -> Result<(), Error> {
        match self {
            Self::Alone(_) => Ok(()),
            Self::Group(consumer) => {
                let mine = consumer.consumer().positions();
                consumer
                    .commit_at(
                        printed
                            .iter()
                            .filter(|(at, _)| mine.contains_key(at))
                            .map(|(at, next)| (at.clone(), *next))
                            .collect(),
                    )
                    .await
            }
        }
    }

    async fn leave(self) -> Result<(), Error> {
        match self {
            Self::Alone(_) => Ok(()),
            Self::Group(consumer) => consumer.leave().await,
        }
    }
}

/// Reads and prints until one of the ends; then commits what was printed and leaves.
async fn drive(
    mut reader: Reader,
    printer: &mut Printer,
    ends: Option<BTreeMap<PartitionIndex, Offset>>,
    args: &ConsumeArgs,
) -> Result<(), Failure> {
    let mut result = Ok(());
    let stop = tokio::signal::ctrl_c();
    tokio::pin!(stop);
    let mut commit_at = Instant::now() + COMMIT_INTERVAL;
    if let Some(ends) = &ends {
        past_the_end(&reader.positions(), ends)?;
    }
    while !ends
        .as_ref()
        .is_some_and(|ends| reached(&reader.positions(), ends))
    {
        let step = async {
            let events = reader.poll().await?;
            handle(events, &mut reader, printer, ends.as_ref(), args).await
        };
        let more = tokio::select! {
            _ = &mut stop => break,
            more = step => more,
        };
        match more {
            Ok(true) => {}
            Ok(false) => break,
            Err(failure) => {
                result = Err(failure);
                break;
            }
        }
        if Instant::now() >= commit_at {
            commit_at = Instant::now() + COMMIT_INTERVAL;
            if let Err(error) = reader.commit(&printer.next).await {
                output::say(&format!("progress not committed yet: {error}"));
            }
        }
    }
    let committed = reader.commit(&printer.next).await;
    if let Err(error) = reader.leave().await {
        output::say(&format!("left the group without its consent: {error}"));
    }
    result.and(committed.map_err(Failure::from))
}

fn reached(
    positions: &BTreeMap<TopicPartition, Offset>,
    ends: &BTreeMap<PartitionIndex, Offset>,
) -> bool {
    positions
        .iter()
        .all(|(at, position)| ends.get(&at.partition).is_none_or(|end| position >= end))
}

/// Fails where a partition would be read from beyond its end: nothing would come, and "nothing" is not an answer to that.
fn past_the_end(
    positions: &BTreeMap<TopicPartition, Offset>,
    ends: &BTreeMap<PartitionIndex, Offset>,
) -> Result<(), Failure> {
    for (at, wanted) in positions {
        match ends.get(&at.partition) {
            Some(end) if wanted > end => return Err(beyond(at, *wanted, *end)),
            _ => {}
        }
    }
    Ok(())
}

fn beyond(at: &TopicPartition, wanted: Offset, end: Offset) -> Failure {
    Failure::Failed(format!(
        "{}/{}: offset {wanted} was wanted, but the log ends at {end}",
        at.topic, at.partition
    ))
}

/// Prints what has come. `false`: the count is reached.
async fn handle(
    events: Vec<Event>,
    reader: &mut Reader,
    printer: &mut Printer,
    ends: Option<&BTreeMap<PartitionIndex, Offset>>,
    args: &ConsumeArgs,
) -> Result<bool, Failure> {
    for event in events {
        match event {
            Event::Fetched(fetched) => {
                let end = ends
                    .and_then(|ends| ends.get(&fetched.partition.partition))
                    .copied();
                printer.print(&fetched, end)?;
                printer.write().await?;
                if printer.left == Some(0) {
                    return Ok(false);
                }
            }
            Event::Gap(gap) => over_gap(&gap, reader, args)?,
        }
    }
    Ok(true)
}

/// Only who asked for the earliest record is moved to it; everyone is told.
fn over_gap(gap: &Gap, reader: &mut Reader, args: &ConsumeArgs) -> Result<(), Failure> {
    let Gap {
        partition,
        wanted,
        first_available,
        end,
    } = gap;
    let place = format!("{}/{}", partition.topic, partition.partition);
    if wanted > end {
        return Err(beyond(partition, *wanted, *end));
    }
    let told = format!(
        "{place}: offset {wanted} was wanted and is gone; the first offset still there is {first_available}"
    );
    if args.from == Some(From::Earliest) {
        output::say(&format!("{told}. Going on there"));
        reader.seek(partition, *first_available);
        return Ok(());
    }
    Err(Failure::Failed(format!(
        "{told}. `--from earliest` goes on there"
    )))
}

struct Printer {
    out: Stdout,
    buffer: Vec<u8>,
    format: Format,
    left: Option<u64>,
    /// Per partition: the offset after the last printed record.
    next: BTreeMap<TopicPartition, Offset>,
}

impl Printer {
    /// Renders records below `end` while the count lasts.
    fn print(&mut self, fetched: &Fetched, end: Option<Offset>) -> Result<(), Failure> {
        let mut next = fetched.from;
        for record in fetched.records() {
            let record = record?;
            if self.left == Some(0) || end.is_some_and(|end| record.offset >= end) {
                self.next.insert(fetched.partition.clone(), next);
                return Ok(());
            }
            let headers: Vec<(&[u8], Option<&[u8]>)> = record
                .record
                .headers
                .iter()
                .map(|(key, value)| (&key[..], value.as_deref()))
                .collect();
            let printable = Printable {
                topic: &fetched.partition.topic,
                partition: fetched.partition.partition.get(),
                offset: record.offset.get(),
                timestamp_ms: record.timestamp.get(),
                key: record.record.key.as_deref(),
                value: record.record.value.as_deref(),
                headers: &headers,
            };
            self.format.render(&printable, &mut self.buffer);
            next = record.offset.plus(1);
            self.left = self.left.map(|left| left - 1);
        }
        // Control batches at the end are passed over too, unless the count ended before them.
        let all = if self.left == Some(0) {
            next
        } else {
            fetched.next
        };
        self.next.insert(fetched.partition.clone(), all);
        Ok(())
    }

    async fn write(&mut self) -> Result<(), Failure> {
        let written = async {
            self.out.write_all(&self.buffer).await?;
            self.out.flush().await
        };
        written.await.map_err(output::written)?;
        self.buffer.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    /// Proves that a beginning beyond the end is told with both offsets, and that the end itself is none.
    #[test]
    fn beyond_the_end_is_told() {
        let at = |partition| TopicPartition {
            topic: "t".into(),
            partition: PartitionIndex::new(partition),
        };
        let ends = BTreeMap::from([0, 1].map(|index| (PartitionIndex::new(index), Offset::new(5))));
        let positions = |offset| BTreeMap::from([(at(1), Offset::new(offset))]);
        assert!(past_the_end(&positions(5), &ends).is_ok());
        let failure = past_the_end(&positions(6), &ends);
        assert!(
            matches!(&failure, Err(Failure::Failed(text)) if text == "t/1: offset 6 was wanted, but the log ends at 5"),
            "{failure:?}"
        );
    }

    /// Proves every spelling of a start, and that others are refused.
    #[test]
    fn from_spellings() {
        assert_eq!(from("earliest"), Ok(From::Earliest));
        assert_eq!(from("latest"), Ok(From::Latest));
        assert_eq!(from("17"), Ok(From::Offset(17)));
        assert_eq!(from("@1970-01-01T00:00:01.5Z"), Ok(From::Timestamp(1500)));
        assert_eq!(from("@1970-01-01T02:00:00+02:00"), Ok(From::Timestamp(0)));
        for wrong in ["", "-1", "end", "@", "@2026", "9223372036854775808"] {
            assert!(from(wrong).is_err(), "{wrong}");
        }
    }
}
