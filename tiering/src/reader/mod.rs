//! Reads segments back: a cache of checked batches in memory over ranged reads of the store.
//!
//! Owns: [`RemoteReader`]: which batches answer a read, sequential readers and their prefetch.
//! Not here: which segment holds an offset (the group state's list), what a client's wait is (the caller drops the
//! future; a download that has begun goes on into the cache).
//! Spec: docs/formats/segment-object.md

pub(crate) mod check;
mod config;
mod directory;
mod load;
mod plan;
mod streams;
mod timestamp;

pub use config::{ReadError, ReaderConfig, ReaderStats};
pub use directory::read_directory;

use crate::format::IndexBlock;
use crate::format::codec::wide;
use crate::manifest::SegmentEntry;
use crate::store::TierStore;
use load::{Loader, Span};
use plan::SegmentKey;
use std::sync::Arc;
use streams::Streams;
use tidelog_env::{Mutant, Tasks, mutant};
use tidelog_model::Offset;
use tidelog_model::batch::{HEADER_BYTES, RecordBatch};

/// The cached reader of a node. Clones share caches and budgets.
#[derive(Clone)]
pub struct RemoteReader(Arc<Inner>);

struct Inner {
    loader: Loader,
    streams: Streams,
}

impl RemoteReader {
    /// A reader with empty caches. Its downloads run in `tasks` and end with them.
    #[must_use]
    pub fn new(store: TierStore, config: ReaderConfig, tasks: Tasks) -> Self {
        Self(Arc::new(Inner {
            streams: Streams::new(&config),
            loader: Loader::new(store, config, tasks),
        }))
    }

    /// Whole batches of one segment, from the one that holds `from` on: as many as fit `bytes_max`, and the first one
    /// whatever its size if `first_batch_always`. Every byte was checked (I8). The batches are shared with the cache.
    ///
    /// Dropping the future stops the read; a download that has begun ends in the cache, where the next read finds it.
    ///
    /// # Errors
    /// [`ReadError`]; nothing damaged is ever returned.
    pub async fn read(
        &self,
        segment: &SegmentEntry,
        from: Offset,
        bytes_max: usize,
        first_batch_always: bool,
    ) -> Result<Vec<RecordBatch>, ReadError> {
        self.read_list(
            std::slice::from_ref(segment),
            from,
            bytes_max,
            first_batch_always,
        )
        .await
    }

    /// [`RemoteReader::read`] over neighbouring segments of one partition, in offset order: goes on from one into the
    /// next, and while `bytes_max` is used up looks ahead into the next one too. `from` lies in the first.
    ///
    /// An error in a later segment ends the answer with what came before it.
    ///
    /// # Errors
    /// [`ReadError`] of the first segment.
    pub async fn read_list(
        &self,
        segments: &[SegmentEntry],
        from: Offset,
        bytes_max: usize,
        first_batch_always: bool,
    ) -> Result<Vec<RecordBatch>, ReadError> {
        let mut answer = Answer {
            batches: Vec::new(),
            left: bytes_max,
            bytes_max,
            first_batch_always,
        };
        let mut at = from;
        let more = |first: &SegmentEntry| from < first.last_offset;
        if mutant(Mutant::RemoteRangeOffByOne) && segments.first().is_some_and(more) {
            at = from.plus(1);
        }
        for (number, segment) in segments.iter().enumerate() {
            let rest = segments.get(number + 1..).unwrap_or_default();
            match self
                .read_segment(segment, rest.first(), at, &mut answer)
                .await
            {
                Ok(true) if !answer.is_full() => at = segment.last_offset.plus(1),
                Ok(_) => break,
                Err(_) if mutant(Mutant::UnreadableSegmentSkipped) => {
                    at = segment.last_offset.plus(1);
                }
                Err(error) if answer.batches.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(answer.batches)
    }

    /// What the caches did so far.
    #[must_use]
    pub fn stats(&self) -> ReaderStats {
        self.0.loader.stats()
    }

    /// Adds a segment's batches from `from` on. True when the segment is used up.
    async fn read_segment(
        &self,
        segment: &SegmentEntry,
        next: Option<&SegmentEntry>,
        from: Offset,
        answer: &mut Answer,
    ) -> Result<bool, ReadError> {
        if from < segment.base_offset || from > segment.last_offset {
            return Err(ReadError::OutsideSegment { offset: from });
        }
        let key = SegmentKey::of(segment);
        let (loader, streams) = (&self.0.loader, &self.0.streams);
        let index = loader.index(segment).await?;
        let mut at = from;
        let mut level = streams.level(key, at).await;
        let ended = loop {
            let run = plan::run_of(&index, at);
            let span = match loader.cached(segment, &index, run).await {
                Some(span) => span,
                None if answer.is_ample() => {
                    loader.prefetch(segment, Some(Arc::clone(&index)), run, level);
                    break false;
                }
                None => loader.load(segment, &index, run, level).await?,
            };
            let taken = answer.take(&span, &mut at);
            if taken == Taken::All {
                level = streams.grow(level);
            }
            let ended = at > segment.last_offset;
            if taken == Taken::Part || ended {
                self.look_ahead(segment, &index, &span, next, level);
                break ended;
            }
        };
        match (ended, next) {
            (false, _) => streams.arrived((key, from), (key, at), level).await,
            (true, Some(next)) => {
                streams
                    .arrived((key, from), (SegmentKey::of(next), at), level)
                    .await
            }
            (true, None) => streams.left((key, from)).await,
        }
        Ok(ended)
    }

    /// Starts the download of what follows `span` for a sequential reader, into the next segment if there it is.
    fn look_ahead(
        &self,
        segment: &SegmentEntry,
        index: &Arc<IndexBlock>,
        span: &Span,
        next: Option<&SegmentEntry>,
        level: u8,
    ) {
        if level == 0 {
            return;
        }
        if span.runs.end < index.entries.len() {
            self.0
                .loader
                .prefetch(segment, Some(Arc::clone(index)), span.runs.end, level);
        } else if let Some(next) = next {
            self.0.loader.prefetch(next, None, 0, level);
        }
    }
}

/// What a read has collected.
struct Answer {
    batches: Vec<RecordBatch>,
    left: usize,
    bytes_max: usize,
    first_batch_always: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// The span's last batch is in the answer.
    All,
    /// A batch did not fit.
    Part,
}

impl Answer {
    /// Half of what was asked for is there: more is taken if it is in memory, but not waited for.
    fn is_ample(&self) -> bool {
        !self.batches.is_empty() && self.left <= self.bytes_max / 2
    }

    /// No batch fits any more.
    fn is_full(&self) -> bool {
        !self.batches.is_empty() && self.left < HEADER_BYTES
    }

    /// Takes the span's batches from the one that holds `at` on, as far as they fit; moves `at` behind them.
    fn take(&mut self, span: &Span, at: &mut Offset) -> Taken {
        let first = span
            .batches
            .partition_point(|batch| batch.header().last_offset() < *at);
        for batch in span.batches.get(first..).unwrap_or_default() {
            let length = batch.bytes().len();
            let forced = self.first_batch_always && self.batches.is_empty();
            if length > self.left && !forced {
                return Taken::Part;
            }
            self.left = self.left.saturating_sub(length);
            *at = batch.header().next_offset();
            self.batches.push(batch.clone());
        }
        Taken::All
    }
}

/// The weight of something in a cache: moka counts in 32 bits.
fn weight(bytes: usize) -> u32 {
    u32::try_from(wide(bytes)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
