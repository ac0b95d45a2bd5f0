//! Operations run in order, exactly once, and as many as there is room for.

use std::time::Duration;

use serde_json::json;

use crate::caller::{TestServer, pass, step};

#[tokio::test]
async fn operations_run_by_number_whatever_order_they_arrive_in() {
    let server = TestServer::start().await;
    let model = server.model().await;
    let after = server.forward_backward(&model, 3).await;
    let update = server.optim_step(&model, 2).await;
    let before = server.forward_backward(&model, 1).await;
    let (before, after) = (server.loss(&before).await, server.loss(&after).await);
    assert!(after < before, "the loss went from {before} to {after}");
    assert_eq!(
        server.result(&update).await["metrics"]["optimizer_step"],
        1.0
    );
}

#[tokio::test]
async fn a_repeated_operation_gets_the_first_ones_result() {
    let server = TestServer::start().await;
    let model = server.model().await;
    server.forward_backward(&model, 1).await;
    let first = server.optim_step(&model, 2).await;
    let again = server.optim_step(&model, 2).await;
    assert_eq!(first, again);
    let next = server.optim_step(&model, 3).await;
    assert_eq!(server.result(&next).await["metrics"]["optimizer_step"], 2.0);
    assert_eq!(
        server.optim_step(&model, 2).await,
        first,
        "even after it ran"
    );
}

#[tokio::test]
async fn a_number_belongs_to_one_request() {
    let server = TestServer::start().await;
    let model = server.model().await;
    server.optim_step(&model, 1).await;
    let mut other = step(&model, 1);
    other["adam_params"]["learning_rate"] = json!(0.02);
    let answer = server.post("/optim_step", other).await;
    assert_eq!(answer.status, 400);
    assert!(
        answer.detail().contains("another body"),
        "{}",
        answer.detail()
    );

    // Official clients repeat an unnamed save with a new number of its sampling session.
    let save = |number| json!({"model_id": model, "seq_id": 2, "sampling_session_seq_id": number});
    let first = server.promise("/save_weights_for_sampler", save(0)).await;
    assert_eq!(
        server.promise("/save_weights_for_sampler", save(1)).await,
        first
    );
}

#[tokio::test]
async fn a_repeated_model_or_sample_is_made_once() {
    let server = TestServer::start().await;
    let session = server.session().await;
    let body = json!({
        "session_id": session, "model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": 4},
    });
    let first = server.promise("/create_model", body.clone()).await;
    assert_eq!(server.promise("/create_model", body).await, first);

    let body = json!({
        "session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny",
    });
    let sampler = server.ok("/create_sampling_session", body).await;
    let sample = |seq_id: u64| {
        json!({
            "sampling_session_id": sampler["sampling_session_id"], "seq_id": seq_id,
            "num_samples": 2, "prompt": {"chunks": [{"tokens": [1]}]},
            "sampling_params": {"max_tokens": 2},
        })
    };
    let large = 3_000_000_000_000;
    let first = server.ok("/asample", sample(large)).await;
    assert_eq!(first["sample_sequence_ids"].as_array().unwrap().len(), 2);
    assert_eq!(server.ok("/asample", sample(large)).await, first);
    assert_ne!(server.ok("/asample", sample(large + 1)).await, first);
}

#[tokio::test]
async fn a_sampling_session_is_opened_once_for_the_same_weights() {
    let server = TestServer::start().await;
    let model = server.model().await;
    let session = model.split(':').next().unwrap();
    let path = server
        .save("/save_weights_for_sampler", &model, 1, "a")
        .await;
    let unnamed = json!({"model_id": model, "seq_id": 2, "sampling_session_seq_id": 1});
    let unnamed = server.promise("/save_weights_for_sampler", unnamed).await;
    server.result(&unnamed).await;
    let base = |number| json!({"session_id": session, "sampling_session_seq_id": number, "base_model": "tiny"});
    let saved = |number| json!({"session_id": session, "sampling_session_seq_id": number, "model_path": path});
    let first = server.ok("/create_sampling_session", base(0)).await;
    assert_eq!(server.ok("/create_sampling_session", base(0)).await, first);
    for other in [saved(0), base(1), saved(1)] {
        let answer = server.post("/create_sampling_session", other.clone()).await;
        assert_eq!(answer.status, 400, "{other}");
        assert!(
            answer.detail().contains("other weights"),
            "{}",
            answer.detail()
        );
    }
}

