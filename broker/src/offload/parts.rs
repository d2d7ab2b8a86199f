//! Parts: the segments of one upload, shared out over commands that each fit a log entry.
//!
//! Owns: the bound of one `Uploaded` command.
//! Not here: what a part does to the state (`partition::machine`).
//! Spec: docs/protocols/offload.md, step 3

use crate::log::DIR_BYTES_MAX;
use crate::partition::command::{UPLOADED_BYTES, uploaded_segment_bytes};
use tidelog_model::PartitionId;
use tidelog_tiering::manifest::SegmentEntry;

/// Bytes of one `Uploaded` command at most: what one append to a follower may carry, as for batches. About 7,000 segments.
const PART_BYTES_MAX: usize = 1 << 20;

const _: () = assert!(PART_BYTES_MAX <= DIR_BYTES_MAX);

/// One segment and whose it is.
pub(super) type Placed = (PartitionId, SegmentEntry);

/// Splits `segments` in their order into parts whose commands take at most `entry_bytes_max` bytes; a segment that is larger
/// by itself is alone. At least one part: a cut that had nothing to upload is confirmed by an empty one.
pub(super) fn parts(segments: Vec<Placed>, entry_bytes_max: usize) -> Vec<Vec<Placed>> {
    let bytes_max = entry_bytes_max.min(PART_BYTES_MAX);
    let mut parts = Vec::new();
    let mut part = Vec::new();
    let mut bytes = UPLOADED_BYTES;
    for placed in segments {
        let more = uploaded_segment_bytes(&placed.1);
        if !part.is_empty() && bytes + more > bytes_max {
            parts.push(std::mem::take(&mut part));
            bytes = UPLOADED_BYTES;
        }
        bytes += more;
        part.push(placed);
    }
    if !part.is_empty() || parts.is_empty() {
        parts.push(part);
    }
    parts
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::partition::PartitionCommand;
    use crate::partition::command::Stamped;
    use tidelog_model::{
        BytePosition, LeaderEpoch, LogIndex, Offset, PartitionIndex, PlacementGroupId, Term,
        TimestampMs, TopicId,
    };
    use tidelog_tiering::manifest::{EpochStart, ObjectId};
    use uuid::Uuid;

    fn placed(index: i32, epochs: usize) -> Placed {
        let id = PartitionId {
            topic: TopicId::new(Uuid::from_u128(1)),
            index: PartitionIndex::new(index),
        };
        let object = ObjectId {
            group: PlacementGroupId::new(1),
            term: Term::new(1),
            id: Uuid::from_u128(9),
        };
        let epoch = EpochStart {
            epoch: LeaderEpoch::new(1),
            start: Offset::ZERO,
        };
        let segment = SegmentEntry {
            object,
            position: BytePosition::new(0),
            length: 100,
            index_position: BytePosition::new(100),
            index_length: 5,
            base_offset: Offset::ZERO,
            last_offset: Offset::ZERO,
            record_count: 1,
            first_timestamp: TimestampMs::new(5),
            max_timestamp: TimestampMs::new(9),
            first_stamp: TimestampMs::new(1),
            last_stamp: TimestampMs::new(2),
            epochs: vec![epoch; epochs],
            crc: 7,
        };
        (id, segment)
    }

    fn command_bytes(segments: Vec<Placed>) -> usize {
        let command = PartitionCommand::Uploaded {
            cut: LogIndex::new(7),
            segments,
        };
        let stamp = TimestampMs::new(1);
        Stamped { stamp, command }.encode().len()
    }

    /// Proves that every part fits its bound to the byte, that nothing is lost or reordered, and that parts are not smaller than
    /// they must be.
    #[test]
    fn every_part_fits_an_entry() {
        let all: Vec<Placed> = (0..30_000).map(|n| placed(n, 1)).collect();
        assert!(
            command_bytes(all.clone()) > DIR_BYTES_MAX,
            "one entry cannot hold it"
        );
        for entry_bytes_max in [4 << 10, 64 << 10, 1 << 20, 16 << 20] {
            let parts = parts(all.clone(), entry_bytes_max);
            let bound = entry_bytes_max.min(PART_BYTES_MAX);
            let one = uploaded_segment_bytes(&all[0].1);
            for (at, part) in parts.iter().enumerate() {
                let bytes = command_bytes(part.clone());
                assert!(bytes <= bound);
                assert!(bytes + one > bound || at + 1 == parts.len());
            }
            assert_eq!(parts.concat(), all);
        }
    }

    /// Proves that an empty upload still confirms its cut, and that a segment larger than the bound is not dropped.
    #[test]
    fn nothing_and_too_much_are_one_part() {
        assert_eq!(parts(Vec::new(), 1 << 20), vec![Vec::new()]);
        let large = vec![placed(0, 1), placed(1, 1_000), placed(2, 1)];
        assert_eq!(parts(large.clone(), 1 << 10).concat(), large);
        assert_eq!(parts(large, 1 << 10).len(), 3);
    }
}
