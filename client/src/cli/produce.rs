//! `tidelog produce`: lines from stdin become records.
//!
//! Owns: splitting the input into lines and keys, the summary.
//! Not here: batching, retries (`producer`).
//! Spec: `docs/guides/cli.md`, section produce. A line is the bytes between two newlines: nothing is trimmed, an empty
//! line is a record with an empty value.

use super::patience::{Patience, aloud, look_at_cluster};
use super::{Failure, Global, World, advice, cluster, cluster_until, output};
use crate::cluster::Cluster;
use crate::error::{Error, ErrorCode};
use crate::producer::{Delivery, Failed, NewRecord, Producer, ProducerConfig};
use clap::{Args, ValueEnum};
use regex::bytes::Regex;
use std::collections::{BTreeMap, VecDeque};
use std::io::Read;
use std::time::Duration;
use tidelog_model::codec::Codec;
use tokio::sync::mpsc;
use tokio::time::Instant;

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
    /// Give up on a record this long after it was read.
    #[arg(long, default_value = "2m", value_parser = output::duration, value_name = "TIME")]
    pub timeout: Duration,
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

impl CodecName {
    /// The model's codec.
    #[must_use]
    pub fn codec(self) -> Codec {
        match self {
            Self::None => Codec::None,
            Self::Gzip => Codec::Gzip,
            Self::Snappy => Codec::Snappy,
            Self::Lz4 => Codec::Lz4,
            Self::Zstd => Codec::Zstd,
        }
    }
}

/// Bytes of input that are read before they are split into lines.
const READ_BYTES: usize = 256 * 1024;
/// Chunks of input waiting: 4 of 256 KiB keep the producer busy.
const CHUNKS_WAITING: usize = 4;
/// A longer line cannot become a record of any broker.
const LINE_BYTES_MAX: usize = tidelog_model::limits::BATCH_BYTES_MAX;
/// Batches whose acknowledgement is awaited later.
const BATCHES_AWAITED_MAX: usize = 1024;

pub(super) async fn run(args: ProduceArgs, global: &Global, world: &World) -> Result<(), Failure> {
    let trying = format!("still trying, each record for {:?}", args.timeout);
    let mut patience = Patience::open(trying, world);
    let cluster = cluster(global, world)?;
    let look = || look_at_cluster(&cluster, Some(&args.topic));
    let by = cluster_until(global, world, Some(Instant::now() + args.timeout))?;
    let work = produce(&args, &by, cluster.clone(), world);
    aloud(&mut patience, work, look).await
}

/// `by` ends what is asked before the first record.
async fn produce(
    args: &ProduceArgs,
    by: &Cluster,
    cluster: Cluster,
    world: &World,
) -> Result<(), Failure> {
    by.topic(&args.topic)
        .await
        .map_err(|error| missing_topic(error, &args.topic))?;
    let config = ProducerConfig {
        codec: args.codec.codec(),
        delivery_timeout: args.timeout,
        ..ProducerConfig::default()
    };
    let producer = Producer::start(cluster, config, world.clock.clone())?;
    let mut tally = Tally::default();
    let fed = feed(args, &producer, &mut tally, read_lines()).await;
    tally.finish().await;
    let closed = producer.close().await;
    output::say(&tally.summary(&args.topic));
    fed?;
    match (tally.first_failure, closed) {
        (Some(failed), _) | (None, Err(failed)) => Err(not_acknowledged(&failed)),
        (None, Ok(())) => Ok(()),
    }
}

fn not_acknowledged(failed: &Failed) -> Failure {
    Failure::Failed(format!("{failed}{}", advice(&failed.error)))
}

/// A missing topic is the first thing that a newcomer meets.
pub(super) fn missing_topic(error: Error, topic: &str) -> Failure {
    match &error {
        Error::Broker { code, message, .. } if *code == ErrorCode::UNKNOWN_TOPIC_OR_PARTITION => {
            let asked = message
                .as_ref()
                .map_or_else(String::new, |by| format!(" ({by})"));
            Failure::Failed(format!(
                "there is no topic '{topic}'{asked}. `tidelog topic create {topic}` creates it"
            ))
        }
        _ => error.into(),
    }
}

