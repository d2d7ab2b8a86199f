//! Upload: writes the untiered records of a cut into objects.
//!
//! Owns: grouping partitions into objects, and the bound on memory while doing so (one object at a time).
//! Not here: the object format (`tidelog_tiering::format`), retries of store calls (`tidelog_tiering::store`).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::error::OffloadError;
use crate::datagroup::DataGroup;
use crate::partition::{Frozen, IndexEntry, PartitionState, records_left};
use tidelog_env::{Clock, CrashPoint, Mutant, Random, crash_point, mutant};
use tidelog_model::{LogId, Offset, PartitionId};
use tidelog_tiering::format::ObjectBuilder;
use tidelog_tiering::key;
use tidelog_tiering::manifest::{ObjectId, SegmentEntry};
use tidelog_tiering::store::TierStore;
use tokio::time::Instant;

/// Bytes of batches in one object at most; also what an upload holds in memory.
const OBJECT_BYTES_MAX: u64 = 32 << 20;
/// Uploads that keep to a rate go faster the more waits: what lies behind is to be gone within this time, so the lag
/// cannot grow for ever.
const DRAIN_SECONDS: u64 = 60;
/// A partition with this many bytes in a cut gets objects of its own: readers of it then read nothing else.
const OWN_OBJECT_BYTES_MIN: u64 = 16 << 20;
/// Bytes read from the hot tail at once.
const READ_BYTES: u64 = 4 << 20;

/// What an upload needs besides the group.
pub(super) struct Uploader<'a> {
    pub(super) group: &'a DataGroup,
    pub(super) store: &'a TierStore,
    pub(super) clock: &'a dyn Clock,
    pub(super) random: &'a dyn Random,
    /// Flushes that wait: while there are any, no pauses (else appends and tail reads go first, R18).
    pub(super) flushes: &'a AtomicUsize,
    /// See [`super::OffloadConfig::upload_bytes_per_second`].
    pub(super) bytes_per_second: Option<u64>,
}

struct Open {
    builder: ObjectBuilder,
    id: ObjectId,
    bytes: u64,
    begun: Instant,
}

