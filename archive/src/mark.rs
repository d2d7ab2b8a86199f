//! The mark in a snapshot's summary: how far each Kafka partition is archived, and whose commit it was.
//!
//! Owns: the `tidelog.*` keys of snapshot summaries.
//! Not here: when a mark moves (`job.rs`), how it gets committed (`commit.rs`).
//! Spec: docs/formats/archive-table.md (Snapshot summary)

use iceberg::spec::{Snapshot, TableMetadata};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use tidelog_model::{ClusterId, TopicId};
use uuid::Uuid;

const FORMAT: &str = "tidelog.format";
const FORMAT_VERSION: &str = "1";
const CLUSTER: &str = "tidelog.cluster-id";
const TOPIC: &str = "tidelog.topic-id";
const COMMIT: &str = "tidelog.commit-id";
const UNTIL: &str = "tidelog.archived-until";
const ADDED: &str = "tidelog.added";

/// What one commit covered of one Kafka partition. `until - from == rows + skipped + lost`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Added {
    /// Kafka partition.
    pub partition: i32,
    /// The mark before.
    pub from: i64,
    /// The mark after.
    pub until: i64,
    /// Rows written.
    pub rows: i64,
    /// Offsets that hold no record.
    pub skipped: i64,
    /// Offsets that retention took before they were archived.
    pub lost: i64,
}

impl Added {
    /// Whether each offset is accounted for exactly once (I14).
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.until.saturating_sub(self.from) == self.rows + self.skipped + self.lost
    }
}

/// The mark of a table's version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The cluster whose topic it is.
    pub cluster: ClusterId,
    /// The topic.
    pub topic: TopicId,
    /// The attempt that committed it.
    pub commit: Uuid,
    /// By Kafka partition, the first offset that is not archived.
    pub until: BTreeMap<i32, i64>,
}

impl Mark {
    /// The summary's keys for this mark and what was added to reach it.
    #[must_use]
    pub fn summary(&self, added: &[Added]) -> HashMap<String, String> {
        let json = |value: serde_json::Result<String>| value.unwrap_or_default();
        HashMap::from([
            (FORMAT.to_owned(), FORMAT_VERSION.to_owned()),
            (
                CLUSTER.to_owned(),
                self.cluster.get().hyphenated().to_string(),
            ),
            (TOPIC.to_owned(), self.topic.get().hyphenated().to_string()),
            (COMMIT.to_owned(), self.commit.hyphenated().to_string()),
            (UNTIL.to_owned(), json(serde_json::to_string(&self.until))),
            (ADDED.to_owned(), json(serde_json::to_string(added))),
        ])
    }

    /// Reads the mark of a table: that of the current snapshot or, where something else than us made that one
    /// (compaction by another engine changes no rows), of its nearest ancestor that has one.
    ///
    /// # Errors
    /// Why the table cannot be continued: no mark at all, or one that is not understood.
    pub fn read(metadata: &TableMetadata) -> Result<Self, String> {
        let mut next = metadata.current_snapshot();
        while let Some(snapshot) = next {
            if snapshot.summary().additional_properties.contains_key(UNTIL) {
                return Self::parse(snapshot);
            }
            next = snapshot
                .parent_snapshot_id()
                .and_then(|id| metadata.snapshot_by_id(id));
        }
        Err("no snapshot carries tidelog.archived-until".to_owned())
    }

    fn parse(snapshot: &Snapshot) -> Result<Self, String> {
        let keys = &snapshot.summary().additional_properties;
        let text = |key: &str| {
            keys.get(key)
                .map(String::as_str)
                .ok_or_else(|| format!("{key} is missing"))
        };
        let uuid =
            |key: &str| Uuid::try_parse(text(key)?).map_err(|error| format!("{key}: {error}"));
        let format = text(FORMAT)?;
        if format != FORMAT_VERSION {
            return Err(format!(
                "{FORMAT} is {format}; this version of tidelog knows {FORMAT_VERSION}: update it"
            ));
        }
        let until: BTreeMap<i32, i64> =
            serde_json::from_str(text(UNTIL)?).map_err(|error| format!("{UNTIL}: {error}"))?;
        if until
            .iter()
            .any(|(partition, offset)| *partition < 0 || *offset < 0)
        {
            return Err(format!("{UNTIL} holds a negative number"));
        }
        Ok(Self {
            cluster: ClusterId::new(uuid(CLUSTER)?),
            topic: TopicId::new(uuid(TOPIC)?),
            commit: uuid(COMMIT)?,
            until,
        })
    }

