//! `tinkrs eval`: how good a model is on a file.

mod graded;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, ensure};
use serde::Serialize;
use tinkrs::{CheckpointRef, SampleFrom, SamplingClient};
use tinkrs_chat::{Renderer, TrainOn};
use tinkrs_recipes::data::{Examples, Rows, TooLong};
use tinkrs_recipes::evaluate::{Suite, surprise};
use tinkrs_recipes::{Error, Tokens};

use crate::backend::{Backend, BackendArgs};
use crate::context::Context;
use crate::cost;
use crate::human::counted;
use crate::judge::{JudgeArgs, NO_GRADER};
use crate::output::note;
use crate::table::Table;

/// Measure a model on a file: how surprising the text is to it, or how good its answers are
///
/// Without a grader, each line is {"messages": […]} or {"prompt": "…", "completion": "…"}, and the result is
/// the mean negative log-likelihood of the answers' tokens. With `--grader`, `--reward`, `--rewards` or `--reward-command`, each
/// line is {"prompt": "…", "answer": "…"}, where the prompt is what a user asks, or the same with "messages";
/// the model answers, and the result is the mean grade. With `--suite`, the file is one of a published set of tasks. Several
/// checkpoints are compared question by question, and `--out` keeps the answers, so that a measurement that was stopped goes on.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    backend: BackendArgs,

    /// File to measure on, as described above; the same as `--data`
    #[arg(
        value_name = "FILE",
        required_unless_present = "data",
        conflicts_with = "data"
    )]
    file: Option<PathBuf>,

    /// File to measure on
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,

    /// The file is one of a published set of tasks, in its published form
    #[arg(
        long,
        value_name = "NAME",
        value_enum,
        conflicts_with_all = ["grader", "reward", "rewards", "reward_model", "reward_command"]
    )]
    suite: Option<Suite>,

    /// Measure this checkpoint instead of the base model: its path, or its run, such as `my-run@120`. Needs no
    /// `--model`. May be repeated where answers are graded: the others are compared with the first
    #[arg(long, value_name = "PATH")]
    checkpoint: Vec<CheckpointRef>,

    /// Measure the base model, too, and compare checkpoints with it
    #[arg(long, requires = "checkpoint")]
    with_base: bool,

    /// File for the answers and their scores. If it has some, they are not asked for again
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    #[command(flatten)]
    judge: JudgeArgs,

    /// Most tokens of an answer, 128 unless given. Without a grader: of an example, 1024 unless given, since
    /// longer ones are left out
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,

    /// Randomness of the answers; 0 always takes the likeliest token
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f64,

    /// Seed of the answers, for the same ones again
    #[arg(long, value_name = "N")]
    seed: Option<i64>,

    /// Which tokens of a chat count without a grader
    #[arg(long, value_name = "WHICH", value_enum, default_value_t)]
    train_on: TrainOn,

    /// Measure only the first so many lines
    #[arg(long, value_name = "N")]
    limit: Option<usize>,

    /// Do not ask before using the hosted service, which charges for it
    #[arg(long)]
    yes: bool,
}

/// What was measured, of which model.
#[derive(Debug, Serialize)]
struct Evaluation<R> {
    model: String,
    checkpoint: Option<CheckpointRef>,
    data: PathBuf,
    #[serde(flatten)]
    result: R,
}

/// How surprising the text is.
#[derive(Debug, Serialize)]
struct Likelihood {
    metric: &'static str,
    examples: usize,
    /// Examples that were too long.
    skipped: usize,
    tokens: f64,
    mean_nll: f64,
    perplexity: f64,
}

impl Args {
    fn file(&self) -> &Path {
        let file = self.file.as_ref().or(self.data.as_ref());
        file.map_or(Path::new(""), PathBuf::as_path)
    }
}

pub(crate) async fn run(ctx: &Context, args: &Args) -> anyhow::Result<()> {
    ensure!(
        args.temperature >= 0.0 && args.temperature.is_finite(),
        "--temperature: {}, expected 0 or more",
        args.temperature
    );
    // Before a model is loaded for nothing.
    let path = args.file();
    std::fs::File::open(path).with_context(|| format!("could not read {}", path.display()))?;
    let is_graded = args.judge.is_given() || args.suite.is_some();
    if !is_graded {
        ensure!(
            args.checkpoint.len() < 2 && !args.with_base,
            "--checkpoint: several are compared where answers are graded: choose --grader, --reward or --suite"
        );
        ensure!(
            args.out.is_none(),
            "--out: there are answers only where they are graded"
        );
    }
    let mut besides = Vec::new();
    for other in args.judge.others()? {
        besides.extend(other.model(ctx, &args.backend).await?);
    }
    let checkpoint = args.checkpoint.first();
    let backend = Backend::open_for(ctx, &args.backend, checkpoint, besides).await?;
    let measure = async |backend: &Backend| {
        let renderer = backend.renderer()?;
        if is_graded {
            graded::run(ctx, args, backend, &renderer).await
        } else {
            likelihood(ctx, args, backend, &renderer).await
        }
    };
    backend.until_ctrl_c(ctx, measure).await
}

