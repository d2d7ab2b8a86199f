//! The words of Tidelog as types: ids, offsets, epochs, the record-batch view, limits, invariants.
//!
//! Owns: values and pure functions over them, shared by every crate.
//! Not here: clocks, disks, sockets, async (they are in `tidelog-env`).

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests may touch the real world")
)]

pub mod batch;
pub mod codec;
pub mod crc;
pub mod ids;
pub mod limits;

pub use crc::Summed;
pub use ids::{
    BytePosition, ClusterId, LeaderEpoch, LogId, LogIndex, NodeId, Offset, PartitionId,
    PartitionIndex, PlacementGroupId, ProducerEpoch, ProducerId, RaftNodeId, Sequence, StoreId,
    Term, TimestampMs, TopicId,
};
