//! A bound address of a host.
//!
//! Owns: accepting.
//! Not here: who may bind what, and the handshake (`dial`).
//! Spec: docs/simulation.md

use super::HostNetwork;
use super::connection::earlier;
use super::dial::ListenerId;
use super::state::{ConnectionId, State};
use super::stream::SimulatedStream;
use super::timer::Timer;
use async_trait::async_trait;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tidelog_env::{Accepted, Listener};

pub(super) struct SimulatedListener {
    network: HostNetwork,
    id: ListenerId,
    address: SocketAddr,
    timer: Timer,
}

/// What there is to accept.
enum Next {
    Connection(ConnectionId, Accepting),
    Nothing(Option<Duration>),
    /// The listener is not the system's any more.
    Gone,
}

struct Accepting {
    peer: SocketAddr,
    local: SocketAddr,
}

impl State {
    fn accept(&mut self, host: IpAddr, id: ListenerId, now: Duration, waker: &Waker) -> Next {
        let machine = self.machines.get_mut(&host);
        let Some(listener) = machine.and_then(|machine| machine.listeners.get_mut(&id)) else {
            return Next::Gone;
        };
        let mut next = None;
        for (at, (connection, ready)) in listener.queue.iter().enumerate() {
            if *ready > now {
                next = earlier(next, Some(*ready));
                continue;
            }
            let connection = *connection;
            listener.queue.remove(at);
            let Some(found) = self.connections.get(&connection) else {
                return self.accept(host, id, now, waker);
            };
            let (peer, local) = (found.ends[0].address, found.ends[1].address);
            return Next::Connection(connection, Accepting { peer, local });
        }
        self.after.register(&mut listener.waker, waker);
        Next::Nothing(next)
    }
}

impl SimulatedListener {
    pub(super) fn new(network: HostNetwork, id: ListenerId, address: SocketAddr) -> Self {
        Self {
            network,
            id,
            address,
            timer: Timer::default(),
        }
    }

    fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
        loop {
            if self.network.time.is_halted() {
                return Poll::Pending;
            }
            let now = self.network.time.now();
            let host = self.network.ip;
            let next = self
                .network
                .net
                .with(|state| state.accept(host, self.id, now, context.waker()));
            match next {
                Next::Gone => return Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
                Next::Connection(id, Accepting { peer, local }) => {
                    let stream = SimulatedStream::new(self.network.clone(), id, 1);
                    return Poll::Ready(Ok(Accepted {
                        stream: Box::new(stream),
                        peer,
                        local,
                    }));
                }
                Next::Nothing(at) => {
                    if self
                        .timer
                        .poll(at, &self.network.time, context)
                        .is_pending()
                    {
                        return Poll::Pending;
                    }
                }
            }
        }
    }
}

#[async_trait]
impl Listener for SimulatedListener {
    async fn accept(&mut self) -> io::Result<Accepted> {
        poll_fn(|context| self.poll_accept(context)).await
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

impl Drop for SimulatedListener {
    fn drop(&mut self) {
        let now = self.network.time.now();
        self.network
            .net
            .with(|state| state.unbind(self.network.ip, self.id, now));
    }
}
