//! The Rust client of samples for Python callers: requests in, results out, many at a time.
//!
//! A finished sample goes into a queue. One Python thread takes all that are in it at once and resolves their futures, so that the
//! interpreter's lock changes hands once for many results. Tokens and log-probabilities cross as bytes, which numpy reads
//! without a copy. `tinkrs/sdk.py` is the other side.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use tinkrs::sampling::{SampleOutput, SamplingClient, SamplingParams, Stop, StopReason};
use tinkrs::{Error, ModelInput, ServiceClient};
use tokio::runtime::Runtime;

/// The threads that all clients of the process share. A forked child has none of its parent's threads, and gets its own.
fn runtime() -> PyResult<&'static Runtime> {
    static RUNTIME: Mutex<Option<(u32, &'static Runtime)>> = Mutex::new(None);
    let mut current = locked(&RUNTIME);
    let process = std::process::id();
    if let Some((owner, runtime)) = *current
        && owner == process
    {
        return Ok(runtime);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("tinkrs")
        .enable_all()
        .build()?;
    // It lives as long as the process. To drop the parent's would wait for threads that are not there.
    let runtime: &'static Runtime = Box::leak(Box::new(runtime));
    *current = Some((process, runtime));
    Ok(runtime)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Results that Python has not taken yet.
#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    finished: Vec<(u64, Result<SampleOutput, Error>)>,
    /// How many were asked for and have not finished: a client that is dropped has futures that somebody waits for.
    under_way: usize,
    closed: bool,
    /// Nobody waits any more: the interpreter ends.
    abandoned: bool,
}

impl State {
    fn may_finish_more(&self) -> bool {
        !self.abandoned && (!self.closed || self.under_way > 0)
    }
}

/// A sampler of a server, with the queue of its results.
#[pyclass(frozen)]
struct Sampler {
    client: SamplingClient,
    queue: Arc<Queue>,
}

/// Takes up the sampler that a handle of the official SDK describes.
#[pyfunction]
fn open(py: Python<'_>, handle: String, api_key: Option<String>) -> PyResult<Sampler> {
    let runtime = runtime()?;
    let client = py.detach(|| {
        runtime.block_on(async {
            let mut builder = ServiceClient::builder();
            if let Some(key) = api_key {
                builder = builder.api_key(key);
            }
            SamplingClient::from_handle_with(&handle, builder).await
        })
    });
    let client = client.map_err(|error| PyRuntimeError::new_err(describe(&error)))?;
    Ok(Sampler {
        client,
        queue: Arc::default(),
    })
}

/// What ends a sample, in the forms that the SDK takes. An empty list is one of tokens.
#[derive(FromPyObject)]
enum StopAt {
    #[pyo3(transparent)]
    Text(String),
    #[pyo3(transparent)]
    AnyToken(Vec<u32>),
    #[pyo3(transparent)]
    AnyText(Vec<String>),
}

#[pymethods]
impl Sampler {
    /// Asks for samples. What is wrong with the arguments comes as the result of `ticket`, too.
    #[expect(
        clippy::too_many_arguments,
        reason = "the fields of the SDK's parameters, one by one"
    )]
    #[pyo3(signature = (ticket, tokens, num_samples, max_tokens, seed, stop, temperature, top_k, top_p, prompt_logprobs))]
    fn submit(
        &self,
        ticket: u64,
        tokens: Vec<u32>,
        num_samples: u32,
        max_tokens: Option<u32>,
        seed: Option<i64>,
        stop: Option<StopAt>,
        temperature: f64,
        top_k: i32,
        top_p: f64,
        prompt_logprobs: bool,
    ) -> PyResult<()> {
        let runtime = runtime()?;
        let mut params = SamplingParams::new(max_tokens.unwrap_or_default());
        params.max_tokens = max_tokens;
        params.seed = seed;
        params.stop = stop.map(|stop| match stop {
            StopAt::Text(text) => Stop::Text(text),
            StopAt::AnyToken(tokens) => Stop::AnyToken(tokens),
            StopAt::AnyText(texts) => Stop::AnyText(texts),
        });
        (params.temperature, params.top_k, params.top_p) = (temperature, top_k, top_p);
        let sample = self.client.sample(ModelInput::from_tokens(tokens), params);
        let pending = sample
            .num_samples(num_samples)
            .prompt_logprobs(prompt_logprobs)
            .submit();
        let queue = Arc::clone(&self.queue);
        locked(&queue.state).under_way += 1;
        runtime.spawn(async move {
            let result = pending.await;
            let mut state = locked(&queue.state);
            state.finished.push((ticket, result));
            state.under_way -= 1;
            queue.changed.notify_one();
        });
        Ok(())
    }

    /// Waits for results and returns all there are, or `None` once the sampler is closed and nothing is under way.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        let finished = py.detach(|| {
            let mut state = locked(&self.queue.state);
            while state.finished.is_empty() && state.may_finish_more() {
                let woken = self.queue.changed.wait(state);
                state = woken.unwrap_or_else(|poisoned| poisoned.into_inner());
            }
            if state.abandoned {
                state.finished.clear();
            }
            std::mem::take(&mut state.finished)
        });
        if finished.is_empty() {
            return Ok(None);
        }
        let results = finished.into_iter().map(|(ticket, result)| match result {
            Ok(output) => (ticket, shown(py, &output)?, None::<Failure>).into_pyobject(py),
            Err(error) => (ticket, py.None(), Some(failure(&error))).into_pyobject(py),
        });
        PyList::new(py, results.collect::<PyResult<Vec<_>>>()?).map(Some)
    }

    /// Ends the thread that takes results, once there will be no more.
    fn close(&self) {
        locked(&self.queue.state).closed = true;
        self.queue.changed.notify_all();
    }

    /// Ends that thread now. One that still waited when the interpreter ends would be ended by it in the middle of this
    /// code, which ends the process.
    fn abandon(&self) {
        locked(&self.queue.state).abandoned = true;
        self.queue.changed.notify_all();
    }
}

