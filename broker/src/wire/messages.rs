//! The message types of the served APIs, from one place.
//!
//! Owns: the re-exports that `api` builds on, conversions between the codec's ids and ours.
//! Not here: any meaning.
//!
//! `fetch_response` is here for its small structures; the answer itself is [`super::FetchAnswer`].
//! All structures are built from their `Default` (which is the protocol's) and then filled field by field.

pub use kafka_wire::{
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
pub use kafka_wire::{
    api_versions_request, api_versions_response, create_topics_request, create_topics_response,
    delete_groups_request, delete_groups_response, delete_records_request, delete_records_response,
    delete_topics_request, delete_topics_response, describe_cluster_request,
    describe_cluster_response, describe_configs_request, describe_configs_response,
    describe_groups_request, describe_groups_response, fetch_request, fetch_response,
    find_coordinator_request, find_coordinator_response, heartbeat_request, heartbeat_response,
    incremental_alter_configs_request, incremental_alter_configs_response,
    init_producer_id_request, init_producer_id_response, join_group_request, join_group_response,
    leave_group_request, leave_group_response, list_groups_request, list_groups_response,
    list_offsets_request, list_offsets_response, metadata_request, metadata_response,
    offset_commit_request, offset_commit_response, offset_delete_request, offset_delete_response,
    offset_fetch_request, offset_fetch_response, offset_for_leader_epoch_request,
    offset_for_leader_epoch_response, produce_request, produce_response, sync_group_request,
    sync_group_response,
};
pub use kafka_wire_core::{StrBytes, TaggedFields, Uuid as WireUuid};

use tidelog_model::TopicId;

/// A topic id as the messages carry it.
#[must_use]
pub fn wire_topic_id(topic: TopicId) -> WireUuid {
    WireUuid::from_bytes(topic.get().into_bytes())
}

/// A topic id from a message; `None` for the zero id, which means "none".
#[must_use]
pub fn topic_id(wire: WireUuid) -> Option<TopicId> {
    (!wire.is_zero()).then(|| TopicId::new(uuid::Uuid::from_bytes(wire.to_bytes())))
}
