//! Which bytes a read loads: pure arithmetic over an index block.
//!
//! A **span** is what one download brings and one cache entry holds: whole runs, so whole batches; a batch never
//! straddles two entries and is never copied. The span (level, number) of a segment holds the runs that begin in
//! [number, number + 1) x (chunk << level). Equal reads so name equal spans, and two levels never overlap in part.

use crate::format::IndexBlock;
use crate::manifest::{ObjectId, SegmentEntry};
use std::ops::Range;
use tidelog_model::Offset;

/// A segment, as the caches name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SegmentKey {
    pub(super) object: ObjectId,
    pub(super) position: u64,
}

impl SegmentKey {
    pub(super) fn of(segment: &SegmentEntry) -> Self {
        Self {
            object: segment.object,
            position: segment.position.get(),
        }
    }
}

/// A span of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SpanKey {
    pub(super) segment: SegmentKey,
    pub(super) level: u8,
    pub(super) number: u64,
}

/// The run that holds `offset` (which lies in the segment).
pub(super) fn run_of(index: &IndexBlock, offset: Offset) -> usize {
    index
        .entries
        .partition_point(|run| run.offset <= offset)
        .saturating_sub(1)
}

/// The span of `level` that holds `run`, and its runs.
pub(super) fn span_of(
    segment: SegmentKey,
    index: &IndexBlock,
    chunk: u64,
    level: u8,
    run: usize,
) -> (SpanKey, Range<usize>) {
    let size = chunk
        .max(1)
        .saturating_mul(1u64.checked_shl(u32::from(level)).unwrap_or(u64::MAX));
    let position = index.entries.get(run).map_or(0, |run| run.position.get());
    let number = position / size;
    let start = index
        .entries
        .partition_point(|run| run.position.get() / size < number);
    let end = index
        .entries
        .partition_point(|run| run.position.get() / size <= number);
    (
        SpanKey {
            segment,
            level,
            number,
        },
        start..end,
    )
}

/// The largest level up to `wanted` whose span begins with `run`, so that nothing before it is loaded again.
pub(super) fn aligned_level(
    segment: SegmentKey,
    index: &IndexBlock,
    chunk: u64,
    wanted: u8,
    run: usize,
) -> u8 {
    (1..=wanted)
        .rev()
        .find(|level| span_of(segment, index, chunk, *level, run).1.start == run)
        .unwrap_or(0)
}

/// The bytes of `runs`, from the start of the segment.
pub(super) fn bytes_of(index: &IndexBlock, runs: &Range<usize>) -> Range<u64> {
    let at = |run: usize| {
        index
            .entries
            .get(run)
            .map_or(index.data_length, |run| run.position.get())
    };
    at(runs.start)..at(runs.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::IndexEntry;
    use proptest::prelude::*;
    use tidelog_model::{
        BytePosition, PartitionId, PartitionIndex, PlacementGroupId, Term, TimestampMs, TopicId,
    };
    use uuid::Uuid;

    fn index(run_lengths: &[u64]) -> IndexBlock {
        let mut entries = Vec::new();
        let mut position = 0;
        for (offset, length) in (0..).zip(run_lengths) {
            entries.push(IndexEntry {
                offset: Offset::new(offset * 10),
                position: BytePosition::new(position),
                max_timestamp: TimestampMs::new(0),
                crc: 0,
            });
            position += length;
        }
        let partition = PartitionId {
            topic: TopicId::new(Uuid::nil()),
            index: PartitionIndex::new(0),
        };
        IndexBlock {
            partition,
            base_offset: Offset::ZERO,
            data_length: position,
            entries,
        }
    }

    fn key() -> SegmentKey {
        let object = ObjectId {
            group: PlacementGroupId::new(1),
            term: Term::new(1),
            id: Uuid::nil(),
        };
        SegmentKey {
            object,
            position: 0,
        }
    }

    proptest! {
        /// Proves that on every level the spans hold each run exactly once and their bytes cover the segment, and that
        /// a larger span is a union of smaller ones.
        #[test]
        fn spans_tile_the_segment(lengths in prop::collection::vec(1u64..300, 1..60)) {
            let index = index(&lengths);
            for level in 0..4u8 {
                let mut run = 0;
                let mut position = 0;
                while run < index.entries.len() {
                    let (name, runs) = span_of(key(), &index, 64, level, run);
                    prop_assert_eq!(runs.start, run);
                    for inside in runs.clone() {
                        prop_assert_eq!(span_of(key(), &index, 64, level, inside), (name, runs.clone()));
                        let smaller = span_of(key(), &index, 64, level.saturating_sub(1), inside).1;
                        prop_assert!(runs.start <= smaller.start && smaller.end <= runs.end);
                    }
                    let bytes = bytes_of(&index, &runs);
                    prop_assert_eq!(bytes.start, position);
                    position = bytes.end;
                    run = runs.end;
                }
                prop_assert_eq!(position, index.data_length);
            }
        }

        /// Proves that a grown span never reaches back before the run it is loaded for.
        #[test]
        fn growth_never_loads_backwards(lengths in prop::collection::vec(1u64..300, 1..60), wanted in 0u8..4) {
            let index = index(&lengths);
            for run in 0..lengths.len() {
                let level = aligned_level(key(), &index, 64, wanted, run);
                prop_assert!(level <= wanted);
                if level > 0 {
                    prop_assert_eq!(span_of(key(), &index, 64, level, run).1.start, run);
                }
            }
        }
    }

    /// Proves that an offset finds the run that holds it.
    #[test]
    fn offsets_find_their_run() {
        let index = index(&[5, 5, 5]);
        for (offset, run) in [(0, 0), (9, 0), (10, 1), (19, 1), (20, 2), (1000, 2)] {
            assert_eq!(run_of(&index, Offset::new(offset)), run);
        }
    }
}
