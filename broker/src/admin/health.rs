//! Liveness, readiness, and warnings.
//!
//! While a broker starts, part `start` says what it waits for. Ready means: this broker serves appends and tail reads. Recovered, its replicas caught up once (`readiness.rs`),
//! listeners open, room on the disk, and the store has worked since the start. What it can go on without, such as the store later on, is a warning: an
//! outage of the store concerns all brokers at once, and a load balancer must not take them all out for it.
//! A store that answers and is not the cluster's is none of that, unless all brokers say so of theirs: such a broker cannot read history, and drops nothing.
//! Spec: docs/operating/health.md

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use parking_lot::Mutex;
use serde::Serialize;

use super::AdminState;

/// Why the broker is not ready, or what it is warned about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// Which part of the broker.
    pub part: &'static str,
    /// Why.
    pub message: String,
}

type Parts = BTreeMap<&'static str, String>;

/// Shared health: parts that are not ready, and parts that only deserve a warning, by name.
#[derive(Clone, Default)]
pub struct Health(Arc<Mutex<(Parts, Parts)>>);

impl Health {
    /// Says that `part` is not ready, and why.
    pub fn not_ready(&self, part: &'static str, why: impl Into<String>) {
        self.0.lock().0.insert(part, why.into());
    }

    /// Says that `part` is ready.
    pub fn ready(&self, part: &'static str) {
        self.0.lock().0.remove(part);
    }

    /// Says that `part` does not work, and what that means, while the broker goes on.
    pub fn warn(&self, part: &'static str, what: impl Into<String>) {
        self.0.lock().1.insert(part, what.into());
    }

    /// Takes the warning about `part` back.
    pub fn clear(&self, part: &'static str) {
        self.0.lock().1.remove(part);
    }

    /// Parts that are not ready.
    #[must_use]
    pub fn reasons(&self) -> Vec<Reason> {
        listed(&self.0.lock().0)
    }

    /// Parts that there is a warning about.
    #[must_use]
    pub fn warnings(&self) -> Vec<Reason> {
        listed(&self.0.lock().1)
    }

    /// Whether `part` is neither unready nor warned about.
    #[must_use]
    pub fn is_well(&self, part: &str) -> bool {
        let parts = self.0.lock();
        !parts.0.contains_key(part) && !parts.1.contains_key(part)
    }
}

fn listed(parts: &Parts) -> Vec<Reason> {
    parts
        .iter()
        .map(|(part, message)| Reason {
            part,
            message: message.clone(),
        })
        .collect()
}

#[derive(Serialize)]
pub(super) struct Ready {
    ready: bool,
    reasons: Vec<Reason>,
    warnings: Vec<Reason>,
}

pub(super) async fn livez() -> &'static str {
    "ok\n"
}

/// While the broker starts.
pub(super) fn starting(health: &Health) -> impl IntoResponse + use<> {
    answer(health.reasons(), health.warnings())
}

pub(super) async fn readyz(State(state): State<AdminState>) -> (StatusCode, Json<Ready>) {
    let reasons = state.health.reasons();
    let mut warnings = state.health.warnings();
    for (group, offload) in state.offloads.all().iter() {
        if let Some(error) = offload.progress().last_error() {
            warnings.push(Reason {
                part: "offload",
                message: format!(
                    "group {group}: the newest step failed and is tried again: {error}"
                ),
            });
        }
    }
    answer(reasons, warnings)
}

/// Warnings do not make a broker unready.
fn answer(reasons: Vec<Reason>, warnings: Vec<Reason>) -> (StatusCode, Json<Ready>) {
    let ready = reasons.is_empty();
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let ready = Ready {
        ready,
        reasons,
        warnings,
    };
    (status, Json(ready))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;

    /// Proves that a warning is told and leaves the broker ready, and that a part that is not ready does not.
    #[test]
    fn warnings_are_told_and_leave_the_broker_ready() {
        let health = Health::default();
        health.warn("store", "down");
        let (status, Json(ready)) = answer(health.reasons(), health.warnings());
        assert_eq!(status, StatusCode::OK);
        assert_eq!(
            serde_json::to_value(&ready).unwrap(),
            serde_json::json!({"ready": true, "reasons": [], "warnings": [{"part": "store", "message": "down"}]})
        );
        assert!(!health.is_well("store"));
        health.clear("store");
        health.not_ready("disk", "full");
        let (status, Json(ready)) = answer(health.reasons(), health.warnings());
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(!ready.ready && ready.warnings.is_empty());
        assert!(health.is_well("store") && !health.is_well("disk"));
        health.ready("disk");
        assert!(health.is_well("disk"));
    }
}
