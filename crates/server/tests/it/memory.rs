//! What is over does not stay in memory, and is known all the same.

use std::time::Duration;

use futures_util::StreamExt;
use http::Method;
use serde_json::{Value, json};

use crate::caller::{Local, TestServer, step};
use crate::way::Way;

const SESSIONS: usize = 1500;

/// Creates a session and a model, and ends both. Returns the session.
async fn work(local: &Local, unloads: bool) -> String {
    let body = json!({"tags": [], "sdk_version": "0.36.0"});
    let session = local.ok("/create_session", &body).await["session_id"].clone();
    let session = session.as_str().unwrap().to_owned();
    let create = json!({
        "session_id": session, "model_seq_id": 0, "base_model": "tiny",
        "lora_config": {"rank": 1, "seed": 1},
    });
    let created = local.ok("/create_model", &create).await;
    local.result(&created).await;
    let body = json!({"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny"});
    local.ok("/create_sampling_session", &body).await;
    if unloads {
        let unload = json!({"model_id": format!("{session}:train:0")});
        let unloaded = local.ok("/unload_model", &unload).await;
        local.result(&unloaded).await;
    }
    let finish = json!({"reason": {"type": "success"}, "detail": null});
    local
        .ok(&format!("/sessions/{session}/finish"), &finish)
        .await;
    session
}

/// Everything that can be asked of something that is over.
async fn view(local: &Local, sessions: &[String]) -> Vec<(u16, Value)> {
    let mut answers = Vec::new();
    let mut ask = async |method: Method, path: &str, body: Value| {
        let answer = local.call(method, path, &body).await;
        answers.push((answer.status.as_u16(), answer.json()));
    };
    ask(Method::GET, "/sessions?limit=100000", Value::Null).await;
    ask(Method::GET, "/training_runs?limit=100000", Value::Null).await;
    ask(Method::POST, "/sessions/search", json!({"limit": 200})).await;
    for session in sessions {
        let run = format!("{session}:train:0");
        ask(Method::GET, &format!("/sessions/{session}"), Value::Null).await;
        ask(Method::GET, &format!("/training_runs/{run}"), Value::Null).await;
        ask(
            Method::GET,
            &format!("/samplers/{session}:sample:0"),
            Value::Null,
        )
        .await;
        let checkpoints = format!("/training_runs/{run}/checkpoints");
        ask(Method::GET, &checkpoints, Value::Null).await;
        ask(Method::POST, "/get_info", json!({"model_id": run})).await;
        ask(
            Method::POST,
            "/session_heartbeat",
            json!({"session_id": session}),
        )
        .await;
        ask(Method::POST, "/optim_step", step(&run, 1)).await;
        let again = json!({"session_id": session, "model_seq_id": 1, "base_model": "tiny",
            "lora_config": {"rank": 1}});
        ask(Method::POST, "/create_model", again).await;
    }
    answers
}

/// Reads a count of the server.
async fn count(server: &TestServer, name: &str) -> usize {
    let answer = server
        .try_send(Method::GET, "/metrics", &[], "")
        .await
        .unwrap();
    let text = String::from_utf8(answer.body.to_vec()).unwrap();
    let label = format!("\"{name}\"}} ");
    let line = text.lines().find_map(|line| line.split_once(&label));
    let (_, number) = line.unwrap_or_else(|| panic!("no {name}: {text}"));
    number.parse::<f64>().unwrap() as usize
}

/// Waits until something is so, which the server brings about by itself.
async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let waiting = async {
        while !is_so().await {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), waiting).await;
    waited.unwrap_or_else(|_| panic!("still not so after a minute: {what}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_finished_sessions_leave_the_memory_and_are_known_as_before() {
    let server = TestServer::start().await;
    let local = server.local();
    let open = server.model().await;
    let all: Vec<String> = futures_util::stream::iter(0..SESSIONS)
        .map(|number| work(&local, number % 2 == 0))
        .buffer_unordered(32)
        .collect()
        .await;
    let some = [all[0].clone(), all[1].clone(), all[SESSIONS / 2].clone()];
    let before = view(&local, &some).await;
    assert_eq!(
        before[0].1["sessions"].as_array().unwrap().len(),
        SESSIONS + 1
    );
    assert_eq!(
        before[1].1["training_runs"].as_array().unwrap().len(),
        SESSIONS + 1
    );
    assert_eq!(before[8].0, 410, "{:?}", before[8]);

    // Maintenance runs every second.
    until("all but the open ones leave", async || {
        let sessions = count(&server, "sessions_in_memory").await;
        sessions <= 1 && count(&server, "models_in_memory").await <= 1
    })
    .await;
    assert_eq!(count(&server, "samplers").await, 0);
    let after = view(&local, &some).await;
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before, after);
    }
    let pass = server.forward_backward(&open, 1).await;
    server.loss(&pass).await;

    let before = view(&local, &some).await;
    let server = server.restart(|_| {}).await;
    let after = view(&server.local(), &some).await;
    assert!(after == before, "another view after a restart");
}

