//! Passing a sampler to another process.
//!
//! The form is the official client's, so that handles pass between Rust and Python: URL-safe
//! base64 of compact JSON. It never contains the credential; whoever takes it up brings one.

use super::client::SamplingClient;
use crate::Error;
use crate::connection::Connection;
use crate::service::ServiceClientBuilder;
use crate::session::Session;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tinkrs_types::{ClientConfig, DynamicConfig, InvalidInput, SamplingSessionId, SessionId};

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
    /// The text holds no credential.
    pub fn to_handle(&self) -> String {
        let connection = &self.inner.session.connection;
        let handle = Handle {
            session_id: self.inner.session.id.clone(),
            sampling_session_id: self.inner.id.clone(),
            holder: Holder {
                base_url: Some(connection.base_url.clone()),
                default_headers_overrides: BTreeMap::new(),
                client_config: connection.config.clone(),
                client_dynamic_config: connection.dynamic_config(),
                api_key: None,
            },
            record_stability_info: self.inner.record_stability_info,
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
        let handle = read(handle)?;
        let mut options = settings.options;
        if let Some(url) = handle.holder.base_url {
            options.base_url = Some(url);
        }
        options
            .headers
            .extend(handle.holder.default_headers_overrides);
        let connection = Connection::join(
            &options,
            handle.holder.client_config,
            handle.holder.client_dynamic_config,
        )?;
        let session = Session::attach(connection, handle.session_id);
        Ok(Self::cloned(
            session,
            handle.sampling_session_id,
            handle.record_stability_info,
        ))
    }
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
