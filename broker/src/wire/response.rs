//! Answers as frames.
//!
//! Owns: the answer's header, what may be said instead of an answer.
//! Not here: bodies (`table`, `fetch`).
//! Spec: docs/protocols/kafka-wire.md

use super::frame::FrameBuilder;
use super::{Api, Frame, ResponseBody, WireError};
use bytes::BufMut;

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Response {
    /// An answer.
    Body(Box<ResponseBody>),
    /// Nothing is written: a Produce with `acks=0` that went well.
    Nothing,
    /// The connection is closed, after the answers before this one: a Produce with `acks=0` that went wrong, so that
    /// its client looks for the leader again.
    Close,
}

impl<B: Into<ResponseBody>> From<B> for Response {
    fn from(body: B) -> Self {
        Self::Body(Box::new(body.into()))
    }
}

/// Makes the frame that answers a request of `api` and `version`.
///
/// # Errors
/// [`WireError::Answer`] if `body` belongs to another API or holds what this version cannot say.
pub fn encode(
    api: Api,
    version: i16,
    correlation_id: i32,
    body: &ResponseBody,
) -> Result<Frame, WireError> {
    let failed = |reason: &str| WireError::Answer {
        api: api.name(),
        version,
        reason: reason.into(),
    };
    if body.api() != api {
        return Err(failed("it is an answer of another API"));
    }
    let mut out = FrameBuilder::new();
    out.buffer().put_i32(correlation_id);
    // ApiVersions answers keep the old header for ever: the client does not know yet what the broker speaks.
    if api.is_flexible(version) && api != Api::ApiVersions {
        out.buffer().put_u8(0);
    }
    body.encode(&mut out, version)?;
    out.finish()
        .ok_or_else(|| failed("it is too large for a frame"))
}
