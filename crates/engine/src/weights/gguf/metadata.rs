//! From GGUF's metadata to a configuration.

use tinkrs_gguf::{Header, Value};

use crate::config::{Architecture, Rope, RopeScaling, architecture};
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
    let architecture = Architecture::find(|family| family.gguf == name)
        .ok_or_else(|| Error::unsupported("general.architecture", name, architecture::SUPPORTED))?;
    let source = Metadata {
        header,
        architecture: name,
    };
    source.refuse_unsupported()?;

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
    let config = ModelConfig {
        architecture,
        hidden,
        layers: source.size("block_count")?,
        heads,
        kv_heads: source
            .optional_size("attention.head_count_kv")?
            .unwrap_or(heads),
        head_dim,
        ffn: source.size("feed_forward_length")?,
        vocab: vocab.ok_or_else(|| Error::MissingTensor {
            tensor: embedding_names.hugging_face,
            origin: "the GGUF file".to_owned(),
        })?,
        max_context: source.size("context_length")?,
        rms_eps: source.float("attention.layer_norm_rms_epsilon", 1e-6)?,
        rope: Rope {
            theta: source.float("rope.freq_base", 10_000.0)?,
            scaling: RopeScaling::None,
        },
        tied_head: !has(HEAD.in_model().weight()),
        qkv_bias: has(full::QUERY.in_layer(0).bias()),
        attention_output_bias: has(full::OUTPUT.in_layer(0).bias()),
        qk_norm: has(full::QUERY_NORM.in_layer(0).weight()),
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
    };
    config.validate()?;
    for option in ["attention.value_length", "rope.dimension_count"] {
        if let Some(size) = source.optional_size(option)?
            && size != config.head_dim
        {
            let reason = format!("{size} differs from the head size {}", config.head_dim);
            return Err(Error::invalid(source.key(option), reason));
        }
    }
    with_rope_factors(config, header, file)
}

/// Recognises Llama 3's scaling, which GGUF stores as one divisor for each frequency.
fn with_rope_factors(
    config: ModelConfig,
    header: &Header,
    file: &[u8],
) -> Result<ModelConfig, Error> {
    let Some(info) = header.tensors.get("rope_freqs.weight") else {
        return Ok(config);
    };
    let unsupported =
        || Error::unsupported("rope_freqs.weight", "unknown", "Llama 3's rotary scaling");
    let bytes = info
        .bytes(Format::F32.block(), header.data_start, file)
        .filter(|_| info.format == 0 && info.shape == [config.head_dim / 2])
        .ok_or_else(unsupported)?;
    let divisors: Vec<f64> = bytes
        .as_chunks()
        .0
        .iter()
        .map(|&chunk| f64::from(f32::from_le_bytes(chunk)))
        .collect();

    let rope = Rope {
        scaling: RopeScaling::Llama3 {
            factor: divisors.iter().fold(1.0, |largest, &x| x.max(largest)),
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192,
        },
        ..config.rope
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

    fn refuse_unsupported(&self) -> Result<(), Error> {
        if let Some(Value::Text(scaling)) = self.header.metadata.get(&self.key("rope.scaling.type"))
            && scaling != "none"
        {
            return Err(Error::unsupported(
                self.key("rope.scaling.type"),
                scaling,
                "none, and Llama 3's scaling",
            ));
        }
        for (option, supported) in [
            ("expert_count", "dense models"),
            ("attention.sliding_window", "full attention in every layer"),
        ] {
            if let Some(value) = self.optional_size(option)?
                && value > 0
            {
                return Err(Error::unsupported(self.key(option), value, supported));
            }
        }
        Ok(())
    }
}
