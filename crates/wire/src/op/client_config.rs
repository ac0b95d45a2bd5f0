//! `POST /client/config` and `POST /client/dynamic_config`: the settings of a client.
//!
//! They are answered by [`tinkrs_types::protocol::ClientConfig`] and [`tinkrs_types::protocol::DynamicConfig`].

use crate::json::body;
use serde::{Deserialize, Serialize};

/// Asks for settings, static or dynamic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClientConfigRequest {
    /// The level of the API that the client speaks.
    pub sdk_version: String,
}

body!(ClientConfigRequest);
