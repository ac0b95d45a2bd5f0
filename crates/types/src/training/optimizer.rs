//! Optimizers: one is chosen when a model is created, its parameters come with every step.

use super::Metrics;
use crate::InvalidInput;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// Parameters of one AdamW step. They may change from step to step.
///
/// ```
/// use tinkrs_types::AdamParams;
///
/// let params = AdamParams { weight_decay: 0.01, ..AdamParams::new(1e-4) };
/// assert_eq!(params.beta2, 0.95);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct AdamParams {
    /// Step size. Default 0.0001.
    pub learning_rate: f64,
    /// Decay of the gradient's running mean. Default 0.9.
    pub beta1: f64,
    /// Decay of the squared gradient's running mean. Default 0.95.
    pub beta2: f64,
    /// Added to the denominator. Default 1e-12.
    pub eps: f64,
    /// Decoupled weight decay. Default 0.
    pub weight_decay: f64,
    /// Largest global norm of the gradients; 0 means no clipping. Default 0.
    pub grad_clip_norm: f64,
}

impl AdamParams {
    /// Makes the default parameters with this step size.
    pub fn new(learning_rate: f64) -> Self {
        Self {
            learning_rate,
            ..Self::default()
        }
    }

    /// Checks that the parameters describe a step.
    ///
    /// # Errors
    /// If one is not finite or out of range; the error names it.
    pub fn check(&self) -> Result<(), InvalidInput> {
        let below_one = "a number from 0 to below 1";
        let not_negative = "a finite number, 0 or more";
        let checks = [
            (
                "learning_rate",
                self.learning_rate,
                self.learning_rate >= 0.0,
                not_negative,
            ),
            (
                "beta1",
                self.beta1,
                (0.0..1.0).contains(&self.beta1),
                below_one,
            ),
            (
                "beta2",
                self.beta2,
                (0.0..1.0).contains(&self.beta2),
                below_one,
            ),
            ("eps", self.eps, self.eps > 0.0, "a finite number above 0"),
            (
                "weight_decay",
                self.weight_decay,
                self.weight_decay >= 0.0,
                not_negative,
            ),
            (
                "grad_clip_norm",
                self.grad_clip_norm,
                self.grad_clip_norm >= 0.0,
                not_negative,
            ),
        ];
        for (name, value, in_range, allowed) in checks {
            if !(in_range && value.is_finite()) {
                return Err(InvalidInput::new(
                    format!("adam_params.{name}"),
                    value,
                    allowed,
                ));
            }
        }
        Ok(())
    }
}

impl Default for AdamParams {
    fn default() -> Self {
        Self {
            learning_rate: 1e-4,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-12,
            weight_decay: 0.0,
            grad_clip_norm: 0.0,
        }
    }
}

/// Parameters of one Dimuon step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DimuonParams {
    /// Step size.
    pub learning_rate: f64,
    /// Largest global norm of the gradients; 0 or less means no clipping. Default 0.
    #[serde(default)]
    pub grad_clip_norm: f64,
    /// Decay of the momentum. Default 0.9.
    #[serde(default = "DimuonParams::default_beta1")]
    pub beta1: f64,
}

impl DimuonParams {
    /// Makes the default parameters with this step size.
    pub fn new(learning_rate: f64) -> Self {
        Self {
            learning_rate,
            grad_clip_norm: 0.0,
            beta1: Self::default_beta1(),
        }
    }

    fn default_beta1() -> f64 {
        0.9
    }

    /// Checks that the parameters describe a step.
    ///
    /// # Errors
    /// If one is not finite or out of range; the error names it.
    pub fn check(&self) -> Result<(), InvalidInput> {
        let checks = [
            (
                "learning_rate",
                self.learning_rate,
                self.learning_rate >= 0.0,
                "a finite number, 0 or more",
            ),
            (
                "grad_clip_norm",
                self.grad_clip_norm,
                true,
                "a finite number",
            ),
            (
                "beta1",
                self.beta1,
                (0.0..1.0).contains(&self.beta1),
                "a number from 0 to below 1",
            ),
        ];
        for (name, value, in_range, allowed) in checks {
            if !(in_range && value.is_finite()) {
                return Err(InvalidInput::new(
                    format!("optimizer_params.{name}"),
                    value,
                    allowed,
                ));
            }
        }
        Ok(())
    }
}

