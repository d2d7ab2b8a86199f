//! The S3 client of this crate.
//!
//! Owns: its settings: path style, deadlines, retries off (the callers wait by condition).
//! Not here: which requests are made (`up`, `check`).
//! Spec: docs/guides/local-s3.md

use std::time::Duration;

use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_s3::error::DisplayErrorContext;

use crate::state::State;

/// One request to a server on this machine; it may be creating its first volumes.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

pub(crate) fn client(state: &State) -> Client {
    let credentials = Credentials::new(
        &state.access_key,
        &state.secret_key,
        None,
        None,
        "minio-dev",
    );
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(Duration::from_secs(2))
        .operation_timeout(REQUEST_TIMEOUT)
        .build();
    let config = aws_sdk_s3::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(state.region.clone()))
        .endpoint_url(&state.endpoint)
        .credentials_provider(credentials)
        .force_path_style(true)
        .timeout_config(timeouts)
        .retry_config(RetryConfig::disabled())
        .build();
    Client::from_conf(config)
}

/// The whole chain of reasons on one line.
pub(crate) fn explain(error: impl std::error::Error) -> String {
    DisplayErrorContext(error).to_string()
}
