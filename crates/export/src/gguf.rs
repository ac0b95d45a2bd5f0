//! A merged model as a GGUF file, with tokenizer and chat template inside.
//!
//! Metadata, tensor names and the order of rotated heads are those of llama.cpp's converter.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use tinkrs_engine::config::{Architecture, Features, ModelConfig};
use tinkrs_engine::peft::PeftAdapter;
use tinkrs_engine::weights::{
    Dtype, GgufFormat, GgufTensor, Quantisation, WeightSource, gguf_tensors, interleave,
};
use tinkrs_gguf::Contents;

use crate::merged::{Merged, Part};
use crate::{Base, Error, Progress};

/// The divisors of rotary frequencies, where there are any.
const ROPE_FACTORS: &str = "rope_freqs.weight";

/// A GGUF file that is to be written.
pub(crate) struct ModelFile<'a> {
    merged: Merged<'a>,
    tensors: Vec<(GgufTensor, GgufFormat)>,
    rope_factors: Option<Part>,
    contents: Contents,
    pub(crate) notes: Vec<String>,
}

impl<'a> ModelFile<'a> {
    pub(crate) fn plan(
        base: &'a Base,
        adapter: Option<&'a PeftAdapter>,
        name: &str,
        how: Option<Quantisation>,
    ) -> Result<Self, Error> {
        // From here on all is f32, so that numbers are rounded once, when they are written.
        let merged = Merged::new(base.weights(), adapter, Some(Dtype::F32));
        let how = how.unwrap_or_else(|| base.weights().precision().into());
        let config = merged.config().clone();
        check_family(&config)?;
        let mut notes = Vec::new();
        let mut contents = Contents::default();
        model_values(&mut contents, &config, name, how);
        notes.extend(text_values(&mut contents, base, &config)?);

        let rope_factors = rope_factors(&config);
        if let Some(factors) = &rope_factors {
            let count = factors.values.len();
            contents.tensor(
                ROPE_FACTORS,
                &[count],
                GgufFormat::F32.id(),
                4 * count as u64,
            );
        }
        let mut tensors = Vec::new();
        let mut instead = BTreeSet::new();
        for tensor in gguf_tensors(&config) {
            let (format, is_fallback) = how.format_of(&tensor, &config);
            if is_fallback {
                instead.insert(format!("{format:?}"));
            }
            let (elements, size) = format.block();
            let bytes = tensor.shape.iter().product::<usize>() / elements * size;
            contents.tensor(&tensor.gguf_name, &tensor.shape, format.id(), bytes as u64);
            tensors.push((tensor, format));
        }
        if !instead.is_empty() {
            let formats: Vec<_> = instead.into_iter().collect();
            notes.push(format!(
                "some rows are no whole blocks of {}: their tensors are {}",
                how.name(),
                formats.join(" and ")
            ));
        }
        Ok(Self {
            merged,
            tensors,
            rope_factors,
            contents,
            notes,
        })
    }

    pub(crate) fn size(&self) -> u64 {
        self.contents.size()
    }

    pub(crate) fn write(&self, path: &Path, progress: &Progress<'_>) -> Result<(), Error> {
        let file = File::create_new(path).map_err(Error::io("create", path))?;
        let wrong = || Error::io("write", path);
        let file = BufWriter::with_capacity(1 << 20, file);
        let mut to = self.contents.start(file).map_err(wrong())?;
        if let Some(factors) = &self.rope_factors {
            let bytes = factors.encode(ROPE_FACTORS, GgufFormat::F32)?;
            to.write(&bytes).map_err(wrong())?;
        }
        let head_dim = self.merged.config().head_dim;
        for (tensor, format) in &self.tensors {
            let merged = self.merged.open(&tensor.name)?;
            // Heads are turned as a whole.
            for mut part in merged.parts(head_dim) {
                if tensor.interleaved_heads.is_some() {
                    let heads = part.values.len() / merged.columns() / head_dim;
                    part.values = interleave(&part.values, heads, head_dim);
                }
                let bytes = part.encode(&tensor.gguf_name, *format)?;
                to.write(&bytes).map_err(wrong())?;
                progress
                    .wrote(&tensor.gguf_name, bytes.len() as u64)
                    .map_err(wrong())?;
            }
        }
        let file = to.finish().map_err(wrong())?;
        file.get_ref().sync_all().map_err(wrong())
    }
}

