//! `POST /weights_info`: what is known of a checkpoint, as [`tinkrs_types::rest::WeightsInfo`].

use crate::json::body;
use serde::{Deserialize, Serialize};

/// Asks about a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WeightsInfoRequest {
    /// Which checkpoint. It is text here, so that a server can say what is wrong with it.
    pub tinker_path: String,
}

body!(WeightsInfoRequest);
