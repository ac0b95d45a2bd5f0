//! Saving, loading, and sampling from what was saved.

use http::Method;
use serde_json::{Value, json};

use crate::caller::TestServer;

async fn train(server: &TestServer, model: &str, first: i64, steps: i64) -> Vec<f64> {
    let mut losses = Vec::new();
    for number in 0..steps {
        let pass = server.forward_backward(model, first + 2 * number).await;
        server.optim_step(model, first + 2 * number + 1).await;
        losses.push(server.loss(&pass).await);
    }
    losses
}

async fn save(server: &TestServer, model: &str, seq_id: i64, name: &str) -> Value {
    let body = json!({"model_id": model, "path": name, "seq_id": seq_id, "overwrite": false});
    let id = server.promise("/save_weights", body).await;
    server.result(&id).await
}

#[tokio::test]
async fn a_loaded_run_goes_on_as_if_it_had_never_stopped() {
    let server = TestServer::start().await;
    let model = server.model().await;
    train(&server, &model, 1, 2).await;
    let path = save(&server, &model, 5, "half").await["path"].clone();
    assert_eq!(path, format!("tinker://{model}/weights/half"));
    let uninterrupted = train(&server, &model, 6, 3).await;

    let resumed = server.model().await;
    let load = json!({"model_id": resumed, "seq_id": 1, "path": path, "optimizer": true});
    let id = server.promise("/load_weights", load).await;
    assert_eq!(server.result(&id).await["path"], path);
    assert_eq!(train(&server, &resumed, 2, 3).await, uninterrupted);

    let fresh = server.model().await;
    let load = json!({"model_id": fresh, "seq_id": 1, "path": path, "optimizer": false});
    server.promise("/load_weights", load).await;
    let restarted = train(&server, &fresh, 2, 3).await;
    assert_eq!(restarted[0], uninterrupted[0], "the weights are the same");
    assert_ne!(restarted, uninterrupted, "the optimizer is not");
}

#[tokio::test]
async fn what_the_hosted_service_does_not_allow_works_with_a_note() {
    let server = TestServer::start().await;
    let model = server.model().await;
    train(&server, &model, 1, 2).await;
    let path = save(&server, &model, 5, "half").await["path"].clone();
    let after = train(&server, &model, 6, 3).await;
    let load = |model: &str, seq_id: i64| json!({"model_id": model, "seq_id": seq_id, "path": path, "optimizer": true});

    let late = load(&model, 12);
    let answer = server.me().call(Method::POST, "/load_weights", &late).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    let note = answer.headers["x-deprecation-note"].to_str().unwrap();
    assert!(note.contains("not on the hosted service"), "{note}");
    assert_eq!(train(&server, &model, 13, 3).await, after);

    let session = server.session().await;
    let create = |rank: u32| {
        json!({"session_id": session, "model_seq_id": rank, "base_model": "tiny",
            "lora_config": {"rank": rank}})
    };
    for (rank, is_noted) in [(4, false), (6, true)] {
        let answer = server
            .me()
            .call(Method::POST, "/create_model", &create(rank))
            .await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        assert_eq!(answer.headers.contains_key("x-deprecation-note"), is_noted);
    }

    let first = load(&server.model().await, 1);
    let answer = server
        .me()
        .call(Method::POST, "/load_weights", &first)
        .await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    assert!(!answer.headers.contains_key("x-deprecation-note"));
}

#[tokio::test]
async fn an_id_without_its_kind_is_answered_with_those_that_are_valid() {
    let server = TestServer::start().await;
    let model = server.model().await;
    save(&server, &model, 1, "ck").await;
    let of_run = format!("/training_runs/{model}/checkpoints/ck");
    for (method, action) in [
        (Method::GET, ""),
        (Method::DELETE, ""),
        (Method::POST, "/publish"),
        (Method::DELETE, "/publish"),
        (Method::PUT, "/ttl"),
        (Method::GET, "/archive"),
        (Method::GET, "/external_weights_urls"),
    ] {
        let at = format!("{of_run}{action}");
        let answer = server.me().call(method.clone(), &at, &json!({})).await;
        let said = answer.detail();
        assert_eq!(answer.status, 400, "{method} {action}: {said}");
        for id in ["`weights/ck`", "`sampler_weights/ck`"] {
            assert!(said.contains(id), "{method} {action}: {said}");
        }
    }
}

#[tokio::test]
async fn a_model_is_created_from_a_checkpoint_in_one_request() {
    let server = TestServer::start().await;
    let model = server.model().await;
    train(&server, &model, 1, 2).await;
    let path = save(&server, &model, 5, "half").await["path"].clone();
    let uninterrupted = train(&server, &model, 6, 3).await;

    let session = server.session().await;
    let body = json!({
        "session_id": session, "model_seq_id": 0, "path": path, "optimizer": true,
        "user_metadata": {"why": "resume"},
    });
    let promise = server.ok("/load_weights", body.clone()).await;
    let resumed = format!("{session}:train:0");
    assert_eq!(promise["model_id"], json!(resumed));
    assert_eq!(server.ok("/load_weights", body.clone()).await, promise);
    let first = train(&server, &resumed, 1, 1).await;
    let server = server.restart(|_| {}).await;
    let rest = train(&server, &resumed, 3, 2).await;
    assert_eq!([first, rest].concat(), uninterrupted);

    let mut unknown = body;
    unknown["model_seq_id"] = json!(1);
    unknown["path"] = json!("tinker://s:train:0/weights/none");
    let answer = server.post("/load_weights", unknown).await;
    assert_eq!(answer.status, 404, "{}", answer.detail());
}

