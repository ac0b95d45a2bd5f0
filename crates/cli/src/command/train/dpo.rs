//! `tinkrs train dpo`: learning from preferences.

use serde::{Deserialize, Serialize};
use tinkrs_recipes::Tokens;
use tinkrs_recipes::data::{Source, Split};
use tinkrs_recipes::dpo::{self, Pair};
use tinkrs_recipes::run::Hooks;

use super::Training;
use super::options::{EvalArgs, LengthArgs, RunArgs, announce};
use super::rate::LearnsFrom;
use crate::context::Context;
use crate::human::counted;
use crate::other_model::Other;
use crate::output::note;

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
    let sources = args.run.data_without_weights()?;
    announce(&sources)?;
    let LengthArgs {
        max_tokens,
        too_long,
    } = args.length;
    let read = |sources: &[Source]| {
        let (pairs, left_out) = Pair::read_all(sources, &training.renderer, max_tokens, too_long)?;
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
    let tokens = Tokens::of_dpo(&config, pairs)?;
    let finished = dpo::finished(&config, pairs, &training.folder);
    let train = async |training: &Training<'_>, hooks: Hooks<'_>| {
        let service = &training.backend.service;
        Ok(dpo::train(service, &config, pairs, &training.folder, hooks).await?)
    };
    let all = pairs.train.iter().chain(pairs.eval);
    let lengths = all.map(|pair| pair.chosen.tokens.len().max(pair.rejected.tokens.len()));
    let in_a_step = config.passes.batch_size.saturating_mul(2);
    let pass = super::pass_size(&config.adapter, in_a_step, lengths.max().unwrap_or(0));
    training
        .run("loss", &tokens, steps, pass, finished, train)
        .await
}
