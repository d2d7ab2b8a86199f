//! The Kafka protocol as values: the only module of the broker that names the codec crate.
//!
//! Owns: the table of served APIs and versions, sizes and shapes of frames, decoding requests, encoding answers.
//! Not here: sockets (`net`), what requests mean (`api`), the bytes of record batches (`tidelog_model::batch`).
//! Spec: docs/protocols/kafka-wire.md
//!
//! A Produce request's records are slices of its frame. A Fetch answer's records are never copied: its frame is a
//! list of chunks ([`Frame`]).

mod api_versions;
mod fetch;
mod frame;
pub mod messages;
mod produce;
mod request;
mod response;
mod service;
mod table;

pub use api_versions::{api_versions_answer, is_software_name, unsupported_api_versions_frame};
pub use fetch::{FetchAnswer, FetchedPartition, FetchedTopic};
pub use frame::{FRAME_HEAD_BYTES, Frame, FrameHead, FrameLimits};
pub use request::{Incoming, Request, decode};
pub use response::{Response, encode};
pub use service::{Answer, ClientSoftware, Connection, Service};
pub use table::{Api, ApiRange, RequestBody, ResponseBody};

/// Why bytes are not a request that can be answered. The connection is closed after any of these.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The bytes are HTTP.
    #[error(
        "this is an HTTP request; the port speaks the Kafka protocol (the HTTP API is on the admin port)"
    )]
    Http,
    /// The bytes are the first message of TLS.
    #[error(
        "this is a TLS handshake; the port speaks the Kafka protocol without TLS (security.protocol=PLAINTEXT)"
    )]
    Tls,
    /// The frame's length is not possible.
    #[error(
        "a frame of {bytes} bytes: allowed are {bytes_min} to {bytes_max} for api key {api_key}"
    )]
    FrameLength {
        /// The length that the peer sent.
        bytes: i32,
        /// Least possible.
        bytes_min: usize,
        /// Most allowed for this API.
        bytes_max: usize,
        /// The API key that followed the length.
        api_key: i16,
    },
    /// An API that is not served, or not at this version.
    #[error("api key {api_key} is not served at version {version}")]
    Unsupported {
        /// The API key.
        api_key: i16,
        /// The version asked for.
        version: i16,
    },
    /// The bytes do not follow the schema of their API and version, or pass a limit.
    #[error("malformed {api} request, version {version}: {reason}")]
    Malformed {
        /// The API's name.
        api: &'static str,
        /// The version.
        version: i16,
        /// What the decoder met, and where.
        reason: String,
    },
    /// An answer does not fit the version of its request, or its API. A bug here, not at the peer.
    #[error("the answer to {api} version {version} cannot be encoded: {reason}")]
    Answer {
        /// The API's name.
        api: &'static str,
        /// The version.
        version: i16,
        /// What the encoder met.
        reason: String,
    },
}

#[cfg(test)]
pub(crate) mod tests;
