//! Sessions: what one client did, how it ended, and how to find it again.

use crate::{ModelId, ProjectId, RequestId, SamplingSessionId, SessionId, UserMetadata};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Whose objects a listing shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AccessScope {
    /// The caller's own.
    #[default]
    Owned,
    /// All that the caller may read.
    Accessible,
}

impl AccessScope {
    /// Returns the name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Owned => "owned",
            Self::Accessible => "accessible",
        }
    }
}

/// How a client ended its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum FinishReason {
    /// All went well.
    Success,
    /// An error ended it.
    Errored,
    /// The user ended it.
    Interrupted,
}

impl FinishReason {
    /// Returns the name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Errored => "errored",
            Self::Interrupted => "interrupted",
        }
    }
}

/// What a session holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct SessionInfo {
    /// Its training runs.
    pub training_run_ids: Vec<ModelId>,
    /// Its samplers.
    pub sampler_ids: Vec<SamplingSessionId>,
    /// Its labels.
    #[serde(default)]
    pub user_metadata: Option<UserMetadata>,
    /// Its name for people.
    #[serde(default)]
    pub display_name: Option<String>,
}

impl SessionInfo {
    /// Makes a session without labels and without a name.
    pub fn new(training_run_ids: Vec<ModelId>, sampler_ids: Vec<SamplingSessionId>) -> Self {
        Self {
            training_run_ids,
            sampler_ids,
            user_metadata: None,
            display_name: None,
        }
    }
}

/// Whose fault a failed session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FailureCategory {
    /// The user's.
    User,
    /// The service's.
    Internal,
}

/// What made a session fail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum FailureReason {
    /// A request.
    Request {
        /// Which one.
        request_id: RequestId,
        /// What kind.
        request_type: String,
    },
    /// A training run.
    TrainingRun {
        /// Which one.
        training_run_id: ModelId,
    },
    /// A sampling session.
    SamplingSession {
        /// Which one.
        sampling_session_id: SamplingSessionId,
    },
}

/// What became of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum SessionStatus {
    /// It runs.
    Active,
    /// It was cancelled.
    Cancelled {
        /// Why.
        #[serde(default)]
        detail: Option<String>,
    },
    /// Its client ended it.
    ClientFinished {
        /// How.
        reason: FinishReason,
        /// Why.
        #[serde(default)]
        detail: Option<String>,
    },
    /// It failed.
    Failed {
        /// Whose fault it is.
        category: FailureCategory,
        /// What made it fail.
        reason: FailureReason,
        /// What went wrong.
        message: String,
    },
}

/// Whose sessions to search.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum SearchOwner {
    /// The caller's own.
    #[default]
    Own,
    /// All that the caller may read.
    Accessible,
    /// Those of certain users.
    User {
        /// One to ten users.
        owner_urns: Vec<String>,
    },
}

/// Which states of a session to search.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum StatusQuery {
    /// Sessions that run.
    Active,
    /// Sessions that were cancelled.
    Cancelled,
    /// Sessions that failed.
    Failed,
    /// Sessions that their client ended.
    ClientFinished {
        /// In these ways; `None` means in any.
        #[serde(
            skip_serializing_if = "Option::is_none",
            serialize_with = "finish_reasons::serialize"
        )]
        #[cfg_attr(feature = "schema", schemars(with = "Option<Vec<String>>"))]
        reasons: Option<Vec<FinishReason>>,
    },
}

/// Readers of the tagged enums that are parts of requests. A derived one would read into a buffer, and
/// so hide from a server that a member of the request was not read.
mod tagged {
    use super::{FinishReason, SearchOwner, StatusQuery, finish_reasons};
    use serde::{Deserialize, Deserializer, de::Error};

