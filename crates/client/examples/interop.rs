//! Trains and samples with any server of the API, and says whether everything came out right.
//!
//! ```text
//! interop MODEL [STEPS]
//! ```
//!
//! The server is at `TINKER_BASE_URL`. It needs no tokenizer: what is learned is to go on counting
//! with tokens below 40. The last line of output is a summary in JSON. `conformance/skyrl/run` runs it.

#![expect(clippy::print_stdout, reason = "its output is what it is for")]

use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::time::Instant;
use tinkrs::{
    AdamParams, Datum, FinishReason, ForwardBackwardOutput, LossFn, ModelInput, SamplingParams,
    ServiceClient, TrainingClient,
};

const LEARNING_RATE: f64 = 5e-3;
const COUNTED: u32 = 40;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().context("usage: interop MODEL [STEPS]")?;
    let steps = arguments.next().map_or(Ok(10), |steps| steps.parse())?;
    let started = Instant::now();

    let service = ServiceClient::builder().telemetry(false).build();
    let capabilities = service.get_server_capabilities().await?;
    let names = capabilities.supported_models.iter();
    let names: Vec<_> = names
        .filter_map(|model| model.model_name.as_deref())
        .collect();
    ensure!(
        names.contains(&model.as_str()),
        "the server has {names:?}, not {model}"
    );
    let training = service
        .create_lora_training_client(&*model)
        .rank(8)
        .seed(1)
        .await?;

    let losses = train(&training, steps).await?;
    let (first, last) = (losses[0], losses[losses.len() - 1]);
    ensure!(last < 0.7 * first, "the loss did not fall: {losses:?}");

    let reloaded = reload(&service, &training).await?;
    let sampled = sample(&training).await?;
    let rewarded = reinforce(&training).await?;
    // Not every server takes notice of the end of a session.
    let finished = service.close(FinishReason::Success, None).await;
    let summary = json!({
        "model": model,
        "losses": losses,
        "reloaded": reloaded,
        "sampled": sampled,
        "reinforced": rewarded,
        "finish_session": finished.map_or_else(|error| error.to_string(), |()| "done".to_owned()),
        "seconds": started.elapsed().as_secs_f32(),
    });
    println!("{summary}");
    Ok(())
}

/// Returns sequences that count on, each from a place of its own.
fn batch() -> Result<Vec<Datum>> {
    let sequence = |start: u32| {
        let tokens: Vec<u32> = (0..16).map(|i| 1 + (start + i) % (COUNTED - 1)).collect();
        Datum::from_prompt_completion(&tokens[..2], &tokens[2..])
    };
    Ok((0..8).map(|i| sequence(5 * i)).collect::<Result<_, _>>()?)
}

/// Returns the mean loss of a token, from the log-probabilities: not every server sums them up.
fn mean_loss(batch: &[Datum], output: &ForwardBackwardOutput) -> Result<f64> {
    let (mut loss, mut total) = (0.0, 0.0);
    for (index, datum) in batch.iter().enumerate() {
        let logprobs = output.logprobs(index).context("no log-probabilities")?;
        let weights = datum.weights().and_then(|weights| weights.as_f32());
        let weights = weights.context("no weights")?;
        ensure!(
            logprobs.len() == weights.len(),
            "{} log-probabilities for {} tokens",
            logprobs.len(),
            weights.len()
        );
        loss -= weights
            .iter()
            .zip(logprobs)
            .map(|(w, l)| f64::from(w * l))
            .sum::<f64>();
        total += weights.iter().map(|weight| f64::from(*weight)).sum::<f64>();
    }
    Ok(loss / total)
}

/// Trains, always one step ahead of the answers.
async fn train(training: &TrainingClient, steps: usize) -> Result<Vec<f64>> {
    let batch = batch()?;
    let mut under_way = Vec::new();
    for _ in 0..steps {
        let pass = training.forward_backward(batch.clone()).submit();
        let step = training.optim_step(AdamParams::new(LEARNING_RATE)).submit();
        under_way.push((pass, step));
    }
    let mut losses = Vec::new();
    for (pass, step) in under_way {
        losses.push(mean_loss(&batch, &pass.await?)?);
        step.await?;
    }
    Ok(losses)
}

