//! How likely a model finds a text, before and after it has learned from another part of it.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tinkrs_engine::types::{AdamParams, Datum, LossFn, ModelInput};
use tinkrs_engine::{Model, TrainingRun};

use crate::train::adapter_run;

/// Pieces in each step of learning.
const BATCH: usize = 4;
/// Every so many pieces, one is not learned from.
const HELD_OUT: usize = 4;

/// Scores the tokens of a file, numbers with blanks between them, in pieces that know nothing of each other.
pub(crate) fn of(model: &Arc<Model>, file: &Path, length: usize) -> Result<Value> {
    // An adapter that has not been trained adds nothing.
    let run = adapter_run(model, 1)?;
    let pieces = pieces(file, length)?;
    let loss = mean_loss(&run, &pieces)?;
    let tokens = pieces.len() * length;
    Ok(json!({"tokens": tokens, "loss": loss, "perplexity": loss.exp()}))
}

/// Trains an adapter on three of four pieces for so many steps, and scores the fourth before and after.
pub(crate) fn learned(
    model: &Arc<Model>,
    file: &Path,
    length: usize,
    steps: usize,
) -> Result<Value> {
    let mut run = adapter_run(model, 1)?;
    let (mut held_out, mut learned) = (Vec::new(), Vec::new());
    for (index, piece) in pieces(file, length)?.into_iter().enumerate() {
        let part = if index % HELD_OUT == 0 {
            &mut held_out
        } else {
            &mut learned
        };
        part.push(piece);
    }
    ensure!(learned.len() >= BATCH, "the file has too few tokens");
    let before = mean_loss(&run, &held_out)?;
    let mut last = Vec::new();
    for step in 0..steps {
        let batch: Vec<Datum> = (0..BATCH)
            .map(|index| learned[(step * BATCH + index) % learned.len()].clone())
            .collect();
        let output = run.forward_backward(&batch, &LossFn::CrossEntropy)?;
        let loss = output.loss().context("cross-entropy has a loss")?;
        last.push(loss / (BATCH * length) as f64);
        run.optim_step(AdamParams::new(5e-4))?;
    }
    let after = mean_loss(&run, &held_out)?;
    Ok(json!({
        "steps": steps, "held_out_tokens": held_out.len() * length, "loss_before": before, "loss_after": after,
        "training_loss": last,
    }))
}

fn pieces(file: &Path, length: usize) -> Result<Vec<Datum>> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let tokens: Vec<u32> = text
        .split_whitespace()
        .map(|token| token.parse().with_context(|| format!("`{token}`")))
        .collect::<Result<_>>()?;
    let pieces = tokens.chunks_exact(length + 1).map(|piece| {
        let targets: Vec<i64> = piece[1..].iter().map(|&token| i64::from(token)).collect();
        let input = ModelInput::from_tokens(piece[..length].to_vec());
        Ok(Datum::supervised(input, targets, vec![1.0; length])?)
    });
    pieces.collect()
}

fn mean_loss(run: &TrainingRun, pieces: &[Datum]) -> Result<f64> {
    let (mut sum, mut count) = (0.0, 0);
    for piece in pieces {
        let output = run.forward(std::slice::from_ref(piece), &LossFn::CrossEntropy)?;
        sum += output.loss().context("cross-entropy has a loss")?;
        count += piece.model_input().len().unwrap_or(0);
    }
    Ok(sum / count as f64)
}
