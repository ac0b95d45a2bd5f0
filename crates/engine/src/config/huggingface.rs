//! Reading `config.json`, in the forms written by `transformers` 4 and 5.
//!
//! Version 5 moved the rotary settings into `rope_parameters`; both places are read. Every option
//! that changes the arithmetic is either honoured or refused; what only concerns training from
//! scratch (dropout, initialisation) is ignored.

use serde::Deserialize;
use serde_json::{Value, json};

use super::architecture::{self, Family};
use super::{Architecture, ModelConfig, Rope, RopeScaling};
use crate::Error;

/// The members of `config.json` that matter, as they appear there.
#[derive(Debug, Deserialize)]
struct RawConfig {
    model_type: Option<String>,
    #[serde(default)]
    architectures: Vec<String>,
    hidden_size: Option<usize>,
    num_hidden_layers: Option<usize>,
    num_attention_heads: Option<usize>,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    intermediate_size: Option<usize>,
    vocab_size: Option<usize>,
    max_position_embeddings: Option<usize>,
    rms_norm_eps: Option<f64>,
    hidden_act: Option<String>,
    tie_word_embeddings: Option<bool>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    rope_theta: Option<f64>,
    rope_scaling: Option<RawRope>,
    rope_parameters: Option<RawRope>,
    partial_rotary_factor: Option<f64>,
    use_sliding_window: Option<bool>,
    sliding_window: Option<usize>,
    max_window_layers: Option<usize>,
    layer_types: Option<Vec<String>>,
    num_experts: Option<usize>,
    num_local_experts: Option<usize>,
    quantization_config: Option<Value>,
    bos_token_id: Option<TokenIds>,
    eos_token_id: Option<TokenIds>,
}

#[derive(Debug, Deserialize)]
struct RawRope {
    rope_theta: Option<f64>,
    rope_type: Option<String>,
    // The name of `rope_type` in older files.
    #[serde(rename = "type")]
    old_type: Option<String>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<usize>,
    partial_rotary_factor: Option<f64>,
}

/// A token id, or several.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum TokenIds {
    /// The usual form.
    One(u32),
    /// The form used by models with several end tokens.
    Many(Vec<u32>),
}

impl TokenIds {
    /// Returns the ids in the order of the file.
    pub(crate) fn into_vec(self) -> Vec<u32> {
        match self {
            Self::One(id) => vec![id],
            Self::Many(ids) => ids,
        }
    }
}

/// Translates `config.json`; the sizes are checked by the caller.
pub(super) fn parse(text: &str) -> Result<ModelConfig, Error> {
    let raw: RawConfig = serde_json::from_str(text).map_err(|source| Error::Json {
        document: "config.json".to_owned(),
        source,
    })?;
    let architecture = raw.architecture()?;
    let family = architecture.family();
    raw.refuse_unsupported(family)?;

    let hidden = required("hidden_size", raw.hidden_size)?;
    let heads = required("num_attention_heads", raw.num_attention_heads)?;
    let layers = required("num_hidden_layers", raw.num_hidden_layers)?;
    let rope = raw.rope()?;
    let attention_bias = raw.attention_bias.unwrap_or(false);
    Ok(ModelConfig {
        architecture,
        hidden,
        layers,
        heads,
        kv_heads: raw.num_key_value_heads.unwrap_or(heads),
        head_dim: match raw.head_dim.or(family.default_head_dim) {
            Some(head_dim) => head_dim,
            None => head_dim_of(hidden, heads)?,
        },
        ffn: required("intermediate_size", raw.intermediate_size)?,
        vocab: required("vocab_size", raw.vocab_size)?,
        max_context: required("max_position_embeddings", raw.max_position_embeddings)?,
        rms_eps: raw.rms_norm_eps.unwrap_or(1e-6),
        rope,
        tied_head: raw.tie_word_embeddings.unwrap_or(false),
        qkv_bias: family.fixed_biases || attention_bias,
        attention_output_bias: !family.fixed_biases && attention_bias,
        qk_norm: family.qk_norm,
        bos: raw
            .bos_token_id
            .and_then(|ids| ids.into_vec().first().copied()),
        eos: raw.eos_token_id.map(TokenIds::into_vec).unwrap_or_default(),
    })
}

/// Writes the older form, which both versions of `transformers` read.
pub(super) fn write(config: &ModelConfig) -> String {
    let family = config.architecture.family();
    let scaling = match config.rope.scaling {
        RopeScaling::None => Value::Null,
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_context,
        } => {
            json!({
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low_freq_factor,
                "high_freq_factor": high_freq_factor,
                "original_max_position_embeddings": original_context,
            })
        }
    };
    let written = json!({
        "architectures": [family.class],
        "model_type": family.model_type,
        "hidden_size": config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.ffn,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.max_context,
        "rms_norm_eps": config.rms_eps,
        "rope_theta": config.rope.theta,
        "rope_scaling": scaling,
        "hidden_act": "silu",
        "tie_word_embeddings": config.tied_head,
        // Qwen2 has its biases without saying so.
        "attention_bias": config.qkv_bias && !family.fixed_biases,
        "bos_token_id": config.bos,
        "eos_token_id": config.eos,
    });
    format!("{written:#}\n")
}

