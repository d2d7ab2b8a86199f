//! Names of topics that were deleted: what whoever takes such a name for a new topic has to know.
//!
//! Owns: what is remembered of them, how many, and its bytes in the snapshot.
//! Invariants: a name with a topic is not here; no broker can take records for a deleted topic whose name has a new one (I1); who may have
//! written to a topic of a name is known when it comes again (I3).
//! Not here: finding out that partitions are dropped (`router/dropped.rs`).
//! Spec: docs/formats/metadata-snapshot.md, docs/protocols/topics.md

use super::image::{MetadataImage, Topic};
use super::names::check_topic_name;
use super::{DELETED_MAX, PARTITIONS_MAX};
use crate::format::{FormatError, Reader, Writer, insert_ascending};
use std::collections::BTreeMap;
use tidelog_model::{LogIndex, PlacementGroupId, ProducerId, TopicId};

/// What is left of a topic that had the name last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletedTopic {
    /// Its id.
    pub id: TopicId,
    /// The entry that deleted it.
    pub at: LogIndex,
    /// The lowest producer id that had not been handed out then.
    pub first_new_producer: ProducerId,
    /// The placement group of each partition, in order.
    pub partitions: Vec<PlacementGroupId>,
}

/// What the proposer of a topic knows of who had its name before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameBefore {
    /// It did not look: commands of version 1.
    Unknown,
    /// Nobody who is remembered.
    Free,
    /// This topic, whose partitions all groups have dropped.
    Dropped(TopicId),
}

/// The deleted topics that are remembered, by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct DeletedTopics {
    by_name: BTreeMap<String, DeletedTopic>,
    /// Partitions of all of them.
    partitions: usize,
    /// The lowest producer id that had not been handed out when the newest of those was deleted that are not remembered any more.
    first_new_producer: i64,
}