impl Uploader<'_> {
    /// Writes everything between tiered-until and the cut, and returns the segments. Nothing refers to them until the
    /// caller's `Uploaded` command is committed; a crash before that leaves orphans.
    ///
    /// # Errors
    /// [`OffloadError`]; objects already written are orphans then.
    pub(super) async fn upload(
        &self,
        frozen: &Frozen,
    ) -> Result<Vec<(PartitionId, SegmentEntry)>, OffloadError> {
        let mut segments = Vec::new();
        let mut shared: Option<Open> = None;
        for state in frozen
            .partitions
            .values()
            .filter(|state| state.tiered_until < state.next_offset)
        {
            if self.untiered_bytes(state, frozen.at) >= OWN_OBJECT_BYTES_MIN {
                let mut own = None;
                self.write(state, frozen.at, &mut own, &mut segments)
                    .await?;
                self.close(&mut own, &mut segments).await?;
            } else {
                self.write(state, frozen.at, &mut shared, &mut segments)
                    .await?;
            }
        }
        self.close(&mut shared, &mut segments).await?;
        segments.sort_by_key(|(partition, segment)| (*partition, segment.base_offset));
        Ok(segments)
    }

    fn untiered_bytes(&self, frozen: &PartitionState, cut: LogId) -> u64 {
        let entries = self.entries(frozen, cut, frozen.tiered_until, u64::MAX);
        entries
            .iter()
            .map(|entry| u64::from(entry.extent.length))
            .sum()
    }

    fn entries(
        &self,
        frozen: &PartitionState,
        cut: LogId,
        from: Offset,
        bytes_max: u64,
    ) -> Vec<IndexEntry> {
        self.group.group().read(|machine| {
            let live = machine.partitions().get(frozen.id);
            let mut entries = live.map_or_else(Vec::new, |live| {
                live.hot.read(from, frozen.next_offset, bytes_max)
            });
            entries.retain(|entry| entry.extent.index <= cut.index);
            entries
        })
    }

    async fn write(
        &self,
        frozen: &PartitionState,
        cut: LogId,
        open: &mut Option<Open>,
        segments: &mut Vec<(PartitionId, SegmentEntry)>,
    ) -> Result<(), OffloadError> {
        let mut from = frozen.tiered_until;
        let end = frozen.next_offset.plus(-records_left());
        let mut segment_open = false;
        while from < end {
            let hole = OffloadError::Hole {
                partition: frozen.id,
                from,
            };
            let entries = self.entries(frozen, cut, from, READ_BYTES);
            if entries.first().is_none_or(|entry| entry.base_offset > from) {
                return Err(hole);
            }
            let batches = self.group.hot().read_owned(&entries).await?;
            for (entry, batch) in entries.iter().zip(batches) {
                let length = u64::from(entry.extent.length);
                if open
                    .as_ref()
                    .is_some_and(|open| open.bytes > 0 && open.bytes + length > OBJECT_BYTES_MAX)
                {
                    self.close(open, segments).await?;
                    segment_open = false;
                }
                let target = open.get_or_insert_with(|| self.open(cut));
                if !segment_open {
                    target
                        .builder
                        .begin_segment(frozen.id)
                        .map_err(|error| OffloadError::Build(error.to_string()))?;
                    segment_open = true;
                }
                if let Err(error) = target.builder.push_batch(batch, entry.stamp) {
                    // Damage on the disk is the log's to tell.
                    self.group.hot().check(entry.extent.index).await?;
                    return Err(OffloadError::Build(error.to_string()));
                }
                target.bytes += length;
                from = entry.end();
            }
        }
        Ok(())
    }

    fn open(&self, cut: LogId) -> Open {
        let term = self.group.group().leadership().borrow().term.max(cut.term);
        let mut id = ObjectId {
            group: self.group.id(),
            term,
            id: self.random.uuid_at(self.clock.now_ms()),
        };
        if mutant(Mutant::ObjectNameReused) {
            id.term = cut.term;
            id.id = uuid::Uuid::from_u128(u128::from(cut.index.get()));
        }
        Open {
            builder: ObjectBuilder::new(id),
            id,
            bytes: 0,
            begun: Instant::now(),
        }
    }

    async fn close(
        &self,
        open: &mut Option<Open>,
        segments: &mut Vec<(PartitionId, SegmentEntry)>,
    ) -> Result<(), OffloadError> {
        let Some(open) = open.take() else {
            return Ok(());
        };
        let built = open
            .builder
            .finish()
            .map_err(|error| OffloadError::Build(error.to_string()))?;
        self.store
            .put_object(&key::data(&open.id), built.chunks)
            .await?;
        crash_point(CrashPoint::UploadObjectPut);
        segments.extend(built.segments);
        if let Some(rate) = self.bytes_per_second
            && self.flushes.load(Ordering::Relaxed) == 0
        {
            let lag = self
                .group
                .group()
                .read(|machine| machine.partitions().untiered_bytes());
            tokio::time::sleep_until(open.begun + pace(open.bytes, lag, rate)).await;
        }
        Ok(())
    }
}

/// How long an object of `bytes` should take while `lag` bytes wait.
fn pace(bytes: u64, lag: u64, rate: u64) -> Duration {
    let rate = rate.saturating_add(lag / DRAIN_SECONDS).max(1);
    Duration::from_millis(bytes.saturating_mul(1000) / rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that a small lag is moved at the base rate and that a large one is moved within the drain time.
    #[test]
    fn pace_follows_the_lag() {
        let rate = 64 << 20;
        assert_eq!(pace(rate, 0, rate), Duration::from_millis(1_000));
        let lag = 60 * rate;
        assert_eq!(pace(rate, lag, rate), Duration::from_millis(500));
        assert!(pace(lag, lag, rate) <= Duration::from_secs(DRAIN_SECONDS));
        assert!(pace(1, 0, 0) <= Duration::from_secs(1));
    }
}
