//! `tinkrs train rl`: learning from rewards.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use tinkrs_recipes::Tokens;
use tinkrs_recipes::data::{Task, read_numbered};
use tinkrs_recipes::rl::{self, Baseline, PolicyLoss, Problem};
use tinkrs_recipes::run::Hooks;

use super::Training;
use super::options::RunArgs;
use crate::choice;
use crate::context::Context;
use crate::human::counted;
use crate::judge::{JudgeArgs, JudgedTask};
use crate::report::note;

/// Learn from rewards, on a JSONL file of questions
///
/// Each line is {"prompt": "…", "answer": "…"}, where the prompt is what a user asks, or the same with
/// "messages". The model answers each question several times, answers are judged, and those better than
/// the others of their group become likelier. Ctrl-C saves a checkpoint; the same command goes on from
/// there with the next questions.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    run: RunArgs,

    #[command(flatten)]
    judge: JudgeArgs,

    #[command(flatten)]
    answer: AnswerArgs,

    #[command(flatten)]
    play: PlayArgs,

    /// How rewards become advantages: group-mean, group-normalized or none. Default the first
    #[arg(long, value_name = "NAME", value_parser = choice::read::<Baseline>)]
    baseline: Option<Baseline>,

    /// How much straying from the base model costs, per token and nat. Default 0
    #[arg(long, value_name = "X")]
    kl_penalty: Option<f64>,
}

/// How the model plays, and learns from it
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PlayArgs {
    /// How many steps. Default 50
    #[arg(long, value_name = "N")]
    pub(super) steps: Option<usize>,

    /// Questions in a step. Default 8
    #[arg(long, value_name = "N")]
    pub(super) problems_per_step: Option<usize>,

    /// Answers to each question. Default 8
    #[arg(long, value_name = "N")]
    pub(super) group_size: Option<usize>,

    /// How many steps old the weights may be that answer. 0 answers and trains in turns. Default 1
    #[arg(long, value_name = "N")]
    pub(super) max_staleness: Option<usize>,

    /// Which policy gradient. Default importance-sampling
    #[arg(long, value_name = "NAME", value_enum)]
    pub(super) loss: Option<Loss>,

    /// The lowest ratio that counts, for `--loss ppo` and `cispo`. Default 0.8
    #[arg(long, value_name = "X")]
    pub(super) clip_low: Option<f64>,

    /// The highest ratio that counts, for `--loss ppo` and `cispo`. Default 1.2
    #[arg(long, value_name = "X")]
    pub(super) clip_high: Option<f64>,
}

/// How long answers may be
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct AnswerArgs {
    /// The most tokens of an answer. Default 128
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
}

impl AnswerArgs {
    pub(super) fn max_tokens(self) -> u32 {
        self.max_tokens.unwrap_or(128)
    }
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum Loss {
    /// Corrected by the probability ratio of trainer and sampler, without a limit
    ImportanceSampling,
    /// With the ratio's effect clipped
    Ppo,
    /// With the ratio clipped, but every token's gradient kept
    Cispo,
}

impl PlayArgs {
    fn loss(&self) -> anyhow::Result<PolicyLoss> {
        let low = self.clip_low.unwrap_or(0.8);
        let high = self.clip_high.unwrap_or(1.2);
        let clips = self.clip_low.is_some() || self.clip_high.is_some();
        Ok(match self.loss {
            None | Some(Loss::ImportanceSampling) if clips => bail!(
                "clip_low and clip_high: for the losses ppo and cispo only; importance-sampling has no limits"
            ),
            None | Some(Loss::ImportanceSampling) => PolicyLoss::ImportanceSampling,
            Some(Loss::Ppo) => PolicyLoss::Ppo { low, high },
            Some(Loss::Cispo) => PolicyLoss::Cispo { low, high },
        })
    }

    /// Makes the settings of a recipe that learns from what the model says.
    pub(super) fn settings(&self, run: &RunArgs, model: &str) -> anyhow::Result<rl::Config> {
        let default = rl::Config::new(model);
        Ok(rl::Config {
            adapter: run.adapter(model),
            learning_rate: run.schedule(default.learning_rate),
            steps: self.steps.unwrap_or(default.steps),
            problems_per_step: self.problems_per_step.unwrap_or(default.problems_per_step),
            group_size: self.group_size.unwrap_or(default.group_size),
            max_staleness: self.max_staleness.unwrap_or(default.max_staleness),
            loss: self.loss()?,
            seed: run.seed.unwrap_or(default.seed),
            checkpoint_every: run.checkpoint_every.unwrap_or(default.checkpoint_every),
            adam: run.adam()?,
            ..default
        })
    }
}

pub(super) async fn run(ctx: &Context, args: &Args) -> anyhow::Result<()> {
    let judge = args.judge.open()?;
    let training = Training::open(ctx, &args.run, None).await?;
    let file = args.run.data()?;
    let tasks = read_numbered::<Task>(file)?;
    super::not_empty(&tasks, 0, file)?;
    let answer_tokens = args.answer.max_tokens();
    let judged = |(line, task)| {
        JudgedTask::new(&training.renderer, task, answer_tokens, &judge)
            .with_context(|| format!("{}, line {line}", file.display()))
    };
    let tasks: Vec<_> = tasks.into_iter().map(judged).collect::<Result<_, _>>()?;
    let longest = tasks.iter().map(JudgedTask::prompt_tokens).max();
    let default = args.play.settings(&args.run, &training.backend.model)?;
    let config = rl::Config {
        baseline: args.baseline.unwrap_or(default.baseline),
        kl_penalty: args.kl_penalty.unwrap_or(default.kl_penalty),
        ..default
    };
    config.check().map_err(super::in_our_words)?;
    note(format_args!(
        "{} questions, {} in a step, {} answers to each: {}",
        tasks.len(),
        config.problems_per_step.min(tasks.len()),
        config.group_size,
        counted(config.steps as u64, "step")
    ));
    let tokens = Tokens::of_rl(&config, longest.unwrap_or(0), answer_tokens);
    let problems: Vec<Arc<dyn Problem>> = tasks
        .into_iter()
        .map(|task| Arc::new(task) as Arc<dyn Problem>)
        .collect();
    let finished = rl::finished(&config, &problems, &training.folder);
    let train = async |training: &Training<'_>, hooks: Hooks<'_>| {
        let service = &training.backend.service;
        Ok(rl::train(service, &config, &problems, &training.folder, hooks).await?)
    };
    training.run("reward", &tokens, finished, train).await
}
