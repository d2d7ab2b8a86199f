//! Metadata and DescribeCluster: who leads what, and where to dial.
//!
//! Owns: the advertised address (what the client dialled, unless configured), topics created on demand.

use std::collections::BTreeSet;

use super::context::Broker;
use super::topics;
use crate::datagroup::DataGroup;
use crate::error::ErrorCode;
use crate::metadata::Topic;
use crate::wire::Connection;
use crate::wire::messages::metadata_request::MetadataRequestTopic;
use crate::wire::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use crate::wire::messages::{
    DescribeClusterRequest, DescribeClusterResponse, MetadataRequest, MetadataResponse, StrBytes,
    WireUuid, describe_cluster_response, topic_id, wire_topic_id,
};
use tidelog_model::{NodeId, PlacementGroupId, TopicId};

/// "Not asked for", as Kafka encodes a set of operations.
const OPERATIONS_NOT_ASKED: i32 = i32::MIN;

/// A broker as clients see it.
pub(super) struct Shown {
    pub(super) id: NodeId,
    pub(super) host: String,
    pub(super) port: u16,
    rack: Option<StrBytes>,
}

/// Where this client reaches the broker `id`; `None` while that broker has not said so.
pub(super) fn shown(broker: &Broker, connection: &Connection, id: NodeId) -> Option<Shown> {
    let (registered, zone) = if id == broker.router.node() {
        let local = (connection.local.ip().to_string(), connection.local.port());
        let told = broker.config.advertised.clone().unwrap_or(local);
        (told, broker.config.zone.clone())
    } else {
        let other = broker.router.broker(id)?;
        let at = other.kafka?;
        ((at.host, at.port), other.zone)
    };
    let (host, port) = registered;
    let rack = (!zone.is_empty()).then(|| StrBytes::from(zone));
    Some(Shown {
        id,
        host,
        port,
        rack,
    })
}

/// All brokers of the cluster, this one in any case.
fn all_brokers(broker: &Broker, connection: &Connection) -> Vec<Shown> {
    let this = broker.router.node();
    let mut ids: BTreeSet<NodeId> = broker
        .router
        .image(|image| image.brokers().keys().copied().collect());
    ids.insert(this);
    ids.into_iter()
        .filter_map(|id| shown(broker, connection, id))
        .collect()
}

/// Where clients send changes. Any broker takes them; the one that leads metadata saves a hop.
fn controller(broker: &Broker, brokers: &[Shown]) -> i32 {
    let known = broker
        .router
        .controller()
        .filter(|id| brokers.iter().any(|shown| shown.id == *id));
    known.unwrap_or_else(|| broker.router.node()).get()
}

/// Answers Metadata.
pub(super) async fn metadata(
    broker: &Broker,
    connection: &Connection,
    request: MetadataRequest,
    version: i16,
) -> MetadataResponse {
    let mut answer = MetadataResponse::default();
    let brokers = all_brokers(broker, connection);
    answer.cluster_id = Some(StrBytes::from(broker.config.cluster.get().to_string()));
    answer.controller_id = controller(broker, &brokers);
    for shown in brokers {
        let mut one = MetadataResponseBroker::default();
        one.node_id = shown.id.get();
        one.host = StrBytes::from(shown.host);
        one.port = i32::from(shown.port);
        one.rack = shown.rack;
        answer.brokers.push(one);
    }
    answer.cluster_authorized_operations = OPERATIONS_NOT_ASKED;
    // Version 0 has no way to say "none": an empty list means all topics.
    let wanted = request
        .topics
        .filter(|topics| version > 0 || !topics.is_empty());
    answer.topics = match wanted {
        None => all_topics(broker),
        Some(topics) => {
            let create = request.allow_auto_topic_creation || version < 4;
            let mut found = Vec::with_capacity(topics.len());
            for topic in topics {
                found.push(one_topic(broker, topic, create).await);
            }
            found
        }
    };
    answer
}

fn all_topics(broker: &Broker) -> Vec<MetadataResponseTopic> {
    let topics: Vec<(TopicId, Topic)> = broker.router.image(|image| {
        image
            .by_name()
            .map(|(_, id, topic)| (id, topic.clone()))
            .collect()
    });
    topics
        .iter()
        .map(|(id, topic)| describe(broker, *id, topic))
        .collect()
}

