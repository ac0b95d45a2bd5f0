//! Supervised fine-tuning.
//!
//! The loop keeps two steps under way: while the server computes one, the next is already there,
//! so it never waits for the network. The order of submission is the order of execution, so this
//! changes nothing about the result.

use crate::data::{Batches, Examples};
use crate::run::defaults;
use crate::run::{Adapter, Hooks, Numbers, Outcome, Plan, Run, StepReport};
use crate::{Error, Schedule, evaluate, run};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::path::Path;
use tinkrs::training::OptimStepOutput;
use tinkrs::{AdamParams, Datum, ForwardBackwardOutput, Pending, ServiceClient, TrainingClient};

/// How many steps are under way at a time: one computes, one waits at the server.
const PIPELINE: usize = 2;

/// Settings of a supervised run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Which adapter of which model.
    pub adapter: Adapter,
    /// The learning rate.
    #[serde(default)]
    pub learning_rate: Schedule,
    /// Examples in a step. Default 16.
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
    /// Computes the loss of the evaluation examples every so many steps, before the first one
    /// and at the end; 0 never does. Default 20.
    #[serde(default = "default_eval_every")]
    pub eval_every: usize,
    /// Other settings of the optimizer; the learning rate in here is not used.
    #[serde(default)]
    pub adam: AdamParams,
}

impl Config {
    /// Makes the default settings for a model.
    pub fn new(base_model: impl Into<String>) -> Self {
        Self {
            adapter: Adapter::new(base_model),
            learning_rate: Schedule::default(),
            batch_size: defaults::batch_size(),
            epochs: defaults::epochs(),
            max_steps: None,
            seed: 0,
            checkpoint_every: defaults::checkpoint_every(),
            eval_every: default_eval_every(),
            adam: AdamParams::default(),
        }
    }

    /// Checks ranges.
    ///
    /// # Errors
    /// If a value makes no sense; the error names it.
    pub fn check(&self) -> Result<(), Error> {
        self.learning_rate.check()?;
        run::at_least_one("batch_size", self.batch_size)?;
        run::at_least_one("epochs", self.epochs)?;
        run::at_least_one("max_steps", self.max_steps.unwrap_or(1))?;
        self.adapter.check()
    }

    /// Returns how many steps a run over so many examples takes.
    ///
    /// # Errors
    /// If there are no examples, or batches of nothing.
    pub fn steps(&self, examples: usize) -> Result<usize, Error> {
        let batches = Batches::new(examples, self.batch_size, self.seed)?;
        Ok(batches.steps(self.epochs, self.max_steps))
    }
}

fn default_eval_every() -> usize {
    20
}

fn plan(config: &Config, examples: &Examples) -> Plan {
    let plan = Plan::new(examples.train.len(), config.batch_size, config.seed);
    plan.of_examples(&examples.train)
}

/// Returns how the run in a folder ended, if it did: [`train`] then has nothing left to do.
///
/// # Errors
/// If a setting makes no sense, or the folder belongs to another run.
pub fn finished(
    config: &Config,
    examples: &Examples,
    folder: impl AsRef<Path>,
) -> Result<Option<Outcome>, Error> {
    config.check()?;
    let steps = config.steps(examples.train.len())?;
    Run::already_finished(folder, &plan(config, examples), steps)
}