/// Status, request id, whether the caller is to blame, and the message.
type Failure = (Option<u16>, Option<String>, bool, String);

fn failure(error: &Error) -> Failure {
    let request = error.request_id().map(|id| id.as_str().to_owned());
    (
        error.status(),
        request,
        error.is_user_error(),
        describe(error),
    )
}

fn describe(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// The sequences as tuples of stop reason, id, tokens and log-probabilities; log-probabilities of the prompt; tokens from the cache.
fn shown(py: Python<'_>, output: &SampleOutput) -> PyResult<Py<PyAny>> {
    let bytes = |numbers: &mut dyn Iterator<Item = [u8; 4]>| {
        let bytes: Vec<u8> = numbers.flatten().collect();
        PyBytes::new(py, &bytes)
    };
    let floats = |values: &Vec<f32>| bytes(&mut values.iter().map(|value| value.to_ne_bytes()));
    let sequences = output.sequences.iter().map(|sequence| {
        let reason = match sequence.stop_reason {
            StopReason::Length => "length",
            _ => "stop",
        };
        let id = sequence.id.as_ref().map_or("", |id| id.as_str());
        let tokens = bytes(&mut sequence.tokens.iter().map(|token| token.to_ne_bytes()));
        (reason, id, tokens, sequence.logprobs.as_ref().map(floats)).into_pyobject(py)
    });
    let sequences = PyTuple::new(py, sequences.collect::<PyResult<Vec<_>>>()?)?;
    let prompt = output.prompt_logprobs.as_ref().map(floats);
    let shown = (sequences, prompt, output.prompt_cache_hit_tokens);
    Ok(shown.into_pyobject(py)?.into_any().unbind())
}

/// The part of the package `tinkrs` that is written in Rust.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Sampler>()?;
    module.add_function(wrap_pyfunction!(open, module)?)
}
