//! `tinkrs train reward`: learning what answers are worth, from preferences.

use serde::{Deserialize, Serialize};
use tinkrs_recipes::Tokens;
use tinkrs_recipes::data::{Source, Split};
use tinkrs_recipes::reward::{self, Asking, JudgedPair};
use tinkrs_recipes::run::Hooks;

use super::Training;
use super::options::{EvalArgs, LengthArgs, RunArgs, announce};
use super::rate::LearnsFrom;
use crate::context::Context;
use crate::human::counted;
use crate::output::note;

/// Train a reward model on a file of preferences (Bradley–Terry)
///
/// Each line is {"messages": [{"role": "user", "content": "…"}], "chosen": "…", "rejected": "…"}, or the same
/// with a "prompt", which is what a user asks. The model learns to say Yes or No when it is asked after an answer
/// whether that is good; `tinkrs train rl --reward-model RUN` then learns to give answers that it likes. Ctrl-C saves
/// a checkpoint; the same command continues from there, with no batch twice and none left out.
#[derive(Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    run: RunArgs,

    #[command(flatten)]
    recipe: reward::Config,

    #[command(flatten)]
    length: LengthArgs,

    #[command(flatten)]
    eval: EvalArgs,
}

impl Default for Args {
    fn default() -> Self {
        Self {
            run: RunArgs::default(),
            recipe: reward::Config::new(tinkrs_nano::NAME),
            length: LengthArgs::default(),
            eval: EvalArgs::default(),
        }
    }
}

pub(super) async fn run(ctx: &Context, args: &Args, rate_is_given: bool) -> anyhow::Result<()> {
    args.recipe.check().map_err(super::in_our_words)?;
    let eval_file = args.eval.file(&args.run)?;
    let learn = async |training: &Training<'_>| learn(training, args, eval_file).await;
    Training::with(ctx, &args.run, rate_is_given, &[], learn).await
}

async fn learn(
    training: &Training<'_>,
    args: &Args,
    eval_file: Option<Vec<Source>>,
) -> anyhow::Result<()> {
    let config = reward::Config {
        adapter: training.adapter(&args.recipe.adapter),
        learning_rate: training.learning_rate(args.recipe.learning_rate, LearnsFrom::Samples),
        ..args.recipe.clone()
    };
    let LengthArgs {
        max_tokens,
        too_long,
    } = args.length;
    let asking = Asking::new(&training.renderer, &config.question).map_err(super::in_our_words)?;
    let sources = args.run.data_without_weights()?;
    announce(&sources)?;
    let read = |sources: &[Source]| {
        let (pairs, left_out) = asking.read_all(sources, max_tokens, too_long)?;
        super::not_empty(pairs.len(), left_out, sources)?;
        anyhow::Ok((pairs, left_out))
    };
    let (pairs, mut left_out) = read(&sources)?;
    let mut eval = Vec::new();
    if let Some(file) = eval_file {
        let (held_out, longer) = read(&file)?;
        eval = held_out;
        left_out += longer;
    }
    let steps = config.passes.steps(pairs.len())?;
    note(format_args!(
        "{} to learn from, {} to evaluate, {left_out} longer than {max_tokens} tokens: {}",
        counted(pairs.len() as u64, "pair"),
        eval.len(),
        counted(steps as u64, "step")
    ));
    let pairs = Split {
        train: &pairs,
        eval: &eval,
    };
    let tokens = Tokens::of_reward(&config, pairs)?;
    let finished = reward::finished(&config, pairs, &training.folder);
    let train = async |training: &Training<'_>, hooks: Hooks<'_>| {
        let service = &training.backend.service;
        Ok(reward::train(service, &config, pairs, &training.folder, hooks).await?)
    };
    let all = pairs.train.iter().chain(pairs.eval);
    let lengths = all.map(|pair: &JudgedPair| pair.chosen.len().max(pair.rejected.len()));
    let in_a_step = config.passes.batch_size.saturating_mul(2);
    let pass = super::pass_size(&config.adapter, in_a_step, lengths.max().unwrap_or(0));
    training
        .run("accuracy", &tokens, steps, pass, finished, train)
        .await
}
