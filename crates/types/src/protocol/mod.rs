//! What clients and servers tell each other and users of the SDK never see.
//!
//! Promises, settings of the client, telemetry, and the names and limits of the wire. The SDK
//! does not re-export this module, and it promises no stability: the crates of one release use
//! it together.

mod config;
mod future;
pub mod key;
pub(crate) mod number;
mod telemetry;
mod ttl;

pub use config::{ClientConfig, DynamicConfig};
pub use future::{Completion, FailedRequest, Promise, QueueStatus, RequestType, SAMPLE_SEQ_BLOCK};
pub use number::JsonNumber;
pub use telemetry::{Severity, TelemetryBatch, TelemetryEvent, TelemetryEventKind};
pub use ttl::{TTL_MAX_SECONDS, TTL_MIN_SECONDS, check_ttl};