    impl<'de> Deserialize<'de> for FinishReason {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            #[derive(Deserialize)]
            #[serde(rename_all = "snake_case")]
            enum Kind {
                Success,
                Errored,
                Interrupted,
            }
            #[derive(Deserialize)]
            struct Json {
                #[serde(rename = "type")]
                kind: Kind,
            }
            Ok(match Json::deserialize(deserializer)?.kind {
                Kind::Success => Self::Success,
                Kind::Errored => Self::Errored,
                Kind::Interrupted => Self::Interrupted,
            })
        }
    }

    impl<'de> Deserialize<'de> for SearchOwner {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            #[derive(Deserialize)]
            #[serde(rename_all = "snake_case")]
            enum Kind {
                Own,
                Accessible,
                User,
            }
            #[derive(Deserialize)]
            struct Json {
                #[serde(rename = "type")]
                kind: Kind,
                owner_urns: Option<Vec<String>>,
            }
            let Json { kind, owner_urns } = Json::deserialize(deserializer)?;
            let has_owners = owner_urns.as_ref().is_some_and(|urns| !urns.is_empty());
            match kind {
                Kind::User => match owner_urns {
                    Some(owner_urns) => Ok(Self::User { owner_urns }),
                    None => Err(D::Error::missing_field("owner_urns")),
                },
                Kind::Own | Kind::Accessible if has_owners => Err(D::Error::custom(
                    "`owner_urns` goes with the type `user` only",
                )),
                Kind::Own => Ok(Self::Own),
                Kind::Accessible => Ok(Self::Accessible),
            }
        }
    }

    impl<'de> Deserialize<'de> for StatusQuery {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            #[derive(Deserialize)]
            #[serde(rename_all = "snake_case")]
            enum Kind {
                Active,
                Cancelled,
                Failed,
                ClientFinished,
            }
            #[derive(Deserialize)]
            struct Json {
                #[serde(rename = "type")]
                kind: Kind,
                #[serde(default, deserialize_with = "finish_reasons::deserialize")]
                reasons: Option<Vec<FinishReason>>,
            }
            let Json { kind, reasons } = Json::deserialize(deserializer)?;
            let has_reasons = reasons.as_ref().is_some_and(|reasons| !reasons.is_empty());
            match kind {
                Kind::ClientFinished => Ok(Self::ClientFinished { reasons }),
                _ if has_reasons => Err(D::Error::custom(
                    "`reasons` goes with the type `client_finished` only",
                )),
                Kind::Active => Ok(Self::Active),
                Kind::Cancelled => Ok(Self::Cancelled),
                Kind::Failed => Ok(Self::Failed),
            }
        }
    }
}

/// In a query the reasons are bare names, in a status they are objects.
mod finish_reasons {
    use super::FinishReason;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(
        reasons: &Option<Vec<FinishReason>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match reasons {
            Some(reasons) => serializer.collect_seq(reasons.iter().map(|reason| reason.name())),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Vec<FinishReason>>, D::Error> {
        let known = [
            FinishReason::Success,
            FinishReason::Errored,
            FinishReason::Interrupted,
        ];
        let Some(names) = Option::<Vec<String>>::deserialize(deserializer)? else {
            return Ok(None);
        };
        let read =
            |name: &String| {
                known.into_iter().find(|reason| reason.name() == name).ok_or_else(|| {
                D::Error::custom(format_args!(
                    "unknown reason `{name}`, expected `success`, `errored` or `interrupted`"
                ))
            })
            };
        names.iter().map(read).collect::<Result<_, _>>().map(Some)
    }
}

/// Where the next page of a search starts. It is passed back unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct SearchCursor {
    /// When the last session of the page was created, as the server wrote it.
    pub last_created_at: String,
    /// The last session of the page.
    pub last_session_id: SessionId,
}

impl SearchCursor {
    /// Makes a cursor.
    pub fn new(last_created_at: impl Into<String>, last_session_id: SessionId) -> Self {
        Self {
            last_created_at: last_created_at.into(),
            last_session_id,
        }
    }
}

/// A search for sessions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct SessionSearch {
    /// This session; joined with `display_name` by "or".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Sessions of these projects; `None` means of all that may be listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_ids: Option<Vec<ProjectId>>,
    /// Sessions with all of these labels.
    pub user_metadata: UserMetadata,
    /// Sessions whose name has all of these words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// Whose sessions.
    pub owner: SearchOwner,
    /// Sessions in any of these states; `None` means in any state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statuses: Option<Vec<StatusQuery>>,
    /// The most sessions of a page, 1 to 200. Default 50.
    pub limit: u32,
    /// Where the page starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<SearchCursor>,
}

