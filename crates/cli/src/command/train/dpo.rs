//! `tinkrs train dpo`: learning from preferences.

use serde::{Deserialize, Serialize};
use tinkrs_recipes::Tokens;
use tinkrs_recipes::data::{DataSet, Source};
use tinkrs_recipes::dpo::{self, Pair};
use tinkrs_recipes::run::Hooks;

use super::options::{EvalArgs, LengthArgs, RunArgs};
use super::rate::LearnsFrom;
use super::{Training, pairs};
use crate::context::Context;
use crate::other_model::Other;

/// Learn which of two answers is better (DPO or IPO), from a JSONL file
///
/// Each line is {"messages": [{"role": "user", "content": "…"}], "chosen": "…", "rejected": "…"}, or the same
/// with a "prompt" of plain text, without a chat format, instead of the messages. Ctrl-C saves a
/// checkpoint; the same command continues from there, with no batch twice and none left out.
#[derive(Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    run: RunArgs,

    #[command(flatten)]
    recipe: dpo::Config,

    /// What the model is compared with and kept close to: a checkpoint or the folder of a run, as for `--from`, or a
    /// base model's name. Default: what the run starts from
    #[arg(long, value_name = "MODEL", help_heading = "Loss")]
    reference: Option<String>,

    #[command(flatten)]
    length: LengthArgs,

    #[command(flatten)]
    eval: EvalArgs,
}

impl Default for Args {
    fn default() -> Self {
        Self {
            run: RunArgs::default(),
            recipe: dpo::Config::new(tinkrs_nano::NAME),
            reference: None,
            length: LengthArgs::default(),
            eval: EvalArgs::default(),
        }
    }
}

pub(super) async fn run(ctx: &Context, args: &Args, rate_is_given: bool) -> anyhow::Result<()> {
    args.recipe.check().map_err(super::in_our_words)?;
    let eval_file = args.eval.file(&args.run)?;
    let reference = args.reference.as_deref();
    let reference = reference.map(|text| Other::new("--reference", text));
    let reference = reference.transpose()?;
    let learn =
        async |training: &Training<'_>| learn(training, args, eval_file, reference.as_ref()).await;
    Training::with(ctx, &args.run, rate_is_given, reference.as_slice(), learn).await
}

async fn learn(
    training: &Training<'_>,
    args: &Args,
    eval_file: Option<Vec<Source>>,
    reference: Option<&Other>,
) -> anyhow::Result<()> {
    let reference = match reference {
        Some(other) => Some(other.source(training.backend).await?),
        None => None,
    };
    let config = dpo::Config {
        adapter: training.adapter(&args.recipe.adapter),
        learning_rate: training.learning_rate(args.recipe.learning_rate, LearnsFrom::Preferences),
        reference,
        ..args.recipe.clone()
    };
    let LengthArgs {
        max_tokens,
        too_long,
    } = args.length;
    let read = |sources: &[Source]| {
        DataSet::<Pair>::read_all(sources, &training.renderer, max_tokens, too_long)
    };
    let (eval_file, passes) = (eval_file.as_deref(), &config.passes);
    let pairs = pairs::read(&args.run, eval_file, &args.length, passes, read)?;
    let steps = passes.steps(pairs.train.len())?;
    let tokens = Tokens::of_dpo(&config, &pairs)?;
    let finished = dpo::finished(&config, &pairs, &training.folder);
    let train = async |training: &Training<'_>, hooks: Hooks<'_>| {
        let service = &training.backend.service;
        Ok(dpo::train(service, &config, &pairs, &training.folder, hooks).await?)
    };
    let pass = pairs::pass_size(&config.adapter, passes, &pairs);
    training
        .run("loss", &tokens, steps, pass, finished, train)
        .await
}
