//! Requests that are wrong in every way never harm the server.
//!
//! Whatever is sent is answered by 2xx or by 4xx with a `detail`, soon, and nothing panics; what was
//! promised a result has one; afterwards the server trains and samples as before.
//!
//! `TINKRS_MUTATION_SEED` draws other mutations than the usual ones.

mod mutate;
mod nulls;
mod valid;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};
use tinkrs_wire::endpoint::{self, Auth};

use crate::caller::{ADMIN_KEY, Answer, KEY, Local, TestServer};
use crate::endpoints::assert_covers;
use crate::talking::talking;
use crate::way::Way;
use mutate::Mutator;
use valid::{Valid, valid_requests};

/// How many mutations are tried of all valid requests together.
const MUTATIONS: usize = 12_000;
/// How long any request may take.
const SOON: Duration = Duration::from_secs(60);

/// What panicked in the code under test, in any thread of this process.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Has panics outside of tests noted, besides being printed.
fn note_panics() {
    static NOTING: AtomicBool = AtomicBool::new(false);
    if NOTING.swap(true, Ordering::Relaxed) {
        return;
    }
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let is_ours = |file: &str| file.contains("/src/") || file.starts_with("src/");
        if panic.location().is_some_and(|place| is_ours(place.file())) {
            PANICS.lock().unwrap().push(panic.to_string());
        }
        usual(panic);
    }));
}

/// A server that does not wait long for anything.
async fn impatient() -> TestServer {
    note_panics();
    let data = Arc::new(tempfile::tempdir().unwrap());
    TestServer::of(talking(), data, |settings| {
        settings.gap_timeout = Duration::from_millis(1);
        settings.poll_timeout = Duration::from_millis(1);
    })
    .await
}

/// Sends a request, and returns the id under which its result is promised.
async fn survive(local: &Local, what: String, request: Request<Full<Bytes>>) -> Option<String> {
    let answer = tokio::time::timeout(SOON, local.send(request)).await;
    let answer = answer.unwrap_or_else(|_| panic!("no answer: {what}"));
    assert_answered(&answer, &what);
    let body: Value = serde_json::from_slice(&answer.body).ok()?;
    let id = body["request_id"].as_str()?.to_owned();
    (answer.status == 200).then_some(id)
}

fn assert_answered(answer: &Answer, what: &str) {
    let (status, body) = (answer.status, &answer.body);
    if status.is_success() || status.is_redirection() {
        return;
    }
    assert!(status.is_client_error(), "{status} {body:?}: {what}");
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    let detail = json["detail"]
        .as_str()
        .or(json["error"]["message"].as_str());
    let says_why = detail.is_some_and(|detail| !detail.is_empty());
    let not_yet = status == 408 && json["type"] == "try_again";
    assert!(says_why || not_yet, "{status} {body:?}: {what}");
}

/// Makes sure that every promise is kept, and that no failure is the server's.
async fn assert_kept(local: &Local, ids: Vec<String>) {
    for id in &ids {
        local.ok("/cancel_future", &json!({"request_id": id})).await;
    }
    for id in ids {
        let promise = json!({"request_id": id});
        let result = tokio::time::timeout(SOON, local.result(&promise)).await;
        let result = result.unwrap_or_else(|_| panic!("no result: {id}"));
        assert_ne!(result["category"], "server", "{result}");
    }
}

