//! The network between hosts: byte streams with latency, bandwidth, loss, cuts and resets, as TCP shows them.
//!
//! Owns: the simulated [`Network`], and the faults that can be made on it.
//! Not here: when a fault is made (`tests/sim`).
//! Spec: docs/simulation.md

mod connection;
mod dial;
mod faults;
mod link;
mod listener;
mod state;
mod stream;
mod timer;

#[cfg(test)]
mod tests;

use crate::faults::Faults;
use crate::hosts::{HostTime, WorldTime};
use async_trait::async_trait;
use listener::SimulatedListener;
use parking_lot::Mutex;
use state::State;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::{BoxStream, Listener, Network};

pub use link::LinkConfig;

/// The network of a world. Clones are the same network. Faults are made between steps.
#[derive(Clone)]
pub struct Net {
    state: Arc<Mutex<State>>,
    time: WorldTime,
}

/// The network as one host has it.
#[derive(Clone)]
struct HostNetwork {
    net: Net,
    ip: IpAddr,
    time: HostTime,
}

impl Net {
    /// A network without hosts, all links as [`LinkConfig::GOOD`].
    #[must_use]
    pub fn new(seed: u64, time: WorldTime, faults: Faults) -> Self {
        let state = Arc::new(Mutex::new(State::new(seed, faults)));
        Self { state, time }
    }

    /// The network of the host with this address, whose machine is up from now on. Every incarnation of a host may ask anew.
    #[must_use]
    pub fn host(&self, ip: IpAddr, time: HostTime) -> Arc<dyn Network> {
        self.machine_back(ip);
        Arc::new(HostNetwork {
            net: self.clone(),
            ip,
            time,
        })
    }

    /// Lets every host find an address by a name. The last one counts.
    pub fn register(&self, name: &str, ip: IpAddr) {
        self.with(|state| state.names.insert(name.to_owned(), ip));
    }

    /// How links are that were not set by themselves.
    pub fn set_default_link(&self, config: LinkConfig) {
        self.with(|state| state.default_link = config);
    }

    /// Sets what happens to what is sent from now on by `from` to `to`.
    pub fn set_link(&self, from: IpAddr, to: IpAddr, config: LinkConfig) {
        self.with(|state| state.links.entry((from, to)).or_default().config = Some(config));
    }

    /// The link from `from` to `to` is as the default again. A cut stays.
    pub fn clear_link(&self, from: IpAddr, to: IpAddr) {
        self.with(|state| state.links.entry((from, to)).or_default().config = None);
    }

    /// Nothing from `from` arrives at `to` any more, until [`Net::heal`]. The other direction stays, though without acknowledgements.
    pub fn cut(&self, from: IpAddr, to: IpAddr) {
        self.fault(|state, now| state.cut(from, to, now));
    }

    /// Ends a cut. What was held arrives after TCP's next retransmission; connections that were stuck for five minutes are broken.
    pub fn heal(&self, from: IpAddr, to: IpAddr) {
        self.fault(|state, now| state.heal(from, to, now));
    }

    /// Whether the direction is cut.
    #[must_use]
    pub fn is_cut(&self, from: IpAddr, to: IpAddr) -> bool {
        self.with(|state| state.links.get(&(from, to)).is_some_and(|link| link.cut))
    }

    /// Breaks every connection between the two hosts at both ends, now. How many.
    pub fn reset(&self, one: IpAddr, other: IpAddr) -> u64 {
        self.fault(|state, now| state.reset(one, other, now))
    }

    /// The host's process is dead: its system closes all of its sockets. After [`crate::hosts::Hosts::crash`] this catches what no
    /// destructor closed.
    pub fn process_died(&self, host: IpAddr) {
        self.fault(|state, now| state.process_died(host, now));
    }

    /// The host's machine is dead: silence. To be called before [`crate::hosts::Hosts::crash`], whose destructors would say good-bye.
    pub fn machine_died(&self, host: IpAddr) {
        self.fault(|state, now| state.machine_died(host, now));
    }

    /// The machine is up again, its process not yet: it answers what its peers still send on old connections with resets.
    /// [`Net::host`] does this too.
    pub fn machine_back(&self, host: IpAddr) {
        self.fault(|state, now| state.machine_back(host, now));
    }

    /// How many connections there are that at least one process still holds.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.with(|state| state.connections.len())
    }

    /// A digest of all that happened on the network so far: same seed, same trace.
    #[must_use]
    pub fn trace(&self) -> u64 {
        self.with(|state| state.trace)
    }

    fn fault<T>(&self, act: impl FnOnce(&mut State, Duration) -> T) -> T {
        let now = self.time.now();
        self.with(|state| act(state, now))
    }

    /// Acts on the state, then wakes who is to be woken.
    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let (result, after) = {
            let mut state = self.state.lock();
            (act(&mut state), std::mem::take(&mut state.after))
        };
        after.run();
        result
    }
}

#[async_trait]
impl Network for HostNetwork {
    async fn listen(&self, address: SocketAddr) -> io::Result<Box<dyn Listener>> {
        let (id, address) = self.net.with(|state| state.bind(self.ip, address))?;
        Ok(Box::new(SimulatedListener::new(self.clone(), id, address)))
    }

    async fn connect(&self, host: &str, port: u16) -> io::Result<BoxStream> {
        Ok(Box::new(self.dial(host, port).await?))
    }
}
