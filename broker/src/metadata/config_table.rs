//! The table of topic configs: Kafka's names, types, ranges, defaults.
//!
//! Owns: which names exist and what a single value may be. The list is `TopicConfig` of kafka-clients 4.2, complete.
//! Not here: rules between values (`config_rules.rs`), reading them (`config_view.rs`).

/// Type of a config as DescribeConfigs reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigType {
    /// `true` or `false`.
    Boolean,
    /// Text.
    String,
    /// 32-bit number.
    Int,
    /// 64-bit number.
    Long,
    /// Number with a fraction.
    Double,
    /// Comma-separated texts.
    List,
}

/// What one value may be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ConfigKind {
    /// `true` or `false`, in any case.
    Boolean,
    /// A 32-bit number from the first to the second, inclusive.
    Int(i32, i32),
    /// A 32-bit number from the second to the third, or exactly the first.
    IntOr(i32, i32, i32),
    /// A 64-bit number from the first to the second, inclusive.
    Long(i64, i64),
    /// A number from the first to the second, inclusive.
    Double(f64, f64),
    /// One of these.
    OneOf(&'static [&'static str]),
    /// A list of some of these, at least one.
    ListOf(&'static [&'static str]),
}

/// Whether a value changes what Tidelog does. Every value is checked, stored and shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigEffect {
    /// It does; the text is a bound that the table cannot say, or empty.
    Yes(&'static str),
    /// It will; nothing enforces it in this version. The text says what happens instead.
    NotYet(&'static str),
    /// It never will: what it controls does not exist here.
    None,
}

/// One topic config.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ConfigDefinition {
    /// Kafka's name.
    pub name: &'static str,
    /// What a value may be.
    pub kind: ConfigKind,
    /// Value when the topic sets none.
    pub default: &'static str,
    /// Whether the value changes what Tidelog does.
    pub effect: ConfigEffect,
    /// A value that Kafka has and Tidelog refuses for now, with the reason.
    pub refused: Option<(&'static str, &'static str)>,
}

impl ConfigKind {
    /// The type that DescribeConfigs reports.
    #[must_use]
    pub const fn config_type(self) -> ConfigType {
        match self {
            Self::Boolean => ConfigType::Boolean,
            Self::Int(..) | Self::IntOr(..) => ConfigType::Int,
            Self::Long(..) => ConfigType::Long,
            Self::Double(..) => ConfigType::Double,
            Self::OneOf(_) => ConfigType::String,
            Self::ListOf(_) => ConfigType::List,
        }
    }
}

/// The definition of `name`.
#[must_use]
pub fn definition(name: &str) -> Option<&'static ConfigDefinition> {
    CONFIGS
        .binary_search_by(|entry| entry.name.cmp(name))
        .ok()
        .and_then(|at| CONFIGS.get(at))
}

const fn used(name: &'static str, kind: ConfigKind, default: &'static str) -> ConfigDefinition {
    ConfigDefinition {
        name,
        kind,
        default,
        effect: ConfigEffect::Yes(""),
        refused: None,
    }
}

const fn later(
    name: &'static str,
    kind: ConfigKind,
    default: &'static str,
    instead: &'static str,
) -> ConfigDefinition {
    let mut of = used(name, kind, default);
    of.effect = ConfigEffect::NotYet(instead);
    of
}

const fn shown(name: &'static str, kind: ConfigKind, default: &'static str) -> ConfigDefinition {
    let mut of = used(name, kind, default);
    of.effect = ConfigEffect::None;
    of
}

const fn bounded(mut of: ConfigDefinition, bound: &'static str) -> ConfigDefinition {
    of.effect = ConfigEffect::Yes(bound);
    of
}

const fn refusing(
    mut of: ConfigDefinition,
    value: &'static str,
    why: &'static str,
) -> ConfigDefinition {
    of.refused = Some((value, why));
    of
}

const LONG_MAX: &str = "9223372036854775807";
const CODECS: &[&str] = &["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"];

