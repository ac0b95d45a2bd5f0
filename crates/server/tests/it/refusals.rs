//! What is not taken, and what its sender is told.

use http::{Method, Request};
use http_body_util::Full;
use serde_json::json;

use crate::caller::{KEY, TestServer, pass, step};
use crate::way::Way;

#[tokio::test]
async fn what_does_not_exist_is_named() {
    let server = TestServer::start().await;
    let session = server.session().await;
    let sampling = json!({
        "session_id": session, "sampling_session_seq_id": 0,
        "model_path": "tinker://s:train:0/sampler_weights/a",
    });
    let sample = json!({
        "sampling_session_id": "none", "seq_id": 0, "prompt": {"chunks": [{"tokens": [1]}]},
        "sampling_params": {"max_tokens": 1},
    });
    let heartbeat = json!({"session_id": "none"});
    let cases = [
        ("/forward_backward", pass("none", 1), "model `none`"),
        ("/optim_step", step("none", 1), "model `none`"),
        ("/get_info", json!({"model_id": "none"}), "model `none`"),
        ("/session_heartbeat", heartbeat, "session `none`"),
        ("/create_sampling_session", sampling, "sampler_weights/a"),
        ("/asample", sample, "sampling session `none`"),
        (
            "/retrieve_future",
            json!({"request_id": "none"}),
            "request `none`",
        ),
        (
            "/optim_step",
            json!({"model_id": "none", "seq_id": 1}),
            "model `none`",
        ),
        ("/juggle", json!({}), "POST /api/v1/juggle"),
    ];
    for (path, body, named) in cases {
        let answer = server.post(path, body).await;
        assert_eq!(answer.status, 404, "{path}");
        let detail = answer.detail();
        assert!(detail.contains(named), "{path}: {detail}");
    }
    let answer = server.send(Method::GET, "/asample", &[], "").await;
    assert_eq!(answer.status, 404);
    assert!(answer.detail().contains("GET /api/v1/asample"));
}

#[tokio::test]
async fn models_that_cannot_be_trained_are_refused_by_the_field() {
    let server = TestServer::start().await;
    let session = server.session().await;
    let good = json!({
        "session_id": session, "model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": 4},
    });
    let changes = [
        ("base_model", json!("huge"), "tiny"),
        ("lora_config", json!({"rank": 0}), "lora_config.rank"),
        ("lora_config", json!({"rank": 1 << 20}), "lora_config.rank"),
        (
            "lora_config",
            json!({"rank": 4, "alpha": 8}),
            "lora_config.alpha",
        ),
        ("lora_config", json!(null), "lora_config"),
        (
            "optimizer_config",
            json!({"type": "dimuon", "version": 1}),
            "dimuon",
        ),
        ("user_metadata", json!({"n": 1}), "user_metadata.n"),
        ("quantize", json!(true), "quantize"),
        (
            "lora_config",
            json!({"rank": 4, "train_attn": false, "train_mlp": false, "train_unembed": false}),
            "train_unembed",
        ),
    ];
    for (field, value, named) in changes {
        let mut body = good.clone();
        body[field] = value.clone();
        let answer = server.post("/create_model", body).await;
        assert_eq!(answer.status, 400, "{field}: {value}");
        let detail = answer.detail();
        assert!(detail.contains(named), "{field}: {value}: {detail}");
    }
}

#[tokio::test]
async fn sample_parameters_that_are_not_supported_are_refused_by_name() {
    let server = TestServer::start().await;
    let good = json!({
        "base_model": "tiny", "prompt": {"chunks": [{"tokens": [1]}]},
        "sampling_params": {"max_tokens": 1},
    });
    server.ok("/asample", good.clone()).await;
    let image = json!({"chunks": [{"type": "image", "data": "AAAA", "format": "png"}]});
    let changes = [
        ("num_samples", json!(0), "num_samples"),
        (
            "record_stability_info",
            json!(true),
            "record_stability_info",
        ),
        (
            "sampling_params",
            json!({"max_tokens": 1, "min_p": 0.1}),
            "min_p",
        ),
        ("sampling_params", json!({}), "max_tokens"),
        (
            "sampling_params",
            json!({"max_tokens": 1, "temperature": -1}),
            "temperature",
        ),
        ("prompt", image, "prompt.chunks[0]"),
        ("base_model", json!("huge"), "huge"),
        ("prompt_logprobs_last_n", json!(1), "prompt_logprobs_last_n"),
    ];
    for (field, value, named) in changes {
        let mut body = good.clone();
        body[field] = value.clone();
        let answer = server.post("/asample", body).await;
        assert_eq!(answer.status, 400, "{field}: {value}");
        let detail = answer.detail();
        assert!(detail.contains(named), "{field}: {value}: {detail}");
    }
}

