//! /api/v1/archive and /api/v1/archive/flush.

use axum::Json;
use axum::extract::{Query, State};
use serde::Serialize;
use tokio::time::Instant;

use super::AdminState;
use super::error::Failure;
use super::tier::{Filter, FlushRequest, flush_groups, topic_id};
use tidelog_archive::{Archiver, TableStatus};

#[derive(Serialize)]
pub(super) struct Status {
    tables: Vec<Table>,
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

fn shown(tables: Vec<TableStatus>) -> Json<Status> {
    let tables = tables
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
    Json(Status { tables })
}

fn archiver(state: &AdminState) -> Result<&Archiver, Failure> {
    state
        .archiver
        .as_ref()
        .ok_or_else(Failure::archive_disabled)
}

pub(super) async fn status(
    State(state): State<AdminState>,
    Query(filter): Query<Filter>,
) -> Result<Json<Status>, Failure> {
    topic_id(&state, filter.topic.as_deref())?;
    let tables = archiver(&state)?.status(filter.topic.as_deref()).await;
    tables
        .map(shown)
        .map_err(|error| Failure::archive_failed(error.to_string()))
}

/// Tiers what is committed, then archives what is tiered, within one deadline.
pub(super) async fn flush(
    State(state): State<AdminState>,
    Json(request): Json<FlushRequest>,
) -> Result<Json<Status>, Failure> {
    if request.trim_local {
        return Err(Failure::bad_request(
            "trim_local belongs to /api/v1/tier/flush",
        ));
    }
    let archiver = archiver(&state)?;
    let topic = topic_id(&state, request.topic.as_deref())?;
    let deadline = Instant::now() + request.timeout();
    flush_groups(&state, topic, false, request.timeout()).await?;
    let run = tokio::time::timeout_at(deadline, archiver.run_once(request.topic.as_deref())).await;
    match run {
        Err(_) => Err(Failure::timeout(
            "the archive is not up to date yet; it goes on in the background",
        )),
        Ok(Err(error)) => Err(Failure::archive_failed(error.to_string())),
        Ok(Ok(report)) => match report.errors.first() {
            Some(error) => Err(Failure::archive_failed(error.to_string())),
            None => Ok(shown(report.tables)),
        },
    }
}
