//! A valid request for every endpoint that takes a body.

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};
use tinkrs_types::{Datum, LossFn};
use tinkrs_wire::op::forward_backward::ForwardBackwardRequest;
use tinkrs_wire::route;

use crate::caller::{KEY, TestServer, pass, step};
use crate::imports;
use crate::losses::{custom_pass, upload};

#[derive(Clone, Debug)]
pub(super) struct Valid {
    /// Its method and the name of its path.
    pub(super) endpoint: &'static str,
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) content_type: String,
    pub(super) encoding: &'static str,
    pub(super) body: Bytes,
    /// What the body says, if it is JSON.
    pub(super) json: Option<Value>,
}

impl Valid {
    pub(super) fn json(
        endpoint: &'static str,
        method: Method,
        path: impl Into<String>,
        json: Value,
    ) -> Self {
        Self {
            endpoint,
            method,
            path: path.into(),
            content_type: "application/json".to_owned(),
            encoding: "identity",
            body: json.to_string().into(),
            json: Some(json),
        }
    }

    fn message(body: Vec<u8>, encoding: &'static str) -> Self {
        Self {
            content_type: "application/x-protobuf".to_owned(),
            encoding,
            body: body.into(),
            json: None,
            ..Self::json(
                "POST FORWARD_BACKWARD",
                Method::POST,
                route::FORWARD_BACKWARD,
                Value::Null,
            )
        }
    }

    pub(super) fn request(&self) -> Request<Full<Bytes>> {
        Request::builder()
            .method(self.method.clone())
            .uri(&self.path)
            .header("host", "localhost")
            .header("x-api-key", KEY)
            .header("content-type", &self.content_type)
            .header("content-encoding", self.encoding)
            .body(Full::new(self.body.clone()))
            .expect("the path is an address")
    }
}

macro_rules! valid {
    ($method:ident $route:ident, $path:expr, $body:expr) => {
        Valid::json(
            concat!(stringify!($method), " ", stringify!($route)),
            Method::$method,
            $path,
            $body,
        )
    };
    ($method:ident $route:ident, $body:expr) => {
        valid!($method $route, route::$route, $body)
    };
}