/// Trains and samples as usual, with the usual loss.
async fn assert_works(server: &TestServer) {
    let panics = std::mem::take(&mut *PANICS.lock().unwrap());
    assert!(panics.is_empty(), "{panics:?}");
    let model = server.model().await;
    let first = server.forward_backward(&model, 1).await;
    server.optim_step(&model, 2).await;
    let second = server.forward_backward(&model, 3).await;
    let (first, second) = (server.loss(&first).await, server.loss(&second).await);
    assert!(second < first, "the loss went from {first} to {second}");
    let body = json!({
        "base_model": "tiny", "prompt": {"chunks": [{"tokens": [1, 5]}]},
        "sampling_params": {"max_tokens": 3, "stop": []},
    });
    let sample = server.promise("/asample", body).await;
    let sample = server.result(&sample).await;
    assert_eq!(
        sample["sequences"][0]["tokens"].as_array().map(Vec::len),
        Some(3),
        "{sample}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_mutated_requests_are_answered_and_harm_nothing() {
    let server = impatient().await;
    let local = server.local();
    let valid = valid_requests(&server).await;
    let covered = valid.iter().map(|valid| valid.endpoint.name).collect();
    assert_covers(&covered, |endpoint| {
        let has_body = [Method::POST, Method::PUT].contains(&endpoint.method);
        // The rules of faults are for callers with an address, and have a test of their own.
        has_body && endpoint.auth != Auth::Admin
    });
    let mut promised = Vec::new();
    for valid in &valid {
        let id = survive(
            &local,
            format!("the valid {}", valid.endpoint.name),
            valid.request(),
        )
        .await;
        promised.extend(id);
    }
    let seed = std::env::var("TINKRS_MUTATION_SEED").ok();
    let seed = seed.map_or(1, |text| {
        text.parse().expect("TINKRS_MUTATION_SEED: a number")
    });
    let mut mutator = Mutator::new(seed);
    let mutations = (0..MUTATIONS).map(|number| {
        let mutated = mutator.mutate(&valid[number % valid.len()]);
        let what = format!("{number}: {mutated:?}");
        let (local, request) = (local.clone(), mutated.request());
        async move { survive(&local, what, request).await }
    });
    let mut answers = futures_util::stream::iter(mutations).buffer_unordered(16);
    while let Some(id) = answers.next().await {
        promised.extend(id);
    }
    assert!(
        promised.len() > MUTATIONS / 50,
        "only {} were taken",
        promised.len()
    );
    assert_kept(&local, promised).await;
    assert_works(&server).await;
}

#[tokio::test]
async fn bodies_that_are_not_what_they_should_be_are_refused_by_every_endpoint() {
    let server = impatient().await;
    let local = server.local();
    let deep = "[".repeat(100_000);
    let nested = format!("{{\"type\": {}1{}}}", "[".repeat(120), "]".repeat(120));
    let long = format!("{{\"session_id\": \"{}\"}}", "x".repeat(1 << 20));
    let bodies: [&[u8]; 16] = [
        b"",
        b"null",
        b"true",
        b"[]",
        b"{",
        b"{}",
        b"\"text\"",
        b"{\"model_id\": NaN}",
        b"{\"seq_id\": 1e999}",
        b"{\"seq_id\": 123456789012345678901234567890}",
        b"{\"model_id\": \"\\ud800\"}",
        b"\xff\xfe{}",
        b"{\"model_id\": \"a\", \"model_id\": \"b\"}",
        deep.as_bytes(),
        nested.as_bytes(),
        long.as_bytes(),
    ];
    let types = [
        "application/json",
        "application/x-protobuf",
        "a/b; charset=\"x",
    ];
    let mut refused = 0;
    for valid in valid_requests(&server).await {
        for body in bodies {
            for content_type in types {
                let valid = Valid {
                    body: Bytes::copy_from_slice(body),
                    content_type: content_type.to_owned(),
                    json: None,
                    ..valid.clone()
                };
                let answer = local.send(valid.request()).await;
                assert_answered(&answer, &format!("{valid:?}"));
                refused += usize::from(answer.status.is_client_error());
            }
        }
    }
    assert!(refused > 1000, "{refused}");
    assert_works(&server).await;
}

#[tokio::test]
async fn bodies_that_would_fill_the_memory_are_refused_before_they_do() {
    let server = impatient().await;
    let local = server.local();
    let model = server.model().await;
    let many = "1,".repeat(5 << 20);
    for path in ["/telemetry", "/sessions/search", "/asample", "/optim_step"] {
        let body = format!("{{\"model_id\": \"{model}\", \"extra\": [{many}1]}}");
        let request = Request::post(format!("/api/v1{path}"))
            .header("x-api-key", KEY)
            .body(Full::new(Bytes::from(body)))
            .unwrap();
        let answer = local.send(request).await;
        let refused = match answer.status.as_u16() {
            // An operation of a model fails as its own result.
            200 => local.result(&answer.json()).await["error"].to_string(),
            _ => answer.detail(),
        };
        let why = ["values", "more than 131072 bytes"];
        assert!(
            why.iter().any(|why| refused.contains(why)),
            "{path}: {refused}"
        );
    }
    assert_works(&server).await;
}

#[tokio::test]
async fn truncated_messages_are_refused_at_every_length() {
    let server = impatient().await;
    let local = server.local();
    let mut promised = Vec::new();
    for valid in valid_requests(&server).await {
        if valid.content_type != "application/x-protobuf" {
            continue;
        }
        for length in 0..valid.body.len() {
            let body = valid.body.slice(..length);
            let what = format!("{length} bytes of {}", valid.endpoint.name);
            let cut = Valid {
                body,
                ..valid.clone()
            };
            promised.extend(survive(&local, what, cut.request()).await);
        }
    }
    assert_kept(&local, promised).await;
    assert_works(&server).await;
}

#[tokio::test]
async fn paths_and_queries_of_any_kind_are_answered() {
    let server = impatient().await;
    let local = server.local();
    let model = server.model().await;
    let session = model.split(':').next().unwrap();
    server.save("/save_weights", &model, 1, "a").await;
    let hours = "starting_on=2024-01-01T00:00:00Z&ending_before=2024-01-02T00:00:00Z";
    let paths = [
        "/training_runs?limit=3&offset=1&access_scope=owned".to_owned(),
        format!("/training_runs/{model}?access_scope=accessible"),
        format!("/training_runs/{model}/checkpoints/weights/a/archive"),
        format!("/training_runs/{model}/checkpoints/weights/a/external_weights_urls"),
        format!("/models/{model}/checkpoints"),
        "/checkpoints?limit=3&offset=1".to_owned(),
        "/sessions?limit=3".to_owned(),
        format!("/sessions/{session}/trace_export"),
        format!("/samplers/{session}:sample:0"),
        "/audit?day=2024-01-01&event_type=all".to_owned(),
        format!("/billing/usage/events?{hours}"),
        "/billing/usage/checkpoints/current?project_id=local".to_owned(),
        "/auth/apikey/me".to_owned(),
        "/studio/runs?query=a&limit=3&offset=1".to_owned(),
        "/studio/server".to_owned(),
        format!("/training_runs/{model}/metrics?names=a,b&from=1&to=9&points=3"),
        format!("/training_runs/{model}/operations?before=9&limit=3"),
        format!("/training_runs/{model}/steps/1?offset=1&limit=3"),
        "/../downloads/a/b?expires=1&signature=x".to_owned(),
    ];
    let mut mutator = Mutator::new(7);
    for number in 0..2000 {
        let path = mutator.mutate_path(&paths[number % paths.len()]);
        let methods = [
            Method::GET,
            Method::GET,
            Method::HEAD,
            Method::PATCH,
            Method::OPTIONS,
        ];
        let request = Request::builder()
            .method(methods[number % methods.len()].clone())
            .uri(format!("/api/v1{path}"))
            .header("host", "localhost")
            .header("x-api-key", KEY)
            .body(Full::default());
        // Some are no addresses at all, and never leave a client.
        let Ok(request) = request else { continue };
        let answer = local.send(request).await;
        let status = answer.status.as_u16();
        assert!(status < 500, "{path}: {status} {:?}", answer.body);
        if status >= 400 && !answer.body.is_empty() {
            assert!(!answer.detail().is_empty(), "{path}");
        }
    }
    assert_works(&server).await;
}

#[tokio::test]
async fn rules_of_faults_that_make_no_sense_are_refused() {
    let server = impatient().await;
    let rules = json!({"seed": 1, "rules": [
        {"endpoint": "asample", "fault": 429, "probability": 0.5, "retry_after": 0.5},
        {"endpoint": "nowhere/**", "method": "GET", "fault": "hang", "delay_ms": 1},
        {"endpoint": "nowhere", "fault": "cut", "every": 3, "after": true},
    ]});
    let valid = Valid::json(&endpoint::REPLACE_FAULTS, rules);
    let mut mutator = Mutator::new(11);
    let headers = [
        ("content-type", "application/json"),
        ("x-api-key", ADMIN_KEY),
    ];
    let mut taken = 0;
    for _ in 0..300 {
        let body = mutator.mutate(&valid).body;
        let put = server.try_send(Method::PUT, "/admin/faults", &headers, body.clone());
        let answer = put.await.expect("the rules never strike their own route");
        assert_answered(&answer, &format!("{body:?}"));
        taken += usize::from(answer.status == 200);
        let cleared = server
            .try_send(Method::DELETE, "/admin/faults", &headers, "")
            .await;
        assert_eq!(cleared.unwrap().status, 200);
    }
    assert!((1..300).contains(&taken), "{taken}");
    assert_works(&server).await;
}
