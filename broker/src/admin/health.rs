//! Liveness and readiness.
//!
//! Ready means: recovered, leading or following every group, listeners open, the store reachable when last tried.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use parking_lot::Mutex;
use serde::Serialize;

use super::AdminState;

/// Why the broker is not ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// What is not ready.
    pub part: &'static str,
    /// Why.
    pub message: String,
}

/// Shared readiness: parts that are not ready, by name.
#[derive(Clone, Default)]
pub struct Health(Arc<Mutex<BTreeMap<&'static str, String>>>);

impl Health {
    /// Says that `part` is not ready, and why.
    pub fn not_ready(&self, part: &'static str, why: impl Into<String>) {
        self.0.lock().insert(part, why.into());
    }

    /// Says that `part` is ready.
    pub fn ready(&self, part: &'static str) {
        self.0.lock().remove(part);
    }

    /// Parts that are not ready.
    #[must_use]
    pub fn reasons(&self) -> Vec<Reason> {
        self.0
            .lock()
            .iter()
            .map(|(part, message)| Reason {
                part,
                message: message.clone(),
            })
            .collect()
    }
}

#[derive(Serialize)]
pub(super) struct Ready {
    ready: bool,
    reasons: Vec<Reason>,
}

pub(super) async fn livez() -> &'static str {
    "ok\n"
}

pub(super) async fn readyz(State(state): State<AdminState>) -> (StatusCode, Json<Ready>) {
    let mut reasons = state.health.reasons();
    for group in state.router.data_groups() {
        if group.group().leadership().borrow().leader.is_none() {
            reasons.push(Reason {
                part: "groups",
                message: format!("group {} has no leader", group.id()),
            });
        }
    }
    let ready = reasons.is_empty();
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, Json(Ready { ready, reasons }))
}
