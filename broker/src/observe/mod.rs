//! What the broker measures of itself, in Prometheus' text format.
//!
//! Owns: the registry, the handles that hot paths count with, and the gauges that are read off the state at a scrape.
//! Not here: logging setup (`main`), health (`admin::health`).
//! Labels are few (api, placement group, topic): a scrape stays small with ten thousand partitions.

mod gather;
mod text;

pub use gather::{GroupReading, PlainCounter, Reading, TopicReading};
pub use text::printable;

use std::fmt::Write;

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Upper bounds of the latency buckets: 0.1 ms to 10 s.
const SECONDS: [f64; 15] = [
    0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
];

/// The API of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ApiLabel {
    /// Kafka's name of it.
    pub api: &'static str,
}

/// A placement group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct GroupLabel {
    /// Its id.
    pub group: u32,
}

/// A topic.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct TopicLabel {
    /// Its name.
    pub topic: Text,
}

/// A label value that is text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Text(pub String);

impl EncodeLabelValue for Text {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder.write_str(&self.0)
    }
}

/// Handles that the hot paths count with, and the registry.
pub struct Metrics {
    registry: Registry,
    /// Requests answered, by API.
    pub requests: Family<ApiLabel, Counter>,
    /// Time from a request's last byte to its answer, by API. Long polls that ended empty are not in it.
    pub request_seconds: Family<ApiLabel, Histogram>,
    /// Bytes of batches appended.
    pub produced_bytes: Counter,
    /// Records appended.
    pub produced_records: Counter,
    /// Bytes of batches served.
    pub fetched_bytes: Counter,
    /// Of them, those that were served to readers in this zone by a replica that does not lead.
    pub follower_fetched_bytes: Counter,
    /// Long polls that ended without a record.
    pub empty_fetches: Counter,
    gauges: Gauges,
}

struct Gauges {
    topics: Gauge,
    partitions: Gauge,
    brokers: Gauge,
    brokers_fenced: Gauge,
    groups_lost: Gauge,
    replicas_reverted: Gauge,
    leader: Family<GroupLabel, Gauge>,
    last_applied: Family<GroupLabel, Gauge>,
    local_bytes: Family<GroupLabel, Gauge>,
    upload_lag_bytes: Family<GroupLabel, Gauge>,
    upload_failures: Family<GroupLabel, Gauge>,
    cuts_published: Family<GroupLabel, Gauge>,
    uploaded_bytes: Family<GroupLabel, Gauge>,
    malformed_commands: Family<GroupLabel, Gauge>,
    topic_records: Family<TopicLabel, Gauge>,
    topic_remote_bytes: Family<TopicLabel, Gauge>,
    topic_local_bytes: Family<TopicLabel, Gauge>,
    task_panics: Gauge,
    store_up: Gauge,
    store_wrong: Gauge,
    uptime_seconds: Gauge,
}

impl Metrics {
    /// A registry with every metric in it; `more` adds those of modules that this one must not know.
    #[must_use]
    pub fn new(more: impl FnOnce(&mut Registry)) -> Self {
        let mut registry = Registry::with_prefix("tidelog");
        more(&mut registry);
        let requests = Family::default();
        let request_seconds =
            Family::new_with_constructor((|| Histogram::new(SECONDS)) as fn() -> Histogram);
        let (produced_bytes, produced_records) = (Counter::default(), Counter::default());
        let (fetched_bytes, empty_fetches) = (Counter::default(), Counter::default());
        let follower_fetched_bytes = Counter::default();
        registry.register("kafka_requests", "Requests answered", requests.clone());
        registry.register(
            "kafka_request_latency_seconds",
            "Time to answer a request",
            request_seconds.clone(),
        );
        registry.register(
            "kafka_produced_bytes",
            "Bytes of record batches appended",
            produced_bytes.clone(),
        );
        registry.register(
            "kafka_records_produced",
            "Records appended",
            produced_records.clone(),
        );
        registry.register(
            "kafka_fetched_bytes",
            "Bytes of record batches served",
            fetched_bytes.clone(),
        );
        registry.register(
            "kafka_follower_fetched_bytes",
            "Bytes of record batches served by replicas that do not lead",
            follower_fetched_bytes.clone(),
        );
        registry.register(
            "kafka_empty_fetches",
            "Long polls that ended without a record",
            empty_fetches.clone(),
        );
        let gauges = Gauges::registered(&mut registry);
        Self {
            registry,
            requests,
            request_seconds,
            produced_bytes,
            produced_records,
            fetched_bytes,
            follower_fetched_bytes,
            empty_fetches,
            gauges,
        }
    }

