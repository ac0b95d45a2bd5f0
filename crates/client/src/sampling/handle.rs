//! Passing a sampler to another process.
//!
//! The form is the official client's, so that handles pass between Rust and Python: URL-safe
//! base64 of compact JSON. It never contains the credential; the process that takes it up brings its own.

use super::client::{SamplerOptions, SamplingClient};
use crate::Error;
use crate::auth::CredentialPolicy;
use crate::connection::Connection;
use crate::connection::credential::digest;
use crate::lock::lock;
use crate::options::Options;
use crate::service::ServiceClientBuilder;
use crate::session::Session;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock, Mutex, Weak};
use tinkrs_types::protocol::{ClientConfig, DynamicConfig};
use tinkrs_types::{InvalidInput, SamplingSessionId, SessionId};

#[derive(Debug, Serialize, Deserialize)]
struct Handle {
    session_id: SessionId,
    sampling_session_id: SamplingSessionId,
    holder: Holder,
    #[serde(default)]
    record_stability_info: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Holder {
    base_url: Option<String>,
    #[serde(default)]
    default_headers_overrides: BTreeMap<String, String>,
    #[serde(default)]
    client_config: ClientConfig,
    #[serde(default)]
    client_dynamic_config: DynamicConfig,
    api_key: Option<String>,
}

impl SamplingClient {
    /// Describes this sampler in text, for another process to [take up](Self::from_handle).
    ///
    /// The text holds no credential, but it holds the headers that the
    /// [builder](ServiceClientBuilder::header) was given: keep secrets out of them.
    pub fn to_handle(&self) -> String {
        let connection = &self.inner.session.connection;
        let handle = Handle {
            session_id: self.inner.session.id.clone(),
            sampling_session_id: self.inner.id.clone(),
            holder: Holder {
                base_url: Some(connection.address.base_url.clone()),
                default_headers_overrides: connection.address.header_overrides.clone(),
                client_config: connection.server.config.clone(),
                client_dynamic_config: connection.server.dynamic_config(),
                api_key: None,
            },
            record_stability_info: self.inner.options.record_stability_info,
        };
        let json = serde_json::to_vec(&handle).expect("a handle has text keys only");
        URL_SAFE.encode(json)
    }

    /// Takes up a sampler that another process described, with this process's credential.
    ///
    /// # Errors
    /// If the text is not a handle, or no connection can be set up.
    pub async fn from_handle(handle: &str) -> Result<Self, Error> {
        Self::from_handle_with(handle, ServiceClientBuilder::default()).await
    }

