//! The thread that sends what was recorded.
//!
//! It has a runtime of its own, so that programs without one can export, and a busy one does not hold it up. Between it and the
//! program is a queue with a bound: what does not fit is dropped and counted. A batch that the collector does not take is tried
//! again a few times and then dropped; the log says so once a minute at most.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, mpsc as std_mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::settings::Settings;
use crate::span::Record;
use crate::{Error, encode, openmetrics};

/// Most spans that wait to be sent.
const QUEUE: usize = 4096;
/// Most spans in a request.
const BATCH: usize = 512;
/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How often a batch is tried.
const TRIES: u32 = 3;
/// How long the end of a program waits for what is left to be sent.
const LAST: Duration = Duration::from_secs(3);

/// A text of metrics in the format of OpenMetrics; `None` once there will be no more.
type Source = Box<dyn Fn() -> Option<String> + Send>;

enum Message {
    Span(Box<Record>),
    /// Send everything, say so, and end.
    End(std_mpsc::Sender<()>),
}

struct Active {
    queue: mpsc::Sender<Message>,
    traces: bool,
    dropped: AtomicU64,
    sources: Mutex<Vec<Source>>,
}

static ACTIVE: OnceLock<Active> = OnceLock::new();

/// Exports for as long as it lives. When it is dropped, what is left is sent, within three seconds.
#[derive(Debug)]
#[must_use = "telemetry is exported until this is dropped"]
pub struct Exporting {
    thread: Option<JoinHandle<()>>,
}

/// Begins to export. This can be done once in a process.
///
/// # Errors
/// If it was done before, or no thread can be started.
pub fn start(settings: Settings) -> Result<Exporting, Error> {
    let (queue, received) = mpsc::channel(QUEUE);
    let active = Active {
        queue,
        traces: settings.traces,
        dropped: AtomicU64::new(0),
        sources: Mutex::default(),
    };
    ACTIVE.set(active).map_err(|_| Error::Started)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let thread = std::thread::Builder::new()
        .name("telemetry".to_owned())
        .spawn(move || runtime.block_on(Exporter::new(settings).run(received)))?;
    Ok(Exporting {
        thread: Some(thread),
    })
}

/// Returns whether anything is exported in this process.
pub fn is_active() -> bool {
    ACTIVE.get().is_some()
}

/// Exports what a function says, in the format of OpenMetrics, until it says `None`. Without [`start`] it is not asked.
pub fn add_metrics(source: impl Fn() -> Option<String> + Send + 'static) {
    if let Some(active) = ACTIVE.get() {
        let mut sources = active
            .sources
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        sources.push(Box::new(source));
    }
}

pub(crate) fn records_spans() -> bool {
    ACTIVE.get().is_some_and(|active| active.traces)
}