    fn encode(&self) -> String {
        let mut text = String::new();
        if let Err(error) = encode(&mut text, &self.registry) {
            tracing::error!("metrics could not be encoded: {error}");
        }
        text
    }
}

impl Gauges {
    fn registered(registry: &mut Registry) -> Self {
        let gauges = Self {
            topics: Gauge::default(),
            partitions: Gauge::default(),
            brokers: Gauge::default(),
            brokers_fenced: Gauge::default(),
            groups_lost: Gauge::default(),
            replicas_reverted: Gauge::default(),
            leader: Family::default(),
            last_applied: Family::default(),
            local_bytes: Family::default(),
            upload_lag_bytes: Family::default(),
            upload_failures: Family::default(),
            cuts_published: Family::default(),
            uploaded_bytes: Family::default(),
            malformed_commands: Family::default(),
            topic_records: Family::default(),
            topic_remote_bytes: Family::default(),
            topic_local_bytes: Family::default(),
            task_panics: Gauge::default(),
            store_up: Gauge::default(),
            store_wrong: Gauge::default(),
            uptime_seconds: Gauge::default(),
        };
        gauges.register_all(registry);
        gauges.register_topics(registry);
        gauges
    }

    fn register_cluster(&self, registry: &mut Registry) {
        let g = self;
        registry.register("cluster_topics", "Topics", g.topics.clone());
        registry.register("cluster_partitions", "Partitions", g.partitions.clone());
        registry.register("cluster_brokers", "Registered brokers", g.brokers.clone());
        registry.register(
            "cluster_brokers_fenced",
            "Brokers that clients are kept away from: silent, or stopping",
            g.brokers_fenced.clone(),
        );
        registry.register(
            "store_wrong",
            "1 while this broker's object store is not the one of the cluster",
            g.store_wrong.clone(),
        );
        registry.register(
            "groups_lost",
            "Placement groups with a replica here that are lost: most of their copies are gone with their disks",
            g.groups_lost.clone(),
        );
        registry.register(
            "replicas_reverted",
            "Replicas of groups that this broker leads that have lost entries they had acknowledged: they count as gone until their broker is refilled",
            g.replicas_reverted.clone(),
        );
    }

    fn register_all(&self, registry: &mut Registry) {
        self.register_cluster(registry);
        let g = self;
        registry.register(
            "group_leader",
            "1 where this broker leads the placement group",
            g.leader.clone(),
        );
        registry.register(
            "group_last_applied",
            "Log index applied last",
            g.last_applied.clone(),
        );
        registry.register(
            "group_local_bytes",
            "Bytes of local log files",
            g.local_bytes.clone(),
        );
        registry.register(
            "tier_upload_lag_bytes",
            "Bytes that are not in the store",
            g.upload_lag_bytes.clone(),
        );
        registry.register(
            "tier_steps_failed",
            "Offload steps that failed since the start",
            g.upload_failures.clone(),
        );
        registry.register(
            "tier_cuts_published",
            "Manifests published since the start",
            g.cuts_published.clone(),
        );
        registry.register(
            "tier_uploaded_bytes",
            "Bytes moved to the store since the start",
            g.uploaded_bytes.clone(),
        );
        registry.register(
            "group_malformed_commands",
            "Log entries that could not be read",
            g.malformed_commands.clone(),
        );
        registry.register(
            "task_panics",
            "Background tasks that panicked since the start",
            g.task_panics.clone(),
        );
        registry.register(
            "store_up",
            "1 while the object store answers",
            g.store_up.clone(),
        );
        registry.register(
            "uptime_seconds",
            "Seconds since the start",
            g.uptime_seconds.clone(),
        );
    }

    fn register_topics(&self, registry: &mut Registry) {
        let g = self;
        registry.register(
            "topic_records",
            "Records between log start and high watermark",
            g.topic_records.clone(),
        );
        registry.register(
            "topic_remote_bytes",
            "Bytes of committed segments",
            g.topic_remote_bytes.clone(),
        );
        registry.register(
            "topic_local_bytes",
            "Bytes of batches in local logs",
            g.topic_local_bytes.clone(),
        );
    }
}
