//! `adapter_config.json`.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::Error;
use crate::model::tensor_table::{HEAD, layer_index};

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

/// What the hosted service calls the head.
const UNEMBEDDING_TARGETS: [&str; 2] = [super::UNEMBEDDING, "unembed_tokens"];

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
        let members = serde_json::from_str(text).map_err(|source| Error::Json {
            document: path.display().to_string(),
            source,
        })?;
        let mut members = Members(members);
        let peft_type: Option<String> = members.take("peft_type", "a text")?;
        if peft_type.as_deref() != Some("LORA") {
            let found = peft_type.as_deref().unwrap_or("null");
            return Err(Error::unsupported("peft_type", found, "LORA"));
        }
        let bias: Option<String> = members.take("bias", "a text")?;
        if let Some(bias) = bias.filter(|bias| bias != "none") {
            return Err(Error::unsupported("bias", bias, "none"));
        }
        check_start(members.take("init_lora_weights", "a value")?.as_ref())?;
        let rank = members.take::<usize>("r", POSITIVE)?;
        let rank = rank.filter(|&rank| rank > 0);
        let rank = rank.ok_or_else(|| expected("r", POSITIVE))?;
        let alpha = members.take::<f64>("lora_alpha", "a number")?;
        let mut alpha = alpha.ok_or_else(|| expected("lora_alpha", "a number"))?;
        let is_stabilised = members.take("use_rslora", "true or false")?;
        if is_stabilised.unwrap_or(false) {
            // Rank-stabilised LoRA scales by alpha / √rank.
            alpha *= (rank as f64).sqrt();
        }
        let alpha = alpha as f32;
        if !alpha.is_finite() {
            return Err(expected("lora_alpha", "a number of single precision"));
        }
        let exceptions: Option<Value> = members.take("exclude_modules", "a value")?;
        let targets = members.take("target_modules", "a text or a list of texts")?;
        let layers = members.take("layers_to_transform", "a number or a list of numbers")?;
        let base_model = members.take("base_model_name_or_path", "a text")?;
        members.refuse_others()?;
        Ok(Self {
            base_model: base_model.unwrap_or_default(),
            rank,
            alpha,
            targets: match targets {
                // With exceptions, which may be a pattern, the names promise nothing.
                _ if exceptions.as_ref().is_some_and(is_set) => Targets::Unlisted,
                Some(OneOrMany::Many(names)) => Targets::Named(names),
                Some(OneOrMany::One::<String>(_)) | None => Targets::Unlisted,
            },
            layers_to_transform: match layers {
                Some(OneOrMany::One(layer)) => Some(vec![layer]),
                // For `peft`, too, an empty list restricts nothing.
                Some(OneOrMany::Many(layers)) => Some(layers).filter(|layers| !layers.is_empty()),
                None => None,
            },
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

    /// Returns the layers whose tensors must be there, and no others, given all that could be
    /// adapted; `None` if only the tensors tell.
    pub(super) fn promised_layers<'a>(
        &self,
        all: impl Iterator<Item = &'a String> + Clone,
    ) -> Result<Option<BTreeSet<String>>, Error> {
        let Targets::Named(names) = &self.targets else {
            return Ok(None);
        };
        let mut promised = BTreeSet::new();
        for name in names {
            let name = if UNEMBEDDING_TARGETS.contains(&name.as_str()) {
                HEAD.in_hugging_face()
            } else {
                name
            };
            let ending = format!(".{name}");
            let mut matching = all
                .clone()
                .filter(|layer| *layer == name || layer.ends_with(&ending))
                .peekable();
            if matching.peek().is_none() {
                return Err(Error::unsupported(
                    "target_modules",
                    name,
                    "the model's attention and MLP projections and lm_head",
                ));
            }
            promised.extend(matching.cloned());
        }
        if let Some(indices) = &self.layers_to_transform {
            promised
                .retain(|layer| layer_index(layer).is_some_and(|index| indices.contains(&index)));
        }
        Ok(Some(promised))
    }
}

/// The members of the file that have not been read yet.
struct Members(Map<String, Value>);

impl Members {
    /// Takes a member that may be missing or null.
    fn take<T: DeserializeOwned>(
        &mut self,
        name: &str,
        expected: &str,
    ) -> Result<Option<T>, Error> {
        let found = self.0.remove(name).unwrap_or_default();
        Option::deserialize(&found).map_err(|_| {
            Error::invalid(
                name,
                format!("found {}, expected {expected}", short(&found)),
            )
        })
    }

    /// Refuses by name what is left and may change the arithmetic.
    fn refuse_others(&self) -> Result<(), Error> {
        let is_harmless = |name: &str| HARMLESS.contains(&name);
        let mut others = self.0.iter().filter(|(_, value)| is_set(value));
        let Some((option, value)) = others.find(|(name, _)| !is_harmless(name)) else {
            return Ok(());
        };
        // An unknown setting may change the arithmetic, too.
        let known = REFUSED.iter().find(|(refused, _)| refused == option);
        let supported = known.map_or("plain LoRA, without this option", |(_, what)| what);
        Err(Error::unsupported(option, short(value), supported))
    }
}

const POSITIVE: &str = "a positive integer";

fn expected(name: &str, what: &str) -> Error {
    Error::invalid(name, format!("expected {what}"))
}

/// Writes a value for a message, which it must not fill.
fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        None => text,
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// Refuses adapters whose training began by changing the weights of the base model.
fn check_start(start: Option<&Value>) -> Result<(), Error> {
    match start {
        None | Some(Value::Null | Value::Bool(_)) => Ok(()),
        Some(Value::String(name)) if ["gaussian", "orthogonal"].contains(&name.as_str()) => Ok(()),
        Some(other) => Err(Error::unsupported(
            "init_lora_weights",
            short(other),
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
