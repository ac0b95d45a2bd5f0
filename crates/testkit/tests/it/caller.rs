//! A client that does what it is told and nothing more.

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tinkrs_testkit::ScriptedServer;
use tinkrs_testkit::scripted::{API_KEY, BASE_MODEL};
use tinkrs_types::{Datum, LossFn, ModelId, SamplingSessionId};
use tinkrs_wire::op::forward_backward::ForwardBackwardRequest;
use tokio::net::TcpStream;

/// An answer that arrived whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// Sends one request on a connection of its own.
pub(crate) async fn send(
    server: &ScriptedServer,
    request: http::request::Builder,
    body: impl Into<Bytes>,
) -> Result<Answer, hyper::Error> {
    let address = server.url().replace("http://", "");
    let stream = TcpStream::connect(&address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let running = tokio::spawn(connection);
    let request = request.header("host", address);
    let request = if request.headers_ref().unwrap().contains_key("x-api-key") {
        request
    } else {
        request.header("x-api-key", API_KEY)
    };
    let request = request.body(Full::new(body.into())).unwrap();
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = body.collect().await?.to_bytes();
    running.abort();
    Ok(Answer {
        status: head.status,
        headers: head.headers,
        body,
    })
}

pub(crate) fn post_to(endpoint: &str) -> http::request::Builder {
    Request::post(format!("/api/v1/{endpoint}"))
}

/// Posts JSON; panics if the connection breaks.
pub(crate) async fn post(server: &ScriptedServer, endpoint: &str, body: Value) -> Answer {
    send(server, post_to(endpoint), body.to_string())
        .await
        .unwrap()
}

pub(crate) async fn get(server: &ScriptedServer, path: &str) -> Answer {
    let request = Request::get(format!("/api/v1{path}"));
    send(server, request, "").await.unwrap()
}

/// Starts a session and returns its id.
pub(crate) async fn session(server: &ScriptedServer) -> String {
    let body = json!({"tags": [], "user_metadata": {"team": "a"}, "sdk_version": "0.36.0"});
    let answer = post(server, "create_session", body).await.json();
    answer["session_id"].as_str().unwrap().to_owned()
}

/// Creates a model in a new session.
pub(crate) async fn model(server: &ScriptedServer) -> ModelId {
    let body = json!({"session_id": session(server).await, "model_seq_id": 0,
        "base_model": BASE_MODEL, "lora_config": {"rank": 8}});
    let promise = post(server, "create_model", body).await.json();
    let model = result(server, promise).await.json();
    model["model_id"].as_str().unwrap().into()
}

/// Creates a sampler in a new session.
pub(crate) async fn sampler(server: &ScriptedServer) -> SamplingSessionId {
    let body = json!({"session_id": session(server).await, "sampling_session_seq_id": 0,
        "base_model": BASE_MODEL});
    let answer = post(server, "create_sampling_session", body).await.json();
    answer["sampling_session_id"].as_str().unwrap().into()
}

/// Fetches a result as a message.
pub(crate) async fn result(server: &ScriptedServer, promise: Value) -> Answer {
    let body = json!({"request_id": promise["request_id"], "allow_metadata_only": true});
    let request = post_to("retrieve_future").header("accept", "application/x-protobuf");
    send(server, request, body.to_string()).await.unwrap()
}

pub(crate) fn pass(model: &ModelId, seq_id: i32) -> Bytes {
    let datum = Datum::supervised(vec![1, 2], [2, seq_id.into()], [0.0, 1.0]).unwrap();
    let request = ForwardBackwardRequest {
        model_id: model.clone(),
        seq_id,
        data: vec![datum],
        loss_fn: LossFn::CrossEntropy,
        forward_only: false,
    };
    request.encode().unwrap().into()
}

pub(crate) async fn submit_pass(server: &ScriptedServer, model: &ModelId, seq_id: i32) -> Answer {
    let request = post_to("forward_backward").header("content-type", "application/x-protobuf");
    send(server, request, pass(model, seq_id)).await.unwrap()
}

pub(crate) fn sample(sampler: &SamplingSessionId, seq_id: u64) -> Value {
    json!({"num_samples": 2, "prompt": {"chunks": [{"tokens": [5, 6], "type": "encoded_text"}]},
        "sampling_params": {"max_tokens": 3, "temperature": 1.0, "top_k": -1, "top_p": 1.0},
        "sampling_session_id": sampler, "seq_id": seq_id, "type": "sample"})
}
