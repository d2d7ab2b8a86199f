//! Reading topic configs: what DescribeConfigs shows, and the typed values that the broker uses.

use super::config_rules::{number, parse_boolean};
use super::config_table::{CONFIGS, ConfigDefinition, definition};
use super::image::Topic;
use std::collections::BTreeMap;
use std::time::Duration;

/// Where a value comes from, with Kafka's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigSource {
    /// Set on the topic: `DYNAMIC_TOPIC_CONFIG`, 1.
    Topic,
    /// The table's: `DEFAULT_CONFIG`, 5.
    Default,
}

impl ConfigSource {
    /// Kafka's number on the wire.
    #[must_use]
    pub const fn code(self) -> i8 {
        match self {
            Self::Topic => 1,
            Self::Default => 5,
        }
    }
}

/// One line of DescribeConfigs.
#[derive(Debug, Clone, PartialEq)]
pub struct DescribedConfig {
    /// Its definition.
    pub definition: &'static ConfigDefinition,
    /// The value in force.
    pub value: String,
    /// Where it comes from. When it is [`ConfigSource::Topic`], the default is `definition.default`.
    pub source: ConfigSource,
}

/// All configs of a topic, or those in `names` (unknown ones are left out, as Kafka does), ascending by name.
#[must_use]
pub fn describe(topic: &Topic, names: Option<&[String]>) -> Vec<DescribedConfig> {
    let wanted = |name: &str| names.is_none_or(|names| names.iter().any(|asked| asked == name));
    let line = |definition: &'static ConfigDefinition| match topic.configs.get(definition.name) {
        Some(value) => DescribedConfig {
            definition,
            value: value.clone(),
            source: ConfigSource::Topic,
        },
        None => DescribedConfig {
            definition,
            value: definition.default.to_owned(),
            source: ConfigSource::Default,
        },
    };
    CONFIGS
        .iter()
        .filter(|entry| wanted(entry.name))
        .map(line)
        .collect()
}

/// `message.timestamp.type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimestampType {
    /// The producer's.
    CreateTime,
    /// The broker's stamp.
    LogAppendTime,
}

/// The configs that change what the broker does, typed, defaults filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectiveConfig {
    /// Largest batch in bytes.
    pub max_message_bytes: usize,
    /// Who sets timestamps.
    pub timestamp_type: TimestampType,
    /// How far a producer's timestamp may lie behind the broker's clock.
    pub timestamp_before_max: Duration,
    /// How far it may lie ahead.
    pub timestamp_after_max: Duration,
    /// Total retention by time; `None`: no limit.
    pub retention: Option<Duration>,
    /// Total retention by size of one partition; `None`: no limit.
    pub retention_bytes: Option<u64>,
    /// How long data stays on local disk after it is tiered; `None`: no limit.
    pub local_retention: Option<Duration>,
    /// How many bytes of one partition stay on local disk after they are tiered; `None`: no limit.
    pub local_retention_bytes: Option<u64>,
    /// Wanted size of a segment.
    pub segment_bytes: u64,
    /// Age at which a segment is cut though it is small.
    pub segment_age: Duration,
    /// Whether the topic is tiered.
    pub remote_storage: bool,
}

/// The values in force for a topic with these configs.
#[must_use]
pub fn effective(configs: &BTreeMap<String, String>) -> EffectiveConfig {
    let value = |name: &str| number(configs, name);
    let bounded = |name: &str| u64::try_from(value(name)).ok();
    let local = |local: &str, total: &str| {
        if value(local) == -2 {
            bounded(total)
        } else {
            bounded(local)
        }
    };
    let text = |name: &str| {
        configs
            .get(name)
            .map(String::as_str)
            .or_else(|| definition(name).map(|entry| entry.default))
            .unwrap_or("")
    };
    EffectiveConfig {
        max_message_bytes: usize::try_from(value("max.message.bytes")).unwrap_or(0),
        timestamp_type: match text("message.timestamp.type").trim() {
            "LogAppendTime" => TimestampType::LogAppendTime,
            _ => TimestampType::CreateTime,
        },
        timestamp_before_max: Duration::from_millis(
            bounded("message.timestamp.before.max.ms").unwrap_or(0),
        ),
        timestamp_after_max: Duration::from_millis(
            bounded("message.timestamp.after.max.ms").unwrap_or(0),
        ),
        retention: bounded("retention.ms").map(Duration::from_millis),
        retention_bytes: bounded("retention.bytes"),
        local_retention: local("local.retention.ms", "retention.ms").map(Duration::from_millis),
        local_retention_bytes: local("local.retention.bytes", "retention.bytes"),
        segment_bytes: bounded("segment.bytes").unwrap_or(0),
        segment_age: Duration::from_millis(bounded("segment.ms").unwrap_or(0)),
        remote_storage: parse_boolean(text("remote.storage.enable").trim()).unwrap_or(true),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use tidelog_model::{PlacementGroupId, TimestampMs};

    fn topic(pairs: &[(&str, &str)]) -> Topic {
        Topic {
            name: "t".into(),
            created: TimestampMs::new(0),
            partitions: vec![PlacementGroupId::new(1)],
            first_new_producer: tidelog_model::ProducerId::new(0),
            configs: pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
        }
    }

    /// Proves that DescribeConfigs shows every name, with the source that Kafka's clients check.
    #[test]
    fn describe_tells_the_source() {
        let topic = topic(&[("retention.ms", "5")]);
        let all = describe(&topic, None);
        assert_eq!(all.len(), CONFIGS.len());
        let retention = all
            .iter()
            .find(|line| line.definition.name == "retention.ms")
            .unwrap();
        assert_eq!(
            (retention.value.as_str(), retention.source.code()),
            ("5", 1)
        );
        let policy = all
            .iter()
            .find(|line| line.definition.name == "cleanup.policy")
            .unwrap();
        assert_eq!((policy.value.as_str(), policy.source.code()), ("delete", 5));
        let asked = ["segment.ms".to_owned(), "no.such".to_owned()];
        let some = describe(&topic, Some(&asked));
        assert_eq!(
            some.iter()
                .map(|line| line.definition.name)
                .collect::<Vec<_>>(),
            ["segment.ms"]
        );
    }

    /// Proves defaults, -1 as "no limit", and -2 as "as the whole".
    #[test]
    fn effective_values() {
        let defaults = effective(&BTreeMap::new());
        assert_eq!(defaults.max_message_bytes, 1_048_588);
        assert_eq!(defaults.retention, Some(Duration::from_hours(168)));
        assert_eq!(defaults.local_retention, defaults.retention);
        assert_eq!(defaults.retention_bytes, None);
        assert_eq!(defaults.timestamp_type, TimestampType::CreateTime);
        assert!(defaults.remote_storage);
        let own = effective(
            &topic(&[
                ("retention.ms", "-1"),
                ("local.retention.ms", "7"),
                ("retention.bytes", "9"),
                ("message.timestamp.type", "LogAppendTime"),
            ])
            .configs,
        );
        assert_eq!(own.retention, None);
        assert_eq!(own.local_retention, Some(Duration::from_millis(7)));
        assert_eq!(own.local_retention_bytes, Some(9));
        assert_eq!(own.timestamp_type, TimestampType::LogAppendTime);
    }
}