#[tokio::test]
async fn operations_behind_a_gap_fail_and_later_ones_run() {
    let server = TestServer::with(|settings| {
        settings.gap_timeout = Duration::from_millis(1);
    })
    .await;
    let model = server.model().await;
    let early = server.forward_backward(&model, 2).await;
    let error = server.user_error(&early).await;
    assert!(error.contains("seq_id 1 did not arrive"), "{error}");

    let late = server.post("/forward_backward", pass(&model, 1)).await;
    assert_eq!(late.status, 400);
    assert!(late.detail().contains("too late"), "{}", late.detail());

    let next = server.forward_backward(&model, 3).await;
    server.loss(&next).await;
}

#[tokio::test]
async fn a_pending_poll_says_what_is_missing() {
    let server = TestServer::with(|settings| settings.poll_timeout = Duration::ZERO).await;
    let model = server.model().await;
    let early = server.forward_backward(&model, 2).await;
    let answer = server
        .post("/retrieve_future", json!({"request_id": early}))
        .await;
    assert_eq!(answer.status, 408);
    let body = answer.json();
    assert_eq!(body["queue_state"], "active");
    assert_eq!(body["queue_state_reason"], "waits for seq_id 1");
}

#[tokio::test]
async fn a_full_queue_is_busy_except_for_what_it_waits_for() {
    let server = TestServer::with(|settings| settings.queued_operations = 1).await;
    let model = server.model().await;
    let held = server.optim_step(&model, 2).await;
    let refused = server.post("/optim_step", step(&model, 3)).await;
    assert_eq!(refused.status, 429);
    assert!(refused.headers.contains_key("retry-after"));
    assert!(refused.detail().contains("training operations"));

    let first = server.forward_backward(&model, 1).await;
    server.loss(&first).await;
    server.result(&held).await;
    let third = server.optim_step(&model, 3).await;
    assert_eq!(
        server.result(&third).await["metrics"]["optimizer_step"],
        2.0
    );
}

#[tokio::test]
async fn bad_data_fails_its_own_operation_and_leaves_no_gap() {
    let server = TestServer::start().await;
    let model = server.model().await;
    let mut bad = pass(&model, 1);
    let data = bad["forward_backward_input"]["data"]
        .as_array_mut()
        .unwrap();
    data.push(data[0].clone());
    data[1]["loss_fn_inputs"]["weights"] = json!({"data": [1.0], "dtype": "float32"});
    let short = server.promise("/forward_backward", bad).await;
    let error = server.user_error(&short).await;
    assert!(
        error.contains("datum 1") && error.contains("weights"),
        "{error}"
    );

    let mut bad = pass(&model, 2);
    bad["forward_backward_input"]["data"][0]["model_input"]["chunks"][0]["tokens"][1] =
        json!(100_000);
    let unknown = server.promise("/forward_backward", bad).await;
    let error = server.user_error(&unknown).await;
    assert!(
        error.contains("datum 0") && error.contains("100000"),
        "{error}"
    );

    let mut bad = pass(&model, 3);
    bad["forward_backward_input"]["loss_fn"] = json!("stable_reinforce");
    let unsupported = server.promise("/forward_backward", bad).await;
    let error = server.user_error(&unsupported).await;
    assert!(error.contains("stable_reinforce"), "{error}");

    let dimuon = json!({
        "model_id": model, "seq_id": 4, "optimizer_params": {"type": "dimuon", "learning_rate": 1},
    });
    let dimuon = server.promise("/optim_step", dimuon).await;
    let error = server.user_error(&dimuon).await;
    assert!(error.contains("dimuon"), "{error}");

    let mut bad = pass(&model, 5);
    bad["forward_backward_input"]["data"][0]["mask"] = json!([1]);
    let unread = server.promise("/forward_backward", bad).await;
    let error = server.user_error(&unread).await;
    assert!(error.contains("data[0].mask"), "{error}");

    let mut bad = step(&model, 6);
    bad["adam_params"]["momentum"] = json!(0.9);
    let unread = server.promise("/optim_step", bad).await;
    let error = server.user_error(&unread).await;
    assert!(error.contains("adam_params.momentum"), "{error}");

    let mut bad = step(&model, 7);
    bad["adam_params"]["learning_rate"] = json!("fast");
    let mistyped = server.promise("/optim_step", bad).await;
    let error = server.user_error(&mistyped).await;
    assert!(error.contains("fast"), "{error}");

    let good = server.forward_backward(&model, 8).await;
    server.loss(&good).await;
}
