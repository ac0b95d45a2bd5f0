//! What the server knows of sessions, models and samplers.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use tinkrs_types::{
    FinishReason, LoraConfig, ModelId, RequestId, SamplingSessionId, SessionId, TinkerPath,
    UserMetadata, WeightsInfo,
};

use crate::error::Refusal;
use crate::order::Order;
use crate::recent::Recent;
use crate::state::Base;
use crate::worker::TrainJob;

/// How many operations of a model are remembered, to recognise a repeated one.
const REMEMBERED_OPERATIONS: usize = 16_384;
/// How many sample requests of a sampler are remembered.
const REMEMBERED_SAMPLES: usize = 65_536;

/// Everything that has an id, except for results and checkpoints.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    pub(crate) sessions: HashMap<SessionId, Session>,
    pub(crate) runs: HashMap<ModelId, Run>,
    pub(crate) samplers: HashMap<SamplingSessionId, Sampler>,
}

/// One client's work.
#[derive(Debug, Default)]
pub(crate) struct Session {
    pub(crate) finished: Option<FinishReason>,
    /// The requests that created its models, by their numbers.
    pub(crate) models: HashMap<u64, RequestId>,
}

/// A model in training.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) session: SessionId,
    pub(crate) base: Arc<Base>,
    pub(crate) lora: LoraConfig,
    pub(crate) user_metadata: Option<UserMetadata>,
    pub(crate) last_request_time: Timestamp,
    pub(crate) order: Order<TrainJob>,
    pub(crate) requests: Recent<i64, RequestId>,
}

impl Run {
    pub(crate) fn new(
        session: SessionId,
        base: Arc<Base>,
        lora: LoraConfig,
        user_metadata: Option<UserMetadata>,
    ) -> Self {
        Self {
            session,
            base,
            lora,
            user_metadata,
            last_request_time: Timestamp::now(),
            order: Order::default(),
            requests: Recent::new(REMEMBERED_OPERATIONS),
        }
    }

    /// Describes the weights that the run trains.
    pub(crate) fn weights_info(&self) -> WeightsInfo {
        WeightsInfo {
            base_model: self.base.name.clone(),
            is_lora: true,
            optimizer_config: tinkrs_types::OptimizerConfig::AdamW,
            lora_rank: Some(self.lora.rank),
            train_unembed: Some(self.lora.train_unembed),
            train_mlp: Some(self.lora.train_mlp),
            train_attn: Some(self.lora.train_attn),
        }
    }
}

/// What is sampled from.
#[derive(Clone, Debug)]
pub(crate) struct Weights {
    pub(crate) base: Arc<Base>,
    /// The folder of an adapter; `None` for the base model itself.
    pub(crate) adapter: Option<PathBuf>,
    /// The checkpoint that the adapter is, if it has a name.
    pub(crate) path: Option<TinkerPath>,
}

/// A sampling session.
#[derive(Debug)]
pub(crate) struct Sampler {
    pub(crate) session: SessionId,
    pub(crate) weights: Weights,
    /// The requests by their numbers, with their numbers of samples.
    pub(crate) requests: Recent<u64, (RequestId, u32)>,
}

impl Sampler {
    pub(crate) fn new(session: SessionId, weights: Weights) -> Self {
        Self {
            session,
            weights,
            requests: Recent::new(REMEMBERED_SAMPLES),
        }
    }

    /// Returns the folder of an adapter that nobody else uses.
    pub(crate) fn own_folder(&self) -> Option<PathBuf> {
        match self.weights.path {
            None => self.weights.adapter.clone(),
            Some(_) => None,
        }
    }
}

impl Registry {
    /// Finds a session, finished or not.
    pub(crate) fn session(&mut self, id: &SessionId) -> Result<&mut Session, Refusal> {
        self.sessions
            .get_mut(id)
            .ok_or_else(|| Refusal::not_found(format!("there is no session `{id}`")))
    }

    /// Finds a session in which things can still be done.
    pub(crate) fn open_session(&mut self, id: &SessionId) -> Result<&mut Session, Refusal> {
        let session = self.session(id)?;
        match session.finished {
            None => Ok(session),
            Some(_) => Err(Refusal::bad_request(format!("session `{id}` is finished"))),
        }
    }

    /// Finds a model.
    pub(crate) fn run(&mut self, id: &ModelId) -> Result<&mut Run, Refusal> {
        self.runs
            .get_mut(id)
            .ok_or_else(|| Refusal::not_found(format!("there is no model `{id}`")))
    }

    /// Finds a model whose session is not finished.
    pub(crate) fn open_run(&mut self, id: &ModelId) -> Result<&mut Run, Refusal> {
        let session = self.run(id)?.session.clone();
        self.open_session(&session)?;
        self.run(id)
    }

    /// Finds a sampling session.
    pub(crate) fn sampler(&mut self, id: &SamplingSessionId) -> Result<&mut Sampler, Refusal> {
        self.samplers
            .get_mut(id)
            .ok_or_else(|| Refusal::not_found(format!("there is no sampling session `{id}`")))
    }

    /// Finds a sampling session whose session is not finished.
    pub(crate) fn open_sampler(&mut self, id: &SamplingSessionId) -> Result<&mut Sampler, Refusal> {
        let session = self.sampler(id)?.session.clone();
        self.open_session(&session)?;
        self.sampler(id)
    }
}
