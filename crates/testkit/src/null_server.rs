//! A Tinker server that does as little as possible, to measure clients against.
//!
//! It offers `null/model`. A sample is one fixed sequence of 128 tokens; a pass has one zero for
//! each target token; everything is done as soon as it is asked for, or a fixed time later.
//! Requests are not decoded: the few numbers that answers depend on are found by skipping over
//! the rest.

mod skim;

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tinkrs_types::sampling::{SampledSequence, StopReason};
use tinkrs_types::training::{BatchedTensor, OutputRecord};
use tinkrs_types::{ForwardBackwardOutput, SampleOutput};
use tinkrs_wire::endpoint::{self, Endpoint};
use tinkrs_wire::op::{asample, forward_backward};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;

/// How many tokens each sample has.
pub const SAMPLE_TOKENS: usize = 128;

/// Serves until the listener fails. Results are ready `latency` after they were asked for.
///
/// # Errors
/// If a connection cannot be accepted.
pub async fn serve(listener: TcpListener, latency: Duration) -> io::Result<()> {
    let server = Rc::new(NullServer::new(latency));
    let tasks = LocalSet::new();
    tasks
        .run_until(async move {
            loop {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                tokio::task::spawn_local(Rc::clone(&server).serve_connection(stream));
            }
        })
        .await
}

struct NullServer {
    latency: Duration,
    start: Instant,
    requests: Cell<u64>,
    /// The lengths of the datums of passes whose results were not fetched yet.
    passes: RefCell<HashMap<u64, Vec<usize>>>,
    sample: Bytes,
}

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/x-protobuf";

impl NullServer {
    fn new(latency: Duration) -> Self {
        let mut sequence =
            SampledSequence::new((0..SAMPLE_TOKENS as u32).collect(), StopReason::Length);
        sequence.logprobs = Some(vec![-0.5; SAMPLE_TOKENS]);
        let mut output = SampleOutput::default();
        output.sequences = vec![sequence];
        Self {
            latency,
            start: Instant::now(),
            requests: Cell::new(0),
            passes: RefCell::default(),
            sample: asample::encode_result(output).into(),
        }
    }

    async fn serve_connection(self: Rc<Self>, stream: TcpStream) {
        let service = service_fn(|request| {
            let server = Rc::clone(&self);
            async move { server.answer(request).await }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service);
        // Clients may leave when they like.
        let _ = connection.await;
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, hyper::Error> {
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let path = head.uri.path();
        let is_at = |endpoint: &&&Endpoint| endpoint.path == path;
        let operation = endpoint::ALL.iter().find(is_at).map(|found| found.name);
        let (content_type, body) = match operation.unwrap_or(path) {
            "asample" => (JSON, self.promise_sample(&body)),
            "retrieve_future" => self.retrieve(&body).await,
            "forward_backward" => (JSON, self.promise_pass(&body)),
            "optim_step" => (JSON, self.promise('o')),
            "create_model" => (JSON, self.promise('m')),
            other => (JSON, fixed(other)),
        };
        let status = if body.is_empty() { 404 } else { 200 };
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = status.try_into().expect("both are statuses");
        let content_type = header::HeaderValue::from_static(content_type);
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, content_type);
        Ok(response)
    }

    fn number(&self) -> u64 {
        self.requests.set(self.requests.get() + 1);
        self.requests.get()
    }

    /// Writes an id: the kind of request, its number, and the microsecond it was made in.
    fn id(&self, kind: char, number: u64) -> String {
        let micros = self.start.elapsed().as_micros();
        format!("{kind}{number:012}-{micros:015}")
    }

    fn promise(&self, kind: char) -> Bytes {
        let id = self.id(kind, self.number());
        format!(r#"{{"request_id":"{id}"}}"#).into()
    }

    fn promise_sample(&self, body: &[u8]) -> Bytes {
        let number = self.number();
        let count = skim::number_after(body, b"\"num_samples\":").unwrap_or(1);
        let id = self.id(if count == 1 { 's' } else { 'x' }, number);
        let ids: Vec<String> = (0..count)
            .map(|i| format!("\"q{number:012}-{i}\""))
            .collect();
        let ids = ids.join(",");
        format!(r#"{{"request_id":"{id}","sample_sequence_ids":[{ids}]}}"#).into()
    }

    fn promise_pass(&self, body: &[u8]) -> Bytes {
        let Some(lengths) = skim::target_lengths(body) else {
            return Bytes::new();
        };
        let number = self.number();
        self.passes.borrow_mut().insert(number, lengths);
        let id = self.id('p', number);
        format!(r#"{{"request_id":"{id}"}}"#).into()
    }

    async fn retrieve(&self, body: &[u8]) -> (&'static str, Bytes) {
        let Some(id) = skim::text_after(body, b"\"request_id\":") else {
            return (JSON, Bytes::new());
        };
        let (kind, id) = id.split_at(1);
        let (number, micros) = id.split_once('-').unwrap_or((id, "0"));
        let ready = self.start + Duration::from_micros(micros.parse().unwrap_or(0)) + self.latency;
        if !self.latency.is_zero() {
            tokio::time::sleep_until(ready.into()).await;
        }
        match kind {
            "s" => (PROTOBUF, self.sample.clone()),
            "p" => (PROTOBUF, self.take_pass(number.parse().unwrap_or(0))),
            "o" => (JSON, Bytes::from_static(br#"{"metrics":null}"#)),
            "m" => (
                JSON,
                Bytes::from_static(br#"{"model_id":"null:train:0","type":"create_model"}"#),
            ),
            _ => (
                JSON,
                Bytes::from_static(
                    br#"{"error":"the null server samples one sequence","category":"user"}"#,
                ),
            ),
        }
    }

    fn take_pass(&self, number: u64) -> Bytes {
        let Some(lengths) = self.passes.borrow_mut().remove(&number) else {
            return Bytes::new();
        };
        let mut offsets = vec![0];
        for length in &lengths {
            offsets.push(offsets[offsets.len() - 1] + length);
        }
        let values = vec![0.0_f32; offsets[offsets.len() - 1]];
        let tensor = BatchedTensor::new(values, offsets, vec![]);
        let fields = tensor.map(|tensor| [("logprobs".to_owned(), tensor)].into());
        let record = fields.and_then(|fields| OutputRecord::new(lengths.len(), fields));
        let output = ForwardBackwardOutput::new(
            "TorchLossReturn".to_owned(),
            record.into_iter().collect(),
            [("loss:sum".to_owned(), 0.0)].into(),
        );
        forward_backward::encode_result(output).into()
    }
}

/// Answers what has one answer; an empty one is a 404.
fn fixed(operation: &str) -> Bytes {
    Bytes::from_static(match operation {
        "client_config" | "client_dynamic_config" => b"{}",
        "create_session" => br#"{"session_id":"null"}"#,
        "session_heartbeat" => br#"{"type":"session_heartbeat"}"#,
        "telemetry" => br#"{"status":"accepted"}"#,
        "healthz" => br#"{"status":"ok"}"#,
        "get_server_capabilities" => br#"{"supported_models":[{"model_name":"null/model"}]}"#,
        "create_sampling_session" => br#"{"sampling_session_id":"null:sample:0"}"#,
        "get_info" => br#"{"model_id":"null:train:0","model_data":{"model_name":"null/model"}}"#,
        "/api/v1/sessions/null/finish" => b"{}",
        _ => b"",
    })
}