/// Makes what the requests are about, and then the requests.
///
/// Operations have no numbers, as those of older clients: each takes the next one, so that what is
/// valid in its own way also runs.
pub(super) async fn valid_requests(server: &TestServer) -> Vec<Valid> {
    let (model, unloaded) = (server.model().await, server.model().await);
    let (session, finished) = (server.session().await, server.session().await);
    let weights = server.save("/save_weights", &model, 1, "a").await;
    let sampler_weights = server
        .save("/save_weights_for_sampler", &model, 2, "a")
        .await;
    let body = json!({"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny"});
    let sampler = server.ok("/create_sampling_session", body.clone()).await;
    let sampler = &sampler["sampling_session_id"];
    let done = server.forward_backward(&model, 3).await;
    server.loss(&done).await;

    let session_of_model = model.split(':').next().unwrap();
    let loss = server
        .promise("/create_custom_loss", upload(session_of_model))
        .await;
    let loss = server.result(&loss).await;
    let unnumbered = |mut body: Value| {
        body.as_object_mut().unwrap().remove("seq_id");
        body
    };
    let pass = unnumbered(pass(&model, 0));
    let mut forward = pass.clone();
    forward["forward_input"] = forward["forward_backward_input"].take();
    forward
        .as_object_mut()
        .unwrap()
        .remove("forward_backward_input");
    let message = ForwardBackwardRequest {
        model_id: model.as_str().into(),
        seq_id: 0,
        data: vec![
            Datum::from_prompt_completion(&[1, 5], &[9, 2]).unwrap(),
            Datum::supervised(vec![3, 4], [5, 9], [0.5, 1.0]).unwrap(),
        ],
        loss_fn: LossFn::CrossEntropy,
        forward_only: false,
    };
    let message = message.encode().unwrap();
    let zipped = tinkrs_wire::compress::compress(&message);
    let checkpoint = |last: &str| {
        let id = format!("/api/v1/training_runs/{model}/checkpoints/weights/a");
        format!("{id}/{last}")
    };
    let in_session = |last: &str| format!("/api/v1/sessions/{session}/{last}");
    let save =
        json!({"model_id": model, "path": "b", "overwrite": true, "user_metadata": {"a": "b"}});
    let target = json!({
        "type": "sampling_session", "sampling_session_id": sampler, "cloned_sampler_id": 0,
    });
    let sample = json!({
        "num_samples": 2, "prompt": {"chunks": [{"tokens": [1, 2], "type": "encoded_text"}]},
        "sampling_params": {"max_tokens": 3, "temperature": 0.7, "top_k": 5, "top_p": 0.9, "seed": 1,
            "stop": [3]},
        "sampling_session_id": sampler, "seq_id": 0, "prompt_logprobs": true,
        "topk_prompt_logprobs": 2, "topk_sample_logprobs": 1, "type": "sample",
    });
    let mut from_checkpoint = sample.clone();
    from_checkpoint["model_path"] = json!(sampler_weights);
    for name in ["sampling_session_id", "seq_id"] {
        from_checkpoint.as_object_mut().unwrap().remove(name);
    }
    let version = json!({"sdk_version": "0.36.0"});
    vec![
        valid!(POST CLIENT_CONFIG, version.clone()),
        valid!(POST DYNAMIC_CONFIG, version),
        valid!(POST AUTH_TOKEN, json!({})),
        valid!(POST TELEMETRY, json!({
            "events": [{"event": "SESSION_START", "event_id": "x", "event_data": {"a": [1]}}],
            "platform": "Linux", "sdk_version": "1", "session_id": session,
        })),
        valid!(POST CREATE_SESSION, json!({
            "tags": ["a"], "user_metadata": {"a": "b"}, "sdk_version": "0.36.0",
            "project_id": "local", "display_name": "x", "type": "create_session",
        })),
        valid!(POST SESSION_HEARTBEAT, json!({"session_id": session})),
        valid!(POST FINISH_SESSION, format!("/api/v1/sessions/{finished}/finish"), json!({
            "reason": {"type": "success"}, "detail": null,
        })),
        valid!(POST CREATE_MODEL, json!({
            "session_id": session, "model_seq_id": 0, "base_model": "tiny",
            "user_metadata": {"a": "b"},
            "lora_config": {"rank": 4, "seed": 1, "train_unembed": true, "train_mlp": false,
                "train_attn": true},
            "optimizer_config": {"type": "adamw"}, "type": "create_model",
        })),
        valid!(POST CREATE_CUSTOM_LOSS, upload(&session)),
        valid!(POST FORWARD_BACKWARD, unnumbered(custom_pass(&model, 0, &loss["loss_id"]))),
        valid!(POST GET_INFO, json!({"model_id": model})),
        valid!(POST UNLOAD_MODEL, json!({"model_id": unloaded})),
        valid!(POST FORWARD_BACKWARD, pass),
        Valid::message(message.clone(), "identity"),
        Valid::message(message, "identity"),
        Valid::message(zipped, "zstd"),
        valid!(POST FORWARD, forward),
        valid!(POST OPTIM_STEP, {
            let mut body = unnumbered(step(&model, 0));
            body["adam_params"] = json!({"learning_rate": 1e-4, "beta1": 0.9, "beta2": 0.95,
                "eps": 1e-12, "weight_decay": 0.0, "grad_clip_norm": 1.0});
            body
        }),
        valid!(POST SAVE_WEIGHTS, save),
        valid!(POST SAVE_WEIGHTS_FOR_SAMPLER, json!({
            "model_id": model, "path": "b", "ttl_seconds": 3600,
        })),
        valid!(POST SAVE_WEIGHTS_EXTERNAL, json!({"model_id": model, "path": "b"})),
        valid!(POST LOAD_WEIGHTS, json!({
            "session_id": session, "model_seq_id": 1, "path": weights, "optimizer": true,
        })),
        valid!(POST LOAD_WEIGHTS, json!({"model_id": model, "path": weights, "optimizer": true})),
        valid!(POST WEIGHTS_INFO, json!({"tinker_path": weights})),
        valid!(POST CREATE_SAMPLING_SESSION, body),
        valid!(POST JOIN_SAMPLING_SESSION, json!({"sampling_session_id": sampler})),
        valid!(POST ASAMPLE, sample),
        valid!(POST ASAMPLE, from_checkpoint),
        valid!(POST RETRIEVE_FUTURE, json!({"request_id": done, "allow_metadata_only": true})),
        valid!(POST RETRIEVE_FUTURES, json!({
            "target": target, "prev_cursor": 0, "retrieved_request_ids": ["x"], "timeout": 0.0,
        })),
        valid!(POST CANCEL_FUTURE, json!({"request_id": "x"})),
        valid!(POST CHECKPOINT_PUBLISH, checkpoint("publish"), Value::Null),
        valid!(PUT CHECKPOINT_TTL, checkpoint("ttl"), json!({"ttl_seconds": 7200})),
        valid!(POST COPY_WEIGHTS, json!({
            "source_path": weights, "destination_project_id": "local", "ttl_seconds": 3600,
        })),
        Valid {
            content_type: "application/x-tar".to_owned(),
            body: imports::adapter(&imports::settings()).into(),
            json: None,
            ..valid!(POST IMPORT_WEIGHTS,
                format!("{}?base_model=tiny&name=x", route::IMPORT_WEIGHTS), Value::Null)
        },
        valid!(POST SEARCH_SESSIONS, json!({
            "session_id": session, "project_ids": ["local"], "user_metadata": {"a": "b"},
            "display_name": "x y", "owner": {"type": "user", "owner_urns": ["x"]},
            "statuses": [{"type": "active"}, {"type": "client_finished", "reasons": ["success"]}],
            "limit": 3, "cursor": {"last_created_at": "2024-01-01T00:00:00Z", "last_session_id": "x"},
        })),
        valid!(PUT SESSION_PROJECT, in_session("project"), json!({"project_id": "local"})),
    ]
}
