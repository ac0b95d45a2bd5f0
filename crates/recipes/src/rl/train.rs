//! The reinforcement loop.
//!
//! Playing and training overlap. With a staleness budget of `k`, the episodes of step `s` start
//! as soon as step `s - k` is in the weights, so `k` steps' worth of episodes are being played
//! while one trains. Step `s` then learns from weights at most `k` steps old, by construction;
//! the loss corrects for the difference. (For `asynchronous` runs see that module.)
//!
//! A step has one or several updates of the weights, and each of those one or several passes. The passes of the first
//! update start as soon as their groups are there. No update does before all groups are, so that a step which fails
//! is in the weights as a whole or not at all.

use super::batch::{Batch, Reference, Weighing, numbers, sampler_trainer_gap};
use super::config::Config;
use super::env::Problem;
use super::episode::Sequence;
use super::episodes::Episodes;
use super::playing::Players;
use super::rollout::{Played, play};
use super::transcripts;
use crate::Error;
use crate::data::Split;
use crate::run::{self, Goal, Hooks, Numbers, Outcome, Plan, Run};
use std::path::Path;
use std::sync::Arc;
use tinkrs::training::OptimStepOutput;
use tinkrs::{ForwardBackwardOutput, Pending, SamplingClient, ServiceClient};

/// Of the draws in evaluations.
const EVAL_SEED: u64 = 0;

type Problems<'d> = Split<'d, Arc<dyn Problem>>;

fn words(problems: &[Arc<dyn Problem>]) -> impl Iterator<Item = u32> {
    let identities = problems.iter().map(|problem| problem.identity());
    identities.flat_map(|words| run::counted(&words).collect::<Vec<_>>())
}

fn plan(config: &Config, problems: Problems<'_>) -> Plan {
    let in_a_step = config.policy.problems_per_step;
    let plan = Plan::new(problems.train.len(), in_a_step, config.seed)
        .of_words(words(problems.train))
        .evaluated_with(words(problems.eval))
        .starting_from(config.adapter.from.clone());
    Plan {
        reference: config.kl_reference.clone(),
        ..plan
    }
}

/// Returns how the run in a folder ended, if it did: [`train`] then has nothing left to do.
///
/// # Errors
/// If a setting is out of range, or the folder belongs to another run.
pub fn finished<'d>(
    config: &Config,
    problems: impl Into<Problems<'d>>,
    folder: impl AsRef<Path>,
) -> Result<Option<Outcome>, Error> {
    config.check()?;
    let (plan, steps) = (plan(config, problems.into()), config.policy.steps);
    Run::already_finished(folder, &plan, steps, config.evaluation, Goal::REWARD)
}

/// Trains a model on problems by trial and error, in a run folder.
///
/// If the folder has a run already, resumes from its last checkpoint with the next problems; the
/// first episodes are then played with that checkpoint's weights. If `hooks.interrupt` is set,
/// saves a checkpoint and returns. If an environment or the reference fails, a checkpoint is saved before the error is
/// returned, so that no step is lost. Evaluates with problems that are set apart, by their mean reward.
///
/// # Errors
/// If a setting is out of range, the folder belongs to another run, or an environment or the
/// server fails.
pub async fn train<'d>(
    service: &ServiceClient,
    config: &Config,
    problems: impl Into<Problems<'d>>,
    folder: impl AsRef<Path>,
    hooks: Hooks<'_>,
) -> Result<Outcome, Error> {
    let reference = if config.kl_penalty > 0.0 {
        let (adapter, reference) = (&config.adapter, config.kl_reference.as_ref());
        let sampler = run::reference_sampler(service, adapter, reference).await?;
        let reference = Reference::new(sampler, config.kl_penalty);
        Some(reference.discounted(config.kl_discount))
    } else {
        None
    };
    train_towards(service, config, problems, reference, folder, hooks).await
}