#[tokio::test]
async fn a_model_that_was_unloaded_is_created_once_all_the_same() {
    let server = TestServer::start().await;
    let session = server.session().await;
    let create = json!({
        "session_id": session, "model_seq_id": 0, "base_model": "tiny",
        "lora_config": {"rank": 4, "seed": 1},
    });
    let created = server.promise("/create_model", create.clone()).await;
    let model = server.result(&created).await["model_id"].clone();
    let unload = server
        .promise("/unload_model", json!({"model_id": model}))
        .await;
    server.result(&unload).await;
    until("it leaves", async || {
        count(&server, "models_in_memory").await == 0
    })
    .await;
    assert_eq!(server.promise("/create_model", create).await, created);
    let step = server
        .post("/optim_step", step(model.as_str().unwrap(), 2))
        .await;
    assert!(
        step.detail().contains("it was unloaded"),
        "{}",
        step.detail()
    );
}

#[tokio::test]
async fn a_sampler_that_was_asked_for_again_leaves_again() {
    let server = TestServer::start().await;
    let session = work(&server.local(), true).await;
    let gone = async || count(&server, "samplers").await == 0;
    until("the sampler leaves", &gone).await;
    let sampler = server.get(&format!("/samplers/{session}:sample:0")).await;
    assert_eq!(sampler["base_model"], "tiny");
    until("the sampler leaves again", &gone).await;
}

#[tokio::test]
async fn a_sampler_stays_as_long_as_somebody_waits_for_its_samples() {
    let server = TestServer::start().await;
    let session = server.session().await;
    let body = json!({"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny"});
    let sampler = server.ok("/create_sampling_session", body).await["sampling_session_id"].clone();
    let body = json!({
        "sampling_session_id": sampler, "seq_id": 0, "num_samples": 4096,
        "prompt": {"chunks": [{"tokens": [1]}]},
        "sampling_params": {"max_tokens": 120, "stop": []},
    });
    let sample = server.promise("/asample", body).await;
    let finish = json!({"reason": {"type": "success"}, "detail": null});
    server
        .ok(&format!("/sessions/{session}/finish"), finish)
        .await;
    work(&server.local(), true).await;
    until("the other one leaves", async || {
        count(&server, "sessions_in_memory").await <= 1
    })
    .await;
    assert_eq!(count(&server, "samplers").await, 1);
    server
        .ok("/cancel_future", json!({"request_id": sample}))
        .await;
    server.user_error(&sample).await;
    until("it leaves", async || count(&server, "samplers").await == 0).await;
}

/// Queues passes and then the weights of a sampler, and finishes the session before they are done.
/// Returns where the result of the save is.
async fn finish_early(server: &TestServer) -> String {
    let model = server.model().await;
    let passes = 100;
    for number in 2..=passes {
        server.forward_backward(&model, number).await;
    }
    let body = json!({"model_id": model, "seq_id": passes + 1, "sampling_session_seq_id": 0});
    let saved = server.promise("/save_weights_for_sampler", body).await;
    // The one that all others wait for.
    server.forward_backward(&model, 1).await;
    let session = model.split(':').next().unwrap();
    let finish = json!({"reason": {"type": "success"}, "detail": null});
    server
        .ok(&format!("/sessions/{session}/finish"), finish)
        .await;
    saved
}

async fn is_empty(server: &TestServer) -> bool {
    let samplers = std::fs::read_dir(server.data().join("samplers")).unwrap();
    samplers.count() == 0
        && count(server, "samplers").await == 0
        && count(server, "models_in_memory").await == 0
        && count(server, "sessions_in_memory").await == 0
}

#[tokio::test]
async fn what_was_still_queued_when_its_session_was_finished_leaves_nothing() {
    let server = TestServer::start().await;
    let saved = finish_early(&server).await;
    let result = server.result(&saved).await;
    assert!(result["sampling_session_id"].is_string(), "{result}");
    until("nothing is left", async || is_empty(&server).await).await;
}

#[tokio::test]
async fn a_session_that_was_finished_just_before_a_restart_leaves_nothing() {
    let server = TestServer::start().await;
    let saved = finish_early(&server).await;
    let server = server.restart(|_| {}).await;
    let result = server.result(&saved).await;
    assert!(result["sampling_session_id"].is_string(), "{result}");
    until("nothing is left", async || is_empty(&server).await).await;
}