/// Sends every line; ends at the end of the input, at Ctrl-C, or at the first record that was not acknowledged.
async fn feed(
    args: &ProduceArgs,
    producer: &Producer,
    tally: &mut Tally,
    mut chunks: mpsc::Receiver<std::io::Result<Vec<u8>>>,
) -> Result<(), Failure> {
    let stop = tokio::signal::ctrl_c();
    tokio::pin!(stop);
    loop {
        let chunk = tokio::select! {
            _ = &mut stop => {
                output::say("interrupted: what was read is sent, the rest of the input is not");
                return Ok(());
            }
            chunk = chunks.recv() => chunk,
        };
        let Some(chunk) = chunk else { return Ok(()) };
        let chunk =
            chunk.map_err(|error| Failure::Failed(format!("cannot read stdin: {error}")))?;
        // A chunk ends with its last line's newline, or is the end of the input without one.
        let body = chunk.strip_suffix(b"\n").unwrap_or(&chunk);
        for line in body.split(|byte| *byte == b'\n') {
            let (key, value) = split(args, line);
            let record = NewRecord {
                topic: &args.topic,
                key,
                value: Some(value),
                ..NewRecord::default()
            };
            tally.read += 1;
            let delivery = producer
                .send(record)
                .await
                .map_err(|error| at_line(&error, tally.read))?;
            tally.sent(delivery).await;
            if tally.first_failure.is_some() {
                return Ok(());
            }
        }
    }
}

fn at_line(error: &Error, line: u64) -> Failure {
    Failure::Failed(format!("line {line}: {error}"))
}

fn split<'a>(args: &ProduceArgs, line: &'a [u8]) -> (Option<&'a [u8]>, &'a [u8]) {
    if let Some(separator) = &args.key_separator {
        let separator = separator.as_bytes();
        return match line
            .windows(separator.len())
            .position(|window| window == separator)
        {
            Some(at) => (Some(&line[..at]), &line[at + separator.len()..]),
            None => (None, line),
        };
    }
    let key = args
        .key_regex
        .as_ref()
        .and_then(|regex| regex.captures(line))
        .and_then(|found| {
            let group = if found.len() > 1 {
                found.get(1)
            } else {
                found.get(0)
            };
            group.map(|group| group.as_bytes())
        });
    (key, line)
}

/// Reads stdin on a thread of its own: a blocked read must not hold up the program's end.
fn read_lines() -> mpsc::Receiver<std::io::Result<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel(CHUNKS_WAITING);
    std::thread::spawn(move || {
        let mut stdin = std::io::stdin().lock();
        if let Err(error) = read_into(&mut stdin, &sender) {
            let _ = sender.blocking_send(Err(error));
        }
    });
    receiver
}

/// Sends chunks that end with a newline (the last one perhaps not).
fn read_into(
    input: &mut impl Read,
    chunks: &mpsc::Sender<std::io::Result<Vec<u8>>>,
) -> std::io::Result<()> {
    let mut pending: Vec<u8> = Vec::with_capacity(READ_BYTES);
    loop {
        let before = pending.len();
        let capacity = u64::try_from(READ_BYTES).unwrap_or(u64::MAX);
        let read = read_some(input, &mut pending, capacity)?;
        if read == 0 {
            if !pending.is_empty() {
                let _ = chunks.blocking_send(Ok(pending));
            }
            return Ok(());
        }
        if let Some(at) = pending[before..].iter().rposition(|byte| *byte == b'\n') {
            let rest = pending.split_off(before + at + 1);
            if chunks
                .blocking_send(Ok(std::mem::replace(&mut pending, rest)))
                .is_err()
            {
                return Ok(());
            }
        } else if pending.len() > LINE_BYTES_MAX {
            return Err(std::io::Error::other(format!(
                "a line is longer than {LINE_BYTES_MAX} bytes"
            )));
        }
    }
}

