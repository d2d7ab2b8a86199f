//! Sockets. A simulated network implements the same traits.

#![allow(clippy::disallowed_methods, reason = "here the real thing lives")]

use async_trait::async_trait;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};

/// A connected byte stream.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A boxed [`Stream`].
pub type BoxStream = Box<dyn Stream>;

/// One accepted connection.
pub struct Accepted {
    /// The bytes.
    pub stream: BoxStream,
    /// Who connected.
    pub peer: SocketAddr,
    /// The address of ours that was dialled.
    pub local: SocketAddr,
}

/// A bound listening socket.
#[async_trait]
pub trait Listener: Send + 'static {
    /// The next connection. An error concerns that one connection (or a lack of file descriptors), not the listener.
    async fn accept(&mut self) -> io::Result<Accepted>;
    /// The bound address, with the port that the system chose where 0 was asked for.
    fn local_addr(&self) -> io::Result<SocketAddr>;
}

/// Opens listeners and connections.
#[async_trait]
pub trait Network: Send + Sync + 'static {
    /// Binds `address`.
    async fn listen(&self, address: SocketAddr) -> io::Result<Box<dyn Listener>>;
    /// Connects to `host:port` (a name or a literal address). The caller sets the deadline.
    async fn connect(&self, host: &str, port: u16) -> io::Result<BoxStream>;
}

/// TCP of the operating system, with `TCP_NODELAY` on.
#[derive(Debug, Clone, Copy, Default)]
pub struct TcpNetwork;

impl TcpNetwork {
    /// A shared handle.
    #[must_use]
    pub fn shared() -> Arc<dyn Network> {
        Arc::new(Self)
    }
}

#[async_trait]
impl Network for TcpNetwork {
    async fn listen(&self, address: SocketAddr) -> io::Result<Box<dyn Listener>> {
        Ok(Box::new(TcpAcceptor(
            tokio::net::TcpListener::bind(address).await?,
        )))
    }

    async fn connect(&self, host: &str, port: u16) -> io::Result<BoxStream> {
        let stream = tokio::net::TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }
}

struct TcpAcceptor(tokio::net::TcpListener);

#[async_trait]
impl Listener for TcpAcceptor {
    async fn accept(&mut self) -> io::Result<Accepted> {
        let (stream, peer) = self.0.accept().await?;
        stream.set_nodelay(true)?;
        let local = stream.local_addr()?;
        Ok(Accepted {
            stream: Box::new(stream),
            peer,
            local,
        })
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}
