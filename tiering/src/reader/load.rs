//! Downloads into the caches: merged, bounded, checked, and not given up once begun.
//!
//! Owns: the caches, the budgets of requests and bytes in flight, the second try after damage.
//! Not here: which span is wanted (`mod.rs`, `plan.rs`).

use super::config::{ReadError, ReaderConfig, ReaderStats};
use super::plan::{SegmentKey, SpanKey, aligned_level, bytes_of, span_of};
use super::{check, weight};
use crate::format::{IndexBlock, RUN_BYTES};
use crate::key;
use crate::manifest::{ObjectId, SegmentEntry};
use crate::store::{StoreError, TierStore};
use bytes::Bytes;
use moka::future::Cache;
use moka::policy::EvictionPolicy;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::future::Future;
use std::hash::Hash;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidelog_env::Tasks;
use tidelog_model::batch::RecordBatch;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

/// Checking more than this in one go is left to a blocking thread: 256 KiB take about 50 microseconds.
const CHECK_INLINE_BYTES_MAX: usize = 256 * 1024;

/// Checked batches of neighbouring runs.
pub(super) struct Span {
    pub(super) runs: Range<usize>,
    pub(super) batches: Vec<RecordBatch>,
    bytes: usize,
}

/// Why a download brought nothing.
#[derive(Clone, Debug)]
enum LoadError {
    /// Whoever began to wait for a place in the budget has gone; whoever still waits begins anew.
    Abandoned,
    Failed(ReadError),
}

#[derive(Default)]
struct Counters {
    hits: AtomicU64,
    misses: AtomicU64,
    downloads: AtomicU64,
    download_bytes: AtomicU64,
    failures: AtomicU64,
    corrupt: AtomicU64,
}

fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// Shared by all clones.
#[derive(Clone)]
pub(super) struct Loader(Arc<Shared>);

struct Shared {
    store: TierStore,
    config: ReaderConfig,
    tasks: Tasks,
    indexes: Cache<SegmentKey, Arc<IndexBlock>>,
    spans: Cache<SpanKey, Arc<Span>>,
    requests: Arc<Semaphore>,
    /// In KiB.
    bytes: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    prefetches: Arc<Semaphore>,
    prefetching: Mutex<HashSet<(SegmentKey, usize)>>,
    counters: Counters,
}

impl Loader {
    pub(super) fn new(store: TierStore, config: ReaderConfig, tasks: Tasks) -> Self {
        // LRU, not TinyLFU: a replay reads everything once, and what it has just loaded ahead must be let in.
        let spans = Cache::builder()
            .max_capacity(config.memory_bytes)
            .eviction_policy(EvictionPolicy::lru())
            .weigher(|_, span: &Arc<Span>| {
                weight(
                    span.bytes + span.batches.len() * size_of::<RecordBatch>() + size_of::<Span>(),
                )
            })
            .build();
        let indexes = Cache::builder()
            .max_capacity(config.index_bytes)
            .weigher(|_, index: &Arc<IndexBlock>| weight(128 + index.entries.len() * 32))
            .build();
        let kib = usize::try_from(config.bytes_in_flight_max / 1024).unwrap_or(usize::MAX);
        Self(Arc::new(Shared {
            requests: Arc::new(Semaphore::new(config.requests_in_flight_max.max(1))),
            bytes: Arc::new(Semaphore::new(kib.max(1))),
            waiting: Arc::new(Semaphore::new(config.waiting_max.max(1))),
            prefetches: Arc::new(Semaphore::new(config.prefetches_max)),
            prefetching: Mutex::default(),
            counters: Counters::default(),
            store,
            config,
            tasks,
            indexes,
            spans,
        }))
    }

