//! The driver: one task per data group that takes the next step whenever this broker leads the group.
//!
//! Owns: when a cut is made, trimming of the logs that other brokers lead, retries of steps, flush requests, progress for metrics and status.
//! Not here: the order of steps (`step`), the steps themselves (`upload`, `publish`).
//!
//! A step that fails is tried again after a pause with jitter, for ever: the data is in the local log meanwhile, and
//! the next try begins from the committed state, whatever the failed one left behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::error::{OffloadError, ToldToStop};
use super::guard::StoreGuard;
use super::parts::parts;
use super::publish;
use super::step::{Step, Wish, next};
use super::upload::Uploader;
use crate::datagroup::DataGroup;
use crate::partition::{CutStage, Frozen, PartitionCommand, PartitionOutcome};
use parking_lot::Mutex;
use tidelog_env::{Clock, CrashPoint, Mutant, Random, Tasks, crash_point, mutant};
use tidelog_model::LogIndex;
use tidelog_tiering::key;
use tidelog_tiering::store::StoreError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// First pause after a failed step; doubles up to [`RETRY_PAUSE_MAX`].
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(200);
/// Longest pause between two tries: a store that comes back is used again within this time.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(15);
/// Pause while the store is not marked, or not the cluster's: one GET, and metadata says soon which it is.
const MARK_PAUSE: Duration = Duration::from_secs(1);
/// How often an idle driver looks whether a cut is due. Flushes and new leadership wake it at once.
const TICK: Duration = Duration::from_millis(250);
/// How often a replica that does not lead looks whether it can trim its log.
const FOLLOW_TICK: Duration = Duration::from_secs(1);
/// Bytes of other entries for which a cut is worth it at least: a cut writes some itself.
const GROWN_BYTES_MIN: u64 = 4 << 20;
/// Flush requests that may wait per group.
const FLUSHES_MAX: usize = 64;

/// When cuts are made and how much stays local.
#[derive(Clone, Copy, Debug)]
pub struct OffloadConfig {
    /// New bytes after which a cut is made.
    pub cut_bytes: u64,
    /// Time after which a cut is made if anything is untiered.
    pub cut_interval: Duration,
    /// Local bytes that a trim leaves for hot reads.
    pub local_bytes: u64,
    /// Bytes per second that uploads keep to while little waits and nobody flushes. `None`: as fast as it goes.
    pub upload_bytes_per_second: Option<u64>,
}

/// What a flush found when it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushOutcome {
    /// Everything committed before the request is in a published manifest (and, if asked for, no longer local).
    Done,
    /// This broker stopped leading the group.
    NotLeader,
}

/// Counters of one driver. Read by metrics and status.
#[derive(Debug, Default)]
pub struct OffloadProgress {
    /// Cuts published since the start.
    pub cuts_published: AtomicU64,
    /// Segments uploaded since the start.
    pub segments_uploaded: AtomicU64,
    /// Bytes uploaded since the start.
    pub bytes_uploaded: AtomicU64,
    /// Steps that failed since the start.
    pub steps_failed: AtomicU64,
    /// Flushes that wait now.
    pub flushes_waiting: AtomicUsize,
    last_error: Mutex<Option<String>>,
}

impl OffloadProgress {
    /// The newest failure, until a step succeeds again.
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        self.last_error.lock().clone()
    }
}

struct Flush {
    trim_local: bool,
    done: oneshot::Sender<FlushOutcome>,
    /// Everything up to here must be tiered; set when the driver takes the request.
    target: LogIndex,
}

/// Handle to the driver of one data group.
#[derive(Clone)]
pub struct Offload {
    flushes: mpsc::Sender<Flush>,
    progress: Arc<OffloadProgress>,
    store: StoreGuard,
}