/// Trains as [`train`] does, and pulls the model towards a reference of the caller's choice.
///
/// # Errors
/// As [`train`].
pub async fn train_towards<'d>(
    service: &ServiceClient,
    config: &Config,
    problems: impl Into<Problems<'d>>,
    reference: Option<Reference>,
    folder: impl AsRef<Path>,
    mut hooks: Hooks<'_>,
) -> Result<Outcome, Error> {
    let split = problems.into();
    if let Some(outcome) = finished(config, split, &folder)? {
        return Ok(outcome);
    }
    config.evaluation.check_data(split.eval.len())?;
    if let Some(reference) = &reference {
        reference.check(split.train.len())?;
    }
    let plan = plan(config, split);
    let run_folder = folder.as_ref().to_owned();
    let mut run = Run::open(service, &config.adapter, plan, config, folder)
        .await?
        .keeping(config.checkpoints)
        .evaluating(config.evaluation, Goal::REWARD);
    transcripts::drop_from(&run_folder, run.steps_done())?;
    let mut sampler = run.training.save_weights_and_get_sampling_client().await?;
    let mut players = Players::new(config, split.train, run.trained_on().into_iter())?;
    let weighing = Weighing {
        baseline: config.baseline,
        reference: reference.as_ref(),
        mask: config.policy.loss.kind.is_of_sequences(),
    };

    while run.steps_done() < config.policy.steps && !hooks.interrupt.is_set() {
        let step = run.steps_done();
        // Before more episodes are played than may be needed.
        let evaluated = evaluate(&mut run, split.eval, config, &sampler, false, &mut hooks).await;
        if evaluated.is_err() {
            return lost(run, evaluated).await;
        }
        if run.stops_early() {
            break;
        }
        players.begin(step, &sampler);
        let mut learning = Learning::new(config);
        let mut later = Vec::new();
        for part in 0..config.policy.parts() {
            let played = async {
                let part = players.part(part, &sampler).await?;
                let (groups, problems) = (&part.played.groups, &part.played.problems);
                let batch = Batch::new(groups, problems, weighing).await?;
                Ok::<_, Error>((part, batch))
            };
            let (part, batch) = match played.await {
                Ok(played) => played,
                Err(error) => {
                    learning.give_up().await;
                    return lost(run, Err(error)).await;
                }
            };
            if learning.parts < config.policy.minibatches {
                learning.pass(batch, &run);
            } else {
                later.push(batch);
            }
            learning.add(part.played, part.problems, part.failed);
            learning.staleness = learning.staleness.max(part.staleness);
            learning.stale += part.stale;
        }
        players.end();
        let groups = &learning.played.groups;
        if let (true, Some(error)) = (groups.is_empty(), learning.failed.take()) {
            return lost(run, Err(error)).await;
        }
        transcripts::write(&run_folder, step, groups, config.episodes.transcripts)?;
        if let Some(failure) = &learning.played.last_failure {
            hooks.failure(failure);
        }
        let rate = config.learning_rate.rate(step, config.policy.steps);
        let adam = config.adam.with_rate(rate);
        learning.update(adam, &run);
        let mut later = later.into_iter();
        for _ in 1..config.policy.substeps {
            for batch in later.by_ref().take(config.policy.minibatches) {
                learning.pass(batch, &run);
            }
            learning.update(adam, &run);
        }
        let save = run.training.save_weights_and_get_sampling_client();
        let save = (!learning.updates.is_empty()).then(|| save.submit());
        let examples = std::mem::take(&mut learning.problems);
        let mut numbers = learning.numbers(config).await?;
        if let Some(save) = save {
            numbers.insert("learning_rate".to_owned(), adam.learning_rate);
            sampler = save.await?;
        }
        numbers.extend(run.speed(numbers["tokens"]));
        let save = run.save_due(step + 1, config.checkpoint_every);
        let steps = config.policy.steps;
        run.finish_step(examples, numbers, steps, save, &mut hooks)
            .await?;
    }
    let finished = run.steps_done() >= config.policy.steps;
    if finished {
        let evaluated = evaluate(&mut run, split.eval, config, &sampler, true, &mut hooks).await;
        if evaluated.is_err() {
            return lost(run, evaluated).await;
        }
    }
    let finished = finished || run.stops_early();
    run.end(finished).await
}

/// Saves a checkpoint of a run that cannot go on.
async fn lost(run: Run, failed: Result<(), Error>) -> Result<Outcome, Error> {
    // If this fails too, the first error says more.
    let ended = run.end(false).await;
    failed.and(ended)
}

/// Plays each problem once with the present weights, if it is time to, with the same draws each time.
async fn evaluate(
    run: &mut Run,
    problems: &[Arc<dyn Problem>],
    config: &Config,
    sampler: &SamplingClient,
    is_last: bool,
    hooks: &mut Hooks<'_>,
) -> Result<(), Error> {
    if problems.is_empty() || !run.eval_due(is_last) {
        return Ok(());
    }
    let limits = Episodes {
        min_group_size: config.episodes.min_group_size.min(1),
        ..config.episodes
    };
    let played = play(sampler, problems, &limits, 1, Some(EVAL_SEED)).await?;
    let rewards = played.groups.iter().flatten().map(|episode| episode.reward);
    let mean = rewards.sum::<f64>() / played.groups.len().max(1) as f64;
    let mut numbers = Numbers::from([(Goal::REWARD.number.to_owned(), mean)]);
    if played.dropped > 0 {
        numbers.insert("eval_episodes_dropped".to_owned(), played.dropped as f64);
    }
    run.evaluated(numbers, hooks).await
}

