//! What the listener counts.
//!
//! Owns: names and meaning of its metrics.
//! Not here: serving them (`admin`).

use crate::intake::BudgetMetrics;
use crate::wire::{Api, WireError};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::time::Duration;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ApiLabel {
    api: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct BudgetLabel {
    budget: &'static str,
}

/// Counters of the Kafka listener. Clones share them.
#[derive(Clone, Debug)]
pub struct NetMetrics {
    /// Open connections.
    pub connections: Gauge,
    /// Connections accepted since the start.
    pub connections_accepted: Counter,
    /// Connections closed at once since there were too many.
    pub connections_refused: Counter,
    /// Failed accepts, as for lack of file descriptors.
    pub accept_errors: Counter,
    /// Tasks of connections that ended by a panic. Each is a bug.
    pub panics: Counter,
    /// Bytes of frames read.
    pub bytes_received: Counter,
    /// Bytes of answers written.
    pub bytes_sent: Counter,
    closed_for: Family<ReasonLabel, Counter>,
    request_seconds: Family<ApiLabel, Histogram, fn() -> Histogram>,
    memory_used: Family<BudgetLabel, Gauge>,
    memory_waiting: Family<BudgetLabel, Gauge>,
    memory_wait_seconds: Family<BudgetLabel, Histogram, fn() -> Histogram>,
}

/// From 0.5 ms to 32 s, doubling.
fn latency_histogram() -> Histogram {
    Histogram::new(prometheus_client::metrics::histogram::exponential_buckets(
        0.000_5, 2.0, 17,
    ))
}

impl Default for NetMetrics {
    fn default() -> Self {
        Self {
            connections: Gauge::default(),
            connections_accepted: Counter::default(),
            connections_refused: Counter::default(),
            accept_errors: Counter::default(),
            panics: Counter::default(),
            bytes_received: Counter::default(),
            bytes_sent: Counter::default(),
            closed_for: Family::default(),
            request_seconds: Family::new_with_constructor(latency_histogram),
            memory_used: Family::default(),
            memory_waiting: Family::default(),
            memory_wait_seconds: Family::new_with_constructor(BudgetMetrics::wait_histogram),
        }
    }
}

impl NetMetrics {
    /// Puts the metrics into `registry`, whose prefix is the project's.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "kafka_connections",
            "Open client connections",
            self.connections.clone(),
        );
        registry.register(
            "kafka_connections_accepted",
            "Client connections accepted",
            self.connections_accepted.clone(),
        );
        registry.register(
            "kafka_connections_refused",
            "Client connections closed at once because there were too many",
            self.connections_refused.clone(),
        );
        registry.register(
            "kafka_accept_errors",
            "Failed accepts of connections",
            self.accept_errors.clone(),
        );
        registry.register(
            "kafka_connection_panics",
            "Connection tasks that panicked",
            self.panics.clone(),
        );
        registry.register(
            "kafka_received_bytes",
            "Bytes of request frames read",
            self.bytes_received.clone(),
        );
        registry.register(
            "kafka_sent_bytes",
            "Bytes of answer frames written",
            self.bytes_sent.clone(),
        );
        registry.register(
            "kafka_connections_closed_by_broker",
            "Connections that the broker closed, by reason",
            self.closed_for.clone(),
        );
        registry.register(
            "kafka_request_latency_seconds",
            "Time from a whole request to its written answer",
            self.request_seconds.clone(),
        );
        self.register_memory(registry);
    }

    fn register_memory(&self, registry: &mut Registry) {
        registry.register(
            "kafka_request_memory_used_bytes",
            "Bytes of request frames that are being read or in work, by budget",
            self.memory_used.clone(),
        );
        registry.register(
            "kafka_request_memory_waiting",
            "Connections whose request waits for memory, by budget",
            self.memory_waiting.clone(),
        );
        registry.register(
            "kafka_request_memory_wait_seconds",
            "How long requests waited for memory, of those that had to, by budget",
            self.memory_wait_seconds.clone(),
        );
    }

    /// Where the budget of that name is told of.
    pub(super) fn memory(&self, budget: &'static str) -> BudgetMetrics {
        let label = BudgetLabel { budget };
        BudgetMetrics {
            used: self.memory_used.get_or_create(&label).clone(),
            waiting: self.memory_waiting.get_or_create(&label).clone(),
            wait_seconds: self.memory_wait_seconds.get_or_create(&label).clone(),
        }
    }

    /// How many connections the broker closed for `reason`.
    #[must_use]
    pub fn closed_for(&self, reason: &'static str) -> u64 {
        self.closed_for.get_or_create(&ReasonLabel { reason }).get()
    }

    pub(super) fn closed(&self, reason: &'static str) {
        self.closed_for.get_or_create(&ReasonLabel { reason }).inc();
    }

    pub(super) fn answered(&self, api: Api, took: Duration) {
        self.request_seconds
            .get_or_create(&ApiLabel { api: api.name() })
            .observe(took.as_secs_f64());
    }
}

/// The label of an error for [`NetMetrics::closed_for`].
pub(super) fn reason(error: &WireError) -> &'static str {
    match error {
        WireError::Http => "http",
        WireError::Tls => "tls",
        WireError::FrameLength { .. } => "frame_length",
        WireError::Unsupported { .. } => "unsupported",
        WireError::Malformed { .. } => "malformed",
        WireError::Answer { .. } => "answer",
    }
}
