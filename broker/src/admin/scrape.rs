//! /metrics: reads the gauges off the state and renders the page.

use std::sync::atomic::Ordering;

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;

use super::AdminState;
use crate::observe::{GroupReading, PlainCounter, Reading};
use tidelog_model::PlacementGroupId;

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
    leader_counters(state, &mut counters);
    log_counters(state, &mut counters);
    reader_counters(state, &mut counters);
    if let Some(archiver) = &state.archiver {
        for (name, value) in archiver.metrics().counters() {
            let name = format!("archive_{}", name.trim_end_matches("_total"));
            counters.push(PlainCounter {
                name,
                help: "What the archive did since the start",
                group: None,
                value,
            });
        }
    }
    counters
}

fn leader_counters(state: &AdminState, counters: &mut Vec<PlainCounter>) {
    let metadata = (
        PlacementGroupId::METADATA,
        state.router.metadata().leader_changes(),
    );
    let data = state.router.data_groups();
    let data = data.map(|group| (group.id(), group.group().leader_changes()));
    counters.extend(
        std::iter::once(metadata)
            .chain(data)
            .map(|(group, changes)| {
                plain(
                    "group_leader_changes",
                    "Changes of leader that this replica of the group has seen since it started",
                    Some(group.get()),
                    changes,
                )
            }),
    );
}

fn log_counters(state: &AdminState, counters: &mut Vec<PlainCounter>) {
    for group in state.router.data_groups() {
        let log = group.group().log().metrics();
        let group = Some(group.id().get());
        let all = [
            (
                "log_entries",
                "Log entries that became durable",
                log.entries.get(),
            ),
            (
                "log_written_bytes",
                "Bytes written into log files",
                log.bytes.get(),
            ),
            ("log_syncs", "Syncs of the group log", log.syncs.get()),
            (
                "log_reads_disk",
                "Reads of log entries that went to the disk",
                log.reads_disk.get(),
            ),
            (
                "log_prepare_failures",
                "Spare log files that could not be prepared",
                log.prepare_failures.get(),
            ),
        ];
        counters.extend(all.map(|(name, help, value)| plain(name, help, group, value)));
    }
}

fn reader_counters(state: &AdminState, counters: &mut Vec<PlainCounter>) {
    let reader = state.reader.stats();
    let all = [
        (
            "remote_cache_hits",
            "Reads of the store answered from memory",
            reader.hits,
        ),
        (
            "remote_cache_misses",
            "Reads of the store that waited for a download",
            reader.misses,
        ),
        (
            "remote_download_bytes",
            "Bytes downloaded from the store",
            reader.download_bytes,
        ),
        (
            "remote_download_failures",
            "Downloads that failed",
            reader.failures,
        ),
        (
            "remote_corrupt",
            "Downloads whose bytes were damaged",
            reader.corrupt,
        ),
    ];
    counters.extend(all.map(|(name, help, value)| plain(name, help, None, value)));
}

fn plain(name: &str, help: &'static str, group: Option<u32>, value: u64) -> PlainCounter {
    PlainCounter {
        name: name.to_owned(),
        help,
        group,
        value,
    }
}

fn reading(state: &AdminState) -> Reading {
    let mut reading = Reading {
        task_panics: state.tasks.panics(),
        store_up: state.health.is_well("store"),
        store_wrong: state.store.is_wrong(),
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
        let brokers = image.brokers();
        reading.brokers = brokers.len() as u64;
        let fenced = brokers.values().filter(|broker| broker.fenced.is_some());
        reading.brokers_fenced = fenced.count() as u64;
    });
    reading.groups_lost = state.router.lost_groups().len() as u64;
    reading.replicas_reverted = state
        .router
        .reverted()
        .values()
        .map(Vec::len)
        .sum::<usize>() as u64;
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
        if let Some(offload) = state.offloads.get(group.id()) {
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