impl Offload {
    /// Starts the driver; it ends with `tasks`.
    #[must_use]
    pub fn start(
        config: OffloadConfig,
        group: DataGroup,
        store: StoreGuard,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
        tasks: &Tasks,
    ) -> Self {
        let (flushes, requests) = mpsc::channel(FLUSHES_MAX);
        let progress = Arc::new(OffloadProgress::default());
        let requests = Arc::new(tokio::sync::Mutex::new(requests));
        let (shared, guard) = (Arc::clone(&progress), store.clone());
        tasks.supervise("offload", RETRY_PAUSE_MIN, move || {
            let (group, store, clock, random) = (
                group.clone(),
                store.clone(),
                Arc::clone(&clock),
                Arc::clone(&random),
            );
            let (progress, requests) = (Arc::clone(&shared), Arc::clone(&requests));
            async move {
                let mut requests = requests.lock().await;
                let driver = Driver {
                    config,
                    group,
                    store,
                    clock,
                    random,
                    progress,
                    waiting: Vec::new(),
                    trimmed: None,
                    cut_due_at: Instant::now() + config.cut_interval,
                    written_at_cut: 0,
                };
                driver.run(&mut requests).await;
            }
        });
        Self {
            flushes,
            progress,
            store: guard,
        }
    }

    /// Moves everything committed so far into the store; with `trim_local` also drops it locally. Waits as long as it
    /// takes: the caller sets the deadline, and dropping the future leaves the work going on.
    pub async fn flush(&self, trim_local: bool) -> FlushOutcome {
        let _counted = Counted::new(&self.progress.flushes_waiting);
        let (done, outcome) = oneshot::channel();
        let flush = Flush {
            trim_local,
            done,
            target: LogIndex::new(0),
        };
        if self.flushes.send(flush).await.is_err() {
            return FlushOutcome::NotLeader;
        }
        outcome.await.unwrap_or(FlushOutcome::NotLeader)
    }

    /// Why nothing moves: this broker's store is known not to be the cluster's.
    #[must_use]
    pub fn wrong_store(&self) -> Option<String> {
        self.store.known_wrong().map(|error| error.to_string())
    }

    /// Counters.
    #[must_use]
    pub fn progress(&self) -> &OffloadProgress {
        &self.progress
    }
}

/// Counts for as long as it lives, also when the caller gives up.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The group, or its owner's handle, is gone: the task is about to be stopped with them.
async fn stopped() {
    std::future::pending().await
}

struct Driver {
    config: OffloadConfig,
    group: DataGroup,
    store: StoreGuard,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    progress: Arc<OffloadProgress>,
    waiting: Vec<Flush>,
    /// Cut up to which the log was trimmed, and whether nothing was left local.
    trimmed: Option<(LogIndex, bool)>,
    cut_due_at: Instant,
    /// Bytes written into the log when the newest cut was made; 0 after a start.
    written_at_cut: u64,
}

impl Driver {
    async fn run(mut self, requests: &mut mpsc::Receiver<Flush>) {
        let mut leadership = self.group.group().leadership();
        let mut pause = RETRY_PAUSE_MIN;
        let mut told = ToldToStop::default();
        loop {
            while let Ok(flush) = requests.try_recv() {
                self.take(flush);
            }
            let leads = leadership.borrow_and_update().is_leader;
            if !leads && !mutant(Mutant::DeposedLeaderPublishes) {
                told = ToldToStop::default();
                for flush in self.waiting.drain(..) {
                    let _gone = flush.done.send(FlushOutcome::NotLeader);
                }
                if let Err(error) = self.follow().await
                    && !matches!(
                        error,
                        OffloadError::Unmarked | OffloadError::WrongStore { .. }
                    )
                {
                    tracing::warn!(group = %self.group.id(), "the local log was not trimmed, it is tried again: {error}");
                }
                // What failed here is another broker's to do now.
                *self.progress.last_error.lock() = None;
                tokio::select! {
                    changed = leadership.changed() => if changed.is_err() { return stopped().await },
                    request = requests.recv() => match request { Some(flush) => self.take(flush), None => return stopped().await },
                    () = tokio::time::sleep(FOLLOW_TICK) => {}
                }
                continue;
            }
            match self.step().await {
                Ok(true) => {
                    pause = RETRY_PAUSE_MIN;
                    told = ToldToStop::default();
                }
                Ok(false) => {
                    tokio::select! {
                        request = requests.recv() => match request { Some(flush) => self.take(flush), None => return stopped().await },
                        () = tokio::time::sleep(TICK) => {}
                    }
                }
                Err(error)
                    if told.is_nothing(&error, leadership.borrow().is_leader, Instant::now()) =>
                {
                    tracing::debug!(group = %self.group.id(), "a step of offload ended with leadership: {error}");
                    tokio::time::sleep(self.random.jitter(RETRY_PAUSE_MIN)).await;
                }
                // Waited for, or said once by who watches the store.
                Err(error @ (OffloadError::Unmarked | OffloadError::WrongStore { .. })) => {
                    *self.progress.last_error.lock() = Some(error.to_string());
                    tokio::time::sleep(self.random.jitter(MARK_PAUSE)).await;
                }
                Err(error) => {
                    self.progress.steps_failed.fetch_add(1, Ordering::Relaxed);
                    *self.progress.last_error.lock() = Some(error.to_string());
                    tracing::warn!(group = %self.group.id(), "offload step failed, it is tried again: {error}");
                    tokio::time::sleep(self.random.jitter(pause)).await;
                    pause = (pause * 2).min(RETRY_PAUSE_MAX);
                }
            }
        }
    }

