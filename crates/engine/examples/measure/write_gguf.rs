//! GGUF files with random blocks, as large as a disk holds: how fast a model computes does not depend on them.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use anyhow::{Context, Result, bail};
use tinkrs_engine::ModelConfig;
use tinkrs_engine::weights::{GgufFormat, Quantisation, gguf_tensors};
use tinkrs_gguf::Contents;

/// Writes a model of a shape in llama.cpp's mixture `q4_k_m`, a block at a time.
pub(crate) fn write(config: &ModelConfig, to: &Path) -> Result<()> {
    let mut contents = Contents::default();
    describe(&mut contents, config)?;
    // The experts of a layer are one tensor.
    let mut tensors: Vec<(String, Vec<usize>, GgufFormat)> = Vec::new();
    let mut stacks: HashMap<String, usize> = HashMap::new();
    for tensor in gguf_tensors(config) {
        let (format, _) = Quantisation::Q4KM.format_of(&tensor, config);
        let name = tensor.gguf_name;
        if !name.contains("_exps.") {
            tensors.push((name, tensor.shape, format));
        } else if let Some(&stack) = stacks.get(&name) {
            tensors[stack].1[0] += 1;
        } else {
            stacks.insert(name.clone(), tensors.len());
            tensors.push((name, [&[1], &tensor.shape[..]].concat(), format));
        }
    }
    let blocks =
        |shape: &[usize], format: GgufFormat| shape.iter().product::<usize>() / format.block().0;
    for (name, shape, format) in &tensors {
        let bytes = blocks(shape, *format) * format.block().1;
        contents.tensor(name, shape, format.id(), bytes as u64);
    }
    let file = BufWriter::with_capacity(1 << 20, File::create_new(to)?);
    let mut file = contents.start(file)?;
    let mut random = Random(1);
    for (_, shape, format) in &tensors {
        let is_norm = shape.len() == 1;
        for _ in 0..blocks(shape, *format) {
            let block = if is_norm {
                1f32.to_le_bytes().to_vec()
            } else {
                random.block(*format)?
            };
            file.write(&block)?;
        }
    }
    file.finish()?.into_inner()?.sync_all()?;
    Ok(())
}

fn describe(contents: &mut Contents, config: &ModelConfig) -> Result<()> {
    let name = config.architecture.gguf_name();
    contents.text("general.architecture", name);
    let experts = config.features.experts.as_ref();
    let experts = experts.context("only models with experts are written this way")?;
    for (key, value) in [
        ("block_count", config.layers),
        ("context_length", config.max_context),
        ("embedding_length", config.hidden),
        ("feed_forward_length", config.ffn),
        ("expert_feed_forward_length", experts.ffn),
        ("expert_count", experts.count),
        ("expert_used_count", experts.per_token),
        ("attention.head_count", config.heads),
        ("attention.head_count_kv", config.kv_heads),
        ("attention.key_length", config.head_dim),
        ("attention.value_length", config.head_dim),
    ] {
        contents.u32(&format!("{name}.{key}"), u32::try_from(value)?);
    }
    contents.f32(&format!("{name}.rope.freq_base"), config.rope.theta as f32);
    let key = format!("{name}.attention.layer_norm_rms_epsilon");
    contents.f32(&key, config.rms_eps as f32);
    Ok(())
}

/// A small generator of bits (Marsaglia's xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Makes a block whose codes are random and whose scales are small enough for activations to stay finite.
    fn block(&mut self, format: GgufFormat) -> Result<Vec<u8>> {
        let mut block: Vec<u8> = (0..format.block().1.div_ceil(8))
            .flat_map(|_| self.next().to_le_bytes())
            .collect();
        block.truncate(format.block().1);
        // Half-precision scales: 2^-14, and as much off for the minimum.
        let small = 0x0400_u16.to_le_bytes();
        match format {
            GgufFormat::F32 => {
                let unit = (self.next() >> 40) as f32 / (1u64 << 24) as f32;
                block = (0.04 * (unit - 0.5)).to_le_bytes().to_vec();
            }
            GgufFormat::Q4K => {
                block[..2].copy_from_slice(&small);
                block[2..4].copy_from_slice(&small);
            }
            GgufFormat::Q6K => {
                let at = block.len() - 2;
                block[at..].copy_from_slice(&small);
            }
            other => bail!("no random blocks of {other:?}"),
        }
        Ok(block)
    }
}
