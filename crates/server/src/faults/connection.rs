//! Connections that a request can have reset.
//!
//! A handler cannot reach the socket its request came through. [`Connections`] accepts sockets
//! together with a switch, and [`Peer`] carries the switch to the handlers; once it is thrown, the
//! next read or write fails and the socket is dropped with its unsent bytes, which the other side
//! sees as a reset.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

/// A listener whose connections can be reset.
#[derive(Debug)]
pub(crate) struct Connections(pub(crate) TcpListener);

impl Listener for Connections {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let (stream, address) = Listener::accept(&mut self.0).await;
        let reset = Arc::default();
        (Connection { stream, reset }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// A socket with its switch.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    reset: Arc<AtomicBool>,
}

/// Who is on the other side of a connection, and the switch that resets it.
///
/// It reaches handlers as `ConnectInfo<Peer>`.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    address: SocketAddr,
    /// The address of ours that it called, if the system tells.
    called: Option<SocketAddr>,
    reset: Arc<AtomicBool>,
}

impl Peer {
    /// Returns whether the other side is on this machine.
    pub(crate) fn is_local(&self) -> bool {
        // An IPv4 address may arrive as an IPv6 one.
        self.address.ip().to_canonical().is_loopback()
    }

    /// Returns whether the other side called a loopback address.
    pub(crate) fn called_loopback(&self) -> bool {
        self.called
            .is_none_or(|called| called.ip().to_canonical().is_loopback())
    }

    /// Has the connection reset at its next read or write.
    pub(super) fn reset(&self) {
        self.reset.store(true, Ordering::Relaxed);
    }
}

impl Connected<IncomingStream<'_, Connections>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Connections>) -> Self {
        Self {
            address: *stream.remote_addr(),
            called: stream.io().stream.local_addr().ok(),
            reset: Arc::clone(&stream.io().reset),
        }
    }
}

impl Connection {
    /// Fails once the switch is thrown.
    fn open(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        if self.reset.load(Ordering::Relaxed) {
            // Without it the system would say goodbye politely. If it refuses, so be it.
            let _ = self.stream.set_zero_linger();
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        Ok(Pin::new(&mut self.stream))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.open()?.poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.open()?.poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.open()?.poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.open()?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.open()?.poll_shutdown(cx)
    }
}
