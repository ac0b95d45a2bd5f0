//! Changes as they happen.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::browser::Browser;
use crate::caller::{KEY, TestServer};

/// A stream of events.
struct Stream {
    body: hyper::body::Incoming,
    text: String,
}

#[derive(Debug)]
struct Event {
    name: String,
    data: Value,
    id: Option<String>,
}

impl Stream {
    async fn open(server: &TestServer, query: &str, headers: &[(&str, &str)]) -> Self {
        let stream = TcpStream::connect(server.address()).await.unwrap();
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
        let (mut sender, connection) = handshake.await.unwrap();
        tokio::spawn(connection);
        let mut request = Request::get(format!("/api/v1/studio/events{query}"))
            .header("host", server.address().to_string());
        if !headers.iter().any(|(name, _)| *name == "x-api-key") {
            request = request.header("x-api-key", KEY);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Empty::<Bytes>::new()).unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let mut stream = Self {
            body: response.into_body(),
            text: String::new(),
        };
        // The greeting says that it listens.
        let hello = stream.block().await;
        assert!(hello.contains(": watching"), "{hello}");
        stream
    }

    /// Everything to the next empty line.
    async fn block(&mut self) -> String {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.text = rest;
                return block;
            }
            let frame = tokio::time::timeout(Duration::from_secs(60), self.body.frame());
            let frame = frame.await.expect("an event").expect("no end").unwrap();
            let data = frame.into_data().unwrap();
            self.text += std::str::from_utf8(&data).unwrap();
        }
    }

    /// Everything that comes until the server ends the stream.
    async fn rest(mut self) -> String {
        loop {
            let frame = tokio::time::timeout(Duration::from_secs(60), self.body.frame());
            match frame.await.expect("an end") {
                None => return self.text,
                Some(frame) => {
                    let data = frame.unwrap().into_data().unwrap();
                    self.text += std::str::from_utf8(&data).unwrap();
                }
            }
        }
    }

    async fn next(&mut self) -> Event {
        loop {
            let block = self.block().await;
            let line = |name: &str| {
                let mut lines = block.lines();
                lines
                    .find_map(|line| line.strip_prefix(name))
                    .map(str::to_owned)
            };
            let (Some(name), Some(data)) = (line("event: "), line("data: ")) else {
                continue;
            };
            let data = serde_json::from_str(&data).unwrap();
            let id = line("id: ");
            return Event { name, data, id };
        }
    }

    /// Reads until an event of this name has this step.
    async fn until_step(&mut self, step: i64) -> Vec<Event> {
        let mut seen = Vec::new();
        loop {
            let event = self.next().await;
            let is_it = event.name == "run" && event.data["step"] == step;
            seen.push(event);
            if is_it && seen.last().unwrap().data["state"] == "idle" {
                return seen;
            }
        }
    }
}

async fn train(server: &TestServer, run: &str, step: i64) {
    server.forward_backward(run, 2 * step - 1).await;
    let id = server.optim_step(run, 2 * step).await;
    server.result(&id).await;
}

#[tokio::test]
async fn a_page_hears_of_every_step_and_goes_on_where_it_was() {
    let server = TestServer::start().await;
    let run = server.model().await;
    train(&server, &run, 1).await;
    let query = format!("?run={run}");
    let mut stream = Stream::open(&server, &query, &[]).await;
    train(&server, &run, 2).await;
    train(&server, &run, 3).await;
    let seen = stream.until_step(3).await;
    let steps: Vec<_> = seen
        .iter()
        .filter(|event| event.name == "metrics")
        .map(|event| event.data["step"].as_i64().unwrap())
        .collect();
    assert_eq!(steps, [2, 3], "each once, and nothing of before");
    let mut losses = seen.iter().filter(|event| event.name == "metrics");
    assert!(losses.all(|event| event.data["metrics"]["loss"].is_f64()));
    let operations = seen.iter().filter(|event| event.name == "operation");
    assert_eq!(operations.count(), 4);
    let id = seen
        .iter()
        .rev()
        .find_map(|event| event.id.clone())
        .unwrap();
    drop(stream);

    // The server goes away, and trains before the page is back.
    let server = server.restart(|_| {}).await;
    train(&server, &run, 4).await;
    let mut stream = Stream::open(&server, &query, &[("last-event-id", &id)]).await;
    let seen = stream.until_step(4).await;
    let metrics: Vec<_> = seen
        .iter()
        .filter(|event| event.name == "metrics")
        .collect();
    assert_eq!(metrics.len(), 1, "{metrics:?}");
    assert_eq!(metrics[0].data["step"], 4);

    let body = json!({"step": 4, "metrics": {"reward": 1.0}});
    server
        .ok(&format!("/training_runs/{run}/metrics"), body)
        .await;
    loop {
        let event = stream.next().await;
        if event.name == "run" && event.data["last"]["reward"] == 1.0 {
            break;
        }
    }
}

