//! Identifiers and positions: one newtype for everything that can be swapped by mistake.
//!
//! Owns: the words of `docs/GLOSSARY.md` as types.
//! Not here: anything that reads a clock, a disk or a socket.
//!
//! Values convert only by name (`new`, `get`); there is no `From<u64>` between them. Ranges are half open.

use std::fmt;
use uuid::Uuid;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name($inner);

        impl $name {
            /// Wraps a raw value.
            #[must_use]
            pub const fn new(value: $inner) -> Self {
                Self(value)
            }

            /// The raw value.
            #[must_use]
            pub const fn get(self) -> $inner {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

id!(
    /// A Kafka record offset in one partition, nothing else.
    Offset(i64)
);
id!(
    /// A Raft position in one placement group's log. The first entry has index 0 (openraft's convention).
    LogIndex(u64)
);
id!(
    /// A Raft term of one placement group.
    Term(u64)
);
id!(
    /// What Kafka clients see as leader epoch: equal to the term of the partition's placement group.
    LeaderEpoch(i32)
);
id!(
    /// Bytes from the start of a file or object.
    BytePosition(u64)
);
id!(
    /// A broker, as Kafka clients know it.
    NodeId(i32)
);
id!(
    /// A replica of a placement group as Raft knows it. Never reused: a broker that lost its disk gets a new one.
    RaftNodeId(u64)
);
id!(
    /// A placement group (a Raft group). Group 0 is the metadata group; data groups count from 1.
    PlacementGroupId(u32)
);
id!(
    /// The number of a partition inside its topic.
    PartitionIndex(i32)
);
id!(
    /// Identity of an idempotent producer.
    ProducerId(i64)
);
id!(
    /// Epoch of a producer id.
    ProducerEpoch(i16)
);
id!(
    /// Sequence number of a record within (producer id, producer epoch, partition). Wraps from `i32::MAX` to 0.
    Sequence(i32)
);
id!(
    /// Milliseconds since the Unix epoch. Where it is a broker's stamp and where a client's is said at the field.
    TimestampMs(i64)
);
id!(
    /// The id of a topic: a topic created again under its old name has another one (invariant I15).
    TopicId(Uuid)
);
id!(
    /// The id of a cluster; part of every object key and of every log file header.
    ClusterId(Uuid)
);
id!(
    /// The id of a cluster's object store: drawn at random when the store is marked, and what tells it from every other store.
    StoreId(Uuid)
);

impl PlacementGroupId {
    /// The group that holds topics, placement, configs and producer-id blocks.
    pub const METADATA: Self = Self(0);
}

impl Offset {
    /// The first offset of every partition.
    pub const ZERO: Self = Self(0);

    /// This offset moved by `count` records; saturates at `i64::MAX`.
    #[must_use]
    pub const fn plus(self, count: i64) -> Self {
        Self(self.0.saturating_add(count))
    }

    /// Moves forward to `to`; never back (invariant I5). Returns whether it moved.
    pub fn advance_to(&mut self, to: Self) -> bool {
        let moved = to.0 > self.0;
        if moved {
            self.0 = to.0;
        }
        moved
    }
}

impl LeaderEpoch {
    /// The epoch that clients see while a leader of this term leads.
    #[must_use]
    pub fn of_term(term: Term) -> Self {
        Self(i32::try_from(term.0).unwrap_or(i32::MAX))
    }
}

impl LogIndex {
    /// The index after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl ProducerId {
    /// What a batch without idempotence carries.
    pub const NONE: Self = Self(-1);
}

impl Sequence {
    /// The sequence `count` records later, wrapping as Kafka does.
    #[must_use]
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the remainder is below 2^31"
    )]
    pub const fn plus(self, count: i32) -> Self {
        Self(((self.0 as i64 + count as i64) % (i32::MAX as i64 + 1)) as i32)
    }
}

/// Topic id and partition number: what identifies a partition for ever.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PartitionId {
    /// The topic.
    pub topic: TopicId,
    /// The partition inside the topic.
    pub index: PartitionIndex,
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.index)
    }
}

/// Term and index of one Raft log entry. Ordered by term, then index, as the Raft paper compares logs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LogId {
    /// Term of the leader that proposed the entry.
    pub term: Term,
    /// Position of the entry.
    pub index: LogIndex,
}

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.term, self.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that a monotone offset never goes back.
    #[test]
    fn advance_to_never_goes_back() {
        let mut offset = Offset::new(5);
        assert!(!offset.advance_to(Offset::new(4)));
        assert_eq!(offset, Offset::new(5));
        assert!(offset.advance_to(Offset::new(9)));
        assert_eq!(offset, Offset::new(9));
    }

    /// Proves that sequences wrap from `i32::MAX` to 0 as Kafka's do.
    #[test]
    fn sequence_wraps_to_zero() {
        assert_eq!(Sequence::new(i32::MAX).plus(1), Sequence::new(0));
        assert_eq!(Sequence::new(i32::MAX - 1).plus(3), Sequence::new(1));
        assert_eq!(Sequence::new(7).plus(3), Sequence::new(10));
    }
}
