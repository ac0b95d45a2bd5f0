//! The Tinker SDK for Rust.
//!
//! Tinker is an API for post-training language models: you write the training loop, the service
//! runs the model. This crate is its client, for the hosted service, a cluster or a local server.
//!
//! ```no_run
//! use tinkrs::{AdamParams, Datum, FinishReason, ModelInput, SamplingParams, ServiceClient};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tinkrs::Error> {
//! let service = ServiceClient::from_env(); // TINKER_BASE_URL, TINKER_API_KEY
//! let training = service.create_lora_training_client("Qwen/Qwen3-8B").rank(16).await?;
//!
//! // Teach it to answer 7, 8 after 5, 6.
//! let batch = vec![Datum::from_prompt_completion(&[5, 6], &[7, 8])?];
//! for _ in 0..10 {
//!     let pass = training.forward_backward(batch.clone()).submit();
//!     let step = training.optim_step(AdamParams::new(1e-4)).submit(); // no waiting in between
//!     println!("loss {:.4}", pass.await?.loss().unwrap_or(f64::NAN));
//!     step.await?;
//! }
//!
//! let sampling = training.save_weights_and_get_sampling_client().await?;
//! let prompt = ModelInput::from_tokens([5, 6]);
//! let output = sampling.sample(prompt, SamplingParams::new(16)).num_samples(4).await?;
//! for sequence in &output.sequences {
//!     println!("{:?}", sequence.tokens);
//! }
//! let path = training.save_state("final").await?;
//! println!("saved {path}");
//! service.close(FinishReason::Success, None).await?;
//! # Ok(()) }
//! ```
//!
//! # What to know
//!
//! - **Order.** `submit()` is a plain function. It takes the operation's place in the model's
//!   order at the call; operations run in that order whatever is awaited when.
//! - **Exactly once.** A retried submission carries the same sequence number and the same bytes,
//!   so a server never runs it twice. One that is refused is an error on its own [`Pending`];
//!   later operations go out.
//! - **Backpressure.** All clients of one account in a process share one limiter
//!   ([`BackpressureScope`]).
//! - **Errors** are one type that answers questions: [`Error`]. Calls are retried for as long as
//!   that is worth it, by one layer: most for five minutes.
//! - **Limits.** A server that has never answered is an error after 25 s at most; one that has is waited
//!   for. A response is read up to what fits the call: 32 MiB, for results in proportion to what was
//!   asked for. Downloads stop at the announced size
//!   ([`DownloadOptions`](rest::download::DownloadOptions)).
//! - **Dropping** a [`Pending`] is documented there: training goes on, a sample is given up.
//! - **Heartbeats** are sent by a task of the runtime that the session began on. Code that blocks all of
//!   its threads for minutes (a current-thread runtime has one) looks to a server like a client that
//!   is gone, and its session is ended: put such work into `tokio::task::spawn_blocking`.
//! - **Without async**: the feature `blocking` turns every `.await` into `.wait()`.
//! - **Watching it work**: `tracing` spans for every call, [`ServiceClient::stats`] for counters,
//!   [`ServiceClientBuilder::on_queue_state`] for pauses, [`ServiceClientBuilder::on_retry`] for outages.
//!
//! # Features
//!
//! All are additive.
//!
//! | Feature | Default | What it adds | What it costs |
//! |---|---|---|---|
//! | `tokenizers` | yes | loads the tokenizer that belongs to a model, from this machine or from the Hugging Face Hub | about 50 crates, and a C compiler for the regular expressions |
//! | `blocking` | no | the same API for code without async: every `.await` becomes `.wait()` | threads of tokio |
//! | `autodiff` | no | custom losses written as tensor expressions and differentiated for you | one crate |
//! | `otel` | no | spans of operations and calls, with `traceparent` headers, and counters for OpenTelemetry collectors, once `tinkrs_otel::start` was called | one crate |
//!
//! A program that works with tokens alone needs no tokenizer library: `tinkrs = { version = "0.1",
//! default-features = false }` is at most 120 crates on Linux; with the defaults it is at most 170 crates.
//!
//! # Rust version
//!
//! Rust 1.91 is the oldest that compiles this crate with all of its features, and what `rust-version` says;
//! `conformance/registry/msrv` of the repository tries it. Tests run with 1.95, which the server and the command line need.
//!
//! # Coming from the Python SDK
//!
//! Every public method of the official client 0.36.0 has its counterpart, under the same name where
//! that is possible: hence the `get_` of some methods, which Rust would leave out. Searching these
//! docs for a Python name finds the method. The `_async` twins are the same methods here; times are
//! [`Duration`](std::time::Duration)s, and optional arguments are setters of the request.
//!
//! `docs/sdk-parity.md` of the repository has every parameter, default, type, exception, environment
//! variable and command as well, each with its counterpart or the reason why there is none. It is
//! compared with the installed Python package whenever this crate changes.
//!
//! | Python | Rust |
//! |---|---|
//! | `ServiceClient(...)` | [`ServiceClient::from_env`], [`ServiceClient::builder`] |
//! | `ServiceClient.get_server_capabilities` | [`ServiceClient::get_server_capabilities`] |
//! | `ServiceClient.create_lora_training_client` | [`ServiceClient::create_lora_training_client`] |
//! | `ServiceClient.create_training_client_from_state` | [`ServiceClient::create_training_client_from_state`] |
//! | `ServiceClient.create_training_client_from_state_with_optimizer` | [`ServiceClient::create_training_client_from_state_with_optimizer`] |
//! | `ServiceClient.create_sampling_client` | [`ServiceClient::create_sampling_client`] |
//! | `ServiceClient.create_custom_loss` | `ServiceClient::create_custom_loss` (feature `autodiff`) |
//! | `ServiceClient.copy_weights` | [`RestClient::copy_weights`] |
//! | `ServiceClient.create_rest_client` | [`ServiceClient::create_rest_client`] |
//! | `ServiceClient.get_console_url` | [`ServiceClient::get_console_url`] |
//! | `SaveWeightsResponse.get_console_url`, `SaveWeightsForSamplerResponse.get_playground_url` | [`ServiceClient::get_checkpoint_console_url`], [`ServiceClient::get_playground_url`] |
//! | `ServiceClient.close` | [`ServiceClient::close`] |
//! | `ServiceClient.get_telemetry` | [`ServiceClient::stats`] to read, [`ServiceClient::report_event`] to add to the reports, [`ServiceClientBuilder::telemetry`] to turn them off |
//! | `TrainingClient.forward` | [`TrainingClient::forward`] |
//! | `TrainingClient.forward_backward` | [`TrainingClient::forward_backward`] |
//! | `TrainingClient.forward_backward_custom` | [`TrainingClient::forward_backward_custom`]; with a handle, `TrainingClient::forward_backward_traced` (feature `autodiff`) |
//! | `TrainingClient.optim_step` | [`TrainingClient::optim_step`] |
//! | `TrainingClient.save_state` | [`TrainingClient::save_state`] |
//! | `TrainingClient.load_state` | [`TrainingClient::load_state`] |
//! | `TrainingClient.load_state_with_optimizer` | [`TrainingClient::load_state`] with `with_optimizer()` |
//! | `TrainingClient.save_weights_for_sampler` | [`TrainingClient::save_weights_for_sampler`] |
//! | `TrainingClient.save_weights_external` | [`TrainingClient::save_weights_external`] |
//! | `TrainingClient.save_weights_and_get_sampling_client` | [`TrainingClient::save_weights_and_get_sampling_client`] |
//! | `TrainingClient.create_sampling_client` | [`TrainingClient::create_sampling_client`] |
//! | `TrainingClient.get_info` | [`TrainingClient::get_info`] |
//! | `TrainingClient.get_tokenizer` | `TrainingClient::get_tokenizer` (feature `tokenizers`) |
//! | `TrainingClient.get_console_url` | [`TrainingClient::get_console_url`] |
//! | `SamplingClient.create` | [`ServiceClient::create_sampling_client`] |
//! | `SamplingClient.sample` | [`SamplingClient::sample`] |
//! | `SamplingClient.compute_logprobs` | [`SamplingClient::compute_logprobs`] |
//! | `SamplingClient.create(sampling_session_id=…)` | [`ServiceClient::attach_sampling_client`] |
//! | `SamplingClient.get_base_model` | [`SamplingClient::get_base_model`] |
//! | `SamplingClient.get_tokenizer` | `SamplingClient::get_tokenizer` (feature `tokenizers`) |
//! | `SamplingClient.get_sampler_handle` | [`SamplingClient::to_handle`] |
//! | `SamplingClient.from_sampler_handle` | [`SamplingClient::from_handle`] |
//! | `SamplingClient.on_queue_state_change` | [`ServiceClientBuilder::on_queue_state`] |
//! | `APIFuture.result(timeout)` | `.await`, `Wait::wait_timeout` (feature `blocking`) |
//! | `APIFuture.future().done()` | [`Pending::is_done`] |
//! | `LossHandle` | `CustomLossHandle`, `TracedLoss` (feature `autodiff`) |
//! | `auth.get_tinker_token` | [`auth::resolve_from_env`] and its [`fixed`](auth::CredentialSource::fixed) |
//! | `auth.tinker_has_credentials` | [`auth::resolve_from_env`], which runs no command |
//! | `auth.raise_if_tinker_not_accessible` | [`ServiceClient::check_access`] |
//! | `RestClient(...)` | [`RestClient::from_env`], [`RestClient::with_settings`], [`ServiceClient::create_rest_client`] |
//! | `RestClient.get_training_run` | [`RestClient::get_training_run`] |
//! | `RestClient.get_training_run_by_tinker_path` | [`RestClient::get_training_run_by_tinker_path`] |
//! | `RestClient.get_weights_info_by_tinker_path` | [`RestClient::get_weights_info_by_tinker_path`] |
//! | `RestClient.list_training_runs` | [`RestClient::list_training_runs`], [`RestClient::all_training_runs`] |
//! | `RestClient.list_checkpoints` | [`RestClient::list_checkpoints`] |
//! | `RestClient.list_user_checkpoints` | [`RestClient::list_user_checkpoints`], [`RestClient::all_user_checkpoints`] |
//! | `RestClient.get_external_weights_urls` | [`RestClient::get_external_weights_urls`], [`RestClient::download_checkpoint`] |
//! | `RestClient.delete_checkpoint`, `.delete_checkpoint_from_tinker_path` | [`RestClient::delete_checkpoint`] |
//! | `RestClient.publish_checkpoint_from_tinker_path` | [`RestClient::publish_checkpoint`] |
//! | `RestClient.unpublish_checkpoint_from_tinker_path` | [`RestClient::unpublish_checkpoint`] |
//! | `RestClient.set_checkpoint_ttl_from_tinker_path` | [`RestClient::set_checkpoint_ttl`] |
//! | `RestClient.copy_weights` | [`RestClient::copy_weights`] |
//! | `RestClient.get_session` | [`RestClient::get_session`] |
//! | `RestClient.list_sessions` | [`RestClient::list_sessions`], [`RestClient::all_sessions`] |
//! | `RestClient.search_sessions` | [`RestClient::search_sessions`], [`RestClient::all_found_sessions`] |
//! | `RestClient.assign_session_project` | [`RestClient::assign_session_project`] |
//! | `RestClient.export_session_trace` | [`RestClient::export_session_trace`] |
//! | `RestClient.get_sampler` | [`RestClient::get_sampler`] |
//! | `RestClient.whoami` | [`RestClient::whoami`] |
//! | `RestClient.get_audit_log`, `.get_billing_usage`, `.get_current_checkpoint_storage_usage` | deprecated there: see [`AdminClient`] |
//! | `AdminClient(...)` | [`AdminClient::from_env`], [`AdminClient::with_settings`], [`ServiceClient::create_admin_client`] |
//! | `AdminClient.get_audit_log` | [`AdminClient::get_audit_log`] |
//! | `AdminClient.get_billing_usage` | [`AdminClient::get_billing_usage`] |
//! | `AdminClient.get_current_checkpoint_storage_usage` | [`AdminClient::get_current_checkpoint_storage_usage`] |

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod admin;
pub mod auth;
#[cfg(feature = "autodiff")]
pub mod autodiff;
#[cfg(feature = "blocking")]
pub mod blocking;
mod byte_budget;
mod connection;
mod console;
mod error;
pub mod external;
mod future;
#[cfg(feature = "tokenizers")]
pub mod hub;
mod limiter;
mod lock;
mod options;
mod otel;
pub mod rest;
mod retry;
pub mod sampling;
pub mod server_url;
mod service;
mod session;
mod telemetry;
#[cfg(feature = "tokenizers")]
mod tokenizer;
pub mod training;
mod ttl;
mod uuid;

