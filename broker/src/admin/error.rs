//! Errors of the admin routes: a status, a stable code, a text that says what to do.

use super::health::Reason;
use crate::metadata::Refusal;
use axum::Json;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tidelog_model::NodeId;

/// An error answer.
#[derive(Debug, Serialize)]
pub(super) struct Failure {
    #[serde(skip)]
    status: StatusCode,
    error: Detail,
}

#[derive(Debug, Serialize)]
struct Detail {
    code: &'static str,
    message: String,
}

impl Failure {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            error: Detail {
                code,
                message: message.into(),
            },
        }
    }

    pub(super) fn unknown_topic(name: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "unknown_topic",
            format!("there is no topic {name:?}"),
        )
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    pub(super) fn starting(reasons: &[Reason]) -> Self {
        let why: Vec<_> = reasons
            .iter()
            .map(|reason| reason.message.as_str())
            .collect();
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "starting",
            format!("the broker is starting: {}", why.join("; ")),
        )
    }

    pub(super) fn not_waiting(broker: i32) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "not_waiting",
            format!(
                "no broker {broker} asks to be taken in: start it with a cluster.seeds that names itself and a member that lives, and with an empty data \
                 directory (if it had one, keep that and move it aside)"
            ),
        )
    }

    pub(super) fn several_wait(broker: i32, at: &[&str]) -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "several_wait",
            format!(
                "several brokers with node.id {broker} ask to be taken in, at {}: give them ids of their own. One that was stopped is forgotten \
                 after 4 s",
                at.join(", ")
            ),
        )
    }

    pub(super) fn lives(broker: NodeId) -> Self {
        let message = Refusal::MemberLives(broker).to_string();
        Self::new(StatusCode::CONFLICT, "broker_lives", message)
    }

    pub(super) fn partitions_lost(partitions: &str) -> Self {
        let message = format!(
            "most copies of {partitions} are gone with their disks: nobody leads these partitions, and nothing of them was moved. Everything else of the topic is done"
        );
        Self::new(StatusCode::CONFLICT, "partitions_lost", message)
    }

    pub(super) fn data_needed(message: String) -> Self {
        Self::new(StatusCode::CONFLICT, "data_needed", message)
    }

    pub(super) fn refused(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "refused", message)
    }

    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        let message = format!(
            "nothing was changed: {}; is a majority of the brokers up?",
            message.into()
        );
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
    }

    pub(super) fn unknown(message: impl Into<String>) -> Self {
        let message = format!(
            "it may have been done: {}; look at the status, or repeat it",
            message.into()
        );
        Self::new(StatusCode::GATEWAY_TIMEOUT, "unknown", message)
    }

    pub(super) fn timeout(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout", message)
    }

    pub(super) fn archive_disabled() -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "archive_disabled",
            "this broker does not run the archive; set archive.enable = true",
        )
    }

    pub(super) fn archive_failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, "archive_failed", message)
    }
}

/// A request's body, in JSON; one that is not answers as every error does.
pub(super) struct Body<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let body = Json::from_request(request, state).await;
        body.map(|Json(body)| Self(body)).map_err(|rejection| {
            Failure::new(rejection.status(), "bad_request", rejection.body_text())
        })
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.status, Json(self)).into_response()
    }
}
