//! Measures the engine on a real model, one round at a time.
//!
//! ```text
//! measure FOLDER train BATCH LENGTH STEPS         LoRA steps: forward, cross-entropy, backward, AdamW
//! measure FOLDER sample BATCH TOKENS [ADAPTERS]   sequences of so many new tokens, at temperature 1
//! ```
//!
//! FOLDER is a Hugging Face folder; everything is in f32, on all cores or
//! `TINKRS_THREADS`. The first round warms up and
//! prints `{"ready": true}`. Then each line on stdin asks for a round, which prints one line of JSON:
//! the clock's and the processor's seconds, the tokens, and the most memory the process ever had. This
//! way `bench/run` alternates between this program and `bench/engine_torch.py`, which does the same.

#![expect(clippy::print_stdout, reason = "the lines are what the program is for")]

mod round;
mod sample;
mod train;

use std::io::BufRead;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use tinkrs_engine::weights::HuggingFaceFolder;
use tinkrs_engine::{Model, Precision, Threads};

/// The rank of every adapter.
const RANK: u32 = 16;

fn main() -> Result<()> {
    const USAGE: &str =
        "usage: measure FOLDER train BATCH LENGTH STEPS | sample BATCH TOKENS [ADAPTERS]";
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, workload, numbers @ ..] = &arguments[..] else {
        bail!(USAGE);
    };
    let numbers: Vec<usize> = numbers
        .iter()
        .map(|number| number.parse().with_context(|| format!("`{number}`")))
        .collect::<Result<_>>()?;
    let source = HuggingFaceFolder::open(Path::new(folder))?;
    let threads = match std::env::var("TINKRS_THREADS") {
        Ok(count) => Threads::new(count.parse().context("TINKRS_THREADS")?)?,
        Err(_) => Threads::all_cores()?,
    };
    let model = Arc::new(Model::load(&source, Precision::F32, &threads)?);
    match (workload.as_str(), &numbers[..]) {
        ("train", [batch, length, steps]) => {
            let mut training = train::Training::new(&model, *batch, *length)?;
            rounds(|| training.round(*steps))
        }
        ("sample", [batch, tokens, adapters @ ..]) if adapters.len() < 2 => {
            let adapters = adapters.first().copied().unwrap_or(0);
            let mut sampling = sample::Sampling::new(&model, adapters)?;
            rounds(|| sampling.round(*batch, *tokens))
        }
        _ => bail!(USAGE),
    }
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