/// What a model reads: tokens, images and audio.
pub mod input {
    pub use tinkrs_types::input::{Chunk, Dmel, Image, ImageAssetPointer, ImageFormat, ModelInput};
}

/// Tensors of a datum and of a result.
pub mod tensor {
    pub use tinkrs_types::tensor::{CsrIndices, Dtype, TensorData, TensorValues};
}

pub use admin::AdminClient;
pub use connection::message::ServiceMessage;
pub use connection::notice::RetryNotice;
pub use connection::stats::Stats;
pub use error::{BoxError, Error, ErrorResponse};
pub use future::{Pending, QueueNotice};
pub use limiter::BackpressureScope;
pub use rest::RestClient;
pub use sampling::{SampleFrom, SamplingClient};
pub use service::{ServiceClient, ServiceClientBuilder};
#[cfg(feature = "tokenizers")]
pub use tinkrs_chat::{Error as ChatError, Tokenizer};
#[cfg(feature = "tokenizers")]
pub use tokenizer::{GetTokenizer, TokenizerSource};
pub use training::{BoxFuture, Request, TrainingClient};

pub use tinkrs_types::protocol::Severity;
/// JSON values, as in the details of audit events.
pub use tinkrs_types::serde_json;
pub use tinkrs_types::service::{
    ErrorCategory, QueueState, ServerCapabilities, SupportedModel, WhoAmI,
};
pub use tinkrs_types::session::FinishReason;
pub use tinkrs_types::{
    AdamParams, CheckpointKind, CheckpointRef, Datum, ForwardBackwardOutput, InvalidInput,
    LoraConfig, LossFn, LossId, ModelId, ModelInput, NAME_LABEL, ProjectId, RESUME_LABEL,
    RequestId, SampleOutput, SamplingParams, SamplingSessionId, SequenceId, SessionId, TensorData,
    Timestamp, TinkerPath, UserMetadata,
};
