//! /api/v1/cluster and /api/v1/topics.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use serde::Serialize;

use super::AdminState;
use super::members::liveness_age_ms;
use crate::metadata::Address;
use tidelog_model::{NodeId, TimestampMs};

#[derive(Serialize)]
pub(super) struct Cluster {
    cluster_id: String,
    name: String,
    version: &'static str,
    brokers: Vec<Broker>,
    metadata_leader: Option<i32>,
    /// How old it is what this broker knows of who is fenced; absent while it hears the leader of metadata, or is it.
    #[serde(skip_serializing_if = "Option::is_none")]
    liveness_age_ms: Option<u64>,
    groups: Vec<Group>,
}

#[derive(Serialize)]
struct Broker {
    id: i32,
    zone: String,
    kafka: String,
    admin: String,
    /// Clients are kept away from it: it is silent, or it stops.
    fenced: bool,
    fenced_since_ms: Option<i64>,
}

#[derive(Serialize)]
struct Group {
    group: u32,
    leader: Option<i32>,
    term: u64,
    last_applied: Option<u64>,
    local_bytes: u64,
}

/// All registered brokers; of this one what is so now.
fn brokers(state: &AdminState) -> Vec<Broker> {
    let identity = &state.identity;
    let this = state.router.node();
    let mut brokers: BTreeMap<i32, Broker> = state.router.image(|image| {
        let text = |address: &Option<Address>| {
            let at = address.as_ref();
            at.map_or_else(String::new, |at| format!("{}:{}", at.host, at.port))
        };
        let registered = image.brokers().iter();
        registered
            .map(|(id, broker)| {
                let shown = Broker {
                    id: id.get(),
                    zone: broker.zone.clone(),
                    kafka: text(&broker.kafka),
                    admin: text(&broker.admin),
                    fenced: broker.fenced.is_some(),
                    fenced_since_ms: broker.fenced.map(TimestampMs::get),
                };
                (id.get(), shown)
            })
            .collect()
    });
    // What is registered is the same at every broker; a broker that is not registered yet, or not for clients elsewhere, knows itself.
    let known = brokers.get(&this.get());
    let told = known.map(|known| known.kafka.as_str());
    let told = told.filter(|kafka| !kafka.is_empty());
    let own = Broker {
        id: this.get(),
        zone: identity.zone.clone(),
        kafka: told.unwrap_or(&identity.kafka).to_owned(),
        admin: identity.admin.clone(),
        fenced: known.is_some_and(|known| known.fenced),
        fenced_since_ms: known.and_then(|known| known.fenced_since_ms),
    };
    brokers.insert(this.get(), own);
    brokers.into_values().collect()
}

pub(super) async fn cluster(State(state): State<AdminState>) -> Json<Cluster> {
    let identity = &state.identity;
    let groups = state
        .router
        .data_groups()
        .map(|group| {
            let leadership = *group.group().leadership().borrow();
            let applied = *group.group().applied().borrow();
            Group {
                group: group.id().get(),
                leader: state
                    .router
                    .leader(group.id())
                    .map(|(leader, _)| leader.get()),
                term: leadership.term.get(),
                last_applied: applied.map(|id| id.index.get()),
                local_bytes: group.group().log().local_bytes(),
            }
        })
        .collect();
    Json(Cluster {
        cluster_id: identity.cluster_id.clone(),
        name: identity.cluster_name.clone(),
        version: env!("CARGO_PKG_VERSION"),
        brokers: brokers(&state),
        metadata_leader: state.router.controller().map(NodeId::get),
        liveness_age_ms: liveness_age_ms(&state),
        groups,
    })
}

#[derive(Serialize)]
pub(super) struct Topics {
    topics: Vec<Topic>,
}

#[derive(Serialize)]
struct Topic {
    topic: String,
    topic_id: String,
    partitions: usize,
    configs: BTreeMap<String, String>,
}

pub(super) async fn topics(State(state): State<AdminState>) -> Json<Topics> {
    let topics = state.router.image(|image| {
        image
            .by_name()
            .map(|(name, id, topic)| Topic {
                topic: name.to_owned(),
                topic_id: id.get().to_string(),
                partitions: topic.partitions.len(),
                configs: topic.configs.clone(),
            })
            .collect()
    });
    Json(Topics { topics })
}
