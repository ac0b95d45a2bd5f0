//! Measures the engine on a real model, one round at a time.
//!
//! ```text
//! measure MODEL [OPTIONS] train BATCH LENGTH STEPS         LoRA steps: forward, cross-entropy, backward, AdamW
//! measure MODEL [OPTIONS] sample BATCH TOKENS [ADAPTERS]   sequences of so many new tokens, at temperature 1
//! measure MODEL [OPTIONS] repeat TOKENS                    one sequence of a prompt that repeats itself, likeliest first
//! measure MODEL [OPTIONS] prompt BATCH LENGTH              prompts read for one token each
//! measure MODEL [OPTIONS] load                             reading and packing the weights
//! measure MODEL [OPTIONS] perplexity FILE LENGTH           of the tokens in a file, in pieces of a length
//! measure MODEL [OPTIONS] learn FILE LENGTH STEPS          LoRA steps on three of four pieces, the loss of the fourth
//! measure MODEL write FOLDER                               the model as a Hugging Face folder in bf16
//! measure random:SHAPE write-gguf FILE                     random blocks of q4_k_m, for shapes with experts
//! measure limits memory|fma                                bytes read from memory, or multiply-adds, at best
//! measure limits file FILE                                 bytes read from a file
//!
//! --weights f32|bf16|q8_0|q4_k|stored   how weights are held; f32 unless given
//! --activations f32|int8                in which numbers quantised weights read their inputs
//! --kv-cache f32|bf16|q8_0              how keys and values are held; f32 unless given
//! --draft TOKENS                        tokens that a step of sampling guesses; 0 unless given
//! ```
//!
//! MODEL is a Hugging Face folder, a GGUF file, or `random:SHAPE` for random weights, where SHAPE is `qwen3-0.6b`, `qwen3-1.7b` or
//! `qwen3-30b-a3b`. All cores compute, or `TINKRS_THREADS`. Adapters have rank 16, or `TINKRS_RANK`, and with
//! `TINKRS_TRAIN_MLP=0` are on attention alone. The first round warms up and
//! prints `{"ready": true}`. Then each line on stdin asks for a round, which prints one line of JSON:
//! the clock's and the processor's seconds, the tokens, the most memory the process ever had, and bytes or operations a
//! second where one of them is the limit. This
//! way `bench/run` alternates between this program and `bench/engine_torch.py`, which does the same.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the lines are what the program is for"
)]

mod limits;
mod perplexity;
mod round;
mod sample;
mod shapes;
mod train;
mod work;
mod write_gguf;

use std::io::BufRead;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tinkrs_engine::weights::{
    Dtype, GgufFile, HuggingFaceFolder, RandomWeights, WeightSource, save_folder,
};
use tinkrs_engine::{Activations, CacheFormat, Model, Numerics, Precision, Threads};

/// Returns the rank of every adapter.
fn rank() -> Result<u32> {
    let given = std::env::var("TINKRS_RANK").ok();
    given.map_or(Ok(16), |given| {
        given.parse().context("TINKRS_RANK is no number")
    })
}

/// Whether adapters are on the layers of the MLP or of the experts, too.
fn trains_mlp() -> bool {
    std::env::var("TINKRS_TRAIN_MLP").as_deref() != Ok("0")
}

