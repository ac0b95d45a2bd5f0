//! What the server counts, in the text form that Prometheus reads.
//!
//! Families are declared in `FAMILIES`, each with its help and the names of its labels; code
//! that has something to count holds the handle and names the family. A series exists from the first
//! time it is touched. The values of labels come from fixed sets (routes, statuses, kinds of
//! operations), never from a request, so their number is bounded.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Upper bounds of the buckets of durations, in seconds. Polls last up to 30.
const SECONDS: [f64; 12] = [
    0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 300.0,
];
/// What the body of an exposition is.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A family of series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    /// Requests answered, by `method`, `route` and `status`.
    Requests,
    /// How long that took, by `route`.
    RequestSeconds,
    /// Operations finished, by `kind` and `outcome`.
    Operations,
    /// How long they took to compute, by `kind`.
    OperationSeconds,
    /// What waits, by `queue`.
    QueueLength,
    /// Tokens, by `kind`: trained, sampled, prefilled or cached.
    Tokens,
    /// Bytes on the disk, by `kind`.
    StoredBytes,
    /// Sessions, models and samplers in use, by `kind`.
    Live,
    /// How long the server has run.
    Uptime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// A family's name, kind, labels and help.
struct Described(
    Family,
    &'static str,
    Kind,
    &'static [&'static str],
    &'static str,
);

const FAMILIES: [Described; 9] = [
    Described(
        Family::Requests,
        "tinkrs_requests_total",
        Kind::Counter,
        &["method", "route", "status"],
        "Requests answered.",
    ),
    Described(
        Family::RequestSeconds,
        "tinkrs_request_seconds",
        Kind::Histogram,
        &["route"],
        "Time from a request's head to its answer's head.",
    ),
    Described(
        Family::Operations,
        "tinkrs_operations_total",
        Kind::Counter,
        &["kind", "outcome"],
        "Operations finished.",
    ),
    Described(
        Family::OperationSeconds,
        "tinkrs_operation_seconds",
        Kind::Histogram,
        &["kind"],
        "Time that operations took to compute.",
    ),
    Described(
        Family::QueueLength,
        "tinkrs_queue_length",
        Kind::Gauge,
        &["queue"],
        "Operations and samples that wait or run.",
    ),
    Described(
        Family::Tokens,
        "tinkrs_tokens_total",
        Kind::Counter,
        &["kind"],
        "Tokens trained on, sampled, prefilled, or found in the prefix cache.",
    ),
    Described(
        Family::StoredBytes,
        "tinkrs_stored_bytes",
        Kind::Gauge,
        &["kind"],
        "Bytes in the data folder.",
    ),
    Described(
        Family::Live,
        "tinkrs_live",
        Kind::Gauge,
        &["kind"],
        "Sessions, models and samplers in use.",
    ),
    Described(
        Family::Uptime,
        "tinkrs_uptime_seconds",
        Kind::Gauge,
        &[],
        "Time since the server started.",
    ),
];

/// All counts: a handle that is cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    started: Instant,
    series: Mutex<BTreeMap<Family, BTreeMap<Vec<String>, Series>>>,
}

#[derive(Clone, Debug, Default)]
struct Series {
    /// The value, or for a histogram the sum of what was observed.
    value: f64,
    /// How many observations fell into each bucket, and into the last one, which has no bound.
    buckets: [u64; SECONDS.len() + 1],
}

impl Default for Metrics {
    fn default() -> Self {
        let series = Mutex::default();
        let started = Instant::now();
        Self {
            shared: Arc::new(Shared { started, series }),
        }
    }
}

impl Metrics {
    /// Adds to a counter.
    pub(crate) fn add(&self, family: Family, labels: &[&str], amount: f64) {
        self.change(family, labels, |series| series.value += amount);
    }

    /// Adds one to a counter.
    pub(crate) fn count(&self, family: Family, labels: &[&str]) {
        self.add(family, labels, 1.0);
    }

    /// Sets a gauge.
    pub(crate) fn set(&self, family: Family, labels: &[&str], value: f64) {
        self.change(family, labels, |series| series.value = value);
    }

    /// Adds a duration to a histogram.
    pub(crate) fn observe(&self, family: Family, labels: &[&str], duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = SECONDS.partition_point(|bound| *bound < seconds);
        self.change(family, labels, |series| {
            series.value += seconds;
            series.buckets[bucket] += 1;
        });
    }

