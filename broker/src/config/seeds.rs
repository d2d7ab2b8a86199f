//! `cluster.seeds`: the brokers of a cluster, and what their configuration must say besides.
//!
//! Owns: reading `id@host:port`, the checks of a configuration with several seeds.
//! Not here: how the seeds form a cluster (`node::formation`).
//! Spec: docs/protocols/cluster-formation.md

use super::Config;
use super::load::ConfigError;
use std::collections::{BTreeMap, BTreeSet};

/// Most brokers that can be named: all groups have a replica on every one of them, and more than five copies help nobody.
pub const SEEDS_MAX: usize = 5;

fn wrong<T>(text: String) -> Result<T, ConfigError> {
    Err(ConfigError::new(text))
}

/// `host` and `port` of `host:port` or `[v6]:port`.
pub(super) fn host_port(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_matches(['[', ']']);
    let port = port.parse().ok()?;
    (!host.is_empty()).then_some((host, port))
}

/// Whether others can dial it as it stands.
pub(super) fn is_concrete(address: &str) -> bool {
    host_port(address)
        .is_some_and(|(host, port)| port != 0 && !matches!(host, "0.0.0.0" | "::" | "*"))
}

/// Reads the seeds: broker id to `host:port`.
///
/// # Errors
/// What is wrong with an entry.
pub fn parse_seeds(seeds: &[String]) -> Result<BTreeMap<i32, String>, ConfigError> {
    let mut parsed = BTreeMap::new();
    let mut addresses = BTreeSet::new();
    for seed in seeds {
        let entry = seed.split_once('@').and_then(|(id, address)| {
            let id: i32 = id.trim().parse().ok().filter(|id| *id >= 1)?;
            Some((id, address.trim()))
        });
        let Some((id, address)) = entry else {
            return wrong(format!(
                "cluster.seeds: {seed:?} is not id@host:port, for example 1@tidelog-1:9192"
            ));
        };
        if !is_concrete(address) {
            return wrong(format!(
                "cluster.seeds: {address:?} of broker {id} is not an address that others can dial"
            ));
        }
        if !addresses.insert(address.to_owned()) {
            return wrong(format!(
                "cluster.seeds: two brokers have the address {address}"
            ));
        }
        if parsed.insert(id, address.to_owned()).is_some() {
            return wrong(format!("cluster.seeds: broker {id} is named twice"));
        }
    }
    if parsed.len() > SEEDS_MAX {
        return wrong(format!(
            "cluster.seeds names {} brokers: at most {SEEDS_MAX} for now",
            parsed.len()
        ));
    }
    Ok(parsed)
}

impl Config {
    /// The brokers of the cluster, by id; empty for a cluster of one.
    #[must_use]
    pub fn seeds(&self) -> BTreeMap<i32, String> {
        // Checked when the configuration was loaded.
        let seeds = parse_seeds(&self.cluster.seeds).unwrap_or_default();
        if seeds.len() > 1 {
            seeds
        } else {
            BTreeMap::new()
        }
    }

    /// Whether others can fill this broker anew when its disk is damaged, and shall.
    #[must_use]
    pub fn refills(&self) -> bool {
        self.cluster.refill_damaged && !self.seeds().is_empty()
    }

    /// What clients are told: `kafka.advertised`, or where the listener is if that can be dialled.
    #[must_use]
    pub fn kafka_address(&self) -> Option<&str> {
        [&self.kafka.advertised, &self.kafka.listen]
            .into_iter()
            .map(String::as_str)
            .find(|address| is_concrete(address))
    }

    /// Where other brokers reach this one: `peer.advertised`, else what the seeds say of it.
    #[must_use]
    pub fn peer_address(&self) -> &str {
        if !self.peer.advertised.is_empty() {
            return &self.peer.advertised;
        }
        let own = format!("{}@", self.node.id);
        let mut seeds = self.cluster.seeds.iter().map(|seed| seed.trim());
        seeds.find_map(|seed| seed.strip_prefix(&own)).unwrap_or("")
    }

    pub(super) fn check_seeds(&self) -> Result<(), ConfigError> {
        let seeds = parse_seeds(&self.cluster.seeds)?;
        if !seeds.is_empty() && !seeds.contains_key(&self.node.id) {
            return wrong(format!(
                "cluster.seeds does not name this broker: node.id = {}, and the seeds are {}. A data directory belongs to the broker that made it: node_id in {} says which",
                self.node.id,
                self.cluster.seeds.join(", "),
                self.node.data_dir.join("cluster.json").display()
            ));
        }
        if seeds.len() < 2 {
            return Ok(());
        }
        if self.kafka_address().is_none() {
            return wrong(format!(
                "kafka.advertised is needed with several seeds: clients of other brokers are told it, and kafka.listen = {} cannot be dialled from elsewhere",
                self.kafka.listen
            ));
        }
        if self.store.url.is_empty() {
            return wrong(
                "store.url is needed with several seeds: all brokers share one object store"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::super::Sources;
    use super::*;

    fn load(set: &[&str]) -> Result<Config, String> {
        let sources = Sources {
            set: set.iter().map(|set| (*set).to_owned()).collect(),
            ..Sources::default()
        };
        Config::load(&sources).map_err(|error| error.to_string())
    }

    const THREE: &str = "cluster.seeds=1@a:1,2@b:1,3@c:1";

    /// Proves that seeds are read, and that data groups are twice as many as brokers unless they are set.
    #[test]
    fn seeds_are_read() {
        let config = load(&[THREE, "store.url=file:///s", "kafka.advertised=k:9092"]).unwrap();
        assert_eq!(config.seeds()[&3], "c:1");
        assert_eq!(config.cluster.data_groups, 6);
        assert_eq!(config.kafka_address(), Some("k:9092"));
        assert_eq!(load(&[]).unwrap().cluster.data_groups, 2);
        let one = load(&["cluster.seeds=1@a:1", "cluster.data-groups=7"]).unwrap();
        assert_eq!((one.seeds().len(), one.cluster.data_groups), (0, 7));
    }

    /// Proves that each mistake is one clear line that names the key.
    #[test]
    fn mistakes_in_seeds_are_named() {
        let text = |set: &[&str]| load(set).unwrap_err();
        assert!(text(&["cluster.seeds=a:1,b:1"]).contains("is not id@host:port"));
        assert!(text(&["cluster.seeds=0@a:1"]).contains("is not id@host:port"));
        assert!(text(&["cluster.seeds=1@a:0"]).contains("can dial"));
        assert!(text(&["cluster.seeds=1@0.0.0.0:7"]).contains("can dial"));
        assert!(text(&["cluster.seeds=1@a:1,1@b:1"]).contains("broker 1 is named twice"));
        assert!(text(&["cluster.seeds=1@a:1,2@a:1"]).contains("two brokers have the address a:1"));
        assert!(text(&["cluster.seeds=2@a:1,3@b:1"]).contains("does not name this broker"));
        assert!(text(&[THREE, "kafka.listen=0.0.0.0:9092"]).contains("kafka.advertised is needed"));
        assert!(text(&[THREE]).contains("store.url is needed"));
        let six = "cluster.seeds=1@a:1,2@b:1,3@c:1,4@d:1,5@e:1,6@f:1";
        assert!(text(&[six]).contains("at most 5"));
        assert!(text(&["node.zone="]).contains("node.zone"));
    }
}
