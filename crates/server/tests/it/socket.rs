//! Connections that stay open, for tests of many clients.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use crate::caller::{Answer, KEY};

/// One connection. Whoever comes while it is in use waits.
pub(crate) struct Socket {
    sender: Mutex<SendRequest<Full<Bytes>>>,
    host: String,
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
            host: address.to_string(),
        }
    }

    /// Sends JSON, or nothing if the body is null.
    pub(crate) async fn call(&self, method: Method, path: &str, body: &Value) -> Answer {
        let bytes = match body {
            Value::Null => Bytes::new(),
            body => body.to_string().into(),
        };
        let request = Request::builder()
            .method(method)
            .uri(format!("/api/v1{path}"))
            .header("host", &self.host)
            .header("x-api-key", KEY)
            .header("content-type", "application/json");
        let request = request.body(Full::new(bytes)).unwrap();
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

    /// Posts JSON that must be answered by 200, however often the server is busy before.
    pub(crate) async fn ok(&self, path: &str, body: &Value) -> Value {
        loop {
            let answer = self.call(Method::POST, path, body).await;
            if answer.status == 429 {
                tokio::task::yield_now().await;
                continue;
            }
            assert_eq!(answer.status, 200, "{path}: {:?}", answer.body);
            return answer.json();
        }
    }

    /// Waits for a result.
    pub(crate) async fn result(&self, promise: &Value) -> Value {
        let poll = json!({"request_id": promise["request_id"]});
        loop {
            let answer = self.call(Method::POST, "/retrieve_future", &poll).await;
            if answer.status != 408 {
                assert_eq!(answer.status, 200, "{promise}: {:?}", answer.body);
                return answer.json();
            }
        }
    }
}