#[tokio::test]
async fn the_list_hears_of_all_runs_of_its_owner_and_of_no_other() {
    let server = TestServer::start().await;
    let mut stream = Stream::open(&server, "", &[]).await;
    let stranger = server.owner("tml-stranger");
    let session = stranger
        .ok("/create_session", json!({"tags": [], "sdk_version": "1"}))
        .await;
    let create = json!({
        "session_id": session["session_id"], "model_seq_id": 0, "base_model": "tiny",
        "lora_config": {"rank": 4},
    });
    stranger.result("/create_model", create).await;
    let (one, two) = (server.model().await, server.model().await);
    train(&server, &one, 1).await;
    train(&server, &two, 1).await;
    let (mut left, theirs) = (vec![one, two], session["session_id"].as_str().unwrap());
    while !left.is_empty() {
        let event = stream.next().await;
        assert!(!event.data.to_string().contains(theirs), "{event:?}");
        if event.name == "run" && event.data["step"] == 1 {
            left.retain(|run| event.data["id"] != *run);
        }
    }
    let path = format!("/api/v1/studio/events?run={theirs}:train:0");
    let answer = server.try_send(Method::GET, &path, &[], "").await.unwrap();
    assert_eq!(answer.status, 404);
}

#[tokio::test]
async fn a_link_to_a_run_hears_of_that_run_only() {
    let server = TestServer::start().await;
    let run = server.model().await;
    let share = server
        .ok(&format!("/training_runs/{run}/share"), json!({"hours": 1}))
        .await;
    let link = share["url"].as_str().unwrap().strip_prefix(&server.url());
    let mut guest = Browser::new(&server);
    guest.get(link.unwrap()).await;
    let answer = guest.get("/api/v1/studio/events").await;
    assert_eq!(answer.status, 403, "{:?}", answer.body);
    let headers = [("x-api-key", ""), ("cookie", guest.cookies.as_str())];
    let mut request = Request::get(format!("/api/v1/studio/events?run={run}"));
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let stream = TcpStream::connect(server.address()).await.unwrap();
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    let request = request.header("host", server.address().to_string());
    let request = request.body(Empty::<Bytes>::new()).unwrap();
    assert_eq!(sender.send_request(request).await.unwrap().status(), 200);
}

#[tokio::test]
async fn what_a_client_reports_of_any_step_is_heard_as_it_comes() {
    let server = TestServer::start().await;
    let run = server.model().await;
    let mut stream = Stream::open(&server, &format!("?run={run}"), &[]).await;
    let path = format!("/training_runs/{run}/metrics");
    let mut heard = async |source: &str| loop {
        let event = stream.next().await;
        if event.name == "metrics" && event.data["source"] == source {
            return (
                event.data["step"].as_i64().unwrap(),
                event.data["metrics"].clone(),
            );
        }
    };
    train(&server, &run, 1).await;
    assert_eq!(heard("server").await.0, 1);
    // A reward of the step that was just told of, an evaluation by a count of its own, and one of before.
    for step in [1, 100_000, 0] {
        let body = json!({"step": step, "metrics": {"reward": step}});
        server.ok(&path, body).await;
        let (told, values) = heard("client").await;
        assert_eq!(told, i64::from(step));
        assert_eq!(values, json!({"reward": f64::from(step)}));
    }
    train(&server, &run, 2).await;
    assert_eq!(heard("server").await.0, 2, "the server's own go on");
}