    fn take(&mut self, mut flush: Flush) {
        let applied = *self.group.group().applied().borrow();
        flush.target = applied.map_or(LogIndex::new(0), |id| id.index);
        self.waiting.push(flush);
    }

    /// What a replica that does not lead does: it trims its own log behind a published cut. All replicas know the cut alike.
    async fn follow(&mut self) -> Result<(), OffloadError> {
        let machine = self.group.group();
        let stage = machine.read(|machine| machine.partitions().stage().clone());
        match &stage {
            CutStage::Published(frozen) if !self.is_trimmed(&stage) => self.trim(frozen).await,
            _ => Ok(()),
        }
    }

    /// Takes one step; says whether there was one to take.
    async fn step(&mut self) -> Result<bool, OffloadError> {
        let (stage, untiered, bytes) = self.group.group().read(|machine| {
            let partitions = machine.partitions();
            (
                partitions.stage().clone(),
                partitions.has_untiered(),
                partitions.bytes_since_cut(),
            )
        });
        self.answer_flushes(&stage, untiered);
        let written = self.group.group().log().metrics().bytes.get();
        let grown = written.saturating_sub(self.written_at_cut)
            >= self.config.cut_bytes.max(GROWN_BYTES_MIN);
        let due = grown
            || !self.waiting.is_empty()
            || bytes >= self.config.cut_bytes
            || Instant::now() >= self.cut_due_at;
        let wish = Wish {
            untiered,
            grown,
            due,
            trimmed: self.is_trimmed(&stage),
        };
        match next(&stage, wish) {
            Step::Wait => return Ok(false),
            Step::Cut => {
                self.cut_due_at = Instant::now() + self.config.cut_interval;
                self.commit(PartitionCommand::Cut).await?;
                crash_point(CrashPoint::CutCommitted);
                self.written_at_cut = self.group.group().log().metrics().bytes.get();
            }
            Step::Upload(frozen) => {
                if mutant(Mutant::TrimBeforeUpload) {
                    self.group.purge(frozen.at.index).await?;
                }
                self.upload(&frozen).await?;
            }
            Step::Publish(frozen) => self.publish(&frozen).await?,
            Step::Trim(frozen) => self.trim(&frozen).await?,
        }
        *self.progress.last_error.lock() = None;
        Ok(true)
    }

