//! How near the engine comes to what the machine can do.
//!
//! `cargo bench -p tinkrs-engine` measures the machine first (fused multiply-adds, copying), then one
//! LoRA step and decoding of random models, and prints each as a fraction of the bound. Everything runs
//! in one process, so that a busy or throttled machine moves both sides of a fraction. With
//! `TINKRS_MODELS=<folder>` the Hugging Face folders in it are measured too. Words after `--` select:
//! `95m`, `7m`, `scaling`, `models`. `TINKRS_THREADS` sets the number of threads.
//!
//! Times are the best of several repetitions. "By CPU time" divides by the processor time that the
//! process used instead of the clock: on a machine shared with others it is the fairer figure.

#![expect(clippy::print_stdout, reason = "a benchmark reports on stdout")]

mod decode;
mod machine;
mod train;

use std::path::Path;
use std::sync::Arc;

use machine::Machine;
use tinkrs_engine::weights::{Dtype, HuggingFaceFolder, RandomWeights, WeightSource};
use tinkrs_engine::{Error, Model, ModelConfig, Precision, Threads};

fn main() -> Result<(), Error> {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let selected = |name: &str| words.is_empty() || words.iter().any(|word| word == name);
    let threads = match std::env::var("TINKRS_THREADS")
        .ok()
        .and_then(|count| count.parse().ok())
    {
        Some(count) => Threads::new(count)?,
        None => Threads::all_cores()?,
    };
    let machine = Machine::measure(threads.count());
    println!("{machine}\n");

    for (name, config) in [
        ("95m", ModelConfig::bench_95m()),
        ("7m", ModelConfig::bench_7m()),
    ] {
        if selected(name) {
            let source = RandomWeights::new(config, 1, Dtype::Bf16)?;
            measure(&format!("random {name}, bf16"), &source, &threads, &machine)?;
        }
    }
    if selected("scaling") {
        let source = RandomWeights::new(ModelConfig::bench_7m(), 1, Dtype::Bf16)?;
        let model = Arc::new(Model::load(&source, Precision::Stored, &threads)?);
        train::scaling(&model)?;
    }
    if let (true, Some(folder)) = (selected("models"), std::env::var_os("TINKRS_MODELS")) {
        real_models(Path::new(&folder), &threads, &machine)?;
    }
    println!(
        "peak memory of the whole run: {:.2} GB",
        machine::peak_memory_gb()
    );
    Ok(())
}

fn measure(
    name: &str,
    source: &dyn WeightSource,
    threads: &Threads,
    machine: &Machine,
) -> Result<(), Error> {
    let model = Arc::new(Model::load(source, Precision::Stored, threads)?);
    println!(
        "{name}: {:.0} MB of packed weights",
        model.size_bytes() as f64 / 1e6
    );
    decode::measure(&model, 1, machine)?;
    decode::measure(&model, 16, machine)?;
    train::measure(&model, machine)?;
    println!("  peak memory so far {:.2} GB\n", machine::peak_memory_gb());
    Ok(())
}

fn real_models(folder: &Path, threads: &Threads, machine: &Machine) -> Result<(), Error> {
    let mut folders: Vec<_> = std::fs::read_dir(folder)
        .map(|entries| {
            entries
                .filter_map(|entry| Some(entry.ok()?.path()))
                .collect()
        })
        .unwrap_or_default();
    folders.sort();
    for path in folders
        .iter()
        .filter(|path| path.join("config.json").exists())
    {
        let source = HuggingFaceFolder::open(path)?;
        measure(&path.display().to_string(), &source, threads, machine)?;
    }
    Ok(())
}
