//! Whether brokers should lead, as they say it themselves.
//!
//! Owns: [`Fitness`], [`FitnessBook`], what brokers have said lately; the bytes.
//! Not here: who tells whom, and when (`node::fitness`); what follows for leadership (`node::leaders`).
//! Spec: docs/protocols/fitness.md

use crate::format::{FormatError, Reader, Writer};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidelog_model::NodeId;
use tokio::time::Instant;

const VERSION: u8 = 1;
const STORE_WRONG: u8 = 1;
const NO_ROOM: u8 = 2;
const UNCOMPARED: u8 = 4;

/// What a broker has said counts for so long: it says it every 1 to 3 s while something is in the way, and two of these may be lost.
const SAID_WITHIN: Duration = Duration::from_secs(8);

/// What is in the way of a broker's leading. Ordered, the best first: who cannot say whether its store is the cluster's is never better than somebody, and
/// who takes no records is worse than who tiers nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fitness {
    /// It was asked and could not compare its store.
    pub uncompared: bool,
    /// Its disk has too little room for new records.
    pub no_room: bool,
    /// Its object store is not the cluster's.
    pub store_wrong: bool,
}

impl Fitness {
    /// Nothing is in the way.
    pub const FIT: Self = Self {
        uncompared: false,
        no_room: false,
        store_wrong: false,
    };

    /// The bytes of a request, and of its answer.
    #[must_use]
    pub fn encode(self) -> Bytes {
        let mut to = Writer::new();
        to.u8(VERSION);
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let flags = flag(self.store_wrong, STORE_WRONG)
            | flag(self.no_room, NO_ROOM)
            | flag(self.uncompared, UNCOMPARED);
        to.u8(flags);
        to.finish()
    }

    /// Reads what [`Fitness::encode`] wrote.
    ///
    /// # Errors
    /// What is wrong with the bytes; nothing of them is used.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut from = Reader::new(bytes);
        let version = from.u8("the version")?;
        if version != VERSION {
            return Err(FormatError::Version(u16::from(version)));
        }
        let flags = from.u8("what is in the way")?;
        if flags > STORE_WRONG | NO_ROOM | UNCOMPARED {
            return Err(FormatError::Invalid("what is in the way"));
        }
        from.finish()?;
        Ok(Self {
            uncompared: flags & UNCOMPARED != 0,
            no_room: flags & NO_ROOM != 0,
            store_wrong: flags & STORE_WRONG != 0,
        })
    }
}

/// What other brokers have said lately. Clones share it.
#[derive(Clone, Default)]
pub struct FitnessBook(Arc<Mutex<BTreeMap<NodeId, (Fitness, Instant)>>>);

impl FitnessBook {
    /// `node` says this of itself.
    pub fn note(&self, node: NodeId, fitness: Fitness) {
        self.0.lock().insert(node, (fitness, Instant::now()));
    }

    /// What `node` has said, if that was lately.
    #[must_use]
    pub fn said_by(&self, node: NodeId) -> Option<Fitness> {
        let book = self.0.lock();
        let (fitness, at) = book.get(&node)?;
        (at.elapsed() < SAID_WITHIN).then_some(*fitness)
    }

    /// Whether `node` has said lately that its store is not the cluster's.
    #[must_use]
    pub fn store_wrong(&self, node: NodeId) -> bool {
        self.said_by(node).is_some_and(|said| said.store_wrong)
    }

    /// Forgets brokers that no longer matter.
    pub fn keep(&self, matters: impl Fn(NodeId) -> bool) {
        self.0.lock().retain(|node, _| matters(*node));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn all() -> Vec<Fitness> {
        let flags = [false, true];
        let mut all = Vec::new();
        for uncompared in flags {
            for no_room in flags {
                for store_wrong in flags {
                    all.push(Fitness {
                        uncompared,
                        no_room,
                        store_wrong,
                    });
                }
            }
        }
        all
    }

    /// Proves that the bytes are those of the page and come back as they went, and that cut, longer, and newer ones are refused.
    #[test]
    fn bytes() {
        for (number, fitness) in all().into_iter().enumerate() {
            let bytes = fitness.encode();
            assert_eq!(bytes[..], [1, u8::try_from(number).unwrap()]);
            assert_eq!(Fitness::decode(&bytes).unwrap(), fitness);
        }
        assert_eq!(Fitness::decode(&[2, 0]), Err(FormatError::Version(2)));
        for wrong in [&[][..], &[1], &[1, 0, 0], &[1, 8], &[1, 255]] {
            assert!(Fitness::decode(wrong).is_err(), "{wrong:?}");
        }
    }

    /// Proves the order: by it leadership only ever goes to who is better.
    #[test]
    fn the_order() {
        assert_eq!(all()[0], Fitness::FIT);
        assert!(all().is_sorted());
        assert!(all().windows(2).all(|two| two[0] < two[1]));
    }

    /// Proves that what was said counts for some seconds, the last word of each.
    #[tokio::test(start_paused = true)]
    async fn what_was_said_counts_for_a_while() {
        let (book, one) = (FitnessBook::default(), NodeId::new(1));
        let wrong = Fitness {
            store_wrong: true,
            ..Fitness::FIT
        };
        assert_eq!(book.said_by(one), None);
        book.note(one, wrong);
        assert!(book.store_wrong(one) && !book.store_wrong(NodeId::new(2)));
        book.note(one, Fitness::FIT);
        assert_eq!(book.said_by(one), Some(Fitness::FIT));
        book.note(one, wrong);
        tokio::time::advance(SAID_WITHIN).await;
        assert!(!book.store_wrong(one) && book.said_by(one).is_none());
        book.note(one, wrong);
        book.keep(|node| node != one);
        assert_eq!(book.said_by(one), None);
    }
}
