//! LoRA steps on made-up tokens: every position of every sequence is a target.

use std::sync::Arc;

use anyhow::Result;
use tinkrs_engine::types::{AdamParams, Datum, LoraConfig, LossFn, ModelInput};
use tinkrs_engine::{Model, TrainingRun};

use crate::round::Done;
use crate::work::Shape;
use crate::{rank, trains_mlp};

pub(crate) struct Training {
    run: TrainingRun,
    data: Vec<Datum>,
    tokens: usize,
    operations: f64,
}

impl Training {
    /// Starts an adapter over the linear layers of each block.
    pub(crate) fn new(model: &Arc<Model>, batch: usize, length: usize) -> Result<Self> {
        let vocab = model.config().vocab;
        let data = (0..batch).map(|seed| datum(vocab, length, seed));
        Ok(Self {
            run: adapter_run(model, 1)?,
            data: data.collect::<Result<_>>()?,
            tokens: batch * length,
            operations: Shape::of(model.config()).lora_step(batch, length, &lora(1)?),
        })
    }

    pub(crate) fn round(&mut self, steps: usize) -> Result<Done> {
        for _ in 0..steps {
            self.run
                .forward_backward(&self.data, &LossFn::CrossEntropy)?;
            self.run.optim_step(AdamParams::new(1e-4))?;
        }
        Ok(Done {
            tokens: steps * self.tokens,
            bytes: None,
            operations: Some(steps as f64 * self.operations),
        })
    }
}

/// Starts a run of an adapter that has `seed` for its first values.
pub(crate) fn adapter_run(model: &Arc<Model>, seed: i64) -> Result<TrainingRun> {
    Ok(TrainingRun::lora(Arc::clone(model), &lora(seed)?)?)
}

fn lora(seed: i64) -> Result<LoraConfig> {
    Ok(LoraConfig {
        seed: Some(seed),
        train_mlp: trains_mlp(),
        train_unembed: false,
        ..LoraConfig::new(rank()?)
    })
}

/// Makes a sequence of tokens that looks like no text.
pub(crate) fn datum(vocab: usize, length: usize, seed: usize) -> Result<Datum> {
    let token = |i: usize| (i * 7919 + seed * 104_729 + i * i * 31) % vocab;
    let tokens: Vec<u32> = (0..length).map(|i| token(i) as u32).collect();
    let targets: Vec<i64> = (1..=length).map(|i| token(i) as i64).collect();
    let weights = vec![1.0; length];
    Ok(Datum::supervised(
        ModelInput::from_tokens(tokens),
        targets,
        weights,
    )?)
}
