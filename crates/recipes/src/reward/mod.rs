//! Reward models: which of two answers is better, as a number for each.
//!
//! The loss is that of Bradley and Terry. With `r` what an answer is worth ([`RewardModel`] says how),
//!
//! ```text
//! L = Σ −log σ(r(chosen) − r(rejected))
//! ```
//!
//! What was learned grades answers: as the reward of a reinforcement run, which makes the two of them what is called
//! RLHF, or for anything else that wants to know.

mod judgement;

pub use judgement::{Asking, JudgedPair, QUESTION, QUESTION_LABEL, RewardModel, trained_question};

use crate::data::{DataSet, Stored as _};
use crate::run::{
    self, Adam, Adapter, Checkpoints, Evaluation, Goal, Hooks, Numbers, Outcome, Passes, Plan, Run,
};
use crate::{Error, Schedule, sft};
use judgement::worth;
use serde::{Deserialize, Serialize};
use std::path::Path;
use tinkrs::training::CustomLoss;
use tinkrs::{BoxError, Datum, ServiceClient};

/// Settings of a reward model's training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct Config {
    /// Which adapter of which model.
    #[cfg_attr(feature = "clap", command(flatten))]
    pub adapter: Adapter,
    /// The learning rate.
    #[serde(default = "default_learning_rate")]
    #[cfg_attr(feature = "clap", command(flatten))]
    pub learning_rate: Schedule,
    /// What is asked after an answer, to be answered with Yes or No.
    #[serde(default = "default_question")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "TEXT"))]
    pub question: String,
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
    /// Which checkpoints stay.
    #[serde(flatten)]
    #[cfg_attr(feature = "clap", command(flatten))]
    pub checkpoints: Checkpoints,
    /// When it is evaluated, and what follows from it.
    #[serde(flatten)]
    #[cfg_attr(feature = "clap", command(flatten))]
    pub evaluation: Evaluation,
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
            question: default_question(),
            passes: Passes::default(),
            seed: 0,
            checkpoint_every: sft::default_checkpoint_every(),
            checkpoints: Checkpoints::default(),
            evaluation: Evaluation::default(),
            adam: Adam::default(),
        }
    }

    /// Checks ranges.
    ///
    /// # Errors
    /// If a value is out of range; the error names the setting.
    pub fn check(&self) -> Result<(), Error> {
        self.learning_rate.check()?;
        self.passes.check()?;
        self.adam.check()?;
        self.checkpoints.check()?;
        self.evaluation.check()?;
        self.adapter.check()
    }
}

fn default_learning_rate() -> Schedule {
    Schedule::new(1e-4)
}

fn default_question() -> String {
    QUESTION.to_owned()
}

fn plan(config: &Config, pairs: &DataSet<JudgedPair>) -> Result<Plan, Error> {
    pairs.plan(config.passes.batch_size, config.seed, &config.adapter)
}

/// Returns how the run in a folder ended, if it did: [`train`] then has nothing left to do.
///
/// # Errors
/// If a setting is out of range, or the folder belongs to another run.
pub fn finished(
    config: &Config,
    pairs: &DataSet<JudgedPair>,
    folder: impl AsRef<Path>,
) -> Result<Option<Outcome>, Error> {
    config.check()?;
    let steps = config.passes.steps(pairs.train.len())?;
    let plan = plan(config, pairs)?;
    Run::already_finished(folder, &plan, steps, config.evaluation, Goal::LOSS)
}

/// Trains a model to tell the better of two answers from the worse, in a run folder.
///
/// If the folder has a run already, resumes from its last checkpoint. If `hooks.interrupt` is set, saves a checkpoint
/// and returns. Evaluates with pairs that are set apart: the loss, how many are right, and by how much.
///
/// # Errors
/// If a setting is out of range, the folder belongs to another run, or the server fails.
pub async fn train(
    service: &ServiceClient,
    config: &Config,
    pairs: &DataSet<JudgedPair>,
    folder: impl AsRef<Path>,
    mut hooks: Hooks<'_>,
) -> Result<Outcome, Error> {
    if let Some(outcome) = finished(config, pairs, &folder)? {
        return Ok(outcome);
    }
    let batches = pairs.batches(config.passes.batch_size, config.seed)?;
    let steps = config.passes.steps(pairs.train.len())?;
    config.evaluation.check_data(pairs.eval.len())?;
    let plan = plan(config, pairs)?;
    // Whoever grades with it must ask the same.
    let mut adapter = config.adapter.clone();
    let label = (QUESTION_LABEL.to_owned(), config.question.clone());
    adapter.labels.extend([label]);
    let mut run = Run::open(service, &adapter, plan, config, folder)
        .await?
        .keeping(config.checkpoints)
        .evaluating(config.evaluation, Goal::LOSS);

    while run.steps_done() < steps && !hooks.interrupt.is_set() {
        let step = run.steps_done();
        evaluate(&mut run, &pairs.eval, false, &mut hooks).await?;
        if run.stops_early() {
            break;
        }
        let batch = batches.batch(step);
        let chosen = pairs.train.batch(&batch)?;
        let rate = config.learning_rate.rate(step, steps);
        let adam = config.adam.with_rate(rate);
        let pass = run
            .training
            .forward_backward_custom(datums(chosen.iter().map(AsRef::as_ref))?, |_, logprobs| {
                bradley_terry(logprobs)
            })
            .submit();
        let update = run.training.optim_step(adam).submit();
        let output = pass.await?;
        let update = update.await?;
        let loss = output.loss().ok_or(Error::Missing { what: "loss" })?;
        let tokens: usize = chosen.iter().map(|pair| pair.tokens()).sum();
        let mut numbers = Numbers::from([
            ("loss".to_owned(), loss / batch.len() as f64),
            ("learning_rate".to_owned(), adam.learning_rate),
        ]);
        numbers.extend(run.speed(tokens as f64));
        numbers.extend(run::told_apart("", &output.metrics));
        numbers.extend(run::prefixed("optim/", update.metrics.unwrap_or_default()));
        let save = run.save_due(step + 1, config.checkpoint_every);
        run.finish_step(batch, numbers, steps, save, &mut hooks)
            .await?;
    }
    let finished = run.steps_done() >= steps;
    if finished {
        evaluate(&mut run, &pairs.eval, true, &mut hooks).await?;
    }
    let finished = finished || run.stops_early();
    run.end(finished).await
}

