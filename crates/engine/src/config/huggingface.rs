//! Reading `config.json`, in the forms written by `transformers` 4 and 5.
//!
//! Version 5 moved the rotary settings into `rope_parameters`; both places are read. Every option
//! that changes the arithmetic is either honoured or refused; what only concerns training from
//! scratch (dropout, initialisation) is ignored.

mod rope;
#[cfg(test)]
mod tests;
mod write;

use serde::Deserialize;
use serde_json::Value;

use super::architecture::{self, Family, Windows};
use super::{Activation, Architecture, DeltaRule, Experts, Features, LayerKind, ModelConfig};
use crate::Error;
pub(super) use write::write;

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
    hidden_activation: Option<String>,
    tie_word_embeddings: Option<bool>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    rope_theta: Option<f64>,
    rope_local_base_freq: Option<f64>,
    rope_scaling: Option<Value>,
    rope_parameters: Option<Value>,
    partial_rotary_factor: Option<f64>,
    original_max_position_embeddings: Option<usize>,
    use_sliding_window: Option<bool>,
    sliding_window: Option<usize>,
    sliding_window_pattern: Option<usize>,
    full_attention_interval: Option<usize>,
    attn_output_gate: Option<bool>,
    linear_num_key_heads: Option<usize>,
    linear_num_value_heads: Option<usize>,
    linear_key_head_dim: Option<usize>,
    linear_value_head_dim: Option<usize>,
    linear_conv_kernel_dim: Option<usize>,
    max_window_layers: Option<usize>,
    layer_types: Option<Vec<String>>,
    use_bidirectional_attention: Option<bool>,
    query_pre_attn_scalar: Option<f64>,
    attn_logit_softcapping: Option<f64>,
    final_logit_softcapping: Option<f64>,
    num_experts: Option<usize>,
    num_local_experts: Option<usize>,
    num_experts_per_tok: Option<usize>,
    moe_intermediate_size: Option<usize>,
    shared_expert_intermediate_size: Option<usize>,
    norm_topk_prob: Option<bool>,
    swiglu_alpha: Option<f64>,
    swiglu_limit: Option<f64>,
    decoder_sparse_step: Option<usize>,
    #[serde(default)]
    mlp_only_layers: Vec<usize>,
    quantization_config: Option<Value>,
    bos_token_id: Option<TokenIds>,
    eos_token_id: Option<TokenIds>,
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
    let malformed = |source| Error::Json {
        document: "config.json".to_owned(),
        source,
    };
    let whole: Value = serde_json::from_str(text).map_err(malformed)?;
    let raw: RawConfig = serde_json::from_value(text_part(whole)).map_err(malformed)?;
    let architecture = raw.architecture()?;
    let family = architecture.family();
    raw.refuse_unsupported(family)?;

    let defaults = Defaults::of(architecture);
    let hidden = required("hidden_size", raw.hidden_size)?;
    let heads = raw.num_attention_heads.or(defaults.heads);
    let heads = required("num_attention_heads", heads)?;
    let layers = required("num_hidden_layers", raw.num_hidden_layers)?;
    let head_dim = match raw.head_dim.or(family.default_head_dim) {
        Some(head_dim) => head_dim,
        None => head_dim_of(hidden, heads)?,
    };
    let context = raw.max_position_embeddings.or(defaults.context);
    let context = required("max_position_embeddings", context)?;
    let ropes = raw.ropes(family, head_dim, context)?;
    let attention_bias = raw.attention_bias.unwrap_or(family.is_gpt_oss);
    let features = raw.features(family, layers, ropes.local)?;
    Ok(ModelConfig {
        architecture,
        hidden,
        layers,
        heads,
        kv_heads: raw
            .num_key_value_heads
            .or(defaults.kv_heads)
            .unwrap_or(heads),
        head_dim,
        ffn: match family.shares_expert {
            // All layers have experts there, so that files need not name it.
            true => raw.intermediate_size.or(raw.moe_intermediate_size),
            false => raw.intermediate_size,
        }
        .map_or_else(|| required("intermediate_size", None), Ok)?,
        vocab: required("vocab_size", raw.vocab_size.or(defaults.vocab))?,
        max_context: ropes.context,
        rms_eps: raw.rms_norm_eps.unwrap_or(1e-6),
        rope: ropes.rope,
        tied_head: raw.tie_word_embeddings.unwrap_or(family.is_gemma),
        qkv_bias: family.fixed_biases || attention_bias,
        attention_output_bias: !family.fixed_biases && attention_bias,
        qk_norm: family.qk_norm,
        bos: raw
            .bos_token_id
            .and_then(|ids| ids.into_vec().first().copied()),
        eos: raw.eos_token_id.map(TokenIds::into_vec).unwrap_or_default(),
        features,
    })
}

