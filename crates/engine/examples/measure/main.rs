//! Measures the engine on a real model, one round at a time.
//!
//! ```text
//! measure MODEL [OPTIONS] train BATCH LENGTH STEPS         LoRA steps: forward, cross-entropy, backward, AdamW
//! measure MODEL [OPTIONS] sample BATCH TOKENS [ADAPTERS]   sequences of so many new tokens, at temperature 1
//! measure MODEL [OPTIONS] prompt BATCH LENGTH              prompts read for one token each
//! measure MODEL [OPTIONS] perplexity FILE LENGTH           of the tokens in a file, in pieces of a length
//! measure MODEL write FOLDER                               the model as a Hugging Face folder in bf16
//!
//! --weights f32|bf16|q8_0|q4_k|stored   how weights are held; f32 unless given
//! --activations f32|int8                in which numbers quantised weights read their inputs
//! ```
//!
//! MODEL is a Hugging Face folder, a GGUF file, or `random:qwen3-0.6b` for random weights of that shape. All cores
//! compute, or `TINKRS_THREADS`. The first round warms up and
//! prints `{"ready": true}`. Then each line on stdin asks for a round, which prints one line of JSON:
//! the clock's and the processor's seconds, the tokens, and the most memory the process ever had. This
//! way `bench/run` alternates between this program and `bench/engine_torch.py`, which does the same.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the lines are what the program is for"
)]

mod perplexity;
mod round;
mod sample;
mod train;

use std::io::BufRead;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use tinkrs_engine::weights::{
    Dtype, GgufFile, HuggingFaceFolder, RandomWeights, WeightSource, save_folder,
};
use tinkrs_engine::{Activations, Model, ModelConfig, Numerics, Precision, Threads};

/// The rank of every adapter.
const RANK: u32 = 16;

/// The published configuration, as far as the shape depends on it.
const QWEN3_600M: &str = r#"{
    "model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936,
    "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000,
    "tie_word_embeddings": true, "attention_bias": false, "hidden_act": "silu",
    "bos_token_id": 151643, "eos_token_id": 151645
}"#;

const USAGE: &str = "usage: measure MODEL [--weights FORMAT] [--activations f32|int8] train BATCH LENGTH STEPS \
                     | sample BATCH TOKENS [ADAPTERS] | prompt BATCH LENGTH | perplexity FILE LENGTH \
                     | write FOLDER";

fn main() -> Result<()> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut option = |name: &str| -> Result<Option<String>> {
        let Some(at) = arguments.iter().position(|argument| argument == name) else {
            return Ok(None);
        };
        arguments.remove(at);
        let given = at < arguments.len();
        let value = given.then(|| arguments.remove(at));
        Ok(Some(
            value.with_context(|| format!("{name} needs a value"))?,
        ))
    };
    let weights = match option("--weights")?.as_deref() {
        None | Some("f32") => Precision::F32,
        Some("bf16") => Precision::Bf16,
        Some("q8_0") => Precision::Q8_0,
        Some("q4_k") => Precision::Q4K,
        Some("stored") => Precision::Stored,
        Some(other) => bail!("--weights {other}: expected f32, bf16, q8_0, q4_k or stored"),
    };
    let mut numerics = Numerics::from(weights);
    match option("--activations")?.as_deref() {
        None => {}
        Some("f32") => numerics.activations = Activations::F32,
        Some("int8") => numerics.activations = Activations::Int8,
        Some(other) => bail!("--activations {other}: expected f32 or int8"),
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [model, workload @ ..] = &arguments[..] else {
        bail!(USAGE);
    };
    let source = open(model)?;
    if let ["write", folder] = workload {
        return Ok(save_folder(&*source, folder)?);
    }
    let threads = match std::env::var("TINKRS_THREADS") {
        Ok(count) => Threads::new(count.parse().context("TINKRS_THREADS")?)?,
        Err(_) => Threads::all_cores()?,
    };
    let start = Instant::now();
    let model = Arc::new(Model::load(&*source, numerics, &threads)?);
    drop(source);
    eprintln!(
        "loaded in {:.1} s: {:.0} MiB of weights, {:.0} MiB resident",
        start.elapsed().as_secs_f64(),
        model.size_bytes() as f64 / f64::from(1 << 20),
        round::memory_mib("VmRSS:")?,
    );
    let number = |text: &str| text.parse::<usize>().with_context(|| format!("`{text}`"));
    match workload {
        ["train", batch, length, steps] => {
            let mut training = train::Training::new(&model, number(batch)?, number(length)?)?;
            let steps = number(steps)?;
            rounds(|| training.round(steps))
        }
        ["sample", batch, tokens, adapters @ ..] if adapters.len() < 2 => {
            let adapters = adapters
                .first()
                .map_or(Ok(0), |adapters| number(adapters))?;
            let mut sampling = sample::Sampling::new(&model, adapters)?;
            let (batch, tokens) = (number(batch)?, number(tokens)?);
            rounds(|| sampling.round(batch, tokens))
        }
        ["prompt", batch, length] => {
            let mut sampling = sample::Sampling::new(&model, 0)?;
            let (batch, length) = (number(batch)?, number(length)?);
            rounds(|| sampling.prompts(batch, length))
        }
        ["perplexity", file, length] => {
            let found = perplexity::of(&model, Path::new(file), number(length)?)?;
            println!("{found}");
            Ok(())
        }
        _ => bail!(USAGE),
    }
}

fn open(model: &str) -> Result<Box<dyn WeightSource>> {
    Ok(match model {
        "random:qwen3-0.6b" => {
            let config = ModelConfig::from_hf_json(QWEN3_600M)?;
            Box::new(RandomWeights::new(config, 1, Dtype::Bf16)?)
        }
        path if path.ends_with(".gguf") => Box::new(GgufFile::open(path)?),
        path => Box::new(HuggingFaceFolder::open(path)?),
    })
}

/// Runs a round to warm up, then one for each line of the input. A round returns its tokens.
fn rounds(mut round: impl FnMut() -> Result<usize>) -> Result<()> {
    round()?;
    println!("{}", serde_json::json!({"ready": true}));
    for line in std::io::stdin().lock().lines() {
        line?;
        println!("{}", round::measure(&mut round)?);
    }
    Ok(())
}
