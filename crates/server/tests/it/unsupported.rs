//! Nothing is silently ignored: what is not supported is refused by its name.

use http::Method;
use serde_json::{Value, json};
use tinkrs_types::{Datum, LossFn};
use tinkrs_wire::op::forward_backward::ForwardBackwardRequest;

use crate::caller::{TestServer, pass, step};
use crate::losses::upload;

#[tokio::test]
async fn unknown_query_parameters_are_refused_by_name() {
    let server = TestServer::start().await;
    let model = server.model().await;
    let session = model.split(':').next().unwrap();
    server.save("/save_weights", &model, 1, "a").await;
    server.save("/save_weights_external", &model, 2, "a").await;
    let below = format!("/training_runs/{model}/checkpoints");
    let hours = "starting_on=2024-01-01T00:00:00Z&ending_before=2024-01-02T00:00:00Z";
    let none = Value::Null;
    let cases = [
        (Method::GET, "/training_runs?sort=name".to_owned(), &none),
        (
            Method::GET,
            format!("/training_runs/{model}?sort=name"),
            &none,
        ),
        (Method::GET, format!("{below}?sort=name"), &none),
        (
            Method::GET,
            format!("/models/{model}/checkpoints?sort=name"),
            &none,
        ),
        (
            Method::GET,
            "/checkpoints?sort=name&limit=1".to_owned(),
            &none,
        ),
        (
            Method::DELETE,
            format!("{below}/weights/a?sort=name"),
            &none,
        ),
        (
            Method::POST,
            format!("{below}/weights/a/publish?sort=name"),
            &none,
        ),
        (
            Method::DELETE,
            format!("{below}/weights/a/publish?sort=name"),
            &none,
        ),
        (
            Method::PUT,
            format!("{below}/weights/a/ttl?sort=name"),
            &json!({"ttl_seconds": null}),
        ),
        (
            Method::GET,
            format!("{below}/weights/a/archive?sort=name"),
            &none,
        ),
        (
            Method::GET,
            format!("{below}/external_weights/a/external_weights_urls?sort=name"),
            &none,
        ),
        (Method::GET, "/sessions?sort=name".to_owned(), &none),
        (Method::GET, format!("/sessions/{session}?sort=name"), &none),
        (
            Method::GET,
            format!("/sessions/{session}/trace_export?sort=name"),
            &none,
        ),
        (
            Method::POST,
            "/sessions/search?sort=name".to_owned(),
            &json!({}),
        ),
        (Method::GET, "/audit?sort=name".to_owned(), &none),
        (
            Method::GET,
            format!("/billing/usage/events?{hours}&sort=name"),
            &none,
        ),
        (
            Method::GET,
            "/billing/usage/checkpoints/current?sort=name".to_owned(),
            &none,
        ),
        (Method::GET, "/auth/apikey/me?sort=name".to_owned(), &none),
        (
            Method::GET,
            "/get_server_capabilities?sort".to_owned(),
            &none,
        ),
        (
            Method::POST,
            "/optim_step?sort=name".to_owned(),
            &step(&model, 3),
        ),
    ];
    for (method, path, body) in cases {
        let answer = server.me().call(method.clone(), &path, body).await;
        assert_eq!(answer.status, 400, "{method} {path}: {:?}", answer.body);
        assert!(
            answer.detail().contains("sort"),
            "{path}: {}",
            answer.detail()
        );
    }
    for bad in [
        "limit=-1",
        "limit=many",
        "limit=1e3",
        "offset=1.5",
        "access_scope=all",
    ] {
        for path in ["/training_runs", "/checkpoints", "/sessions"] {
            let path = format!("{path}?{bad}");
            let answer = server.me().call(Method::GET, &path, &Value::Null).await;
            assert_eq!(answer.status, 400, "{path}");
        }
    }
}

