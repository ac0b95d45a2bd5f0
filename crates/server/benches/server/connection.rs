//! A client that sends what it is told to, on one connection.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

pub(crate) struct Connection {
    pub(crate) sender: SendRequest<Full<Bytes>>,
    host: String,
    key: &'static str,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Self {
        Self::with_key(address, "tml-bench").await
    }

    pub(crate) async fn with_key(address: SocketAddr, key: &'static str) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        let host = address.to_string();
        Self { sender, host, key }
    }

    pub(crate) fn request(&self, path: &str, body: &Value) -> Request<Full<Bytes>> {
        Request::post(format!("/api/v1{path}"))
            .header("host", &self.host)
            .header("x-api-key", self.key)
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body.to_string())))
            .unwrap()
    }

    pub(crate) async fn get(&mut self, path: &str) {
        let request = Request::get(path).header("host", &self.host);
        let request = request.body(Full::default()).unwrap();
        self.sender.ready().await.unwrap();
        let response = self.sender.send_request(request).await.unwrap();
        assert_eq!(response.status(), 200);
        response.into_body().collect().await.unwrap();
    }

    pub(crate) async fn post(&mut self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.send(path, body).await;
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    async fn send(&mut self, path: &str, body: &Value) -> (StatusCode, Value) {
        let request = self.request(path, body);
        self.sender.ready().await.unwrap();
        let response = self.sender.send_request(request).await.unwrap();
        let status = response.status();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&bytes).unwrap())
    }

    pub(crate) async fn result(&mut self, promise: &Value) -> Value {
        let body = json!({"request_id": promise["request_id"]});
        loop {
            let (status, answer) = self.send("/retrieve_future", &body).await;
            // Not yet.
            if status != 408 {
                assert_eq!(status, 200, "{answer}");
                return answer;
            }
        }
    }
}