#[tokio::test]
async fn a_checkpoint_of_another_shape_is_refused_and_harms_nothing() {
    let server = TestServer::start().await;
    let model = server.model().await;
    train(&server, &model, 1, 1).await;
    let path = save(&server, &model, 3, "a").await["path"].clone();
    let session = server.session().await;
    for (number, lora) in [
        json!({"rank": 8, "seed": 1}),
        json!({"rank": 4, "seed": 1, "train_mlp": false}),
    ]
    .into_iter()
    .enumerate()
    {
        let body = json!({
            "session_id": session, "model_seq_id": number, "base_model": "tiny",
            "lora_config": lora,
        });
        let id = server.promise("/create_model", body).await;
        let other = server.result(&id).await["model_id"].clone();
        let other = other.as_str().unwrap();
        let expected = server.forward_backward(other, 1).await;
        let expected = server.loss(&expected).await;
        let load = json!({"model_id": other, "seq_id": 2, "path": path, "optimizer": true});
        let id = server.promise("/load_weights", load).await;
        let error = server.user_error(&id).await;
        assert!(error.contains("lora_config"), "{lora}: {error}");
        let after = server.forward_backward(other, 3).await;
        assert_eq!(server.loss(&after).await, expected);
    }
}

#[tokio::test]
async fn a_checkpoint_is_described_and_listed() {
    let server = TestServer::start().await;
    let model = server.model().await;
    let path = save(&server, &model, 1, "first").await["path"].clone();
    let info = server
        .ok("/weights_info", json!({"tinker_path": path}))
        .await;
    assert_eq!(info["base_model"], "tiny");
    assert_eq!(info["lora_rank"], 4);
    let list = format!("/training_runs/{model}/checkpoints");
    let list = server.send(Method::GET, &list, &[], "").await.json();
    assert_eq!(list["checkpoints"][0]["checkpoint_id"], "weights/first");
    assert!(list["checkpoints"][0]["size_bytes"].as_u64() > Some(0));
    let all = server
        .send(Method::GET, "/checkpoints?limit=1", &[], "")
        .await
        .json();
    assert_eq!(
        all["cursor"],
        json!({"offset": 0, "limit": 1, "total_count": 1})
    );
    let runs = server
        .send(Method::GET, "/training_runs", &[], "")
        .await
        .json();
    let run = &runs["training_runs"][0];
    assert_eq!(run["training_run_id"], model);
    assert_eq!(run["last_checkpoint"]["tinker_path"], path);
}

#[tokio::test]
async fn names_that_are_taken_or_lead_elsewhere_are_refused() {
    let server = TestServer::start().await;
    let model = server.model().await;
    save(&server, &model, 1, "a").await;
    let again = save(&server, &model, 2, "a").await;
    assert!(
        again["error"].as_str().unwrap().contains("already"),
        "{again}"
    );
    let escape = save(&server, &model, 3, "../../escape").await;
    assert!(
        escape["error"].as_str().unwrap().contains("path"),
        "{escape}"
    );
    let body = json!({"model_id": model, "path": "b", "seq_id": 4, "ttl_seconds": 5});
    let id = server.promise("/save_weights", body).await;
    assert!(server.user_error(&id).await.contains("ttl_seconds"));
    let load = json!({
        "model_id": model, "seq_id": 5, "path": format!("tinker://{model}/sampler_weights/a"),
    });
    let id = server.promise("/load_weights", load).await;
    let error = server.user_error(&id).await;
    assert!(
        error.contains("save_state"),
        "says what would be right: {error}"
    );
    save(&server, &model, 6, "c").await;
}

#[tokio::test]
async fn saved_weights_are_sampled_whatever_becomes_of_the_model() {
    let server = TestServer::start().await;
    let model = server.model().await;
    train(&server, &model, 1, 2).await;
    let body = json!({"model_id": model, "seq_id": 5, "sampling_session_seq_id": 0});
    let id = server.promise("/save_weights_for_sampler", body).await;
    let own = server.result(&id).await;
    assert!(own["path"].is_null());
    let body = json!({"model_id": model, "seq_id": 6, "path": "step-2"});
    let id = server.promise("/save_weights_for_sampler", body).await;
    let named = server.result(&id).await;
    assert!(named["sampling_session_id"].is_null());
    let session = model.split(':').next().unwrap();
    let body = json!({
        "session_id": session, "sampling_session_seq_id": 1, "model_path": named["path"],
    });
    let opened = server.ok("/create_sampling_session", body).await;

    let score = async |sampler: &Value, seq_id: u64| {
        let body = json!({
            "sampling_session_id": sampler, "seq_id": seq_id,
            "prompt": {"chunks": [{"tokens": [1, 5, 9, 2]}]}, "prompt_logprobs": true,
            "sampling_params": {"max_tokens": 1},
        });
        let id = server.promise("/asample", body).await;
        server.result(&id).await["prompt_logprobs"].clone()
    };
    let before = score(&own["sampling_session_id"], 0).await;
    assert!(before[0].is_null() && before[1].is_number(), "{before}");
    train(&server, &model, 7, 2).await;
    assert_eq!(score(&own["sampling_session_id"], 1).await, before);
    assert_eq!(score(&opened["sampling_session_id"], 0).await, before);

    let sampler = opened["sampling_session_id"].as_str().unwrap();
    let info = format!("/samplers/{sampler}");
    let info = server.send(Method::GET, &info, &[], "").await.json();
    assert_eq!(info["base_model"], "tiny");
    assert_eq!(info["model_path"], named["path"]);
}
