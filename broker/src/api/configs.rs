//! DescribeConfigs and IncrementalAlterConfigs.
//!
//! Owns: the resources that can be asked about (topics; brokers answer with no configs), and Kafka's numbers for kinds.
//! Not here: names, types, rules (`metadata`).

use std::collections::BTreeMap;

use super::context::Broker;
use super::topics::{metadata_code, refusal_code};
use crate::error::ErrorCode;
use crate::metadata::{
    ConfigChange, ConfigError, ConfigOperation, ConfigSetMode, ConfigSource, ConfigType,
    DescribedConfig, MAX_MESSAGE_BYTES, MetadataCommand, MetadataOutcome, Refusal, Topic, changed,
    check_message_bytes, describe,
};
use crate::wire::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult, DescribeConfigsSynonym,
};
use crate::wire::messages::incremental_alter_configs_request::AlterConfigsResource;
use crate::wire::messages::incremental_alter_configs_response::AlterConfigsResourceResponse;
use crate::wire::messages::{
    DescribeConfigsRequest, DescribeConfigsResponse, IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse, StrBytes,
};
use tidelog_model::{ProducerId, TimestampMs, TopicId};

const TOPIC: i8 = 2;
const BROKER: i8 = 4;

/// One config as answers show it.
pub(super) struct Shown {
    pub(super) name: String,
    pub(super) value: String,
    pub(super) source: i8,
}

/// All configs of a topic with these values.
pub(super) fn described(configs: &BTreeMap<String, String>) -> impl Iterator<Item = Shown> {
    let topic = Topic {
        name: String::new(),
        created: TimestampMs::new(0),
        partitions: Vec::new(),
        configs: configs.clone(),
        first_new_producer: ProducerId::new(0),
    };
    describe(&topic, None).into_iter().map(|config| Shown {
        name: config.definition.name.to_owned(),
        value: config.value,
        source: config.source.code(),
    })
}

/// Answers DescribeConfigs.
pub(super) fn describe_configs(
    broker: &Broker,
    request: DescribeConfigsRequest,
) -> DescribeConfigsResponse {
    let mut answer = DescribeConfigsResponse::default();
    for resource in request.resources {
        let mut result = DescribeConfigsResult::default();
        result.resource_type = resource.resource_type;
        let names: Option<Vec<String>> = resource
            .configuration_keys
            .map(|keys| keys.iter().map(|key| key.as_str().to_owned()).collect());
        match resource.resource_type {
            TOPIC => match broker.router.topic_by_name(resource.resource_name.as_str()) {
                Some((_, topic)) => {
                    let configs = describe(&topic, names.as_deref());
                    result.configs = configs
                        .into_iter()
                        .map(|c| config(c, request.include_synonyms))
                        .collect();
                }
                None => fail(
                    &mut result,
                    ErrorCode::UnknownTopicOrPartition,
                    "no such topic",
                ),
            },
            BROKER => {}
            _ => fail(
                &mut result,
                ErrorCode::InvalidRequest,
                "configs exist for topics and brokers",
            ),
        }
        result.resource_name = resource.resource_name;
        answer.results.push(result);
    }
    answer
}

fn fail(result: &mut DescribeConfigsResult, code: ErrorCode, text: &str) {
    result.error_code = code.code();
    result.error_message = Some(StrBytes::from(text.to_owned()));
}

fn config(config: DescribedConfig, synonyms: bool) -> DescribeConfigsResourceResult {
    let mut result = DescribeConfigsResourceResult::default();
    result.name = StrBytes::from(config.definition.name.to_owned());
    result.config_source = config.source.code();
    result.config_type = type_code(config.definition.kind.config_type());
    if synonyms {
        if config.source == ConfigSource::Topic {
            result.synonyms.push(synonym(
                config.definition.name,
                &config.value,
                ConfigSource::Topic,
            ));
        }
        result.synonyms.push(synonym(
            config.definition.name,
            config.definition.default,
            ConfigSource::Default,
        ));
    }
    result.value = Some(StrBytes::from(config.value));
    result
}

/// Kafka's number of a config's type (`ConfigDef.Type` as DescribeConfigs says it).
fn type_code(kind: ConfigType) -> i8 {
    match kind {
        ConfigType::Boolean => 1,
        ConfigType::String => 2,
        ConfigType::Int => 3,
        ConfigType::Long => 5,
        ConfigType::Double => 6,
        ConfigType::List => 7,
    }
}

fn synonym(name: &str, value: &str, source: ConfigSource) -> DescribeConfigsSynonym {
    let mut synonym = DescribeConfigsSynonym::default();
    synonym.name = StrBytes::from(name.to_owned());
    synonym.value = Some(StrBytes::from(value.to_owned()));
    synonym.source = source.code();
    synonym
}

