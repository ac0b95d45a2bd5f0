//! Connections that stand still, over real sockets. Time passes by itself whenever nothing else happens.

use std::convert::Infallible;

use axum::routing::{get, post};
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, mpsc};

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

/// A server with a few routes, which ends with its test.
struct Running {
    address: SocketAddr,
    /// Dropping it does not stop the server, but sending does.
    closing: watch::Sender<bool>,
    serving: tokio::task::JoinHandle<()>,
}

impl Running {
    async fn start(limit: usize, router: Router) -> Self {
        let limits = Limits {
            connections: limit,
            header_timeout: Duration::from_secs(20),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(120),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (closing, closed) = watch::channel(false);
        let serving = tokio::spawn(serve(listener, router, limits, closed));
        Self {
            address,
            closing,
            serving,
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends a request on a connection of its own, and reads to the end of that.
    async fn get(&self, path: &str) -> String {
        let mut stream = self.connect().await;
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        rest(&mut stream).await
    }
}

/// Reads to the end of a connection.
async fn rest(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text).await;
    String::from_utf8(text).unwrap()
}

/// Reads what there is of a response, which is short.
async fn read(stream: &mut TcpStream) -> String {
    let mut buffer = [0; 4096];
    let length = stream.read(&mut buffer).await.unwrap();
    String::from_utf8(buffer[..length].to_vec()).unwrap()
}

fn routes() -> Router {
    let late = || async {
        tokio::time::sleep(HOUR).await;
        "late"
    };
    let count = |body: Body| async move {
        match axum::body::to_bytes(body, usize::MAX).await {
            Ok(bytes) => bytes.len().to_string(),
            Err(error) => format!("failed: {error}"),
        }
    };
    Router::new()
        .route("/hello", get(|| async { "hello" }))
        .route("/late", get(late))
        .route("/count", post(count))
        .route(endpoint::HEALTHZ.path, get(|| async { "well" }))
}

#[tokio::test(start_paused = true)]
async fn whoever_owes_a_request_or_sends_none_is_hung_up_on() {
    let server = Running::start(10, routes()).await;
    for sent in ["", "GET /hello HT", "GET /hello HTTP/1.1\r\nHost: x\r\n"] {
        let start = tokio::time::Instant::now();
        let mut stream = server.connect().await;
        stream.write_all(sent.as_bytes()).await.unwrap();
        assert_eq!(rest(&mut stream).await, "", "{sent}");
        let waited = start.elapsed().as_secs();
        assert!((19..=21).contains(&waited), "{sent}: {waited} s");
    }
    // Between two requests there is more time, and the next one starts anew.
    let mut stream = server.connect().await;
    for pause in [0, 100] {
        tokio::time::sleep(Duration::from_secs(pause)).await;
        let request = b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n";
        stream.write_all(request).await.unwrap();
        assert!(read(&mut stream).await.ends_with("hello"));
    }
    let start = tokio::time::Instant::now();
    assert_eq!(rest(&mut stream).await, "");
    let waited = start.elapsed().as_secs();
    assert!((119..=121).contains(&waited), "{waited} s");
}

#[tokio::test(start_paused = true)]
async fn a_body_has_to_come_at_some_pace_and_a_slow_line_is_one() {
    let server = Running::start(10, routes()).await;
    let head = |length: usize| {
        format!(
            "POST /count HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        )
    };
    let mut stream = server.connect().await;
    stream.write_all(head(1000).as_bytes()).await.unwrap();
    stream.write_all(b"some").await.unwrap();
    let answer = rest(&mut stream).await;
    assert!(answer.contains("failed"), "{answer}");
    // 3 MB at 100 KB/s.
    let mut stream = server.connect().await;
    stream.write_all(head(3_000_000).as_bytes()).await.unwrap();
    for _ in 0..30 {
        stream.write_all(&[7; 100_000]).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(rest(&mut stream).await.ends_with("3000000"));
}

#[tokio::test(start_paused = true)]
async fn a_client_is_told_that_its_connection_ends_because_its_body_was_not_read() {
    let server = Running::start(10, routes()).await;
    let post = |path: &str| format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n");
    let mut stream = server.connect().await;
    for _ in 0..2 {
        let request = post("/count") + "some";
        stream.write_all(request.as_bytes()).await.unwrap();
        let answer = read(&mut stream).await;
        assert!(answer.ends_with("\r\n\r\n4"), "{answer}");
        assert!(!answer.contains("connection: close"), "{answer}");
    }
    // Nobody reads what is sent to these.
    for path in ["/hello", "/nowhere"] {
        let mut stream = server.connect().await;
        stream.write_all(post(path).as_bytes()).await.unwrap();
        let answer = rest(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 40"), "{answer}");
        assert!(answer.contains("connection: close"), "{answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_poll_may_wait_for_as_long_as_it_likes() {
    let server = Running::start(10, routes()).await;
    assert!(server.get("/late").await.ends_with("late"));
}

/// An endless response that tells when it is given up.
struct Endless(mpsc::UnboundedSender<()>);

impl futures_core::Stream for Endless {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Ready(Some(Ok(Bytes::from_static(&[0; 65536]))))
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_that_nobody_takes_is_given_up() {
    let (given_up, mut told) = mpsc::unbounded_channel();
    let endless = move || async move { Body::from_stream(Endless(given_up)) };
    let server = Running::start(10, Router::new().route("/endless", get(endless))).await;
    let mut stream = server.connect().await;
    stream
        .write_all(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    let start = tokio::time::Instant::now();
    told.recv().await.unwrap();
    let waited = start.elapsed().as_secs();
    assert!((30..=31).contains(&waited), "{waited} s");
}

#[tokio::test]
async fn at_the_limit_who_is_idle_makes_room_and_if_nobody_is_health_is_still_told() {
    let (wake, busy) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (waking, waiting) = (Arc::clone(&wake), Arc::clone(&busy));
    let wait = move || async move {
        waiting.notify_one();
        waking.notified().await;
        "done"
    };
    let server = Running::start(2, routes().route("/wait", get(wait))).await;
    let mut idle = server.connect().await;
    idle.write_all(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    assert!(read(&mut idle).await.ends_with("hello"));
    let _half_open = server.connect().await;
    // Two that are busy take the places of the idle one and of the one that owes its request.
    let mut waiting = Vec::new();
    for _ in 0..2 {
        let mut stream = server.connect().await;
        stream
            .write_all(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
            .await
            .unwrap();
        busy.notified().await;
        waiting.push(stream);
    }
    assert_eq!(rest(&mut idle).await, "");
    assert!(server.get(endpoint::HEALTHZ.path).await.ends_with("well"));
    let refused = server.get("/hello").await;
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    for part in [
        "retry-after: 1",
        "connection: close",
        "too many connections",
    ] {
        assert!(refused.contains(part), "{part} in {refused}");
    }
    // When it stops, those who wait still get their responses.
    server.closing.send_replace(true);
    for stream in &mut waiting {
        wake.notify_one();
        assert!(read(stream).await.ends_with("done"));
    }
    server.serving.await.unwrap();
}
