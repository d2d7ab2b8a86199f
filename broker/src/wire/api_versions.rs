//! ApiVersions: the question that every client asks first.
//!
//! Owns: the answer's table, the answer to versions of the question that are not served, names of client software.
//! Not here: the header rule for its answers (`response`).
//! Spec: docs/protocols/kafka-wire.md

use super::messages::{ApiVersionsResponse, api_versions_response::ApiVersion};
use super::{Api, Frame, ResponseBody, WireError, response};
use crate::error::ErrorCode;

/// The answer with the whole table.
#[must_use]
pub fn api_versions_answer(error: ErrorCode) -> ApiVersionsResponse {
    let mut answer = ApiVersionsResponse::default();
    answer.error_code = error.code();
    answer.api_keys = Api::ALL
        .iter()
        .map(|api| {
            let mut entry = ApiVersion::default();
            entry.api_key = api.key();
            entry.min_version = api.range().advertised_min;
            entry.max_version = api.range().max;
            entry
        })
        .collect();
    answer
}

/// The frame for a version that is not served: version 0, `UNSUPPORTED_VERSION`, and the table, out of which the
/// client picks a version.
///
/// # Errors
/// [`WireError::Answer`], if the table could not be encoded.
pub fn unsupported_api_versions_frame(correlation_id: i32) -> Result<Frame, WireError> {
    let body = ResponseBody::ApiVersions(api_versions_answer(ErrorCode::UnsupportedVersion));
    response::encode(Api::ApiVersions, 0, correlation_id, &body)
}

/// Whether `name` may be the name or version of client software (KIP-511): letters, digits, `-` and `.`, first and last
/// a letter or digit.
#[must_use]
pub fn is_software_name(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    match name.as_bytes() {
        [] => false,
        [only] => only.is_ascii_alphanumeric(),
        [first, middle @ .., last] => {
            first.is_ascii_alphanumeric()
                && last.is_ascii_alphanumeric()
                && middle.iter().copied().all(inner)
        }
    }
}
