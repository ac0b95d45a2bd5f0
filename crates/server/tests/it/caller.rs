//! A server for one test, and a client that sends exactly what it is told to.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::service::Service;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use tinkrs_backend::Backend;
use tinkrs_engine::weights::{Dtype, RandomWeights, WeightSource};
use tinkrs_engine::{CpuBackend, Model, ModelConfig, Precision, Threads};
use tinkrs_server::{BaseModel, LocalServer, Server, Settings};
use tinkrs_testkit::FakeBackend;
use tinkrs_wire::endpoint::{Dialect, PREFIX};
use tokio::net::TcpStream;

use crate::way::Way;

/// A server that stops when it is dropped.
pub(crate) struct TestServer {
    server: LocalServer,
    base: BaseModel,
    data: Arc<tempfile::TempDir>,
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {:?}", self.body))
    }

    /// The text of a refusal.
    pub(crate) fn detail(&self) -> String {
        let json = self.json();
        let detail = json["detail"]
            .as_str()
            .or(json["error"]["message"].as_str());
        detail.expect("a detail").to_owned()
    }
}

impl TestServer {
    /// Starts a server whose model is [`FakeBackend`].
    pub(crate) async fn start() -> Self {
        Self::with(|_| {}).await
    }

    /// Starts a server with settings of its own.
    pub(crate) async fn with(change: impl FnOnce(&mut Settings)) -> Self {
        Self::of(fake(), Arc::new(tempfile::tempdir().unwrap()), change).await
    }

    /// Starts a server with a backend of its own.
    pub(crate) async fn of_backend(backend: impl Backend + 'static) -> Self {
        let data = Arc::new(tempfile::tempdir().unwrap());
        Self::of(base(backend), data, |_| {}).await
    }

    /// Starts a server with a real model, of random weights.
    pub(crate) async fn real(change: impl FnOnce(&mut Settings)) -> Self {
        let data = Arc::new(tempfile::tempdir().unwrap());
        Self::of(base(tiny_llama()), data, change).await
    }

    /// Starts a server with a model of its own, on a data folder that may have been used before.
    pub(crate) async fn of(
        base: BaseModel,
        data: Arc<tempfile::TempDir>,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let mut settings = Settings::new(data.path());
        let admins = data.path().join("admin-keys");
        std::fs::write(&admins, ADMIN_KEY).unwrap();
        settings.admin_key_file = Some(admins);
        change(&mut settings);
        let server = LocalServer::start(vec![base.clone()], settings).await;
        let server = server.unwrap();
        Self { server, base, data }
    }

    /// Tells the server to stop, waits until it has, and returns its data folder.
    pub(crate) async fn stop(self) -> Arc<tempfile::TempDir> {
        self.server.stop().await.unwrap();
        self.data
    }

    /// Stops the server and starts another one on its data folder.
    pub(crate) async fn restart(self, change: impl FnOnce(&mut Settings)) -> Self {
        let base = self.base.clone();
        let data = self.stop().await;
        Self::of(base, data, change).await
    }

    /// Sends a request with a key.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        let path = whole_path(path);
        let answer = try_send(self.address(), method, &path, headers, body).await;
        answer.unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Sends a request to any path. It may get no answer.
    pub(crate) async fn try_send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Answer, hyper::Error> {
        try_send(self.address(), method, path, headers, body).await
    }

    /// Follows a link of this server, without a key.
    pub(crate) async fn follow(&self, link: &str, headers: &[(&str, &str)]) -> Answer {
        let path = link.strip_prefix(&self.url()).expect("a link of ours");
        let headers = [&[("x-api-key", "")], headers].concat();
        let answer = self.try_send(Method::GET, path, &headers, "").await;
        answer.unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Where the server is.
    pub(crate) fn url(&self) -> String {
        self.server.url().to_owned()
    }

    /// The server itself, as the process that contains it has it.
    pub(crate) fn server(&self) -> &Server {
        self.server.server()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// The data folder.
    pub(crate) fn data(&self) -> &std::path::Path {
        self.data.path()
    }

    /// Calls the server without a network.
    pub(crate) fn local(&self) -> Local {
        Local {
            router: TowerToHyperService::new(tinkrs_server::router(self.server().clone())),
        }
    }

    /// Acts as the owner of another key.
    pub(crate) fn owner<'a>(&'a self, key: &'a str) -> Owner<'a> {
        Owner { server: self, key }
    }

    /// As the owner of the usual key.
    pub(crate) fn me(&self) -> Owner<'_> {
        self.owner(KEY)
    }

    /// Gets JSON that must be answered by 200.
    pub(crate) async fn get(&self, path: &str) -> Value {
        self.me().get(path).await
    }

    /// Saves weights under a name, and returns their path.
    pub(crate) async fn save(
        &self,
        operation: &str,
        model: &str,
        seq_id: i64,
        name: &str,
    ) -> String {
        let body = json!({"model_id": model, "path": name, "seq_id": seq_id});
        let id = self.promise(operation, body).await;
        let result = self.result(&id).await;
        let path = result["path"].as_str();
        path.unwrap_or_else(|| panic!("no path: {result}"))
            .to_owned()
    }

    /// Posts JSON.
    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        let headers = [("content-type", "application/json")];
        self.send(Method::POST, path, &headers, body.to_string())
            .await
    }

