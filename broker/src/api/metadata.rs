//! Metadata and DescribeCluster: who leads what, and where to dial.
//!
//! Owns: the advertised address (what the client dialled, unless configured), topics created on demand.

use std::collections::BTreeSet;

use super::context::Broker;
use super::topics;
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
use tidelog_model::{LeaderEpoch, NodeId, PlacementGroupId, TopicId};

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

/// The brokers that clients may go to: those that live, this one, and whoever leads partitions as far as this one knows. Who leads was heard by a
/// majority lately, whatever the fences say, and a leader that is not in the list is none to clients.
fn live_brokers(broker: &Broker, connection: &Connection) -> Vec<Shown> {
    let router = &broker.router;
    let mut ids: BTreeSet<NodeId> = router.image(|image| {
        let live = image.brokers().keys().filter(|id| image.is_live(**id));
        live.copied().collect()
    });
    ids.insert(router.node());
    ids.extend(
        router
            .data_groups()
            .filter_map(|group| leader_of(broker, group.id()).0),
    );
    ids.into_iter()
        .filter_map(|id| shown(broker, connection, id))
        .collect()
}

/// Where clients send changes: to the one that answers. Any broker takes them, and this one lives. The leader of the metadata group would save a hop, but
/// for seconds after its death it is still the newest that is known, and librdkafka waits for it without asking again.
fn controller(broker: &Broker) -> i32 {
    broker.router.node().get()
}

/// Answers Metadata.
pub(super) async fn metadata(
    broker: &Broker,
    connection: &Connection,
    request: MetadataRequest,
    version: i16,
) -> MetadataResponse {
    let mut answer = MetadataResponse::default();
    let brokers = live_brokers(broker, connection);
    answer.cluster_id = Some(StrBytes::from(broker.config.cluster.get().to_string()));
    answer.controller_id = controller(broker);
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
    let (leader, epoch) = leader_of(broker, group);
    answer.leader_id = leader.map_or(-1, NodeId::get);
    answer.leader_epoch = epoch;
    if leader.is_none() {
        answer.error_code = ErrorCode::LeaderNotAvailable.code();
    }
    broker.router.image(|image| {
        for node in image.groups().get(&group).into_iter().flatten() {
            answer.replica_nodes.push(node.get());
            let lives = image.is_live(*node) || leader == Some(*node);
            let list = if lives {
                &mut answer.isr_nodes
            } else {
                &mut answer.offline_replicas
            };
            list.push(node.get());
        }
    });
    answer
}

/// Who leads the group, and its leader epoch, as far as clients should know.
fn leader_of(broker: &Broker, group: PlacementGroupId) -> (Option<NodeId>, i32) {
    if let Some((leader, term)) = broker.router.leader(group) {
        return (Some(leader), LeaderEpoch::of_term(term).get());
    }
    let held = broker.router.data_group(group);
    (None, held.map_or(-1, |group| group.epoch().get()))
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
    let brokers = live_brokers(broker, connection);
    answer.controller_id = controller(broker);
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
