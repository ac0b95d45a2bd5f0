//! How likely a model finds a text.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tinkrs_engine::Model;
use tinkrs_engine::types::{Datum, LossFn, ModelInput};

use crate::train::adapter_run;

/// Scores the tokens of a file, numbers with blanks between them, in pieces that know nothing of each other.
pub(crate) fn of(model: &Arc<Model>, file: &Path, length: usize) -> Result<Value> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let tokens: Vec<u32> = text
        .split_whitespace()
        .map(|token| token.parse().with_context(|| format!("`{token}`")))
        .collect::<Result<_>>()?;
    // An adapter that has not been trained adds nothing.
    let run = adapter_run(model, 1)?;
    let (mut sum, mut count) = (0.0, 0);
    for piece in tokens.chunks_exact(length + 1) {
        let targets: Vec<i64> = piece[1..].iter().map(|&token| i64::from(token)).collect();
        let input = ModelInput::from_tokens(piece[..length].to_vec());
        let datum = Datum::supervised(input, targets, vec![1.0; length])?;
        let output = run.forward(&[datum], &LossFn::CrossEntropy)?;
        sum += output.loss().context("cross-entropy has a loss")?;
        count += length;
    }
    let mean = sum / count as f64;
    Ok(json!({"tokens": count, "loss": mean, "perplexity": mean.exp()}))
}
