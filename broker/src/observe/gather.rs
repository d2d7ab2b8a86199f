//! Gauges that are read off the state when somebody scrapes.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{GroupLabel, Metrics, Text, TopicLabel};

/// One placement group as a scrape sees it.
#[derive(Clone, Debug, Default)]
pub struct GroupReading {
    /// Its id.
    pub group: u32,
    /// Whether this broker leads it.
    pub leader: bool,
    /// Log index applied last.
    pub last_applied: u64,
    /// Bytes of its log files.
    pub local_bytes: u64,
    /// Bytes of batches that are in no committed segment.
    pub upload_lag_bytes: u64,
    /// Offload steps that failed.
    pub steps_failed: u64,
    /// Manifests published.
    pub cuts_published: u64,
    /// Bytes uploaded.
    pub uploaded_bytes: u64,
    /// Commands that could not be read.
    pub malformed: u64,
}

/// A counter that another crate keeps as a plain number.
#[derive(Clone, Debug)]
pub struct PlainCounter {
    /// Name, without prefix and `_total`.
    pub name: String,
    /// What it counts.
    pub help: &'static str,
    /// The placement group it belongs to, if it does.
    pub group: Option<u32>,
    /// Its value.
    pub value: u64,
}

/// By name: the lines of one metric stand together.
fn sorted(counters: &[PlainCounter]) -> Vec<&PlainCounter> {
    let mut sorted: Vec<&PlainCounter> = counters.iter().collect();
    sorted.sort_by(|a, b| (&a.name, a.group).cmp(&(&b.name, b.group)));
    sorted
}

/// One topic as a scrape sees it.
#[derive(Clone, Copy, Debug, Default)]
pub struct TopicReading {
    /// Records between log start and high watermark.
    pub records: i64,
    /// Bytes of committed segments.
    pub remote_bytes: u64,
    /// Bytes of batches in local logs.
    pub local_bytes: u64,
}

/// The whole broker as a scrape sees it.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// Groups.
    pub groups: Vec<GroupReading>,
    /// Topics by name.
    pub topics: BTreeMap<String, TopicReading>,
    /// Partitions of the cluster.
    pub partitions: u64,
    /// Registered brokers.
    pub brokers: u64,
    /// Those that clients are kept away from.
    pub brokers_fenced: u64,
    /// Groups without any replica left.
    pub groups_lost: u64,
    /// Replicas that have lost what they acknowledged to this broker.
    pub replicas_reverted: u64,
    /// Panics of background tasks.
    pub task_panics: u64,
    /// Whether the object store answers.
    pub store_up: bool,
    /// Whether it is known to be another one than the cluster's.
    pub store_wrong: bool,
    /// Seconds since the start.
    pub uptime_seconds: u64,
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl Metrics {
    /// The page at /metrics: counters as they are, gauges from `reading`.
    #[must_use]
    pub fn render(&self, reading: &Reading, counters: &[PlainCounter]) -> String {
        self.set_gauges(reading);
        self.set_topics(reading);
        let page = self.encode();
        let mut text = page.trim_end().trim_end_matches("# EOF").to_owned();
        write_counters(&mut text, counters);
        text.push_str("# EOF\n");
        text
    }

    fn set_gauges(&self, reading: &Reading) {
        let gauges = &self.gauges;
        gauges
            .topics
            .set(i64::try_from(reading.topics.len()).unwrap_or(i64::MAX));
        gauges.partitions.set(signed(reading.partitions));
        gauges.brokers.set(signed(reading.brokers));
        gauges.brokers_fenced.set(signed(reading.brokers_fenced));
        gauges.groups_lost.set(signed(reading.groups_lost));
        gauges
            .replicas_reverted
            .set(signed(reading.replicas_reverted));
        gauges.task_panics.set(signed(reading.task_panics));
        gauges.store_up.set(i64::from(reading.store_up));
        gauges.store_wrong.set(i64::from(reading.store_wrong));
        gauges.uptime_seconds.set(signed(reading.uptime_seconds));
        for group in &reading.groups {
            let label = GroupLabel { group: group.group };
            gauges
                .leader
                .get_or_create(&label)
                .set(i64::from(group.leader));
            gauges
                .last_applied
                .get_or_create(&label)
                .set(signed(group.last_applied));
            gauges
                .local_bytes
                .get_or_create(&label)
                .set(signed(group.local_bytes));
            gauges
                .upload_lag_bytes
                .get_or_create(&label)
                .set(signed(group.upload_lag_bytes));
            gauges
                .upload_failures
                .get_or_create(&label)
                .set(signed(group.steps_failed));
            gauges
                .cuts_published
                .get_or_create(&label)
                .set(signed(group.cuts_published));
            gauges
                .uploaded_bytes
                .get_or_create(&label)
                .set(signed(group.uploaded_bytes));
            gauges
                .malformed_commands
                .get_or_create(&label)
                .set(signed(group.malformed));
        }
    }

    fn set_topics(&self, reading: &Reading) {
        let gauges = &self.gauges;
        // A deleted topic must not stay on the page.
        gauges.topic_records.clear();
        gauges.topic_remote_bytes.clear();
        gauges.topic_local_bytes.clear();
        for (name, topic) in &reading.topics {
            let label = TopicLabel {
                topic: Text(name.clone()),
            };
            gauges
                .topic_records
                .get_or_create(&label)
                .set(topic.records);
            gauges
                .topic_remote_bytes
                .get_or_create(&label)
                .set(signed(topic.remote_bytes));
            gauges
                .topic_local_bytes
                .get_or_create(&label)
                .set(signed(topic.local_bytes));
        }
    }
}

fn write_counters(text: &mut String, counters: &[PlainCounter]) {
    let mut last = "";
    for counter in sorted(counters) {
        if counter.name != last {
            let _written = write!(
                text,
                "# HELP tidelog_{0} {1}.\n# TYPE tidelog_{0} counter\n",
                counter.name, counter.help
            );
        }
        let label = counter
            .group
            .map(|group| format!("{{group=\"{group}\"}}"))
            .unwrap_or_default();
        let _written = writeln!(
            text,
            "tidelog_{}_total{label} {}",
            counter.name, counter.value
        );
        last = &counter.name;
    }
}
