//! The archiver: runs over all topics, on demand and in a loop, and says how far it is.
//!
//! Owns: the component's handle.
//! Not here: one table's run (`job.rs`).
//! Spec: docs/protocols/archive-commit.md

use crate::commit::Head;
use crate::config::ArchiveConfig;
use crate::error::ArchiveError;
use crate::job::{Context, Job};
use crate::location::{TableLocation, metadata_name};
use crate::metrics::{ArchiveMetrics, add};
use crate::source::{Published, PublishedTopic, read_published};
use crate::table::Table;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidelog_env::{Clock, Random, Tasks};
use tidelog_model::TopicId;
use tidelog_tiering::TierStore;

/// Pause before the loop starts again after a panic.
const RESTART_PAUSE: Duration = Duration::from_secs(5);

/// How far one Kafka partition is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionStatus {
    /// Kafka partition.
    pub partition: i32,
    /// First offset that is not in the table.
    pub archived_until: i64,
    /// First offset that is not in a published segment: what can be archived now.
    pub tiered_until: i64,
}

/// How far one topic's table is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableStatus {
    /// Topic name.
    pub topic: String,
    /// Topic id.
    pub topic_id: TopicId,
    /// URI of the table.
    pub location: String,
    /// URI of its newest metadata file; `None` before the first commit.
    pub metadata_location: Option<String>,
    /// Its current snapshot.
    pub snapshot_id: Option<i64>,
    /// Rows in it.
    pub rows: u64,
    /// Its partitions, by number.
    pub partitions: Vec<PartitionStatus>,
}

/// What a run did.
#[derive(Debug, Default)]
pub struct RunReport {
    /// The tables it looked at, as they are now.
    pub tables: Vec<TableStatus>,
    /// What went wrong, table by table and partition by partition. Everything else was done.
    pub errors: Vec<ArchiveError>,
}

/// Archives what is tiered. Clones share one archiver. Any number may work on one bucket.
#[derive(Clone)]
pub struct Archiver(Arc<Inner>);

struct Inner {
    context: Context,
    /// One run at a time per process: a flush waits for the loop's run, then does its own.
    running: tokio::sync::Mutex<()>,
    /// Marks as last seen. A mark never goes back, so a table that is as far as its topic needs no look.
    seen: Mutex<HashMap<TopicId, Seen>>,
}

#[derive(Clone)]
struct Seen {
    until: BTreeMap<i32, i64>,
    status: TableStatus,
}

