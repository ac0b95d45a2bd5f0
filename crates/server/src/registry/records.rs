//! What is known of sessions, models, samplers and checkpoints, as it is stored.

use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tinkrs_types::rest::{Checkpoint, WeightsInfo};
use tinkrs_types::session::{FinishReason, SessionStatus};
use tinkrs_types::training::OptimizerConfig;
use tinkrs_types::{
    LoraConfig, ModelId, RunName, SamplingSessionId, SessionId, TinkerPath, UserMetadata,
};

use crate::auth::Owner;

/// One client's work.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SessionRecord {
    pub(crate) id: SessionId,
    pub(crate) owner: Owner,
    pub(crate) created_at: Timestamp,
    pub(crate) tags: Vec<String>,
    pub(crate) user_metadata: UserMetadata,
    pub(crate) display_name: Option<String>,
    pub(crate) sdk_version: String,
    pub(crate) status: SessionStatus,
}

impl SessionRecord {
    /// Describes a session without a client: it holds a checkpoint that came another way.
    pub(crate) fn holding(id: SessionId, owner: Owner, display_name: String) -> Self {
        Self {
            id,
            owner,
            created_at: Timestamp::now(),
            tags: Vec::new(),
            user_metadata: UserMetadata::new(),
            display_name: Some(display_name),
            sdk_version: String::new(),
            status: SessionStatus::ClientFinished {
                reason: FinishReason::Success,
                detail: None,
            },
        }
    }
}

/// A model in training.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RunRecord {
    pub(crate) id: ModelId,
    pub(crate) owner: Owner,
    pub(crate) session: SessionId,
    pub(crate) base_model: String,
    pub(crate) lora: LoraConfig,
    /// Earlier versions stored none.
    #[serde(default)]
    pub(crate) optimizer: OptimizerConfig,
    pub(crate) user_metadata: Option<UserMetadata>,
    /// Unique among the runs of its owner. Earlier versions stored none; see [`name`](Self::name).
    #[serde(default)]
    pub(crate) name: Option<RunName>,
    pub(crate) created_at: Timestamp,
    /// Why it has no weights to train, if it has none.
    pub(crate) closed: Option<String>,
    /// Whether its weights were lost.
    pub(crate) corrupted: bool,
    /// The numeric path that its operations are computed with. Earlier versions stored none.
    #[serde(default)]
    pub(crate) numerics: Option<String>,
    /// Those of before, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) earlier_numerics: Vec<String>,
    /// The checkpoint that it was made from. Earlier versions stored none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) started_from: Option<TinkerPath>,
}

impl RunRecord {
    /// Describes the run that a session like [`SessionRecord::holding`] has: it cannot be trained.
    pub(crate) fn holding(session: &SessionRecord, info: &WeightsInfo, why: &str) -> Self {
        Self {
            id: ModelId::in_session(&session.id, 0),
            owner: session.owner,
            session: session.id.clone(),
            base_model: info.base_model.clone(),
            lora: LoraConfig {
                rank: info.lora_rank.unwrap_or_default(),
                seed: None,
                train_unembed: info.train_unembed.unwrap_or(true),
                train_mlp: info.train_mlp.unwrap_or(true),
                train_attn: info.train_attn.unwrap_or(true),
            },
            optimizer: info.optimizer_config.clone(),
            user_metadata: None,
            name: None,
            created_at: session.created_at,
            closed: Some(why.to_owned()),
            corrupted: false,
            numerics: info.numerics.clone(),
            earlier_numerics: Vec::new(),
            started_from: None,
        }
    }

    /// Describes a run for tests: the first of session `s`.
    #[cfg(test)]
    pub(crate) fn example() -> Self {
        Self {
            id: ModelId::new("s:train:0"),
            owner: Owner::of_key(b"me"),
            session: "s".into(),
            base_model: "tiny".to_owned(),
            lora: LoraConfig::new(4),
            optimizer: OptimizerConfig::default(),
            user_metadata: None,
            name: None,
            created_at: Timestamp::now(),
            closed: None,
            corrupted: false,
            numerics: None,
            earlier_numerics: Vec::new(),
            started_from: None,
        }
    }

    /// Returns the name that people know the run by. One that was given none has one that is made of its id.
    pub(crate) fn name(&self) -> RunName {
        let name = self.name.clone();
        name.unwrap_or_else(|| RunName::made_up(&self.id))
    }

    /// Describes the weights that the run trains.
    pub(crate) fn weights_info(&self) -> WeightsInfo {
        let mut info = WeightsInfo::new(self.base_model.as_str(), &self.lora);
        info.optimizer_config = self.optimizer.clone();
        info.numerics = self.numerics.clone();
        info
    }
}

/// A sampling session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SamplerRecord {
    pub(crate) id: SamplingSessionId,
    pub(crate) owner: Owner,
    pub(crate) session: SessionId,
    pub(crate) base_model: String,
    /// The folder of an adapter, in the data folder; `None` for the base model itself.
    pub(crate) adapter: Option<PathBuf>,
    /// The checkpoint that the adapter is, if it has a name.
    pub(crate) path: Option<TinkerPath>,
    /// How many clients have joined the first one.
    pub(crate) clones: u32,
    /// For weights that were saved without a name: the run, and the sequence id of the save.
    #[serde(default)]
    pub(crate) of_run: Option<(ModelId, i64)>,
    /// How large those are.
    #[serde(default)]
    pub(crate) bytes: u64,
}

impl SamplerRecord {
    /// Returns the folder of an adapter that nothing else uses.
    pub(crate) fn own_folder(&self) -> Option<&PathBuf> {
        match self.path {
            None => self.adapter.as_ref(),
            Some(_) => None,
        }
    }
}

/// A checkpoint that exists.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SavedCheckpoint {
    pub(crate) owner: Owner,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) info: WeightsInfo,
    /// In the data folder.
    pub(crate) folder: PathBuf,
}

impl SavedCheckpoint {
    pub(crate) fn path(&self) -> &TinkerPath {
        &self.checkpoint.tinker_path
    }
}
