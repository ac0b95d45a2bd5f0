//! What the server does with its backend: snapshots or repeats, slices, and what is left of a panic.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use serde_json::{Value, json};
use tinkrs_testkit::FakeBackend;

use crate::caller::{TestServer, base, long_pass, pass};

/// Queues a pass without gradients, which shows what the weights are.
async fn forward(server: &TestServer, model: &str, seq_id: i64) -> f64 {
    let body = pass(model, seq_id);
    let body = json!({
        "forward_input": body["forward_backward_input"], "model_id": model, "seq_id": seq_id,
    });
    let id = server.promise("/forward", body).await;
    server.loss(&id).await
}

fn sample(max_tokens: u32) -> Value {
    json!({
        "base_model": "tiny", "num_samples": 1,
        "prompt": {"chunks": [{"tokens": [1, 5]}]},
        "sampling_params": {"max_tokens": max_tokens, "stop": []},
    })
}

#[tokio::test]
async fn a_backend_that_repeats_exactly_is_recovered_by_repeating() {
    let backend = FakeBackend::new();
    let server = TestServer::of_backend(backend.clone()).await;
    let model = server.model().await;
    server.forward_backward(&model, 1).await;
    let step = server.optim_step(&model, 2).await;
    server.result(&step).await;
    let before = forward(&server, &model, 3).await;
    assert_eq!((backend.passes(), backend.steps()), (2, 1));

    let server = server.restart(|_| {}).await;
    assert_eq!(forward(&server, &model, 4).await, before);
    // The pass and the step, but not the passes without gradients, which changed nothing.
    assert_eq!((backend.passes(), backend.steps()), (4, 2));
}

#[tokio::test]
async fn a_backend_that_does_not_repeat_exactly_is_recovered_without_repeating() {
    let backend = FakeBackend::inexact();
    let mut server = TestServer::of_backend(backend.clone()).await;
    let model = server.model().await;
    let mut seq_id = 0;
    for round in 1..=3 {
        let queued = server.forward_backward(&model, seq_id + 1).await;
        let step = server.optim_step(&model, seq_id + 2).await;
        server.result(&queued).await;
        let steps = server.result(&step).await["metrics"]["optimizer_step"].clone();
        assert_eq!(steps, f64::from(round));
        // Gradients that no step has used yet.
        let queued = server.forward_backward(&model, seq_id + 3).await;
        server.result(&queued).await;
        let before = forward(&server, &model, seq_id + 4).await;
        let counts = (backend.passes(), backend.steps());

        server = server.restart(|_| {}).await;
        let after = forward(&server, &model, seq_id + 5).await;
        assert_eq!(after, before, "round {round}");
        assert_eq!(
            (backend.passes(), backend.steps()),
            (counts.0 + 1, counts.1)
        );
        seq_id += 5;
    }
}

#[tokio::test]
async fn an_operation_whose_snapshot_cannot_be_written_has_not_happened() {
    let backend = FakeBackend::inexact();
    let server = TestServer::of_backend(backend.clone()).await;
    let model = server.model().await;
    let queued = server.forward_backward(&model, 1).await;
    server.result(&queued).await;
    let before = forward(&server, &model, 2).await;

    // A folder lies where the snapshot of the step belongs.
    let snapshots = std::fs::read_dir(server.data().join("snapshots")).unwrap();
    let folder = snapshots.map(|entry| entry.unwrap().path()).next().unwrap();
    let blocked = folder.join("3.safetensors");
    std::fs::create_dir_all(blocked.join("in-the-way")).unwrap();
    let step = server.optim_step(&model, 3).await;
    let failed = server.result(&step).await;
    assert_eq!(failed["category"], "server", "{failed}");
    assert_eq!(forward(&server, &model, 4).await, before);

    // The gradients are still there.
    let step = server.optim_step(&model, 5).await;
    assert_eq!(server.result(&step).await["metrics"]["optimizer_step"], 1.0);
    let after = forward(&server, &model, 6).await;
    assert!(after < before, "the loss went from {before} to {after}");
    let server = server.restart(|_| {}).await;
    assert_eq!(forward(&server, &model, 7).await, after);
}

