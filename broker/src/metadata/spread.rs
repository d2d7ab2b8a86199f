//! Which placement groups the partitions of a new topic go to.

use super::image::MetadataImage;
use std::collections::BTreeSet;
use tidelog_model::{NodeId, PlacementGroupId};

/// Copies of a partition when a topic does not ask for a number: those of the groups that the cluster was founded with.
#[must_use]
pub fn copies_default(image: &MetadataImage) -> usize {
    // These have the slots, also where another group has taken the place of one.
    let first = image.slot_group(0);
    let first = first.and_then(|group| image.groups().get(&group));
    let first = first.or_else(|| image.groups().values().next());
    first.map_or(1, Vec::len)
}

/// A placement group with `copies` replicas for each of `partitions` new partitions: always the group with the fewest, the lowest id on
/// a tie. Afterwards the loads differ by at most what they differed before, and by at most one once that is filled up.
/// Lost groups are left out; groups without a majority of live replicas are too, unless all are: nobody would take the first append.
/// Empty when no group has so many replicas: such groups have to be created.
#[must_use]
pub fn choose_groups(
    image: &MetadataImage,
    partitions: usize,
    copies: usize,
) -> Vec<PlacementGroupId> {
    let has_copies = |group: &PlacementGroupId| {
        let replicas = image.groups().get(group);
        replicas.is_some_and(|replicas| replicas.len() == copies) && !image.is_lost(*group)
    };
    let mut all = image.group_loads();
    all.retain(|group, _| has_copies(group));
    let serves = |group: &PlacementGroupId| has_majority(image, *group);
    let any_serves = all.keys().any(serves);
    let mut loads: BTreeSet<(usize, PlacementGroupId)> = all
        .into_iter()
        .filter(|(group, _)| !any_serves || serves(group))
        .map(|(group, load)| (load, group))
        .collect();
    let mut chosen = Vec::new();
    for _ in 0..partitions {
        let Some((load, group)) = loads.pop_first() else {
            return Vec::new();
        };
        chosen.push(group);
        loads.insert((load + 1, group));
    }
    chosen
}

/// A placement group for each new partition whose replicas are exactly the brokers asked for (in ascending order), the emptiest of those.
///
/// # Errors
/// The first set of brokers that no group has.
pub fn choose_groups_on(
    image: &MetadataImage,
    wanted: &[Vec<NodeId>],
) -> Result<Vec<PlacementGroupId>, Vec<NodeId>> {
    let mut loads = image.group_loads();
    let mut chosen = Vec::new();
    for nodes in wanted {
        let fitting = loads
            .iter_mut()
            .filter(|(group, _)| image.groups().get(group) == Some(nodes))
            .filter(|(group, _)| !image.is_lost(**group));
        let Some((group, load)) = fitting.min_by_key(|(group, load)| (**load, **group)) else {
            return Err(nodes.clone());
        };
        *load += 1;
        chosen.push(*group);
    }
    Ok(chosen)
}

/// Whether more than half of the group's replicas live.
fn has_majority(image: &MetadataImage, group: PlacementGroupId) -> bool {
    let replicas = image.groups().get(&group).map_or(&[][..], Vec::as_slice);
    image.majority_lives(replicas)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::metadata::image::{Broker, Topic};
    use proptest::prelude::*;
    use tidelog_model::{TimestampMs, TopicId};
    use uuid::Uuid;

    fn image(groups: u32) -> MetadataImage {
        let mut image = MetadataImage::default();
        for group in 1..=groups {
            image
                .groups
                .insert(PlacementGroupId::new(group), vec![NodeId::new(1)]);
        }
        image
    }

    fn add(image: &mut MetadataImage, number: u128, partitions: Vec<PlacementGroupId>) {
        let topic = Topic {
            name: format!("t{number}"),
            created: TimestampMs::new(0),
            partitions,
            configs: std::collections::BTreeMap::new(),
            first_new_producer: tidelog_model::ProducerId::new(0),
        };
        image.insert_topic(TopicId::new(Uuid::from_u128(number)), topic);
    }

    /// Proves that a cluster without data groups gets no placement instead of a loop.
    #[test]
    fn no_groups_no_choice() {
        assert!(choose_groups(&image(0), 3, 1).is_empty());
        assert!(choose_groups(&image(2), 3, 3).is_empty());
        assert_eq!(
            (copies_default(&image(0)), copies_default(&image(1))),
            (1, 1)
        );
    }

    /// Proves that partitions go where a majority of the replicas lives, and anywhere while that is nowhere.
    #[test]
    fn groups_that_cannot_serve_are_left_out() {
        let (nodes, fenced) = ([1, 2, 3, 4, 5].map(NodeId::new), Some(TimestampMs::new(1)));
        let mut image = image(2);
        image
            .groups
            .insert(PlacementGroupId::new(1), nodes[..3].to_vec());
        image
            .groups
            .insert(PlacementGroupId::new(2), nodes[2..].to_vec());
        for node in nodes {
            image.brokers.insert(node, Broker::default());
        }
        let chosen = |image: &MetadataImage| choose_groups(image, 2, 3);
        let (one, two) = (PlacementGroupId::new(1), PlacementGroupId::new(2));
        assert_eq!(chosen(&image), [one, two]);
        let mut fence = |node: usize| {
            let broker = image.brokers.get_mut(&nodes[node]).unwrap();
            broker.fenced = fenced;
            choose_groups(&image, 2, 3)
        };
        assert_eq!(fence(0), [one, two], "two of three");
        assert_eq!(fence(1), [two, two]);
        fence(3);
        assert_eq!(fence(4), [one, two]);
    }

    /// Proves that asked-for brokers get the emptiest group that is exactly theirs, and that others are named.
    #[test]
    fn groups_on_brokers() {
        let nodes = |ids: &[i32]| ids.iter().copied().map(NodeId::new).collect::<Vec<_>>();
        let mut image = image(3);
        image.groups.insert(PlacementGroupId::new(4), nodes(&[2]));
        let (one, two) = (nodes(&[1]), nodes(&[2]));
        let all = [one.clone(), two, one.clone(), one.clone(), one];
        let chosen = choose_groups_on(&image, &all).unwrap();
        assert_eq!(
            chosen.iter().map(|group| group.get()).collect::<Vec<_>>(),
            [1, 4, 2, 3, 1]
        );
        let missing = choose_groups_on(&image, &[nodes(&[1, 2])]);
        assert_eq!(missing, Err(nodes(&[1, 2])));
    }

    proptest! {
        /// Proves that whatever topics come, loads stay within one of each other.
        #[test]
        fn loads_stay_even(groups in 1u32..7, topics in proptest::collection::vec(1usize..20, 1..20)) {
            let mut image = image(groups);
            for (number, partitions) in topics.into_iter().enumerate() {
                let chosen = choose_groups(&image, partitions, 1);
                prop_assert_eq!(chosen.len(), partitions);
                prop_assert_eq!(&chosen, &choose_groups(&image, partitions, 1));
                add(&mut image, number as u128, chosen);
                let loads = image.group_loads();
                prop_assert!(loads.values().max().unwrap() - loads.values().min().unwrap() <= 1);
            }
        }
    }
}
