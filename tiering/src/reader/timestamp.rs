//! Timestamps of one segment: the first offset at or after one, and the largest from an offset on.

use super::config::ReadError;
use super::{RemoteReader, plan};
use crate::key;
use crate::manifest::SegmentEntry;
use tidelog_model::batch::{BatchError, RecordBatch};
use tidelog_model::{Offset, TimestampMs};

impl RemoteReader {
    /// The first record of the segment with a timestamp of at least `at`: its offset inside the batch, and its
    /// timestamp. `None` when there is none; decided without a request when the segment's maximum says so.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn find_timestamp(
        &self,
        segment: &SegmentEntry,
        at: TimestampMs,
    ) -> Result<Option<(Offset, TimestampMs)>, ReadError> {
        self.find_timestamp_from(segment, at, segment.base_offset)
            .await
    }

    /// [`RemoteReader::find_timestamp`] among the records from `from` on: nothing below the log start is found, also
    /// when that lies inside a batch (field report A12).
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn find_timestamp_from(
        &self,
        segment: &SegmentEntry,
        at: TimestampMs,
        from: Offset,
    ) -> Result<Option<(Offset, TimestampMs)>, ReadError> {
        if segment.max_timestamp < at || segment.last_offset < from {
            return Ok(None);
        }
        let index = self.0.loader.index(segment).await?;
        let first = plan::run_of(&index, from);
        for (number, run) in index.entries.iter().enumerate().skip(first) {
            if run.max_timestamp < at {
                continue;
            }
            let span = match self.0.loader.cached(segment, &index, number).await {
                Some(span) => span,
                None => self.0.loader.load(segment, &index, number, 0).await?,
            };
            let end = index
                .entries
                .get(number + 1)
                .map_or(segment.last_offset.plus(1), |next| next.offset);
            let inside = |batch: &&RecordBatch| {
                let header = batch.header();
                run.offset <= header.base_offset
                    && header.base_offset < end
                    && header.max_timestamp >= at
            };
            for batch in span.batches.iter().filter(inside) {
                // A header may claim a maximum that no record has: then the search goes on behind it.
                if let Some(found) = search(batch.clone(), at, from)
                    .await
                    .map_err(|error| damaged(segment, &error))?
                {
                    return Ok(Some(found));
                }
            }
        }
        Ok(None)
    }

    /// The largest timestamp among the records from `from` on; `None` when the segment has none. Exact also when `from` lies
    /// inside a batch whose own largest timestamp is below it. Decided without a request when the whole segment counts.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn max_timestamp_from(
        &self,
        segment: &SegmentEntry,
        from: Offset,
    ) -> Result<Option<TimestampMs>, ReadError> {
        if segment.last_offset < from {
            return Ok(None);
        }
        if segment.base_offset >= from {
            return Ok(Some(segment.max_timestamp));
        }
        let index = self.0.loader.index(segment).await?;
        let first = plan::run_of(&index, from);
        let mut largest = index
            .entries
            .iter()
            .skip(first + 1)
            .map(|run| run.max_timestamp)
            .max();
        let Some(run) = index.entries.get(first) else {
            return Ok(largest);
        };
        // Its bound covers records below `from` too: read it only if it could be the answer.
        if largest.is_none_or(|largest| run.max_timestamp > largest) {
            let span = match self.0.loader.cached(segment, &index, first).await {
                Some(span) => span,
                None => self.0.loader.load(segment, &index, first, 0).await?,
            };
            let end = index
                .entries
                .get(first + 1)
                .map_or(segment.last_offset.plus(1), |next| next.offset);
            for batch in &span.batches {
                let header = batch.header();
                if header.last_offset() < from || header.base_offset >= end {
                    continue;
                }
                let found = if header.base_offset >= from {
                    Some(header.max_timestamp)
                } else {
                    max_inside(batch.clone(), from)
                        .await
                        .map_err(|error| damaged(segment, &error))?
                };
                largest = largest.max(found);
            }
        }
        Ok(largest)
    }
}

async fn max_inside(
    batch: RecordBatch,
    from: Offset,
) -> Result<Option<TimestampMs>, Option<BatchError>> {
    let largest = move || batch.max_timestamp_from(from);
    tidelog_env::blocking(largest)
        .await
        .map_err(|_| None)?
        .map_err(Some)
}

/// Decompression takes milliseconds: not on the tasks' threads.
async fn search(
    batch: RecordBatch,
    at: TimestampMs,
    from: Offset,
) -> Result<Option<(Offset, TimestampMs)>, Option<BatchError>> {
    if batch.header().last_offset() < from {
        return Ok(None);
    }
    let search = move || batch.find_timestamp(from, at);
    tidelog_env::blocking(search)
        .await
        .map_err(|_| None)?
        .map_err(Some)
}

fn damaged(segment: &SegmentEntry, error: &Option<BatchError>) -> ReadError {
    let Some(error) = error else {
        return ReadError::Stopped;
    };
    let start = segment.position.get();
    ReadError::Corrupt {
        object: key::data(&segment.object),
        range: start..start.saturating_add(segment.length),
        reason: error.to_string(),
    }
}
