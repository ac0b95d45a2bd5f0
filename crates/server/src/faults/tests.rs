//! Each fault as a client sees it, over a real socket.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::routing::{get, post};
use axum::{Router, middleware};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::Settings;
use crate::connections::{self, Limits};

use super::{Faults, clear, for_local_callers, inject, replace, show};

const ANSWER: &str = "0123456789";

/// The routes that show and change the rules.
fn admin(faults: Faults) -> Router {
    let routes = Router::new().route("/admin/faults", get(show).put(replace).delete(clear));
    for_local_callers(routes).with_state(faults)
}

/// A server with one endpoint, `/api/v1/echo`, which counts how often it was handled.
struct Faulty {
    address: SocketAddr,
    handled: Arc<AtomicUsize>,
    serving: JoinHandle<()>,
}

impl Drop for Faulty {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Faulty {
    async fn start(rule: Value) -> (Self, Faults) {
        let document = json!({"rules": [rule]}).to_string();
        let faults = Faults::default();
        faults.replace(document.as_bytes()).unwrap();
        let handled = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&handled);
        let echo = move || async move {
            counter.fetch_add(1, Ordering::SeqCst);
            ANSWER
        };
        let routes = Router::new()
            .route("/api/v1/echo", post(echo))
            .merge(admin(faults.clone()))
            .layer(middleware::from_fn_with_state(faults.clone(), inject));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let limits = Limits::from(&Settings::new("data"));
        let serving = tokio::spawn(async move {
            let (_running, closing) = watch::channel(false);
            connections::serve(listener, routes, limits, closing).await;
        });
        let server = Self {
            address,
            handled,
            serving,
        };
        (server, faults)
    }