    /// Takes up a sampler with the settings of a builder; the handle's base URL and headers win.
    ///
    /// # Errors
    /// If the text is not a handle, or no connection can be set up.
    pub async fn from_handle_with(
        handle: &str,
        settings: ServiceClientBuilder,
    ) -> Result<Self, Error> {
        let Handle {
            session_id,
            sampling_session_id,
            holder,
            record_stability_info,
        } = read(handle)?;
        let session = join(session_id, holder, settings.options)?;
        let options = SamplerOptions {
            record_stability_info,
            ..SamplerOptions::default()
        };
        Ok(Self::cloned(session, sampling_session_id, options))
    }
}

/// Takes part in a session, or in the part that this process takes already: handles of one
/// session that are taken up with the same settings share their connections, heartbeat and
/// reports for as long as any of them is in use.
fn join(
    session_id: SessionId,
    holder: Holder,
    mut options: Options,
) -> Result<Arc<Session>, Error> {
    static JOINED: LazyLock<Mutex<HashMap<String, Weak<Session>>>> = LazyLock::new(Mutex::default);
    if let Some(url) = &holder.base_url {
        options.base_url = Some(url.clone());
    }
    options
        .headers
        .extend(holder.default_headers_overrides.clone());
    let key = sharing_key(&session_id, &holder, &options)?;
    let mut joined = lock(&JOINED);
    if let Some(session) = joined.get(&key).and_then(Weak::upgrade) {
        return Ok(session);
    }
    joined.retain(|_, session| session.strong_count() > 0);
    let (config, dynamic) = (holder.client_config, holder.client_dynamic_config);
    let connection = Connection::join(&options, config, dynamic)?;
    if options.telemetry() {
        connection.start_telemetry(Some(&session_id));
    }
    let session = Session::attach(connection, session_id);
    joined.insert(key, Arc::downgrade(&session));
    Ok(session)
}

/// Writes down everything that two handles must have in common to share a session.
fn sharing_key(
    session_id: &SessionId,
    holder: &Holder,
    options: &Options,
) -> Result<String, Error> {
    let credential = digest(&options.credential_source(CredentialPolicy::Any)?);
    let listeners = (
        options.queue_listener.as_ref().map(Arc::as_ptr),
        options.retry_listener.as_ref().map(Arc::as_ptr),
        options.message_listener.as_ref().map(Arc::as_ptr),
    );
    let settings = (
        &options.headers,
        options.http_timeout,
        options.max_retry_time,
        options.backpressure,
        options.telemetry(),
    );
    // A session's tasks end with their runtime, if not before.
    let runtime = tokio::runtime::Handle::try_current().map(|runtime| runtime.id());
    let holder = serde_json::to_string(holder).expect("a handle has text keys only");
    Ok(format!(
        "{session_id} {holder} {credential:?} {settings:?} {listeners:?} {runtime:?}"
    ))
}

fn read(handle: &str) -> Result<Handle, InvalidInput> {
    let refused = || {
        InvalidInput::new(
            "handle",
            "other text",
            "the text that a sampler's `to_handle` gave",
        )
    };
    let json = URL_SAFE.decode(handle.trim()).map_err(|_| refused())?;
    serde_json::from_slice(&json).map_err(|_| refused())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What `get_sampler_handle` of the Python SDK 0.36.0 writes, before base64.
    fn from_python() -> serde_json::Value {
        json!({
            "session_id": "s1",
            "sampling_session_id": "s1:sample:0",
            "holder": {
                "base_url": "http://127.0.0.1:9/",
                "default_headers_overrides": {"X-Route": "blue"},
                "client_config": {
                    "pjwt_auth_enabled": false,
                    "credential_default_source": "api_key",
                    "sample_dispatch_bytes_semaphore_size": 10_485_760,
                    "inflight_response_bytes_semaphore_size": 52_428_800,
                    "parallel_fwdbwd_chunks": true,
                    "proto_compress_fwdbwd": false,
                    "fwdbwd_max_chunk_len": 1024,
                    "fwdbwd_max_chunk_bytes_count": 5_000_000,
                    "fwdbwd_dispatch_bytes_semaphore_size": 50_000_000,
                    "billing_exception_max_pause_duration_sec": 3600,
                    "sample_no_retries": false,
                    "sample_enable_stuck_detection": true,
                    "sample_max_concurrent_requests": 2000,
                    "use_pyqwest_transport": true,
                    "create_model_via_load_weights": false,
                    "sample_use_retrieve_futures": false,
                    "custom_loss_server_side": false,
                    "sample_join_sampling_session": true
                },
                "client_dynamic_config": {
                    "refresh_interval_sec": 300,
                    "sample_cancel_enabled": false,
                    "sample_cancel_max_batch_size": 64
                },
                "api_key": null
            },
            "record_stability_info": true
        })
    }

    #[test]
    fn a_handle_passes_from_python_and_back() {
        let handle = read(&URL_SAFE.encode(from_python().to_string())).unwrap();
        assert!(handle.record_stability_info);
        assert!(handle.holder.client_config.sample_join_sampling_session);
        // Python takes exactly these members, no fewer and no more.
        assert_eq!(serde_json::to_value(&handle).unwrap(), from_python());
    }

    #[tokio::test]
    async fn a_handle_carries_the_headers_but_not_the_key() {
        let settings = ServiceClientBuilder::default()
            .api_key("tml-hidden")
            .header("X-Team", "red");
        let taken = URL_SAFE.encode(from_python().to_string());
        let client = SamplingClient::from_handle_with(&taken, settings)
            .await
            .unwrap();
        let passed_on = read(&client.to_handle()).unwrap().holder;
        assert!(passed_on.api_key.is_none());
        let headers = passed_on.default_headers_overrides;
        assert_eq!((&*headers["X-Route"], &*headers["X-Team"]), ("blue", "red"));
        let text = URL_SAFE.decode(client.to_handle()).unwrap();
        assert!(!String::from_utf8_lossy(&text).contains("hidden"));
    }

    #[tokio::test]
    async fn handles_with_the_same_settings_share_a_session_while_it_is_in_use() {
        let mut handle = from_python();
        handle["session_id"] = "shared".into();
        let handle = URL_SAFE.encode(handle.to_string());
        let taken_up = |key: &str| {
            let settings = ServiceClientBuilder::default().api_key(key.to_owned());
            SamplingClient::from_handle_with(&handle, settings.telemetry(false))
        };
        let first = taken_up("tml-one").await.unwrap();
        let second = taken_up("tml-one").await.unwrap();
        let other = taken_up("tml-two").await.unwrap();
        let session = |client: &SamplingClient| Arc::downgrade(&client.inner.session);
        assert!(session(&first).ptr_eq(&session(&second)));
        assert!(!session(&first).ptr_eq(&session(&other)));
        let before = session(&first);
        drop((first, second));
        assert_eq!(before.strong_count(), 0, "nothing else keeps it alive");
    }
}
