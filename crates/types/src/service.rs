//! What a server says of itself and of the requests that it works on.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::fmt;

/// A base model that the server offers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct SupportedModel {
    /// Its name.
    pub model_name: Option<String>,
    /// The most tokens of a sequence.
    pub max_context_length: Option<u64>,
    /// Whether it can be trained.
    pub trainable: Option<bool>,
    /// Whether it can be sampled from.
    pub sampleable: Option<bool>,
    /// The numeric path that it computes with: how weights are held, how their inputs are read, and which weights they
    /// are, such as `q8_0/int8@0123456789abcdef`. Only some servers say so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numerics: Option<String>,
}

/// What the server offers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ServerCapabilities {
    /// Its base models.
    pub supported_models: Vec<SupportedModel>,
}

impl ServerCapabilities {
    /// Makes a list of models.
    pub fn new(supported_models: Vec<SupportedModel>) -> Self {
        Self { supported_models }
    }
}

/// Who the credential belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WhoAmI {
    /// The user.
    pub user_urn: String,
    /// The organization.
    pub org_urn: String,
    /// The user's address, if the credential carries it.
    #[serde(default)]
    pub email: Option<String>,
}

impl WhoAmI {
    /// Names a user and an organization.
    pub fn new(user_urn: impl Into<String>, org_urn: impl Into<String>) -> Self {
        Self {
            user_urn: user_urn.into(),
            org_urn: org_urn.into(),
            email: None,
        }
    }
}

/// Whether the server works on a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum QueueState {
    /// It does, or will soon.
    Active,
    /// It waits: too many requests of this account.
    PausedRateLimit,
    /// It waits: too few machines.
    PausedCapacity,
    /// The server said something else, or nothing.
    #[default]
    Unknown,
}

impl QueueState {
    /// Returns whether the request waits for something that more requests make worse.
    pub fn is_paused(self) -> bool {
        matches!(self, Self::PausedRateLimit | Self::PausedCapacity)
    }
}

impl<'de> Deserialize<'de> for QueueState {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match Value::deserialize(deserializer)?.as_str() {
            Some("active") => Self::Active,
            Some("paused_rate_limit") => Self::PausedRateLimit,
            Some("paused_capacity") => Self::PausedCapacity,
            _ => Self::Unknown,
        })
    }
}

impl fmt::Display for QueueState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Active => "active",
            Self::PausedRateLimit => "paused_rate_limit",
            Self::PausedCapacity => "paused_capacity",
            Self::Unknown => "unknown",
        })
    }
}

/// Whose fault a failed request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorCategory {
    /// The server does not say.
    #[default]
    Unknown,
    /// The server's.
    Server,
    /// The caller's.
    User,
}

impl<'de> Deserialize<'de> for ErrorCategory {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match Value::deserialize(deserializer)?.as_str() {
            Some("server") => Self::Server,
            Some("user") => Self::User,
            _ => Self::Unknown,
        })
    }
}

impl ErrorCategory {
    /// Returns the name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Server => "server",
            Self::User => "user",
        }
    }
}

impl fmt::Display for ErrorCategory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
