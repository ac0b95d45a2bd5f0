//! Results in both forms.

use http::Method;
use serde_json::{Value, json};
use tinkrs_server::Watched;
use tinkrs_types::{Datum, LossFn};
use tinkrs_wire::op::asample;
use tinkrs_wire::op::forward_backward::{self, ForwardBackwardRequest};

use crate::caller::{TestServer, pass};

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
    let answer = server.post("/forward_backward", pass(&model, 2)).await;
    assert_eq!(answer.status, 400);
    assert!(answer.detail().contains("unloaded"), "{}", answer.detail());
}

#[tokio::test]
async fn a_server_stops_when_told_to_whatever_still_waits() {
    let server = TestServer::start().await;
    let model = server.model().await;
    server.forward_backward(&model, 2).await;
    server.stop().await;
}

#[tokio::test]
async fn samples_are_announced_to_the_client_that_asked_for_them() {
    let server = TestServer::start().await;
    let session = server.session().await;
    let body = json!({"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny"});
    let sampler = server.ok("/create_sampling_session", body).await;
    let sampler = sampler["sampling_session_id"].clone();
    let join = json!({"sampling_session_id": sampler});
    assert_eq!(
        server.ok("/join_sampling_session", join.clone()).await["client_counter"],
        1
    );
    assert_eq!(
        server.ok("/join_sampling_session", join).await["client_counter"],
        2
    );

    let sample = |seq_id: u64| {
        json!({
            "sampling_session_id": sampler, "seq_id": seq_id, "num_samples": 1,
            "prompt": {"chunks": [{"tokens": [1]}]}, "sampling_params": {"max_tokens": 2},
        })
    };
    let own = server.promise("/asample", sample(0)).await;
    let clones = server.promise("/asample", sample(2_000_000_005)).await;
    for (clone, id) in [(0, &own), (2, &clones)] {
        let ask = |cursor: &serde_json::Value, gone: &[&str]| {
            json!({
                "target": {
                    "type": "sampling_session", "sampling_session_id": sampler,
                    "cloned_sampler_id": clone,
                },
                "prev_cursor": cursor, "retrieved_request_ids": gone, "timeout": 0.0,
            })
        };
        server.result(id).await;
        let news = server.ok("/retrieve_futures", ask(&json!(0), &[])).await;
        assert_eq!(news["completions"][0]["request_id"], json!(id));
        assert_eq!(news["completions"][0]["state"], "finished");
        let rest = server
            .ok("/retrieve_futures", ask(&news["cursor"], &[id.as_str()]))
            .await;
        assert_eq!(rest["completions"], json!([]));
        let answer = server
            .post("/retrieve_future", json!({"request_id": id}))
            .await;
        assert_eq!(answer.status, 410, "it was released");
    }
}

#[tokio::test]
async fn a_large_result_is_announced_to_clients_that_want_to_know() {
    let server = TestServer::with(|settings| settings.inline_bytes = 10).await;
    let model = server.model().await;
    let id = server.forward_backward(&model, 1).await;
    server.loss(&id).await;
    let ask = |metadata| json!({"request_id": id, "allow_metadata_only": metadata});
    let announced = server.ok("/retrieve_future", ask(true)).await;
    assert_eq!(announced["status"], "complete_metadata");
    assert!(announced["response_payload_size"].as_u64() > Some(10));
    assert!(server.ok("/retrieve_future", ask(false)).await["metrics"].is_object());
}

#[tokio::test]
async fn tokens_can_be_watched_as_they_are_drawn_in_the_servers_own_process() {
    let server = TestServer::start().await;
    let session = server.session().await;
    let sampler = |number: u32| {
        let body =
            json!({"session_id": session, "sampling_session_seq_id": number, "base_model": "tiny"});
        server.ok("/create_sampling_session", body)
    };
    let sampler = async |number| sampler(number).await["sampling_session_id"].clone();
    let (watched, other) = (sampler(0).await, sampler(1).await);
    let watched_id = || watched.as_str().unwrap().into();
    let mut requests = server.server().watch_session(watched_id());
    let mut others = server.server().watch_session(watched_id());
    let ask = |sampler: &Value| {
        json!({
            "sampling_session_id": sampler, "seq_id": 1, "num_samples": 2,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 5, 9]}]},
            "sampling_params": {"max_tokens": 6, "seed": 7, "temperature": 1.0, "stop": []},
        })
    };
    let unwatched = server.promise("/asample", ask(&other)).await;
    let id = server.promise("/asample", ask(&watched)).await;
    let result = server.result(&id).await;
    for watcher in [&mut requests, &mut others] {
        let mut tokens = watcher.next().await.unwrap();
        assert_eq!(tokens.request_id().to_string(), id);
        let mut drawn = [Vec::new(), Vec::new()];
        while let Some(watched) = tokens.next().await {
            let Watched::Token(token) = watched else {
                panic!("{watched:?}");
            };
            assert_eq!(token.index, drawn[token.sample].len());
            drawn[token.sample].push(token.token);
        }
        let sequences: Vec<_> = result["sequences"].as_array().unwrap().iter().collect();
        assert_eq!(json!(drawn[0]), sequences[0]["tokens"]);
        assert_eq!(json!(drawn[1]), sequences[1]["tokens"]);
    }
    let ended = server.server().watch_request(&id.as_str().into());
    assert!(ended.is_none(), "its result has all tokens");
    let unwatched = server.result(&unwatched).await;
    assert_eq!(
        unwatched["sequences"], result["sequences"],
        "watched or not"
    );
}
