//! The first offset with a timestamp at or after a given one.

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
    let search = move || {
        for record in batch.records()? {
            let record = record?;
            let found = (
                record.offset(batch.header()),
                record.timestamp(batch.header()),
            );
            if found.0 >= from && found.1 >= at {
                return Ok(Some(found));
            }
        }
        Ok(None)
    };
    tokio::task::spawn_blocking(search)
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
