//! Bytes of metadata outcomes, as the leader answers a broker that forwarded a command.
//!
//! Spec: docs/protocols/metadata-forwarding.md (outcome)

use super::apply::{MetadataOutcome, Refusal};
use super::command::ProducerIdBlock;
use super::format_command::{take_groups, take_store};
use super::image::Topic;
use crate::error::ErrorCode;
use crate::format::{FormatError, Reader, Writer};
use tidelog_model::{ClusterId, ProducerId, TimestampMs, TopicId};

const BOOTSTRAPPED: u8 = 1;
const BROKER_REGISTERED: u8 = 2;
const TOPIC_CREATED: u8 = 3;
const TOPIC_DELETED: u8 = 4;
const CONFIGS_SET: u8 = 5;
const PRODUCER_IDS: u8 = 6;
const REFUSED: u8 = 7;
const BROKER_FENCE_SET: u8 = 8;
const MEMBERS_CHANGED: u8 = 16;
const STORE_MARKED: u8 = 17;

const NOT_BOOTSTRAPPED: u8 = 1;
const TOPIC_EXISTS: u8 = 2;
const UNKNOWN_TOPIC: u8 = 3;
const OUTDATED: u8 = 4;

impl MetadataOutcome {
    /// Adds the outcome's bytes.
    pub fn encode(&self, to: &mut Writer) {
        match self {
            Self::Bootstrapped(cluster) => {
                to.u8(BOOTSTRAPPED);
                to.uuid(cluster.get());
            }
            Self::BrokerRegistered => to.u8(BROKER_REGISTERED),
            Self::MembersChanged => to.u8(MEMBERS_CHANGED),
            Self::TopicCreated(topic) => {
                to.u8(TOPIC_CREATED);
                to.uuid(topic.get());
            }
            Self::TopicDeleted(topic) => {
                to.u8(TOPIC_DELETED);
                to.text(&topic.name);
                to.i64(topic.created.get());
                to.count(topic.partitions.len());
                topic
                    .partitions
                    .iter()
                    .for_each(|group| to.u32(group.get()));
                to.text_map(&topic.configs);
            }
            Self::ConfigsSet(configs) => {
                to.u8(CONFIGS_SET);
                to.text_map(configs);
            }
            Self::ProducerIds(block) => {
                to.u8(PRODUCER_IDS);
                to.i64(block.first.get());
                to.i64(block.count);
            }
            Self::Refused(refusal) => {
                to.u8(REFUSED);
                let (what, text) = match refusal {
                    Refusal::NotBootstrapped => (NOT_BOOTSTRAPPED, String::new()),
                    Refusal::TopicExists(name) => (TOPIC_EXISTS, name.clone()),
                    Refusal::UnknownTopic => (UNKNOWN_TOPIC, String::new()),
                    Refusal::Outdated => (OUTDATED, String::new()),
                    other => (0, other.to_string()),
                };
                to.u8(what);
                to.u16(u16::from_le_bytes(refusal.code().code().to_le_bytes()));
                to.text(&text);
            }
            Self::BrokerFenceSet => to.u8(BROKER_FENCE_SET),
            Self::StoreMarked(store) => {
                to.u8(STORE_MARKED);
                to.uuid(store.get());
            }
        }
    }

    /// Reads an outcome.
    ///
    /// # Errors
    /// What is wrong with the bytes: then the outcome is not known.
    pub fn decode(from: &mut Reader<'_>) -> Result<Self, FormatError> {
        Ok(match from.u8("the outcome")? {
            BOOTSTRAPPED => Self::Bootstrapped(ClusterId::new(from.uuid("the cluster")?)),
            BROKER_REGISTERED => Self::BrokerRegistered,
            MEMBERS_CHANGED => Self::MembersChanged,
            TOPIC_CREATED => Self::TopicCreated(TopicId::new(from.uuid("the topic")?)),
            TOPIC_DELETED => Self::TopicDeleted(Topic {
                name: from.text("the topic's name")?,
                created: TimestampMs::new(from.i64("the stamp")?),
                partitions: take_groups(from)?,
                configs: from.text_map("the configs")?,
                // Not told: nobody writes to it any more.
                first_new_producer: ProducerId::new(0),
            }),
            CONFIGS_SET => Self::ConfigsSet(from.text_map("the configs")?),
            PRODUCER_IDS => Self::ProducerIds(ProducerIdBlock {
                first: ProducerId::new(from.natural("the first id")?),
                count: from.natural("the count")?,
            }),
            REFUSED => Self::Refused(refusal(from)?),
            BROKER_FENCE_SET => Self::BrokerFenceSet,
            STORE_MARKED => Self::StoreMarked(take_store(from)?),
            _ => return Err(FormatError::Invalid("the outcome")),
        })
    }
}