/// Writes a GGUF adapter, as llama.cpp's `convert_lora_to_gguf` does.
pub(crate) struct AdapterFile {
    contents: Contents,
    tensors: Vec<(String, Part)>,
    format: GgufFormat,
}

impl AdapterFile {
    pub(crate) fn plan(
        base: &Base,
        adapter: &PeftAdapter,
        name: &str,
        how: Option<Quantisation>,
    ) -> Result<Self, Error> {
        let config = base.weights().config();
        check_family(config)?;
        if config.tied_head && adapter.layers.contains_key("lm_head") {
            return Err(Error::Unsupported(
                "the adapter changes the head, which this model shares with its embedding: a GGUF adapter cannot \
                 say that; export the merged model as `gguf`"
                    .to_owned(),
            ));
        }
        let format = match how {
            None | Some(Quantisation::F32) => GgufFormat::F32,
            Some(Quantisation::F16) => GgufFormat::F16,
            Some(Quantisation::Bf16) => GgufFormat::Bf16,
            Some(other) => {
                let problem = format!("adapters cannot be {}: use f32, f16 or bf16", other.name());
                return Err(Error::Unsupported(problem));
            }
        };
        let mut contents = Contents::default();
        contents.text("general.architecture", config.architecture.gguf_name());
        contents.text("general.type", "adapter");
        contents.text("general.name", name);
        contents.text("adapter.type", "lora");
        contents.f32("adapter.lora.alpha", adapter.alpha);
        contents.u32(
            "general.file_type",
            how.unwrap_or(Quantisation::F32).file_type(),
        );
        contents.u32("general.quantization_version", 2);
        let (rank, size) = (adapter.rank, format.block().1);
        let mut tensors = Vec::new();
        for tensor in gguf_tensors(config) {
            let layer = tensor.name.strip_suffix(".weight");
            let Some(pair) = layer.and_then(|layer| adapter.layers.get(layer)) else {
                continue;
            };
            let [outputs, inputs] = tensor.shape[..] else {
                continue;
            };
            // Rows of the product are rows of B.
            let b = match tensor.interleaved_heads {
                Some(heads) => interleave(&pair.b, heads, config.head_dim),
                None => pair.b.clone(),
            };
            for (part, shape, values) in [
                ("lora_a", [rank, inputs], pair.a.clone()),
                ("lora_b", [outputs, rank], b),
            ] {
                let name = format!("{}.{part}", tensor.gguf_name);
                let bytes = (values.len() * size) as u64;
                contents.tensor(&name, &shape, format.id(), bytes);
                tensors.push((name, Part { start: 0, values }));
            }
        }
        Ok(Self {
            contents,
            tensors,
            format,
        })
    }

    pub(crate) fn size(&self) -> u64 {
        self.contents.size()
    }

    pub(crate) fn write(&self, path: &Path, progress: &Progress<'_>) -> Result<(), Error> {
        let file = File::create_new(path).map_err(Error::io("create", path))?;
        let wrong = || Error::io("write", path);
        let mut to = self.contents.start(BufWriter::new(file)).map_err(wrong())?;
        for (name, values) in &self.tensors {
            let bytes = values.encode(name, self.format)?;
            to.write(&bytes).map_err(wrong())?;
            progress.wrote(name, bytes.len() as u64).map_err(wrong())?;
        }
        let file = to.finish().map_err(wrong())?;
        file.get_ref().sync_all().map_err(wrong())
    }
}

