//! All of the network: machines, links, connections; and how bytes get on their way.
//!
//! Owns: what of a connection happens because of its path.
//! Not here: faults (`faults`), listeners and dialling (`dial`), tasks (`stream`, `listener`).
//! Spec: docs/simulation.md
//!
//! Nothing is woken and no waker is dropped while the state is locked: both may run code that comes back here.

use super::connection::{Connection, End, Found, Side};
use super::dial::Machine;
use super::link::{Link, LinkConfig, latency};
use crate::faults::Faults;
use bytes::Bytes;
use rand::{SeedableRng, rngs::StdRng};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::task::Waker;
use std::time::Duration;
use tokio::io::ReadBuf;

/// Connections are numbered as they are made.
pub(super) type ConnectionId = u64;

pub(super) struct State {
    pub(super) random: StdRng,
    pub(super) faults: Faults,
    pub(super) default_link: LinkConfig,
    pub(super) machines: BTreeMap<IpAddr, Machine>,
    pub(super) names: BTreeMap<String, IpAddr>,
    pub(super) links: BTreeMap<(IpAddr, IpAddr), Link>,
    pub(super) connections: BTreeMap<ConnectionId, Connection>,
    /// The last number that was given to a connection or a listener.
    pub(super) last_id: u64,
    pub(super) trace: u64,
    pub(super) after: After,
}

/// What is to be done once the state is unlocked.
#[derive(Default)]
pub(super) struct After {
    pub(super) wake: Vec<Waker>,
    spent: Vec<Waker>,
}

impl After {
    pub(super) fn run(self) {
        for waker in self.wake {
            waker.wake();
        }
        drop(self.spent);
    }

    /// Puts the task's waker into the slot.
    pub(super) fn register(&mut self, slot: &mut Option<Waker>, waker: &Waker) {
        if slot.as_ref().is_none_or(|old| !old.will_wake(waker)) {
            self.spent.extend(slot.replace(waker.clone()));
        }
    }

    pub(super) fn wake_end(&mut self, end: &mut End) {
        self.wake.extend(end.reader.take());
        self.wake.extend(end.writer.take());
    }
}

/// Whether packets get from one host to another now.
pub(super) fn is_open(
    links: &BTreeMap<(IpAddr, IpAddr), Link>,
    machines: &BTreeMap<IpAddr, Machine>,
    from: IpAddr,
    to: IpAddr,
) -> bool {
    from == to
        || (!links.get(&(from, to)).is_some_and(|link| link.cut)
            && machines.get(&to).is_some_and(|machine| !machine.down))
}

