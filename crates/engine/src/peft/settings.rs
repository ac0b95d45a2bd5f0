//! `adapter_config.json`.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::Error;

/// What the file says, after everything unsupported was refused.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Settings {
    pub(super) base_model: String,
    pub(super) rank: usize,
    /// Adjusted so that the scale is `alpha / rank`, also where the file asks for another rule.
    pub(super) alpha: f32,
    pub(super) targets: Targets,
    pub(super) layers_to_transform: Option<Vec<usize>>,
}

/// The layers that the file says are adapted.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Targets {
    /// Names, each the last parts of a layer's name or all of it.
    Named(Vec<String>),
    /// A pattern, or nothing: the tensors tell.
    Unlisted,
}

#[derive(Deserialize)]
struct Raw {
    peft_type: Option<String>,
    base_model_name_or_path: Option<String>,
    r: Option<usize>,
    lora_alpha: Option<f32>,
    target_modules: Option<OneOrMany<String>>,
    layers_to_transform: Option<OneOrMany<usize>>,
    #[serde(default)]
    use_rslora: bool,
    bias: Option<String>,
    init_lora_weights: Option<Value>,
    exclude_modules: Option<Value>,
    /// Everything else, to look for what changes the arithmetic.
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

/// Members that say nothing about what the adapter computes: where it comes from, how it was
/// trained, and settings of options that are refused where they are switched on.
const HARMLESS: [&str; 11] = [
    "auto_mapping",
    "inference_mode",
    "layers_pattern",
    "lora_dropout",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
    "ensure_weight_tying",
];

/// Options that change the arithmetic unless they are null, false or empty, with what to do instead.
const REFUSED: [(&str, &str); 12] = [
    ("use_dora", "plain LoRA"),
    ("use_qalora", "plain LoRA"),
    ("use_bdlora", "plain LoRA"),
    ("lora_bias", "adapters without biases"),
    ("fan_in_fan_out", "layers stored as outputs × inputs"),
    ("rank_pattern", "one rank for all layers"),
    ("alpha_pattern", "one alpha for all layers"),
    ("modules_to_save", "adapters without retrained layers"),
    ("layer_replication", "models with their own layers"),
    ("target_parameters", "adapters on linear layers"),
    ("trainable_token_indices", "adapters on linear layers"),
    (
        "alora_invocation_tokens",
        "adapters that are active on every token",
    ),
];

impl Settings {
    /// Reads the file, refusing by name what the engine does not compute.
    pub(super) fn from_json(path: &Path, text: &str) -> Result<Self, Error> {
        let raw: Raw = serde_json::from_str(text).map_err(|source| Error::Json {
            document: path.display().to_string(),
            source,
        })?;
        match raw.peft_type.as_deref() {
            Some("LORA") => {}
            other => {
                return Err(Error::unsupported(
                    "peft_type",
                    other.unwrap_or("null"),
                    "LORA",
                ));
            }
        }
        if let Some(bias) = raw.bias.filter(|bias| bias != "none") {
            return Err(Error::unsupported("bias", bias, "none"));
        }
        check_start(raw.init_lora_weights.as_ref())?;
        for (option, value) in raw.others.iter().filter(|(_, value)| is_set(value)) {
            if HARMLESS.contains(&option.as_str()) {
                continue;
            }
            // What nobody here has heard of may change the arithmetic too.
            let known = REFUSED.iter().find(|(refused, _)| refused == option);
            let supported = known.map_or("plain LoRA, without this option", |(_, what)| what);
            return Err(Error::unsupported(option, value, supported));
        }

        let rank = raw.r.filter(|&rank| rank > 0);
        let rank = rank.ok_or_else(|| Error::invalid("r", "it must be a positive integer"))?;
        let alpha = raw.lora_alpha.filter(|alpha| alpha.is_finite());
        let alpha = alpha.ok_or_else(|| Error::invalid("lora_alpha", "it must be a number"))?;
        Ok(Self {
            base_model: raw.base_model_name_or_path.unwrap_or_default(),
            rank,
            // Rank-stabilised LoRA scales by alpha / √rank.
            alpha: if raw.use_rslora {
                alpha * (rank as f32).sqrt()
            } else {
                alpha
            },
            targets: match raw.target_modules {
                // With exceptions, which may be a pattern, the names promise nothing.
                _ if raw.exclude_modules.as_ref().is_some_and(is_set) => Targets::Unlisted,
                Some(OneOrMany::Many(names)) => Targets::Named(names),
                Some(OneOrMany::One(_)) | None => Targets::Unlisted,
            },
            layers_to_transform: raw.layers_to_transform.map(|layers| match layers {
                OneOrMany::One(layer) => vec![layer],
                OneOrMany::Many(layers) => layers,
            }),
        })
    }