    /// Posts JSON that must be answered by 200.
    pub(crate) async fn ok(&self, path: &str, body: Value) -> Value {
        let answer = self.post(path, body).await;
        assert_eq!(answer.status, 200, "{path}: {:?}", answer.body);
        answer.json()
    }

    /// Posts a request that is promised a result, and returns where that is.
    pub(crate) async fn promise(&self, path: &str, body: Value) -> String {
        let promise = self.ok(path, body).await;
        promise["request_id"].as_str().expect("an id").to_owned()
    }

    /// Waits for a result as JSON.
    pub(crate) async fn result(&self, request_id: &str) -> Value {
        let answer = self.poll(request_id, "application/json").await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        answer.json()
    }

    /// Polls until there is something else than "not yet".
    pub(crate) async fn poll(&self, request_id: &str, accept: &str) -> Answer {
        let body = json!({"request_id": request_id}).to_string();
        loop {
            let headers = [("content-type", "application/json"), ("accept", accept)];
            let answer = self
                .send(Method::POST, "/retrieve_future", &headers, body.clone())
                .await;
            if answer.status != 408 {
                return answer;
            }
            assert_eq!(answer.json()["type"], "try_again");
        }
    }

    pub(crate) async fn session(&self) -> String {
        let body = json!({"tags": [], "sdk_version": "0.36.0"});
        let session = self.ok("/create_session", body).await;
        session["session_id"].as_str().expect("an id").to_owned()
    }

    /// Creates a model in a session of its own.
    pub(crate) async fn model(&self) -> String {
        let session = self.session().await;
        let body = json!({
            "session_id": session, "model_seq_id": 0, "base_model": "tiny",
            "lora_config": {"rank": 4, "seed": 1},
        });
        let id = self.promise("/create_model", body).await;
        let result = self.result(&id).await;
        result["model_id"].as_str().expect("an id").to_owned()
    }

    /// Queues a pass over a fixed datum, and returns where its result is.
    pub(crate) async fn forward_backward(&self, model: &str, seq_id: i64) -> String {
        self.promise("/forward_backward", pass(model, seq_id)).await
    }

    /// Queues a pass that is a file on the server, as its result is.
    pub(crate) async fn large_pass(&self, model: &str, seq_id: i64) -> String {
        self.promise("/forward_backward", large_pass(model, seq_id))
            .await
    }

    pub(crate) async fn optim_step(&self, model: &str, seq_id: i64) -> String {
        self.promise("/optim_step", step(model, seq_id)).await
    }

    /// Waits for the loss of a pass.
    pub(crate) async fn loss(&self, request_id: &str) -> f64 {
        let result = self.result(request_id).await;
        let loss = result["metrics"]["loss:sum"].as_f64();
        loss.unwrap_or_else(|| panic!("no loss: {result}"))
    }

    /// Waits for a failure that is the caller's, and returns its text.
    pub(crate) async fn user_error(&self, request_id: &str) -> String {
        let result = self.result(request_id).await;
        assert_eq!(result["category"], "user", "{result}");
        result["error"].as_str().expect("a message").to_owned()
    }
}

/// Returns the path of an endpoint; those of the Tinker API are meant without their prefix.
fn whole_path(path: &str) -> String {
    match Dialect::of_path(path) {
        Dialect::Tinker => format!("{PREFIX}{path}"),
        Dialect::OpenAi | Dialect::Anthropic => path.to_owned(),
    }
}

/// Writes an error with all its causes.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", causes(cause)),
        None => error.to_string(),
    }
}

/// The base model of most tests.
pub(crate) fn fake() -> BaseModel {
    base(FakeBackend::new())
}

/// A base model that is called `tiny`.
pub(crate) fn base(backend: impl Backend + 'static) -> BaseModel {
    BaseModel::new("tiny", backend)
}

/// A real model of random weights.
pub(crate) fn tiny_llama() -> CpuBackend {
    let weights = RandomWeights::new(ModelConfig::tiny_llama(), 1, Dtype::F32).unwrap();
    load(&weights)
}

/// A real model.
pub(crate) fn load(weights: &dyn WeightSource) -> CpuBackend {
    let threads = Threads::new(1).unwrap();
    CpuBackend::new(Model::load(weights, Precision::Stored, &threads).unwrap())
}

