//! A stream of which the first bytes have been read already, to see what it is.
//!
//! Owns: [`Prefixed`].

use crate::peer::hello::HEAD_BYTES;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use tidelog_env::BoxStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Reads the head again, then the rest. Lies under TLS only.
pub(super) struct Prefixed {
    head: [u8; HEAD_BYTES],
    given: usize,
    stream: BoxStream,
}

impl Prefixed {
    pub(super) fn new(head: [u8; HEAD_BYTES], stream: BoxStream) -> Self {
        Self {
            head,
            given: 0,
            stream,
        }
    }
}

impl AsyncRead for Prefixed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = &self.head[self.given..];
        if left.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let count = left.len().min(buffer.remaining());
        buffer.put_slice(&left[..count]);
        self.given += count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Prefixed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
