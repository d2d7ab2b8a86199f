//! /metrics: reads the gauges off the state and renders the page.

use std::sync::atomic::Ordering;

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;

use super::AdminState;
use crate::observe::{GroupReading, PlainCounter, Reading};

pub(super) async fn metrics(State(state): State<AdminState>) -> impl IntoResponse {
    let text = state.metrics.render(&reading(&state), &counters(&state));
    (
        [(
            header::CONTENT_TYPE,
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        )],
        text,
    )
}

/// Counters that other crates keep as plain numbers.
fn counters(state: &AdminState) -> Vec<PlainCounter> {
    let mut counters = Vec::new();
    let mut add = |name: String, help: &'static str, group: Option<u32>, value: u64| {
        counters.push(PlainCounter {
            name,
            help,
            group,
            value,
        });
    };
    for group in state.router.data_groups() {
        let log = group.group().log().metrics();
        let id = Some(group.id().get());
        add(
            "log_entries".to_owned(),
            "Log entries that became durable",
            id,
            log.entries.get(),
        );
        add(
            "log_written_bytes".to_owned(),
            "Bytes written into log files",
            id,
            log.bytes.get(),
        );
        add(
            "log_syncs".to_owned(),
            "Syncs of the group log",
            id,
            log.syncs.get(),
        );
        add(
            "log_reads_disk".to_owned(),
            "Reads of log entries that went to the disk",
            id,
            log.reads_disk.get(),
        );
        add(
            "log_prepare_failures".to_owned(),
            "Spare log files that could not be prepared",
            id,
            log.prepare_failures.get(),
        );
    }
    let reader = state.reader.stats();
    add(
        "remote_cache_hits".to_owned(),
        "Reads of the store answered from memory",
        None,
        reader.hits,
    );
    add(
        "remote_cache_misses".to_owned(),
        "Reads of the store that waited for a download",
        None,
        reader.misses,
    );
    add(
        "remote_download_bytes".to_owned(),
        "Bytes downloaded from the store",
        None,
        reader.download_bytes,
    );
    add(
        "remote_download_failures".to_owned(),
        "Downloads that failed",
        None,
        reader.failures,
    );
    add(
        "remote_corrupt".to_owned(),
        "Downloads whose bytes were damaged",
        None,
        reader.corrupt,
    );
    if let Some(archiver) = &state.archiver {
        for (name, value) in archiver.metrics().counters() {
            let name = format!("archive_{}", name.trim_end_matches("_total"));
            add(name, "What the archive did since the start", None, value);
        }
    }
    counters
}

fn reading(state: &AdminState) -> Reading {
    let mut reading = Reading {
        task_panics: state.tasks.panics(),
        uptime_seconds: state.started.elapsed().as_secs(),
        ..Reading::default()
    };
    state.router.image(|image| {
        for (name, _, topic) in image.by_name() {
            reading
                .topics
                .insert(name.to_owned(), crate::observe::TopicReading::default());
            reading.partitions += topic.partitions.len() as u64;
        }
    });
    for group in state.router.data_groups() {
        let mut of_group = GroupReading {
            group: group.id().get(),
            leader: group.group().is_leader(),
            last_applied: group
                .group()
                .applied()
                .borrow()
                .map_or(0, |id| id.index.get()),
            local_bytes: group.group().log().local_bytes(),
            ..GroupReading::default()
        };
        if let Some(offload) = state.offloads.get(&group.id()) {
            let progress = offload.progress();
            of_group.steps_failed = progress.steps_failed.load(Ordering::Relaxed);
            of_group.cuts_published = progress.cuts_published.load(Ordering::Relaxed);
            of_group.uploaded_bytes = progress.bytes_uploaded.load(Ordering::Relaxed);
        }
        group.group().read(|machine| {
            of_group.malformed = machine.partitions().malformed();
            of_group.upload_lag_bytes = machine.partitions().untiered_bytes();
            for partition in machine.partitions().iter() {
                if let Some(topic) = reading.topics.get_mut(partition.topic_name.as_ref()) {
                    topic.records += partition.next_offset.get() - partition.log_start.get();
                    topic.remote_bytes += partition.remote_bytes();
                    topic.local_bytes += partition.hot.bytes();
                }
            }
        });
        reading.groups.push(of_group);
    }
    reading
}