    pub(super) fn stats(&self) -> ReaderStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.0.counters;
        ReaderStats {
            hits: get(&counters.hits),
            misses: get(&counters.misses),
            downloads: get(&counters.downloads),
            download_bytes: get(&counters.download_bytes),
            failures: get(&counters.failures),
            corrupt: get(&counters.corrupt),
            memory_bytes: self.0.spans.weighted_size(),
        }
    }

    /// The index block of a segment.
    pub(super) async fn index(&self, segment: &SegmentEntry) -> Result<Arc<IndexBlock>, ReadError> {
        let key = SegmentKey::of(segment);
        if let Some(found) = self.0.indexes.get(&key).await {
            return Ok(found);
        }
        let segment = segment.clone();
        self.merged(&self.0.indexes, key, move |this, gone| {
            let segment = segment.clone();
            async move { this.fetch_index(&segment, gone).await }
        })
        .await
    }

    /// The span that holds `run`, of any size, if it is in memory.
    pub(super) async fn cached(
        &self,
        segment: &SegmentEntry,
        index: &IndexBlock,
        run: usize,
    ) -> Option<Arc<Span>> {
        let found = self.find(segment, index, run).await;
        count(
            if found.is_some() {
                &self.0.counters.hits
            } else {
                &self.0.counters.misses
            },
            1,
        );
        found
    }

    /// Downloads the span of `level` that holds `run`, or a smaller one if that would reach back before `run`.
    pub(super) async fn load(
        &self,
        segment: &SegmentEntry,
        index: &Arc<IndexBlock>,
        run: usize,
        level: u8,
    ) -> Result<Arc<Span>, ReadError> {
        let (key, runs) = self.choose(segment, index, run, level);
        let (segment, index) = (segment.clone(), Arc::clone(index));
        self.merged(&self.0.spans, key, move |this, gone| {
            let (segment, index, runs) = (segment.clone(), Arc::clone(&index), runs.clone());
            async move { this.fetch_span(&segment, index, runs, gone).await }
        })
        .await
    }

    /// Begins the download of the span at `run` for whoever comes next; does nothing when it is there, under way, or
    /// when enough is loaded ahead already.
    pub(super) fn prefetch(
        &self,
        segment: &SegmentEntry,
        index: Option<Arc<IndexBlock>>,
        run: usize,
        level: u8,
    ) {
        let place = (SegmentKey::of(segment), run);
        let Ok(permit) = Arc::clone(&self.0.prefetches).try_acquire_owned() else {
            return;
        };
        if !self.0.prefetching.lock().insert(place) {
            return;
        }
        let guard = Prefetching {
            loader: self.clone(),
            place,
            _permit: permit,
        };
        let (this, segment) = (self.clone(), segment.clone());
        self.0.tasks.spawn("remote read ahead", async move {
            let _guard = guard;
            let index = match index {
                Some(index) => index,
                // Failures are the reader's to meet when it comes there.
                None => match this.index(&segment).await {
                    Ok(index) => index,
                    Err(_) => return,
                },
            };
            if this.find(&segment, &index, run).await.is_some() {
                return;
            }
            let (key, runs) = this.choose(&segment, &index, run, level);
            let fetch =
                this.fetch_span(&segment, Arc::clone(&index), runs, CancellationToken::new());
            drop(this.0.spans.try_get_with(key, fetch).await);
        });
    }

    fn choose(
        &self,
        segment: &SegmentEntry,
        index: &IndexBlock,
        run: usize,
        level: u8,
    ) -> (SpanKey, Range<usize>) {
        let (key, chunk) = (SegmentKey::of(segment), self.0.config.chunk_bytes);
        let level = aligned_level(key, index, chunk, level, run);
        span_of(key, index, chunk, level, run)
    }

    async fn find(
        &self,
        segment: &SegmentEntry,
        index: &IndexBlock,
        run: usize,
    ) -> Option<Arc<Span>> {
        for level in 0..=self.0.config.chunk_doublings_max {
            let (key, _) = span_of(
                SegmentKey::of(segment),
                index,
                self.0.config.chunk_bytes,
                level,
                run,
            );
            if let Some(found) = self.0.spans.get(&key).await {
                return Some(found);
            }
        }
        None
    }

    /// One download for all who ask for `key` at the same time. It runs in a task of its own: when the caller goes, a
    /// download that has begun goes on (field report A14), one that waits for its budget is given up.
    async fn merged<K, V, F, R>(
        &self,
        cache: &Cache<K, V>,
        key: K,
        fetch: F,
    ) -> Result<V, ReadError>
    where
        K: Copy + Eq + Hash + Send + Sync + 'static,
        V: Clone + Send + Sync + 'static,
        F: Fn(Loader, CancellationToken) -> R,
        R: Future<Output = Result<V, LoadError>> + Send + 'static,
    {
        let Ok(_waiting) = Arc::clone(&self.0.waiting).try_acquire_owned() else {
            return Err(ReadError::Overloaded);
        };
        loop {
            let gone = CancellationToken::new();
            let _tells = gone.clone().drop_guard();
            let (reply, answer) = oneshot::channel();
            let load = fetch(self.clone(), gone);
            let cache = cache.clone();
            self.0.tasks.spawn("remote read", async move {
                // Nobody listening any more is no failure: the value is in the cache.
                drop(reply.send(cache.try_get_with(key, load).await));
            });
            match answer.await {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(error)) => match error.as_ref() {
                    LoadError::Abandoned => {}
                    LoadError::Failed(error) => return Err(error.clone()),
                },
                Err(_) => return Err(ReadError::Stopped),
            }
        }
    }

    async fn fetch_index(
        self,
        segment: &SegmentEntry,
        gone: CancellationToken,
    ) -> Result<Arc<IndexBlock>, LoadError> {
        let start = segment.index_position.get();
        let range = start..start.saturating_add(u64::from(segment.index_length));
        // Runs are at least RUN_BYTES long: a longer block is not one, and is not worth its memory.
        let runs_max = segment.length / RUN_BYTES + 2;
        if u64::from(segment.index_length) > 52 + 28 * runs_max {
            return Err(LoadError::Failed(damaged(
                segment.object,
                range,
                "its index block is too long".to_owned(),
            )));
        }
        let (base, length) = (segment.base_offset, segment.length);
        let check = move |bytes: Bytes| {
            let index = IndexBlock::decode(&bytes).map_err(|error| error.to_string())?;
            if index.base_offset != base || index.data_length != length {
                return Err("its index block is that of another segment".to_owned());
            }
            Ok(Arc::new(index))
        };
        self.download(segment.object, range, gone, check).await
    }

    async fn fetch_span(
        &self,
        segment: &SegmentEntry,
        index: Arc<IndexBlock>,
        runs: Range<usize>,
        gone: CancellationToken,
    ) -> Result<Arc<Span>, LoadError> {
        let inside = bytes_of(&index, &runs);
        let start = segment.position.get();
        let range = start.saturating_add(inside.start)..start.saturating_add(inside.end);
        let end = segment.last_offset.plus(1);
        let check = move |bytes: Bytes| {
            let batches = check::check_runs(&bytes, &index, runs.clone(), end)?;
            Ok(Arc::new(Span {
                runs: runs.clone(),
                batches,
                bytes: bytes.len(),
            }))
        };
        self.download(segment.object, range, gone, check).await
    }

    /// Downloads and checks a range; when it is damaged, once more: the damage may be the wire's.
    async fn download<T, C>(
        &self,
        object: ObjectId,
        range: Range<u64>,
        gone: CancellationToken,
        check: C,
    ) -> Result<T, LoadError>
    where
        T: Send + 'static,
        C: Fn(Bytes) -> Result<T, String> + Clone + Send + 'static,
    {
        let _budget = tokio::select! {
            biased;
            budget = self.budget(range.end.saturating_sub(range.start)) => budget?,
            () = gone.cancelled() => return Err(LoadError::Abandoned),
        };
        let key = key::data(&object);
        let mut reason = String::new();
        for _ in 0..2 {
            count(&self.0.counters.downloads, 1);
            let bytes = match self.0.store.get_range(&key, range.clone()).await {
                Ok(bytes) => bytes,
                Err(StoreError::Corrupt { reason: found, .. }) => {
                    reason = found;
                    break;
                }
                Err(error) => {
                    count(&self.0.counters.failures, 1);
                    return Err(LoadError::Failed(error.into()));
                }
            };
            count(&self.0.counters.download_bytes, range.end - range.start);
            match checked(bytes, check.clone()).await? {
                Ok(value) => return Ok(value),
                Err(found) => {
                    count(&self.0.counters.corrupt, 1);
                    tracing::warn!(%key, start = range.start, end = range.end, "damaged bytes from the store: {found}");
                    reason = found;
                }
            }
        }
        count(&self.0.counters.failures, 1);
        Err(LoadError::Failed(damaged(object, range, reason)))
    }

    /// A place for one request of `length` bytes. More than the whole budget waits for all of it.
    async fn budget(
        &self,
        length: u64,
    ) -> Result<(OwnedSemaphorePermit, OwnedSemaphorePermit), LoadError> {
        let kib = (self.0.config.bytes_in_flight_max / 1024).max(1);
        let kib = u32::try_from(length.div_ceil(1024))
            .unwrap_or(u32::MAX)
            .clamp(1, kib);
        let stopped = |_| LoadError::Failed(ReadError::Stopped);
        let request = Arc::clone(&self.0.requests)
            .acquire_owned()
            .await
            .map_err(stopped)?;
        let bytes = Arc::clone(&self.0.bytes)
            .acquire_many_owned(kib)
            .await
            .map_err(stopped)?;
        Ok((request, bytes))
    }
}