#[tokio::test]
async fn unknown_members_are_refused_by_name_on_every_endpoint() {
    let server = TestServer::start().await;
    let model = server.model().await;
    let session = model.split(':').next().unwrap().to_owned();
    let path = server.save("/save_weights", &model, 1, "a").await;
    let sampler = format!("{session}:sample:0");
    let chunk = json!({"tokens": [1]});
    let sample = json!({
        "base_model": "tiny", "prompt": {"chunks": [chunk]}, "sampling_params": {"max_tokens": 1},
    });
    let target = json!({"type": "sampling_session", "sampling_session_id": sampler});
    let immediate = [
        ("/client/config", json!({"sdk_version": "1"})),
        ("/client/dynamic_config", json!({"sdk_version": "1"})),
        ("/auth/token", json!({})),
        ("/create_session", json!({"tags": [], "sdk_version": "1"})),
        ("/session_heartbeat", json!({"session_id": session})),
        (
            "/create_model",
            json!({"session_id": session, "model_seq_id": 1, "base_model": "tiny", "lora_config": {"rank": 4}}),
        ),
        (
            "/create_sampling_session",
            json!({"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny"}),
        ),
        (
            "/join_sampling_session",
            json!({"sampling_session_id": sampler}),
        ),
        ("/create_custom_loss", upload(&session)),
        ("/get_info", json!({"model_id": model})),
        ("/weights_info", json!({"tinker_path": path})),
        ("/asample", sample),
        ("/retrieve_future", json!({"request_id": "x"})),
        (
            "/retrieve_futures",
            json!({"target": target, "prev_cursor": 0}),
        ),
        ("/cancel_future", json!({"request_id": "x"})),
        ("/copy_weights", json!({"source_path": path})),
        ("/sessions/search", json!({})),
        (
            "/load_weights",
            json!({"session_id": session, "model_seq_id": 2, "path": path, "optimizer": false}),
        ),
    ];
    for (endpoint, mut body) in immediate {
        body["flavour"] = json!("mint");
        let answer = server.post(endpoint, body).await;
        assert_eq!(answer.status, 400, "{endpoint}: {:?}", answer.body);
        assert!(
            answer.detail().contains("flavour"),
            "{endpoint}: {}",
            answer.detail()
        );
    }
    let finish = format!("/sessions/{session}/finish");
    let body = json!({"reason": {"type": "success"}, "detail": null, "flavour": "mint"});
    assert_eq!(server.post(&finish, body).await.status, 400);

    // What has a number fails under it, and the next number goes on.
    let save = |number: i64| json!({"model_id": model, "seq_id": number, "path": "b"});
    let mut forward = pass(&model, 4);
    forward["forward_input"] = forward["forward_backward_input"].take();
    forward
        .as_object_mut()
        .unwrap()
        .remove("forward_backward_input");
    let promised = [
        ("/optim_step", step(&model, 2)),
        ("/forward_backward", pass(&model, 3)),
        ("/forward", forward),
        ("/save_weights", save(5)),
        ("/save_weights_for_sampler", save(6)),
        ("/save_weights_external", save(7)),
        (
            "/load_weights",
            json!({"model_id": model, "seq_id": 8, "path": path}),
        ),
    ];
    for (endpoint, mut body) in promised {
        body["flavour"] = json!("mint");
        let id = server.promise(endpoint, body).await;
        let error = server.user_error(&id).await;
        assert!(error.contains("flavour"), "{endpoint}: {error}");
    }
    let good = server.forward_backward(&model, 9).await;
    server.loss(&good).await;
    let checkpoints = server.get("/checkpoints").await;
    assert_eq!(checkpoints["checkpoints"].as_array().unwrap().len(), 1);
}

/// Sends a pass as a message, and returns why it failed.
async fn failure(server: &TestServer, request: ForwardBackwardRequest) -> String {
    failure_of(server, request.encode().unwrap()).await
}

async fn failure_of(server: &TestServer, body: Vec<u8>) -> String {
    let headers = [("content-type", "application/x-protobuf")];
    let answer = server
        .send(Method::POST, "/forward_backward", &headers, body)
        .await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    let id = answer.json()["request_id"].as_str().unwrap().to_owned();
    server.user_error(&id).await
}

#[tokio::test]
async fn images_and_audio_are_refused_by_kind_in_passes_and_prompts() {
    let server = TestServer::real(|_| {}).await;
    let model = server.model().await;
    let chunks = [
        json!({"type": "image", "data": "iVBORw==", "format": "png", "expected_tokens": 3}),
        json!({"type": "image_asset_pointer", "location": "x", "format": "png", "expected_tokens": 3}),
        json!({"type": "dmel", "dmel": "AwKIAVA="}),
    ];
    for (number, chunk) in (1..).zip(&chunks) {
        let kind = chunk["type"].as_str().unwrap();
        let mut body = pass(&model, number);
        let datum = &mut body["forward_backward_input"]["data"][0];
        datum["model_input"]["chunks"]
            .as_array_mut()
            .unwrap()
            .push(chunk.clone());
        let id = server.promise("/forward_backward", body).await;
        let error = server.user_error(&id).await;
        assert!(error.contains(kind), "{kind}: {error}");
        let body = json!({
            "base_model": "tiny", "prompt": {"chunks": [{"tokens": [1]}, chunk]},
            "sampling_params": {"max_tokens": 1},
        });
        let answer = server.post("/asample", body).await;
        assert_eq!(answer.status, 400, "{kind}");
        let detail = answer.detail();
        assert!(
            detail.contains("chunks[1]") && detail.contains(kind),
            "{kind}: {detail}"
        );
    }
}

