//! Learning from pairs of answers: direct (DPO) and identity (IPO) preference optimization.

mod loss;
mod pair;

pub use loss::PreferenceLoss;
pub use pair::{Pair, Preference};

use crate::data::DataSet;
use crate::run::{
    self, Adam, Adapter, Checkpoints, Evaluation, Goal, Hooks, Numbers, Outcome, Passes, Plan,
    ReferenceModel, Run,
};
use crate::{Error, Schedule, sft};
use loss::{Answer, Objective, preference_loss, weighted_sum};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::path::Path;
use tinkrs::training::CustomLoss;
use tinkrs::{BoxError, Datum, Pending, SamplingClient, ServiceClient};

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
    /// Which loss.
    #[serde(default)]
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "NAME", value_enum, help_heading = "Loss")
    )]
    pub loss: PreferenceLoss,
    /// How strongly the model is kept close to the reference; higher keeps it closer.
    #[serde(default = "default_beta")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "X", help_heading = "Loss"))]
    pub beta: f64,
    /// What the model is compared with and kept close to: what it starts from, unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(skip))]
    pub reference: Option<ReferenceModel>,
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
            loss: PreferenceLoss::default(),
            beta: default_beta(),
            reference: None,
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
        self.objective().check()?;
        self.passes.check()?;
        self.adam.check()?;
        self.checkpoints.check()?;
        self.evaluation.check()?;
        self.adapter.check()
    }

    fn objective(&self) -> Objective {
        Objective {
            loss: self.loss,
            beta: self.beta,
        }
    }
}

fn default_learning_rate() -> Schedule {
    Schedule::new(1e-5)
}

fn default_beta() -> f64 {
    0.1
}

fn plan(config: &Config, pairs: &DataSet<Pair>) -> Result<Plan, Error> {
    let plan = pairs.plan(config.passes.batch_size, config.seed, &config.adapter)?;
    Ok(Plan {
        reference: config.reference.clone(),
        ..plan
    })
}

/// Returns how the run in a folder ended, if it did: [`train`] then has nothing left to do.
///
/// # Errors
/// If a setting is out of range, or the folder belongs to another run.
pub fn finished(
    config: &Config,
    pairs: &DataSet<Pair>,
    folder: impl AsRef<Path>,
) -> Result<Option<Outcome>, Error> {
    config.check()?;
    let steps = config.passes.steps(pairs.train.len())?;
    let plan = plan(config, pairs)?;
    Run::already_finished(folder, &plan, steps, config.evaluation, Goal::LOSS)
}