/// Refuses families whose files have not been compared with llama.cpp.
fn check_family(config: &ModelConfig) -> Result<(), Error> {
    let is_plain = config.features == Features::default();
    let known = [
        Architecture::Llama,
        Architecture::Qwen2,
        Architecture::Qwen3,
        Architecture::Mistral,
    ];
    if is_plain && known.contains(&config.architecture) {
        return Ok(());
    }
    Err(Error::Unsupported(format!(
        "GGUF files of {} models cannot be written, only those of Llama, Qwen2, Qwen3 and Mistral without a sliding \
         window: export as `merged` or `peft`",
        config.architecture.name()
    )))
}

/// Adds what the model is.
fn model_values(contents: &mut Contents, config: &ModelConfig, name: &str, how: Quantisation) {
    let architecture = config.architecture.gguf_name();
    let key = |option: &str| format!("{architecture}.{option}");
    // Sizes are checked when a configuration is read.
    let size = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
    contents.text("general.architecture", architecture);
    contents.text("general.type", "model");
    contents.text("general.name", name);
    contents.u32("general.file_type", how.file_type());
    contents.u32("general.quantization_version", 2);
    contents.u32(&key("block_count"), size(config.layers));
    contents.u32(&key("context_length"), size(config.max_context));
    contents.u32(&key("embedding_length"), size(config.hidden));
    contents.u32(&key("feed_forward_length"), size(config.ffn));
    contents.u32(&key("attention.head_count"), size(config.heads));
    contents.u32(&key("attention.head_count_kv"), size(config.kv_heads));
    contents.u32(&key("attention.key_length"), size(config.head_dim));
    contents.u32(&key("attention.value_length"), size(config.head_dim));
    contents.f32(
        &key("attention.layer_norm_rms_epsilon"),
        config.rms_eps as f32,
    );
    contents.f32(&key("rope.freq_base"), config.rope.theta as f32);
    if config.architecture.gguf_name() == "llama" {
        contents.u32(&key("vocab_size"), size(config.vocab));
        contents.u32(&key("rope.dimension_count"), size(config.head_dim));
    }
}

/// Adds the tokenizer and the chat template. Returns what is missing.
fn text_values(
    contents: &mut Contents,
    base: &Base,
    config: &ModelConfig,
) -> Result<Vec<String>, Error> {
    let mut missing = Vec::new();
    let mut begin = None;
    match &base.tokenizer {
        Some(tokenizer) => begin = tokenizer.write_gguf(config.vocab, contents)?,
        None => missing.push("tokenizer"),
    }
    // Those that begin and end texts are known without a tokenizer, too.
    let begin = begin.or(base.named_token("bos_token")).or(config.bos);
    let end = base
        .named_token("eos_token")
        .or(config.eos.first().copied());
    let other_end = config.eos.iter().copied().find(|id| Some(*id) != end);
    for (role, id) in [
        ("bos", begin),
        ("eos", end),
        ("eot", other_end),
        ("padding", base.named_token("pad_token")),
    ] {
        if let Some(id) = id {
            contents.u32(&format!("tokenizer.ggml.{role}_token_id"), id);
        }
    }
    match &base.template {
        Some(template) => contents.text("tokenizer.chat_template", template),
        None => missing.push("chat template"),
    }
    let note = |what| format!("the base model has no {what}, so the GGUF file has none");
    Ok(missing.into_iter().map(note).collect())
}

/// Returns Llama 3's divisors of rotary frequencies.
fn rope_factors(config: &ModelConfig) -> Option<Part> {
    let scaled = config.rope.frequencies(config.head_dim);
    let plain = tinkrs_engine::config::Rope {
        scaling: tinkrs_engine::config::RopeScaling::None,
        ..config.rope.clone()
    };
    let plain = plain.frequencies(config.head_dim);
    let factors = plain.iter().zip(&scaled);
    let factors = factors.map(|(plain, scaled)| (plain / scaled) as f32);
    (plain != scaled).then(|| Part {
        start: 0,
        values: factors.collect(),
    })
}
