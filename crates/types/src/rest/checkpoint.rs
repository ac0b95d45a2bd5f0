use super::Cursor;
use crate::training::{LoraConfig, OptimizerConfig};
use crate::{CheckpointKind, TinkerPath, UserMetadata};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A saved checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Checkpoint {
    /// Its id within the run, `{kind}/{name}`.
    pub checkpoint_id: String,
    /// What it can be used for.
    pub checkpoint_type: CheckpointKind,
    /// When it was saved.
    #[serde(with = "crate::timestamp")]
    #[cfg_attr(feature = "schema", schemars(with = "Timestamp"))]
    pub time: Timestamp,
    /// Its path.
    pub tinker_path: TinkerPath,
    /// Its size.
    #[serde(default)]
    pub size_bytes: Option<u64>,
    /// Whether everybody may read it.
    #[serde(default)]
    pub public: bool,
    /// Its labels.
    #[serde(default)]
    pub user_metadata: Option<UserMetadata>,
    /// When it is deleted; `None` means never.
    #[serde(default, with = "crate::timestamp::option")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<Timestamp>"))]
    pub expires_at: Option<Timestamp>,
}

impl Checkpoint {
    /// Makes a private checkpoint that is kept for ever.
    pub fn new(tinker_path: TinkerPath, time: Timestamp) -> Self {
        Self {
            checkpoint_id: tinker_path.checkpoint_id(),
            checkpoint_type: tinker_path.kind(),
            time,
            tinker_path,
            size_bytes: None,
            public: false,
            user_metadata: None,
            expires_at: None,
        }
    }
}

/// A page of checkpoints, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct CheckpointPage {
    /// The checkpoints.
    pub checkpoints: Vec<Checkpoint>,
    /// Where the page lies; `None` if these are all.
    #[serde(default)]
    pub cursor: Option<Cursor>,
}

impl CheckpointPage {
    /// Makes a page, or with no cursor a whole listing.
    pub fn new(checkpoints: Vec<Checkpoint>, cursor: Option<Cursor>) -> Self {
        Self {
            checkpoints,
            cursor,
        }
    }
}

/// What is known of a checkpoint's weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct WeightsInfo {
    /// The model they belong to.
    pub base_model: String,
    /// Whether they are an adapter.
    pub is_lora: bool,
    /// The optimizer that trained them.
    #[serde(default)]
    pub optimizer_config: OptimizerConfig,
    /// The adapter's rank.
    #[serde(default)]
    pub lora_rank: Option<u32>,
    /// Whether the unembedding has an adapter; `None` reads as true.
    #[serde(default)]
    pub train_unembed: Option<bool>,
    /// Whether the MLP layers have adapters; `None` reads as true.
    #[serde(default)]
    pub train_mlp: Option<bool>,
    /// Whether the attention layers have adapters; `None` reads as true.
    #[serde(default)]
    pub train_attn: Option<bool>,
    /// The numeric path that they were trained with, such as `q8_0/int8@0123456789abcdef`. Only some servers say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numerics: Option<String>,
}

impl WeightsInfo {
    /// Describes the weights of an adapter.
    pub fn new(base_model: impl Into<String>, lora: &LoraConfig) -> Self {
        Self {
            base_model: base_model.into(),
            is_lora: true,
            optimizer_config: OptimizerConfig::default(),
            lora_rank: Some(lora.rank),
            train_unembed: Some(lora.train_unembed),
            train_mlp: Some(lora.train_mlp),
            train_attn: Some(lora.train_attn),
            numerics: None,
        }
    }
}

/// Where the files of an external checkpoint can be downloaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ExternalWeightsUrls {
    /// Signed links by relative path. They need no credential.
    pub urls: BTreeMap<String, String>,
    /// When the links stop working.
    #[serde(with = "crate::timestamp")]
    #[cfg_attr(feature = "schema", schemars(with = "Timestamp"))]
    pub expires: Timestamp,
}

impl ExternalWeightsUrls {
    /// Makes a set of links.
    pub fn new(urls: BTreeMap<String, String>, expires: Timestamp) -> Self {
        Self { urls, expires }
    }
}

/// Where a checkpoint was copied to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct CopiedWeights {
    /// The copy's path.
    pub tinker_path: TinkerPath,
}

impl CopiedWeights {
    /// Names the copy.
    pub fn new(tinker_path: TinkerPath) -> Self {
        Self { tinker_path }
    }
}

/// Where an adapter that was made elsewhere can be found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ImportedWeights {
    /// The checkpoint to train on.
    pub tinker_path: TinkerPath,
    /// The checkpoint to sample from.
    pub sampler_path: TinkerPath,
}

impl ImportedWeights {
    /// Names the two checkpoints.
    pub fn new(tinker_path: TinkerPath, sampler_path: TinkerPath) -> Self {
        Self {
            tinker_path,
            sampler_path,
        }
    }
}