/// Answers IncrementalAlterConfigs.
pub(super) async fn alter(
    broker: &Broker,
    request: IncrementalAlterConfigsRequest,
) -> IncrementalAlterConfigsResponse {
    let mut answer = IncrementalAlterConfigsResponse::default();
    for resource in request.resources {
        let mut result = AlterConfigsResourceResponse::default();
        result.resource_type = resource.resource_type;
        result.resource_name = resource.resource_name.clone();
        if let Err((code, text)) = alter_one(broker, &resource, request.validate_only).await {
            result.error_code = code.code();
            result.error_message = Some(StrBytes::from(text));
        }
        answer.responses.push(result);
    }
    answer
}

async fn alter_one(
    broker: &Broker,
    resource: &AlterConfigsResource,
    validate_only: bool,
) -> Result<(), (ErrorCode, String)> {
    if resource.resource_type != TOPIC {
        return Err((
            ErrorCode::InvalidRequest,
            "only configs of topics can be changed".to_owned(),
        ));
    }
    let mut changes = Vec::with_capacity(resource.configs.len());
    for config in &resource.configs {
        let value = config.value.as_ref().map(|value| value.as_str().to_owned());
        let operation = match (config.config_operation, value) {
            (0, Some(value)) => ConfigOperation::Set(value),
            (1, _) => ConfigOperation::Delete,
            (2, Some(value)) => ConfigOperation::Append(value),
            (3, Some(value)) => ConfigOperation::Subtract(value),
            _ => {
                let text = format!(
                    "config {:?}: unknown operation, or no value",
                    config.name.as_str()
                );
                return Err((ErrorCode::InvalidRequest, text));
            }
        };
        changes.push(ConfigChange {
            name: config.name.as_str().to_owned(),
            operation,
        });
    }
    let invalid = |error: ConfigError| (ErrorCode::InvalidConfig, error.to_string());
    for change in &changes {
        if let (MAX_MESSAGE_BYTES, ConfigOperation::Set(value)) =
            (change.name.as_str(), &change.operation)
        {
            check_message_bytes(value, broker.router.batch_bytes_max()).map_err(invalid)?;
        }
    }
    merge(
        broker,
        resource.resource_name.as_str(),
        &changes,
        validate_only,
    )
    .await
}

/// Merges changes into the settings of a topic. A name that had another topic when this broker heard of it last is looked up again.
async fn merge(
    broker: &Broker,
    name: &str,
    changes: &[ConfigChange],
    validate_only: bool,
) -> Result<(), (ErrorCode, String)> {
    let invalid = |error: ConfigError| (ErrorCode::InvalidConfig, error.to_string());
    let (mut id, mut topic) = topic_surely(broker, name).await?;
    loop {
        changed(&topic.configs, ConfigSetMode::Merge, changes).map_err(invalid)?;
        if validate_only {
            return Ok(());
        }
        let command = MetadataCommand::SetTopicConfigs {
            id,
            mode: ConfigSetMode::Merge,
            changes: changes.to_vec(),
        };
        match broker.router.propose_metadata(&command).await {
            Ok(MetadataOutcome::ConfigsSet(_)) => return Ok(()),
            // What refused it is applied here: the name may have another topic now.
            Ok(MetadataOutcome::Refused(Refusal::UnknownTopic)) => {
                match broker.router.topic_by_name(name) {
                    Some(found) if found.0 != id => (id, topic) = found,
                    _ => return Err(no_such_topic()),
                }
            }
            Ok(MetadataOutcome::Refused(refusal)) => {
                return Err((refusal_code(&refusal), refusal.to_string()));
            }
            Ok(_) => {
                return Err((
                    ErrorCode::UnknownServerError,
                    "unexpected outcome".to_owned(),
                ));
            }
            Err(error) => return Err((metadata_code(&error), error.to_string())),
        }
    }
}

fn no_such_topic() -> (ErrorCode, String) {
    (
        ErrorCode::UnknownTopicOrPartition,
        "no such topic".to_owned(),
    )
}

/// The topic of this name. One that this broker has not heard of may be there: everything that is committed now is waited for first.
async fn topic_surely(
    broker: &Broker,
    name: &str,
) -> Result<(TopicId, Topic), (ErrorCode, String)> {
    if let Some(found) = broker.router.topic_by_name(name) {
        return Ok(found);
    }
    match broker.router.metadata_barrier().await {
        Ok(()) => broker.router.topic_by_name(name).ok_or_else(no_such_topic),
        // Nothing was asked for yet.
        Err(error) => Err((ErrorCode::NotController, error.to_string())),
    }
}