/// Takes the part for text out of the configuration of a model that sees images.
fn text_part(mut whole: Value) -> Value {
    let Some(mut inner) = whole.get_mut("text_config").map(Value::take) else {
        return whole;
    };
    let Some(members) = inner.as_object_mut() else {
        return whole;
    };
    for name in [
        "tie_word_embeddings",
        "bos_token_id",
        "eos_token_id",
        "quantization_config",
    ] {
        if members.get(name).is_none_or(Value::is_null)
            && let Some(value) = whole.get(name)
        {
            members.insert(name.to_owned(), value.clone());
        }
    }
    inner
}

/// What a family's files may leave out, because `transformers` has a default for it.
#[derive(Default)]
struct Defaults {
    heads: Option<usize>,
    kv_heads: Option<usize>,
    vocab: Option<usize>,
    context: Option<usize>,
    window: Option<usize>,
    query_scalar: Option<f64>,
}

impl Defaults {
    fn of(architecture: Architecture) -> Self {
        match architecture {
            Architecture::Gemma3 => Self {
                heads: Some(8),
                kv_heads: Some(4),
                vocab: Some(262_208),
                context: Some(131_072),
                window: Some(4096),
                query_scalar: Some(256.0),
            },
            Architecture::Gemma2 => Self {
                window: Some(4096),
                query_scalar: Some(256.0),
                ..Self::default()
            },
            _ => Self::default(),
        }
    }
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
        Architecture::find(|family| {
            [family.model_type, family.class].contains(&found) || family.around.contains(&found)
        })
        .ok_or_else(|| Error::unsupported("model_type", found, architecture::SUPPORTED))
    }

    fn refuse_unsupported(&self, family: &Family) -> Result<(), Error> {
        let meant = if family.is_gemma {
            "gelu_pytorch_tanh"
        } else {
            "silu"
        };
        // Gemma 2's files have another value in `hidden_act`, which nothing reads.
        let (option, found) = match (&self.hidden_activation, &self.hidden_act) {
            (Some(found), _) => ("hidden_activation", found.as_str()),
            (None, Some(found)) if !family.is_gemma => ("hidden_act", found.as_str()),
            _ => ("hidden_act", meant),
        };
        if found != meant {
            return Err(Error::unsupported(option, found, meant));
        }
        if self.mlp_bias == Some(true) {
            return Err(Error::unsupported("mlp_bias", true, "MLPs without biases"));
        }
        if matches!(family.windows, Windows::States(_)) && self.attn_output_gate == Some(false) {
            return Err(Error::unsupported("attn_output_gate", false, "true"));
        }
        if self.use_bidirectional_attention == Some(true) {
            return Err(Error::unsupported(
                "use_bidirectional_attention",
                true,
                "causal attention",
            ));
        }
        for (option, experts) in [
            ("num_experts", self.num_experts),
            ("num_local_experts", self.num_local_experts),
        ] {
            if let Some(experts) = experts
                && experts > 1
                && !family.has_experts
            {
                return Err(Error::unsupported(option, experts, "dense models"));
            }
        }
        if family.has_experts {
            const ALL: &str = "experts in every layer";
            if let Some(step) = self.decoder_sparse_step.filter(|&step| step != 1) {
                return Err(Error::unsupported("decoder_sparse_step", step, ALL));
            }
            if let Some(layer) = self.mlp_only_layers.first() {
                return Err(Error::unsupported("mlp_only_layers", layer, ALL));
            }
        }
        if family.is_gpt_oss {
            for (option, found, known) in [
                ("swiglu_alpha", self.swiglu_alpha, (1.702, "1.702")),
                ("swiglu_limit", self.swiglu_limit, (7.0, "7")),
            ] {
                if let Some(found) = found.filter(|&found| found != known.0) {
                    return Err(Error::unsupported(option, found, known.1));
                }
            }
        }
        let quantised = self.quantization_config.as_ref();
        let quantised = quantised.filter(|config| !config.is_null());
        let is_mxfp4 = |config: &Value| {
            family.is_gpt_oss && config.get("quant_method").and_then(Value::as_str) == Some("mxfp4")
        };
        if quantised.is_some_and(|config| !is_mxfp4(config)) {
            return Err(Error::unsupported(
                "quantization_config",
                "present",
                "f32, f16 and bf16 weights, gpt-oss in mxfp4, and GGUF files",
            ));
        }
        Ok(())
    }

    fn features(
        &self,
        family: &Family,
        layers: usize,
        local_rope: Option<super::Rope>,
    ) -> Result<Features, Error> {
        let layer_kinds = Features::repeating(&self.kinds(family, layers)?);
        let slides = layer_kinds.contains(&LayerKind::Sliding);
        let has_states = matches!(family.windows, Windows::States(_));
        let defaults = match family.is_gemma {
            true => Defaults::of(Architecture::Gemma2),
            false => Defaults::default(),
        };
        let layer_kinds_have_states = layer_kinds.contains(&LayerKind::Delta);
        Ok(Features {
            window: self.sliding_window.or(defaults.window).filter(|_| slides),
            local_rope: local_rope.filter(|_| slides),
            layer_kinds,
            fused_projections: family.fused_projections,
            activation: match family {
                Family { is_gemma: true, .. } => Activation::GeGlu,
                Family {
                    is_gpt_oss: true, ..
                } => Activation::ClampedSwiGlu,
                _ => Activation::SwiGlu,
            },
            norms_add_one: family.is_gemma || has_states,
            output_norms: family.is_gemma,
            scaled_embedding: family.is_gemma,
            query_scalar: match family.is_gemma {
                true => self.query_pre_attn_scalar.or(defaults.query_scalar),
                false => None,
            },
            attention_softcap: self.attn_logit_softcapping.filter(|_| family.is_gemma),
            final_softcap: self.final_logit_softcapping.filter(|_| family.is_gemma),
            sinks: family.is_gpt_oss,
            output_gate: has_states,
            delta: match layer_kinds_have_states {
                true => Some(self.delta_rule()?),
                false => None,
            },
            experts: self.experts(family)?,
        })
    }

    fn delta_rule(&self) -> Result<DeltaRule, Error> {
        let size = |option: &str, found: Option<usize>| required(option, found);
        Ok(DeltaRule {
            key_heads: size("linear_num_key_heads", self.linear_num_key_heads)?,
            value_heads: size("linear_num_value_heads", self.linear_num_value_heads)?,
            key_dim: size("linear_key_head_dim", self.linear_key_head_dim)?,
            value_dim: size("linear_value_head_dim", self.linear_value_head_dim)?,
            kernel: size("linear_conv_kernel_dim", self.linear_conv_kernel_dim)?,
        })
    }

    fn experts(&self, family: &Family) -> Result<Option<Experts>, Error> {
        if !family.has_experts {
            return Ok(None);
        }
        let count = self.num_experts.or(self.num_local_experts);
        Ok(Some(Experts {
            count: required("num_experts", count)?,
            per_token: required("num_experts_per_tok", self.num_experts_per_tok)?,
            ffn: match family.is_gpt_oss {
                true => required("intermediate_size", self.intermediate_size)?,
                false => required("moe_intermediate_size", self.moe_intermediate_size)?,
            },
            // Families that always do it have no option for it.
            normalised: family.is_gpt_oss
                || family.shares_expert
                || self.norm_topk_prob.unwrap_or(false),
            biases: family.is_gpt_oss,
            shared: match family.shares_expert {
                true => Some(required(
                    "shared_expert_intermediate_size",
                    self.shared_expert_intermediate_size,
                )?),
                false => None,
            },
        }))
    }

    /// Returns the kinds of all layers. Bounded, as this comes before the sizes are checked.
    fn kinds(&self, family: &Family, layers: usize) -> Result<Vec<LayerKind>, Error> {
        let layers = layers.min(1 << 12);
        if let Some(types) = &self.layer_types {
            let kinds = types.iter().map(|kind| match kind.as_str() {
                "full_attention" => Ok(LayerKind::Full),
                "sliding_attention" if family.windows.slide() => Ok(LayerKind::Sliding),
                "linear_attention" if matches!(family.windows, Windows::States(_)) => {
                    Ok(LayerKind::Delta)
                }
                other => Err(Error::unsupported(
                    "layer_types",
                    other,
                    "full_attention, and sliding_attention or linear_attention in families that have it",
                )),
            });
            let kinds = kinds.collect::<Result<Vec<_>, _>>()?;
            if kinds.len() != layers {
                let reason = format!("{} kinds for {layers} layers", kinds.len());
                return Err(Error::invalid("layer_types", reason));
            }
            return Ok(kinds);
        }
        let full_every = |step: usize, other: LayerKind| {
            let kind = |layer: usize| match (layer + 1).is_multiple_of(step) {
                true => LayerKind::Full,
                false => other,
            };
            (0..layers).map(kind).collect()
        };
        Ok(match (family.windows, self.sliding_window) {
            (Windows::AllBut(step), _) => {
                let step = self.sliding_window_pattern.unwrap_or(step).max(1);
                full_every(step, LayerKind::Sliding)
            }
            (Windows::States(step), _) => {
                let step = self.full_attention_interval.unwrap_or(step).max(1);
                full_every(step, LayerKind::Delta)
            }
            (_, None) => vec![LayerKind::Full; layers],
            (Windows::None, Some(window)) => {
                let supported = "full attention in every layer";
                return Err(Error::unsupported("sliding_window", window, supported));
            }
            (Windows::All, Some(_)) => vec![LayerKind::Sliding; layers],
            (Windows::Switched, Some(_)) => {
                let first = match self.use_sliding_window {
                    Some(true) => self.max_window_layers.unwrap_or(0).min(layers),
                    _ => layers,
                };
                let mut kinds = vec![LayerKind::Full; first];
                kinds.resize(layers, LayerKind::Sliding);
                kinds
            }
        })
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