    /// Writes the file with the members that `peft` and other readers look at.
    pub(super) fn to_json(&self) -> String {
        let targets = match &self.targets {
            Targets::Named(names) => names.clone(),
            Targets::Unlisted => Vec::new(),
        };
        // Some readers insist on an integer, which alpha nearly always is.
        let alpha = if self.alpha.fract() == 0.0 && self.alpha.abs() < 1e9 {
            json!(self.alpha as i64)
        } else {
            json!(self.alpha)
        };
        let written = json!({
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": self.base_model,
            "r": self.rank,
            "lora_alpha": alpha,
            "lora_dropout": 0.0,
            "target_modules": targets,
            "layers_to_transform": self.layers_to_transform,
            "layers_pattern": null,
            "modules_to_save": null,
            "rank_pattern": {},
            "alpha_pattern": {},
            "bias": "none",
            "fan_in_fan_out": false,
            "init_lora_weights": true,
            "inference_mode": true,
            "use_dora": false,
            "use_rslora": false,
            "auto_mapping": null,
            "revision": null,
        });
        format!("{written:#}\n")
    }

    /// Returns the layers whose tensors must be there, given all that could be adapted.
    pub(super) fn promised_layers<'a>(
        &self,
        all: impl Iterator<Item = &'a String> + Clone,
    ) -> Result<Vec<String>, Error> {
        let Targets::Named(names) = &self.targets else {
            return Ok(Vec::new());
        };
        let mut promised = Vec::new();
        for name in names {
            let ending = format!(".{name}");
            let matching = all
                .clone()
                .filter(|layer| *layer == name || layer.ends_with(&ending));
            let before = promised.len();
            promised.extend(matching.cloned());
            if promised.len() == before {
                return Err(Error::unsupported(
                    "target_modules",
                    name,
                    "the model's attention and MLP projections and lm_head",
                ));
            }
        }
        if let Some(indices) = &self.layers_to_transform {
            promised
                .retain(|layer| layer_index(layer).is_some_and(|index| indices.contains(&index)));
        }
        Ok(promised)
    }
}

/// Returns `3` for `model.layers.3.mlp.up_proj`.
fn layer_index(layer: &str) -> Option<usize> {
    layer
        .strip_prefix("model.layers.")?
        .split('.')
        .next()?
        .parse()
        .ok()
}

/// Refuses adapters whose training began by changing the weights of the base model.
fn check_start(start: Option<&Value>) -> Result<(), Error> {
    match start {
        None | Some(Value::Null | Value::Bool(_)) => Ok(()),
        Some(Value::String(name)) if ["gaussian", "orthogonal"].contains(&name.as_str()) => Ok(()),
        Some(other) => Err(Error::unsupported(
            "init_lora_weights",
            other,
            "true, false, gaussian and orthogonal, which leave the base model as it is",
        )),
    }
}

fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(items) => !items.is_empty(),
        Value::Object(members) => !members.is_empty(),
        Value::Bool(true) | Value::Number(_) | Value::String(_) => true,
    }
}
