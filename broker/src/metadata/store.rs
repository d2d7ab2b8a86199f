//! The cluster's object store: the id of the marker that is in it.
//!
//! Owns: the fact in the image, the rule that the first marker stays.
//! Not here: putting and reading markers (`tidelog_tiering::marker`), what follows from it (`offload`, `node::store_mark`).
//! Spec: docs/protocols/store-identity.md

use super::apply::MetadataOutcome;
use super::image::MetadataImage;
use tidelog_model::StoreId;

impl MetadataImage {
    /// Which store is the cluster's; `None` while nobody has marked it: then nothing may leave local disks.
    #[must_use]
    pub const fn store(&self) -> Option<StoreId> {
        self.store
    }

    /// The first one stays: a leader that was deposed may have marked another store.
    pub(super) fn mark_store(&mut self, store: StoreId) -> MetadataOutcome {
        MetadataOutcome::StoreMarked(*self.store.get_or_insert(store))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::metadata::{MetadataCommand, Refusal, decode_command};
    use std::collections::BTreeMap;
    use tidelog_model::{ClusterId, NodeId, PlacementGroupId, TimestampMs};
    use uuid::Uuid;

    const STAMP: TimestampMs = TimestampMs::new(5);

    fn id(number: u128) -> StoreId {
        StoreId::new(Uuid::from_u128(number))
    }

    fn mark(number: u128) -> MetadataCommand {
        MetadataCommand::MarkStore { store: id(number) }
    }

    fn image() -> MetadataImage {
        let mut image = MetadataImage::default();
        let nodes = vec![NodeId::new(1)];
        let bootstrap = MetadataCommand::BootstrapCluster {
            cluster: ClusterId::new(Uuid::from_u128(7)),
            name: "c".to_owned(),
            groups: BTreeMap::from([(PlacementGroupId::new(1), nodes)]),
        };
        image.apply(bootstrap, STAMP);
        image
    }

    /// Proves that only the first marker counts, and that later proposers learn which that is.
    #[test]
    fn the_first_marker_stays() {
        let mut image = MetadataImage::default();
        let refused = MetadataOutcome::Refused(Refusal::NotBootstrapped);
        assert_eq!(image.apply(mark(1), STAMP), refused);
        let mut image = self::image();
        assert_eq!(image.store(), None);
        for number in [1, 2, 1] {
            let outcome = image.apply(mark(number), STAMP);
            assert_eq!(outcome, MetadataOutcome::StoreMarked(id(1)));
            assert_eq!(image.store(), Some(id(1)));
        }
    }

    /// Proves that the bytes are those of the pages, also where no store is marked, and that a zero id is none.
    #[test]
    fn golden() {
        let bytes = mark(258).encode(STAMP).dir;
        let expected = [&[27, 1, 5][..], &[0; 7], &[0; 14], &[1, 2]].concat();
        assert_eq!(bytes, expected);
        assert_eq!(decode_command(&bytes).unwrap(), (mark(258), STAMP));
        for length in 0..bytes.len() {
            assert!(decode_command(&bytes[..length]).is_err());
        }
        assert!(decode_command(&mark(0).encode(STAMP).dir).is_err());
        let mut image = image();
        let unmarked = image.encode();
        assert_eq!(MetadataImage::decode(&unmarked).unwrap(), image);
        image.apply(mark(258), STAMP);
        let marked = image.encode();
        assert_eq!(MetadataImage::decode(&marked).unwrap(), image);
        assert_eq!(marked.len(), unmarked.len() + 16);
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/metadata/testdata");
        // Version 6 remembered no deleted topics.
        let old = std::fs::read(format!("{folder}/metadata-snapshot-v6.bin")).unwrap();
        image.as_version_6_said();
        assert_eq!(MetadataImage::decode(&old).unwrap(), image);
        for length in 0..marked.len() {
            assert!(MetadataImage::decode(&marked[..length]).is_err());
        }
    }
}
