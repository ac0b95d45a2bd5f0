//! What one owner does takes nothing from the others but their share of the time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tinkrs_testkit::FakeBackend;

use crate::caller::{Owner, TestServer, base, long_pass, pass, step};

/// A sample of the base model that ends after this many tokens.
fn sample(tokens: u32, num_samples: u32) -> Value {
    json!({
        "base_model": "tiny", "num_samples": num_samples,
        "prompt": {"chunks": [{"tokens": [1, 5]}]},
        "sampling_params": {"max_tokens": tokens, "stop": []},
    })
}

async fn model_of(owner: Owner<'_>) -> String {
    let session = json!({"tags": [], "sdk_version": "0.36.0"});
    let session = owner.ok("/create_session", session).await;
    let body = json!({
        "session_id": session["session_id"], "model_seq_id": 0, "base_model": "tiny",
        "lora_config": {"rank": 4, "seed": 1},
    });
    let model = owner.result("/create_model", body).await;
    model["model_id"].as_str().unwrap().to_owned()
}

/// Holds up the thread that computes, before its next slice.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn pass(&self) {
        let (closed, changed) = &*self.0;
        let waited =
            changed.wait_timeout_while(closed.lock().unwrap(), Duration::from_secs(60), |closed| {
                *closed
            });
        assert!(!waited.unwrap().1.timed_out(), "the gate was not opened");
    }

    fn set_closed(&self, closed: bool) {
        *self.0.0.lock().unwrap() = closed;
        self.0.1.notify_all();
    }
}

#[tokio::test]
async fn operations_behind_a_gap_leave_others_their_room() {
    let server = TestServer::with(|settings| settings.queued_operations = 4).await;
    let (one, other) = (server.owner("tml-one"), server.owner("tml-other"));
    let (stuck, free) = (model_of(one).await, model_of(other).await);
    for seq_id in 2..=5 {
        one.ok("/optim_step", step(&stuck, seq_id)).await;
    }
    let refused = one
        .call(Method::POST, "/optim_step", &step(&stuck, 6))
        .await;
    assert_eq!(refused.status, 429);
    assert!(refused.detail().contains("of this key"));
    // Another session does not help: it is the owner who has no place left.
    let session = json!({"tags": [], "sdk_version": "0.36.0"});
    let session = one.ok("/create_session", session).await;
    let create = json!({
        "session_id": session["session_id"], "model_seq_id": 0, "base_model": "tiny",
        "lora_config": {"rank": 4},
    });
    let refused = one.call(Method::POST, "/create_model", &create).await;
    assert_eq!(refused.status, 429);

    other.result("/forward_backward", pass(&free, 1)).await;
    let updated = other.result("/optim_step", step(&free, 2)).await;
    assert_eq!(updated["metrics"]["optimizer_step"], 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_samples_is_refused_to_its_owner_alone() {
    let gate = Gate::default();
    let inner = gate.clone();
    let backend = FakeBackend::new().before_slice(move || inner.pass());
    let data = Arc::new(tempfile::tempdir().unwrap());
    let server = TestServer::of(base(backend), data, |settings| settings.queued_samples = 8).await;
    let (one, other) = (server.owner("tml-one"), server.owner("tml-other"));
    let model = model_of(one).await;
    gate.set_closed(true);
    one.ok("/forward_backward", pass(&model, 1)).await;
    for _ in 0..8 {
        one.ok("/asample", sample(100, 50)).await;
    }
    let refused = one.call(Method::POST, "/asample", &sample(1, 1)).await;
    assert_eq!(refused.status, 429);
    assert!(refused.detail().contains("of this key"));
    let promise = other.ok("/asample", sample(4, 1)).await;
    gate.set_closed(false);
    let poll = json!({"request_id": promise["request_id"]});
    let sampled = other.ok("/retrieve_future", poll).await;
    let tokens = sampled["sequences"][0]["tokens"].as_array();
    assert_eq!(tokens.map(Vec::len), Some(4), "{sampled}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_pass_does_not_wait_for_the_end_of_anothers_long_one() {
    let (reached, arrived) = mpsc::channel();
    let (go, gate) = mpsc::channel::<()>();
    let (reached, gate) = (Mutex::new(reached), Mutex::new(gate));
    let slices = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&slices);
    let is_armed = Arc::new(AtomicBool::new(true));
    let armed = Arc::clone(&is_armed);
    let backend = FakeBackend::new().before_slice(move || {
        counted.fetch_add(1, Ordering::SeqCst);
        if armed.swap(false, Ordering::SeqCst) {
            reached.lock().unwrap().send(()).unwrap();
            let open = gate.lock().unwrap().recv_timeout(Duration::from_secs(60));
            open.expect("the test opens it");
        }
        // A turn has to cost something.
        std::thread::sleep(Duration::from_millis(2));
    });
    let server = TestServer::of_backend(backend).await;
    let (one, other) = (server.owner("tml-one"), server.owner("tml-other"));
    let (long, short) = (model_of(one).await, model_of(other).await);
    // 1700 datums of 60 tokens are 100 slices of 1024.
    let queued = one.ok("/forward_backward", long_pass(&long, 1, 1700)).await;
    let after = one.ok("/optim_step", step(&long, 2)).await;
    tokio::task::block_in_place(|| arrived.recv().unwrap());
    let promise = other.ok("/forward_backward", pass(&short, 1)).await;
    go.send(()).unwrap();
    let poll = json!({"request_id": promise["request_id"]});
    other.ok("/retrieve_future", poll).await;
    let before = slices.load(Ordering::SeqCst);
    assert!(before < 90, "the short pass ended after {before} slices");
    for promise in [queued, after] {
        let poll = json!({"request_id": promise["request_id"]});
        one.ok("/retrieve_future", poll).await;
    }
    assert_eq!(slices.load(Ordering::SeqCst), 101);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_passes_than_may_be_under_way_all_come_to_their_end() {
    let server = TestServer::start().await;
    let keys: Vec<_> = (0..40).map(|number| format!("tml-{number}")).collect();
    let mut queued = Vec::new();
    for key in &keys {
        let owner = server.owner(key);
        let model = model_of(owner).await;
        let promise = owner
            .ok("/forward_backward", long_pass(&model, 1, 60))
            .await;
        queued.push((owner, promise));
    }
    let mut losses = Vec::new();
    for (owner, promise) in queued {
        let poll = json!({"request_id": promise["request_id"]});
        let result = owner.ok("/retrieve_future", poll).await;
        losses.push(result["metrics"]["loss:sum"].clone());
    }
    assert!(losses[0].is_number());
    assert!(losses.iter().all(|loss| *loss == losses[0]), "{losses:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sample_that_waits_behind_others_can_be_cancelled() {
    let gate = Gate::default();
    let inner = gate.clone();
    let backend = FakeBackend::new().before_slice(move || inner.pass());
    let server = TestServer::of_backend(backend).await;
    let model = server.model().await;
    gate.set_closed(true);
    let held_up = server.forward_backward(&model, 1).await;
    let mut promises = Vec::new();
    for _ in 0..3 {
        promises.push(server.promise("/asample", sample(100, 64)).await);
    }
    // The sampler has use for the first one alone.
    let cancelled = json!({"request_id": promises[2]});
    server.ok("/cancel_future", cancelled).await;
    gate.set_closed(false);
    let error = server.user_error(&promises[2]).await;
    assert!(error.contains("cancelled"), "{error}");
    for promise in &promises[..2] {
        let result = server.result(promise).await;
        assert_eq!(result["sequences"].as_array().map(Vec::len), Some(64));
    }
    server.loss(&held_up).await;
}
