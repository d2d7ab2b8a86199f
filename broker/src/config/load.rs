//! Loading the configuration: file, environment and `--set` over the defaults, then checked.
//!
//! Owns: precedence and the errors a user sees.
//! Not here: the keys (`keys`).

use super::keys::{self, KEYS, Key, Kind};
use super::{Config, LOG_FILE_BYTES_MIN, Raft};
use std::collections::BTreeMap;
use std::path::PathBuf;
use toml::{Table, Value};

/// Where settings come from.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Text of the TOML file and its name, if there is one.
    pub file: Option<(PathBuf, String)>,
    /// Environment variables (only `TIDELOG_*` are looked at).
    pub environment: BTreeMap<String, String>,
    /// `--set key=value`, in order.
    pub set: Vec<String>,
}

/// Why the configuration cannot be used. The text says which key and what to do.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct ConfigError(String);

impl ConfigError {
    pub(super) fn new(text: String) -> Self {
        Self(text)
    }
}

fn wrong<T>(text: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError(text.into()))
}

impl Config {
    /// The configuration of `sources`.
    ///
    /// # Errors
    /// [`ConfigError`] naming the key (or the file) and what it expects.
    pub fn load(sources: &Sources) -> Result<Self, ConfigError> {
        let mut root = Table::new();
        for key in KEYS {
            insert(&mut root, key, parse(key, key.default)?);
        }
        if let Some((path, text)) = &sources.file {
            let file: Table = text
                .parse()
                .map_err(|error| ConfigError(format!("config file {}: {error}", path.display())))?;
            merge_file(&mut root, file, &path.display().to_string())?;
        }
        for key in KEYS {
            if let Some(text) = sources.environment.get(&keys::environment_name(key)) {
                insert(&mut root, key, parse(key, text)?);
            }
        }
        for setting in &sources.set {
            let Some((name, text)) = setting.split_once('=') else {
                return wrong(format!(
                    "--set {setting}: expected key=value, for example --set store.path-style=true"
                ));
            };
            let Some(key) = keys::find(name.trim()) else {
                return wrong(unknown(name.trim(), "--set"));
            };
            insert(&mut root, key, parse(key, text)?);
        }
        let mut config: Self = root
            .try_into()
            .map_err(|error: toml::de::Error| ConfigError(error.to_string()))?;
        if config.cluster.data_groups == 0 {
            let brokers = config.cluster.seeds.len().max(1);
            config.cluster.data_groups = u32::try_from(2 * brokers).unwrap_or(u32::MAX);
        }
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        if self.node.id < 1 {
            return wrong(format!(
                "node.id = {}: a broker id is at least 1",
                self.node.id
            ));
        }
        if !(1..=1024).contains(&self.node.zone.len()) {
            return wrong("node.zone is empty or too long: name the zone, with at most 1024 bytes");
        }
        self.check_addresses()?;
        self.check_seeds()?;
        self.check_peer_tls()?;
        if !(1..=64).contains(&self.cluster.data_groups) {
            return wrong(format!(
                "cluster.data-groups = {}: between 1 and 64",
                self.cluster.data_groups
            ));
        }
        if !(1000..=600_000).contains(&self.cluster.session_ms) {
            return wrong(format!(
                "cluster.session-ms = {}: between 1000 and 600000",
                self.cluster.session_ms
            ));
        }
        if self.kafka.max_connections == 0 {
            return wrong("kafka.max-connections = 0: at least 1, or no client could connect");
        }
        if !(1..=10_000).contains(&self.kafka.default_partitions) {
            return wrong(format!(
                "kafka.default-partitions = {}: between 1 and 10000",
                self.kafka.default_partitions
            ));
        }
        if !(LOG_FILE_BYTES_MIN..=(1 << 30)).contains(&self.log.file_bytes) {
            return wrong(format!(
                "log.file-bytes = {}: between {LOG_FILE_BYTES_MIN} and 1073741824 (a quarter of it must hold the largest batch)",
                self.log.file_bytes
            ));
        }
        if !((64 << 10)..=(1 << 30)).contains(&self.kafka.max_request_bytes) {
            return wrong(format!(
                "kafka.max-request-bytes = {}: between 65536 and 1073741824",
                self.kafka.max_request_bytes
            ));
        }
        if self.tier.cut_bytes == 0
            || self.tier.cut_interval_ms == 0
            || self.archive.interval_ms == 0
        {
            return wrong(
                "tier.cut-bytes, tier.cut-interval-ms and archive.interval-ms are at least 1",
            );
        }
        check_raft(self.raft)
    }
}

