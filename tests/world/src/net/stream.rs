//! One end of a connection, as a task holds it.
//!
//! Owns: waiting, and what dropping it means.
//! Not here: what there is to read (`connection`), the way there (`state`).
//! On a halted host nothing is ever ready: its process is as good as dead.
//! Spec: docs/simulation.md

use super::HostNetwork;
use super::connection::{Found, Side};
use super::state::ConnectionId;
use super::timer::Timer;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub(super) struct SimulatedStream {
    network: HostNetwork,
    id: ConnectionId,
    side: Side,
    reading: Timer,
    writing: Timer,
}

impl SimulatedStream {
    pub(super) fn new(network: HostNetwork, id: ConnectionId, side: Side) -> Self {
        Self {
            network,
            id,
            side,
            reading: Timer::default(),
            writing: Timer::default(),
        }
    }
}

impl AsyncRead for SimulatedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let end = (this.id, this.side);
        let cooperative = ready!(tokio::task::coop::poll_proceed(context));
        loop {
            if this.network.time.is_halted() {
                return Poll::Pending;
            }
            let now = this.network.time.now();
            let found = this
                .network
                .net
                .with(|state| state.read(end, now, into, context.waker()));
            match found {
                Found::Bytes(_) => {
                    cooperative.made_progress();
                    return Poll::Ready(Ok(()));
                }
                Found::Error(kind) => return Poll::Ready(Err(kind.into())),
                Found::Nothing(at) => ready!(this.reading.poll(at, &this.network.time, context)),
            }
        }
    }
}

impl AsyncWrite for SimulatedStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let end = (this.id, this.side);
        let cooperative = ready!(tokio::task::coop::poll_proceed(context));
        loop {
            if this.network.time.is_halted() {
                return Poll::Pending;
            }
            let now = this.network.time.now();
            let found = this
                .network
                .net
                .with(|state| state.write(end, now, parts, context.waker()));
            match found {
                Found::Bytes(count) => {
                    cooperative.made_progress();
                    return Poll::Ready(Ok(count));
                }
                Found::Error(kind) => return Poll::Ready(Err(kind.into())),
                Found::Nothing(at) => ready!(this.writing.poll(at, &this.network.time, context)),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// What was written is on its way.
    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.network.time.is_halted() {
            return Poll::Pending;
        }
        let now = self.network.time.now();
        self.network
            .net
            .with(|state| state.finish(self.id, self.side, now));
        Poll::Ready(Ok(()))
    }
}

impl Drop for SimulatedStream {
    fn drop(&mut self) {
        let now = self.network.time.now();
        self.network
            .net
            .with(|state| state.close(self.id, self.side, now));
    }
}