/// Runs `check`, on a blocking thread when it would hold up the tasks beside it.
async fn checked<T, C>(bytes: Bytes, check: C) -> Result<Result<T, String>, LoadError>
where
    T: Send + 'static,
    C: Fn(Bytes) -> Result<T, String> + Send + 'static,
{
    if bytes.len() <= CHECK_INLINE_BYTES_MAX {
        return Ok(check(bytes));
    }
    tidelog_env::blocking(move || check(bytes))
        .await
        .map_err(|_| LoadError::Failed(ReadError::Stopped))
}

fn damaged(object: ObjectId, range: Range<u64>, reason: String) -> ReadError {
    ReadError::Corrupt {
        object: key::data(&object),
        range,
        reason,
    }
}

/// A download ahead, until it ends one way or another.
struct Prefetching {
    loader: Loader,
    place: (SegmentKey, usize),
    _permit: OwnedSemaphorePermit,
}

impl Drop for Prefetching {
    fn drop(&mut self) {
        self.loader.0.prefetching.lock().remove(&self.place);
    }
}

#[cfg(test)]
impl Loader {
    /// No download ahead is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.0.prefetching.lock().is_empty()
    }

    /// Waits until the caches have counted what they hold.
    pub(super) async fn settle(&self) {
        self.0.spans.run_pending_tasks().await;
    }
}
