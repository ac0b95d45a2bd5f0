//! Steps of reinforcement learning, from the first sample to a sampler of the new weights.

use crate::measure::rounds;
use crate::{service, tokens};
use anyhow::{Context, Result, ensure};
use tinkrs::sampling::{SampledSequence, Stop};
use tinkrs::{
    AdamParams, Datum, LossFn, ModelInput, SamplingClient, SamplingParams, TrainingClient,
};

pub(crate) const RANK: u32 = 16;
const PROMPT: usize = 16;
const SEED: i64 = 1;

/// Takes steps, each with the weights of the one before it.
pub(crate) async fn run(model: &str, group: usize, length: usize) -> Result<()> {
    let training = service()
        .create_lora_training_client(model)
        .rank(RANK)
        .seed(SEED)
        .await?;
    let mut sampler = training.save_weights_and_get_sampling_client().await?;
    rounds("rl", group, async || {
        sampler = step(&training, &sampler, group, length).await?;
        Ok(group * length)
    })
    .await
}

/// Returns a prompt of tokens that even a small model has.
pub(crate) fn prompt() -> Vec<u32> {
    tokens(PROMPT).iter().map(|token| token % 500).collect()
}

/// Samples a group, rewards it, learns from it, and opens the new weights.
async fn step(
    training: &TrainingClient,
    sampler: &SamplingClient,
    group: usize,
    length: usize,
) -> Result<SamplingClient> {
    let prompt = prompt();
    let params = SamplingParams {
        seed: Some(SEED),
        stop: Some(Stop::Never),
        ..SamplingParams::new(length as u32)
    };
    let input = ModelInput::from_tokens(prompt.clone());
    let output = sampler.sample(input, params).num_samples(group as u32);
    let sequences = output.await?.sequences;
    ensure!(sequences.len() == group, "{} sequences", sequences.len());

    let rewards: Vec<f32> = sequences.iter().map(reward).collect();
    let mean = rewards.iter().sum::<f32>() / group as f32;
    let data = sequences
        .iter()
        .zip(&rewards)
        .map(|(sequence, reward)| datum(&prompt, sequence, reward - mean))
        .collect::<Result<Vec<_>>>()?;
    let pass = training
        .forward_backward(data)
        .loss(LossFn::ImportanceSampling)
        .submit();
    let update = training.optim_step(AdamParams::new(1e-5)).submit();
    let saved = training.save_weights_and_get_sampling_client().submit();
    pass.await?;
    update.await?;
    Ok(saved.await?)
}

/// The share of even tokens: easy to compute, and not the same for all.
fn reward(sequence: &SampledSequence) -> f32 {
    let even = sequence.tokens.iter().filter(|token| *token % 2 == 0);
    even.count() as f32 / sequence.tokens.len() as f32
}

fn datum(prompt: &[u32], sequence: &SampledSequence, advantage: f32) -> Result<Datum> {
    let logprobs = sequence.logprobs.as_ref().context("no log-probabilities")?;
    let observed = prompt.len() - 1;
    let all = [prompt, &sequence.tokens].concat();
    let targets: Vec<i64> = all[1..].iter().map(|token| i64::from(*token)).collect();
    let behind = |values: &[f32]| [&vec![0.0; observed][..], values].concat();
    let advantages = vec![advantage; sequence.tokens.len()];
    let input = all[..all.len() - 1].to_vec();
    Ok(Datum::reinforcement(
        input,
        targets,
        behind(logprobs),
        behind(&advantages),
    )?)
}
