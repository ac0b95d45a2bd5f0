//! Spans of operations and of the calls that they are made of, for OpenTelemetry. Without the feature `otel`, nothing.
//!
//! An operation (a pass, a step, a sample) is a span below the one that its caller is in. Every try of a call is a span below its
//! operation, and its `traceparent` header makes the server's spans continue from there. Calls that the client makes by itself,
//! such as heartbeats, have none.

#[cfg(not(feature = "otel"))]
pub(crate) use off::{OperationSpan, count, inherit, propagate, trace};
#[cfg(feature = "otel")]
pub(crate) use on::{OperationSpan, count, inherit, propagate, trace};

#[cfg(feature = "otel")]
mod on {
    use std::future::Future;
    use std::sync::{Arc, Mutex, Once};

    use http::{HeaderMap, HeaderValue};
    use tinkrs_otel::{Kind, Span, current, in_scope};
    use tinkrs_wire::endpoint;

    use crate::connection::call::{Call, Response};
    use crate::connection::errors::AttemptError;
    use crate::connection::stats::{Counters, Stats};
    use crate::lock::lock;

    /// The span of an operation. It ends with its last clone.
    #[derive(Clone, Debug)]
    pub(crate) struct OperationSpan(Arc<Span>);

    impl OperationSpan {
        /// Starts it where the caller is.
        pub(crate) fn start(operation: &'static str) -> Self {
            Self(Arc::new(Span::start(operation, Kind::Internal)))
        }

        /// Runs a part of the operation.
        pub(crate) async fn run<F: Future>(self, part: F) -> F::Output {
            in_scope(self.0.context(), part).await
        }
    }

    /// Keeps a task that is spawned in the span of the one that spawns it.
    pub(crate) fn inherit<F: Future>(task: F) -> impl Future<Output = F::Output> {
        in_scope(current(), task)
    }

    /// Adds the header that tells the server where the call belongs.
    pub(crate) fn propagate(headers: &mut HeaderMap) {
        let value = current().map(|context| HeaderValue::try_from(context.to_string()));
        if let Some(Ok(value)) = value {
            headers.insert("traceparent", value);
        }
    }

    /// Makes one try of a call, in a span of its own.
    pub(crate) async fn trace(
        call: &Call,
        retries: u32,
        attempt: impl Future<Output = Result<Response, AttemptError>>,
    ) -> Result<Response, AttemptError> {
        let own = [
            &endpoint::SESSION_HEARTBEAT,
            &endpoint::TELEMETRY,
            &endpoint::CLIENT_DYNAMIC_CONFIG,
        ];
        if !tinkrs_otel::is_active() || own.iter().any(|own| own.name == call.endpoint.name) {
            return attempt.await;
        }
        let name = format!("{} {}", call.method(), call.endpoint.path);
        let mut span = Span::start(name, Kind::Client);
        span.set("tinker.operation", call.operation);
        span.set("http.request.method", call.method().as_str());
        span.set("url.template", call.endpoint.path);
        if retries > 0 {
            span.set("http.request.resend_count", i64::from(retries));
        }
        let result = in_scope(span.context(), attempt).await;
        let status = match &result {
            Ok(_) => Some(200),
            Err(error) => error.status(),
        };
        if let Some(status) = status {
            span.set("http.response.status_code", i64::from(status));
        }
        if let Err(error) = &result {
            let reason = error.status().map(|status| status.to_string());
            // What the server wrote may repeat what was sent: the status has to do.
            span.fail(reason.unwrap_or_else(|| error.describe()));
        }
        result
    }

    /// The counters of all connections of the process, and the sum of those that are gone.
    static COUNTED: Mutex<(Vec<Arc<Counters>>, Option<Stats>)> = Mutex::new((Vec::new(), None));

    /// Exports the counters of a connection, summed with those of all others.
    pub(crate) fn count(counters: &Arc<Counters>) {
        static EXPORTED: Once = Once::new();
        if tinkrs_otel::is_active() {
            lock(&COUNTED).0.push(Arc::clone(counters));
            EXPORTED.call_once(|| tinkrs_otel::add_metrics(|| Some(metrics(total()))));
        }
    }

    fn total() -> Stats {
        let mut counted = lock(&COUNTED);
        let (connections, gone) = &mut *counted;
        let mut sum = gone.unwrap_or_default();
        connections.retain(|counters| {
            let is_live = Arc::strong_count(counters) > 1;
            if !is_live {
                sum = sum.plus(counters.snapshot());
            }
            is_live
        });
        *gone = Some(sum);
        connections
            .iter()
            .fold(sum, |sum, counters| sum.plus(counters.snapshot()))
    }

    fn metrics(stats: Stats) -> String {
        let Stats {
            in_flight,
            calls,
            retries,
            bytes_sent,
            bytes_received,
            paused,
        } = stats;
        let paused = paused.as_secs_f64();
        format!(
            "# TYPE tinkrs_client_in_flight gauge\ntinkrs_client_in_flight {in_flight}\n\
             # TYPE tinkrs_client_calls counter\ntinkrs_client_calls_total {calls}\n\
             # TYPE tinkrs_client_retries counter\ntinkrs_client_retries_total {retries}\n\
             # TYPE tinkrs_client_sent_bytes counter\ntinkrs_client_sent_bytes_total {bytes_sent}\n\
             # TYPE tinkrs_client_received_bytes counter\ntinkrs_client_received_bytes_total {bytes_received}\n\
             # TYPE tinkrs_client_paused_seconds counter\ntinkrs_client_paused_seconds_total {paused}\n"
        )
    }
}

#[cfg(not(feature = "otel"))]
mod off {
    use std::future::Future;
    use std::sync::Arc;

    use http::HeaderMap;

    use crate::connection::call::{Call, Response};
    use crate::connection::errors::AttemptError;
    use crate::connection::stats::Counters;

    #[derive(Clone, Debug)]
    pub(crate) struct OperationSpan;

    impl OperationSpan {
        pub(crate) fn start(_: &'static str) -> Self {
            Self
        }

        pub(crate) async fn run<F: Future>(self, part: F) -> F::Output {
            part.await
        }
    }

    pub(crate) fn inherit<F: Future>(task: F) -> F {
        task
    }

    pub(crate) fn propagate(_: &mut HeaderMap) {}

    pub(crate) async fn trace(
        _: &Call,
        _: u32,
        attempt: impl Future<Output = Result<Response, AttemptError>>,
    ) -> Result<Response, AttemptError> {
        attempt.await
    }

    pub(crate) fn count(_: &Arc<Counters>) {}
}
