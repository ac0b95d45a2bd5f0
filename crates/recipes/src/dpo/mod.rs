//! Direct preference optimization: learning from pairs of answers.

mod loss;
mod pair;

pub use pair::{Pair, Preference};

use crate::data::Batches;
use crate::run::{self, Adapter, Hooks, Numbers, Outcome, Plan, Run, StepReport, defaults};
use crate::{Error, Schedule};
use loss::{Answer, dpo_loss, weighted_sum};
use serde::{Deserialize, Serialize};
use std::path::Path;
use tinkrs::training::CustomLoss;
use tinkrs::{AdamParams, BoxError, Datum, Pending, SamplingClient, ServiceClient};

/// Settings of a preference run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Which adapter of which model.
    pub adapter: Adapter,
    /// The learning rate. Preferences want a tenth of what examples do.
    #[serde(default = "default_learning_rate")]
    pub learning_rate: Schedule,
    /// How strongly the model is held to where it began; higher holds it closer. Default 0.1.
    #[serde(default = "default_beta")]
    pub beta: f64,
    /// Pairs in a step. Default 16.
    #[serde(default = "defaults::batch_size")]
    pub batch_size: usize,
    /// Passes over the data. Default 1.
    #[serde(default = "defaults::epochs")]
    pub epochs: usize,
    /// Ends the run early, after so many steps.
    #[serde(default)]
    pub max_steps: Option<usize>,
    /// Seeds the order of the data. Default 0.
    #[serde(default)]
    pub seed: u64,
    /// Saves a checkpoint every so many steps; 0 saves one at the end only. Default 50.
    #[serde(default = "defaults::checkpoint_every")]
    pub checkpoint_every: usize,
    /// Other settings of the optimizer; the learning rate in here is not used.
    #[serde(default)]
    pub adam: AdamParams,
}

impl Config {
    /// Makes the default settings for a model.
    pub fn new(base_model: impl Into<String>) -> Self {
        Self {
            adapter: Adapter::new(base_model),
            learning_rate: default_learning_rate(),
            beta: default_beta(),
            batch_size: defaults::batch_size(),
            epochs: defaults::epochs(),
            max_steps: None,
            seed: 0,
            checkpoint_every: defaults::checkpoint_every(),
            adam: AdamParams::default(),
        }
    }

    /// Checks ranges.
    ///
    /// # Errors
    /// If a value makes no sense; the error names it.
    pub fn check(&self) -> Result<(), Error> {
        self.learning_rate.check()?;
        if !(self.beta > 0.0 && self.beta.is_finite()) {
            let problem = format!("{}, expected a positive number", self.beta);
            return Err(Error::setting("beta", problem));
        }
        run::at_least_one("batch_size", self.batch_size)?;
        run::at_least_one("epochs", self.epochs)?;
        run::at_least_one("max_steps", self.max_steps.unwrap_or(1))?;
        self.adapter.check()
    }

    /// Returns how many steps a run over so many pairs takes.
    ///
    /// # Errors
    /// If there are no pairs, or batches of nothing.
    pub fn steps(&self, pairs: usize) -> Result<usize, Error> {
        let batches = Batches::new(pairs, self.batch_size, self.seed)?;
        Ok(batches.steps(self.epochs, self.max_steps))
    }
}

fn default_learning_rate() -> Schedule {
    Schedule::new(1e-5)
}

fn default_beta() -> f64 {
    0.1
}

fn plan(config: &Config, pairs: &[Pair]) -> Plan {
    let plan = Plan::new(pairs.len(), config.batch_size, config.seed);
    plan.of_examples(pairs.iter().flat_map(|pair| [&pair.chosen, &pair.rejected]))
}

/// Returns how the run in a folder ended, if it did: [`train`] then has nothing left to do.
///
/// # Errors
/// If a setting makes no sense, or the folder belongs to another run.
pub fn finished(
    config: &Config,
    pairs: &[Pair],
    folder: impl AsRef<Path>,
) -> Result<Option<Outcome>, Error> {
    config.check()?;
    let steps = config.steps(pairs.len())?;
    Run::already_finished(folder, &plan(config, pairs), steps)
}

