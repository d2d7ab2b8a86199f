//! What the transport between brokers counts, on both of its sides.
//!
//! Owns: names and meaning of its metrics.
//! Not here: serving them (`admin`).

use super::frame::WireLane;
use super::hello::Reason;
use crate::intake::BudgetMetrics;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LaneLabel {
    lane: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct BudgetLabel {
    budget: &'static str,
}

type PerLane = Family<LaneLabel, Counter>;
type PerReason = Family<ReasonLabel, Counter>;

/// Counters of the transport between brokers. Clones share them; one set serves the listener and the transport.
#[derive(Clone, Debug, Default)]
pub struct PeerMetrics {
    /// Open connections that peers made to this broker.
    pub connections_accepted_open: Gauge,
    /// Open connections that this broker made to peers.
    pub connections_made_open: Gauge,
    /// Connections closed at once since there were too many.
    pub connections_over_bound: Counter,
    /// Failed accepts, as for lack of file descriptors.
    pub accept_errors: Counter,
    /// Tries to reach a peer that failed, refusals included.
    pub connect_failures: Counter,
    /// Connections made to a peer after an earlier one on the same lane.
    pub reconnects: Counter,
    /// Tasks of connections that ended by a panic. Each is a bug.
    pub panics: Counter,
    /// Requests answered with "overloaded".
    pub overloaded: Counter,
    /// Bytes of snapshots that did not have to be sent again after a break.
    pub snapshot_bytes_resumed: Counter,
    sent_bytes: PerLane,
    received_bytes: PerLane,
    sent_messages: PerLane,
    received_messages: PerLane,
    handshakes_refused: PerReason,
    closed_for: PerReason,
    memory_used: Family<BudgetLabel, Gauge>,
    memory_waiting: Family<BudgetLabel, Gauge>,
}

impl PeerMetrics {
    /// Puts the metrics into `registry`, whose prefix is the project's.
    pub fn register(&self, registry: &mut Registry) {
        self.register_connections(registry);
        registry.register(
            "peer_sent_bytes",
            "Bytes of frames written to peers, by lane",
            self.sent_bytes.clone(),
        );
        registry.register(
            "peer_received_bytes",
            "Bytes of frames read from peers, by lane",
            self.received_bytes.clone(),
        );
        registry.register(
            "peer_sent_messages",
            "Frames written to peers, by lane",
            self.sent_messages.clone(),
        );
        registry.register(
            "peer_received_messages",
            "Frames read from peers, by lane",
            self.received_messages.clone(),
        );
        registry.register(
            "peer_overloaded",
            "Requests of peers answered with overloaded",
            self.overloaded.clone(),
        );
        registry.register(
            "peer_snapshot_resumed_bytes",
            "Bytes of snapshots that did not have to be sent again",
            self.snapshot_bytes_resumed.clone(),
        );
        registry.register(
            "peer_frame_memory_used_bytes",
            "Bytes of frames of peers that are being read or in work, by budget",
            self.memory_used.clone(),
        );
        registry.register(
            "peer_frame_memory_waiting",
            "Connections of peers whose frame waits for memory, by budget",
            self.memory_waiting.clone(),
        );
    }

    /// Where the budget of that name is told of.
    pub(super) fn memory(&self, budget: &'static str) -> BudgetMetrics {
        let label = BudgetLabel { budget };
        BudgetMetrics {
            used: self.memory_used.get_or_create(&label).clone(),
            waiting: self.memory_waiting.get_or_create(&label).clone(),
            ..BudgetMetrics::default()
        }
    }

    fn register_connections(&self, registry: &mut Registry) {
        registry.register(
            "peer_connections_accepted_open",
            "Open connections that peers made to this broker",
            self.connections_accepted_open.clone(),
        );
        registry.register(
            "peer_connections_made_open",
            "Open connections that this broker made to peers",
            self.connections_made_open.clone(),
        );
        registry.register(
            "peer_connections_over_bound",
            "Peer connections closed at once because there were too many",
            self.connections_over_bound.clone(),
        );
        registry.register(
            "peer_accept_errors",
            "Failed accepts of peer connections",
            self.accept_errors.clone(),
        );
        registry.register(
            "peer_connect_failures",
            "Tries to reach a peer that failed",
            self.connect_failures.clone(),
        );
        registry.register(
            "peer_reconnects",
            "Connections made to a peer after an earlier one",
            self.reconnects.clone(),
        );
        registry.register(
            "peer_connection_panics",
            "Tasks of peer connections that panicked",
            self.panics.clone(),
        );
        registry.register(
            "peer_handshakes_refused",
            "Handshakes of peers that this broker refused, by reason",
            self.handshakes_refused.clone(),
        );
        registry.register(
            "peer_connections_closed",
            "Peer connections that this broker closed, by reason",
            self.closed_for.clone(),
        );
    }

    /// Handshakes that were refused for `reason` (a name as in the metric's label).
    #[must_use]
    pub fn refused_for(&self, reason: &'static str) -> u64 {
        self.handshakes_refused
            .get_or_create(&ReasonLabel { reason })
            .get()
    }

    /// Connections that this broker closed for `reason`.
    #[must_use]
    pub fn closed_for(&self, reason: &'static str) -> u64 {
        self.closed_for.get_or_create(&ReasonLabel { reason }).get()
    }

    pub(super) fn refused(&self, reason: Reason) {
        let reason = reason.name();
        self.handshakes_refused
            .get_or_create(&ReasonLabel { reason })
            .inc();
    }

    pub(super) fn closed(&self, reason: &'static str) {
        self.closed_for.get_or_create(&ReasonLabel { reason }).inc();
    }

    pub(super) fn lane(&self, lane: WireLane) -> LaneMetrics {
        let label = LaneLabel { lane: lane.name() };
        let of = |family: &PerLane| family.get_or_create(&label).clone();
        LaneMetrics {
            sent_bytes: of(&self.sent_bytes),
            received_bytes: of(&self.received_bytes),
            sent_messages: of(&self.sent_messages),
            received_messages: of(&self.received_messages),
        }
    }
}

/// The counters of one lane, looked up once per connection.
#[derive(Clone, Debug)]
pub(super) struct LaneMetrics {
    pub(super) sent_bytes: Counter,
    pub(super) received_bytes: Counter,
    pub(super) sent_messages: Counter,
    pub(super) received_messages: Counter,
}

impl LaneMetrics {
    pub(super) fn sent(&self, messages: usize, bytes: usize) {
        self.sent_messages
            .inc_by(u64::try_from(messages).unwrap_or(0));
        self.sent_bytes.inc_by(u64::try_from(bytes).unwrap_or(0));
    }

    pub(super) fn received(&self, bytes: usize) {
        self.received_messages.inc();
        self.received_bytes
            .inc_by(u64::try_from(bytes).unwrap_or(0));
    }
}

/// Counts a connection as open while it lives.
pub(super) struct OpenConnection(Gauge);

impl OpenConnection {
    pub(super) fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}
