//! `POST /optim_step`: applies the accumulated gradients.
//!
//! Adam's parameters travel as `adam_params` without a `type`, all others as
//! `optimizer_params` with one. The result is [`tinkrs_types::training::OptimStepOutput`].

use crate::json::body;
use crate::{DecodeError, strict};
use serde::de::{DeserializeSeed, Deserializer, Error as _};
use serde::ser::Error as _;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};
use tinkrs_types::training::{OptimizerConfig, OptimizerParams};
use tinkrs_types::{AdamParams, ModelId};

/// Applies the accumulated gradients.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimStepRequest {
    /// Which model.
    pub model_id: ModelId,
    /// The request's place in the model's order. Clients to 0.3 may leave it out.
    pub seq_id: Option<i64>,
    /// How.
    pub params: OptimizerParams,
}

body!(OptimStepRequest, "optim_step");

/// Applies the accumulated gradients: with `adam_params`, or with `optimizer_params` and their `type`.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Json {
    model_id: ModelId,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    seq_id: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    adam_params: Option<AdamParams>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    optimizer_params: Option<Map<String, Value>>,
    /// As older clients call them.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    optim_params: Option<Map<String, Value>>,
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for OptimStepRequest {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "OptimStepRequest".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        Json::json_schema(generator)
    }
}

impl Serialize for OptimStepRequest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (model_id, seq_id) = (self.model_id.clone(), self.seq_id);
        let (adam_params, optimizer_params) = match &self.params {
            OptimizerParams::Adam(params) => (Some(*params), None),
            other => (None, Some(members(other).map_err(S::Error::custom)?)),
        };
        Json {
            model_id,
            seq_id,
            adam_params,
            optimizer_params,
            optim_params: None,
        }
        .serialize(serializer)
    }
}

fn members(params: &OptimizerParams) -> serde_json::Result<Map<String, Value>> {
    serde_json::from_value(serde_json::to_value(params)?)
}

impl<'de> Deserialize<'de> for OptimStepRequest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Json {
            model_id,
            seq_id,
            adam_params,
            optimizer_params,
            optim_params,
        } = Json::deserialize(deserializer)?;
        let read = |name: &str, members| read_params(name, members).map_err(D::Error::custom);
        let params = match (adam_params, optimizer_params, optim_params) {
            (Some(params), None, None) => OptimizerParams::Adam(params),
            (None, Some(members), None) => read("optimizer_params", members)?,
            (None, None, Some(members)) => read("optim_params", members)?,
            (None, None, None) => return Err(D::Error::missing_field("adam_params")),
            (Some(_), ..) => {
                return Err(D::Error::custom(
                    "both `adam_params` and `optimizer_params`: send one",
                ));
            }
            (None, Some(_), Some(_)) => {
                return Err(D::Error::custom(
                    "both `optimizer_params` and `optim_params`: send one",
                ));
            }
        };
        Ok(Self {
            model_id,
            seq_id,
            params,
        })
    }
}

fn read_params(name: &str, mut members: Map<String, Value>) -> Result<OptimizerParams, String> {
    let kind = match members.remove("type") {
        Some(Value::String(kind)) => kind,
        // `optim_params` without a type are those of the default optimizer.
        _ => OptimizerConfig::default().name().to_owned(),
    };
    // Members come from a buffer, which hides from serde what nothing reads of them.
    let members = Value::Object(members);
    match strict::read_value(&members, ParamsOf(&kind)) {
        Ok((params, None)) => Ok(params),
        Ok((_, Some(member))) => {
            let member = format!("{name}.{member}");
            Err(DecodeError::Unread { member }.to_string())
        }
        Err(error) => {
            let text = members.to_string();
            let mut again = serde_json::Deserializer::from_str(&text);
            let placed = OptimizerParams::read(&kind, &mut again).err();
            let placed = placed.map(|error| DecodeError::json(text.as_bytes(), error));
            match placed.as_ref().and_then(DecodeError::member) {
                Some(member) => Err(format!("`{name}.{member}`: {error}")),
                None => Err(format!("`{name}`: {error}")),
            }
        }
    }
}

/// Reads the parameters of the optimizer with this name.
struct ParamsOf<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for ParamsOf<'_> {
    type Value = OptimizerParams;

    fn deserialize<D: Deserializer<'de>>(self, members: D) -> Result<OptimizerParams, D::Error> {
        OptimizerParams::read(self.0, members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Body;

    #[test]
    fn all_three_names_of_the_parameters_are_read() {
        for name in ["adam_params", "optimizer_params", "optim_params"] {
            let body =
                format!(r#"{{"model_id": "m", "seq_id": 2, "{name}": {{"learning_rate": 0.5}}}}"#);
            let request = OptimStepRequest::decode(body.as_bytes()).unwrap();
            assert_eq!(request.params, AdamParams::new(0.5).into(), "{name}");
        }
        assert!(OptimStepRequest::decode(br#"{"model_id": "m", "seq_id": 2}"#).is_err());
    }

    #[test]
    fn a_null_for_a_number_of_any_optimizer_is_refused_by_name() {
        for (name, kind, member) in [
            ("adam_params", "adamw", "learning_rate"),
            ("adam_params", "adamw", "grad_clip_norm"),
            ("optimizer_params", "adamw", "eps"),
            ("optim_params", "adamw", "learning_rate"),
            ("optimizer_params", "dimuon", "learning_rate"),
        ] {
            let body = format!(
                r#"{{"model_id": "m", "seq_id": null, "{name}": {{"{member}": null, "type": "{kind}"}}}}"#
            );
            let error = OptimStepRequest::decode_strict(body.as_bytes()).unwrap_err();
            let text = format!("{error}: {:?}", std::error::Error::source(&error));
            assert!(text.contains(&format!("{name}.{member}")), "{text}");
        }
    }
}
