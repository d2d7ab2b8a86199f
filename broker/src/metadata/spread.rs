//! Which placement groups the partitions of a new topic go to.

use super::image::MetadataImage;
use std::collections::BTreeSet;
use tidelog_model::PlacementGroupId;

/// A placement group for each of `partitions` new partitions: always the group with the fewest, the lowest id on a
/// tie. Afterwards the loads differ by at most what they differed before, and by at most one once that is filled up.
/// Empty when the cluster has no data groups.
#[must_use]
pub fn choose_groups(image: &MetadataImage, partitions: usize) -> Vec<PlacementGroupId> {
    let mut loads: BTreeSet<(usize, PlacementGroupId)> = image
        .group_loads()
        .into_iter()
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::metadata::image::Topic;
    use proptest::prelude::*;
    use tidelog_model::{TimestampMs, TopicId};
    use uuid::Uuid;

    fn image(groups: u32) -> MetadataImage {
        let mut image = MetadataImage::default();
        for group in 1..=groups {
            image.groups.insert(PlacementGroupId::new(group), vec![]);
        }
        image
    }

    fn add(image: &mut MetadataImage, number: u128, partitions: Vec<PlacementGroupId>) {
        let topic = Topic {
            name: format!("t{number}"),
            created: TimestampMs::new(0),
            partitions,
            configs: std::collections::BTreeMap::new(),
        };
        image.insert_topic(TopicId::new(Uuid::from_u128(number)), topic);
    }

    /// Proves that a cluster without data groups gets no placement instead of a loop.
    #[test]
    fn no_groups_no_choice() {
        assert!(choose_groups(&image(0), 3).is_empty());
    }

    proptest! {
        /// Proves that whatever topics come, loads stay within one of each other.
        #[test]
        fn loads_stay_even(groups in 1u32..7, topics in proptest::collection::vec(1usize..20, 1..20)) {
            let mut image = image(groups);
            for (number, partitions) in topics.into_iter().enumerate() {
                let chosen = choose_groups(&image, partitions);
                prop_assert_eq!(chosen.len(), partitions);
                prop_assert_eq!(&chosen, &choose_groups(&image, partitions));
                add(&mut image, number as u128, chosen);
                let loads = image.group_loads();
                prop_assert!(loads.values().max().unwrap() - loads.values().min().unwrap() <= 1);
            }
        }
    }
}
