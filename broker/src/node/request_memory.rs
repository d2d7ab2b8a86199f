//! Tells when requests wait for memory: a warning of health and a line when it begins, and a line when it is over.
//!
//! Owns: how long requests may wait before it is told.
//! Not here: the memory (`net`, `intake`), its metrics (`net`).
//! Spec: docs/operating/health.md
//!
//! A warning only: a broker that is overloaded and taken out of a load balancer leaves its load to the others.

use crate::admin::Health;
use crate::intake::Shortage;
use std::time::Duration;
use tidelog_env::Tasks;

/// How often it is looked.
const TICK: Duration = Duration::from_secs(1);
/// So long may the longest wait be. In ordinary overload, requests wait for milliseconds: memory comes back with each answer.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// The part of health.
const PART: &str = "requests";

/// Looks until `tasks` stop. `shortage` says what lacks now.
pub(super) fn watch(
    shortage: impl Fn() -> Option<Shortage> + Clone + Send + Sync + 'static,
    health: &Health,
    tasks: &Tasks,
) {
    let health = health.clone();
    tasks.supervise("request-memory", TICK, move || {
        let (shortage, health) = (shortage.clone(), health.clone());
        async move {
            loop {
                tokio::time::sleep(TICK).await;
                look(shortage(), &health);
            }
        }
    });
}

/// The warning begins with a long wait, and ends with the shortage: it does not come and go with each wait.
fn look(shortage: Option<Shortage>, health: &Health) {
    let told = !health.is_well(PART);
    match shortage {
        Some(now) if now.longest >= WAIT_MAX => {
            let text = format!(
                "requests of {} connections wait for memory, for up to {} s, and requests hold {} bytes: clients send more than this broker gets done, or slowly what is large \
                 (kafka_request_memory_waiting, kafka_connections_closed_by_broker)",
                now.waiting,
                now.longest.as_secs(),
                now.used
            );
            if !told {
                tracing::warn!("{text}");
            }
            health.warn(PART, text);
        }
        None if told => {
            tracing::info!("requests wait for memory no more");
            health.clear(PART);
        }
        Some(_) | None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(seconds: u64) -> Option<Shortage> {
        Some(Shortage {
            waiting: 3,
            longest: Duration::from_secs(seconds),
            used: 160 << 20,
        })
    }

    /// Proves that a long wait is told as a warning, that shorter ones are not, and that it is taken back when the shortage is over, not before.
    #[test]
    fn long_waits_are_a_warning() {
        let health = Health::default();
        look(waits(4), &health);
        assert!(health.is_well(PART));
        look(waits(5), &health);
        let warnings = health.warnings();
        assert_eq!(warnings.len(), 1);
        assert!(warnings.iter().all(|warning| warning.part == PART
            && warning.message.starts_with("requests of 3 connections")));
        assert!(health.reasons().is_empty(), "it is ready");
        look(waits(0), &health);
        assert!(!health.is_well(PART), "still short");
        look(None, &health);
        assert!(health.is_well(PART));
    }
}
