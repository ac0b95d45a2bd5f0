//! Requests are accepted once, at every place that accepts any.

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::caller::{Answer, KEY, TestServer, step};
use crate::imports::{adapter, settings, start};
use crate::losses::upload;
use crate::way::Way;

/// A request with a key, which may be sent again.
#[derive(Clone)]
struct Keyed {
    path: String,
    idempotency_key: Option<String>,
    body: Bytes,
}

impl Keyed {
    fn json(path: &str, body: Value) -> Self {
        Self {
            path: path.to_owned(),
            idempotency_key: None,
            body: body.to_string().into(),
        }
    }

    async fn send(&self, server: &TestServer) -> Answer {
        let key = self.idempotency_key.as_deref();
        let headers = key.map(|key| ("x-idempotency-key", key));
        let headers: Vec<_> = headers.into_iter().collect();
        let body = self.body.clone();
        server.send(Method::POST, &self.path, &headers, body).await
    }

    /// Sends it as a client does that hangs up as soon as the server has read it.
    fn hang_up(&self, server: &TestServer) {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(format!("/api/v1{}", self.path))
            .header("x-api-key", KEY);
        if let Some(key) = &self.idempotency_key {
            request = request.header("x-idempotency-key", key);
        }
        let request = request.body(Full::new(self.body.clone())).unwrap();
        let local = server.local();
        let sent = pin!(local.send(request));
        let polled = sent.poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Pending), "{}", self.path);
    }
}

/// A place that accepts requests: its name, and the request with the n-th key. Two of different
/// `variant` are different requests.
type Place = (&'static str, Box<dyn Fn(u64, bool) -> Keyed>);

async fn places(server: &TestServer) -> Vec<Place> {
    let saved = server.model().await;
    let [first, second] = [server.model().await, server.model().await];
    let save = |model: String| async move { server.save("/save_weights", &model, 1, "a").await };
    let sources = [save(first).await, save(second).await];
    let for_sampler = server
        .save("/save_weights_for_sampler", &saved, 1, "a")
        .await;
    let session = server.session().await;
    let open = json!({"session_id": session, "sampling_session_seq_id": 99, "base_model": "tiny"});
    let sampler = server.ok("/create_sampling_session", open).await;
    let sampler = sampler["sampling_session_id"].clone();
    let archive = Bytes::from(adapter(&settings()));
    let model = server.model().await;
    let in_session = move |path: &'static str, body: fn(u64, bool) -> Value| {
        let session = session.clone();
        move |n, variant| {
            let mut body = body(n, variant);
            body["session_id"] = json!(session);
            Keyed::json(path, body)
        }
    };
    vec![
        (
            "an operation of a model",
            Box::new(move |n, variant| {
                let mut body = step(&model, n as i64 + 1);
                body["adam_params"]["beta1"] = json!(if variant { 0.9 } else { 0.8 });
                Keyed::json("/optim_step", body)
            }),
        ),
        (
            "a model",
            Box::new(in_session("/create_model", |n, variant| {
                let rank = if variant { 4 } else { 2 };
                json!({"model_seq_id": n, "base_model": "tiny", "lora_config": {"rank": rank}})
            })),
        ),
        (
            "a sample",
            Box::new(move |n, variant| {
                let tokens = if variant { [1, 2] } else { [1, 3] };
                let body = json!({
                    "sampling_session_id": sampler, "seq_id": n, "prompt": {"chunks": [{"tokens": tokens}]},
                    "sampling_params": {"max_tokens": 2, "seed": 1},
                });
                Keyed::json("/asample", body)
            }),
        ),
        (
            "a custom loss",
            Box::new(in_session("/create_custom_loss", |n, variant| {
                let mut body = upload("");
                body["custom_loss_seq_id"] = json!(n);
                body["name"] = json!(if variant { "mine" } else { "yours" });
                body
            })),
        ),
        (
            "a sampling session",
            Box::new({
                let open = in_session(
                    "/create_sampling_session",
                    |n, _| json!({"sampling_session_seq_id": n}),
                );
                move |n, variant| {
                    let mut request = open(n, variant);
                    let mut body: Value = serde_json::from_slice(&request.body).unwrap();
                    if variant {
                        body["base_model"] = json!("tiny");
                    } else {
                        body["model_path"] = json!(for_sampler);
                    }
                    request.body = body.to_string().into();
                    request
                }
            }),
        ),
        (
            "a copy",
            Box::new(move |n, variant| Keyed {
                idempotency_key: Some(format!("copy {n}")),
                ..Keyed::json(
                    "/copy_weights",
                    json!({"source_path": sources[usize::from(variant)]}),
                )
            }),
        ),
        (
            "an import",
            Box::new(move |n, variant| Keyed {
                path: format!("/import_weights?base_model=tiny&name=n{variant}"),
                idempotency_key: Some(format!("import {n}")),
                body: archive.clone(),
            }),
        ),
    ]
}