    /// Sends a request and reads to the end of the connection.
    async fn send(&self, method: &str, path: &str, body: &str) -> (String, io::Result<()>) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        // A server that resets the connection may do so before it has all of the body.
        let _ = stream.write_all(body.as_bytes()).await;
        let mut answer = Vec::new();
        let end = stream.read_to_end(&mut answer).await.map(drop);
        (String::from_utf8(answer).unwrap(), end)
    }

    async fn echo(&self) -> (String, io::Result<()>) {
        self.send("POST", "/api/v1/echo", "hello").await
    }

    fn handled(&self) -> usize {
        self.handled.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn a_status_comes_with_a_sentence_and_a_time_to_wait() {
    let rule = json!({"endpoint": "echo", "fault": 429, "first": 1, "retry_after": 0.5});
    let (server, _) = Faulty::start(rule).await;
    let (answer, _) = server.echo().await;
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
    assert!(answer.contains("retry-after: 0.5\r\n"), "{answer}");
    assert!(answer.ends_with(r#"{"detail":"injected by rules[0] of the faults"}"#));
    assert_eq!(server.handled(), 0);
    let (answer, _) = server.echo().await;
    assert!(answer.ends_with(ANSWER), "{answer}");
}

#[tokio::test]
async fn an_answer_can_be_lost_after_the_request_was_handled() {
    for (fault, after, handled) in [(json!(504), true, 1), (json!("reset"), true, 1)] {
        let rule = json!({"endpoint": "echo", "fault": fault, "after": after});
        let (server, _) = Faulty::start(rule).await;
        let (answer, _) = server.echo().await;
        assert!(!answer.contains(ANSWER), "{answer}");
        assert_eq!(server.handled(), handled, "{fault}");
    }
}

#[tokio::test]
async fn a_cut_answer_has_the_length_of_the_whole_and_half_of_its_bytes() {
    let (server, _) = Faulty::start(json!({"endpoint": "echo", "fault": "cut"})).await;
    let (answer, _) = server.echo().await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.contains("content-length: 10\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\n01234"), "{answer}");
    assert_eq!(server.handled(), 1);
}

#[tokio::test]
async fn a_reset_connection_ends_with_an_error_and_no_status() {
    let (server, _) = Faulty::start(json!({"endpoint": "echo", "fault": "reset"})).await;
    let (answer, end) = server.echo().await;
    assert_eq!(answer, "");
    assert_eq!(end.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(server.handled(), 0);
}

#[tokio::test]
async fn a_connection_without_a_switch_is_closed_without_a_status() {
    let faults = Faults::default();
    let document = json!({"rules": [{"endpoint": "/**", "fault": "reset"}]}).to_string();
    faults.replace(document.as_bytes()).unwrap();
    let routes = Router::new()
        .route("/", post(|| async { ANSWER }))
        .layer(middleware::from_fn_with_state(faults, inject));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move { axum::serve(listener, routes).await });
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert_eq!(String::from_utf8(answer).unwrap(), "");
    serving.abort();
}

#[tokio::test]
async fn a_request_hangs_until_the_rules_change() {
    let (server, faults) = Faulty::start(json!({"endpoint": "echo", "fault": "hang"})).await;
    let server = Arc::new(server);
    let hanging = Arc::clone(&server);
    let hanging = tokio::spawn(async move { hanging.echo().await });
    while faults.document()["rules"][0]["injected"] != 1 {
        tokio::task::yield_now().await;
    }
    // Others are answered meanwhile, at the route that ends it.
    let (answer, _) = server.send("GET", "/admin/faults", "").await;
    assert!(answer.contains(r#""injected":1"#), "{answer}");
    assert!(!hanging.is_finished());
    let (answer, _) = server.send("DELETE", "/admin/faults", "").await;
    assert!(answer.contains(r#""rules":[]"#), "{answer}");
    let (answer, _) = hanging.await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert_eq!(server.handled(), 0);
    assert!(server.echo().await.0.ends_with(ANSWER));
}

#[tokio::test(start_paused = true)]
async fn a_delay_comes_before_the_answer() {
    let rule = json!({"endpoint": "echo", "fault": "delay", "delay_ms": 90_000});
    let (server, _) = Faulty::start(rule).await;
    let start = Instant::now();
    assert!(server.echo().await.0.ends_with(ANSWER));
    assert!(start.elapsed() >= Duration::from_secs(90));
    assert_eq!(server.handled(), 1);
}

#[tokio::test]
async fn rules_are_replaced_while_the_server_runs_and_bad_ones_are_not() {
    let (server, _) = Faulty::start(json!({"endpoint": "**", "fault": 500})).await;
    let bad = r#"{"rules": [{"endpoint": "echo", "fault": 9}]}"#;
    let (answer, _) = server.send("PUT", "/admin/faults", bad).await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.contains("`rules[0].fault`: found 9"), "{answer}");
    assert!(server.echo().await.0.starts_with("HTTP/1.1 500 "));
    let good = r#"{"rules": [{"endpoint": "echo", "fault": 402}]}"#;
    let (answer, _) = server.send("PUT", "/admin/faults", good).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(server.echo().await.0.starts_with("HTTP/1.1 402 "));
}

#[tokio::test]
async fn the_rules_are_for_callers_on_this_machine_only() {
    // Without connect info nobody knows where the caller is.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let routes = admin(Faults::default());
    let serving = tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
    let server = Faulty {
        address,
        handled: Arc::default(),
        serving,
    };
    let (answer, _) = server.send("GET", "/admin/faults", "").await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let data = tempfile::tempdir().unwrap();
    let path = data.path().join("faults.json");
    let error = Faults::load(&path).unwrap_err().to_string();
    assert!(error.contains("faults.json"), "{error}");
    std::fs::write(&path, "{").unwrap();
    let error = Faults::load(&path).unwrap_err().to_string();
    assert_eq!(error, "the faults are not JSON");
    std::fs::write(&path, r#"{"rules": []}"#).unwrap();
    assert_eq!(Faults::load(&path).unwrap().document()["seed"], 0);
}