#[tokio::test]
async fn a_request_needs_a_well_formed_key_except_for_health() {
    let server = TestServer::start().await;
    for (key, status) in [
        ("tml-a", 200),
        ("eyJa", 200),
        ("tml-", 401),
        ("sk-a", 401),
        ("", 401),
    ] {
        let headers = [("x-api-key", key)];
        let path = "/get_server_capabilities";
        let answer = server.send(Method::GET, path, &headers, "").await;
        assert_eq!(answer.status, status, "{key}");
    }
    let answer = server
        .send(Method::GET, "/healthz", &[("x-api-key", "")], "")
        .await;
    assert_eq!(answer.json(), json!({"status": "ok"}));
}

#[tokio::test]
async fn malformed_bodies_are_refused() {
    let server = TestServer::start().await;
    let message = [("content-type", "application/x-protobuf")];
    let answer = server
        .send(Method::POST, "/forward_backward", &message, vec![0xff; 9])
        .await;
    assert_eq!(answer.status, 400, "{:?}", answer.body);
    let zipped = [message[0], ("content-encoding", "zstd")];
    let answer = server
        .send(Method::POST, "/forward_backward", &zipped, "not zstd")
        .await;
    assert_eq!(answer.status, 400, "{:?}", answer.body);
    let bomb = tinkrs_wire::compress::compress(&vec![0; 300 << 20]);
    let answer = server
        .send(Method::POST, "/forward_backward", &zipped, bomb)
        .await;
    assert_eq!(answer.status, 413, "{:?}", answer.body);
    for body in ["", "[]", "{", "{\"session_id\": 1}"] {
        let json = [("content-type", "application/json")];
        let answer = server
            .send(Method::POST, "/create_model", &json, body)
            .await;
        assert_eq!(answer.status, 400, "{body}");
        assert!(!answer.detail().is_empty());
    }
}

#[tokio::test]
async fn a_finished_session_takes_nothing_and_its_heart_is_gone() {
    let server = TestServer::start().await;
    let model = server.model().await;
    let session = model.split(':').next().unwrap().to_owned();
    let heartbeat = json!({"session_id": session, "type": "session_heartbeat"});
    server.ok("/session_heartbeat", heartbeat.clone()).await;
    let before = server.forward_backward(&model, 1).await;
    let finish = json!({"reason": {"type": "success"}, "detail": null});
    server
        .ok(&format!("/sessions/{session}/finish"), finish)
        .await;
    assert_eq!(
        server.post("/session_heartbeat", heartbeat).await.status,
        410
    );
    let answer = server.post("/optim_step", step(&model, 2)).await;
    assert_eq!(answer.status, 400);
    assert!(answer.detail().contains("finished"));
    server.loss(&before).await;
}

#[tokio::test]
async fn a_request_for_another_host_is_refused_whatever_it_asks_for() {
    let public = "https://train.example.org/tinker".to_owned();
    let server = TestServer::with(|settings| settings.public_url = Some(public)).await;
    let local = server.local();
    let ask = async |host: &str, path: &str| {
        let request = Request::get(path).header("x-api-key", KEY);
        let request = match host {
            "" => request,
            host => request.header("host", host),
        };
        local.send(request.body(Full::default()).unwrap()).await
    };
    for path in [
        "/api/v1/get_server_capabilities",
        "/api/v1/healthz",
        "/sessions",
        "/api/v1/nothing",
    ] {
        let answer = ask("evil.example:8000", path).await;
        assert_eq!(answer.status, 421, "{path}");
        let detail = answer.detail();
        for part in [
            "`Host`",
            "evil.example:8000",
            "`train.example.org`",
            "--public-url",
        ] {
            assert!(detail.contains(part), "{part} in {detail}");
        }
    }
    let path = "/api/v1/get_server_capabilities";
    for host in [
        "localhost:1",
        "127.0.0.1",
        "[::1]:8000",
        "train.example.org",
        "",
    ] {
        assert_eq!(ask(host, path).await.status, 200, "{host}");
    }
    // The target of a request may be a whole URL, and then counts as well.
    let answer = ask("localhost", "http://evil.example/api/v1/healthz").await;
    assert_eq!(answer.status, 421);
    // A real connection, where the host is an address that nobody called.
    let headers = [("host", "192.0.2.7")];
    let answer = server
        .try_send(Method::GET, path, &headers, "")
        .await
        .unwrap();
    assert_eq!(answer.status, 421);
}

