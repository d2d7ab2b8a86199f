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
    check_message_bytes, check_topic_name, copies_default,
};
use crate::placement::ProposeError;
use crate::router::{NewTopic, Placement, TopicError};
use crate::wire::messages::create_topics_request::CreatableTopic;
use crate::wire::messages::create_topics_response::{CreatableTopicConfigs, CreatableTopicResult};
use crate::wire::messages::delete_topics_request::DeleteTopicState;
use crate::wire::messages::delete_topics_response::DeletableTopicResult;
use crate::wire::messages::{
    CreateTopicsRequest, CreateTopicsResponse, DeleteTopicsRequest, DeleteTopicsResponse, StrBytes,
    topic_id, wire_topic_id,
};
use tidelog_model::{NodeId, TopicId};
use tokio::time::{Instant, timeout_at};

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
        TopicError::TooFewBrokers { .. } => ErrorCode::InvalidReplicationFactor,
        TopicError::NoSuchReplicas { .. } => ErrorCode::InvalidReplicaAssignment,
        // Clients try again after it; the sentence says that nothing was created.
        TopicError::NameHeld { .. } => ErrorCode::RequestTimedOut,
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
        placement: Placement::Copies(None),
        configs: BTreeMap::new(),
    };
    let deadline = Instant::now() + ON_DEMAND_WITHIN;
    match broker.router.create_topic(topic, deadline).await {
        Ok(_) | Err(TopicError::Refused(Refusal::TopicExists(_))) => Ok(()),
        Err(TopicError::Propose(_) | TopicError::NameHeld { .. }) => {
            Err(ErrorCode::LeaderNotAvailable)
        }
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
                result.replication_factor = copies(broker, &wanted.placement);
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
    if exists_surely(broker, &wanted.name, deadline).await? {
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

/// Whether a topic of this name is there. One that this broker knows may be gone, and who creates it takes *exists* for *there*: everything that is committed
/// now is waited for first.
async fn exists_surely(broker: &Broker, name: &str, deadline: Instant) -> Result<bool, Refused> {
    let there = || broker.router.topic_by_name(name).is_some();
    if !there() {
        return Ok(false);
    }
    match timeout_at(deadline, broker.router.metadata_barrier()).await {
        Ok(Ok(())) => Ok(there()),
        // Nothing was asked for yet.
        Ok(Err(_)) | Err(_) => Err((
            ErrorCode::NotController,
            "nobody leads the cluster's metadata at the moment, or it is not reached".to_owned(),
        )),
    }
}

fn check(broker: &Broker, topic: &CreatableTopic) -> Result<NewTopic, Refused> {
    check_topic_name(topic.name.as_str())
        .map_err(|error| (ErrorCode::InvalidTopic, error.to_string()))?;
    let (partitions, placement) = if topic.assignments.is_empty() {
        let copies = check_replication(broker, topic.replication_factor)?;
        let count = match topic.num_partitions {
            -1 => broker.config.default_partitions,
            count => count,
        };
        (count, Placement::Copies(copies))
    } else {
        check_assignments(topic)?
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
        placement,
        configs,
    })
}

/// Copies of the partitions of a topic that was placed so.
fn copies(broker: &Broker, placement: &Placement) -> i16 {
    let copies = match placement {
        Placement::Copies(copies) => copies.unwrap_or_else(|| broker.router.copies_default()),
        Placement::On(nodes) => nodes.first().map_or(0, Vec::len),
    };
    i16::try_from(copies).unwrap_or(i16::MAX)
}

/// Numbers of copies that lose nothing against the next larger one: a majority of four is as many as of five.
const COPIES: [usize; 3] = [1, 3, 5];

/// `None`: the default.
fn check_replication(broker: &Broker, factor: i16) -> Result<Option<usize>, Refused> {
    if factor == -1 {
        return Ok(None);
    }
    let (brokers, default) = broker.router.image(|image| {
        let open = image.members().values().filter(|member| !member.draining);
        (open.count(), copies_default(image))
    });
    let wanted = usize::try_from(factor).unwrap_or(0);
    if wanted == default || (COPIES.contains(&wanted) && wanted <= brokers) {
        return Ok(Some(wanted));
    }
    let possible: Vec<String> = COPIES
        .into_iter()
        .filter(|copies| *copies <= brokers)
        .map(|copies| copies.to_string())
        .collect();
    let text = format!(
        "replication factor {factor} is not possible: this cluster of {brokers} {} takes {}, or -1 for its default, {default}",
        if brokers == 1 { "broker" } else { "brokers" },
        possible.join(", "),
    );
    Err((ErrorCode::InvalidReplicationFactor, text))
}

/// Explicit assignments: each partition once, numbered from 0, all with as many copies.
fn check_assignments(topic: &CreatableTopic) -> Result<(i32, Placement), Refused> {
    let mut assignments: Vec<_> = topic.assignments.iter().collect();
    assignments.sort_unstable_by_key(|assignment| assignment.partition_index);
    let indexes = assignments
        .iter()
        .map(|assignment| assignment.partition_index);
    let numbered = indexes.eq(0..i32::try_from(assignments.len()).unwrap_or(i32::MAX));
    let nodes: Vec<Vec<NodeId>> = assignments
        .iter()
        .map(|assignment| {
            let ids: BTreeSet<i32> = assignment.broker_ids.iter().copied().collect();
            ids.into_iter().map(NodeId::new).collect()
        })
        .collect();
    let same = nodes.iter().zip(&assignments).all(|(ids, assignment)| {
        ids.len() == assignment.broker_ids.len() && ids.len() == nodes[0].len()
    });
    if topic.num_partitions != -1 || !numbered || !same {
        let text =
            "assignments must number the partitions from 0 and give each as many different brokers";
        return Err((ErrorCode::InvalidReplicaAssignment, text.to_owned()));
    }
    let count = i32::try_from(nodes.len()).map_err(|_| {
        (
            ErrorCode::InvalidPartitions,
            "too many partitions".to_owned(),
        )
    })?;
    Ok((count, Placement::On(nodes)))
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
        match delete_one(broker, &wanted, deadline).await {
            Ok((id, name)) => {
                result.name = Some(StrBytes::from(name));
                result.topic_id = wire_topic_id(id);
            }
            Err((code, text)) => {
                result.error_code = code.code();
                result.error_message = Some(StrBytes::from(text));
            }
        }
        answer.responses.push(result);
    }
    answer
}

