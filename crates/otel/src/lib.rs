//! Traces and metrics for OpenTelemetry collectors, over OTLP/HTTP with JSON.
//!
//! [`start`] begins to export, once in a process; until then nothing here costs more than a look at an atomic. A
//! [`Span`] is recorded when it is dropped, [`in_scope`] makes it the parent of what a future does, and
//! [`TraceContext`] is what travels in the header `traceparent`. Metrics are read from texts in the format of OpenMetrics,
//! which is what `/metrics` shows, so that they are defined once.
//!
//! ```no_run
//! # async fn example() -> Result<(), tinkrs_otel::Error> {
//! // OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME and others; `None` if there is no endpoint.
//! let exporting = match tinkrs_otel::Settings::from_env("my-loop")? {
//!     Some(settings) => Some(tinkrs_otel::start(settings)?),
//!     None => None,
//! };
//! let step = tinkrs_otel::Span::start("step", tinkrs_otel::Kind::Internal);
//! tinkrs_otel::in_scope(step.context(), async { /* calls of a Tinker client are its children */ }).await;
//! drop(step);
//! drop(exporting); // what is left is sent
//! # Ok(())
//! # }
//! ```
//!
//! Nothing that a request carries is exported: no keys, prompts, tokens or paths with names in them. What cannot be sent is
//! dropped and counted, and never holds up a program.

mod context;
mod encode;
mod exporter;
mod openmetrics;
mod settings;
mod span;

pub use context::{TraceContext, current, in_scope};
pub use exporter::{Exporting, add_metrics, is_active, start};
pub use settings::Settings;
pub use span::{Kind, Span, Timed, Value};

/// Why telemetry cannot be exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting cannot be used.
    #[error("{name}: {problem}")]
    Setting {
        /// The variable or field.
        name: &'static str,
        /// What is wrong with it, and what is allowed.
        problem: String,
    },
    /// Exporting was started before.
    #[error("telemetry is exported already in this process")]
    Started,
    /// The thread that exports could not be started.
    #[error("could not start the thread that exports telemetry")]
    Thread(#[from] std::io::Error),
}