/// Saves, loads into a new model with its optimizer, and compares what both say.
async fn reload(service: &ServiceClient, training: &TrainingClient) -> Result<serde_json::Value> {
    let batch = batch()?;
    let name = format!("interop-{}", std::process::id());
    let saved = training.save_state(name).await?;
    let before = mean_loss(&batch, &training.forward(batch.clone()).await?)?;
    let resumed = service
        .create_training_client_from_state_with_optimizer(saved.clone())
        .await?;
    let after = mean_loss(&batch, &resumed.forward(batch.clone()).await?)?;
    let difference = (before - after).abs();
    ensure!(
        difference < 1e-3,
        "the loss was {before}, and {after} after loading"
    );
    // One more step each: the state of the optimizer came along if it leads to the same place.
    train(training, 1).await?;
    train(&resumed, 1).await?;
    let before = mean_loss(&batch, &training.forward(batch.clone()).await?)?;
    let after = mean_loss(&batch, &resumed.forward(batch.clone()).await?)?;
    let step_difference = (before - after).abs();
    ensure!(
        step_difference < 1e-2,
        "a step led to {before}, and to {after} after loading"
    );
    Ok(
        json!({"path": saved.to_string(), "loss": before, "difference": difference, "after_a_step": step_difference}),
    )
}

/// Samples greedily, and compares the log-probabilities with those of scoring.
async fn sample(training: &TrainingClient) -> Result<serde_json::Value> {
    let sampling = training.save_weights_and_get_sampling_client().await?;
    let prompt = [5, 6];
    let params = SamplingParams {
        temperature: 0.0,
        seed: Some(1),
        ..SamplingParams::new(8)
    };
    let output = sampling
        .sample(ModelInput::from_tokens(prompt), params)
        .await?;
    let sequence = output.sequences.first().context("no sequence")?;
    let right = sequence
        .tokens
        .iter()
        .zip(7..)
        .filter(|(token, right)| *token == right);
    let right = right.count();

    let whole: Vec<u32> = prompt
        .into_iter()
        .chain(sequence.tokens.iter().copied())
        .collect();
    let scored = sampling
        .compute_logprobs(ModelInput::from_tokens(whole.clone()))
        .await?;
    let logprobs = sequence.logprobs.as_ref().context("no log-probabilities")?;
    let ours = &scored[scored.len() - logprobs.len()..];
    let difference = ours.iter().zip(logprobs).map(|(a, b)| (a - b).abs());
    let difference = difference.fold(0.0, f32::max);
    ensure!(
        difference < 1e-2,
        "sampling and scoring differ by {difference}"
    );
    Ok(json!({
        "tokens": sequence.tokens,
        "right": right,
        "scored": scored.len(),
        "prompt": whole.len(),
        "logprob_difference": difference,
    }))
}

/// Makes a step of reinforcement, from what was sampled.
async fn reinforce(training: &TrainingClient) -> Result<serde_json::Value> {
    let sampling = training.save_weights_and_get_sampling_client().await?;
    let prompt = vec![11, 12];
    let output = sampling
        .sample(
            ModelInput::from_tokens(prompt.clone()),
            SamplingParams::new(8),
        )
        .num_samples(4)
        .await?;
    ensure!(
        output.sequences.len() == 4,
        "{} of 4 samples",
        output.sequences.len()
    );
    let mut batch = Vec::new();
    for (index, sequence) in output.sequences.iter().enumerate() {
        let logprobs = sequence.logprobs.as_ref().context("no log-probabilities")?;
        let advantage = if index % 2 == 0 { 1.0 } else { -1.0 };
        let tokens = [&prompt[..], &sequence.tokens].concat();
        let given = prompt.len() - 1; // targets that were not sampled
        batch.push(Datum::reinforcement(
            tokens[..tokens.len() - 1].to_vec(),
            tokens[1..]
                .iter()
                .map(|token| i64::from(*token))
                .collect::<Vec<_>>(),
            [&vec![0.0; given][..], logprobs].concat(),
            [vec![0.0; given], vec![advantage; logprobs.len()]].concat(),
        )?);
    }
    let pass = training
        .forward_backward(batch)
        .loss(LossFn::ImportanceSampling)
        .submit();
    let step = training.optim_step(AdamParams::new(LEARNING_RATE)).submit();
    let output = pass.await?;
    step.await?;
    Ok(json!({"datums": output.records.iter().map(|record| record.datums()).sum::<usize>()}))
}
