//! A socket that ends when the other side takes nothing, and that a request can have reset.
//!
//! A handler cannot reach the socket its request came through. [`Connection`] has a switch, and [`Peer`]
//! carries it to the handlers; once it is thrown, the next read or write fails and the socket is dropped with
//! its unsent bytes, which the other side sees as a reset.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::Place;
use super::stall_timeout::StallTimeout;

/// A socket with its switch.
pub(super) struct Connection {
    stream: TcpStream,
    reset: Arc<AtomicBool>,
    place: Arc<Place>,
    writing: StallTimeout,
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
    /// Returns the address of the other side.
    pub(crate) fn ip(&self) -> IpAddr {
        self.address.ip()
    }

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
    pub(crate) fn reset(&self) {
        self.reset.store(true, Ordering::Relaxed);
    }
}

impl Connection {
    pub(super) fn new(
        stream: TcpStream,
        address: SocketAddr,
        write_timeout: Duration,
        place: Arc<Place>,
    ) -> (Self, Peer) {
        let reset = Arc::<AtomicBool>::default();
        let peer = Peer {
            address,
            called: stream.local_addr().ok(),
            reset: Arc::clone(&reset),
        };
        let connection = Self {
            stream,
            reset,
            place,
            writing: StallTimeout::new(write_timeout),
        };
        (connection, peer)
    }

    /// Counts what was written, or the time for which nothing can be.
    fn paced(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(written) => {
                self.writing.progressed(*written.as_ref().unwrap_or(&0));
                Poll::Ready(written)
            }
            Poll::Pending => Poll::Ready(Err(ready!(self.writing.poll_waiting(cx)).into())),
        }
    }

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
        let before = buffer.filled().len();
        let read = self.open()?.poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.place.note_first_byte();
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = self.open()?.poll_write(cx, bytes);
        self.paced(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.open()?.poll_write_vectored(cx, slices);
        self.paced(cx, written)
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