pub(crate) fn send(record: Record) {
    let Some(active) = ACTIVE.get() else {
        return;
    };
    if active
        .queue
        .try_send(Message::Span(Box::new(record)))
        .is_err()
    {
        active.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Exporting {
    fn drop(&mut self) {
        let (said, ended) = std_mpsc::channel();
        let Some(active) = ACTIVE.get() else {
            return;
        };
        // A full queue is emptied soon, unless the collector does not take anything.
        let deadline = Instant::now() + LAST;
        let mut message = Message::End(said);
        while let Err(mpsc::error::TrySendError::Full(back)) = active.queue.try_send(message) {
            if Instant::now() > deadline {
                return;
            }
            message = back;
            std::thread::sleep(Duration::from_millis(10));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if ended.recv_timeout(left).is_ok() {
            let _ = self.thread.take().map(JoinHandle::join);
        }
    }
}

struct Exporter {
    settings: Settings,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    started: SystemTime,
    complained: Option<Instant>,
}

impl Exporter {
    fn new(settings: Settings) -> Self {
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(tls_config())
            .https_or_http()
            .enable_http1()
            .build();
        Self {
            settings,
            client: Client::builder(TokioExecutor::new()).build(connector),
            started: SystemTime::now(),
            complained: None,
        }
    }

    async fn run(mut self, mut queue: mpsc::Receiver<Message>) {
        let mut spans = Vec::new();
        let mut send_spans = interval(self.settings.span_interval);
        let mut send_metrics = interval(self.settings.metric_interval);
        for timer in [&mut send_spans, &mut send_metrics] {
            timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
            timer.tick().await; // the first one comes at once
        }
        loop {
            tokio::select! {
                message = queue.recv() => match message {
                    Some(Message::Span(span)) => spans.push(*span),
                    Some(Message::End(said)) => {
                        self.send_spans(&mut spans).await;
                        self.send_metrics().await;
                        let _ = said.send(());
                        return;
                    }
                    None => return,
                },
                _ = send_spans.tick() => self.send_spans(&mut spans).await,
                _ = send_metrics.tick() => self.send_metrics().await,
            }
            if spans.len() >= BATCH {
                self.send_spans(&mut spans).await;
            }
        }
    }

    async fn send_spans(&mut self, spans: &mut Vec<Record>) {
        let dropped = ACTIVE
            .get()
            .map_or(0, |active| active.dropped.swap(0, Ordering::Relaxed));
        if dropped > 0 {
            self.complain(&format!(
                "{dropped} spans were dropped: the collector is too slow"
            ));
        }
        for batch in std::mem::take(spans).chunks(BATCH) {
            let body = encode::spans(&self.settings.resource, batch);
            self.post("/v1/traces", body).await;
        }
    }

    async fn send_metrics(&mut self) {
        if !self.settings.metrics {
            return;
        }
        let mut families = Vec::new();
        if let Some(active) = ACTIVE.get() {
            let mut sources = active
                .sources
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner());
            sources.retain(|source| match source() {
                Some(text) => {
                    families.extend(openmetrics::read(&text));
                    true
                }
                None => false,
            });
        }
        if !families.is_empty() {
            let body = encode::metrics(&self.settings.resource, &families, self.started);
            self.post("/v1/metrics", body).await;
        }
    }

    async fn post(&mut self, path: &str, body: Vec<u8>) {
        let body = Bytes::from(body);
        for tried in 1..=TRIES {
            match timeout(TIMEOUT, self.try_post(path, body.clone())).await {
                Ok(Ok(status)) if status.is_success() => return,
                Ok(Ok(status)) if !is_retryable(status) => {
                    return self.complain(&format!("the collector refused {path} with {status}"));
                }
                failed if tried == TRIES => {
                    let reason = match failed {
                        Ok(Ok(status)) => status.to_string(),
                        Ok(Err(reason)) => reason,
                        Err(_) => "it did not answer in time".to_owned(),
                    };
                    return self.complain(&format!("the collector could not be reached: {reason}"));
                }
                _ => sleep(Duration::from_millis(250) * 2_u32.pow(tried)).await,
            }
        }
    }

    async fn try_post(&self, path: &str, body: Bytes) -> Result<StatusCode, String> {
        let uri = format!("{}{path}", self.settings.endpoint);
        let mut request = Request::post(uri).header(header::CONTENT_TYPE, "application/json");
        for (name, value) in &self.settings.headers {
            request = request.header(name, value);
        }
        let request = request
            .body(Full::new(body))
            .map_err(|error| error.to_string())?;
        let response = self
            .client
            .request(request)
            .await
            .map_err(|error| chain(&error))?;
        let status = response.status();
        // Read to its end, so that the connection can be used again.
        let _ = Limited::new(response.into_body(), 64 << 10).collect().await;
        Ok(status)
    }

    fn complain(&mut self, problem: &str) {
        let recent = |at: Instant| at.elapsed() < Duration::from_secs(60);
        if !self.complained.is_some_and(recent) {
            self.complained = Some(Instant::now());
            tracing::warn!(
                endpoint = self.settings.endpoint,
                problem,
                "telemetry was lost"
            );
        }
    }
}

fn is_retryable(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 502 | 503 | 504)
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// Trusts what the operating system trusts; without any such certificates, plain HTTP still works.
fn tls_config() -> rustls::ClientConfig {
    use rustls_platform_verifier::BuilderVerifierExt;
    let builder = || {
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring serves the default versions")
    };
    match builder().with_platform_verifier() {
        Ok(verified) => verified.with_no_client_auth(),
        Err(_) => builder()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth(),
    }
}
