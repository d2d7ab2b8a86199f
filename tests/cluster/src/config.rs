//! Where a broker of the rig listens, and its configuration file.
//!
//! Owns: free ports, the settings that make a broker small and quick.
//! Not here: starting it (`process`).
//! Spec: docs/operating/configuration.md

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::sync::{LazyLock, PoisonError};

use anyhow::{Result, bail};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Below the ports that the system gives to outgoing connections: while a broker is down, no client that tries again gets
/// its port, nor connects to itself.
const PORTS: std::ops::Range<u16> = 15_000..32_000;
const ATTEMPTS_MAX: usize = 1000;

/// Scenarios run beside each other in one process: a port that a killed broker will want again is not given away.
static TAKEN: LazyLock<std::sync::Mutex<BTreeSet<u16>>> = LazyLock::new(Default::default);

/// A port nobody listens on, and nobody else in this process is given.
pub(crate) fn free_port() -> Result<u16> {
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut dice = StdRng::from_os_rng();
    for _ in 0..ATTEMPTS_MAX {
        let port = dice.random_range(PORTS);
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
        if free && taken.insert(port) {
            return Ok(port);
        }
    }
    bail!("no free port after {ATTEMPTS_MAX} attempts in {PORTS:?}");
}

/// Addresses of one broker.
#[derive(Clone, Debug)]
pub(crate) struct Addresses {
    /// Where clients dial: the door in front of it.
    pub(crate) kafka: String,
    /// Where it listens for clients.
    pub(crate) behind: String,
    pub(crate) admin: String,
    /// Where it listens for its peers.
    pub(crate) peer: String,
    /// Where its peers dial: the proxy in front of it.
    pub(crate) front: String,
}

impl Addresses {
    pub(crate) fn free() -> Result<Self> {
        let address = || Ok::<_, anyhow::Error>(format!("127.0.0.1:{}", free_port()?));
        Ok(Self {
            kafka: address()?,
            behind: address()?,
            admin: address()?,
            peer: address()?,
            front: address()?,
        })
    }
}

/// The configuration of broker `id`. Log files and cuts are small, so that a load of seconds fills files, tiers, trims and reads
/// back; nothing depends on how full the machine's disk is.
pub(crate) fn text(id: i32, at: &Addresses, seeds: &str, data: &Path, store: &Path) -> String {
    let Addresses {
        kafka,
        behind,
        admin,
        peer,
        front,
    } = at;
    format!(
        "[node]
id = {id}
zone = \"zone-{id}\"
data-dir = {data:?}
[kafka]
listen = \"{behind}\"
advertised = \"{kafka}\"
[peer]
listen = \"{peer}\"
advertised = \"{front}\"
[admin]
listen = \"{admin}\"
[cluster]
name = \"rig\"
seeds = [{seeds}]
[store]
url = \"file://{}\"
[archive]
enable = false
[log]
file-bytes = 8388608
reserve-bytes = 0
[tier]
cut-bytes = 262144
cut-interval-ms = 1000
local-bytes = 0
",
        store.display()
    )
}

/// `id@address` of every broker; of a single one none, which makes a cluster of one.
pub(crate) fn seeds<'a>(brokers: impl ExactSizeIterator<Item = (i32, &'a Addresses)>) -> String {
    if brokers.len() < 2 {
        return String::new();
    }
    let each = brokers.map(|(id, at)| format!("\"{id}@{}\"", at.front));
    each.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    // Proves: no port is given twice, and peers are told the proxy's address, never the listener's.
    #[test]
    fn addresses_are_apart() {
        let all = [Addresses::free().unwrap(), Addresses::free().unwrap()];
        let mut ports = BTreeSet::new();
        for at in &all {
            ports.extend([&at.kafka, &at.behind, &at.admin, &at.peer, &at.front]);
        }
        assert_eq!(ports.len(), 10);
        let named =
            |count: usize| seeds((1..).zip(&all).take(count).collect::<Vec<_>>().into_iter());
        assert_eq!(named(1), "");
        let expected = format!("\"1@{}\", \"2@{}\"", all[0].front, all[1].front);
        assert_eq!(named(2), expected);
        let text = text(2, &all[1], &expected, Path::new("/d"), Path::new("/s"));
        assert_eq!(text.matches(&all[1].peer).count(), 1);
        assert!(text.contains(&format!("advertised = \"{}\"", all[1].front)));
        assert!(text.contains(&format!("seeds = [{expected}]")));
    }
}
