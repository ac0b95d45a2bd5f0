//! `tinkrs train sft`: learning from examples.

use std::path::Path;

use serde::{Deserialize, Serialize};
use tinkrs_chat::TrainOn;
use tinkrs_recipes::data::Examples;
use tinkrs_recipes::run::Hooks;
use tinkrs_recipes::{Tokens, sft};

use super::Training;
use super::options::{EvalArgs, LengthArgs, RunArgs};
use crate::context::Context;
use crate::human::counted;
use crate::output::note;

/// Fine-tune on a JSONL file of chats or prompt/completion pairs
///
/// Each line is {"messages": [{"role": "user", "content": "…"}, …]} or {"prompt": "…", "completion":
/// "…"}; a pair is plain text, without a chat format. Ctrl-C saves a checkpoint; the same command
/// continues from there, with no batch twice and none left out.
#[derive(Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    run: RunArgs,

    #[command(flatten)]
    recipe: sft::Config,

    #[command(flatten)]
    length: LengthArgs,

    /// Which tokens count
    #[arg(long, value_name = "WHICH", value_enum)]
    train_on: TrainOn,

    /// Join short examples into sequences of up to `--max-tokens`
    #[arg(long)]
    pack: bool,

    /// Examples of `--data` to set aside for evaluation; one in twenty unless given
    #[arg(
        long,
        value_name = "N",
        help_heading = "Evaluation",
        conflicts_with = "eval_data"
    )]
    eval: Option<usize>,

    #[command(flatten)]
    eval_file: EvalArgs,
}

impl Default for Args {
    fn default() -> Self {
        Self {
            run: RunArgs::default(),
            recipe: sft::Config::new(tinkrs_nano::NAME),
            length: LengthArgs::default(),
            train_on: TrainOn::default(),
            pack: false,
            eval: None,
            eval_file: EvalArgs::default(),
        }
    }
}

pub(super) async fn run(ctx: &Context, args: &Args) -> anyhow::Result<()> {
    args.recipe.check().map_err(super::in_our_words)?;
    let eval_file = args.eval_file.file()?;
    let learn = async |training: &Training<'_>| learn(training, args, eval_file).await;
    Training::with(ctx, &args.run, None, learn).await
}

async fn learn(
    training: &Training<'_>,
    args: &Args,
    eval_file: Option<&Path>,
) -> anyhow::Result<()> {
    let config = sft::Config {
        adapter: training.adapter(&args.recipe.adapter),
        ..args.recipe.clone()
    };
    let file = args.run.data()?;
    let LengthArgs {
        max_tokens,
        too_long,
    } = args.length;
    let read = |file: &Path| {
        let (renderer, train_on) = (&training.renderer, args.train_on);
        let examples = Examples::read(file, renderer, train_on, max_tokens, too_long)?;
        super::not_empty(&examples.train, examples.skipped, file)?;
        anyhow::Ok(examples)
    };
    let mut examples = read(file)?;
    match eval_file {
        Some(file) => {
            let eval = read(file)?;
            examples.eval = eval.train;
            examples.skipped += eval.skipped;
        }
        None => {
            let eval = args.eval.unwrap_or(examples.train.len() / 20);
            examples = examples.split_eval(eval, 0);
        }
    }
    let records = examples.train.len();
    if args.pack {
        examples = examples.packed(max_tokens);
    }
    let steps = config.passes.steps(examples.train.len());
    let steps = steps.map_err(super::in_our_words)?;
    note(format_args!(
        "{} to train on, {} to evaluate, {} longer than {max_tokens} tokens: {}",
        counted(records as u64, "example"),
        examples.eval.len(),
        examples.skipped,
        counted(steps as u64, "step")
    ));
    let tokens = Tokens::of_sft(&config, &examples.train, &examples.eval)?;
    let finished = sft::finished(&config, &examples, &training.folder);
    let train = async |training: &Training<'_>, hooks: Hooks<'_>| {
        let service = &training.backend.service;
        Ok(sft::train(service, &config, &examples, &training.folder, hooks).await?)
    };
    let all = examples.train.iter().chain(&examples.eval);
    let longest = all.map(|example| example.tokens.len()).max().unwrap_or(0);
    let pass = super::pass_size(&config.adapter, config.passes.batch_size, longest);
    training
        .run("loss", &tokens, steps, pass, finished, train)
        .await
}