impl RawConfig {
    fn architecture(&self) -> Result<Architecture, Error> {
        let found = match (&self.model_type, self.architectures.first()) {
            (Some(model_type), _) => model_type.as_str(),
            (None, Some(class)) => class.as_str(),
            (None, None) => {
                return Err(Error::invalid(
                    "model_type",
                    "it is missing from config.json",
                ));
            }
        };
        Architecture::find(|family| [family.model_type, family.class].contains(&found))
            .ok_or_else(|| Error::unsupported("model_type", found, architecture::SUPPORTED))
    }

    fn refuse_unsupported(&self, family: &Family) -> Result<(), Error> {
        if let Some(activation) = &self.hidden_act
            && activation != "silu"
        {
            return Err(Error::unsupported("hidden_act", activation, "silu"));
        }
        if self.mlp_bias == Some(true) {
            return Err(Error::unsupported("mlp_bias", true, "MLPs without biases"));
        }
        for (option, experts) in [
            ("num_experts", self.num_experts),
            ("num_local_experts", self.num_local_experts),
        ] {
            if let Some(experts) = experts
                && experts > 1
            {
                return Err(Error::unsupported(option, experts, "dense models"));
            }
        }
        if self
            .quantization_config
            .as_ref()
            .is_some_and(|config| !config.is_null())
        {
            return Err(Error::unsupported(
                "quantization_config",
                "present",
                "f32, f16 and bf16 weights, and GGUF files",
            ));
        }
        self.refuse_sliding_window(family)
    }

    /// Qwen's files name a window that `use_sliding_window` turns off; elsewhere a window counts.
    fn refuse_sliding_window(&self, family: &Family) -> Result<(), Error> {
        const SUPPORTED: &str = "full attention in every layer";
        if let Some(types) = &self.layer_types
            && let Some(other) = types.iter().find(|kind| *kind != "full_attention")
        {
            return Err(Error::unsupported("layer_types", other, SUPPORTED));
        }
        let Some(window) = self.sliding_window else {
            return Ok(());
        };
        let switched_on = self.use_sliding_window == Some(true)
            && self.max_window_layers.unwrap_or(0) < self.num_hidden_layers.unwrap_or(0);
        if !family.window_has_switch || switched_on {
            return Err(Error::unsupported("sliding_window", window, SUPPORTED));
        }
        Ok(())
    }

    fn rope(&self) -> Result<Rope, Error> {
        let nested = self.rope_parameters.as_ref().or(self.rope_scaling.as_ref());
        let partial = nested
            .and_then(|rope| rope.partial_rotary_factor)
            .or(self.partial_rotary_factor);
        if let Some(factor) = partial
            && factor != 1.0
        {
            return Err(Error::unsupported("partial_rotary_factor", factor, "1"));
        }
        let theta = nested
            .and_then(|rope| rope.rope_theta)
            .or(self.rope_theta)
            .unwrap_or(10_000.0);
        let scaling = nested.map_or(Ok(RopeScaling::None), RawRope::scaling)?;
        Ok(Rope { theta, scaling })
    }
}

impl RawRope {
    fn scaling(&self) -> Result<RopeScaling, Error> {
        let kind = self.rope_type.as_ref().or(self.old_type.as_ref());
        match kind.map_or("default", String::as_str) {
            "default" => Ok(RopeScaling::None),
            "llama3" => Ok(RopeScaling::Llama3 {
                factor: required("rope_scaling.factor", self.factor)?,
                low_freq_factor: required("rope_scaling.low_freq_factor", self.low_freq_factor)?,
                high_freq_factor: required("rope_scaling.high_freq_factor", self.high_freq_factor)?,
                original_context: required(
                    "rope_scaling.original_max_position_embeddings",
                    self.original_max_position_embeddings,
                )?,
            }),
            other => Err(Error::unsupported("rope_type", other, "default and llama3")),
        }
    }
}

fn required<T>(option: &str, value: Option<T>) -> Result<T, Error> {
    value.ok_or_else(|| Error::invalid(option, "it is missing from config.json"))
}