fn datums<'p>(pairs: impl Iterator<Item = &'p JudgedPair>) -> Result<Vec<Datum>, Error> {
    let datums = pairs.map(JudgedPair::datums);
    let datums = datums.collect::<Result<Vec<_>, Error>>()?;
    Ok(datums.into_iter().flatten().collect())
}

/// Evaluates the present weights, if it is time to.
async fn evaluate(
    run: &mut Run,
    pairs: &[JudgedPair],
    is_last: bool,
    hooks: &mut Hooks<'_>,
) -> Result<(), Error> {
    if pairs.is_empty() || !run.eval_due(is_last) {
        return Ok(());
    }
    let data = datums(pairs.iter())?;
    let count = data.len();
    let output = run.training.forward(data).await?;
    let logprobs: Option<Vec<_>> = (0..count).map(|index| output.logprobs(index)).collect();
    let logprobs = logprobs.ok_or(Error::Missing {
        what: "log-probability of each verdict",
    })?;
    let loss = bradley_terry(&logprobs).map_err(|source| Error::Caller {
        what: "the loss of the evaluation pairs",
        source,
    })?;
    let mean = loss.loss / pairs.len() as f64;
    let mut numbers = Numbers::from([(Goal::LOSS.number.to_owned(), mean)]);
    numbers.extend(run::told_apart("eval_", &loss.metrics));
    run.evaluated(numbers, hooks).await
}

/// Computes the loss of answers in the order better, worse, better, …
fn bradley_terry(logprobs: &[&[f32]]) -> Result<CustomLoss, BoxError> {
    let (mut loss, mut right, mut margins) = (0.0, 0.0, 0.0);
    let mut gradients = Vec::with_capacity(logprobs.len());
    for pair in logprobs.chunks_exact(2) {
        let worth = |logprobs| worth(logprobs).ok_or("an answer without a verdict");
        let margin = worth(pair[0])? - worth(pair[1])?;
        // −log σ(margin), in the form that does not overflow, and its derivative.
        loss += (-margin).max(0.0) + (-margin.abs()).exp().ln_1p();
        let slope = -1.0 / (1.0 + margin.exp());
        for (logprobs, slope) in [(pair[0], slope), (pair[1], -slope)] {
            let mut gradient = vec![0.0; logprobs.len()];
            if let [.., yes, no] = gradient.as_mut_slice() {
                (*yes, *no) = (slope as f32, -slope as f32);
            }
            gradients.push(gradient);
        }
        right += f64::from(u8::from(margin > 0.0));
        margins += margin;
    }
    let count = (logprobs.len() / 2).max(1) as f64;
    Ok(CustomLoss::new(loss, gradients)
        .metric("accuracy:mean", right / count)
        .metric("margin:mean", margins / count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_agree_with_finite_differences() {
        let logprobs = [vec![-3.0, -4.0, -0.5, -1.5], vec![-1.0, -0.75]];
        let loss = |logprobs: &[Vec<f32>]| {
            let logprobs: Vec<&[f32]> = logprobs.iter().map(Vec::as_slice).collect();
            bradley_terry(&logprobs).unwrap()
        };
        let analytic = loss(&logprobs).gradients;
        let h = 1.0 / 128.0;
        for (which, answer) in logprobs.iter().enumerate() {
            for index in 0..answer.len() {
                let at = |change: f32| {
                    let mut changed = logprobs.clone();
                    changed[which][index] += change;
                    loss(&changed).loss
                };
                let numeric = (at(h) - at(-h)) / (2.0 * f64::from(h));
                let found = f64::from(analytic[which][index]);
                assert!(
                    (numeric - found).abs() < 1e-5,
                    "{which}, {index}: {numeric} and {found}"
                );
            }
        }
    }

    #[test]
    fn equal_answers_lose_log_two_and_wild_ones_stay_finite() {
        let equal = bradley_terry(&[&[-1.0, -2.0], &[-1.0, -2.0]]).unwrap();
        assert!((equal.loss - std::f64::consts::LN_2).abs() < 1e-12);
        assert_eq!(equal.metrics["accuracy:mean"], 0.0);
        let wild = bradley_terry(&[&[-9e4, 0.0], &[0.0, -9e4]]).unwrap();
        assert!(wild.loss.is_finite());
        assert!(wild.gradients.iter().flatten().all(|g| g.is_finite()));
        assert!(bradley_terry(&[&[-1.0], &[-1.0, -2.0]]).is_err());
    }
}
