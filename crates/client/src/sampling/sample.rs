//! Sampling: submit, wait, and submit again if the server lost it.

use super::client::{Inner, SamplingClient};
use super::score;
use crate::Error;
use crate::connection::Connection;
use crate::connection::call::{Call, Payload};
use crate::connection::policy::Policy;
use crate::future::poll::{self, PollTarget};
use crate::future::{Pending, report, result_size};
use crate::lock;
use crate::otel::OperationSpan;
use crate::retry::FailureKind;
use crate::telemetry::error_type;
use crate::telemetry::named::SampleFailed;
use crate::training::{BoxFuture, chunk};
use http::header::HeaderValue;
use std::future::IntoFuture;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tinkrs_types::protocol::{Completion, Promise, RequestType, SAMPLE_SEQ_BLOCK};
use tinkrs_types::sampling::SampleOptions;
use tinkrs_types::{
    InvalidInput, ModelInput, RequestId, SampleOutput, SamplingParams, SequenceId, TensorData,
    Timestamp,
};
use tinkrs_wire::op::asample::{SampleRequest, decode_result, encode_apart};
use tinkrs_wire::{endpoint, header};
use tokio::time::Instant;

const NAME: &str = "sample";

/// A sample that has been described but not asked for.
///
/// Awaiting it submits it and waits for its result. To have many under way,
/// [`submit`](Self::submit) each and await the [`Pending`] results later.
#[derive(Clone, Debug)]
#[must_use = "samples do nothing until awaited or submitted"]
pub struct Sample {
    client: SamplingClient,
    prompt: ModelInput,
    params: SamplingParams,
    num_samples: u32,
    options: SampleOptions,
}

impl SamplingClient {
    /// Samples what comes after a prompt.
    pub fn sample(&self, prompt: impl Into<ModelInput>, params: SamplingParams) -> Sample {
        let options = SampleOptions {
            record_stability_info: self.inner.options.record_stability_info,
            ..SampleOptions::default()
        };
        Sample {
            client: self.clone(),
            prompt: prompt.into(),
            params,
            num_samples: 1,
            options,
        }
    }
}

impl Sample {
    /// Draws this many sequences. The default is 1.
    pub fn num_samples(mut self, count: u32) -> Self {
        self.num_samples = count;
        self
    }

    /// Reports the log-probability of each prompt token. The default is not to.
    pub fn prompt_logprobs(mut self, report: bool) -> Self {
        self.options.prompt_logprobs = report;
        self
    }

    /// Reports on the last `n` prompt positions only. The default is all.
    pub fn prompt_logprobs_last_n(mut self, n: u32) -> Self {
        self.options.prompt_logprobs_last_n = Some(n);
        self
    }

    /// Reports the `k` likeliest tokens at each prompt position. The default is none.
    pub fn topk_prompt_logprobs(mut self, k: u32) -> Self {
        self.options.topk_prompt_logprobs = k;
        self
    }

    /// Reports the `k` likeliest tokens at each sampled position. The default is none.
    pub fn topk_sample_logprobs(mut self, k: u32) -> Self {
        self.options.topk_sample_logprobs = k;
        self
    }

    /// Reports the log-probabilities of these tokens: `int64` of shape
    /// `[prompt length - 1, k]`, with -1 to skip a cell. The default is none.
    pub fn target_prompt_logprobs(mut self, tokens: TensorData) -> Self {
        self.options.target_prompt_logprobs = Some(tokens);
        self
    }

    /// Draws `k` alternatives at each prompt position after the first. The default is none.
    pub fn prompt_alt_tokens(mut self, k: u32) -> Self {
        self.options.prompt_alt_tokens_k = k;
        self
    }

    /// Hands the sample to the client's own task and returns at once.
    ///
    /// What is wrong with the arguments is found before anything is sent, and comes as the
    /// result.
    pub fn submit(self) -> Pending<SampleOutput> {
        if let Err(error) = self.check() {
            return Pending::ready(NAME, Err(error.into()));
        }
        let inner = Arc::clone(&self.client.inner);
        let retry = !inner.session.connection.server.config.sample_no_retries;
        spawn(inner, Job::new(self, retry), Ok)
    }

