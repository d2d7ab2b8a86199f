//! Where a topic's table is: keys in the store and the absolute URIs that readers use.
//!
//! Owns: the table's folder name, the translation between names in the table, keys and URIs.
//! Not here: the key scheme above the table (`tidelog_tiering::key`).
//! Spec: docs/formats/archive-table.md (Place and names)

use crate::error::ArchiveError;
use object_store::path::Path;
use tidelog_model::limits::TOPIC_NAME_BYTES_MAX;
use tidelog_model::{ClusterId, TopicId};
use tidelog_tiering::ObjectKey;
use tidelog_tiering::key;

/// The place of one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableLocation {
    cluster: ClusterId,
    topic: TopicId,
    topic_name: String,
    key: ObjectKey,
    uri: String,
}

impl TableLocation {
    /// The table of topic `topic` named `topic_name`. `root` is the cluster's root in the store and `store_uri` the
    /// URI that the store's paths are relative to.
    ///
    /// # Errors
    /// [`ArchiveError::TopicName`] for a name that Kafka does not allow: it would become part of a path.
    pub(crate) fn new(
        store_uri: &str,
        root: &Path,
        cluster: ClusterId,
        topic: TopicId,
        topic_name: &str,
    ) -> Result<Self, ArchiveError> {
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        if topic_name.is_empty()
            || topic_name.len() > TOPIC_NAME_BYTES_MAX
            || !topic_name.bytes().all(legal)
        {
            return Err(ArchiveError::TopicName(topic_name.to_owned()));
        }
        let key = key::archive_root().below(&format!("{topic_name}-{}", topic.get().hyphenated()));
        let uri = format!(
            "{}/{}",
            store_uri.trim_end_matches('/'),
            key::full_path(root, &key)
        );
        Ok(Self {
            cluster,
            topic,
            topic_name: topic_name.to_owned(),
            key,
            uri,
        })
    }

    /// The cluster.
    #[must_use]
    pub(crate) const fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// The topic.
    #[must_use]
    pub(crate) const fn topic(&self) -> TopicId {
        self.topic
    }

    /// Its name.
    #[must_use]
    pub(crate) fn topic_name(&self) -> &str {
        &self.topic_name
    }

    /// URI of the table.
    #[must_use]
    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    /// URI of the file `name` of the table.
    #[must_use]
    pub(crate) fn uri_of(&self, name: &str) -> String {
        format!("{}/{name}", self.uri)
    }

    /// Key of the file `name` of the table.
    #[must_use]
    pub(crate) fn key_of(&self, name: &str) -> ObjectKey {
        self.key.below(name)
    }

    /// The name of the file at `uri`; `None` when it is not below this table.
    #[must_use]
    pub(crate) fn name_of<'a>(&self, uri: &'a str) -> Option<&'a str> {
        uri.strip_prefix(&self.uri)?
            .strip_prefix('/')
            .filter(|name| !name.is_empty())
    }
}

/// Name of the metadata file of a version: the file whose creation is the commit.
#[must_use]
pub(crate) fn metadata_name(version: u64) -> String {
    format!("metadata/v{version}.metadata.json")
}

/// The version that a metadata file's last path part names.
#[must_use]
pub(crate) fn metadata_version(file: &str) -> Option<u64> {
    let digits = file.strip_prefix('v')?.strip_suffix(".metadata.json")?;
    (digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.parse().ok())?
}

/// Name of the folder of metadata files.
pub(crate) const METADATA_FOLDER: &str = "metadata";
/// Name of the hint.
pub(crate) const HINT_NAME: &str = "metadata/version-hint.text";

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use uuid::Uuid;

    fn location(name: &str, topic: u128) -> Result<TableLocation, ArchiveError> {
        let cluster = ClusterId::new(Uuid::from_u128(1));
        let root = key::cluster_root(&Path::from("pre/fix"), cluster);
        TableLocation::new(
            "s3://bucket/",
            &root,
            cluster,
            TopicId::new(Uuid::from_u128(topic)),
            name,
        )
    }

    /// Proves the documented place, and that a re-created topic's table is elsewhere (I15).
    #[test]
    fn places() {
        let table = location("orders.v1", 2).unwrap();
        let place = "v1/00000000-0000-0000-0000-000000000001/archive/orders.v1-00000000-0000-0000-0000-000000000002";
        assert_eq!(table.uri(), format!("s3://bucket/pre/fix/{place}"));
        assert_eq!(
            table.uri_of("data/any/x.parquet"),
            format!("s3://bucket/pre/fix/{place}/data/any/x.parquet")
        );
        assert_eq!(
            table.name_of(&table.uri_of("metadata/a.avro")),
            Some("metadata/a.avro")
        );
        assert_eq!(table.name_of("s3://elsewhere/metadata/a.avro"), None);
        assert_eq!(table.name_of(table.uri()), None);
        assert_ne!(location("orders.v1", 3).unwrap().uri(), table.uri());
    }

    /// Proves that a name that could leave the folder is refused.
    #[test]
    fn hostile_names_are_refused() {
        for name in ["", "a/b", "../x", "a b", "ä", "a\0", &"x".repeat(250)] {
            assert!(
                matches!(location(name, 1), Err(ArchiveError::TopicName(_))),
                "{name:?}"
            );
        }
    }

    /// Proves that only names of our own making are versions.
    #[test]
    fn versions() {
        assert_eq!(metadata_version("v17.metadata.json"), Some(17));
        for other in [
            "v.metadata.json",
            "v+1.metadata.json",
            "00001-x.metadata.json",
            "v1.metadata.json.gz",
        ] {
            assert_eq!(metadata_version(other), None, "{other}");
        }
    }
}