/// A late heartbeat or two must not begin an election, and two followers must not campaign at the same time again and again.
fn check_raft(raft: Raft) -> Result<(), ConfigError> {
    let Raft {
        heartbeat_ms: heartbeat,
        election_min_ms: min,
        election_max_ms: max,
    } = raft;
    if !(20..=10_000).contains(&heartbeat) {
        return wrong(format!(
            "raft.heartbeat-ms = {heartbeat}: between 20 and 10000"
        ));
    }
    if min < 3 * heartbeat {
        return wrong(format!(
            "raft.election-min-ms = {min}: at least three times raft.heartbeat-ms ({heartbeat})"
        ));
    }
    if !(min.saturating_add(min / 5)..=60_000).contains(&max) {
        return wrong(format!(
            "raft.election-max-ms = {max}: at least a fifth more than raft.election-min-ms ({min}), and at most 60000"
        ));
    }
    Ok(())
}

fn unknown(name: &str, place: &str) -> String {
    let near = KEYS
        .iter()
        .map(|key| key.name)
        .find(|known| known.rsplit('.').next() == name.rsplit('.').next());
    match near {
        Some(near) => format!("{place}: unknown key {name}; did you mean {near}?"),
        None => {
            format!("{place}: unknown key {name}; docs/operating/configuration.md lists all keys")
        }
    }
}

fn parse(key: &Key, text: &str) -> Result<Value, ConfigError> {
    let text = text.trim();
    match key.kind {
        Kind::Text => Ok(Value::String(text.to_owned())),
        Kind::Number => match text.parse::<i64>() {
            Ok(number) if number >= 0 => Ok(Value::Integer(number)),
            _ => wrong(format!(
                "{} = {text}: expected a whole number that is not negative",
                key.name
            )),
        },
        Kind::Flag => match text {
            "true" => Ok(Value::Boolean(true)),
            "false" => Ok(Value::Boolean(false)),
            _ => wrong(format!("{} = {text}: expected true or false", key.name)),
        },
        Kind::List => Ok(Value::Array(
            text.split(',')
                .map(str::trim)
                .filter(|item| !item.is_empty())
                .map(|item| Value::String(item.to_owned()))
                .collect(),
        )),
    }
}

fn insert(root: &mut Table, key: &Key, value: Value) {
    let (section, name) = key.name.split_once('.').unwrap_or(("", key.name));
    let entry = root
        .entry(section)
        .or_insert_with(|| Value::Table(Table::new()));
    if let Value::Table(table) = entry {
        table.insert(name.to_owned(), value);
    }
}