    pub(super) fn client(&self) -> &SamplingClient {
        &self.client
    }

    pub(super) fn check(&self) -> Result<(), InvalidInput> {
        if self.num_samples == 0 {
            return Err(InvalidInput::new("num_samples", 0, "1 or more"));
        }
        self.params.check()?;
        self.options.check()
    }
}

impl IntoFuture for Sample {
    type Output = Result<SampleOutput, Error>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.submit().await })
    }
}

/// A sample as a task works on it.
pub(super) struct Job {
    prompt: ModelInput,
    /// All but the prompt and the number.
    request: SampleRequest,
    size_bytes: u64,
    first_seq_id: u64,
    retry: bool,
}

impl Job {
    pub(super) fn new(sample: Sample, retry: bool) -> Self {
        let Sample {
            client,
            prompt,
            params,
            num_samples,
            options,
        } = sample;
        Self {
            size_bytes: chunk::sampling_bytes(&prompt) as u64,
            // The number is taken now, at the call.
            first_seq_id: client.inner.next_sample(),
            retry,
            prompt,
            request: SampleRequest {
                num_samples,
                prompt: ModelInput::new(),
                sampling_params: params,
                sampling_session_id: Some(client.inner.id.clone()),
                seq_id: None,
                base_model: None,
                model_path: None,
                prompt_logprobs: Some(options.prompt_logprobs),
                topk_prompt_logprobs: options.topk_prompt_logprobs,
                topk_sample_logprobs: options.topk_sample_logprobs,
                target_prompt_logprobs: options.target_prompt_logprobs,
                prompt_alt_tokens_k: options.prompt_alt_tokens_k,
                prompt_logprobs_last_n: options.prompt_logprobs_last_n,
                record_stability_info: Some(options.record_stability_info),
            },
        }
    }
}

/// Starts the task of a sample.
pub(super) fn spawn<T: Send + 'static>(
    inner: Arc<Inner>,
    job: Job,
    read: impl FnOnce(SampleOutput) -> Result<T, Error> + Send + 'static,
) -> Pending<T> {
    let (mut sender, pending) = Pending::new(NAME);
    let runtime = inner.session.connection.runtime.clone();
    runtime.spawn(OperationSpan::start(NAME).run(async move {
        let current = Mutex::new(None);
        let connection = &inner.session.connection;
        let result = tokio::select! {
            biased;
            result = run(&inner, &job, &current) => Some(result),
            () = sender.closed() => None,
            () = connection.lifecycle.ended() => Some(Err(Error::Closed { operation: NAME })),
        };
        // If the server still works on it, it may stop: we do not wait any more.
        let current = lock::into_inner(current);
        current
            .into_iter()
            .for_each(|request_id| inner.session.cancels.cancel(request_id));
        if let Some(result) = result {
            let result = result.and_then(read);
            if let Err(error) = &result {
                connection.lifecycle.report_error(error);
            }
            drop(sender.send(result));
        }
    }));
    pending
}

async fn run(
    inner: &Arc<Inner>,
    job: &Job,
    current: &Mutex<Option<RequestId>>,
) -> Result<SampleOutput, Error> {
    let connection = &inner.session.connection;
    let closed = "the semaphore is never closed";
    let _slot = match &inner.slots {
        Some(slots) => Some(slots.acquire().await.expect(closed)),
        None => None,
    };
    if !job.retry {
        return attempt(inner, job, job.first_seq_id, current).await;
    }
    let _under_way = inner.progress.start();
    let detect = inner.options.retry.stuck_detection
        && connection.server.config.sample_enable_stuck_detection;
    let timeout = detect.then_some(inner.options.retry.progress_timeout);
    let attempts = pin!(async {
        let start = Instant::now();
        let mut seq_id = job.first_seq_id;
        for tries in 0.. {
            let error = match attempt(inner, job, seq_id, current).await {
                Ok(output) => return Ok(output),
                Err(error) => error,
            };
            let again = inner.options.retry.retries(&error);
            if inner.options.retry.enabled {
                report_failure(inner, &error, again, tries, start);
            }
            if !again {
                return Err(error);
            }
            let delay = inner.options.retry.delay(tries, fastrand::f64());
            tracing::debug!(%error, ?delay, "sampling again");
            tokio::time::sleep(delay).await;
            // The server may have the old request under its number: this is a new one.
            seq_id = inner.next_sample();
        }
        unreachable!("the tries do not end")
    });
    let output = inner.progress.guard(timeout, attempts).await?;
    inner.progress.made();
    Ok(output)
}

