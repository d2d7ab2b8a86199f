//! CreateTopics, DeleteTopics, and topics created on demand.
//!
//! Owns: the checks of a request, and which Kafka error a refusal is.
//! Not here: the replicated change (`router::topics`), names and configs (`metadata`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::configs::described;
use super::context::Broker;
use crate::error::ErrorCode;
use crate::metadata::{
    ConfigError, MAX_MESSAGE_BYTES, Refusal, TOPIC_PARTITIONS_MAX, check_configs,
    check_message_bytes, check_topic_name,
};
use crate::placement::ProposeError;
use crate::router::{NewTopic, TopicError};
use crate::wire::messages::create_topics_request::CreatableTopic;
use crate::wire::messages::create_topics_response::{CreatableTopicConfigs, CreatableTopicResult};
use crate::wire::messages::delete_topics_request::DeleteTopicState;
use crate::wire::messages::delete_topics_response::DeletableTopicResult;
use crate::wire::messages::{
    CreateTopicsRequest, CreateTopicsResponse, DeleteTopicsRequest, DeleteTopicsResponse, StrBytes,
    topic_id, wire_topic_id,
};
use tidelog_model::TopicId;
use tokio::time::Instant;

type Refused = (ErrorCode, String);

/// How long a metadata request waits for a topic that it creates: an idle cluster takes milliseconds.
const ON_DEMAND_WITHIN: Duration = Duration::from_secs(3);
/// A change of topics gets at least so long, whatever a client asks: an election.
const CHANGE_WITHIN_MIN: Duration = Duration::from_secs(3);
/// And at most so long: less than the 30 s after which clients give up a request.
const CHANGE_WITHIN_MAX: Duration = Duration::from_secs(15);

/// When a change must be answered.
fn change_deadline(timeout_ms: i32) -> Instant {
    let asked = Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0));
    Instant::now() + asked.clamp(CHANGE_WITHIN_MIN, CHANGE_WITHIN_MAX)
}

/// What a failed change of metadata means to a client. Who asks for the controller tries again: another broker may lead by then.
pub(super) fn metadata_code(error: &ProposeError) -> ErrorCode {
    match error {
        ProposeError::NotLeader { .. } => ErrorCode::NotController,
        ProposeError::TooLarge { .. } => ErrorCode::PolicyViolation,
        ProposeError::Overloaded
        | ProposeError::Timeout
        | ProposeError::Unknown
        | ProposeError::Fatal(_) => ErrorCode::RequestTimedOut,
    }
}

/// What a refusal of the metadata group means to a client.
pub(super) fn refusal_code(refusal: &Refusal) -> ErrorCode {
    match refusal {
        Refusal::TopicExists(_) => ErrorCode::TopicAlreadyExists,
        Refusal::NameCollision { .. } | Refusal::InvalidName(_) => ErrorCode::InvalidTopic,
        Refusal::UnknownTopic => ErrorCode::UnknownTopicOrPartition,
        Refusal::InvalidPartitions(_) => ErrorCode::InvalidPartitions,
        Refusal::InvalidConfig(_) => ErrorCode::InvalidConfig,
        Refusal::Limit { .. } => ErrorCode::PolicyViolation,
        Refusal::Told { code, .. } => *code,
        _ => ErrorCode::InvalidRequest,
    }
}

fn topic_error(error: &TopicError) -> Refused {
    let code = match error {
        TopicError::Refused(refusal) => refusal_code(refusal),
        TopicError::Unknown => ErrorCode::UnknownTopicOrPartition,
        TopicError::Propose(error) => metadata_code(error),
    };
    (code, error.to_string())
}

/// Creates the topic that a client named in a metadata request. Another request may be faster: that is fine.
/// Who asks for metadata waits a moment only: without a majority the topic comes later, or never.
pub(super) async fn create_on_demand(broker: &Broker, name: &str) -> Result<(), ErrorCode> {
    let partitions = usize::try_from(broker.config.default_partitions).unwrap_or(1);
    let topic = NewTopic {
        name: name.to_owned(),
        partitions,
        configs: BTreeMap::new(),
    };
    let deadline = Instant::now() + ON_DEMAND_WITHIN;
    match broker.router.create_topic(topic, deadline).await {
        Ok(_) | Err(TopicError::Refused(Refusal::TopicExists(_))) => Ok(()),
        Err(TopicError::Propose(_)) => Err(ErrorCode::LeaderNotAvailable),
        Err(error) => Err(topic_error(&error).0),
    }
}

