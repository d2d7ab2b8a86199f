//! /api/v1/tier and /api/v1/tier/flush.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::Json;
use axum::extract::{Query, State};
use serde::{Deserialize, Serialize};

use super::AdminState;
use super::error::{Body, Failure};
use super::flush::flush_groups;
use super::leader_parts::leader_parts;
use tidelog_model::{NodeId, PartitionId, TopicId};

/// Longest wait that a request may ask for: one day.
pub(super) const TIMEOUT_MS_MAX: u64 = 86_400_000;
pub(super) const TIMEOUT_MS_DEFAULT: u64 = 60_000;

#[derive(Deserialize)]
pub(super) struct Filter {
    pub(super) topic: Option<String>,
}

#[derive(Serialize)]
pub(super) struct Status {
    partitions: Vec<Partition>,
    /// Partitions of which nothing is known now.
    unanswered: Vec<Unanswered>,
    /// Partitions of lost groups that a flush of all topics has left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<String>,
}

/// A partition that exists and that nobody has told of.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Unanswered {
    topic: String,
    partition: i32,
    group: u32,
    leader: Option<i32>,
    why: String,
}

/// Why there is nothing of a partition: `from` has told of its group, or nobody has.
fn why(leader: Option<NodeId>, from: Option<NodeId>) -> String {
    match (from, leader) {
        (Some(from), _) => format!("not yet on broker {from}"),
        (None, Some(leader)) => format!("no answer from its leader, broker {leader}"),
        (None, None) => "no leader of its group is known".to_owned(),
    }
}

#[derive(Serialize)]
struct Partition {
    topic: String,
    partition: i32,
    group: u32,
    leader: Option<i32>,
    log_start: i64,
    tiered_until: i64,
    high_watermark: i64,
    local_start: i64,
    local_bytes: u64,
    /// Whose disk `local_start` and `local_bytes` are of: the leader's, or the asked broker's where no leader answers.
    local_broker: i32,
    remote_bytes: u64,
}

#[derive(Deserialize)]
pub(super) struct FlushRequest {
    pub(super) topic: Option<String>,
    #[serde(default)]
    pub(super) trim_local: bool,
    pub(super) timeout_ms: Option<u64>,
}

impl FlushRequest {
    pub(super) fn timeout(&self) -> Duration {
        Duration::from_millis(
            self.timeout_ms
                .unwrap_or(TIMEOUT_MS_DEFAULT)
                .min(TIMEOUT_MS_MAX),
        )
    }
}

/// The topic that a filter names.
pub(super) fn topic_id(state: &AdminState, name: Option<&str>) -> Result<Option<TopicId>, Failure> {
    let Some(name) = name else { return Ok(None) };
    match state.router.topic_by_name(name) {
        Some((id, _)) => Ok(Some(id)),
        None => Err(Failure::unknown_topic(name)),
    }
}

async fn status_of(state: &AdminState, topic: Option<TopicId>) -> Status {
    let heard = leader_parts(state, topic).await;
    let leader = |group| state.router.leader(group).map(|(leader, _)| leader);
    let mut partitions: Vec<Partition> = state.router.image(|image| {
        let groups = heard.iter().map(|heard| {
            let leader = leader(heard.group).map(NodeId::get);
            let local_broker = heard.from.map_or(-1, NodeId::get);
            heard.parts.iter().filter_map(move |part| {
                Some(Partition {
                    topic: image.topic(part.partition.topic)?.name.clone(),
                    partition: part.partition.index.get(),
                    group: heard.group.get(),
                    leader,
                    log_start: part.log_start.get(),
                    tiered_until: part.tiered_until.get(),
                    high_watermark: part.high_watermark.get(),
                    local_start: part.local_start.get(),
                    local_bytes: part.local_bytes,
                    local_broker,
                    remote_bytes: part.remote_bytes,
                })
            })
        });
        groups.flatten().collect()
    });
    partitions.sort_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
    let mut unanswered: Vec<Unanswered> = state.router.image(|image| {
        let groups = heard.iter().map(|heard| {
            let told: BTreeSet<PartitionId> =
                heard.parts.iter().map(|part| part.partition).collect();
            let leader = leader(heard.group);
            let there = image.partitions_of(heard.group);
            let missing = there.filter(move |(id, _)| {
                topic.is_none_or(|topic| id.topic == topic) && !told.contains(id)
            });
            missing.map(move |(id, topic)| Unanswered {
                topic: topic.name.clone(),
                partition: id.index.get(),
                group: heard.group.get(),
                leader: leader.map(NodeId::get),
                why: why(leader, heard.from),
            })
        });
        groups.flatten().collect()
    });
    unanswered.sort();
    Status {
        partitions,
        unanswered,
        left_out: Vec::new(),
    }
}

pub(super) async fn status(
    State(state): State<AdminState>,
    Query(filter): Query<Filter>,
) -> Result<Json<Status>, Failure> {
    let topic = topic_id(&state, filter.topic.as_deref())?;
    Ok(Json(status_of(&state, topic).await))
}

pub(super) async fn flush(
    State(state): State<AdminState>,
    Body(request): Body<FlushRequest>,
) -> Result<Json<Status>, Failure> {
    let topic = topic_id(&state, request.topic.as_deref())?;
    let left_out = flush_groups(&state, topic, request.trim_local, request.timeout()).await?;
    let left_out = left_out.told()?;
    Ok(Json(Status {
        left_out,
        ..status_of(&state, topic).await
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves what is said of a partition that nobody tells of.
    #[test]
    fn reasons() {
        let (two, three) = (Some(NodeId::new(2)), Some(NodeId::new(3)));
        assert_eq!(why(three, None), "no answer from its leader, broker 3");
        assert_eq!(why(None, None), "no leader of its group is known");
        assert_eq!(why(three, two), "not yet on broker 2");
    }
}
