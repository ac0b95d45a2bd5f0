//! One LoRA step: forward, cross-entropy, backward, AdamW.

use std::sync::Arc;
use std::time::Instant;

use tinkrs_engine::types::{AdamParams, Datum, LoraConfig, LossFn, ModelInput};
use tinkrs_engine::{Error, Model, ModelConfig, TrainingRun};

use crate::machine::{Machine, cpu_seconds};

const RANK: usize = 16;
const REPEATS: usize = 4;

/// Measures a step of 8 sequences of 256 tokens.
pub(crate) fn measure(model: &Arc<Model>, machine: &Machine) -> Result<(), Error> {
    let (batch, length) = (8, 256.min(model.config().max_context));
    let Timing {
        forward_backward,
        step,
        cpu,
    } = time(model, batch, length)?;
    let tokens = (batch * length) as f64;
    let work = least_work(model.config(), batch, length);
    println!(
        "  train {batch} x {length}: {:.2} s ({:.2} s of it optimizer), {:.0} tokens/s, {:.0} tokens a core-second, {:.0} % of FMA peak ({:.0} % by CPU time)",
        forward_backward + step,
        step,
        tokens / (forward_backward + step),
        tokens / cpu,
        100.0 * work / (forward_backward + step) / machine.flops(),
        100.0 * work / cpu / machine.core_flops,
    );
    Ok(())
}

/// Prints how time grows with the length and with the number of sequences.
pub(crate) fn scaling(model: &Arc<Model>) -> Result<(), Error> {
    let seconds = |batch, length| time(model, batch, length).map(|timing| timing.forward_backward);
    let exponent = |first: f64, last: f64| (last / first).log2() / 2.0;
    let (short, long) = (seconds(8, 64)?, seconds(8, 256)?);
    println!(
        "scaling: time grows with tokens to the power {:.2} (8 x 64 to 8 x 256)",
        exponent(short, long)
    );
    let few = seconds(2, 256)?;
    println!(
        "scaling: time grows with the batch to the power {:.2} (2 x 256 to 8 x 256)\n",
        exponent(few, long)
    );
    Ok(())
}

struct Timing {
    forward_backward: f64,
    step: f64,
    /// Processor seconds of both.
    cpu: f64,
}

/// Times the best of several steps; each part's best is taken on its own.
fn time(model: &Arc<Model>, batch: usize, length: usize) -> Result<Timing, Error> {
    let config = LoraConfig {
        seed: Some(1),
        train_unembed: false,
        ..LoraConfig::new(RANK as u32)
    };
    let mut run = TrainingRun::lora(Arc::clone(model), &config)?;
    let data: Vec<Datum> = (0..batch)
        .map(|seed| datum(model.config().vocab, length, seed))
        .collect::<Result<_, _>>()?;
    let mut best = Timing {
        forward_backward: f64::MAX,
        step: f64::MAX,
        cpu: f64::MAX,
    };
    for repeat in 0..=REPEATS {
        let (start, cpu) = (Instant::now(), cpu_seconds());
        run.forward_backward(&data, &LossFn::CrossEntropy)?;
        let forward_backward = start.elapsed().as_secs_f64();
        run.optim_step(AdamParams::new(1e-4))?;
        let step = start.elapsed().as_secs_f64() - forward_backward;
        // The first step allocates; it is not counted.
        if repeat > 0 {
            best.forward_backward = best.forward_backward.min(forward_backward);
            best.step = best.step.min(step);
            best.cpu = best.cpu.min(cpu_seconds() - cpu);
        }
    }
    Ok(best)
}

fn datum(vocab: usize, length: usize, seed: usize) -> Result<Datum, Error> {
    let token = |i: usize| (i * 7919 + seed * 104_729 + i * i * 31) % vocab;
    let tokens: Vec<u32> = (0..length).map(|i| token(i) as u32).collect();
    let targets: Vec<i64> = (1..=length).map(|i| token(i) as i64).collect();
    Ok(Datum::supervised(
        ModelInput::from_tokens(tokens),
        targets,
        vec![1.0; length],
    )?)
}

/// The least floating-point operations of a step, with the adapter merged into the weights: forward and
/// gradient of the input for every linear layer and the head, causal attention (two products forward,
/// five back), and the adapter's gradients. What the engine does on top counts as overhead.
fn least_work(config: &ModelConfig, batch: usize, length: usize) -> f64 {
    let (hidden, ffn, query, kv) = (
        config.hidden,
        config.ffn,
        config.query_width(),
        config.kv_width(),
    );
    let linear = hidden * (query + 2 * kv) + query * hidden + 3 * hidden * ffn;
    let adapter = RANK * ((hidden + query) * 2 + (hidden + kv) * 2 + (hidden + ffn) * 3);
    let tokens = (batch * length) as f64;
    let attention = (7 * query * length) as f64;
    let layer = (4 * linear) as f64 + (4 * adapter) as f64 + attention;
    tokens * (config.layers as f64 * layer + (4 * hidden * config.vocab) as f64)
}