impl DeletedTopics {
    /// Nothing is remembered, and any producer below `first_new` may have written to a topic of any name.
    pub(super) fn forgotten(first_new: i64) -> Self {
        Self {
            first_new_producer: first_new,
            ..Self::default()
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&DeletedTopic> {
        self.by_name.get(name)
    }

    /// Remembers a topic. The one that was deleted first is forgotten when there are too many.
    pub(super) fn remember(&mut self, name: String, topic: DeletedTopic) {
        self.partitions += topic.partitions.len();
        if let Some(before) = self.by_name.insert(name, topic) {
            self.partitions -= before.partitions.len();
        }
        while self.by_name.len() > DELETED_MAX || self.partitions > PARTITIONS_MAX {
            let oldest = self.by_name.iter().min_by_key(|(_, topic)| topic.at);
            let Some(name) = oldest.map(|(name, _)| name.clone()) else {
                break;
            };
            if let Some(oldest) = self.take(&name) {
                let first_new = oldest.first_new_producer.get();
                self.first_new_producer = self.first_new_producer.max(first_new);
            }
        }
    }

    /// The name has a topic again.
    fn take(&mut self, name: &str) -> Option<DeletedTopic> {
        let topic = self.by_name.remove(name)?;
        self.partitions -= topic.partitions.len();
        Some(topic)
    }

    pub(super) fn put(&self, to: &mut Writer) {
        to.i64(self.first_new_producer);
        to.count(self.by_name.len());
        for (name, topic) in &self.by_name {
            to.text(name);
            to.uuid(topic.id.get());
            to.u64(topic.at.get());
            to.i64(topic.first_new_producer.get());
            to.count(topic.partitions.len());
            let groups = topic.partitions.iter();
            groups.for_each(|group| to.u32(group.get()));
        }
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, FormatError> {
        let what = "the deleted topics";
        let mut deleted = Self::forgotten(from.natural("who is a new producer")?);
        let count = from.count(4 + 16 + 8 + 8 + 4, what)?;
        if count > DELETED_MAX {
            return Err(FormatError::Invalid(what));
        }
        for _ in 0..count {
            let name = from.text("the name of a deleted topic")?;
            check_topic_name(&name).map_err(|_| FormatError::Invalid(what))?;
            let topic = DeletedTopic {
                id: TopicId::new(from.uuid("a deleted topic")?),
                at: LogIndex::new(from.u64("its deletion")?),
                first_new_producer: ProducerId::new(from.natural("who was a new producer")?),
                partitions: super::format_command::take_groups(from)?,
            };
            deleted.partitions += topic.partitions.len();
            insert_ascending(&mut deleted.by_name, name, topic, what)?;
        }
        if deleted.partitions > PARTITIONS_MAX {
            return Err(FormatError::Invalid(what));
        }
        Ok(deleted)
    }
}

impl MetadataImage {
    /// The topic that had `name` last, if it was deleted and is remembered.
    #[must_use]
    pub fn deleted(&self, name: &str) -> Option<&DeletedTopic> {
        self.deleted.get(name)
    }

    /// The same by its id.
    #[must_use]
    pub fn deleted_topic(&self, id: TopicId) -> Option<&DeletedTopic> {
        let mut known = self.deleted.by_name.values();
        known.find(|topic| topic.id == id)
    }

    /// Whether a topic may have `name` whose proposer knows `before` of who had it.
    pub(super) fn knows_before(&self, name: &str, before: NameBefore) -> bool {
        let last = self.deleted(name).map(|topic| topic.id);
        match before {
            NameBefore::Unknown => true,
            NameBefore::Free => last.is_none(),
            NameBefore::Dropped(topic) => last == Some(topic),
        }
    }

    /// The lowest id of a producer that never wrote to a topic of `name`; the name is not remembered any more, for it has a topic again.
    pub(super) fn take_name(&mut self, name: &str) -> ProducerId {
        match self.deleted.take(name) {
            Some(topic) => topic.first_new_producer,
            None => ProducerId::new(self.deleted.first_new_producer),
        }
    }

    /// Remembers what was taken out just now.
    pub(super) fn remember_deleted(&mut self, id: TopicId, topic: &Topic) {
        let deleted = DeletedTopic {
            id,
            at: self.last.index,
            first_new_producer: ProducerId::new(self.next_producer_id),
            partitions: topic.partitions.clone(),
        };
        self.deleted.remember(topic.name.clone(), deleted);
    }
}

#[cfg(test)]
impl MetadataImage {
    /// What a reader of a snapshot up to version 6 makes of this state.
    pub(super) fn as_version_6_said(&mut self) {
        self.deleted = DeletedTopics::forgotten(self.next_producer_id);
        for topic in self.topics.values_mut() {
            topic.first_new_producer = ProducerId::new(i64::MAX);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::metadata::{MetadataCommand, MetadataOutcome, PRODUCER_ID_BLOCK, Refusal};
    use tidelog_model::{ClusterId, LogId, NodeId, Term, TimestampMs};
    use uuid::Uuid;

    const GROUP: PlacementGroupId = PlacementGroupId::new(1);

    struct Rig(MetadataImage);

    impl Rig {
        fn new() -> Self {
            let mut rig = Self(MetadataImage::default());
            rig.apply(MetadataCommand::BootstrapCluster {
                cluster: ClusterId::new(Uuid::from_u128(7)),
                name: "dev".into(),
                groups: BTreeMap::from([(GROUP, vec![NodeId::new(1)])]),
            });
            rig
        }

        fn apply(&mut self, command: MetadataCommand) -> MetadataOutcome {
            self.0.last = LogId {
                term: Term::new(1),
                index: LogIndex::new(self.0.last.index.get() + 1),
            };
            self.0.apply(command, TimestampMs::new(5))
        }

        fn create(&mut self, id: u128, name: &str, before: NameBefore) -> MetadataOutcome {
            self.apply(create(id, name, before))
        }

        fn delete(&mut self, id: u128) {
            let id = topic_id(id);
            let outcome = self.apply(MetadataCommand::DeleteTopic { id });
            assert!(matches!(outcome, MetadataOutcome::TopicDeleted(_)));
        }

        fn allocate(&mut self) {
            let node = NodeId::new(1);
            self.apply(MetadataCommand::AllocateProducerIds { node });
        }

        fn first_new(&self, id: u128) -> i64 {
            let topic = self.0.topic(topic_id(id)).unwrap();
            topic.first_new_producer.get()
        }
    }

    fn topic_id(id: u128) -> TopicId {
        TopicId::new(Uuid::from_u128(id))
    }

    fn create(id: u128, name: &str, before: NameBefore) -> MetadataCommand {
        MetadataCommand::CreateTopic {
            id: topic_id(id),
            name: name.into(),
            partitions: vec![GROUP; 2],
            configs: BTreeMap::new(),
            before,
        }
    }

    /// Proves that a name with a deleted topic goes only to whoever has seen that one dropped, that a repeated creation does not bring an id back,
    /// and who counts as a new producer of each.
    #[test]
    fn a_name_comes_again() {
        let created = |id| MetadataOutcome::TopicCreated(topic_id(id));
        let outdated = MetadataOutcome::Refused(Refusal::Outdated);
        let dropped = |id| NameBefore::Dropped(topic_id(id));
        let mut rig = Rig::new();
        assert_eq!(rig.create(1, "a", dropped(9)), outdated);
        assert_eq!(rig.create(1, "a", NameBefore::Free), created(1));
        rig.allocate();
        rig.delete(1);
        rig.allocate();
        assert_eq!(rig.0.deleted("a").unwrap().id, topic_id(1));
        for before in [NameBefore::Free, dropped(9)] {
            assert_eq!(rig.create(2, "a", before), outdated);
        }
        // The answer to the first creation was lost.
        assert_eq!(rig.create(1, "a", NameBefore::Free), created(1));
        assert_eq!(rig.0.topic_by_name("a"), None);
        assert_eq!(rig.create(2, "a", dropped(1)), created(2));
        assert_eq!(rig.0.deleted("a"), None);
        assert_eq!(rig.first_new(2), PRODUCER_ID_BLOCK);
        assert_eq!(rig.create(3, "b", NameBefore::Unknown), created(3));
        assert_eq!(rig.first_new(3), 0);
        rig.delete(2);
        assert_eq!(rig.create(4, "a", NameBefore::Unknown), created(4));
        assert_eq!(rig.first_new(4), 2 * PRODUCER_ID_BLOCK);
    }

    /// Proves that the bytes stay as released: of the command with what it knows of the name, and of a snapshot with what is remembered; that
    /// a name that has a topic is not remembered as well, and that no producer's id is negative.
    #[test]
    fn golden() {
        let stamp = TimestampMs::new(5);
        let commands: Vec<u8> = [NameBefore::Free, NameBefore::Dropped(topic_id(258))]
            .into_iter()
            .flat_map(|before| {
                let command = create(1, "a", before);
                let dir = command.encode(stamp).dir;
                let read = crate::metadata::decode_command(&dir).unwrap();
                assert_eq!(read, (command, stamp));
                for length in 0..dir.len() {
                    assert!(crate::metadata::decode_command(&dir[..length]).is_err());
                }
                dir
            })
            .collect();
        let mut rig = Rig::new();
        rig.create(1, "a", NameBefore::Free);
        rig.create(2, "b", NameBefore::Free);
        rig.allocate();
        rig.delete(1);
        rig.delete(2);
        rig.create(3, "b", NameBefore::Dropped(topic_id(2)));
        let snapshot = rig.0.encode();
        assert_eq!(MetadataImage::decode(&snapshot).unwrap(), rig.0);
        for length in 0..snapshot.len() {
            assert!(MetadataImage::decode(&snapshot[..length]).is_err());
        }
        for (name, bytes) in [
            ("metadata-creation-v2.bin", &commands[..]),
            ("metadata-snapshot-v7.bin", &snapshot[..]),
        ] {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/metadata/testdata");
            let path = format!("{folder}/{name}");
            if std::env::var_os("TIDELOG_WRITE_GOLDEN").is_some()
                && !std::fs::exists(&path).unwrap()
            {
                std::fs::write(&path, bytes).unwrap();
            }
            assert_eq!(std::fs::read(&path).unwrap(), bytes, "{name}");
        }
        let mut both = rig.0.clone();
        let remembered = both.deleted("a").unwrap().clone();
        both.deleted.remember("b".to_owned(), remembered);
        assert!(MetadataImage::decode(&both.encode()).is_err());
        refuses_negative(&rig.0);
    }

    /// No id below zero is taken for one of a producer, wherever one is read.
    fn refuses_negative(good: &MetadataImage) {
        let none = ProducerId::new(-1);
        let changes: [&dyn Fn(&mut MetadataImage); 4] = [
            &|image| image.next_producer_id = -1,
            &|image| image.deleted.first_new_producer = -1,
            &|image| {
                let topic = image.deleted.by_name.get_mut("a").unwrap();
                topic.first_new_producer = none;
            },
            &|image| {
                let topic = image.topics.get_mut(&topic_id(3)).unwrap();
                topic.first_new_producer = none;
            },
        ];
        for (at, change) in changes.iter().enumerate() {
            let mut wrong = good.clone();
            change(&mut wrong);
            assert!(MetadataImage::decode(&wrong.encode()).is_err(), "{at}");
        }
    }

    fn topic(at: u64, partitions: usize) -> DeletedTopic {
        DeletedTopic {
            id: TopicId::new(Uuid::from_u128(u128::from(at))),
            at: LogIndex::new(at),
            first_new_producer: ProducerId::new(i64::try_from(at).unwrap() * 10),
            partitions: vec![PlacementGroupId::new(3); partitions],
        }
    }

    fn read_back(deleted: &DeletedTopics) -> DeletedTopics {
        let mut to = Writer::new();
        deleted.put(&mut to);
        let bytes = to.finish();
        for length in 0..bytes.len() {
            let mut from = Reader::new(&bytes[..length]);
            assert!(DeletedTopics::read(&mut from).is_err(), "{length}");
        }
        let mut from = Reader::new(&bytes);
        let read = DeletedTopics::read(&mut from).unwrap();
        from.finish().unwrap();
        read
    }

    /// Proves that the first that was deleted is forgotten first, by number and by partitions; that whoever may have written to it counts for
    /// every name from then on; and that all of it outlives a snapshot.
    #[test]
    fn so_many_are_remembered() {
        let mut deleted = DeletedTopics::forgotten(7);
        for at in 1..=DELETED_MAX as u64 {
            // Names in another order than deletions.
            deleted.remember(format!("t{:04}", 5_000 - at), topic(at, 1));
        }
        assert_eq!(deleted.first_new_producer, 7);
        deleted.remember("t4999".to_owned(), topic(5_000, 1));
        assert_eq!(deleted.by_name.len(), DELETED_MAX);
        assert_eq!(deleted.first_new_producer, 7, "the same name again");
        deleted.remember("new".to_owned(), topic(5_001, 1));
        assert_eq!(deleted.get("t4998"), None);
        assert!(deleted.get("t4999").is_some() && deleted.get("t4997").is_some());
        assert_eq!(deleted.first_new_producer, 20);
        let mut few = DeletedTopics::default();
        few.remember("large".to_owned(), topic(1, PARTITIONS_MAX));
        few.remember("small".to_owned(), topic(2, 2));
        assert_eq!((few.get("large"), few.partitions), (None, 2));
        assert_eq!(few.take("small"), Some(topic(2, 2)));
        assert_eq!(few.partitions, 0);
        few.remember("small".to_owned(), topic(3, 2));
        assert_eq!(read_back(&few), few);
    }

    /// Proves that a snapshot with more than is remembered, a name twice, or one that no topic can have is refused.
    #[test]
    fn bad_lists_are_refused() {
        let refused = |names: &[&str], first_new: i64| {
            let mut to = Writer::new();
            to.i64(first_new);
            to.count(names.len());
            for name in names {
                to.text(name);
                to.uuid(Uuid::from_u128(1));
                to.u64(1);
                to.i64(1);
                to.count(0);
            }
            let bytes = to.finish();
            DeletedTopics::read(&mut Reader::new(&bytes)).is_err()
        };
        assert!(!refused(&["a", "b"], 0));
        assert!(refused(&["a", "b"], -1));
        assert!(refused(&["a", "a"], 0));
        assert!(refused(&["b", "a"], 0));
        assert!(refused(&["a/b"], 0));
        let many: Vec<String> = (0..=DELETED_MAX).map(|n| format!("{n:05}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(refused(&many, 0));
    }
}
