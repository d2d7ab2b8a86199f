//! Machines and their listeners, and how a connection comes to be.
//!
//! Owns: addresses, ports, the three-way handshake and its repeats.
//! Not here: established connections (`state`).
//! Spec: docs/simulation.md

use super::HostNetwork;
use super::connection::{Connection, End};
use super::link::one_of;
use super::state::{ConnectionId, State};
use super::stream::SimulatedStream;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::task::Waker;
use std::time::Duration;

/// Linux: the first repeat of a SYN after one second, each pause twice the one before; after the sixth the call fails, 127 s after its start.
const SYN_PAUSE: Duration = Duration::from_secs(1);
const SYN_COUNT: u32 = 7;
/// Connections that nobody accepted yet, at most; SYNs beyond are dropped.
const BACKLOG: usize = 128;
/// Ports that the system chooses.
const EPHEMERAL: (u16, u16) = (32_768, 60_999);
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

pub(super) type ListenerId = u64;

pub(super) struct Machine {
    pub(super) down: bool,
    pub(super) listeners: BTreeMap<ListenerId, ListenerState>,
    next_port: u16,
}

pub(super) struct ListenerState {
    pub(super) address: SocketAddr,
    /// Connections that wait to be accepted, and from when on they can be.
    pub(super) queue: VecDeque<(ConnectionId, Duration)>,
    pub(super) waker: Option<Waker>,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            down: false,
            listeners: BTreeMap::new(),
            next_port: EPHEMERAL.0,
        }
    }
}

impl Machine {
    fn has(&self, address: SocketAddr) -> bool {
        let clashes = |bound: SocketAddr| {
            bound.port() == address.port()
                && (bound.ip() == address.ip()
                    || bound.ip().is_unspecified()
                    || address.ip().is_unspecified())
        };
        self.listeners
            .values()
            .any(|listener| clashes(listener.address))
    }

    /// A port that no listener has. They are gone through in a circle, so that one is not taken again soon.
    fn free_port(&mut self, ip: IpAddr) -> Option<u16> {
        for _ in EPHEMERAL.0..=EPHEMERAL.1 {
            let port = self.next_port;
            self.next_port = if port == EPHEMERAL.1 {
                EPHEMERAL.0
            } else {
                port + 1
            };
            if !self.has(SocketAddr::new(ip, port)) {
                return Some(port);
            }
        }
        None
    }
}

/// Whom a connection is for.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub(super) host: IpAddr,
    pub(super) address: SocketAddr,
}

/// What a dialler hears.
enum Answer<T, R = Duration> {
    Yes(T),
    /// With the time when that is known.
    Refused(R),
    /// Nothing: it tries again.
    Silence,
}

