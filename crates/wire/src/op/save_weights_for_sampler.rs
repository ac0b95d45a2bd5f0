//! `POST /save_weights_for_sampler`: saves weights to sample from, by name or for one sampler.

use crate::json::body;
use serde::{Deserialize, Deserializer, Serialize, de};
use tinkrs_types::{CheckpointKind, ModelId, SamplingSessionId, TinkerPath, UserMetadata};

/// Saves weights to sample from: under a name, or for a new sampling session only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SaveWeightsForSamplerRequest {
    /// Which model.
    pub model_id: ModelId,
    /// The checkpoint's name.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub path: Option<String>,
    /// The number of the sampling session to open instead.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sampling_session_seq_id: Option<u64>,
    /// The request's place in the model's order.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub seq_id: Option<i64>,
    /// How long it is kept.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ttl_seconds: Option<u64>,
    /// Its labels.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub user_metadata: Option<UserMetadata>,
}

body!(SaveWeightsForSamplerRequest, "save_weights_for_sampler");

/// Weights that were saved: one of the two is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct SaveWeightsForSamplerResult {
    /// Where, if they have a name. Clients to 0.19 want it null if they have none.
    #[serde(deserialize_with = "path_of_sampler_weights")]
    pub path: Option<TinkerPath>,
    /// The sampling session that was opened, if they have none.
    pub sampling_session_id: Option<SamplingSessionId>,
}

body!(SaveWeightsForSamplerResult, "save_weights_for_sampler");

/// Reads a path. SkyRL leaves the kind out, `tinker://RUN/NAME`, and reads it with and without.
fn path_of_sampler_weights<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<TinkerPath>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else {
        return Ok(None);
    };
    let short = text
        .strip_prefix("tinker://")
        .and_then(|rest| rest.split_once('/'))
        .filter(|(_, name)| !name.contains('/'));
    let path = match short {
        Some((run, name)) => TinkerPath::new(ModelId::new(run), CheckpointKind::Sampler, name),
        None => text.parse(),
    };
    path.map(Some).map_err(de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_without_its_kind_is_one_of_sampler_weights() {
        let path = |text: &str| {
            let body = format!(r#"{{"path": "{text}", "type": "save_weights_for_sampler"}}"#);
            let result = serde_json::from_str::<SaveWeightsForSamplerResult>(&body);
            result.map(|result| result.path.unwrap().to_string())
        };
        let whole = "tinker://model_1/sampler_weights/final";
        assert_eq!(path(whole).unwrap(), whole);
        assert_eq!(path("tinker://model_1/final").unwrap(), whole);
        for wrong in [
            "tinker://model_1",
            "tinker://model_1/",
            "tinker:///final",
            "/a/b",
        ] {
            assert!(path(wrong).is_err(), "{wrong}");
        }
        let none: SaveWeightsForSamplerResult = serde_json::from_str(r#"{"path": null}"#).unwrap();
        assert_eq!(none.path, None);
    }
}