const USAGE: &str = "usage: measure MODEL [--weights FORMAT] [--activations f32|int8] [--kv-cache f32|bf16|q8_0] [--draft TOKENS] train BATCH LENGTH STEPS \
                     | sample BATCH TOKENS [ADAPTERS] | repeat TOKENS | prompt BATCH LENGTH | load | perplexity FILE LENGTH \
                     | learn FILE LENGTH STEPS | write FOLDER | write-gguf FILE, or measure limits memory|fma|file FILE";

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
    match option("--kv-cache")?.as_deref() {
        None | Some("f32") => {}
        Some("bf16") => numerics.key_values = CacheFormat::Bf16,
        Some("q8_0") => numerics.key_values = CacheFormat::Q8_0,
        Some(other) => bail!("--kv-cache {other}: expected f32, bf16 or q8_0"),
    }
    let draft = option("--draft")?.map_or(Ok(0), |tokens| tokens.parse().context("--draft"))?;
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [model, workload @ ..] = &arguments[..] else {
        bail!(USAGE);
    };
    let count = match std::env::var("TINKRS_THREADS") {
        Ok(count) => count.parse().context("TINKRS_THREADS")?,
        Err(_) => std::thread::available_parallelism()?.get(),
    };
    match (*model, workload) {
        ("limits", ["memory"]) => {
            let reading = limits::Reading::new(count);
            return rounds(|| Ok(reading.round()));
        }
        ("limits", ["fma"]) => return rounds(|| Ok(limits::multiply_adds(count))),
        ("limits", ["file", path]) => return rounds(|| limits::read_file(Path::new(path))),
        (shape, ["write-gguf", file]) => {
            let config = shapes::find(shape.strip_prefix("random:").unwrap_or(shape))?;
            return write_gguf::write(&config, Path::new(file));
        }
        _ => {}
    }
    let source = open(model)?;
    if let ["write", folder] = workload {
        return Ok(save_folder(&*source, folder)?);
    }
    let threads = Threads::new(count)?;
    if let ["load"] = workload {
        // Opened once more each time: what has been read is given back.
        drop(source);
        return measured_rounds(|| {
            let loaded = Model::load(&*open(model)?, numerics, &threads)?;
            Ok(round::Done {
                bytes: Some(loaded.size_bytes() as f64),
                ..round::Done::default()
            })
        });
    }
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
            measured_rounds(|| training.round(steps))
        }
        ["sample", batch, tokens, adapters @ ..] if adapters.len() < 2 => {
            let adapters = adapters
                .first()
                .map_or(Ok(0), |adapters| number(adapters))?;
            let mut sampling = sample::Sampling::new(&model, adapters, draft)?;
            let (batch, tokens) = (number(batch)?, number(tokens)?);
            measured_rounds(|| sampling.round(batch, tokens))
        }
        ["repeat", tokens] => {
            let mut sampling = sample::Sampling::new(&model, 0, draft)?;
            let tokens = number(tokens)?;
            measured_rounds(|| sampling.repetition(tokens))
        }
        ["prompt", batch, length] => {
            let mut sampling = sample::Sampling::new(&model, 0, draft)?;
            let (batch, length) = (number(batch)?, number(length)?);
            measured_rounds(|| sampling.prompts(batch, length))
        }
        ["perplexity", file, length] => {
            let found = perplexity::of(&model, Path::new(file), number(length)?)?;
            println!("{found}");
            Ok(())
        }
        ["learn", file, length, steps] => {
            let (length, steps) = (number(length)?, number(steps)?);
            let found = perplexity::learned(&model, Path::new(file), length, steps)?;
            println!("{found}");
            Ok(())
        }
        _ => bail!(USAGE),
    }
}

fn open(model: &str) -> Result<Box<dyn WeightSource>> {
    if let Some(shape) = model.strip_prefix("random:") {
        return Ok(Box::new(RandomWeights::new(
            shapes::find(shape)?,
            1,
            Dtype::Bf16,
        )?));
    }
    Ok(if model.ends_with(".gguf") {
        Box::new(GgufFile::open(model)?)
    } else {
        Box::new(HuggingFaceFolder::open(model)?)
    })
}

/// Like [`rounds`], of something whose time and memory are measured here.
fn measured_rounds(mut round: impl FnMut() -> Result<round::Done>) -> Result<()> {
    rounds(|| round::measure(&mut round))
}

/// Runs a round to warm up, then one for each line of the input, and prints what a round returns.
fn rounds(mut round: impl FnMut() -> Result<Value>) -> Result<()> {
    round()?;
    println!("{}", json!({"ready": true}));
    for line in std::io::stdin().lock().lines() {
        line?;
        println!("{}", round()?);
    }
    Ok(())
}
