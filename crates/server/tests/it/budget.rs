//! The memory budget: what does not fit is refused with the numbers, and what is idle makes room.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tinkrs_server::Settings;
use tinkrs_testkit::FakeBackend;

use crate::caller::{Answer, TestServer, base, pass, tiny_llama};

pub(crate) const MIB: u64 = 1 << 20;
/// Set aside by every server for itself, and for the weights of the model.
pub(crate) const FIXED: u64 = 48 * MIB + 384;

/// A run of rank 4 needs 8 MiB, and 4 MiB while it is copied; a token of a slice 1 MiB.
async fn server(training: u64) -> TestServer {
    let backend = FakeBackend::new().needs_memory(2 * MIB, MIB);
    let data = Arc::new(tempfile::tempdir().unwrap());
    TestServer::of(base(backend), data, with_training(training)).await
}

/// Gives a server this much memory for training. Of what is not fixed, an eighth is for sampling, an eighth for
/// uploads, a sixteenth for results, half of that for what waits and half of that for losses, and four thirteenths
/// of the rest for adapters.
fn with_training(training: u64) -> impl FnOnce(&mut Settings) {
    let memory = (training * 13).div_ceil(9) * 64 / 41;
    move |settings| settings.memory = Some(FIXED + memory)
}

async fn create(server: &TestServer, rank: u32) -> Value {
    let session = server.session().await;
    let body = json!({
        "session_id": session, "model_seq_id": 0, "base_model": "tiny",
        "lora_config": {"rank": rank, "seed": 1},
    });
    let id = server.promise("/create_model", body).await;
    server.result(&id).await
}

/// Trains a step, and returns the loss before it.
async fn train(server: &TestServer, model: &str, seq_id: i64) -> f64 {
    let pass = server.forward_backward(model, seq_id).await;
    let step = server.optim_step(model, seq_id + 1).await;
    let loss = server.loss(&pass).await;
    let step = server.result(&step).await;
    assert!(step.get("error").is_none(), "{step}");
    loss
}

/// The losses of five steps of a run that nothing disturbs.
async fn undisturbed() -> Vec<f64> {
    let server = TestServer::start().await;
    let model = server.model().await;
    let mut losses = Vec::new();
    for step in 0..5 {
        losses.push(train(&server, &model, 2 * step + 1).await);
    }
    losses
}

