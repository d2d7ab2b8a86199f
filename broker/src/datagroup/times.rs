//! Lookup by timestamp over both tiers.
//!
//! Owns: "first offset whose timestamp is at least x" and "offset of the largest timestamp" of one partition.
//! Not here: the lookup inside one segment (`tidelog_tiering::reader`), the answer's encoding (`api`).
//! Field reports A10, A11, A12: the answer is exact inside batches, never below log start, and costs no read when
//! nothing can match.

use super::handle::DataGroup;
use super::read::{FetchError, PLANS_MAX};
use crate::partition::{IndexEntry, PartitionState, ServedBatch};
use tidelog_model::batch::{BatchError, RecordBatch};
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
            let found = decoded(batch, move |batch| batch.find_timestamp(from, timestamp)).await?;
            if let Some((offset, timestamp)) = found {
                return Ok(Some(TimeLookup { offset, timestamp }));
            }
            from = entry.end();
        }
        Ok(None)
    }

    /// The first record with the largest timestamp of those that can be read (ListOffsets -3, KIP-734), or `None` if the
    /// partition is empty.
    ///
    /// # Errors
    /// [`FetchError`].
    pub async fn find_max_timestamp(
        &self,
        partition: PartitionId,
    ) -> Result<Option<TimeLookup>, FetchError> {
        for _ in 0..PLANS_MAX {
            let largest = match self.largest_once(partition).await {
                Err(FetchError::Moved) => continue,
                largest => largest?,
            };
            let Some(timestamp) = largest else {
                return Ok(None);
            };
            // None: its record went below log start since.
            if let Some(found) = self.find_timestamp(partition, timestamp).await? {
                return Ok(Some(found));
            }
        }
        Err(FetchError::Moved)
    }

    /// The largest timestamp at or after log start.
    async fn largest_once(
        &self,
        partition: PartitionId,
    ) -> Result<Option<TimestampMs>, FetchError> {
        let largest = self.group().read(|machine| {
            machine
                .partitions()
                .get(partition)
                .map(largest)
                .ok_or(FetchError::UnknownPartition)
        })?;
        let inside = match largest.edge {
            Some(edge) if largest.whole.is_none_or(|whole| edge.bound() > whole) => {
                self.max_inside(edge, largest.log_start).await?
            }
            _ => None,
        };
        Ok(largest.whole.max(inside))
    }

    async fn max_inside(
        &self,
        edge: Edge,
        log_start: Offset,
    ) -> Result<Option<TimestampMs>, FetchError> {
        match edge {
            Edge::Cold(segment) => Ok(self
                .remote()
                .max_timestamp_from(&segment, log_start)
                .await?),
            Edge::Hot(entry) => {
                let served = self.hot().read(&[entry]).await?;
                let batch = served.first().ok_or(FetchError::Moved)?;
                decoded(batch, move |batch| batch.max_timestamp_from(log_start)).await
            }
        }
    }
}

/// What log start lies inside of: its largest timestamp may belong to a record that is gone.
enum Edge {
    Hot(IndexEntry),
    Cold(Box<SegmentEntry>),
}

impl Edge {
    fn bound(&self) -> TimestampMs {
        match self {
            Self::Hot(entry) => entry.max_timestamp,
            Self::Cold(segment) => segment.max_timestamp,
        }
    }
}

struct Largest {
    log_start: Offset,
    /// The largest timestamp of what lies above log start as a whole.
    whole: Option<TimestampMs>,
    edge: Option<Edge>,
}

fn largest(state: &PartitionState) -> Largest {
    let log_start = state.log_start;
    let hot_start = state.hot.start().unwrap_or(state.next_offset);
    let mut largest = Largest {
        log_start,
        whole: None,
        edge: None,
    };
    for entry in state.hot.iter().filter(|entry| entry.end() > log_start) {
        if entry.base_offset < log_start {
            largest.edge = Some(Edge::Hot(*entry));
        } else {
            largest.whole = largest.whole.max(Some(entry.max_timestamp));
        }
    }
    if log_start >= hot_start {
        return largest;
    }
    for segment in state
        .segments
        .iter()
        .filter(|segment| segment.base_offset < hot_start && segment.last_offset >= log_start)
    {
        if segment.base_offset < log_start {
            largest.edge = Some(Edge::Cold(Box::new(segment.clone())));
        } else {
            largest.whole = largest.whole.max(Some(segment.max_timestamp));
        }
    }
    largest
}

/// Looks into the records of a batch. Decompression takes milliseconds: not on the tasks' threads.
async fn decoded<T: Send + 'static>(
    batch: &ServedBatch,
    look: impl FnOnce(&RecordBatch) -> Result<T, BatchError> + Send + 'static,
) -> Result<T, FetchError> {
    let base_offset = batch.entry.base_offset;
    let bytes = batch.to_bytes();
    tidelog_env::blocking(move || RecordBatch::parse(bytes).and_then(|batch| look(&batch)))
        .await
        .map_err(|_| FetchError::Stopped)?
        .map_err(|reason| FetchError::Damaged {
            base_offset,
            reason,
        })
}
