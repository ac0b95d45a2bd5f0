//! `tinkrs train dpo`: learning from preferences.

use tinkrs_recipes::dpo::{self, Pair};
use tinkrs_recipes::run::Hooks;
use tinkrs_recipes::{Schedule, Tokens};

use super::Training;
use super::options::RunArgs;
use super::sft::{LengthArgs, PassArgs};
use crate::context::Context;
use crate::human::counted;
use crate::report::note;

/// Learn which of two answers is better (DPO), from a JSONL file
///
/// Each line is {"messages": [{"role": "user", "content": "…"}], "chosen": "…", "rejected": "…"}, or the same
/// with a "prompt" of plain text, without a chat format, instead of the messages. Ctrl-C saves a
/// checkpoint; the same command goes on from there, with no batch twice and none left out.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    run: RunArgs,

    #[command(flatten)]
    length: LengthArgs,

    #[command(flatten)]
    passes: PassArgs,

    /// How strongly the model is held to where it began; higher holds it closer. Default 0.1
    #[arg(long, value_name = "X")]
    beta: Option<f64>,
}

fn settings(args: &Args, model: &str) -> anyhow::Result<dpo::Config> {
    let default = dpo::Config::new(model);
    let (run, passes) = (&args.run, &args.passes);
    Ok(dpo::Config {
        adapter: run.adapter(model),
        learning_rate: run.schedule(Schedule::new(default.learning_rate.peak)),
        beta: args.beta.unwrap_or(default.beta),
        batch_size: passes.batch_size.unwrap_or(default.batch_size),
        epochs: passes.epochs.unwrap_or(default.epochs),
        max_steps: passes.max_steps,
        seed: run.seed.unwrap_or(default.seed),
        checkpoint_every: run.checkpoint_every.unwrap_or(default.checkpoint_every),
        adam: run.adam()?,
    })
}

pub(super) async fn run(ctx: &Context, args: &Args) -> anyhow::Result<()> {
    let training = Training::open(ctx, &args.run, None).await?;
    let file = args.run.data()?;
    let length = args.length.max_tokens();
    let (pairs, left_out) = Pair::read(file, &training.renderer, length, args.length.too_long())?;
    super::not_empty(&pairs, left_out, file)?;
    let config = settings(args, &training.backend.model)?;
    config.check().map_err(super::in_our_words)?;
    let steps = config.steps(pairs.len())?;
    note(format_args!(
        "{} pairs to learn from, {left_out} longer than {length} tokens: {}",
        pairs.len(),
        counted(steps as u64, "step")
    ));
    let tokens = Tokens::of_dpo(&config, &pairs)?;
    let finished = dpo::finished(&config, &pairs, &training.folder);
    let train = async |training: &Training<'_>, hooks: Hooks<'_>| {
        let service = &training.backend.service;
        Ok(dpo::train(service, &config, &pairs, &training.folder, hooks).await?)
    };
    training.run("loss", &tokens, finished, train).await
}
