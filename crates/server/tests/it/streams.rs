//! A thousand open streams: all are answered, what they take in memory is bounded, and whoever hangs up is no longer worked for.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::caller::{KEY, TestServer, base, tiny_llama};
use crate::load::resident_bytes;
use crate::talking::{CHAT, COMPLETIONS, idle, start, talking, with_words};

const STREAMS: usize = 1000;
/// How many KiB each may take, both ends of its connection included, which are in this process.
const STREAM_KIB: u64 = 96;
const TOKENS: usize = 50;
/// Of the request whose client hangs up: far more than is drawn until the first event is there.
const PROMPTS: usize = 64;

/// An answer of which the beginning has come.
struct Open {
    body: Incoming,
    connection: JoinHandle<()>,
}

impl Open {
    async fn begin(server: &TestServer, path: &str, body: &Value) -> Self {
        let stream = TcpStream::connect(server.address()).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        let connection = tokio::spawn(async move {
            // A test that hangs up breaks it.
            let _ = connection.await;
        });
        let request = Request::post(path)
            .header("host", "localhost")
            .header("authorization", format!("Bearer {KEY}"))
            .body(Full::new(Bytes::from(body.to_string())));
        let answer = sender.send_request(request.unwrap()).await.unwrap();
        assert_eq!(answer.status(), 200);
        let body = answer.into_body();
        Self { body, connection }
    }

