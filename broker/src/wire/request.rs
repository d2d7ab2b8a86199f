//! Requests: header and body, decoded within limits.
//!
//! Owns: the order of checks, the decoder's budgets.
//! Not here: the table (`table`), sizes of frames (`frame`).
//! Spec: docs/protocols/kafka-wire.md

use super::{Api, RequestBody, WireError, produce};
use bytes::Bytes;
use kafka_wire::RequestHeader;
use kafka_wire_core::{ApiVersion, DecodeLimits, Decoder, KafkaDecode, StrBytes};
use tidelog_model::limits;

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Version of the API that the client chose; inside the table's range.
    pub version: i16,
    /// The client's number for the request; comes back in the answer.
    pub correlation_id: i32,
    /// What the client calls itself.
    pub client_id: Option<StrBytes>,
    /// The request.
    pub body: RequestBody,
}

impl Request {
    /// Which API this is a request of.
    #[must_use]
    pub const fn api(&self) -> Api {
        self.body.api()
    }
}

/// What a frame holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Incoming {
    /// A request to be answered.
    Request(Box<Request>),
    /// An ApiVersions request of a version that is not served: answered with
    /// [`super::unsupported_api_versions_frame`], after which the client asks again with a version it finds there.
    UnsupportedApiVersions {
        /// The client's number for the request.
        correlation_id: i32,
    },
}

/// Decodes `frame`, the bytes after the length. Strings and byte fields of the result are slices of it.
///
/// # Errors
/// [`WireError::Unsupported`], [`WireError::Malformed`]: there is no answer that the client could read.
pub fn decode(frame: Bytes) -> Result<Incoming, WireError> {
    let Some([key_high, key_low, version_high, version_low, id @ ..]) =
        frame.first_chunk::<8>().copied()
    else {
        return Err(WireError::Malformed {
            api: "any",
            version: 0,
            reason: "it is shorter than a header".into(),
        });
    };
    let api_key = i16::from_be_bytes([key_high, key_low]);
    let version = i16::from_be_bytes([version_high, version_low]);
    let unsupported = WireError::Unsupported { api_key, version };
    let Some(api) = Api::from_key(api_key) else {
        return Err(unsupported);
    };
    let range = api.range();
    if !(range.min..=range.max).contains(&version) {
        if api == Api::ApiVersions {
            return Ok(Incoming::UnsupportedApiVersions {
                correlation_id: i32::from_be_bytes(id),
            });
        }
        return Err(unsupported);
    }
    let malformed = |reason: String| WireError::Malformed {
        api: api.name(),
        version,
        reason,
    };
    let flexible = api.is_flexible(version);
    let header_version = ApiVersion::new(if flexible { 2 } else { 1 });
    let mut decoder =
        Decoder::new(frame, decode_limits()).map_err(|error| malformed(error.to_string()))?;
    let header = RequestHeader::decode(&mut decoder, header_version)
        .map_err(|error| malformed(error.to_string()))?;
    if api == Api::Produce {
        produce::check_partition_count(&decoder, version, flexible)
            .map_err(|error| malformed(error.to_string()))?;
    }
    let body = api
        .decode_body(&mut decoder, version)
        .map_err(|error| malformed(error.to_string()))?;
    // What follows the last field is nobody's business: librdkafka 2.16 asks for the metadata of all topics in version 13 with four
    // bytes of zeros where one says "null", which leaves three at the end, and Apache Kafka reads no further either.
    Ok(Incoming::Request(Box::new(Request {
        version,
        correlation_id: header.correlation_id,
        client_id: header.client_id,
        body,
    })))
}

pub(super) fn decode_limits() -> DecodeLimits {
    let mut decode = DecodeLimits::default();
    // The frame's own size was checked against its API's limit before it was read.
    decode.max_frame_bytes = usize::MAX;
    decode.max_bytes_bytes = usize::MAX;
    decode.max_string_bytes = limits::STRING_BYTES_MAX;
    decode.max_array_elements = limits::ARRAY_ELEMENTS_MAX;
    decode.max_tagged_fields = limits::TAGGED_FIELDS_MAX;
    decode.max_tag_bytes = limits::FRAME_BYTES_MAX_WITHOUT_RECORDS;
    decode.max_total_tag_bytes = limits::FRAME_BYTES_MAX_WITHOUT_RECORDS;
    decode
}
