//! `tinkrs train rl`: learning from rewards.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use tinkrs_recipes::Tokens;
use tinkrs_recipes::data::{Split, Task, read_numbered};
use tinkrs_recipes::rl::{self, Problem};
use tinkrs_recipes::run::Hooks;

use super::Training;
use super::options::{AnswerArgs, EvalArgs, RunArgs};
use crate::context::Context;
use crate::judge::{Judge, JudgeArgs, JudgedTask};

/// Learn from rewards, on a JSONL file of questions
///
/// Each line is {"prompt": "…", "answer": "…"}, where the prompt is what a user asks, or the same with
/// "messages". The model answers each question several times, answers are graded, and those better than
/// the others of their group become likelier. Ctrl-C saves a checkpoint; the same command continues from
/// there with the next questions.
#[derive(Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    run: RunArgs,

    #[command(flatten)]
    judge: JudgeArgs,

    #[command(flatten)]
    answer: AnswerArgs,

    #[command(flatten)]
    recipe: rl::Config,

    #[command(flatten)]
    eval: EvalArgs,
}

impl Default for Args {
    fn default() -> Self {
        Self {
            run: RunArgs::default(),
            judge: JudgeArgs::default(),
            answer: AnswerArgs::default(),
            recipe: rl::Config::new(tinkrs_nano::NAME),
            eval: EvalArgs::default(),
        }
    }
}

pub(super) async fn run(ctx: &Context, args: &Args) -> anyhow::Result<()> {
    args.recipe.check().map_err(super::in_our_words)?;
    let answer_tokens = args.answer.max_tokens()?;
    let judge = args.judge.open()?;
    let eval_file = args.eval.file()?;
    let learn = async |training: &Training<'_>| {
        learn(training, args, eval_file, answer_tokens, judge).await
    };
    Training::with(ctx, &args.run, None, learn).await
}

async fn learn(
    training: &Training<'_>,
    args: &Args,
    eval_file: Option<&Path>,
    answer_tokens: u32,
    judge: Judge,
) -> anyhow::Result<()> {
    let config = rl::Config {
        adapter: training.adapter(&args.recipe.adapter),
        ..args.recipe.clone()
    };
    let file = args.run.data()?;
    let read = |file: &Path| {
        let tasks = read_numbered::<Task>(file)?;
        super::not_empty(&tasks, 0, file)?;
        let judged = |(line, task)| {
            JudgedTask::new(&training.renderer, task, answer_tokens, &judge)
                .with_context(|| format!("{}, line {line}", file.display()))
        };
        tasks.into_iter().map(judged).collect::<Result<Vec<_>, _>>()
    };
    let tasks = read(file)?;
    let eval = eval_file.map(read).transpose()?.unwrap_or_default();
    let all = tasks.iter().chain(&eval);
    let longest = all.map(JudgedTask::prompt_tokens).max().unwrap_or(0);
    super::announce(tasks.len(), eval.len(), &config.policy);
    let tokens = Tokens::of_rl(&config, longest, answer_tokens, eval.len());
    let [train, eval] = [tasks, eval].map(|tasks| {
        let tasks = tasks.into_iter();
        let tasks = tasks.map(|task| Arc::new(task) as Arc<dyn Problem>);
        tasks.collect::<Vec<_>>()
    });
    let problems = Split {
        train: &train,
        eval: &eval,
    };
    let finished = rl::finished(&config, problems, &training.folder);
    let train = async |training: &Training<'_>, hooks: Hooks<'_>| {
        let service = &training.backend.service;
        Ok(rl::train(service, &config, problems, &training.folder, hooks).await?)
    };
    let steps = config.policy.steps;
    let episodes = config
        .policy
        .problems_per_step
        .saturating_mul(config.policy.group_size);
    let longest = longest.saturating_add(answer_tokens as usize);
    let pass = super::pass_size(&config.adapter, episodes, longest);
    training
        .run("reward", &tokens, steps, pass, finished, train)
        .await
}
