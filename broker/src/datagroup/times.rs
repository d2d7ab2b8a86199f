//! Lookup by timestamp over both tiers.
//!
//! Owns: "first offset whose timestamp is at least x" and "offset of the largest timestamp" of one partition.
//! Not here: the lookup inside one segment (`tidelog_tiering::reader`), the answer's encoding (`api`).
//! Field reports A10, A11, A12: the answer is exact inside batches, never below log start, and costs no read when
//! nothing can match.

use super::handle::DataGroup;
use super::read::{FetchError, PLANS_MAX};
use crate::partition::PartitionState;
use tidelog_model::batch::RecordBatch;
use tidelog_model::{Offset, PartitionId, TimestampMs};
use tidelog_tiering::manifest::SegmentEntry;

/// A record found by its timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLookup {
    /// Its offset.
    pub offset: Offset,
    /// Its timestamp.
    pub timestamp: TimestampMs,
}

struct Places {
    log_start: Offset,
    hot_start: Offset,
    high_watermark: Offset,
    segments: Vec<SegmentEntry>,
}

/// The places that may hold a record with a timestamp of at least `timestamp`; the hot tail is preferred where both
/// tiers hold an offset.
fn places(state: &PartitionState, timestamp: TimestampMs) -> Places {
    let hot_start = state.hot.start().unwrap_or(state.next_offset);
    let segments = state
        .segments
        .iter()
        .filter(|segment| segment.base_offset < hot_start && segment.max_timestamp >= timestamp)
        .cloned()
        .collect();
    Places {
        log_start: state.log_start,
        hot_start,
        high_watermark: state.next_offset,
        segments,
    }
}

impl DataGroup {
    /// The first record at or after log start whose timestamp is at least `timestamp`.
    ///
    /// # Errors
    /// [`FetchError`].
    pub async fn find_timestamp(
        &self,
        partition: PartitionId,
        timestamp: TimestampMs,
    ) -> Result<Option<TimeLookup>, FetchError> {
        for _ in 0..PLANS_MAX {
            match self.find_once(partition, timestamp).await {
                Err(FetchError::Moved) => {}
                found => return found,
            }
        }
        Err(FetchError::Moved)
    }

    /// One look over both tiers. [`FetchError::Moved`] when the tail was trimmed meanwhile: what was hot is in the store
    /// now, and a search that went on would pass over it.
    async fn find_once(
        &self,
        partition: PartitionId,
        timestamp: TimestampMs,
    ) -> Result<Option<TimeLookup>, FetchError> {
        let places = self.group().read(|machine| {
            machine
                .partitions()
                .get(partition)
                .map(|state| places(state, timestamp))
                .ok_or(FetchError::UnknownPartition)
        })?;
        for segment in &places.segments {
            let from = places.log_start.max(segment.base_offset);
            if let Some((offset, found)) = self
                .remote()
                .find_timestamp_from(segment, timestamp, from)
                .await?
                && offset < places.hot_start
            {
                return Ok(Some(TimeLookup {
                    offset,
                    timestamp: found,
                }));
            }
        }
        let mut from = places.log_start.max(places.hot_start);
        while from < places.high_watermark {
            let candidate = self.group().read(|machine| {
                let state = machine
                    .partitions()
                    .get(partition)
                    .ok_or(FetchError::UnknownPartition)?;
                match state.hot.start() {
                    Some(start) if start <= from => Ok(state.hot.find_timestamp(from, timestamp)),
                    _ => Err(FetchError::Moved),
                }
            })?;
            let Some(entry) = candidate else {
                return Ok(None);
            };
            let served = self.hot().read(&[entry]).await?;
            let Some(batch) = served.first() else {
                return Err(FetchError::Moved);
            };
            if let Some(found) = first_in_batch(batch.to_bytes(), from, timestamp) {
                return Ok(Some(found));
            }
            from = entry.end();
        }
        Ok(None)
    }

    /// The first record with the largest timestamp (ListOffsets -3, KIP-734), or `None` if the partition is empty.
    ///
    /// # Errors
    /// [`FetchError`].
    pub async fn find_max_timestamp(
        &self,
        partition: PartitionId,
    ) -> Result<Option<TimeLookup>, FetchError> {
        let largest = self.group().read(|machine| {
            machine
                .partitions()
                .get(partition)
                .map(largest_timestamp)
                .ok_or(FetchError::UnknownPartition)
        })?;
        match largest {
            Some(timestamp) => self.find_timestamp(partition, timestamp).await,
            None => Ok(None),
        }
    }
}

fn largest_timestamp(state: &PartitionState) -> Option<TimestampMs> {
    let cold = state.segments.iter().map(|segment| segment.max_timestamp);
    let hot = state
        .hot
        .iter()
        .filter(|entry| entry.end() > state.log_start)
        .map(|entry| entry.max_timestamp);
    cold.chain(hot).max()
}

/// The first record of a batch at or after `from` with a timestamp of at least `timestamp`.
fn first_in_batch(bytes: bytes::Bytes, from: Offset, timestamp: TimestampMs) -> Option<TimeLookup> {
    let batch = RecordBatch::parse(bytes).ok()?;
    for record in batch.records().ok()? {
        let record = record.ok()?;
        let (offset, at) = (
            record.offset(batch.header()),
            record.timestamp(batch.header()),
        );
        if offset >= from && at >= timestamp {
            return Some(TimeLookup {
                offset,
                timestamp: at,
            });
        }
    }
    None
}
