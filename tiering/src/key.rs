//! Object keys: the only place that builds or parses them.
//!
//! Owns: the shape of every key below `<prefix>/v1/<cluster>/`.
//! Not here: what the objects hold.
//! Spec: docs/formats/object-keys.md

use crate::manifest::ObjectId;
use object_store::path::Path;
use std::fmt;
use tidelog_model::{ClusterId, NodeId, PlacementGroupId, Term};
use uuid::Uuid;

/// A key, or the prefix of keys, relative to `<prefix>/v1/<cluster>/`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey(String);

impl ObjectKey {
    /// The key as text, without the cluster's prefix.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A key below this one. `name` must be of the caller's own making; empty parts and dots are dropped.
    #[must_use]
    pub fn below(&self, name: &str) -> Self {
        let mut text = self.0.clone();
        for part in name
            .split('/')
            .filter(|part| !matches!(*part, "" | "." | ".."))
        {
            text.push('/');
            text.push_str(part);
        }
        Self(text)
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a key names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ParsedKey {
    /// A segment object.
    Data(ObjectId),
    /// A published snapshot of a data group.
    Snapshot {
        /// The group.
        group: PlacementGroupId,
        /// Its number in the chain.
        sequence: u64,
    },
    /// A published snapshot of the metadata group.
    Metadata {
        /// Its number in the chain.
        sequence: u64,
    },
}

/// The key of a segment object.
#[must_use]
pub fn data(id: &ObjectId) -> ObjectKey {
    ObjectKey(format!(
        "data/{}/{:016x}/{}.seg",
        id.group,
        id.term.get(),
        id.id.hyphenated()
    ))
}

/// What all segment objects of a group lie below.
#[must_use]
pub fn data_prefix(group: PlacementGroupId) -> ObjectKey {
    ObjectKey(format!("data/{group}"))
}

/// The key of a group's published snapshot number `sequence`.
#[must_use]
pub fn snapshot(group: PlacementGroupId, sequence: u64) -> ObjectKey {
    ObjectKey(format!("snap/{group}/{sequence:020}.snap"))
}

/// What all published snapshots of a group lie below.
#[must_use]
pub fn snapshot_prefix(group: PlacementGroupId) -> ObjectKey {
    ObjectKey(format!("snap/{group}"))
}

/// What the published snapshots of all data groups lie below.
#[must_use]
pub fn snapshots_root() -> ObjectKey {
    ObjectKey("snap".to_owned())
}

/// The key of the metadata group's published snapshot number `sequence`.
#[must_use]
pub fn metadata(sequence: u64) -> ObjectKey {
    ObjectKey(format!("meta/{sequence:020}.snap"))
}

/// What all published snapshots of the metadata group lie below.
#[must_use]
pub fn metadata_prefix() -> ObjectKey {
    ObjectKey("meta".to_owned())
}

/// The marker of the cluster's store.
#[must_use]
pub fn marker() -> ObjectKey {
    ObjectKey("store.json".to_owned())
}

/// What the archive's tables lie below.
#[must_use]
pub fn archive_root() -> ObjectKey {
    ObjectKey("archive".to_owned())
}

/// What the objects of one run of the start-up probe lie below.
#[must_use]
pub fn probe_root(run: Uuid) -> ObjectKey {
    ObjectKey(format!("probe/{}", run.hyphenated()))
}

/// The object that a broker reads to see that the store works.
#[must_use]
pub fn alive(node: NodeId) -> ObjectKey {
    ObjectKey(format!("probe/alive/{}", node.get()))
}

/// `<prefix>/v1/<cluster>`: what everything of a cluster lies below.
#[must_use]
pub fn cluster_root(prefix: &Path, cluster: ClusterId) -> Path {
    prefix
        .clone()
        .join("v1")
        .join(cluster.get().hyphenated().to_string())
}

/// `<prefix>/v1`: what all clusters that share a store lie below.
#[must_use]
pub fn clusters_root(prefix: &Path) -> Path {
    prefix.clone().join("v1")
}

/// The full path of a key below a cluster's root.
#[must_use]
pub fn full_path(root: &Path, key: &ObjectKey) -> Path {
    key.0
        .split('/')
        .fold(root.clone(), |path, part| path.join(part))
}

/// The key of a full path below a cluster's root; `None` when it lies elsewhere.
#[must_use]
pub fn relative(root: &Path, path: &Path) -> Option<ObjectKey> {
    let parts: Vec<_> = path
        .prefix_match(root)?
        .map(|part| part.as_ref().to_owned())
        .collect();
    (!parts.is_empty()).then(|| ObjectKey(parts.join("/")))
}

/// The cluster of what lies below `root`, which is of [`clusters_root`]'s making; `None` for what this crate never builds.
#[must_use]
pub fn cluster_below(root: &Path, path: &Path) -> Option<ClusterId> {
    let name = path.prefix_match(root)?.next()?.as_ref().to_owned();
    let id = Uuid::try_parse(&name).ok()?;
    (id.hyphenated().to_string() == name).then(|| ClusterId::new(id))
}

/// Parses a key. `None` for the marker, for keys of the archive and of the probe, and for whatever this crate never builds.
#[must_use]
pub fn parse(key: &ObjectKey) -> Option<ParsedKey> {
    let mut parts = key.0.split('/');
    let parsed = match (
        parts.next()?,
        parts.next()?,
        parts.next(),
        parts.next(),
        parts.next(),
    ) {
        ("data", group, Some(term), Some(file), None) => ParsedKey::Data(ObjectId {
            group: PlacementGroupId::new(decimal(group)?.try_into().ok()?),
            term: Term::new(hexadecimal(term)?),
            id: Uuid::try_parse(file.strip_suffix(".seg")?).ok()?,
        }),
        ("snap", group, Some(file), None, None) => ParsedKey::Snapshot {
            group: PlacementGroupId::new(decimal(group)?.try_into().ok()?),
            sequence: decimal(file.strip_suffix(".snap")?)?,
        },
        ("meta", file, None, None, None) => ParsedKey::Metadata {
            sequence: decimal(file.strip_suffix(".snap")?)?,
        },
        _ => return None,
    };
    // One form per key: what would be built differently (leading zeros, capitals, other uuid forms) is not a key.
    (build(&parsed) == *key).then_some(parsed)
}

/// The key of what was parsed: the inverse of [`parse`].
#[must_use]
pub fn build(parsed: &ParsedKey) -> ObjectKey {
    match parsed {
        ParsedKey::Data(id) => data(id),
        ParsedKey::Snapshot { group, sequence } => snapshot(*group, *sequence),
        ParsedKey::Metadata { sequence } => metadata(*sequence),
    }
}

fn decimal(text: &str) -> Option<u64> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
}

fn hexadecimal(text: &str) -> Option<u64> {
    text.bytes()
        .all(|byte| byte.is_ascii_hexdigit())
        .then(|| u64::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use proptest::prelude::*;

    fn any_parsed() -> impl Strategy<Value = ParsedKey> {
        prop_oneof![
            (any::<u32>(), any::<u64>(), any::<u128>()).prop_map(|(group, term, id)| {
                ParsedKey::Data(ObjectId {
                    group: PlacementGroupId::new(group),
                    term: Term::new(term),
                    id: Uuid::from_u128(id),
                })
            }),
            (any::<u32>(), any::<u64>()).prop_map(|(group, sequence)| ParsedKey::Snapshot {
                group: PlacementGroupId::new(group),
                sequence
            }),
            any::<u64>().prop_map(|sequence| ParsedKey::Metadata { sequence }),
        ]
    }

    proptest! {
        /// Proves that a key parses back to what it was built from, also through a full path.
        #[test]
        fn parse_inverts_build(parsed in any_parsed(), prefix in "[a-z]{0,5}(/[a-z]{1,5})?") {
            let key = build(&parsed);
            prop_assert_eq!(parse(&key), Some(parsed));
            let root = cluster_root(&Path::from(prefix), ClusterId::new(Uuid::from_u128(7)));
            let path = full_path(&root, &key);
            prop_assert_eq!(relative(&root, &path), Some(key));
        }

        /// Proves that whatever parses has exactly one form.
        #[test]
        fn accepted_keys_have_one_form(text in "(data|snap|meta)/[0-9a-fA-F+ ]{0,4}/?[0-9a-f]{0,16}/?[0-9a-f-]{0,36}\\.(seg|snap)") {
            let key = ObjectKey(text);
            if let Some(parsed) = parse(&key) {
                prop_assert_eq!(build(&parsed), key);
            }
        }
    }

    /// Proves that the documented shapes are the built ones and that near misses are refused.
    #[test]
    fn documented_shapes() {
        let id = ObjectId {
            group: PlacementGroupId::new(3),
            term: Term::new(0x1f),
            id: Uuid::from_u128(1),
        };
        assert_eq!(
            data(&id).as_str(),
            "data/3/000000000000001f/00000000-0000-0000-0000-000000000001.seg"
        );
        assert_eq!(
            snapshot(PlacementGroupId::new(3), 12).as_str(),
            "snap/3/00000000000000000012.snap"
        );
        assert_eq!(metadata(1).as_str(), "meta/00000000000000000001.snap");
        assert_eq!(marker().as_str(), "store.json");
        let clusters = clusters_root(&Path::from("p"));
        let cluster = ClusterId::new(Uuid::from_u128(7));
        let path = full_path(&cluster_root(&Path::from("p"), cluster), &marker());
        assert_eq!(cluster_below(&clusters, &path), Some(cluster));
        assert_eq!(cluster_below(&clusters, &clusters.clone().join("x")), None);
        assert_eq!(cluster_below(&clusters, &Path::from("q/v1/x")), None);
        for wrong in [
            "data/03/000000000000001f/00000000-0000-0000-0000-000000000001.seg",
            "data/3/1f/00000000-0000-0000-0000-000000000001.seg",
            "data/3/000000000000001F/00000000-0000-0000-0000-000000000001.seg",
            "data/3/000000000000001f/00000000000000000000000000000001.seg",
            "snap/3/12.snap",
            "snap/+3/00000000000000000012.snap",
            "meta/00000000000000000001.snap/x",
            "archive/x",
            "store.json",
            "",
        ] {
            assert_eq!(parse(&ObjectKey(wrong.to_owned())), None, "{wrong}");
        }
    }

    /// Proves that names joined below a key cannot climb out of it.
    #[test]
    fn below_cannot_climb() {
        assert_eq!(archive_root().below("../a//./b").as_str(), "archive/a/b");
    }
}
