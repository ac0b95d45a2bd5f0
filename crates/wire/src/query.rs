//! The queries of endpoints that read one. A parameter with another name is refused.

use std::fmt;

use serde::{Deserialize, Serialize};
use tinkrs_types::Timestamp;
use tinkrs_types::admin::AuditEventType;
use tinkrs_types::session::AccessScope;

/// Which part of a list to show.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PageQuery {
    /// How many items at most.
    pub limit: Option<u64>,
    /// How many items to skip.
    pub offset: Option<u64>,
    /// Only items of this project.
    pub project_id: Option<String>,
    /// Whose items.
    pub access_scope: Option<AccessScope>,
}

/// Whose things to look for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ScopeQuery {
    /// Whose.
    pub access_scope: Option<AccessScope>,
}

/// What a proof is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NonceQuery {
    /// A text that the caller has made up.
    pub nonce: String,
}

/// Whose tokenizer is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TokenizerQuery {
    /// The name of the model.
    pub model: String,
    /// The digest of the files that the caller has. If they are still the same, they are not sent again.
    pub digest: Option<String>,
}

/// Which events of a log to show.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AuditQuery {
    /// Of which kind; all by default.
    pub event_type: Option<AuditEventType>,
    /// Of which day in UTC; today by default.
    pub day: Option<jiff::civil::Date>,
}

/// Of which hours to report the usage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct UsageQuery {
    /// The start of the first hour.
    pub starting_on: Timestamp,
    /// The end of the last hour.
    pub ending_before: Timestamp,
}

/// Of what to report the storage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct StorageQuery {
    /// Only of this project.
    pub project_id: Option<String>,
}

/// What an uploaded adapter belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ImportQuery {
    /// The model that the adapter was trained on.
    pub base_model: String,
    /// The name of the checkpoints to make.
    pub name: Option<String>,
}

/// The end of a signed link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LinkQuery {
    /// When the link expires, in seconds since 1970.
    pub expires: i64,
    /// The server's signature of the path and of `expires`.
    pub signature: String,
}

/// What the page that logs in is opened with. Other parameters are ignored: links get some on their way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LoginQuery {
    /// A token that logs in once.
    pub token: Option<String>,
    /// A token that shows one run.
    pub share: Option<String>,
    /// The page to go to afterwards; the list of runs by default.
    pub next: Option<String>,
}

/// Where to log out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LogoutQuery {
    /// `true` ends all logins of the caller in all browsers, and all links to the caller's runs. It is taken from the
    /// studio's own pages. By default the browser loses its cookies.
    pub everywhere: Option<bool>,
}

/// The form of the page that logs in.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LoginForm {
    /// The API key.
    pub key: String,
    /// The page to go to afterwards; the list of runs by default.
    pub next: Option<String>,
}

/// Without the key.
impl fmt::Debug for LoginForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = &mut f.debug_struct("LoginForm");
        form.field("next", &self.next).finish_non_exhaustive()
    }
}