    async fn read(self) -> String {
        let bytes = self.body.collect().await.unwrap().to_bytes();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    fn hang_up(self) {
        self.connection.abort();
    }
}

/// What differs between two answers to the same request.
fn said(stream: &str) -> Vec<Value> {
    let events = stream.strip_suffix("data: [DONE]\n\n").expect("an end");
    let events = events.split_terminator("\n\n").map(|event| {
        let mut event: Value = serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
        event["id"] = Value::Null;
        event["created"] = Value::Null;
        event
    });
    events.collect()
}

fn request(path: &str) -> Value {
    let mut body = json!({
        "model": "tiny", "max_tokens": TOKENS, "seed": 1, "ignore_eos": true, "stream": true, "logprobs": true,
    });
    if path == CHAT {
        body["messages"] = json!([{"role": "user", "content": "a"}]);
        body["top_logprobs"] = 2.into();
    } else {
        body["prompt"] = "ab".into();
        body["logprobs"] = 2.into();
    }
    body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_open_streams_take_bounded_memory_and_all_are_answered() {
    let server = start(talking()).await;
    hold(&server, &[CHAT, COMPLETIONS], STREAM_KIB).await;
}

/// Finished answers stay in the cache of prompt beginnings, as far as the memory for sampling goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_streams_leave_in_the_cache_of_a_real_model_is_within_its_budget() {
    let data = Arc::new(tempfile::tempdir().unwrap());
    let server = TestServer::of(with_words(base(tiny_llama())), data, |settings| {
        settings.memory = Some(256 << 20);
    })
    .await;
    // An eighth of the budget at most is for sampling.
    let cache_kib = (256 << 10) / 8 / STREAMS as u64;
    hold(&server, &[COMPLETIONS], STREAM_KIB + cache_kib).await;
}

/// Holds streams open, and reads them to their ends.
async fn hold(server: &TestServer, paths: &[&str], most_kib: u64) {
    for path in paths {
        let body = request(path);
        let expected = said(&Open::begin(server, path, &body).await.read().await);
        // The first ones fill what is meant to be filled: caches, pools, the heap.
        let first = join_all((0..50).map(|_| Open::begin(server, path, &body))).await;
        join_all(first.into_iter().map(Open::read)).await;
        let before = resident_bytes();
        let streams = join_all((0..STREAMS).map(|_| Open::begin(server, path, &body))).await;
        idle(server).await;
        let now = resident_bytes();
        if let (Some(before), Some(now)) = (before, now) {
            let each = now.saturating_sub(before) / STREAMS as u64 / 1024;
            assert!(each < most_kib, "{path}: {each} KiB for each stream");
        }
        let mut answers = 0;
        for answer in join_all(streams.into_iter().map(Open::read)).await {
            assert_eq!(said(&answer), expected);
            answers += 1;
        }
        assert_eq!(answers, STREAMS);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_hang_up_are_not_worked_for_any_longer() {
    let server = start(talking()).await;
    let mut body = request(COMPLETIONS);
    body["prompt"] = vec!["ab"; PROMPTS].into();
    body["n"] = 128.into();
    let mut stream = Open::begin(&server, COMPLETIONS, &body).await;
    assert!(stream.body.frame().await.is_some());
    stream.hang_up();
    idle(&server).await;
    let sampled = async || {
        let metrics = server
            .try_send(http::Method::GET, "/metrics", &[], "")
            .await
            .unwrap();
        let text = String::from_utf8_lossy(&metrics.body).into_owned();
        let line = text
            .lines()
            .find(|line| line.contains("tokens") && line.contains("\"sampled\""));
        line.map_or(0.0, |line| {
            line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
        })
    };
    let all = (PROMPTS * 128 * TOKENS) as f64;
    assert!(
        sampled().await < all / 2.0,
        "{} of {all} tokens",
        sampled().await
    );
    let answer = Open::begin(&server, CHAT, &request(CHAT))
        .await
        .read()
        .await;
    assert!(!said(&answer).is_empty());
}

/// What of an answer does not depend on when it was asked for.
fn lasting(mut answer: Value) -> Value {
    fn clear(value: &mut Value) {
        match value {
            Value::Object(members) => {
                for name in ["id", "created", "created_at", "usage"] {
                    members.remove(name);
                }
                members.values_mut().for_each(clear);
            }
            Value::Array(items) => items.iter_mut().for_each(clear),
            _ => {}
        }
    }
    clear(&mut answer);
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_endpoint_answers_many_at_once_as_it_answers_one() {
    let server = start(talking()).await;
    let messages = json!([{"role": "user", "content": "a"}]);
    let asked = json!({"model": "tiny", "messages": messages, "max_tokens": 9, "temperature": 0});
    let cases = [
        ("openai_chat_completions", CHAT, asked.clone()),
        ("anthropic_messages", "/v1/messages", asked),
        (
            "openai_completions",
            COMPLETIONS,
            json!({"model": "tiny", "prompt": "ab", "max_tokens": 9, "seed": 1}),
        ),
        (
            "openai_responses",
            "/v1/responses",
            json!({"model": "tiny", "input": "a", "max_output_tokens": 9, "temperature": 0}),
        ),
        (
            "anthropic_count_tokens",
            "/v1/messages/count_tokens",
            json!({"model": "tiny", "messages": messages}),
        ),
        ("openai_models", "/v1/models", Value::Null),
        ("openai_model", "/v1/models/tiny", Value::Null),
    ];
    let paths = cases
        .iter()
        .map(|(_, path, _)| *path)
        .collect::<std::collections::BTreeSet<_>>();
    for endpoint in tinkrs_wire::endpoint::ALL {
        let path = endpoint.path.replace("{model}", "tiny");
        let is_ours = path.starts_with("/v1/");
        assert!(
            !is_ours || paths.contains(path.as_str()),
            "{path} is not under load here"
        );
    }
    let ask = async |path: &str, body: &Value| {
        let method = if body.is_null() {
            http::Method::GET
        } else {
            http::Method::POST
        };
        let text = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let answer = server.try_send(method, path, &[], text).await.unwrap();
        assert_eq!(answer.status, 200, "{path}: {:?}", answer.body);
        lasting(answer.json())
    };
    let mut expected = Vec::new();
    for (_, path, body) in &cases {
        expected.push(ask(path, body).await);
    }
    for hosted in [false, true] {
        let all = (0..40).flat_map(|_| cases.iter().zip(&expected));
        let all = all.map(async |((name, path, body), expected)| {
            let prefix = match name.split('_').next() {
                Some("anthropic") if hosted => "/anthropic/api",
                Some("openai") if hosted => "/oai/api",
                _ => "",
            };
            assert_eq!(
                ask(&format!("{prefix}{path}"), body).await,
                *expected,
                "{path}"
            );
        });
        join_all(all).await;
    }
    idle(&server).await;
}