/// Answers CreateTopics.
pub(super) async fn create(broker: &Broker, request: CreateTopicsRequest) -> CreateTopicsResponse {
    let mut answer = CreateTopicsResponse::default();
    let deadline = change_deadline(request.timeout_ms);
    let mut seen = BTreeSet::new();
    let mut twice = BTreeSet::new();
    for topic in &request.topics {
        if !seen.insert(topic.name.clone()) {
            twice.insert(topic.name.clone());
        }
    }
    for topic in request.topics {
        let mut result = CreatableTopicResult::default();
        result.name = topic.name.clone();
        result.num_partitions = -1;
        result.replication_factor = -1;
        // Null only together with a config error code; some clients read it without looking.
        result.configs = Some(Vec::new());
        let outcome = if twice.contains(&topic.name) {
            Err((
                ErrorCode::InvalidRequest,
                "the topic is named twice in one request".to_owned(),
            ))
        } else {
            create_one(broker, &topic, request.validate_only, deadline).await
        };
        match outcome {
            Ok((id, wanted)) => {
                result.topic_id = id.map(wire_topic_id).unwrap_or_default();
                result.num_partitions = i32::try_from(wanted.partitions).unwrap_or(i32::MAX);
                result.replication_factor = replication_factor(broker);
                result.configs = Some(described(&wanted.configs).map(config_result).collect());
            }
            Err((code, text)) => {
                result.error_code = code.code();
                result.error_message = Some(StrBytes::from(text));
            }
        }
        answer.topics.push(result);
    }
    answer
}

fn config_result(config: super::configs::Shown) -> CreatableTopicConfigs {
    let mut result = CreatableTopicConfigs::default();
    result.name = StrBytes::from(config.name);
    result.value = Some(StrBytes::from(config.value));
    result.config_source = config.source;
    result
}

async fn create_one(
    broker: &Broker,
    topic: &CreatableTopic,
    validate_only: bool,
    deadline: Instant,
) -> Result<(Option<TopicId>, NewTopic), Refused> {
    let wanted = check(broker, topic)?;
    if broker.router.topic_by_name(&wanted.name).is_some() {
        return Err((
            ErrorCode::TopicAlreadyExists,
            format!("topic {:?} already exists", wanted.name),
        ));
    }
    if validate_only {
        return Ok((None, wanted));
    }
    match broker.router.create_topic(wanted.clone(), deadline).await {
        Ok(id) => Ok((Some(id), wanted)),
        Err(error) => Err(topic_error(&error)),
    }
}

fn check(broker: &Broker, topic: &CreatableTopic) -> Result<NewTopic, Refused> {
    check_topic_name(topic.name.as_str())
        .map_err(|error| (ErrorCode::InvalidTopic, error.to_string()))?;
    let partitions = if topic.assignments.is_empty() {
        check_replication(broker, topic.replication_factor)?;
        match topic.num_partitions {
            -1 => broker.config.default_partitions,
            count => count,
        }
    } else {
        check_assignments(broker, topic)?
    };
    let partitions = usize::try_from(partitions).unwrap_or(0);
    if partitions == 0 || partitions > TOPIC_PARTITIONS_MAX {
        let text = format!(
            "a topic has 1 to {TOPIC_PARTITIONS_MAX} partitions, not {}",
            topic.num_partitions
        );
        return Err((ErrorCode::InvalidPartitions, text));
    }
    let mut configs = BTreeMap::new();
    for config in &topic.configs {
        let Some(value) = &config.value else {
            let text = format!("config {:?} has no value", config.name.as_str());
            return Err((ErrorCode::InvalidConfig, text));
        };
        configs.insert(config.name.as_str().to_owned(), value.as_str().to_owned());
    }
    let invalid = |error: ConfigError| (ErrorCode::InvalidConfig, error.to_string());
    check_configs(&configs).map_err(invalid)?;
    if let Some(value) = configs.get(MAX_MESSAGE_BYTES) {
        check_message_bytes(value, broker.router.batch_bytes_max()).map_err(invalid)?;
    }
    Ok(NewTopic {
        name: topic.name.as_str().to_owned(),
        partitions,
        configs,
    })
}