async fn one_topic(
    broker: &Broker,
    wanted: MetadataRequestTopic,
    create: bool,
) -> MetadataResponseTopic {
    let failed = |code: ErrorCode, name: Option<StrBytes>, id: WireUuid| {
        let mut topic = MetadataResponseTopic::default();
        topic.error_code = code.code();
        topic.name = name;
        topic.topic_id = id;
        topic.topic_authorized_operations = OPERATIONS_NOT_ASKED;
        topic
    };
    if let Some(id) = topic_id(wanted.topic_id) {
        return match broker.router.image(|image| image.topic(id).cloned()) {
            Some(topic) => describe(broker, id, &topic),
            // Before version 12 the name cannot be null.
            None => failed(
                ErrorCode::UnknownTopicId,
                Some(StrBytes::default()),
                wanted.topic_id,
            ),
        };
    }
    let Some(name) = wanted.name else {
        return failed(ErrorCode::InvalidRequest, None, wanted.topic_id);
    };
    if let Some((id, topic)) = broker.router.topic_by_name(name.as_str()) {
        return describe(broker, id, &topic);
    }
    if crate::metadata::check_topic_name(name.as_str()).is_err() {
        return failed(ErrorCode::InvalidTopic, Some(name), WireUuid::default());
    }
    if !(create && broker.config.auto_create_topics) {
        return failed(
            ErrorCode::UnknownTopicOrPartition,
            Some(name),
            WireUuid::default(),
        );
    }
    match topics::create_on_demand(broker, name.as_str()).await {
        Ok(()) => match broker.router.topic_by_name(name.as_str()) {
            Some((id, topic)) => describe(broker, id, &topic),
            None => failed(
                ErrorCode::LeaderNotAvailable,
                Some(name),
                WireUuid::default(),
            ),
        },
        Err(code) => failed(code, Some(name), WireUuid::default()),
    }
}

fn describe(broker: &Broker, id: TopicId, topic: &Topic) -> MetadataResponseTopic {
    let mut answer = MetadataResponseTopic::default();
    answer.name = Some(StrBytes::from(topic.name.clone()));
    answer.topic_id = wire_topic_id(id);
    answer.topic_authorized_operations = OPERATIONS_NOT_ASKED;
    answer.partitions = (0i32..)
        .zip(&topic.partitions)
        .map(|(index, group)| describe_partition(broker, index, *group))
        .collect();
    answer
}

fn describe_partition(
    broker: &Broker,
    index: i32,
    group: PlacementGroupId,
) -> MetadataResponsePartition {
    let mut answer = MetadataResponsePartition::default();
    answer.partition_index = index;
    let replicas: Vec<i32> = broker.router.image(|image| {
        image
            .groups()
            .get(&group)
            .map(|nodes| nodes.iter().map(|node| node.get()).collect())
            .unwrap_or_default()
    });
    let leader = broker.router.data_group(group).and_then(|group| {
        let leader = group.group().leadership().borrow().leader?;
        // A leader that lost touch with the others must not send clients to itself.
        let serves = leader != broker.router.node() || group.group().can_serve_reads();
        serves.then_some(leader)
    });
    answer.leader_id = leader.map_or(-1, NodeId::get);
    answer.leader_epoch = broker
        .router
        .data_group(group)
        .map_or(-1, |group| DataGroup::epoch(group).get());
    if answer.leader_id < 0 {
        answer.error_code = ErrorCode::LeaderNotAvailable.code();
    }
    answer.isr_nodes.clone_from(&replicas);
    answer.replica_nodes = replicas;
    answer
}

/// Answers DescribeCluster.
pub(super) fn describe_cluster(
    broker: &Broker,
    connection: &Connection,
    request: &DescribeClusterRequest,
) -> DescribeClusterResponse {
    let mut answer = DescribeClusterResponse::default();
    answer.endpoint_type = request.endpoint_type;
    answer.cluster_id = StrBytes::from(broker.config.cluster.get().to_string());
    answer.cluster_authorized_operations = OPERATIONS_NOT_ASKED;
    let brokers = all_brokers(broker, connection);
    answer.controller_id = controller(broker, &brokers);
    for shown in brokers {
        let mut one = describe_cluster_response::DescribeClusterBroker::default();
        one.broker_id = shown.id.get();
        one.host = StrBytes::from(shown.host);
        one.port = i32::from(shown.port);
        one.rack = shown.rack;
        answer.brokers.push(one);
    }
    answer
}