fn report_failure(inner: &Inner, error: &Error, should_retry: bool, tries: u32, start: Instant) {
    inner.session.connection.lifecycle.report(|| {
        let now = Timestamp::now().as_duration().as_secs_f64();
        let elapsed = start.elapsed().as_secs_f64();
        SampleFailed {
            func: NAME,
            exception: error.to_string(),
            exception_type: error_type(error),
            exception_stack: None,
            status_code: error.status(),
            should_retry,
            is_user_error: error.is_user_error(),
            attempt_count: tries + 1,
            start_time: now - elapsed,
            current_time: now,
            elapsed_time: elapsed,
        }
    });
}

/// Submits a sample once and waits for its result.
async fn attempt(
    inner: &Arc<Inner>,
    job: &Job,
    seq_id: u64,
    current: &Mutex<Option<RequestId>>,
) -> Result<SampleOutput, Error> {
    let connection = &inner.session.connection;
    connection.lifecycle.check_open(NAME)?;
    let clone_id = inner.clone_id().await?;
    let seq_id = numbered(clone_id, seq_id)?;
    let promise = send_when_admitted(inner, job, seq_id).await?;
    let set_current = |id| *lock::lock(current) = id;
    set_current(Some(promise.request_id.clone()));
    let output = Box::pin(fetch(inner, job, clone_id, &promise.request_id)).await;
    set_current(None);
    let output = output?;
    let (fetched, request_id) = (output.fetched, promise.request_id.clone());
    let mut output = decode(output, &job.request, promise).inspect_err(|error| {
        report::unreadable(connection, &request_id, RequestType::Sample, fetched, error);
    })?;
    score::align(&job.prompt, &mut output);
    score::check(&job.request, &output)?;
    Ok(output)
}

/// Numbers a sample among those of all clients of its sampling session.
fn numbered(clone_id: u64, seq_id: u64) -> Result<u64, Error> {
    let number = clone_id.checked_mul(SAMPLE_SEQ_BLOCK);
    let number = number.and_then(|first| first.checked_add(seq_id));
    // The wire has signed numbers.
    number
        .filter(|number| i64::try_from(*number).is_ok())
        .ok_or_else(|| Error::answer(NAME, format!("client number {clone_id} is too large")))
}

async fn send_when_admitted(inner: &Inner, job: &Job, seq_id: u64) -> Result<Promise, Error> {
    let limiter = &inner.session.connection.server.limiter;
    let _permit = limiter.admit(job.size_bytes).await;
    // Encoded and set aside only now: thousands of waiting samples hold neither bodies nor what
    // sending takes.
    Box::pin(send(&inner.session.connection, job, seq_id)).await
}

async fn send(connection: &Connection, job: &Job, seq_id: u64) -> Result<Promise, Error> {
    let hold_back = || {
        connection
            .server
            .limiter
            .wait_while_paused(&connection.counters)
    };
    hold_back().await;
    let mut call = Call::new(&endpoint::ASAMPLE)
        .named(NAME)
        .policy(
            Policy::FIVE_MINUTES
                .rate_limit_is_final()
                .billing_is_final(),
        )
        .header(header::SAMPLING_BACKPRESSURE, HeaderValue::from_static("1"));
    call.payload = Payload::Json(encode_apart(&job.request, &job.prompt, seq_id).into());
    let start = Instant::now();
    loop {
        match connection.call(&call).await {
            Err(error) if holds_back(&error, connection, start) => {
                connection.server.limiter.refused(job.size_bytes);
                hold_back().await;
            }
            response => return response?.json(NAME),
        }
    }
}

/// Whether a refused submission is made again, once the limiter lets it.
fn holds_back(error: &Error, connection: &Connection, start: Instant) -> bool {
    match error.failure_kind() {
        Some(FailureKind::RateLimited) => {
            connection.rate_limited(NAME, start, Duration::ZERO, error);
            true
        }
        Some(FailureKind::BillingBlocked) => connection.billing_may_pause(error),
        _ => false,
    }
}

