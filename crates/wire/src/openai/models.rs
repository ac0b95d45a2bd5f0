//! `GET /v1/models`: what can be asked for as `model`.

use serde::{Deserialize, Serialize};

/// What can be asked for as `model`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ModelList {
    /// `list`.
    pub object: String,
    /// Base models, then runs and their checkpoints.
    pub data: Vec<ModelCard>,
}

/// A base model, a run's newest checkpoint, or a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ModelCard {
    /// What to ask for.
    pub id: String,
    /// `model`.
    pub object: String,
    /// When it was saved, in seconds since 1970; 0 for a base model.
    pub created: i64,
    /// `tinkrs`.
    pub owned_by: String,
    /// The base model behind it.
    pub root: String,
    /// What it is another name of, if it is one: the path of a checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// The longest prompt with its answer, in tokens.
    pub max_model_len: u64,
}
