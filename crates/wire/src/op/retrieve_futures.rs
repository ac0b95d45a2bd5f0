//! `POST /retrieve_futures`: news of all samples of one sampler.

use crate::json::body;
use serde::{Deserialize, Serialize};
use tinkrs_types::protocol::Completion;
use tinkrs_types::{RequestId, SamplingSessionId};

/// Whose samples to tell of.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FuturesTarget {
    /// Those of one client of a sampling session.
    SamplingSession {
        /// Which sampling session.
        sampling_session_id: SamplingSessionId,
        /// Which client: the sequence number divided by `SAMPLE_SEQ_BLOCK`.
        #[serde(default)]
        cloned_sampler_id: u64,
    },
}

/// Asks for news.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
pub struct RetrieveFuturesResponse {
    /// What completed.
    pub completions: Vec<Completion>,
    /// Where these news end.
    pub cursor: u64,
}
