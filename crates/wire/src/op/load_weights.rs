//! `POST /load_weights`: loads training state into a model, new or just created.

use crate::json::body;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tinkrs_types::training::OptimizerConfig;
use tinkrs_types::{ModelId, SessionId};

/// Loads training state.
///
/// Either `model_id` and `seq_id` name a model that was just created, or `session_id` and
/// `model_seq_id` create one.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LoadWeightsRequest {
    /// The model to load into.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub model_id: Option<ModelId>,
    /// The request's place in the model's order.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub seq_id: Option<i64>,
    /// The session of the model to create.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub session_id: Option<SessionId>,
    /// The number of the model to create.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub model_seq_id: Option<u64>,
    /// Another base model than the checkpoint's, compatible with it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub base_model: Option<String>,
    /// Labels of the run to create.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub user_metadata: Option<Map<String, Value>>,
    /// The checkpoint. It is text here, so that a server can say what is wrong with it.
    pub path: String,
    /// Restores the optimizer's state as well, as clients to 0.5 always did.
    #[serde(default = "yes")]
    pub optimizer: bool,
    /// The optimizer of the model to create, if its state is not restored.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub optimizer_config: Option<OptimizerConfig>,
    /// A credential to read another account's checkpoint with.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub weights_access_token: Option<String>,
}

body!(LoadWeightsRequest, "load_weights");

fn yes() -> bool {
    true
}

impl std::fmt::Debug for LoadWeightsRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadWeightsRequest")
            .field("model_id", &self.model_id)
            .field("seq_id", &self.seq_id)
            .field("session_id", &self.session_id)
            .field("model_seq_id", &self.model_seq_id)
            .field("path", &self.path)
            .field("optimizer", &self.optimizer)
            .finish_non_exhaustive()
    }
}

/// Training state that was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LoadWeightsResult {
    /// From where.
    pub path: Option<String>,
    /// Into which model.
    pub model_id: Option<ModelId>,
}

body!(LoadWeightsResult, "load_weights");
