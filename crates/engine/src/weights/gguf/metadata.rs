//! From GGUF's metadata to a configuration.

use tinkrs_gguf::{Header, Value};

use crate::config::architecture::{self, Windows};
use crate::config::{
    Activation, Architecture, DeltaRule, Experts, Features, LayerKind, Rope, RopeScaling,
};
use crate::model::attention::full;
use crate::model::tensor_table::{EMBEDDING, FullNames, HEAD};
use crate::weights::Format;
use crate::{Error, ModelConfig};

/// Puts the configuration together from metadata, and from which tensors there are.
pub(super) fn config(header: &Header, file: &[u8]) -> Result<ModelConfig, Error> {
    let name = match header.metadata.get("general.architecture") {
        Some(Value::Text(name)) => name.as_str(),
        _ => return Err(Error::invalid("general.architecture", "it is missing")),
    };
    let architecture = Architecture::find(|family| family.gguf == name && !name.is_empty())
        .ok_or_else(|| Error::unsupported("general.architecture", name, architecture::SUPPORTED))?;
    let source = Metadata {
        header,
        file,
        architecture: name,
    };
    source.refuse_unsupported(architecture)?;

    let has = |tensor: FullNames| header.tensors.contains_key(&tensor.gguf);
    let hidden = source.size("embedding_length")?;
    let heads = source.size("attention.head_count")?;
    let head_dim = match source.optional_size("attention.key_length")? {
        Some(head_dim) => head_dim,
        None => hidden.checked_div(heads).unwrap_or(0),
    };
    let embedding_names = EMBEDDING.in_model().weight();
    let embedding = header.tensors.get(&embedding_names.gguf);
    let vocab = embedding.and_then(|tensor| tensor.shape.first().copied());
    // Blocks that predict further tokens come last, and nothing here runs them.
    let blocks = source.size("block_count")?;
    let predicting = source.optional_size("nextn_predict_layers")?.unwrap_or(0);
    let layers = blocks.checked_sub(predicting).ok_or_else(|| {
        let reason = format!("{predicting} of {blocks} blocks");
        Error::invalid(source.key("nextn_predict_layers"), reason)
    })?;
    let turning = source.optional_size("rope.dimension_count")?;
    let config = ModelConfig {
        architecture,
        hidden,
        layers,
        heads,
        kv_heads: source
            .optional_size("attention.head_count_kv")?
            .unwrap_or(heads),
        head_dim,
        ffn: match source.optional_size("feed_forward_length")? {
            Some(ffn) if ffn > 0 => ffn,
            _ if architecture.family().has_experts => source.size("expert_feed_forward_length")?,
            _ => source.size("feed_forward_length")?,
        },
        vocab: vocab.ok_or_else(|| Error::MissingTensor {
            tensor: embedding_names.hugging_face,
            origin: "the GGUF file".to_owned(),
        })?,
        max_context: source.size("context_length")?,
        rms_eps: source.float("attention.layer_norm_rms_epsilon", 1e-6)?,
        rope: Rope {
            theta: source.float("rope.freq_base", architecture.family().default_theta)?,
            scaling: source.scaling(architecture.family().is_gpt_oss)?,
            dimensions: turning.filter(|&turning| turning != head_dim),
        },
        tied_head: !has(HEAD.in_model().weight()),
        qkv_bias: has(full::QUERY.in_layer(0).bias()),
        attention_output_bias: has(full::OUTPUT.in_layer(0).bias()),
        // Where the first layer has a state, it has none of these norms.
        qk_norm: matches!(architecture.family().windows, Windows::States(_))
            || has(full::QUERY_NORM.in_layer(0).weight()),
        bos: source.token("bos_token_id")?,
        eos: [source.token("eos_token_id")?, source.token("eot_token_id")?]
            .into_iter()
            .flatten()
            .fold(Vec::new(), |mut ids, id| {
                if !ids.contains(&id) {
                    ids.push(id);
                }
                ids
            }),
        features: source.features(architecture, layers, hidden, heads, head_dim)?,
    };
    config.validate()?;
    if let Some(size) = source.optional_size("attention.value_length")?
        && size != config.head_dim
    {
        let reason = format!("{size} differs from the head size {}", config.head_dim);
        return Err(Error::invalid(source.key("attention.value_length"), reason));
    }
    let config = with_short_factors(config, &source, file)?;
    with_rope_factors(config, header, file)
}

