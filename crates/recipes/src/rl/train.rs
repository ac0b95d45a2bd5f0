//! The reinforcement loop.
//!
//! Playing and training overlap. With a staleness budget of `k`, the episodes of step `s` start
//! as soon as step `s - k` is in the weights, so `k` steps' worth of episodes are being played
//! while one trains. Step `s` then learns from weights at most `k` steps old, by construction;
//! the loss corrects for the difference.

use super::batch::{Batch, Reference, sampler_trainer_kl};
use super::config::Config;
use super::env::Problem;
use super::episodes::Episodes;
use super::rollout::{Played, mix, play};
use super::transcripts;
use crate::Error;
use crate::data::{Batches, Split};
use crate::run::{self, Goal, Hooks, Numbers, Outcome, Plan, Run};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use tinkrs::{SamplingClient, ServiceClient};
use tokio::task::JoinSet;

/// Of the draws in evaluations.
const EVAL_SEED: u64 = 0;

type Problems<'d> = Split<'d, Arc<dyn Problem>>;

fn words(problems: &[Arc<dyn Problem>]) -> impl Iterator<Item = u32> {
    let identities = problems.iter().map(|problem| problem.identity());
    identities.flat_map(|words| run::counted(&words).collect::<Vec<_>>())
}

fn plan(config: &Config, problems: Problems<'_>) -> Plan {
    let in_a_step = config.policy.problems_per_step;
    Plan::new(problems.train.len(), in_a_step, config.seed)
        .of_words(words(problems.train))
        .evaluated_with(words(problems.eval))
        .starting_from(config.adapter.from.clone())
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
/// saves a checkpoint and returns. If an environment fails, a checkpoint is saved before the error is
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
        Some(Reference {
            sampler: run::sampler_before(service, &config.adapter).await?,
            weight: config.kl_penalty,
        })
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
    let problems = split.train;
    let batches = Batches::new(problems.len(), config.policy.problems_per_step, config.seed)?;
    let plan = plan(config, split);
    let run_folder = folder.as_ref().to_owned();
    let mut run = Run::open(service, &config.adapter, plan, config, folder)
        .await?
        .keeping(config.checkpoints)
        .evaluating(config.evaluation, Goal::REWARD);
    transcripts::drop_from(&run_folder, run.steps_done())?;
    let mut sampler = run.training.save_weights_and_get_sampling_client().await?;
    let mut playing: VecDeque<Playing> = VecDeque::new();

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
        while playing.len() <= config.policy.max_staleness
            && step + playing.len() < config.policy.steps
        {
            let next = step + playing.len();
            let chosen = batches.batch(next);
            playing.push_back(Playing::start(
                config, &sampler, problems, chosen, next, step,
            ));
        }
        let mut played = playing
            .pop_front()
            .expect("at least this step is being played");
        let mut episodes = match played.wait().await {
            Ok(episodes) => episodes,
            Err(error) => return lost(run, Err(error)).await,
        };
        transcripts::write(
            &run_folder,
            step,
            &episodes.groups,
            config.episodes.transcripts,
        )?;
        let groups = std::mem::take(&mut episodes.groups);
        let batch = Batch::new(groups, config.baseline, reference.as_ref()).await?;
        let mut numbers = batch.numbers;
        if episodes.failures > 0 || config.episodes.tolerates() {
            numbers.extend(episodes.numbers());
        }
        if let Some(failure) = &episodes.last_failure {
            hooks.failure(failure);
        }
        numbers.insert("staleness".to_owned(), (step - played.version) as f64);

        if !batch.datums.is_empty() {
            let rate = config.learning_rate.rate(step, config.policy.steps);
            let adam = config.adam.with_rate(rate);
            numbers.insert("learning_rate".to_owned(), adam.learning_rate);
            let loss = config.policy.loss.to_loss_fn();
            let pass = run
                .training
                .forward_backward(batch.datums)
                .loss(loss)
                .submit();
            let update = run.training.optim_step(adam).submit();
            let save = run.training.save_weights_and_get_sampling_client().submit();
            let output = pass.await?;
            numbers.extend(output.loss().map(|loss| ("loss".to_owned(), loss)));
            let kl = sampler_trainer_kl(&batch.sequences, &output);
            numbers.extend(kl.map(|kl| ("kl".to_owned(), kl)));
            numbers.extend(run::prefixed(
                "optim/",
                update.await?.metrics.unwrap_or_default(),
            ));
            sampler = save.await?;
        }
        numbers.extend(run.speed(numbers["tokens"]));
        let save = run.save_due(step + 1, config.checkpoint_every);
        let steps = config.policy.steps;
        run.finish_step(played.problems, numbers, steps, save, &mut hooks)
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

/// The episodes of a step, being played in a task of their own. Dropping it stops them.
struct Playing {
    problems: Vec<usize>,
    /// How many steps the weights have seen that they are played with.
    version: usize,
    task: JoinSet<Result<Played, Error>>,
}

impl Playing {
    fn start(
        config: &Config,
        sampler: &SamplingClient,
        problems: &[Arc<dyn Problem>],
        chosen: Vec<usize>,
        step: usize,
        version: usize,
    ) -> Self {
        let problems: Vec<_> = chosen
            .iter()
            .map(|index| Arc::clone(&problems[*index]))
            .collect();
        let (sampler, group_size) = (sampler.clone(), config.policy.group_size);
        let (seed, limits) = (Some(mix(config.seed, step as u64)), config.episodes);
        let mut task = JoinSet::new();
        task.spawn(async move { play(&sampler, &problems, &limits, group_size, seed).await });
        Self {
            problems: chosen,
            version,
            task,
        }
    }

    async fn wait(&mut self) -> Result<Played, Error> {
        let joined = self.task.join_next().await.expect("the task was spawned");
        joined.map_err(|panic| Error::Caller {
            what: "an environment",
            source: panic.into(),
        })?
    }
}
