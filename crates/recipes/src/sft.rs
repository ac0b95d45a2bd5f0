//! Supervised fine-tuning.
//!
//! The loop keeps two steps under way: while the server computes one, the next is already there,
//! so it never waits for the network. The order of submission is the order of execution, so this
//! changes nothing about the result.

use crate::data::{Batches, Examples};
use crate::evaluate::{self, target_weights};
use crate::run::{
    self, Adam, Adapter, Checkpoints, Evaluation, Goal, Hooks, Numbers, Outcome, Passes, Plan, Run,
    Save,
};
use crate::{Decay, Error, Schedule};
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
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct Config {
    /// Which adapter of which model.
    #[cfg_attr(feature = "clap", command(flatten))]
    pub adapter: Adapter,
    /// The learning rate.
    #[serde(default = "default_learning_rate")]
    #[cfg_attr(feature = "clap", command(flatten))]
    pub learning_rate: Schedule,
    /// How it goes through the examples.
    #[serde(flatten)]
    #[cfg_attr(feature = "clap", command(flatten))]
    pub passes: Passes,
    /// Seed for the order of the examples.
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", help_heading = "Run"))]
    pub seed: u64,
    /// Save a checkpoint every so many steps, and one at the end; 0 saves the last one only.
    #[serde(default = "default_checkpoint_every")]
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
            passes: Passes::default(),
            seed: 0,
            checkpoint_every: default_checkpoint_every(),
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

/// The learning rate of recipes that learn from examples.
pub(crate) fn default_learning_rate() -> Schedule {
    Schedule {
        warmup_steps: 5,
        decay: Decay::Cosine,
        ..Schedule::new(5e-4)
    }
}

pub(crate) fn default_checkpoint_every() -> usize {
    50
}

fn plan(config: &Config, examples: &Examples) -> Result<Plan, Error> {
    examples.plan(config.passes.batch_size, config.seed, &config.adapter)
}

/// Returns the batches of a run.
pub(crate) fn batches(config: &Config, examples: &Examples) -> Result<Batches, Error> {
    examples.batches(config.passes.batch_size, config.seed)
}

/// Returns how the run in a folder ended, if it did: [`train`] then has nothing left to do.
///
/// # Errors
/// If a setting is out of range, or the folder belongs to another run.
pub fn finished(
    config: &Config,
    examples: &Examples,
    folder: impl AsRef<Path>,
) -> Result<Option<Outcome>, Error> {
    config.check()?;
    let steps = config.passes.steps(examples.train.len())?;
    let plan = plan(config, examples)?;
    Run::already_finished(folder, &plan, steps, config.evaluation, Goal::LOSS)
}

/// Fine-tunes a model on examples, in a run folder.
///
/// If the folder has a run already, resumes from its last checkpoint: no batch twice, none left
/// out. If `hooks.interrupt` is set, saves a checkpoint and returns. Evaluates with `examples.eval`, if there are any.
///
/// # Errors
/// If a setting is out of range, the folder belongs to another run, or the server fails.
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
    let batches = batches(config, examples)?;
    let steps = config.passes.steps(examples.train.len())?;
    let plan = plan(config, examples)?;
    config.evaluation.check_data(examples.eval.len())?;
    let mut run = Run::open(service, &config.adapter, plan, config, folder)
        .await?
        .keeping(config.checkpoints)
        .evaluating(config.evaluation, Goal::LOSS);
    let mut under_way: VecDeque<Step> = VecDeque::new();

    for step in run.steps_done()..steps {
        if hooks.interrupt.is_set() {
            break;
        }
        if run::due(config.evaluation.every, step) {
            // What is evaluated may be saved, with nothing under way.
            while !under_way.is_empty() {
                finish_oldest(&mut run, &mut under_way, steps, None, &mut hooks).await?;
            }
            evaluate(&mut run, examples, false, &mut hooks).await?;
            if run.stops_early() {
                break;
            }
        }
        let adam = config
            .adam
            .with_rate(config.learning_rate.rate(step, steps));
        under_way.push_back(Step::submit(
            &run.training,
            batches.batch(step),
            examples,
            adam,
        )?);
        // Nothing may be under way behind a step that is saved.
        let save = run.save_due(step + 1, config.checkpoint_every);
        let keep = if save.is_some() { 0 } else { PIPELINE - 1 };
        while under_way.len() > keep {
            finish_oldest(&mut run, &mut under_way, steps, save, &mut hooks).await?;
        }
    }
    while !under_way.is_empty() {
        finish_oldest(&mut run, &mut under_way, steps, None, &mut hooks).await?;
    }
    let finished = run.steps_done() >= steps;
    if finished {
        evaluate(&mut run, examples, true, &mut hooks).await?;
    }
    let finished = finished || run.stops_early();
    run.end(finished).await
}

/// A step that was submitted and not waited for.
struct Step {
    batch: Vec<usize>,
    tokens: usize,
    weights: Vec<Vec<f32>>,
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
        let chosen = examples.train.batch(&batch)?;
        let datums = chosen
            .iter()
            .map(|example| example.to_datum())
            .collect::<Result<Vec<Datum>, _>>()?;
        let weights = chosen
            .iter()
            .map(|example| target_weights(example).to_vec());
        Ok(Self {
            tokens: chosen.iter().map(|example| example.tokens.len()).sum(),
            weights: weights.collect(),
            learning_rate: adam.learning_rate,
            pass: training.forward_backward(datums).submit(),
            update: training.optim_step(adam).submit(),
            batch,
        })
    }
}

/// Waits for the oldest step and finishes it. The last one under way is saved, if any is.
async fn finish_oldest(
    run: &mut Run,
    under_way: &mut VecDeque<Step>,
    steps: usize,
    save: Option<Save>,
    hooks: &mut Hooks<'_>,
) -> Result<(), Error> {
    let Some(step) = under_way.pop_front() else {
        return Ok(());
    };
    let output = step.pass.await?;
    let loss = run.loss(&output, &step.weights)?;
    let all = step.weights.iter().flatten();
    let weight: f64 = all.map(|weight| f64::from(*weight)).sum();
    let update = step.update.await?;
    let mut numbers = Numbers::from([
        ("loss".to_owned(), loss / weight),
        ("learning_rate".to_owned(), step.learning_rate),
    ]);
    numbers.extend(run.speed(step.tokens as f64));
    numbers.extend(run::prefixed("optim/", update.metrics.unwrap_or_default()));
    let save = save.filter(|_| under_way.is_empty());
    run.finish_step(step.batch, numbers, steps, save, hooks)
        .await
}

/// Evaluates the present weights, if it is time to.
async fn evaluate(
    run: &mut Run,
    examples: &Examples,
    is_last: bool,
    hooks: &mut Hooks<'_>,
) -> Result<(), Error> {
    if examples.eval.is_empty() || !run.eval_due(is_last) {
        return Ok(());
    }
    let loss = evaluate::mean_nll(&run.training, &examples.eval).await?;
    let numbers = Numbers::from([(Goal::LOSS.number.to_owned(), loss)]);
    run.evaluated(numbers, hooks).await
}