/// Copies of every partition.
fn replication_factor(broker: &Broker) -> i16 {
    i16::try_from(broker.router.replication_factor()).unwrap_or(i16::MAX)
}

fn check_replication(broker: &Broker, factor: i16) -> Result<(), Refused> {
    let real = replication_factor(broker);
    if factor == -1 || factor == real {
        return Ok(());
    }
    let text = format!(
        "replication factor {factor} is not possible: every partition of this cluster has {real} {}; ask for {real} or for the default, -1",
        if real == 1 { "copy" } else { "copies" }
    );
    Err((ErrorCode::InvalidReplicationFactor, text))
}

/// Explicit assignments: each partition once, numbered from 0, on all brokers that keep copies.
fn check_assignments(broker: &Broker, topic: &CreatableTopic) -> Result<i32, Refused> {
    let replicas: BTreeSet<i32> = broker.router.image(|image| {
        let nodes = image.groups().values().flatten();
        nodes.map(|node| node.get()).collect()
    });
    let mut indexes: Vec<i32> = topic
        .assignments
        .iter()
        .map(|assignment| assignment.partition_index)
        .collect();
    indexes.sort_unstable();
    let numbered = indexes
        .iter()
        .copied()
        .eq(0..i32::try_from(indexes.len()).unwrap_or(i32::MAX));
    let placed = topic.assignments.iter().all(|assignment| {
        let ids: BTreeSet<i32> = assignment.broker_ids.iter().copied().collect();
        ids == replicas && assignment.broker_ids.len() == ids.len()
    });
    if topic.num_partitions != -1 || !numbered || !placed {
        let text = format!(
            "assignments must number the partitions from 0 and place each on all of the brokers {replicas:?}"
        );
        return Err((ErrorCode::InvalidReplicaAssignment, text));
    }
    i32::try_from(indexes.len()).map_err(|_| {
        (
            ErrorCode::InvalidPartitions,
            "too many partitions".to_owned(),
        )
    })
}

/// Answers DeleteTopics: by name, or by id from version 6 on.
pub(super) async fn delete(broker: &Broker, request: DeleteTopicsRequest) -> DeleteTopicsResponse {
    let deadline = change_deadline(request.timeout_ms);
    let by_name = request.topic_names.into_iter().map(|name| {
        let mut state = DeleteTopicState::default();
        state.name = Some(name);
        state
    });
    let mut answer = DeleteTopicsResponse::default();
    for wanted in request.topics.into_iter().chain(by_name) {
        let mut result = DeletableTopicResult::default();
        result.name = wanted.name.clone();
        result.topic_id = wanted.topic_id;
        let outcome = match find(broker, &wanted) {
            Ok((id, name)) => {
                result.name = Some(StrBytes::from(name));
                result.topic_id = wire_topic_id(id);
                broker
                    .router
                    .delete_topic(id, deadline)
                    .await
                    .map_err(|error| topic_error(&error))
            }
            Err(code) => Err((code, code.to_string())),
        };
        if let Err((code, text)) = outcome {
            result.error_code = code.code();
            result.error_message = Some(StrBytes::from(text));
        }
        answer.responses.push(result);
    }
    answer
}

fn find(broker: &Broker, wanted: &DeleteTopicState) -> Result<(TopicId, String), ErrorCode> {
    match (&wanted.name, topic_id(wanted.topic_id)) {
        (Some(name), None) => match broker.router.topic_by_name(name.as_str()) {
            Some((id, topic)) => Ok((id, topic.name)),
            None => Err(ErrorCode::UnknownTopicOrPartition),
        },
        (None, Some(id)) => match broker.router.topic_name(id) {
            Some(name) => Ok((id, name)),
            None => Err(ErrorCode::UnknownTopicId),
        },
        _ => Err(ErrorCode::InvalidRequest),
    }
}