#[tokio::test]
async fn losses_and_optimizers_that_are_not_there_are_refused_by_name() {
    let server = TestServer::start().await;
    let model = server.model().await;
    let datum = || Datum::from_prompt_completion(&[1, 5], &[9, 2]).unwrap();
    for (number, name) in (1..).zip(["stable_reinforce", "dppo", "ppo_critic", "hinge"]) {
        let request = ForwardBackwardRequest {
            model_id: model.as_str().into(),
            seq_id: number,
            data: vec![datum()],
            loss_fn: LossFn::from_parts(name, Default::default()).unwrap(),
            forward_only: false,
        };
        let error = failure(&server, request).await;
        assert!(error.contains(name), "{name}: {error}");
    }
    // Both names of the member, and models that would need it.
    for (number, member) in (5..).zip(["optimizer_params", "optim_params"]) {
        let body = json!({
            "model_id": model, "seq_id": number,
            member: {"type": "dimuon", "learning_rate": 0.1},
        });
        let id = server.promise("/optim_step", body).await;
        let error = server.user_error(&id).await;
        assert!(error.contains("dimuon"), "{member}: {error}");
    }
    let session = server.session().await;
    let body = json!({
        "session_id": session, "model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": 4},
        "optimizer_config": {"type": "dimuon", "version": 1},
    });
    let answer = server.post("/create_model", body).await;
    assert_eq!(answer.status, 400);
    assert!(answer.detail().contains("dimuon"));
}

#[tokio::test]
async fn what_does_not_fit_a_loss_is_refused_by_datum_and_name() {
    let server = TestServer::real(|_| {}).await;
    let model = server.model().await;
    let request = |number, data| ForwardBackwardRequest {
        model_id: model.as_str().into(),
        seq_id: number,
        data,
        loss_fn: LossFn::CrossEntropy,
        forward_only: false,
    };
    let good = || Datum::from_prompt_completion(&[1, 5], &[9, 2]).unwrap();
    let not_a_number = Datum::supervised(vec![1, 5], [5, 9], [0.0, f32::NAN]).unwrap();
    let infinite = Datum::supervised(vec![1, 5], [5, 9], [0.0, f32::INFINITY]).unwrap();
    for (number, bad) in (1..).zip([not_a_number, infinite]) {
        let error = failure(&server, request(number, vec![good(), bad])).await;
        assert!(
            error.contains("datum 1") && error.contains("weights"),
            "{error}"
        );
    }
    let error = failure(&server, request(3, Vec::new())).await;
    assert!(error.contains("data"), "{error}");
    // Two bytes each, and hundreds in memory.
    let mut many = request(4, Vec::new()).encode().unwrap();
    many.extend([0x1a, 0x00].repeat(65_537));
    let error = failure_of(&server, many).await;
    assert!(
        error.contains("65537 datums") && error.contains("65536"),
        "{error}"
    );
    let mut bad = pass(&model, 5);
    bad["forward_backward_input"]["loss_fn_config"] = json!({"temperature": 2.0});
    let id = server.promise("/forward_backward", bad).await;
    let error = server.user_error(&id).await;
    assert!(error.contains("temperature"), "{error}");
    let mut bad = pass(&model, 6);
    let inputs = &mut bad["forward_backward_input"]["data"][0]["loss_fn_inputs"];
    inputs["mask"] = inputs["weights"].clone();
    let id = server.promise("/forward_backward", bad).await;
    let error = server.user_error(&id).await;
    assert!(
        error.contains("datum 0") && error.contains("mask"),
        "{error}"
    );
    let next = server.forward_backward(&model, 7).await;
    server.loss(&next).await;
}

#[tokio::test]
async fn bodies_that_are_compressed_or_say_a_thing_twice_are_refused_for_that() {
    let server = TestServer::start().await;
    let session = r#"{"tags": [], "sdk_version": "0.36.0", "tags": ["a"]}"#;
    for (encoding, expected) in [
        ("gzip", "`Content-Encoding`: found gzip"),
        ("identity", "duplicate field `tags`"),
    ] {
        let headers = [("content-encoding", encoding)];
        let answer = server
            .send(Method::POST, "/create_session", &headers, session)
            .await;
        assert_eq!(answer.status, 400);
        assert!(answer.detail().contains(expected), "{}", answer.detail());
    }
}
