//! Bytes of the metadata snapshot.
//!
//! Spec: docs/formats/metadata-snapshot.md

use super::deleted::DeletedTopics;
use super::format_command::{put_address, take_address, take_groups, take_store};
use super::format_membership::{
    put_departed, put_members, put_preferred, put_replicas, take_departed, take_lost, take_members,
    take_preferred, take_replicas,
};
use super::image::{Broker, MetadataImage, SLOTS, Topic};
use super::names::{check_topic_name, collision_key};
use super::{PARTITIONS_MAX, TOPIC_PARTITIONS_MAX};
use crate::format::{FormatError, Reader, Writer, insert_ascending, open};
use bytes::Bytes;
use tidelog_model::{
    ClusterId, LogId, LogIndex, NodeId, PlacementGroupId, ProducerId, Term, TimestampMs, TopicId,
};

const MAGIC: [u8; 8] = *b"TLMETA\0\0";
const VERSION: u16 = 7;
/// The last version without fences: all brokers lived.
const VERSION_WITHOUT_FENCES: u16 = 1;
/// The first version that knows members, moves and preferred leaders.
const VERSION_WITH_MEMBERS: u16 = 3;
/// The first version that remembers who has left.
const VERSION_WITH_DEPARTED: u16 = 4;
/// The first version that knows lost groups.
const VERSION_WITH_LOST: u16 = 5;
/// The first version that knows the cluster's store.
const VERSION_WITH_STORE: u16 = 6;
/// The first version that remembers deleted topics, and says who may have written to a topic of a name before.
const VERSION_WITH_DELETED: u16 = 7;

impl MetadataImage {
    /// The whole state. Equal states have equal bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut to = Writer::new();
        to.u64(self.last.term.get());
        to.u64(self.last.index.get());
        to.i64(self.stamp.get());
        match &self.cluster {
            None => to.u8(0),
            Some((id, name)) => {
                to.u8(1);
                to.uuid(id.get());
                to.text(name);
            }
        }
        to.i64(self.next_producer_id);
        put_replicas(&mut to, &self.groups);
        for slot in 0..SLOTS {
            to.u32(self.slots.get(slot).map_or(0, |group| group.get()));
        }
        to.count(self.brokers.len());
        for (node, broker) in &self.brokers {
            to.i32(node.get());
            to.text(&broker.zone);
            for address in [&broker.kafka, &broker.peer, &broker.admin] {
                put_address(&mut to, address.as_ref());
            }
            to.i64(broker.registered.get());
            to.u8(u8::from(broker.fenced.is_some()));
            if let Some(since) = broker.fenced {
                to.i64(since.get());
            }
        }
        to.count(self.topics.len());
        for (id, topic) in &self.topics {
            to.uuid(id.get());
            to.text(&topic.name);
            to.i64(topic.created.get());
            to.count(topic.partitions.len());
            topic
                .partitions
                .iter()
                .for_each(|group| to.u32(group.get()));
            to.text_map(&topic.configs);
            to.i64(topic.first_new_producer.get());
        }
        put_members(&mut to, self);
        put_preferred(&mut to, self);
        put_departed(&mut to, self);
        put_replicas(&mut to, &self.lost);
        to.u8(u8::from(self.store.is_some()));
        if let Some(store) = self.store {
            to.uuid(store.get());
        }
        self.deleted.put(&mut to);
        to.seal(MAGIC, VERSION)
    }

    /// Reads what [`MetadataImage::encode`] wrote.
    ///
    /// # Errors
    /// What is wrong with the bytes; nothing of them is used.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let (version, mut from) = open(bytes, MAGIC, VERSION, "metadata snapshot")?;
        let mut image = Self {
            last: LogId {
                term: Term::new(from.u64("the last term")?),
                index: LogIndex::new(from.u64("the last index")?),
            },
            stamp: TimestampMs::new(from.i64("the stamp")?),
            ..Self::default()
        };
        if from.flag("the presence of the cluster")? {
            let id = ClusterId::new(from.uuid("the cluster")?);
            image.cluster = Some((id, from.text("the cluster's name")?));
        }
        image.next_producer_id = from.natural("the next producer id")?;
        image.groups = take_replicas(&mut from)?;
        take_slots(&mut from, &mut image)?;
        for _ in 0..from.count(4 + 4 + 3 + 8, "the brokers")? {
            let node = NodeId::new(from.natural_i32("a broker")?);
            let broker = take_broker(&mut from, version)?;
            insert_ascending(&mut image.brokers, node, broker, "the brokers")?;
        }
        for _ in 0..from.count(16 + 4 + 8 + 4 + 4, "the topics")? {
            take_topic(&mut from, &mut image, version)?;
        }
        if version >= VERSION_WITH_MEMBERS {
            take_members(&mut from, &mut image)?;
            take_preferred(&mut from, &mut image)?;
        }
        if version >= VERSION_WITH_DEPARTED {
            take_departed(&mut from, &mut image)?;
        }
        if version >= VERSION_WITH_LOST {
            take_lost(&mut from, &mut image)?;
        }
        if version >= VERSION_WITH_STORE && from.flag("the presence of the store")? {
            image.store = Some(take_store(&mut from)?);
        }
        image.deleted = match version {
            VERSION_WITH_DELETED.. => DeletedTopics::read(&mut from)?,
            _ => DeletedTopics::forgotten(image.next_producer_id),
        };
        if image.names.keys().any(|name| image.deleted(name).is_some()) {
            return Err(FormatError::Invalid("the deleted topics"));
        }
        from.finish()?;
        Ok(image)
    }
}