fn head_dim_of(hidden: usize, heads: usize) -> Result<usize, Error> {
    if heads == 0 || !hidden.is_multiple_of(heads) {
        return Err(Error::invalid(
            "num_attention_heads",
            format!("{heads} does not divide hidden_size {hidden}, and there is no head_dim"),
        ));
    }
    Ok(hidden / heads)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn llama() -> Value {
        json!({
            "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
            "vocab_size": 128, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
            "hidden_act": "silu", "rope_theta": 10000.0, "tie_word_embeddings": true,
            "bos_token_id": 1, "eos_token_id": [2, 3], "torch_dtype": "float32"
        })
    }

    fn with(changes: Value) -> Result<ModelConfig, Error> {
        let mut config = llama();
        let members = config.as_object_mut().unwrap();
        for (key, value) in changes.as_object().unwrap() {
            members.insert(key.clone(), value.clone());
        }
        ModelConfig::from_hf_json(&config.to_string())
    }

    #[test]
    fn a_plain_llama_is_read() {
        let config = with(json!({})).unwrap();
        assert_eq!(config.architecture, Architecture::Llama);
        assert_eq!(
            (config.head_dim, config.kv_width(), config.query_width()),
            (16, 32, 64)
        );
        assert_eq!(
            (config.bos, config.eos.as_slice()),
            (Some(1), [2, 3].as_slice())
        );
        assert!(config.tied_head && !config.qkv_bias && !config.qk_norm);
    }

    #[test]
    fn families_differ_in_biases_norms_and_head_size() {
        let qwen2 = with(json!({
            "model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": false
        }))
        .unwrap();
        assert!(qwen2.qkv_bias && !qwen2.attention_output_bias && !qwen2.qk_norm);
        let qwen3 = with(json!({ "model_type": "qwen3", "attention_bias": false })).unwrap();
        assert!(qwen3.qk_norm && !qwen3.qkv_bias);
        assert_eq!(qwen3.head_dim, 128);
        let biased = with(json!({ "attention_bias": true })).unwrap();
        assert!(biased.qkv_bias && biased.attention_output_bias);
    }

    #[test]
    fn both_places_of_the_rotary_settings_are_read() {
        let llama3 = json!({
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64
        });
        let mut nested = llama3.clone();
        nested["rope_theta"] = json!(500000.0);
        let old = with(json!({ "rope_theta": 500000.0, "rope_scaling": llama3 })).unwrap();
        let new = with(json!({ "rope_theta": null, "rope_parameters": nested })).unwrap();
        assert_eq!(old.rope, new.rope);
        assert_eq!(old.rope.theta, 500_000.0);
        assert!(matches!(
            old.rope.scaling,
            RopeScaling::Llama3 {
                original_context: 64,
                ..
            }
        ));
    }

    #[test]
    fn what_the_engine_lacks_is_refused_by_name() {
        let cases = [
            (
                json!({ "model_type": "mamba" }),
                "unsupported model_type `mamba`",
            ),
            (
                json!({ "model_type": "qwen3_moe" }),
                "unsupported model_type `qwen3_moe`",
            ),
            (
                json!({ "hidden_act": "gelu" }),
                "unsupported hidden_act `gelu`",
            ),
            (json!({ "mlp_bias": true }), "unsupported mlp_bias `true`"),
            (
                json!({ "num_local_experts": 8 }),
                "unsupported num_local_experts `8`",
            ),
            (
                json!({ "sliding_window": 128 }),
                "unsupported sliding_window `128`",
            ),
            (
                json!({ "layer_types": ["full_attention", "sliding_attention"] }),
                "unsupported layer_types `sliding_attention`",
            ),
            (
                json!({ "rope_scaling": { "type": "yarn" } }),
                "unsupported rope_type `yarn`",
            ),
            (
                json!({ "rope_scaling": { "rope_type": "dynamic", "factor": 2.0 } }),
                "unsupported rope_type `dynamic`",
            ),
            (
                json!({ "partial_rotary_factor": 0.5 }),
                "unsupported partial_rotary_factor `0.5`",
            ),
            (
                json!({ "quantization_config": { "bits": 4 } }),
                "unsupported quantization_config",
            ),
            (
                json!({ "hidden_size": null }),
                "invalid hidden_size: it is missing",
            ),
            (
                json!({ "num_attention_heads": 3 }),
                "invalid num_attention_heads: 3 does not divide",
            ),
            (
                json!({ "num_attention_heads": 0 }),
                "invalid num_attention_heads: 0 does not",
            ),
        ];
        for (changes, expected) in cases {
            let message = with(changes.clone()).unwrap_err().to_string();
            assert!(message.starts_with(expected), "{changes}: {message}");
        }
    }

    #[test]
    fn a_written_configuration_reads_the_same() {
        let biased = ModelConfig {
            qkv_bias: true,
            attention_output_bias: true,
            bos: None,
            ..ModelConfig::tiny_llama()
        };
        for config in ModelConfig::tiny_models().into_iter().chain([biased]) {
            assert_eq!(
                ModelConfig::from_hf_json(&config.to_hf_json()).unwrap(),
                config
            );
        }
    }

    #[test]
    fn text_that_is_not_json_is_refused() {
        let error = ModelConfig::from_hf_json("{\"hidden_size\": ").unwrap_err();
        assert_eq!(
            error.to_string(),
            "config.json is not valid JSON of the expected form"
        );
    }
}