    /// What each snapshot that the metadata still holds added, oldest first. For checks of I14.
    ///
    /// # Errors
    /// When a summary is not understood.
    pub fn history(metadata: &TableMetadata) -> Result<Vec<Vec<Added>>, String> {
        let mut snapshots: Vec<_> = metadata.snapshots().collect();
        snapshots.sort_by_key(|snapshot| snapshot.sequence_number());
        snapshots
            .into_iter()
            .filter_map(|snapshot| snapshot.summary().additional_properties.get(ADDED))
            .map(|text| serde_json::from_str(text).map_err(|error| format!("{ADDED}: {error}")))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::schema;
    use iceberg::spec::{FormatVersion, Operation, Summary, TableMetadataBuilder};

    fn mark(until: i64) -> Mark {
        Mark {
            cluster: ClusterId::new(Uuid::from_u128(1)),
            topic: TopicId::new(Uuid::from_u128(2)),
            commit: Uuid::from_u128(3),
            until: BTreeMap::from([(0, until), (17, 0)]),
        }
    }

    /// A table whose snapshots have these summaries, oldest first.
    fn table(summaries: Vec<HashMap<String, String>>) -> TableMetadata {
        let schema = schema::iceberg_schema().unwrap();
        let order = schema::sort_order(&schema).unwrap();
        let day = schema::day_spec().unwrap();
        let place = "s3://b/t".to_owned();
        let version = FormatVersion::V2;
        let mut builder =
            TableMetadataBuilder::new(schema, day, order, place, version, HashMap::new()).unwrap();
        let count = i64::try_from(summaries.len()).unwrap();
        for (id, keys) in (1..=count).zip(summaries) {
            let summary = Summary {
                operation: Operation::Append,
                additional_properties: keys,
            };
            let snapshot = Snapshot::builder()
                .with_snapshot_id(id)
                .with_parent_snapshot_id((id > 1).then_some(id - 1))
                .with_sequence_number(id)
                .with_timestamp_ms(4_000_000_000_000)
                .with_manifest_list("s3://b/t/metadata/l.avro")
                .with_summary(summary)
                .build();
            builder = builder.set_branch_snapshot(snapshot, "main").unwrap();
        }
        builder.build().unwrap().metadata
    }

    /// Proves that a mark reads back as it was written.
    #[test]
    fn read_inverts_summary() {
        let written = mark(5);
        let metadata = table(vec![mark(3).summary(&[]), written.summary(&[])]);
        assert_eq!(Mark::read(&metadata).unwrap(), written);
    }

    /// Proves that a snapshot of another engine's compaction does not hide the mark below it, and that a table without
    /// any mark is refused and not taken for an empty one.
    #[test]
    fn the_nearest_mark_counts() {
        let foreign = HashMap::from([("engine-name".to_owned(), "spark".to_owned())]);
        let metadata = table(vec![
            mark(3).summary(&[]),
            mark(5).summary(&[]),
            foreign.clone(),
            foreign.clone(),
        ]);
        assert_eq!(Mark::read(&metadata).unwrap(), mark(5));
        assert!(Mark::read(&table(vec![foreign])).is_err());
        assert!(Mark::read(&table(vec![])).is_err());
    }

    /// Proves that a damaged mark is an error that names its key, never an empty mark.
    #[test]
    fn damaged_marks_are_refused() {
        for (key, value) in [
            (UNTIL, "{"),
            (UNTIL, "{\"0\":-1}"),
            (UNTIL, "{\"-1\":1}"),
            (UNTIL, "{\"x\":1}"),
            (CLUSTER, "x"),
            (TOPIC, ""),
            (COMMIT, "1"),
            (FORMAT, "2"),
        ] {
            let mut keys = mark(5).summary(&[]);
            keys.insert(key.to_owned(), value.to_owned());
            let error = Mark::read(&table(vec![keys])).unwrap_err();
            assert!(error.contains(key), "{error}");
        }
    }

    /// Proves that an account that does not add up is seen (I14).
    #[test]
    fn accounts_add_up() {
        let added = Added {
            partition: 0,
            from: 3,
            until: 10,
            rows: 4,
            skipped: 1,
            lost: 2,
        };
        assert!(added.is_complete());
        assert!(!Added { rows: 5, ..added }.is_complete());
    }
}
