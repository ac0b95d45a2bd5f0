//! Direct preference optimization: learning from pairs of answers.

mod loss;
mod pair;

pub use pair::{Pair, Preference};

use crate::data::Batches;
use crate::run::{self, Adam, Adapter, Hooks, Numbers, Outcome, Passes, Plan, Run};
use crate::{Error, Schedule, sft};
use loss::{Answer, dpo_loss, weighted_sum};
use serde::{Deserialize, Serialize};
use std::path::Path;
use tinkrs::training::CustomLoss;
use tinkrs::{BoxError, Datum, Pending, SamplingClient, ServiceClient, TinkerPath};

/// Settings of a preference run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct Config {
    /// Which adapter of which model.
    #[cfg_attr(feature = "clap", command(flatten))]
    pub adapter: Adapter,
    /// The learning rate. Preferences want a tenth of what examples do, or less.
    #[serde(default = "default_learning_rate")]
    #[cfg_attr(feature = "clap", command(flatten))]
    pub learning_rate: Schedule,
    /// How strongly the model is kept close to the reference; higher keeps it closer.
    #[serde(default = "default_beta")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "X"))]
    pub beta: f64,
    /// The checkpoint that the model is compared with and kept close to: what it starts from, unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(skip))]
    pub reference: Option<TinkerPath>,
    /// How it goes through the pairs.
    #[serde(flatten)]
    #[cfg_attr(feature = "clap", command(flatten))]
    pub passes: Passes,
    /// Seed for the order of the pairs.
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", help_heading = "Run"))]
    pub seed: u64,
    /// Save a checkpoint every so many steps, and one at the end; 0 saves the last one only.
    #[serde(default = "sft::default_checkpoint_every")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", help_heading = "Run"))]
    pub checkpoint_every: usize,
    /// Save one, too, before so many seconds of work would be lost with the process; the next one replaces it.
    /// 0 never does.
    #[serde(default = "run::default_checkpoint_seconds")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "X", help_heading = "Run"))]
    pub checkpoint_seconds: f64,
    /// Other settings of the optimizer.
    #[serde(default)]
    #[cfg_attr(feature = "clap", command(flatten))]
    pub adam: Adam,
}

impl Config {
    /// Makes the default settings for a model.
    pub fn new(base_model: impl Into<String>) -> Self {
        Self {
            adapter: Adapter::new(base_model),
            learning_rate: default_learning_rate(),
            beta: default_beta(),
            reference: None,
            passes: Passes::default(),
            seed: 0,
            checkpoint_every: sft::default_checkpoint_every(),
            checkpoint_seconds: run::default_checkpoint_seconds(),
            adam: Adam::default(),
        }
    }

    /// Checks ranges.
    ///
    /// # Errors
    /// If a value is out of range; the error names the setting.
    pub fn check(&self) -> Result<(), Error> {
        self.learning_rate.check()?;
        if !(self.beta > 0.0 && self.beta.is_finite()) {
            let problem = format!("{}, expected a positive number", self.beta);
            return Err(Error::setting("beta", problem));
        }
        self.passes.check()?;
        self.adam.check()?;
        run::check_seconds(self.checkpoint_seconds)?;
        self.adapter.check()
    }
}

fn default_learning_rate() -> Schedule {
    Schedule::new(1e-5)
}

fn default_beta() -> f64 {
    0.1
}

fn plan(config: &Config, pairs: &[Pair]) -> Plan {
    let plan = Plan::new(pairs.len(), config.passes.batch_size, config.seed);
    let plan = plan.of_examples(pairs.iter().flat_map(|pair| [&pair.chosen, &pair.rejected]));
    let plan = plan.starting_from(config.adapter.from.clone());
    Plan {
        reference: config.reference.clone(),
        ..plan
    }
}

/// Returns how the run in a folder ended, if it did: [`train`] then has nothing left to do.
///
/// # Errors
/// If a setting is out of range, or the folder belongs to another run.
pub fn finished(
    config: &Config,
    pairs: &[Pair],
    folder: impl AsRef<Path>,
) -> Result<Option<Outcome>, Error> {
    config.check()?;
    let steps = config.passes.steps(pairs.len())?;
    Run::already_finished(folder, &plan(config, pairs), steps)
}

/// Trains a model on pairs of answers, in a run folder.
///
/// The reference is a checkpoint of the caller's choice, else the weights that the run starts from. If the
/// folder has a run already, resumes from its last checkpoint. If `hooks.interrupt` is set, saves
/// a checkpoint and returns.
///
/// # Errors
/// If a setting is out of range, the folder belongs to another run, or the server fails.
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
    let batches = Batches::new(pairs.len(), config.passes.batch_size, config.seed)?;
    let steps = config.passes.steps(pairs.len())?;
    let plan = plan(config, pairs);
    let mut run = Run::open(service, &config.adapter, plan, config, folder).await?;
    let before = match &config.reference {
        Some(path) => run::sampler_of(service, path).await?,
        None => run::sampler_before(service, &config.adapter).await?,
    };
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
        let adam = config
            .adam
            .with_rate(config.learning_rate.rate(step, steps));
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
        ]);
        numbers.extend(run.speed(tokens as f64));
        for name in ["accuracy", "margin"] {
            let number = output.metrics.get(&format!("{name}:mean"));
            numbers.extend(number.map(|number| (name.to_owned(), *number)));
        }
        numbers.extend(run::prefixed("optim/", update.metrics.unwrap_or_default()));
        let save = run.save_due(step + 1, config.checkpoint_every, config.checkpoint_seconds);
        run.finish_step(batch, numbers, steps, save, &mut hooks)
            .await?;
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