/// One read: what is there now, at most `limit`.
fn read_some(input: &mut impl Read, pending: &mut Vec<u8>, limit: u64) -> std::io::Result<usize> {
    let start = pending.len();
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    pending.resize(start + limit, 0);
    loop {
        match input.read(&mut pending[start..]) {
            Ok(read) => {
                pending.truncate(start + read);
                return Ok(read);
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Counts what became of the lines, a batch at a time.
#[derive(Default)]
struct Tally {
    read: u64,
    acknowledged: u64,
    failed: u64,
    first_failure: Option<Failed>,
    /// The batch being filled, per partition, with its records.
    filling: BTreeMap<i32, (Delivery, u64)>,
    awaited: VecDeque<(Delivery, u64)>,
}

impl Tally {
    async fn sent(&mut self, delivery: Delivery) {
        match self.filling.get_mut(&delivery.partition()) {
            Some((filling, count)) if filling.same_batch(&delivery) => *count += 1,
            _ => {
                if let Some(full) = self.filling.insert(delivery.partition(), (delivery, 1)) {
                    self.awaited.push_back(full);
                }
            }
        }
        while self.awaited.len() > BATCHES_AWAITED_MAX
            || self
                .awaited
                .front()
                .is_some_and(|(batch, _)| batch.is_known())
        {
            let Some(batch) = self.awaited.pop_front() else {
                return;
            };
            self.settle(batch).await;
        }
    }

    async fn finish(&mut self) {
        let rest: Vec<_> = self
            .awaited
            .drain(..)
            .chain(std::mem::take(&mut self.filling).into_values())
            .collect();
        for batch in rest {
            self.settle(batch).await;
        }
    }

    async fn settle(&mut self, (batch, count): (Delivery, u64)) {
        match batch.wait().await {
            Ok(_) => self.acknowledged += count,
            Err(failed) => {
                self.failed += count;
                self.first_failure.get_or_insert(failed);
            }
        }
    }

    fn summary(&self, topic: &str) -> String {
        let Self {
            read,
            acknowledged,
            failed,
            ..
        } = self;
        format!(
            "{read} lines read, {acknowledged} records acknowledged in '{topic}', {failed} failed"
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn args(separator: Option<&str>, pattern: Option<&str>) -> ProduceArgs {
        ProduceArgs {
            topic: "t".to_owned(),
            key_separator: separator.map(str::to_owned),
            key_regex: pattern.map(|pattern| regex(pattern).unwrap()),
            codec: CodecName::None,
            timeout: Duration::from_secs(120),
        }
    }

    /// Proves how lines are split into key and value, bytes that are not UTF-8 included.
    #[test]
    fn keys_of_lines() {
        let by = args(Some("::"), None);
        assert_eq!(
            split(&by, b"k\xff::v::w"),
            (Some(&b"k\xff"[..]), &b"v::w"[..])
        );
        assert_eq!(split(&by, b"::v"), (Some(&b""[..]), &b"v"[..]));
        assert_eq!(split(&by, b"k:v"), (None, &b"k:v"[..]));
        let by = args(None, Some("(blk_-?[0-9]+)"));
        assert_eq!(split(&by, b"a blk_-12 b blk_3").0, Some(&b"blk_-12"[..]));
        assert_eq!(split(&by, b"a blk_-12 b").1, b"a blk_-12 b");
        assert_eq!(split(&by, b"nothing"), (None, &b"nothing"[..]));
        let by = args(None, Some("[0-9]+"));
        assert_eq!(split(&by, b"sshd[123]: x").0, Some(&b"123"[..]));
        let by = args(None, Some("a(b)?"));
        assert_eq!(split(&by, b"ac").0, None);
        assert_eq!(split(&args(None, None), b"x"), (None, &b"x"[..]));
    }

    /// Gives at most three bytes a read.
    struct Trickle(&'static [u8]);

    impl Read for Trickle {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            let count = self.0.len().min(3).min(out.len());
            out[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    /// Proves that lines survive any split of the input: empty ones, carriage returns, and a last one without newline.
    #[tokio::test]
    async fn lines_survive_reads() {
        for (input, lines) in [
            (
                &b"one\ntwo\r\n\nfour"[..],
                vec![&b"one"[..], b"two\r", b"", b"four"],
            ),
            (b"one\n", vec![b"one"]),
            (b"\n", vec![b""]),
            (b"", vec![]),
        ] {
            let (sender, mut receiver) = mpsc::channel(100);
            tokio::task::spawn_blocking(move || read_into(&mut Trickle(input), &sender))
                .await
                .unwrap()
                .unwrap();
            let mut found = Vec::new();
            while let Some(chunk) = receiver.recv().await {
                let chunk = chunk.unwrap();
                let body = chunk.strip_suffix(b"\n").unwrap_or(&chunk);
                found.extend(body.split(|byte| *byte == b'\n').map(<[u8]>::to_vec));
            }
            assert_eq!(found, lines, "{input:?}");
        }
    }
}
