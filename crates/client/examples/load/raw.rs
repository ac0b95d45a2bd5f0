//! The least that sampling can cost: a loop over hyper that sends the bytes of the client.
//!
//! A few connections, each busy with one request at a time; bodies from a template; of the
//! answers, only the request id is looked for.

use crate::measure::{Start, print, rates};
use crate::{KEY, MAX_TOKENS, tokens};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use std::cell::Cell;
use std::rc::Rc;
use tinkrs::{ModelInput, SamplingParams};
use tinkrs_wire::op::asample::SampleRequest;
use tinkrs_wire::{Body, SDK_VERSION, endpoint, header as names};
use tokio::net::TcpStream;
use tokio::task::LocalSet;

const MAX_CONNECTIONS: usize = 8;
const KEY_OF_ID: &[u8] = b"\"request_id\":\"";

pub(crate) async fn run(n: usize, prompt_tokens: usize, in_flight: usize) -> Result<()> {
    let url = std::env::var("TINKER_BASE_URL").context("TINKER_BASE_URL is not set")?;
    let address = url
        .strip_prefix("http://")
        .context("the loop speaks plain http")?;
    let address: Rc<str> = address.trim_end_matches('/').into();
    let template = Rc::new(Template::new(prompt_tokens));

    let start = Start::now();
    let next = Rc::new(Cell::new(0));
    let tasks = LocalSet::new();
    let loops: Vec<_> = (0..in_flight.min(MAX_CONNECTIONS))
        .map(|_| {
            let (address, template) = (Rc::clone(&address), Rc::clone(&template));
            tasks.spawn_local(sample_in_a_loop(address, template, Rc::clone(&next), n))
        })
        .collect();
    tasks.await;
    for finished in loops {
        finished.await??;
    }
    let measured = start.stop();
    print("raw", "sample", n, &measured, &rates(n, &measured))
}

/// Sends samples on one connection until all are sent.
async fn sample_in_a_loop(
    address: Rc<str>,
    template: Rc<Template>,
    next: Rc<Cell<usize>>,
    n: usize,
) -> Result<()> {
    let stream = TcpStream::connect(&*address).await?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::task::spawn_local(connection);
    while next.get() < n {
        let seq_id = next.replace(next.get() + 1);
        let submit = template.submit(&address, seq_id)?;
        let promise = send(&mut sender, submit).await?;
        let place = promise
            .windows(KEY_OF_ID.len())
            .position(|window| window == KEY_OF_ID)
            .context("no request id")?;
        let id = &promise[place + KEY_OF_ID.len()..];
        let end = id.iter().position(|byte| *byte == b'"');
        let id = std::str::from_utf8(&id[..end.context("no end of the id")?])?;
        let result = send(&mut sender, poll(&address, id)?).await?;
        ensure!(result.len() > MAX_TOKENS as usize * 4, "a short result");
    }
    Ok(())
}

async fn send(
    sender: &mut SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> Result<Bytes> {
    sender.ready().await?;
    let response = sender.send_request(request).await?;
    ensure!(response.status().is_success(), "{}", response.status());
    Ok(response.into_body().collect().await?.to_bytes())
}

/// The body of a sample, in two parts around its number.
struct Template {
    before: Vec<u8>,
    after: Vec<u8>,
}

impl Template {
    fn new(prompt_tokens: usize) -> Self {
        const NUMBER: u64 = 424_242_424_242;
        let body = SampleRequest {
            num_samples: 1,
            prompt: ModelInput::from_tokens(tokens(prompt_tokens)),
            sampling_params: SamplingParams::new(MAX_TOKENS),
            sampling_session_id: Some("null:sample:0".into()),
            seq_id: Some(NUMBER),
            base_model: None,
            model_path: None,
            prompt_logprobs: Some(false),
            topk_prompt_logprobs: 0,
            topk_sample_logprobs: 0,
            target_prompt_logprobs: None,
            prompt_alt_tokens_k: 0,
            prompt_logprobs_last_n: None,
            record_stability_info: Some(false),
        };
        let body = String::from_utf8(body.encode()).expect("JSON is text");
        let (before, after) = body
            .split_once(&NUMBER.to_string())
            .expect("the number is in the body");
        Self {
            before: before.as_bytes().to_vec(),
            after: after.as_bytes().to_vec(),
        }
    }

    fn submit(&self, address: &str, seq_id: usize) -> Result<Request<Full<Bytes>>> {
        let number = seq_id.to_string();
        let body = [&self.before[..], number.as_bytes(), &self.after[..]].concat();
        let request = common(Request::post(endpoint::ASAMPLE.path), address)
            .header(header::ACCEPT, names::JSON)
            .header(names::IDEMPOTENCY_KEY, IDEMPOTENCY_KEY)
            .header(names::READ_TIMEOUT, "60")
            .header(names::SAMPLING_BACKPRESSURE, "1");
        Ok(request.body(Full::new(body.into()))?)
    }
}

/// As long as those of the client.
const IDEMPOTENCY_KEY: &str = "tinkrs-retry-00000000-0000-4000-8000-000000000000";

fn poll(address: &str, request_id: &str) -> Result<Request<Full<Bytes>>> {
    let body = format!(r#"{{"request_id":"{request_id}","allow_metadata_only":true}}"#);
    let request = common(Request::post(endpoint::RETRIEVE_FUTURE.path), address)
        .header(header::ACCEPT, names::PROTOBUF)
        .header(names::READ_TIMEOUT, "45")
        .header(names::REQUEST_ITERATION, "0")
        .header(names::REQUEST_TYPE, "Sample")
        .header(names::CREATE_PROMISE_ROUNDTRIP_TIME, "0.000001");
    Ok(request.body(Full::new(body.into()))?)
}

/// The headers that all requests of the client have.
fn common(request: http::request::Builder, address: &str) -> http::request::Builder {
    request
        .header(header::HOST, address)
        .header(header::USER_AGENT, "tinkrs/0.1.0")
        .header(header::ACCEPT_ENCODING, "gzip, deflate, zstd")
        .header(header::CONTENT_TYPE, names::JSON)
        .header(names::PACKAGE_VERSION, SDK_VERSION)
        .header(names::RETRY_COUNT, "0")
        .header(names::API_KEY, KEY)
}