    /// Puts the manifest of an uploaded cut, and says so through Raft.
    async fn publish(&mut self, frozen: &Frozen) -> Result<(), OffloadError> {
        if mutant(Mutant::PurgeBeforePublish) {
            self.trim(frozen).await?;
        }
        self.check_store().await?;
        let published = self
            .group
            .group()
            .read(|machine| machine.partitions().published_sequence());
        let (store, id) = (self.store.store(), self.group.id());
        let cluster = store.cluster();
        let sequence = publish::publish(store, cluster, id, published, frozen).await?;
        crash_point(CrashPoint::PublishPut);
        // Again: a put that was tried for long may have ended in another store than it began.
        self.check_store().await?;
        self.commit(PartitionCommand::Published {
            cut: frozen.at.index,
            sequence,
        })
        .await?;
        crash_point(CrashPoint::PublishCommitted);
        self.progress.cuts_published.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    async fn upload(&self, frozen: &Frozen) -> Result<(), OffloadError> {
        let uploader = Uploader {
            group: &self.group,
            store: self.store.store(),
            clock: self.clock.as_ref(),
            random: self.random.as_ref(),
            flushes: &self.progress.flushes_waiting,
            bytes_per_second: self.config.upload_bytes_per_second,
        };
        self.check_store().await?;
        let segments = uploader.upload(frozen).await?;
        crash_point(CrashPoint::UploadAllPut);
        // Again: what went to another store in the meantime must not be named.
        self.check_store().await?;
        for segments in parts(segments, self.group.group().entry_bytes_max()) {
            let count = segments.len() as u64;
            let bytes: u64 = segments.iter().map(|(_, segment)| segment.length).sum();
            self.commit(PartitionCommand::Uploaded {
                cut: frozen.at.index,
                segments,
            })
            .await?;
            crash_point(CrashPoint::UploadCommitted);
            self.progress
                .segments_uploaded
                .fetch_add(count, Ordering::Relaxed);
            self.progress
                .bytes_uploaded
                .fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether the store is the cluster's, and holds what this group has published. Without the question, a store of this broker alone, or one that
    /// was exchanged, emptied or unmounted, would take new segments, and the local copies would go.
    async fn check_store(&self) -> Result<(), OffloadError> {
        self.store.check().await?;
        let published = self
            .group
            .group()
            .read(|machine| machine.partitions().published_sequence());
        if published == 0 {
            return Ok(());
        }
        let key = key::snapshot(self.group.id(), published);
        match self.store.store().head(&key).await {
            Ok(_) => Ok(()),
            Err(StoreError::NotFound { .. }) => Err(OffloadError::OtherStore {
                key: key.as_str().to_owned(),
            }),
            Err(error) => Err(error.into()),
        }
    }

    /// Saves the cut's state as checkpoint, then purges the log below it, all but what hot reads want.
    async fn trim(&mut self, frozen: &Frozen) -> Result<(), OffloadError> {
        let wanted = self.trim_wanted();
        // First: a checkpoint that nothing can follow would be written again and again.
        self.store.check().await?;
        self.group.group().snapshot_and_persist().await?;
        crash_point(CrashPoint::TrimSaved);
        let upto = if wanted {
            Some(frozen.at.index)
        } else {
            self.group
                .group()
                .log()
                .purgeable(self.config.local_bytes)
                .map(|upto| upto.min(frozen.at.index))
        };
        if let Some(upto) = upto {
            self.check_store().await?;
            self.group.purge(upto).await?;
        }
        self.trimmed = Some((frozen.at.index, wanted));
        Ok(())
    }

    async fn commit(&self, command: PartitionCommand) -> Result<(), OffloadError> {
        match self.group.propose(command).await?.1 {
            PartitionOutcome::Refused(reason) => Err(OffloadError::Refused(reason)),
            PartitionOutcome::Malformed(_) => {
                Err(OffloadError::Refused("the command was malformed"))
            }
            PartitionOutcome::Appended(_)
            | PartitionOutcome::Done
            | PartitionOutcome::LogStart(_) => Ok(()),
        }
    }

    fn trim_wanted(&self) -> bool {
        self.waiting.iter().any(|flush| flush.trim_local)
    }

    fn is_trimmed(&self, stage: &CutStage) -> bool {
        let CutStage::Published(frozen) = stage else {
            return true;
        };
        match self.trimmed {
            Some((at, whole)) => at >= frozen.at.index && (whole || !self.trim_wanted()),
            None => false,
        }
    }

    /// Answers the flushes whose records are all in a published manifest and, where asked for, no longer local.
    fn answer_flushes(&mut self, stage: &CutStage, untiered: bool) {
        let published = match stage {
            CutStage::Published(frozen) => Some(frozen.at.index),
            CutStage::None if !untiered => Some(LogIndex::new(0)),
            CutStage::None | CutStage::Cut(_) | CutStage::Uploaded(_) => None,
        };
        let Some(published) = published else { return };
        let trimmed = self.trimmed;
        let (done, waiting) =
            std::mem::take(&mut self.waiting)
                .into_iter()
                .partition(|flush: &Flush| {
                    let tiered = !untiered || published >= flush.target;
                    let dropped = match trimmed {
                        Some((at, whole)) => whole && at >= published,
                        None => false,
                    };
                    tiered && (!flush.trim_local || dropped || matches!(stage, CutStage::None))
                });
        self.waiting = waiting;
        for flush in done {
            let _gone = flush.done.send(FlushOutcome::Done);
        }
    }
}