impl State {
    /// Binds an address of the host.
    pub(super) fn bind(
        &mut self,
        host: IpAddr,
        mut address: SocketAddr,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        let ip = address.ip();
        if !(ip.is_unspecified() || ip.is_loopback() || ip == host) {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        let machine = self.machines.entry(host).or_default();
        if address.port() == 0 {
            address.set_port(machine.free_port(ip).ok_or(io::ErrorKind::AddrInUse)?);
        } else if machine.has(address) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        self.last_id += 1;
        let listener = ListenerState {
            address,
            queue: VecDeque::new(),
            waker: None,
        };
        machine.listeners.insert(self.last_id, listener);
        Ok((self.last_id, address))
    }

    pub(super) fn unbind(&mut self, host: IpAddr, id: ListenerId, now: Duration) {
        let machine = self.machines.get_mut(&host);
        let Some(listener) = machine.and_then(|machine| machine.listeners.remove(&id)) else {
            return;
        };
        self.after.wake.extend(listener.waker);
        for (connection, _) in listener.queue {
            self.abort(connection, 1, now);
        }
    }

    pub(super) fn drop_listeners(&mut self, host: IpAddr, now: Duration) {
        let machine = self.machines.get(&host);
        let ids: Vec<_> = machine
            .iter()
            .flat_map(|machine| machine.listeners.keys().copied())
            .collect();
        for id in ids {
            self.unbind(host, id, now);
        }
    }

    pub(super) fn resolve(&self, from: IpAddr, host: &str, port: u16) -> io::Result<Target> {
        let ip = match host.parse::<IpAddr>() {
            Ok(ip) => ip,
            Err(_) if host == "localhost" => LOOPBACK,
            Err(_) => *self.names.get(host).ok_or_else(|| {
                io::Error::new(io::ErrorKind::NotFound, format!("no host is named {host}"))
            })?,
        };
        let here = ip.is_loopback() || ip.is_unspecified();
        Ok(Target {
            host: if here { from } else { ip },
            address: SocketAddr::new(ip, port),
        })
    }

    /// When a packet of a handshake arrives. `None`: it does not.
    fn handshake_packet(&mut self, from: IpAddr, to: IpAddr, now: Duration) -> Option<Duration> {
        if !self.is_open(from, to) {
            self.count_cut(from, to, "net.cut_connect");
            return None;
        }
        let loss_ppm = self.link_config(from, to).loss_ppm;
        if one_of(&mut self.random, loss_ppm) {
            self.faults.count("net.loss");
            return None;
        }
        Some(now + self.latency(from, to))
    }

    /// Who listens there, and has room for one more.
    fn room(&self, target: Target) -> Answer<ListenerId, ()> {
        let dialled = target.address;
        let takes = |bound: SocketAddr| {
            bound.port() == dialled.port()
                && (bound.ip().is_unspecified() || bound.ip() == dialled.ip())
        };
        let machine = self.machines.get(&target.host);
        let mut listeners = machine.iter().flat_map(|machine| machine.listeners.iter());
        match listeners.find(|(_, listener)| takes(listener.address)) {
            None => Answer::Refused(()),
            Some((_, listener)) if listener.queue.len() >= BACKLOG => Answer::Silence,
            Some((id, _)) => Answer::Yes(*id),
        }
    }

    /// The SYN is there at `now`: when the answer is back.
    fn syn_arrived(&mut self, from: IpAddr, target: Target, now: Duration) -> Answer<Duration> {
        if !self.is_open(from, target.host) {
            return Answer::Silence;
        }
        let room = self.room(target);
        match (self.handshake_packet(target.host, from, now), room) {
            (None, _) | (_, Answer::Silence) => Answer::Silence,
            (Some(back), Answer::Refused(())) => Answer::Refused(back),
            (Some(back), Answer::Yes(_)) => Answer::Yes(back),
        }
    }

    /// The SYN-ACK is there at `now`: the dialler is connected, and what it sends arrives after its ACK.
    fn establish(&mut self, from: IpAddr, target: Target, now: Duration) -> Answer<ConnectionId> {
        if !self.is_open(target.host, from) {
            return Answer::Silence;
        }
        let listener = match self.room(target) {
            Answer::Yes(listener) => listener,
            Answer::Refused(()) => return Answer::Refused(now),
            Answer::Silence => return Answer::Silence,
        };
        let ready = now + self.latency(from, target.host);
        let dialler_ip = if target.address.ip().is_loopback() {
            LOOPBACK
        } else {
            from
        };
        let dialler = self.machines.entry(from).or_default();
        let Some(port) = dialler.free_port(from) else {
            return Answer::Silence;
        };
        self.last_id += 1;
        let id = self.last_id;
        let ends = [
            End::new(from, SocketAddr::new(dialler_ip, port), ready),
            End::new(target.host, target.address, now),
        ];
        self.connections.insert(id, Connection { ends });
        self.note(b'c', id, ready, 0);
        let machine = self.machines.get_mut(&target.host);
        if let Some(listener) = machine.and_then(|machine| machine.listeners.get_mut(&listener)) {
            listener.queue.push_back((id, ready));
            self.after.wake.extend(listener.waker.take());
        }
        Answer::Yes(id)
    }
}

impl HostNetwork {
    /// Dials until somebody answers.
    pub(super) async fn dial(&self, host: &str, port: u16) -> io::Result<SimulatedStream> {
        let target = self.net.with(|state| state.resolve(self.ip, host, port))?;
        self.sleep_until(self.time.now()).await;
        let mut pause = SYN_PAUSE;
        for _ in 0..SYN_COUNT {
            let again = self.time.now() + pause;
            pause *= 2;
            match self.handshake(target).await {
                Answer::Yes(id) => return Ok(SimulatedStream::new(self.clone(), id, 0)),
                Answer::Refused(at) => {
                    self.sleep_until(at).await;
                    return Err(io::ErrorKind::ConnectionRefused.into());
                }
                Answer::Silence => self.sleep_until(again).await,
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    async fn handshake(&self, target: Target) -> Answer<ConnectionId> {
        let now = self.time.now();
        let sent = self
            .net
            .with(|state| state.handshake_packet(self.ip, target.host, now));
        let Some(arrives) = sent else {
            return Answer::Silence;
        };
        self.sleep_until(arrives).await;
        let now = self.time.now();
        match self
            .net
            .with(|state| state.syn_arrived(self.ip, target, now))
        {
            Answer::Yes(back) => {
                self.sleep_until(back).await;
                let now = self.time.now();
                self.net.with(|state| state.establish(self.ip, target, now))
            }
            Answer::Refused(at) => Answer::Refused(at),
            Answer::Silence => Answer::Silence,
        }
    }

    /// Until the host sees that time; for ever on a halted host.
    async fn sleep_until(&self, at: Duration) {
        while self.time.now() < at {
            tokio::time::sleep_until(self.time.instant_at(at)).await;
        }
        if self.time.is_halted() {
            std::future::pending::<()>().await;
        }
    }
}