/// Reads the divisors that Phi's frequencies have within the first context.
fn with_short_factors(
    config: ModelConfig,
    source: &Metadata<'_>,
    file: &[u8],
) -> Result<ModelConfig, Error> {
    const NAME: &str = "rope_factors_short.weight";
    let Some(info) = source.header.tensors.get(NAME) else {
        return Ok(config);
    };
    let pairs = config.rope.dimensions.unwrap_or(config.head_dim) / 2;
    let divisors = floats(source.header, file, NAME, pairs)
        .ok_or_else(|| Error::invalid(NAME, format!("shape {:?} of f32", info.shape)))?;
    let first = source.size("rope.scaling.original_context_length")?;
    let config = ModelConfig {
        max_context: config.max_context.min(first),
        rope: Rope {
            scaling: RopeScaling::Divided {
                divisors,
                attention_factor: source.float("rope.scaling.attn_factor", 1.0)?,
            },
            ..config.rope
        },
        ..config
    };
    config.validate()?;
    Ok(config)
}

/// Reads a vector of f32 of a certain length.
fn floats(header: &Header, file: &[u8], name: &str, length: usize) -> Option<Vec<f64>> {
    let info = header.tensors.get(name)?;
    let bytes = info
        .bytes(Format::F32.block(), header.data_start, file)
        .filter(|_| info.format == 0 && info.shape == [length])?;
    let numbers = bytes.as_chunks().0.iter();
    Some(
        numbers
            .map(|&chunk| f64::from(f32::from_le_bytes(chunk)))
            .collect(),
    )
}

/// Recognises Llama 3's scaling, which GGUF stores as one divisor for each frequency.
fn with_rope_factors(
    config: ModelConfig,
    header: &Header,
    file: &[u8],
) -> Result<ModelConfig, Error> {
    const NAME: &str = "rope_freqs.weight";
    if !header.tensors.contains_key(NAME) {
        return Ok(config);
    }
    let unsupported = || Error::unsupported(NAME, "unknown", "Llama 3's rotary scaling");
    let divisors = floats(header, file, NAME, config.head_dim / 2).ok_or_else(unsupported)?;

    let rope = Rope {
        scaling: RopeScaling::Llama3 {
            factor: divisors.iter().fold(1.0, |largest, &x| x.max(largest)),
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192,
        },
        ..config.rope.clone()
    };
    let plain = config.rope.frequencies(config.head_dim);
    let scaled = rope.frequencies(config.head_dim);
    let agrees = plain
        .iter()
        .zip(&scaled)
        .zip(&divisors)
        .all(|((plain, scaled), divisor)| (plain / scaled / divisor - 1.0).abs() < 1e-4);
    if !agrees {
        return Err(unsupported());
    }
    let config = ModelConfig { rope, ..config };
    config.validate()?;
    Ok(config)
}

struct Metadata<'a> {
    header: &'a Header,
    file: &'a [u8],
    architecture: &'a str,
}