async fn likelihood(
    ctx: &Context,
    args: &Args,
    backend: &Backend,
    renderer: &Renderer,
) -> anyhow::Result<()> {
    refuse_questions(args.file())?;
    let longest = args.max_tokens.unwrap_or(1024);
    let train_on = args.train_on;
    let path = args.file();
    let mut examples = Examples::read(path, renderer, train_on, longest as usize, TooLong::Skip)?;
    if let Some(limit) = args.limit {
        examples.train.truncate(limit);
    }
    let examples_left = examples.train.len();
    ensure!(
        examples_left > 0,
        "{} has no example of up to {longest} tokens",
        path.display()
    );
    let examples_read = examples.train.iter().map(|e| Ok(e?.into_owned()));
    let train = examples_read.collect::<Result<Vec<_>, Error>>()?;
    let read: usize = train.iter().map(|e| e.tokens.len()).sum();
    let tokens = Tokens {
        prefill: read as u64,
        ..Tokens::default()
    };
    cost::confirm(&cost::CostArgs::default(), backend, &tokens, args.yes).await?;
    note(format_args!(
        "reading {}",
        counted(examples_left as u64, "example")
    ));
    let sampler = sampler(args.checkpoint.first(), backend).await?;
    let parts = surprise(&sampler, &train).await?;
    let weight: f64 = parts.iter().map(|part| part.weight).sum();
    ensure!(weight > 0.0, "no token of {} counts", path.display());
    let mean_nll = parts.iter().map(|part| part.nats).sum::<f64>() / weight;
    let result = Likelihood {
        metric: "nll",
        examples: examples_left,
        skipped: examples.skipped,
        tokens: weight,
        mean_nll,
        perplexity: mean_nll.exp(),
    };
    let shown = evaluation(args, backend, result);
    ctx.show(&shown, || {
        let (mut table, result) = (table(&shown), &shown.result);
        table.row(["Examples", &result.examples.to_string()]);
        table.row(["Left out as too long", &result.skipped.to_string()]);
        table.row(["Tokens that count", &result.tokens.to_string()]);
        table.row(["Mean NLL", &format!("{:.4} nats a token", result.mean_nll)]);
        table.row(["Perplexity", &format!("{:.3}", result.perplexity)]);
        table
    })
}

fn evaluation<R>(args: &Args, backend: &Backend, result: R) -> Evaluation<R> {
    Evaluation {
        model: backend.model.clone(),
        checkpoint: args.checkpoint.first().cloned(),
        data: args.file().to_owned(),
        result,
    }
}

fn table<R>(shown: &Evaluation<R>) -> Table {
    let mut table = Table::properties().title(format!("Evaluation on {}", shown.data.display()));
    table.row(["Model", &shown.model]);
    if let Some(checkpoint) = &shown.checkpoint {
        table.row(["Checkpoint", &checkpoint.to_string()]);
    }
    table
}

async fn sampler(
    checkpoint: Option<&CheckpointRef>,
    backend: &Backend,
) -> anyhow::Result<SamplingClient> {
    if let Some(checkpoint) = checkpoint {
        return backend.sampler(checkpoint).await;
    }
    let from = SampleFrom::BaseModel(backend.model.clone());
    let sampler = backend.service.create_sampling_client(from).await;
    sampler.map_err(|error| crate::hint::explain(error, "could not open the model".to_owned()))
}

/// Refuses lines with an `answer` that no grader compares with.
fn refuse_questions(path: &Path) -> anyhow::Result<()> {
    for row in Rows::open(path)? {
        let (place, text) = row?;
        let row: Result<serde_json::Value, _> = serde_json::from_str(&text);
        if row.is_ok_and(|row| row.get("answer").is_some()) {
            return Err(anyhow!(NO_GRADER).context(format!("{place} has an `answer`")));
        }
    }
    Ok(())
}
