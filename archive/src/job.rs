//! One table's run: read what is tiered and not archived, write it, commit it, until nothing is left.
//!
//! Owns: the loop of the commit protocol and what happens after each outcome.
//! Not here: which topics (`archiver.rs`), the steps' store operations (`table.rs`).
//! Spec: docs/protocols/archive-commit.md

use crate::commit::{self, Addition, Head, Stamp};
use crate::config::ArchiveConfig;
use crate::decode::{Cursor, DecodeStop};
use crate::error::ArchiveError;
use crate::fileset::FileSet;
use crate::mark::{Added, Mark};
use crate::metrics::{ArchiveMetrics, add};
use crate::source::{PublishedTopic, ReadStop, SegmentReader};
use crate::table::{CommitOutcome, Table};
use iceberg::spec::DataFile;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidelog_env::{Clock, Random};
use tidelog_model::batch::RecordBatch;
use tidelog_model::{Offset, PartitionId};
use tidelog_tiering::TierStore;
use tidelog_tiering::manifest::{PartitionManifest, SegmentEntry};
use tokio::time::Instant;
use uuid::Uuid;

/// What every run needs.
pub(crate) struct Context {
    pub(crate) config: ArchiveConfig,
    pub(crate) store: TierStore,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) random: Arc<dyn Random>,
    pub(crate) metrics: Arc<ArchiveMetrics>,
}

/// How a table's run ended.
pub(crate) struct TableRun {
    /// The newest version seen; `None` when there is no table.
    pub(crate) head: Option<Head>,
    /// Partitions that stand still.
    pub(crate) stopped: Vec<ArchiveError>,
}

/// One table's run.
pub(crate) struct Job<'a> {
    context: &'a Context,
    topic: &'a PublishedTopic,
    table: &'a Table,
    stopped: BTreeSet<i32>,
    errors: Vec<ArchiveError>,
}

/// What was written for one commit.
struct Written {
    files: Vec<(i32, DataFile)>,
    added: Vec<Added>,
    /// Whether all that was planned is in it.
    complete: bool,
}

impl<'a> Job<'a> {
    pub(crate) fn new(context: &'a Context, topic: &'a PublishedTopic, table: &'a Table) -> Self {
        Self {
            context,
            topic,
            table,
            stopped: BTreeSet::new(),
            errors: Vec::new(),
        }
    }

    /// Steps 2 to 10.
    pub(crate) async fn run(mut self) -> Result<TableRun, ArchiveError> {
        let mut attempts = 0;
        let mut unknown: Option<(Uuid, u64, String)> = None;
        loop {
            let started = Instant::now();
            let head = match (self.table.load().await, &unknown) {
                (Ok(head), _) => head,
                (Err(_), Some((_, version, reason))) => {
                    return Err(self.commit_unknown(*version, reason));
                }
                (Err(error), None) => return Err(error),
            };
            if let (Some((commit, ..)), Some(head)) = (unknown.take(), &head)
                && head.mark.commit == commit
            {
                self.count_commit(head);
            }
            let planned = self.plan(head.as_ref());
            if planned.is_empty() {
                return Ok(TableRun {
                    head,
                    stopped: self.errors,
                });
            }
            if attempts >= self.context.config.attempts_max {
                return Err(self.contended(attempts));
            }
            let written = self.write(planned).await?;
            if written.added.is_empty() && self.errors.is_empty() {
                let reason = "there is something to archive and nothing was covered".to_owned();
                return Err(ArchiveError::Internal {
                    doing: "move forward",
                    reason,
                });
            }
            if written.added.is_empty() {
                return Ok(TableRun {
                    head,
                    stopped: self.errors,
                });
            }
            if started.elapsed() > self.context.config.attempt_age_max {
                attempts += 1;
                continue;
            }
            let (commit, version, outcome) = self.commit(head.as_ref(), &written).await?;
            match outcome {
                CommitOutcome::Committed => attempts = 0,
                CommitOutcome::Lost => {
                    add(&self.context.metrics.commits_lost_total, 1);
                    attempts += 1;
                }
                CommitOutcome::Unknown(error) => {
                    add(&self.context.metrics.commits_unknown_total, 1);
                    attempts += 1;
                    unknown = Some((commit, version, error.to_string()));
                }
            }
            tracing::debug!(
                table = self.table.location().uri(),
                version,
                complete = written.complete,
                "archive commit"
            );
        }
    }

    /// Step 4: a cursor for each partition that has something above its mark.
    fn plan(&self, head: Option<&Head>) -> Vec<(Cursor, &'a PartitionManifest)> {
        let mark = |index| {
            head.and_then(|head| head.mark.until.get(&index).copied())
                .unwrap_or(0)
        };
        let mut planned = Vec::new();
        for (index, partition) in &self.topic.partitions {
            let cursor = Cursor::new(*index, Offset::new(mark(*index)), partition.log_start);
            let waiting = cursor.next() < partition.tiered_until || cursor.added().is_some();
            if waiting && !self.stopped.contains(index) {
                planned.push((cursor, partition));
            }
        }
        planned
    }