fn merge_file(root: &mut Table, file: Table, place: &str) -> Result<(), ConfigError> {
    for (section, values) in file {
        let Value::Table(values) = values else {
            return wrong(format!(
                "{place}: {section} is not a section; keys stand in sections such as [node]"
            ));
        };
        for (name, value) in values {
            let full = format!("{section}.{name}");
            let Some(key) = keys::find(&full) else {
                return wrong(unknown(&full, place));
            };
            let fits = matches!(
                (key.kind, &value),
                (Kind::Text, Value::String(_))
                    | (Kind::Number, Value::Integer(_))
                    | (Kind::Flag, Value::Boolean(_))
                    | (Kind::List, Value::Array(_))
            );
            if !fits {
                return wrong(format!(
                    "{place}: {full} has a value of the wrong type ({value})"
                ));
            }
            insert(root, key, value);
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;

    fn sources(file: &str, environment: &[(&str, &str)], set: &[&str]) -> Sources {
        Sources {
            file: Some((PathBuf::from("t.toml"), file.to_owned())),
            environment: environment
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
            set: set.iter().map(|s| (*s).to_owned()).collect(),
        }
    }

    /// Proves the precedence flag over environment over file over default.
    #[test]
    fn precedence() {
        let file = "[node]\nid = 3\nzone = \"a\"\ndata-dir = \"/d\"\n[store]\nregion = \"r1\"\n";
        let config = Config::load(&sources(file, &[], &[])).unwrap();
        assert_eq!(
            (
                config.node.id,
                config.node.zone.as_str(),
                config.store.region.as_str()
            ),
            (3, "a", "r1")
        );
        assert_eq!(config.kafka.listen, "127.0.0.1:9092");
        let env = [("TIDELOG_NODE_ID", "4"), ("TIDELOG_STORE_REGION", "r2")];
        let config = Config::load(&sources(
            file,
            &env,
            &["node.id=5", "store.path-style=true"],
        ))
        .unwrap();
        assert_eq!(
            (
                config.node.id,
                config.store.region.as_str(),
                config.store.path_style
            ),
            (5, "r2", true)
        );
    }

    /// Proves that mistakes are named with their key and what to do.
    #[test]
    fn mistakes_are_named() {
        let text = |file: &str, set: &[&str]| {
            Config::load(&sources(file, &[], set))
                .unwrap_err()
                .to_string()
        };
        assert!(text("[node]\nidd = 3\n", &[]).contains("unknown key node.idd"));
        assert!(text("[nod]\nid = 3\n", &[]).contains("did you mean node.id?"));
        assert!(text("[node]\nid = \"x\"\n", &[]).contains("wrong type"));
        assert!(text("", &["node.id=0"]).contains("at least 1"));
        assert!(text("", &["kafka.max-connections=0"]).contains("kafka.max-connections"));
        assert!(text("", &["cluster.session-ms=999"]).contains("between 1000"));
        assert!(text("", &["node.id"]).contains("expected key=value"));
        assert!(text("", &["store.path-style=yes"]).contains("true or false"));
        assert!(text("not toml", &[]).contains("t.toml"));
    }

    /// Proves that the times of elections are checked against each other.
    #[test]
    fn election_times_fit() {
        let load = |set: &[&str]| Config::load(&sources("", &[], set));
        assert!(load(&[]).is_ok());
        let fits = [
            "raft.heartbeat-ms=1000",
            "raft.election-min-ms=3000",
            "raft.election-max-ms=3600",
        ];
        assert!(load(&fits).is_ok());
        for (set, named) in [
            ("raft.heartbeat-ms=19", "raft.heartbeat-ms = 19"),
            ("raft.heartbeat-ms=201", "raft.election-min-ms = 600"),
            ("raft.election-min-ms=900", "raft.election-max-ms = 1000"),
            ("raft.election-max-ms=60001", "raft.election-max-ms = 60001"),
        ] {
            let error = load(&[set]).unwrap_err().to_string();
            assert!(error.starts_with(named), "{set}: {error}");
        }
    }

    /// Proves that the page of all keys says what the code does.
    #[test]
    fn documentation_is_fresh() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../docs/operating/configuration.md"
        );
        if std::env::var_os("TIDELOG_WRITE_GOLDEN").is_some() {
            std::fs::write(path, keys::to_markdown()).unwrap();
        }
        let page = std::fs::read_to_string(path).unwrap();
        assert_eq!(
            page,
            keys::to_markdown(),
            "TIDELOG_WRITE_GOLDEN=1 writes docs/operating/configuration.md anew"
        );
    }
}
