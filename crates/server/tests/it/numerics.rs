//! A run is computed in the numbers that it began with, or says that it is not.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tinkrs_server::Settings;
use tinkrs_testkit::FakeBackend;

use crate::caller::{TestServer, base};

const F32: &str = "f32/f32@0";
const INT8: &str = "f32/int8@0";

fn backend(activations: &'static str) -> FakeBackend {
    FakeBackend::new().activations(activations)
}

async fn served(
    backend: &FakeBackend,
    data: Arc<tempfile::TempDir>,
    operations: u32,
) -> TestServer {
    let change = |settings: &mut Settings| {
        settings.snapshot_interval = Duration::MAX;
        settings.snapshot_operations = operations;
    };
    TestServer::of(base(backend.clone()), data, change).await
}

async fn run(server: &TestServer, model: &str) -> Value {
    server.get(&format!("/training_runs/{model}")).await
}

/// Trains a step, and returns what the next pass finds.
async fn train(server: &TestServer, model: &str) -> f64 {
    server.forward_backward(model, 1).await;
    server.optim_step(model, 2).await;
    let pass = server.forward_backward(model, 3).await;
    server.loss(&pass).await
}

#[tokio::test]
async fn the_numeric_path_is_in_the_capabilities_and_in_the_run() {
    let data = Arc::new(tempfile::tempdir().unwrap());
    let server = served(&backend("int8"), data, 1).await;
    let offered = server.get("/get_server_capabilities").await;
    assert_eq!(offered["supported_models"][0]["numerics"], INT8);
    let model = server.model().await;
    let found = run(&server, &model).await;
    assert_eq!(found["numerics"], INT8);
    assert_eq!(found.get("earlier_numerics"), None);
}

#[tokio::test]
async fn operations_are_not_repeated_in_other_numbers_and_are_in_the_same_ones() {
    let data = Arc::new(tempfile::tempdir().unwrap());
    let server = served(&backend("f32"), data, u32::MAX).await;
    let model = server.model().await;
    let loss = train(&server, &model).await;
    let data = server.stop().await;

    let other = backend("int8");
    let server = served(&other, data, u32::MAX).await;
    let body = json!({"model_id": model, "seq_id": 4, "adam_params": {"learning_rate": 0.1}});
    let refused = server.post("/optim_step", body).await;
    assert_eq!(refused.status, 400);
    let text = refused.json().to_string();
    for part in [&model, F32, INT8, "--activations f32"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(run(&server, &model).await["numerics"], F32);
    assert_eq!(
        (other.passes(), other.steps()),
        (0, 0),
        "nothing was repeated"
    );
    // Others are as they always are.
    let second = server.model().await;
    train(&server, &second).await;
    assert_eq!(run(&server, &second).await["numerics"], INT8);

    let data = server.stop().await;
    let server = served(&backend("f32"), data, u32::MAX).await;
    server.optim_step(&model, 4).await;
    let pass = server.forward_backward(&model, 5).await;
    assert!(server.loss(&pass).await < loss, "it goes on where it was");
}

#[tokio::test]
async fn a_run_that_need_not_repeat_anything_goes_on_and_says_so() {
    // With a snapshot of all that it did, which loading takes, and with nothing done but its creation.
    for steps in [true, false] {
        let data = Arc::new(tempfile::tempdir().unwrap());
        let server = served(&backend("f32"), data, u32::MAX).await;
        let model = server.model().await;
        if steps {
            train(&server, &model).await;
            let path = server.save("/save_weights", &model, 4, "here").await;
            let body = json!({"model_id": model, "path": path, "seq_id": 5, "optimizer": true});
            let loaded = server.promise("/load_weights", body).await;
            server.result(&loaded).await;
        }
        let data = server.stop().await;
        let server = served(&backend("int8"), data, u32::MAX).await;
        let next = if steps { 6 } else { 1 };
        let pass = server.forward_backward(&model, next).await;
        server.loss(&pass).await;
        let found = run(&server, &model).await;
        assert_eq!(found["numerics"], INT8);
        assert_eq!(found["earlier_numerics"], json!([F32]));
        // The change is stored: the new numbers are its own now.
        let server = served(&backend("int8"), server.stop().await, u32::MAX).await;
        let pass = server.forward_backward(&model, next + 1).await;
        server.loss(&pass).await;
        assert_eq!(run(&server, &model).await["earlier_numerics"], json!([F32]));
    }
}

#[tokio::test]
async fn a_checkpoint_of_other_numbers_is_loaded_and_says_what_they_were() {
    let data = Arc::new(tempfile::tempdir().unwrap());
    let server = served(&backend("f32"), data, 1).await;
    let model = server.model().await;
    train(&server, &model).await;
    let path = server.save("/save_weights", &model, 4, "here").await;
    let data = server.stop().await;

    let server = served(&backend("int8"), data, 1).await;
    let info = server
        .ok("/weights_info", json!({"tinker_path": path}))
        .await;
    assert_eq!(info["numerics"], F32);
    let other = server.model().await;
    let body = json!({"model_id": other, "path": path, "seq_id": 1, "optimizer": false});
    let loaded = server.promise("/load_weights", body).await;
    let loaded = server.result(&loaded).await;
    assert_eq!(loaded["path"], json!(path), "{loaded}");
}