impl Default for SessionSearch {
    fn default() -> Self {
        Self {
            session_id: None,
            project_ids: None,
            user_metadata: UserMetadata::new(),
            display_name: None,
            owner: SearchOwner::Own,
            statuses: None,
            limit: 50,
            cursor: None,
        }
    }
}

/// One session that a search found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct SessionSummary {
    /// Which session.
    pub session_id: SessionId,
    /// Who owns it.
    pub owner: String,
    /// Its project.
    pub project_id: ProjectId,
    /// When it was created.
    #[serde(with = "crate::timestamp")]
    #[cfg_attr(feature = "schema", schemars(with = "Timestamp"))]
    pub created_at: Timestamp,
    /// How many checkpoints it has.
    pub checkpoints_count: u64,
    /// What became of it; `None` if that is not known.
    #[serde(default)]
    pub status: Option<SessionStatus>,
    /// Its name for people.
    #[serde(default)]
    pub display_name: Option<String>,
    /// Its labels.
    #[serde(default)]
    pub user_metadata: Option<UserMetadata>,
    /// The size of its checkpoints.
    #[serde(default)]
    pub checkpoint_storage_bytes: Option<u64>,
}

impl SessionSummary {
    /// Makes a session without checkpoints, labels and a name.
    pub fn new(
        session_id: SessionId,
        owner: impl Into<String>,
        project_id: ProjectId,
        created_at: Timestamp,
    ) -> Self {
        Self {
            session_id,
            owner: owner.into(),
            project_id,
            created_at,
            checkpoints_count: 0,
            status: None,
            display_name: None,
            user_metadata: None,
            checkpoint_storage_bytes: None,
        }
    }
}

/// A page of found sessions, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct SessionSearchPage {
    /// The sessions.
    pub sessions: Vec<SessionSummary>,
    /// Where the next page starts; `None` if this is the last.
    #[serde(default)]
    pub next_cursor: Option<SearchCursor>,
}

impl SessionSearchPage {
    /// Makes a page.
    pub fn new(sessions: Vec<SessionSummary>, next_cursor: Option<SearchCursor>) -> Self {
        Self {
            sessions,
            next_cursor,
        }
    }
}

/// How far a trace export is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TraceStatus {
    /// It is being made.
    Pending,
    /// It can be downloaded.
    Ready,
    /// It cannot be made.
    Failed,
}

/// The export of a session's trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct TraceExport {
    /// How far it is.
    pub status: TraceStatus,
    /// Where it can be downloaded once it is ready.
    #[serde(default)]
    pub url: Option<String>,
    /// Why it failed.
    #[serde(default)]
    pub error: Option<String>,
}

impl TraceExport {
    /// Makes an export that can be downloaded.
    pub fn ready(url: impl Into<String>) -> Self {
        Self {
            status: TraceStatus::Ready,
            url: Some(url.into()),
            error: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_status_query_names_reasons_and_a_status_wraps_them() {
        let query = StatusQuery::ClientFinished {
            reasons: Some(vec![FinishReason::Errored]),
        };
        assert_eq!(
            serde_json::to_value(&query).unwrap(),
            json!({"type": "client_finished", "reasons": ["errored"]})
        );
        let status =
            json!({"type": "client_finished", "reason": {"type": "success"}, "detail": null});
        let read: SessionStatus = serde_json::from_value(status).unwrap();
        assert_eq!(
            read,
            SessionStatus::ClientFinished {
                reason: FinishReason::Success,
                detail: None
            }
        );
    }
}