#[tokio::test]
async fn what_a_body_would_take_is_known_before_it_is_decoded() {
    let server = TestServer::with(|settings| settings.memory = Some(200 << 20)).await;
    let model = server.model().await;
    let mut body = pass(&model, 1);
    body["forward_backward_input"]["extra"] = json!(vec![json!({}); 100_000]);
    let answer = server
        .owner(KEY)
        .call(Method::POST, "/forward_backward", &body)
        .await;
    assert_eq!(answer.status, 413);
    let detail = answer.detail();
    assert!(
        detail.contains("of memory") && detail.contains("--memory"),
        "{detail}"
    );
    // A pass of the usual kind is taken beside that.
    let id = server.forward_backward(&model, 1).await;
    server.loss(&id).await;
}

#[tokio::test]
async fn labels_tags_and_names_have_limits() {
    let server = TestServer::start().await;
    let many: serde_json::Map<_, _> = (0..257).map(|n| (n.to_string(), json!(""))).collect();
    let large = json!({"name": "x".repeat(66_000)});
    let session = json!({"tags": [], "sdk_version": "1"});
    for (member, value, status) in [
        ("user_metadata", json!(many), 400),
        ("user_metadata", large, 400),
        ("user_metadata", json!({"name": "x".repeat(140_000)}), 413),
        ("tags", json!(vec!["x"; 257]), 400),
        ("tags", json!(["x".repeat(66_000)]), 400),
        ("display_name", json!("x".repeat(1025)), 400),
        ("display_name", json!("x".repeat(1024)), 200),
    ] {
        let mut body = session.clone();
        body[member] = value;
        let answer = server
            .owner(KEY)
            .call(Method::POST, "/create_session", &body)
            .await;
        assert_eq!(answer.status, status, "{member}: {:?}", answer.body);
        if status == 400 {
            let detail = answer.detail();
            assert!(
                detail.contains(member) && detail.contains("at most"),
                "{detail}"
            );
        }
    }
    // A checkpoint's are its operation's, which is promised a result.
    let model = server.model().await;
    let save = json!({"model_id": model, "seq_id": 1, "path": "a", "user_metadata": many});
    let id = server.promise("/save_weights", save).await;
    let error = server.user_error(&id).await;
    assert!(error.contains("257 with"), "{error}");
    let create = json!({
        "session_id": server.session().await, "model_seq_id": 0, "base_model": "tiny",
        "lora_config": {"rank": 4}, "user_metadata": many,
    });
    let answer = server.post("/create_model", create).await;
    assert_eq!(answer.status, 400);
    assert!(answer.detail().contains("257 with"), "{}", answer.detail());
}

#[tokio::test]
async fn an_owner_has_so_many_open_sessions_and_models_and_others_have_theirs() {
    let server = TestServer::with(|settings| {
        (settings.open_sessions, settings.open_models) = (3, 2);
    })
    .await;
    let session = server.session().await;
    let last = server.session().await;
    let create = |number: u64| {
        json!({
            "session_id": session, "model_seq_id": number, "base_model": "tiny",
            "lora_config": {"rank": 4},
        })
    };
    server.promise("/create_model", create(0)).await;
    let second = server.promise("/create_model", create(1)).await;
    let refused = server.post("/create_model", create(2)).await;
    assert_eq!(refused.status, 400);
    assert!(refused.detail().contains("2 open models"));
    assert_eq!(server.promise("/create_model", create(1)).await, second);

    server.session().await;
    let new = json!({"tags": [], "sdk_version": "1"});
    let refused = server.post("/create_session", new.clone()).await;
    assert_eq!(refused.status, 400);
    assert!(refused.detail().contains("3 open sessions"));
    server.owner("tml-other").ok("/create_session", new).await;

    let unload = json!({"model_id": format!("{session}:train:0")});
    let unloaded = server.promise("/unload_model", unload).await;
    server.result(&unloaded).await;
    server.promise("/create_model", create(2)).await;
    let finish = json!({"reason": {"type": "success"}, "detail": null});
    server.ok(&format!("/sessions/{last}/finish"), finish).await;
    server.session().await;
    // They are the same ones after a restart.
    let server = server
        .restart(|settings| (settings.open_sessions, settings.open_models) = (3, 2))
        .await;
    let refused = server.post("/create_model", create(3)).await;
    assert!(refused.detail().contains("2 open models"));
}
