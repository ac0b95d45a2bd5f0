//! `tinkrs train sft`: learning from examples.

use serde::{Deserialize, Serialize};
use tinkrs_chat::TrainOn;
use tinkrs_recipes::data::{Examples, Source};
use tinkrs_recipes::run::Hooks;
use tinkrs_recipes::{Tokens, sft};

use super::Training;
use super::options::{EvalArgs, LengthArgs, RunArgs, announce};
use super::rate::LearnsFrom;
use crate::context::Context;
use crate::human::counted;
use crate::output::note;

/// Most examples that are set aside for evaluation unless a number is given.
const MOST_EVAL: usize = 1000;

/// Fine-tune on a file of chats or prompt/completion pairs
///
/// Each row is {"messages": [{"role": "user", "content": "…"}, …]} or {"prompt": "…", "completion":
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

    /// Examples of `--data` to set aside for evaluation; one in twenty unless given, up to 1000
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

pub(super) async fn run(ctx: &Context, args: &Args, rate_is_given: bool) -> anyhow::Result<()> {
    args.recipe.check().map_err(super::in_our_words)?;
    let eval_file = args.eval_file.file(&args.run)?;
    let learn = async |training: &Training<'_>| learn(training, args, eval_file).await;
    Training::with(ctx, &args.run, rate_is_given, &[], learn).await
}

async fn learn(
    training: &Training<'_>,
    args: &Args,
    eval_file: Option<Vec<Source>>,
) -> anyhow::Result<()> {
    let config = sft::Config {
        adapter: training.adapter(&args.recipe.adapter),
        learning_rate: training.learning_rate(args.recipe.learning_rate, LearnsFrom::Samples),
        ..args.recipe.clone()
    };
    let sources = args.run.data()?;
    announce(&sources)?;
    let LengthArgs {
        max_tokens,
        too_long,
    } = args.length;
    let read = |sources: &[Source]| {
        let (renderer, train_on) = (&training.renderer, args.train_on);
        let examples = Examples::read_all(sources, renderer, train_on, max_tokens, too_long);
        let examples = examples.map_err(super::in_our_words)?;
        super::not_empty(examples.train.len(), examples.skipped, sources)?;
        anyhow::Ok(examples)
    };
    let mut examples = read(&sources)?;
    match eval_file {
        Some(file) => {
            examples = examples.evaluated_with(&read(&file)?)?;
        }
        None => {
            let eval = (examples.train.len() / 20).min(MOST_EVAL);
            examples = examples.split_eval(args.eval.unwrap_or(eval), 0)?;
        }
    }
    let records = examples.train.len();
    if args.pack {
        examples = examples.packed(max_tokens)?;
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
    let tokens = Tokens::of_sft(&config, &examples).map_err(super::in_our_words)?;
    let finished = sft::finished(&config, &examples, &training.folder);
    let train = async |training: &Training<'_>, hooks: Hooks<'_>| {
        let service = &training.backend.service;
        Ok(sft::train(service, &config, &examples, &training.folder, hooks).await?)
    };
    let batch = config.passes.batch_size;
    let pass = super::pass_size(&config.adapter, batch, examples.longest());
    training
        .run("loss", &tokens, steps, pass, finished, train)
        .await
}
