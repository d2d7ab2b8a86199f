//! The table of served APIs. What is not in it is not advertised, not decoded and not answered.
//!
//! Owns: API keys, version ranges, the request and answer type of each API.
//! Not here: how they are answered (`api` matches on [`RequestBody`], so that a line here without an answer there
//! does not compile).
//! Spec: docs/protocols/kafka-wire.md

use super::WireError;
use super::fetch::FetchAnswer;
use super::frame::FrameBuilder;
use super::messages::{
    ApiVersionsRequest, ApiVersionsResponse, CreateTopicsRequest, CreateTopicsResponse,
    DeleteGroupsRequest, DeleteGroupsResponse, DeleteRecordsRequest, DeleteRecordsResponse,
    DeleteTopicsRequest, DeleteTopicsResponse, DescribeClusterRequest, DescribeClusterResponse,
    DescribeConfigsRequest, DescribeConfigsResponse, DescribeGroupsRequest, DescribeGroupsResponse,
    FetchRequest, FindCoordinatorRequest, FindCoordinatorResponse, HeartbeatRequest,
    HeartbeatResponse, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse,
    InitProducerIdRequest, InitProducerIdResponse, JoinGroupRequest, JoinGroupResponse,
    LeaveGroupRequest, LeaveGroupResponse, ListGroupsRequest, ListGroupsResponse,
    ListOffsetsRequest, ListOffsetsResponse, MetadataRequest, MetadataResponse,
    OffsetCommitRequest, OffsetCommitResponse, OffsetDeleteRequest, OffsetDeleteResponse,
    OffsetFetchRequest, OffsetFetchResponse, OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse, ProduceRequest, ProduceResponse, SyncGroupRequest,
    SyncGroupResponse,
};
use kafka_wire::{KafkaMessage, KafkaRequest};
use kafka_wire_core::{ApiVersion, DecodeError, Decoder, EncodeError, KafkaDecode, KafkaEncode};

/// Versions of one API.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ApiRange {
    /// First version that is answered.
    pub min: i16,
    /// Last version that is answered, and the last advertised.
    pub max: i16,
    /// First version advertised. Below `min` only where clients read something else out of it.
    pub advertised_min: i16,
}

/// The part of an answer after its header.
pub(super) trait EncodeBody {
    fn encode_body(&self, out: &mut FrameBuilder, version: i16) -> Result<(), EncodeError>;
}

impl<M: KafkaEncode> EncodeBody for M {
    fn encode_body(&self, out: &mut FrameBuilder, version: i16) -> Result<(), EncodeError> {
        self.encode_into(out.buffer(), ApiVersion::new(version))
            .map(|_| ())
    }
}

impl EncodeBody for FetchAnswer {
    fn encode_body(&self, out: &mut FrameBuilder, version: i16) -> Result<(), EncodeError> {
        self.encode(out, version)
    }
}

