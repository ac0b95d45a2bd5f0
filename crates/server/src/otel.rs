//! Spans of requests and of the operations behind them, and the metrics, for OpenTelemetry. Without the feature `otel`, nothing.
//!
//! A request's span continues the trace that its `traceparent` names. An operation that the request brought about is a
//! span below it, from its acceptance to its result, with two parts: `queue` and `compute`. Routes, kinds, ids and statuses are
//! told; what a request carries is not.

#[cfg(not(feature = "otel"))]
pub(crate) use off::{AcceptedOperation, ExportedMetrics, RequestSpan};
#[cfg(feature = "otel")]
pub(crate) use on::{AcceptedOperation, ExportedMetrics, RequestSpan};

#[cfg(feature = "otel")]
mod on {
    use std::future::Future;
    use std::sync::{Arc, Mutex};
    use std::time::SystemTime;

    use axum::extract::Request;
    use axum::response::Response;
    use jiff::Timestamp;
    use tinkrs_otel::{Kind, Span, Timed, TraceContext, in_scope};
    use tinkrs_types::RequestId;
    use tinkrs_wire::endpoint;

    use crate::Server;
    use crate::accept::Submission;
    use crate::lock::lock;

    /// The span of a request, from its head to its response's head.
    pub(crate) struct RequestSpan(Option<Span>);

    impl RequestSpan {
        pub(crate) fn start(method: &'static str, route: &'static str, request: &Request) -> Self {
            // Those that watch the server would fill the traces with themselves.
            if [endpoint::HEALTHZ.path, endpoint::GET_METRICS.path].contains(&route) {
                return Self(None);
            }
            let parent = request.headers().get("traceparent");
            let parent = parent.and_then(|value| TraceContext::parse(value.to_str().ok()?));
            let mut span = Span::start_below(parent, format!("{method} {route}"), Kind::Server);
            span.set("http.request.method", method);
            span.set("http.route", route);
            Self(Some(span))
        }

        /// Runs the handler of the request.
        pub(crate) async fn run(&self, handler: impl Future<Output = Response>) -> Response {
            let context = self.0.as_ref().and_then(Span::context);
            in_scope(context, handler).await
        }

        pub(crate) fn end(mut self, status: u16) {
            if let Some(span) = &mut self.0 {
                span.set("http.response.status_code", i64::from(status));
                if status >= 500 {
                    span.fail(status.to_string());
                }
            }
        }
    }

    /// An operation that was accepted and has not ended.
    #[derive(Debug)]
    pub(crate) struct AcceptedOperation {
        since: SystemTime,
        span: Mutex<Option<Span>>,
    }

    impl AcceptedOperation {
        /// Accepts an operation for the request that is being handled.
        pub(crate) fn now() -> Self {
            let span = tinkrs_otel::is_active().then(|| Span::start("operation", Kind::Internal));
            let since = SystemTime::now();
            Self {
                since,
                span: Mutex::new(span),
            }
        }

        /// Says what it is.
        pub(crate) fn describe(&self, id: &RequestId, submission: &Submission) {
            if let Some(span) = lock(&self.span).as_mut() {
                span.rename(submission.kind);
                span.set("tinker.operation", submission.kind);
                span.set("tinker.request_id", id.as_str());
                span.set("tinker.subject", submission.subject.as_str());
                if let Some(seq_id) = submission.seq_id {
                    span.set("tinker.seq_id", seq_id);
                }
            }
        }

        /// Ends it: it waited until `begun`, and was then computed.
        pub(crate) fn end(&self, begun: Option<Timestamp>, failed: bool) {
            let Some(mut span) = lock(&self.span).take() else {
                return;
            };
            if let Some(begun) = begun {
                // Known to the millisecond only.
                let begun = SystemTime::from(begun).max(self.since);
                span.part(
                    "queue",
                    Timed {
                        start: self.since,
                        end: begun,
                    },
                );
                span.part(
                    "compute",
                    Timed {
                        start: begun,
                        end: SystemTime::now(),
                    },
                );
            }
            if failed {
                span.fail("the operation failed");
            }
        }
    }

    impl Drop for AcceptedOperation {
        fn drop(&mut self) {
            // Without a result, an operation was withdrawn, or waits in the journal for the next start of the server.
            if let Some(span) = lock(&self.span).take() {
                span.forget();
            }
        }
    }

    /// What `/metrics` shows, exported for as long as the server is there, and once more after that.
    pub(crate) struct ExportedMetrics {
        last: Arc<Mutex<Option<String>>>,
    }

    impl ExportedMetrics {
        pub(crate) fn start(server: &Server) -> Self {
            let last = Arc::new(Mutex::new(None));
            if tinkrs_otel::is_active() {
                let (shared, last) = (server.weak_shared(), Arc::clone(&last));
                tinkrs_otel::add_metrics(move || match shared.upgrade() {
                    Some(shared) => {
                        shared.measure();
                        Some(shared.metrics.exposition())
                    }
                    None => lock(&last).take(),
                });
            }
            Self { last }
        }

        /// Keeps what the metrics are now. The exporter sends for the last time when the process ends, and by then
        /// there is no server to ask.
        pub(crate) fn keep_last(self, server: &Server) {
            if tinkrs_otel::is_active() {
                let shared = server.shared();
                shared.measure();
                *lock(&self.last) = Some(shared.metrics.exposition());
            }
        }
    }
}

#[cfg(not(feature = "otel"))]
mod off {
    use std::future::Future;

    use axum::extract::Request;
    use axum::response::Response;
    use jiff::Timestamp;
    use tinkrs_types::RequestId;

    use crate::Server;
    use crate::accept::Submission;

    pub(crate) struct RequestSpan;

    impl RequestSpan {
        pub(crate) fn start(_: &'static str, _: &'static str, _: &Request) -> Self {
            Self
        }

        pub(crate) async fn run(&self, handler: impl Future<Output = Response>) -> Response {
            handler.await
        }

        pub(crate) fn end(self, _: u16) {}
    }

    #[derive(Debug)]
    pub(crate) struct AcceptedOperation;

    impl AcceptedOperation {
        pub(crate) fn now() -> Self {
            Self
        }

        pub(crate) fn describe(&self, _: &RequestId, _: &Submission) {}

        pub(crate) fn end(&self, _: Option<Timestamp>, _: bool) {}
    }

    pub(crate) struct ExportedMetrics;

    impl ExportedMetrics {
        pub(crate) fn start(_: &Server) -> Self {
            Self
        }

        pub(crate) fn keep_last(self, _: &Server) {}
    }
}