/// Trains a model on pairs of answers, in a run folder.
///
/// The reference is a checkpoint of the caller's choice, else the weights that the run starts from. If the
/// folder has a run already, resumes from its last checkpoint. If `hooks.interrupt` is set, saves
/// a checkpoint and returns. Evaluates with pairs that are set apart: the loss, how many are right, and by how much.
///
/// # Errors
/// If a setting is out of range, the folder belongs to another run, or the server fails.
pub async fn train(
    service: &ServiceClient,
    config: &Config,
    pairs: &DataSet<Pair>,
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
    let mut run = Run::open(service, &config.adapter, plan, config, folder)
        .await?
        .keeping(config.checkpoints)
        .evaluating(config.evaluation, Goal::LOSS);
    let (adapter, reference) = (&config.adapter, config.reference.as_ref());
    let before = run::reference_sampler(service, adapter, reference).await?;
    let mut held_out = HeldOut::new(&before, &pairs.eval, config.objective());
    let ask = |step| {
        let batch = pairs.train.batch(&batches.batch(step))?;
        Ok::<_, Error>(References::ask(&before, batch))
    };
    let mut references = ask(run.steps_done())?;

    while run.steps_done() < steps && !hooks.interrupt.is_set() {
        let step = run.steps_done();
        held_out.evaluate(&mut run, false, &mut hooks).await?;
        if run.stops_early() {
            break;
        }
        let batch = batches.batch(step);
        // The next step's questions are on their way while this one trains.
        let asked = std::mem::replace(&mut references, ask(step + 1)?);
        let (chosen, reference) = asked.wait().await?;
        let examples = || chosen.iter().flat_map(|pair| pair.examples());
        let datums = examples()
            .map(|example| example.to_datum())
            .collect::<Result<Vec<Datum>, _>>()?;
        let adam = config
            .adam
            .with_rate(config.learning_rate.rate(step, steps));
        let objective = config.objective();
        let pass = run
            .training
            .forward_backward_custom(datums, move |data, logprobs| {
                batch_loss(data, logprobs, &reference, objective)
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
        numbers.extend(run::told_apart("", &output.metrics));
        numbers.extend(run::prefixed("optim/", update.metrics.unwrap_or_default()));
        let save = run.save_due(step + 1, config.checkpoint_every);
        run.finish_step(batch, numbers, steps, save, &mut hooks)
            .await?;
    }
    let finished = run.steps_done() >= steps;
    if finished {
        held_out.evaluate(&mut run, true, &mut hooks).await?;
    }
    let finished = finished || run.stops_early();
    run.end(finished).await
}

/// Pairs that are never trained on.
struct HeldOut<'d> {
    before: &'d SamplingClient,
    pairs: &'d [Pair],
    objective: Objective,
    /// Log-probabilities to the reference, once they are known.
    reference: Option<Vec<f64>>,
}

impl<'d> HeldOut<'d> {
    fn new(before: &'d SamplingClient, pairs: &'d [Pair], objective: Objective) -> Self {
        Self {
            before,
            pairs,
            objective,
            reference: None,
        }
    }

    /// Evaluates the present weights, if it is time to.
    async fn evaluate(
        &mut self,
        run: &mut Run,
        is_last: bool,
        hooks: &mut Hooks<'_>,
    ) -> Result<(), Error> {
        if self.pairs.is_empty() || !run.eval_due(is_last) {
            return Ok(());
        }
        let reference = match self.reference.take() {
            Some(reference) => reference,
            None => {
                let all = self.pairs.iter().map(Cow::Borrowed).collect();
                References::ask(self.before, all).wait().await?.1
            }
        };
        let datums = self.pairs.iter().flat_map(Pair::examples);
        let datums = datums.map(|example| example.to_datum());
        let datums = datums.collect::<Result<Vec<Datum>, _>>()?;
        let output = run.training.forward(datums.clone()).await?;
        let logprobs: Option<Vec<_>> = (0..datums.len())
            .map(|index| output.logprobs(index))
            .collect();
        let logprobs = logprobs.ok_or(Error::Missing {
            what: "log-probability of each token",
        })?;
        let loss = batch_loss(&datums, &logprobs, &reference, self.objective);
        let loss = loss.map_err(|source| Error::Caller {
            what: "the loss of the evaluation pairs",
            source,
        })?;
        self.reference = Some(reference);
        let mean = loss.loss / self.pairs.len() as f64;
        let mut numbers = Numbers::from([(Goal::LOSS.number.to_owned(), mean)]);
        numbers.extend(run::told_apart("eval_", &loss.metrics));
        run.evaluated(numbers, hooks).await
    }
}

/// Pairs, and their log-probabilities before training, which are on their way: chosen, rejected, chosen, …
struct References<'d> {
    pairs: Vec<Cow<'d, Pair>>,
    asked: Vec<Pending<Vec<f32>>>,
}

impl<'d> References<'d> {
    fn ask(before: &SamplingClient, pairs: Vec<Cow<'d, Pair>>) -> Self {
        let examples = pairs.iter().flat_map(|pair| pair.examples());
        let ask = |tokens: &Vec<u32>| before.compute_logprobs(tokens.clone()).submit();
        let asked = examples.map(|example| ask(&example.tokens)).collect();
        Self { pairs, asked }
    }

    async fn wait(self) -> Result<(Vec<Cow<'d, Pair>>, Vec<f64>), Error> {
        let examples = self.pairs.iter().flat_map(|pair| pair.examples());
        let mut sums = Vec::new();
        for (example, pending) in examples.zip(self.asked) {
            let logprobs = pending.await?;
            if logprobs.len() != example.tokens.len() {
                return Err(Error::Missing {
                    what: "log-probability of each token",
                });
            }
            // The first token has no prediction.
            sums.push(weighted_sum(&logprobs[1..], &example.weights[1..]));
        }
        Ok((self.pairs, sums))
    }
}

fn batch_loss(
    data: &[Datum],
    logprobs: &[&[f32]],
    reference: &[f64],
    objective: Objective,
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
    Ok(preference_loss(
        &pairs.collect::<Result<Vec<_>, BoxError>>()?,
        objective,
    ))
}
