//! `tinkrs train sft`: learning from examples.

use tinkrs_chat::TrainOn;
use tinkrs_recipes::data::{Examples, TooLong};
use tinkrs_recipes::run::Hooks;
use tinkrs_recipes::{Decay, Schedule, Tokens, sft};

use super::Training;
use super::options::RunArgs;
use crate::choice;
use crate::context::Context;
use crate::human::counted;
use crate::report::note;

/// Fine-tune on a JSONL file of chats or prompt/completion pairs
///
/// Each line is {"messages": [{"role": "user", "content": "…"}, …]} or {"prompt": "…", "completion":
/// "…"}; a pair is plain text, without a chat format. Ctrl-C saves a checkpoint; the same command goes on
/// from there, with no batch twice and none left out.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    run: RunArgs,

    #[command(flatten)]
    length: LengthArgs,

    #[command(flatten)]
    passes: PassArgs,

    /// Which tokens count: last-assistant-message, all-assistant-messages or all-tokens. Default the first
    #[arg(long, value_name = "WHICH", value_parser = choice::read::<TrainOn>)]
    train_on: Option<TrainOn>,

    /// Join short examples into sequences of up to `--max-tokens`
    #[arg(long)]
    pack: bool,

    /// Examples to set aside for evaluation. Default one in twenty
    #[arg(long, value_name = "N")]
    eval: Option<usize>,

    /// Evaluate every so many steps, before the first and at the end; 0 never does. Default 20
    #[arg(long, value_name = "N")]
    eval_every: Option<usize>,
}

/// How long examples may be
#[derive(Clone, Debug, clap::Args)]
pub(super) struct LengthArgs {
    /// Longest example, in tokens. Default 1024
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,

    /// What to do with longer examples: skip, truncate or refuse. Default skip
    #[arg(long, value_name = "HOW", value_parser = choice::read::<TooLong>)]
    too_long: Option<TooLong>,
}

impl LengthArgs {
    pub(super) fn max_tokens(&self) -> usize {
        self.max_tokens.unwrap_or(1024)
    }

    pub(super) fn too_long(&self) -> TooLong {
        self.too_long.unwrap_or(TooLong::Skip)
    }
}

/// How often the data are gone through
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PassArgs {
    /// Passes over the data. Default 1
    #[arg(long, value_name = "N")]
    pub(super) epochs: Option<usize>,

    /// Lines of the file in a step. Default 16
    #[arg(long, value_name = "N")]
    pub(super) batch_size: Option<usize>,

    /// End after so many steps
    #[arg(long, value_name = "N")]
    pub(super) max_steps: Option<usize>,
}

/// Makes the settings that a recipe of supervised steps has.
pub(super) fn settings(
    run: &RunArgs,
    passes: &PassArgs,
    model: &str,
) -> anyhow::Result<sft::Config> {
    let default = sft::Config::new(model);
    Ok(sft::Config {
        adapter: run.adapter(model),
        learning_rate: run.schedule(Schedule {
            warmup_steps: 5,
            decay: Decay::Cosine,
            ..Schedule::new(5e-4)
        }),
        batch_size: passes.batch_size.unwrap_or(default.batch_size),
        epochs: passes.epochs.unwrap_or(default.epochs),
        max_steps: passes.max_steps,
        seed: run.seed.unwrap_or(default.seed),
        checkpoint_every: run.checkpoint_every.unwrap_or(default.checkpoint_every),
        eval_every: default.eval_every,
        adam: run.adam()?,
    })
}

pub(super) async fn run(ctx: &Context, args: &Args) -> anyhow::Result<()> {
    let training = Training::open(ctx, &args.run, None).await?;
    let file = args.run.data()?;
    let length = args.length.max_tokens();
    let examples = Examples::read(
        file,
        &training.renderer,
        args.train_on.unwrap_or_default(),
        length,
        args.length.too_long(),
    )?;
    super::not_empty(&examples.train, examples.skipped, file)?;
    let eval = args.eval.unwrap_or(examples.train.len() / 20);
    let mut examples = examples.split_eval(eval, 0);
    let records = examples.train.len();
    if args.pack {
        examples = examples.packed(length);
    }
    let mut config = settings(&args.run, &args.passes, &training.backend.model)?;
    config.eval_every = args.eval_every.unwrap_or(config.eval_every);
    config.check().map_err(super::in_our_words)?;
    let steps = config
        .steps(examples.train.len())
        .map_err(super::in_our_words)?;
    note(format_args!(
        "{records} examples to train on, {} to evaluate, {} longer than {length} tokens: {}",
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
    training.run("loss", &tokens, finished, train).await
}
