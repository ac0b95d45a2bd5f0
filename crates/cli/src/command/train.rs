//! `tinkrs train`: training loops on the command line.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use tinkrs::SamplingParams;
use tinkrs_recipes::data::{Examples, TooLong};
use tinkrs_recipes::evaluate::sample_records;
use tinkrs_recipes::renderer::{Conversation, Message, TrainOn};
use tinkrs_recipes::run::{Hooks, Interrupt, write_samples};
use tinkrs_recipes::{Decay, Schedule, Tokens, report, sft};

use crate::backend::{Backend, BackendArgs};
use crate::report::{note, say};
use crate::steps::Progress;

/// Train a model
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    recipe: Recipe,
}

#[derive(Debug, clap::Subcommand)]
enum Recipe {
    Sft(SftArgs),
}

/// Fine-tune on a JSONL file of chats or prompt/completion pairs
///
/// Each line is {"messages": [{"role": "user", "content": "…"}, …]} or {"prompt": "…", "completion":
/// "…"}. Ctrl-C saves a checkpoint; the same command goes on from there, with no batch twice and none left
/// out.
#[derive(Debug, clap::Args)]
struct SftArgs {
    #[command(flatten)]
    backend: BackendArgs,

    /// File of examples
    #[arg(long, value_name = "FILE")]
    data: PathBuf,

    /// Folder for the run: metrics, journal and report
    #[arg(long, value_name = "DIR")]
    run_dir: PathBuf,

    /// TOML file of settings; what is given here comes first
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Passes over the data
    #[arg(long, value_name = "N")]
    epochs: Option<usize>,

    /// Examples in a step
    #[arg(long, value_name = "N")]
    batch_size: Option<usize>,

    /// Highest learning rate; it falls along a cosine
    #[arg(long, value_name = "RATE")]
    learning_rate: Option<f64>,

    /// Rank of the adapter
    #[arg(long, value_name = "N")]
    rank: Option<u32>,

    /// End after so many steps
    #[arg(long, value_name = "N")]
    max_steps: Option<usize>,

    /// Longest example, in tokens; longer ones are left out
    #[arg(long, value_name = "N", default_value_t = 1024)]
    max_tokens: usize,

    /// Examples to set aside for evaluation; one in twenty unless given
    #[arg(long, value_name = "N")]
    eval: Option<usize>,

    /// Ask this before and after, for the report; may be repeated
    #[arg(long, value_name = "TEXT")]
    ask: Vec<String>,

    /// Do not ask before training on a hosted server
    #[arg(long)]
    yes: bool,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<()> {
    match &args.recipe {
        Recipe::Sft(args) => sft(args).await,
    }
}

async fn sft(args: &SftArgs) -> anyhow::Result<()> {
    let backend = Backend::open(&args.backend).await?;
    let renderer = backend.renderer()?;
    let train_on = TrainOn::LastAssistantMessage;
    let examples = Examples::read(
        &args.data,
        &renderer,
        train_on,
        args.max_tokens,
        TooLong::Skip,
    )?;
    let eval = args.eval.unwrap_or(examples.train.len() / 20);
    let examples = examples.split_eval(eval, 0);
    let config = settings(args, &backend.model)?;
    let steps = config.steps(examples.train.len())?;
    note(&format!(
        "{} examples to train on, {} to evaluate, {} too long: {steps} steps",
        examples.train.len(),
        examples.eval.len(),
        examples.skipped
    ));
    if backend.is_hosted {
        let tokens = Tokens::of_sft(&config, &examples.train, &examples.eval)?;
        confirm(
            &format!("this trains on {tokens}, which is billed"),
            args.yes,
        )?;
    }

    let questions: Vec<_> = args
        .ask
        .iter()
        .map(|question| Conversation::from([Message::user(question)]))
        .collect();
    let params = SamplingParams {
        temperature: 0.0,
        ..renderer.sampling_params(128)
    };
    let mut samples = Vec::new();
    if !questions.is_empty() {
        let base = backend
            .service
            .create_sampling_client(backend.model.as_str());
        let base = base.await?;
        samples = sample_records(&base, &renderer, &questions, &params, 0).await?;
    }

    let mut progress = Progress::of("loss");
    let hooks = Hooks::default();
    stop_on_ctrl_c(hooks.interrupt.clone());
    let hooks = hooks.on_step(|report| progress.step(report));
    let outcome = sft::train(&backend.service, &config, &examples, &args.run_dir, hooks).await?;
    if let (Some(path), false) = (&outcome.sampler, questions.is_empty()) {
        let tuned = backend.service.create_sampling_client(path.clone()).await?;
        samples
            .extend(sample_records(&tuned, &renderer, &questions, &params, outcome.steps).await?);
        write_samples(&args.run_dir, &samples)?;
    }
    let page = report::write(&args.run_dir)?;
    match outcome.sampler {
        Some(path) => say(&format!("{path}\nreport: {}", page.display()))?,
        None => say(&format!(
            "stopped after {} of {steps} steps; the same command goes on from there",
            outcome.steps
        ))?,
    }
    backend.close().await
}

fn settings(args: &SftArgs, model: &str) -> anyhow::Result<sft::Config> {
    let mut config = match &args.config {
        Some(path) => read_config(path)?,
        None => sft::Config {
            learning_rate: Schedule {
                warmup_steps: 5,
                decay: Decay::Cosine,
                ..Schedule::new(5e-4)
            },
            ..sft::Config::new(model)
        },
    };
    config.adapter.base_model = model.to_owned();
    config.adapter.rank = args.rank.unwrap_or(config.adapter.rank);
    config.epochs = args.epochs.unwrap_or(config.epochs);
    config.batch_size = args.batch_size.unwrap_or(config.batch_size);
    config.max_steps = args.max_steps.or(config.max_steps);
    if let Some(rate) = args.learning_rate {
        config.learning_rate.peak = rate;
    }
    Ok(config)
}

fn read_config(path: &Path) -> anyhow::Result<sft::Config> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("could not read {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("{} has a mistake", path.display()))
}

/// Asks before something is billed.
fn confirm(what: &str, yes: bool) -> anyhow::Result<()> {
    note(what);
    if yes {
        return Ok(());
    }
    note("go on? [y/N]");
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => bail!("not confirmed; `--yes` goes on without asking"),
    }
}

fn stop_on_ctrl_c(interrupt: Interrupt) {
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            note("saving a checkpoint; press Ctrl-C again to stop at once");
            interrupt.set();
        }
        if tokio::signal::ctrl_c().await.is_ok() {
            std::process::exit(130);
        }
    });
}
