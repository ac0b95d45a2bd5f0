//! What an administrator reads: the audit log, usage and storage.

use crate::{ProjectId, SessionId, UserMetadata};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Which events of the audit log to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AuditEventType {
    /// All of them.
    #[default]
    All,
    /// Those about checkpoints.
    Checkpoints,
    /// Those about projects.
    Projects,
    /// Those about teams.
    Teams,
    /// Those about organizations.
    Organizations,
}

impl AuditEventType {
    /// Returns the name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Checkpoints => "checkpoints",
            Self::Projects => "projects",
            Self::Teams => "teams",
            Self::Organizations => "organizations",
        }
    }
}

/// One event of the audit log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct AuditEntry {
    /// When it happened.
    #[serde(with = "crate::timestamp")]
    #[cfg_attr(feature = "schema", schemars(with = "Timestamp"))]
    pub timestamp: Timestamp,
    /// What happened, such as `checkpoint_read`.
    pub event: String,
    /// Details, whose form depends on the event.
    #[serde(default)]
    pub event_details: Map<String, Value>,
    /// Deprecated: the model.
    #[serde(default)]
    pub model_id: Option<String>,
    /// Deprecated: the path.
    #[serde(default)]
    pub tinker_path: Option<String>,
    /// Deprecated: the purpose.
    #[serde(default)]
    pub purpose: Option<String>,
}

impl AuditEntry {
    /// Makes an event.
    pub fn new(
        timestamp: Timestamp,
        event: impl Into<String>,
        event_details: Map<String, Value>,
    ) -> Self {
        Self {
            timestamp,
            event: event.into(),
            event_details,
            model_id: None,
            tinker_path: None,
            purpose: None,
        }
    }
}

/// A day of the audit log, sorted by time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct AuditLog {
    /// The events.
    pub entries: Vec<AuditEntry>,
}

impl AuditLog {
    /// Makes a day of the log.
    pub fn new(entries: Vec<AuditEntry>) -> Self {
        Self { entries }
    }
}

/// What was used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum BillingEventInfo {
    /// Tokens of forward-backward passes.
    Training {
        /// How many.
        token_count: u64,
    },
    /// Prompt tokens of samples.
    SamplingPrefill {
        /// Whether they came from the prefix cache.
        cached: bool,
        /// How many.
        token_count: u64,
    },
    /// Sampled tokens.
    SamplingSample {
        /// How many.
        token_count: u64,
    },
    /// Checkpoints.
    Checkpoint {
        /// How many.
        count: u64,
    },
    /// Storage.
    Storage {
        /// How much, for how long.
        gigabyte_hours: f64,
    },
}

/// Usage of one kind in one hour.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct BillingEvent {
    /// When the hour starts.
    #[serde(with = "crate::timestamp")]
    #[cfg_attr(feature = "schema", schemars(with = "Timestamp"))]
    pub bucket_start: Timestamp,
    /// When the hour ends.
    #[serde(with = "crate::timestamp")]
    #[cfg_attr(feature = "schema", schemars(with = "Timestamp"))]
    pub bucket_end: Timestamp,
    /// The model that was used.
    #[serde(default)]
    pub base_model: Option<String>,
    /// Who used it.
    #[serde(default)]
    pub user_id: Option<String>,
    /// That user's name.
    #[serde(default)]
    pub user_name: Option<String>,
    /// In which session.
    #[serde(default)]
    pub session_id: Option<SessionId>,
    /// In which project.
    #[serde(default)]
    pub project_id: Option<ProjectId>,
    /// What it cost before credits.
    #[serde(default)]
    pub estimated_cost_usd: Option<f64>,
    /// The price of a million tokens.
    #[serde(default)]
    pub effective_rate_usd_per_million_tokens: Option<f64>,
    /// The price of a gigabyte for a month of 720 hours.
    #[serde(default)]
    pub effective_rate_usd_per_gigabyte_month: Option<f64>,
    /// What was used.
    pub event_info: BillingEventInfo,
}

impl BillingEvent {
    /// Makes an event without a price.
    pub fn new(
        bucket_start: Timestamp,
        bucket_end: Timestamp,
        event_info: BillingEventInfo,
    ) -> Self {
        Self {
            bucket_start,
            bucket_end,
            base_model: None,
            user_id: None,
            user_name: None,
            session_id: None,
            project_id: None,
            estimated_cost_usd: None,
            effective_rate_usd_per_million_tokens: None,
            effective_rate_usd_per_gigabyte_month: None,
            event_info,
        }
    }
}

/// What a usage report says of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct BillingSession {
    /// Its labels.
    #[serde(default)]
    pub user_metadata: Option<UserMetadata>,
}

impl BillingSession {
    /// Makes a session with its labels.
    pub fn new(user_metadata: Option<UserMetadata>) -> Self {
        Self { user_metadata }
    }
}

/// A usage report, by hour.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct BillingUsage {
    /// Usage by hour, then by tokens from most to least.
    pub data: Vec<BillingEvent>,
    /// The sessions that the report names.
    #[serde(default)]
    pub sessions: BTreeMap<SessionId, BillingSession>,
    /// Until when costs come from invoices rather than from published prices.
    #[serde(default, with = "crate::timestamp::option")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<Timestamp>"))]
    pub cost_data_through: Option<Timestamp>,
}

impl BillingUsage {
    /// Makes a report without prices.
    pub fn new(data: Vec<BillingEvent>, sessions: BTreeMap<SessionId, BillingSession>) -> Self {
        Self {
            data,
            sessions,
            cost_data_through: None,
        }
    }
}

/// How much one user stores in one project.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct StorageUsageRow {
    /// The project.
    #[serde(default)]
    pub project_id: Option<ProjectId>,
    /// The user.
    #[serde(default)]
    pub org_user_urn: Option<String>,
    /// The user's address.
    #[serde(default)]
    pub user_email: Option<String>,
    /// The user's name.
    #[serde(default)]
    pub user_name: Option<String>,
    /// How many checkpoints.
    pub checkpoint_count: u64,
    /// How large they are.
    pub size_bytes: u64,
    /// The same in gigabytes.
    pub size_gigabytes: f64,
    /// What they cost in a month.
    #[serde(default)]
    pub estimated_monthly_cost_usd: Option<f64>,
}

/// Checkpoint storage in use now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct StorageUsage {
    /// The price of a gigabyte for a month of 720 hours.
    #[serde(default)]
    pub effective_rate_usd_per_gigabyte_month: Option<f64>,
    /// Use by project and user.
    pub data: Vec<StorageUsageRow>,
}
