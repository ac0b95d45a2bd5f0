//! `tinkrs eval`: how good a model is on a file.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, ensure};
use futures_util::future::try_join_all;
use serde::Serialize;
use tinkrs::{CheckpointRef, SampleFrom, SamplingClient, SamplingParams};
use tinkrs_chat::{Renderer, TrainOn};
use tinkrs_recipes::data::{Examples, Rows, Task, TooLong, read_numbered};
use tinkrs_recipes::evaluate::{Graded, answers, surprise};
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
/// the mean negative log-likelihood of the answers' tokens. With `--grader` or `--reward-command`, each
/// line is {"prompt": "…", "answer": "…"}, where the prompt is what a user asks, or the same with "messages";
/// the model answers, and the result is the mean grade.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    backend: BackendArgs,

    /// File with one JSON object a line, as described above
    #[arg(long, value_name = "FILE")]
    data: PathBuf,

    /// Measure this checkpoint instead of the base model: its path, or its run, such as `my-run@120`. Needs no
    /// `--model`
    #[arg(long, value_name = "PATH")]
    checkpoint: Option<CheckpointRef>,

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

/// How good the answers are.
#[derive(Debug, Serialize)]
struct Grades {
    metric: &'static str,
    questions: usize,
    mean: f64,
    standard_error: Option<f64>,
    /// Answers that ran out of tokens.
    unfinished: usize,
    items: Vec<Item>,
}

#[derive(Debug, Serialize)]
struct Item {
    line: usize,
    prompt: String,
    completion: String,
    answer: Option<String>,
    score: f64,
}

pub(crate) async fn run(ctx: &Context, args: &Args) -> anyhow::Result<()> {
    ensure!(
        args.temperature >= 0.0 && args.temperature.is_finite(),
        "--temperature: {}, expected 0 or more",
        args.temperature
    );
    // Before a model is loaded for nothing.
    std::fs::File::open(&args.data)
        .with_context(|| format!("could not read {}", args.data.display()))?;
    let backend = Backend::open_for(ctx, &args.backend, args.checkpoint.as_ref()).await?;
    let measure = async |backend: &Backend| {
        let renderer = backend.renderer()?;
        if args.judge.is_given() {
            grades(ctx, args, backend, &renderer).await
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
    refuse_questions(&args.data)?;
    let longest = args.max_tokens.unwrap_or(1024);
    let train_on = args.train_on;
    let path = &args.data;
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
    cost::confirm(backend, &tokens, args.yes).await?;
    note(format_args!(
        "reading {}",
        counted(examples_left as u64, "example")
    ));
    let sampler = sampler(args, backend).await?;
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

async fn grades(
    ctx: &Context,
    args: &Args,
    backend: &Backend,
    renderer: &Renderer,
) -> anyhow::Result<()> {
    let judge = args.judge.open()?;
    let mut tasks = read_numbered::<Task>(&args.data)?;
    tasks.truncate(args.limit.unwrap_or(usize::MAX));
    ensure!(!tasks.is_empty(), "{} has no lines", args.data.display());
    let mut prompt_tokens = 0;
    for (place, task) in &tasks {
        judge.check(task).with_context(|| place.to_string())?;
        let prompt = renderer.prompt(&task.question);
        prompt_tokens += prompt.map_err(|e| Error::from(e).at(place))?.len();
    }
    let max_tokens = args.max_tokens.unwrap_or(128);
    let tokens = Tokens {
        prefill: prompt_tokens as u64,
        sample: tasks.len() as u64 * u64::from(max_tokens),
        ..Tokens::default()
    };
    cost::confirm(backend, &tokens, args.yes).await?;
    note(format_args!(
        "asking {}",
        counted(tasks.len() as u64, "question")
    ));
    let sampler = sampler(args, backend).await?;
    let params = SamplingParams {
        temperature: args.temperature,
        seed: args.seed,
        ..renderer.sampling_params(max_tokens)
    };
    let questions: Vec<_> = tasks
        .iter()
        .map(|(_, task)| task.question.clone())
        .collect();
    let said = answers(&sampler, renderer, &questions, &params).await?;
    let judged = tasks.iter().zip(&said);
    let scores = judged.map(|((_, task), said)| judge.score(task, said));
    let scores = try_join_all(scores).await.map_err(|error| anyhow!(error))?;
    let graded = Graded {
        answers: said,
        scores,
    };
    let unfinished = graded.answers.iter().filter(|answer| !answer.finished);
    let result = Grades {
        metric: "grade",
        questions: tasks.len(),
        mean: graded.mean().unwrap_or_default(),
        standard_error: graded.standard_error(),
        unfinished: unfinished.count(),
        items: tasks
            .into_iter()
            .zip(graded.answers.iter().zip(&graded.scores))
            .map(|((place, task), (said, score))| Item {
                line: place.number(),
                prompt: task.prompt().to_owned(),
                completion: said.message.content.clone(),
                answer: task.answer,
                score: *score,
            })
            .collect(),
    };
    let shown = evaluation(args, backend, result);
    ctx.show(&shown, || {
        let (mut table, result) = (table(&shown), &shown.result);
        table.row(["Questions", &result.questions.to_string()]);
        table.row(["Answers cut short", &result.unfinished.to_string()]);
        let error = result.standard_error;
        let error = error.map_or(String::new(), |error| format!(" ± {error:.4}"));
        table.row(["Mean grade", &format!("{:.4}{error}", result.mean)]);
        table
    })
}

fn evaluation<R>(args: &Args, backend: &Backend, result: R) -> Evaluation<R> {
    Evaluation {
        model: backend.model.clone(),
        checkpoint: args.checkpoint.clone(),
        data: args.data.clone(),
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

async fn sampler(args: &Args, backend: &Backend) -> anyhow::Result<SamplingClient> {
    if let Some(checkpoint) = &args.checkpoint {
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
