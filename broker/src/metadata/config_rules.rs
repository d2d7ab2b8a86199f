//! Whether topic configs are legal: each value by type and range, then the rules between values.
//!
//! Owns: `INVALID_CONFIG` and its text. Values are kept as the user wrote them, without surrounding blanks.

use super::TEXT_BYTES_MAX;
use super::command::{ConfigChange, ConfigOperation, ConfigSetMode};
use super::config_table::{CONFIGS, ConfigDefinition, ConfigKind, definition};
use std::collections::BTreeMap;

/// Why configs are refused (`INVALID_CONFIG`). Nothing is changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No such config.
    #[error("unknown topic config {name:?}{}", nearest.map(|name| format!("; did you mean {name:?}?")).unwrap_or_default())]
    Unknown {
        /// What was asked for.
        name: String,
        /// The most similar name that exists, when one is similar.
        nearest: Option<&'static str>,
    },
    /// Not a value of the config's type or range.
    #[error("invalid value {value:?} for {name}: {expected}")]
    Value {
        /// The config.
        name: &'static str,
        /// The value, shortened.
        value: String,
        /// What is allowed.
        expected: String,
    },
    /// Legal in Kafka, not supported here.
    #[error("{name}={value} is not supported: {why}")]
    Unsupported {
        /// The config.
        name: &'static str,
        /// The value.
        value: String,
        /// Why, and what there is instead.
        why: &'static str,
    },
    /// Two values contradict each other.
    #[error("{local} ({local_value}) may not be larger than {total} ({total_value})")]
    LocalAboveTotal {
        /// The config of the local part.
        local: &'static str,
        /// Its value.
        local_value: i64,
        /// The config of the whole.
        total: &'static str,
        /// Its value.
        total_value: i64,
    },
    /// Append or subtract on a config that is not a list.
    #[error("{0} is not a list: it can be set or deleted, not appended to or subtracted from")]
    NotAList(&'static str),
    /// The same config is named twice in one request.
    #[error("{0} is named more than once")]
    Twice(String),
}

/// The largest batch of a topic, bytes.
pub const MAX_MESSAGE_BYTES: &str = "max.message.bytes";

/// Checks all configs of a topic together.
pub fn check_configs(configs: &BTreeMap<String, String>) -> Result<(), ConfigError> {
    for (name, value) in configs {
        check_value(known(name)?, value)?;
    }
    check_local(configs, "local.retention.ms", "retention.ms")?;
    check_local(configs, "local.retention.bytes", "retention.bytes")
}

/// The configs that result from `changes`, checked as a whole.
///
/// # Errors
/// [`ConfigError`] names the config; nothing is changed.
pub fn changed(
    before: &BTreeMap<String, String>,
    mode: ConfigSetMode,
    changes: &[ConfigChange],
) -> Result<BTreeMap<String, String>, ConfigError> {
    let mut after = match mode {
        ConfigSetMode::Merge => before.clone(),
        ConfigSetMode::Replace => BTreeMap::new(),
    };
    let mut seen = std::collections::BTreeSet::new();
    for change in changes {
        let entry = known(&change.name)?;
        if !seen.insert(entry.name) {
            return Err(ConfigError::Twice(change.name.clone()));
        }
        match &change.operation {
            ConfigOperation::Set(value) => {
                after.insert(change.name.clone(), value.trim().to_owned());
            }
            ConfigOperation::Delete => {
                after.remove(&change.name);
            }
            ConfigOperation::Append(value) | ConfigOperation::Subtract(value) => {
                let ConfigKind::ListOf(_) = entry.kind else {
                    return Err(ConfigError::NotAList(entry.name));
                };
                check_value(entry, value)?;
                let mut list = elements(
                    after
                        .get(&change.name)
                        .map_or(entry.default, String::as_str),
                );
                let given = elements(value);
                list.retain(|element| !given.contains(element));
                if matches!(change.operation, ConfigOperation::Append(_)) {
                    list.extend(given);
                }
                after.insert(change.name.clone(), list.join(","));
            }
        }
    }
    check_configs(&after)?;
    Ok(after)
}