const NOTHING_DELETED: &str = "no record is deleted by age or size";
const LOCAL_BYTES: &str = "`tier.local-bytes` says how much stays local per group";
const CUTS: &str = "`tier.cut-bytes` and `tier.cut-interval-ms` say when segments are made";
const ENTRY: &str = "at most what a log entry takes: a quarter of `log.file-bytes`, 16 MiB at the most, less 80 bytes";

/// All topic configs, ascending by name.
pub const CONFIGS: &[ConfigDefinition] = &[
    refusing(
        later(
            "cleanup.policy",
            ConfigKind::ListOf(&["compact", "delete"]),
            "delete",
            NOTHING_DELETED,
        ),
        "compact",
        "log compaction is not built yet: only the full history with cleanup.policy=delete is kept",
    ),
    shown("compression.gzip.level", ConfigKind::IntOr(-1, 1, 9), "-1"),
    shown("compression.lz4.level", ConfigKind::Int(1, 17), "9"),
    shown("compression.type", ConfigKind::OneOf(CODECS), "producer"),
    shown("compression.zstd.level", ConfigKind::Int(-131_072, 22), "3"),
    shown(
        "delete.retention.ms",
        ConfigKind::Long(0, i64::MAX),
        "86400000",
    ),
    shown(
        "file.delete.delay.ms",
        ConfigKind::Long(0, i64::MAX),
        "60000",
    ),
    shown("flush.messages", ConfigKind::Long(1, i64::MAX), LONG_MAX),
    shown("flush.ms", ConfigKind::Long(0, i64::MAX), LONG_MAX),
    shown("index.interval.bytes", ConfigKind::Int(0, i32::MAX), "4096"),
    later(
        "local.retention.bytes",
        ConfigKind::Long(-2, i64::MAX),
        "-2",
        LOCAL_BYTES,
    ),
    later(
        "local.retention.ms",
        ConfigKind::Long(-2, i64::MAX),
        "-2",
        LOCAL_BYTES,
    ),
    shown(
        "max.compaction.lag.ms",
        ConfigKind::Long(1, i64::MAX),
        LONG_MAX,
    ),
    bounded(
        used("max.message.bytes", ConfigKind::Int(0, i32::MAX), "1048588"),
        ENTRY,
    ),
    shown("message.downconversion.enable", ConfigKind::Boolean, "true"),
    used(
        "message.timestamp.after.max.ms",
        ConfigKind::Long(0, i64::MAX),
        "3600000",
    ),
    used(
        "message.timestamp.before.max.ms",
        ConfigKind::Long(0, i64::MAX),
        LONG_MAX,
    ),
    used(
        "message.timestamp.type",
        ConfigKind::OneOf(&["CreateTime", "LogAppendTime"]),
        "CreateTime",
    ),
    shown(
        "min.cleanable.dirty.ratio",
        ConfigKind::Double(0.0, 1.0),
        "0.5",
    ),
    shown("min.compaction.lag.ms", ConfigKind::Long(0, i64::MAX), "0"),
    shown("min.insync.replicas", ConfigKind::Int(1, i32::MAX), "1"),
    shown("preallocate", ConfigKind::Boolean, "false"),
    refusing(
        used("remote.log.copy.disable", ConfigKind::Boolean, "false"),
        "true",
        "a topic that stops being tiered is not built yet: every topic goes to the object store",
    ),
    shown("remote.log.delete.on.disable", ConfigKind::Boolean, "false"),
    refusing(
        used("remote.storage.enable", ConfigKind::Boolean, "true"),
        "false",
        "a topic without tiered storage is not built yet: every topic goes to the object store",
    ),
    later(
        "retention.bytes",
        ConfigKind::Long(-1, i64::MAX),
        "-1",
        NOTHING_DELETED,
    ),
    later(
        "retention.ms",
        ConfigKind::Long(-1, i64::MAX),
        "604800000",
        NOTHING_DELETED,
    ),
    later(
        "segment.bytes",
        ConfigKind::Int(14, i32::MAX),
        "1073741824",
        CUTS,
    ),
    shown(
        "segment.index.bytes",
        ConfigKind::Int(4, i32::MAX),
        "10485760",
    ),
    shown("segment.jitter.ms", ConfigKind::Long(0, i64::MAX), "0"),
    later(
        "segment.ms",
        ConfigKind::Long(1, i64::MAX),
        "604800000",
        CUTS,
    ),
    shown(
        "unclean.leader.election.enable",
        ConfigKind::Boolean,
        "false",
    ),
];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::metadata::config_rules::check_value;

    /// Proves that the table is sorted (it is searched by halves), complete, and that every default is a legal value.
    #[test]
    fn table_is_sorted_and_defaults_are_legal() {
        assert!(CONFIGS.windows(2).all(|pair| pair[0].name < pair[1].name));
        assert_eq!(CONFIGS.len(), 32);
        for entry in CONFIGS {
            assert_eq!(definition(entry.name), Some(entry));
            check_value(entry, entry.default).unwrap();
        }
        assert_eq!(definition("retention"), None);
    }

    /// Proves that the table calls nothing effective that this version does not enforce: these and no others.
    #[test]
    fn only_what_is_enforced_is_called_effective() {
        let names = |wanted: fn(ConfigEffect) -> bool| -> Vec<&str> {
            let found = CONFIGS.iter().filter(|entry| wanted(entry.effect));
            found.map(|entry| entry.name).collect()
        };
        assert_eq!(
            names(|effect| matches!(effect, ConfigEffect::Yes(_))),
            [
                "max.message.bytes",
                "message.timestamp.after.max.ms",
                "message.timestamp.before.max.ms",
                "message.timestamp.type",
                "remote.log.copy.disable",
                "remote.storage.enable",
            ]
        );
        assert_eq!(
            names(|effect| matches!(effect, ConfigEffect::NotYet(_))),
            [
                "cleanup.policy",
                "local.retention.bytes",
                "local.retention.ms",
                "retention.bytes",
                "retention.ms",
                "segment.bytes",
                "segment.ms",
            ]
        );
    }

    /// The table as the documentation shows it.
    fn rendered() -> String {
        let mut text = String::from(
            "# Topic configs\n\nKafka's names (`TopicConfig` of kafka-clients 4.2). Every value is checked, stored and shown, so that tools \
             keep working;\nthe last column says whether it changes anything: **yes**, **not yet** (nothing enforces it in this \
             version), or **none**\n(what it controls does not exist here). This page is made from `broker/src/metadata/config_table.rs`; a test compares them.\n\n\
             | name | type | allowed | default | effect |\n|---|---|---|---|---|\n",
        );
        for entry in CONFIGS {
            let allowed = match entry.kind {
                ConfigKind::Boolean => "true, false".to_owned(),
                ConfigKind::Int(from, to) => format!("{from} to {to}"),
                ConfigKind::IntOr(or, from, to) => format!("{from} to {to}, or {or}"),
                ConfigKind::Long(from, to) => format!("{from} to {to}"),
                ConfigKind::Double(from, to) => format!("{from} to {to}"),
                ConfigKind::OneOf(list) | ConfigKind::ListOf(list) => list.join(", "),
            };
            let kind = format!("{:?}", entry.kind.config_type()).to_lowercase();
            let mut effect = match entry.effect {
                ConfigEffect::Yes("") => "yes".to_owned(),
                ConfigEffect::Yes(bound) => format!("yes; {bound}"),
                ConfigEffect::NotYet(instead) => format!("not yet: {instead}"),
                ConfigEffect::None => "none".to_owned(),
            };
            if let Some((value, why)) = entry.refused {
                effect.push_str(&format!(". `{value}` is refused: {why}"));
            }
            let (name, default) = (entry.name, entry.default);
            text.push_str(&format!(
                "| `{name}` | {kind} | {allowed} | {default} | {effect} |\n"
            ));
        }
        text
    }

    /// Proves that the documented table is the table in force.
    #[test]
    fn the_documentation_is_fresh() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../docs/operating/topic-configs.md"
        );
        if std::env::var_os("TIDELOG_WRITE_GOLDEN").is_some() {
            std::fs::write(path, rendered()).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap(), rendered());
    }
}
