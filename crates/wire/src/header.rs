//! Header names, in lower case as HTTP libraries want them.

/// The credential: a key or a token.
pub const API_KEY: &str = "x-api-key";
/// The credential as clients of other APIs send it: `Bearer` and the key.
pub const AUTHORIZATION: &str = "authorization";
/// The level of the API that the client speaks.
pub const PACKAGE_VERSION: &str = "x-stainless-package-version";
/// How often the client retried this call.
pub const RETRY_COUNT: &str = "x-stainless-retry-count";
/// How long the client waits for an answer, in seconds.
pub const READ_TIMEOUT: &str = "x-stainless-read-timeout";
/// The same for all tries of one call.
pub const IDEMPOTENCY_KEY: &str = "x-idempotency-key";
/// `1`: the client takes 429 as "slow down".
pub const SAMPLING_BACKPRESSURE: &str = "x-tinker-sampling-backpressure";
/// How many polls for this result came before.
pub const REQUEST_ITERATION: &str = "x-tinker-request-iteration";
/// What kind of request the result is of.
pub const REQUEST_TYPE: &str = "x-tinker-request-type";
/// How long it took to get the promise, in seconds; on the first poll only.
pub const CREATE_PROMISE_ROUNDTRIP_TIME: &str = "x-tinker-create-promise-roundtrip-time";
/// The credential of an account that may read the weights.
pub const WEIGHTS_ACCESS_TOKEN: &str = "x-tinker-weights-access-token";
/// The client's version, on metadata calls.
pub const SDK_VERSION: &str = "x-sdk-version";
/// The client's method, on metadata calls.
pub const SDK_METHOD: &str = "x-sdk-method";
/// For Cloudflare Access.
pub const CF_ACCESS_CLIENT_ID: &str = "cf-access-client-id";
/// For Cloudflare Access.
pub const CF_ACCESS_CLIENT_SECRET: &str = "cf-access-client-secret";

/// `true` or `false`: whether to retry, whatever the status says.
pub const SHOULD_RETRY: &str = "x-should-retry";
/// How long to wait, in milliseconds.
pub const RETRY_AFTER_MS: &str = "retry-after-ms";
/// How long to wait, in seconds or as a date.
pub const RETRY_AFTER: &str = "retry-after";
/// What the client should know before something is removed.
pub const DEPRECATION_NOTE: &str = "x-deprecation-note";
/// `error` makes the note an error.
pub const DEPRECATION_LEVEL: &str = "x-deprecation-level";

/// The content type of protobuf messages.
pub const PROTOBUF: &str = "application/x-protobuf";
/// The content type of archives.
pub const TAR: &str = "application/x-tar";
/// Which version of its API a client of Anthropic speaks.
pub const ANTHROPIC_VERSION: &str = "anthropic-version";
/// `1` on writes of the studio's own pages, which no page of another site can send.
pub const STUDIO: &str = "x-tinkrs-studio";
/// The content type of forms.
pub const FORM: &str = "application/x-www-form-urlencoded";
/// The content type of JSON.
pub const JSON: &str = "application/json";
/// The content type of server-sent events.
pub const EVENT_STREAM: &str = "text/event-stream";
/// The content type of files of any kind.
pub const BYTES: &str = "application/octet-stream";
/// The content type of pages.
pub const HTML: &str = "text/html; charset=utf-8";
/// The content type of metrics, in the text format of OpenMetrics, which Prometheus reads.
pub const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