/// Trains a model on pairs of answers, in a run folder.
///
/// The model before training is the base model, which the server also samples from. If the
/// folder has a run already, goes on from its last checkpoint. If `hooks.interrupt` is set, saves
/// a checkpoint and returns.
///
/// # Errors
/// If a setting makes no sense, the folder belongs to another run, or the server fails.
pub async fn train(
    service: &ServiceClient,
    config: &Config,
    pairs: &[Pair],
    folder: impl AsRef<Path>,
    mut hooks: Hooks<'_>,
) -> Result<Outcome, Error> {
    if let Some(outcome) = finished(config, pairs, &folder)? {
        return Ok(outcome);
    }
    let batches = Batches::new(pairs.len(), config.batch_size, config.seed)?;
    let steps = config.steps(pairs.len())?;
    let plan = plan(config, pairs);
    let mut run = Run::open(service, &config.adapter, plan, config, folder).await?;
    let base_model = config.adapter.base_model.as_str();
    let before = service.create_sampling_client(base_model).await?;
    let mut references = References::ask(&before, pairs, &batches.batch(run.steps_done()));

    while run.steps_done() < steps && !hooks.interrupt.is_set() {
        let step = run.steps_done();
        let batch = batches.batch(step);
        // The next step's questions are on their way while this one trains.
        let next = References::ask(&before, pairs, &batches.batch(step + 1));
        let reference = std::mem::replace(&mut references, next)
            .wait(pairs, &batch)
            .await?;
        let examples = || {
            batch
                .iter()
                .flat_map(|index| [&pairs[*index].chosen, &pairs[*index].rejected])
        };
        let datums = examples()
            .map(|example| example.to_datum())
            .collect::<Result<Vec<Datum>, _>>()?;
        let adam = AdamParams {
            learning_rate: config.learning_rate.rate(step, steps),
            ..config.adam
        };
        let beta = config.beta;
        let pass = run
            .training
            .forward_backward_custom(datums, move |data, logprobs| {
                batch_loss(data, logprobs, &reference, beta)
            });
        let pass = pass.submit();
        let update = run.training.optim_step(adam).submit();
        let output = pass.await?;
        let update = update.await?;
        let loss = output.loss().ok_or(Error::Missing { what: "loss" })?;
        let tokens: usize = examples().map(|example| example.tokens.len()).sum();
        let mut numbers = Numbers::from([
            ("loss".to_owned(), loss / batch.len() as f64),
            ("learning_rate".to_owned(), adam.learning_rate),
            ("tokens".to_owned(), tokens as f64),
            (
                "tokens_per_second".to_owned(),
                tokens as f64 / run.lap_seconds(),
            ),
            ("elapsed_seconds".to_owned(), run.elapsed_seconds()),
        ]);
        for name in ["accuracy", "margin"] {
            let number = output.metrics.get(&format!("{name}:mean"));
            numbers.extend(number.map(|number| (name.to_owned(), *number)));
        }
        numbers.extend(run::prefixed("optim/", update.metrics.unwrap_or_default()));
        run.step_done(batch, &numbers)?;
        if run::due(config.checkpoint_every, step + 1) {
            run.checkpoint().await?;
        }
        hooks.step(&StepReport {
            step,
            steps,
            numbers,
        });
    }
    let finished = run.steps_done() >= steps;
    run.end(finished).await
}

/// Log-probabilities before training, on their way: chosen, rejected, chosen, …
struct References(Vec<Pending<Vec<f32>>>);

impl References {
    fn ask(before: &SamplingClient, pairs: &[Pair], batch: &[usize]) -> Self {
        let examples = batch
            .iter()
            .flat_map(|index| [&pairs[*index].chosen, &pairs[*index].rejected]);
        let ask = |tokens: &Vec<u32>| before.compute_logprobs(tokens.clone()).submit();
        Self(examples.map(|example| ask(&example.tokens)).collect())
    }

    async fn wait(self, pairs: &[Pair], batch: &[usize]) -> Result<Vec<f64>, Error> {
        let examples = batch
            .iter()
            .flat_map(|index| [&pairs[*index].chosen, &pairs[*index].rejected]);
        let mut sums = Vec::new();
        for (example, pending) in examples.zip(self.0) {
            let logprobs = pending.await?;
            if logprobs.len() != example.tokens.len() {
                return Err(Error::Missing {
                    what: "log-probability of each token",
                });
            }
            // The first token has no prediction.
            sums.push(weighted_sum(&logprobs[1..], &example.weights[1..]));
        }
        Ok(sums)
    }
}

fn batch_loss(
    data: &[Datum],
    logprobs: &[&[f32]],
    reference: &[f64],
    beta: f64,
) -> Result<CustomLoss, BoxError> {
    let answer = |index: usize| {
        let weights = data[index].weights().and_then(|weights| weights.as_f32());
        Ok::<_, BoxError>(Answer {
            logprobs: logprobs[index],
            weights: weights.ok_or("a datum without weights")?,
            reference: reference[index],
        })
    };
    let pairs = (0..data.len() / 2).map(|pair| Ok((answer(2 * pair)?, answer(2 * pair + 1)?)));
    Ok(dpo_loss(
        &pairs.collect::<Result<Vec<_>, BoxError>>()?,
        beta,
    ))
}