    /// Step 5.
    async fn write(
        &mut self,
        planned: Vec<(Cursor, &'a PartitionManifest)>,
    ) -> Result<Written, ArchiveError> {
        let mut out = Output {
            table: self.table,
            files: Some(FileSet::new(self.context.config.clone())),
            stored: Vec::new(),
            bytes_left: self.context.config.commit_bytes.max(1),
        };
        let mut added = Vec::new();
        let mut complete = true;
        for (mut cursor, partition) in planned {
            match self.read_partition(&mut cursor, partition, &mut out).await {
                Ok(()) => {}
                Err(PartitionStop::Damaged { object, reason }) => {
                    self.stop(partition.id, cursor.next(), object, reason)
                }
                Err(PartitionStop::Failed(error)) => return Err(error),
            }
            added.extend(cursor.added());
            if out.bytes_left == 0 {
                complete = cursor.next() >= partition.tiered_until;
                break;
            }
        }
        Ok(Written {
            files: out.finish().await?,
            added,
            complete,
        })
    }

    /// Reads one partition until its end, or until the commit has enough.
    async fn read_partition(
        &self,
        cursor: &mut Cursor,
        partition: &PartitionManifest,
        out: &mut Output<'_>,
    ) -> Result<(), PartitionStop> {
        while cursor.next() < partition.tiered_until && out.bytes_left > 0 {
            let Some(segment) = partition
                .segments
                .iter()
                .find(|segment| cursor.is_in(segment))
            else {
                let reason = "the published manifest names no segment with it".to_owned();
                return Err(PartitionStop::Damaged {
                    object: "the partition".to_owned(),
                    reason,
                });
            };
            self.read_segment(cursor, segment, out).await?;
        }
        Ok(())
    }

    async fn read_segment(
        &self,
        cursor: &mut Cursor,
        segment: &SegmentEntry,
        out: &mut Output<'_>,
    ) -> Result<(), PartitionStop> {
        let mut reader =
            SegmentReader::new(&self.context.store, segment, self.context.config.read_bytes);
        let object = reader.key().to_string();
        let damaged = |reason| PartitionStop::Damaged {
            object: object.clone(),
            reason,
        };
        loop {
            let batches = match reader.next(cursor.next()).await {
                Ok(Some(batches)) => batches,
                Ok(None) => break,
                Err(ReadStop::Damaged(reason)) => return Err(damaged(reason)),
                Err(ReadStop::Store(source)) => {
                    return Err(PartitionStop::Failed(ArchiveError::Store {
                        doing: format!("read {object}"),
                        source,
                    }));
                }
            };
            // What is passed over on the way to the next offset does not count: a commit always moves forward.
            let read = batches.iter().map(|batch| batch.bytes().len() as u64).sum();
            add(&self.context.metrics.segment_bytes_total, read);
            out.bytes_left = out.bytes_left.saturating_sub(read);
            out.append(cursor, segment, batches)
                .await
                .map_err(|stop| match stop {
                    DecodeStop::Damaged(reason) => damaged(reason),
                    DecodeStop::Internal(error) => PartitionStop::Failed(error),
                })?;
            out.store_ready().await.map_err(PartitionStop::Failed)?;
            if out.bytes_left == 0 {
                return Ok(());
            }
        }
        if cursor.next() <= segment.last_offset {
            return Err(damaged(format!(
                "it ends before offset {}",
                segment.last_offset
            )));
        }
        Ok(())
    }

    /// Steps 6 to 9.
    async fn commit(
        &self,
        head: Option<&Head>,
        written: &Written,
    ) -> Result<(Uuid, u64, CommitOutcome), ArchiveError> {
        let now_ms = self.context.clock.now_ms();
        let id = self.context.random.uuid_at(now_ms);
        let location = self.table.location();
        let mut until = head.map(|head| head.mark.until.clone()).unwrap_or_default();
        until.extend(
            written
                .added
                .iter()
                .map(|added| (added.partition, added.until)),
        );
        if let Some(wrong) = written.added.iter().find(|added| !added.is_complete()) {
            return Err(ArchiveError::Internal {
                doing: "account for each offset (I14)",
                reason: format!("{wrong:?}"),
            });
        }
        let mark = Mark {
            cluster: location.cluster(),
            topic: location.topic(),
            commit: id,
            until,
        };
        let list = match head {
            Some(head) => self.table.manifest_list(head).await?,
            None => None,
        };
        let addition = Addition {
            files: written.files.clone(),
            mark,
            added: written.added.clone(),
        };
        let stamp = Stamp {
            now_ms,
            random: self.context.random.next_u64(),
        };
        let keep = self.context.config.snapshots_max;
        let next = commit::build(location, head, list, addition, stamp, keep).await?;
        let version = next.version;
        let outcome = self.table.commit(next, id).await?;
        if matches!(outcome, CommitOutcome::Committed) {
            self.count(&written.added, &written.files);
        }
        Ok((id, version, outcome))
    }

    fn count(&self, added: &[Added], files: &[(i32, DataFile)]) {
        let metrics = &self.context.metrics;
        let sum = |field: fn(&Added) -> i64| {
            u64::try_from(added.iter().map(field).sum::<i64>()).unwrap_or(0)
        };
        add(&metrics.commits_total, 1);
        add(&metrics.rows_total, sum(|added| added.rows));
        add(&metrics.offsets_skipped_total, sum(|added| added.skipped));
        let lost = sum(|added| added.lost);
        if lost > 0 {
            tracing::warn!(
                table = self.table.location().uri(),
                lost,
                "offsets went below log start (deleted records, or retention) before they were archived"
            );
        }
        add(&metrics.offsets_lost_total, lost);
        add(&metrics.files_total, files.len() as u64);
        add(
            &metrics.file_bytes_total,
            files
                .iter()
                .map(|(_, file)| file.file_size_in_bytes())
                .sum(),
        );
    }

    /// A commit that was unknown turned out to have happened.
    fn count_commit(&self, head: &Head) {
        let added = Mark::history(&head.metadata)
            .ok()
            .and_then(|mut history| history.pop())
            .unwrap_or_default();
        self.count(&added, &[]);
    }

    fn stop(&mut self, partition: PartitionId, offset: Offset, object: String, reason: String) {
        let error = ArchiveError::Damaged {
            partition,
            offset,
            object,
            reason,
        };
        tracing::error!("{error}");
        self.context
            .metrics
            .partitions_stopped_total
            .fetch_add(1, Ordering::Relaxed);
        self.stopped.insert(partition.index.get());
        self.errors.push(error);
    }

    fn contended(&self, attempts: u32) -> ArchiveError {
        ArchiveError::Contended {
            location: self.table.location().uri().to_owned(),
            attempts,
        }
    }

    fn commit_unknown(&self, version: u64, reason: &str) -> ArchiveError {
        let location = self.table.location().uri().to_owned();
        ArchiveError::CommitUnknown {
            location,
            version,
            reason: reason.to_owned(),
        }
    }
}

/// Why a partition's reading ended early.
enum PartitionStop {
    /// This partition stands still.
    Damaged { object: String, reason: String },
    /// The whole run ends.
    Failed(ArchiveError),
}

/// The files of one commit on their way into the store.
struct Output<'a> {
    table: &'a Table,
    /// `None` only while a blocking task has it, or after that task failed.
    files: Option<FileSet>,
    stored: Vec<(i32, DataFile)>,
    bytes_left: u64,
}

