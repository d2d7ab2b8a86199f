//! Kafka's range assignor: per topic, partitions in order, dealt to members in the order of their ids.
//!
//! Owns: the arithmetic. All members of a group may be asked to do it, so it must agree with the other clients'.

use std::collections::BTreeMap;
use tidelog_model::PartitionIndex;

/// Topics and partitions of one member.
pub type Assignment = BTreeMap<String, Vec<PartitionIndex>>;

/// Deals `partitions` (count by topic) to `members` (their topics by id). Topics without partitions are left out.
#[must_use]
pub fn range(
    members: &BTreeMap<String, Vec<String>>,
    partitions: &BTreeMap<String, i32>,
) -> BTreeMap<String, Assignment> {
    let mut assignments: BTreeMap<String, Assignment> = members
        .keys()
        .map(|member| (member.clone(), Assignment::new()))
        .collect();
    for (topic, count) in partitions {
        let subscribed: Vec<&String> = members
            .iter()
            .filter(|(_, topics)| topics.contains(topic))
            .map(|(member, _)| member)
            .collect();
        let Ok(among) = i32::try_from(subscribed.len()) else {
            continue;
        };
        if among == 0 {
            continue;
        }
        let (each, extra) = (count / among, count % among);
        let mut next = 0;
        for (at, member) in (0..among).zip(subscribed) {
            let take = each + i32::from(at < extra);
            if take > 0
                && let Some(assignment) = assignments.get_mut(member)
            {
                assignment.insert(
                    topic.clone(),
                    (next..next + take).map(PartitionIndex::new).collect(),
                );
            }
            next += take;
        }
    }
    assignments
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use proptest::prelude::*;

    /// Proves Kafka's documented example: 3 partitions for 2 members are 2 and 1, per topic.
    #[test]
    fn documented_example() {
        let both = vec!["t0".to_owned(), "t1".to_owned()];
        let members = BTreeMap::from([("C0".to_owned(), both.clone()), ("C1".to_owned(), both)]);
        let partitions = BTreeMap::from([("t0".to_owned(), 3), ("t1".to_owned(), 3)]);
        let dealt = range(&members, &partitions);
        let numbers = |member: &str, topic: &str| {
            dealt[member][topic]
                .iter()
                .map(|p| p.get())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            (numbers("C0", "t0"), numbers("C0", "t1")),
            (vec![0, 1], vec![0, 1])
        );
        assert_eq!(
            (numbers("C1", "t0"), numbers("C1", "t1")),
            (vec![2], vec![2])
        );
    }

    proptest! {
        /// Proves that every partition of a subscribed topic has exactly one owner, and shares differ by at most one.
        #[test]
        fn every_partition_once(count in 0..50i32, members in 1..12usize) {
            let members: BTreeMap<_, _> = (0..members).map(|at| (format!("m{at}"), vec!["t".to_owned()])).collect();
            let dealt = range(&members, &BTreeMap::from([("t".to_owned(), count)]));
            let mut all: Vec<i32> = dealt.values().flat_map(|a| a.get("t").into_iter().flatten().map(|p| p.get())).collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..count).collect::<Vec<_>>());
            let sizes: Vec<usize> = dealt.values().map(|a| a.get("t").map_or(0, Vec::len)).collect();
            prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
        }
    }
}
