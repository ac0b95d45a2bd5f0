//! `tinkrs train reward`: learning what answers are worth, from preferences.

use serde::{Deserialize, Serialize};
use tinkrs_recipes::Tokens;
use tinkrs_recipes::data::Source;
use tinkrs_recipes::reward::{self, Asking};
use tinkrs_recipes::run::Hooks;

use super::options::{EvalArgs, LengthArgs, RunArgs};
use super::rate::LearnsFrom;
use super::{Training, pairs};
use crate::context::Context;

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
    let read = |sources: &[Source]| asking.read_all(sources, max_tokens, too_long);
    let (eval_file, passes) = (eval_file.as_deref(), &config.passes);
    let pairs = pairs::read(&args.run, eval_file, &args.length, passes, read)?;
    let steps = passes.steps(pairs.train.len())?;
    let tokens = Tokens::of_reward(&config, &pairs)?;
    let finished = reward::finished(&config, &pairs, &training.folder);
    let train = async |training: &Training<'_>, hooks: Hooks<'_>| {
        let service = &training.backend.service;
        Ok(reward::train(service, &config, &pairs, &training.folder, hooks).await?)
    };
    let pass = pairs::pass_size(&config.adapter, passes, &pairs);
    training
        .run("accuracy", &tokens, steps, pass, finished, train)
        .await
}
