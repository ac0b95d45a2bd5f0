//! What the engine and our tokenizer say about a model, for `conformance/export` to compare with other tools.
//!
//! ```text
//! log_probabilities MODEL [ADAPTER] < REQUEST
//! ```
//!
//! MODEL is a Hugging Face folder or a GGUF file, ADAPTER a folder with an adapter. The request is
//! `{"texts": [TEXT], "tokens": [[ID]]}`; the answer has the ids of each text, and for each list of ids the
//! log-probability of every one but the first. Weights are f32, whatever they are stored as.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tinkrs_chat::Tokenizer;
use tinkrs_engine::{Adapter, KvCache, Model, Precision, SequenceInput, Threads, peft};
use tinkrs_export::Base;

/// So many rows of scores at once, each of which is as long as the vocabulary.
const ROWS: usize = 64;

type Failed = Box<dyn std::error::Error>;

#[expect(clippy::print_stdout, reason = "the answer")]
fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (path, adapter) = match &arguments[..] {
        [model] => (model, None),
        [model, adapter] => (model, Some(Path::new(adapter))),
        _ => return Err("usage: log_probabilities MODEL [ADAPTER] < REQUEST".into()),
    };
    let request: Value = serde_json::from_reader(std::io::stdin())?;
    let texts: Vec<String> = serde_json::from_value(request["texts"].clone())?;
    let tokens: Vec<Vec<u32>> = serde_json::from_value(request["tokens"].clone())?;
    let mut ids = Vec::new();
    if !texts.is_empty() {
        let tokenizer = Tokenizer::from_path(path)?;
        for text in &texts {
            ids.push(tokenizer.encode(text)?);
        }
    }
    let mut log_probabilities = Vec::new();
    if !tokens.is_empty() {
        let base = Base::open(path)?;
        let threads = Threads::new(2)?;
        let model = Arc::new(Model::load(base.weights(), Precision::F32, &threads)?);
        let adapter = adapter.map(|folder| peft::load(folder, model.config()));
        let adapter = adapter.transpose()?;
        let adapter = adapter.map(|adapter| Adapter::from_peft(&model, &adapter));
        let adapter = adapter.transpose()?;
        for tokens in &tokens {
            log_probabilities.push(score(&model, adapter.as_ref(), tokens)?);
        }
    }
    println!(
        "{}",
        json!({ "ids": ids, "log_probabilities": log_probabilities })
    );
    Ok(())
}

fn score(model: &Model, adapter: Option<&Adapter>, tokens: &[u32]) -> Result<Vec<f64>, Failed> {
    let Some(scored) = tokens.len().checked_sub(1) else {
        return Ok(Vec::new());
    };
    let mut cache = KvCache::new(model);
    let hidden = model.step(&mut [SequenceInput {
        adapter,
        wanted: 0..tokens.len(),
        ..SequenceInput::new(&mut cache, tokens)
    }])?;
    let vocab = model.config().vocab;
    let mut scores = Vec::with_capacity(scored);
    for start in (0..scored).step_by(ROWS) {
        let rows = start..(start + ROWS).min(scored);
        let logits = model.logits(&hidden, rows.clone());
        for (row, next) in logits.chunks_exact(vocab).zip(&tokens[rows.start + 1..]) {
            let most = row.iter().copied().fold(f32::MIN, f32::max);
            let sum: f64 = row.iter().map(|x| f64::from(x - most).exp()).sum();
            scores.push(f64::from(row[*next as usize] - most) - sum.ln());
        }
    }
    Ok(scores)
}