/// An object of a kind that this crate does not know, kept as it came.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OpenObject {
    /// What kind it is.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its other members.
    #[serde(flatten)]
    pub members: Map<String, Value>,
}

/// The optimizer of a model, chosen when it is created.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum OptimizerConfig {
    /// AdamW.
    #[default]
    AdamW,
    /// Dimuon, version 1.
    Dimuon,
    /// One that this crate does not know, for servers that do.
    Other(OpenObject),
}

impl OptimizerConfig {
    /// Returns the name on the wire.
    pub fn name(&self) -> &str {
        match self {
            Self::AdamW => "adamw",
            Self::Dimuon => "dimuon",
            Self::Other(object) => &object.kind,
        }
    }
}

impl Serialize for OptimizerConfig {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut members = Map::new();
        if *self == Self::Dimuon {
            members.insert("version".to_owned(), 1.into());
        }
        match self {
            Self::Other(object) => object.serialize(serializer),
            known => OpenObject {
                kind: known.name().to_owned(),
                members,
            }
            .serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for OptimizerConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = OpenObject::deserialize(deserializer)?;
        let version = object.members.get("version");
        Ok(match object.kind.as_str() {
            "adamw" if object.members.is_empty() => Self::AdamW,
            "dimuon"
                if version.is_none_or(|version| *version == 1) && object.members.len() <= 1 =>
            {
                Self::Dimuon
            }
            _ => Self::Other(object),
        })
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for OptimizerConfig {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "OptimizerConfig".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "The optimizer of a model, chosen when it is created: `adamw`, or one that the server knows.",
            "type": "object",
            "properties": {"type": {"type": "string"}},
            "required": ["type"],
        })
    }
}

/// The parameters of one optimizer step.
///
/// As JSON, they are an object with the optimizer's name as its `type`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type")]
#[non_exhaustive]
pub enum OptimizerParams {
    /// For AdamW.
    #[serde(rename = "adamw")]
    Adam(AdamParams),
    /// For Dimuon.
    #[serde(rename = "dimuon")]
    Dimuon(DimuonParams),
    /// For an optimizer that this crate does not know.
    #[serde(untagged)]
    Other(OpenObject),
}

impl OptimizerParams {
    /// Returns the optimizer's name on the wire.
    pub fn name(&self) -> &str {
        match self {
            Self::Adam(_) => OptimizerConfig::AdamW.name(),
            Self::Dimuon(_) => OptimizerConfig::Dimuon.name(),
            Self::Other(object) => &object.kind,
        }
    }

    /// Reads the parameters of the optimizer with this name from an object without `type`.
    ///
    /// # Errors
    /// If one is missing or of another type.
    pub fn read<'de, D: Deserializer<'de>>(name: &str, members: D) -> Result<Self, D::Error> {
        Ok(match name {
            "adamw" => Self::Adam(AdamParams::deserialize(members)?),
            "dimuon" => Self::Dimuon(DimuonParams::deserialize(members)?),
            _ => Self::Other(OpenObject {
                kind: name.to_owned(),
                members: Map::deserialize(members)?,
            }),
        })
    }

    /// Checks that the parameters describe a step.
    ///
    /// # Errors
    /// If one is not finite or out of range; the error names it.
    pub fn check(&self) -> Result<(), InvalidInput> {
        match self {
            Self::Adam(params) => params.check(),
            Self::Dimuon(params) => params.check(),
            Self::Other(_) => Ok(()),
        }
    }
}