#[tokio::test]
async fn a_run_that_only_another_backend_could_repeat_is_closed() {
    let server = TestServer::of_backend(FakeBackend::new()).await;
    let model = server.model().await;
    let queued = server.forward_backward(&model, 1).await;
    server.result(&queued).await;
    let data = server.stop().await;
    let server = TestServer::of(base(FakeBackend::inexact()), data, |_| {}).await;
    let refused = server.post("/forward_backward", pass(&model, 2)).await;
    assert_eq!(refused.status, 400);
    let detail = refused.detail();
    assert!(detail.contains("cannot be repeated exactly"), "{detail}");
    server.model().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn samples_advance_between_the_slices_of_a_pass() {
    let (slices, reached) = (Arc::new(AtomicU64::new(0)), mpsc::channel());
    let (go, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let counted = Arc::clone(&slices);
    let arrived = Mutex::new(reached.0);
    let backend = FakeBackend::new().before_slice(move || {
        let slice = counted.fetch_add(1, Ordering::SeqCst) + 1;
        // Between the first slices the test submits a sample; the last one waits for its end.
        if slice == 2 || slice == 5 {
            arrived.lock().unwrap().send(slice).unwrap();
            let open = gate.lock().unwrap().recv_timeout(Duration::from_secs(60));
            open.expect("the sample ended before the pass");
        }
        // A slice must take some time, or samples would have none.
        std::thread::sleep(Duration::from_millis(20));
    });
    let server = TestServer::of_backend(backend).await;
    let model = server.model().await;
    // 90 datums of 60 tokens are six slices of 1024.
    let queued = server
        .promise("/forward_backward", long_pass(&model, 1, 90))
        .await;
    let step = server.optim_step(&model, 2).await;
    let wait = || tokio::task::block_in_place(|| reached.1.recv().unwrap());
    assert_eq!(wait(), 2);
    let sampled = server.promise("/asample", sample(3)).await;
    go.send(()).unwrap();
    assert_eq!(wait(), 5);
    let result = server.result(&sampled).await;
    assert_eq!(
        result["sequences"][0]["tokens"].as_array().map(Vec::len),
        Some(3),
        "{result}"
    );
    assert_eq!(slices.load(Ordering::SeqCst), 5, "the pass is under way");
    go.send(()).unwrap();
    server.loss(&queued).await;
    assert_eq!(slices.load(Ordering::SeqCst), 6);
    assert_eq!(server.result(&step).await["metrics"]["optimizer_step"], 1.0);
}

#[tokio::test]
async fn a_server_that_stops_finishes_the_pass_that_it_is_at() {
    let (arrived, begun) = mpsc::channel();
    let arrived = Mutex::new(arrived);
    let backend = FakeBackend::new().before_slice(move || {
        let _ = arrived.lock().unwrap().send(());
        std::thread::sleep(Duration::from_millis(5));
    });
    let server = TestServer::of_backend(backend.clone()).await;
    let model = server.model().await;
    let queued = server
        .promise("/forward_backward", long_pass(&model, 1, 90))
        .await;
    begun.recv().unwrap();
    let data = server.stop().await;
    assert_eq!(backend.passes(), 1);
    let server = TestServer::of(crate::caller::fake(), data, |_| {}).await;
    server.loss(&queued).await;
}

#[tokio::test]
async fn a_panic_in_a_slice_ends_its_model_and_no_other() {
    let panics = Arc::new(AtomicBool::new(false));
    let armed = Arc::clone(&panics);
    let backend = FakeBackend::new().before_slice(move || {
        assert!(!armed.load(Ordering::SeqCst), "on purpose");
    });
    let server = TestServer::of_backend(backend).await;
    let (lost, other) = (server.model().await, server.model().await);
    panics.store(true, Ordering::SeqCst);
    let queued = server.forward_backward(&lost, 1).await;
    let failed = server.result(&queued).await;
    assert_eq!(failed["category"], "server", "{failed}");
    panics.store(false, Ordering::SeqCst);
    let queued = server.forward_backward(&other, 1).await;
    server.loss(&queued).await;
    assert_eq!(
        server
            .post("/forward_backward", pass(&lost, 2))
            .await
            .status,
        400
    );
}

#[tokio::test]
async fn an_optimizer_that_only_the_backend_knows_is_chosen_used_saved_and_recovered() {
    let server = TestServer::of_backend(FakeBackend::new()).await;
    let session = server.session().await;
    let sgd = json!({"type": "sgd", "momentum": 0.5});
    let create = json!({
        "session_id": session, "model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": 4},
        "optimizer_config": sgd,
    });
    let created = server.promise("/create_model", create).await;
    let model = server.result(&created).await["model_id"].clone();
    let model = model.as_str().unwrap();
    let info = server.ok("/get_info", json!({"model_id": model})).await;
    assert_eq!(info["optimizer_config"], sgd);

    // Its parameters reach the backend, those of another optimizer do not.
    let step = |seq_id: i64, params: Value| json!({"model_id": model, "seq_id": seq_id, "optimizer_params": params});
    let own = json!({"type": "sgd", "learning_rate": 0.5});
    for seq_id in [1, 3] {
        server.forward_backward(model, seq_id).await;
        let id = server
            .promise("/optim_step", step(seq_id + 1, own.clone()))
            .await;
        let steps = server.result(&id).await["metrics"]["optimizer_step"].clone();
        assert_eq!(steps, f64::from(seq_id as i32 + 1) / 2.0);
    }
    let adam = server.optim_step(model, 5).await;
    let error = server.user_error(&adam).await;
    assert!(error.contains("found adamw, expected sgd"), "{error}");
    let before = forward(&server, model, 6).await;
    let path = server.save("/save_weights", model, 7, "kept").await;
    let info = server
        .ok("/weights_info", json!({"tinker_path": path}))
        .await;
    assert_eq!(info["optimizer_config"], sgd);

    // After a restart, and in a model made from the checkpoint, it is the same optimizer.
    let server = server.restart(|_| {}).await;
    assert_eq!(forward(&server, model, 8).await, before);
    let id = server.promise("/optim_step", step(9, own.clone())).await;
    assert_eq!(server.result(&id).await["metrics"]["optimizer_step"], 3.0);
    let from = |seq_id: i64, optimizer: bool| {
        json!({
            "session_id": session, "model_seq_id": seq_id, "path": path, "optimizer": optimizer,
        })
    };
    for (seq_id, optimizer, expected) in [(1, true, &sgd), (2, false, &json!({"type": "adamw"}))] {
        let id = server
            .promise("/load_weights", from(seq_id, optimizer))
            .await;
        let model = server.result(&id).await["model_id"].clone();
        let info = server.ok("/get_info", json!({"model_id": model})).await;
        assert_eq!(info["optimizer_config"], *expected);
    }

    // The last one has another optimizer: it can load the weights, and not what `sgd` gathered.
    let load = |seq_id: i64, optimizer: bool| {
        let model = format!("{session}:train:2");
        json!({"model_id": model, "seq_id": seq_id, "path": path, "optimizer": optimizer})
    };
    let id = server.promise("/load_weights", load(1, true)).await;
    let error = server.user_error(&id).await;
    assert!(
        error.contains("with sgd") && error.contains("with adamw"),
        "{error}"
    );
    let id = server.promise("/load_weights", load(2, false)).await;
    assert_eq!(server.result(&id).await["path"], path);
}