impl Archiver {
    /// An archiver of the cluster in `store`. Nothing runs yet.
    #[must_use]
    pub fn new(
        config: ArchiveConfig,
        store: TierStore,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> Self {
        let context = Context {
            config,
            store,
            clock,
            random,
            metrics: Arc::default(),
        };
        Self(Arc::new(Inner {
            context,
            running: tokio::sync::Mutex::new(()),
            seen: Mutex::new(HashMap::new()),
        }))
    }

    /// Its counters.
    #[must_use]
    pub fn metrics(&self) -> Arc<ArchiveMetrics> {
        Arc::clone(&self.0.context.metrics)
    }

    /// Archives everything that is published, of one topic or of all, and returns when it is committed. Dropping the
    /// future leaves a commit that may or may not have happened; the next run finds out.
    ///
    /// # Errors
    /// When the published manifests cannot be read. What went wrong in a table is in the report.
    pub async fn run_once(&self, topic: Option<&str>) -> Result<RunReport, ArchiveError> {
        let _running = self.0.running.lock().await;
        let metrics = &self.0.context.metrics;
        add(&metrics.runs_total, 1);
        let outcome = self.run_all(topic).await;
        if outcome
            .as_ref()
            .is_ok_and(|report| report.errors.is_empty())
        {
            metrics
                .last_success_ms
                .store(self.0.context.clock.now_ms(), Ordering::Relaxed);
        } else {
            add(&metrics.run_failures_total, 1);
        }
        outcome
    }

    async fn run_all(&self, topic: Option<&str>) -> Result<RunReport, ArchiveError> {
        let published = read_published(&self.0.context.store).await?;
        let mut report = RunReport::default();
        for found in chosen(&published, topic) {
            match self.run_topic(found).await {
                Ok((status, stopped)) => {
                    report.tables.push(status);
                    report.errors.extend(stopped);
                }
                Err(error) => report.errors.push(error),
            }
        }
        report.errors.extend(published.errors);
        Ok(report)
    }

    async fn run_topic(
        &self,
        topic: &PublishedTopic,
    ) -> Result<(TableStatus, Vec<ArchiveError>), ArchiveError> {
        if let Some(mut seen) = self.0.seen.lock().get(&topic.id).cloned()
            && topic.partitions.iter().all(|(index, partition)| {
                seen.until.get(index).copied().unwrap_or(0) >= partition.tiered_until.get()
            })
        {
            seen.status.partitions = partitions(topic, &seen.until);
            return Ok((seen.status, Vec::new()));
        }
        let table = self.table(topic)?;
        let run = Job::new(&self.0.context, topic, &table).run().await?;
        let status = status(topic, &table, run.head.as_ref());
        if let Some(head) = run.head {
            let seen = Seen {
                until: head.mark.until,
                status: status.clone(),
            };
            self.0.seen.lock().insert(topic.id, seen);
        }
        Ok((status, run.stopped))
    }

    /// How far every topic's table is, read from the bucket now.
    ///
    /// # Errors
    /// When the store cannot be read, or a table is not one of ours.
    pub async fn status(&self, topic: Option<&str>) -> Result<Vec<TableStatus>, ArchiveError> {
        let published = read_published(&self.0.context.store).await?;
        let mut tables = Vec::new();
        for found in chosen(&published, topic) {
            let table = self.table(found)?;
            tables.push(status(found, &table, table.load().await?.as_ref()));
        }
        match published.errors.into_iter().next() {
            Some(error) => Err(error),
            None => Ok(tables),
        }
    }

    /// Starts the loop: a run every `interval`, jittered, until `tasks` stop. Errors are logged and counted; the loop
    /// goes on, also after a panic.
    pub fn start(&self, tasks: &Tasks) {
        let archiver = self.clone();
        tasks.supervise("archive", RESTART_PAUSE, move || {
            archiver.clone().run_for_ever()
        });
    }

    async fn run_for_ever(self) {
        let context = &self.0.context;
        loop {
            tokio::time::sleep(context.random.jitter(context.config.interval)).await;
            match self.run_once(None).await {
                Ok(report) => report
                    .errors
                    .iter()
                    .for_each(|error| tracing::warn!("{error}")),
                Err(error) => tracing::warn!("{error}"),
            }
        }
    }

    /// URI of the table of a topic, whether it exists yet or not.
    ///
    /// # Errors
    /// When the store's URI is none that readers could use.
    pub fn location(&self, id: TopicId, name: &str) -> Result<String, ArchiveError> {
        Ok(self.place(id, name)?.uri().to_owned())
    }

    fn place(&self, id: TopicId, name: &str) -> Result<TableLocation, ArchiveError> {
        let Context { config, store, .. } = &self.0.context;
        let root = store.root().clone();
        TableLocation::new(&config.store_uri, &root, store.cluster(), id, name)
    }

    fn table(&self, topic: &PublishedTopic) -> Result<Table, ArchiveError> {
        let location = self.place(topic.id, &topic.name)?;
        Ok(Table::new(self.0.context.store.clone(), location))
    }
}

fn chosen<'a>(
    published: &'a Published,
    topic: Option<&'a str>,
) -> impl Iterator<Item = &'a PublishedTopic> {
    published
        .topics
        .values()
        .filter(move |found| topic.is_none_or(|name| name == found.name))
}

fn partitions(topic: &PublishedTopic, until: &BTreeMap<i32, i64>) -> Vec<PartitionStatus> {
    let status = |(index, partition): (&i32, &tidelog_tiering::manifest::PartitionManifest)| {
        PartitionStatus {
            partition: *index,
            archived_until: until.get(index).copied().unwrap_or(0),
            tiered_until: partition.tiered_until.get(),
        }
    };
    topic.partitions.iter().map(status).collect()
}

fn status(topic: &PublishedTopic, table: &Table, head: Option<&Head>) -> TableStatus {
    let location = table.location();
    let snapshot = head.and_then(|head| head.metadata.current_snapshot());
    let rows = snapshot.and_then(|snapshot| {
        snapshot
            .summary()
            .additional_properties
            .get("total-records")?
            .parse()
            .ok()
    });
    TableStatus {
        topic: topic.name.clone(),
        topic_id: topic.id,
        location: location.uri().to_owned(),
        metadata_location: head.map(|head| location.uri_of(&metadata_name(head.version))),
        snapshot_id: snapshot.map(|snapshot| snapshot.snapshot_id()),
        rows: rows.unwrap_or(0),
        partitions: partitions(
            topic,
            &head.map(|head| head.mark.until.clone()).unwrap_or_default(),
        ),
    }
}