    /// Answers with all series.
    pub(crate) fn show(&self) -> Response {
        ([(header::CONTENT_TYPE, CONTENT_TYPE)], self.exposition()).into_response()
    }

    /// Writes everything in the form that Prometheus reads.
    fn exposition(&self) -> String {
        let uptime = self.shared.started.elapsed().as_secs_f64();
        self.set(Family::Uptime, &[], uptime);
        let all = self.series();
        let mut text = String::new();
        for Described(family, name, kind, labels, help) in &FAMILIES {
            let Some(series) = all.get(family) else {
                continue;
            };
            let kind_name = match kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram => "histogram",
            };
            // Writing to a text cannot fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind_name}");
            for (values, series) in series {
                let labels: Vec<_> = labels.iter().copied().zip(values).collect();
                match kind {
                    Kind::Histogram => write_histogram(&mut text, name, &labels, series),
                    _ => write_line(&mut text, name, &labels, None, series.value),
                }
            }
        }
        text
    }

    fn change(&self, family: Family, labels: &[&str], change: impl FnOnce(&mut Series)) {
        debug_assert!(
            FAMILIES
                .iter()
                .any(|it| it.0 == family && it.3.len() == labels.len()),
            "{family:?} {labels:?}"
        );
        let labels: Vec<_> = labels.iter().map(|label| (*label).to_owned()).collect();
        let mut series = self.series();
        change(series.entry(family).or_default().entry(labels).or_default());
    }

    fn series(&self) -> MutexGuard<'_, BTreeMap<Family, BTreeMap<Vec<String>, Series>>> {
        // Counts are changed by single statements, so a panic leaves them whole.
        self.shared
            .series
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn write_histogram(text: &mut String, name: &str, labels: &[(&str, &String)], series: &Series) {
    let bucket_name = format!("{name}_bucket");
    let mut below = 0;
    for (index, count) in series.buckets.iter().enumerate() {
        below += count;
        let bound = SECONDS.get(index).map_or("+Inf".to_owned(), f64::to_string);
        write_line(text, &bucket_name, labels, Some(&bound), below as f64);
    }
    write_line(text, &format!("{name}_sum"), labels, None, series.value);
    write_line(text, &format!("{name}_count"), labels, None, below as f64);
}

fn write_line(
    text: &mut String,
    name: &str,
    labels: &[(&str, &String)],
    bound: Option<&String>,
    value: f64,
) {
    let labels = labels
        .iter()
        .copied()
        .chain(bound.map(|bound| ("le", bound)));
    let labels: Vec<_> = labels
        .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
        .collect();
    let labels = match labels.is_empty() {
        true => String::new(),
        false => format!("{{{}}}", labels.join(",")),
    };
    let _ = writeln!(text, "{name}{labels} {value}");
}

/// Writes a label's value so that it stays on its line and inside its quotes.
fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// Counts a request and writes one line about it to the log.
///
/// It goes around all routes: `Router::layer(middleware::from_fn_with_state(metrics, observe))`. The
/// route is the pattern that matched, never the path, which may hold names; headers, keys and bodies
/// are not looked at.
pub(crate) async fn observe(
    State(metrics): State<Metrics>,
    request: Request,
    next: Next,
) -> Response {
    let start = Instant::now();
    let method = known_method(request.method().as_str());
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    let response = next.run(request).await;
    let (elapsed, status) = (start.elapsed(), response.status());
    metrics.count(Family::Requests, &[method, route, status.as_str()]);
    metrics.observe(Family::RequestSeconds, &[route], elapsed);
    tracing::info!(
        method,
        route,
        status = status.as_u16(),
        duration_ms = elapsed.as_secs_f64() * 1e3,
        bytes = body_bytes(&response),
        "answered a request"
    );
    response
}

/// Anyone can make up methods, so those that no route has count as one.
fn known_method(method: &str) -> &'static str {
    const KNOWN: [&str; 6] = ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"];
    KNOWN
        .into_iter()
        .find(|known| *known == method)
        .unwrap_or("OTHER")
}