fn refusal(from: &mut Reader<'_>) -> Result<Refusal, FormatError> {
    let what = from.u8("the refusal")?;
    let number = i16::from_le_bytes(from.u16("the error code")?.to_le_bytes());
    let text = from.text("the refusal's text")?;
    Ok(match what {
        0 => Refusal::Told {
            code: ErrorCode::from_code(number).unwrap_or(ErrorCode::UnknownServerError),
            text,
        },
        NOT_BOOTSTRAPPED => Refusal::NotBootstrapped,
        TOPIC_EXISTS => Refusal::TopicExists(text),
        UNKNOWN_TOPIC => Refusal::UnknownTopic,
        OUTDATED => Refusal::Outdated,
        _ => return Err(FormatError::Invalid("the refusal")),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use std::collections::BTreeMap;
    use tidelog_model::{PlacementGroupId, StoreId};
    use uuid::Uuid;

    fn all() -> Vec<MetadataOutcome> {
        let configs = BTreeMap::from([("retention.ms".to_owned(), "1".to_owned())]);
        let topic = Topic {
            name: "t".to_owned(),
            created: TimestampMs::new(5),
            partitions: vec![PlacementGroupId::new(2), PlacementGroupId::new(1)],
            configs: configs.clone(),
            first_new_producer: ProducerId::new(0),
        };
        vec![
            MetadataOutcome::Bootstrapped(ClusterId::new(Uuid::from_u128(1))),
            MetadataOutcome::BrokerRegistered,
            MetadataOutcome::TopicCreated(TopicId::new(Uuid::from_u128(2))),
            MetadataOutcome::TopicDeleted(topic),
            MetadataOutcome::ConfigsSet(configs),
            MetadataOutcome::ProducerIds(ProducerIdBlock {
                first: ProducerId::new(1_000),
                count: 7,
            }),
            MetadataOutcome::Refused(Refusal::NotBootstrapped),
            MetadataOutcome::Refused(Refusal::TopicExists("t".to_owned())),
            MetadataOutcome::Refused(Refusal::UnknownTopic),
            MetadataOutcome::Refused(Refusal::Told {
                code: ErrorCode::PolicyViolation,
                text: "too many".to_owned(),
            }),
            MetadataOutcome::BrokerFenceSet,
        ]
    }

    fn bytes(outcomes: &[MetadataOutcome]) -> Vec<u8> {
        let mut to = Writer::new();
        outcomes.iter().for_each(|outcome| outcome.encode(&mut to));
        to.finish().to_vec()
    }

    /// Proves that the bytes are those of version 1, and that what is read is what was written.
    #[test]
    fn golden() {
        let golden = include_bytes!("testdata/metadata-outcomes-v1.bin");
        assert_eq!(bytes(&all()), golden);
        let mut from = Reader::new(golden);
        for outcome in all() {
            assert_eq!(MetadataOutcome::decode(&mut from).unwrap(), outcome);
        }
        from.finish().unwrap();
    }

    /// Proves that who is told that something was faster knows it from any other refusal: it looks again.
    #[test]
    fn outdated() {
        let outcome = MetadataOutcome::Refused(Refusal::Outdated);
        let whole = bytes(std::slice::from_ref(&outcome));
        assert_eq!(whole, [7, 4, 42, 0, 0, 0, 0, 0]);
        let told = MetadataOutcome::decode(&mut Reader::new(&whole)).unwrap();
        assert_eq!(told, outcome);
    }

    /// Proves the bytes of the outcome that names the cluster's store.
    #[test]
    fn a_marked_store() {
        let outcome = MetadataOutcome::StoreMarked(StoreId::new(Uuid::from_u128(258)));
        let whole = bytes(std::slice::from_ref(&outcome));
        assert_eq!(whole, [&[17][..], &[0; 14], &[1, 2]].concat());
        let told = MetadataOutcome::decode(&mut Reader::new(&whole)).unwrap();
        assert_eq!(told, outcome);
        for length in 0..whole.len() {
            assert!(MetadataOutcome::decode(&mut Reader::new(&whole[..length])).is_err());
        }
    }

    /// Proves that a cut answer is refused at every length, and that any other refusal keeps its code and its sentence.
    #[test]
    fn cuts_are_refused_and_sentences_kept() {
        for outcome in all() {
            let whole = bytes(std::slice::from_ref(&outcome));
            for length in 0..whole.len() {
                assert!(MetadataOutcome::decode(&mut Reader::new(&whole[..length])).is_err());
            }
        }
        let refusal = Refusal::Limit {
            what: "topics",
            max: 3,
        };
        let whole = bytes(&[MetadataOutcome::Refused(refusal.clone())]);
        let told = MetadataOutcome::decode(&mut Reader::new(&whole)).unwrap();
        let MetadataOutcome::Refused(told) = told else {
            panic!("{told:?}")
        };
        assert_eq!(
            (told.code(), told.to_string()),
            (refusal.code(), refusal.to_string())
        );
    }
}
