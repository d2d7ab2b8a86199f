//! /api/v1/archive and /api/v1/archive/flush.

use axum::Json;
use axum::extract::{Query, State};
use serde::Serialize;
use tokio::time::Instant;

use super::AdminState;
use super::error::{Body, Failure};
use super::flush::flush_groups;
use super::tier::{Filter, FlushRequest, topic_id};
use crate::offload::OffloadError;
use std::collections::BTreeSet;
use tidelog_archive::{Archiver, PartitionStatus, TableStatus};
use tidelog_model::TopicId;

#[derive(Serialize)]
pub(super) struct Status {
    tables: Vec<Table>,
    /// Partitions of lost groups that a flush of all topics has left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<String>,
}

#[derive(Serialize)]
struct Table {
    topic: String,
    topic_id: String,
    location: String,
    metadata_location: Option<String>,
    snapshot_id: Option<i64>,
    rows: u64,
    partitions: Vec<Partition>,
}

#[derive(Serialize)]
struct Partition {
    partition: i32,
    archived_until: i64,
    tiered_until: i64,
}

/// A topic as the cluster knows it.
struct Known {
    id: TopicId,
    name: String,
    partitions: i32,
    location: String,
}

/// Adds the topics and partitions that no published manifest names yet: nothing of theirs was ever cut, so nothing is archived,
/// and that is what the status has to say.
fn completed(mut tables: Vec<TableStatus>, known: Vec<Known>) -> Vec<TableStatus> {
    for topic in known {
        let at = match tables.iter().position(|table| table.topic_id == topic.id) {
            Some(at) => at,
            None => {
                tables.push(TableStatus {
                    topic: topic.name,
                    topic_id: topic.id,
                    location: topic.location,
                    metadata_location: None,
                    snapshot_id: None,
                    rows: 0,
                    partitions: Vec::new(),
                });
                tables.len() - 1
            }
        };
        let Some(table) = tables.get_mut(at) else {
            continue;
        };
        let listed: BTreeSet<i32> = table.partitions.iter().map(|p| p.partition).collect();
        let missing = (0..topic.partitions).filter(|index| !listed.contains(index));
        table
            .partitions
            .extend(missing.map(|partition| PartitionStatus {
                partition,
                archived_until: 0,
                tiered_until: 0,
            }));
        table
            .partitions
            .sort_by_key(|partition| partition.partition);
    }
    tables.sort_by(|a, b| (&a.topic, a.topic_id).cmp(&(&b.topic, b.topic_id)));
    tables
}

/// The topics of the cluster, or the one that is asked for.
fn known(state: &AdminState, topic: Option<&str>) -> Result<Vec<Known>, Failure> {
    let archiver = archiver(state)?;
    let found: Vec<(String, TopicId, usize)> = state.router.image(|image| {
        image
            .by_name()
            .filter(|(name, _, _)| topic.is_none_or(|wanted| wanted == *name))
            .map(|(name, id, topic)| (name.to_owned(), id, topic.partitions.len()))
            .collect()
    });
    found
        .into_iter()
        .map(|(name, id, partitions)| {
            let location = archiver
                .location(id, &name)
                .map_err(|error| Failure::archive_failed(error.to_string()))?;
            Ok(Known {
                id,
                name,
                partitions: i32::try_from(partitions).unwrap_or(i32::MAX),
                location,
            })
        })
        .collect()
}

fn shown(tables: Vec<TableStatus>, known: Vec<Known>, left_out: Vec<String>) -> Json<Status> {
    let tables = completed(tables, known)
        .into_iter()
        .map(|table| Table {
            topic: table.topic,
            topic_id: table.topic_id.get().to_string(),
            location: table.location,
            metadata_location: table.metadata_location,
            snapshot_id: table.snapshot_id,
            rows: table.rows,
            partitions: table
                .partitions
                .into_iter()
                .map(|partition| Partition {
                    partition: partition.partition,
                    archived_until: partition.archived_until,
                    tiered_until: partition.tiered_until,
                })
                .collect(),
        })
        .collect();
    Json(Status { tables, left_out })
}