/// The key that tests use unless they say otherwise.
pub(crate) const KEY: &str = "tml-test";
/// The key that may change faults.
pub(crate) const ADMIN_KEY: &str = "tml-admin";

/// A way to a server that needs no connection, for tests of many requests.
#[derive(Clone)]
pub(crate) struct Local {
    router: TowerToHyperService<axum::Router>,
}

impl Way for Local {
    async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        let response = self.router.call(request).await.expect("routers never fail");
        let (parts, body) = response.into_parts();
        Answer {
            status: parts.status,
            headers: parts.headers,
            body: body.collect().await.unwrap().to_bytes(),
        }
    }
}

/// Whoever has a key.
#[derive(Clone, Copy)]
pub(crate) struct Owner<'a> {
    server: &'a TestServer,
    key: &'a str,
}

impl Owner<'_> {
    /// Sends a request, with a body if that is not null.
    pub(crate) async fn call(&self, method: Method, path: &str, body: &Value) -> Answer {
        let headers = [
            ("x-api-key", self.key),
            ("content-type", "application/json"),
        ];
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        self.server.send(method, path, &headers, body).await
    }

    /// Gets JSON that must be answered by 200.
    pub(crate) async fn get(&self, path: &str) -> Value {
        let answer = self.call(Method::GET, path, &Value::Null).await;
        assert_eq!(answer.status, 200, "{path}: {:?}", answer.body);
        answer.json()
    }

    /// Posts JSON that must be answered by 200.
    pub(crate) async fn ok(&self, path: &str, body: Value) -> Value {
        let answer = self.call(Method::POST, path, &body).await;
        assert_eq!(answer.status, 200, "{path}: {:?}", answer.body);
        answer.json()
    }

    /// Waits for the result of a request that is promised one.
    pub(crate) async fn result(&self, path: &str, body: Value) -> Value {
        let promise = self.ok(path, body).await;
        let poll = json!({"request_id": promise["request_id"]});
        loop {
            let answer = self.call(Method::POST, "/retrieve_future", &poll).await;
            if answer.status != 408 {
                assert_eq!(answer.status, 200, "{path}: {:?}", answer.body);
                return answer.json();
            }
        }
    }
}

/// The last part of a checkpoint's path in the API: its kind and name.
pub(crate) fn address(path: &str) -> String {
    let rest = path.strip_prefix("tinker://").expect("a path");
    let (run, id) = rest.split_once('/').expect("a path");
    format!("/training_runs/{run}/checkpoints/{id}")
}

/// Sends a request on a connection of its own.
pub(crate) async fn try_send(
    address: SocketAddr,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Result<Answer, hyper::Error> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", address.to_string());
    if !headers.iter().any(|(name, _)| *name == "x-api-key") {
        request = request.header("x-api-key", KEY);
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(body.into())).unwrap();
    let response = sender.send_request(request).await?;
    let (parts, body) = response.into_parts();
    Ok(Answer {
        status: parts.status,
        headers: parts.headers,
        body: body.collect().await?.to_bytes(),
    })
}

/// The body of a pass, as clients to 0.24 send it.
pub(crate) fn pass(model: &str, seq_id: i64) -> Value {
    json!({
        "forward_backward_input": {
            "data": [{
                "model_input": {"chunks": [{"tokens": [1, 5, 9]}]},
                "loss_fn_inputs": {
                    "target_tokens": {"data": [5, 9, 2], "dtype": "int64", "shape": [3]},
                    "weights": {"data": [0.0, 1.0, 1.0], "dtype": "float32", "shape": [3]},
                },
            }],
            "loss_fn": "cross_entropy",
            "loss_fn_config": null,
        },
        "model_id": model,
        "seq_id": seq_id,
    })
}

/// The body of a pass over many datums, of 60 tokens each.
pub(crate) fn long_pass(model: &str, seq_id: i64, datums: usize) -> Value {
    let tokens: Vec<u32> = (0..60).collect();
    let mut body = pass(model, seq_id);
    let datum = json!({
        "model_input": {"chunks": [{"tokens": tokens}]},
        "loss_fn_inputs": {
            "target_tokens": {"data": tokens, "dtype": "int64", "shape": [60]},
        },
    });
    body["forward_backward_input"]["data"] = vec![datum; datums].into();
    body
}

/// The body of a pass that is so large that it is a file on the server, as its result is.
pub(crate) fn large_pass(model: &str, seq_id: i64) -> Value {
    long_pass(model, seq_id, 300)
}

pub(crate) fn step(model: &str, seq_id: i64) -> Value {
    json!({"model_id": model, "seq_id": seq_id, "adam_params": {"learning_rate": 0.01}})
}
