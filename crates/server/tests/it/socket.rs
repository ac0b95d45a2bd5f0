//! Connections that stay open, for tests of many clients.

use std::net::SocketAddr;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use crate::caller::Answer;
use crate::way::Way;

/// One connection. Whoever comes while it is in use waits.
pub(crate) struct Socket {
    sender: Mutex<SendRequest<Full<Bytes>>>,
}

impl Socket {
    pub(crate) async fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
        let (sender, connection) = handshake.await.unwrap();
        tokio::spawn(connection);
        Self {
            sender: Mutex::new(sender),
        }
    }
}

impl Way for Socket {
    async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        let mut sender = self.sender.lock().await;
        sender.ready().await.unwrap();
        let response = sender.send_request(request).await;
        let (parts, body) = response.expect("no connection breaks").into_parts();
        Answer {
            status: parts.status,
            headers: parts.headers,
            body: body.collect().await.unwrap().to_bytes(),
        }
    }
}
