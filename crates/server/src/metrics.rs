//! What the server counts, for Prometheus.
//!
//! Each family is a field with typed labels; code that has something to count holds the handle. A series
//! exists from the first time it is touched. The values of labels come from fixed sets (routes,
//! statuses, kinds of operations), never from a request, so their number is bounded.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tinkrs_wire::endpoint::{self, Dialect};

use crate::otel::RequestSpan;
use crate::router;

/// Upper bounds of the buckets of durations, in seconds. Polls last up to 30.
const SECONDS: [f64; 12] = [
    0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 300.0,
];

/// All metrics: a handle that is cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    families: Arc<Families>,
}

#[derive(Debug)]
struct Families {
    started: Instant,
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    request_seconds: Family<RouteLabel, Histogram>,
    operations: Family<OperationLabels, Counter>,
    operation_seconds: Family<KindLabel, Histogram>,
    tokens: Family<KindLabel, Counter>,
    queue_length: Family<QueueLabel, Gauge>,
    stored_bytes: Family<KindLabel, Gauge>,
    memory_bytes: Family<KindLabel, Gauge>,
    memory_limit: Gauge,
    live: Family<KindLabel, Gauge>,
    uptime: Gauge<f64, AtomicU64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    method: &'static str,
    route: &'static str,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabel {
    route: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabels {
    kind: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueueLabel {
    queue: &'static str,
}

fn durations() -> Histogram {
    Histogram::new(SECONDS)
}

impl Default for Metrics {
    fn default() -> Self {
        let mut families = Families {
            started: Instant::now(),
            registry: Registry::with_prefix("tinkrs"),
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(durations as fn() -> Histogram),
            operations: Family::default(),
            operation_seconds: Family::new_with_constructor(durations as fn() -> Histogram),
            tokens: Family::default(),
            queue_length: Family::default(),
            stored_bytes: Family::default(),
            memory_bytes: Family::default(),
            memory_limit: Gauge::default(),
            live: Family::default(),
            uptime: Gauge::default(),
        };
        families.register();
        Self {
            families: Arc::new(families),
        }
    }
}

impl Families {
    /// Names the families. The registry adds `_total` to counters, and a full stop to each help text.
    fn register(&mut self) {
        let registry = &mut self.registry;
        registry.register("requests", "Requests answered", self.requests.clone());
        registry.register_with_unit(
            "request",
            "Time from a request's head to its answer's head",
            Unit::Seconds,
            self.request_seconds.clone(),
        );
        registry.register("operations", "Operations finished", self.operations.clone());
        registry.register_with_unit(
            "operation",
            "Time that operations took to compute",
            Unit::Seconds,
            self.operation_seconds.clone(),
        );
        registry.register(
            "queue_length",
            "Operations and samples that wait or run",
            self.queue_length.clone(),
        );
        registry.register(
            "tokens",
            "Tokens trained on, sampled, prefilled, or found in the prefix cache",
            self.tokens.clone(),
        );
        registry.register_with_unit(
            "stored",
            "Bytes in the data folder",
            Unit::Bytes,
            self.stored_bytes.clone(),
        );
        registry.register_with_unit(
            "memory",
            "Memory that is accounted for",
            Unit::Bytes,
            self.memory_bytes.clone(),
        );
        registry.register_with_unit(
            "memory_limit",
            "Memory that the server may use",
            Unit::Bytes,
            self.memory_limit.clone(),
        );
        registry.register(
            "live",
            "Sessions, models and samplers in use",
            self.live.clone(),
        );
        registry.register_with_unit(
            "uptime",
            "Time since the server started",
            Unit::Seconds,
            self.uptime.clone(),
        );
    }
}

impl Metrics {
    /// Counts an operation that finished, and how.
    pub(crate) fn operation(&self, kind: &'static str, outcome: &'static str) {
        let labels = OperationLabels { kind, outcome };
        self.families.operations.get_or_create(&labels).inc();
    }

    /// Notes how long an operation took to compute.
    pub(crate) fn operation_time(&self, kind: &'static str, elapsed: Duration) {
        let times = &self.families.operation_seconds;
        let times = times.get_or_create(&KindLabel { kind });
        times.observe(elapsed.as_secs_f64());
    }

    /// Returns the counts of tokens, by what was done with them.
    pub(crate) fn token_counts(&self) -> BTreeMap<String, u64> {
        let kinds = ["trained", "sampled", "prefilled", "cached"];
        let count = |kind| {
            let tokens = self.families.tokens.get_or_create(&KindLabel { kind });
            (kind.to_owned(), tokens.get())
        };
        kinds.map(count).into()
    }

    /// Counts tokens: trained, sampled, prefilled or cached.
    pub(crate) fn tokens(&self, kind: &'static str, count: u64) {
        let tokens = self.families.tokens.get_or_create(&KindLabel { kind });
        tokens.inc_by(count);
    }

    /// Sets how many requests wait or run.
    pub(crate) fn set_pending(&self, count: usize) {
        let labels = QueueLabel { queue: "pending" };
        set(&self.families.queue_length.get_or_create(&labels), count);
    }

    /// Sets how many bytes are on the disk.
    pub(crate) fn set_stored_bytes(&self, kind: &'static str, bytes: usize) {
        let gauge = self
            .families
            .stored_bytes
            .get_or_create(&KindLabel { kind });
        set(&gauge, bytes);
    }

    /// Sets how much memory is accounted for, by kind, and how much there may be.
    pub(crate) fn set_memory(&self, usage: &[(&'static str, u64)], limit: u64) {
        for (kind, bytes) in usage {
            let gauge = self
                .families
                .memory_bytes
                .get_or_create(&KindLabel { kind });
            set(&gauge, usize::try_from(*bytes).unwrap_or(usize::MAX));
        }
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        set(&self.families.memory_limit, limit);
    }

    /// Sets how many things of a kind are in use.
    pub(crate) fn set_live(&self, kind: &'static str, count: usize) {
        set(
            &self.families.live.get_or_create(&KindLabel { kind }),
            count,
        );
    }

    /// Answers with all series.
    pub(crate) fn show(&self) -> Response {
        let headers = [(header::CONTENT_TYPE, tinkrs_wire::header::METRICS)];
        (headers, self.exposition()).into_response()
    }

    /// Writes everything in the text format of OpenMetrics.
    pub(crate) fn exposition(&self) -> String {
        let families = &self.families;
        families
            .uptime
            .set(families.started.elapsed().as_secs_f64());
        let mut exposition = String::new();
        text::encode(&mut exposition, &families.registry).expect("a text takes what is written");
        exposition
    }

    fn request(&self, method: &'static str, route: &'static str, status: u16, elapsed: Duration) {
        let labels = RequestLabels {
            method,
            route,
            status,
        };
        self.families.requests.get_or_create(&labels).inc();
        let times = &self.families.request_seconds;
        let times = times.get_or_create(&RouteLabel { route });
        times.observe(elapsed.as_secs_f64());
    }
}

fn set(gauge: &Gauge, count: usize) {
    gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
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
    let route = request.extensions().get::<MatchedPath>();
    let route = route.map_or("none", |route| known_route(route.as_str()));
    let span = RequestSpan::start(method, route, &request);
    let response = span.run(next.run(request)).await;
    let (elapsed, status) = (start.elapsed(), response.status());
    span.end(status.as_u16());
    metrics.request(method, route, status.as_u16(), elapsed);
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

/// Clients can make up methods, so those that no route has count as one.
fn known_method(method: &str) -> &'static str {
    const KNOWN: [&str; 6] = ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"];
    KNOWN
        .into_iter()
        .find(|known| *known == method)
        .unwrap_or("OTHER")
}

/// Returns the declared path that a route has, which needs no copy.
fn known_route(route: &str) -> &'static str {
    let hosted = Dialect::of_path(route).hosted_prefix();
    let route = route.strip_prefix(hosted).unwrap_or(route);
    let mut endpoints = endpoint::ALL.iter();
    let endpoint = endpoints.find(|endpoint| router::pattern(endpoint) == route);
    endpoint.map_or("none", |endpoint| endpoint.path)
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
    fn series_are_written_in_the_text_format() {
        let metrics = Metrics::default();
        for _ in 0..3 {
            metrics.operation("optim_step", "done");
        }
        metrics.set_pending(7);
        metrics.set_pending(3);
        metrics.tokens("sampled", 1_000_000_000);
        let text = metrics.exposition();
        for line in [
            "# HELP tinkrs_operations Operations finished.",
            "# TYPE tinkrs_operations counter",
            r#"tinkrs_operations_total{kind="optim_step",outcome="done"} 3"#,
            r#"tinkrs_queue_length{queue="pending"} 3"#,
            r#"tinkrs_tokens_total{kind="sampled"} 1000000000"#,
            "# TYPE tinkrs_uptime_seconds gauge",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
        }
        assert!(!text.contains("tinkrs_stored_bytes{"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    /// Words that begin with `tinkrs_`, as the names of series do.
    fn names_in(text: &str) -> std::collections::BTreeSet<&str> {
        let words = text.split(|c: char| c != '_' && !c.is_ascii_alphanumeric());
        words.filter(|word| word.starts_with("tinkrs_")).collect()
    }

    #[test]
    fn the_grafana_dashboard_shows_every_family_and_no_other() {
        let metrics = Metrics::default();
        metrics.operation("optim_step", "done");
        metrics.operation_time("optim_step", Duration::from_secs(1));
        metrics.request("GET", "/x", 200, Duration::from_secs(1));
        metrics.tokens("sampled", 1);
        metrics.set_pending(1);
        metrics.set_stored_bytes("database", 1);
        metrics.set_memory(&[("weights", 1)], 2);
        metrics.set_live("sessions", 1);
        let text = metrics.exposition();
        let series = text.lines().filter(|line| !line.starts_with('#'));
        let series: String = series.map(|line| format!("{line}\n")).collect();
        let exported = names_in(&series);
        let dashboard = include_str!("../../../docs/grafana/tinkrs.json");
        let shown = names_in(dashboard);
        for name in &shown {
            assert!(exported.contains(name), "no {name} in\n{text}");
        }
        // Of a histogram, the buckets say the most.
        let parts = ["_sum", "_count"];
        for name in exported {
            let is_part = parts.iter().any(|part| name.ends_with(part));
            assert!(is_part || shown.contains(name), "{name} is not shown");
        }
    }

    #[test]
    fn buckets_count_everything_up_to_their_bound() {
        let metrics = Metrics::default();
        for millis in [1, 2, 400, 1_000_000] {
            metrics.request("GET", "/x", 200, Duration::from_millis(millis));
        }
        let text = metrics.exposition();
        for (bound, count) in [
            ("0.001", 1),
            ("0.003", 2),
            ("0.3", 2),
            ("1.0", 3),
            ("300.0", 3),
            ("+Inf", 4),
        ] {
            let line =
                format!(r#"tinkrs_request_seconds_bucket{{le="{bound}",route="/x"}} {count}"#);
            assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
        }
        for line in [
            r#"tinkrs_request_seconds_sum{route="/x"} 1000.403"#,
            r#"tinkrs_request_seconds_count{route="/x"} 4"#,
            r#"tinkrs_requests_total{method="GET",route="/x",status="200"} 4"#,
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
        }
    }

    #[tokio::test]
    async fn requests_are_counted_by_route_and_not_by_path() {
        let metrics = Metrics::default();
        let routes = Router::new()
            .route(endpoint::SESSION_PAGE.path, get(|| async { "ok" }))
            .route(
                endpoint::GET_METRICS.path,
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
            ("GET", "/sessions/secret-1"),
            ("GET", "/sessions/secret-2"),
            ("BREW", "/sessions/secret-3"),
            ("GET", "/secret-4"),
        ] {
            send(method, path).await;
        }
        let text = send("GET", "/metrics").await;
        assert!(
            text.contains("content-type: application/openmetrics-text; version=1.0.0"),
            "{text}"
        );
        for line in [
            r#"tinkrs_requests_total{method="GET",route="/sessions/{session_id}",status="200"} 2"#,
            r#"tinkrs_requests_total{method="OTHER",route="/sessions/{session_id}",status="405"} 1"#,
            r#"tinkrs_requests_total{method="GET",route="none",status="404"} 1"#,
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
        }
        assert!(!text.contains("secret"), "{text}");
        serving.abort();
    }
}
