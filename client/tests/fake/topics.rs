//! Topics that come and go by request: ids, settings, the answers of CreateTopics, DeleteTopics and DescribeConfigs.

use super::FakeBroker;
use kafka_wire::create_topics_response::CreatableTopicResult;
use kafka_wire::delete_topics_request::DeleteTopicState;
use kafka_wire::delete_topics_response::DeletableTopicResult;
use kafka_wire::describe_configs_response::{DescribeConfigsResourceResult, DescribeConfigsResult};
use kafka_wire::{
    CreateTopicsRequest, CreateTopicsResponse, DeleteTopicsRequest, DeleteTopicsResponse,
    DescribeConfigsRequest, DescribeConfigsResponse,
};
use kafka_wire_core::{StrBytes, Uuid};
use std::sync::atomic::{AtomicU8, Ordering};

const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
const TOPIC_ALREADY_EXISTS: i16 = 36;
const UNKNOWN_TOPIC_ID: i16 = 100;

/// What is known of a topic that was created.
pub struct Created {
    pub id: Uuid,
    configs: Vec<(StrBytes, Option<StrBytes>)>,
}

impl FakeBroker {
    /// Creates a topic as a request does, with an id of its own.
    pub fn topic_with_id(&self, name: &str, partitions: usize) {
        static NEXT: AtomicU8 = AtomicU8::new(1);
        self.topic(name, partitions);
        let created = Created {
            id: Uuid::from_bytes([NEXT.fetch_add(1, Ordering::Relaxed); 16]),
            configs: Vec::new(),
        };
        self.state.lock().created.insert(name.to_owned(), created);
    }

    /// Deletes a topic as a request does.
    pub fn forget_topic(&self, name: &str) {
        let mut state = self.state.lock();
        state.topics.remove(name);
        state.created.remove(name);
    }

    pub(super) fn create(&self, request: CreateTopicsRequest, code: i16) -> CreateTopicsResponse {
        let mut response = CreateTopicsResponse::default();
        for wanted in request.topics {
            let mut result = CreatableTopicResult::default();
            result.name = wanted.name.clone();
            result.error_code = code;
            if code == 0 && self.state.lock().topics.contains_key(wanted.name.as_str()) {
                result.error_code = TOPIC_ALREADY_EXISTS;
            }
            if result.error_code == 0 {
                let partitions = usize::try_from(wanted.num_partitions).unwrap();
                self.topic_with_id(wanted.name.as_str(), partitions);
                if let Some(topic) = self.state.lock().created.get_mut(wanted.name.as_str()) {
                    let configs = wanted.configs.into_iter();
                    topic.configs = configs.map(|config| (config.name, config.value)).collect();
                }
            }
            response.topics.push(result);
        }
        response
    }

    pub(super) fn delete(&self, request: DeleteTopicsRequest, code: i16) -> DeleteTopicsResponse {
        let by_name = request.topic_names.into_iter().map(|name| {
            let mut state = DeleteTopicState::default();
            state.name = Some(name);
            state
        });
        let mut response = DeleteTopicsResponse::default();
        for wanted in request.topics.into_iter().chain(by_name) {
            let mut result = DeletableTopicResult::default();
            let found = match &wanted.name {
                Some(name) => {
                    let known = self.state.lock().topics.contains_key(name.as_str());
                    known
                        .then(|| name.to_string())
                        .ok_or(UNKNOWN_TOPIC_OR_PARTITION)
                }
                None => {
                    let state = self.state.lock();
                    let mut created = state.created.iter();
                    let found = created.find(|(_, topic)| topic.id == wanted.topic_id);
                    found.map(|(name, _)| name.clone()).ok_or(UNKNOWN_TOPIC_ID)
                }
            };
            match found {
                _ if code != 0 => result.error_code = code,
                Ok(name) => self.forget_topic(&name),
                Err(code) => result.error_code = code,
            }
            response.responses.push(result);
        }
        response
    }

    pub(super) fn configs(&self, request: DescribeConfigsRequest) -> DescribeConfigsResponse {
        let state = self.state.lock();
        let mut response = DescribeConfigsResponse::default();
        for resource in request.resources {
            let mut result = DescribeConfigsResult::default();
            let created = state.created.get(resource.resource_name.as_str());
            for (name, value) in created.into_iter().flat_map(|topic| &topic.configs) {
                let mut config = DescribeConfigsResourceResult::default();
                (config.name, config.value) = (name.clone(), value.clone());
                result.configs.push(config);
            }
            response.results.push(result);
        }
        response
    }
}