/// Checks a `max.message.bytes` against what one entry of a log takes. Not part of [`check_configs`]: the bound is a broker's,
/// and what is replicated is judged alike everywhere.
///
/// # Errors
/// [`ConfigError`] names the bound and what makes it.
pub fn check_message_bytes(value: &str, bytes_max: usize) -> Result<(), ConfigError> {
    let fits = value
        .trim()
        .parse::<usize>()
        .is_ok_and(|bytes| bytes <= bytes_max);
    if fits {
        return Ok(());
    }
    Err(ConfigError::Value {
        name: MAX_MESSAGE_BYTES,
        value: shortened(value),
        expected: format!(
            "must be a number from 0 to {bytes_max}: a batch has to fit an entry of the log, which takes a quarter of \
             log.file-bytes and 16 MiB at the most"
        ),
    })
}

fn known(name: &str) -> Result<&'static ConfigDefinition, ConfigError> {
    definition(name).ok_or_else(|| ConfigError::Unknown {
        name: shortened(name),
        nearest: nearest_name(name),
    })
}

/// Checks one value by type and range, and whether it is supported.
pub(super) fn check_value(entry: &ConfigDefinition, value: &str) -> Result<(), ConfigError> {
    let text = value.trim();
    let expected = match entry.kind {
        ConfigKind::Boolean => expect(parse_boolean(text).is_some(), || {
            "must be true or false".to_owned()
        }),
        ConfigKind::Int(from, to) => expect(in_range(text, i64::from(from), i64::from(to)), || {
            range(from, to)
        }),
        ConfigKind::IntOr(or, from, to) => {
            let fits = in_range(text, i64::from(from), i64::from(to))
                || in_range(text, i64::from(or), i64::from(or));
            expect(fits, || format!("{}, or {or}", range(from, to)))
        }
        ConfigKind::Long(from, to) => expect(in_range(text, from, to), || range(from, to)),
        ConfigKind::Double(from, to) => expect(
            text.parse::<f64>()
                .is_ok_and(|number| number >= from && number <= to),
            || range(from, to),
        ),
        ConfigKind::OneOf(allowed) => expect(allowed.contains(&text), || {
            format!("must be one of {}", allowed.join(", "))
        }),
        ConfigKind::ListOf(allowed) => {
            let list = elements(text);
            let fits = !list.is_empty()
                && list
                    .iter()
                    .all(|element| allowed.contains(&element.as_str()));
            expect(fits, || format!("must be a list of {}", allowed.join(", ")))
        }
    };
    if value.len() > TEXT_BYTES_MAX {
        let expected = format!("longer than {TEXT_BYTES_MAX} bytes");
        return Err(ConfigError::Value {
            name: entry.name,
            value: shortened(value),
            expected,
        });
    }
    if let Err(expected) = expected {
        return Err(ConfigError::Value {
            name: entry.name,
            value: shortened(value),
            expected,
        });
    }
    match entry.refused {
        Some((refused, why))
            if elements(text)
                .iter()
                .any(|element| element.eq_ignore_ascii_case(refused)) =>
        {
            Err(ConfigError::Unsupported {
                name: entry.name,
                value: text.to_owned(),
                why,
            })
        }
        _ => Ok(()),
    }
}

fn expect(fits: bool, expected: impl FnOnce() -> String) -> Result<(), String> {
    if fits { Ok(()) } else { Err(expected()) }
}

fn range(from: impl std::fmt::Display, to: impl std::fmt::Display) -> String {
    format!("must be a number from {from} to {to}")
}

fn in_range(text: &str, from: i64, to: i64) -> bool {
    text.parse::<i64>()
        .is_ok_and(|number| number >= from && number <= to)
}

/// A boolean as Kafka reads it.
pub(super) fn parse_boolean(text: &str) -> Option<bool> {
    if text.eq_ignore_ascii_case("true") {
        Some(true)
    } else if text.eq_ignore_ascii_case("false") {
        Some(false)
    } else {
        None
    }
}

/// The elements of a list value.
fn elements(text: &str) -> Vec<String> {
    text.split(',')
        .map(str::trim)
        .filter(|element| !element.is_empty())
        .map(str::to_owned)
        .collect()
}