impl Output<'_> {
    /// Decodes and encodes off the event loop: a row group takes a tenth of a second.
    async fn append(
        &mut self,
        cursor: &mut Cursor,
        segment: &SegmentEntry,
        batches: Vec<RecordBatch>,
    ) -> Result<(), DecodeStop> {
        let mut files = self.take().map_err(DecodeStop::Internal)?;
        let (mut moved, segment) = (cursor.clone(), segment.clone());
        let work = move || {
            let outcome = moved.append(&segment, &batches, &mut files);
            (files, moved, outcome)
        };
        let (files, moved, outcome) = tidelog_env::blocking(work).await.map_err(|error| {
            DecodeStop::Internal(ArchiveError::internal("run the decoder")(error))
        })?;
        self.files = Some(files);
        *cursor = moved;
        outcome
    }

    async fn store_ready(&mut self) -> Result<(), ArchiveError> {
        let ready = self
            .files
            .as_mut()
            .map(FileSet::take_ready)
            .unwrap_or_default();
        for file in ready {
            self.stored.push(self.table.store_file(file).await?);
        }
        Ok(())
    }

    async fn finish(mut self) -> Result<Vec<(i32, DataFile)>, ArchiveError> {
        let files = self.take()?;
        let last = tidelog_env::blocking(move || files.finish())
            .await
            .map_err(ArchiveError::internal("run the encoder"))??;
        for file in last {
            self.stored.push(self.table.store_file(file).await?);
        }
        Ok(self.stored)
    }

    fn take(&mut self) -> Result<FileSet, ArchiveError> {
        let lost = || ArchiveError::Internal {
            doing: "write rows",
            reason: "an earlier step failed".to_owned(),
        };
        self.files.take().ok_or_else(lost)
    }
}
