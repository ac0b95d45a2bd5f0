//! A valid request for every endpoint that takes a body.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};
use tinkrs_types::{Datum, LossFn};
use tinkrs_wire::endpoint::{self, Endpoint};
use tinkrs_wire::op::forward_backward::ForwardBackwardRequest;

use crate::caller::{KEY, TestServer, pass, step};
use crate::imports;
use crate::losses::{custom_pass, upload};

#[derive(Clone, Debug)]
pub(super) struct Valid {
    pub(super) endpoint: &'static Endpoint,
    pub(super) path: String,
    pub(super) content_type: String,
    pub(super) encoding: &'static str,
    pub(super) body: Bytes,
    /// What the body says, if it is JSON.
    pub(super) json: Option<Value>,
}

impl Valid {
    /// A request with a JSON body, at a path that holds no ids.
    pub(super) fn json(endpoint: &'static Endpoint, json: Value) -> Self {
        Self::at(endpoint, endpoint.path.to_owned(), json)
    }

    fn at(endpoint: &'static Endpoint, path: String, json: Value) -> Self {
        Self {
            endpoint,
            path,
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
            ..Self::json(&endpoint::FORWARD_BACKWARD, Value::Null)
        }
    }

    pub(super) fn request(&self) -> Request<Full<Bytes>> {
        Request::builder()
            .method(self.endpoint.method.clone())
            .uri(&self.path)
            .header("host", "localhost")
            .header("x-api-key", KEY)
            .header("content-type", &self.content_type)
            .header("content-encoding", self.encoding)
            .body(Full::new(self.body.clone()))
            .expect("the path is an address")
    }
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
        Valid::json(&endpoint::CREATE_LOGIN_LINK, json!({})),
        Valid::at(
            &endpoint::LOG_RUN_METRICS,
            endpoint::LOG_RUN_METRICS.path.replace("{run_id}", &model),
            json!({"step": 3, "metrics": {"reward": 0.5, "kl": -1e-3}}),
        ),
        Valid::json(&endpoint::START_DEMO, json!({})),
        Valid::at(
            &endpoint::SHARE_RUN,
            endpoint::SHARE_RUN.path.replace("{run_id}", &model),
            json!({"hours": 1}),
        ),
        Valid {
            content_type: "application/x-www-form-urlencoded".to_owned(),
            body: "key=tml-test&next=%2Fserver".into(),
            json: None,
            ..Valid::json(&endpoint::LOGIN, Value::Null)
        },
        Valid {
            body: Bytes::new(),
            json: None,
            ..Valid::json(&endpoint::LOGOUT, Value::Null)
        },
        Valid::json(&endpoint::CLIENT_CONFIG, version.clone()),
        Valid::json(&endpoint::CLIENT_DYNAMIC_CONFIG, version),
        Valid::json(&endpoint::AUTH_TOKEN, json!({})),
        Valid::json(
            &endpoint::TELEMETRY,
            json!({
                "events": [{"event": "SESSION_START", "event_id": "x", "event_data": {"a": [1]}}],
                "platform": "Linux", "sdk_version": "1", "session_id": session,
            }),
        ),
        Valid::json(
            &endpoint::CREATE_SESSION,
            json!({
                "tags": ["a"], "user_metadata": {"a": "b"}, "sdk_version": "0.36.0",
                "project_id": "local", "display_name": "x", "type": "create_session",
            }),
        ),
        Valid::json(&endpoint::SESSION_HEARTBEAT, json!({"session_id": session})),
        Valid::at(
            &endpoint::FINISH_SESSION,
            format!("/api/v1/sessions/{finished}/finish"),
            json!({
                "reason": {"type": "success"}, "detail": null,
            }),
        ),
        Valid::json(
            &endpoint::CREATE_MODEL,
            json!({
                "session_id": session, "model_seq_id": 0, "base_model": "tiny",
                "user_metadata": {"a": "b"},
                "lora_config": {"rank": 4, "seed": 1, "train_unembed": true, "train_mlp": false,
                    "train_attn": true},
                "optimizer_config": {"type": "adamw"}, "type": "create_model",
            }),
        ),
        Valid::json(&endpoint::CREATE_CUSTOM_LOSS, upload(&session)),
        Valid::json(
            &endpoint::FORWARD_BACKWARD,
            unnumbered(custom_pass(&model, 0, &loss["loss_id"])),
        ),
        Valid::json(&endpoint::GET_INFO, json!({"model_id": model})),
        Valid::json(&endpoint::UNLOAD_MODEL, json!({"model_id": unloaded})),
        Valid::json(&endpoint::FORWARD_BACKWARD, pass),
        Valid::message(message.clone(), "identity"),
        Valid::message(message, "identity"),
        Valid::message(zipped, "zstd"),
        Valid::json(&endpoint::FORWARD, forward),
        Valid::json(&endpoint::OPTIM_STEP, {
            let mut body = unnumbered(step(&model, 0));
            body["adam_params"] = json!({"learning_rate": 1e-4, "beta1": 0.9, "beta2": 0.95,
                "eps": 1e-12, "weight_decay": 0.0, "grad_clip_norm": 1.0});
            body
        }),
        Valid::json(&endpoint::SAVE_WEIGHTS, save),
        Valid::json(
            &endpoint::SAVE_WEIGHTS_FOR_SAMPLER,
            json!({
                "model_id": model, "path": "b", "ttl_seconds": 3600,
            }),
        ),
        Valid::json(
            &endpoint::SAVE_WEIGHTS_EXTERNAL,
            json!({"model_id": model, "path": "b"}),
        ),
        Valid::json(
            &endpoint::LOAD_WEIGHTS,
            json!({
                "session_id": session, "model_seq_id": 1, "path": weights, "optimizer": true,
            }),
        ),
        Valid::json(
            &endpoint::LOAD_WEIGHTS,
            json!({"model_id": model, "path": weights, "optimizer": true}),
        ),
        Valid::json(&endpoint::WEIGHTS_INFO, json!({"tinker_path": weights})),
        Valid::json(&endpoint::CREATE_SAMPLING_SESSION, body),
        Valid::json(
            &endpoint::JOIN_SAMPLING_SESSION,
            json!({"sampling_session_id": sampler}),
        ),
        Valid::json(&endpoint::ASAMPLE, sample),
        Valid::json(&endpoint::ASAMPLE, from_checkpoint),
        Valid::json(
            &endpoint::RETRIEVE_FUTURE,
            json!({"request_id": done, "allow_metadata_only": true}),
        ),
        Valid::json(
            &endpoint::RETRIEVE_FUTURES,
            json!({
                "target": target, "prev_cursor": 0, "retrieved_request_ids": ["x"], "timeout": 0.0,
            }),
        ),
        Valid::json(&endpoint::CANCEL_FUTURE, json!({"request_id": "x"})),
        Valid::at(
            &endpoint::PUBLISH_CHECKPOINT,
            checkpoint("publish"),
            Value::Null,
        ),
        Valid::at(
            &endpoint::SET_CHECKPOINT_TTL,
            checkpoint("ttl"),
            json!({"ttl_seconds": 7200}),
        ),
        Valid::json(
            &endpoint::COPY_WEIGHTS,
            json!({
                "source_path": weights, "destination_project_id": "local", "ttl_seconds": 3600,
            }),
        ),
        Valid {
            content_type: "application/x-tar".to_owned(),
            body: imports::adapter(&imports::settings()).into(),
            json: None,
            ..Valid::at(
                &endpoint::IMPORT_WEIGHTS,
                format!("{}?base_model=tiny&name=x", endpoint::IMPORT_WEIGHTS.path),
                Value::Null,
            )
        },
        Valid::json(
            &endpoint::SEARCH_SESSIONS,
            json!({
                "session_id": session, "project_ids": ["local"], "user_metadata": {"a": "b"},
                "display_name": "x y", "owner": {"type": "user", "owner_urns": ["x"]},
                "statuses": [{"type": "active"}, {"type": "client_finished", "reasons": ["success"]}],
                "limit": 3, "cursor": {"last_created_at": "2024-01-01T00:00:00Z", "last_session_id": "x"},
            }),
        ),
        Valid::json(
            &endpoint::OPENAI_COMPLETIONS,
            json!({
                "model": sampler_weights, "prompt": ["a b", "c"], "max_tokens": 3, "n": 2, "best_of": 2,
                "echo": true, "logprobs": 2, "stop": ["x", "yz"], "seed": 1, "temperature": 0.5,
                "top_p": 0.9, "top_k": 5, "min_p": 0.1, "presence_penalty": 0.1, "frequency_penalty": 0.1,
                "repetition_penalty": 1.1, "logit_bias": {"5": 1.5}, "ignore_eos": true, "min_tokens": 1,
                "stop_token_ids": [7], "return_token_ids": true, "user": "me", "stream": true,
                "stream_options": {"include_usage": true},
            }),
        ),
        Valid::json(
            &endpoint::OPENAI_COMPLETIONS,
            json!({"model": "tiny", "prompt": [[5, 6], [7]], "max_tokens": 3, "best_of": 3, "logprobs": 1}),
        ),
        Valid::json(
            &endpoint::OPENAI_CHAT_COMPLETIONS,
            json!({
                "model": "tiny", "max_completion_tokens": 5, "logprobs": true, "top_logprobs": 2, "n": 2,
                "messages": [
                    {"role": "system", "content": "s"},
                    {"role": "user", "content": [{"type": "text", "text": "hi"}], "name": "x"},
                    {"role": "assistant", "content": "ho"}, {"role": "user", "content": "hu"},
                ],
                "tool_choice": "none", "stop": "x", "stream": false, "parallel_tool_calls": false,
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
                "response_format": {"type": "text"}, "metadata": {"a": "b"}, "store": true,
            }),
        ),
        Valid::json(
            &endpoint::OPENAI_RESPONSES,
            json!({
                "model": "tiny", "instructions": "be", "max_output_tokens": 3, "temperature": 0.5, "stream": true,
                "input": [
                    {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
                    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
                    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
                    {"role": "user", "content": "c"},
                ],
                "reasoning": {"summary": "auto"}, "text": {"format": {"type": "text"}}, "store": false,
                "truncation": "disabled", "metadata": {"a": "b"}, "tool_choice": "none",
            }),
        ),
        Valid::json(
            &endpoint::ANTHROPIC_MESSAGES,
            json!({
                "model": "tiny", "max_tokens": 5, "stop_sequences": ["x"], "stream": true, "temperature": 0.5,
                "top_k": 5, "top_p": 0.5, "metadata": {"user_id": "me"}, "system": [{"type": "text", "text": "s"}],
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
                    {"role": "assistant", "content": [{"type": "text", "text": "ho"}]},
                    {"role": "user", "content": "hu"},
                ],
                "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
                "tool_choice": {"type": "none"}, "thinking": {"type": "adaptive"},
            }),
        ),
        Valid::json(
            &endpoint::ANTHROPIC_COUNT_TOKENS,
            json!({"model": sampler_weights, "messages": [{"role": "user", "content": "x"}], "system": "s"}),
        ),
        Valid::at(
            &endpoint::ASSIGN_SESSION_PROJECT,
            in_session("project"),
            json!({"project_id": "local"}),
        ),
    ]
}