/// -2 means "as the whole"; -1 means "no limit".
fn check_local(
    configs: &BTreeMap<String, String>,
    local: &'static str,
    total: &'static str,
) -> Result<(), ConfigError> {
    let local_value = number(configs, local);
    let total_value = number(configs, total);
    let above = match (local_value, total_value) {
        (-2, _) | (_, -1) => false,
        (-1, _) => true,
        (part, whole) => part > whole,
    };
    if above {
        Err(ConfigError::LocalAboveTotal {
            local,
            local_value,
            total,
            total_value,
        })
    } else {
        Ok(())
    }
}

/// The number in force, from the topic or the table. 0 for a name without a number, which no caller has.
pub(super) fn number(configs: &BTreeMap<String, String>, name: &str) -> i64 {
    let own = configs.get(name).and_then(|text| text.trim().parse().ok());
    own.or_else(|| definition(name).and_then(|entry| entry.default.parse().ok()))
        .unwrap_or(0)
}

fn shortened(text: &str) -> String {
    text.chars().take(100).collect()
}

/// The known name that is most similar to `name`: by edit distance, at most a third of its length away.
#[must_use]
pub fn nearest_name(name: &str) -> Option<&'static str> {
    if name.len() > 64 {
        return None;
    }
    let lower = name.to_ascii_lowercase().replace('_', ".");
    let scored = CONFIGS.iter().map(|entry| {
        (
            distance(lower.as_bytes(), entry.name.as_bytes()),
            entry.name,
        )
    });
    let (distance, nearest) = scored.min()?;
    (distance <= (nearest.len() / 3).max(1)).then_some(nearest)
}