async fn fetch(
    inner: &Arc<Inner>,
    job: &Job,
    clone_id: u64,
    request_id: &RequestId,
) -> Result<poll::RawResult, Error> {
    let connection = &inner.session.connection;
    let max_result_bytes = result_size::of_sample(&job.request, job.prompt.len());
    let mut size_known = false;
    let mut reserved = None;
    let feed = inner.feed(clone_id);
    if let Some(feed) = &feed
        && let Completion::Finished {
            response_payload_uncompressed_size: Some(size),
            ..
        } = feed.wait_for(request_id).await?
        && size > 0
    {
        // A size that cannot be is not waited for: the poll refuses such a result.
        let size = size.min(max_result_bytes as u64);
        reserved = Some(connection.server.result_bytes.take(size).await);
        size_known = true;
    }
    let target = PollTarget {
        operation: NAME,
        request_id,
        request_type: RequestType::Sample,
        // Counted from when the promise was there, as the official client does.
        roundtrip: Duration::ZERO,
        observer: &inner.observer,
        size_known,
        max_result_bytes,
    };
    let fetched = poll::wait_regardless(connection, &target).await;
    if let Some(feed) = &feed
        && matches!(fetched, Ok(_) | Err(Error::RequestFailed { .. }))
    {
        feed.retrieved(request_id.clone());
    }
    let mut fetched = fetched?;
    if reserved.is_some() {
        fetched.reserved = reserved;
    }
    Ok(fetched)
}

fn decode(
    fetched: poll::RawResult,
    request: &SampleRequest,
    promise: Promise,
) -> Result<SampleOutput, Error> {
    let mut output = decode_result(&fetched.content_type, fetched.body)
        .map_err(|error| Error::answer(NAME, error))?;
    let expected = request.num_samples as usize;
    if output.sequences.len() != expected {
        let message = format!("{} sequences, expected {expected}", output.sequences.len());
        return Err(Error::answer(NAME, message));
    }
    // Older servers name no sequences; then we do.
    let ids = promise.sample_sequence_ids.unwrap_or_else(|| {
        (0..expected)
            .map(|index| SequenceId::new(format!("{}:{index}", promise.request_id)))
            .collect()
    });
    if ids.len() != expected {
        let message = format!("{} sequence ids, expected {expected}", ids.len());
        return Err(Error::answer(NAME, message));
    }
    for (sequence, id) in output.sequences.iter_mut().zip(ids) {
        sequence.id = Some(id);
    }
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::RetryConfig;
    use tinkrs_testkit::ScriptedServer;
    use tinkrs_testkit::scripted::{API_KEY, BASE_MODEL, Gate};

    #[test]
    fn samples_are_numbered_in_blocks_and_no_block_overflows() {
        assert_eq!(numbered(0, 7).unwrap(), 7);
        assert_eq!(numbered(2, 7).unwrap(), 2_000_000_007);
        assert!(
            numbered(SAMPLE_SEQ_BLOCK, 7).is_ok(),
            "the largest of our own"
        );
        for clone_id in [10_000_000_000, u64::MAX] {
            assert!(numbered(clone_id, 0).is_err(), "client {clone_id}");
        }
    }
    #[tokio::test]
    async fn a_stuck_sample_is_cancelled_on_the_server_too() {
        let server = ScriptedServer::start().await;
        server.dynamic_config(|config| config.sample_cancel_enabled = true);
        server.on("asample").hold_result(&Gate::closed());
        let service = crate::ServiceClient::builder()
            .base_url(server.url())
            .api_key(API_KEY)
            .telemetry(false)
            .build();
        let sampler = service.create_sampling_client(BASE_MODEL).await.unwrap();
        let prompt = ModelInput::from_tokens([1]);
        let impatient = sampler.with_retry_config(RetryConfig {
            progress_timeout: Duration::from_millis(300),
            ..RetryConfig::default()
        });
        let pending = impatient.sample(prompt, SamplingParams::new(1)).submit();
        assert!(matches!(pending.await, Err(Error::Stuck { .. })));
        server.received("cancel_future", 1).await;
    }
}
