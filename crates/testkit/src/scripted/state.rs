//! What the server knows.

use super::futures::Promised;
use super::reply::Reply;
use super::sampling::Sampler;
use super::service::Session;
use super::training::{Execution, Model};
use super::weights::Stored;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tinkrs_types::protocol::{ClientConfig, DynamicConfig};
use tinkrs_types::{
    ForwardBackwardOutput, LossId, ModelId, RequestId, SamplingSessionId, SessionId,
};
use tinkrs_wire::op::forward_backward::ForwardBackwardRequest;

/// Changes the output of a pass.
pub(super) type EditPass = Box<dyn Fn(&ForwardBackwardRequest, &mut ForwardBackwardOutput) + Send>;

/// What the server knows.
pub(super) struct State {
    pub(super) config: ClientConfig,
    pub(super) dynamic_config: DynamicConfig,
    pub(super) connections_to_reset: usize,
    pub(super) long_poll: Duration,
    pub(super) inline_limit_bytes: usize,
    pub(super) json_results: bool,
    pub(super) json_passes: Option<Reply>,
    pub(super) sequence_ids: bool,
    pub(super) skip_gaps_after: Option<Duration>,
    pub(super) edit_pass: Option<EditPass>,
    pub(super) token_lifetime: Duration,

    pub(super) tokens: Vec<String>,
    pub(super) sessions: BTreeMap<SessionId, Session>,
    pub(super) models: BTreeMap<ModelId, Model>,
    /// Promises of requests that have no other place, by what makes them unique.
    pub(super) promised: HashMap<String, RequestId>,
    pub(super) samplers: BTreeMap<SamplingSessionId, Sampler>,
    pub(super) losses: Vec<LossId>,
    pub(super) checkpoints: Vec<Stored>,
    pub(super) futures: HashMap<RequestId, Arc<Promised>>,
    pub(super) executions: Vec<Execution>,
    pub(super) cancelled: Vec<RequestId>,
    pub(super) acknowledged: Vec<RequestId>,
    numbers: BTreeMap<&'static str, u64>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            config: ClientConfig::default(),
            dynamic_config: DynamicConfig::default(),
            connections_to_reset: 0,
            long_poll: Duration::from_secs(25),
            inline_limit_bytes: 256 * 1024,
            json_results: false,
            json_passes: None,
            sequence_ids: true,
            skip_gaps_after: None,
            edit_pass: None,
            token_lifetime: Duration::from_secs(3_600),
            tokens: vec![],
            sessions: BTreeMap::new(),
            models: BTreeMap::new(),
            promised: HashMap::new(),
            samplers: BTreeMap::new(),
            losses: vec![],
            checkpoints: vec![],
            futures: HashMap::new(),
            executions: vec![],
            cancelled: vec![],
            acknowledged: vec![],
            numbers: BTreeMap::new(),
        }
    }
}

impl State {
    /// Returns the next number of a series, from 0.
    pub(super) fn next(&mut self, series: &'static str) -> u64 {
        let next = self.numbers.entry(series).or_default();
        *next += 1;
        *next - 1
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").finish_non_exhaustive()
    }
}

impl fmt::Debug for super::script::Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script").finish_non_exhaustive()
    }
}
