//! The classic consumer-group APIs: finding the coordinator, membership, listing.
//!
//! Owns: translation between Kafka's messages and the coordinator's plain requests.
//! Not here: the protocol itself (`coordinator`), offsets (`group_offsets`).

use super::context::Broker;
use super::metadata::{Shown, shown};
use crate::coordinator::membership::{JoinRefusal, JoinRequest, SyncRequest};
use crate::coordinator::service::{Coordinator, DescribedConsumerGroup};
use crate::coordinator::{ConsumerGroupError, ConsumerGroupName, InstanceId, MemberId, slot_of};
use crate::error::ErrorCode;
use crate::wire::Connection;
use crate::wire::messages::delete_groups_response::DeletableGroupResult;
use crate::wire::messages::describe_groups_response::{DescribedGroup, DescribedGroupMember};
use crate::wire::messages::join_group_response::JoinGroupResponseMember;
use crate::wire::messages::leave_group_response::MemberResponse;
use crate::wire::messages::list_groups_response::ListedGroup;
use crate::wire::messages::{
    DeleteGroupsRequest, DeleteGroupsResponse, DescribeGroupsRequest, DescribeGroupsResponse,
    FindCoordinatorRequest, FindCoordinatorResponse, HeartbeatRequest, HeartbeatResponse,
    JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, LeaveGroupResponse, ListGroupsRequest,
    ListGroupsResponse, StrBytes, SyncGroupRequest, SyncGroupResponse, find_coordinator_response,
};

/// `key_type` of a consumer group; 1 is a transaction, which is not built yet.
const CONSUMER_GROUP: i8 = 0;
const OPERATIONS_NOT_ASKED: i32 = i32::MIN;

pub(super) fn text(value: &str) -> StrBytes {
    StrBytes::from(value.to_owned())
}

pub(super) fn instance_of(value: Option<&StrBytes>) -> Option<InstanceId> {
    value.map(|id| InstanceId::new(id.as_str()))
}

/// The coordinator of a consumer group, if this broker has it.
pub(super) fn coordinator(
    broker: &Broker,
    group: &ConsumerGroupName,
) -> Result<Coordinator, ConsumerGroupError> {
    let slot = slot_of(group);
    let group = broker
        .router
        .coordinator_of(slot)
        .map_err(|_| ConsumerGroupError::NotCoordinator)?;
    broker
        .coordinators
        .get(group.id())
        .ok_or(ConsumerGroupError::NotCoordinator)
}

/// Answers FindCoordinator: one key up to version 3, several from 4 on.
pub(super) fn find_coordinator(
    broker: &Broker,
    connection: &Connection,
    request: FindCoordinatorRequest,
    version: i16,
) -> FindCoordinatorResponse {
    let find = |key: &StrBytes| -> Result<Shown, (ErrorCode, &'static str)> {
        if request.key_type != CONSUMER_GROUP {
            return Err((
                ErrorCode::InvalidRequest,
                "transactions and share groups are not built yet",
            ));
        }
        if key.is_empty() {
            return Err((ErrorCode::InvalidGroupId, "a consumer group has a name"));
        }
        let slot = slot_of(&ConsumerGroupName::new(key.as_str()));
        broker
            .router
            .coordinator_broker(slot)
            .and_then(|id| shown(broker, connection, id))
            .ok_or((
                ErrorCode::CoordinatorNotAvailable,
                "the coordinator's placement group has no leader",
            ))
    };
    let mut answer = FindCoordinatorResponse::default();
    if version >= 4 {
        for key in &request.coordinator_keys {
            let mut found = find_coordinator_response::Coordinator::default();
            found.key = key.clone();
            found.node_id = -1;
            found.port = -1;
            match find(key) {
                Ok(at) => {
                    found.node_id = at.id.get();
                    found.host = text(&at.host);
                    found.port = i32::from(at.port);
                }
                Err((code, why)) => {
                    found.error_code = code.code();
                    found.error_message = Some(text(why));
                }
            }
            answer.coordinators.push(found);
        }
        return answer;
    }
    // From version 4 on these fields are not on the wire, and must be left alone.
    answer.node_id = -1;
    answer.port = -1;
    match find(&request.key) {
        Ok(at) => {
            answer.node_id = at.id.get();
            answer.host = text(&at.host);
            answer.port = i32::from(at.port);
        }
        Err((code, why)) => {
            answer.error_code = code.code();
            answer.error_message = Some(text(why));
        }
    }
    answer
}

