//! Who leads the groups that this broker holds no replica of.
//!
//! Owns: [`LeadersElsewhere`]: what other brokers said, the newest term wins; the bytes of that.
//! Not here: asking them (`node`), groups that are held here (`placement` knows).
//! Spec: docs/protocols/leaders.md

use crate::format::{FormatError, Reader, Writer};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidelog_model::{NodeId, PlacementGroupId, Term};
use tokio::time::Instant;

const VERSION: u8 = 1;
/// The entries of an answer: every group once.
const ENTRIES_MAX: usize = crate::metadata::GROUPS_MAX;

/// What nobody has said for so long is not known any more: ten rounds of questions.
const SAID_WITHIN: Duration = Duration::from_secs(5);

type Known = BTreeMap<PlacementGroupId, (NodeId, Term, Instant)>;

/// What is known of leaders of other groups. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct LeadersElsewhere(Arc<Mutex<Known>>);

impl LeadersElsewhere {
    /// The newest known leader.
    #[must_use]
    pub fn leader(&self, group: PlacementGroupId) -> Option<(NodeId, Term)> {
        let known = self.0.lock().get(&group).copied();
        let (leader, term, said) = known?;
        (said.elapsed() < SAID_WITHIN).then_some((leader, term))
    }

    /// Takes note of what one broker says. An older term changes nothing while the newer one is said.
    pub fn note(&self, said: &BTreeMap<PlacementGroupId, (NodeId, Term)>) {
        let mut known = self.0.lock();
        for (group, (leader, term)) in said {
            let newer = known
                .get(group)
                .is_none_or(|(_, at, said)| term >= at || said.elapsed() >= SAID_WITHIN);
            if newer {
                known.insert(*group, (*leader, *term, Instant::now()));
            }
        }
    }

    /// Forgets groups that no longer matter.
    pub fn keep(&self, matters: impl Fn(PlacementGroupId) -> bool) {
        self.0.lock().retain(|group, _| matters(*group));
    }
}

/// The bytes of an answer: what a broker knows of the groups it holds.
#[must_use]
pub fn encode_leaders(leaders: &BTreeMap<PlacementGroupId, (NodeId, Term)>) -> Bytes {
    let mut to = Writer::new();
    to.u8(VERSION);
    to.count(leaders.len());
    for (group, (leader, term)) in leaders {
        to.u32(group.get());
        to.i32(leader.get());
        to.u64(term.get());
    }
    to.finish()
}

/// Reads what [`encode_leaders`] wrote.
///
/// # Errors
/// What is wrong with the bytes; nothing of them is used.
pub fn decode_leaders(
    bytes: &[u8],
) -> Result<BTreeMap<PlacementGroupId, (NodeId, Term)>, FormatError> {
    let mut from = Reader::new(bytes);
    let version = from.u8("the version")?;
    if version != VERSION {
        return Err(FormatError::Version(u16::from(version)));
    }
    let count = from.count(4 + 4 + 8, "the leaders")?;
    if count > ENTRIES_MAX {
        return Err(FormatError::Invalid("the leaders"));
    }
    let mut leaders = BTreeMap::new();
    for _ in 0..count {
        let group = PlacementGroupId::new(from.u32("a group")?);
        let leader = NodeId::new(from.natural_i32("a leader")?);
        leaders.insert(group, (leader, Term::new(from.u64("a term")?)));
    }
    from.finish()?;
    Ok(leaders)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn said(entries: &[(u32, i32, u64)]) -> BTreeMap<PlacementGroupId, (NodeId, Term)> {
        let entry = |(group, leader, term): &(u32, i32, u64)| {
            let leader = (NodeId::new(*leader), Term::new(*term));
            (PlacementGroupId::new(*group), leader)
        };
        entries.iter().map(entry).collect()
    }

    /// Proves that the newest term wins, whoever says it in which order, and that what nobody says any more is not known.
    #[tokio::test(start_paused = true)]
    async fn the_newest_term_wins() {
        let known = LeadersElsewhere::default();
        known.note(&said(&[(1, 1, 5), (2, 2, 9)]));
        known.note(&said(&[(1, 3, 4), (2, 3, 10)]));
        let leader = |group| known.leader(PlacementGroupId::new(group)).unwrap().0.get();
        assert_eq!((leader(1), leader(2)), (1, 3));
        known.keep(|group| group.get() == 1);
        assert_eq!(known.leader(PlacementGroupId::new(2)), None);
        tokio::time::advance(SAID_WITHIN).await;
        assert_eq!(known.leader(PlacementGroupId::new(1)), None);
        known.note(&said(&[(1, 2, 4)]));
        assert_eq!(known.leader(PlacementGroupId::new(1)).unwrap().0.get(), 2);
    }

    /// Proves that the bytes stay, and that cut, longer, and newer ones are refused.
    #[test]
    fn bytes() {
        let leaders = said(&[(1, 2, 3)]);
        let bytes = encode_leaders(&leaders);
        let expected = [
            1, 1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(bytes[..], expected);
        assert_eq!(decode_leaders(&bytes).unwrap(), leaders);
        for length in 0..bytes.len() {
            assert!(decode_leaders(&bytes[..length]).is_err());
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(decode_leaders(&longer).is_err());
        let mut newer = bytes.to_vec();
        newer[0] = 2;
        assert_eq!(decode_leaders(&newer), Err(FormatError::Version(2)));
    }
}
