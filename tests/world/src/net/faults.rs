//! What goes wrong on the network: cuts, resets, dead processes and machines.
//!
//! Owns: what each of these does to the connections there are.
//! Not here: when (`tests/sim`); loss, delay and random resets (`link`).
//! Spec: docs/simulation.md

use super::connection::{Connection, GIVE_UP, Side};
use super::link::sent_again;
use super::state::{ConnectionId, State};
use std::net::IpAddr;
use std::time::Duration;

impl State {
    /// From now on nothing from `from` arrives at `to`.
    pub(super) fn cut(&mut self, from: IpAddr, to: IpAddr, now: Duration) {
        if from == to {
            return;
        }
        let link = self.links.entry((from, to)).or_default();
        link.cut = true;
        link.forget_queue();
        for connection in self.connections.values_mut() {
            for side in [0, 1] {
                let ends = (connection.ends[side].host, connection.ends[1 - side].host);
                let end = &mut connection.ends[side];
                let stuck = if ends == (from, to) {
                    let held = end.sent.hold(now);
                    (0..held).for_each(|_| self.faults.count("net.cut"));
                    held > 0
                } else {
                    // Its acknowledgement will not come back.
                    ends == (to, from) && end.sent.next_arrival(now).is_some()
                };
                if stuck {
                    end.sent.stuck_since.get_or_insert(now);
                    self.after.wake_end(end);
                }
            }
        }
    }

    /// What was held goes on when it is sent again.
    pub(super) fn heal(&mut self, from: IpAddr, to: IpAddr, now: Duration) {
        if let Some(link) = self.links.get_mut(&(from, to)) {
            link.cut = false;
        }
        for (id, side) in
            self.sides(|here, there| (here, there) == (from, to) || (here, there) == (to, from))
        {
            self.settle(id, side, now);
        }
    }

    /// Breaks every connection between the two.
    pub(super) fn reset(&mut self, one: IpAddr, other: IpAddr, now: Duration) -> u64 {
        let mut count = 0;
        for (id, side) in
            self.sides(|here, there| (here, there) == (one, other) || (here, there) == (other, one))
        {
            // Once for both sides; on one host they are alike.
            if side == 0 {
                self.faults.count("net.reset");
                self.break_both(id, now);
                count += 1;
            }
        }
        count
    }

    /// The system closes all of the process's sockets.
    pub(super) fn process_died(&mut self, host: IpAddr, now: Duration) {
        self.drop_listeners(host, now);
        for (id, side) in self.sides(|here, _| here == host) {
            if self
                .connections
                .get(&id)
                .is_some_and(|connection| connection.ends[side].open)
            {
                self.faults.count("net.process_died");
                self.close(id, side, now);
            }
        }
    }

    /// The machine is silent from now on.
    pub(super) fn machine_died(&mut self, host: IpAddr, now: Duration) {
        if let Some(machine) = self.machines.get_mut(&host) {
            machine.down = true;
            machine.listeners.clear();
        }
        for (id, side) in self.sides(|here, _| here == host) {
            let Some(connection) = self.connections.get_mut(&id) else {
                continue;
            };
            connection.ends[side].sent.drop_held();
            let peer = &mut connection.ends[1 - side];
            if peer.open {
                self.faults.count("net.machine_died");
            }
            if peer.sent.hold(now) > 0 {
                peer.sent.stuck_since.get_or_insert(now);
                self.after.wake_end(peer);
            }
            self.let_go(id, side);
        }
    }

    /// The machine answers again, and knows of no connection.
    pub(super) fn machine_back(&mut self, host: IpAddr, now: Duration) {
        self.machines.entry(host).or_default().down = false;
        for (id, side) in self.sides(|_, there| there == host) {
            self.settle(id, side, now);
        }
    }

    /// The path of `side` may be whole again: what is held is sent again, or given up if that took too long.
    fn settle(&mut self, id: ConnectionId, side: Side, now: Duration) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let (from, to) = (connection.ends[side].host, connection.ends[1 - side].host);
        let end = &mut connection.ends[side];
        if end
            .sent
            .stuck_since
            .is_some_and(|since| since + GIVE_UP <= now)
        {
            end.give_up(now);
            self.after.wake_end(end);
            return self.count_given_up(id, side);
        }
        if let Some(sent) = end.sent.first_held() {
            let late = sent_again(sent, now).saturating_sub(now);
            self.dispatch(id, side, now, late);
        }
        if self.is_open(from, to)
            && self.is_open(to, from)
            && let Some(connection) = self.connections.get_mut(&id)
        {
            let end = &mut connection.ends[side];
            end.sent.acknowledge();
            self.after.wake.extend(end.writer.take());
        }
    }

    /// The sides of connections with these hosts at this and at the other end, in the order of their numbers.
    fn sides(&self, of: impl Fn(IpAddr, IpAddr) -> bool) -> Vec<(ConnectionId, Side)> {
        let both = |(id, connection): (&ConnectionId, &Connection)| {
            let [one, other] = [connection.ends[0].host, connection.ends[1].host];
            [(*id, 0, one, other), (*id, 1, other, one)]
        };
        self.connections
            .iter()
            .flat_map(both)
            .filter(|(_, _, here, there)| of(*here, *there))
            .map(|(id, side, _, _)| (id, side))
            .collect()
    }
}