fn take_slots(from: &mut Reader<'_>, image: &mut MetadataImage) -> Result<(), FormatError> {
    let slots: Vec<_> = (0..SLOTS)
        .map(|_| from.u32("a slot").map(PlacementGroupId::new))
        .collect::<Result<_, _>>()?;
    if image.cluster.is_some() {
        if slots.iter().any(|group| !image.groups.contains_key(group)) {
            return Err(FormatError::Invalid("a slot"));
        }
        image.slots = slots;
    } else if slots.iter().any(|group| group.get() != 0) {
        return Err(FormatError::Invalid("a slot"));
    }
    Ok(())
}

fn take_broker(from: &mut Reader<'_>, version: u16) -> Result<Broker, FormatError> {
    Ok(Broker {
        zone: from.text("the zone")?,
        kafka: take_address(from)?,
        peer: take_address(from)?,
        admin: take_address(from)?,
        registered: TimestampMs::new(from.i64("the registration")?),
        fenced: if version > VERSION_WITHOUT_FENCES && from.flag("the fence")? {
            Some(TimestampMs::new(from.i64("the fence's stamp")?))
        } else {
            None
        },
    })
}

fn take_topic(
    from: &mut Reader<'_>,
    image: &mut MetadataImage,
    version: u16,
) -> Result<(), FormatError> {
    let id = TopicId::new(from.uuid("a topic")?);
    let topic = Topic {
        name: from.text("a topic's name")?,
        created: TimestampMs::new(from.i64("a topic's creation")?),
        partitions: take_groups(from)?,
        configs: from.text_map("a topic's configs")?,
        first_new_producer: ProducerId::new(match version {
            VERSION_WITH_DELETED.. => from.natural("a topic's first new producer")?,
            _ => i64::MAX,
        }),
    };
    let ascending = image
        .topics
        .last_key_value()
        .is_none_or(|(last, _)| *last < id);
    if !ascending || check_topic_name(&topic.name).is_err() {
        return Err(FormatError::Invalid("a topic"));
    }
    if image.collisions.contains_key(&collision_key(&topic.name)) {
        return Err(FormatError::Invalid("a topic's name"));
    }
    let count = topic.partitions.len();
    let placed = topic
        .partitions
        .iter()
        .all(|group| image.groups.contains_key(group));
    if count == 0
        || count > TOPIC_PARTITIONS_MAX
        || image.partition_count + count > PARTITIONS_MAX
        || !placed
    {
        return Err(FormatError::Invalid("a topic's partitions"));
    }
    image.insert_topic(id, topic);
    Ok(())
}
