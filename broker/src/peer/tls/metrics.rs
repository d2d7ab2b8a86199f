//! What TLS between brokers counts. Registered only where TLS is on: an end of validity of 0 would be an alarm.
//!
//! Owns: names and meaning of its metrics.
//! Not here: connections and refusals (`peer::metrics`).

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Counters of TLS between brokers. Clones share them.
#[derive(Clone, Debug, Default)]
pub(in crate::peer) struct TlsMetrics {
    certificate_expires_at_seconds: Gauge,
    pub(in crate::peer) reloads: Counter,
    pub(in crate::peer) reload_failures: Counter,
    pub(in crate::peer) connections_accepted_open: Gauge,
}

impl TlsMetrics {
    pub(super) fn valid_until(&self, seconds: u64) {
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
        self.certificate_expires_at_seconds.set(seconds);
    }

    #[cfg(test)]
    pub(in crate::peer) fn expires_at(&self) -> i64 {
        self.certificate_expires_at_seconds.get()
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "peer_tls_certificate_expires_at_seconds",
            "End of validity of this broker's certificate for peer connections, seconds since 1970",
            self.certificate_expires_at_seconds.clone(),
        );
        registry.register(
            "peer_tls_reloads",
            "Changes of the files of peer.tls-* that were taken into use",
            self.reloads.clone(),
        );
        registry.register(
            "peer_tls_reload_failures",
            "Changes of the files of peer.tls-* that cannot be used; the earlier ones stay in use",
            self.reload_failures.clone(),
        );
        registry.register(
            "peer_tls_connections_accepted_open",
            "Open connections that peers made to this broker with TLS",
            self.connections_accepted_open.clone(),
        );
    }
}
