//! Losses that clients upload.

use serde_json::{Value, json};
use tinkrs_server::Settings;

use crate::budget::{FIXED, MIB, accounted};
use crate::caller::{TestServer, pass};

/// The trace of `-(logprobs * weights).sum()`: cross-entropy in a client's own words.
pub(crate) fn upload(session: &str) -> Value {
    let node = |op: &str, name: &str, target: &str, args: Value| json!({"op": op, "name": name, "target": target, "args": args, "kwargs": {}});
    json!({
        "session_id": session, "custom_loss_seq_id": 0, "name": "own_cross_entropy",
        "inputs": [{"name": "logprobs", "rank": 1}, {"name": "weights", "rank": 1}],
        "graph": {"format": 1, "nodes": [
            node("placeholder", "logprobs", "logprobs", json!([])),
            node("placeholder", "weights", "weights", json!([])),
            node("call_function", "mul", "operator.mul", json!([{"ref": "logprobs"}, {"ref": "weights"}])),
            node("call_method", "sum_1", "sum", json!([{"ref": "mul"}])),
            node("call_function", "neg", "operator.neg", json!([{"ref": "sum_1"}])),
            node("output", "output", "output", json!([{"tuple": [{"ref": "neg"}, {"dict": {}}]}])),
        ]},
    })
}

pub(crate) fn custom_pass(model: &str, seq_id: i64, loss_id: &Value) -> Value {
    let mut body = pass(model, seq_id);
    body["forward_backward_input"]["loss_fn"] = json!("custom");
    body["forward_backward_input"]["loss_fn_config"] = json!({"loss_id": loss_id});
    body
}

#[tokio::test]
async fn an_uploaded_loss_trains_like_the_built_in_one_and_survives_a_restart() {
    let server = TestServer::start().await;
    let model = server.model().await;
    let first = server.forward_backward(&model, 1).await;
    server.optim_step(&model, 2).await;
    let second = server.forward_backward(&model, 3).await;
    let expected = [server.loss(&first).await, server.loss(&second).await];

    let model = server.model().await;
    let session = model.split(':').next().unwrap().to_owned();
    let uploaded = server
        .promise("/create_custom_loss", upload(&session))
        .await;
    let again = server
        .promise("/create_custom_loss", upload(&session))
        .await;
    assert_eq!(uploaded, again);
    let loss_id = server.result(&uploaded).await["loss_id"].clone();
    let first = server
        .promise("/forward_backward", custom_pass(&model, 1, &loss_id))
        .await;
    server.optim_step(&model, 2).await;
    let server = server.restart(|_| {}).await;
    let second = server
        .promise("/forward_backward", custom_pass(&model, 3, &loss_id))
        .await;
    for (request, expected) in [first, second].iter().zip(expected) {
        let found = server.loss(request).await;
        assert!((found - expected).abs() < 1e-5, "{found} is not {expected}");
    }
}

#[tokio::test]
async fn what_a_loss_may_not_do_and_losses_that_are_not_there_are_named() {
    let server = TestServer::start().await;
    let model = server.model().await;
    let session = model.split(':').next().unwrap();
    let mut bad = upload(session);
    bad["graph"]["nodes"][3]["target"] = json!("backward");
    let answer = server.post("/create_custom_loss", bad).await;
    assert_eq!(answer.status, 400);
    assert!(answer.detail().contains("backward"), "{}", answer.detail());

    let pass = custom_pass(&model, 1, &json!("none"));
    let pass = server.promise("/forward_backward", pass).await;
    let error = server.user_error(&pass).await;
    assert!(error.contains("loss_id"), "{error}");
}

#[tokio::test]
async fn losses_have_a_part_of_the_memory_until_their_sessions_end() {
    // 32 KiB for losses, and half of that for one owner.
    let little = |settings: &mut Settings| settings.memory = Some(FIXED + 2 * MIB);
    let server = TestServer::with(little).await;
    let (first, second) = (server.session().await, server.session().await);
    let numbered = |session: &str, number: u64| {
        let mut body = upload(session);
        body["custom_loss_seq_id"] = number.into();
        body
    };
    let mut taken = 0;
    let refused = loop {
        let body = numbered(&first, taken);
        let answer = server.post("/create_custom_loss", body).await;
        if answer.status != 200 {
            break answer;
        }
        taken += 1;
    };
    assert!((2..20).contains(&taken), "{taken}");
    assert_eq!(refused.status, 400);
    assert!(
        refused.detail().contains("of memory"),
        "{}",
        refused.detail()
    );
    let used = accounted(&server, "losses").await;
    assert!((8 << 10..=16 << 10).contains(&used), "{used}");
    let server = server.restart(little).await;
    assert!(accounted(&server, "losses").await > 0);
    let finish = json!({"reason": {"type": "success"}, "detail": null});
    server
        .ok(&format!("/sessions/{first}/finish"), finish)
        .await;
    assert_eq!(accounted(&server, "losses").await, 0);
    server.ok("/create_custom_loss", numbered(&second, 0)).await;
}