/// Returns how many bytes are accounted for.
pub(crate) async fn accounted(server: &TestServer, kind: &str) -> u64 {
    let answer = server.try_send(Method::GET, "/metrics", &[], "").await;
    let text = String::from_utf8(answer.unwrap().body.to_vec()).unwrap();
    let name = format!("tinkrs_memory_bytes{{kind=\"{kind}\"}} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&name));
    line.unwrap_or_else(|| panic!("no {kind} in {text}"))
        .parse()
        .unwrap()
}

#[tokio::test]
async fn a_model_that_does_not_fit_is_refused_with_the_numbers_and_the_others_go_on() {
    let losses = undisturbed().await;
    let server = server(27 * MIB).await;
    let first = server.model().await;
    let second = server.model().await;
    let refused = create(&server, 4).await;
    let error = refused["error"].as_str().expect("a message");
    for part in [
        "not enough memory: 12.0 MiB needed, 11.0 MiB free of the 27.0 MiB for training",
        "runs 16.0 MiB",
        "`--memory`",
    ] {
        assert!(error.contains(part), "{part} in {error}");
    }
    assert_eq!(refused["category"], "server", "it may fit later");
    let never = create(&server, 16).await;
    assert_eq!(never["category"], "user", "{never}");
    for model in [&first, &second] {
        assert_eq!(train(&server, model, 1).await, losses[0]);
    }
    // What failed is not tried again, and all else goes on.
    let server = server.restart(with_training(27 * MIB)).await;
    for model in [&first, &second] {
        assert_eq!(train(&server, model, 3).await, losses[1]);
    }
    let unload = server
        .promise("/unload_model", json!({"model_id": first}))
        .await;
    server.result(&unload).await;
    let third = create(&server, 4).await;
    assert!(
        third["model_id"].is_string(),
        "there is room again: {third}"
    );
}

#[tokio::test]
async fn more_runs_than_fit_take_turns_with_the_same_bits() {
    let losses = undisturbed().await;
    let server = server(27 * MIB).await;
    let models = [server.model().await, server.model().await];
    for model in &models {
        assert_eq!(train(&server, model, 1).await, losses[0]);
    }
    // One run at a time.
    let server = server.restart(with_training(17 * MIB)).await;
    for step in 1..5 {
        for model in &models {
            assert_eq!(
                train(&server, model, 2 * step + 1).await,
                losses[step as usize]
            );
        }
        assert_eq!(accounted(&server, "runs").await, 8 * MIB);
    }
}

#[tokio::test]
async fn a_run_that_does_not_fit_after_a_restart_waits_for_a_server_with_more_memory() {
    let losses = undisturbed().await;
    let server = server(27 * MIB).await;
    let model = server.model().await;
    assert_eq!(train(&server, &model, 1).await, losses[0]);
    // The run has no room beside its copies.
    let server = server.restart(with_training(9 * MIB)).await;
    let pass = server.forward_backward(&model, 3).await;
    let failed = server.result(&pass).await;
    let error = failed["error"].as_str().expect("a message");
    assert!(error.contains("not enough memory: 12.0 MiB"), "{error}");
    let server = server.restart(with_training(27 * MIB)).await;
    assert_eq!(train(&server, &model, 4).await, losses[1]);
}

/// A pass of about a megabyte.
fn large_pass(model: &str, seq_id: i64) -> Value {
    let mut body = pass(model, seq_id);
    let data = &mut body["forward_backward_input"]["data"];
    *data = vec![data[0].clone(); 10_000].into();
    assert!(body.to_string().len() > 1 << 20);
    body
}

#[tokio::test]
async fn passes_that_do_not_fit_together_after_a_restart_are_read_one_by_one() {
    let steps = async |server: &TestServer, model: &str, numbers: std::ops::Range<i64>| {
        let mut losses = Vec::new();
        for step in numbers {
            // The server with little memory would not take a large one.
            let pass = if step < 4 { large_pass } else { pass };
            let pass = pass(model, 2 * step + 1);
            let pass = server.promise("/forward_backward", pass).await;
            let step = server.optim_step(model, 2 * step + 2).await;
            losses.push(server.loss(&pass).await);
            server.result(&step).await;
        }
        losses
    };
    let undisturbed = TestServer::start().await;
    let model = undisturbed.model().await;
    let expected = steps(&undisturbed, &model, 0..5).await;

    let server = TestServer::start().await;
    let model = server.model().await;
    assert_eq!(steps(&server, &model, 0..4).await, expected[..4]);
    let body = large_pass(&model, 11);
    let waiting = server.promise("/forward_backward", body).await;
    // 2 MiB for what waits, and none of the five passes is as small.
    let server = server
        .restart(|settings| settings.memory = Some(FIXED + 64 * MIB))
        .await;
    let last = steps(&server, &model, 4..5).await;
    assert_eq!(last, expected[4..], "all four were repeated");
    let waited = server.result(&waiting).await;
    assert!(waited["metrics"].is_object(), "{waited}");
}

#[tokio::test]
async fn a_pass_that_does_not_fit_is_refused_and_harms_nothing() {
    let losses = undisturbed().await;
    let server = server(27 * MIB).await;
    let model = server.model().await;
    let mut long = pass(&model, 1);
    let length = 60;
    let datum = &mut long["forward_backward_input"]["data"][0];
    let tokens: Vec<u32> = (0..length).collect();
    datum["model_input"] = json!({"chunks": [{"type": "encoded_text", "tokens": tokens}]});
    datum["loss_fn_inputs"] = json!({
        "target_tokens": {"data": tokens, "dtype": "int64", "shape": [length]},
        "weights": {"data": vec![1.0; length as usize], "dtype": "float32", "shape": [length]},
    });
    let refused = server.promise("/forward_backward", long).await;
    let error = server.user_error(&refused).await;
    assert!(
        error.contains("not enough memory: 60.0 MiB needed"),
        "{error}"
    );
    assert_eq!(train(&server, &model, 2).await, losses[0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_runs_leave_the_memory_and_come_back_with_the_same_bits() {
    let data = Arc::new(tempfile::tempdir().unwrap());
    let undisturbed = TestServer::real(|_| {}).await;
    let model = undisturbed.model().await;
    let mut losses = Vec::new();
    for step in 0..3 {
        losses.push(train(&undisturbed, &model, 2 * step + 1).await);
    }
    let quick = |settings: &mut Settings| {
        settings.keep_idle_runs = Duration::from_millis(1);
        // Maintenance is at least as frequent.
        settings.gap_timeout = Duration::from_millis(10);
    };
    let server = TestServer::of(base(tiny_llama()), data, quick).await;
    let mut models = Vec::new();
    for _ in 0..20 {
        models.push(server.model().await);
    }
    for (step, loss) in (0..3).zip(&losses) {
        for model in &models {
            assert_eq!(train(&server, model, 2 * step + 1).await, *loss);
        }
        while accounted(&server, "runs").await > 0 {
            tokio::task::yield_now().await;
        }
    }
}

/// Saves weights for sampling without a name, and returns the sampling session.
async fn save_unnamed(server: &TestServer, model: &str, seq_id: i64, number: u64) -> String {
    let body = json!({"model_id": model, "seq_id": seq_id, "sampling_session_seq_id": number});
    let id = server.promise("/save_weights_for_sampler", body).await;
    let result = server.result(&id).await;
    let sampler = result["sampling_session_id"].as_str();
    sampler
        .unwrap_or_else(|| panic!("no sampler: {result}"))
        .to_owned()
}

/// Asks for samples of a sampling session.
async fn sample(server: &TestServer, sampler: &str, seq_id: u64) -> Answer {
    let body = json!({
        "sampling_session_id": sampler, "seq_id": seq_id, "num_samples": 1,
        "prompt": {"chunks": [{"tokens": [1]}]},
        "sampling_params": {"max_tokens": 4, "seed": 1, "stop": []},
    });
    server.post("/asample", body).await
}

#[tokio::test]
async fn weights_without_a_name_go_when_newer_ones_are_there_and_a_late_request_says_so() {
    let quick = |settings: &mut Settings| {
        settings.keep_unnamed = Duration::from_millis(1);
        // Maintenance is at least as frequent.
        settings.gap_timeout = Duration::from_millis(10);
    };
    let server = TestServer::with(quick).await;
    let (model, other) = (server.model().await, server.model().await);
    let kept = save_unnamed(&server, &other, 1, 0).await;
    let mut samplers = Vec::new();
    for number in 0..3 {
        let seq_id = i64::try_from(number).unwrap() + 1;
        samplers.push(save_unnamed(&server, &model, seq_id, number).await);
    }
    let folders = |server: &TestServer| {
        let folders = std::fs::read_dir(server.data().join("samplers")).unwrap();
        folders.count()
    };
    while folders(&server) > 2 {
        tokio::task::yield_now().await;
    }
    let check = async |server: &TestServer, seq_id: u64| {
        for newest in [&samplers[2], &kept] {
            let promise = sample(server, newest, seq_id).await;
            let id = promise.json()["request_id"].as_str().unwrap().to_owned();
            let result = server.result(&id).await;
            assert!(result["sequences"].is_array(), "{result}");
        }
        let late = sample(server, &samplers[0], seq_id).await;
        assert_eq!(late.status, 404);
        for part in ["any longer", "without a name", "`keep_unnamed`"] {
            assert!(late.detail().contains(part), "{}", late.detail());
        }
        let never = samplers[0].replace(":sample:0", ":sample:9");
        let never = sample(server, &never, seq_id).await;
        let text = format!("there is no sampling session `{}`", samplers[0]);
        assert_eq!(never.detail(), text.replace(":sample:0", ":sample:9"));
    };
    check(&server, 0).await;
    let server = server.restart(quick).await;
    check(&server, 1).await;
    assert_eq!(folders(&server), 2);
}