macro_rules! apis {
    ($($name:ident $request:ident $response:ident $min:literal..=$max:literal from $advertised:literal;)*) => {
        /// A served API.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Api {
            $(#[doc = concat!("Kafka's ", stringify!($name), ".")] $name,)*
        }

        /// A decoded request.
        #[derive(Clone, Debug, PartialEq)]
        pub enum RequestBody {
            $(#[doc = concat!("A request of ", stringify!($name), ".")] $name($request),)*
        }

        /// An answer.
        #[derive(Clone, Debug, PartialEq)]
        pub enum ResponseBody {
            $(#[doc = concat!("The answer of ", stringify!($name), ".")] $name($response),)*
        }

        impl Api {
            /// Every served API, ordered by key.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Kafka's number of the API.
            #[must_use]
            pub const fn key(self) -> i16 {
                match self {
                    $(Self::$name => <$request as KafkaRequest>::API_KEY.value(),)*
                }
            }

            /// Kafka's name of the API.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            /// The versions served.
            #[must_use]
            pub const fn range(self) -> ApiRange {
                match self {
                    $(Self::$name => ApiRange { min: $min, max: $max, advertised_min: $advertised },)*
                }
            }

            /// The API with this key, if it is served.
            #[must_use]
            pub fn from_key(key: i16) -> Option<Self> {
                Self::ALL.iter().copied().find(|api| api.key() == key)
            }

            /// Whether requests and answers of `version` have tagged fields.
            pub(super) fn is_flexible(self, version: i16) -> bool {
                match self {
                    $(Self::$name => <$request as KafkaMessage>::is_flexible(ApiVersion::new(version)),)*
                }
            }

            pub(super) fn decode_body(self, decoder: &mut Decoder, version: i16) -> Result<RequestBody, DecodeError> {
                match self {
                    $(Self::$name => $request::decode(decoder, ApiVersion::new(version)).map(RequestBody::$name),)*
                }
            }
        }

        impl RequestBody {
            /// Which API this is a request of.
            #[must_use]
            pub const fn api(&self) -> Api {
                match self {
                    $(Self::$name(_) => Api::$name,)*
                }
            }
        }

        impl ResponseBody {
            /// Which API this is an answer of.
            #[must_use]
            pub const fn api(&self) -> Api {
                match self {
                    $(Self::$name(_) => Api::$name,)*
                }
            }

            pub(super) fn encode(&self, out: &mut FrameBuilder, version: i16) -> Result<(), WireError> {
                let encoded = match self {
                    $(Self::$name(body) => body.encode_body(out, version),)*
                };
                encoded.map_err(|error| WireError::Answer { api: self.api().name(), version, reason: error.to_string() })
            }
        }

        #[cfg(test)]
        impl RequestBody {
            /// The body's bytes, as a client would send them.
            pub(crate) fn encode_again(&self, version: i16) -> Result<bytes::Bytes, EncodeError> {
                match self {
                    $(Self::$name(body) => body.encode_to_bytes(ApiVersion::new(version)),)*
                }
            }
        }

        #[cfg(test)]
        impl ResponseBody {
            /// Reads an answer's body, as a client would.
            pub(crate) fn decode(api: Api, version: i16, bytes: bytes::Bytes) -> Result<Self, DecodeError> {
                use kafka_wire::RequestResponsePair;
                let limits = super::request::decode_limits();
                match api {
                    $(Api::$name => <$request as RequestResponsePair>::Response::decode_from_bytes(
                        bytes, ApiVersion::new(version), limits,
                    ).map(|body| Self::$name(body.into())),)*
                }
            }
        }

        $(
            impl From<$response> for ResponseBody {
                fn from(body: $response) -> Self {
                    Self::$name(body)
                }
            }

            const _: () = assert!(
                $min >= <$request as KafkaMessage>::SUPPORTED_VERSIONS.min().value()
                    && $max <= <$request as KafkaMessage>::SUPPORTED_VERSIONS.max().value()
                    && $min <= $max && $advertised <= $min,
                concat!("the codec has every served version of ", stringify!($name))
            );
        )*
    };
}

// Versions: from the first that can carry record batch v2 (or the first of the codec) to the newest stable one.
// Produce is advertised from 0 although 0 to 2 are refused: librdkafka picks its codecs by it (KAFKA-18659).
// SaslHandshake and SaslAuthenticate are not here: without security a client must not try them.
apis! {
    Produce ProduceRequest ProduceResponse 3..=13 from 0;
    Fetch FetchRequest FetchAnswer 4..=18 from 4;
    ListOffsets ListOffsetsRequest ListOffsetsResponse 1..=10 from 1;
    Metadata MetadataRequest MetadataResponse 0..=13 from 0;
    OffsetCommit OffsetCommitRequest OffsetCommitResponse 2..=10 from 2;
    OffsetFetch OffsetFetchRequest OffsetFetchResponse 1..=10 from 1;
    FindCoordinator FindCoordinatorRequest FindCoordinatorResponse 0..=6 from 0;
    JoinGroup JoinGroupRequest JoinGroupResponse 0..=9 from 0;
    Heartbeat HeartbeatRequest HeartbeatResponse 0..=4 from 0;
    LeaveGroup LeaveGroupRequest LeaveGroupResponse 0..=5 from 0;
    SyncGroup SyncGroupRequest SyncGroupResponse 0..=5 from 0;
    DescribeGroups DescribeGroupsRequest DescribeGroupsResponse 0..=6 from 0;
    ListGroups ListGroupsRequest ListGroupsResponse 0..=5 from 0;
    ApiVersions ApiVersionsRequest ApiVersionsResponse 0..=4 from 0;
    CreateTopics CreateTopicsRequest CreateTopicsResponse 2..=7 from 2;
    DeleteTopics DeleteTopicsRequest DeleteTopicsResponse 1..=6 from 1;
    DeleteRecords DeleteRecordsRequest DeleteRecordsResponse 0..=2 from 0;
    InitProducerId InitProducerIdRequest InitProducerIdResponse 0..=5 from 0;
    OffsetForLeaderEpoch OffsetForLeaderEpochRequest OffsetForLeaderEpochResponse 2..=4 from 2;
    DescribeConfigs DescribeConfigsRequest DescribeConfigsResponse 1..=4 from 1;
    DeleteGroups DeleteGroupsRequest DeleteGroupsResponse 0..=2 from 0;
    IncrementalAlterConfigs IncrementalAlterConfigsRequest IncrementalAlterConfigsResponse 0..=1 from 0;
    OffsetDelete OffsetDeleteRequest OffsetDeleteResponse 0..=0 from 0;
    DescribeCluster DescribeClusterRequest DescribeClusterResponse 0..=2 from 0;
}