#[tokio::test]
async fn a_stream_ends_with_the_login_or_the_link_that_opened_it() {
    let server = TestServer::start().await;
    let run = server.model().await;
    let query = format!("?run={run}");
    let share = server
        .ok(&format!("/training_runs/{run}/share"), json!({"hours": 1}))
        .await;
    let link = share["url"].as_str().unwrap().strip_prefix(&server.url());
    let mut guest = Browser::new(&server);
    guest.get(link.unwrap()).await;
    let mut member = Browser::logged_in(&server, KEY).await;
    let mut open = Vec::new();
    for browser in [&guest, &member] {
        let headers = [("x-api-key", ""), ("cookie", browser.cookies.as_str())];
        open.push(Stream::open(&server, &query, &headers).await);
    }
    let mut program = Stream::open(&server, &query, &[]).await;
    let own = [("x-tinkrs-studio", "1"), ("sec-fetch-site", "same-origin")];
    let path = "/logout?everywhere=true";
    let out = member.send(Method::POST, path, &own, "").await;
    assert_eq!(out.status, 303);
    train(&server, &run, 1).await;
    for stream in open {
        let rest = stream.rest().await;
        assert!(!rest.contains("event: metrics"), "{rest}");
    }
    assert_eq!(program.until_step(1).await.last().unwrap().name, "run");
}

#[tokio::test]
async fn readers_that_never_read_are_let_go_of_and_hold_up_nobody() {
    let server = TestServer::with(|settings| {
        settings.write_timeout = Duration::from_millis(50);
    })
    .await;
    let run = server.model().await;
    let mut readers = Vec::new();
    for _ in 0..50 {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        let head = format!(
            "GET /api/v1/studio/events?run={run} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {KEY}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        readers.push(stream);
    }
    let watchers = async || {
        let view = server.get("/studio/server").await;
        view["queues"]["watchers"].as_u64().unwrap()
    };
    while watchers().await < 50 {}
    for step in 1..=20 {
        train(&server, &run, step).await;
    }
    // A client that goes away is noticed when something is written to it.
    drop(readers);
    let mut step = 21;
    while watchers().await > 0 {
        train(&server, &run, step).await;
        step += 1;
    }
}

#[tokio::test]
async fn an_owner_has_so_many_pages_and_leaves_room_for_others() {
    let server = TestServer::start().await;
    let mut streams = Vec::new();
    for _ in 0..64 {
        streams.push(Stream::open(&server, "", &[]).await);
    }
    let path = "/api/v1/studio/events";
    let answer = server.try_send(Method::GET, path, &[], "").await.unwrap();
    assert_eq!(answer.status, 429, "{:?}", answer.body);
    streams.push(Stream::open(&server, "", &[("x-api-key", "tml-other")]).await);
}

#[tokio::test]
async fn pages_that_watch_the_same_are_told_the_same_wherever_they_began() {
    let server = TestServer::start().await;
    let run = server.model().await;
    let query = format!("?run={run}");
    let mut early = Stream::open(&server, &query, &[]).await;
    train(&server, &run, 1).await;
    let first = early.until_step(1).await;
    let id = first.iter().rev().find_map(|event| event.id.clone());
    let mut late = Stream::open(&server, &query, &[]).await;
    train(&server, &run, 2).await;
    // One that was away since the first step, and one that claims to have seen the end of time.
    let mut back = Stream::open(&server, &query, &[("last-event-id", &id.unwrap())]).await;
    let never = format!("{}.{}", i64::MAX, i64::MAX);
    let mut liar = Stream::open(&server, &query, &[("last-event-id", &never)]).await;
    train(&server, &run, 3).await;
    let steps = |seen: &[Event]| -> Vec<_> {
        let metrics = seen.iter().filter(|event| event.name == "metrics");
        metrics
            .map(|event| event.data["step"].as_i64().unwrap())
            .collect()
    };
    for stream in [&mut early, &mut late, &mut back] {
        let seen = stream.until_step(3).await;
        assert_eq!(steps(&seen), [2, 3]);
        let operations = seen.iter().filter(|event| event.name == "operation");
        assert_eq!(operations.count(), 4);
    }
    let seen = liar.until_step(3).await;
    assert_eq!(steps(&seen).last(), Some(&3));
}