impl State {
    pub(super) fn new(seed: u64, faults: Faults) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            faults,
            default_link: LinkConfig::GOOD,
            machines: BTreeMap::new(),
            names: BTreeMap::new(),
            links: BTreeMap::new(),
            connections: BTreeMap::new(),
            last_id: 0,
            trace: 0xcbf2_9ce4_8422_2325,
            after: After::default(),
        }
    }

    pub(super) fn is_open(&self, from: IpAddr, to: IpAddr) -> bool {
        is_open(&self.links, &self.machines, from, to)
    }

    /// Counts a fault if it is the cut, not a dead machine, that holds a packet.
    pub(super) fn count_cut(&self, from: IpAddr, to: IpAddr, kind: &'static str) {
        if self.links.get(&(from, to)).is_some_and(|link| link.cut) {
            self.faults.count(kind);
        }
    }

    pub(super) fn link_config(&self, from: IpAddr, to: IpAddr) -> LinkConfig {
        if from == to {
            return LinkConfig::LOOPBACK;
        }
        let set = self.links.get(&(from, to)).and_then(|link| link.config);
        set.unwrap_or(self.default_link)
    }

    /// How long a packet without bytes takes.
    pub(super) fn latency(&mut self, from: IpAddr, to: IpAddr) -> Duration {
        latency(self.link_config(from, to), &mut self.random)
    }

    /// Notes an event in the trace (FNV-1a over its numbers).
    pub(super) fn note(&mut self, what: u8, id: ConnectionId, at: Duration, length: usize) {
        let at = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
        let length = u64::try_from(length).unwrap_or(u64::MAX);
        for number in [u64::from(what), id, at, length] {
            self.trace = (self.trace ^ number).wrapping_mul(0x0000_0100_0000_01b3);
            self.trace ^= self.trace >> 29;
        }
    }

    pub(super) fn read(
        &mut self,
        (id, side): (ConnectionId, Side),
        now: Duration,
        into: &mut ReadBuf<'_>,
        waker: &Waker,
    ) -> Found {
        let Some(connection) = self.connections.get_mut(&id) else {
            return Found::Error(ErrorKind::ConnectionReset);
        };
        let (reader, writer) = (connection.ends[side].host, connection.ends[1 - side].host);
        let acknowledged = is_open(&self.links, &self.machines, reader, writer);
        let found = connection.read(side, now, into, acknowledged);
        match found {
            Found::Bytes(count) => {
                self.after
                    .wake
                    .extend(connection.ends[1 - side].writer.take());
                self.note(b'r', id, now, count);
            }
            Found::Nothing(_) => self
                .after
                .register(&mut connection.ends[side].reader, waker),
            Found::Error(_) => self.count_given_up(id, side),
        }
        found
    }

    /// Takes what fits of `parts` and sends it on its way.
    pub(super) fn write(
        &mut self,
        (id, side): (ConnectionId, Side),
        now: Duration,
        parts: &[std::io::IoSlice<'_>],
        waker: &Waker,
    ) -> Found {
        let Some(connection) = self.connections.get_mut(&id) else {
            return Found::Error(ErrorKind::ConnectionReset);
        };
        let wanted = parts.iter().map(|part| part.len()).sum();
        let found = connection.writable(side, now, wanted);
        match found {
            Found::Bytes(0) => {}
            Found::Bytes(room) => {
                connection.push(side, now, gather(parts, room));
                self.note(b'w', id, now, room);
                self.dispatch(id, side, now, Duration::ZERO);
            }
            Found::Nothing(_) => self
                .after
                .register(&mut connection.ends[side].writer, waker),
            Found::Error(_) => self.count_given_up(id, side),
        }
        found
    }

    pub(super) fn count_given_up(&mut self, id: ConnectionId, side: Side) {
        let connection = self.connections.get_mut(&id);
        if connection.is_some_and(|connection| std::mem::take(&mut connection.ends[side].gave_up)) {
            self.faults.count("net.gave_up");
        }
    }

    /// Ends what `side` sends. The other direction stays.
    pub(super) fn finish(&mut self, id: ConnectionId, side: Side, now: Duration) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let end = &connection.ends[side];
        if !end.is_gone(now) && !end.sent.finished {
            connection.push(side, now, Bytes::new());
            self.note(b'f', id, now, 0);
            self.dispatch(id, side, now, Duration::ZERO);
        }
    }

    /// The process lets go of its end: what it sent still arrives, then the end of it. If bytes wait unread, the other end is reset instead, as
    /// it is if more bytes come.
    pub(super) fn close(&mut self, id: ConnectionId, side: Side, now: Duration) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        if !connection.ends[side].open {
            return;
        }
        let incoming = &connection.ends[1 - side].sent;
        if incoming.has_unread(now) {
            return self.abort(id, side, now);
        }
        let (here, there) = (connection.ends[side].host, connection.ends[1 - side].host);
        let answered = incoming
            .next_arrival(now)
            .filter(|_| self.is_open(here, there));
        self.finish(id, side, now);
        if let Some(arrival) = answered {
            let at = arrival + self.latency(here, there);
            self.reset_end(id, 1 - side, at);
        }
        self.let_go(id, side);
    }

    /// The process's end goes at once, with what it sent and has not arrived. The other end is reset, if the packet gets through.
    pub(super) fn abort(&mut self, id: ConnectionId, side: Side, now: Duration) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if !connection.ends[side].open {
            return;
        }
        connection.ends[side].sent.clear();
        let (here, there) = (connection.ends[side].host, connection.ends[1 - side].host);
        if self.is_open(here, there) {
            let at = now + self.latency(here, there);
            self.reset_end(id, 1 - side, at);
        }
        self.let_go(id, side);
    }

    fn reset_end(&mut self, id: ConnectionId, side: Side, at: Duration) {
        if let Some(connection) = self.connections.get_mut(&id) {
            let end = &mut connection.ends[side];
            end.break_at(at, ErrorKind::ConnectionReset);
            self.after.wake_end(end);
            self.note(b'b', id, at, side);
        }
    }

    /// The end is nobody's any more. A connection without ends is forgotten.
    pub(super) fn let_go(&mut self, id: ConnectionId, side: Side) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.ends[side].open = false;
            self.after.wake_end(&mut connection.ends[side]);
            if connection.both_closed() {
                self.connections.remove(&id);
            }
        }
    }

    /// Sends what `side` holds on its way, `late` after `now`; or keeps holding it, where the path is cut.
    pub(super) fn dispatch(&mut self, id: ConnectionId, side: Side, now: Duration, late: Duration) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        let (from, to) = (connection.ends[side].host, connection.ends[1 - side].host);
        let config = self.link_config(from, to);
        let (forward, back) = (self.is_open(from, to), self.is_open(to, from));
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let (gone, sender) = (
            connection.ends[1 - side].is_gone(now),
            &mut connection.ends[side],
        );
        let Some(since) = sender.sent.first_held() else {
            return;
        };
        if !forward || !back {
            sender.sent.stuck_since.get_or_insert(since);
            self.after.wake.extend(sender.reader.take());
        }
        if !forward {
            return self.count_cut(from, to, "net.cut");
        }
        let mut reset = None;
        let link = self.links.entry((from, to)).or_default();
        for segment in sender
            .sent
            .segments
            .iter_mut()
            .filter(|segment| segment.arrives.is_none())
        {
            let travel = link.travel(config, &mut self.random, now, segment.bytes.len());
            let arrives = (travel.arrives + late).max(sender.sent.last_arrival);
            sender.sent.last_arrival = arrives;
            for _ in 0..travel.losses {
                self.faults.count("net.loss");
            }
            if travel.slowed {
                self.faults.count("net.slow");
            }
            if travel.resets {
                reset = Some(Reset::Both);
                break;
            }
            // Nobody is there: the first bytes are answered with a reset. Until it comes back they stay where they are.
            if gone && !segment.bytes.is_empty() {
                reset = back.then_some(Reset::Sender(arrives));
                break;
            }
            segment.arrives = Some(arrives);
        }
        let arrival = sender.sent.last_arrival;
        self.after
            .wake
            .extend(connection.ends[1 - side].reader.take());
        self.note(b'd', id, arrival, side);
        match reset {
            None => {}
            Some(Reset::Both) => {
                self.faults.count("net.reset");
                self.break_both(id, now);
            }
            Some(Reset::Sender(arrives)) => {
                let at = arrives + self.latency(to, from);
                self.reset_end(id, side, at);
            }
        }
    }

    /// Breaks both ends now; what was on the way is lost.
    pub(super) fn break_both(&mut self, id: ConnectionId, now: Duration) {
        for side in [0, 1] {
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.ends[side].sent.clear();
            }
            self.reset_end(id, side, now);
        }
    }
}

enum Reset {
    Both,
    /// The sender, when the answer to what arrives then is back.
    Sender(Duration),
}

fn gather(parts: &[std::io::IoSlice<'_>], room: usize) -> Bytes {
    let mut bytes = Vec::with_capacity(room);
    for part in parts {
        let count = part.len().min(room - bytes.len());
        bytes.extend_from_slice(&part[..count]);
    }
    Bytes::from(bytes)
}