fn positive(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

/// Answers JoinGroup; waits until the rebalance has come together.
pub(super) async fn join(
    broker: &Broker,
    connection: &Connection,
    request: JoinGroupRequest,
    version: i16,
    client: &str,
) -> JoinGroupResponse {
    let group = ConsumerGroupName::new(request.group_id.as_str());
    let rebalance = if version >= 1 {
        request.rebalance_timeout_ms
    } else {
        request.session_timeout_ms
    };
    let join = JoinRequest {
        member: MemberId::new(request.member_id.as_str()),
        instance: instance_of(request.group_instance_id.as_ref()),
        client_id: client.to_owned(),
        client_host: format!("/{}", connection.peer.ip()),
        session_timeout_ms: positive(request.session_timeout_ms),
        rebalance_timeout_ms: positive(rebalance),
        protocol_type: request.protocol_type.as_str().to_owned(),
        protocols: request
            .protocols
            .into_iter()
            .map(|p| (p.name.as_str().to_owned(), p.metadata))
            .collect(),
        require_known_member: version >= 4,
        understands_skip_assignment: version >= 9,
    };
    let mut answer = JoinGroupResponse::default();
    answer.generation_id = -1;
    answer.member_id = request.member_id;
    // From version 7 on the name may be null; before, an empty text stands for it.
    answer.protocol_name = (version < 7).then(StrBytes::default);
    let joined = match coordinator(broker, &group) {
        Ok(coordinator) => coordinator.join_group(&group, join).await,
        Err(error) => Err(JoinRefusal::Error(error)),
    };
    match joined {
        Ok(joined) => {
            answer.generation_id = joined.generation;
            answer.protocol_type = Some(text(&joined.protocol_type));
            answer.protocol_name = Some(text(&joined.protocol));
            answer.leader = text(joined.leader.as_str());
            answer.skip_assignment = joined.skip_assignment;
            answer.member_id = text(joined.member.as_str());
            answer.members = joined
                .members
                .into_iter()
                .map(|member| {
                    let mut shown = JoinGroupResponseMember::default();
                    shown.member_id = text(member.member.as_str());
                    shown.group_instance_id = member.instance.map(|id| text(id.as_str()));
                    shown.metadata = member.subscription;
                    shown
                })
                .collect();
        }
        Err(JoinRefusal::MemberIdRequired(member)) => {
            answer.error_code = ErrorCode::MemberIdRequired.code();
            answer.member_id = text(member.as_str());
        }
        Err(JoinRefusal::Error(error)) => answer.error_code = error.code().code(),
    }
    answer
}

/// Answers SyncGroup; waits until the generation is in the log.
pub(super) async fn sync(
    broker: &Broker,
    request: SyncGroupRequest,
    version: i16,
) -> SyncGroupResponse {
    let group = ConsumerGroupName::new(request.group_id.as_str());
    let sync = SyncRequest {
        member: MemberId::new(request.member_id.as_str()),
        instance: instance_of(request.group_instance_id.as_ref()),
        generation: request.generation_id,
        protocol_type: request
            .protocol_type
            .filter(|_| version >= 5)
            .map(|t| t.as_str().to_owned()),
        protocol: request
            .protocol_name
            .filter(|_| version >= 5)
            .map(|name| name.as_str().to_owned()),
        assignments: request
            .assignments
            .into_iter()
            .map(|assigned| {
                (
                    MemberId::new(assigned.member_id.as_str()),
                    assigned.assignment,
                )
            })
            .collect(),
    };
    let mut answer = SyncGroupResponse::default();
    let synced = match coordinator(broker, &group) {
        Ok(coordinator) => coordinator.sync_group(&group, sync).await,
        Err(error) => Err(error),
    };
    match synced {
        Ok(synced) => {
            answer.protocol_type = Some(text(&synced.protocol_type));
            answer.protocol_name = Some(text(&synced.protocol));
            answer.assignment = synced.assignment;
        }
        Err(error) => answer.error_code = error.code().code(),
    }
    answer
}

/// Answers Heartbeat.
pub(super) fn heartbeat(broker: &Broker, request: &HeartbeatRequest) -> HeartbeatResponse {
    let group = ConsumerGroupName::new(request.group_id.as_str());
    let member = MemberId::new(request.member_id.as_str());
    let instance = instance_of(request.group_instance_id.as_ref());
    let heard = coordinator(broker, &group).and_then(|coordinator| {
        coordinator.heartbeat(&group, &member, instance.as_ref(), request.generation_id)
    });
    let mut answer = HeartbeatResponse::default();
    if let Err(error) = heard {
        answer.error_code = error.code().code();
    }
    answer
}

/// Answers LeaveGroup: one member up to version 2, several from 3 on.
pub(super) fn leave(
    broker: &Broker,
    request: LeaveGroupRequest,
    version: i16,
) -> LeaveGroupResponse {
    let group = ConsumerGroupName::new(request.group_id.as_str());
    let leaving: Vec<(MemberId, Option<InstanceId>)> = if version >= 3 {
        let members = request.members.iter();
        members
            .map(|m| {
                (
                    MemberId::new(m.member_id.as_str()),
                    instance_of(m.group_instance_id.as_ref()),
                )
            })
            .collect()
    } else {
        vec![(MemberId::new(request.member_id.as_str()), None)]
    };
    let mut answer = LeaveGroupResponse::default();
    let left = coordinator(broker, &group)
        .and_then(|coordinator| coordinator.leave_group(&group, &leaving));
    match left {
        Ok(results) if version >= 3 => {
            answer.members = request
                .members
                .into_iter()
                .zip(results)
                .map(|(member, result)| {
                    let mut left = MemberResponse::default();
                    left.member_id = member.member_id;
                    left.group_instance_id = member.group_instance_id;
                    left.error_code = result.err().map_or(0, |error| error.code().code());
                    left
                })
                .collect();
        }
        Ok(results) => {
            let first = results.into_iter().next().unwrap_or(Ok(()));
            answer.error_code = first.err().map_or(0, |error| error.code().code());
        }
        Err(error) => answer.error_code = error.code().code(),
    }
    answer
}

/// Answers ListGroups.
pub(super) fn list(broker: &Broker, request: &ListGroupsRequest) -> ListGroupsResponse {
    let mut answer = ListGroupsResponse::default();
    let wanted = |filter: &[StrBytes], value: &str| {
        filter.is_empty()
            || filter
                .iter()
                .any(|asked| asked.as_str().eq_ignore_ascii_case(value))
    };
    for coordinator in broker.coordinators.all().values() {
        match coordinator.list_groups() {
            Ok(groups) => {
                for group in groups {
                    if wanted(&request.states_filter, group.phase)
                        && wanted(&request.types_filter, "classic")
                    {
                        let mut listed = ListedGroup::default();
                        listed.group_id = text(group.group.as_str());
                        listed.protocol_type = text(&group.protocol_type);
                        listed.group_state = text(group.phase);
                        listed.group_type = text("classic");
                        answer.groups.push(listed);
                    }
                }
            }
            // Groups of other brokers are listed there.
            Err(ConsumerGroupError::NotCoordinator) => {}
            Err(error) => answer.error_code = error.code().code(),
        }
    }
    answer
}

/// Answers DescribeGroups. An unknown group is "Dead" without an error; from version 6 on it is an error too (KIP-1043).
pub(super) fn describe(
    broker: &Broker,
    request: DescribeGroupsRequest,
    version: i16,
) -> DescribeGroupsResponse {
    let mut answer = DescribeGroupsResponse::default();
    for name in request.groups {
        let group = ConsumerGroupName::new(name.as_str());
        let described =
            coordinator(broker, &group).and_then(|coordinator| coordinator.describe_group(&group));
        let mut shown = match described {
            Ok(described) => describe_one(described),
            Err(error) => {
                let mut failed = DescribedGroup::default();
                let missing = error == ConsumerGroupError::GroupNotFound;
                if missing {
                    failed.group_state = text("Dead");
                }
                if !missing || version >= 6 {
                    failed.error_code = error.code().code();
                }
                if version >= 6 {
                    failed.error_message = Some(text(&error.to_string()));
                }
                failed
            }
        };
        shown.group_id = name;
        shown.authorized_operations = OPERATIONS_NOT_ASKED;
        answer.groups.push(shown);
    }
    answer
}

fn describe_one(described: DescribedConsumerGroup) -> DescribedGroup {
    let mut shown = DescribedGroup::default();
    shown.group_state = text(described.phase);
    shown.protocol_type = text(&described.protocol_type);
    shown.protocol_data = text(&described.protocol);
    shown.members = described
        .members
        .into_iter()
        .map(|member| {
            let mut shown = DescribedGroupMember::default();
            shown.member_id = text(member.member.as_str());
            shown.group_instance_id = member.instance.map(|id| text(id.as_str()));
            shown.client_id = text(&member.client_id);
            shown.client_host = text(&member.client_host);
            shown.member_metadata = member.subscription;
            shown.member_assignment = member.assignment;
            shown
        })
        .collect();
    shown
}

/// Answers DeleteGroups.
pub(super) async fn delete(broker: &Broker, request: DeleteGroupsRequest) -> DeleteGroupsResponse {
    let mut answer = DeleteGroupsResponse::default();
    for name in request.groups_names {
        let group = ConsumerGroupName::new(name.as_str());
        let deleted = match coordinator(broker, &group) {
            Ok(coordinator) => coordinator.delete_group(&group).await,
            Err(error) => Err(error),
        };
        let mut result = DeletableGroupResult::default();
        result.group_id = name;
        if let Err(error) = deleted {
            result.error_code = error.code().code();
            result.error_message = Some(text(&error.to_string()));
        }
        answer.results.push(result);
    }
    answer
}