/// Deletes one topic, and says which it was. A name that had another topic when this broker heard of it last is looked up again: who deletes it takes
/// *unknown* for *gone*.
async fn delete_one(
    broker: &Broker,
    wanted: &DeleteTopicState,
    deadline: Instant,
) -> Result<(TopicId, String), Refused> {
    let refused = |code: ErrorCode| (code, code.to_string());
    let (mut id, mut name) = find_surely(broker, wanted, deadline)
        .await
        .map_err(refused)?;
    loop {
        match broker.router.delete_topic(id, deadline).await {
            Ok(()) => return Ok((id, name)),
            // What refused it is applied here: the image is no older.
            Err(TopicError::Unknown) => match find(broker, wanted) {
                Ok((newer, _)) if newer == id => return Err(topic_error(&TopicError::Unknown)),
                found => (id, name) = found.map_err(refused)?,
            },
            Err(error) => return Err(topic_error(&error)),
        }
    }
}

/// As [`find`]. A topic that this broker has not heard of may be there all the same, and who deletes it takes *unknown* for *gone*: everything that is committed
/// now is waited for first.
async fn find_surely(
    broker: &Broker,
    wanted: &DeleteTopicState,
    deadline: Instant,
) -> Result<(TopicId, String), ErrorCode> {
    match find(broker, wanted) {
        Err(ErrorCode::UnknownTopicOrPartition | ErrorCode::UnknownTopicId) => {
            match timeout_at(deadline, broker.router.metadata_barrier()).await {
                Ok(Ok(())) => find(broker, wanted),
                // Nothing was asked for yet, whatever became of the barrier: it must not look as if something may have been deleted.
                Ok(Err(_)) | Err(_) => Err(ErrorCode::NotController),
            }
        }
        found => found,
    }
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