/// Levenshtein distance; both sides are short.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (y, cell) in b.iter().zip(row.iter_mut().skip(1)) {
            let above = *cell;
            let best = (diagonal + usize::from(x != y))
                .min(above + 1)
                .min(left + 1);
            diagonal = above;
            left = best;
            *cell = best;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    fn change(name: &str, operation: ConfigOperation) -> ConfigChange {
        ConfigChange {
            name: name.to_owned(),
            operation,
        }
    }

    /// Proves that values are checked by type and range at their borders.
    #[test]
    fn values_are_checked() {
        for (name, value) in [
            ("retention.ms", "-1"),
            ("retention.ms", " 5 "),
            ("retention.bytes", "9223372036854775807"),
            ("compression.type", "zstd"),
            ("compression.gzip.level", "-1"),
            ("min.cleanable.dirty.ratio", "0.25"),
            ("preallocate", "TRUE"),
            ("cleanup.policy", "delete"),
            ("message.timestamp.type", "LogAppendTime"),
        ] {
            assert_eq!(
                check_configs(&map(&[(name, value)])),
                Ok(()),
                "{name}={value}"
            );
        }
        for (name, value) in [
            ("retention.ms", "abc"),
            ("retention.ms", ""),
            ("retention.ms", "-2"),
            ("retention.bytes", "9223372036854775808"),
            ("max.message.bytes", "2147483648"),
            ("max.message.bytes", "-1"),
            ("compression.type", "brotli"),
            ("compression.gzip.level", "0"),
            ("compression.gzip.level", "10"),
            ("min.cleanable.dirty.ratio", "1.5"),
            ("min.cleanable.dirty.ratio", "NaN"),
            ("preallocate", "yes"),
            ("cleanup.policy", ""),
            ("cleanup.policy", "delete,shrink"),
            ("message.timestamp.type", "createtime"),
        ] {
            let error = check_configs(&map(&[(name, value)])).unwrap_err();
            assert!(
                matches!(error, ConfigError::Value { .. }),
                "{name}={value}: {error}"
            );
        }
        let long = "1".repeat(TEXT_BYTES_MAX + 1);
        assert!(matches!(
            check_configs(&map(&[("retention.ms", &long)])),
            Err(ConfigError::Value { .. })
        ));
    }

    /// Proves that the largest batch is bounded by what a log entry takes, and that the error says so.
    #[test]
    fn batches_must_fit_an_entry() {
        assert_eq!(check_message_bytes(" 2097072 ", 2_097_072), Ok(()));
        for value in ["2097073", "2147483647", "-1", "x"] {
            let error = check_message_bytes(value, 2_097_072)
                .unwrap_err()
                .to_string();
            assert!(error.contains("max.message.bytes"), "{error}");
            assert!(error.contains("from 0 to 2097072"), "{error}");
            assert!(error.contains("log.file-bytes"), "{error}");
        }
    }

    /// Proves that an unknown name is refused with the nearest known one (R: "did you mean").
    #[test]
    fn unknown_names_suggest_the_nearest() {
        let error = check_configs(&map(&[("retention.m", "1")])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown topic config \"retention.m\"; did you mean \"retention.ms\"?"
        );
        assert_eq!(nearest_name("RETENTION_MS"), Some("retention.ms"));
        assert_eq!(nearest_name("cleanup.polcy"), Some("cleanup.policy"));
        assert_eq!(nearest_name("kitchen.sink"), None);
        assert_eq!(nearest_name(&"r".repeat(100_000)), None);
        let error = check_configs(&map(&[("kitchen.sink", "1")])).unwrap_err();
        assert_eq!(error.to_string(), "unknown topic config \"kitchen.sink\"");
    }

    /// Proves that compaction and untiered topics are refused clearly until they are built (R4).
    #[test]
    fn unbuilt_values_are_refused_with_a_reason() {
        for (name, value) in [
            ("cleanup.policy", "compact"),
            ("cleanup.policy", "compact,delete"),
            ("remote.storage.enable", "False"),
            ("remote.log.copy.disable", "true"),
        ] {
            let error = check_configs(&map(&[(name, value)])).unwrap_err();
            assert!(
                matches!(error, ConfigError::Unsupported { .. }),
                "{name}={value}"
            );
            assert!(error.to_string().contains("not built yet"));
        }
    }

    /// Proves that local retention may not exceed total retention, with Kafka's meanings of -1 and -2.
    #[test]
    fn local_is_at_most_total() {
        let check = |local: &str, total: &str| {
            check_configs(&map(&[
                ("local.retention.ms", local),
                ("retention.ms", total),
            ]))
            .is_ok()
        };
        assert!(check("-2", "1"));
        assert!(check("5", "5"));
        assert!(check("5", "-1"));
        assert!(check("-1", "-1"));
        assert!(!check("6", "5"));
        assert!(!check("-1", "5"));
        // Against the default of seven days:
        assert!(check_configs(&map(&[("local.retention.ms", "604800001")])).is_err());
        assert!(check_configs(&map(&[("local.retention.bytes", "604800001")])).is_ok());
    }

    /// Proves merge, replace, delete, append and subtract, and that a bad change changes nothing.
    #[test]
    fn changes_follow_incremental_alter_configs() {
        let before = map(&[("retention.ms", "5"), ("segment.ms", "7")]);
        let set = change("retention.ms", ConfigOperation::Set(" 6 ".into()));
        let merged = changed(&before, ConfigSetMode::Merge, std::slice::from_ref(&set)).unwrap();
        assert_eq!(merged, map(&[("retention.ms", "6"), ("segment.ms", "7")]));
        let replaced =
            changed(&before, ConfigSetMode::Replace, std::slice::from_ref(&set)).unwrap();
        assert_eq!(replaced, map(&[("retention.ms", "6")]));
        let deleted = change("segment.ms", ConfigOperation::Delete);
        assert_eq!(
            changed(&before, ConfigSetMode::Merge, &[deleted]).unwrap(),
            map(&[("retention.ms", "5")])
        );
        let append = change("cleanup.policy", ConfigOperation::Append("delete".into()));
        let appended = changed(&before, ConfigSetMode::Merge, &[append]).unwrap();
        assert_eq!(
            appended.get("cleanup.policy").map(String::as_str),
            Some("delete")
        );
        let subtract = change("cleanup.policy", ConfigOperation::Subtract("delete".into()));
        assert!(matches!(
            changed(&before, ConfigSetMode::Merge, &[subtract]),
            Err(ConfigError::Value { .. })
        ));
        let wrong = change("retention.ms", ConfigOperation::Append("1".into()));
        assert_eq!(
            changed(&before, ConfigSetMode::Merge, &[wrong]),
            Err(ConfigError::NotAList("retention.ms"))
        );
        let twice = changed(&before, ConfigSetMode::Merge, &[set.clone(), set]);
        assert_eq!(twice, Err(ConfigError::Twice("retention.ms".into())));
    }
}
