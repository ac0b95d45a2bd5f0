//! `POST /retrieve_futures`: news of all samples of one sampler.

use crate::json::body;
use serde::{Deserialize, Deserializer, Serialize};
use tinkrs_types::protocol::Completion;
use tinkrs_types::{RequestId, SamplingSessionId};

/// Whose samples to tell of.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FuturesTarget {
    /// Those of one client of a sampling session.
    SamplingSession {
        /// Which sampling session.
        sampling_session_id: SamplingSessionId,
        /// Which client: the sequence number divided by `SAMPLE_SEQ_BLOCK`.
        #[cfg_attr(feature = "schema", schemars(default))]
        cloned_sampler_id: u64,
    },
}

/// By hand, because a derived reader of a tagged enum hides members that nothing reads.
impl<'de> Deserialize<'de> for FuturesTarget {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum Kind {
            SamplingSession,
        }
        #[derive(Deserialize)]
        struct Json {
            #[serde(rename = "type")]
            kind: Kind,
            sampling_session_id: SamplingSessionId,
            #[serde(default)]
            cloned_sampler_id: u64,
        }
        let Json {
            kind: Kind::SamplingSession,
            sampling_session_id,
            cloned_sampler_id,
        } = Json::deserialize(deserializer)?;
        Ok(Self::SamplingSession {
            sampling_session_id,
            cloned_sampler_id,
        })
    }
}

/// Asks for news.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RetrieveFuturesRequest {
    /// Whose samples to tell of.
    pub target: FuturesTarget,
    /// The cursor of the last news that arrived; 0 for all.
    #[serde(default)]
    pub prev_cursor: u64,
    /// How long to wait for news, in seconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub timeout: Option<f64>,
    /// Results that were fetched and may be forgotten.
    #[serde(default)]
    pub retrieved_request_ids: Vec<RequestId>,
}

body!(RetrieveFuturesRequest);

/// News.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RetrieveFuturesResponse {
    /// What completed.
    pub completions: Vec<Completion>,
    /// Where these news end.
    pub cursor: u64,
}
