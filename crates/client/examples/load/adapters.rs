//! Samples of many adapters at once, all through one server.

use crate::measure::rounds;
use crate::{rl, service};
use anyhow::{Result, ensure};
use futures_util::future::try_join_all;
use tinkrs::sampling::Stop;
use tinkrs::{AdamParams, Datum, ModelInput, SamplingClient, SamplingParams};

/// Trains adapters for a step each, then samples for each line of the input: sequences take turns with the adapters.
pub(crate) async fn run(
    model: &str,
    adapters: usize,
    sequences: usize,
    length: usize,
) -> Result<()> {
    let service = service();
    let mut samplers = Vec::with_capacity(adapters);
    for seed in 0..adapters {
        let training = service
            .create_lora_training_client(model)
            .rank(rl::RANK)
            .seed(seed as i64)
            .await?;
        // One step, since half of a new adapter is zero.
        let prompt = rl::prompt();
        let pass = training
            .forward_backward(vec![Datum::from_prompt_completion(
                &prompt[..1],
                &prompt[1..],
            )?])
            .submit();
        training.optim_step(AdamParams::new(1e-4)).await?;
        pass.await?;
        samplers.push(training.save_weights_and_get_sampling_client().await?);
    }
    rounds("adapters", sequences, async || {
        sample(&samplers, sequences, length).await
    })
    .await
}

/// Returns how many tokens were sampled.
async fn sample(samplers: &[SamplingClient], sequences: usize, length: usize) -> Result<usize> {
    let params = SamplingParams {
        stop: Some(Stop::Never),
        ..SamplingParams::new(length as u32)
    };
    let under_way = samplers.iter().cycle().take(sequences).map(|sampler| {
        let input = ModelInput::from_tokens(rl::prompt());
        sampler.sample(input, params.clone()).submit()
    });
    let outputs = try_join_all(under_way).await?;
    let tokens = outputs.iter().flat_map(|output| &output.sequences);
    let tokens = tokens.map(|sequence| sequence.tokens.len()).sum();
    ensure!(tokens == sequences * length, "{tokens} tokens");
    Ok(tokens)
}
