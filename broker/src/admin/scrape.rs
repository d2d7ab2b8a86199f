//! /metrics: reads the gauges off the state and renders the page.

use std::sync::atomic::Ordering;

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;

use super::AdminState;
use crate::observe::{GroupReading, Reading};

pub(super) async fn metrics(State(state): State<AdminState>) -> impl IntoResponse {
    let text = state.metrics.render(&reading(&state));
    (
        [(
            header::CONTENT_TYPE,
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        )],
        text,
    )
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
            of_group.upload_lag_bytes = machine.partitions().bytes_since_cut();
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