impl From<&AdamParams> for OptimizerParams {
    fn from(params: &AdamParams) -> Self {
        Self::Adam(*params)
    }
}

impl From<AdamParams> for OptimizerParams {
    fn from(params: AdamParams) -> Self {
        Self::Adam(params)
    }
}

impl From<DimuonParams> for OptimizerParams {
    fn from(params: DimuonParams) -> Self {
        Self::Dimuon(params)
    }
}

/// What an optimizer step reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct OptimStepOutput {
    /// Numbers about the step, such as gradient norms. Their names are the server's.
    #[serde(default, with = "crate::protocol::number::metrics")]
    #[cfg_attr(
        feature = "schema",
        schemars(with = "Option<std::collections::BTreeMap<String, crate::protocol::JsonNumber>>")
    )]
    pub metrics: Option<Metrics>,
}

impl OptimStepOutput {
    /// Makes a report.
    pub fn new(metrics: Option<Metrics>) -> Self {
        Self { metrics }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn parameters_are_read_as_they_are_written() {
        let other = OpenObject {
            kind: "sgd".to_owned(),
            members: Map::from_iter([("momentum".to_owned(), json!(0.5))]),
        };
        let all: [OptimizerParams; 3] = [
            AdamParams::new(0.5).into(),
            DimuonParams::new(0.5).into(),
            OptimizerParams::Other(other),
        ];
        for params in all {
            let mut written = serde_json::to_value(&params).unwrap();
            let name = written.as_object_mut().unwrap().remove("type").unwrap();
            assert_eq!(name, params.name());
            let read = OptimizerParams::read(params.name(), written).unwrap();
            assert_eq!(read, params);
        }
    }

    #[test]
    fn adam_parameters_out_of_range_are_refused_by_name() {
        AdamParams::default().check().unwrap();
        let cases = [
            ("learning_rate", AdamParams::new(-1.0)),
            ("learning_rate", AdamParams::new(f64::NAN)),
            (
                "beta1",
                AdamParams {
                    beta1: 1.0,
                    ..AdamParams::default()
                },
            ),
            (
                "beta2",
                AdamParams {
                    beta2: -0.1,
                    ..AdamParams::default()
                },
            ),
            (
                "eps",
                AdamParams {
                    eps: 0.0,
                    ..AdamParams::default()
                },
            ),
            (
                "weight_decay",
                AdamParams {
                    weight_decay: f64::INFINITY,
                    ..AdamParams::default()
                },
            ),
            (
                "grad_clip_norm",
                AdamParams {
                    grad_clip_norm: -1.0,
                    ..AdamParams::default()
                },
            ),
        ];
        for (name, params) in cases {
            assert_eq!(
                params.check().unwrap_err().field(),
                format!("adam_params.{name}")
            );
        }
    }

    #[test]
    fn a_metric_that_is_not_finite_survives_json() {
        let output = OptimStepOutput {
            metrics: Some(Metrics::from([("grad_norm".to_owned(), f64::INFINITY)])),
        };
        let body = serde_json::to_value(&output).unwrap();
        assert_eq!(body, json!({"metrics": {"grad_norm": "inf"}}));
        assert_eq!(
            serde_json::from_value::<OptimStepOutput>(body).unwrap(),
            output
        );
    }

    #[test]
    fn optimizer_configs_keep_members_that_are_not_known() {
        for body in [
            json!({"type": "adamw"}),
            json!({"type": "dimuon", "version": 1}),
            json!({"type": "lion", "beta": 0.5, "nested": {"a": null}}),
        ] {
            let config: OptimizerConfig = serde_json::from_value(body.clone()).unwrap();
            assert_eq!(serde_json::to_value(&config).unwrap(), body);
        }
        let newer: OptimizerConfig =
            serde_json::from_value(json!({"type": "dimuon", "version": 2})).unwrap();
        assert!(
            matches!(newer, OptimizerConfig::Other(_)),
            "another version is another optimizer"
        );
    }
}