impl Metadata<'_> {
    fn key(&self, option: &str) -> String {
        format!("{}.{option}", self.architecture)
    }

    fn optional_size(&self, option: &str) -> Result<Option<usize>, Error> {
        let key = self.key(option);
        match self.header.metadata.get(&key) {
            None => Ok(None),
            Some(Value::Integer(value)) => usize::try_from(*value)
                .map(Some)
                .map_err(|_| Error::invalid(key, format!("{value} is not a size"))),
            Some(Value::Array(_)) => Err(Error::unsupported(key, "array", "one for all layers")),
            Some(other) => Err(Error::invalid(key, format!("{other:?} is not a size"))),
        }
    }

    fn size(&self, option: &str) -> Result<usize, Error> {
        self.optional_size(option)?
            .ok_or_else(|| Error::invalid(self.key(option), "it is missing"))
    }

    fn float(&self, option: &str, default: f64) -> Result<f64, Error> {
        let key = self.key(option);
        match self.header.metadata.get(&key) {
            None => Ok(default),
            // Metadata are f32: 1e-5 is what 9.9999997e-6 was before it was rounded.
            Some(Value::Float(value)) => Ok((*value as f32).to_string().parse().unwrap_or(*value)),
            Some(other) => Err(Error::invalid(key, format!("{other:?} is not a number"))),
        }
    }

    fn token(&self, option: &str) -> Result<Option<u32>, Error> {
        let key = format!("tokenizer.ggml.{option}");
        match self.header.metadata.get(&key) {
            None => Ok(None),
            Some(Value::Integer(value)) => u32::try_from(*value)
                .map(Some)
                .map_err(|_| Error::invalid(key, format!("{value} is not a token"))),
            Some(other) => Err(Error::invalid(key, format!("{other:?} is not a token"))),
        }
    }

    fn refuse_unsupported(&self, architecture: Architecture) -> Result<(), Error> {
        let family = architecture.family();
        for (option, is_known, supported) in [
            ("expert_count", family.has_experts, "dense models"),
            (
                "attention.sliding_window",
                family.windows.slide(),
                "full attention in every layer",
            ),
            (
                "expert_shared_count",
                family.shares_expert,
                "experts that are routed to",
            ),
            ("leading_dense_block_count", false, "experts in every layer"),
        ] {
            if let Some(value) = self.optional_size(option)?
                && value > 0
                && !is_known
            {
                return Err(Error::unsupported(self.key(option), value, supported));
            }
        }
        Ok(())
    }

    fn scaling(&self, is_gpt_oss: bool) -> Result<RopeScaling, Error> {
        let key = self.key("rope.scaling.type");
        let kind = match self.header.metadata.get(&key) {
            None => return Ok(RopeScaling::None),
            Some(Value::Text(kind)) => kind.as_str(),
            Some(other) => return Err(Error::invalid(key, format!("{other:?} is not a name"))),
        };
        match kind {
            "none" => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear {
                factor: self.float("rope.scaling.factor", 1.0)?,
            }),
            "yarn" => {
                let factor = self.float("rope.scaling.factor", 1.0)?;
                Ok(RopeScaling::Yarn {
                    factor,
                    beta_fast: self.float("rope.scaling.yarn_beta_fast", 32.0)?,
                    beta_slow: self.float("rope.scaling.yarn_beta_slow", 1.0)?,
                    original_context: self.size("rope.scaling.original_context_length")?,
                    attention_factor: 0.1 * factor.max(1.0).ln() + 1.0,
                    // As the files that these were made from have it.
                    truncate: !is_gpt_oss,
                })
            }
            // Phi's divisors are tensors.
            "longrope"
                if self
                    .header
                    .tensors
                    .contains_key("rope_factors_short.weight") =>
            {
                Ok(RopeScaling::None)
            }
            other => {
                let supported = "none, linear, yarn, Phi's longrope, and Llama 3's scaling";
                Err(Error::unsupported(key, other, supported))
            }
        }
    }

    /// Puts together what the family adds to the plain layer, as llama.cpp does.
    fn features(
        &self,
        architecture: Architecture,
        layers: usize,
        hidden: usize,
        heads: usize,
        head_dim: usize,
    ) -> Result<Features, Error> {
        let family = architecture.family();
        let window = self.optional_size("attention.sliding_window")?;
        let window = window.filter(|&window| window > 0);
        let pattern = self.optional_size("attention.sliding_window_pattern")?;
        // Bounded, as this comes before the sizes are checked.
        let layers = layers.min(1 << 12);
        let kinds: Vec<LayerKind> = match (window, family.windows) {
            (Some(_), Windows::AllBut(step)) => (1..=layers)
                .map(
                    |layer| match layer.is_multiple_of(pattern.unwrap_or(step)) {
                        true => LayerKind::Full,
                        false => LayerKind::Sliding,
                    },
                )
                .collect(),
            (Some(_), Windows::All) => vec![LayerKind::Sliding; layers],
            (_, Windows::States(step)) => self.states(layers, step)?,
            _ => Vec::new(),
        };
        let layer_kinds = Features::repeating(&kinds);
        let slides = layer_kinds.contains(&LayerKind::Sliding);
        let has_states = matches!(family.windows, Windows::States(_));
        let delta = match layer_kinds.contains(&LayerKind::Delta) {
            true => Some(self.delta_rule()?),
            false => None,
        };
        let local_rope = match family.local_theta {
            Some(theta) if slides => Some(Rope::plain(self.float("rope.freq_base_swa", theta)?)),
            _ => None,
        };
        // The largest models of both families have another one, and their files do not say so.
        let is_largest = match architecture {
            Architecture::Gemma2 => layers == 46,
            Architecture::Gemma3 => layers == 62,
            _ => false,
        };
        let scalar = match is_largest {
            true => hidden.checked_div(heads).unwrap_or(0),
            false => head_dim,
        };
        let softcap = |option: &str| {
            let found = self.float(option, 0.0)?;
            Ok::<_, Error>((found != 0.0).then_some(found))
        };
        Ok(Features {
            window: window.filter(|_| slides),
            layer_kinds,
            local_rope,
            fused_projections: family.fused_projections,
            activation: match (family.is_gemma, family.is_gpt_oss) {
                (true, _) => Activation::GeGlu,
                (_, true) => Activation::ClampedSwiGlu,
                _ => Activation::SwiGlu,
            },
            norms_add_one: family.is_gemma || has_states,
            output_norms: family.is_gemma,
            scaled_embedding: family.is_gemma,
            query_scalar: family.is_gemma.then_some(scalar as f64),
            attention_softcap: softcap("attn_logit_softcapping")?,
            final_softcap: softcap("final_logit_softcapping")?,
            sinks: family.is_gpt_oss,
            output_gate: has_states,
            delta,
            experts: match family.has_experts {
                false => None,
                true => Some(Experts {
                    count: self.size("expert_count")?,
                    per_token: self.size("expert_used_count")?,
                    ffn: self.size("expert_feed_forward_length")?,
                    normalised: true,
                    biases: family.is_gpt_oss,
                    shared: match family.shares_expert {
                        true => Some(self.size("expert_shared_feed_forward_length")?),
                        false => None,
                    },
                }),
            },
        })
    }

    /// The kinds of layers of a family of which some have states.
    fn states(&self, layers: usize, step: usize) -> Result<Vec<LayerKind>, Error> {
        let key = self.key("attention.recurrent_layers");
        let kind = |has_state: bool| match has_state {
            true => LayerKind::Delta,
            false => LayerKind::Full,
        };
        match self.header.metadata.get(&key) {
            None => {
                let found = self.optional_size("full_attention_interval")?;
                let step = found.unwrap_or(step).max(1);
                let layers = 1..=layers;
                Ok(layers
                    .map(|layer| kind(!layer.is_multiple_of(step)))
                    .collect())
            }
            Some(Value::Array(array)) => {
                let found = array.bools(self.file).unwrap_or_default();
                if found.len() < layers {
                    let reason = format!("{} truth values for {layers} layers", found.len());
                    return Err(Error::invalid(key, reason));
                }
                Ok(found.into_iter().take(layers).map(kind).collect())
            }
            Some(other) => Err(Error::invalid(key, format!("{other:?} is not a list"))),
        }
    }

    fn delta_rule(&self) -> Result<DeltaRule, Error> {
        let (value_heads, inner) = (
            self.size("ssm.time_step_rank")?,
            self.size("ssm.inner_size")?,
        );
        if value_heads == 0 || !inner.is_multiple_of(value_heads) {
            let reason = format!("{inner} is not a multiple of {value_heads} heads");
            return Err(Error::invalid(self.key("ssm.inner_size"), reason));
        }
        Ok(DeltaRule {
            key_heads: self.size("ssm.group_count")?,
            value_heads,
            key_dim: self.size("ssm.state_size")?,
            value_dim: inner / value_heads,
            kernel: self.size("ssm.conv_kernel")?,
        })
    }
}