/// A step as it is learned from.
struct Learning {
    loss: tinkrs::LossFn,
    /// How many parts have come.
    parts: usize,
    played: Played,
    problems: Vec<usize>,
    failed: Option<Error>,
    staleness: usize,
    stale: usize,
    reference_gap: (f64, usize),
    /// Passes since the last update.
    passes: Vec<Pass>,
    updates: Vec<Update>,
}

/// A pass that was submitted, and what it is over.
struct Pass {
    sequences: Vec<Sequence>,
    output: Pending<ForwardBackwardOutput>,
}

/// An update that was submitted, and the passes that it is made of.
struct Update {
    passes: Vec<Pass>,
    output: Pending<OptimStepOutput>,
}

impl Learning {
    fn new(config: &Config) -> Self {
        Self {
            loss: config.policy.loss.to_loss_fn(),
            parts: 0,
            played: Played::default(),
            problems: Vec::new(),
            failed: None,
            staleness: 0,
            stale: 0,
            reference_gap: (0.0, 0),
            passes: Vec::new(),
            updates: Vec::new(),
        }
    }

    /// Adds what was played.
    fn add(&mut self, played: Played, problems: Vec<usize>, failed: Option<Error>) {
        self.parts += 1;
        self.played.extend(played);
        self.problems.extend(problems);
        self.failed = failed.or(self.failed.take());
    }

    /// Submits a pass, unless there is nothing to learn.
    fn pass(&mut self, batch: Batch, run: &Run) {
        let (gap, tokens) = batch.reference_gap;
        self.reference_gap.0 += gap;
        self.reference_gap.1 += tokens;
        if batch.datums.is_empty() {
            return;
        }
        let pass = run.training.forward_backward(batch.datums);
        self.passes.push(Pass {
            sequences: batch.sequences,
            output: pass.loss(self.loss.clone()).submit(),
        });
    }

    /// Submits an update, unless there was nothing to learn.
    fn update(&mut self, adam: tinkrs::AdamParams, run: &Run) {
        if self.passes.is_empty() {
            return;
        }
        self.updates.push(Update {
            passes: std::mem::take(&mut self.passes),
            output: run.training.optim_step(adam).submit(),
        });
    }

    /// Waits for what was submitted, whatever comes of it. Without an update it is not in the weights.
    async fn give_up(self) {
        for pass in self.passes {
            let _ = pass.output.await;
        }
    }

    /// Waits for all updates. Returns the numbers of the step.
    async fn numbers(self, config: &Config) -> Result<Numbers, Error> {
        let mut numbers = numbers(&self.played.groups);
        if self.played.failures > 0 || config.episodes.tolerates() {
            numbers.extend(self.played.numbers());
        }
        numbers.insert("staleness".to_owned(), self.staleness as f64);
        if config.policy.asynchronous {
            numbers.insert("groups_stale".to_owned(), self.stale as f64);
        }
        let (gap, tokens) = self.reference_gap;
        if tokens > 0 {
            numbers.insert("kl_reference".to_owned(), gap / tokens as f64);
        }
        let last = self.updates.len().saturating_sub(1);
        let mut losses: Option<f64> = None;
        for (index, update) in self.updates.into_iter().enumerate() {
            let mut distance = Some((0.0, 0));
            for pass in update.passes {
                let output = pass.output.await?;
                if let Some(loss) = output.loss() {
                    losses = Some(losses.unwrap_or(0.0) + loss);
                }
                let gap = sampler_trainer_gap(&pass.sequences, &output);
                distance = distance
                    .zip(gap)
                    .map(|(all, gap): ((f64, usize), _)| (all.0 + gap.0, all.1 + gap.1));
            }
            let distance = distance.filter(|(_, tokens)| *tokens > 0);
            let distance = distance.map(|(gap, tokens)| gap / tokens as f64);
            // The first update has the weights that played, but for staleness; the last has moved on.
            if let (0, Some(distance)) = (index, distance) {
                numbers.insert("kl".to_owned(), distance);
            } else if let Some(distance) = distance.filter(|_| index == last) {
                numbers.insert("kl_last_substep".to_owned(), distance);
            }
            let update = update.output.await?;
            let metrics = update.metrics.unwrap_or_default();
            numbers.extend(run::prefixed("optim/", metrics));
        }
        numbers.extend(losses.map(|loss| ("loss".to_owned(), loss)));
        Ok(numbers)
    }
}