fn archiver(state: &AdminState) -> Result<&Archiver, Failure> {
    state
        .archiver
        .as_ref()
        .ok_or_else(Failure::archive_disabled)
}

/// Another store than the cluster's would say that nothing is archived, or take tables that nobody finds.
async fn check_store(state: &AdminState) -> Result<(), Failure> {
    match state.store.check().await {
        // Nothing can be in it yet that was not archived by an older version.
        Ok(()) | Err(OffloadError::Unmarked) => Ok(()),
        Err(error) => Err(Failure::archive_failed(error.to_string())),
    }
}

pub(super) async fn status(
    State(state): State<AdminState>,
    Query(filter): Query<Filter>,
) -> Result<Json<Status>, Failure> {
    topic_id(&state, filter.topic.as_deref())?;
    check_store(&state).await?;
    let tables = archiver(&state)?
        .status(filter.topic.as_deref())
        .await
        .map_err(|error| Failure::archive_failed(error.to_string()))?;
    let known = known(&state, filter.topic.as_deref())?;
    Ok(shown(tables, known, Vec::new()))
}

/// Tiers what is committed, then archives what is tiered, within one deadline.
pub(super) async fn flush(
    State(state): State<AdminState>,
    Body(request): Body<FlushRequest>,
) -> Result<Json<Status>, Failure> {
    if request.trim_local {
        return Err(Failure::bad_request(
            "trim_local belongs to /api/v1/tier/flush",
        ));
    }
    let archiver = archiver(&state)?;
    let topic = topic_id(&state, request.topic.as_deref())?;
    let deadline = Instant::now() + request.timeout();
    let left_out = flush_groups(&state, topic, false, request.timeout()).await?;
    check_store(&state).await?;
    let run = tokio::time::timeout_at(deadline, archiver.run_once(request.topic.as_deref())).await;
    match run {
        Err(_) => Err(Failure::timeout(
            "the archive is not up to date yet; it goes on in the background",
        )),
        Ok(Err(error)) => Err(Failure::archive_failed(error.to_string())),
        Ok(Ok(report)) => match report.errors.first() {
            Some(error) => Err(Failure::archive_failed(error.to_string())),
            None => Ok(shown(
                report.tables,
                known(&state, request.topic.as_deref())?,
                left_out.told()?,
            )),
        },
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn known(id: u128, name: &str, partitions: i32) -> Known {
        Known {
            id: TopicId::new(Uuid::from_u128(id)),
            name: name.to_owned(),
            partitions,
            location: format!("file:///{name}"),
        }
    }

    /// Proves that topics and partitions that were never cut are listed with nothing archived, in order, and that what is archived
    /// keeps its numbers.
    #[test]
    fn what_was_never_cut_is_listed() {
        let archived = TableStatus {
            topic: "b".to_owned(),
            topic_id: TopicId::new(Uuid::from_u128(2)),
            location: "file:///b".to_owned(),
            metadata_location: Some("m".to_owned()),
            snapshot_id: Some(5),
            rows: 9,
            partitions: vec![PartitionStatus {
                partition: 1,
                archived_until: 9,
                tiered_until: 10,
            }],
        };
        let tables = completed(vec![archived], vec![known(1, "a", 2), known(2, "b", 3)]);
        let listed: Vec<_> = tables
            .iter()
            .flat_map(|table| table.partitions.iter().map(move |p| (table, p)))
            .map(|(table, p)| {
                (
                    table.topic.as_str(),
                    p.partition,
                    p.archived_until,
                    p.tiered_until,
                )
            })
            .collect();
        assert_eq!(
            listed,
            [
                ("a", 0, 0, 0),
                ("a", 1, 0, 0),
                ("b", 0, 0, 0),
                ("b", 1, 9, 10),
                ("b", 2, 0, 0)
            ]
        );
        assert_eq!(
            (tables[0].location.as_str(), tables[0].rows),
            ("file:///a", 0)
        );
        assert_eq!((tables[1].snapshot_id, tables[1].rows), (Some(5), 9));
    }
}
