//! Settings that a server sends to its clients.

use serde::{Deserialize, Serialize};

/// Settings that a client reads once, when it starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct ClientConfig {
    /// Exchanges the credential for a short-lived token.
    pub pjwt_auth_enabled: bool,
    /// `credential_cmd` requires the credential command for that exchange.
    pub credential_default_source: String,
    /// Byte budget of sample submissions.
    pub sample_dispatch_bytes_semaphore_size: u64,
    /// Byte budget of large results being downloaded.
    pub inflight_response_bytes_semaphore_size: u64,
    /// Submits the chunks of a pass at the same time, the first one last.
    pub parallel_fwdbwd_chunks: bool,
    /// Compresses forward-backward bodies.
    pub proto_compress_fwdbwd: bool,
    /// The most datums of a chunk.
    pub fwdbwd_max_chunk_len: usize,
    /// The most bytes of a chunk.
    pub fwdbwd_max_chunk_bytes_count: usize,
    /// Byte budget of forward-backward submissions.
    pub fwdbwd_dispatch_bytes_semaphore_size: u64,
    /// How long a billing block is waited out.
    pub billing_exception_max_pause_duration_sec: u64,
    /// Does not retry a whole sample.
    pub sample_no_retries: bool,
    /// Gives up on samples when none makes progress for long.
    pub sample_enable_stuck_detection: bool,
    /// The most samples under way.
    pub sample_max_concurrent_requests: usize,
    /// Chooses among Python's HTTP stacks; means nothing here.
    pub use_pyqwest_transport: bool,
    /// Resumes a run with a single request.
    pub create_model_via_load_weights: bool,
    /// Waits for samples through the batched feed.
    pub sample_use_retrieve_futures: bool,
    /// Uploads custom losses.
    pub custom_loss_server_side: bool,
    /// Lets the server number the clones of a sampler.
    pub sample_join_sampling_session: bool,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            pjwt_auth_enabled: false,
            credential_default_source: "api_key".to_owned(),
            sample_dispatch_bytes_semaphore_size: 10 * 1024 * 1024,
            inflight_response_bytes_semaphore_size: 50 * 1024 * 1024,
            parallel_fwdbwd_chunks: true,
            proto_compress_fwdbwd: false,
            fwdbwd_max_chunk_len: 1024,
            fwdbwd_max_chunk_bytes_count: 5_000_000,
            fwdbwd_dispatch_bytes_semaphore_size: 50_000_000,
            billing_exception_max_pause_duration_sec: 3_600,
            sample_no_retries: false,
            sample_enable_stuck_detection: true,
            sample_max_concurrent_requests: 2_000,
            use_pyqwest_transport: true,
            create_model_via_load_weights: false,
            sample_use_retrieve_futures: false,
            custom_loss_server_side: false,
            sample_join_sampling_session: false,
        }
    }
}

/// Settings that a client reads again and again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct DynamicConfig {
    /// How often to read them.
    pub refresh_interval_sec: u64,
    /// Cancels samples whose result is no longer wanted.
    pub sample_cancel_enabled: bool,
    /// The most cancels at the same time.
    pub sample_cancel_max_batch_size: usize,
}

impl Default for DynamicConfig {
    fn default() -> Self {
        Self {
            refresh_interval_sec: 300,
            sample_cancel_enabled: false,
            sample_cancel_max_batch_size: 64,
        }
    }
}