/// The size of an answer, where it is known before it is sent.
fn body_bytes(response: &Response) -> Option<u64> {
    axum::body::HttpBody::size_hint(response.body()).exact()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::middleware;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    #[test]
    fn series_are_written_in_the_text_form() {
        let metrics = Metrics::default();
        metrics.count(Family::Operations, &["optim_step", "done"]);
        metrics.add(Family::Operations, &["optim_step", "done"], 2.0);
        metrics.set(Family::QueueLength, &["samples"], 7.0);
        metrics.set(Family::QueueLength, &["samples"], 3.0);
        metrics.add(Family::Tokens, &["sampled"], 1e9);
        let text = metrics.exposition();
        for line in [
            "# HELP tinkrs_operations_total Operations finished.",
            "# TYPE tinkrs_operations_total counter",
            r#"tinkrs_operations_total{kind="optim_step",outcome="done"} 3"#,
            r#"tinkrs_queue_length{queue="samples"} 3"#,
            r#"tinkrs_tokens_total{kind="sampled"} 1000000000"#,
            "# TYPE tinkrs_uptime_seconds gauge",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
        }
        assert!(!text.contains("tinkrs_stored_bytes"), "{text}");
        assert!(text.ends_with('\n'));
    }

    #[test]
    fn buckets_count_everything_up_to_their_bound() {
        let metrics = Metrics::default();
        for millis in [1, 2, 400, 1_000_000] {
            let duration = Duration::from_millis(millis);
            metrics.observe(Family::RequestSeconds, &["/x"], duration);
        }
        let text = metrics.exposition();
        for (bound, count) in [
            ("0.001", 1),
            ("0.003", 2),
            ("0.3", 2),
            ("1", 3),
            ("300", 3),
            ("+Inf", 4),
        ] {
            let line =
                format!(r#"tinkrs_request_seconds_bucket{{route="/x",le="{bound}"}} {count}"#);
            assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
        }
        assert!(
            text.contains("tinkrs_request_seconds_sum{route=\"/x\"} 1000.403\n"),
            "{text}"
        );
        assert!(
            text.contains("tinkrs_request_seconds_count{route=\"/x\"} 4\n"),
            "{text}"
        );
    }

    #[test]
    fn labels_stay_inside_their_quotes() {
        assert_eq!(escaped("a\"b\\c\nd"), r#"a\"b\\c\nd"#);
    }

    #[test]
    fn every_family_is_described_once() {
        for (index, described) in FAMILIES.iter().enumerate() {
            let Described(family, name, kind, _, help) = described;
            let others = &FAMILIES[index + 1..];
            assert!(
                others.iter().all(|it| it.0 != *family && it.1 != *name),
                "{name}"
            );
            assert_eq!(*kind == Kind::Counter, name.ends_with("_total"), "{name}");
            assert!(
                help.ends_with('.') && !help.contains(['\\', '\n']),
                "{name}"
            );
        }
    }

    #[tokio::test]
    async fn requests_are_counted_by_route_and_not_by_path() {
        let metrics = Metrics::default();
        let routes = Router::new()
            .route("/runs/{id}", get(|| async { "ok" }))
            .route(
                "/metrics",
                get(|State(metrics): State<Metrics>| async move { metrics.show() }),
            )
            .layer(middleware::from_fn_with_state(metrics.clone(), observe))
            .with_state(metrics);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move { axum::serve(listener, routes).await });
        let send = async |method: &str, path: &str| {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let head = format!(
                "{method} {path} HTTP/1.1\r\nHost: x\r\nX-API-Key: tml-secret\r\nConnection: close\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        for (method, path) in [
            ("GET", "/runs/secret-1"),
            ("GET", "/runs/secret-2"),
            ("BREW", "/runs/secret-3"),
            ("GET", "/secret-4"),
        ] {
            send(method, path).await;
        }
        let text = send("GET", "/metrics").await;
        assert!(
            text.contains("content-type: text/plain; version=0.0.4"),
            "{text}"
        );
        for line in [
            r#"tinkrs_requests_total{method="GET",route="/runs/{id}",status="200"} 2"#,
            r#"tinkrs_requests_total{method="OTHER",route="/runs/{id}",status="405"} 1"#,
            r#"tinkrs_requests_total{method="GET",route="none",status="404"} 1"#,
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
        }
        assert!(!text.contains("secret"), "{text}");
        serving.abort();
    }
}
