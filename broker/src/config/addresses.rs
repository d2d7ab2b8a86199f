//! Addresses and names that can be judged before anybody is asked: a broker that cannot use them must not be taken in first.
//!
//! Owns: the checks of `*.listen`, `*.advertised`, `cluster.name`, and the kind of `store.url`.
//! Not here: seeds (`seeds.rs`), resolving names and binding (`node::listeners`), opening the store (`node::store`).
//! Spec: docs/operating/configuration.md

use super::Config;
use super::load::ConfigError;
use super::seeds::{host_port, is_concrete};

/// What a handshake between brokers can carry.
const NAME_BYTES_MAX: usize = 255;
const STORE_KINDS: [&str; 3] = ["file", "s3", "memory"];

fn check(fits: bool, text: impl FnOnce() -> String) -> Result<(), ConfigError> {
    if fits {
        Ok(())
    } else {
        Err(ConfigError::new(text()))
    }
}

impl Config {
    pub(super) fn check_addresses(&self) -> Result<(), ConfigError> {
        let name = &self.cluster.name;
        check((1..=NAME_BYTES_MAX).contains(&name.len()), || {
            format!(
                "cluster.name has {} bytes: between 1 and {NAME_BYTES_MAX}",
                name.len()
            )
        })?;
        for (key, address) in [
            ("kafka.listen", &self.kafka.listen),
            ("peer.listen", &self.peer.listen),
            ("admin.listen", &self.admin.listen),
        ] {
            check(host_port(address).is_some(), || {
                format!("{key} = {address:?} is not host:port, for example 0.0.0.0:9092")
            })?;
        }
        self.check_listeners()?;
        for (key, address) in [
            ("kafka.advertised", &self.kafka.advertised),
            ("peer.advertised", &self.peer.advertised),
        ] {
            check(address.is_empty() || is_concrete(address), || {
                format!(
                    "{key} = {address:?} is not an address that others can dial: host:port, for example tidelog-1:9092"
                )
            })?;
        }
        let url = &self.store.url;
        let kind = url.split_once(':').map(|(kind, _)| kind);
        check(
            url.is_empty() || kind.is_some_and(|kind| STORE_KINDS.contains(&kind)),
            || {
                format!(
                    "store.url = {url:?}: stores are file:///absolute/path or s3://bucket/prefix"
                )
            },
        )
    }

    /// Two listeners cannot have one address. Port 0 is a free one each time.
    fn check_listeners(&self) -> Result<(), ConfigError> {
        let peer = ("peer.listen", &self.peer.listen);
        let others = [
            ("kafka.listen", &self.kafka.listen),
            ("admin.listen", &self.admin.listen),
        ];
        // A broker of one listens for no peers.
        let peer = (self.seeds().len() > 1).then_some(peer);
        let [kafka, admin] = others;
        let pairs = [
            (Some(kafka), Some(admin)),
            (peer, Some(kafka)),
            (peer, Some(admin)),
        ];
        for pair in pairs {
            if let (Some((key, address)), Some((other, at))) = pair {
                check(!clash(address, at), || {
                    format!(
                        "{key} = {address:?} and {other} = {at:?} are one address: each listener needs a port of its own"
                    )
                })?;
            }
        }
        Ok(())
    }
}

/// Whether the second of two listeners would find its port taken.
fn clash(one: &str, other: &str) -> bool {
    let (Some((host, port)), Some((at, port_of_other))) = (host_port(one), host_port(other)) else {
        return false;
    };
    let all = |host: &str| matches!(host, "0.0.0.0" | "::" | "[::]");
    port == port_of_other && port != 0 && (host == at || all(host) || all(at))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::super::Sources;
    use super::*;

    fn load(set: &str) -> Result<Config, String> {
        let sources = Sources {
            set: vec![set.to_owned()],
            ..Sources::default()
        };
        Config::load(&sources).map_err(|error| error.to_string())
    }

    /// Proves that two listeners of one port are refused where one of them would find it taken, and not where none would.
    #[test]
    fn listeners_have_ports_of_their_own() {
        for (one, other) in [("h:1", "h:1"), ("0.0.0.0:1", "h:1"), ("h:1", "[::]:1")] {
            assert!(clash(one, other), "{one} {other}");
        }
        for (one, other) in [("h:1", "h:2"), ("g:1", "h:1"), ("h:0", "h:0")] {
            assert!(!clash(one, other), "{one} {other}");
        }
        let peer = "peer.listen=127.0.0.1:9092".to_owned();
        let seeds = "cluster.seeds=1@h:9092,2@i:9092".to_owned();
        let told = |set: Vec<String>| {
            let sources = Sources {
                set,
                ..Sources::default()
            };
            Config::load(&sources).map_err(|error| error.to_string())
        };
        assert!(told(vec![peer.clone()]).is_ok(), "it listens for no peers");
        let error = told(vec![
            peer,
            seeds,
            "node.id=1".to_owned(),
            "kafka.advertised=h:9092".to_owned(),
        ]);
        let error = error.unwrap_err();
        assert!(
            error.contains("peer.listen = \"127.0.0.1:9092\" and kafka.listen"),
            "{error}"
        );
    }

    /// Proves that what cannot be listened on, dialled, or opened is refused when the configuration is read, by key and value.
    #[test]
    fn what_cannot_work_is_refused() {
        for (set, part) in [
            (
                "kafka.listen=127.0.0.1:99999",
                "kafka.listen = \"127.0.0.1:99999\"",
            ),
            ("admin.listen=9640", "admin.listen = \"9640\""),
            ("peer.listen=:9192", "peer.listen = \":9192\""),
            ("peer.advertised=nonsense", "peer.advertised = \"nonsense\""),
            ("kafka.advertised=0.0.0.0:1", "others can dial"),
            ("kafka.advertised=h:0", "others can dial"),
            ("cluster.name=", "cluster.name has 0 bytes"),
            ("store.url=ftp://x", "store.url = \"ftp://x\""),
            ("store.url=/data", "store.url = \"/data\""),
            ("admin.listen=127.0.0.1:9092", "are one address"),
            ("kafka.listen=0.0.0.0:9640", "are one address"),
        ] {
            let error = load(set).expect_err(set);
            assert!(error.contains(part), "{set}: {error}");
        }
        for set in [
            "kafka.listen=[::]:0",
            "kafka.advertised=h:9092",
            "peer.advertised=[::1]:9192",
            "store.url=file:///s",
            "store.url=s3://b/p",
            "store.url=memory:///",
        ] {
            load(set).expect(set);
        }
    }
}