/// Fine-tunes a model on examples, in a run folder.
///
/// If the folder has a run already, goes on from its last checkpoint: no batch twice, none left
/// out. If `hooks.interrupt` is set, saves a checkpoint and returns.
///
/// # Errors
/// If a setting makes no sense, the folder belongs to another run, or the server fails.
pub async fn train(
    service: &ServiceClient,
    config: &Config,
    examples: &Examples,
    folder: impl AsRef<Path>,
    mut hooks: Hooks<'_>,
) -> Result<Outcome, Error> {
    if let Some(outcome) = finished(config, examples, &folder)? {
        return Ok(outcome);
    }
    let batches = Batches::new(examples.train.len(), config.batch_size, config.seed)?;
    let steps = config.steps(examples.train.len())?;
    let plan = plan(config, examples);
    let mut run = Run::open(service, &config.adapter, plan, config, folder).await?;
    let mut under_way: VecDeque<Step> = VecDeque::new();

    for step in run.steps_done()..steps {
        if hooks.interrupt.is_set() {
            break;
        }
        if run::due(config.eval_every, step) {
            // Queued behind the steps so far and ahead of the next: the weights are right.
            evaluate_at(&mut run, examples, step).await?;
        }
        let adam = AdamParams {
            learning_rate: config.learning_rate.rate(step, steps),
            ..config.adam
        };
        under_way.push_back(Step::submit(
            &run.training,
            batches.batch(step),
            examples,
            adam,
        )?);
        let save = run::due(config.checkpoint_every, step + 1);
        let keep = if save { 0 } else { PIPELINE - 1 };
        while under_way.len() > keep {
            finish_oldest(&mut run, &mut under_way, steps, &mut hooks).await?;
        }
        if save {
            run.checkpoint().await?;
        }
    }
    while !under_way.is_empty() {
        finish_oldest(&mut run, &mut under_way, steps, &mut hooks).await?;
    }
    let finished = run.steps_done() >= steps;
    if finished && config.eval_every > 0 {
        evaluate_at(&mut run, examples, steps).await?;
    }
    run.end(finished).await
}

/// A step that was submitted and not waited for.
struct Step {
    batch: Vec<usize>,
    tokens: usize,
    weight: f64,
    learning_rate: f64,
    pass: Pending<ForwardBackwardOutput>,
    update: Pending<OptimStepOutput>,
}

impl Step {
    fn submit(
        training: &TrainingClient,
        batch: Vec<usize>,
        examples: &Examples,
        adam: AdamParams,
    ) -> Result<Self, Error> {
        let chosen = || batch.iter().map(|index| &examples.train[*index]);
        let datums = chosen()
            .map(|example| example.to_datum())
            .collect::<Result<Vec<Datum>, _>>()?;
        let weights = chosen().flat_map(|example| example.weights.iter().skip(1));
        Ok(Self {
            tokens: chosen().map(|example| example.tokens.len()).sum(),
            weight: weights.map(|weight| f64::from(*weight)).sum(),
            learning_rate: adam.learning_rate,
            pass: training.forward_backward(datums).submit(),
            update: training.optim_step(adam).submit(),
            batch,
        })
    }
}

/// Waits for the oldest step and writes it down.
async fn finish_oldest(
    run: &mut Run,
    under_way: &mut VecDeque<Step>,
    steps: usize,
    hooks: &mut Hooks<'_>,
) -> Result<(), Error> {
    let Some(step) = under_way.pop_front() else {
        return Ok(());
    };
    let loss = step
        .pass
        .await?
        .loss()
        .ok_or(Error::Missing { what: "loss" })?;
    let update = step.update.await?;
    let seconds = run.lap_seconds();
    let mut numbers = Numbers::from([
        ("loss".to_owned(), loss / step.weight),
        ("learning_rate".to_owned(), step.learning_rate),
        ("tokens".to_owned(), step.tokens as f64),
        ("tokens_per_second".to_owned(), step.tokens as f64 / seconds),
        ("elapsed_seconds".to_owned(), run.elapsed_seconds()),
    ]);
    numbers.extend(run::prefixed("optim/", update.metrics.unwrap_or_default()));
    let number = run.steps_done();
    run.step_done(step.batch, &numbers)?;
    hooks.step(&StepReport {
        step: number,
        steps,
        numbers,
    });
    Ok(())
}

async fn evaluate_at(run: &mut Run, examples: &Examples, step: usize) -> Result<(), Error> {
    if examples.eval.is_empty() {
        return Ok(());
    }
    let loss = evaluate::mean_nll(&run.training, &examples.eval).await?;
    run.log(step, &Numbers::from([("eval_loss".to_owned(), loss)]))
}
