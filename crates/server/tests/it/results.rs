//! Results in both forms.

use http::Method;
use serde_json::json;
use tinkrs_types::{Datum, LossFn};
use tinkrs_wire::op::asample;
use tinkrs_wire::op::forward_backward::{self, ForwardBackwardRequest};

use crate::caller::TestServer;

const PROTOBUF: &str = "application/x-protobuf";

#[tokio::test]
async fn a_pass_is_the_same_as_a_message_and_as_json() {
    let server = TestServer::start().await;
    let model = server.model().await;
    let request = ForwardBackwardRequest {
        model_id: model.as_str().into(),
        seq_id: 1,
        data: vec![Datum::from_prompt_completion(&[1, 5], &[9, 2]).unwrap()],
        loss_fn: LossFn::CrossEntropy,
        forward_only: true,
    };
    let body = tinkrs_wire::compress::compress(&request.encode().unwrap());
    let headers = [("content-type", PROTOBUF), ("content-encoding", "zstd")];
    let promise = server
        .send(Method::POST, "/forward_backward", &headers, body)
        .await;
    let id = promise.json()["request_id"].as_str().unwrap().to_owned();
    let message = server
        .poll(&id, "application/x-protobuf, application/json")
        .await;
    assert_eq!(message.headers["content-type"], PROTOBUF);
    let message = forward_backward::decode_result(PROTOBUF, message.body).unwrap();
    let json = server.poll(&id, "application/json").await;
    assert_eq!(json.headers["content-type"], "application/json");
    let json = forward_backward::decode_result("application/json", json.body).unwrap();
    assert_eq!(message.loss(), json.loss());
    assert_eq!(message.logprobs(0), json.logprobs(0));
    assert_eq!(message.logprobs(0).unwrap().len(), 3);
    for name in message.metrics.keys() {
        assert_eq!(name.matches(':').count(), 1, "{name}");
    }
}

#[tokio::test]
async fn a_sample_is_the_same_as_a_message_and_as_json() {
    let server = TestServer::start().await;
    let body = json!({
        "base_model": "tiny", "num_samples": 2, "prompt": {"chunks": [{"tokens": [1, 5, 9]}]},
        "sampling_params": {"max_tokens": 3, "seed": 1, "stop": []}, "prompt_logprobs": true,
    });
    let id = server.promise("/asample", body).await;
    let message = server.poll(&id, PROTOBUF).await;
    let message = asample::decode_result(PROTOBUF, message.body).unwrap();
    let json = server.result(&id).await;
    assert!(json["prompt_logprobs"][0].is_null());
    let json = asample::decode_result("application/json", json.to_string().into()).unwrap();
    assert_eq!(message.sequences, json.sequences);
    assert_eq!(message.sequences[0].tokens.len(), 3);
    assert_ne!(message.sequences[0].tokens, message.sequences[1].tokens);
}

#[tokio::test]
async fn failures_stay_json_for_clients_that_take_messages() {
    let server = TestServer::start().await;
    let body = json!({
        "base_model": "tiny", "prompt": {"chunks": [{"tokens": [100_000]}]},
        "sampling_params": {"max_tokens": 3},
    });
    let id = server.promise("/asample", body).await;
    let answer = server.poll(&id, PROTOBUF).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["category"], "user");
    let error = answer.json()["error"].as_str().unwrap().to_owned();
    assert!(error.contains("100000"), "{error}");
}

#[tokio::test]
async fn training_goes_on_beside_a_long_sample_until_that_is_cancelled() {
    let server = TestServer::start().await;
    let model = server.model().await;
    let body = json!({
        "base_model": "tiny", "num_samples": 4096, "prompt": {"chunks": [{"tokens": [1]}]},
        "sampling_params": {"max_tokens": 120, "stop": []},
    });
    let id = server.promise("/asample", body).await;
    let pass = server.forward_backward(&model, 1).await;
    server.loss(&pass).await;
    server.ok("/cancel_future", json!({"request_id": id})).await;
    let error = server.user_error(&id).await;
    assert!(
        error.contains("cancelled"),
        "the sample had not ended: {error}"
    );
    server.ok("/cancel_future", json!({"request_id": id})).await;
    server
        .ok("/cancel_future", json!({"request_id": "none"}))
        .await;
}

#[tokio::test]
async fn an_unloaded_model_has_no_weights() {
    let server = TestServer::start().await;
    let model = server.model().await;
    let id = server
        .promise("/unload_model", json!({"model_id": model}))
        .await;
    assert_eq!(server.result(&id).await["model_id"], model);
    let pass = server.forward_backward(&model, 1).await;
    let error = server.user_error(&pass).await;
    assert!(error.contains("unloaded"), "{error}");
}

#[tokio::test]
async fn a_server_stops_when_told_to_whatever_still_waits() {
    let server = TestServer::start().await;
    let model = server.model().await;
    server.forward_backward(&model, 2).await;
    server.stop().await;
}
