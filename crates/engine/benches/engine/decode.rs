//! Decoding: one new token for each of several sequences a step.

use std::sync::Arc;
use std::time::Instant;

use tinkrs_engine::{Error, KvCache, Model, SequenceInput};

use crate::machine::{Machine, cpu_seconds};

const PROMPT: usize = 16;
const NEW_TOKENS: usize = 128;

/// Measures greedy decoding of `batch` sequences.
pub(crate) fn measure(model: &Arc<Model>, batch: usize, machine: &Machine) -> Result<(), Error> {
    let vocab = model.config().vocab;
    let mut caches: Vec<KvCache> = (0..batch).map(|_| KvCache::new(model)).collect();
    let mut tokens: Vec<Vec<u32>> = (0..batch)
        .map(|seed| {
            (0..PROMPT)
                .map(|i| ((i * 31 + seed * 17) % vocab) as u32)
                .collect()
        })
        .collect();
    let (mut seconds, mut cpu) = (Vec::new(), 0.0);
    for index in 0..NEW_TOKENS {
        if index == 1 {
            cpu = cpu_seconds();
        }
        let start = Instant::now();
        let mut sequences: Vec<SequenceInput<'_>> = caches
            .iter_mut()
            .zip(&tokens)
            .map(|(cache, tokens)| SequenceInput::new(cache, tokens))
            .collect();
        let hidden = model.step(&mut sequences)?;
        let logits = model.logits(&hidden, 0..batch);
        tokens = logits
            .chunks_exact(vocab)
            .map(|row| vec![best(row)])
            .collect();
        seconds.push(start.elapsed().as_secs_f64());
    }
    let cpu = (cpu_seconds() - cpu) / (NEW_TOKENS - 1) as f64;
    // The first step reads the prompts. The fastest quarter stands for a machine of our own.
    let mut seconds = seconds.split_off(1);
    seconds.sort_by(f64::total_cmp);
    let quarter = &seconds[..seconds.len() / 4];
    let step = quarter.iter().sum::<f64>() / quarter.len() as f64;
    let work = 2.0 * parameters(model) * batch as f64;
    println!(
        "  decode {batch:>2}: {:.2} ms a step, {:.0} tokens/s, {:.0} % of copy bandwidth, {:.0} % of FMA peak ({:.0} % by CPU time)",
        step * 1e3,
        batch as f64 / step,
        100.0 * model.size_bytes() as f64 / step / machine.copy_bytes,
        100.0 * work / step / machine.flops(),
        100.0 * work / cpu / machine.core_flops,
    );
    Ok(())
}

fn best(row: &[f32]) -> u32 {
    let mut best = 0;
    for (token, score) in row.iter().enumerate() {
        if *score > row[best] {
            best = token;
        }
    }
    best as u32
}

/// Weights that every token is multiplied by.
fn parameters(model: &Model) -> f64 {
    let config = model.config();
    let (hidden, ffn, query, kv) = (
        config.hidden,
        config.ffn,
        config.query_width(),
        config.kv_width(),
    );
    let layer = hidden * (query + 2 * kv) + query * hidden + 3 * hidden * ffn;
    (config.layers * layer + hidden * config.vocab) as f64
}