/// Makes the database refuse what is stored with a new request, or take it again.
fn refuse_writes(data: &Path, refuses: bool) {
    let database = rusqlite::Connection::open(data.join("tinkrs.db")).unwrap();
    for table in ["requests", "sessions", "samplers"] {
        let sql = if refuses {
            format!(
                "CREATE TRIGGER refuse_{table} BEFORE INSERT ON {table}
                 BEGIN SELECT RAISE(ABORT, 'the disk is full'); END"
            )
        } else {
            format!("DROP TRIGGER refuse_{table}")
        };
        database.execute_batch(&sql).unwrap();
    }
}

/// The ids of everything that is listed of the owner's things.
async fn listed(server: &TestServer) -> Vec<Value> {
    let mut ids = Vec::new();
    for (list, id) in [
        ("sessions", ""),
        ("training_runs", "/training_run_id"),
        ("checkpoints", "/tinker_path"),
    ] {
        let page = server.get(&format!("/{list}?limit=100")).await;
        let items = page[list].as_array().unwrap();
        ids.extend(items.iter().map(|item| item.pointer(id).unwrap().clone()));
    }
    ids.sort_by_key(ToString::to_string);
    ids
}

#[tokio::test]
async fn a_request_is_accepted_once_at_every_place() {
    let server = start().await;
    for (place, request) in places(&server).await {
        let (first, other) = (request(0, true), request(0, false));
        let accepted = first.send(&server).await;
        assert_eq!(accepted.status, 200, "{place}: {:?}", accepted.body);
        let (again, once_more) = tokio::join!(first.send(&server), first.send(&server));
        assert_eq!(again.body, accepted.body, "{place}");
        assert_eq!(once_more.body, accepted.body, "{place}");
        let refused = other.send(&server).await;
        assert_eq!(refused.status, 400, "{place}: {:?}", refused.body);
    }
}

#[tokio::test]
async fn two_of_the_same_request_at_the_same_moment_are_one() {
    let server = start().await;
    for (place, request) in places(&server).await {
        let request = request(0, true);
        let (one, two) = tokio::join!(request.send(&server), request.send(&server));
        assert_eq!(one.status, 200, "{place}: {:?}", one.body);
        assert_eq!(one.body, two.body, "{place}");
    }
}

#[tokio::test]
async fn what_the_disk_refuses_leaves_nothing_at_any_place() {
    let server = start().await;
    for (place, request) in places(&server).await {
        let before = listed(&server).await;
        refuse_writes(server.data(), true);
        let refused = request(0, true).send(&server).await;
        refuse_writes(server.data(), false);
        assert_eq!(refused.status, 503, "{place}: {:?}", refused.body);
        assert!(refused.detail().contains("the disk is full"), "{place}");
        assert_eq!(listed(&server).await, before, "{place}");
        // The key was given back: another request may have it, and a repeat finds that one.
        let accepted = request(0, false).send(&server).await;
        assert_eq!(accepted.status, 200, "{place}: {:?}", accepted.body);
        assert_eq!(request(0, true).send(&server).await.status, 400, "{place}");
    }
}

#[tokio::test]
async fn a_client_that_hangs_up_has_its_request_accepted_at_every_place() {
    let server = start().await;
    for (place, request) in places(&server).await {
        if place == "an import" {
            // Its body comes over the connection; see `imports` for the rest of the way.
            continue;
        }
        let request = request(0, true);
        request.hang_up(&server);
        // The store writes in order: when this is stored, so is the request.
        server.session().await;
        refuse_writes(server.data(), true);
        let again = request.send(&server).await;
        refuse_writes(server.data(), false);
        assert_eq!(again.status, 200, "{place}: {:?}", again.body);
    }
}
